"""Reads and writes a run folder: the names of its files, its launch record, its configuration, its owner's notes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.run_records import LaunchRecord, RunRow
from advisor.store.disk import bad_fields, disk_errors, dump_yaml, read_json, read_record, read_yaml, write_atomic
from advisor.store.plan_files import load_plan
from trainer.schema import ConfigError, RunConfig, config_from_dict, record_from_dict, to_dict

LOG, CONFIG, PLAN, LAUNCH, STDOUT = "log.jsonl", "run.yaml", "plan.yaml", "run.json", "stdout.log"
CHECKPOINTS = "checkpoints"
SIGHTING = "engine.json"  # in the folder of a run that was started on another machine
ABOUT = "about.yaml"
LONGEST_NAME, LONGEST_NOTE, MOST_TAGS = 80, 10_000, 20
_TAG = re.compile(r"[\w][\w.+-]{0,29}")


def is_run_folder(path: Path) -> bool:
    """Tell whether a folder contains a run, even a run that has hardly begun."""
    return path.is_dir() and any((path / name).exists() for name in (CONFIG, LOG, LAUNCH))


def newest_checkpoint(run_dir: Path) -> int:
    """Return the step of the newest finished checkpoint in a run folder, damaged or not; 0 if there is none."""
    names = (path.name for path in (run_dir / "checkpoints").glob("step-*"))
    return max((int(match[1]) for name in names if (match := re.fullmatch(r"step-(\d{8,})", name))), default=0)


def read_run_config(run_dir: Path) -> RunConfig:
    """Read the trainer's configuration from a run folder, or from any run.yaml. Raises AdvisorError on failure."""
    path = run_dir / CONFIG if run_dir.is_dir() else run_dir
    try:
        return config_from_dict(read_yaml(path, "run configuration"))
    except ConfigError as error:
        raise bad_fields("run configuration", path, error, "fix these settings") from error


def write_launch(run_dir: Path, record: LaunchRecord) -> None:
    """Write `run.json`, in full or not at all."""
    write_atomic(run_dir / LAUNCH, json.dumps(to_dict(record), indent=1) + "\n")


def read_launch(run_dir: Path) -> LaunchRecord | None:
    """Read `run.json`. Returns None if the trainer was started without the advisor. Raises AdvisorError if damaged."""
    path = run_dir / LAUNCH
    if not path.exists():
        return None
    # Schema 1 named a launcher, which found a run by its folder, and no trainer. Schema 2 said `arriving`.
    launch = read_json(path, "launch record")
    schema = launch.get("schema", 1)
    if schema == 1:
        engine = launch.pop("launcher", "local")
        raw = launch | {"schema": 3, "handle": f"{engine}://{run_dir.resolve()}", "trainer": "own"}
    else:
        if isinstance(schema, int) and schema > LaunchRecord.schema:
            newer = f"the launch record of {run_dir} was written by a newer version (schema {schema})"
            raise AdvisorError(newer, "upgrade training-advisor")
        raw = {name: value for name, value in launch.items() if name != "arriving"} | {"schema": 3}
    try:
        return record_from_dict(LaunchRecord, raw)
    except ConfigError as error:
        raise bad_fields("launch record", path, error, f"remove it to continue without it: rm {path}") from error


def read_run_plan(run_dir: Path) -> Plan | None:
    """Return the plan of a run folder. Returns None if the run was launched from a bare configuration."""
    path = run_dir / PLAN
    return load_plan(path) if path.exists() else None


def run_id(run_dir: Path) -> str:
    """Return a run's permanent id, equal in copies of its folder: from `run.json`, else folder name and start."""
    launch = read_launch(run_dir)
    return launch.id if launch is not None else f"{run_dir.resolve().name}-{int(_started(run_dir))}"


def run_row(run_dir: Path) -> RunRow:
    """Return the line for the index of runs, read from the files of a run folder."""
    launch = read_launch(run_dir)
    if launch is None:
        created = datetime.fromtimestamp(_started(run_dir), UTC).isoformat(timespec="seconds")
        return RunRow(id=run_id(run_dir), name=run_dir.name, path=str(run_dir.resolve()), created=created)
    return RunRow(id=launch.id, name=launch.name, path=str(run_dir.resolve()), created=launch.launched_at,
                  plan_id=launch.plan_id, device_key=launch.device_key)  # fmt: skip


def _started(run_dir: Path) -> float:
    """Return the start of the run in Unix seconds: the time of the first log record, or else of the folder."""
    with disk_errors("read the run folder", run_dir):
        fallback = os.stat(run_dir).st_mtime
        if not (run_dir / LOG).exists():
            return fallback
        with open(run_dir / LOG, encoding="utf-8", errors="replace") as file:
            first = re.search(r'"time":\s*([0-9.]+)', file.readline(1 << 20))
    return float(first.group(1)) if first else fallback


@dataclass(frozen=True, kw_only=True)
class About:
    """The name, note and tags that the owner gave to a run. Fields are empty if there are none."""

    name: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()


def read_about(run_dir: Path) -> About:
    """Read the name, note and tags of a run. Raises AdvisorError for a damaged file."""
    return read_record(About, run_dir / ABOUT, "note of a run") or About()


def write_about(run_dir: Path, about: About) -> None:
    """Write name, note and tags, in full or not at all. Raises AdvisorError if one of them is invalid."""
    write_atomic(run_dir / ABOUT, dump_yaml(to_dict(checked(about))))


def checked(about: About) -> About:
    """Return the description without outer blanks and repeated tags. Raises AdvisorError if it is invalid."""
    name, note = about.name.strip(), about.note.strip()
    tags = tuple(dict.fromkeys(tag.strip().lower() for tag in about.tags if tag.strip()))
    if len(name) > LONGEST_NAME or any(not letter.isprintable() for letter in name):
        raise AdvisorError(
            f"a name is one line of at most {LONGEST_NAME} characters", "say more in a note", exit_code=2
        )
    if len(note) > LONGEST_NOTE:
        raise AdvisorError(f"a note has at most {LONGEST_NOTE:,} characters", "keep the rest in a file", exit_code=2)
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise AdvisorError(
                f"{tag[:40]!r} is not a tag", "letters, digits and . + - _, 30 at most: wide-batch", exit_code=2
            )
    if len(tags) > MOST_TAGS:
        raise AdvisorError(f"a run has at most {MOST_TAGS} tags", "drop one: --untag TAG", exit_code=2)
    return About(name=name, note=note, tags=tags)
