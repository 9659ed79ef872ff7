"""The whole bill of runs in seconds, not their steps alone; and how often to write a checkpoint.

Every number may be an array: what belongs to a run has shape (n, 1), its steps (n, k). One run is a table of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from advisor.laws import flops
from advisor.prediction.intervals import EstimateArrays, columns, product, reciprocal, sum_independent, sum_shared
from advisor.records import Basis, Estimate, WallClock
from trainer.schema import RunConfig

_Count = TypeVar("_Count", int, np.ndarray)

# An evaluation is not exactly a forward share of a step (no autograd graph, its own data reading).
_EVAL_SPREAD = Estimate(value=1.0, low=0.85, high=1.15, basis=Basis.MEASURED)
# A rented machine that is not here yet. No provider publishes how long an order takes: virtual machines answer within
# one to five minutes, marketplace hosts that must pull an image within a quarter of an hour. Judged, and billed.
PROVISIONING = Estimate(value=240.0, low=60.0, high=900.0, basis=Basis.PRIOR)
SOFTWARE_BYTES = 4e9  # PyTorch with its CUDA libraries and the rest, as wheels
DOWNLOAD_BYTES_PER_SECOND = Estimate(value=1e8, low=2.5e7, high=4e8, basis=Basis.PRIOR)  # 0.2 to 3 Gb/s
# Mean time between failures of a job on one node that nobody takes back: people and software end it every 3 to 7 days,
# its hardware every 154 to 427 (sources §6.2); 5 days between, 1 and 14 as the interval. Judged.
BETWEEN_FAILURES = Estimate(value=5 * 86400.0, low=86400.0, high=14 * 86400.0, basis=Basis.PRIOR)
# GPU seconds between failures that each further GPU adds: Llama 3 lost 419 times in 54 days on 16,384 GPUs, once in
# 50,000 GPU hours (Grattafiori et al. 2024, table 5). As often as jobs of 1,024 GPUs fail every 7.9 hours (Kokolis et
# al. 2025) at one end; half as often, judged, at the other.
GPU_SECONDS = Estimate(value=1.8e8, low=4.3e7, high=3.6e8, basis=Basis.PRIOR)
GPUS_A_NODE = 8
RESTART_SECONDS = 600.0  # until a failure is seen and the run is started again: 5 to 15 minutes. Judged
LEAST_INTERVAL_SECONDS = 60.0
# What one GPU copies to its host's memory, from which a thread writes while the run goes on: 3 to 6 GB/s into memory
# that is not pinned, twice as much into pinned memory, less where eight GPUs share the host. Judged.
_HOST_COPY_BYTES_PER_SECOND = Estimate(value=4e9, low=1.5e9, high=1.2e10, basis=Basis.PRIOR)
# What all processes agree on before and after. PyTorch's asynchronous checkpoints stop a 7 B model for 6.3 s in all
# where synchronous ones took 149 (pytorch.org/blog/reducing-checkpointing-times, 2024). Judged.
_AGREEMENT = Estimate(value=1.0, low=0.1, high=4.0, basis=Basis.PRIOR)
_ENDLESS = 100.0  # interruptions expected within one interval: with so many no run ends, and numbers still do


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When checkpoints are written. None: not by steps, not by time; 0 and NaN count as None."""

    every_steps: int | None = None
    every_seconds: float | np.ndarray | None = None
    final: bool = True


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What the seconds of runs are made of besides how many steps and evaluations they have; shapes (n, 1)."""

    step: EstimateArrays  # seconds per optimizer step
    forward: EstimateArrays  # of one micro-batch on one device: the same error as `step`
    startup: EstimateArrays  # until the loop starts, building the model included
    compile: EstimateArrays
    write: EstimateArrays  # of one checkpoint, until it is on disk
    stall: EstimateArrays  # of one checkpoint, while the run waits; as long as `write` where nothing is written beside
    provisioning: EstimateArrays  # of a rented machine: ordered until it answers; 0 where it is at hand
    download: EstimateArrays  # software and data onto a rented machine
    between_interruptions: EstimateArrays  # or failures, where nobody takes the machine back
    taken: np.ndarray  # bool: with the machine goes all that is on it, and another is ordered
    checkpoints: Checkpoints
    fetch: EstimateArrays | None = None  # seconds to download the tokens of one step; None: the data are here
    fresh_steps: np.ndarray | float = math.inf  # until the data repeat: what is here is not downloaded again

    @cached_property
    def before(self) -> np.ndarray:
        """Expected seconds until the loop starts; again after each interruption."""
        return sum_shared(self.startup, self.compile, self.provisioning, self.download).value

    def downloads(self, steps: np.ndarray) -> EstimateArrays:
        """Everything that is downloaded before runs of so many steps."""
        if self.fetch is None:
            return self.download
        return sum_shared(self.download, self.fetch.scaled(np.minimum(steps, self.fresh_steps)))

    def idle(self, steps: np.ndarray) -> np.ndarray:
        """Expected seconds until the loop of so many steps starts."""
        if self.fetch is None:
            return self.before
        return self.before + self.fetch.value * np.minimum(steps, self.fresh_steps)

    def lost(self, mean: np.ndarray, steps: np.ndarray, working: np.ndarray) -> np.ndarray:
        """Seconds lost per second of work and checkpoints, of runs of so many steps that work so many seconds.

        `mean` is one side of `between_interruptions`. A run without checkpoints, or ended before its first, loses
        what it did.
        """
        anew = RESTART_SECONDS + self.startup.value + self.compile.value
        # A checkpoint that is not on disk yet is of no use: the work beside its writing is done again, too.
        again = np.where(self.taken, self.idle(steps), anew) + self.write.value - self.stall.value
        every = np.minimum(
            math.inf if self.checkpoints.every_seconds is None else self.checkpoints.every_seconds, working
        )
        return lost_share(every, self.stall.value, again, mean)

    def writing(self, steps: np.ndarray, working: np.ndarray) -> EstimateArrays:
        """Seconds that runs wait for their checkpoints; for the last one until it is on disk."""
        count, last = checkpoint_count(self.checkpoints, steps, working), float(self.checkpoints.final)
        return sum_shared(self.stall.scaled(count - last), self.write.scaled(last))


def expected_seconds(terms: RunTerms, steps: np.ndarray, eval_batches: np.ndarray) -> np.ndarray:
    """Expected seconds of everything; `eval_batches` are all evaluations' micro-batches on the busiest device."""
    working = steps * terms.step.value + eval_batches * terms.forward.value
    writing = terms.writing(steps, working).value
    return terms.idle(steps) + (working + writing) * (1 + terms.lost(terms.between_interruptions.value, steps, working))


