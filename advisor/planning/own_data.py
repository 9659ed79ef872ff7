"""Correct a plan's losses by runs on the user's own data, and the tokens to train by the tokens to serve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from advisor.options import Goal
from advisor.planning.goal import FAMILY_RATIO
from advisor.prediction.loss import (
    LEAST_RUNS,
    LossCalibration,
    bits_per_byte,
    calibrate_loss,
    on_own_data,
    overtraining_factor,
)
from advisor.records import Plan, Run
from advisor.units import format_number, format_percent, format_tokens
from trainer.token_folder import TokenMeta

# Beyond this factor the law overstates the gain of a small model: Sardana et al. 2024 tested up to 10,000 tokens per
# parameter, where 12 to 20 are usual. More training is right, but how much is unknown.
MOST_OVERTRAINING = 30.0


def with_own_data(plan: Plan, data_meta: TokenMeta | None, log_ratios: Sequence[float]) -> Plan:
    """Return the plan with losses for the user's data, and the chosen run's loss also in bits per byte.

    `log_ratios` are log(measured loss / predicted loss) of the user's finished runs on these data; too few of them only
    add a warning. `data_meta` is the token folder's metadata, whose bytes per token give the bits per byte.
    """
    if plan.chosen.loss is None:
        return plan
    calibration = calibrate_loss(log_ratios)
    if calibration is None:
        missing = "they are not here yet" if plan.goal.data_tokens else None
        if plan.goal.data:
            missing = f"{len(log_ratios)} of {LEAST_RUNS} runs on it compared"
        if plan.goal.synthetic:
            missing = "the tokens are synthetic"
        if missing:
            warning = f"the loss is not calibrated to your data: {missing}"
            plan = replace(plan, warnings=(*plan.warnings, warning))
    else:
        plan = _moved(plan, calibration)
    if not data_meta:
        return plan
    assert plan.chosen.loss is not None
    bytes_per_token = data_meta.validation_bytes / data_meta.validation_tokens
    bits = plan.chosen.loss.scaled(bits_per_byte(1.0, bytes_per_token))
    return replace(plan, chosen=plan.chosen.judged(bits_per_byte=bits))


def for_inference(goal: Goal, training_tokens: int) -> Goal:
    """Return the goal with more tokens per parameter because of the tokens that the model will serve.

    `training_tokens` is what the plan would train on otherwise. A ratio that the user gave is kept.
    """
    if goal.inference_tokens is None or goal.ratio is not None:
        return goal
    ratio, counts = FAMILY_RATIO[goal.family]
    factor = min(overtraining_factor(training_tokens, goal.inference_tokens), MOST_OVERTRAINING)
    return replace(goal, ratio=float(f"{ratio * factor:.3g}"), ratio_counts=counts)


def why_overtrained(goal: Goal, served: float) -> str:
    """Return the reason for the ratio of `for_inference` as text."""
    return (
        f"{format_number(goal.ratio or 0.0)} tokens per parameter, more than for training alone: "
        f"{format_tokens(served)} tokens are to be served, at 2·N FLOPs each (Sardana et al. 2024)"
    )


def runs_on_own_data(runs: Sequence[Run | str], log_ratios: Sequence[float]) -> list[Run | str]:
    """Return runs with losses for the user's data, as `with_own_data` does for a plan; text stays as it is."""
    calibration = calibrate_loss(log_ratios)
    return [run if calibration is None or isinstance(run, str) else _on_own_data(run, calibration) for run in runs]


def _on_own_data(run: Run, calibration: LossCalibration) -> Run:
    shift = 0.0 if run.loss is None else calibration.shift
    return run.judged(loss=run.loss and on_own_data(run.loss, calibration), loss_shift=shift)


def _moved(plan: Plan, calibration: LossCalibration) -> Plan:
    """Return the plan with all losses corrected, and the correction among its reasons."""

    moved = partial(_on_own_data, calibration=calibration)

    def all_moved(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        return tuple(map(moved, runs))

    search = plan.search
    if search is not None:
        lists = ("options", "front", "near_misses", "machines")
        corrected: dict[str, Any] = {name: all_moved(getattr(search, name)) for name in lists}
        search = replace(search, sure=search.sure and moved(search.sure), **corrected)
    share = math.expm1(calibration.shift)
    change = f"the predicted losses are changed by {'+' if share > 0 else '-'}{format_percent(abs(share))}"
    return replace(
        plan,
        chosen=moved(plan.chosen),
        considered=all_moved(plan.considered),
        search=search,
        reasons=(*plan.reasons, f"{change}, as {calibration.runs} finished runs on this data came out"),
    )
