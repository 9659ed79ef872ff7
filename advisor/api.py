"""The Python API: what the commands do, as functions that return records.

    import advisor
    plan = advisor.plan(gpu="any", budget=20)
    print(plan.sentence, plan.chosen.cost_usd)
    plan.to_frame()

Options are those of the command of the same name, with underscores, and take the same text: `deadline="8h"`,
`tokens="500M"`. Every function raises `AdvisorError`: its `message` says what is wrong, its `hint` the next step.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from advisor.documents import stamped
from advisor.errors import AdvisorError
from advisor.options import AnalyzeOptions, CalibrationOptions, LaunchOptions, PredictOptions
from advisor.records import Estimate, Plan, Run

if TYPE_CHECKING:
    import pandas as pd

    from advisor.auditing.audit import Audit
    from advisor.explanation import Explanation
    from advisor.findings.case import Finding
    from advisor.hardware.catalog import GpuSpec
    from advisor.history.listing import RunSummary
    from advisor.workflows.analysis import Analysis
    from advisor.workflows.calibrate import Calibrated
    from advisor.workflows.fleet import FleetPlan
    from advisor.workflows.launch import StartedRun
    from advisor.workflows.plan import PlanDetails
    from advisor.workflows.predict import Predicted

Record = TypeVar("Record")


@dataclass(frozen=True, repr=False)
class Answer(Generic[Record]):
    """The result of a function. It has the fields of its record, a main sentence, a JSON document and a table."""

    record: Record
    sentence: str
    name: str  # of the document; `advisor schema` prints the schema of that name
    document: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]  # of the table
    columns: Sequence[str] = ()  # names for a table that may have no rows

    def to_json(self) -> str:
        """Return the document that the command of the same name prints with --json."""
        return json.dumps(stamped(self.name, self.document), indent=2, ensure_ascii=False, allow_nan=False)

    def to_frame(self) -> pd.DataFrame:
        """Return the answer's table. An Estimate fills three columns: its value and the ends of its 80 % interval."""
        import pandas as pd

        return pd.DataFrame([_flat(row) for row in self.rows], columns=None if self.rows else list(self.columns))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "record":
            raise AttributeError(name)
        return getattr(self.record, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.record)  # type: ignore[call-overload]

    def __len__(self) -> int:
        return len(self.record)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, place: Any) -> Any:
        return self.record[place]  # type: ignore[index]

    def __repr__(self) -> str:
        return self.sentence

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(self.sentence)}</p>{self.to_frame().to_html(index=False, border=0, na_rep='')}"


def plan(*, measure: bool = False, gates: Sequence[str] = (), **options: Any) -> Answer[Plan]:
    """Recommend a model, its training tokens and a GPU within the goal that the options state, as `advisor plan` does.

    The options are those of `advisor.options.OPTIONS`. `measure` runs one more burst at the chosen configuration on
    this machine. `gates` are evaluations after which the run may be stopped, such as "10k:4.2". The frame has a row for
    each run that the search names.
    """
    from advisor.planning.stages import with_gates
    from advisor.store.store import default_store
    from advisor.workflows.goal import goal_from, read_options, refuse_idle_budget
    from advisor.workflows.plan import plan_details, recommend

    store = default_store()
    goal = goal_from(read_options(options))
    refuse_idle_budget(goal)
    if goal.needs_other_software and (measure or gates):
        message = "measure and gates are of the trainer here, and other software trains this"
        raise AdvisorError(message, "leave them out", exit_code=2)
    made = with_gates(recommend(goal, store, measure=measure), gates)
    return plan_answer(made, None if made.run is None else plan_details(made, store))


def plan_answer(made: Plan, more: PlanDetails | None = None) -> Answer[Plan]:
    """Return a plan as an answer, with the details shown with it."""
    from advisor.report.plan import document, sentence

    near = (*made.search.front, *made.search.machines) if made.search else ()
    runs = [*made.options, *(run for run in near if run not in made.options)]
    rows = [_run_row(run) for run in runs]
    return Answer(made, sentence(made), "plan", document(made, more) | {"path": None}, rows)


