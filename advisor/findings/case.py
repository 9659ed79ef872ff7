"""The records that detectors read and return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from advisor.prediction.profile import Profile
from advisor.readers.run_table import RunTable
from advisor.records import Estimate, Plan, Prediction, Workload
from advisor.store.disk import read_yaml


class Severity(StrEnum):
    """How much a finding matters: an error means that money or results are being lost, or that a number is false."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Confidence(StrEnum):
    """How sure a finding is: low means that another explanation is as likely."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One observation on which a finding rests, with the steps at which it was made (None: the whole run)."""

    text: str
    first_step: float | None = None
    last_step: float | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the owner of a run should know."""

    code: str  # stable, lower_snake_case
    severity: Severity
    title: str  # plain words with the decisive numbers
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    causes: tuple[str, ...] = ()  # likeliest first
    actions: tuple[str, ...] = ()  # a config change or a command
    saved_hours: Estimate | None = None  # what acting on it saves in the whole planned run; None: cannot be computed
    saved_usd: Estimate | None = None
    threshold: str = ""  # the compared values, and the source of the threshold


@dataclass(frozen=True, kw_only=True)
class Insufficient:
    """A detector that could not judge. This is neither silence nor a pass."""

    code: str
    missing: str  # in words: the data that the log or the user would have to give


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run with everything that is known beyond its log. Detectors read it and change nothing."""

    run: RunTable
    workload: Workload | None = None  # from facts and options; None: the shape is not known
    profile: Profile | None = None  # of the GPU, calibrated or prior; None: GPU unknown
    expected: Prediction | None = None  # the prediction for this workload on this GPU
    usd_per_hour: float | None = None  # of all devices together
    plan: Plan | None = None
    unsure: tuple[str, ...] = ()  # assumptions behind `workload`, in words
    notes: dict[str, str] = field(default_factory=dict)


Verdict = Finding | Insufficient | None
Told = str | Evidence
Cost = tuple[Estimate | None, Estimate | None]  # hours, dollars

_Record = TypeVar("_Record")
_Answer = TypeVar("_Answer")

_READ_AS: dict[str, Callable[[Any], Any]] = {
    **{"severity": Severity, "confidence": Confidence, "title": str},
    **{"causes": tuple, "actions": tuple, "threshold": str},
}


def answered_once(question: Callable[[_Record], _Answer]) -> Callable[[_Record], _Answer]:
    """Return a function of one frozen record that computes its answer once and keeps it in the record."""
    name = f"answer of {question.__name__}"

    @wraps(question)
    def answer(record: _Record) -> _Answer:
        answers = record.__dict__  # where a cached property lives, too: neither a field nor copied by `replace`
        if name not in answers:
            answers[name] = question(record)
        return cast(_Answer, answers[name])

    return answer


def finding(
    code: str, *, evidence: Told | Sequence[Told], text: str = "", saved: Cost = (None, None), **known: Any
) -> Finding:
    """Return the finding of a code. Missing fields come from the row `text` of the table, or by default the row `code`.

    A single evidence, cause or action may be given without a list; empty ones are left out. `saved` has hours and
    dollars, as `savings.cost_of_steps` returns them.
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
    """Return a record of a detector that could not judge, with the data that it would need."""
    return Insufficient(code=code, missing=missing)


def seen(text: str, first: float | None = None, last: float | None = None) -> Evidence:
    """Return an observation made from step `first` to step `last`; None stands for an unknown end."""
    ends = [None if step is None else float(step) for step in (first, last)]
    return Evidence(text=text, first_step=ends[0], last_step=ends[1])


@cache
def groups() -> dict[str, Any]:
    """Return the codes of each group of findings in `groups.yaml`."""
    return read_yaml(Path(__file__).with_name("groups.yaml"), "table of groups")


@cache
def texts() -> dict[str, dict[str, Any]]:
    """Return the fields of every row of `texts.yaml` here and in `traces`, by the row's name."""
    folder = Path(__file__).parent
    rows = {
        **read_yaml(folder / "texts.yaml", "table of texts"),
        **read_yaml(folder / "traces" / "texts.yaml", "table of texts"),
    }
    return {name: {field: _READ_AS[field](value) for field, value in row.items()} for name, row in rows.items()}
