"""Judges a run from its log and from the facts that the user states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from advisor import units
from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.findings import run_metrics
from advisor.findings.case import Case, Finding, Insufficient, Severity
from advisor.findings.chart_data import parts_of_step
from advisor.findings.durations import file_seconds, main_part, run_seconds
from advisor.findings.forecast import Forecast, ForecastPlace, Targets, forecast, limits
from advisor.findings.make_case import make_case
from advisor.findings.measured import Measured, measured
from advisor.findings.overlap import Savings, savings
from advisor.findings.registry import Coverage, coverage, judge
from advisor.findings.run_facts import number, planned_steps, price, print_gap, steps_done
from advisor.findings.savings import worth_saying
from advisor.findings.series import finite
from advisor.findings.workload_of import infer
from advisor.hardware.offers import cheapest_offer
from advisor.planning.models import models_of
from advisor.prediction.profile import Profile
from advisor.readers.config_names import read_config
from advisor.readers.run_table import RunPart, RunTable, Status
from advisor.readers.telemetry_file import read_telemetry
from advisor.records import Plan
from advisor.store.plan_files import load_plan
from advisor.store.store import Store
from advisor.workflows.ask_about_log import AssistantReading
from advisor.workflows.rl_log import rl_step_finding

# fields of a part of a log that its document repeats unchanged
_OF_A_PART = ("name", "status", "status_reason", "first_line", "last_line", "first_step", "last_step", "starts")
# sizes that a published model's number of parameters implies
_SIZES = ("family", "depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size")
# notes on how to read the log, which ask for no action
_IDLE_NOTES = frozenset(("loss_spikes", "steps_missing", "loss_noise"))

# Popular rented GPUs that the run could have used instead, small to large.
ELSEWHERE = ("l4", "rtx-4090", "l40s", "a100-80gb-sxm", "h100-80gb-sxm", "h200-141gb-sxm", "b200")


@dataclass(frozen=True, kw_only=True)
class Given:
    """The facts that the user states, which override the log. None: not stated."""

    gpu: str | None = None
    gpus: int | None = None
    usd_per_gpu_hour: float | None = None
    config: Path | None = None
    telemetry: Path | None = None
    plan: Path | None = None
    format: str | None = None
    targets: Targets = Targets()


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The full analysis of one run."""

    case: Case
    findings: tuple[Finding, ...]
    insufficient: tuple[Insufficient, ...]
    forecast: Forecast
    verdict: tuple[str, str, str]  # what happened, what it cost, what to do
    spent_hours: float | None
    spent_usd: float | None
    tokens_per_second: float | None  # median of steady steps
    mfu: float | None  # from exact FLOPs and the GPU's dense peak
    measured: Measured
    savings: Savings | None = None  # of all findings, without counting a second twice; None: unknown
    run_seconds: tuple[float | None, ...] = ()  # of each run in the log, by its own clocks
    given: Given = Given()  # facts that the user stated
    assistant: AssistantReading | None = None  # what an assistant said of the log; None if none was asked

    @property
    def run(self) -> RunTable:
        return self.case.run


def judge_run(run: RunTable, given: Given, store: Store) -> Analysis:
    """Judge a run that was read; raises AdvisorError if a stated fact cannot be read."""
    case = case_of(run, given, store)
    findings, insufficient = judge(case)
    findings += filter(None, [rl_step_finding(case, store)])
    places = _places(case, store)
    outlook = forecast(case, given.targets, places)
    seconds, usd = file_seconds(case), price(case)
    pace = run_metrics.pace(case)
    spent_hours = seconds / 3600 if seconds is not None else None
    spent_usd = spent_hours * usd if spent_hours is not None and usd is not None else None
    # The verdict begins with the place of the run, and with any GPU that is paid for but unused.
    happened = _what_happened(case)
    program, _, rest = happened.partition(": ")
    fell_back = any(finding.code == "cpu_fallback" for finding in findings)
    return Analysis(
        case=case,
        findings=tuple(findings),
        insufficient=tuple(insufficient),
        forecast=outlook,
        verdict=(
            (f"{program}: it does not run on the GPU; {rest}" if fell_back else happened),
            "; ".join(
                (
                    _what_it_cost(case, outlook, spent_hours, spent_usd),
                    *(f"{limit}: {answer}" for limit, answer in limits(case, given.targets, outlook)),
                )
            ),
            _what_to_do(findings, coverage(case, insufficient)),
        ),
        spent_hours=spent_hours,
        spent_usd=spent_usd,
        tokens_per_second=pace.tokens_per_second if pace else None,
        mfu=run_metrics.mfu(case),
        measured=measured(case),
        savings=savings(case, findings, outlook.total_hours.value if outlook.total_hours else None),
        run_seconds=tuple(run_seconds(case)),
    )


