"""A plan's losses moved to the user's own data, and what serving the model asks of its training. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from advisor.planning.goal import FAMILY_RATIO
from advisor.prediction.loss import bits_per_byte
from advisor.prediction.loss_own import LEAST_RUNS, LossCalibration, calibrate_loss, on_own_data, overtraining_factor
from advisor.records import Goal, Plan, Run
from advisor.units import format_number, format_percent, format_tokens
from trainer.token_folder import TokenMeta

# Beyond this the law is known to overstate what a small model gains (Sardana et al. 2024 tested up to 10,000 tokens per
# parameter, usual ratios are 12 to 20 of them): the direction is right, the size is not.
MOST_OVERTRAINING = 30.0


def with_own_data(plan: Plan, data_meta: TokenMeta | None, log_ratios: Sequence[float]) -> Plan:
    """The plan with losses on the user's data and in bits per byte.

    `log_ratios` are log(measured / law) of the user's finished runs on this data; fewer than two change nothing but a
    warning. `data_meta` is the token folder's metadata, whose measured bytes per token turn nats into bits per byte.
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
        said = f"the loss is not calibrated to your data: {missing}"
        plan = replace(plan, warnings=(*plan.warnings, said)) if missing else plan
    else:
        plan = _moved(plan, calibration)
    if not data_meta:
        return plan
    assert plan.chosen.loss is not None
    bytes_per_token = data_meta.validation_bytes / data_meta.validation_tokens
    bits = plan.chosen.loss.scaled(bits_per_byte(1.0, bytes_per_token))
    return replace(plan, chosen=plan.chosen.judged(bits_per_byte=bits))


def for_inference(goal: Goal, training_tokens: int) -> Goal:
    """The goal with a ratio of tokens per parameter that counts what the model will serve; `training_tokens` is what a
    plan without that would train on. A ratio that was given stays.
    """
    if goal.inference_tokens is None or goal.ratio is not None:
        return goal
    ratio, counts = FAMILY_RATIO[goal.family]
    factor = min(overtraining_factor(training_tokens, goal.inference_tokens), MOST_OVERTRAINING)
    return replace(goal, ratio=float(f"{ratio * factor:.3g}"), ratio_counts=counts)


def why_overtrained(goal: Goal, served: float) -> str:
    """The reason for `for_inference`'s ratio, in words."""
    return (
        f"{format_number(goal.ratio or 0.0)} tokens per parameter, more than training alone would have: "
        f"{format_tokens(served)} tokens are to be served, 2·N each (Sardana et al. 2024)"
    )


def _moved(plan: Plan, calibration: LossCalibration) -> Plan:
    def moved(run: Run) -> Run:
        shift = 0.0 if run.loss is None else calibration.shift
        return run.judged(loss=run.loss and on_own_data(run.loss, calibration), loss_shift=shift)

    def all_moved(runs: tuple[Run, ...]) -> tuple[Run, ...]:
        return tuple(map(moved, runs))

    search = plan.search
    if search is not None:
        search = replace(
            search,
            options=all_moved(search.options),
            front=all_moved(search.front),
            near_misses=all_moved(search.near_misses),
            machines=all_moved(search.machines),
            sure=search.sure and moved(search.sure),
        )
    share = math.expm1(calibration.shift)
    said = f"the loss law is moved by {'+' if share > 0 else '-'}{format_percent(abs(share))}"
    return replace(
        plan,
        chosen=moved(plan.chosen),
        considered=all_moved(plan.considered),
        search=search,
        reasons=(*plan.reasons, f"{said}, as {calibration.runs} finished runs on this data came out"),
    )
