"""Reads a folder as one run: its log, with the configuration, telemetry and checkpoints beside it.

Known layouts come first (our run folder, MLflow, W&B). Otherwise the file with the most loss rows is the log, and the
other files are sorted by kind. Only logs, configurations and telemetry are opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from advisor.errors import AdvisorError
from advisor.readers import gpu_csv, mlflow_files, own_log, smi_tables, telemetry_file, tfevents, wandb_folder
from advisor.readers.chunks import sample
from advisor.readers.config_names import read_config
from advisor.readers.run_table import Event, RunTable
from advisor.readers.status import by_other_log, by_plan
from trainer.schema import CONFIG, ConfigError, load_config

MOST_FILES = 5000
DEEPEST = 5
MOST_LOGS = 24  # candidates that are read completely, the likeliest first
_PASSED_BY = {"__pycache__", "node_modules", "site-packages", ".git", "media"}
_CONFIG_NAMES = (
    *("run.yaml", "config.yaml", "config.yml", "config.json", "config.toml", "hparams.yaml", "hparams.json"),
    *("training_args.json", "args.json", "args.yaml", "params.json", "settings.json", "hyperparameters.json"),
    *("train_config.json", "train_config.yaml", "train_config.toml", "training_config.json", "meta.json"),
    *("model_args.json", "model_config.json", "adapter_config.json", "ds_config.json"),
)
_NO_LOGS = frozenset(
    (
        *(".py", ".md", ".markdown", ".rst", ".html", ".png", ".jpg", ".svg", ".pdf", ".ipynb", ".sh", ".yaml", ".yml"),
        *(".toml", ".parquet", ".npy", ".npz", ".pkl", ".so", ".cfg", ".ini", ".model", ".lock", ".patch"),
        *(".zip", ".tar", ".tgz"),
    )
)
_DATA_NAMES = frozenset(
    (
        *("tokenizer.json", "tokenizer_config.json", "vocab.json", "special_tokens_map.json", "merges.txt"),
        *("generation_config.json", "model.safetensors.index.json", "requirements.txt", "added_tokens.json"),
        *("run.json", "state.json"),
    )
)


class ChosenFile(Protocol):
    """A reader that knows a file."""

    def read(self, path: Path) -> RunTable: ...


Best = Callable[[Path], tuple[float, ChosenFile] | None]  # the reader that knows a file best and its score, or None


@dataclass(kw_only=True)
class Contents:
    """The files of a folder, by kind."""

    logs: list[Path] = field(default_factory=list)
    configs: list[Path] = field(default_factory=list)
    telemetry: list[Path] = field(default_factory=list)
    weights: list[Path] = field(default_factory=list)


def read_folder(folder: Path, best: Best) -> RunTable:
    """Read a folder as one run. `best` finds the reader of a file. Raises AdvisorError if the folder holds no log."""
    if (folder / "log.jsonl").is_file() and own_log.score(sample(folder / "log.jsonl"), folder / "log.jsonl"):
        return own_run(folder)
    contents = _sorted(folder)
    if mlflow_files.is_run_folder(folder):
        return _with_rest(mlflow_files.read_folder(folder), folder, contents)
    if (files := wandb_folder.files_of(folder)) is not None:
        return _with_rest(_wandb(folder, files, contents, best), folder, contents)
    read = _event_files(contents)
    for path in _likeliest(contents.logs, best):
        table = _read(path, best)
        if table is not None and table.telemetry is not None and not len(table):
            contents.telemetry.append(path)
        elif table is not None:
            read.append((path, table))
    if not read:
        hint = "give the log itself, or the folder in which the run wrote it"
        raise AdvisorError(f"{folder} holds no training log that is recognised", hint)
    # the log is the file that says most: rows first, then any file but event files, then events
    path, table = max(read, key=lambda one: (one[1].rows, one[1].format != "tfevents", len(one[1].events)))
    others = [other for at, other in read if at != path]
    for other in others:
        table = by_other_log(table, other)
    notes = [f"the log is {path.relative_to(folder)}"]
    for other in (other for other in others[:5] if other.rows):
        source = Path(other.source)
        name = source.relative_to(folder).as_posix() if source.is_relative_to(folder) else source.name
        notes.append(f"also there: {name} ({other.format}, {other.rows} rows)")
    contents.configs = [config for config in contents.configs if config != path]
    return _with_rest(dataclasses.replace(table, notes=(*table.notes, *notes)), folder, contents)


def own_run(folder: Path) -> RunTable:
    """Return the run of our own run folder, whose log says everything but telemetry."""
    table = dataclasses.replace(own_log.read(folder / "log.jsonl"), source=str(folder))
    # The log begins with the limit of the start; the configuration has the one of now.
    with contextlib.suppress(OSError, ConfigError):
        limit = load_config(folder / CONFIG).stop.max_seconds
        table = dataclasses.replace(table, facts=table.facts | {"limit_seconds": limit})
    if not (paths := telemetry_file.files_of(folder)):
        return table
    try:
        telemetry = telemetry_file.of_files(paths)
        host = {} if telemetry else telemetry_file.of_files(paths, host=True)
    except AdvisorError as error:
        return dataclasses.replace(table, notes=(*table.notes, f"telemetry left out: {error.message}"))
    return dataclasses.replace(table, telemetry=telemetry or None, host_telemetry=host or None)


def _wandb(folder: Path, files: Path, contents: Contents, best: Best) -> RunTable:
    """Read a W&B run from the history, binary file, console output or summary with most rows; add the others."""
    binary = sorted((files.parent if files.name == "files" else folder).glob("*.wandb"))[:1]
    names = (wandb_folder.HISTORY, wandb_folder.OUTPUT, wandb_folder.SUMMARY)
    history, *printed = (files / name for name in names)
    paths = [path for path in (history, *binary, *printed) if path.is_file() and path.stat().st_size]
    tables = [table for path in paths if (table := _read(path, best)) is not None]
    if not tables:
        raise AdvisorError(f"{folder} is a W&B run without history, output and summary", "give what it printed")
    table = max(tables, key=lambda candidate: candidate.rows)
    readings = next((other.telemetry for other in tables if other.telemetry is not None), None)
    table = dataclasses.replace(table, telemetry=table.telemetry if readings is None else readings)
    for other in (other for other in tables if other.source != table.source):
        declared = {name: value for name, value in other.facts.items() if name != "loss_unit"}
        table = by_other_log(with_facts(table, declared, Path(other.source).name), other)
    if (metadata := files / wandb_folder.METADATA).is_file():
        table = with_facts(table, wandb_folder.metadata_facts(metadata), metadata.name)
    contents.configs = [path for path in contents.configs if path.name != wandb_folder.METADATA]
    contents.telemetry += [path for path in (files / wandb_folder.EVENTS,) if path.is_file()]
    return table


def _event_files(contents: Contents) -> list[tuple[Path, RunTable]]:
    """Return the event files of each folder as one run, because every restart begins a new file."""
    paths = [path for path in contents.logs if ".tfevents." in path.name]
    contents.logs = [path for path in contents.logs if ".tfevents." not in path.name]
    out = []
    for parent in sorted({path.parent for path in paths}):
        mine = sorted(path for path in paths if path.parent == parent)
        with contextlib.suppress(AdvisorError):
            out.append((mine[0], tfevents.read_files(mine, str(parent))))
    return out


def _likeliest(paths: list[Path], best: Best) -> list[Path]:
    """Return the files most likely to be logs, by score and then size. Of trainer states only the newest is kept."""
    states = [path for path in paths if path.name == "trainer_state.json"]
    newest = max(states, key=lambda path: (path.stat().st_size, -len(path.parts)), default=None)
    scored = []
    for path in (path for path in paths if path not in states or path == newest):
        with contextlib.suppress(AdvisorError):
            if (chosen := best(path)) is not None:
                scored.append((-chosen[0], -path.stat().st_size, str(path), path))
    return [path for *_, path in sorted(scored)[:MOST_LOGS]]


def _read(path: Path, best: Best) -> RunTable | None:
    """Return the table in a file; None if no reader knows it or it is damaged, since other files may do."""
    try:
        chosen = best(path)
        return chosen[1].read(path) if chosen is not None else None
    except AdvisorError:
        return None


def _with_rest(table: RunTable, folder: Path, contents: Contents) -> RunTable:
    """Add the folder's configurations, telemetry and checkpoints to its log."""
    left_out = []
    for path in contents.configs:
        try:
            table = with_facts(table, read_config(path), path.name)
        except AdvisorError as error:
            left_out.append(f"left out: {error.message}")
    # of a checkpoint that the log itself reports nothing is added
    known = {event.step for event in table.events if event.kind == "checkpoint" and event.step is not None}
    saved = [one for one in checkpoint_events(folder, contents.weights) if one.step is None or one.step not in known]
    table = dataclasses.replace(table, events=(*table.events, *saved))
    for path in sorted(contents.telemetry, key=lambda path: -path.stat().st_size):
        try:
            table = dataclasses.replace(table, telemetry=telemetry_file.read_telemetry(path))
            break
        except AdvisorError as error:
            left_out.append(f"left out: {error.message}")
    return dataclasses.replace(table, source=str(folder), notes=(*table.notes, *left_out))


