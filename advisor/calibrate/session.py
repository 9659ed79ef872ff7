"""A calibration from start to end: worker, ceilings, rounds of bursts chosen by what they teach, one raw document.

Effects: child processes and the store. The document on disk is whole after every burst, so that an interrupted
calibration keeps what it measured and the same command continues it.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from advisor.calibrate import design, evidence
from advisor.calibrate.fit import fit
from advisor.calibrate.measure import Ready, Worker, WorkerDied, disk_bytes_per_second, rehearse
from advisor.errors import AdvisorError
from advisor.predict.memory import MemoryModel
from advisor.predict.throughput import Posterior, predict_log, sizes
from advisor.records import Workload
from advisor.store import Store
from advisor.units import format_seconds
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, RunConfig, TelemetryConfig, make_shape, to_dict

SCHEMA = 1
_ROUND = 4  # bursts chosen together, then run in random order
_CEILING_SHARE = 0.04  # of the budget
_REHEARSAL_SHARE = 0.2
_RESERVE_SECONDS = 1.5  # for the fit and the last write
_WARMUP_STEPS_MOST = 12
_FIRST_COMPILE_SECONDS = 12.0  # a block, forward and backward, before one was timed (sources §3.2: 22-47 s a model)
_LATE_SECONDS = 20.0  # a burst this much beyond its expected time is given up


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to calibrate, resolved: nothing is automatic any more."""

    gpu: str
    device: str  # cpu | cuda
    family: str
    depths: tuple[int, ...]
    seq_len: int
    vocab_size: int
    data: str | None
    budget_seconds: float
    precision: str
    compile: bool
    activation_checkpointing: str
    optimizer: str
    memory_bytes: int | None  # what bursts may fill
    most_micro_tokens: int  # of a burst's micro-batch
    usd_per_hour: float | None
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something to show while a calibration runs."""

    text: str
    elapsed_seconds: float


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Where the budget stands."""

    began: float
    budget_seconds: float

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    @property
    def left(self) -> float:
        return self.budget_seconds - self.elapsed - _RESERVE_SECONDS


def calibrate(
    settings: Settings,
    worker: Worker,
    store: Store,
    memory: MemoryModel,
    on_event: Callable[[Event], None],
    resume: bool = True,
) -> dict[str, Any]:
    """Run a calibration within its budget and return its document, saved after every burst.

    Raises AdvisorError when the worker cannot start, the store cannot be written or no burst could be measured.
    KeyboardInterrupt passes through with everything measured so far on disk.
    """
    clock = Clock(began=time.monotonic(), budget_seconds=settings.budget_seconds)
    ready = worker.start()
    document = _resumed(settings, store) if resume else None
    if document is None:
        document = _new_document(settings, ready, store)
        on_event(Event(text="ceilings: matrix products, memory, launches", elapsed_seconds=clock.elapsed))
        document["ceilings"] = _ceilings(settings, worker)
        on_event(Event(text="rehearsal: a run's start and end", elapsed_seconds=clock.elapsed))
        document["rehearsal"] = _rehearsal(settings, worker.log)
        if document["rehearsal"] is None:
            why = f": {worker.log} says why" if worker.log else ""
            on_event(Event(text=f"the rehearsal did not complete{why}", elapsed_seconds=clock.elapsed))
    try:
        _rounds(settings, worker, store, memory, document, clock, on_event)
        if not evidence.completed(document["bursts"]):
            raise _nothing_measured(settings, document["bursts"])
        document["status"] = "complete"
    finally:
        _bill(document, settings, clock)
        if document["bursts"]:
            store.save_calibration(document)
    return document


def _ceilings(settings: Settings, worker: Worker) -> dict[str, Any]:
    seconds = _CEILING_SHARE * settings.budget_seconds
    try:
        return worker.ask({"op": "ceilings", "precision": settings.precision, "seconds": seconds}, timeout=120)
    except WorkerDied as death:
        raise AdvisorError(
            f"the device's own speed could not be measured: {death.reason}",
            f"read {worker.log}" if worker.log else "run `python -m trainer.worker` to see why",
        ) from death


def _nothing_measured(settings: Settings, bursts: list[dict[str, Any]]) -> AdvisorError:
    if failed := [b for b in bursts if b["outcome"] == "failed"]:
        return AdvisorError(
            f"nothing was measured: every burst failed, the last with: {failed[-1]['reason']}",
            "python -m trainer.worker meets the same without the advisor; --no-compile where the compiler is the cause",
        )
    least = describe(base_workload(settings, min(settings.depths)))
    return AdvisorError(
        f"nothing was measured: even {least} does not fit the memory that is free, or not the "
        f"{format_seconds(settings.budget_seconds)} that were given",
        "smaller --depths, a shorter --seq-len or a smaller --vocab-size; or more --budget-seconds",
    )


