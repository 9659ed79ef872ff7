"""The total time of runs, from ordering a machine to the last checkpoint, and the best interval between checkpoints.

All numbers may be arrays: properties of runs have shape (n, 1), numbers of steps have shape (n, k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from advisor.laws import flops
from advisor.offer import seller_of
from advisor.prediction.intervals import EstimateArrays, columns, product, reciprocal, sum_independent, sum_shared
from advisor.records import Basis, Estimate, WallClock
from advisor.settings import OPTIMIZERS
from advisor.units import format_seconds
from trainer.schema import RunConfig

_Count = TypeVar("_Count", int, np.ndarray)

# An evaluation takes about the forward share of a step, but it has no autograd graph and reads other data.
_EVAL_SPREAD = Estimate(value=1.0, low=0.85, high=1.15, basis=Basis.MEASURED)
# Time from the order of a rented machine until it answers. No provider publishes it. Virtual machines take one to five
# minutes; marketplace hosts that must pull an image take up to a quarter of an hour. Our judgement; the time is billed.
PROVISIONING = Estimate(value=240.0, low=60.0, high=900.0, basis=Basis.PRIOR)
SOFTWARE_BYTES = 4e9  # PyTorch with its CUDA libraries and the rest, as wheels
DOWNLOAD_BYTES_PER_SECOND = Estimate(value=1e8, low=2.5e7, high=4e8, basis=Basis.PRIOR)  # 0.2 to 3 Gb/s
# Mean time between failures of a job on one node that is not a spot machine: people and software end it every 3 to 7
# days, hardware every 154 to 427 days (sources §6.2). 5 days with an interval of 1 to 14 is our judgement.
BETWEEN_FAILURES = Estimate(value=5 * 86400.0, low=86400.0, high=14 * 86400.0, basis=Basis.PRIOR)
# GPU seconds between failures beyond the first node: Llama 3 failed 419 times in 54 days on 16,384 GPUs, once in
# 50,000 GPU hours (Grattafiori et al. 2024, table 5). The low end comes from jobs on 1,024 GPUs that fail every 7.9
# hours (Kokolis et al. 2025). The high end, half as many failures, is our judgement.
GPU_SECONDS = Estimate(value=1.8e8, low=4.3e7, high=3.6e8, basis=Basis.PRIOR)
GPUS_A_NODE = 8
RESTART_SECONDS = 600.0  # until a failure is noticed and the run restarts: 5 to 15 minutes, our judgement
LEAST_INTERVAL_SECONDS = 60.0
# Rate at which one GPU copies a checkpoint to host memory, from where a thread writes it during training: 3 to 6 GB/s
# into pageable memory, twice as much into pinned memory, less if eight GPUs share the host. Our judgement.
_HOST_COPY_BYTES_PER_SECOND = Estimate(value=4e9, low=1.5e9, high=1.2e10, basis=Basis.PRIOR)
# Seconds for the coordination of all processes. PyTorch's asynchronous checkpoints stop a 7 B model for 6.3 s in total,
# synchronous ones for 149 s (pytorch.org/blog/reducing-checkpointing-times, 2024). Our judgement.
_AGREEMENT = Estimate(value=1.0, low=0.1, high=4.0, basis=Basis.PRIOR)
_ENDLESS = 100.0  # limit on the interruptions per interval, to avoid overflow: such runs never end anyway


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When checkpoints are written: after so many steps, after so many seconds, and at the end. 0 and NaN mean None."""

    every_steps: int | None = None
    every_seconds: float | np.ndarray | None = None
    final: bool = True


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """The times of the parts of runs, in shapes (n, 1). The numbers of steps and evaluations are not included."""

    step: EstimateArrays  # seconds per optimizer step
    forward: EstimateArrays  # forward pass of one micro-batch on one device, with the same error as `step`
    startup: EstimateArrays  # until the loop starts, building the model included
    compile: EstimateArrays
    write: EstimateArrays  # of one checkpoint, until it is on disk
    stall: EstimateArrays  # length of the pause for one checkpoint; equal to `write` if it is synchronous
    provisioning: EstimateArrays  # from the order of a rented machine until it answers; 0 for one's own machine
    download: EstimateArrays  # software and data onto a rented machine
    between_interruptions: EstimateArrays  # between failures, or until a spot machine is taken away
    taken: np.ndarray  # bool: an interruption takes the machine and its disk away, and another machine is ordered
    checkpoints: Checkpoints
    fetch: EstimateArrays | None = None  # seconds to download the tokens of one step; None if the data are local
    fresh_steps: np.ndarray | float = math.inf  # steps until the data repeat, after which nothing is downloaded

    @cached_property
    def before(self) -> np.ndarray:
        """Expected seconds until the loop starts, for the first time and after each interruption."""
        return sum_shared(self.startup, self.compile, self.provisioning, self.download).value

    def idle(self, steps: np.ndarray) -> np.ndarray:
        """Return the expected seconds until the loop of runs with this many steps starts."""
        if self.fetch is None:
            return self.before
        return self.before + self.fetch.value * np.minimum(steps, self.fresh_steps)

    def lost(self, mean: np.ndarray, steps: np.ndarray, working: np.ndarray) -> np.ndarray:
        """Return the seconds lost to interruptions per second of work and checkpoints.

        `mean` is one side of `between_interruptions`, and `working` the seconds of steps and evaluations. A run that is
        interrupted before its first checkpoint loses all its work.
        """
        anew = RESTART_SECONDS + self.startup.value + self.compile.value
        # Work done while a checkpoint is being written is lost too, because that checkpoint cannot be used yet.
        again = np.where(self.taken, self.idle(steps), anew) + self.write.value - self.stall.value
        every = np.minimum(
            math.inf if self.checkpoints.every_seconds is None else self.checkpoints.every_seconds, working
        )
        return lost_share(every, self.stall.value, again, mean)


