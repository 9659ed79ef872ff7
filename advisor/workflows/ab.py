"""Trains a base run and variants of it with several seeds on this machine, and compares them in pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from advisor.engines.guards import Limits
from advisor.engines.state import RunState, check_not_running, run_status, settle
from advisor.errors import AdvisorError
from advisor.history.paired import Contrast, contrasts
from advisor.records import Plan
from advisor.store.run_folder import is_run_folder, read_run_config
from advisor.store.store import Store
from advisor.workflows.compare import Reviewed, review
from advisor.workflows.launch import HERE, beforehand, launch, read_source, resume, stop
from advisor.workflows.preflight import expected_seconds
from trainer.schema import LossStop, Outcome, RunConfig

_POLL_SECONDS = 0.2
_NEAR_UNIFORM = 0.15  # share of ln V by which a first loss may differ from that of a model that knows nothing
_LAST_ROWS = 0.05  # share of a run's last steps whose mean training loss is compared if there was no evaluation
_STEPS_TO_RESUME = 10  # steps before the stop, and again after it
_NO_LOSS = 1e-9  # nats; every loss is higher, so this limit stops a run at a given step
_SAME = 1e-3  # relative difference between losses; on a GPU some kernels add in no fixed order

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One variant: a run configuration without its seed."""

    name: str
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Check:
    """One property of a working trainer, and whether the run showed it."""

    arm: str
    what: str
    passed: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The results of an experiment. `measured` is by arm and seed; failed runs appear only in `checks`."""

    folder: Path
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    measured: Mapping[str, Mapping[int, Mapping[str, float | None]]]
    contrasts: tuple[Contrast, ...]
    checks: tuple[Check, ...]
    loss_of: str  # which loss is compared
    seconds: float  # total of all runs


def read_arms(paths: Sequence[Path]) -> tuple[Arm, ...]:
    """Returns the arms of an experiment, the base first.

    Raises AdvisorError if two arms have the same name or a file is not a run configuration.
    """
    arms = []
    for path in paths:
        source = read_source(path)
        arms.append(Arm(name=path.stem, config=source.run if isinstance(source, Plan) else source))
    names = [arm.name for arm in arms]
    if twice := {name for name in names if names.count(name) > 1}:
        raise AdvisorError(
            f"two arms are called {sorted(twice)[0]}: they are named after their files", "rename one", exit_code=2
        )
    return tuple(arms)


def expected(store: Store, arms: Sequence[Arm], seeds: int) -> float | None:
    """Returns the predicted seconds of all runs on this device, or None if it was never calibrated."""
    each = [expected_seconds(store, arm.config) for arm in arms]
    return None if None in each else seeds * sum(seconds for seconds in each if seconds is not None)


def run_ab(store: Store, arms: Sequence[Arm], seeds: int, folder: Path, tell: Tell) -> Experiment:
    """Run every arm with every seed, in an order that rotates with the seed. Finished runs are not repeated.

    Raises AdvisorError if a run cannot start, or if a folder holds a run of another experiment.
    """
    numbers = tuple(arms[0].config.seed + number for number in range(seeds))
    for arm in arms:
        for warning in beforehand(store, arm.config, HERE, Limits()):
            tell(f"{arm.name}: {warning}")
    for turn, seed in enumerate(numbers):
        for arm in arms if turn % 2 == 0 else tuple(reversed(arms)):
            _run(store, replace(arm.config, seed=seed, name=f"{arm.name}-seed{seed}"), folder, tell)
    resumed = [_resumable(store, arm, folder, tell) for arm in arms]
    reviews = {
        arm.name: {seed: found for seed in numbers if (found := _review(store, folder / f"{arm.name}-seed{seed}"))}
        for arm in arms
    }
    evaluated = all(r.scored.actual("loss") is not None for runs in reviews.values() for r in runs.values())
    measured = {
        arm.name: {
            seed: _measured(found, evaluated) | ({"loss": None} if other_text(arms[0], arm) else {})
            for seed, found in reviews[arm.name].items()
            if found.scored.complete
        }
        for arm in arms
    }
    checks = [check for arm in arms for check in _checks(arm, reviews[arm.name], len(numbers))]
    return Experiment(
        folder=folder,
        arms=tuple(arms),
        seeds=numbers,
        measured=measured,
        contrasts=tuple(contrasts(measured)),
        checks=tuple(sorted([*checks, *resumed], key=lambda check: [arm.name for arm in arms].index(check.arm))),
        loss_of="the last evaluation" if evaluated else f"the last {_LAST_ROWS:.0%} of the steps, in training",
        seconds=sum(r.scored.actual("wall_clock_seconds") or 0.0 for runs in reviews.values() for r in runs.values()),
    )


def other_text(base: Arm, arm: Arm) -> bool:
    """Tells whether an arm trains on other tokens than the base, in which case their losses cannot be compared."""
    return (base.config.data, base.config.model.vocab_size) != (arm.config.data, arm.config.model.vocab_size)


def _run(store: Store, config: RunConfig, folder: Path, tell: Tell) -> None:
    """Train one run to its end, or resume it if it was interrupted."""
    run_dir = folder / config.name
    if not is_run_folder(run_dir):
        tell(f"{config.name}: {config.steps} steps")
        launch(store, config, run_dir, again=True)
    else:
        if replace(read_run_config(run_dir), stop=config.stop) != config:  # a launch adds its own guards
            raise AdvisorError(
                f"{run_dir} holds a run of another configuration", "name a new folder for the experiment: --out"
            )
        status = run_status(run_dir)
        if status.outcome not in (None, Outcome.STOPPED):
            tell(f"{config.name}: {status.words} before")
            return
        if status.state is not RunState.RUNNING:
            tell(f"{config.name}: goes on from step {status.step or 0}")
            resume(store, run_dir)
    _wait(store, run_dir, lambda: False)


def _wait(store: Store, run_dir: Path, enough: Callable[[], bool]) -> None:
    """Wait until a run and its process have ended, or `enough` returns True; an interruption also stops the run."""
    try:
        while run_status(run_dir).state is RunState.RUNNING and not enough():
            time.sleep(_POLL_SECONDS)
        settle(run_dir)  # the log may end before the process, and until then the run cannot be resumed
    except KeyboardInterrupt:
        stop(store, run_dir, force=True)
        raise


def _resumable(store: Store, arm: Arm, folder: Path, tell: Tell) -> Check:
    """Checks with the first seed that a run that is stopped and resumed has the same losses as an uninterrupted one."""
    run_dir = folder / f"{arm.name}-resumed"
    at = max(1, min(_STEPS_TO_RESUME, arm.config.steps // 2))
    if not is_run_folder(run_dir):
        tell(f"{arm.name}: stopped after {at} steps, and gone on with")
        stop_at = replace(arm.config.stop, loss=(LossStop(step=at, above=_NO_LOSS),))
        launch(store, replace(arm.config, name=run_dir.name, stop=stop_at), run_dir, again=True)
    _wait(store, run_dir, lambda: False)
    status = run_status(run_dir)
    if status.attempt == 1 and status.outcome is Outcome.STOPPED:
        again = (LossStop(step=2 * at, above=_NO_LOSS),) if 2 * at < arm.config.steps else ()
        resume(store, run_dir, limits=Limits(loss=again))
        _wait(store, run_dir, lambda: False)
    # Compare the losses after the stop with those of the uninterrupted run.
    resumed, unbroken = (_review(store, it) for it in (run_dir, folder / f"{arm.name}-seed{arm.config.seed}"))
    passed, evidence = False, f"no step after step {at}"
    if resumed is None or not any(attempt.resumed_from_step for attempt in resumed.case.run.attempts):
        evidence = f"it did not go on after step {at}"
    elif unbroken is None:
        evidence = "there is no run that was not stopped beside it"
    else:
        without = dict(zip(unbroken.case.run.column("step"), unbroken.case.run.column("loss"), strict=True))
        rows = zip(resumed.case.run.column("step"), resumed.case.run.column("loss"), strict=True)
        both = [(step, loss, without[step]) for step, loss in rows if step > at and step in without]
        if both:
            step, loss, other = max(both, key=lambda row: abs(row[1] - row[2]))
            exact = str(resumed.case.run.facts.get("gpu")) == "cpu"
            passed = bool(loss == other if exact else abs(loss - other) <= _SAME * other)
            words = "bit for bit" if loss == other else f"but for {loss - other:+.2g} nats at step {step:.0f}"
            evidence = (
                f"{len(both)} steps after a stop at step {at}: the losses of the run that was not stopped, {words}"
            )
    return Check(arm=arm.name, what="resumes where it was stopped", passed=passed, evidence=evidence)


def _review(store: Store, run_dir: Path) -> Reviewed | None:
    """Returns a run after reading and scoring it, or None if it has done no step."""
    check_not_running(run_dir, run_status(run_dir))
    try:
        return review(store, str(run_dir), record=False)
    except AdvisorError:  # the run ended before its first step; the checks report that
        return None


def _measured(found: Reviewed, evaluated: bool) -> dict[str, float | None]:
    scored, losses = found.scored, found.case.run.column("loss")
    last = losses[-max(1, math.ceil(_LAST_ROWS * len(losses))) :]
    memory = scored.actual("peak_allocated_bytes")
    return {
        "loss": scored.actual("loss") if evaluated else float(np.mean(last)),
        "step_seconds": scored.actual("step_seconds_drift_corrected") or scored.actual("step_seconds"),
        "memory_bytes": memory if memory is not None else scored.actual("peak_reserved_bytes"),
    }


def _checks(arm: Arm, runs: Mapping[int, Reviewed], seeds: int) -> Iterator[Check]:
    """Returns the checks that the logs of an arm's runs allow."""
    done = [found for found in runs.values() if found.scored.complete]
    whole = len(done) == seeds
    yield Check(arm=arm.name, what="trains to its end", passed=whole, evidence=f"{len(done)} of {seeds} runs")
    if not done:
        return
    uniform = math.log(arm.config.model.vocab_size)
    first = [float(found.case.run.first_loss or math.nan) for found in done]
    last = [float(found.case.run.last_loss or math.nan) for found in done]
    if arm.config.init_from is None:
        near = all(abs(loss - uniform) <= _NEAR_UNIFORM * uniform for loss in first)
        words = f"first losses {min(first):.3f} to {max(first):.3f}, ln V {uniform:.3f}"
        yield Check(arm=arm.name, what="begins at ln V", passed=near, evidence=words)
    fell = all(after < before for before, after in zip(first, last, strict=True))
    words = f"from {np.mean(first):.3f} to {np.mean(last):.3f}"
    yield Check(arm=arm.name, what="its loss falls", passed=fell, evidence=words)
    # The run trained on the kind of device that was asked for.
    seen = sorted({str(found.case.run.facts.get("gpu") or "a GPU without a name") for found in done})
    wanted = arm.config.device
    right = wanted == "auto" or all((name == "cpu") == (wanted == "cpu") for name in seen)
    words = f"{wanted}: {', '.join(seen)}"
    yield Check(arm=arm.name, what="trains on the device asked for", passed=right, evidence=words)
    # The peak is below the device's memory, if both are known.
    facts = done[0].case.run.facts
    peaks = [peak for found in done if (peak := found.scored.actual("peak_reserved_bytes")) is not None]
    total = psutil.virtual_memory().total if facts.get("gpu") == "cpu" else facts.get("gpu_memory_bytes")
    if peaks and total is not None:
        words = f"{max(peaks) / 2**20:,.0f} MiB of {total / 2**20:,.0f}"
        yield Check(arm=arm.name, what="its memory fits", passed=max(peaks) < total, evidence=words)
