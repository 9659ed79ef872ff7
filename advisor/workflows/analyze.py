"""Finds, reads and judges a log or a run folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor.assistant import Reader
from advisor.engines.process import is_being_written, was_just_written
from advisor.engines.state import RunState, run_status
from advisor.errors import AdvisorError
from advisor.findings import series
from advisor.findings.curves import curve
from advisor.findings.forecast import Targets
from advisor.hardware.catalog import read_gpus
from advisor.history.comparison import Comparison, compare_runs, compare_those_far_enough
from advisor.options import AnalyzeOptions
from advisor.readers.archive import opened
from advisor.readers.chunks import Progress
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable, Status
from advisor.readers.several_logs import logs_of
from advisor.store.folders import names_apart
from advisor.store.run_folder import PLAN, is_run_folder, read_launch
from advisor.store.store import Store
from advisor.trainers.known import TRAINERS
from advisor.units import HOUR
from advisor.workflows.analysis import Analysis, Given, judge_run, to_document
from advisor.workflows.analyze_trace import JudgedTrace, Update, analyze_traces
from advisor.workflows.ask_about_log import by_quotes, reading_of, unplaced, with_reading

_OPEN = (Status.INCOMPLETE, Status.NO_END)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The judged runs and their comparison."""

    analyses: tuple[Analysis, ...]
    comparison: Comparison | None = None
    left_out: tuple[str, ...] = ()  # what could not be read or compared, with the reason
    traces: tuple[JudgedTrace, ...] = ()  # of the single run

    @property
    def sentence(self) -> str:
        words = [f"{label}: {text}" for analysis in self.analyses for label, text in analysis.verdict.lines]
        return "\n".join((*words, *(one.judgement.verdict for one in self.traces)))

    def document(self) -> tuple[str, dict[str, Any]]:
        """Returns the name and content of the JSON document: of a single run, or of all runs with their comparison."""
        documents = [to_document(analysis) for analysis in self.analyses]
        if len(documents) == 1:
            return "analyze", documents[0] | ({"traces": list(self.traces)} if self.traces else {})
        against = {} if self.comparison is None else self.comparison.to_document()
        return "analyze-several", {"runs": documents, "left_out": self.left_out, **against}


def judge_all(paths: Sequence[Path], store: Store, judge: Callable[[Path], Analysis]) -> Judged:
    """Judge every run at the paths and compare them; `judge` judges one run.

    In a folder of several runs, whatever cannot be read is skipped and reported. A path to a single run must be
    readable. Raises AdvisorError if nothing can be read.
    """
    found = [log for path in paths for log in runs_of(located(path, store))]
    many = len(found) > len(paths)  # some folders in a folder of runs may be empty
    analyses, left_out = [], []
    for path in found:
        try:
            analyses.append(judge(path))
        except AdvisorError as error:
            if not many:
                raise
            left_out.append(f"left out: {error.message}")
    if not analyses:
        raise AdvisorError("; ".join(left_out), "give the logs themselves")
    comparison, why = _compared(analyses, forgiving=many)
    return Judged(analyses=tuple(analyses), comparison=comparison, left_out=(*left_out, *why))


def with_traces(judged: Judged, traces: Sequence[Path], given: Given, update: Update = lambda name: None) -> Judged:
    """Return the judged run with its traces and dumps, beside what is predicted for it; unchanged without traces."""
    if not traces:
        return judged
    return replace(judged, traces=analyze_traces(traces, given, update, case=judged.analyses[0].case).judged)


def _compared(analyses: Sequence[Analysis], *, forgiving: bool) -> tuple[Comparison | None, list[str]]:
    """Compares the runs, or says why it cannot; `forgiving` leaves out runs of a folder that ended early."""
    if len(analyses) < 2:
        return None, []
    cases = [analysis.case for analysis in analyses]
    if forgiving:
        return compare_those_far_enough(cases, names_of(analyses))
    # a file of errors has nothing to compare, which its own report shows
    trained = [
        (case, name) for case, name in zip(cases, names_of(analyses), strict=True) if len(curve(case.run, "loss"))
    ]
    if len(trained) < 2:
        return None, []
    try:
        return compare_runs(*map(list, zip(*trained, strict=True))), []
    except AdvisorError as error:  # each run is still judged by itself
        return None, [error.message]


def names_of(analyses: Sequence[Analysis]) -> list[str]:
    """Returns a name for each run: the end of its path, as far as it differs from the others."""
    return names_apart([analysis.run.source for analysis in analyses])


