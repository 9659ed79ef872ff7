"""Judges uploaded or pasted logs. Readers read them in a temporary folder, which is deleted afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path, PurePosixPath

from advisor.errors import AdvisorError
from advisor.readers.folder import is_log_path
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable
from advisor.readers.several_logs import logs_of
from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import Judged, analyze, judge_all

MOST_FILES = 50
MOST_MEGABYTES = 200  # of one file; a log of 200 MB has a million steps
PASTED = "pasted.log"
_LONGEST_NAME = 120
_ARCHIVES = (".zip", ".gz", ".tar", ".tgz")


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One file that the browser sent."""

    name: str
    content: Callable[[], memoryview | bytes]


def judge_uploads(uploads: Sequence[Upload], given: Given, store: Store) -> Judged:
    """Judge one log, several files of one run, or several logs of one format, which are several runs.

    AdvisorErrors use the file names of the user who uploaded.
    """
    if len(uploads) > MOST_FILES:
        raise AdvisorError(
            f"{len(uploads)} files are more than the {MOST_FILES} that are taken", "give the log and its configuration"
        )
    title = title_of(uploads)
    with tempfile.TemporaryDirectory(prefix="advisor-upload-") as name:
        folder = Path(name)
        paths = [_write(folder, upload) for upload in uploads]
        try:
            chosen, unread = ([paths[0]], []) if len(paths) == 1 else _runs_among(paths, folder)
            judged = judge_all(chosen, store, lambda path: analyze(path, given, store))
        except AdvisorError as error:
            raise _in_their_words(error, folder, title) from None
    notes = [note for analysis in judged.analyses for note in analysis.run.notes]
    unread = [name for name in unread if not any(name in note for note in notes)]
    if unread:
        several = f"{len(unread)} files were" if len(unread) > 1 else "1 file was"
        judged = replace(
            judged, left_out=(*judged.left_out, f"{several} not read as part of this: {', '.join(unread)}")
        )
    return replace(
        judged,
        analyses=tuple(_as_uploaded(analysis, folder, title) for analysis in judged.analyses),
        left_out=tuple(text.replace(f"{folder}/", "") for text in judged.left_out),
    )


def _runs_among(paths: Sequence[Path], folder: Path) -> tuple[list[Path], list[str]]:
    """Return what to judge, and the names of files that say nothing: the files of one run, or one log of each run.

    Two logs are of one run if they end at one step or begin with one loss.
    """
    if logs_of(folder):
        return [folder], []
    tables: dict[Path, RunTable] = {}
    unread = []
    for path in (path for path in paths if is_log_path(path) and path.suffix.lower() not in _ARCHIVES):
        try:
            table = read_run(path)
        except AdvisorError:
            unread.append(path.name)
            continue
        if table.rows:
            tables[path] = table
        elif table.telemetry is None:
            unread.append(path.name)
    runs: list[Path] = []
    for path, table in tables.items():
        if not any(_are_one_run(table, tables[other]) for other in runs):
            runs.append(path)
    return (runs, unread) if len(runs) > 1 else ([folder], unread)


def _are_one_run(one: RunTable, other: RunTable) -> bool:
    if one.last_step is not None and one.last_step == other.last_step:
        return True
    return one.first_loss is not None and other.first_loss is not None and isclose(
        one.first_loss, other.first_loss, rel_tol=1e-3
    )  # fmt: skip


def title_of(uploads: Sequence[Upload]) -> str:
    """Return the title of an upload: its file's name, or that of the first file and the number of others."""
    return uploads[0].name if len(uploads) == 1 else f"{uploads[0].name} and {len(uploads) - 1} more"


def _as_uploaded(analysis: Analysis, folder: Path, title: str) -> Analysis:
    """Return the analysis with the user's file names in place of our temporary folder's."""
    run = analysis.run
    notes = tuple(note.replace(f"{folder}/", "") for note in run.notes)
    source = title if Path(run.source) == folder else run.source.replace(f"{folder}/", "")
    return replace(analysis, case=replace(analysis.case, run=replace(run, source=source, notes=notes)))


def _write(folder: Path, upload: Upload) -> Path:
    path = folder / safe_name(upload.name)
    if path.exists():
        raise AdvisorError(f"two files are called {path.name}", "rename one")
    path.write_bytes(upload.content())
    return path


def safe_name(name: str) -> str:
    """Return the last part of a file's name, made safe: no folder, control characters or leading dot, and short."""
    last = PurePosixPath(name.replace("\\", "/")).name
    shown = "".join(c for c in last if c.isprintable()).lstrip(".")
    return shown[-_LONGEST_NAME:] or "log.txt"


def _in_their_words(error: AdvisorError, folder: Path, title: str) -> AdvisorError:
    """Return the same error without the name of the temporary folder, which means nothing to the user."""

    def mended(text: str) -> str:
        return text.replace(f"{folder}/", "").replace(str(folder), title)

    hint = mended(error.hint) if error.hint else None
    return AdvisorError(mended(error.message), hint, exit_code=error.exit_code)
