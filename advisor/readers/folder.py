"""Reads a folder as one run: its log, with the configuration, telemetry and checkpoints beside it.

Known layouts come first (our run folder, MLflow, W&B). Otherwise the file with the most loss rows is the log, and the
other files are sorted by kind. Only logs, configurations and telemetry are opened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from advisor.errors import AdvisorError
from advisor.readers import gpu_csv, mlflow_files, own_log, smi_tables, telemetry_file, tfevents, wandb_folder
from advisor.readers.chunks import sample
from advisor.readers.config_names import read_config
from advisor.readers.line_clock import with_clocks
from advisor.readers.run_table import RunTable
from advisor.readers.sidecars import (
    checkpoint_events,
    is_weights,
    with_events,
    with_facts,
)
from advisor.readers.status import by_other_log

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

_PRINTED = (wandb_folder.OUTPUT, wandb_folder.SUMMARY)


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
    if mlflow_files.is_run_folder(folder):
        return _with_rest(mlflow_files.read_folder(folder), folder, _sorted(folder), set())
    files = wandb_folder.files_of(folder)
    if files is not None:
        return _wandb(folder, files, best)
    return _any(folder, best)


def own_run(folder: Path) -> RunTable:
    """Return the run of our own run folder, whose log says everything but telemetry."""
    table = dataclasses.replace(own_log.read(folder / "log.jsonl"), source=str(folder))
    if not (paths := telemetry_file.files_of(folder)):
        return table
    try:
        telemetry = telemetry_file.of_files(paths)
        host = {} if telemetry else telemetry_file.of_files(paths, host=True)
    except AdvisorError as error:
        return dataclasses.replace(table, notes=(*table.notes, f"telemetry left out: {error.message}"))
    if telemetry:
        return dataclasses.replace(table, telemetry=telemetry)
    return dataclasses.replace(table, host_telemetry=host or None)


def _wandb(folder: Path, files: Path, best: Best) -> RunTable:
    """Read a W&B run from the history, binary file, console output or summary with most rows; add the others."""
    tables = []
    binary = sorted((files.parent if files.name == "files" else folder).glob("*.wandb"))[:1]
    for path in (files / wandb_folder.HISTORY, *binary, *(files / name for name in _PRINTED)):
        if path.is_file() and path.stat().st_size and (table := _read(path, best)) is not None:
            tables.append(table)
    if not tables:
        raise AdvisorError(f"{folder} is a W&B run without history, output and summary", "give what it printed")
    table = max(tables, key=lambda candidate: candidate.rows)
    readings = next((other.telemetry for other in tables if other.telemetry is not None), None)
    if readings is not None:
        table = dataclasses.replace(table, telemetry=readings)
    for other in tables:
        table = (
            table
            if other is table
            else by_other_log(with_facts(table, _declared(other), Path(other.source).name), other)
        )
    if (files / wandb_folder.METADATA).is_file():
        table = with_facts(table, wandb_folder.metadata_facts(files / wandb_folder.METADATA), wandb_folder.METADATA)
    contents = _sorted(folder)
    contents.configs = [path for path in contents.configs if path.name != wandb_folder.METADATA]
    if (files / wandb_folder.EVENTS).is_file():
        contents.telemetry.append(files / wandb_folder.EVENTS)
    return _with_rest(table, folder, contents, set())


def _declared(table: RunTable) -> dict[str, Any]:
    return {name: value for name, value in table.facts.items() if name != "loss_unit"}


def _any(folder: Path, best: Best) -> RunTable:
    contents = _sorted(folder)
    read = _event_files(contents)
    for path in _likeliest(contents.logs, best):
        table = _read(path, best)
        if table is not None and table.telemetry is not None and not len(table):
            contents.telemetry.append(path)
        elif table is not None:
            read.append((path, table))
    if not read:
        raise AdvisorError(
            f"{folder} holds no training log that is recognised",
            "give the log itself, or the folder in which the run wrote it",
        )
    path, table = max(read, key=_told)
    others = [other for at, other in read if at != path]
    for other in others:
        table = by_other_log(table, other)
    notes = [f"the log is {path.relative_to(folder)}"]
    notes += [
        f"also there: {_name(other, folder)} ({other.format}, {other.rows} rows)" for other in others[:5] if other.rows
    ]
    table = dataclasses.replace(table, notes=(*table.notes, *notes))
    return _with_rest(table, folder, contents, {path})


def _name(table: RunTable, folder: Path) -> str:
    source = Path(table.source)
    return source.relative_to(folder).as_posix() if source.is_relative_to(folder) else source.name


def _told(log: tuple[Path, RunTable]) -> tuple[int, bool, int]:
    """Return a sort key for how much a log says: rows first, then any file but event files, then events."""
    table = log[1]
    return table.rows, table.format != "tfevents", len(table.events)


def _event_files(contents: Contents) -> list[tuple[Path, RunTable]]:
    """Return the event files of each folder as one run, because every restart begins a new file."""
    paths = [path for path in contents.logs if ".tfevents." in path.name]
    contents.logs = [path for path in contents.logs if path not in set(paths)]
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
    for path in paths:
        if path in states and path != newest:
            continue
        score = _score(path, best)
        if score > 0:
            scored.append((-score, -path.stat().st_size, str(path), path))
    scored.sort()
    return [path for *_, path in scored[:MOST_LOGS]]


def _score(path: Path, best: Best) -> float:
    try:
        chosen = best(path)
    except AdvisorError:
        return 0.0
    return chosen[0] if chosen is not None else 0.0


def _read(path: Path, best: Best) -> RunTable | None:
    """Return the table in a file; None if no reader knows it or it is damaged, since other files may do."""
    try:
        chosen = best(path)
        return with_clocks(chosen[1].read(path), path) if chosen is not None else None
    except AdvisorError:
        return None


def _with_rest(table: RunTable, folder: Path, contents: Contents, used: set[Path]) -> RunTable:
    """Add the folder's configurations, telemetry and checkpoints to its log."""
    for path in contents.configs:
        if path in used:
            continue
        try:
            table = with_facts(table, read_config(path), path.name)
        except AdvisorError as error:
            table = dataclasses.replace(table, notes=(*table.notes, f"left out: {error.message}"))
    table = with_events(table, checkpoint_events(folder, contents.weights))
    for path in sorted(contents.telemetry, key=lambda path: -path.stat().st_size):
        try:
            table = dataclasses.replace(table, telemetry=telemetry_file.read_telemetry(path))
            break
        except AdvisorError as error:
            table = dataclasses.replace(table, notes=(*table.notes, f"left out: {error.message}"))
    return dataclasses.replace(table, source=str(folder))


def _sorted(folder: Path) -> Contents:
    """Return the folder's files by kind, with configurations nearest to the top first."""
    contents = Contents()
    for path in _files(folder):
        name, suffix = path.name.lower(), path.suffix.lower()
        if is_weights(path):
            contents.weights.append(path)
        elif name in _CONFIG_NAMES:
            contents.configs.append(path)
        elif name == telemetry_file.NAME or (suffix in (".csv", ".log", ".txt") and _is_telemetry(path)):
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


def _is_telemetry(path: Path) -> bool:
    try:
        head = sample(path, head_bytes=1 << 16)
    except AdvisorError:
        return False
    return any(module.score(head, path) > 0.5 for module in (gpu_csv, smi_tables))


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
