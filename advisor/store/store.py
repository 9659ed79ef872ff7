"""The only reader and writer of calibrations, plans, run folders and the ledger.

Layout under ADVISOR_HOME (`docs/file-formats.md`): `calibrations/*.yaml`, `calibrations/observations/KEY/RUN.json`,
`plans/*.yaml`, `runs/NAME-TIMESTAMP/`, `claims/PLAN.lock`, `ledger.sqlite`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from advisor.errors import AdvisorError, close_matches
from advisor.records import MeasuredStep, Plan
from advisor.run_records import RunRow
from advisor.store import calibration as calibrations
from advisor.store.calibration import Calibration, Quality
from advisor.store.disk import bad_fields, disk_errors, dump_yaml, listed, read_json, read_yaml, write_atomic
from advisor.store.folders import advisor_home, profiles_folder
from advisor.store.ledger import Ledger
from advisor.store.plan_files import dump_plan
from advisor.store.run_folder import CONFIG, LAUNCH, LOG, is_run_folder, read_about, run_row
from trainer.schema import ConfigError, record_from_dict

CALIBRATION_FIELDS = ("schema", "kind", "id", "created", "device")  # every calibration document must have these
_HEAD = (*CALIBRATION_FIELDS, "family", "quality")


@dataclass(frozen=True, kw_only=True)
class CalibrationEntry:
    """One line of the list of calibrations. The document itself is read by `load_calibration`."""

    id: str
    kind: str
    device_key: str
    device_name: str | None
    family: str | None
    created: str  # ISO 8601, UTC
    path: Path
    shipped: bool  # comes with the program and is read-only
    quality: Quality | None = None  # as stored; None if the document has not been judged yet


class Store(Ledger):
    """Everything that the advisor stores in one folder. Nothing is created before the first write."""

    def __init__(self, home: Path, shipped: Path | None = None):
        """`home` is the user's folder. `shipped` has the read-only calibrations that come with the program."""
        self.home = Path(home)
        self.shipped = shipped
        super().__init__(self.home / "ledger.sqlite")

    # Calibrations

    def save_calibration(self, calibration: Calibration) -> Path:
        """Write a calibration, replacing one with the same id."""
        path = self.home / "calibrations" / f"{file_name(calibration.id)}.yaml"
        write_atomic(path, dump_yaml(calibrations.calibration_to_dict(calibration)))
        return path

    def load_calibration(self, id_or_path: str | Path) -> Calibration:
        """Read one calibration by id or by path. Raises AdvisorError with close matches."""
        path = Path(id_or_path)
        if not (path.suffix in (".yaml", ".yml") or path.is_file()):
            path = self._calibration_entry(str(id_or_path)).path
        return load_calibration(path)

    def list_calibrations(self) -> list[CalibrationEntry]:
        """Return all calibrations, the user's and the shipped ones, newest first."""
        entries = [_read_entry(path, shipped=False) for path in sorted((self.home / "calibrations").glob("*.yaml"))]
        if self.shipped is not None:
            entries += [_read_entry(path, shipped=True) for path in sorted(self.shipped.glob("*.yaml"))]
        return sorted(entries, key=lambda entry: (entry.created, entry.id), reverse=True)

    def calibrations_of(self, device_key: str, family: str | None = None) -> list[CalibrationEntry]:
        """Return the calibrations of a device: the user's before the shipped ones, each with the newest first."""
        matching = [
            entry
            for entry in self.list_calibrations()
            if entry.device_key == device_key and (family is None or entry.family == family)
        ]
        return sorted(matching, key=lambda entry: entry.shipped)  # a stable sort keeps the newest first in each

    def newest_calibration(self, device_key: str, family: str | None = None) -> Calibration | None:
        """Return the newest calibration of a device, whatever its verdict. Returns None if there is none."""
        matching = self.calibrations_of(device_key, family)
        return self.load_calibration(matching[0].path) if matching else None

    def delete_calibration(self, calibration_id: str) -> Path:
        """Remove one of the user's calibrations. Raises AdvisorError if it does not exist or came with the program."""
        entry = self._calibration_entry(calibration_id)
        if entry.shipped:
            hint = f"one of your own goes before it: advisor calibrate --gpu {entry.device_key}"
            raise AdvisorError(f"{calibration_id} came with the program and cannot be removed", hint, exit_code=2)
        with disk_errors("remove the calibration", entry.path):
            entry.path.unlink(missing_ok=True)
        return entry.path

    def _calibration_entry(self, calibration_id: str) -> CalibrationEntry:
        entries = self.list_calibrations()
        for entry in sorted(entries, key=lambda entry: entry.shipped):
            if entry.id == calibration_id:
                return entry
        near = close_matches(calibration_id, [entry.id for entry in entries])
        hint = f"did you mean {' or '.join(near)}?" if near else "see them all: advisor calibrate --list"
        raise AdvisorError(f"no calibration is called {calibration_id!r}", hint, exit_code=2)

    # Observations: measurements of a device by finished runs

    def add_observation(self, run: MeasuredStep) -> Path:
        """Store what a finished run measured for its device's profile. Replaces an older observation of the run."""
        path = self._observation_folder(run.workload.gpu) / f"{file_name(run.run_id)}.json"
        write_atomic(path, json.dumps(calibrations.measured_run_to_dict(run), indent=1, allow_nan=False) + "\n")
        return path

    def observations(self, device_key: str) -> list[MeasuredStep]:
        """Return the observations of a device, sorted by run id. Raises AdvisorError that names a damaged file."""
        found = []
        for path in sorted(self._observation_folder(device_key).glob("*.json")):
            try:
                found.append(calibrations.measured_run_from_dict(read_json(path, "observation")))
            except ConfigError as error:
                raise bad_fields("observation", path, error, f"remove it to continue without it: rm {path}") from error
        return found

    def _observation_folder(self, device_key: str) -> Path:
        return self.home / "calibrations" / "observations" / file_name(device_key)

    def _observations_of(self, run_id: str) -> list[Path]:
        return list((self.home / "calibrations" / "observations").glob(f"*/{file_name(run_id)}.json"))

    # Plans

    def save_plan(self, plan: Plan, path: str | Path | None = None) -> Path:
        """Write a plan as YAML, by default to `plans/ID.yaml`. Raises AdvisorError if it cannot be written."""
        path = Path(path) if path is not None else self.home / "plans" / f"{file_name(plan.id)}.yaml"
        write_atomic(path, dump_plan(plan))
        return path

    def claim_path(self, plan_id: str) -> Path:
        """Return the file that is locked while the plan is being started."""
        return self.home / "claims" / f"{file_name(plan_id)}.lock"

    # Runs

    def run_folder(self, name: str, now: datetime) -> Path:
        """Return the folder for a run that starts now, `runs/NAME-TIMESTAMP`. It may exist already."""
        return self.home / "runs" / f"{file_name(name)}-{now.astimezone(UTC):%Y%m%d-%H%M%S}"

    def new_run_folder(self, name: str, now: datetime) -> Path:
        """Create an empty folder for a run: `run_folder`, with a number appended if that folder exists."""
        base = self.run_folder(name, now)
        with disk_errors("make the run folder", base):
            base.parent.mkdir(parents=True, exist_ok=True)
            for attempt in range(1, 1000):
                path = base if attempt == 1 else base.with_name(f"{base.name}-{attempt}")
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
                return path
        message = f"a thousand runs called {base.name} were started this second"
        raise AdvisorError(message, "name another folder: advisor launch PLAN.yaml --run-dir DIR")

    def runs(self) -> list[RunRow]:
        """Return all runs, newest first: registered runs, even without a folder, and runs copied into `runs/`."""
        rows = self.registered_runs()
        rows += [run_row(folder) for folder in self.copied_in(rows)]
        return sorted(rows, key=lambda row: (row.created, row.id), reverse=True)

    def copied_in(self, rows: Sequence[RunRow]) -> list[Path]:
        """Return the run folders in `runs/` that do not belong to these rows, sorted by name."""
        parent = (self.home / "runs").resolve()
        if not parent.is_dir():
            return []
        known = {row.path for row in rows}
        names = sorted(name for name in os.listdir(parent) if not name.startswith("."))  # a dot marks deletion
        others = [parent / name for name in names if f"{parent}/{name}" not in known and is_run_folder(parent / name)]
        # the same folder may have been registered under another path, through a symbolic link
        same_name = {folder.name for folder in others}
        known |= {str(path.resolve()) for row in rows if (path := Path(row.path)).name in same_name}
        return [folder for folder in others if str(folder.resolve()) not in known]

    def find_run(self, text: str | Path) -> Path:
        """Return the run folder that `text` means: a path, a name or id, a unique beginning of either, or `latest`."""
        path = Path(text).expanduser()
        if is_run_folder(path):
            return path.resolve()
        text, rows = str(text), self.runs()
        if text == "latest":
            there = (Path(row.path) for row in rows if is_run_folder(Path(row.path)))
            if (newest := next(there, None)) is None:
                raise AdvisorError("no run was started yet", "start one: advisor launch plan.yaml", exit_code=2)
            return newest
        names = [(row, (row.id, Path(row.path).name, row.name, _name_by_owner(row))) for row in rows]
        exact = ([row for row, words in names if words[column] == text] for column in range(4))
        begun = [row for row, words in names if any(word.startswith(text) for word in words)]
        matched = next(filter(None, exact), begun)
        if len(matched) == 1 and is_run_folder(Path(matched[0].path)):
            return Path(matched[0].path)
        if len(matched) > 1:
            listed_names = ", ".join(Path(row.path).name for row in matched[:5])
            message = f"{text} could be any of {len(matched)} runs: {listed_names}"
            raise AdvisorError(message, "type more of the name", exit_code=2)
        if matched:
            raise AdvisorError(f"the folder of run {text} is gone: {matched[0].path}", "see what is left: advisor runs")
        if path.is_dir():
            message = f"{path} contains no run (no {CONFIG}, {LOG} or {LAUNCH})"
            raise AdvisorError(message, "see all runs: advisor runs", exit_code=2)
        near = close_matches(text, [name for row in rows for name in {row.id, row.name}])
        hint = f"did you mean {' or '.join(near)}?" if near else "see all runs: advisor runs"
        raise AdvisorError(f"no run folder and no run is called {text}", hint, exit_code=2)

    # What runs recorded

    def is_recorded(self, run_id: str) -> bool:
        """Tell whether the ledger or a profile contains anything from a run."""
        return any(row.run_id == run_id for row in self.scores()) or bool(self._observations_of(run_id))

    def take_back(self, run_id: str, now: datetime) -> bool:
        """Remove a run's scores and observation. The run stays listed. Returns False if nothing was recorded."""
        if not self.is_recorded(run_id):
            return False
        with disk_errors("remove the observation of", run_id):
            for path in self._observations_of(run_id):
                path.unlink(missing_ok=True)
        self.withdraw(run_id, now)
        return True