def case_of(run: RunTable, given: Given, store: Store) -> Case:
    """Returns all that is known of a run; raises AdvisorError if a stated fact cannot be read."""
    run, stated, plan = _with_what_is_given(run, given)
    return make_case(run, given=stated, profile=_profile(run, stated, plan, store), plan=plan)


def to_document(analysis: Analysis) -> dict[str, Any]:
    """Returns the JSON document of `--json`: the run as it was read, its judgement and its forecast."""
    run, case = analysis.run, analysis.case
    return {
        "source": run.source,
        "format": run.format,
        "framework": run.framework,
        "rows": run.rows,
        "phases": [phase.name for phase in run.phases],
        "runs": [
            {
                **{name: getattr(part, name) for name in _OF_A_PART},
                "trained": part.phase is not None,
                "first_loss": _printed(part.first_loss),
                "last_loss": _printed(part.last_loss),
                "hours": None if seconds is None else seconds / 3600,
            }
            for part, seconds in zip(run.runs, analysis.run_seconds, strict=True)
        ],
        "first_step": run.first_step,
        "last_step": run.last_step,
        "first_loss": _printed(run.first_loss),
        "last_loss": _printed(run.last_loss),
        "loss_change": _change(run.first_loss, run.last_loss),
        "status": run.status,
        "status_reason": run.status_reason,
        "verdict": analysis.verdict,
        "throughput": analysis.tokens_per_second,
        "mfu": analysis.mfu,
        "logged_mfu": run_metrics.logged_mfu(case),
        "parts_of_step": parts_of_step(case),
        "measured": analysis.measured,
        "cost": {
            "hours": analysis.spent_hours,
            "usd": analysis.spent_usd,
            "usd_per_hour": price(case),
            "price_source": case.notes.get("price"),
            "whole_run_hours": analysis.forecast.total_hours,
            "whole_run_usd": analysis.forecast.total_usd,
            "savings": analysis.savings,
        },
        "findings": analysis.findings,
        "insufficient": analysis.insufficient,
        "checks": coverage(case, analysis.insufficient),
        "forecast": analysis.forecast,
        "facts": run.facts,
        "assumed": case.unsure,
        "columns": run.provenance,
        "notes": run.notes,
        "assistant": analysis.assistant,
        "events": run.events,
    }


def _change(first: float | None, last: float | None) -> float | None:
    """Returns the change of the loss as a share of the first loss (-0.47: 47 % lower), or None if it has no meaning."""
    if first is None or last is None or not (np.isfinite(first) and np.isfinite(last) and first > 0):
        return None
    return last / first - 1


def _printed(loss: float | None) -> float | str | None:
    """Returns a loss as the log has it: as text if JSON has no such number."""
    if loss is None or np.isfinite(loss):
        return loss
    return "nan" if np.isnan(loss) else ("inf" if loss > 0 else "-inf")


def _with_what_is_given(run: RunTable, given: Given) -> tuple[RunTable, dict[str, Any], Plan | None]:
    """Returns the run with its telemetry, the stated facts by the names of FACTS, and the plan."""
    stated: dict[str, Any] = dict(read_config(given.config)) if given.config else {}
    if given.gpu is not None:
        stated["gpu"] = given.gpu
    if given.gpus is not None:
        stated["world_size"] = given.gpus
    if given.usd_per_gpu_hour is not None:
        devices = stated.get("world_size") or run.facts.get("world_size") or 1
        stated["usd_per_hour"] = given.usd_per_gpu_hour * devices
    run = _with_known_shape(run)
    if given.telemetry is not None:
        run = replace(run, telemetry=read_telemetry(given.telemetry))
    return run, stated, load_plan(given.plan) if given.plan else None


