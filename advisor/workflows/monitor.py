"""Watches every GPU of this machine: a child process reads the sensors, and its lines are stored and summed up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

from advisor.errors import AdvisorError
from advisor.findings.measured import CardReadings, Spread, silence
from advisor.laws.device_faults import reasons_in

SAMPLER = "trainer.monitor"
_ENDING = (signal.SIGINT, signal.SIGTERM)
# sampler column after "gpu0_" → quantity of a GPU, and the factor to its unit
_QUANTITIES = {
    "util_pct": ("utilization", 0.01),
    "memory_used_mib": ("memory_used_bytes", 2**20),
    "power_w": ("power_watts", 1.0),
    "temp_c": ("temperature_celsius", 1.0),
    "sm_clock_mhz": ("sm_clock_mhz", 1.0),
}


@dataclass(frozen=True, kw_only=True)
class WatchedCard:
    """A GPU as the driver describes it, with its readings so far."""

    name: str
    power_limit_watts: float | None
    readings: CardReadings


@dataclass(frozen=True, kw_only=True)
class MonitoredGpus:
    """The readings of a monitor so far."""

    seconds: float  # from the first reading to the last
    hz: float | None  # achieved readings per second; None: fewer than two
    cards: tuple[WatchedCard, ...]


@dataclass(kw_only=True)
class _Tally:
    """The running sums of one GPU. Energy comes from its counter, or else from power times time."""

    places: dict[str, int]  # column after "gpu0_" → its place in a line
    spreads: dict[str, Spread] = field(default_factory=dict)
    counter: float | None = None
    counted: float | None = None  # joules, from the counter
    power: tuple[float, float] | None = None  # when, watts
    worked: float | None = None  # joules, from power
    answers: int = 0
    answered: tuple[float, float] | None = None  # first time, last time
    unanswered: int = 0  # rows without an answer since then
    reasons_read: int = 0
    held: int = 0
    masks: set[int] = field(default_factory=set)

    def add(self, elapsed: float, cells: Sequence[str]) -> None:
        if not any(cells[place] for place in self.places.values()):
            self.unanswered += 1
            return
        self.answers, self.unanswered = self.answers + 1, 0
        self.answered = (self.answered or (elapsed,))[0], elapsed
        for name, (quantity, factor) in _QUANTITIES.items():
            if cell := cells[self.places[name]]:
                value = float(cell) * factor
                seen = self.spreads.get(quantity) or Spread(mean=0.0, low=value, high=value, last=value, count=0)
                count, low, high = seen.count + 1, min(seen.low, value), max(seen.high, value)
                mean = seen.mean + (value - seen.mean) / count
                self.spreads[quantity] = Spread(mean=mean, low=low, high=high, last=value, count=count)
        if cell := cells[self.places["power_w"]]:
            watts = float(cell)
            if self.power is not None:
                self.worked = (self.worked or 0.0) + (elapsed - self.power[0]) * (watts + self.power[1]) / 2
            self.power = elapsed, watts
        if cell := cells[self.places["energy_j"]]:
            if self.counter is not None:
                self.counted = (self.counted or 0.0) + max(0.0, float(cell) - self.counter)
            self.counter = float(cell)
        if cell := cells[self.places["throttle_reasons"]]:
            self.reasons_read += 1
            self.masks.add(int(cell))
            self.held += bool(reasons_in((int(cell),)))

    def readings(self, card: int, elapsed: float, memory: float | None) -> CardReadings:
        first, last = self.answered or (0.0, 0.0)
        return CardReadings(
            card=card,
            readings=self.answers,
            seconds=last - first,
            silent_seconds=silence(self.unanswered, elapsed - last),
            quantities=dict(self.spreads),
            memory_bytes=memory,
            joules=self.counted if self.counted is not None else self.worked,
            throttled=self.held / self.reasons_read if self.reasons_read else None,
            reasons=reasons_in(self.masks),
        )


class Watching:
    """Sums up the sampler's lines as they come. `csv` receives all lines but the first, a comment with the GPUs."""

    def __init__(self, described: str, header: str, csv: TextIO | None):
        """Begin with the sampler's first two lines."""
        self._cards: list[dict[str, Any]] = json.loads(described.removeprefix("#"))
        self._csv, self._rows, self._elapsed = csv, 0, 0.0
        names = self._kept(header)
        self._width = len(names)
        prefixes = [f"gpu{card['gpu']}_" for card in self._cards]
        self._tallies = [
            _Tally(places={n.removeprefix(prefix): place for place, n in enumerate(names) if n.startswith(prefix)})
            for prefix in prefixes
        ]

    def add(self, line: str) -> None:
        """Take one line; an incomplete last line of a killed sampler is skipped."""
        cells = self._kept(line)
        if len(cells) != self._width or not line.endswith("\n"):
            return
        self._rows, self._elapsed = self._rows + 1, float(cells[1])
        for tally in self._tallies:
            tally.add(self._elapsed, cells)

    def seen(self) -> MonitoredGpus:
        """Returns the readings so far."""
        cards = []
        for card, tally in zip(self._cards, self._tallies, strict=True):
            limit = card.get("power_limit_milliwatts")
            readings = tally.readings(card["gpu"], self._elapsed, card.get("memory_bytes"))
            name = str(card.get("name") or f"GPU {card['gpu']}")
            cards.append(WatchedCard(name=name, power_limit_watts=limit / 1000 if limit else None, readings=readings))
        hz = (self._rows - 1) / self._elapsed if self._elapsed > 0 else None
        return MonitoredGpus(seconds=self._elapsed, hz=hz, cards=tuple(cards))

    def _kept(self, line: str) -> list[str]:
        if self._csv is not None:
            self._csv.write(line)
        return line.rstrip("\n").split(",")


