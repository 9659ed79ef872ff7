"""Every detector by name, and the one function that asks them all."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from advisor.findings.case import Case, Confidence, Finding, Insufficient, Severity, Verdict
from advisor.findings.demoted import DEMOTED
from advisor.findings.detectors.batch import detect_bigger_batch
from advisor.findings.detectors.cards import (
    detect_card_hot,
    detect_card_idle,
    detect_card_lost,
    detect_power_cap,
    detect_unknown_load,
)
from advisor.findings.detectors.drift import detect_drift, detect_shift
from advisor.findings.detectors.ending import detect_exception, detect_killed, detect_nccl_timeout, detect_time_limit
from advisor.findings.detectors.epochs import detect_long_epochs
from advisor.findings.detectors.hardware import detect_cpu_fallback, detect_underused, detect_utilization
from advisor.findings.detectors.machine import detect_machine_busy
from advisor.findings.detectors.memory import detect_host_spill, detect_memory_growth, detect_nearly_full
from advisor.findings.detectors.money import (
    detect_cost,
    detect_declared_time,
    detect_goodput,
    detect_idle_device,
    detect_work_done_twice,
)
from advisor.findings.detectors.out_of_memory import detect_out_of_memory
from advisor.findings.detectors.pauses import detect_periodic_pauses, detect_stalls
from advisor.findings.detectors.phases import (
    detect_fast_first_step,
    detect_optimizer_floor,
    detect_pass_floor,
    detect_phase_sum,
    detect_short_backward,
)
from advisor.findings.detectors.rates import detect_impossible_mfu, detect_logged_mfu, detect_rate_arithmetic
from advisor.findings.detectors.throttling import detect_straggler, detect_throttling
from advisor.findings.detectors.throughput import detect_bound, detect_software_bound
from advisor.findings.detectors.timing import detect_data_stall, detect_warm_up
from advisor.findings.learning import LEARNING_DETECTORS
from advisor.findings.overlap import EXPECTED
from advisor.findings.savings import stake_seconds, worth_saying
from advisor.findings.schedule import is_rate_sweep
from advisor.readers.run_table import RunTable

PHYSICAL: tuple[Callable[[Case], Verdict], ...] = (
    *(detect_out_of_memory, detect_nccl_timeout, detect_time_limit, detect_exception, detect_killed),
    *(detect_impossible_mfu, detect_logged_mfu, detect_rate_arithmetic),
    *(detect_optimizer_floor, detect_pass_floor, detect_short_backward, detect_fast_first_step, detect_phase_sum),
    *(detect_cpu_fallback, detect_software_bound, detect_bigger_batch, detect_bound),
    *(detect_utilization, detect_underused, detect_throttling, detect_straggler),
    *(detect_card_lost, detect_card_idle, detect_card_hot, detect_power_cap, detect_unknown_load),
    *(detect_nearly_full, detect_host_spill, detect_memory_growth),
    *(
        detect_machine_busy,
        detect_drift,
        detect_shift,
        detect_data_stall,
        detect_periodic_pauses,
        detect_stalls,
        detect_long_epochs,
        detect_warm_up,
    ),
    *(detect_cost, detect_goodput, detect_idle_device, detect_declared_time, detect_work_done_twice),
)
LEARNING = LEARNING_DETECTORS
DETECTORS = (*PHYSICAL, *LEARNING)

# what happened to this run, of which a longer one need not have more
_ONLY_TIME = frozenset(
    ("stalls", "long_epochs", "periodic_pauses", "drift", "step_time_shift", "goodput", "work_done_twice")
)
# a result that is not what it seems: nobody need save time on such a run before that is settled
_DOUBTS = frozenset(
    (
        *("initial_loss_low", "initial_loss_high", "too_good", "loss_below_floor", "worse_than_uniform"),
        *("validation_is_training", "loss_zero", "loss_frozen", "accuracy_stuck", "no_learning", "hardly_learns"),
        "stuck_at_frequencies",
    )
)
# what a search for a learning rate does on purpose: it goes on until the loss breaks
_OF_A_SWEEP = frozenset(
    (
        *("loss_divergence", "loss_spikes", "loss_not_finite", "loss_noise", "plateau", "no_learning", "hardly_learns"),
        *("worse_than_uniform", "random_tokens", "overfitting", "generalisation_gap", "worse_than_start"),
        *("best_long_ago", "ends_at_high_learning_rate", "learning_rate_off_law", "no_warm_up", "early_loss_jump"),
        *("grad_norm_large", "grad_spikes_first", "clipped_mostly", "clipping_rises", "loss_scale_skips"),
    )
)
# how a GPU is used, of a run that uses none
_OF_A_GPU_AT_WORK = frozenset(("software_bound", "launch_bound", "bigger_batch", "underused", "fast_first_step"))
# a clock that was read wrongly: nothing is lost but what it would have said
_OF_CLOCKS = frozenset(("optimizer_floor", "pass_floor", "short_backward", "fast_first_step", "phase_sum"))
_SEVERITIES, _CONFIDENCES = list(Severity), list(Confidence)


def judge(case: Case) -> tuple[list[Finding], list[Insufficient]]:
    """What all detectors say of a case: findings, the worst and dearest first, and what could not be judged."""
    verdicts = [detector(case) for detector in DETECTORS]
    if is_rate_sweep(case.run):
        verdicts = [v for v in verdicts if not isinstance(v, Finding) or v.code not in _OF_A_SWEEP]
    if any(isinstance(v, Finding) and v.code == "cpu_fallback" for v in verdicts):
        verdicts = [v for v in verdicts if not isinstance(v, Finding) or v.code not in _OF_A_GPU_AT_WORK]
    if not case.run.counts_steps:
        verdicts = [_without_steps(v, case.run) if isinstance(v, Finding) else v for v in verdicts]
    whole = stake_seconds(case)
    findings = [_tempered(_within(v, whole)) for v in verdicts if isinstance(v, Finding)]
    return sorted(findings, key=_order), [v for v in verdicts if isinstance(v, Insufficient)]


_STEP = re.compile(r"\bstep (\d[\d,]*(?:\.\d+)?)\b")
_STEPS = re.compile(r"\b(\d[\d,]*) (step)(s?)\b")


def _without_steps(finding: Finding, run: RunTable) -> Finding:
    """A finding about a log whose rows have no step, only a number: it names their epochs, or rows."""
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
    """No saving is larger than what the run took, or may yet take; what interruptions may cost is no part of it."""
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


def _tempered(finding: Finding) -> Finding:
    """A note where nothing but time was lost, and next to none of it; or where the finding is too often wrong."""
    if finding.code in DEMOTED:
        return dataclasses.replace(finding, severity=Severity.NOTE)
    lost = finding.code in _ONLY_TIME and finding.saved_hours is not None
    if finding.severity is not Severity.WARNING or not lost or worth_saying(finding.saved_hours, finding.saved_usd):
        return finding
    return dataclasses.replace(finding, severity=Severity.NOTE)


def _order(finding: Finding) -> tuple[int, bool, bool, bool, float, float, int]:
    """Severity, then doubts about the result, then money, hours and confidence; clocks last: what to read first."""
    worth = worth_saying(finding.saved_hours, finding.saved_usd)
    usd = finding.saved_usd.value if worth and finding.saved_usd else 0.0
    hours = finding.saved_hours.value if worth and finding.saved_hours else 0.0
    doubtful = finding.code in _DOUBTS and finding.confidence is not Confidence.LOW
    return (
        _SEVERITIES.index(finding.severity),
        finding.code != "cpu_fallback",  # what is to be mended before anything else can be judged
        not doubtful,
        finding.code in _OF_CLOCKS,
        -usd,
        -hours,
        _CONFIDENCES.index(finding.confidence),
    )