def expected_seconds(terms: RunTerms, steps: np.ndarray, eval_batches: np.ndarray) -> np.ndarray:
    """Return the expected total seconds. `eval_batches` counts the evaluation micro-batches on the busiest device."""
    working = steps * terms.step.value + eval_batches * terms.forward.value
    count, last = checkpoint_count(terms.checkpoints, steps, working), float(terms.checkpoints.final)
    writing = terms.stall.value * (count - last) + terms.write.value * last
    return terms.idle(steps) + (working + writing) * (1 + terms.lost(terms.between_interruptions.value, steps, working))


@dataclass(frozen=True, kw_only=True)
class WallClocks:
    """The parts of `WallClock` for many runs. Provisioning, downloads and interruptions may be zero."""

    startup_seconds: EstimateArrays
    compile_seconds: EstimateArrays
    steps_seconds: EstimateArrays
    evals_seconds: EstimateArrays
    checkpoints_seconds: EstimateArrays
    interruptions_seconds: EstimateArrays
    provisioning_seconds: EstimateArrays
    download_seconds: EstimateArrays
    loop_seconds: EstimateArrays  # while the devices draw training power
    total_seconds: EstimateArrays
    write_seconds: EstimateArrays  # of one checkpoint, until it is on disk

    def at(self, row: int) -> WallClock:
        """Return the `WallClock` of one row of arrays of shape (n, 1). Optional parts that are zero become None."""
        always = ("startup", "compile", "steps", "evals", "checkpoints", "total", "write")
        parts = {f"{name}_seconds": getattr(self, f"{name}_seconds").at(row) for name in always}
        for name in ("interruptions", "provisioning", "download"):
            part: Estimate | None = getattr(self, f"{name}_seconds").at(row)
            parts[f"{name}_seconds"] = part if part and part.high else None
        return WallClock(**parts)


def wall_clocks(terms: RunTerms, steps: np.ndarray, eval_batches: np.ndarray) -> WallClocks:
    """Return the time of runs by part, with intervals.

    The errors of steps and evaluations are correlated through the step time, so the ends of their intervals add up. The
    errors of start-up, compilation, disk, provisioning and interruptions are unrelated and add in quadrature.
    """
    stepping = terms.step.scaled(steps)
    spread = columns([_EVAL_SPREAD])
    evals = product(terms.forward.scaled(eval_batches), spread)
    working = sum_shared(stepping, evals)
    # Pauses for checkpoints, and for the last one until it is on disk.
    count, last = checkpoint_count(terms.checkpoints, steps, working.value), float(terms.checkpoints.final)
    writing = sum_shared(terms.stall.scaled(count - last), terms.write.scaled(last))
    # Rarer interruptions cost less, so the high end of the time between them gives the low end of the loss.
    mean = terms.between_interruptions
    value, low, high = (terms.lost(side, steps, working.value) for side in (mean.value, mean.high, mean.low))
    basis = None if mean.basis is None else np.broadcast_to(mean.basis, value.shape)
    shares = EstimateArrays(value=value, low=low, high=high, basis=basis)
    lost = shares.scaled(working.value + writing.value)
    loop = sum_independent(working, writing, lost)
    download = terms.download
    if terms.fetch is not None:  # the data are elsewhere
        download = sum_shared(download, terms.fetch.scaled(np.minimum(steps, terms.fresh_steps)))
    before = (terms.startup, terms.compile, terms.provisioning, download)
    return WallClocks(
        startup_seconds=terms.startup,
        compile_seconds=terms.compile,
        steps_seconds=stepping,
        evals_seconds=evals,
        checkpoints_seconds=writing,
        interruptions_seconds=lost,
        provisioning_seconds=terms.provisioning,
        download_seconds=download,
        loop_seconds=loop,
        total_seconds=sum_independent(loop, *before),
        write_seconds=terms.write,
    )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """The time of a rented machine from its order to the first command of the run."""

    provisioning_seconds: Estimate
    download_seconds: Estimate

    @property
    def seconds(self) -> float:
        """Expected seconds of provisioning and download together."""
        return self.provisioning_seconds.value + self.download_seconds.value


