"""The live view of a run on stderr, and its last words: shared by launch, watch, stop and resume."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from advisor.engines.arrival import PLAN_BEFORE, read_arrival
from advisor.engines.state import goes_on, settle
from advisor.history.adopted import AdoptedProgress
from advisor.history.follow import follower
from advisor.history.progress import Progress
from advisor.report.arrival import table
from advisor.report.progress import closing_lines, line
from advisor.report.render import error_console, print_json, remark, show
from advisor.report.table import on_console
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import PLAN, read_launch
from advisor.store.store import Store
from trainer.schema import Outcome

LOOK_SECONDS = 1.0
PLAIN_SECONDS = 30.0  # between lines where stderr is not a terminal


def follow(run_dir: Path, store: Store) -> Progress | AdoptedProgress | None:
    """Show a run on stderr until it ends; None when the person leaves with Ctrl-C, and the run goes on."""
    try:
        return _follow(run_dir, store)
    except KeyboardInterrupt:
        remark(f"left; the run goes on. Back to it: advisor watch {run_dir}   end it: advisor stop {run_dir}")
        return None


def _follow(run_dir: Path, store: Store) -> Progress | AdoptedProgress:
    following = follower(run_dir, store)
    console = error_console()
    printed, told = -math.inf, False
    with Live(console=console, transient=True, auto_refresh=False) as live:
        while True:
            progress = following.look()
            told = told or tell_arrival(run_dir)
            if not goes_on(progress.state):
                settle(run_dir)
                return progress
            if console.is_terminal:
                live.update(Group(_bar(progress), Text(line(progress))), refresh=True)
            elif time.monotonic() - printed >= PLAIN_SECONDS:
                printed = time.monotonic()
                remark(line(progress))
            time.sleep(LOOK_SECONDS)


def follow_log(path: Path, *, once: bool, as_json: bool) -> int:
    """Show another program's log on stderr until it says that it ended, or the person leaves with Ctrl-C."""
    from advisor.report.watch_log import line as line_of_log
    from advisor.workflows.watch_log import Follower

    following = Follower(path)
    seen = following.look()
    try:
        while not (seen.over or once or as_json):
            remark(line_of_log(seen))
            following.wait(seen)
            seen = following.look()
    except KeyboardInterrupt:
        remark("left; the program goes on")
    if as_json:
        print_json({**vars(seen), "left_seconds": seen.left_seconds, "over": seen.over})
    else:
        show(line_of_log(seen), f"next: advisor analyze {path}")
    return 0 if seen.good else 1


def tell_arrival(run_dir: Path) -> bool:
    """Of a run that was measured where its engine started it: old and new plan beside each other, and why.

    False: it was not, or nothing has come home yet.
    """
    launch, record = read_launch(run_dir), read_arrival(run_dir)
    if record is None or launch is None or launch.arriving is None or not launch.arriving.told:
        return False
    remark(f"{'goes on' if record.goes_on else 'stopped on arrival'}: {record.reason}")
    if record.goes_on and (before := run_dir / PLAN_BEFORE).exists():
        error_console().print(on_console(table(load_plan(before), load_plan(run_dir / PLAN))))
    return True


def finish(progress: Progress | AdoptedProgress | None, run_dir: Path, store: Store, *, as_json: bool) -> int:
    """Say how a followed run ended and give the exit code: 0 completed, stopped or left running, 1 otherwise."""
    if progress is None:
        if as_json:
            print_json({"run_dir": run_dir, "progress": follower(run_dir, store).look()})
        return 0
    if as_json:
        print_json({"run_dir": run_dir, "progress": progress})
    else:
        show(*closing_lines(progress, run_dir))
    good = goes_on(progress.state) or progress.outcome in (Outcome.COMPLETED, Outcome.STOPPED)
    return 0 if good else 1


def _bar(progress: Progress | AdoptedProgress) -> Table:
    bar = Table.grid()  # a bar alone does not end its line
    bar.add_row(ProgressBar(total=progress.steps, completed=progress.step, width=60))
    return bar
