"""Runs a calibration from start to end: worker, ceilings, rounds of the most informative bursts, one raw record.

Effects: child processes and the store. The file on disk is complete after every burst, so an interrupted calibration
keeps its measurements, and the same command continues it.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np

from advisor.calibration import design, observations
from advisor.calibration.fit import FitEvidence
from advisor.calibration.measure import (
    LATE_SECONDS,
    Ready,
    Worker,
    WorkerDied,
    base_workload,
    burst_config,
    burst_seconds,
    describe,
    disk_bytes_per_second,
    rehearse,
    run_burst,
)
from advisor.calibration.quality import configurations, judged
from advisor.calibration.setting_effects import BUDGETS, base_of, switched
from advisor.errors import AdvisorError
from advisor.prediction.memory import MemoryModel
from advisor.prediction.throughput import predict_log, sizes
from advisor.records import Workload
from advisor.store.calibration import COMPLETE, PARTIAL, Burst, Calibration, Cost, Environment, SettingBurst, Settings
from advisor.store.store import Store
from advisor.units import format_seconds
from trainer.messages import CeilingsRequest
from trainer.schema import CheckpointConfig, EvalConfig, Outcome, TelemetryConfig

_ROUND = 4  # bursts that are chosen together and then run in random order
_CEILING_SHARE = 0.04  # of the budget
_REHEARSAL_SHARE = 0.2
_RESERVE_SECONDS = 1.5  # for the fit and the last write
_LATE_BURST_SECONDS = 120.0  # longest burst beyond the budget
_FIRST_COMPILE_SECONDS = 12.0  # for a block, forward and backward, until one is timed (sources §3.2: 22-47 s per model)


@dataclass(frozen=True, kw_only=True)
class CalibrationEvent:
    """A message to show while a calibration runs."""

    text: str
    elapsed_seconds: float


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The state of the time budget."""

    began: float
    budget_seconds: float

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.budget_seconds - self.elapsed - _RESERVE_SECONDS


@dataclass(kw_only=True)
class Notebook:
    """A calibration in progress, complete on disk after every burst."""

    calibration: Calibration
    store: Store

    def add(self, burst: Burst) -> None:
        """Add one burst and drop the old verdict, which did not include it."""
        bursts = (*self.calibration.bursts, burst)
        self.calibration = replace(self.calibration, bursts=bursts, held_out_error=None, quality=None)
        self.save()

    def judge(self) -> None:
        """Predict each configuration from the others and store the verdict."""
        self.calibration = judged(self.calibration)
        self.save()

    def save(self) -> None:
        """Write the calibration to disk, unless it has no burst from which it could continue."""
        if self.calibration.bursts:
            self.store.save_calibration(self.calibration)


class NothingMeasuredError(AdvisorError):
    """Says that no burst of a calibration could be measured."""


def calibrate(
    settings: Settings,
    worker: Worker,
    store: Store,
    memory: MemoryModel,
    on_event: Callable[[CalibrationEvent], None],
    resume: bool = True,
    fewest: int = 0,
    switch_settings: bool = False,
) -> Calibration:
    """Run a calibration within its budget. It is saved after every burst and judged at its end, even an early one.

    If fewer than `fewest` configurations were measured when the budget ends, it continues until they are.
    `switch_settings` then also measures the effect of each setting.
    Raises AdvisorError if the worker cannot start, the store cannot be written or no burst could be measured.
    KeyboardInterrupt passes through after everything measured so far has been written to disk.
    """
    clock = Clock(began=time.monotonic(), budget_seconds=settings.budget_seconds)
    ready, newest = worker.start(), store.newest_calibration(settings.gpu, settings.family) if resume else None
    if newest is not None and newest.status == PARTIAL:  # it was interrupted, and goes on if it had the same settings
        free = ("budget_seconds", "memory_bytes", "usd_per_hour", "seed")
        if replace(settings, **{name: getattr(newest.settings, name) for name in free}) != newest.settings:
            newest = None
    else:
        newest = None
    session = _Session(settings=settings, worker=worker, memory=memory, clock=clock, on_event=on_event)
    notes = Notebook(calibration=newest or session.begin(ready, store), store=store)
    try:
        session.run_rounds(notes)
        session.run_late_bursts(notes, fewest)
        bursts = notes.calibration.bursts
        if not observations.completed(bursts):
            if failed := [b for b in bursts if b.outcome == Outcome.FAILED]:
                raise NothingMeasuredError(
                    f"nothing was measured: every burst failed, the last with: {failed[-1].reason}",
                    "python -m trainer.worker meets the same without the advisor; --no-compile where the compiler is "
                    "the cause",
                )
            least = describe(base_workload(settings, min(settings.depths)))
            raise NothingMeasuredError(
                f"nothing was measured: even {least} does not fit the memory that is free, or not the "
                f"{format_seconds(settings.budget_seconds)} that were given",
                "smaller --depths, a shorter --seq-len or a smaller --vocab-size; or more --budget-seconds",
            )
        notes.calibration = replace(notes.calibration, status=COMPLETE)
        if switch_settings:
            session.run_setting_bursts(notes)
    finally:
        seconds, price = notes.calibration.cost.seconds + clock.elapsed, settings.usd_per_hour
        usd = None if price is None else round(price * seconds / 3600, 6)
        notes.calibration = replace(notes.calibration, cost=Cost(seconds=round(seconds, 2), usd=usd))
        notes.judge()
    return notes.calibration


