"""The records that the findings over traces and dumps take and return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from advisor.findings.case import Finding, Insufficient
from advisor.records import Estimate


@dataclass(frozen=True, kw_only=True)
class Rate:
    """What the GPUs of a trace cost. None: unknown."""

    gpus: int | None = None
    usd_per_gpu_hour: float | None = None
    gpu: str | None = None  # its key in the catalog

    @property
    def usd_per_hour(self) -> float | None:
        """Return the price of all GPUs together."""
        return None if self.gpus is None or self.usd_per_gpu_hour is None else self.gpus * self.usd_per_gpu_hour


@dataclass(frozen=True, kw_only=True)
class PartOfWhole:
    """One of the parts that add up to the whole: of a step's seconds, or of the bytes at the peak."""

    name: str
    value: float
    share: float  # of the whole, 0 to 1
    unit: Literal["seconds", "bytes"] = "seconds"


@dataclass(frozen=True, kw_only=True)
class ComparedPart:
    """A part of a step in seconds, as measured and as predicted for the same run. None: it is not predicted."""

    name: str
    measured: float
    predicted: Estimate | None = None

    @property
    def ratio(self) -> float | None:
        """Return the measured over the predicted seconds, or None if none are predicted."""
        return self.measured / self.predicted.value if self.predicted and self.predicted.value else None

    @property
    def lost(self) -> float:
        """Return the seconds beyond the predicted ones."""
        return self.measured - self.predicted.value if self.predicted is not None else 0.0


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What one family of findings says about a trace or dump: one line, the parts of the whole, and findings.

    The findings are ordered by what they cost, dearest first.
    """

    verdict: str
    parts: tuple[PartOfWhole, ...] = ()
    findings: tuple[Finding, ...] = ()
    lacking: tuple[Insufficient, ...] = ()
    compared: tuple[ComparedPart, ...] = ()  # parts of the step, and last the whole step; empty without a prediction
    remarks: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)  # numbers and short words for the JSON document
