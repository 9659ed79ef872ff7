"""Lists the settings that differ between two runs, plans, configurations or calibrations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.records import Plan, Workload
from advisor.store.calibration import Calibration
from advisor.store.disk import read_yaml
from advisor.store.folders import names_apart
from advisor.store.run_folder import CONFIG, is_run_folder, read_launch, read_run_config, read_run_plan
from advisor.store.store import Store
from advisor.trainers.known import workload_of_config
from advisor.workflows.launch import read_source
from trainer.schema import RunConfig, to_dict

_SILENT = {"name", "schema", "telemetry", "stop", "device"}  # settings that change no result
CALIBRATION = "calibration"


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """A setting that differs. None means that the other kind of run has no such setting."""

    setting: str
    one: Any
    other: Any


@dataclass(frozen=True, kw_only=True)
class SettingsDiff:
    """The settings of two runs that differ, with the number of those that are equal."""

    names: tuple[str, str]
    same: int
    differences: tuple[SettingDifference, ...]


def diff(store: Store, one: str, other: str, gpu: str | None = None) -> SettingsDiff:
    """Compare two runs, plans, configurations or calibrations. `gpu` is the GPU of configurations.

    Raises AdvisorError if one cannot be read, or if one is a calibration and the other is not.
    """
    (kind, first), (other_kind, second) = (_read(store, text, gpu) for text in (one, other))
    if (kind == CALIBRATION) != (other_kind == CALIBRATION):
        hint = "two runs, plans or configurations, or two calibrations"
        raise AdvisorError("a calibration and a run have no settings in common", hint, exit_code=2)
    settings = [name for name in {**first, **second} if name.split(".")[0] not in _SILENT]
    differences = tuple(
        SettingDifference(setting=name, one=first.get(name), other=second.get(name))
        for name in settings
        if first.get(name) != second.get(name)
    )
    names = names_apart([one, other]) if one != other else [Path(one).name] * 2
    return SettingsDiff(names=(names[0], names[1]), same=len(settings) - len(differences), differences=differences)


def _read(store: Store, text: str, gpu: str | None) -> tuple[str, dict[str, Any]]:
    """Returns the kind of what a text names, and its settings by their dotted names."""
    path = Path(text)
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        raw = read_yaml(path, "plan, configuration or calibration")
        if "bursts" in raw or raw.get("kind") == CALIBRATION:
            return CALIBRATION, _of_calibration(store.load_calibration(path))
        source = read_source(path)
        if isinstance(source, Plan):
            return "plan", _of_run(source.config, source.workload)
        return "configuration", _of_run(source, workload_of_config(source, gpu))
    if path.is_file():
        message = f"{text} is no plan, configuration or calibration: those are YAML"
        raise AdvisorError(message, f"to compare two logs: advisor analyze {text} OTHER", exit_code=2)
    if not path.exists() and any(entry.id == text for entry in store.list_calibrations()):
        return CALIBRATION, _of_calibration(store.load_calibration(text))
    folder = path if path.is_dir() and is_run_folder(path) else store.find_run(text)
    if not (folder / CONFIG).is_file():
        message = f"{folder} has no {CONFIG}: it is no run of this trainer"
        raise AdvisorError(message, "compare logs: advisor analyze A B", exit_code=2)
    config, launch, plan = read_run_config(folder), read_launch(folder), read_run_plan(folder)
    if plan is not None:  # the plan says what "auto" stands for
        return "run", _of_run(config, plan.workload)
    device = (launch.device_key, launch.gpus) if launch is not None else (None, 1)
    return "run", _of_run(config, workload_of_config(config, *device))


def _of_run(config: RunConfig, work: Workload) -> dict[str, Any]:
    return dict(_leaves(to_dict(config), "")) | {"precision": work.precision, "gpu": work.gpu, "gpus": work.gpus}


def _of_calibration(c: Calibration) -> dict[str, Any]:
    return {
        "device_name": c.device.name or c.device_key,
        "torch": c.environment.torch,
        "python": c.environment.python,
        "quality": c.quality.verdict if c.quality is not None else None,
        "bursts": len(c.bursts),
        **dict(_leaves(to_dict(c.settings), "settings.")),
    }


def _leaves(raw: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