@dataclass(frozen=True, kw_only=True)
class _Session:
    """What every part of a calibration uses."""

    settings: Settings
    worker: Worker
    memory: MemoryModel
    clock: Clock
    on_event: Callable[[CalibrationEvent], None]

    def say(self, text: str) -> None:
        self.on_event(CalibrationEvent(text=text, elapsed_seconds=self.clock.elapsed))

    def begin(self, ready: Ready, store: Store) -> Calibration:
        """Return a new calibration that has everything but its bursts."""
        now, settings, worker = datetime.now(UTC), self.settings, self.worker
        (store.home / "runs").mkdir(parents=True, exist_ok=True)
        disk = round(disk_bytes_per_second(store.home / "runs"))
        self.say("ceilings: matrix products, memory, launches")
        request = CeilingsRequest(precision=settings.precision, seconds=_CEILING_SHARE * settings.budget_seconds)
        try:
            ceilings = worker.ceilings(request, timeout=120)
        except WorkerDied as death:
            hint = f"read {worker.log}" if worker.log else "run `python -m trainer.worker` to see why"
            raise AdvisorError(f"the device's own speed could not be measured: {death.reason}", hint) from death
        self.say("rehearsal: a run's start and end")
        # A real run of three steps of the smallest model shows what a run costs besides its steps. None if it failed.
        config = replace(
            burst_config(settings, base_workload(settings, min(settings.depths))),
            steps=3,
            compile=False,  # the bill lists compilation separately
            eval=EvalConfig(tokens=0),
            checkpoint=CheckpointConfig(every_seconds=None, final=True),
            telemetry=TelemetryConfig(),
        )
        rehearsal = rehearse(config, timeout=_REHEARSAL_SHARE * settings.budget_seconds + LATE_SECONDS, log=worker.log)
        if rehearsal is None:
            self.say(f"the rehearsal did not complete{f': {worker.log} says why' if worker.log else ''}")
        return Calibration(
            id=f"{settings.gpu}-{settings.family}-{now:%Y%m%d-%H%M%S}",
            created=now.isoformat(timespec="seconds"),
            status=PARTIAL,
            device_key=settings.gpu,
            device=ready.device,
            environment=Environment(torch=ready.torch, python=ready.python, ready_seconds=round(ready.seconds, 3)),
            settings=settings,
            disk_bytes_per_second=disk,
            ceilings=ceilings,
            rehearsal=rehearsal,
            bursts=(),
            cost=Cost(seconds=0.0, usd=None),
        )

    def run_rounds(self, notes: Notebook) -> None:
        """Run rounds of the most informative bursts until the time is up."""
        settings, clock = self.settings, self.clock
        rng = random.Random(settings.seed + len(notes.calibration.bursts))
        while True:
            posterior = FitEvidence(notes.calibration).posterior()
            bursts = notes.calibration.bursts
            pool = burst_pool(settings, self.memory, bursts)
            if not pool or clock.left <= 0:
                return
            # the best by design, plus one that varies a depth, batch or context that all share
            weights, cost = design.target_weights(posterior, sizes(pool), settings.seq_len), _cost(bursts, settings)
            noise, left = observations.drift_of(bursts).noise_floor, clock.left
            picks = design.choose(posterior, pool, weights, cost, count=_ROUND, seconds_left=left, visit_noise=noise)
            if done := [b.workload for b in observations.completed(bursts)]:
                picks += design.missing_contrast(done + picks, pool)[:1]
            if not picks:
                return
            rng.shuffle(picks)  # drift of the machine must not favour one configuration
            for workload in picks:
                bursts, z = notes.calibration.bursts, sizes([workload])
                if _cost(bursts, settings).seconds(z, np.exp(predict_log(posterior, z).mean))[0] > clock.left:
                    continue
                self.say(f"burst {len(bursts) + 1}: {describe(workload)}")
                notes.add(run_burst(self.worker, settings, workload, limit=clock.left))
            bursts = notes.calibration.bursts
            hopeless = len(bursts) >= _ROUND and all(b.outcome == Outcome.FAILED for b in bursts)
            if clock.left <= 0 or hopeless:
                return

    def run_late_bursts(self, notes: Notebook, fewest: int) -> None:
        """Measure more configurations beyond the budget, until `fewest` are measured or as many bursts have failed."""
        settings, failed = self.settings, 0
        while failed < fewest and (measured := configurations(notes.calibration)) < fewest:
            bursts = notes.calibration.bursts
            tried = {b.workload for b in bursts}
            pool = [w for w in burst_pool(settings, self.memory, bursts) if w not in tried]
            if not pool:
                return
            posterior = FitEvidence(notes.calibration).posterior()
            weights, cost = design.target_weights(posterior, sizes(pool), settings.seq_len), _cost(bursts, settings)
            best = design.choose(posterior, pool, weights, cost, count=1, seconds_left=math.inf)
            [workload, *_] = (design.missing_contrast(list(tried), pool) if tried else []) + best
            self.say(f"{measured} of {fewest} configurations measured, so it takes longer: {describe(workload)}")
            notes.add(run_burst(self.worker, settings, workload, limit=_LATE_BURST_SECONDS))
            failed += notes.calibration.bursts[-1].outcome != Outcome.COMPLETED

    def run_setting_bursts(self, notes: Notebook) -> None:
        """Run a burst as calibrated, then one with each setting switched and one more as calibrated, as time allows."""
        calibration = notes.calibration
        settings, base = calibration.settings, base_of(calibration)
        clock = replace(self.clock, budget_seconds=self.clock.elapsed + BUDGETS * settings.budget_seconds)
        found, unchanged = switched(settings, base, calibration.device.compute_capability), (None, settings, base)
        for name, changed, workload in [unchanged, *(turn for one in found for turn in (one, unchanged))]:
            if name is not None and clock.left <= 0:
                return
            self.say(f"settings: {name or 'as calibrated'}")
            burst = SettingBurst(**vars(run_burst(self.worker, changed, workload, limit=clock.left)), setting=name)
            notes.calibration = replace(notes.calibration, setting_bursts=(*notes.calibration.setting_bursts, burst))
            notes.save()


