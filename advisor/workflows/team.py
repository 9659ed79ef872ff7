"""Shares records of runs with a team: pushes, pulls, imports a cluster's history, adds up what was spent."""

from __future__ import annotations

import math
import os
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.engines.state import goes_on
from advisor.errors import AdvisorError
from advisor.history.listing import DAMAGED, GONE, RunSummary, list_runs
from advisor.records import Basis, Estimate, Plan, Workload
from advisor.run_records import ScoreRow
from advisor.store.calibration import calibration_from_dict, calibration_to_dict
from advisor.store.disk import read_json
from advisor.store.run_folder import read_launch, read_run_plan
from advisor.store.store import Store
from advisor.store.team_files import Files
from advisor.store.team_ledger import ledger_of
from advisor.trainers.known import trainer_of_run
from advisor.units import HOUR, format_number, format_seconds, format_usd
from advisor.workflows.budget import settle_ended
from trainer.schema import Outcome

_SAME_SIZE = 0.01  # logarithm of a ratio of parameters up to which models of one name are the same
_TEAM_TAG = "team:"  # a tag of a run that names its team


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What was written to the shared ledger."""

    records: int
    new: int


@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What was read from the shared ledger."""

    new: int
    calibrations: int  # of these, calibrations that can now be planned with
    scored_runs: int  # of these, runs whose errors now count for the accuracy shown
    damaged: tuple[str, ...]  # files that are no records


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What the runs of one group used. Dollars and hours of the plans are of the runs that had one."""

    group: str
    runs: int
    gpu_hours: float
    usd: float | None  # None: no run has a price
    planned_usd: float | None
    planned_runs_usd: float | None  # what the runs with a plan cost
    queue_hours: float | None  # median wait before a job of a cluster started; None: none was imported
    scored_runs: int  # runs whose step time was predicted and measured
    step_error: float | None  # median of |actual / predicted - 1| of their step times
    step_inside: float | None  # share of them inside the predicted 80 % interval


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A run of the ledger that resembles a plan. None: its record does not say."""

    id: str
    name: str
    team: str | None
    created: str  # ISO 8601, UTC
    model: str
    gpu: str | None
    gpus: int | None
    batch_tokens: int | None  # of one optimizer step
    outcome: str
    steps: int | None
    step_seconds: float | None  # median, of a run that was compared with its prediction
    hours: float
    usd: float | None
    loss: float | None
    differs: tuple[str, ...]  # in which of model, GPU, GPUs and batch


def push(store: Store) -> Pushed:
    """Write this machine's finished runs, scores and calibrations to the shared ledger, once each, and settle runs."""
    settle_ended(store)
    records = list(records_of(store, os.environ.get("ADVISOR_TEAM")))
    return Pushed(records=len(records), new=ledger_of(store.home).push(records))


def compact(store: Store, month: str | None = None) -> dict[str, int]:
    """Write the records of a month, such as 2026-11, into one file each; without one, of every past month.

    Returns how many records the new files have, by month. Raises AdvisorError.
    """
    files = ledger_of(store.home).shared
    if not isinstance(files, Files):
        raise AdvisorError("a database is not compacted", "only ledgers in folders and object stores are", exit_code=2)
    if month is not None and not re.fullmatch(r"\d{4}-\d{2}", month):
        raise AdvisorError(f"{month} is no month", "write it like 2026-11", exit_code=2)
    months = {name[:7].replace("/", "-") for name in files.names()}
    past = sorted(one for one in months if one < f"{datetime.now(UTC):%Y-%m}") if month is None else [month]
    return {one: count for one in past if (count := files.compact(one.replace("-", "/")))}


def records_of(store: Store, team: str | None) -> Iterator[dict[str, Any]]:
    """Yield the records of this machine. They have no host, user or path."""
    measured = {score.run_id: score.actual for score in store.scores() if score.quantity == "step_seconds"}
    for run in list_runs(store):
        if not (goes_on(run.state) or run.state in (DAMAGED, GONE)) and run.created:
            yield _run_record(run, team, measured.get(run.id))
    for score in store.scores():
        guess = score.predicted
        yield {
            "kind": "score", "created": score.created, "run_id": score.run_id, "quantity": score.quantity,
            "device_key": score.device_key, "predicted": [guess.value, guess.low, guess.high], "basis": guess.basis,
            "actual": score.actual, **({"set_aside": score.set_aside} if score.set_aside else {}),
        }  # fmt: skip
    for entry in store.list_calibrations():
        if not entry.shipped:
            document = calibration_to_dict(store.load_calibration(entry.path))
            document["settings"]["data"] = None  # a path
            yield {"kind": "calibration", "created": entry.created, "calibration": document}


