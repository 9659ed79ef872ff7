"""Reads a run from its folder or any log, scores it against its plan, and records the scores."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines.state import goes_on, run_status
from advisor.errors import AdvisorError
from advisor.findings import run_metrics
from advisor.findings.case import Case
from advisor.findings.make_case import make_case
from advisor.findings.workload_of import infer
from advisor.hardware.catalog import find_gpu
from advisor.history.adopted_scores import score_adopted, why_not_recorded, with_run
from advisor.history.comparison import Comparison, compare_runs
from advisor.history.ledger_rows import score_rows
from advisor.history.scoring import ScoredRun, run_kwh, score_run
from advisor.prediction.power import JOULES_PER_KWH
from advisor.readers import own_log
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable
from advisor.readers.status import by_plan
from advisor.readers.traces.kinds import holds_traces
from advisor.records import MeasuredStep, Plan, Workload
from advisor.run_records import LaunchRecord
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.adopted import adopted_names, load_adopted, load_adopted_plan, save_adopted
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import PLAN, is_run_folder, read_launch, read_run_plan, run_id
from advisor.store.store import Store
from advisor.trainers.known import trainer_of_run
from advisor.workflows.flows import flow_of

# Timed steps after the warm-up that make a run's step time usable. The median of 100 steps that vary by a sixth is
# known to 2 %, as the fit assumes (1.25 σ/√n). The rule is arbitrary: a tenth of a shorter run will do, at least 10.
_FEWEST_STEPS, _ENOUGH_STEPS, _LEAST_SHARE = 10, 100, 0.1
_ROWS_OF_ID = 100  # rows of losses in an id; no two runs print the same hundred


@dataclass(frozen=True, kw_only=True)
class Reviewed:
    """One run, read and scored."""

    path: Path  # its folder or its log
    case: Case  # the run of the log, with the price that was paid
    scored: ScoredRun
    recorded: bool = False  # in the ledger
    not_recorded: str | None = None  # why not, in words; None also if nobody asked to record it
    not_learnt: str | None = None  # why the device's profile does not use this recorded run; None: it does
    called: str = ""  # name given by its owner

    @property
    def name(self) -> str:
        return self.called or self.path.name


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Reviewed runs, and the comparison of several."""

    runs: tuple[Reviewed, ...]
    comparison: Comparison | None  # None: only one run

    def document(self) -> tuple[str, dict[str, object]]:
        """Returns the name and content of the JSON document: of a single run, or of all runs with their comparison."""
        documents = [to_document(run) for run in self.runs]
        if self.comparison is None:
            return "compare", documents[0]
        return "compare-several", {"runs": documents, **self.comparison.to_document()}


@dataclass(frozen=True, kw_only=True)
class TakenBack:
    """A run that was removed from the ledger and the profiles."""

    run_id: str
    was_recorded: bool


def review_all(store: Store, texts: Sequence[str], *, record: bool | None, plan: Path | None = None) -> Compared:
    """Review each run and compare them if there are several; raises AdvisorError as `review` does."""
    if traces := [text for text in texts if Path(text).is_file() and holds_traces(Path(text))]:
        hint = f"to see where the time of each goes: advisor analyze {' '.join(traces)}"
        raise AdvisorError(f"{traces[0]} is a trace or dump, no run", hint, exit_code=2)
    runs = tuple(review(store, text, record=record, plan=plan) for text in texts)
    several = compare_runs([run.case for run in runs], [run.name for run in runs]) if len(runs) > 1 else None
    return Compared(runs=runs, comparison=several)