def burst_pool(settings: Settings, memory: MemoryModel, bursts: Sequence[Burst]) -> list[Workload]:
    """Return every configuration that a burst can run within memory and budget.

    Any that is at least as large as one that ran out of memory is left out.
    """
    shapes = [base_workload(settings, d) for d in settings.depths]
    failed = [b.workload for b in bursts if b.outcome == Outcome.OUT_OF_MEMORY]

    def fits(w: Workload) -> bool:
        if any(w.shape.depth >= f.shape.depth and w.micro_tokens >= f.micro_tokens for f in failed):
            return False
        return settings.memory_bytes is None or memory.device_total_bytes(w).value <= settings.memory_bytes

    seq_lens = (settings.seq_len, max(16, settings.seq_len // 2))
    return design.candidates(shapes, seq_lens=seq_lens, most_tokens=settings.most_micro_tokens, fits=fits)


def _cost(bursts: Sequence[Burst], settings: Settings) -> design.BurstCost:
    """Return the cost of bursts so far, with warm-up steps and compilation as measured."""
    done = observations.completed(bursts)
    if len(done) < 3:
        return design.BurstCost(
            timed_seconds=burst_seconds(settings), compile_seconds=_FIRST_COMPILE_SECONDS * settings.compile
        )
    warmup = statistics.median_high(len(b.warmup_seconds) for b in done)
    z = sizes([b.workload for b in done])
    first: dict[tuple[float, ...], float] = {}
    for shape, burst in zip(design.block_shapes(z), done, strict=True):
        first.setdefault(shape, (burst.compile_seconds or 0.0) if burst.workload.compile else 0.0)
    return design.BurstCost(
        warmup_steps=max(2, warmup),
        timed_seconds=burst_seconds(settings),
        compile_seconds=statistics.median(first.values()),
        compiled=frozenset(first),
    )
