"""Measure a calibration's accuracy: calibrate small, then train new configurations of up to twice the depth and batch.

    python benchmarks/held_out.py --out benchmarks/raw [--device cpu] [--seed 0] [--home DIR]

Writes one raw file per session. It holds the calibration and, under `held_out`, one entry per burst of configurations
outside it, interleaved and repeated, each with the reference kernel beside it. Under `chosen` is the recommended
configuration, measured again. On a GPU, `edge` has the largest configuration that is predicted to fit, and `variants`
the recommended one with other software settings. `benchmarks/accuracy.py` reads these files; nothing is judged here.
With --home, the calibration is also kept there, as by `advisor calibrate`. On a CPU a session takes about four minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.calibration import design
from advisor.calibration.detect import fillable_bytes, resolve_key
from advisor.calibration.measure import Worker, base_workload, describe, run_burst
from advisor.calibration.profiles import profile_of
from advisor.calibration.session import CalibrationEvent, calibrate
from advisor.prediction.batch import predict_batch
from advisor.prediction.memory import load_memory_model
from advisor.prediction.profile import Profile
from advisor.records import Workload
from advisor.store.calibration import AccuracySession, Burst, Settings, calibration_to_dict
from advisor.store.disk import dump_yaml, write_atomic
from advisor.store.store import Store
from advisor.units import format_bytes, format_seconds
from trainer.messages import WorkerDevice


@dataclass(frozen=True, kw_only=True)
class Session:
    """What is calibrated, and how far the held-out configurations go beyond it."""

    depths: tuple[int, ...]
    most_micro_tokens: int
    seq_len: int
    vocab_size: int
    compile: bool
    calibrate_seconds: float
    held_seconds: float
    held_count: int


CPU = Session(
    depths=(2, 3, 4),
    most_micro_tokens=2048,
    seq_len=256,
    vocab_size=4096,
    compile=False,
    calibrate_seconds=90.0,
    held_seconds=110.0,
    held_count=14,
)
CUDA = Session(
    depths=(4, 6, 8, 10, 12),
    most_micro_tokens=32768,
    seq_len=1024,
    vocab_size=32768,
    compile=True,
    calibrate_seconds=120.0,
    held_seconds=100.0,  # new shapes are compiled, so most are visited only once
    held_count=12,
)
_SHOWN = 200  # characters of a reason


def main() -> None:
    """Run one session and write its raw file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--home", type=Path, help="keep the calibration in this folder too")
    options = parser.parse_args()
    path = measure(options.device, options.out, options.seed, home=options.home)
    print(path)