def review(store: Store, text: str, *, record: bool | None, plan: Path | None = None) -> Reviewed:
    """Read and score one run, and record it if it is over and long enough. Raises AdvisorError if it cannot be read.

    `text` is a path, a run's name or its beginning, or `latest`. The plan is beside the log, or else at `plan`.
    `record` None: record the run unless it was taken back.
    """
    path, ours = _find(store, text)
    folder = path if path.is_dir() else path.parent
    own_plan = read_run_plan(folder) if (folder / PLAN).is_file() else None
    run_plan = own_plan or (load_plan(plan) if plan else None)
    flow = flow_of(trainer_of_run(path))
    if ours:
        reviewed = flow.read(path, run_plan)
    else:  # any trainer's log, or a folder with one
        run = read_run(path)
        reviewed = _reviewed(path, run, run_plan, None, run_id=_id_of(path, run), usd_per_hour=None)
    scored = reviewed.scored
    if ours and scored.outcome is None:
        scored = replace(scored, goes_on=goes_on(run_status(path).state))
        if scored.goes_on:  # only what has ended can be explained
            scored = replace(scored, gap_seconds=None, causes=())
        reviewed = replace(reviewed, scored=scored)
    if record is False:
        return reviewed
    if record is None and scored.run_id in store.withdrawn_runs():
        return replace(reviewed, not_recorded="it was taken back; --record enters it again")
    if scored.outcome is None:
        return replace(reviewed, not_recorded="it has not ended")
    short = _too_short(reviewed)
    if short is not None and not scored.complete:
        return replace(reviewed, not_recorded=short)
    # The ledger gets the scores; the profile of the device or of the command gets the step time.
    created = datetime.now(UTC).isoformat(timespec="seconds")
    store.record_scores(scored.run_id, score_rows(scored, created))
    return replace(reviewed, recorded=True, not_learnt=short or flow.learn(store, reviewed, created))


def take_back(store: Store, text: str, now: datetime) -> TakenBack:
    """Remove a run from the ledger and the profiles. `text` is as for `review`, or an id if the folder is gone."""
    if store.is_recorded(text) or text in store.withdrawn_runs():
        name = text
    else:
        path, ours = _find(store, text)
        name = run_id(path) if ours else _id_of(path, read_run(path))
    return TakenBack(run_id=name, was_recorded=store.take_back(name, now))


def _find(store: Store, text: str) -> tuple[Path, bool]:
    """Returns the run folder or log that a text names, and whether it is a run folder of this program."""
    path = Path(text).expanduser()
    if is_run_folder(path.parent) and path.name == trainer_of_run(path.parent).log_name:
        path = path.parent
    ours = is_run_folder(path) or not path.exists()
    return (store.find_run(path if path.exists() else text) if ours else path), ours


def read_adopted(run_dir: Path, plan: None) -> Reviewed:
    """Reads the run of an adopted command and scores it against the plan in its folder."""
    run, adopted = _read_launched(run_dir), load_adopted_plan(run_dir / ADOPTED_PLAN)
    case, scored = score_adopted(run, adopted, run_id=run_id(run_dir), place=_elsewhere(run_dir))
    return Reviewed(path=run_dir, case=case, scored=scored)


def learn_adopted(store: Store, reviewed: Reviewed, created: str) -> str | None:
    """Add a run's step time to the bursts of its command; returns the reason if it is not added."""
    run, scored, plan = reviewed.case.run, reviewed.scored, load_adopted_plan(reviewed.path / ADOPTED_PLAN)
    if place := _elsewhere(reviewed.path):
        return f"it ran on {place}, and its command was measured here"
    if plan.trainer not in adopted_names(store.home):
        return "its command is not adopted here any more"
    if (why := why_not_recorded(scored, plan, run)) is not None:
        return why
    step = scored.actual("step_seconds")
    assert step is not None  # a run without it was refused above
    adopted = load_adopted(store.home, plan.trainer)
    save_adopted(store.home, with_run(adopted, plan, run, step, scored.reference_seconds))
    return None


def _elsewhere(run_dir: Path) -> str:
    """Returns where an adopted run was started; "" means on this machine, where its command was measured."""
    launch = read_launch(run_dir)
    if launch is None or launch.place.engine == "local":
        return ""
    return f"{launch.place.engine} {launch.place.name}" if launch.place.name else launch.place.engine


def read_own(run_dir: Path, plan: Plan | None) -> Reviewed:
    """Reads a run folder of this program, whose launch record has the price and the device."""
    run, launch, trainer = _read_launched(run_dir), read_launch(run_dir), trainer_of_run(run_dir)
    price = launch.usd_per_hour if launch is not None else None
    if launch is not None and price is not None and launch.attempt > 1:
        # Attempts may have different prices, so take their mean weighted by hours.
        spent = trainer.spent(run_dir)
        price = spent.usd(price) / spent.seconds * 3600 if spent.seconds else price
    return _reviewed(run_dir, run, plan, launch, run_id=run_id(run_dir), usd_per_hour=price)