def _with_known_shape(run: RunTable) -> RunTable:
    """Returns the run with the shape of the published model whose number of parameters it prints, if it prints none."""
    count, facts = number(run.facts, "parameters"), run.facts
    if not count or facts.keys() & {"depth", "width", "heads"} or facts.get("trained_parameters", count) != count:
        return run
    models = models_of(count)
    if not models:
        return run
    shape = {name: getattr(models[0].shape, name) for name in _SIZES}
    note = f"the shape is {models[0].name}'s, which has exactly these {count:,.0f} parameters"
    return replace(run, facts={**facts, **shape}, notes=(*run.notes, note))


def _profile(run: RunTable, stated: Mapping[str, Any], plan: Plan | None, store: Store) -> Profile | None:
    """Returns the profile of the run's GPU, or None if the GPU or its speed is unknown."""
    inferred = infer(run, stated)
    key = plan.workload.gpu if plan else inferred.gpu
    if key is None:
        return None
    w = plan.workload if plan else inferred.workload
    try:
        return load_profile(key, store, family=w.shape.family if w else None, precision=w.precision if w else None,
                            compile=w.compile if w else None, software=w.software if w else None)  # fmt: skip
    except AdvisorError:
        return None  # an uncalibrated CPU, or a GPU without this precision: the detectors name what is missing


def _places(case: Case, store: Store) -> list[ForecastPlace]:
    """Returns other GPUs for the run with their prices; none if its workload is unknown."""
    if case.workload is None:
        return []
    places = []
    for key in ELSEWHERE:
        offer = cheapest_offer(key)
        if key == case.workload.gpu or offer is None:
            continue
        profile = load_profile(key, store, family=case.workload.shape.family)
        places.append(ForecastPlace(profile=profile, gpus=1, usd_per_gpu_hour=offer.usd_per_hour))
    return places


def _what_happened(case: Case) -> str:
    """Describes how the run ended. For several runs in one log it counts the endings, then describes the longest."""
    run, main = case.run, main_part(case.run)
    if len(run.runs) > 1:
        ways = Counter(_in_words(part) for part in run.runs)
        several = ", ".join(f"{count} {words}" for words, count in ways.most_common())
        longest = f"; the longest, {main.name}" if main is not None else ""
        own = replace(run, runs=(), status=main.status, status_reason=main.status_reason) if main is not None else None
        rest = _what_happened(replace(case, run=own)).partition(": ")[2] if own is not None else ""
        return f"{run.framework or run.format}: {len(run.runs)} runs, {several}{longest}: {rest}".removesuffix(": ")
    ends = dict.fromkeys(loss_words(loss) for loss in (run.first_loss, run.last_loss) if loss is not None)
    losses = f", loss {' to '.join(ends)}" if ends else ""
    ended, far = run.status.words, _how_far(case)
    if run.status is Status.NO_END:
        ended = f"{far or 'no training step'}, {ended}"
    elif run.status is Status.COMPLETED:
        ended += f" after {far}" if far else ", no step printed"
    elif run.status is Status.RUNNING:
        ended += f", {far} so far" if far else ", no step yet"
    else:
        counted = any("bar_steps" in event.numbers for event in run.events)  # the reason says how far
        ended += f" after {far}" if far else "" if counted else ", no step read"
    reason = f" ({shortened(run.status_reason, 160)})" if run.status_reason else ""
    return f"{run.framework or run.format}: {ended}{losses}{reason}"


def _in_words(part: RunPart) -> str:
    ended = part.status.words
    if part.phase is not None:
        return ended
    return f"{ended} without a step printed" if part.status is Status.COMPLETED else f"that never trained ({ended})"