def measure(device: str, out: Path, seed: int, session: Session | None = None, home: Path | None = None) -> Path:
    """Calibrate, measure held-out configurations, measure the recommended one again, and return the raw file's path.

    The file is complete after each burst, so a time limit costs only what was not yet measured. During the calibration
    itself, the complete file is the one in `home`.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, Worker(device, log=out / "worker.log") as worker:
        os.environ.setdefault("ADVISOR_HOME", scratch)
        found = worker.start().device
        session = session or (CUDA if found.type == "cuda" else CPU)
        settings = settings_for(session, found, seed)
        store = Store(home or Path(scratch))
        calibration = calibrate(settings, worker, store, load_memory_model(), _say, resume=False)
        record = AccuracySession(**vars(calibration))
        path = out / f"{record.id}-seed{seed}.yaml"
        profile = profile_of(calibration)
        parts = {"chosen": _repeat(worker, settings, recommended(profile, settings), 3)}
        if settings.device == "cuda":
            parts |= {"edge": edge(settings, profile, worker), "variants": variants(settings, profile, worker)}
        parts["held_out"] = hold_out(settings, session, profile, worker, random.Random(seed))
        for name, part in parts.items():
            for burst in part:
                record = replace(record, **{name: (*getattr(record, name), burst)})
                write_atomic(path, dump_yaml(calibration_to_dict(record)))
                print(f"{name}: {in_words(burst)}", flush=True)
    return path


def in_words(burst: Burst) -> str:
    """Return one burst as a line: its configuration, how it ended, and what it measured."""
    what = describe(burst.workload)
    if burst.outcome != "completed":
        return f"{what}: {burst.outcome}, {str(burst.reason)[:_SHOWN]}"
    said = [f"step {format_seconds(statistics.median(burst.step_seconds))}"]
    if burst.allocated_peak_bytes is not None:
        said.append(f"{format_bytes(burst.allocated_peak_bytes)} allocated")
    if burst.reserved_peak_bytes is not None:
        said.append(f"{format_bytes(burst.reserved_peak_bytes)} reserved")
    if burst.watts is not None:
        said.append(f"{burst.watts:.0f} W")
    return f"{what}: {', '.join(said)}, {burst.seconds:.1f} s in all"


def _repeat(worker: Worker, settings: Settings, workload: Workload, times: int) -> Iterator[Burst]:
    for _ in range(times):
        yield run_burst(worker, settings, workload, limit=30.0)


def edge(settings: Settings, profile: Profile, worker: Worker) -> Iterator[Burst]:
    """Yield one burst at twice the calibrated depth with the largest micro-batch predicted to fit. It must fit."""
    base = base_workload(settings, 2 * max(settings.depths))
    options = [replace(base, micro_batch=b) for b in design.ladder(10**9)]
    fitting = [p.workload for p in predict_batch(profile, options) if p.fits]
    if fitting:
        yield from _repeat(worker, settings, fitting[-1], 1)


def variants(settings: Settings, profile: Profile, worker: Worker) -> Iterator[Burst]:
    """Yield the recommended configuration uncompiled, in fp16 with loss scaling, with checkpointing, and with Muon."""
    chosen = recommended(profile, settings)
    changes = ({"compile": False}, {"precision": "fp16"}, {"activation_checkpointing": "full"}, {"optimizer": "muon"})
    for change in changes:
        yield from _repeat(worker, settings, replace(chosen, **change), 1)


def settings_for(session: Session, found: WorkerDevice, seed: int) -> Settings:
    """Return the session's calibration settings for this device."""
    return Settings(
        gpu=resolve_key("auto", found) if found.type == "cuda" else "cpu",
        device=found.type,
        family="nanochat",
        depths=session.depths,
        seq_len=session.seq_len,
        vocab_size=session.vocab_size,
        data=None,
        budget_seconds=session.calibrate_seconds,
        precision=found.auto_precision,
        compile=session.compile and found.type == "cuda",
        activation_checkpointing="none",
        optimizer="adamw",
        memory_bytes=fillable_bytes(found),
        most_micro_tokens=session.most_micro_tokens,
        usd_per_hour=None,
        seed=seed,
    )


def hold_out(
    settings: Settings, session: Session, profile: Profile, worker: Worker, rng: random.Random
) -> Iterator[Burst]:
    """Yield bursts outside the calibration, up to twice its depth and micro-batch, in shuffled rounds."""
    chosen = held_configurations(settings, session, profile, rng)
    measured = 0
    end = time.monotonic() + session.held_seconds
    while time.monotonic() < end:
        rng.shuffle(chosen)
        for workload in chosen:
            left = end - time.monotonic()
            if predict_batch(profile, [workload])[0].step_seconds.value * 6 > left:
                continue
            yield run_burst(worker, settings, workload, limit=left)
            measured += 1
        if not measured or end - time.monotonic() < 3:
            return


def held_configurations(settings: Settings, session: Session, profile: Profile, rng: random.Random) -> list[Workload]:
    """Return a random sample of uncalibrated configurations that fit: larger in depth, in batch, or in both."""
    deepest = 2 * max(settings.depths)
    shapes = [base_workload(settings, d) for d in range(max(settings.depths), deepest + 1, 2)]
    limit = settings.memory_bytes
    pool = design.candidates(
        shapes,
        seq_lens=(settings.seq_len, settings.seq_len // 2),
        most_tokens=2 * session.most_micro_tokens,
        fits=lambda w: limit is None or profile.memory.device_total_bytes(w).high <= limit,
    )
    beyond = [w for w in pool if w.shape.depth > max(settings.depths) or w.micro_tokens > session.most_micro_tokens]
    budget = session.held_seconds / 2 / session.held_count  # at least two visits each
    steps = [p.step_seconds.value for p in predict_batch(profile, beyond)]
    affordable = [w for w, s in zip(beyond, steps, strict=True) if s * 6 <= budget * 2]
    return rng.sample(affordable, min(session.held_count, len(affordable)))


def recommended(profile: Profile, settings: Settings) -> Workload:
    """Return a plan's choice at the deepest calibrated depth: the smallest batch within 2 % of the best throughput."""
    base = base_workload(settings, max(settings.depths))
    options = [replace(base, micro_batch=b) for b in design.ladder(settings.most_micro_tokens // settings.seq_len)]
    rates = [p.tokens_per_second.value for p in predict_batch(profile, options)]
    return next(w for w, r in zip(options, rates, strict=True) if r >= 0.98 * max(rates))


def _say(event: CalibrationEvent) -> None:
    print(f"{event.elapsed_seconds:6.1f} s  {event.text}", flush=True)


if __name__ == "__main__":
    main()
