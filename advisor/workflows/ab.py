"""Trains a base run and variants of it with several seeds on this machine, and compares them in pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from advisor.engines.guards import GuardLimits
from advisor.engines.state import RunState, run_status, settle
from advisor.errors import AdvisorError
from advisor.findings.detectors.machine import undisturbed_times
from advisor.history.paired import Contrast, contrasts
from advisor.records import Plan
from advisor.store.run_folder import is_run_folder, read_run_config
from advisor.store.store import Store
from advisor.workflows.compare import review
from advisor.workflows.launch import HERE, beforehand, launch, read_source, resume, stop
from trainer.schema import Outcome, RunConfig

_POLL_SECONDS = 0.2
_LAST_ROWS = 0.05  # share of a run's last steps whose mean training loss is compared if there was no evaluation


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The results of an experiment. `measured` is by arm and seed, without runs that failed."""

    folder: Path
    arms: Mapping[str, RunConfig]  # by name, the base first
    seeds: tuple[int, ...]
    measured: Mapping[str, Mapping[int, Mapping[str, float | None]]]
    contrasts: tuple[Contrast, ...]


def run_ab(store: Store, paths: Sequence[Path], seeds: int, folder: Path, on_text: Callable[[str], None]) -> Experiment:
    """Run every arm with every seed, in an order that rotates with the seed. Finished runs are not repeated.

    `paths` are runs or plans, the base first. Raises AdvisorError if two arms have the same name, if a run cannot
    start, or if a folder holds a run of another experiment.
    """
    arms: dict[str, RunConfig] = {}
    for path in paths:
        source = read_source(path)
        if path.stem in arms:
            message = f"two arms are called {path.stem}: they are named after their files"
            raise AdvisorError(message, "rename one", exit_code=2)
        arms[path.stem] = source.config if isinstance(source, Plan) else source
    base = arms[paths[0].stem]
    numbers = tuple(base.seed + number for number in range(seeds))
    for name, config in arms.items():
        for warning in beforehand(store, config, HERE, GuardLimits()):
            on_text(f"{name}: {warning}")
    for turn, seed in enumerate(numbers):
        for name, config in arms.items() if turn % 2 == 0 else reversed(arms.items()):
            _run(store, replace(config, seed=seed, name=f"{name}-seed{seed}"), folder, on_text)
    measured = {
        name: {seed: found for seed in numbers if (found := _measured(store, folder / f"{name}-seed{seed}"))}
        for name in arms
    }
    for name, config in arms.items():
        if other_text(base, config):
            measured[name] = {seed: found | {"loss": None} for seed, found in measured[name].items()}
    return Experiment(folder=folder, arms=arms, seeds=numbers, measured=measured, contrasts=tuple(contrasts(measured)))


def other_text(base: RunConfig, arm: RunConfig) -> bool:
    """Tells whether an arm trains on other tokens than the base, so that their losses cannot be compared."""
    return (base.data, base.model.vocab_size) != (arm.data, arm.model.vocab_size)


def _run(store: Store, config: RunConfig, folder: Path, on_text: Callable[[str], None]) -> None:
    """Train one run to its end, or resume it if it was interrupted; an interruption also stops the run."""
    run_dir = folder / config.name
    if not is_run_folder(run_dir):
        on_text(f"{config.name}: {config.steps} steps")
        launch(store, config, run_dir, again=True)
    else:
        if replace(read_run_config(run_dir), stop=config.stop) != config:  # a launch adds its own guards
            message = f"{run_dir} holds a run of another configuration"
            raise AdvisorError(message, "name a new folder for the experiment: --out")
        status = run_status(run_dir)
        if status.outcome not in (None, Outcome.STOPPED):
            on_text(f"{config.name}: {status.words} before")
            return
        if status.state is not RunState.RUNNING:
            on_text(f"{config.name}: continues from step {status.step or 0}")
            resume(store, run_dir)
    try:
        while run_status(run_dir).state is RunState.RUNNING:
            time.sleep(_POLL_SECONDS)
        settle(run_dir)  # the log may end before the process
    except KeyboardInterrupt:
        stop(store, run_dir, force=True)
        raise


def _measured(store: Store, run_dir: Path) -> dict[str, float | None] | None:
    """Returns what is compared of a run. Returns None if the run did not end by itself."""
    try:
        found = review(store, str(run_dir), record=False)
    except AdvisorError:  # it ended before its first step, which the report says
        return None
    scored, losses, steps = found.scored, found.case.run.column("loss"), undisturbed_times(found.case)
    if not scored.complete:
        return None
    evaluated, memory = scored.actual("loss"), scored.actual("peak_allocated_bytes")
    last = losses[-max(1, math.ceil(_LAST_ROWS * len(losses))) :]
    return {
        "loss": float(np.mean(last)) if evaluated is None else evaluated,
        # None if other programs slowed nearly every step
        "step_seconds": scored.actual("step_seconds_drift_corrected")
        or (float(np.median(steps.steady_seconds)) if steps is not None else None),
        "memory_bytes": memory if memory is not None else scored.actual("peak_reserved_bytes"),
    }
