"""What detectors are given and what they give back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from advisor.prediction.profile import Profile
from advisor.readers.run_table import RunTable
from advisor.records import Estimate, Plan, Prediction, Workload
from advisor.store.disk import read_yaml


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
    """A detector that could not judge, which is neither silence nor a pass."""

    code: str
    missing: str  # in words: what would have to be logged or given


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run with everything known beside its log. Detectors read it and change nothing."""

    run: RunTable
    workload: Workload | None = None  # from facts and options; None: the shape is not known
    profile: Profile | None = None  # of the GPU, calibrated or prior; None: GPU unknown
    expected: Prediction | None = None  # what this workload should give on this GPU
    usd_per_hour: float | None = None  # all devices together
    plan: Plan | None = None
    unsure: tuple[str, ...] = ()  # what had to be assumed to get `workload`, in words
    notes: dict[str, str] = field(default_factory=dict)


Verdict = Finding | Insufficient | None
Told = str | Evidence
Cost = tuple[Estimate | None, Estimate | None]  # hours, dollars

_READ_AS: dict[str, Callable[[Any], Any]] = {
    **{"severity": Severity, "confidence": Confidence, "title": str},
    **{"causes": tuple, "actions": tuple, "threshold": str},
}


def finding(
    code: str, *, evidence: Told | Sequence[Told], text: str = "", saved: Cost = (None, None), **known: Any
) -> Finding:
    """Returns the finding of a code; a field that `known` lacks is that of the row `text` of the table, else `code`.

    Of `evidence`, causes and actions one may stand alone, and what is empty is left out. `saved`: hours and dollars, as
    `spend.cost_of_steps` gives them.
    """
    lists = {name: known[name] for name in ("causes", "actions") if name in known} | {"evidence": evidence}
    for name, given in lists.items():
        told = [one for one in ([given] if isinstance(given, str | Evidence) else given) if one]
        known[name] = tuple(Evidence(text=one) if name == "evidence" and isinstance(one, str) else one for one in told)
    hours, usd = saved
    read = {name: _READ_AS[name](value) for name, value in known.items() if name in ("severity", "confidence")}
    known = {"saved_hours": hours, "saved_usd": usd, **texts().get(text or code, {}), **known, **read}
    return Finding(code=code, **known)


def lacking(code: str, missing: str) -> Insufficient:
    """Returns that a detector could not judge, and what it would need."""
    return Insufficient(code=code, missing=missing)


def seen(text: str, first: float | None = None, last: float | None = None) -> Evidence:
    """Returns an observation made at the steps `first` to `last`; None stands for an end that is not known."""
    ends = [None if step is None else float(step) for step in (first, last)]
    return Evidence(text=text, first_step=ends[0], last_step=ends[1])


@cache
def groups() -> dict[str, Any]:
    """The codes of each group of findings in `groups.yaml`."""
    return read_yaml(Path(__file__).with_name("groups.yaml"), "table of groups")


@cache
def texts() -> dict[str, dict[str, Any]]:
    """The fields of every row of `texts.yaml`, by the row's name."""
    rows = read_yaml(Path(__file__).with_name("texts.yaml"), "table of texts")
    return {name: {field: _READ_AS[field](value) for field, value in row.items()} for name, row in rows.items()}