def analyze(
    path: Path,
    given: Given,
    store: Store,
    progress: Progress | None = None,
    *,
    reader: Reader | None = None,
    answer: str | None = None,
) -> Analysis:
    """Read and judge a log, a zip archive of one, or a run folder.

    `reader` asks an assistant to describe a log, or `answer` is what an assistant answered earlier. Raises AdvisorError
    if the log or a stated fact cannot be read.
    """
    with opened(path) as inside:
        # The format of an accepted answer is kept, and reads this log unless the program knows the log's format, which
        # tells more than one that was written from a sample.
        reading = reading_of(inside, reader, answer) if reader is not None or answer is not None else None
        try:
            run = replace(_read(inside, given, progress), source=str(path))
        except AdvisorError as error:
            if reading is None or reading.refused is None:
                raise
            raise AdvisorError(
                f"{error.message}, and {reading.words}", error.hint, exit_code=error.exit_code
            ) from error
        if reading is not None and reading.format is not None:
            run = replace(by_quotes(run, reading.format, inside), source=str(path))
        run = with_reading(run, reading) if reading is not None else unplaced(run, inside)
        judged = judge_run(_as_it_is(run, inside), _with_folder(inside, given), store)
        return replace(judged, given=given, assistant=reading)


def _as_it_is(run: RunTable, path: Path) -> RunTable:
    """Returns the run with a status that the log cannot show: still running, or stopped by its user."""
    launch = read_launch(path) if path.is_dir() else None
    if launch is not None:
        state = run_status(path).state
        if state is RunState.RUNNING:
            return replace(run, status=Status.RUNNING, status_reason="its process lives")
        requested = launch.stop_asked_at is not None and run.status in (Status.STOPPED, *_OPEN, Status.KILLED)
        return replace(run, status=Status.STOPPED, status_reason="you stopped it") if requested else run
    if run.status in _OPEN and (len(run) or run.telemetry is None) and path.is_file() and is_being_written(path):
        return replace(run, status=Status.RUNNING, status_reason="its log is being written")
    stamps = series.finite(run.column("unix_seconds"))
    if run.status in _OPEN and path.is_file() and len(stamps) > 1:
        every = series.median(np.abs(np.diff(stamps)))
        if was_just_written(path, float(stamps[-1]), every):
            return replace(run, status=Status.RUNNING, status_reason="its log ends a moment ago")
    return run


def _read(path: Path, given: Given, progress: Progress | None) -> RunTable:
    """Reads a run launched here with its trainer's reader, and any other log by its recognised format."""
    launch = read_launch(path) if given.format is None and path.is_dir() else None
    if launch is not None and launch.trainer in TRAINERS:
        trainer = TRAINERS[launch.trainer]
        if (path / trainer.log_name).is_file():
            return trainer.read_log(path)
    return read_run(path, given.format, progress)


def runs_of(path: Path) -> list[Path]:
    """Returns the runs in a folder of several, or else the path itself."""
    return logs_of(path) or [path] if path.is_dir() else [path]


def located(text: Path, store: Store) -> Path:
    """Returns an existing path, or the folder of the run with this name. Raises AdvisorError if there is neither."""
    if text.exists():
        return text
    try:
        return store.find_run(str(text))
    except AdvisorError as error:
        raise AdvisorError(f"there is no file {text} ({error.message})", error.hint, exit_code=2) from error


def _with_folder(path: Path, given: Given) -> Given:
    """Adds the plan and the price of a run folder to what the user stated."""
    if not path.is_dir() or not is_run_folder(path):
        return given
    plan = given.plan or (path / PLAN if (path / PLAN).exists() else None)
    launch = read_launch(path)
    price = given.usd_per_gpu_hour
    if price is None and launch is not None and launch.usd_per_hour is not None:
        price = launch.usd_per_hour / launch.gpus
    return replace(given, plan=plan, usd_per_gpu_hour=price)


def given_of(options: AnalyzeOptions) -> Given:
    """Returns the facts that the options state. Raises AdvisorError (exit 2) for an unknown GPU or unknown data."""
    named = read_gpus(options.gpu) if options.gpu is not None else None
    hours = options.deadline / HOUR if options.deadline is not None else None
    return Given(
        gpu=named.key if named else None,
        gpus=options.gpus or (named.count if named else None),
        usd_per_gpu_hour=options.price,
        format=options.format,
        config=options.config,
        telemetry=options.telemetry,
        plan=options.plan,
        targets=Targets(final_loss=options.target_loss, usd=options.budget, hours=hours),
    )
