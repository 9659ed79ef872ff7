"""Puts the predicted parts of a step beside the measured ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from advisor.findings import run_metrics
from advisor.findings.case import Case, Cost, Insufficient, lacking
from advisor.findings.savings import saved_share
from advisor.findings.traces.changes import Change, faster_settings
from advisor.findings.traces.judgement import ComparedPart
from advisor.findings.traces.step_parts import (
    ATTENTION,
    LOSS,
    OPTIMIZER,
    OPTIMIZER_STEP,
    PASSES,
    PRODUCTS,
    UNNAMED,
    StepParts,
)  # fmt: skip
from advisor.hardware.catalog import find_gpu
from advisor.prediction.intervals import sum_shared
from advisor.prediction.parts import parts_of_step, product_flops
from advisor.readers.traces import intervals
from advisor.records import Estimate
from advisor.units import format_count, format_estimate, format_number, format_percent, format_seconds

STEP, EXPOSED, COPIES, IDLE = "the whole step", "communication that nothing hides", "copies that nothing hides", "idle"
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
_CAUSE_OF = {
    **_PART_OF, "data_loading": IDLE, "host_synchronisation": IDLE, "allocator_retries": IDLE, "late_rank": EXPOSED,
}  # fmt: skip
# Where the work of a part is counted if none of its kernels could be told by name or operator.
_COUNTED_IN = {ATTENTION: PRODUCTS, LOSS: PASSES, OPTIMIZER: PASSES}
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

    def unexplained(self, codes: set[str]) -> list[ComparedPart]:
        """Return the slower parts that no finding of these codes is about."""
        return [part for part in self.slower if part.name not in {_CAUSE_OF.get(code) for code in codes}]

    def about(self, code: str) -> ComparedPart | None:
        """Return the part whose share the title of a finding states."""
        return next((part for part in self.parts if part.predicted and part.name == _PART_OF.get(code)), None)

    def share(self, part: ComparedPart) -> str:
        """Return the predicted share of a part in the predicted step, in words."""
        assert part.predicted is not None and self.step is not None and self.step.predicted is not None
        return format_estimate(part.predicted.scaled(1 / self.step.predicted.value), format_percent)

    def saved(self, part: ComparedPart) -> Cost:
        """Return what the whole run would save if the part took as long as predicted."""
        assert part.predicted is not None and self.step is not None and self.case is not None
        ends = ((part.measured - end) / self.step.measured for end in (part.predicted.high, part.predicted.low))
        return saved_share(self.case, part.lost / self.step.measured, *ends) if part in self.slower else (None, None)

    def changes_of(self, part: ComparedPart) -> tuple[str, ...]:
        return tuple(one.sentence for one in self.changes if one.part == _PREDICTED_AS[part.name])[:_CHANGES_SHOWN]


def compare(ranks: Sequence[StepParts], case: Case) -> Comparison:
    """Compare the mean parts of the ranks' steps with those predicted for the case."""
    if missing := _missing(ranks[0], case):
        return Comparison(lacking=(lacking("prediction", missing),))
    assert case.workload is not None and case.expected is not None and case.profile is not None
    # The last step ends with its last event, so the others tell how long a step is.
    period = float(np.median(ranks[0].steps[:-1] or ranks[0].steps))
    measured = _measured(ranks)
    computation = sum(measured[name] for name in (PRODUCTS, ATTENTION, LOSS, OPTIMIZER, PASSES, UNNAMED))
    unnamed = measured[UNNAMED] / (computation or 1.0)
    predicted = parts_of_step(case.profile, case.workload, head_is_loss=bool(ranks[0].of_vocabulary.any()))
    parts, gap = [], ""
    if unnamed > _UNNAMED_MOST:
        gap = f"what {format_percent(unnamed)} of the computation is: its kernels have names of their own"
    elif predicted is None:
        gap = "parts of the prediction, which is only of the whole step for such a run"
    else:
        parts = _compared(measured, {name: predicted[own] for name, own in _PREDICTED_AS.items()})
    return Comparison(
        step=ComparedPart(name=STEP, measured=period, predicted=case.expected.step_seconds),
        parts=tuple(parts),
        case=case,
        remarks=tuple(_beside_log(period, case)),
        lacking=(lacking("parts", gap),) if gap else (),
    )


def _compared(measured: Mapping[str, float], predicted: dict[str, Estimate]) -> list[ComparedPart]:
    for part, other in _COUNTED_IN.items():
        if not measured[part]:
            predicted[other] = sum_shared(predicted[other], predicted.pop(part))
    return [
        ComparedPart(name=name, measured=seconds, predicted=predicted.get(name))
        for name, seconds in measured.items()
        if seconds or (name in predicted and predicted[name].high)
    ]


def _missing(first: StepParts, case: Case) -> str:
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
    updates = int(timeline.matches(OPTIMIZER_STEP, timeline.ranges).sum())
    if updates < len(first.steps) and (updates or w.grad_accum > 1):
        return f"whole steps: {len(first.steps)} are marked, with {updates} of the optimizer; call prof.step() after it"
    done, due = first.product_flops, product_flops(w)
    if done and not _SAME_MODEL[0] < done / due < _SAME_MODEL[1]:
        return f"the trace's model: its products need {format_count(done)} FLOPs a step, the run's {format_count(due)}"
    return ""


def _measured(ranks: Sequence[StepParts]) -> dict[str, float]:
    """Return the mean seconds of each part in a step. They add up: kernels at the same time share their time."""
    columns = []
    for parts in ranks:
        own = ~parts.communication & ~parts.copies
        work = {term: float(parts.device.seconds[own & parts.of_term(term)].sum())
                for term in (PRODUCTS, ATTENTION, LOSS, OPTIMIZER, PASSES, UNNAMED)}  # fmt: skip
        scale = parts.compute_seconds / (sum(work.values()) or 1.0)
        found = {term: seconds * scale for term, seconds in work.items()}
        found[EXPOSED] = intervals.length(parts.exposed_communication)
        found[COPIES], found[IDLE] = parts.exposed_copy_seconds, parts.idle_seconds
        columns.append({name: seconds / max(len(parts.steps), 1) for name, seconds in found.items()})
    return {name: float(np.mean([column[name] for column in columns])) for name in columns[0]}


def _beside_log(period: float, case: Case) -> Iterator[str]:
    logged = run_metrics.step_seconds(case)
    if logged:
        ratio = period / logged
        slowed = ": the profiler slows the host" if ratio > 1 + _SLOWER_BY else ""
        yield (f"a step takes {format_seconds(period)} in the trace, {format_number(round(ratio, 2))} times the "
               f"{format_seconds(logged)} of the log{slowed}")  # fmt: skip
