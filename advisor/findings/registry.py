"""All detectors by name, and the function that runs them all."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from advisor.findings.case import Case, Confidence, Finding, Insufficient, Severity, Verdict, groups
from advisor.findings.curves import curve
from advisor.findings.detectors import (
    data_budget,
    ending,
    first_loss,
    gpu,
    gradients,
    held_out,
    learning_rate,
    loss,
    machine,
    money,
    nothing_learnt,
    out_of_memory,
    rewards,
    rollouts,
    runs,
    several_gpus,
    speed,
    step_time,
)
from advisor.findings.overlap import EXPECTED
from advisor.findings.run_facts import has_words, nats_per_unit, vocabulary
from advisor.findings.run_metrics import on_cpu, step_times, telemetry
from advisor.findings.savings import most_saved_seconds, stake_seconds, worth_saying
from advisor.findings.schedule import is_rate_sweep
from advisor.readers.run_table import RunTable

Detector = Callable[[Case], Verdict]


def _detectors(*modules: ModuleType) -> tuple[Detector, ...]:
    """Return the functions `detect_…` that these modules define, in the order of their source text."""
    return tuple(
        function
        for module in modules
        for name, function in vars(module).items()
        if name.startswith("detect_") and function.__module__ == module.__name__
    )


PHYSICAL = _detectors(out_of_memory, ending, speed, gpu, several_gpus, machine, step_time, money)
# in the order in which a curve is read: start, accidents, gradients, rates, data, end
LEARNING = _detectors(
    *(first_loss, loss, gradients, learning_rate, nothing_learnt, rewards, rollouts, held_out, data_budget, runs)
)
DETECTORS = (*PHYSICAL, *LEARNING)

_MUCH = 0.1  # of a run
_SEVERITIES, _CONFIDENCES = list(Severity), list(Confidence)


def judge(case: Case) -> tuple[list[Finding], list[Insufficient]]:
    """Return the findings of all detectors, the most serious and expensive first, and what could not be judged."""
    verdicts = [detector(case) for detector in DETECTORS]
    if is_rate_sweep(case.run):
        verdicts = [v for v in verdicts if not isinstance(v, Finding) or v.code not in groups()["of_a_sweep"]]
    if any(isinstance(v, Finding) and v.code == "cpu_fallback" for v in verdicts):
        verdicts = [v for v in verdicts if not isinstance(v, Finding) or v.code not in groups()["of_a_gpu_at_work"]]
    if not case.run.counts_steps:
        verdicts = [_without_steps(v, case.run) if isinstance(v, Finding) else v for v in verdicts]
    whole, stake = most_saved_seconds(case), stake_seconds(case)
    findings = [_within(v, whole) for v in verdicts if isinstance(v, Finding)]
    for at, one in enumerate(findings):
        if one.code in DEMOTED or _wastes_little(one, stake):
            findings[at] = dataclasses.replace(one, severity=Severity.NOTE)
    return sorted(findings, key=_order), [v for v in verdicts if isinstance(v, Insufficient)]


def _wastes_little(finding: Finding, run_seconds: float | None) -> bool:
    """Return True if all that a finding costs is time, less than a minute and less than five cents of it.

    Slow steps of a short run are a warning nevertheless if they take much of it: a longer run would have them too.
    """
    of, saved = groups(), finding.saved_hours
    if saved is None or worth_saying(saved, finding.saved_usd):
        return False
    of_steps = {*itertools.chain(*of["lost"], *of["slow"]), *of["slower"]} - {*of["only_time"]}
    little = saved.value * 3600 < _MUCH * (run_seconds or 0.0)
    return finding.code in of["only_time"] or (finding.code in of_steps and little)


_STEP = re.compile(r"\bstep (\d[\d,]*(?:\.\d+)?)\b")
_STEPS = re.compile(r"\b(\d[\d,]*) (step)(s?)\b")


def _without_steps(finding: Finding, run: RunTable) -> Finding:
    """Return a finding that names epochs or rows, for a log whose rows have a number but no step."""
    number, epoch = run.column("step"), run.column("epoch")

    def place(match: re.Match[str]) -> str:
        at = np.flatnonzero((number == float(match[1].replace(",", ""))) & np.isfinite(epoch))
        return f"epoch {epoch[at[0]]:g}" if len(at) else f"row {match[1]}"

    def words(text: str) -> str:
        return _STEPS.sub(r"\1 row\3", _STEP.sub(place, text))

    return dataclasses.replace(
        finding,
        title=words(finding.title),
        evidence=tuple(dataclasses.replace(one, text=words(one.text)) for one in finding.evidence),
        actions=tuple(map(words, finding.actions)),
    )


def _within(finding: Finding, whole_seconds: float | None) -> Finding:
    """Return the finding with its saving limited to this time; savings on interruptions are not limited."""
    saved = finding.saved_hours
    if saved is None or whole_seconds is None or finding.code in EXPECTED or saved.high * 3600 <= whole_seconds:
        return finding
    most = whole_seconds / 3600
    hours = dataclasses.replace(
        saved, value=min(saved.value, most), low=min(saved.low, most), high=min(saved.high, most)
    )
    per_hour = finding.saved_usd.value / saved.value if finding.saved_usd is not None and saved.value > 0 else None
    usd = hours.scaled(per_hour) if per_hour is not None else finding.saved_usd
    return dataclasses.replace(finding, saved_hours=hours, saved_usd=usd)


def _order(finding: Finding) -> tuple[int, bool, bool, bool, bool, float, float, int]:
    """Return the key of the reading order: severity, its end, doubts about its result, money, hours, confidence."""
    worth = worth_saying(finding.saved_hours, finding.saved_usd)
    usd = finding.saved_usd.value if worth and finding.saved_usd else 0.0
    hours = finding.saved_hours.value if worth and finding.saved_hours else 0.0
    doubtful = finding.code in groups()["doubts"] and finding.confidence is not Confidence.LOW
    return (
        _SEVERITIES.index(finding.severity),
        finding.code not in groups()["endings"],
        finding.code != "cpu_fallback",  # must be fixed before anything else can be judged
        not doubtful,
        finding.code in groups()["of_clocks"],
        -usd,
        -hours,
        _CONFIDENCES.index(finding.confidence),
    )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many checks had the data that they need, of all, and what the log lacks, the most needed first."""

    possible: int
    checks: int
    lacking: tuple[str, ...]


def coverage(case: Case, insufficient: Sequence[Insufficient]) -> Coverage:
    """Return how many detectors could judge. A detector counts once, however many findings it can make."""
    run, checks = case.run, len(DETECTORS)
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
    lacking = tuple(words for words, missing in kinds if missing)
    return Coverage(possible=max(0, checks - len(insufficient)), checks=checks, lacking=lacking)


DEMOTED: dict[str, str] = {
    "early_loss_jump": "wrong 2 of 3 times: a part of the loss, batches of unlike difficulty",
    "loss_noise": "wrong 1 of 4 times: the last row of one epoch",
}