def _read_launched(run_dir: Path) -> RunTable:
    """Reads the log of a run folder with its trainer's reader; raises AdvisorError."""
    trainer = trainer_of_run(run_dir)
    path = run_dir / trainer.log_name
    if not path.exists():
        raise AdvisorError(f"{run_dir} has no log: the run has not started", f"see its state: advisor watch {run_dir}")
    try:
        run = trainer.read_log(run_dir)
    except AdvisorError as error:
        raise AdvisorError(f"the log is damaged: {error.message}", f"fix or remove that line of {path}") from error
    if not run.attempts and not run.rows:
        raise AdvisorError(f"the run in {run_dir} ended before its first step", f"see why: {run_dir / 'stdout.log'}")
    return run


def _id_of(path: Path, run: RunTable) -> str:
    """Returns an id that copies of a log share and runs with other first losses do not."""
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
    if plan is not None:  # if the log does not state the planned length
        run = by_plan({"planned_steps": plan.config.steps, **run.facts}, run)
    price = usd_per_hour if usd_per_hour is not None else (plan.offer.usd_per_hour if plan else None)
    quiet = plan.reference_seconds if plan is not None else None
    case = make_case(run, given={"usd_per_hour": price, "witness_quiet_seconds": quiet})
    # Take the device from the launch record, the plan or the log.
    key = launch.device_key if launch is not None else None
    name = str(run.facts.get("gpu") or "unknown")
    key = key or (plan.workload.gpu if plan is not None else spec.key if (spec := find_gpu(name)) else name)
    scored = score_run(case, plan, run_id=run_id, device_key=key, usd_per_hour=usd_per_hour, energy_kwh=run_kwh(run))
    return Reviewed(path=path, case=case, scored=scored)


def _too_short(reviewed: Reviewed) -> str | None:
    """Says that a run has too few timed steps to use its step time; None if it has enough."""
    scored, times = reviewed.scored, run_metrics.step_times(reviewed.case)
    timed = round(len(times.steady_seconds) * times.stride) if times is not None else 0
    planned = scored.steps_planned or 0
    needed = round(min(_ENOUGH_STEPS, max(_FEWEST_STEPS, _LEAST_SHARE * planned)))
    if timed >= needed:
        return None
    of = f" of {planned}" if planned else ""
    return f"{timed} timed steps after the warm-up{of} are too few for its step time, {needed} are needed"


def learn_own(store: Store, reviewed: Reviewed, created: str) -> str | None:
    """Add a run's step time to the measurements of its device; returns the reason if it is not added."""
    scored, run = reviewed.scored, reviewed.case.run
    if run.format != own_log.NAME:
        return "profiles are of our own trainer's steps"
    if run.facts.get("witness_seconds") and scored.reference_seconds is None:
        return "other work came and went on the machine, and its step time says more of that"
    workload, step_seconds = workload_of(run, scored.device_key), run_metrics.step_seconds(reviewed.case)
    if workload is None or step_seconds is None:
        return "its log does not say what was trained, or how fast"
    kwh, seconds = scored.actual("energy_kwh"), scored.actual("wall_clock_seconds")
    step = MeasuredStep(
        run_id=scored.run_id,
        created=created,
        workload=workload,
        step_seconds=step_seconds,
        reference_seconds=scored.reference_seconds,
        steps=scored.steps or 0,
        # mean power of one device over a completed run
        watts=kwh * JOULES_PER_KWH / seconds / workload.gpus if kwh and seconds else None,
    )
    store.add_observation(step)
    return None


def workload_of(run: RunTable, device_key: str) -> Workload | None:
    """Returns the workload of a run of this program, whose header has everything except the GPU's key."""
    workload = infer(run, {"gpu": "cpu"}).workload
    return replace(workload, gpu=device_key) if workload is not None else None


def to_document(reviewed: Reviewed) -> dict[str, object]:
    """Returns the JSON document of one run: its settings, each quantity by name, and the causes of the gap."""
    scored, judged = reviewed.scored, ("predicted", "actual", "error", "inside_interval")
    names = ("run_id", "device_key", "outcome", "reason", "complete", "attempts", "steps", "steps_planned")
    rest = ("departures", "reference_seconds", "drift_factor", "gap_seconds", "causes")
    return {
        **{name: getattr(scored, name) for name in names},
        "run_dir": reviewed.path,
        **{score.quantity: {name: getattr(score, name) for name in judged} for score in scored.scores},
        **{name: getattr(scored, name) for name in rest},
        **{name: getattr(reviewed, name) for name in ("recorded", "not_recorded", "not_learnt")},
    }
