"""Runs in the user's own Python and hands a run's numbers to its tracker through the tracker's own library.

The first line of standard input is one JSON object: `library`, `parameters` and what names the run. While the run is
watched, each further line has the `metrics` of a moment and their `step`. Prints where the numbers went. Imports only
the standard library and the tracker.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any


def to_wandb(wanted: dict[str, Any], library: Any) -> str:
    """Write one more part of an offline run, in a folder beside it; `wandb sync` joins both into one run."""
    run = library.init(
        id=wanted["run"],
        project=wanted["project"],
        entity=wanted["entity"],
        dir=wanted["folder"],
        mode="offline",
        settings=library.Settings(console="off"),
    )
    run.config.update(wanted["parameters"], allow_val_change=True)
    for moment in moments():
        run.log(moment["metrics"])  # without a step: the training program counts steps
    place = os.path.dirname(run.dir)
    run.finish()
    return place


def to_mlflow(wanted: dict[str, Any], library: Any) -> str:
    """Write parameters to a run of a store; MLflow refuses a parameter that the run has with another value."""
    parameters = [library.entities.Param(name, str(value)) for name, value in wanted["parameters"].items()]
    client = library.MlflowClient(tracking_uri=wanted["store"])
    client.log_batch(wanted["run"], params=parameters)
    for moment in moments():
        now, step = int(time.time() * 1000), moment["step"]
        found = [library.entities.Metric(name, value, now, step) for name, value in moment["metrics"].items()]
        client.log_batch(wanted["run"], metrics=found)
    return str(wanted["store"])


def to_trackio(wanted: dict[str, Any], library: Any) -> str:
    """Write a run's configuration. trackio sends it only with logged values, so the numbers are logged again."""
    api = importlib.import_module("trackio.api").Api()
    (before,) = (run for run in api.runs(wanted["project"]) if run.name == wanted["run"])
    known = {name: value for name, value in (before.config or {}).items() if not name.startswith("_")}
    library.init(
        project=wanted["project"],
        name=wanted["run"],
        resume="must",
        config={**known, **wanted["parameters"]},
        embed=False,
    )
    if numbers := {name: value for name, value in wanted["parameters"].items() if isinstance(value, float)}:
        library.log(numbers)
    for moment in moments():
        library.log(moment["metrics"])
    library.finish()
    return str(wanted["folder"])


def moments() -> Iterator[dict[str, Any]]:
    """Yields the further lines of standard input as they come."""
    return map(json.loads, sys.stdin)


WRITERS = {"wandb": to_wandb, "mlflow": to_mlflow, "trackio": to_trackio}


def main() -> None:
    """Read what to write, write it, and print where it went on the last line."""
    wanted = json.loads(sys.stdin.readline())
    print(WRITERS[wanted["library"]](wanted, importlib.import_module(wanted["library"])))


if __name__ == "__main__":
    main()