def _sorted(folder: Path) -> Contents:
    """Return the folder's files by kind, with configurations nearest to the top first."""
    contents = Contents()
    for path in _files(folder):
        name, suffix = path.name.lower(), path.suffix.lower()
        if is_weights(path):
            contents.weights.append(path)
        elif name in _CONFIG_NAMES:
            contents.configs.append(path)
        elif name == telemetry_file.NAME or (suffix in (".csv", ".log", ".txt") and _telemetry_score(path) > 0.5):
            contents.telemetry.append(path)
        elif is_log_path(path) and path.stat().st_size:
            contents.logs.append(path)
    contents.configs.sort(key=lambda path: (len(path.parts), _CONFIG_NAMES.index(path.name.lower())))
    names = [path.name for path in contents.configs]  # each checkpoint has a copy; the one nearest to the top counts
    contents.configs = [path for at, path in enumerate(contents.configs) if path.name not in names[:at]]
    return contents


def is_log_path(path: Path) -> bool:
    """Return whether a file's name may be a log's: not code, weights, pictures, configurations or data."""
    name = path.name.lower()
    return path.suffix.lower() not in _NO_LOGS and name not in _DATA_NAMES and name not in _CONFIG_NAMES


def _telemetry_score(path: Path) -> float:
    try:
        head = sample(path, head_bytes=1 << 16)
    except AdvisorError:
        return 0.0
    return max(module.score(head, path) for module in (gpu_csv, smi_tables))


