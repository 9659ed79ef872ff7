"""Shows a run live on stderr and then its result, for launch, watch, stop and resume."""

from __future__ import annotations

import math
import time
from pathlib import Path

from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from advisor.cli.verb import answer, json_asked
from advisor.engines.state import goes_on, settle
from advisor.history.follow import follower
from advisor.history.progress import Progress
from advisor.report.progress import closing_lines, line, line_of_log
from advisor.report.render import error_console, remark
from advisor.store.store import Store
from advisor.workflows import budget
from advisor.workflows.launch import StartedRun
from advisor.workflows.live import Follower, Prometheus
from trainer.schema import Outcome

LOOK_SECONDS = 1.0
PLAIN_SECONDS = 30.0  # between lines where stderr is not a terminal


def follow(run_dir: Path, store: Store, serving: Prometheus | None = None) -> Progress | None:
    """Show a run on stderr until it ends. Returns None if the user leaves with Ctrl-C while it continues.

    `serving` gets the state of the run.
    """
    following, console = follower(run_dir, store), error_console()
    printed = -math.inf
    try:
        with Live(console=console, transient=True, auto_refresh=False) as live:
            while True:
                progress = following.look()
                if serving is not None:
                    serving.seen = progress
                if not goes_on(progress.state):
                    settle(run_dir)
                    budget.settle(run_dir, store)
                    return progress
                if console.is_terminal:
                    bar = Table.grid()  # a bar alone does not end its line
                    bar.add_row(ProgressBar(total=progress.steps, completed=progress.step, width=60))
                    live.update(Group(bar, Text(line(progress))), refresh=True)
                elif time.monotonic() - printed >= PLAIN_SECONDS:
                    printed = time.monotonic()
                    remark(line(progress))
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        remark(f"left; the run continues. Back to it: advisor watch {run_dir}   end it: advisor stop {run_dir}")
        return None


def follow_log(path: Path, serving: Prometheus | None = None, *, once: bool) -> int:
    """Show another program's log on stderr until it says that it ended, or the user leaves with Ctrl-C."""
    following = Follower(path)
    seen = following.look()
    try:
        while True:
            if serving is not None:
                serving.seen = seen
            if seen.over or once or json_asked():
                break
            remark(line_of_log(seen))
            following.wait(seen)
            seen = following.look()
    except KeyboardInterrupt:
        remark("left; the program continues")
    answer(
        "watch-log",
        lambda: {**vars(seen), "left_seconds": seen.left_seconds, "over": seen.over},
        lambda: [line_of_log(seen), f"next: advisor analyze {path}"],
    )
    return 0 if seen.good else 1


def finish(progress: Progress | None, run_dir: Path, store: Store) -> int:
    """Say how a followed run ended; returns the exit code: 0 if completed, stopped or left running, 1 otherwise."""
    seen = progress or follower(run_dir, store).look()
    lines = [] if progress is None else closing_lines(progress, run_dir)  # the user left: there is nothing to say
    answer("watch", lambda: {"run_dir": run_dir, "progress": seen}, lambda: lines)
    good = progress is None or goes_on(seen.state) or seen.outcome in (Outcome.COMPLETED, Outcome.STOPPED)
    return 0 if good else 1


def after_start(store: Store, started: StartedRun, *, detach: bool) -> int:
    """Say where the run is, follow it unless detached, and return the exit code."""
    launch, run_dir = started.launch, started.run_dir
    words = f"started {launch.name} ({f'pid {launch.pid}' if launch.pid is not None else launch.handle})"
    for warning in started.warnings:
        remark(f"warning: {warning}")
    if not detach:
        remark(f"{words} in {run_dir}")
        return finish(follow(run_dir, store), run_dir, store)
    answer(
        "launch",
        lambda: {"run_dir": run_dir, "launch": launch},
        lambda: [words, f"run folder: {run_dir}", f"next: advisor watch {run_dir}"],
    )
    return 0