def _how_far(case: Case) -> str:
    """Describes how much of the run the log shows: steps, or epochs, or rows; "" if it shows nothing."""
    run, done, planned = case.run, steps_done(case.run), planned_steps(case)
    completed = run.status is Status.COMPLETED
    if completed and planned and done and done < planned <= done + max(1.0, print_gap(run)):
        done = planned  # some frameworks do not print the last rows
    if done and planned and planned > done:
        share = units.format_percent(done / planned)
        return f"{units.format_count(done)} of {units.format_count(planned)} steps ({share})"
    if done:
        return _several(done, "step")
    epochs = finite(run_metrics.main_column(run, "epoch"))
    if not run.counts_steps and len(epochs):
        whole = bool(np.all(epochs == np.round(epochs)))
        first = float(epochs.min())
        each = float(np.median(np.diff(np.unique(epochs)))) if len(np.unique(epochs)) > 1 else 1.0
        before = first if first == each else 1.0  # perhaps only every tenth epoch is printed
        reached = float(epochs.max()) - first + before if whole else float(epochs.max())
        of = number(run.facts, "planned_epochs")
        if of and completed and of <= reached + 1:
            reached = of  # some frameworks do not print the last records
        shown = f"{units.format_number(reached)} of {units.format_number(of)} epochs" if of and of > reached else ""
        return shown or _several(reached, "epoch")
    if not run.counts_steps and len(run):
        return _several(run.rows or len(run), "row")
    return ""


def _several(count: float, thing: str) -> str:
    number_ = units.format_count(count) if count == int(count) else units.format_number(count)
    return f"{number_} {thing}{'' if count == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """Returns a text cut to `most` characters, with a mark where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def loss_words(loss: float) -> str:
    """Returns a loss as text, and says so if it is not a number."""
    return units.format_number(loss) if np.isfinite(loss) else "not a number"


def _what_it_cost(case: Case, outlook: Forecast, hours: float | None, usd: float | None) -> str:
    if hours is None and run_metrics.pace(case) is not None:
        return "its time and cost are unknown: the log prints a rate, but neither the tokens of a step nor any time"
    if hours is None:
        return "its time and cost are unknown: the log has neither step times nor time stamps nor a total"
    money = f", {units.format_usd(usd)}" if usd is not None else ""
    cost = f"{units.format_seconds(hours * 3600)}{money}"
    pace, share, logged = run_metrics.pace(case), run_metrics.mfu(case), run_metrics.logged_mfu(case)
    speed = f" at {units.format_rate(pace.tokens_per_second)}" if pace else ""
    found = run_metrics.share_of_peak(case)
    if share is not None:
        speed += f", MFU {units.format_percent(share)}"
    elif logged is not None:
        speed += f", MFU {units.format_percent(logged)} as logged"
    elif found is not None:
        gpus = run_metrics.devices(case)
        of = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        peak = f"{units.format_percent(found)} of the peak of {of}"
        speed += f", MFU unknown: it would be {peak}; how many were there? (--gpus)"
    rest = "" if usd is not None else "; price unknown"
    if outlook.rest_hours is not None and outlook.rest_hours.value > 0:
        rest += f"; the rest would take {units.format_estimate(outlook.rest_hours.scaled(3600), units.format_seconds)}"
        rest += f", {units.format_estimate(outlook.rest_usd, units.format_usd)}" if outlook.rest_usd else ""
    return cost + speed + rest


def _what_was_checked(judged: Coverage) -> str:
    """Says which share of the checks could be made, and what to log for the others."""
    possible = (
        f"the {units.format_count(judged.possible)} of {units.format_count(judged.checks)} checks that were possible"
    )
    if not judged.lacking:
        return possible
    return f"{possible}; log {' and '.join(judged.lacking[:2])} for the rest"


def _what_to_do(findings: list[Finding], judged: Coverage) -> str:
    loud = [finding for finding in findings if finding.severity is not Severity.NOTE]
    worst = next(iter(loud), None) or next((f for f in findings if f.code not in _IDLE_NOTES and f.actions), None)
    if worst is None:
        return f"no error and no warning in {_what_was_checked(judged)}"
    saved = ""
    if worth_saying(worst.saved_hours, worst.saved_usd):
        if worst.saved_usd is not None and worst.saved_usd.value > 0:
            saved = f" (saves {units.format_estimate(worst.saved_usd, units.format_usd)})"
        elif worst.saved_hours is not None:
            saved = f" (saves {units.format_estimate(worst.saved_hours.scaled(3600), units.format_seconds)})"
    action = f": {worst.actions[0]}" if worst.actions else ""
    calm = (
        f"no error and no warning in {_what_was_checked(judged)}; worth a look: "
        if worst.severity is Severity.NOTE
        else ""
    )
    return f"{calm}{worst.title}{action}{saved}"