def fleet(
    path: str | Path, *, effort: float = 1.0, on_text: Callable[[str], None] = lambda text: None
) -> Answer[FleetPlan]:
    """Plan many runs over few GPUs from a fleet file, as `advisor fleet plan` does.

    `effort` multiplies the usual search for a better schedule. The frame has a row for each run. Raises AdvisorError
    (exit 2) with every problem of the file, each with its line.
    """
    from advisor.report.fleet import document, sentence
    from advisor.store.store import default_store
    from advisor.workflows.fleet import plan_fleet

    made = plan_fleet(Path(path), default_store(), effort=effort, progress=on_text)
    rows = [
        {"run": one.run, "pool": one.pool, "gpus": one.gpus, "start_hours": outlook.start_hours,
         "end_hours": outlook.end_hours, "probability": outlook.probability, "usd": outlook.usd}
        for one, outlook in zip(made.schedule.placements, made.outlooks, strict=True)
    ]  # fmt: skip
    return Answer(made, sentence(made), "fleet", document(made), rows)


def predict(**options: Any) -> Answer[Predicted]:
    """Predict step time, throughput and memory of one configuration, as `advisor predict` does.

    The frame has a row for each quantity.
    """
    from advisor.report import rl
    from advisor.report.prediction import ESTIMATES, document, heading
    from advisor.store.store import default_store
    from advisor.workflows.predict import predict as predicted

    found = predicted(_read(PredictOptions, options), default_store())
    rows: list[dict[str, Any]] = [{"quantity": name, "": getattr(found, name)} for name in ESTIMATES]
    if found.workload.rollouts is None:
        return Answer(found, heading(found), "predict", document(found), rows)
    rows += [{"quantity": f"{name}_seconds", "value": took} for name, took in (found.step_parts or {}).items()]
    return Answer(found, rl.heading(found, found.made_for), "predict", document(found), rows)


def calibrate(on_text: Callable[[str], None] = lambda text: None, **options: Any) -> Answer[Calibrated]:
    """Measure this machine's GPU or CPU in short bursts, as `advisor calibrate` does. `on_text` gets a line per burst.

    The frame has a row for each configuration.
    """
    from advisor.calibration.quality import burst_lines
    from advisor.store.store import default_store
    from advisor.workflows.calibrate import calibrate as calibrated
    from advisor.workflows.calibrate import to_document

    requested = _read(CalibrationOptions, options)
    done = calibrated(requested, default_store(), lambda settings: None, lambda event: on_text(event.text))
    rows = [dataclasses.asdict(line) for line in burst_lines(done.calibration, done.held_out)]
    sentence = f"calibration {done.calibration.id} of {done.profile.name}, {len(done.calibration.bursts)} bursts"
    return Answer(done, sentence, "calibrate", to_document(done), rows)


def launch(plan: Plan | Answer[Plan] | str | Path, **options: Any) -> Answer[StartedRun]:
    """Start a plan, or the plan in a file, as `advisor launch` does, and return at once. The run continues by itself.

    Unlike the command, this function calibrates first only with `calibrate=True`. A plan of an adopted command must be
    given as a file. What the command would say before the start becomes a Python warning.
    """
    from advisor.store.store import default_store
    from advisor.trainers.known import trainer_of_plan
    from advisor.trainers.own import OWN
    from advisor.workflows.calibrate import calibrate as calibrated
    from advisor.workflows.flows import flow_of

    source: Any = plan.record if isinstance(plan, Answer) else plan
    source = Path(source) if isinstance(source, str) else source
    requested, store = _read(LaunchOptions, options), default_store()
    flow = flow_of(trainer_of_plan(source) if isinstance(source, Path) else OWN, "launch", requested)
    requested = dataclasses.replace(requested, calibrate=bool(requested.calibrate))
    measure = partial(calibrated, store=store)
    started = flow.launching(store, source, requested, warnings.warn, measure).start()
    document = {"run_dir": started.run_dir, "launch": started.launch}
    sentence = f"started {started.launch.name} in {started.run_dir}"
    return Answer(started, sentence, "launch", document, [document])


