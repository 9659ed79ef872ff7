"""The whole bill of a run in seconds, not its steps alone; and how often to write a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from advisor import flops
from advisor.predict.intervals import known, product, reciprocal, sum_independent, sum_shared
from advisor.records import Basis, Estimate, WallClock
from trainer.schema import RunConfig

if TYPE_CHECKING:
    from advisor.predict.profile import RunCosts

# An evaluation is not exactly a forward share of a step (no autograd graph, its own data reading).
EVAL_SPREAD = 0.15


def wall_clock(
    run: RunConfig,
    step_seconds: Estimate,
    costs: RunCosts,
    *,
    gpus: int = 1,
    interruption_seconds: Estimate | None = None,
) -> WallClock:
    """Seconds of start-up, compilation, steps, evaluations and checkpoints, and their sum.

    The devices share an evaluation's batches; one of them writes the checkpoints while the others wait.
    `interruption_seconds` is the mean time between interruptions of a machine that may be taken back (None: never).
    Steps and evaluations share the error of the step time, so their ends add up; start-up, compilation and disk are
    unrelated and join in quadrature.
    """
    parameters = flops.parameters(run.model)
    build = known(costs.build_seconds_per_parameter * parameters, costs.startup_seconds.basis)
    startup = sum_shared(costs.startup_seconds, build)
    compile_seconds = costs.compile_seconds if run.compile else known(0.0)
    steps = step_seconds.scaled(run.steps)
    evals = _evals_seconds(run, step_seconds, costs.forward_fraction, gpus)
    count = checkpoint_count(run, steps.value + evals.value)
    state_bytes = checkpoint_bytes(run)
    checkpoints = reciprocal(costs.checkpoint_bytes_per_second, state_bytes).scaled(count) if count else known(0.0)
    parts = [sum_shared(steps, evals), startup, compile_seconds, checkpoints]
    lost = None
    if interruption_seconds is not None:
        lost = _interruptions_seconds(run, interruption_seconds, parts, checkpoints.value / max(1, count))
        parts.append(lost)
    return WallClock(
        startup_seconds=startup,
        compile_seconds=compile_seconds,
        steps_seconds=steps,
        evals_seconds=evals,
        checkpoints_seconds=checkpoints,
        total_seconds=sum_independent(*parts),
        interruptions_seconds=lost,
    )


def _interruptions_seconds(
    run: RunConfig, mean: Estimate, parts: Sequence[Estimate], write_seconds: float
) -> Estimate:
    """Restarts and repeated work of steps, evaluations and checkpoints, at the run's own checkpoint interval."""
    working, startup, compile_seconds, checkpoints = (part.value for part in parts)
    interval = run.checkpoint.every_seconds or working
    restart = startup + compile_seconds
    value, low, high = (
        (working + checkpoints) * float(lost_share(interval, write_seconds, restart, seconds))
        for seconds in (mean.value, mean.high, mean.low)
    )
    return Estimate(value=value, low=low, high=high, basis=Basis.PRIOR)


def eval_count(run: RunConfig) -> int:
    """Evaluations of a completed run: every `every_steps`, and one at the end unless the last step had it."""
    if not run.eval.tokens:
        return 0
    every = run.eval.every_steps
    return 1 if not every else -(-run.steps // every)


def checkpoint_count(run: RunConfig, seconds: float) -> int:
    """Checkpoints of a completed run lasting about `seconds`, by steps, by time and at the end.

    The clock starts anew at each checkpoint, so time matters only between those due by steps.
    """
    settings, step_seconds = run.checkpoint, seconds / run.steps
    segment = settings.every_steps if settings.every_steps else run.steps
    by_steps = run.steps // segment if settings.every_steps else 0
    by_time = 0
    if settings.every_seconds:
        per_segment = math.ceil(segment * step_seconds / settings.every_seconds) - 1
        rest = run.steps - by_steps * segment
        by_time = by_steps * per_segment + max(0, math.ceil(rest * step_seconds / settings.every_seconds) - 1)
    last_done = bool(settings.every_steps) and run.steps % segment == 0
    return by_steps + by_time + (1 if settings.final and not last_done else 0)


def checkpoint_bytes(run: RunConfig) -> int:
    """Bytes of one checkpoint: fp32 weights and the optimizer's moments.

    AdamW keeps two moments, 12 bytes per parameter in all; Muon keeps one for the matrices inside blocks, 8 bytes.
    """
    matrices = flops.block_matrix_parameters(run.model) if run.optimizer.name == "muon" else 0
    return 12 * flops.parameters(run.model) - 4 * matrices


def _evals_seconds(run: RunConfig, step_seconds: Estimate, forward_fraction: float, gpus: int) -> Estimate:
    """Forward passes over the evaluation tokens, in micro-batches dealt out to the devices."""
    count = eval_count(run)
    if not count:
        return known(0.0)
    tokens_per_batch = run.micro_batch * run.model.seq_len
    batches = math.ceil(math.ceil(run.eval.tokens / tokens_per_batch) / gpus)
    forward_seconds = step_seconds.scaled(forward_fraction / run.grad_accum)
    spread = Estimate(value=1.0, low=1 - EVAL_SPREAD, high=1 + EVAL_SPREAD, basis=Basis.MEASURED)
    return product(forward_seconds.scaled(batches * count), spread)


def young_interval_seconds(write_seconds: float, interruption_seconds: float) -> float:
    """Work between checkpoints of least lost time, first order (Young 1974, handbook §6.1).

    `write_seconds` blocks the run, `interruption_seconds` is the mean time between interruptions.
    """
    return math.sqrt(2 * write_seconds * interruption_seconds)


def daly_interval_seconds(write_seconds: float, interruption_seconds: float) -> float:
    """Work between checkpoints of least lost time, higher order (Daly 2006, handbook §6.1)."""
    if write_seconds >= 2 * interruption_seconds:
        return interruption_seconds
    ratio = write_seconds / (2 * interruption_seconds)
    young = young_interval_seconds(write_seconds, interruption_seconds)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - write_seconds


def lost_share(interval_seconds: float, write_seconds: float, restart_seconds: float, mean_seconds: float) -> float:
    """Seconds lost to interruptions per second of work and checkpoints: Daly's complete model, less the work itself.

    Arrays broadcast. T / (W + writes) - 1 with T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, handbook §6.1.
    """
    segment = interval_seconds + write_seconds
    return mean_seconds * np.exp(restart_seconds / mean_seconds) * np.expm1(segment / mean_seconds) / segment - 1


def seconds_with_interruptions(
    work_seconds: float, *, interval_seconds: float, write_seconds: float, restart_seconds: float, mean_seconds: float
) -> float:
    """Expected time to finish `work_seconds` when interrupted every `mean_seconds` on average (Daly's complete model).

    T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, handbook §6.1.
    """
    segment = math.expm1((interval_seconds + write_seconds) / mean_seconds)
    return mean_seconds * math.exp(restart_seconds / mean_seconds) * segment * work_seconds / interval_seconds
