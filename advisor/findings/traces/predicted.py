"""Puts the predicted parts of a step beside the measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from advisor.findings import run_metrics
from advisor.findings.case import Case, Insufficient, lacking, texts
from advisor.findings.savings import saved_share
from advisor.findings.traces import step_parts
from advisor.findings.traces.changes import Change, faster_settings
from advisor.findings.traces.judgement import ComparedPart
from advisor.findings.traces.step_parts import ATTENTION, COPIES, EXPOSED, LOSS, OPTIMIZER, PASSES, PRODUCTS, UNNAMED
from advisor.hardware.catalog import find_gpu
from advisor.prediction.intervals import sum_shared
from advisor.prediction.parts import parts_of_step, product_flops
from advisor.units import format_count, format_estimate, format_number, format_percent, format_seconds

STEP, IDLE = "the whole step", "idle"
# The names of the measured parts in a prediction. Other measured parts have none.
_PREDICTED_AS = {
    **{PRODUCTS: "products", ATTENTION: "attention", LOSS: "loss", OPTIMIZER: "optimizer", PASSES: "passes"},
    **{EXPOSED: "communication", IDLE: "launches"},
}
# The part whose share the title of a finding states, and findings that explain a part.
_PART_OF = {
    "exposed_communication": EXPOSED, "launch_bound": IDLE, "optimizer_not_fused": OPTIMIZER,
    "attention_written_out": ATTENTION, "full_precision_products": PRODUCTS,
}  # fmt: skip
CAUSE_OF = {
    **_PART_OF, "data_loading": IDLE, "host_synchronisation": IDLE, "allocator_retries": IDLE, "late_rank": EXPOSED,
}  # fmt: skip
# Where the work of a part is counted if none of its kernels could be told by name or operator.
_COUNTED_IN = {ATTENTION: PRODUCTS, LOSS: PASSES, OPTIMIZER: PASSES}
_COMPUTATION = (PRODUCTS, ATTENTION, LOSS, OPTIMIZER, PASSES, UNNAMED)
_UNNAMED_MOST = 0.15  # of the computation
_SAME_MODEL = (0.4, 2.0)  # FLOPs of products over those of the run; without gradients of frozen weights they are fewer
_SLOWER_BY = 0.05  # of the step
_CHANGES_SHOWN = 2


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The measured and the predicted parts of a step; empty if nothing can be compared."""

    step: ComparedPart | None = None
    parts: tuple[ComparedPart, ...] = ()  # they add up, but for the time after the last step's last event
    case: Case | None = None
    remarks: tuple[str, ...] = ()
    lacking: tuple[Insufficient, ...] = ()

    @property
    def rows(self) -> tuple[ComparedPart, ...]:
        return (*self.parts, self.step) if self.step is not None else ()

    @cached_property
    def changes(self) -> list[Change]:
        return faster_settings(self.case) if self.case is not None else []

    @property
    def slower(self) -> list[ComparedPart]:
        """Return the parts that take clearly longer than predicted, the one that loses most first."""
        whole = self.step.measured if self.step is not None else 0.0
        late = [part for part in self.parts if part.predicted is not None and part.measured > part.predicted.high
                and part.lost >= _SLOWER_BY * whole]  # fmt: skip
        return sorted(late, key=lambda part: -part.lost)

    def about(self, code: str, part: ComparedPart | None) -> tuple[str, dict[str, Any]]:
        """Return the predicted share in words, and what can be saved how, of a part or of the finding's part."""
        part = part or next((one for one in self.parts if one.predicted and one.name == _PART_OF.get(code)), None)
        if part is None or part.predicted is None:
            return "", {}
        assert self.step is not None and self.step.predicted is not None and self.case is not None
        share = format_estimate(part.predicted.scaled(1 / self.step.predicted.value), format_percent)
        changes = [one.sentence for one in self.changes if one.part == _PREDICTED_AS[part.name]][:_CHANGES_SHOWN]
        known: dict[str, Any] = {"actions": (*changes, *texts().get(code, {}).get("actions", ()))}
        if part in self.slower:
            ends = ((part.measured - end) / self.step.measured for end in (part.predicted.high, part.predicted.low))
            known["saved"] = saved_share(self.case, part.lost / self.step.measured, *ends)
        return f"; {share} was predicted", known


