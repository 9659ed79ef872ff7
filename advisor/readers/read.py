"""The only entry point: reads any training log into a RunTable. Readers are tried by their score on a sample."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from advisor.errors import AdvisorError, close_matches
from advisor.readers import (
    csv_table,
    gpu_csv,
    hf_trainer_state,
    jsonl,
    mlflow_files,
    own_log,
    parquet_table,
    smi_tables,
    telemetry_file,
    tfevents,
    wandb_file,
    wandb_folder,
)
from advisor.readers.archive import opened
from advisor.readers.chunks import Progress, decode, open_binary, read_head, read_lines, sample
from advisor.readers.clock import with_clocks
from advisor.readers.folder import read_folder
from advisor.readers.formats import line_formats
from advisor.readers.generic import FEW, MOST, GenericReader
from advisor.readers.learning import FEWEST, learn
from advisor.readers.line_format import TRAIN, LineFormat
from advisor.readers.line_reader import LineReader
from advisor.readers.own_formats import named_format, own_format_of
from advisor.readers.run_table import RunTable
from advisor.readers.sniff import distinct_lines

# Readers of structured files, each made of a score and a function, as `read.READERS` needs them.


@dataclass(frozen=True)
class FileReader:
    """A reader of whole files."""

    name: str
    score_of: Callable[[bytes, Path], float]
    read_file: Callable[[Path], RunTable]

    def score(self, head: bytes, path: Path) -> float:
        """Return how surely (0…1) a file with this cleaned beginning has the format."""
        return self.score_of(head, path)

    def read(self, path: Path, progress: Progress | None = None) -> RunTable:
        """Read the file. Raises AdvisorError if it does not have the expected format."""
        table = self.read_file(path)
        if table.runs and path.is_file() and b"\0" not in read_head(path, 4096):  # a text
            table = with_clocks(table, read_lines(path))
        if progress is not None:
            size = path.stat().st_size
            progress(size, size)
        return table


def _of(module: Any) -> FileReader:
    return FileReader(module.NAME, module.score, module.read)


# if two readers know a file equally well, the first is used
STRUCTURED = (
    *map(_of, (own_log, hf_trainer_state)),
    *map(_of, (wandb_folder, wandb_file, tfevents, mlflow_files, parquet_table, telemetry_file)),
    FileReader(mlflow_files.DATABASE, mlflow_files.score_database, mlflow_files.read_database),
    *map(_of, (gpu_csv, smi_tables, jsonl, csv_table)),
)


LEAST_SCORE = 0.1  # below it, nothing is recognisable


class Reader(Protocol):
    """Reads one format. `score` gets a cleaned sample of the file (its beginning, middle and end)."""

    @property
    def name(self) -> str: ...

    def score(self, head: bytes, path: Path) -> float: ...

    def read(self, path: Path, progress: Progress | None = None) -> RunTable: ...


GENERIC = GenericReader()  # learns any other format; used only if no other reader is surer than this one can be
_KNOWN: tuple[Reader, ...] = (*(LineReader(format) for format in line_formats()), *STRUCTURED)
READERS: tuple[Reader, ...] = (*_KNOWN, GENERIC)


# how a document of this program, a schema or a plan begins
_ANSWER = re.compile(
    r'\s*\{\s*(?:"document":\s*"(?P<name>[\w.-]+)",\s*"document_schema"|"\$schema")|(?P<plan>id: plan-)'
)
_NO_RUNS = {"predict": "a prediction", "audit": "an audit", "schema": "a JSON Schema"}


@np.errstate(all="ignore")  # a damaged log prints infinite numbers, which should become NaN without a warning
def read_run(path: str | Path, format: str | None = None, progress: Progress | None = None) -> RunTable:
    """Read a training log of any known format, or of the one that is named or in a named file.

    A folder is one run, a zip archive one log.

    Raises AdvisorError if the file cannot be opened, nothing in it is recognisable, or the format's name is unknown.
    `progress` is called with the bytes done and the total bytes.
    """
    with opened(path := Path(path)) as inside:
        _refuse_answers(inside)
        if inside.is_dir():
            table = read_folder(inside, known_reader)
        else:
            table = _named(format).read(inside, progress) if format is not None else _read(inside, progress)
    return table if inside == path else dataclasses.replace(table, source=str(path))


def _refuse_answers(path: Path) -> None:
    """Raise AdvisorError (exit 2) for a file that describes or answers something, and so is no run's log."""
    if path.is_dir() or path.suffix.lower() not in (".json", ".yaml", ".yml"):
        return
    found = _ANSWER.match(decode(sample(path)))
    if found is None:  # YAML of other trainers may be a run's summary
        return
    name = "plan.yaml" if found["plan"] else found["name"] or "schema"
    what = _NO_RUNS.get(name) or ("a plan" if name.startswith("plan") else f"an answer of `advisor` ({name})")
    hint = "name the run's folder or log: advisor compare RUN"
    hint += "; with two plans: advisor compare A.yaml B.yaml" if found["plan"] else ""
    hint += "; to judge it: advisor check FILE" if not found["plan"] and name.startswith(("plan", "predict")) else ""
    raise AdvisorError(f"{path} is {what}, no run", hint, exit_code=2)


