"""Judges a run from its log and from the facts that the user states."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
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
from advisor.findings.durations import file_seconds, main_part, mean_rate, run_seconds
from advisor.findings.forecast import Forecast, ForecastPlace, Targets, forecast, limits
from advisor.findings.make_case import make_case
from advisor.findings.measured import Measured, measured
from advisor.findings.overlap import Savings, savings
from advisor.findings.registry import Coverage, coverage, judge
from advisor.findings.run_facts import (
    begins_late,
    has_words,
    last_checkpoint,
    number,
    planned_steps,
    price,
    print_gap,
    steps_done,
)
from advisor.findings.savings import GO_ON, worth_saying
from advisor.findings.series import finite
from advisor.findings.workload_of import infer
from advisor.hardware.offers import cheapest_offer
from advisor.planning.models import models_of
from advisor.prediction.profile import Profile
from advisor.readers.axis import JOINED_BY_LAST
from advisor.readers.config_names import read_config
from advisor.readers.run_table import RunPart, RunTable, Status
from advisor.readers.telemetry_file import read_telemetry
from advisor.records import Plan
from advisor.store.plan_files import load_plan
from advisor.store.store import Store
from advisor.workflows.ask_about_log import AssistantReading

# fields of a part of a log that its document repeats unchanged
_OF_A_PART = ("name", "status", "status_reason", "first_line", "last_line", "first_step", "last_step", "starts")
_OF_A_RUN = ("source", "format", "framework", "rows", "first_step", "last_step", "status", "status_reason", "facts",
             "notes", "events")  # fmt: skip
_OF_AN_ANALYSIS = ("mfu", "measured", "findings", "insufficient", "forecast", "assistant")
# sizes that a published model's number of parameters implies
_SIZES = ("family", "depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size")
_APART = 0.04  # of the median: a mean rate within it is told as the same number
# notes on how to read the log, which ask for no action
_IDLE_NOTES = frozenset(("loss_spikes", "steps_missing", "loss_noise"))

# findings that say no more than how the run ended
_EXPLAINED = frozenset(("out_of_memory", "time_limit", "loss_not_finite"))
# ends after which a run resumes from its last checkpoint
_MUCH_LOWER = 0.8  # times the first and the last loss; a loss between that was so low is named
_CUT_OFF = (Status.OUT_OF_MEMORY, Status.TIME_LIMIT, Status.KILLED, Status.CRASHED)
_VERBS = {  # before how far the run came
    Status.COMPLETED: "completed", Status.INCOMPLETE: "did", Status.NO_END: "did", Status.DIVERGED: "diverged after",
    Status.OUT_OF_MEMORY: "ran out of memory after", Status.TIME_LIMIT: "reached its time limit after",
    Status.STOPPED: "was stopped after", Status.KILLED: "was killed after", Status.CRASHED: "crashed after",
    Status.RUNNING: "is running and has done",
}  # fmt: skip
_ENDED = re.compile(r"(?:interrupted|killed|stopped|ended) [^:]*")  # a reason that is such a verb
_NO_STEP = {"completed": "completed without a printed step", "did": "printed no step",  # if no step is known
            "is running and has done": "is running and has printed no step yet"}  # fmt: skip
_ALL_DONE = re.compile(r"reached |(?:all|\d+ of) [\d,]+ steps done")
# titles of findings that say no more than how the run ended
_ONLY_THE_END = re.compile(
    r"The run (crashed|was killed (?:from outside|for lack of host memory))(, no step read| at step [\d,.]+( of .*)?)?"
)
_LOG_ENDS = re.compile(r"^the log ends at \w+ [\d.e+]+(?: of [\d.e+]+)?")
# the place in the reason of an end
_AT = re.compile(r" (?:before the first \w+|after \w+ [\d.e+]+(?: of [\d.e+]+)?)(?=:|$)")

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
class RunVerdict:
    """The first lines of a report; "" if there is nothing to say."""

    happened: str
    problem: str  # the main finding, unless `happened` says it already
    look: str  # the first note, if there is neither an error nor a warning
    change: str
    cost: str

    @property
    def lines(self) -> tuple[tuple[str, str], ...]:
        """Returns the label and the text of each line that is not empty."""
        labels = ("What happened", "Problem", "Worth a look", "Change", "Cost")
        texts = (self.happened, self.problem, self.look, self.change, self.cost)
        return tuple((label, text) for label, text in zip(labels, texts, strict=True) if text)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The full analysis of one run."""

    case: Case
    findings: tuple[Finding, ...]
    insufficient: tuple[Insufficient, ...]
    forecast: Forecast
    verdict: RunVerdict
    main_finding: Finding | None
    spent_hours: float | None
    spent_usd: float | None
    tokens_per_second: float | None  # median of steady steps
    mean_tokens_per_second: float | None  # over the whole run
    mfu: float | None  # of the median step, from exact FLOPs and the GPU's dense peak
    measured: Measured
    savings: Savings | None = None  # of all findings, without counting a second twice; None: unknown
    run_seconds: tuple[float | None, ...] = ()  # of each run in the log, by its own clocks
    given: Given = Given()  # facts that the user stated
    assistant: AssistantReading | None = None  # what an assistant said of the log; None if none was asked

    @property
    def mean_mfu(self) -> float | None:
        """Returns the MFU of the mean rate over the whole run."""
        mean, median = self.mean_tokens_per_second, self.tokens_per_second
        return self.mfu * mean / median if self.mfu is not None and mean is not None and median else None

    @property
    def mean_apart(self) -> float | None:
        """Returns the mean rate over the whole run, unless it is nearly the median step's."""
        mean, median = self.mean_tokens_per_second, self.tokens_per_second
        return mean if mean is not None and median and abs(mean / median - 1) > _APART else None

    @property
    def run(self) -> RunTable:
        return self.case.run