def _rehearsal(settings: Settings, log: Path | None) -> dict[str, Any] | None:
    """A real run of three steps of the smallest model: what a run costs besides its steps; None if it failed."""
    workload = base_workload(settings, min(settings.depths))
    config = replace(
        burst_config(settings, workload),
        steps=3,
        compile=False,  # compilation has its own line in the bill
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_seconds=None, final=True),
        telemetry=TelemetryConfig(),
    )
    rehearsed = rehearse(config, timeout=_REHEARSAL_SHARE * settings.budget_seconds + _LATE_SECONDS, log=log)
    return None if rehearsed is None else asdict(rehearsed)


def _rounds(
    settings: Settings,
    worker: Worker,
    store: Store,
    memory: MemoryModel,
    document: dict[str, Any],
    clock: Clock,
    on_event: Callable[[Event], None],
) -> None:
    rng = random.Random(settings.seed + len(document["bursts"]))
    bursts = document["bursts"]
    while True:
        posterior = _believe(document, settings)
        picks = next_bursts(settings, memory, posterior, bursts, clock.left)
        if not picks:
            return
        rng.shuffle(picks)  # a drifting machine must not favour one configuration
        for workload in picks:
            if _price(posterior, workload, _cost(bursts, settings)) > clock.left:
                continue
            on_event(Event(text=f"burst {len(bursts) + 1}: {describe(workload)}", elapsed_seconds=clock.elapsed))
            bursts.append(run_burst(worker, settings, workload, limit=clock.left))
            store.save_calibration(document)
        hopeless = len(bursts) >= _ROUND and all(b["outcome"] == "failed" for b in bursts)
        if clock.left <= 0 or hopeless:
            return


def next_bursts(
    settings: Settings, memory: MemoryModel, posterior: Posterior, bursts: list[dict[str, Any]], seconds_left: float
) -> list[Workload]:
    """The next round: the best by design, and whatever contrast (a second depth, batch or context) is still missing."""
    pool = burst_pool(settings, memory, bursts)
    if not pool or seconds_left <= 0:
        return []
    weights = design.target_weights(posterior, sizes(pool), settings.seq_len)
    noise = evidence.drift_of(bursts).noise_floor
    picks = design.choose(
        posterior,
        pool,
        weights,
        _cost(bursts, settings),
        count=_ROUND,
        seconds_left=seconds_left,
        visit_noise=noise,
    )
    done = [evidence.workload_from_dict(b["workload"], settings.gpu) for b in evidence.completed(bursts)]
    if done:
        missing = design.missing_contrast(done + picks, pool)
        picks += missing[:1]
    return picks