def _read(path: Path, progress: Progress | None) -> RunTable:
    """Read a file by its known format, or by a learnt format if only the program is known and not its rows."""
    reader = best_reader(path)
    table = reader.read(path, progress)
    if not table.rows and path.suffix.lower() in (".md", ".markdown"):  # the words of a document are no log's
        raise AdvisorError(f"{path} holds no row of a training log", f"to judge what it claims: advisor audit {path}")
    if table.rows or table.telemetry is not None or reader is GENERIC:
        return table
    if (kept := own_format_of(path, sample(path), kept=True)) is not None:
        return kept.read(path, progress)
    if GENERIC.score(sample(path), path) < FEW:
        return table
    learnt = GENERIC.read(path, progress)
    return dataclasses.replace(learnt, framework=table.framework) if learnt.rows >= FEWEST else table


def known_reader(path: Path) -> tuple[float, Reader] | None:
    """Return the reader that knows a file best and its score; None if none does. Raises AdvisorError if unreadable."""
    head = sample(path)
    if not head.strip():
        return None
    best, index = max((reader.score(head, path), -index) for index, reader in enumerate(_KNOWN))
    if (written := own_format_of(path, head, kept=best <= MOST)) is not None:
        return written.score(head, path), written
    if best <= MOST and (own := GENERIC.score(head, path)) > best:
        return (own, GENERIC) if own >= LEAST_SCORE else None
    reader = _KNOWN[-index]
    if isinstance(reader, LineReader) and not reader.format.steps_by_bar and _reads_less(reader.format, head):
        return best, GENERIC
    return (best, reader) if best >= LEAST_SCORE else None


_OF_LITTLE = {"unix_seconds", "samples_per_second"}  # columns for which no format is given up


def _reads_less(format: LineFormat, head: bytes) -> bool:
    """Return whether a program that does not name itself prints more in its most common record than a format reads."""
    if any(sign.compiled.search(head) is not None for sign in format.signs):
        return False
    rules = [rule for rule in format.rows if rule.kind == TRAIN]
    for line, _ in sorted(distinct_lines(head), key=lambda one: -one[1]):
        seen = (
            next((seen[0] for rule in some if (seen := rule.find(line))), ()) for some in (rules, learn(head).rules)
        )
        known, learnt = ({found.target.partition("__")[0] for found in one} - _OF_LITTLE for one in seen)
        if known:
            return known < learnt
    return False


def best_reader(path: Path) -> Reader:
    """Return the reader that recognises a file best. Raises AdvisorError if none does."""
    found = known_reader(path)
    if found is None and not sample(path).strip():
        raise AdvisorError(f"{path} is empty", "Nothing was written to it yet, or the output went elsewhere.")
    if found is None:
        give = "Give the run's console output, its CSV or JSONL metrics or its folder."
        with open_binary(path) as stream:
            binary = b"\0" in stream.read(4096)
        if binary:
            raise AdvisorError(f"{path} is a binary file of no known kind", give)
        raise AdvisorError(
            f"{path} holds nothing that looks like a training log",
            f"{give} An assistant of yours can describe the lines of your own program: --reader CMD. A report is "
            "judged by advisor audit.",
        )
    return found[1]


def _named(name: str) -> Reader:
    for reader in READERS:
        if reader.name == name:
            return reader
    if (own := named_format(name)) is not None:
        return own
    names = sorted({reader.name for reader in READERS})
    close = close_matches(name, names)
    raise AdvisorError(
        f"there is no log format {name!r}",
        f"Did you mean {close[0]}?"
        if close
        else f"Known formats: {', '.join(names)}; or the file of your own, FILE.yaml.",
        exit_code=2,
    )
