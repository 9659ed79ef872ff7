"""Measures size and cost of telemetry: 8 hours of 2 GPUs at 100 Hz through the real sampler and writer, simulated.

    python benchmarks/telemetry_size.py [--hours 8] [--gpus 2] [--hz 100]
    python benchmarks/telemetry_size.py --live 30 [--device cpu|cuda] [--hz 100]

Time is simulated. The signal is noisy on purpose: power follows an autoregressive process with ±15 W of jitter around a
load that starts and stops, so that few readings are equal. `--live` runs the real process beside this one and prints
what share of a processor core it used.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from trainer.telemetry import read_metadata, read_telemetry, sample, start_telemetry
from trainer.telemetry_files import FILE_NAME, TelemetryWriter
from trainer.telemetry_sources import GPU_COLUMNS, HOST_COLUMNS

JITTER_WATTS, MEMORY_OF_NOISE = 15.0, 0.9


class SimulatedTime:
    """A clock that moves only during sleeps; each sleep overshoots a little, as real ones do."""

    def __init__(self, random: np.random.Generator):
        self.now = 1_700_000_000.0
        self._overshoot = iter(random.exponential(0.0003, 100_000).tolist() * 1000)

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + next(self._overshoot)


class SimulatedCards:
    """GPUs under training load. Noise is drawn in blocks, so that drawing costs little compared with writing."""

    columns = GPU_COLUMNS

    def __init__(self, count: int, time_source: SimulatedTime, random: np.random.Generator):
        self._time = time_source
        self._random = random
        self._count = count
        self._level = np.full(count, 620.0)
        self._power: list[list[int]] = []
        self._energy = [0] * count

    def describe(self) -> list[dict]:
        return [{"gpu": i, "name": "simulated"} for i in range(self._count)]

    def read_power(self) -> list[int]:
        if not self._power:
            self._power = self._draw(10_000)
        watts_now = self._power.pop()
        self._energy = [e + w for e, w in zip(self._energy, watts_now, strict=True)]
        return watts_now

    def read_slow(self) -> list[tuple]:
        noise = self._random.integers(-5, 6, (self._count, 4)).tolist()
        memory = 120 * 2**30 + (int(self._time.now) // 600 % 7) * 2**21
        return [
            (95 + n[0], memory, 62 + n[1] // 2, 1755 + 15 * n[2], 2619, 4 if n[3] > 0 else 0, 10 * energy)
            for n, energy in zip(noise, self._energy, strict=True)
        ]

    def _draw(self, rows: int) -> list[list[int]]:
        """Return power in tenths of a watt; the last row comes first."""
        shocks = self._random.normal(0, JITTER_WATTS * (1 - MEMORY_OF_NOISE**2) ** 0.5, (rows, self._count))
        noise = np.zeros_like(shocks)
        for i in range(1, rows):
            noise[i] = MEMORY_OF_NOISE * noise[i - 1] + shocks[i]
        return np.rint((self._level + noise)[::-1] * 10).astype(int).tolist()


class SimulatedHost:
    columns = HOST_COLUMNS

    def __init__(self, random: np.random.Generator):
        self._random = random

    def describe(self) -> list[dict]:
        return [{"gpu": None}]

    def read_power(self) -> list[None]:
        return [None]

    def read_slow(self) -> list[tuple]:
        a, b, c, d = self._random.random(4).tolist()
        percentages = round(10 * a, 1), round(b, 1), round(100 + 3 * c, 1)
        return [(*percentages, 12 * 2**30 + int(a * 2**20), 200 * 2**30 + int(b * 2**26), 2000 + int(900 * d), None)]


def simulate(hours: float, gpus: int, hz: float) -> None:
    """Write a simulated run, and print its size and the cost of writing it."""
    random = np.random.default_rng(1)
    simulated = SimulatedTime(random)
    end = simulated.now + 3600 * hours
    with tempfile.TemporaryDirectory() as name:
        run_dir = Path(name)
        writer = TelemetryWriter(run_dir, {"hz": hz})
        sources = [SimulatedCards(gpus, simulated, random), SimulatedHost(random)]
        started = time.process_time()
        sample(
            sources,
            writer,
            hz,
            goes_on=lambda: simulated.now < end,
            on_error=print,
            monotonic=simulated.read,
            clock=simulated.read,
            sleep=simulated.sleep,
        )
        sampled = time.process_time()
        parts_bytes = sum(p.stat().st_size for p in (run_dir / "telemetry").glob("*.parquet"))
        writer.join({})
        joined = time.process_time()
        size = (run_dir / FILE_NAME).stat().st_size
        rows = len(read_telemetry(run_dir, ["time", "power_watts"]))
    print(f"{hours:g} h, {gpus} GPUs, {hz:g} Hz: {rows} rows, {size / 1e6:.2f} MB, {size / rows:.3f} bytes/row")
    print(f"parts before joining: {parts_bytes / 1e6:.2f} MB; joining: {joined - sampled:.1f} s of a core, once")
    share = (sampled - started) / (3600 * hours)
    print(f"write path, simulated readings included: {100 * share:.2f} % of a core")


def measure_live(seconds: float, device: str, hz: float | None) -> None:
    """Run the real process for a while and print its own record of its cost."""
    with tempfile.TemporaryDirectory() as name:
        handle = start_telemetry(Path(name), os.getpid(), device, hz)
        time.sleep(seconds)
        handle.stop()
        rows, metadata = len(read_telemetry(name)), read_metadata(name)
    used, wall = metadata["cpu_seconds"], metadata["wall_seconds"]
    start_up = metadata["startup_cpu_seconds"]
    print(f"{device}, {metadata['hz']:g} Hz: {rows} rows in {wall:.1f} s, devices {metadata['devices']}")
    steady = (used - start_up) / wall
    print(f"{100 * steady:.2f} % of a core sampling and writing; start-up once: {start_up:.2f} s of a core")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--hz", type=float, default=None)
    parser.add_argument("--live", type=float, default=None, metavar="SECONDS")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.live:
        measure_live(options.live, options.device, options.hz)
    else:
        simulate(options.hours, options.gpus, options.hz or 100.0)


if __name__ == "__main__":
    main()
