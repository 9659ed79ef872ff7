"""Protects an attempt without torch: its folder's lock, its budget, its log, and a thread that watches it.

While the loop trains, evaluates or hangs, this watch books the budget, looks for the notice that the machine is taken
away, and ends the process if it hangs.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from trainer.budget import MOST_USED, NEW_LIMITS, WARNED_SHARE, Budget, Spent, read_spent, with_log
from trainer.deadman import DeadMan
from trainer.ended import AGAIN
from trainer.journal import Journal
from trainer.run_folder import RunFolder
from trainer.runlog import LOG_NAME, RunLog, RunLogError, load_run_log, mend
from trainer.schema import CONFIG, ConfigError, Outcome, StopConfig, load_config
from trainer.stop_requests import Notice, StopRequests

_TICK_SECONDS = 0.25
_MAIN_FIRST_SECONDS = 5.0
_LAST_WORDS_SECONDS = 20.0  # a hung file system may delay the final record; after this time the process ends without it


class Guard:
    """One attempt's protection, from before torch is loaded until the process ends. Close it, or use it in `with`."""

    def __init__(
        self,
        stop: StopConfig,
        out_dir: str | Path,
        *,
        is_main: bool = True,
        alone: bool = True,
        age_seconds: float = 0.0,
    ):
        """`is_main` is true in the process that writes, `alone` if no other process trains the same model.

        Raises RunLogError, and OSError if the folder cannot be used or another process trains in it.
        """
        self.warnings: list[str] = []  # to be logged once this attempt has its header
        self.folder = RunFolder(out_dir)
        if is_main:
            self.folder.lock()
        spent = read_spent(self.folder.path, self.warnings.append)
        self.budget = Budget(lambda: self.folder.path, stop, spent, age_seconds=age_seconds, writes=is_main)
        self.budget.book()  # before a long log is read, so that an attempt killed in the meantime is counted
        log = self._log(is_main)
        if log is not None:
            self.budget.earlier = with_log(spent, log)
            self._compare(spent, log)
        self.logged_steps = log.steps[-1]["step"] if log is not None and log.steps else 0
        self.journal = Journal(
            self.folder.path / LOG_NAME,
            writes=is_main,
            attempt=(log.attempts if log is not None else 0) + 1,
            session=self.budget.session,
            seconds=lambda: self.budget.own_seconds,
        )
        self.journal.step = self.logged_steps  # for an attempt that ends before it begins
        self.requests = StopRequests()
        self.dead_man = DeadMan(stop)
        self._notice = None if stop.notice is None else Notice(stop.notice)
        self._is_main = is_main
        self._alone, self._over = alone, threading.Event()
        self._warned = self._booking_failed = False
        self._limits_from, self._news = self._written(), ""
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End watch and count. A second call does nothing."""
        self.dead_man.disarm()
        self._over.set()
        self._thread.join(timeout=5.0)
        try:
            self.budget.end()
        except OSError as error:
            print(f"the budget could not be written: {error}", file=sys.stderr)
        self.folder.close()

    def end(self, outcome: Outcome, reason: str) -> Outcome:
        """Record how the attempt ended."""
        self.journal.final(outcome, reason, self.budget.usd_per_hour)
        return outcome

    def no_room_to_start(self) -> str | None:
        """Say why an attempt that starts now could only waste time. Returns None if there is room for a step."""
        left, budget = self.budget.seconds_left(), self.budget
        if left is None or not self._alone:  # several processes must not part before they have met
            return None
        ahead = sum(s or 0.0 for s in (budget.start_seconds, budget.step_seconds, budget.checkpoint_seconds))
        if left > max(0.0, ahead - budget.own_seconds):
            return None
        return f"{budget.words} are used, and starting, a step and a checkpoint take {ahead:.0f} s"

    def warn_of_budget(self) -> None:
        """Log new limits, and warn once when most of a limit is used."""
        if self._news:
            level, self._news, self._warned = self._news, "", False
            unreadable = f"the changed {CONFIG} cannot be read and changes nothing"
            self.journal.message(level, NEW_LIMITS + self.budget.words if level == "info" else unreadable)
        if not self._warned and self.budget.share_used() >= WARNED_SHARE:
            self._warned = True
            self.journal.message("warning", MOST_USED + self.budget.words)

    def _log(self, is_main: bool) -> RunLog | None:
        path = self.folder.path / LOG_NAME
        if not path.exists():
            return None
        try:
            return load_run_log(path)
        except RunLogError as error:
            if not is_main:
                return None
            kept = mend(path)
            if kept is None:
                raise
            self.warnings.append(f"{error}: passed over; the log as it was is kept as {kept.name}")
            return load_run_log(path)

    def _compare(self, spent: Spent, log: RunLog) -> None:
        """Compare the total time in the log with the budget's count."""
        counted = self.budget.earlier.seconds
        if spent.attempts and counted > 1.1 * spent.seconds + 60:
            self.warnings.append(
                f"the log knows of {counted:.0f} s of earlier attempts, the budget of {spent.seconds:.0f}"
            )

    def _watch(self) -> None:
        while not self._over.wait(_TICK_SECONDS):
            self._book()
            self._read_limits()
            if self._notice is not None and self._notice.given():
                self.requests.ask(f"received the notice of {self._notice.where}")
            if self.folder.is_gone:
                self.requests.ask(f"{self.folder.path} was deleted, or moved to another disk")
            if (reason := self.dead_man.verdict()) is None or self._over.is_set():
                continue
            if not self._is_main:  # the writer ends first; else it would log a lost connection as the reason
                self._over.wait(_MAIN_FIRST_SECONDS)
            self._end_at_once(reason)

    def _written(self) -> int | None:
        """Return when the run folder's configuration was written. Returns None if there is none."""
        try:
            return (self.folder.path / CONFIG).stat().st_mtime_ns
        except OSError:
            return None

    def _read_limits(self) -> None:
        """Take the limits on time and dollars from the run folder's configuration if it was written anew."""
        written = self._written()
        if not self._is_main or written in (None, self._limits_from):
            return
        self._limits_from = written
        try:
            self.budget.limit(load_config(self.folder.path / CONFIG).stop)
            self._news = "info"
        except (OSError, ConfigError):
            self._news = "warning"

    def _book(self) -> None:
        try:
            self.budget.book()
        except OSError as error:
            if not self._booking_failed:
                print(f"the budget cannot be written, it is counted in memory: {error}", file=sys.stderr, flush=True)
            self._booking_failed = True

    def _end_at_once(self, reason: str) -> None:
        """End the process, because the loop no longer answers. A job script then starts the run again."""
        faulthandler.dump_traceback_later(_LAST_WORDS_SECONDS, exit=True)
        faulthandler.dump_traceback(all_threads=True)
        self.end(Outcome.FAILED, reason)
        self.budget.end()
        sys.stdout.flush()
        os._exit(AGAIN)


def process_age_seconds() -> float:
    """Return seconds since this process started, independent of the wall clock. 0 if the system does not say."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])  # starttime, proc(5)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        import psutil

        age = time.time() - psutil.Process().create_time()
    return max(0.0, age)
