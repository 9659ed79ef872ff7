"""Gives the numbers of a running run to other programs: to Prometheus, or to the user's tracker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from advisor.errors import AdvisorError, require_package
from advisor.history.progress import Progress
from advisor.records import Estimate
from advisor.workflows.watch_log import LogLook

Seen = Progress | LogLook

# by the name of the field that has it: a metric's name, and what it is
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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number of a run; an Estimate has the ends of its 80 % interval."""

    name: str
    about: str
    value: float | Estimate

    @property
    def bounds(self) -> dict[str, float]:
        """The value, and for an estimate both ends of its interval."""
        if isinstance(self.value, Estimate):
            return {"value": self.value.value, "low": self.value.low, "high": self.value.high}
        return {"value": float(self.value)}


def metrics(seen: Seen) -> tuple[Metric, ...]:
    """Every number that is known of a run at this moment."""
    values = [(name, about, getattr(seen, field, None)) for field, (name, about) in _METRICS.items()]
    return tuple(Metric(name=name, about=about, value=value) for name, about, value in values if value is not None)


class Sink(Protocol):
    """Where a run's numbers go while it is followed."""

    def take(self, seen: Seen) -> None:
        """Pass on the current state of the run; raises AdvisorError if the receiver is gone."""

    def close(self) -> str | None:
        """Close, and return a sentence about what was written."""


class Prometheus:
    """Serves the newest numbers of one run on this machine alone, at http://127.0.0.1:PORT/metrics."""

    def __init__(self, run: str, port: int):
        require_package("prometheus_client", "--prometheus")
        from prometheus_client import CollectorRegistry, start_http_server

        registry: Any = CollectorRegistry()
        self._run, self._metrics = run, tuple[Metric, ...]()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            message = f"port {port} cannot be served: {error.strerror}"
            raise AdvisorError(message, "another one: --prometheus 9101", exit_code=2) from error

    def take(self, seen: Seen) -> None:
        """Serve these numbers from now on."""
        self._metrics = metrics(seen)

    def collect(self) -> Iterable[Any]:
        """What a scrape reads: a gauge for each number, an estimate as three samples."""
        from prometheus_client.core import GaugeMetricFamily

        for metric in self._metrics:
            estimate = isinstance(metric.value, Estimate)
            family = GaugeMetricFamily(
                f"training_{metric.name}", metric.about, labels=("run", "bound") if estimate else ("run",)
            )
            for bound, value in metric.bounds.items():
                family.add_metric((self._run, bound) if estimate else (self._run,), value)
            yield family

    def close(self) -> str | None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        return None