def compare(ranks: Sequence[step_parts.StepParts], case: Case) -> Comparison:
    """Compare the mean parts of the ranks' steps with those predicted for the case."""
    if missing := _missing(ranks[0], case):
        return Comparison(lacking=(lacking("prediction", missing),))
    assert case.workload is not None and case.expected is not None and case.profile is not None
    # The last step ends with its last event, so the others tell how long a step is.
    period = float(np.median(ranks[0].steps[:-1] or ranks[0].steps))
    measured = step_parts.means(ranks, _work)
    unnamed = measured[UNNAMED] / (sum(measured[name] for name in _COMPUTATION) or 1.0)
    predicted = parts_of_step(case.profile, case.workload, head_is_loss=bool(ranks[0].of_vocabulary.any()))
    parts, gap, beside_log = [], "", ""
    if logged := run_metrics.step_seconds(case):
        ratio = period / logged
        beside_log = (f"a step takes {format_seconds(period)} in the trace, {format_number(round(ratio, 2))} times the "
                      f"{format_seconds(logged)} of the log")  # fmt: skip
        beside_log += ": the profiler slows the host" * (ratio > 1 + _SLOWER_BY)
    if unnamed > _UNNAMED_MOST:
        gap = f"what {format_percent(unnamed)} of the computation is: its kernels have names of their own"
    elif predicted is None:
        gap = "parts of the prediction, which is only of the whole step for such a run"
    else:
        expected = {name: predicted[own] for name, own in _PREDICTED_AS.items()}
        for part, other in _COUNTED_IN.items():
            if not measured[part]:
                expected[other] = sum_shared(expected[other], expected.pop(part))
        parts = [ComparedPart(name=name, measured=seconds, predicted=expected.get(name))
                 for name, seconds in measured.items()
                 if seconds or (name in expected and expected[name].high)]  # fmt: skip
    return Comparison(
        step=ComparedPart(name=STEP, measured=period, predicted=case.expected.step_seconds),
        parts=tuple(parts),
        case=case,
        remarks=(beside_log,) if beside_log else (),
        lacking=(lacking("parts", gap),) if gap else (),
    )


def _missing(first: step_parts.StepParts, case: Case) -> str:
    """Return why a trace cannot be compared with the prediction, or "" if it can."""
    w, timeline = case.workload, first.timeline
    if w is None:
        return f"what this run trains, to predict it: {case.notes.get('missing') or 'give its --plan or --config'}"
    spec = find_gpu(timeline.gpu, timeline.gpu_bytes) if timeline.gpu else None
    if spec is not None and spec.key != w.gpu:
        return f"a prediction for {spec.key}, of which the trace is: the run was to be on {w.gpu}"
    if timeline.world_size not in (None, w.gpus):
        return f"a prediction for the trace's {timeline.world_size} ranks: the run was to be on {w.gpus} GPUs"
    if case.expected is None or case.expected.step_seconds is None or case.profile is None:
        return f"a prediction of this run on {w.gpu}"
    if not first.steps:
        return "steps in the trace, to compare with the predicted one: call prof.step() after each optimizer step"
    updates = int(timeline.matches(step_parts.OPTIMIZER_STEP, timeline.ranges).sum())
    if updates < len(first.steps) and (updates or w.grad_accum > 1):
        return f"whole steps: {len(first.steps)} are marked, with {updates} of the optimizer; call prof.step() after it"
    done, due = first.product_flops, product_flops(w)
    if done and not _SAME_MODEL[0] < done / due < _SAME_MODEL[1]:
        return f"the trace's model: its products need {format_count(done)} FLOPs a step, the run's {format_count(due)}"
    return ""


def _work(parts: step_parts.StepParts) -> dict[str, float]:
    """Return the seconds of each part. They add up: kernels at the same time share their time."""
    own = ~parts.communication & ~parts.copies
    work = {term: float(parts.device.seconds[own & parts.of_term(term)].sum()) for term in _COMPUTATION}
    scale = parts.compute_seconds / (sum(work.values()) or 1.0)
    outside = {EXPOSED: parts.exposed_seconds, COPIES: parts.exposed_copy_seconds, IDLE: parts.idle_seconds}
    return {term: seconds * scale for term, seconds in work.items()} | outside