@dataclass(frozen=True, kw_only=True)
class WallClocks:
    """The parts of `WallClock` for many runs; the machine's order, downloads and interruptions may be nothing."""

    startup_seconds: EstimateArrays
    compile_seconds: EstimateArrays
    steps_seconds: EstimateArrays
    evals_seconds: EstimateArrays
    checkpoints_seconds: EstimateArrays
    interruptions_seconds: EstimateArrays
    provisioning_seconds: EstimateArrays
    download_seconds: EstimateArrays
    loop_seconds: EstimateArrays  # while devices draw power that telemetry meters
    total_seconds: EstimateArrays
    write_seconds: EstimateArrays  # of one checkpoint, until it is on disk

    def at(self, row: int) -> WallClock:
        """The clock of one row of arrays of shape (n, 1)."""
        always = ("startup", "compile", "steps", "evals", "checkpoints", "total", "write")
        parts = {f"{name}_seconds": getattr(self, f"{name}_seconds").at(row) for name in always}
        return WallClock(
            **parts,
            interruptions_seconds=_unless_nothing(self.interruptions_seconds.at(row)),
            provisioning_seconds=_unless_nothing(self.provisioning_seconds.at(row)),
            download_seconds=_unless_nothing(self.download_seconds.at(row)),
        )


def _unless_nothing(estimate: Estimate) -> Estimate | None:
    return estimate if estimate.high else None


def wall_clocks(terms: RunTerms, steps: np.ndarray, eval_batches: np.ndarray) -> WallClocks:
    """`expected_seconds` by part and with intervals.

    The devices share an evaluation's batches. Steps and evaluations share the error of the step time, so their ends add
    up; start-up, compilation, disk, the machine's order and its interruptions are unrelated and join in quadrature.
    """
    stepping = terms.step.scaled(steps)
    spread = columns([_EVAL_SPREAD])
    evals = product(terms.forward.scaled(eval_batches), spread)
    working = sum_shared(stepping, evals)
    writing = terms.writing(steps, working.value)
    lost = _interruptions(terms, steps, working.value).scaled(working.value + writing.value)
    loop = sum_independent(working, writing, lost)
    download = terms.downloads(steps)
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