def judge_run(run: RunTable, given: Given, store: Store) -> Analysis:
    """Judge a run that was read; raises AdvisorError if a stated fact cannot be read."""
    case = case_of(run, given, store)
    findings, insufficient = judge(case)
    if "group_size" in case.run.facts:
        from advisor.workflows.rl_log import rl_step_finding  # only a log of RL needs its planner

        findings += filter(None, [rl_step_finding(case, store)])
    places = _places(case, store)
    outlook = forecast(case, given.targets, places)
    seconds, usd = file_seconds(case), price(case)
    pace = run_metrics.pace(case)
    spent_hours = seconds / 3600 if seconds is not None else None
    spent_usd = spent_hours * usd if spent_hours is not None and usd is not None else None
    main = _main_finding(findings, cut=run.status is Status.INCOMPLETE)
    cost = _what_it_cost(case, outlook, spent_hours, spent_usd, main)
    limits_in_words = (f"{limit}: {answer}" for limit, answer in limits(case, given.targets, outlook))
    return Analysis(
        case=case,
        findings=tuple(findings),
        insufficient=tuple(insufficient),
        forecast=outlook,
        verdict=_verdict(case, findings, main, coverage(case, insufficient), "; ".join((cost, *limits_in_words))),
        main_finding=main,
        spent_hours=spent_hours,
        spent_usd=spent_usd,
        tokens_per_second=pace.tokens_per_second if pace else None,
        mean_tokens_per_second=mean_rate(case),
        mfu=run_metrics.mfu(case),
        measured=measured(case),
        savings=savings(case, findings, outlook.total_hours.value if outlook.total_hours else None),
        run_seconds=tuple(run_seconds(case)),
    )


def case_of(run: RunTable, given: Given, store: Store) -> Case:
    """Returns all that is known of a run; raises AdvisorError if a stated fact cannot be read."""
    stated: dict[str, Any] = dict(read_config(given.config)) if given.config else {}
    of_gpus = {"gpu": given.gpu, "world_size": given.gpus}
    stated |= {name: value for name, value in of_gpus.items() if value is not None}
    if given.usd_per_gpu_hour is not None:
        devices = stated.get("world_size") or run.facts.get("world_size") or 1
        stated["usd_per_hour"] = given.usd_per_gpu_hour * devices
    run, plan = _with_known_shape(run), load_plan(given.plan) if given.plan else None
    if given.telemetry is not None:
        run = replace(run, telemetry=read_telemetry(given.telemetry))
    return make_case(run, given=stated, profile=_profile(run, stated, plan, store), plan=plan)