def default_store() -> Store:
    """Return the user's store: ADVISOR_HOME, or else the platform's folder for user data."""
    try:
        home = advisor_home()
    except ModuleNotFoundError as error:
        message = f"ADVISOR_HOME is not set and the package {error.name} is missing"
        raise AdvisorError(message, "export ADVISOR_HOME=~/.training-advisor") from error
    return Store(home, profiles_folder() / "calibrations")


# Calibrations and observations


def load_calibration(path: str | Path) -> Calibration:
    """Read a calibration file. Raises AdvisorError that names the file and every wrong field."""
    try:
        return calibrations.calibration_from_dict(read_yaml(path, "calibration"))
    except ConfigError as error:
        raise _broken_calibration(path, error) from error


def _name_by_owner(row: RunRow) -> str:
    """Return the name that the owner gave to a run. It is empty if there is none or it cannot be read."""
    try:
        return read_about(Path(row.path)).name
    except AdvisorError:
        return ""  # the list of runs reports what is wrong with the file


def _entry(document: dict[str, Any], path: Path, *, shipped: bool) -> CalibrationEntry:
    """Return the line of the list for a document. Raises ValueError that names what is missing."""
    if missing := [name for name in CALIBRATION_FIELDS if name not in document]:
        raise ValueError(f"missing {', '.join(missing)}")
    device = document["device"]
    if not isinstance(device, dict) or not device.get("key"):
        raise ValueError("missing device.key")
    return CalibrationEntry(
        id=str(document["id"]),
        kind=str(document["kind"]),
        device_key=str(device["key"]),
        device_name=device.get("name"),
        family=document.get("family"),
        created=str(document["created"]),
        path=path,
        shipped=shipped,
        quality=record_from_dict(Quality, document["quality"]) if document.get("quality") else None,
    )


