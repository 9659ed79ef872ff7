"""`python -m advisor.workflows.there arrive --run DIR`, or `calibrate ASKED --out DIR`: what a job elsewhere measures.

It starts in the folder of the job. `arrive` runs before the first step of a run, with the submitted plan and
configuration. It leaves two things in the run folder: the record that `engines/arrival` reads at home, and the
configuration with which the trainer starts. Exit status 0 means go on, bundle.STOPS means do not. It measures once: a
second start of the job does not pay for it again. Its time is deducted once. A run that starts at once has it deducted
from its limits. Otherwise the budget in the run folder counts it as an earlier attempt when the run is resumed.

`calibrate` measures a machine by the options in ASKED and leaves the calibration in DIR. If it is started again, it
continues with what was measured before the interruption.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from advisor.engines.arrival import CALIBRATION, PLAN_AFTER, goes_on_with, read_arrival
from advisor.engines.export.bundle import CONFIG_AFTER, STOPS
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions
from advisor.records import Plan
from advisor.run_records import ArrivalRecord, Arriving
from advisor.store.calibration import calibration_to_dict
from advisor.store.disk import disk_errors, dump_yaml, read_json, write_atomic
from advisor.store.folders import profiles_folder
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import PLAN, read_run_config
from advisor.store.store import Store
from advisor.workflows.arrive import Arrival, arrive, calibration_seconds
from advisor.workflows.calibrate import calibrate
from trainer.budget import Attempt, Spent, write_spent
from trainer.schema import RunConfig, dump_config

BEGAN = "arrival-began"  # file in the run folder: an arrival was tried
STORE = "store"  # folder in the job's folder
_LONGEST = 1.5  # times the allowed seconds: an interrupted calibration has used no more


def arrive_there(job: Path, run: Path, asked: Arriving) -> ArrivalRecord:
    """Measure, plan again, and write the results to the run folder; raises AdvisorError for damaged files."""
    if (record := read_arrival(run)) is not None:
        return record
    started = time.monotonic() - max(0.0, time.time() - psutil.Process().create_time())
    plan, config = load_plan(job / PLAN), read_run_config(job)
    # The plan finds its tokens on this machine; the configuration names them relative to the job's folder.
    if config.data.path is None:
        here = plan
    else:
        there = str((job / config.data.path).resolve())
        goal = plan.goal if plan.goal.data is None else replace(plan.goal, data=there)
        here = replace(plan, goal=goal, run=replace(plan.run, data=replace(plan.run.data, path=there)))
    with disk_errors("write to", run):
        run.mkdir(parents=True, exist_ok=True)
        first = not (run / BEGAN).exists()
        (run / BEGAN).touch()
    longest = _LONGEST * calibration_seconds(plan)
    if first:
        _count(run, longest, plan, config)  # before measuring, because an interrupted one cannot report its time
        try:
            arrival = arrive(here, Store(job / STORE, profiles_folder() / "calibrations"), asked)
        except AdvisorError as error:
            arrival = _unmeasured(here, time.monotonic() - started, f"{error.message}; the plan stays")
        arrival = replace(arrival, seconds=round(time.monotonic() - started, 2))
    else:
        arrival = _unmeasured(here, longest, "its calibration was cut off and is not paid for again; the plan stays")
    return _leave(arrival, plan, config, run)


def _leave(arrival: Arrival, plan: Plan, config: RunConfig, run: Path) -> ArrivalRecord:
    """Write the new configuration and plan, and finally the record that makes them valid."""
    record, after = replace(arrival.record, seconds=arrival.seconds), arrival.after
    if after is not None:
        try:
            changed = goes_on_with(plan, after, config, arrival.seconds)
        except AdvisorError as error:
            after, record = None, replace(record, goes_on=False, reason=error.message)
        else:
            write_atomic(run / CONFIG_AFTER, dump_config(changed))
            goal = replace(after.goal, data=plan.goal.data)
            write_atomic(
                run / PLAN_AFTER, dump_plan(replace(after, goal=goal, run=replace(after.run, data=plan.run.data)))
            )
    replace(arrival, before=plan, after=after, record=record).write(run)  # the record comes last
    _count(run, 0.0 if record.goes_on else record.seconds, plan, config)
    return record


def _count(run: Path, seconds: float, plan: Plan, config: RunConfig) -> None:
    """Record the seconds before the first step in the run's budget."""
    price = plan.offer.usd_per_hour if config.stop.usd_per_hour is None else config.stop.usd_per_hour
    attempt = Attempt(session="arrival", host=socket.gethostname(), began=time.time() - seconds,
                      seconds=round(seconds, 3), usd_per_hour=price, ended=True)  # fmt: skip
    with disk_errors("write the budget to", run):
        write_spent(run, Spent(attempts=(attempt,) if seconds else ()))


def _unmeasured(plan: Plan, seconds: float, reason: str) -> Arrival:
    """Returns an arrival without a measurement: the plan stays, but the time used still counts."""
    record = ArrivalRecord(
        calibration=None,
        device_key=None,
        seconds=round(seconds, 2),
        planned_step_seconds=plan.chosen.step_seconds,
        found_step_seconds=None,
        over=None,
        goes_on=True,
        reason=reason,
    )
    return Arrival(before=plan, after=plan, calibration=None, seconds=record.seconds, record=record)


def asked_text(options: CalibrationOptions) -> str:
    """Returns the options of `calibrate` as text for another machine, which has no data or earlier measurements."""
    return json.dumps(asdict(replace(options, data=None, fresh=False)), indent=1) + "\n"


def calibrate_there(asked: Path, out: Path) -> None:
    """Measure this machine and write its calibration to a folder; raises AdvisorError."""
    options = CalibrationOptions(**read_json(asked, "calibration's options"))
    store = Store(asked.parent / STORE, profiles_folder() / "calibrations")
    calibration = calibrate(options, store, on_event=lambda event: print(event.text, flush=True)).calibration
    with disk_errors("leave the calibration in", out):
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / CALIBRATION, dump_yaml(calibration_to_dict(calibration)))


def main() -> int:
    """Print whether the run starts, or what was measured; the exit status says whether to go on."""
    parser = argparse.ArgumentParser(prog="python -m advisor.workflows.there", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    arriving, calibrating = verbs.add_parser("arrive"), verbs.add_parser("calibrate")
    arriving.add_argument("--run", metavar="DIR", type=Path, required=True, help="run folder")
    arriving.add_argument("--may-change-depth", action="store_true", help="the new plan may have another depth")
    arriving.add_argument("--stop-if-over", type=float, metavar="SHARE", help="by which the planned work may cost more")
    calibrating.add_argument("asked", metavar="ASKED", type=Path)
    calibrating.add_argument("--out", metavar="DIR", type=Path, required=True)
    words = parser.parse_args()
    try:
        if words.verb == "calibrate":
            calibrate_there(words.asked.resolve(), words.out.resolve())
            return 0
        asked = Arriving(may_change_depth=words.may_change_depth, stop_if_over=words.stop_if_over)
        record = arrive_there(Path.cwd(), words.run.resolve(), asked)
    except AdvisorError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    print(f"{'goes on' if record.goes_on else 'stops on arrival'}: {record.reason}", file=sys.stderr)
    return 0 if record.goes_on else STOPS


if __name__ == "__main__":
    sys.exit(main())