def run_seconds(clock: WallClock) -> Estimate:
    """Return the total time without provisioning and downloads, because a run folder does not record them."""
    before = [part for part in (clock.provisioning_seconds, clock.download_seconds) if part is not None]
    if not before:
        return clock.total_seconds
    total, value = clock.total_seconds, clock.total_seconds.value - sum(part.value for part in before)
    below = (total.value - total.low) ** 2 - sum((part.value - part.low) ** 2 for part in before)
    above = (total.high - total.value) ** 2 - sum((part.high - part.value) ** 2 for part in before)
    low, high = value - math.sqrt(max(0.0, below)), value + math.sqrt(max(0.0, above))
    return Estimate(value=value, low=low, high=high, basis=total.basis)


def rented_setup(data_bytes: float) -> Setup:
    """Return the time to order a machine and to download software and `data_bytes` of token files to it."""
    return Setup(
        provisioning_seconds=PROVISIONING,
        download_seconds=reciprocal(DOWNLOAD_BYTES_PER_SECOND, SOFTWARE_BYTES + data_bytes),
    )


def checkpoint_interval_seconds(stall_seconds: np.ndarray | float, mean_seconds: np.ndarray | float) -> np.ndarray:
    """Return whole seconds between checkpoints: Daly's optimum, but at least a minute. Arrays broadcast."""
    return np.maximum(np.ceil(daly_interval_seconds(stall_seconds, mean_seconds)), LEAST_INTERVAL_SECONDS)[()]


def stalls(write: EstimateArrays, held_bytes: np.ndarray, *, asynchronous: np.ndarray) -> EstimateArrays:
    """Return the pause for one checkpoint, shape (n, 1).

    An asynchronous checkpoint pauses the run until it is copied to host memory, any other until it is on disk.
    `held_bytes` is the number of bytes that one GPU copies.
    """
    copy = sum_shared(reciprocal(columns([_HOST_COPY_BYTES_PER_SECOND]), held_bytes), columns([_AGREEMENT]))
    sides: dict[str, np.ndarray] = {
        side: np.where(asynchronous, np.minimum(getattr(copy, side), getattr(write, side)), getattr(write, side))
        for side in ("value", "low", "high")
    }
    assert copy.basis is not None and write.basis is not None
    return EstimateArrays(**sides, basis=np.where(asynchronous, copy.basis, write.basis))


def between_failures(gpus: int) -> Estimate:
    """Return the mean seconds between failures of a job on `gpus` GPUs, without spot interruptions."""
    more = max(0, gpus - GPUS_A_NODE)
    sides = zip(*((e.value, e.low, e.high) for e in (BETWEEN_FAILURES, GPU_SECONDS)), strict=True)
    value, low, high = (1 / (1 / alone + more / each) for alone, each in sides)
    return Estimate(value=value, low=low, high=high, basis=BETWEEN_FAILURES.basis)