def _run_record(run: RunSummary, team: str | None, step_seconds: float | None) -> dict[str, Any]:
    folder = Path(run.path)
    launch, plan = read_launch(folder), read_run_plan(folder) if (folder / "plan.yaml").is_file() else None
    tagged: list[str | None] = [tag.removeprefix(_TEAM_TAG) for tag in run.tags if tag.startswith(_TEAM_TAG)]
    seconds = sum(attempt.seconds for attempt in trainer_of_run(folder).spent(folder).attempts)
    work = plan.workload if plan is not None else None
    planned = None if plan is None else plan.chosen
    return {
        "kind": "run", "created": run.created, "id": run.id, "name": run.name, "team": (tagged or [team])[0],
        "model": None if work is None else _model(work), "gpu": run.device_key,
        "gpus": None if launch is None else launch.gpus,
        "outcome": run.outcome or run.state, "steps": run.step, "loss": run.loss, "hours": round(seconds / HOUR, 6),
        "parameters": None if planned is None else planned.parameters, "step_seconds": step_seconds,
        "batch_tokens": None if work is None else work.step_tokens,
        "usd": run.usd, "planned_hours": None if planned is None else planned.total_seconds.value / HOUR,
        "planned_usd": None if planned is None or planned.cost_usd is None else planned.cost_usd.value,
    }  # fmt: skip


def pull(store: Store) -> Pulled:
    """Copy what others pushed: their calibrations can be planned with, and their scores count for the accuracy."""
    ledger = ledger_of(store.home)
    new, damaged = ledger.pull()
    have, calibrations = {entry.id for entry in store.list_calibrations()}, 0
    for record in ledger.records("calibration"):
        document = record["calibration"]
        # A GPU is the same everywhere; a CPU's name does not say how fast another machine's is.
        if document["id"] not in have and document["device"]["key"] != "cpu":
            store.save_calibration(calibration_from_dict(document))
            calibrations += 1
    scored = {score.run_id for score in store.scores()} | store.withdrawn_runs()
    by_run: dict[str, list[ScoreRow]] = defaultdict(list)
    for record in ledger.records("score"):
        if record["run_id"] not in scored:
            value, low, high = record["predicted"]
            guess = Estimate(value=value, low=low, high=high, basis=Basis(record["basis"]))
            by_run[record["run_id"]].append(
                ScoreRow(run_id=record["run_id"], quantity=record["quantity"], device_key=record["device_key"],
                         predicted=guess, actual=record["actual"], created=record["created"],
                         set_aside=record.get("set_aside", ""))
            )  # fmt: skip
    for run_id, rows in by_run.items():
        store.record_scores(run_id, list({row.quantity: row for row in rows}.values()))
    return Pulled(new=new, calibrations=calibrations, scored_runs=len(by_run), damaged=damaged)


def import_jobs(path: Path, store: Store) -> Pushed | None:
    """Write the GPU jobs of a cluster's history, which `sacct --json` prints, to the shared ledger.

    Returns None if the file is something else. Raises AdvisorError.
    """
    jobs = read_json(path, "file").get("jobs") if path.suffix == ".json" and path.is_file() else None
    if not isinstance(jobs, list):
        return None
    records = [record for job in jobs if (record := _job_record(job)) is not None]
    if not records:
        raise AdvisorError(f"{path} has no finished jobs with GPUs", "sacct --json --allusers --starttime=2026-01-01")
    return Pushed(records=len(records), new=ledger_of(store.home).push(records))


