"""Imports a run from another machine, so that it is listed and scored like any other."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.run_records import LaunchRecord
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LAUNCH,
    LOG,
    PLAN,
    STDOUT,
    is_run_folder,
    read_launch,
    run_row,
    write_launch,
)
from advisor.store.store import Store
from advisor.workflows.compare import Reviewed, review
from trainer.runlog import RunLogError, load_run_log
from trainer.schema import ConfigError, RunConfig, config_from_dict, dump_config

_TELEMETRY = "telemetry"  # `telemetry.parquet`, or parts in a folder


def bring_in(store: Store, path: Path, *, plan: Path | None = None, checkpoints: bool = False) -> Reviewed:
    """Copy a run folder into the store's runs, and score it against its plan.

    The plan is in the folder, beside it as in an export, or at `plan`. Checkpoints are copied only if asked for. Raises
    AdvisorError if it is not a run of our trainer or was imported before.
    """
    source = _run_folder_in(path)
    try:
        header = load_run_log(source / LOG).header
    except (RunLogError, OSError) as error:
        raise AdvisorError(f"the log is damaged: {error}", f"fix or remove that line of {source / LOG}") from error
    if header is None:
        raise AdvisorError(f"{source / LOG} has no header: the run ended before it began", "see what it printed")
    promised = load_plan(plan) if plan is not None else _plan_of(source)
    record = read_launch(source) or _record(header, _config(source, header), promised)
    run = record.id
    known = next((row for row in store.runs() if row.id == run), None)
    if known is not None:
        raise AdvisorError(f"{run} is here already: {known.path}", f"advisor compare {known.path}")
    folder = store.new_run_folder(record.name, datetime.fromisoformat(record.launched_at))
    _copy(source, folder, checkpoints=checkpoints)
    if promised is not None:
        write_atomic(folder / PLAN, dump_plan(promised))
    if not (folder / CONFIG).exists():
        write_atomic(folder / CONFIG, dump_config(_config(source, header)))
    write_launch(folder, record)
    store.register_run(run_row(folder))
    return review(store, str(folder), record=None)


def _run_folder_in(given: Path) -> Path:
    """Returns the folder with the log: the given folder, or the run folder inside a given export."""
    for folder in (given, given / "run"):
        if (folder / LOG).is_file():
            return folder
    if given.is_dir() and is_run_folder(given):
        raise AdvisorError(f"{given} has no {LOG}: the run never started", "bring it in once it has trained")
    hint = f"of another trainer's log: advisor compare {given} --plan plan.yaml"
    raise AdvisorError(f"{given} is not a run folder of this trainer: it has no {LOG}", hint)


def _config(source: Path, header: dict[str, Any]) -> RunConfig:
    """Returns the configuration in the log, because the files beside the log may belong to a later attempt."""
    try:
        return config_from_dict(header["config"])
    except (ConfigError, KeyError) as error:
        raise AdvisorError(f"the header of {source / LOG} has another version: {error}", "upgrade") from error


def _plan_of(source: Path) -> Plan | None:
    return next((load_plan(folder / PLAN) for folder in (source, source.parent) if (folder / PLAN).is_file()), None)


def _record(header: dict[str, Any], config: RunConfig, plan: Plan | None) -> LaunchRecord:
    """Returns a launch record for an imported run, made from its log and its plan."""
    began = datetime.fromtimestamp(header["time"], UTC)
    return LaunchRecord(
        id=f"{config.name}-{began:%Y%m%d-%H%M%S}",
        name=config.name,
        attempt=header.get("attempt") or 1,
        launched_at=began.isoformat(timespec="milliseconds"),
        host=header.get("host") or "unknown",
        gpus=header.get("world_size") or 1,
        usd_per_hour=plan.offer.usd_per_hour if plan is not None else None,
        plan_id=plan.id if plan is not None else None,
        device_key=plan.workload.gpu if plan is not None else None,
    )


def _copy(source: Path, folder: Path, *, checkpoints: bool) -> None:
    """Copies the files of a run folder. Links are left out because they could point anywhere."""

    def links(at: str, names: list[str]) -> list[str]:
        return [name for name in names if (Path(at) / name).is_symlink()]

    with disk_errors("copy the run to", folder):
        for path in sorted(source.iterdir()):
            wanted = path.name in (LOG, STDOUT, CONFIG, PLAN) or path.name.startswith(_TELEMETRY)
            if path.is_symlink() or path.name == LAUNCH or not (wanted or (checkpoints and path.name == CHECKPOINTS)):
                continue
            if path.is_dir():
                shutil.copytree(path, folder / path.name, ignore=links)
            else:
                shutil.copyfile(path, folder / path.name)
