"""Estimates how long steps, evaluations and checkpoints of this run take, from those that were measured so far."""

from __future__ import annotations

import statistics
from collections import deque

from trainer.budget import Budget
from trainer.schema import RunConfig

_LATEST = 20  # steps; earlier ones do not count, since the first ones compile and machines drift
_EVENTS = 3  # number of evaluations or checkpoints
_STATE_BYTES = 12  # per parameter: fp32 weight and two moments
# For a checkpoint nobody has timed: a slow network disk of rented machines (100 MB/s). A guess; the first corrects it.
_DISK_BYTES_PER_SECOND = 1e8
_LEAVING_SECONDS = 1.0  # for the last records, the telemetry's file and the interpreter's end


class Pace:
    """Expected durations. They are also stored in the budget's file, so that the next attempt knows them."""

    def __init__(self, config: RunConfig, budget: Budget, *, parameters: int, tokens_per_step: int, steps_ahead: int):
        """`steps_ahead` is the number of steps that are done after the step in which the run decides to stop."""
        self._budget, self._expected, self._steps_ahead = budget, config.stop.step_seconds, steps_ahead
        self._eval_every = config.eval.every_steps
        self._eval_tokens = config.eval.tokens
        self._eval_share = config.eval.tokens / tokens_per_step  # of a step, at most: no backward pass
        self._first_checkpoint = parameters * _STATE_BYTES / _DISK_BYTES_PER_SECOND
        self._steps: deque[float] = deque(maxlen=_LATEST)
        self._evals: deque[float] = deque(maxlen=_EVENTS)
        self._checkpoints: deque[float] = deque(maxlen=_EVENTS)

    def add_step(self, seconds: float) -> None:
        """Record the seconds of a step."""
        if not self._steps:
            self._budget.start_seconds = self._budget.own_seconds
        self._steps.append(seconds)
        self._budget.step_seconds = self.longest_step

    def add_evaluation(self, seconds: float) -> None:
        """Record the seconds of an evaluation."""
        self._evals.append(seconds)

    def add_checkpoint(self, seconds: float) -> None:
        """Record the seconds of a checkpoint."""
        self._checkpoints.append(seconds)
        self._budget.checkpoint_seconds = self.checkpoint_seconds

    @property
    def usual_step(self) -> float | None:
        """Return the median of the latest steps, or else the expected time. Returns None if neither is known."""
        return statistics.median(self._steps) if len(self._steps) > 1 else self._expected

    @property
    def longest_step(self) -> float:
        """Return the longest of the latest steps. Before the first: an earlier attempt's, or the expected time."""
        return max(self._steps, default=self._budget.step_seconds or self._expected or 0.0)

    @property
    def checkpoint_seconds(self) -> float:
        """Return the longest of the latest checkpoints. Before the first: an earlier attempt's, or a slow disk's."""
        return max(self._checkpoints, default=self._budget.checkpoint_seconds or self._first_checkpoint)

    @property
    def usual_checkpoint(self) -> float | None:
        """Return the median checkpoint time. Returns None if no checkpoint was timed."""
        return max(self._checkpoints, default=self._budget.checkpoint_seconds)

    @property
    def evaluation_seconds(self) -> float:
        """Return the longest of the latest evaluations. Before the first: the time to train on as many tokens."""
        return max(self._evals, default=self._eval_share * (self.usual_step or self.longest_step))

    def to_stop(self, steps_done: int, steps: int) -> dict[str, float]:
        """Return the seconds from a decision to stop after this many steps to the end of the process, itemised."""
        ahead = range(steps_done + 1, steps_done + self._steps_ahead + 1)
        evaluates = any(step >= steps or (self._eval_every and step % self._eval_every == 0) for step in ahead)
        evaluation = {f"the evaluation of {self._eval_tokens:,} tokens": self.evaluation_seconds}
        return {
            "the next step" if self._steps_ahead == 1 else f"the next {self._steps_ahead} steps":
                self._steps_ahead * self.longest_step,
            **(evaluation if evaluates and self._eval_tokens else {}),
            "a checkpoint": self.checkpoint_seconds,
            "leaving": _LEAVING_SECONDS,
        }  # fmt: skip