def _job_record(job: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of a finished job with GPUs, or None. It has no user, host, name or path."""
    times, gpu, gpus = job.get("time") or {}, None, 0
    for one in (job.get("tres") or {}).get("allocated") or []:
        if one.get("type") == "gres" and str(one.get("name", "")).startswith("gpu"):
            gpu = str(one["name"]).partition(":")[2] or gpu
            gpus = max(gpus, int(one.get("count") or 0))
    began, ended, submitted = (times.get(name) or 0 for name in ("start", "end", "submission"))
    if not gpus or not 0 < began < ended:
        return None
    state = job.get("state") or {}
    current = state.get("current", state) if isinstance(state, Mapping) else state
    return {
        "kind": "job", "created": datetime.fromtimestamp(ended, UTC).isoformat(timespec="seconds"),
        "id": str(job.get("job_id")), "cluster": job.get("cluster"), "team": job.get("account"),
        "partition": job.get("partition"), "gpu": gpu, "gpus": gpus, "hours": round((ended - began) / HOUR, 6),
        "queue_hours": round(max(0, began - submitted) / HOUR, 6) if submitted else None,
        "outcome": str(current[0] if isinstance(current, Sequence) and not isinstance(current, str) and current
                       else current).lower(),
    }  # fmt: skip


def spending(store: Store, by: str) -> list[Spending]:
    """Add up the runs and jobs of this machine's copy of the ledger by team, model, GPU or month, the dearest first."""
    ledger = ledger_of(store.home)
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in (*_last_of_each(ledger.records("run")), *_last_of_each(ledger.records("job"))):
        key = record["created"][:7] if by == "month" else record.get(by)
        groups[str(key or "unknown")].append(record)
    steps = {score["run_id"]: score for score in ledger.records("score")
             if score["quantity"] == "step_seconds" and not score.get("set_aside")}  # fmt: skip
    found = [
        _sum(name, records, [steps[record["id"]] for record in records if record["id"] in steps])
        for name, records in groups.items()
    ]
    return sorted(found, key=lambda one: (one.usd or 0.0, one.gpu_hours), reverse=True)


def _last_of_each(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the fullest record of each run: one that was resumed or scored after it was pushed has several."""

    def fullness(record: Mapping[str, Any]) -> tuple[float, int]:
        return record.get("hours") or 0.0, sum(value is not None for value in record.values())

    # Of records that are as full, the last stands.
    return list({(one.get("cluster"), one.get("id")): one for one in sorted(records, key=fullness)}.values())


def _sum(group: str, records: Sequence[Mapping[str, Any]], scores: Sequence[Mapping[str, Any]]) -> Spending:
    def total(name: str, rows: Sequence[Mapping[str, Any]]) -> float | None:
        known = [row[name] for row in rows if row.get(name) is not None]
        return float(sum(known)) if known else None

    planned = [row for row in records if row.get("planned_usd") is not None and row.get("usd") is not None]
    waits = [row["queue_hours"] for row in records if row.get("queue_hours") is not None]
    errors = [abs(score["actual"] / score["predicted"][0] - 1) for score in scores]
    inside = [score["predicted"][1] <= score["actual"] <= score["predicted"][2] for score in scores]
    return Spending(
        group=group, runs=len(records), usd=total("usd", records), planned_usd=total("planned_usd", planned),
        gpu_hours=float(sum((row.get("hours") or 0.0) * (row.get("gpus") or 1) for row in records)),
        planned_runs_usd=total("usd", planned), queue_hours=statistics.median(waits) if waits else None,
        scored_runs=len(scores), step_error=statistics.median(errors) if errors else None,
        step_inside=sum(inside) / len(inside) if inside else None,
    )  # fmt: skip


def earlier_runs(store: Store, plan: Plan, count: int = 3) -> list[EarlierRun]:
    """Return the runs of this machine's copy of the ledger that are nearest to a plan, the nearest first.

    A run counts if its model has at least half and at most twice as many parameters.
    """
    work, found = plan.workload, []
    for record in _last_of_each(ledger_of(store.home).records("run")):
        size = _far(record.get("parameters"), plan.chosen.parameters)
        if record["model"] is None or size > math.log(2):
            continue
        differs = {
            "model": record["model"] != _model(work) or size > _SAME_SIZE,
            "GPU": record["gpu"] != work.gpu,
            "GPUs": record["gpus"] != work.gpus,
            "batch": record["batch_tokens"] != work.step_tokens,
        }
        far = _far(record["gpus"], work.gpus) + _far(record["batch_tokens"], work.step_tokens)
        names = tuple(name for name, is_other in differs.items() if is_other)
        values: dict[str, Any] = {each.name: record.get(each.name) for each in fields(EarlierRun)}
        nearness = differs["model"], size, differs["GPU"], far, record["outcome"] != Outcome.COMPLETED
        found.append((nearness, EarlierRun(**values | {"differs": names})))
    found.sort(key=lambda one: one[1].created, reverse=True)
    return [earlier for _, earlier in sorted(found, key=lambda one: one[0])][:count]


def earlier_sentence(run: EarlierRun) -> str:
    """Say what an earlier run took and cost, and in what it differs from the plan."""
    facts = [f"{run.gpus or '?'} x {run.gpu or '?'}"]
    facts += [f"{format_seconds(run.step_seconds)} a step"] if run.step_seconds else []
    facts += [format_usd(run.usd)] if run.usd else []
    facts += [f"loss {format_number(run.loss)}"] if run.loss else []
    other = f", other {' and '.join(run.differs)}" if run.differs else ""
    team = f"team {run.team}, " if run.team else ""
    outcome = run.outcome.replace("_", " ")
    return f"{run.model} ({team}{run.created[:10]}, {outcome}{other}): {run.name}, {', '.join(facts)}"


def _far(one: float | None, other: float) -> float:
    return abs(math.log(one / other)) if one else math.inf


def _model(work: Workload) -> str:
    return work.model.name if work.model is not None else f"{work.shape.family} d{work.shape.depth}"