def _files(folder: Path) -> Iterator[Path]:
    """Yield ordinary files, sorted, without links and hidden folders. Raises AdvisorError if they exceed the limit."""
    count = 0
    for root, folders, names in os.walk(folder, followlinks=False):
        depth = len(Path(root).relative_to(folder).parts)
        folders[:] = (
            sorted(n for n in folders if n not in _PASSED_BY and not n.startswith(".")) if depth < DEEPEST else []
        )
        for name in sorted(names):
            path = Path(root, name)
            if name.startswith(".") or path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > MOST_FILES:
                raise AdvisorError(
                    f"{folder} holds more than {MOST_FILES} files: too many for one run",
                    "give the run's own folder, or its log",
                )
            yield path


# What is beside a log


def with_facts(table: RunTable, facts: Mapping[str, Any], source: str) -> RunTable:
    """Add facts that the table does not have. Differences are noted, and the log's own value wins."""
    differing = [
        f"{source} says {name} {_short(value)}, the log says {_short(table.facts[name])}: the log's is taken"
        for name, value in facts.items()
        if name in table.facts and _differ(value, table.facts[name])
    ]
    joined = by_plan({**facts, **table.facts}, table)
    return dataclasses.replace(joined, notes=(*table.notes, *differing))


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) > 1e-6 * max(abs(one), abs(other))
    return isinstance(one, str) and isinstance(other, str) and one.lower() != other.lower()


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)[:40]


# Checkpoints on disk become events with path, step (from the name), size and time. They are never opened.

_SUFFIXES = (".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".distcp", ".msgpack", ".npz", ".keras", ".h5")
_LEAST_BYTES = 1000  # even a toy's optimizer states are larger; `training_args.bin` and indices are not weights
_NOT_WEIGHTS = ("training_args.bin", "scheduler.pt", "rng_state", "tokens.bin", "train.bin", "val.bin", "vocab.bin")
# a folder or file named after a step: checkpoint-500, step-00000100, iter_0001000, global_step1000, ckpt_2000.pt,
# epoch=3-step=1200.ckpt, Composer's ep0-ba4800; but not parts of one model, such as model-00001-of-00002
_STEP = re.compile(r"(?:global_step|step|iteration|iter|(?<![a-z])ba)[-_=]?0*(\d+)")
_NUMBERED = re.compile(r"(?:checkpoint|ckpt|model|state|epoch|ep)[-_=]?0*(\d+)(?!\d*-of-)")


def is_weights(path: Path) -> bool:
    """Return whether a file's name is one of saved weights or optimizer states."""
    return path.suffix.lower() in _SUFFIXES and not path.name.startswith(_NOT_WEIGHTS)


def checkpoint_events(folder: Path, files: Iterable[Path]) -> list[Event]:
    """Return one event per checkpoint (a folder named after a step, or a single file), in the order of their steps.

    `numbers` has bytes, unix_seconds (the last change) and, if the name states it, the step.
    """
    groups: dict[Path, list[Path]] = {}
    for path in files:
        if is_weights(path) and path.stat().st_size >= _LEAST_BYTES:
            # a checkpoint is the nearest folder named after a step, else the file itself
            inside = path.relative_to(folder).parents
            named = next((folder / parent for parent in inside if step_of(parent.name) is not None), path)
            groups.setdefault(named, []).append(path)
    events = []
    for unit, paths in groups.items():
        stats, step = [path.stat() for path in paths], step_of(unit.name)
        numbers = {"bytes": float(sum(stat.st_size for stat in stats))}
        numbers |= {"unix_seconds": max(stat.st_mtime for stat in stats)} | ({} if step is None else {"step": step})
        events.append(Event(kind="checkpoint", text=str(unit.relative_to(folder)), step=step, numbers=numbers))
    return sorted(events, key=lambda event: (event.step is None, event.step or 0.0, event.text))


def step_of(name: str) -> float | None:
    """Return the step in a checkpoint's name; None if it has none."""
    match = _STEP.search(name.lower()) or _NUMBERED.search(name.lower())
    return float(match[1]) if match and len(match[1]) < 12 else None