def _interruptions(terms: RunTerms, steps: np.ndarray, working: np.ndarray) -> EstimateArrays:
    """Shares of the work that interruptions cost; the rarer they are, the less."""
    mean = terms.between_interruptions
    value, low, high = (terms.lost(side, steps, working) for side in (mean.value, mean.high, mean.low))
    basis = None if mean.basis is None else np.broadcast_to(mean.basis, value.shape)
    return EstimateArrays(value=value, low=low, high=high, basis=basis)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Seconds of a rented machine from its order to the first command of the run."""

    provisioning_seconds: Estimate
    download_seconds: Estimate

    @property
    def seconds(self) -> float:
        """Expected, both together."""
        return self.provisioning_seconds.value + self.download_seconds.value


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


def checkpoint_interval_seconds(stall_seconds: np.ndarray | float, mean_seconds: np.ndarray | float) -> np.ndarray:
    """Whole seconds between checkpoints: Daly's for a mean time between interruptions, no less than a minute.

    Arrays broadcast.
    """
    return np.maximum(np.ceil(daly_interval_seconds(stall_seconds, mean_seconds)), LEAST_INTERVAL_SECONDS)[()]


def stalls(write: EstimateArrays, held_bytes: np.ndarray, *, beside: np.ndarray) -> EstimateArrays:
    """Seconds that a run waits for one checkpoint, shape (n, 1): until it is copied where it is written `beside` the
    run, else until it is on disk. `held_bytes` are those that one GPU copies.
    """
    copy = sum_shared(reciprocal(columns([_HOST_COPY_BYTES_PER_SECOND]), held_bytes), columns([_AGREEMENT]))
    sides: dict[str, np.ndarray] = {
        side: np.where(beside, np.minimum(getattr(copy, side), getattr(write, side)), getattr(write, side))
        for side in ("value", "low", "high")
    }
    assert copy.basis is not None and write.basis is not None
    return EstimateArrays(**sides, basis=np.where(beside, copy.basis, write.basis))


def between_failures(gpus: int) -> Estimate:
    """Mean seconds between failures of a job on so many GPUs that nobody takes back."""
    more = max(0, gpus - GPUS_A_NODE)
    sides = zip(*((e.value, e.low, e.high) for e in (BETWEEN_FAILURES, GPU_SECONDS)), strict=True)
    value, low, high = (1 / (1 / alone + more / each) for alone, each in sides)
    return Estimate(value=value, low=low, high=high, basis=BETWEEN_FAILURES.basis)


def eval_count(every_steps: np.ndarray | int | None, steps: np.ndarray | int) -> np.ndarray | int:
    """Evaluations of completed runs: every `every_steps`, and one at the end unless the last step had it."""
    return 1 if every_steps is None else -(-steps // every_steps)


def planned_evals(run: RunConfig) -> int:
    """Evaluations of a configured run."""
    return int(eval_count(run.eval.every_steps or None, run.steps)) if run.eval.tokens else 0


def checkpoint_count(settings: Checkpoints, steps: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Checkpoints of completed runs whose steps and evaluations last `seconds`: by steps, by time and at the end.

    The clock starts anew at each checkpoint, so time matters only between those due by steps.
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
    """Checkpoints of a configured run whose steps and evaluations last `seconds`."""
    given = run.checkpoint
    settings = Checkpoints(
        every_steps=given.every_steps or None, every_seconds=given.every_seconds or None, final=given.final
    )
    return int(checkpoint_count(settings, np.array(run.steps), np.array(seconds)))


def checkpoint_bytes(run: RunConfig) -> int:
    """Bytes of one checkpoint: fp32 weights and the optimizer's moments.

    AdamW keeps two moments, 12 bytes per parameter in all; Muon keeps one for the matrices inside blocks, 8 bytes.
    """
    return state_bytes(run.model, run.optimizer.name)


def state_bytes(shape: flops.Shape[_Count], optimizer: str) -> _Count:
    """Weights and moments of a model, or of many, under "adamw" or "muon"."""
    both_moments = 12 * flops.parameters(shape)
    return both_moments - 4 * flops.block_matrix_parameters(shape) if optimizer == "muon" else both_moments


def disk_bytes(run: RunConfig) -> int:
    """The most bytes of checkpoints on disk at once: all that are kept, and the one being written."""
    return (run.checkpoint.keep + 1) * checkpoint_bytes(run)


def daly_interval_seconds(
    write_seconds: np.ndarray | float, interruption_seconds: np.ndarray | float
) -> np.ndarray | float:
    """Work between checkpoints of least lost time, higher order (Daly 2006, sources §6.1). Arrays broadcast."""
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
    """Seconds lost to interruptions per second of work and checkpoints: Daly's complete model, less the work itself.

    Arrays broadcast. T / (W + writes) - 1 with T = M e^(R/M) (e^((tau + delta)/M) - 1) W / tau, sources §6.1.
    """
    segment = interval_seconds + write_seconds
    again = np.exp(np.minimum(restart_seconds / mean_seconds, _ENDLESS))
    return mean_seconds * again * np.expm1(np.minimum(segment / mean_seconds, _ENDLESS)) / segment - 1
