"""Predict step time and memory of runs with a parallel layout, with 80 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.prediction.intervals import EstimateArrays, reciprocal
from advisor.prediction.layout_memory import STAGES, chance_to_fit, layout_mixture, peak_parts, summed
from advisor.prediction.layout_own import OwnRuns
from advisor.prediction.layout_time import load_law, measure_runs, step_of
from advisor.prediction.layouts import LayoutRun, columns_of
from advisor.prediction.memory_published import likeliest, published_parts
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import software_of
from advisor.prediction.whole_models import described, predict_whole, workload_of
from advisor.records import Basis, Estimate, Prediction

SURE = 0.9  # `fits` is True from this probability of fitting, and False from this probability of not fitting


def predict_layouts(runs: Sequence[LayoutRun], own: OwnRuns | None = None) -> list[Prediction]:
    """Return the predicted time and memory of runs, in their order. The measured runs in `own` correct the times.

    Raises AdvisorError if a GPU cannot run one of the runs at all.
    """
    if not runs:
        return []
    law = load_law()
    step = step_of(measure_runs(runs), law)
    parts, seconds, basis = step.parts, step.seconds, Basis.PRIOR
    # A run that splits only the batch has the time and memory of any other run.
    workloads = {at: w for at, run in enumerate(runs) if (w := workload_of(run)) is not None}
    same = dict(zip(workloads, predict_whole([runs[at] for at in workloads], list(workloads.values())), strict=True))
    for at, answer in same.items():
        assert answer.step_seconds is not None  # `columns_of` refuses unknown links
        for part in parts.values():
            part[at] *= answer.step_seconds.value / seconds.value[at]
        for side in ("value", "low", "high"):
            getattr(seconds, side)[at] = getattr(answer.step_seconds, side)
    if own is not None:
        factor = np.exp(own.log_factor(step.exchanged))
        width = (seconds.high / seconds.low) ** (own.narrowing(step.exchanged) / 2)
        parts = {name: part * factor for name, part in parts.items()}
        middle, basis = seconds.value * factor, Basis.EXTRAPOLATED
        seconds = EstimateArrays(value=middle, low=middle / width, high=middle * width)
    memory = _memory(runs)
    predictions = []
    for i, run in enumerate(runs):
        step_parts = {name: float(part[i]) for name, part in parts.items()}
        peak, needed, memory_parts, chance = memory[i]
        late = law.unbalanced if run.model.experts else 1.0
        value, low, high = (float(side[i]) for side in (seconds.value, seconds.low, seconds.high))
        took = Estimate(value=value, low=low, high=high * late, basis=basis)
        predictions.append(
            Prediction(
                workload=described(run),
                parameters=run.model.published or run.model.parameters,
                flops_per_token=run.flops_per_token,
                step_seconds=took,
                tokens_per_second=reciprocal(took, float(run.step_tokens)),
                mfu=reciprocal(took, run.mfu),
                peak_allocated_bytes=peak,
                peak_reserved_bytes=None,  # nobody publishes it for layouts
                device_bytes=needed,
                device_memory_bytes=run.gpu.memory_bytes,
                step_parts=step_parts,
                peak_parts=memory_parts,
                fit_probability=chance,
                fits=True if chance >= SURE else False if chance <= 1 - SURE else None,
            )
        )
    for at, answer in same.items():
        names = ["peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "fit_probability", "fits"]
        names += ["flops_per_token", "parameters", *(["mfu"] if own is None else [])]
        copied: dict[str, Any] = {name: getattr(answer, name) for name in names}
        copied["peak_parts"] = summed(published_parts(WorkloadArrays.of([workloads[at]])))
        predictions[at] = replace(predictions[at], **copied)
    return predictions


def _memory(runs: Sequence[LayoutRun]) -> list[tuple[Estimate, Estimate, dict[str, float], float]]:
    """Return for each run the peak, what the GPU must provide, the likeliest parts, and the chance that it fits."""
    found = {}
    for name in {run.software for run in runs}:
        places = [at for at, run in enumerate(runs) if run.software == name]
        some, software = [runs[at] for at in places], software_of(name)
        z, stage = columns_of(some), np.array([STAGES.index(run.stage) for run in some])
        both = [layout_mixture(z, software, counts, stage).estimates() for counts in ("allocated", "needed")]
        parts = peak_parts(z, software, likeliest(software), "allocated", stage)
        chances = chance_to_fit(z, software, np.array([float(run.gpu.memory_bytes) for run in some]))
        for i, at in enumerate(places):
            peak, needed = (
                Estimate(value=float(of.value[i]), low=float(of.low[i]), high=float(of.high[i]), basis=Basis.PRIOR)
                for of in both
            )
            found[at] = peak, needed, summed(parts, i), float(chances[i])
    return [found[at] for at in range(len(runs))]
