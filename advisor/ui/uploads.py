"""Takes logs that are uploaded or pasted, and facts stated with them, and judges them in a temporary folder."""

from __future__ import annotations

import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isclose
from pathlib import Path, PurePosixPath

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from advisor.errors import AdvisorError
from advisor.findings.forecast import Targets
from advisor.hardware.catalog import load_gpus
from advisor.readers.archive import opened
from advisor.readers.folder import is_log_path
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable
from advisor.readers.several_logs import logs_of
from advisor.readers.status import counts_apart, is_open, may_be_ended_by
from advisor.readers.traces.kinds import holds_traces
from advisor.store.store import Store
from advisor.ui.controls import QUERY
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import Judged, analyze, judge_all, with_traces
from advisor.workflows.analyze_trace import TraceAnalysis, analyze_traces, traces_and_logs
from advisor.workflows.ask_about_log import question

MOST_FILES = 50
MOST_MEGABYTES = 200  # of one file; a log of 200 MB has a million steps
PASTED = "pasted.log"
_LONGEST_NAME = 120
_CONFIGS = (".yaml", ".yml", ".json", ".toml", ".args")
_ARCHIVES = (".zip", ".gz", ".tar", ".tgz")
FILES, TEXT = "analyze-files", "analyze-text"
_STARTS = "analyze-starts"  # in the session: how often the form was emptied
REPORT = "report"  # in the session and in the address: the report that is shown
_MEMORY_BYTES = 256 * 2**20  # of uploads, in the server's memory, so that reloading a page shows its report again


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One file that the browser sent."""

    name: str
    content: Callable[[], memoryview | bytes]


def source() -> list[Upload]:
    """Return what was uploaded or pasted."""
    filled = bool(st.session_state.get(_files()) or st.session_state.get(TEXT, "").strip())
    left, *middle, right = st.columns((3, 2, 2) if filled else (3, 2))
    for column in middle:
        _replacement(column)
    files = left.file_uploader(
        "Training logs, or the files of a run", accept_multiple_files=True, max_upload_size=MOST_MEGABYTES,
        key=_files(), on_change=_emptied,
        help="Console output, CSV, JSONL, TensorBoard events, trainer_state.json and many more; also profiler traces, "
        "memory snapshots and flight-recorder dumps, one file a rank. Several logs of one format are several runs, "
        "compared with each other. Files are read on this machine, never executed, and kept in memory only, unless "
        "you keep them under a name.",
    )  # fmt: skip
    text = right.text_area(
        "or paste its text", placeholder="step 10 | loss 4.21 | lr 3e-4 | 812 ms | 161 k tok/s …",
        key=TEXT, on_change=_emptied, height=70, help="The lines a training script printed.",
    )  # fmt: skip
    if files:
        return [Upload(name=file.name, content=file.getvalue) for file in files]
    return [Upload(name=PASTED, content=text.encode)] if text.strip() else []


def report_name(uploads: list[Upload]) -> str | None:
    """Return the name of the report in the form, or else in the session or address. Returns None if there is none."""
    name: str | None = _store(uploads) if uploads else st.session_state.get(REPORT) or st.query_params.get(REPORT)
    if name:
        st.session_state[REPORT] = st.query_params[REPORT] = name
    return name


def _store(uploads: list[Upload]) -> str:
    """Store the uploads under a name computed from their content. The oldest uploads make room for new ones."""
    contents = [(upload.name, bytes(upload.content())) for upload in uploads]
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    key, memory = digest.hexdigest()[:12], uploaded()
    memory[key] = [Upload(name=name, content=partial(bytes, content)) for name, content in contents]
    memory.move_to_end(key)
    while len(memory) > 1 and sum(len(one.content()) for many in memory.values() for one in many) > _MEMORY_BYTES:
        memory.popitem(last=False)
    return key


@st.cache_resource(show_spinner=False)
def uploaded() -> OrderedDict[str, list[Upload]]:
    """Return the uploads to this server by their names, newest last."""
    return OrderedDict()


def _emptied() -> None:
    """Close the report if the user took its log out of the form, but not if the user only changed the page."""
    if not st.session_state[_files()] and not st.session_state[TEXT].strip():
        close()


def close() -> None:
    """Show no report any more."""
    st.session_state.pop(REPORT, None)
    st.query_params.pop(REPORT, None)


def _replacement(place: DeltaGenerator) -> None:
    """Draw a field for other logs than those in the form, which they replace."""
    key = f"{_files()}-other"

    def replace_logs() -> None:
        if files := st.session_state[key]:
            # only a new widget forgets its files
            st.session_state[_STARTS] = st.session_state.get(_STARTS, 0) + 1
            st.session_state[TEXT] = ""
            st.session_state[REPORT] = _store([Upload(name=file.name, content=file.getvalue) for file in files])

    place.file_uploader(
        "Another log", accept_multiple_files=True, max_upload_size=MOST_MEGABYTES, key=key, on_change=replace_logs,
        help="It takes the place of the logs on the left.",
    )  # fmt: skip


def _files() -> str:
    """Return the key of the present widget of files."""
    return f"{FILES}-{st.session_state.get(_STARTS, 0)}"


def given() -> Given:
    """Return the facts that are stated with the log, in a popover."""
    with st.popover("Add what the log does not state: GPU, price, targets", icon=":material/tune:"):

        def number(column: DeltaGenerator, label: str, key: str, help: str, empty: str = "") -> float | None:
            return column.number_input(label, 0.0, value=None, placeholder=empty, key=key, bind=QUERY, help=help)

        columns, below = st.columns(3), st.columns(3)
        gpu = columns[0].selectbox(
            "GPU", ["cpu", *sorted(load_gpus())], index=None, placeholder="as the log says", key="log_gpu", bind=QUERY,
            help="Type to search.",
        )  # fmt: skip
        gpus = columns[1].number_input(
            "Number of GPUs", 1, value=None, placeholder="as the log says", key="log_gpus", bind=QUERY, help="In all."
        )
        price = number(
            columns[2], "Price ($ per GPU-hour)", "log_price", "What you pay. Empty: the catalog's cheapest price.",
            "the cheapest in the catalog",
        )  # fmt: skip
        loss = number(below[0], "Loss to reach", "log_loss", "In the log's own unit: will the run reach it?")
        usd = number(below[1], "Budget ($)", "log_usd", "Will the whole run stay within it?")
        hours = number(below[2], "Deadline (hours)", "log_hours", "From the run's start.")
    targets = Targets(final_loss=loss or None, usd=usd or None, hours=hours or None)
    return Given(gpu=gpu, gpus=gpus, usd_per_gpu_hour=price, targets=targets)


def judge_uploads(
    uploads: Sequence[Upload], given: Given, store: Store, answer: str | None = None
) -> Judged | TraceAnalysis:
    """Judge one log, several files of one run, several logs of one format, or the traces and dumps of one run's ranks.

    `answer` is an assistant's description of one log. AdvisorErrors use the file names of the user who uploaded.
    """
    if len(uploads) > MOST_FILES:
        raise AdvisorError(
            f"{len(uploads)} files were given, but at most {MOST_FILES} are read", "give the log and its configuration"
        )
    title = title_of(uploads)
    with tempfile.TemporaryDirectory(prefix="advisor-upload-") as name:
        folder = Path(name)
        paths = [_write(folder, upload) for upload in uploads]
        try:
            traces = [path for path in paths if holds_traces(path)]
            logs = [path for path in paths if path not in traces]
            if not logs:
                return replace(analyze_traces(traces, given), source=title)
            chosen, unread = ([logs[0]], []) if len(logs) == 1 else _runs_among(logs, folder)
            traces, chosen = traces_and_logs([*traces, *chosen])
            judged = judge_all(chosen, store, lambda path: analyze(path, given, store, answer=answer))
            judged = with_traces(judged, traces, given)
        except AdvisorError as error:
            # Without the name of the temporary folder, which means nothing to the user.
            message, hint = (
                text.replace(f"{folder}/", "").replace(str(folder), title) for text in (error.message, error.hint or "")
            )
            raise AdvisorError(message, hint or None, exit_code=error.exit_code) from None
    notes = [note for analysis in judged.analyses for note in analysis.run.notes]
    unread = [name for name in unread if not any(name in note for note in notes)]
    if unread:
        several = f"{len(unread)} files were" if len(unread) > 1 else "1 file was"
        unused = f"{several} not read as part of this: {', '.join(unread)}"
        judged = replace(judged, left_out=(*judged.left_out, unused))

    def named(analysis: Analysis) -> Analysis:
        """Return the analysis with the user's file names in place of our temporary folder's."""
        run = analysis.run
        notes = tuple(note.replace(f"{folder}/", "") for note in run.notes)
        source = title if Path(run.source) == folder else run.source.replace(f"{folder}/", "")
        return replace(analysis, case=replace(analysis.case, run=replace(run, source=source, notes=notes)))

    left_out = tuple(text.replace(f"{folder}/", "") for text in judged.left_out)
    return replace(judged, analyses=tuple(map(named, judged.analyses)), left_out=left_out)


def prompt_for(upload: Upload) -> str | None:
    """Return the prompt for an assistant that describes a log; None for a file that is no text."""
    if b"\0" in bytes(upload.content()[:4096]):
        return None
    with tempfile.TemporaryDirectory(prefix="advisor-upload-") as name:
        try:
            if holds_traces(path := _write(Path(name), upload)):
                return None
            with opened(path) as inside:
                return question(inside).prompt
        except AdvisorError:
            return None  # no assistant can read it, and whoever judges it says what it is


def _runs_among(paths: Sequence[Path], folder: Path) -> tuple[list[Path], list[str]]:
    """Return what to judge, and the names of files that say nothing: the files of one run, or one log of each run.

    Two logs are of one run if they end at one step or begin with one loss. A file of errors is of a run of its own if
    every log says how it ended itself, or has another name and counts to another number of steps.
    """
    logs = [path for path in paths if is_log_path(path) and path.suffix.lower() not in _ARCHIVES]
    unread = [path.name for path in paths if path not in logs and path.suffix.lower() not in _CONFIGS]
    if logs_of(folder):
        return [folder], unread
    tables: dict[Path, RunTable] = {}
    failures: dict[Path, RunTable] = {}
    for path in logs:
        try:
            table = read_run(path)
        except AdvisorError:
            unread.append(path.name)
            continue
        if table.rows:
            tables[path] = table
        elif not is_open(table):
            failures[path] = table
        elif table.telemetry is None:
            unread.append(path.name)

    def are_one_run(one: RunTable, other: RunTable) -> bool:
        if one.last_step is not None and one.last_step == other.last_step:
            return True
        losses = one.first_loss, other.first_loss
        return losses[0] is not None and losses[1] is not None and isclose(losses[0], losses[1], rel_tol=1e-3)

    runs: list[Path] = []
    for path, table in tables.items():
        if not any(are_one_run(table, tables[other]) for other in runs):
            runs.append(path)
    for path, table in failures.items():
        open_logs = [log for log in runs if log in tables and may_be_ended_by(tables[log], table)]
        if not any(log.stem == path.stem or not counts_apart(tables[log], table) for log in open_logs):
            runs.append(path)
    return (runs, unread) if len(runs) > 1 else ([folder], unread)


def title_of(uploads: Sequence[Upload]) -> str:
    """Return the title of an upload: its file's name, or that of the first file and the number of others."""
    return uploads[0].name if len(uploads) == 1 else f"{uploads[0].name} and {len(uploads) - 1} more"


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