def to_document(analysis: Analysis) -> dict[str, Any]:
    """Returns the JSON document of `--json`: the run as it was read, its judgement and its forecast."""
    run, case = analysis.run, analysis.case
    return {
        **{name: getattr(run, name) for name in _OF_A_RUN},
        **{name: getattr(analysis, name) for name in _OF_AN_ANALYSIS},
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
        "first_loss": _printed(run.first_loss),
        "last_loss": _printed(run.last_loss),
        "loss_change": _change(run.first_loss, run.last_loss),
        "verdict": [f"{label}: {text}" for label, text in analysis.verdict.lines],
        "throughput": analysis.tokens_per_second,
        "throughput_is": pace.source if (pace := run_metrics.pace(case)) is not None else None,
        "mean_throughput": analysis.mean_tokens_per_second,
        "mean_mfu": analysis.mean_mfu,
        "logged_mfu": run_metrics.logged_mfu(case),
        "parts_of_step": parts_of_step(case),
        "cost": {
            "hours": analysis.spent_hours,
            "usd": analysis.spent_usd,
            "usd_per_hour": price(case),
            "price_source": case.notes.get("price"),
            "whole_run_hours": analysis.forecast.total_hours,
            "whole_run_usd": analysis.forecast.total_usd,
            "savings": analysis.savings,
        },
        "checks": coverage(case, analysis.insufficient),
        "assumed": case.unsure,
        "columns": run.provenance,
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


def _verdict(case: Case, findings: Sequence[Finding], main: Finding | None, judged: Coverage, cost: str) -> RunVerdict:
    """Puts the first lines together: the end of the run, its main finding, and the first action against that."""
    codes = {finding.code for finding in findings}
    cut = main is not None and main.code == "steps_missing" and case.run.status is Status.INCOMPLETE
    broken = main is not None and main.code == "loss_not_finite" and main.severity is Severity.ERROR
    happened = _ending(
        case,
        reasoned=bool(codes & _EXPLAINED),
        broken_from=main.evidence[0].first_step if main is not None and broken else None,
    )
    # a GPU that is paid for but unused is said first, even if something else is worse
    if "cpu_fallback" in codes and main is not None and main.code != "cpu_fallback":
        happened = f"It does not run on the GPU. {happened}"
    problem, look, change = "", "", main.actions[0] if main is not None and main.actions else ""
    if main is None or (main.severity is Severity.NOTE and not cut):
        problem = f"none found in {_what_was_checked(judged)}"
        look, change = " → ".join(filter(None, (main.title, change))) if main is not None else "", ""
    elif not (main.severity is Severity.ERROR and main.code in _EXPLAINED) and not (cut and _how_far(case)):
        problem = "" if len(case.run.runs) < 2 and _ONLY_THE_END.fullmatch(main.title) else main.title
    return RunVerdict(happened=happened, problem=problem, look=look, change=change, cost=cost)


def _ending(case: Case, *, reasoned: bool, broken_from: float | None = None) -> str:
    """Says in sentences how the run ended, after how many steps, and with which loss.

    For several runs in one log it counts the endings, then describes the longest. `reasoned`: a finding gives the
    reason better than the log's own line. `broken_from` is the step from which the loss is not a number.
    """
    run, main, framework = case.run, main_part(case.run), f"{case.run.framework} " if case.run.framework else ""
    several, named = "", f"The {framework}run"
    if len(run.runs) > 1:
        ways = Counter(end_in_words(part) for part in run.runs).most_common()
        counts = f"all {ways[0][0]}" if len(ways) == 1 else ", ".join(f"{count} {words}" for words, count in ways)
        several = f"The {framework}log holds {len(run.runs)} runs: {counts}."
        if main is None:
            return several
        named = f"{several} The longest, {main.name},"
        run = replace(run, runs=(), status=main.status, status_reason=main.status_reason)
        case = replace(case, run=run)
    far, losses, verb = _how_far(case), _losses(run, broken_from), _VERBS[run.status]
    if part := steps_of_a_part(case):
        losses = f"; this log holds only {part}, in which {losses.removeprefix('; ') or 'no loss is printed'}"
    # the place is stated already
    why = _LOG_ENDS.sub("the log ends there", _AT.sub("", run.status_reason, count=1), count=1)
    why = f"{why}, without an end message" if why == "the log ends there" else why
    if ended := _ENDED.match(why):
        verb = f"{'' if run.status is Status.COMPLETED else 'was '}{ended[0]} after"
        why = why.replace(ended[0], "the log says so", 1) if ": " in why else ""
    elif run.status is Status.COMPLETED and " of " not in far and _ALL_DONE.match(why):
        verb, why = "completed its", ""
    for own in ("the log says so: ", f"{run.status.words}: "):
        why = f"the log says “{shortened(why.removeprefix(own), 160)}”" if why.startswith(own) else why
    head, found, said = why.partition(" ran out: ")
    why = f"{head} ran out. The log says “{shortened(said, 120)}”" if found else why
    without = _NO_STEP.get(verb) or f"{verb.removesuffix(' after')}, and no step was read"
    verb = "printed" if verb == "did" and far.endswith(("row", "rows")) else verb
    only_why = run.status is Status.NO_END and why and not far and not losses
    sentences = [several] if only_why else [f"{named} {f'{verb} {far}' if far else without}{losses}"]
    sentences += [shortened(why[0].upper() + why[1:], 200)] if why and not reasoned else []
    if _says_checkpoint(run):
        saved = last_checkpoint(case)
        sentences.append(f"The last checkpoint is of step {saved:,g}" if saved else "No checkpoint is recorded")
    return " ".join(one if one.endswith((".", "…")) else f"{one}." for one in sentences if one)


def _says_checkpoint(run: RunTable) -> bool:
    """Returns True if a run ended before its time and its log has words, so that it would state a checkpoint."""
    return run.status in _CUT_OFF and has_words(run)


def _losses(run: RunTable, broken_from: float | None) -> str:
    """Says how the loss of a run went; "" if it has none."""
    first, last = run.first_loss, run.last_loss
    if first is None or last is None:
        only = last if first is None else first
        return "" if only is None else f"; its loss was {loss_words(only)}"
    sound, broken = finite(run_metrics.main_column(run, "loss")), ""
    if not np.isfinite(last):
        since = "" if broken_from is None else f" from step {broken_from:,g} on"
        broken = f", then {loss_words(last)}{since}"
        if len(sound) < 2 or not np.isfinite(first):
            start = loss_words(first) + broken if np.isfinite(first) else broken.removeprefix(", then ")
            return f"; its loss was {start}"
        last = float(sound[-1])
    before, after, lowest = loss_words(first), loss_words(last), float(min(sound, default=last))
    if 0 < lowest < _MUCH_LOWER * min(first, last):
        return f"; its loss fell from {before} to {loss_words(lowest)} and rose to {after}{broken}"
    if before == after:
        return f"; its loss {'stayed at' if run.rows > 1 else 'was'} {before}{broken}"
    return f"; its loss {'fell' if last < first else 'rose'} from {before} to {after}{broken}"


def steps_of_a_part(case: Case) -> str:
    """Names the first and the last step of a log that begins in the middle of its run; "" if it begins with it."""
    steps = finite(run_metrics.main_column(case.run, "step"))
    return (
        f"steps {units.format_count(min(steps))} to {units.format_count(max(steps))}" if begins_late(case.run) else ""
    )


def end_in_words(part: RunPart) -> str:
    ended, silent = part.status.words, part.status is Status.NO_END
    if part.phase is not None:
        return "without a recorded end" if silent else ended
    if part.status is Status.COMPLETED:
        return f"{ended} without a printed step"
    return "never trained" if silent else f"never trained ({ended})"


def _how_far(case: Case) -> str:
    """Describes how much of the run the log shows: steps, or epochs, or rows; "" if it shows nothing."""
    run, done, planned = case.run, steps_done(case.run), planned_steps(case)
    completed = run.status is Status.COMPLETED
    if completed and planned and done and done < planned <= done + max(1.0, print_gap(run)):
        done = planned  # some frameworks do not print the last rows
    epochs = finite(run_metrics.main_column(run, "epoch"))
    by_epoch = not run.counts_steps or run.provenance.get("step") == JOINED_BY_LAST
    if done and planned and planned > done:
        share = units.format_percent(done / planned)
        return f"{units.format_count(done)} of {units.format_count(planned)} steps ({share})"
    if done and not (by_epoch and len(epochs)):
        return _several(done, "step")
    if by_epoch and len(epochs):
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
    bar = next((event.numbers for event in run.events if "bar_steps" in event.numbers), None)  # of a file of errors
    return f"{bar['bar_steps']:,.0f} of {bar['bar_total']:,.0f} steps" if bar and not len(run) else ""


def _several(count: float, thing: str) -> str:
    number_ = units.format_count(count) if count == int(count) else units.format_number(count)
    return f"{number_} {thing}{'' if count == 1 else 's'}"


def shortened(text: str, most: int) -> str:
    """Returns a text cut to `most` characters, with a mark where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def loss_words(loss: float) -> str:
    """Returns a loss as text, also one that is NaN or infinite."""
    return units.format_number(loss) if np.isfinite(loss) else "NaN" if np.isnan(loss) else "infinite"


def loss_range(first: float | None, last: float | None) -> str:
    """Returns a run's losses as text: "11.1 to 3.2", or "11.1, then NaN" of a run that broke, or "" without any."""
    ends = dict.fromkeys(loss_words(loss) for loss in (first, last) if loss is not None)
    return (" to " if last is None or np.isfinite(last) else ", then ").join(ends)


def _what_it_cost(case: Case, outlook: Forecast, hours: float | None, usd: float | None, main: Finding | None) -> str:
    if hours is None and run_metrics.pace(case) is not None:
        return "unknown: the log prints a rate, but neither the tokens of a step nor any time"
    if hours is None:
        return "unknown: the log has neither step times nor time stamps nor a total"
    money = f", {units.format_usd(usd)}" if usd is not None else ""
    part = f" for {part}" if (part := steps_of_a_part(case)) else ""
    cost = f"{units.format_seconds(hours * 3600)}{money}{part}"
    pace, share, logged = run_metrics.pace(case), run_metrics.mfu(case), run_metrics.logged_mfu(case)
    speed = f"; {units.format_rate(pace.tokens_per_second)}" if pace else ""
    mean = mean_rate(case)
    if pace and mean is not None and abs(mean / pace.tokens_per_second - 1) > _APART:
        speed = f"; {units.format_rate(mean)} over the run"
        share = share * mean / pace.tokens_per_second if share is not None else None
    found = run_metrics.share_of_peak(case)
    if share is not None:
        speed += f", MFU {units.format_percent(share)}"
    elif logged is not None:
        speed += f", MFU {units.format_percent(logged)} as logged"
    elif found is not None:
        peak = f"{units.format_percent(found)} of the peak of {_several(run_metrics.devices(case), 'GPU')}"
        speed += f", MFU unknown: it would be {peak}; how many were there? (--gpus)"
    avoidable, later = "", ""
    if main is not None and main.saved_hours is not None and worth_saying(main.saved_hours, main.saved_usd):
        dear = main.saved_usd if main.saved_usd is not None and main.saved_usd.value > 0 else None
        saved = units.format_centre(main.saved_hours.scaled(3600), units.format_seconds)
        saved = units.format_centre(dear, units.format_usd) if dear else saved
        over = case.run.status not in GO_ON
        avoidable, later = (f", of which {saved} avoidable", "") if over else ("", f"; the change saves {saved}")
    rest = "" if usd is not None else "; price unknown"
    if outlook.rest_hours is not None and outlook.rest_hours.value > 0:
        label, takes, costs = "the rest would take", outlook.rest_hours, outlook.rest_usd
        if _says_checkpoint(case.run) and not last_checkpoint(case) and outlook.total_hours is not None:
            label, takes, costs = "starting anew would take", outlook.total_hours, outlook.total_usd
        rest += f"; {label} {units.format_centre(takes.scaled(3600), units.format_seconds)}"
        rest += f", {units.format_centre(costs, units.format_usd)}" if costs else ""
    return cost + avoidable + speed + rest + later


def _what_was_checked(judged: Coverage) -> str:
    """Says which share of the checks could be made, and what to log for the others."""
    others = judged.checks - judged.possible
    rest = f"; {others} more need {' and '.join(judged.lacking[:2])} in the log" if judged.lacking else ""
    return f"{judged.possible} checks{rest}"


def _main_finding(findings: list[Finding], *, cut: bool) -> Finding | None:
    """Returns the worst finding with something to do; that steps are missing counts if the log is `cut` off."""
    missing = [finding for finding in findings if cut and finding.code == "steps_missing"]
    loud = [finding for finding in findings if finding.severity is not Severity.NOTE] or missing
    return next(iter(loud), None) or next((f for f in findings if f.code not in _IDLE_NOTES and f.actions), None)