def eval_count(every_steps: np.ndarray | int | None, steps: np.ndarray | int) -> np.ndarray | int:
    """Return the number of evaluations of completed runs: one every `every_steps` steps, and one after the last
    step."""
    return 1 if every_steps is None else -(-steps // every_steps)


def planned_evals(run: RunConfig) -> int:
    """Return the number of evaluations of a configured run."""
    return int(eval_count(run.eval.every_steps or None, run.steps)) if run.eval.tokens else 0


def checkpoint_count(settings: Checkpoints, steps: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return the number of checkpoints of completed runs whose steps and evaluations take `seconds`.

    The clock restarts at each checkpoint, so checkpoints by time only occur between those by steps.
    """
    segment = settings.every_steps or steps
    by_steps = steps // segment if settings.every_steps else np.zeros_like(seconds)
    rest = steps - by_steps * segment
    by_time = 0.0
    if settings.every_seconds is not None:
        every, step_seconds = settings.every_seconds, seconds / steps
        per_segment = np.ceil(segment * step_seconds / every) - 1 if settings.every_steps else 0.0
        by_time = by_steps * per_segment + np.maximum(0.0, np.ceil(rest * step_seconds / every) - 1)
    last = (rest > 0) if settings.every_steps else 1.0
    return by_steps + by_time + (last if settings.final else 0.0)


def planned_checkpoints(run: RunConfig, seconds: float) -> int:
    """Return the number of checkpoints of a configured run whose steps and evaluations take `seconds`."""
    given = run.checkpoint
    settings = Checkpoints(
        every_steps=given.every_steps or None, every_seconds=given.every_seconds or None, final=given.final
    )
    return int(checkpoint_count(settings, np.array(run.steps), np.array(seconds)))


def checkpoint_bytes(run: RunConfig) -> int:
    """Return the bytes of one checkpoint: fp32 weights and the optimizer's moments.

    With AdamW's two moments these are 12 bytes per parameter. Muon has one moment for block matrices: 8 bytes.
    """
    return state_bytes(run.model, run.optimizer.name)


def state_bytes(shape: flops.Shape[_Count], optimizer: str) -> _Count:
    """Return the bytes of weights and moments of one or many models; `optimizer` is a name in `settings`."""
    kept = OPTIMIZERS[optimizer]
    return 4 * (1 + kept.moments) * flops.parameters(shape) - kept.saved_bytes * flops.block_matrix_parameters(shape)


def disk_bytes(run: RunConfig) -> int:
    """Return the largest number of bytes on disk: all kept checkpoints, and the one being written."""
    return (run.checkpoint.keep + 1) * checkpoint_bytes(run)


def daly_interval_seconds(
    write_seconds: np.ndarray | float, interruption_seconds: np.ndarray | float
) -> np.ndarray | float:
    """Return the interval between checkpoints that loses the least time (Daly 2006, sources §6.1). Arrays broadcast."""
    ratio = write_seconds / (2 * interruption_seconds)
    young = (2 * write_seconds * interruption_seconds) ** 0.5
    below = young * (1 + ratio**0.5 / 3 + ratio / 9) - write_seconds
    return np.where(ratio >= 1, interruption_seconds, below)[()]


def lost_share(
    interval_seconds: np.ndarray,
    write_seconds: np.ndarray,
    restart_seconds: np.ndarray,
    mean_seconds: np.ndarray,
) -> np.ndarray:
    """Return the seconds lost to interruptions per second of work and checkpoints, by Daly's complete model.

    This is T / (W + writes) - 1 with T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, sources §6.1. Arrays broadcast.
    """
    segment = interval_seconds + write_seconds
    again = np.exp(np.minimum(restart_seconds / mean_seconds, _ENDLESS))
    return mean_seconds * again * np.expm1(np.minimum(segment / mean_seconds, _ENDLESS)) / segment - 1


# Seconds between a spot machine's notice and its end, as the providers document them (AWS, Google Cloud, Azure).
NOTICE_SECONDS = {"aws": 120, "gcp": 30, "azure": 30}


def save_seconds(run: RunConfig, clock: WallClock, step_seconds: Estimate) -> float:
    """Return the seconds from a notice to a saved checkpoint, at the high ends of the intervals.

    The checkpoint is written after the current step or evaluation.
    """
    assert clock.evals_seconds and clock.checkpoints_seconds  # the trainer's plans have every part
    evaluation = clock.evals_seconds.high / max(1, planned_evals(run))
    if clock.write_seconds is not None:
        write = clock.write_seconds.high
    else:  # plans of older versions, whose checkpoints were synchronous
        checkpoints = max(1, planned_checkpoints(run, clock.steps_seconds.value + clock.evals_seconds.value))
        write = clock.checkpoints_seconds.high / checkpoints
    return max(step_seconds.high, evaluation) + write


def short_notice(provider: str | None, needed_seconds: float) -> str | None:
    """Return a warning if the provider's notice is too short to save, or None if it suffices or is not documented."""
    notice = NOTICE_SECONDS.get(provider or "")
    if provider is None or notice is None or needed_seconds <= notice:
        return None
    return (
        f"{seller_of(provider)} gives a spot machine {notice} s of notice, a step or an evaluation and a checkpoint "
        f"take up to {format_seconds(needed_seconds)}"
    )