def analyze(
    *paths: str | Path, reader: Callable[[str], str] | str | None = None, answer: str | None = None, **given: Any
) -> Answer[Any]:
    """Judge training logs, run folders or runs by name, as `advisor analyze` does. Returns an Analysis for each run.

    Paths of profiler traces, memory snapshots or flight-recorder dumps give one TraceAnalysis; beside a log or in a
    run folder, its rows and document hold theirs too.

    `given` has the options of the command: gpu, gpus, price (dollars per GPU-hour), config, telemetry, plan, format,
    target_loss, budget, deadline. `reader` is an assistant that describes each log: a function from a prompt to an
    answer, or a command. `answer` is an answer that it gave already. The frame has a row for each finding.
    """
    from advisor.assistant import of_command
    from advisor.store.store import default_store
    from advisor.workflows.analyze import analyze as analyzed
    from advisor.workflows.analyze import given_of, judge_all, located, with_traces
    from advisor.workflows.analyze_trace import analyze_traces, traces_and_logs

    stated, store = given_of(_read(AnalyzeOptions, given)), default_store()
    columns = ("run", "severity", "code", "title")

    def row(run: str, found: Finding) -> dict[str, str]:
        return {"run": run, "severity": str(found.severity), "code": found.code, "title": found.title}

    traces, logs = traces_and_logs([located(Path(path), store) for path in paths])
    if not logs:
        found = analyze_traces(traces, stated)
        rows = [row(one.files[0], finding) for one in found.judged for finding in one.judgement.findings]
        return Answer(found, found.sentence, "analyze-trace", found.to_document(), rows, columns)
    asks = of_command(reader) if isinstance(reader, str) else reader

    def judge(path: Path) -> Analysis:
        return analyzed(path, stated, store, reader=asks, answer=answer)

    judged = with_traces(judge_all(logs, store, judge), traces, stated)
    rows = [row(analysis.run.source, finding) for analysis in judged.analyses for finding in analysis.findings]
    rows += [row(one.files[0], finding) for one in judged.traces for finding in one.judgement.findings]
    name, document = judged.document()
    return Answer(judged.analyses, judged.sentence, name, document, rows, columns)


def compare(*runs: str | Path, plan: str | Path | None = None, record: bool | None = None) -> Answer[Any]:
    """Compare runs with their predictions, as `advisor compare` does. Returns a Reviewed for each run.

    The frame has a row for each quantity of each run.
    """
    from advisor.store.store import default_store
    from advisor.workflows.compare import review_all

    if not runs:
        raise AdvisorError("no run is given", "compare('latest')", exit_code=2)
    plan_path = None if plan is None else Path(plan)
    compared = review_all(default_store(), [str(run) for run in runs], record=record, plan=plan_path)
    reviewed, (name, document) = compared.runs, compared.document()
    rows = [
        {"run": one.name, "quantity": score.quantity, "predicted": score.predicted, "actual": score.actual,
         "error": score.error, "inside_interval": score.inside_interval}
        for one in reviewed
        for score in one.scored.scores
    ]  # fmt: skip
    sentence = "; ".join(f"{one.name}: {one.scored.outcome}, {one.scored.steps} steps" for one in reviewed)
    return Answer(reviewed, sentence, name, document, rows)


def audit(
    *papers: str | Path, reader: Callable[[str], str] | str | None = None, answer: str | None = None
) -> Answer[list[Audit]]:
    """Check every claim of reports or cards in files, as `advisor audit` does. Returns an Audit for each file.

    `reader` is the assistant that reads a report: a function from a prompt to an answer, or a command. `answer` is an
    answer it gave already. The frame has a row for each claim, and for each text that became no claim, with the reason.
    """
    from advisor.assistant import of_command
    from advisor.report.audit import document, verdict_line
    from advisor.store.store import default_store
    from advisor.workflows.audit import audit_cards

    if not papers:
        raise AdvisorError("no report is given", "audit('report.md')", exit_code=2)
    asks = of_command(reader) if isinstance(reader, str) else reader
    audits = audit_cards([Path(paper) for paper in papers], default_store(), asks, answer)
    documents = [document(one) for one in audits]
    rows = [
        {"card": one.card.id, "line": judged.claim.line, "kind": judged.claim.kind, "claim": judged.claim.text,
         "verdict": str(judged.judgement.ruling), "so": judged.judgement.so}
        for one in audits for judged in one.judged
    ]  # fmt: skip
    rows += [{"card": one.card.id, "claim": it, "verdict": "unplaced"} for one in audits for it in one.card.unplaced]
    sentence = "; ".join(verdict_line(one) for one in audits)
    name, whole = ("audit", documents[0]) if len(documents) == 1 else ("audit-several", {"audits": documents})
    return Answer(audits, sentence, name, whole, rows)


