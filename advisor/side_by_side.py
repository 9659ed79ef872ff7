"""Several runs against each other, only where they can be compared: equal tokens, equal learning-rate phase. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from advisor.laws.phase import phase_problem, same_phase
from trainer.runlog import Record, RunLog

SHARES = (0.25, 0.5, 0.75, 1.0)
_SMOOTHED_SHARE = 0.02  # of a run's steps before the point, averaged: one step's loss is noise


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One run at one point of a comparison."""

    run_id: str
    step: int
    tokens: int
    loss: float  # training loss, averaged over the last steps before the point
    rate_factor: float  # learning rate as a share of its peak
    seconds: float  # of steps up to here


@dataclass(frozen=True, kw_only=True)
class Point:
    """All runs at equal tokens, or at an equal share of their own schedules."""

    at: str  # tokens | schedule
    value: float  # tokens, or share of the planned steps
    runs: tuple[Standing, ...]
    comparable: bool
    problem: str | None  # why the losses of this point must not be compared


def side_by_side(runs: Sequence[tuple[str, RunLog]]) -> list[Point]:
    """Compare runs at quarters of the tokens they all saw, and at quarters of their schedules.

    Losses are comparable at equal tokens only in the same learning-rate phase: annealing lowers the loss by itself. At
    an equal share of their schedules they are in the same phase by construction, on different numbers of tokens. Losses
    on different data say nothing of each other: another vocabulary alone shifts them. A run without steps raises
    ValueError.
    """
    for run_id, log in runs:
        if not log.steps:
            raise ValueError(f"run {run_id} has no steps yet")
    shared = min(log.steps[-1]["tokens"] for _, log in runs)
    points = [_at_tokens(runs, round(share * shared)) for share in SHARES]
    done = min(len(log.steps) / log.headers[-1]["config"]["steps"] for _, log in runs)
    points += [_at_share(runs, share) for share in SHARES if share <= done]
    if len({_fingerprint(log) for _, log in runs}) == 1:
        return points
    return [replace(point, comparable=False, problem="trained on different data") for point in points]


def _fingerprint(log: RunLog) -> str | None:
    return (log.headers[-1].get("data") or {}).get("fingerprint")


@dataclass(frozen=True, kw_only=True)
class LossPoint:
    """A run's training loss at one moment, for laying runs over each other."""

    step: int
    tokens: int
    hours: float  # of steps up to here
    usd: float | None  # of those hours; None: no price
    loss: float
    eval_loss: float | None
    tokens_per_second: float
    grad_norm: float | None


def loss_points(log: RunLog, *, usd_per_hour: float | None, most: int = 400) -> list[LossPoint]:
    """The run in at most `most` stretches of equal length: mean loss and speed of each, at its last step.

    Spikes survive as they raise their stretch's mean; not-finite losses leave their stretch out.
    """
    if not log.steps:
        return []
    evals = {record["step"]: record["loss"] for record in log.evals}
    size = -(-len(log.steps) // most)
    points, seconds = [], 0.0
    for start in range(0, len(log.steps), size):
        stretch = log.steps[start : start + size]
        spent = sum(record["seconds"] for record in stretch)
        before = log.steps[start - 1]["tokens"] if start else 0
        seconds += spent
        last = stretch[-1]
        seen = [evals[record["step"]] for record in stretch if record["step"] in evals]
        loss = sum(record["loss"] for record in stretch) / len(stretch)
        if loss - loss != 0:  # NaN or infinite
            continue
        points.append(
            LossPoint(
                step=last["step"],
                tokens=last["tokens"],
                hours=seconds / 3600,
                usd=None if usd_per_hour is None else seconds / 3600 * usd_per_hour,
                loss=loss,
                eval_loss=seen[-1] if seen else None,
                tokens_per_second=(last["tokens"] - before) / spent if spent else 0.0,
                grad_norm=last.get("grad_norm"),
            )
        )
    return points


def _at_tokens(runs: Sequence[tuple[str, RunLog]], tokens: int) -> Point:
    standings = tuple(_standing(run_id, log, _index_at(log.steps, tokens)) for run_id, log in runs)
    problem = phase_problem([s.rate_factor for s in standings], [s.run_id for s in standings])
    return Point(at="tokens", value=tokens, runs=standings, comparable=problem is None, problem=problem)


def _at_share(runs: Sequence[tuple[str, RunLog]], share: float) -> Point:
    standings = tuple(
        _standing(run_id, log, max(0, round(share * log.headers[-1]["config"]["steps"]) - 1)) for run_id, log in runs
    )
    same = same_phase([standing.rate_factor for standing in standings])
    problem = None if same else "their schedules differ in form, not only in length"
    return Point(at="schedule", value=share, runs=standings, comparable=same, problem=problem)


def _standing(run_id: str, log: RunLog, index: int) -> Standing:
    window = log.steps[max(0, index + 1 - max(1, round(_SMOOTHED_SHARE * len(log.steps)))) : index + 1]
    record = log.steps[index]
    return Standing(
        run_id=run_id,
        step=record["step"],
        tokens=record["tokens"],
        loss=sum(step["loss"] for step in window) / len(window),
        rate_factor=record["learning_rate"] / log.headers[-1]["config"]["optimizer"]["learning_rate"],
        seconds=sum(step["seconds"] for step in log.steps[: index + 1]),
    )


def _index_at(steps: Sequence[Record], tokens: int) -> int:
    """The last step that had seen no more than `tokens`; the first one if all had."""
    found = [index for index, record in enumerate(steps) if record["tokens"] <= tokens]
    return found[-1] if found else 0
