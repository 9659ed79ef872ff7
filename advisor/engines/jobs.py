"""Makes the job of a plan's first attempt or of a resumed run: guards, files and record. Each plan runs once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.engines.backend import Job, LocalBackend, engine_of
from advisor.engines.engines import describe
from advisor.engines.guards import GuardLimits, guarded, make_guards, refuse_edited, with_limits_of
from advisor.engines.process import waiting_lock
from advisor.engines.state import RunState, RunStatus, check_not_running, goes_on, this_host
from advisor.errors import AdvisorError
from advisor.offer import Offer
from advisor.records import Plan
from advisor.run_records import Guards, LaunchRecord, Place
from advisor.store import run_folder
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.adopted import AdoptedPlan, dump_adopted_plan, load_adopted_plan
from advisor.store.disk import disk_errors, dump_yaml, write_atomic
from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import PLAN, run_id
from advisor.store.store import Store
from advisor.trainers.adapter import Trainer
from advisor.trainers.adopted import ADOPTED, RECIPE, recipe_of
from advisor.trainers.known import trainer_of
from advisor.trainers.own import OWN
from advisor.units import HOUR, format_usd, write_duration
from trainer.schema import Outcome, RunConfig, dump_config, to_dict

_WAIT_SECONDS = 30.0  # a claim's holder writes a few files and starts a process, which takes less time


def new_job(
    source: Plan | RunConfig,
    folder: Path,
    trainer: Trainer,
    *,
    now: datetime,
    run_id: str,
    limits: GuardLimits,
    place: Place = Place(),  # noqa: B008 - frozen
    commands_first: tuple[str, ...] = (),
) -> Job:
    """Return the first attempt at a plan, or at a bare configuration (one device, no price), in an empty folder.

    Raises AdvisorError if a limit makes no sense or the data are missing.
    """
    plan = source if isinstance(source, Plan) else None
    config = source.config if isinstance(source, Plan) else source
    if plan is not None:
        refuse_edited(plan)
    price = plan.offer.usd_per_hour if plan is not None else config.stop.usd_per_hour
    guards = make_guards(config, with_limits_of(plan, limits), usd_per_hour=price)
    step_seconds = plan.chosen.step_seconds.value if plan is not None else None
    # absolute paths, since the trainer starts in the run folder
    if config.init_from is not None:
        config = replace(config, init_from=str(Path(config.init_from).expanduser().resolve()))
    if config.data.path is not None:
        path = Path(config.data.path).expanduser().resolve()
        if not path.exists():
            raise AdvisorError(f"the data folder {path} does not exist", "advisor data prepare TEXT --out DIR")
        config = replace(config, data=replace(config.data, path=str(path)))
    config = guarded(config, guards, usd_per_hour=price, step_seconds=step_seconds)
    record = LaunchRecord(
        id=run_id,
        name=config.name,
        attempt=1,
        launched_at=now.isoformat(timespec="milliseconds"),
        host=this_host(),
        gpus=plan.workload.gpus if plan is not None else 1,
        usd_per_hour=price,
        guards=guards,
        plan_id=plan.id if plan is not None else None,
        device_key=plan.workload.gpu if plan is not None else None,
        place=place,
        commands_first=commands_first,
        trainer=trainer.name,
    )
    files = _files(trainer, config) | ({PLAN: dump_plan(plan)} if plan else {})
    return Job(folder=folder, trainer=trainer, config=config, plan=plan, files=files, record=record)


def adopted_job(plan: AdoptedPlan, recipe: str, folder: Path, record: LaunchRecord) -> Job:
    """Return an attempt at the run of an adopted command; `recipe` is YAML text, `record` names the attempt."""
    record = replace(record, usd_per_hour=plan.offer.usd_per_hour,
                     guards=Guards(max_usd=plan.max_usd, max_seconds=plan.limit_seconds))  # fmt: skip
    files = {ADOPTED_PLAN: dump_adopted_plan(plan), RECIPE: recipe}
    return Job(folder=folder, trainer=ADOPTED, config=None, plan=plan, files=files, record=record)


def resumed_job(
    run_dir: Path,
    status: RunStatus,
    *,
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - frozen
    usd_per_gpu_hour: float | None = None,
    synthetic: bool = False,
    place: Place | None = None,
    offer: Offer | None = None,
) -> Job:
    """Return the next attempt at a run in this state; each new limit replaces its old one (None keeps it).

    `usd_per_gpu_hour` is the new price (None: the old one). `synthetic` allows random tokens. `place` and `offer` are
    those of another machine that has the run folder too.

    Raises AdvisorError if the run is active, has completed, or has used up its time.
    """
    check_not_running(run_dir, status)
    if status.outcome is Outcome.COMPLETED:
        raise AdvisorError(f"{run_dir} has completed: nothing to resume", f"advisor compare {run_dir}")
    before = run_folder.read_launch(run_dir) or LaunchRecord(  # the trainer was started by hand
        id=run_id(run_dir),
        name=run_folder.read_run_config(run_dir).name,
        attempt=status.attempt or 1,
        launched_at=run_folder.run_row(run_dir).created,
        host=this_host(),
    )
    trainer = trainer_of(before.trainer)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    attempt = before.attempt + (status.state is not RunState.NEVER_STARTED)
    record = replace(before, attempt=attempt, launched_at=now, host=this_host(), stop_asked_at=None, cards=(),
                     place=place or before.place)  # fmt: skip
    spent = trainer.spent(run_dir)
    if trainer is ADOPTED:
        command = load_adopted_plan(run_dir / ADOPTED_PLAN)
        if limits.max_usd is not None and not command.offer.usd_per_hour:
            raise AdvisorError("a limit in dollars needs a price, and the plan has none", "--deadline", exit_code=2)
        max_usd = command.max_usd if limits.max_usd is None else limits.max_usd
        max_seconds = command.max_seconds if limits.max_hours is None else limits.max_hours * HOUR
        command = replace(command, max_usd=max_usd, max_seconds=max_seconds)
        used_usd = spent.usd(command.offer.usd_per_hour or 0.0)
        _refuse_without_room(run_dir, (spent.seconds, used_usd), (0.0, 0.0), (max_seconds, max_usd))
        return adopted_job(command, dump_yaml(to_dict(recipe_of(run_dir))), run_dir, record)
    plan = run_folder.read_run_plan(run_dir)
    gpus = plan.offer.gpus if plan is not None else 1
    price = before.usd_per_hour if usd_per_gpu_hour is None else usd_per_gpu_hour * gpus
    if plan is not None and offer is not None:
        plan, price = replace(plan, chosen=replace(plan.chosen, offer=offer)), offer.usd_per_hour
    config, guards = _with_new_limits(run_dir, limits, price)
    if synthetic and config.data.path is not None:
        raise AdvisorError(f"--synthetic: this run trains on {config.data.path}", "leave --synthetic out", exit_code=2)
    config = replace(config, data=replace(config.data, synthetic=True)) if synthetic else config
    needed, used = spent.needed_seconds or 0.0, (spent.seconds, spent.usd(before.usd_per_hour or 0.0))
    limited = config.stop.max_seconds, config.stop.max_usd
    _refuse_without_room(run_dir, used, (needed, (price or 0.0) * needed / HOUR), limited)
    record = replace(record, usd_per_hour=price, guards=guards)
    return Job(folder=run_dir, trainer=trainer, config=config, plan=plan,
               files=_files(trainer, config), record=record)  # fmt: skip


def _with_new_limits(run_dir: Path, limits: GuardLimits, usd_per_hour: float | None) -> tuple[RunConfig, Guards]:
    """Return the configuration of a run with each new limit in place of its old one, and these limits."""
    # Leave out what new limits replace: `make_guards` keeps the tighter of two times, and all rules on the loss.
    config = run_folder.read_run_config(run_dir)
    stop = config.stop
    stop = replace(stop, max_seconds=stop.max_seconds if limits.max_hours is None else None,
                   loss=stop.loss if limits.loss is None else ())  # fmt: skip
    config = replace(config, stop=stop)
    guards = make_guards(config, limits, usd_per_hour=usd_per_hour)
    return guarded(config, guards, usd_per_hour=usd_per_hour), guards


def limits_may_change(record: LaunchRecord | None) -> bool:
    """Tell whether a run can get other limits while it continues: one of our own trainer on this machine."""
    return record is not None and record.trainer == OWN.name and engine_of(record.handle) == LocalBackend.engine


def change_limits(run_dir: Path, limits: GuardLimits) -> LaunchRecord:
    """Give an active run new limits on time and dollars; its trainer reads `run.yaml` again when that is replaced.

    Raises AdvisorError if the limits are used up, or if they are fixed until the run is resumed.
    """
    record = run_folder.read_launch(run_dir)
    if record is None or not limits_may_change(record) or limits.loss is not None:
        fixed = "stops on the loss" if limits.loss is not None else "limits where it runs"
        hint = f"stop it, then resume it with others: advisor stop {run_dir}"
        raise AdvisorError(f"{run_dir} is running already, and its {fixed} cannot be changed until it ends", hint)
    config, guards = _with_new_limits(run_dir, limits, record.usd_per_hour)
    spent = OWN.booked(run_dir)
    used = spent.seconds, spent.usd(record.usd_per_hour or 0.0)
    _refuse_without_room(run_dir, used, (0.0, 0.0), (config.stop.max_seconds, config.stop.max_usd))
    write_atomic(run_dir / run_folder.CONFIG, dump_config(config))
    run_folder.write_launch(run_dir, record := replace(record, guards=guards))
    return record


def steps_again(run_dir: Path, logged_step: int | None) -> str | None:
    """Say how many completed steps a resumed run will repeat. Returns None if there are none."""
    step = run_folder.newest_checkpoint(run_dir)
    if logged_step is None or logged_step <= step:
        return None
    if step == 0:
        return f"{run_dir} has no checkpoint: the {logged_step} steps that were done start again"
    return f"the newest checkpoint is of step {step}: the {logged_step - step} steps after it are done again"


def refuse_a_second_run(folder: Path, trainer: Trainer, store: Store) -> None:
    """Raise AdvisorError if a run has already started in a folder."""
    if not run_folder.is_run_folder(folder):
        return
    status = describe(folder, store)
    check_not_running(folder, status)
    if status.state is RunState.NEVER_STARTED and not (folder / trainer.log_name).exists():
        return  # a launch that failed before it began, or a run.yaml written by hand
    hint = f"continue it: advisor resume {folder}; or leave out --run-dir for a new folder"
    raise AdvisorError(f"{folder} already contains a run ({status.words})", hint)


def _files(trainer: Trainer, config: RunConfig) -> dict[str, str]:
    """Return the trainer's configuration file, and the configuration as planned, which resume and watch read."""
    return {run_folder.CONFIG: dump_config(config), **trainer.files(config)}