def gpus(
    gpu: str | None = None, *, count: int | None = None, provider: str | None = None
) -> Answer[tuple[GpuSpec, ...]]:
    """List GPU specifications and the cheapest on-demand price for `count` of each, as `advisor gpus` does.

    `gpu` is one name, or several with commas; the count in "8xh100" applies to that name. Prices of marketplaces and
    spot machines are left out.
    """
    from advisor.hardware.offers import priced_gpus, read_providers
    from advisor.report.gpu_rows import gpus_document

    providers, today = () if provider is None else read_providers((provider,)), datetime.date.today()
    priced = priced_gpus(gpu, count, providers=providers, today=today)
    rows = [
        {"gpu": one.spec.key, "gpus": one.gpus, "memory_gib": one.spec.memory_bytes / 2**30,
         "bf16_tflops": (one.spec.bf16_flops or 0) / 1e12 or None,
         "bandwidth_gb_per_second": one.spec.memory_bytes_per_second / 1e9,
         "usd_per_hour": one.offer and one.offer.usd_per_hour, "provider": one.offer and one.offer.provider,
         "region": one.offer and one.offer.region, "price_age_days": one.offer and one.offer.age_days}
        for one in priced
    ]  # fmt: skip
    sentence = (
        f"{len(priced)} GPUs, {sum(one.offer is not None for one in priced)} of them with a price for {count or 1}"
    )
    if gpu is not None:
        sentence = ", ".join(f"{one.gpus} x {one.spec.key}" for one in priced)
    name, document = gpus_document(priced, today, providers)
    return Answer(tuple(one.spec for one in priced), sentence, name, document, rows)


def runs(*, tags: Iterable[str] = ()) -> Answer[list[RunSummary]]:
    """List the runs started here, newest first, as `advisor runs` does; with `tags`, only runs that have them."""
    from advisor.history.listing import list_runs
    from advisor.store.store import default_store

    wanted = {tag.strip().lower() for tag in tags}
    found = [run for run in list_runs(default_store()) if wanted <= set(run.tags)]
    rows = [vars(run) for run in found]
    return Answer(found, f"{len(found)} runs", "runs", {"runs": found}, rows, ("id", "name", "state"))


def explain(answer: Answer[Any] | Plan, number: str) -> Answer[Explanation]:
    """Say how a number of a plan or prediction was computed: `explain(plan(gpu="l4", budget=5), "cost")`.

    The frame has a row for each number that was used.
    """
    from advisor.explanation import explain as explained

    found = explained(answer.record if isinstance(answer, Answer) else answer, number)
    rows = [{"input": name, "value": value} for name, value in found.inputs.items()]
    return Answer(found, found.sentence, "explanation", vars(found) | {"sentence": found.sentence}, rows)


def _run_row(run: Run) -> dict[str, Any]:
    from advisor.report import rl
    from advisor.report.prediction import layout_words

    shape, rollouts, hour = run.workload.shape, run.workload.rollouts, 3600.0
    return {
        "name": run.standing.name,
        "gpu": run.offer.gpu,
        "gpus": run.offer.gpus,
        "provider": run.offer.provider,
        "family": shape.family,
        "depth": shape.depth,
        "parameters": run.parameters,
        "tokens": run.tokens,
        "spot": run.offer.spot,
        "layout": None if (cut := run.workload.layout) is None else layout_words(cut),
        "micro_batch": run.workload.micro_batch,
        "activation_checkpointing": run.workload.activation_checkpointing,
        "tokens_per_step": run.workload.step_tokens if rollouts is None else rollouts.step_tokens,
        "step_seconds": run.step_seconds,
        "train_and_generate": None if rollouts is None else rl.short_use(run.prediction),
        "hours": run.total_seconds.scaled(1 / hour),
        "usd": run.cost_usd,
        "loss": run.loss,
        "tokens_per_second": run.tokens_per_second,
        "mfu": run.prediction.mfu,
        "device_bytes": run.prediction.device_bytes,
        "keeps_deadline": "time" not in run.standing.against,
        "keeps_budget": "money" not in run.standing.against,
    }


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table with three columns for each Estimate."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Estimate):
            named = f"{name}_" if name else ""
            flat |= {name or "value": value.value, f"{named}low": value.low, f"{named}high": value.high}
        else:
            flat[name] = str(value) if isinstance(value, Path) else value
    return flat


def _read(record: type[Record], options: Mapping[str, Any]) -> Record:
    """Return the record of a command's options."""
    from advisor.workflows.goal import read_record

    return read_record(record, options)
