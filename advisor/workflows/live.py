"""Follows another program's log, and serves the numbers of an active run to Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError, require_package
from advisor.history.progress import Progress
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from advisor.records import Estimate

_ENDS = frozenset(Status) - {Status.INCOMPLETE, Status.NO_END}
_GOOD = frozenset((Status.COMPLETED, Status.STOPPED))
_SHARE = 0.1  # share of the time that reading may take
_LEAST_SECONDS = 2.0  # at least this between two looks


@dataclass(frozen=True, kw_only=True)
class LogLook:
    """The state of a log at one look. None: not in the log."""

    path: Path
    status: Status
    reason: str
    step: float | None  # the newest; epochs if the log prints no step
    counts: str  # step | epoch
    planned: float | None  # the planned end, in the same unit
    loss: float | None  # the newest
    quiet_seconds: float  # since the last write to the log
    seconds_per_step: float | None = None  # measured between the first look and this one
    reading_seconds: float = 0.0

    @property
    def over(self) -> bool:
        """Tells whether the log itself says that the run ended."""
        return self.status in _ENDS

    @property
    def good(self) -> bool:
        """Tells whether the run seems to continue, or ended as planned."""
        return not self.over or self.status in _GOOD

    @property
    def left_seconds(self) -> float | None:
        """Returns the seconds to the planned end at the measured speed."""
        if self.over or None in (self.seconds_per_step, self.planned, self.step):
            return None
        assert self.seconds_per_step is not None and self.planned is not None and self.step is not None
        return max(0.0, self.planned - self.step) * self.seconds_per_step


def look(path: Path, *, clock: Callable[[], float] = time.time) -> LogLook:
    """Read a log as it is now. Raises AdvisorError if nothing in it is recognised."""
    began = time.monotonic()
    table = read_run(path)
    counts = "step" if table.counts_steps else "epoch"
    epochs = table.column("epoch") if counts == "epoch" and table.rows else None
    known = None if epochs is None else epochs[epochs == epochs]
    step = table.last_step if known is None or not len(known) else float(known[-1])
    return LogLook(
        path=path,
        status=table.status,
        reason=table.status_reason,
        step=step,
        counts=counts,
        planned=table.facts.get(f"planned_{counts}s"),
        loss=table.last_loss,
        quiet_seconds=max(0.0, clock() - os.stat(path).st_mtime),
        reading_seconds=time.monotonic() - began,
    )


class Follower:
    """Reads one log repeatedly and measures its speed from the growth between two looks."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time):
        self._path, self._clock = path, clock
        self._first: tuple[float, float] | None = None  # step and time of the first look with a step
        self._rate: float | None = None

    def look(self) -> LogLook:
        """Returns the log as it is now, with the speed measured so far."""
        self._size = os.stat(self._path).st_size  # before reading, so that the next look sees later writes
        now = look(self._path, clock=self._clock)
        written = self._clock() - now.quiet_seconds
        if now.step is not None:
            if self._first is None or now.step < self._first[0]:  # it has started again
                self._first, self._rate = (now.step, written), None
            elif now.step > self._first[0] and written > self._first[1]:
                self._rate = (written - self._first[1]) / (now.step - self._first[0])
        return LogLook(**{**vars(now), "seconds_per_step": self._rate})

    def wait(self, before: LogLook) -> None:
        """Wait until the log has grown or changed, and long enough that reading takes a small share of the time."""
        time.sleep(max(_LEAST_SECONDS, before.reading_seconds / _SHARE))
        while os.stat(self._path).st_size == self._size:
            time.sleep(_LEAST_SECONDS)


Seen = Progress | LogLook

# by field name: the name and the description of a metric
_METRICS = {
    "step": ("step", "Optimizer steps done"),
    "steps": ("steps_planned", "Optimizer steps planned"),
    "planned": ("steps_planned", "Steps planned, by the log"),
    "loss": ("loss", "Training loss of the newest step, nats per token"),
    "eval_loss": ("eval_loss", "Newest evaluation loss, nats per token"),
    "loss_expected": ("loss_expected", "Training loss that the plan expects at this step"),
    "step_seconds": ("step_seconds", "Median seconds of the newest steps"),
    "seconds_per_step": ("step_seconds", "Seconds a step, as watched"),
    "step_seconds_predicted": ("step_seconds_predicted", "Seconds a step, predicted by the plan"),
    "tokens_per_second": ("tokens_per_second", "Tokens per second of the newest steps, all GPUs"),
    "tokens_per_second_predicted": ("tokens_per_second_predicted", "Tokens per second predicted by the plan"),
    "mfu": ("mfu_ratio", "Model FLOPs utilisation of the newest steps"),
    "elapsed_seconds": ("elapsed_seconds", "Seconds of all attempts so far"),
    "eta_seconds": ("remaining_seconds", "Seconds until the run completes"),
    "left_seconds": ("remaining_seconds", "Seconds to the planned end, as fast as watched"),
    "total_seconds_predicted": ("total_seconds_predicted", "Seconds of the whole run, predicted by the plan"),
    "usd_so_far": ("cost_usd", "Dollars so far"),
    "usd_at_end": ("cost_usd_expected", "Dollars when the run ends, as it goes now"),
    "usd_predicted": ("cost_usd_predicted", "Dollars of the whole run, predicted by the plan"),
}


class Prometheus:
    """Serves the newest numbers of one run, only on this machine, at http://127.0.0.1:PORT/metrics."""

    def __init__(self, run: str, port: int):
        require_package("prometheus_client", "--prometheus")
        from prometheus_client import CollectorRegistry, start_http_server

        registry: Any = CollectorRegistry()
        self._run = run
        self.seen: Seen | None = None  # the state of the run that is served
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            message = f"port {port} cannot be served: {error.strerror}"
            raise AdvisorError(message, "choose another one: --prometheus 9101", exit_code=2) from error

    def collect(self) -> Iterable[Any]:
        """Returns what a scrape reads: one gauge per known number, and three samples per estimate."""
        from prometheus_client.core import GaugeMetricFamily

        for field, (name, about) in _METRICS.items():
            value = getattr(self.seen, field, None)
            if isinstance(value, Estimate):
                family = GaugeMetricFamily(f"training_{name}", about, labels=("run", "bound"))
                for bound in ("value", "low", "high"):
                    family.add_metric((self._run, bound), getattr(value, bound))
                yield family
            elif value is not None:
                family = GaugeMetricFamily(f"training_{name}", about, labels=("run",))
                family.add_metric((self._run,), float(value))
                yield family

    def __enter__(self) -> Prometheus:
        """Serve until the block ends."""
        return self

    def __exit__(self, *problem: object) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