def _refuse_without_room(
    run_dir: Path,
    used: tuple[float, float],
    needed: tuple[float, float],
    most: tuple[float | None, float | None],
) -> None:
    """Raise AdvisorError if a limit leaves a resumed run no room for a step, because all attempts count.

    Each pair has seconds and dollars.
    """
    shown: tuple[Callable[[float], str], ...] = ("{:.0f} s".format, format_usd)
    options: tuple[Callable[[float], str], ...] = (
        lambda seconds: f"--deadline {write_duration(math.ceil(seconds))}",
        "--budget {:.3g}".format,
    )
    for so_far, step, limit, show, option in zip(used, needed, most, shown, options, strict=True):
        if limit is not None and so_far + step >= limit:
            more = f", and the next step needs {show(step)}" if so_far < limit else ""
            message = f"{run_dir} has used {show(so_far)} of the {show(limit)} it was given{more}"
            enough = option(max(2 * limit, so_far + 2 * step))
            raise AdvisorError(message, f"give it more: advisor resume {run_dir} {enough}")


@contextlib.contextmanager
def claim(store: Store, plan_id: str) -> Iterator[None]:
    """Hold the claim on a plan, waiting for its holder; the system frees the claim of a process that dies.

    Raises AdvisorError if a run of the plan is active, or if the claim is not free within half a minute.
    """
    path = store.claim_path(plan_id)
    with disk_errors("claim the plan with", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    message = f"another command has been starting plan {plan_id} for half a minute"
    with waiting_lock(path, _WAIT_SECONDS, AdvisorError(message, "see whether it runs: advisor runs")):
        refuse_a_running_plan(store, plan_id)
        yield


def refuse_a_running_plan(store: Store, plan_id: str) -> None:
    """Raise AdvisorError if a run of this plan is active."""
    if (running := running_with(store, plan_id)) is not None:
        message = f"this plan is running already: {running.name}, in {running}"
        again = "start a second run: advisor launch PLAN.yaml --again"
        raise AdvisorError(message, f"advisor watch {running}, or {again}")


def running_with(store: Store, plan_id: str) -> Path | None:
    """Return the folder of this plan's active run, or None if there is none."""
    for row in store.runs():
        folder = Path(row.path)
        if row.plan_id == plan_id and run_folder.is_run_folder(folder) and goes_on(describe(folder, store).state):
            return folder
    return None