OnLook = Callable[[Watching], None]


def monitor(*, hz: float, seconds: float | None, csv: Path | None, on_look: OnLook) -> MonitoredGpus:
    """Watch until the time is over, Ctrl-C or SIGTERM; returns the readings.

    Raises AdvisorError on a machine without a GPU that NVML knows, or if `csv` already exists.
    """
    command = [sys.executable, "-m", SAMPLER, "--hz", str(hz)]
    command += ["--seconds", str(seconds)] if seconds is not None else []
    with (
        _opened(csv) as kept,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as child,
    ):
        assert child.stdout is not None and child.stderr is not None
        before = {number: signal.signal(number, lambda *_: child.terminate()) for number in _ENDING}
        try:
            watching = _watch(child.stdout, kept, on_look)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            child.terminate()
        said = " ".join(child.stderr.read().split())
    if watching is None:
        if csv is not None:
            csv.unlink(missing_ok=True)  # this program made the file, and it is empty
        message = f"there is no NVIDIA GPU to monitor here: {said or 'the sampler ended without a reading'}"
        hint = "run it on the machine that has the GPUs"
        raise AdvisorError(message, hint)
    return watching.seen()


def _watch(lines: IO[str], kept: TextIO | None, on_look: OnLook) -> Watching | None:
    """Sum up the lines of a sampler until it ends; None if it printed no header."""
    described, header = lines.readline(), lines.readline()
    if not header.endswith("\n"):
        return None
    watching = Watching(described, header, kept)
    for line in iter(lines.readline, ""):  # iterating over the file would wait for a full buffer
        watching.add(line)
        on_look(watching)
    return watching


def _opened(csv: Path | None) -> AbstractContextManager[TextIO | None]:
    """Opens a new file for the readings if the user wants one."""
    if csv is None:
        return nullcontext()
    try:
        return open(csv, "x", encoding="utf-8", buffering=1)
    except FileExistsError as error:
        raise AdvisorError(f"{csv} already exists", "name another file, or remove it", exit_code=2) from error
    except OSError as error:
        raise AdvisorError(f"{csv} cannot be written: {error.strerror}", "name another file", exit_code=2) from error
