"""Variants of a run against a base over seeds: run in turn on this machine, then compared in pairs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil

from advisor.errors import AdvisorError
from advisor.launch.state import RunState, check_not_running, run_status
from advisor.records import Plan
from advisor.runs.paired import Contrast, contrasts
from advisor.store.run_folder import is_run_folder, read_run_config
from advisor.store.store import Store
from advisor.workflows.compare import Reviewed, review
from advisor.workflows.launch import HERE, Limits, beforehand, launch, read_source, resume, stop
from advisor.workflows.preflight import expected_seconds
from trainer.schema import CheckpointConfig, EvalConfig, Outcome, RunConfig

_POLL_SECONDS = 0.2
_NEAR_UNIFORM = 0.15  # of ln V: how far a first loss may lie from that of a model that knows nothing
_LAST_ROWS = 0.05  # of a run, whose mean training loss stands where nothing was evaluated
_STEPS_TO_RESUME = 3
_ENDLESS = 1_000_000  # steps of a run that is stopped
_MOST_SECONDS = 3600.0  # of it, where nobody is left to stop it
_FURTHER = 0.5  # nats that the first loss after a resume may lie above the last before it

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One variant: a configuration but for its seed."""

    name: str
    config: RunConfig


@dataclass(frozen=True, kw_only=True)
class Check:
    """Something that a working trainer does, and whether it was seen to."""

    arm: str
    what: str
    passed: bool
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What came of it. `measured`: by arm and seed; runs that failed are in `checks` alone."""

    folder: Path
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    measured: Mapping[str, Mapping[int, Mapping[str, float | None]]]
    contrasts: tuple[Contrast, ...]
    checks: tuple[Check, ...]
    loss_of: str  # what the loss is of
    seconds: float  # of all runs


def read_arms(paths: Sequence[Path]) -> tuple[Arm, ...]:
    """The arms of an experiment, the base first; raises AdvisorError where two are called the same or are no run."""
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
    """Seconds that all runs take by what is known of this device; None: nothing is."""
    each = [expected_seconds(store, arm.config) for arm in arms]
    return None if None in each else seeds * sum(seconds for seconds in each if seconds is not None)


def run_ab(store: Store, arms: Sequence[Arm], seeds: int, folder: Path, tell: Tell) -> Experiment:
    """Run every arm with every seed, the order turned with each seed; what is done already is kept.

    Raises AdvisorError where a run cannot start, or a folder holds another run than this experiment's.
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
    """Whether an arm's loss is of other tokens than the base's, so that the two do not compare."""
    return (base.config.data, base.config.model.vocab_size) != (arm.config.data, arm.config.model.vocab_size)


def _run(store: Store, config: RunConfig, folder: Path, tell: Tell) -> None:
    """One run to its end; one that was interrupted goes on."""
    run_dir = folder / config.name
    if not is_run_folder(run_dir):
        tell(f"{config.name}: {config.steps} steps")
        launch(store, config, run_dir, again=True)
    else:
        if replace(read_run_config(run_dir), stop=config.stop) != config:  # a launch adds guards of its own
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
    """Until a run is over or it is enough; whoever interrupts this stops the run too."""
    try:
        while run_status(run_dir).state is RunState.RUNNING and not enough():
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        stop(store, run_dir, force=True)
        raise


