"""The whole bill of a run in seconds, not its steps alone; and how often to write a checkpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advisor import flops
from advisor.predict.intervals import known, product, reciprocal, sum_independent, sum_shared
from advisor.records import Basis, Estimate, WallClock
from trainer.schema import ModelShape, RunConfig

if TYPE_CHECKING:
    from advisor.predict.profile import RunCosts

# An evaluation is not exactly a forward share of a step (no autograd graph, its own data reading).
EVAL_SPREAD = 0.15
# A rented machine that is not here yet. No provider publishes how long an order takes: virtual machines answer within
# one to five minutes, marketplace hosts that must pull an image within a quarter of an hour. Judged, and billed.
PROVISIONING = Estimate(value=240.0, low=60.0, high=900.0, basis=Basis.PRIOR)
SOFTWARE_BYTES = 4e9  # PyTorch with its CUDA libraries and the rest, as wheels
DOWNLOAD_BYTES_PER_SECOND = Estimate(value=1e8, low=2.5e7, high=4e8, basis=Basis.PRIOR)  # 0.2 to 3 Gb/s
USUAL_INTERVAL_SECONDS = 900.0  # between checkpoints where nobody takes the machine back: a quarter of an hour at risk
INTERVAL_RANGE = (60.0, 7200.0)


def wall_clock(
    run: RunConfig,
    step_seconds: Estimate,
    costs: RunCosts,
    *,
    gpus: int = 1,
    interruption_seconds: Estimate | None = None,
    setup: Setup | None = None,
) -> WallClock:
    """Seconds of start-up, compilation, steps, evaluations and checkpoints, and their sum.

    `setup` is what a rented machine takes before the run can start, and again after it was taken back.

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
    before = (setup.provisioning_seconds, setup.download_seconds) if setup else ()
    lost = None
    if interruption_seconds is not None:
        restart = sum(part.value for part in (startup, compile_seconds, *before))
        writing, write_seconds = checkpoints.value, checkpoints.value / max(1, count)
        lost = _interruptions_seconds(run, interruption_seconds, parts[0].value, writing, write_seconds, restart)
    return WallClock(
        startup_seconds=startup,
        compile_seconds=compile_seconds,
        steps_seconds=steps,
        evals_seconds=evals,
        checkpoints_seconds=checkpoints,
        total_seconds=sum_independent(*parts, *before, *([lost] if lost else [])),
        interruptions_seconds=lost,
        provisioning_seconds=setup.provisioning_seconds if setup else None,
        download_seconds=setup.download_seconds if setup else None,
    )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Seconds of a rented machine from its order to the first command of the run."""

    provisioning_seconds: Estimate
    download_seconds: Estimate

    @property
    def seconds(self) -> float:
        """Expected, both together."""
        return self.provisioning_seconds.value + self.download_seconds.value


def loop_seconds(clock: WallClock) -> Estimate:
    """Steps, evaluations, checkpoints and interruptions: while devices draw power that telemetry meters."""
    parts = [sum_shared(clock.steps_seconds, clock.evals_seconds), clock.checkpoints_seconds]
    return sum_independent(*parts, *([clock.interruptions_seconds] if clock.interruptions_seconds else []))


def run_seconds(clock: WallClock) -> Estimate:
    """What a run folder can show of a bill: everything but the machine's order and its downloads, which come before."""
    before = [part for part in (clock.provisioning_seconds, clock.download_seconds) if part is not None]
    if not before:
        return clock.total_seconds
    total, value = clock.total_seconds, clock.total_seconds.value - sum(part.value for part in before)
    below = (total.value - total.low) ** 2 - sum((part.value - part.low) ** 2 for part in before)
    above = (total.high - total.value) ** 2 - sum((part.high - part.value) ** 2 for part in before)
    low, high = value - math.sqrt(max(0.0, below)), value + math.sqrt(max(0.0, above))
    return Estimate(value=value, low=low, high=high, basis=total.basis)


def rented_setup(data_bytes: float) -> Setup:
    """What renting adds before a run of `data_bytes` of token files: a machine, software and data on it."""
    return Setup(
        provisioning_seconds=PROVISIONING,
        download_seconds=reciprocal(DOWNLOAD_BYTES_PER_SECOND, SOFTWARE_BYTES + data_bytes),
    )


def checkpoint_interval_seconds(write_seconds: float, mean_seconds: float | None) -> float:
    """Seconds between checkpoints: Daly's for the stated mean time between interruptions (None: never), in whole
    seconds between a minute and two hours; a quarter of an hour where nobody takes the machine back.
    """
    if mean_seconds is None:
        return USUAL_INTERVAL_SECONDS
    least, most = INTERVAL_RANGE
    return min(max(float(round(daly_interval_seconds(write_seconds, mean_seconds))), least), most)


def _interruptions_seconds(
    run: RunConfig,
    mean: Estimate,
    working: float,
    checkpoints: float,
    write_seconds: float,
    restart: float,
) -> Estimate:
    """Restarts and repeated work of steps, evaluations and checkpoints, at the run's own checkpoint interval."""
    interval = run.checkpoint.every_seconds or working
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
    return state_bytes(run.model, run.optimizer.name)


def state_bytes(shape: ModelShape, optimizer: str) -> int:
    """Weights and moments of a model under "adamw" or "muon"."""
    matrices = flops.block_matrix_parameters(shape) if optimizer == "muon" else 0
    return 12 * flops.parameters(shape) - 4 * matrices


def disk_bytes(run: RunConfig) -> int:
    """The most bytes of checkpoints on disk at once: all that are kept, and the one being written."""
    return (run.checkpoint.keep + 1) * checkpoint_bytes(run)


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
    """Work between checkpoints of least lost time, first order (Young 1974, sources §6.1).

    `write_seconds` blocks the run, `interruption_seconds` is the mean time between interruptions.
    """
    return math.sqrt(2 * write_seconds * interruption_seconds)


def daly_interval_seconds(write_seconds: float, interruption_seconds: float) -> float:
    """Work between checkpoints of least lost time, higher order (Daly 2006, sources §6.1)."""
    if write_seconds >= 2 * interruption_seconds:
        return interruption_seconds
    return daly_below(write_seconds, interruption_seconds)


def daly_below(write_seconds: float, interruption_seconds: float) -> float:
    """Daly's interval for writes of less than twice the time between interruptions; arrays broadcast."""
    ratio = write_seconds / (2 * interruption_seconds)
    young = (2 * write_seconds * interruption_seconds) ** 0.5
    return young * (1 + ratio**0.5 / 3 + ratio / 9) - write_seconds


def lost_share(interval_seconds: float, write_seconds: float, restart_seconds: float, mean_seconds: float) -> float:
    """Seconds lost to interruptions per second of work and checkpoints: Daly's complete model, less the work itself.

    Arrays broadcast. T / (W + writes) - 1 with T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, sources §6.1.
    """
    segment = interval_seconds + write_seconds
    again = math.e ** (restart_seconds / mean_seconds)
    return mean_seconds * again * (math.e ** (segment / mean_seconds) - 1) / segment - 1


def seconds_with_interruptions(
    work_seconds: float, *, interval_seconds: float, write_seconds: float, restart_seconds: float, mean_seconds: float
) -> float:
    """Expected time to finish `work_seconds` when interrupted every `mean_seconds` on average (Daly's complete model).

    T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, sources §6.1.
    """
    segment = math.expm1((interval_seconds + write_seconds) / mean_seconds)
    return mean_seconds * math.exp(restart_seconds / mean_seconds) * segment * work_seconds / interval_seconds
