"""What detectors are given and what they give back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from advisor.prediction.profile import Profile
from advisor.readers.run_table import RunTable
from advisor.records import Estimate, Plan, Prediction, Workload


class Severity(StrEnum):
    """How much a finding matters: error = money or results are being lost or a number cannot be true."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Confidence(StrEnum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One observation a finding rests on, with the steps it was seen at (None: the whole run)."""

    text: str
    first_step: float | None = None
    last_step: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that a run's owner should know."""

    code: str  # stable, lower_snake_case
    severity: Severity
    title: str  # plain words with the decisive numbers
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    causes: tuple[str, ...] = ()  # likeliest first
    actions: tuple[str, ...] = ()  # a config change or a command
    saved_hours: Estimate | None = None  # of the whole planned run, if acted on; None: cannot be computed
    saved_usd: Estimate | None = None
    threshold: str = ""  # what was compared with what, and where the threshold comes from


@dataclass(frozen=True, kw_only=True)
class Insufficient:
    """A detector that could not judge: never silence, never a pass."""

    code: str
    missing: str  # in words: what would have to be logged or given


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run with everything known beside its log. Detectors read it and change nothing."""

    run: RunTable
    workload: Workload | None = None  # from facts and options; None: the shape is not known
    profile: Profile | None = None  # of the card, calibrated or prior; None: card unknown
    expected: Prediction | None = None  # what this workload should give on this card
    usd_per_hour: float | None = None  # all devices together
    plan: Plan | None = None
    unsure: tuple[str, ...] = ()  # what had to be assumed to get `workload`, in words
    notes: dict[str, str] = field(default_factory=dict)


Verdict = Finding | Insufficient | None