def _resumable(store: Store, arm: Arm, folder: Path, tell: Tell) -> Check:
    """Whether a run of the arm that is stopped after a few steps goes on where it was."""
    what = "resumes where it was stopped"
    run_dir = folder / f"{arm.name}-resumed"
    if not is_run_folder(run_dir):
        tell(f"{arm.name}: stopped after {_STEPS_TO_RESUME} steps, and gone on with")
        config = replace(
            arm.config,
            name=run_dir.name,
            steps=_ENDLESS,
            eval=EvalConfig(tokens=0),
            checkpoint=CheckpointConfig(keep=1),
            stop=replace(arm.config.stop, max_seconds=_MOST_SECONDS),
        )
        launch(store, config, run_dir, again=True)
    if run_status(run_dir).state is RunState.RUNNING:  # just started, or left behind by somebody who was killed
        _until(store, run_dir, _STEPS_TO_RESUME)
    status = run_status(run_dir)
    if status.attempt == 1 and status.outcome is Outcome.STOPPED:
        resume(store, run_dir)
        _until(store, run_dir, (status.step or 0) + _STEPS_TO_RESUME)
    found = _review(store, run_dir)
    again = [a for a in found.case.run.attempts if a.resumed_from_step] if found is not None else []
    if found is None or not again:
        return Check(arm=arm.name, what=what, passed=False, evidence=f"it did not go on: {run_status(run_dir).words}")
    at = again[-1].resumed_from_step
    steps, losses = found.case.run.column("step"), found.case.run.column("loss")
    before, after = losses[steps <= at], losses[steps > at]
    if not len(after) or not len(before):
        return Check(arm=arm.name, what=what, passed=False, evidence=f"no step after step {at}")
    passed = bool(after[0] < before[-1] + _FURTHER)
    return Check(
        arm=arm.name, what=what, passed=passed,
        evidence=f"from step {at}: loss {before[-1]:.3f} before, {after[0]:.3f} after",
    )  # fmt: skip


def _until(store: Store, run_dir: Path, step: int) -> None:
    """Let a run come to a step, then stop it."""
    _wait(store, run_dir, lambda: (run_status(run_dir).step or 0) >= step)
    if run_status(run_dir).state is RunState.RUNNING:
        stop(store, run_dir, force=True)


def _review(store: Store, run_dir: Path) -> Reviewed | None:
    """A run read and scored; None where it has not come to a step."""
    check_not_running(run_dir, run_status(run_dir))
    try:
        return review(store, str(run_dir), record=False)
    except AdvisorError:  # it ended before its first step: the checklist says so
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


def _checks(arm: Arm, runs: Mapping[int, Reviewed], seeds: int) -> list[Check]:
    """What can be seen in the logs of an arm's runs."""
    done = [found for found in runs.values() if found.scored.complete]
    checks = [
        Check(
            arm=arm.name, what="trains to its end", passed=len(done) == seeds, evidence=f"{len(done)} of {seeds} runs"
        )
    ]
    if not done:
        return checks
    uniform = math.log(arm.config.model.vocab_size)
    first = [float(found.case.run.first_loss or math.nan) for found in done]
    last = [float(found.case.run.last_loss or math.nan) for found in done]
    if arm.config.init_from is None:
        near = all(abs(loss - uniform) <= _NEAR_UNIFORM * uniform for loss in first)
        words = f"first losses {min(first):.3f} to {max(first):.3f}, ln V {uniform:.3f}"
        checks.append(Check(arm=arm.name, what="begins at ln V", passed=near, evidence=words))
    fell = all(after < before for before, after in zip(first, last, strict=True))
    words = f"from {np.mean(first):.3f} to {np.mean(last):.3f}"
    checks.append(Check(arm=arm.name, what="its loss falls", passed=fell, evidence=words))
    return [*checks, _device(arm, done), *_memory(arm, done)]


def _device(arm: Arm, done: Sequence[Reviewed]) -> Check:
    """The kind of device that was asked for is the kind that trained."""
    seen = sorted({str(found.case.run.facts.get("gpu") or "a card without a name") for found in done})
    wanted = arm.config.device
    passed = wanted == "auto" or all((name == "cpu") == (wanted == "cpu") for name in seen)
    return Check(
        arm=arm.name, what="trains on the device asked for", passed=passed, evidence=f"{wanted}: {', '.join(seen)}"
    )


def _memory(arm: Arm, done: Sequence[Reviewed]) -> list[Check]:
    """The peak is below what the device has; nothing where either is not known."""
    facts = done[0].case.run.facts
    peaks = [peak for found in done if (peak := found.scored.actual("peak_reserved_bytes")) is not None]
    total = psutil.virtual_memory().total if facts.get("gpu") == "cpu" else facts.get("gpu_memory_bytes")
    if not peaks or total is None:
        return []
    words = f"{max(peaks) / 2**20:,.0f} MiB of {total / 2**20:,.0f}"
    return [Check(arm=arm.name, what="its memory fits", passed=max(peaks) < total, evidence=words)]
