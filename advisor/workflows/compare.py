"""From a run to its score: read from its folder or any log, held against its plan and remembered."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings import run_metrics
from advisor.findings.case import Case
from advisor.findings.make_case import make_case
from advisor.findings.workload_of import infer
from advisor.hardware.catalog import find_gpu
from advisor.predict.energy import JOULES_PER_KWH
from advisor.readers import own_log
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable
from advisor.readers.sidecars import with_plan
from advisor.records import LaunchRecord, Plan, Workload
from advisor.runs.energy import run_kwh
from advisor.runs.ledger_rows import score_rows
from advisor.runs.scoring import ScoredRun, score_run
from advisor.store.calibration import MeasuredRun
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import PLAN, is_run_folder, read_launch, read_run_plan, run_id
from advisor.store.store import Store
from advisor.trainers.known import trainer_of_run

FEWEST_STEPS_TO_LEARN_FROM = 10  # a run this long says something about its configuration's step time
_ROWS_OF_ID = 100  # no two runs print the same hundred losses


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """One run, read and scored."""

    path: Path  # its folder, or its log
    case: Case  # what its log says, with the price that was paid
    scored: ScoredRun
    recorded: bool = False

    @property
    def name(self) -> str:
        return self.path.name


def review(store: Store, text: str, *, record: bool, plan: Path | None = None) -> Reviewed:
    """Read and score one run; record it if it is over. Raises AdvisorError when it cannot be read.

    `text` is a path, a run's name or its beginning, or `latest`. The plan lies beside the log; else it is `plan`.
    """
    path = Path(text).expanduser()
    if is_run_folder(path.parent) and path.name == trainer_of_run(path.parent).log_name:
        path = path.parent
    ours = is_run_folder(path) or not path.exists()
    if ours:
        path = store.find_run(path if path.exists() else text)
    promised = _plan_beside(path) or (load_plan(plan) if plan else None)
    reviewed = _own(path, promised) if ours else _other(path, promised)
    recorded = record and reviewed.scored.outcome is not None
    if recorded:
        remember(store, reviewed)
    return replace(reviewed, recorded=recorded)


def _plan_beside(path: Path) -> Plan | None:
    folder = path if path.is_dir() else path.parent
    return read_run_plan(folder) if (folder / PLAN).is_file() else None


def _own(run_dir: Path, plan: Plan | None) -> Reviewed:
    """A run folder of ours: what was launched says price and device."""
    run, launch = _read_launched(run_dir), read_launch(run_dir)
    usd_per_hour = launch.usd_per_hour if launch else None
    return _reviewed(run_dir, run, plan, launch, run_id=run_id(run_dir), usd_per_hour=usd_per_hour)


def _read_launched(run_dir: Path) -> RunTable:
    """What the run of a folder logged, by the trainer that was started there; raises AdvisorError."""
    trainer = trainer_of_run(run_dir)
    path = run_dir / trainer.log_name
    if not path.exists():
        raise AdvisorError(f"{run_dir} has no log: the run has not started", f"see how it is: advisor watch {run_dir}")
    try:
        run = trainer.read_log(run_dir)
    except AdvisorError as error:
        raise AdvisorError(f"the log is damaged: {error.message}", f"mend or remove that line of {path}") from error
    if not run.attempts and not run.rows:
        raise AdvisorError(f"the run in {run_dir} ended before its first step", f"see why: {run_dir / 'stdout.log'}")
    return run


def _other(path: Path, plan: Plan | None) -> Reviewed:
    """A log, or a folder with one, of any trainer."""
    run = read_run(path)
    return _reviewed(path, run, plan, None, run_id=_id_of(path, run), usd_per_hour=None)


def _id_of(path: Path, run: RunTable) -> str:
    """The same for a copy of the log, another for a run that began with other losses."""
    began = run.column("loss")[:_ROWS_OF_ID].tobytes()
    return f"{path.resolve().stem}-{hashlib.sha256(began).hexdigest()[:8]}"


def _reviewed(
    path: Path,
    run: RunTable,
    plan: Plan | None,
    launch: LaunchRecord | None,
    *,
    run_id: str,
    usd_per_hour: float | None,
) -> Reviewed:
    if plan is not None:  # where the log does not say how long the run was to be
        run = with_plan({"planned_steps": plan.run.steps, **run.facts}, run)
    price = usd_per_hour if usd_per_hour is not None else (plan.usd_per_hour if plan else None)
    case = make_case(run, given={"usd_per_hour": price})
    scored = score_run(
        case,
        plan,
        run_id=run_id,
        device_key=_device_key(run, plan, launch),
        usd_per_hour=usd_per_hour,
        energy_kwh=run_kwh(run),
    )
    return Reviewed(path=path, case=case, scored=scored)


def remember(store: Store, reviewed: Reviewed) -> None:
    """Write the scores of a finished run into the ledger, and its step time among its device's observations.

    Profiles are of our own trainer's steps: another trainer's run is scored, and teaches them nothing.
    """
    scored, run = reviewed.scored, reviewed.case.run
    created = datetime.now(UTC).isoformat(timespec="seconds")
    store.record_scores(scored.run_id, score_rows(scored, created))
    if run.format != own_log.NAME or (scored.steps or 0) < FEWEST_STEPS_TO_LEARN_FROM:
        return
    if run.facts.get("witness_seconds") and scored.reference_seconds is None:
        return  # other work came and went on the machine: the step time says more of that than of the configuration
    workload = workload_of(run, scored.device_key)
    if workload is None:
        return
    step_seconds = run_metrics.step_seconds(reviewed.case)
    if step_seconds is None:
        return
    store.add_observation(
        MeasuredRun(
            run_id=scored.run_id,
            device_key=scored.device_key,
            created=created,
            workload=workload,
            step_seconds=step_seconds,
            reference_seconds=scored.reference_seconds,
            steps=scored.steps or 0,
            watts=_watts(scored, workload.gpus),
        )
    )


def workload_of(run: RunTable, device_key: str) -> Workload | None:
    """What a run of ours was, as predictions are about it: its header leaves nothing open but the card's key."""
    workload = infer(run, {"gpu": "cpu"}).workload
    return replace(workload, gpu=device_key) if workload is not None else None