def _read_entry(path: Path, *, shipped: bool) -> CalibrationEntry:
    """Return the list's line for a file. It is cached until the file changes, as a search asks for every GPU."""
    with disk_errors("read the calibration", path):
        about = path.stat()
    return _read_head(path, shipped, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=1024)
def _read_head(path: Path, shipped: bool, changed: int, size: int) -> CalibrationEntry:
    """Read only the head of a calibration, because a list does not need the many raw step times below it.

    `changed` and `size` are only there to make the cache distinguish versions of the file.
    """
    with disk_errors("read the calibration", path):
        text = path.read_text(encoding="utf-8")
    body = re.search(rf"^(?!(?:{'|'.join(_HEAD)}):)\w+:", text, flags=re.MULTILINE)
    try:
        return _entry(yaml.safe_load(text[: body.start()] if body else text), path, shipped=shipped)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError):
        document = read_yaml(path, "calibration")  # the fields are in another order or damaged, which this reports
    try:
        return _entry(document, path, shipped=shipped)
    except ValueError as error:
        raise _broken_calibration(path, error) from error


def _broken_calibration(path: str | Path, error: ValueError) -> AdvisorError:
    shown = listed(error.problems) if isinstance(error, ConfigError) else error
    return AdvisorError(f"{path} is not a complete calibration: {shown}", f"measure again, or remove it: rm {path}")


def file_name(name: str) -> str:
    """Return a version of the name that is safe as one path component on every system."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-") or "unnamed"
