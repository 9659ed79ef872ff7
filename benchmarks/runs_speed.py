"""Measures how long listing many runs takes: `advisor runs` as a command, and the page Runs in this process.

    python benchmarks/runs_speed.py [--runs 600 10000] [--page]

Each run folder holds what the trainer and the launcher write: the recorded example with its own id, launch record,
budget and checkpoint. Its log of 210 kB is one file with many names, to save disk space. One run in twenty was copied
in and is not registered. Every planned run is already scored, as the page leaves them. The first listing reads every
folder. Three more follow: unchanged, after a run was added, and after a run was removed. CPU seconds are in brackets;
they are the same on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from advisor.records import Basis, Estimate
from advisor.run_records import RunRow, ScoreRow
from advisor.store.folders import example_run
from advisor.store.run_folder import CONFIG, LOG, PLAN, STDOUT, read_launch, run_row, write_launch
from advisor.store.store import Store
from trainer.budget import Attempt, Spent, write_spent
from trainer.schema import to_dict

UNREGISTERED = 20  # one run in so many was copied in


def make_run(store: Store, folder: Path, number: int) -> tuple[RunRow, ScoreRow]:
    """Make one run folder and return its line of the index and its score."""
    (folder / "checkpoints" / "step-00000501").mkdir(parents=True)
    source = example_run()
    for name in (LOG, PLAN, CONFIG, STDOUT):
        if name == LOG:
            os.link(store.home / LOG, folder / name)
        else:
            shutil.copyfile(source / name, folder / name)
    launch = read_launch(source)
    assert launch is not None
    began = datetime.fromisoformat(launch.launched_at) - timedelta(minutes=number)
    record = replace(launch, id=f"{folder.name}-{number:05d}", name=folder.name, host=os.uname().nodename,
                     pid=2**22 + number, process_started=began.timestamp(), launched_at=began.isoformat())  # fmt: skip
    write_launch(folder, record)
    attempt = Attempt(session="a" * 16, host=record.host, began=began.timestamp(), seconds=98.5, usd_per_hour=0.0,
                      ended=True)  # fmt: skip
    spent = Spent(attempts=(attempt,), step_seconds=0.16)
    write_spent(folder, spent)
    state = {"step": 501, "extra": {"budget": to_dict(spent)}}
    (folder / "checkpoints" / "step-00000501" / "state.json").write_text(json.dumps(state), encoding="utf-8")
    predicted = Estimate(value=90.0, low=85.0, high=95.0, basis=Basis.MEASURED)
    score = ScoreRow(run_id=record.id, quantity="wall_clock_seconds", device_key="cpu", predicted=predicted,
                     actual=88.2, created=began.astimezone(UTC).isoformat(timespec="seconds"))  # fmt: skip
    return run_row(folder), score


def fill(store: Store, count: int) -> None:
    """Make this many runs and register them together; a launch registers each one by itself."""
    (store.home / "runs").mkdir(parents=True)
    shutil.copyfile(example_run() / LOG, store.home / LOG)
    made = [make_run(store, store.home / "runs" / f"run-{number:05d}", number) for number in range(count)]
    with store._transaction() as db:
        rows = [(r.id, r.name, r.path, r.created, r.plan_id, r.device_key)
                for number, (r, _) in enumerate(made) if number % UNREGISTERED]  # fmt: skip
        db.executemany(
            "INSERT INTO runs (id, name, path, created, plan_id, device_key) VALUES (?, ?, ?, ?, ?, ?)", rows
        )
    for row, score in made:
        store.record_scores(row.id, [score])


def command(store: Store, expected: int) -> tuple[float, float]:
    """Check the list of `advisor runs` as a separate process; return its seconds by the clock and of CPU time."""
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words, variables = [sys.executable, "-m", "advisor", "runs"], {**os.environ, "ADVISOR_HOME": str(store.home)}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=True)
    seconds, now = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    listed = sum("run-" in line for line in done.stdout.splitlines())
    assert listed == expected, f"{listed} runs listed, {expected} expected"
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def page(store: Store) -> tuple[float, float]:
    """Return the same for the page Runs, by Streamlit's own test runner, after the page's modules are loaded."""
    os.environ["ADVISOR_HOME"] = str(store.home)
    from streamlit.testing.v1 import AppTest

    import advisor.ui.runs  # noqa: F401 - what a server has loaded already

    app = AppTest.from_string("from advisor.ui import runs\nruns.page()", default_timeout=600)
    began, used = time.perf_counter(), time.process_time()
    app.run()
    seconds = time.perf_counter() - began, time.process_time() - used
    assert not app.exception, app.exception
    return seconds


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[600, 10_000])
    parser.add_argument("--page", action="store_true", help="also the page")
    options = parser.parse_args()
    for count in options.runs:
        with tempfile.TemporaryDirectory() as home:
            store = Store(Path(home).resolve())
            fill(store, count)
            times = {"first look": command(store, count), "again": min(command(store, count) for _ in range(3))}
            row, _ = make_run(store, store.home / "runs" / f"run-{count:05d}", count)
            store.register_run(row)
            times["a run added"] = command(store, count + 1)
            shutil.rmtree(row.path)
            times["its folder gone"] = command(store, count + 1)
            if options.page:
                times["page, first"], times["page, again"] = page(store), page(store)
            print(f"{count:>6} runs: " + ", ".join(f"{name} {s:.2f} s ({cpu:.2f})" for name, (s, cpu) in times.items()))


if __name__ == "__main__":
    main()