def burst_pool(settings: Settings, memory: MemoryModel, bursts: list[dict[str, Any]]) -> list[Workload]:
    """Every configuration worth a burst: within memory, short enough for the budget, and not larger than one that ran
    out of memory.
    """
    shapes = [base_workload(settings, d) for d in settings.depths]
    failed = [
        evidence.workload_from_dict(b["workload"], settings.gpu) for b in bursts if b["outcome"] == "out_of_memory"
    ]

    def fits(w: Workload) -> bool:
        if any(w.shape.depth >= f.shape.depth and w.micro_tokens >= f.micro_tokens for f in failed):
            return False
        return settings.memory_bytes is None or memory.device_total_bytes(w).value <= settings.memory_bytes

    seq_lens = (settings.seq_len, max(16, settings.seq_len // 2))
    return design.candidates(shapes, seq_lens=seq_lens, most_tokens=settings.most_micro_tokens, fits=fits)


def run_burst(worker: Worker, settings: Settings, workload: Workload, limit: float) -> dict[str, Any]:
    """One burst in the worker; whatever happens to it is an entry of the document."""
    config = burst_config(settings, workload)
    began, started = time.monotonic(), time.time()
    request = {
        "op": "burst",
        "config": to_dict(config),
        "seconds": burst_seconds(settings),
        "least_steps": 3,
        "most_warmup": _WARMUP_STEPS_MOST,
        "limit_seconds": max(1.0, limit),
    }
    try:
        answer = worker.ask(request, timeout=max(5.0, limit) + _LATE_SECONDS)
    except WorkerDied as death:
        answer = {"outcome": death.outcome, "reason": death.reason, "trained": False}
    answer.pop("kind", None)
    head = {"workload": evidence.workload_to_dict(workload), "started": round(started, 3)}
    return head | answer | {"seconds": round(time.monotonic() - began, 4)}


def burst_seconds(settings: Settings) -> float:
    """Timed seconds of one burst: long enough for a median, short enough for some thirty bursts in a small budget."""
    return min(1.5, settings.budget_seconds / 30)


def burst_config(settings: Settings, workload: Workload) -> RunConfig:
    """The run configuration of a burst: the full run's, without checkpoints and telemetry."""
    return RunConfig(
        model=workload.shape,
        steps=10_000,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        name="burst",
        device=settings.device,
        precision=workload.precision,
        compile=workload.compile,
        activation_checkpointing=workload.activation_checkpointing,
        data=DataConfig(path=settings.data),
        optimizer=replace(RunConfig.__dataclass_fields__["optimizer"].default_factory(), name=workload.optimizer),
        eval=EvalConfig(tokens=workload.micro_tokens),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
        telemetry=TelemetryConfig(hz=0),
    )


def describe(w: Workload) -> str:
    """One burst in words."""
    accumulated = f" × {w.grad_accum} accumulated" if w.grad_accum > 1 else ""
    return f"depth {w.shape.depth}, micro-batch {w.micro_batch} × {w.shape.seq_len}{accumulated}"


def base_workload(settings: Settings, depth: int) -> Workload:
    shape = make_shape(settings.family, depth=depth, vocab_size=settings.vocab_size, seq_len=settings.seq_len)
    return Workload(
        shape=shape,
        micro_batch=1,
        gpu=settings.gpu,
        precision=settings.precision,
        compile=settings.compile,
        activation_checkpointing=settings.activation_checkpointing,
        optimizer=settings.optimizer,
    )


def _believe(document: dict[str, Any], settings: Settings) -> Posterior:
    drift = evidence.drift_of(document["bursts"])
    seen = evidence.observations(document["bursts"], settings.gpu, drift)
    return fit(seen, evidence.rates_of(document["ceilings"]), evidence.prior_of(document), drift.deviation)


def _cost(bursts: list[dict[str, Any]], settings: Settings) -> design.BurstCost:
    """What bursts have cost so far: warm-up steps and compilation as measured."""
    done = evidence.completed(bursts)
    if len(done) < 3:
        return design.BurstCost(
            timed_seconds=burst_seconds(settings), compile_seconds=_FIRST_COMPILE_SECONDS * settings.compile
        )
    warmup = statistics.median_high(len(b["warmup_seconds"]) for b in done)
    z = sizes([evidence.workload_from_dict(b["workload"], settings.gpu) for b in done])
    first: dict[tuple[float, ...], float] = {}
    for shape, burst in zip(design.block_shapes(z), done, strict=True):
        first.setdefault(shape, burst["compile_seconds"] if burst["workload"]["compile"] else 0.0)
    return design.BurstCost(
        warmup_steps=max(2, warmup),
        timed_seconds=burst_seconds(settings),
        compile_seconds=statistics.median(first.values()),
        compiled=frozenset(first),
    )


def _price(posterior: Posterior, workload: Workload, cost: design.BurstCost) -> float:
    z = sizes([workload])
    return float(cost.seconds(z, np.exp(predict_log(posterior, z).mean))[0])


def _new_document(settings: Settings, ready: Ready, store: Store) -> dict[str, Any]:
    now = datetime.now(UTC)
    return {
        "schema": SCHEMA,
        "kind": "calibration",
        "id": f"{settings.gpu}-{settings.family}-{now:%Y%m%d-%H%M%S}",
        "created": now.isoformat(timespec="seconds"),
        "status": "partial",
        "family": settings.family,
        "device": {"key": settings.gpu, **ready.device},
        "environment": {"torch": ready.torch, "python": ready.python, "ready_seconds": round(ready.seconds, 3)},
        "settings": _settings_to_dict(settings),
        "disk_bytes_per_second": round(disk_bytes_per_second(_runs_folder(store))),
        "ceilings": {},
        "bursts": [],
        "cost": {"seconds": 0.0, "usd": None},
    }


def _runs_folder(store: Store) -> Path:
    folder = store.home / "runs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _settings_to_dict(settings: Settings) -> dict[str, Any]:
    raw = {name: getattr(settings, name) for name in Settings.__dataclass_fields__}
    return raw | {"depths": list(settings.depths)}


def _resumed(settings: Settings, store: Store) -> dict[str, Any] | None:
    """The newest calibration of this device if it was cut off and asked for the same thing."""
    newest = store.newest_calibration(settings.gpu, settings.family)
    if newest is None or newest.get("status") != "partial" or not newest.get("ceilings"):
        return None
    changing = ("budget_seconds", "memory_bytes", "usd_per_hour", "seed")
    wanted = {k: v for k, v in _settings_to_dict(settings).items() if k not in changing}
    return newest if wanted == {k: v for k, v in newest["settings"].items() if k not in changing} else None


def _bill(document: dict[str, Any], settings: Settings, clock: Clock) -> None:
    seconds = document["cost"]["seconds"] + clock.elapsed
    price = settings.usd_per_hour
    document["cost"] = {
        "seconds": round(seconds, 2),
        "usd": None if price is None else round(price * seconds / 3600, 6),
    }


def measure_one(workload: Workload, worker: Worker, store: Store, document: dict[str, Any], seconds: float) -> None:
    """Add bursts of one configuration to a calibration, so that predictions of it become measurements.

    Bursts repeat until `seconds` are spent, at least twice, or one fails; the document is saved after each.
    """
    settings = settings_of(document)
    end = time.monotonic() + seconds
    for count in range(8):
        left = end - time.monotonic()
        if count >= 2 and left <= 0:
            return
        document["bursts"].append(run_burst(worker, settings, workload, limit=max(left, 10.0)))
        store.save_calibration(document)
        if document["bursts"][-1]["outcome"] != "completed":
            return  # it would end so again


def settings_of(document: dict[str, Any]) -> Settings:
    """The settings a calibration document was made with."""
    raw = dict(document["settings"])
    return Settings(**raw | {"depths": tuple(raw["depths"])})