def _watts(scored: ScoredRun, gpus: int) -> float | None:
    """Mean power of one device over a completed run; None where it was not metered."""
    kwh, seconds = scored.actual("energy_kwh"), scored.actual("wall_clock_seconds")
    return kwh * JOULES_PER_KWH / seconds / gpus if kwh and seconds else None


def _device_key(run: RunTable, plan: Plan | None, launch: LaunchRecord | None) -> str:
    """The device the run was on: as launched, as planned, or by its own word."""
    if launch is not None and launch.device_key:
        return launch.device_key
    if plan is not None:
        return plan.workload.gpu
    name = str(run.facts.get("gpu") or "unknown")
    spec = find_gpu(name)
    return spec.key if spec else name


def to_document(reviewed: Reviewed) -> dict[str, object]:
    """One run for JSON: each quantity under its own name, beside what the run was and where the gap went."""
    scored = reviewed.scored
    quantities: dict[str, object] = {
        score.quantity: {
            "predicted": score.predicted,
            "actual": score.actual,
            "error": score.error,
            "inside_interval": score.inside_interval,
        }
        for score in scored.scores
    }
    names = ("run_id", "device_key", "outcome", "reason", "complete", "attempts", "steps", "steps_planned")
    rest = ("departures", "reference_seconds", "drift_factor", "gap_seconds", "causes")
    return {
        **{name: getattr(scored, name) for name in names},
        "run_dir": reviewed.path,
        **quantities,
        **{name: getattr(scored, name) for name in rest},
        "recorded": reviewed.recorded,
    }
