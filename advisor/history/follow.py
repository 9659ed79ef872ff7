"""Follows a run folder for the terminal and a page: reads new lines of its log and computes its progress."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.engines.engines import describe
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.history.progress import History, Progress, make_progress, mfu_now, recent_median
from advisor.prediction.intervals import known
from advisor.records import Plan
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.adopted import load_adopted_plan
from advisor.store.disk import disk_errors
from advisor.store.run_folder import CONFIG, LOG, PLAN, read_launch, read_run_config, read_run_plan, run_id
from advisor.store.store import Store
from advisor.trainers.adopted import ADOPTED, attempts_of
from advisor.trainers.known import trainer_of_run
from trainer.budget import read_spent
from trainer.runlog import RunLogError, read_records
from trainer.schema import ConfigError, config_from_dict

if TYPE_CHECKING:
    from advisor.findings.run_metrics import Pace
    from advisor.prediction.trajectory import Trajectory


class RunFollower:
    """Reads one run folder repeatedly. The cost of a look depends on what is new in the log, not on its length."""

    def __init__(self, run_dir: Path, store: Store):
        self.run_dir, self._store = run_dir, store
        self._history = History()
        self._offset = 0
        self._planned_at: int | None = None  # when the plan that was read last had been written
        self._plan: Plan | None = None
        self._course: Trajectory | None = None
        self._over: tuple[int, Pace | None] | None = None  # the log's length, and the steady speed it shows
        self._read_plan()

    def look(self, now: float | None = None) -> Progress:
        """Return the run's progress now. Raises AdvisorError if the folder is damaged or contains no run."""
        status = describe(self.run_dir, self._store)  # read before the log, so the next look sees an end in between
        path, history = self.run_dir / LOG, self._history
        if path.exists():
            try:
                with disk_errors("read", path):
                    records, self._offset = read_records(path, self._offset)
            except RunLogError as error:
                raise AdvisorError(f"the log is damaged: {error}", f"fix or remove that line of {path}") from error
            history.add(records)
        self._read_plan()
        # the folder's configuration, read anew since resuming changes it; else that of the log's header
        if history.header is None or (self.run_dir / CONFIG).exists():
            config = read_run_config(self.run_dir)
        else:
            try:
                config = config_from_dict(history.header["config"])
            except ConfigError as error:
                message = f"the header of {path} has a configuration of another version: {error}"
                hint = f"upgrade training-advisor, or put the run's {CONFIG} next to the log"
                raise AdvisorError(message, hint) from error
        with disk_errors("read the budget in", self.run_dir):
            spent = read_spent(self.run_dir)  # empty if the file is not on this machine yet
        progress = make_progress(
            history,
            config,
            run_id=run_id(self.run_dir),
            state=status.state.value,
            outcome=status.outcome.value if status.outcome else None,
            reason=status.reason,
            attempt=status.attempt,
            plan=self._plan,
            course=self._course,
            launch=read_launch(self.run_dir),
            spent=spent,
            now=time.time() if now is None else now,
        )
        if progress.state == RunState.RUNNING or history.step is None:
            return progress
        from advisor.findings.make_case import make_case  # imports numpy, which launching does not need
        from advisor.findings.run_metrics import pace

        if self._over is None or self._over[0] != self._offset:
            self._over = self._offset, pace(make_case(trainer_of_run(self.run_dir).read_log(self.run_dir)))
        if (steady := self._over[1]) is None:
            return progress
        rate = steady.tokens_per_second  # of a run that is over, as it is scored
        return replace(progress, tokens_per_second=rate, mfu=mfu_now(self._plan, rate))

    def _read_plan(self) -> None:
        """Read the plan again if it was replaced, as when a machine is measured first and then gets another plan."""
        path = self.run_dir / PLAN
        written = path.stat().st_mtime_ns if path.exists() else None
        if written == self._planned_at:
            return
        self._planned_at, self._plan = written, read_run_plan(self.run_dir)
        if self._plan is not None:
            from advisor.prediction.trajectory import plan_trajectory  # imports numpy, which launching does not need

            self._course = plan_trajectory(self._plan)


class AdoptedFollower:
    """Follows a run of an adopted command, which logs steps but no losses."""

    def __init__(self, run_dir: Path, store: Store):
        self.run_dir, self._store = run_dir, store

    def look(self, now: float | None = None) -> Progress:
        """Return the run's progress now. Raises AdvisorError if the folder is damaged."""
        status, plan = describe(self.run_dir, self._store), load_adopted_plan(self.run_dir / ADOPTED_PLAN)
        attempts = attempts_of(self.run_dir)
        newest = attempts[-1] if attempts else []
        seconds = [record["seconds"] for record in newest if record["kind"] == "step" and record["seconds"] is not None]
        running = status.state is RunState.RUNNING
        going_on = (time.time() if now is None else now) - newest[-1]["time"] if running and newest else 0.0
        elapsed, pace, step = ADOPTED.spent(self.run_dir).seconds + going_on, recent_median(seconds), status.step or 0
        clock, usd_per_hour = plan.bill.wall_clock, plan.offer.usd_per_hour
        ending = clock.checkpoints_seconds.value if clock.checkpoints_seconds is not None else 0.0
        return Progress(
            run_id=run_id(self.run_dir),
            state=status.state.value,
            outcome=status.outcome.value if status.outcome else None,
            reason=status.reason,
            attempt=status.attempt,
            step=step,
            steps=plan.steps,
            step_seconds=pace,
            elapsed_seconds=elapsed,
            eta_seconds=known((plan.steps - step) * (pace or plan.step_seconds.value) + ending) if running else None,
            step_seconds_predicted=plan.step_seconds,
            total_seconds_predicted=clock.total_seconds,
            usd_predicted=plan.bill.cost_usd,
            usd_per_hour=usd_per_hour,
            usd_so_far=elapsed / 3600 * usd_per_hour if usd_per_hour is not None else None,
        )


def follower(run_dir: Path, store: Store) -> RunFollower | AdoptedFollower:
    """Return the follower for a run folder, depending on its trainer."""
    return (AdoptedFollower if trainer_of_run(run_dir) is ADOPTED else RunFollower)(run_dir, store)
