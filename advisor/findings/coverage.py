"""How much of a run could be judged at all, and what its log would have to hold for the rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.findings.case import Case, Insufficient
from advisor.findings.curves import curve
from advisor.findings.registry import DETECTORS
from advisor.findings.run_facts import has_words, nats_per_unit, vocabulary
from advisor.findings.run_metrics import on_cpu, step_times, telemetry


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Checks that had what they need, of all, and what the log lacks, what most checks wait for first."""

    possible: int
    checks: int
    lacking: tuple[str, ...]


def coverage(case: Case, insufficient: Sequence[Insufficient]) -> Coverage:
    """What was judged and what was not; a detector asks once, however many findings it has."""
    return Coverage(
        possible=max(0, len(DETECTORS) - len(insufficient)), checks=len(DETECTORS), lacking=tuple(_lacking(case))
    )


def _lacking(case: Case) -> list[str]:
    run = case.run
    card_known = case.profile is not None or on_cpu(case) or bool(run.facts.get("gpu"))
    kinds = (
        ("the training loss of each step", not len(curve(run, "loss"))),
        ("step times", step_times(case) is None),
        ("the GPU's name", not card_known),
        ("the model's shape and batch", case.workload is None),
        ("the vocabulary's size", vocabulary(case) is None and nats_per_unit(run) is not None),
        ("a validation loss", not len(curve(run, "eval_loss"))),
        ("the learning rate", not len(curve(run, "learning_rate"))),
        ("the gradient norm", not len(curve(run, "grad_norm"))),
        ("telemetry of the GPU", not len(telemetry(case, "utilization")) and not on_cpu(case)),
        ("what the program printed", not has_words(run)),
    )
    return [words for words, missing in kinds if missing]
