"""Describes the state of a run with the next command, for terminal and page. No arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from advisor import units
from advisor.engines.state import BY_YOU, RunState, goes_on
from advisor.history.progress import Progress
from advisor.records import Estimate
from advisor.units import DAY, HOUR, MINUTE
from advisor.workflows.live import LogLook
from trainer.schema import Outcome

_QUIET = 5.0  # seconds of silence that are worth mentioning
UNSTEADY = 10.0  # if the interval's ends differ by more than this factor, no end is predicted
_LENGTHS = ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes"))
_NEXT = {
    Outcome.COMPLETED: "advisor compare {run}",
    Outcome.STOPPED: "advisor resume {run}",
    Outcome.OUT_OF_MEMORY: "plan again with a smaller micro-batch: advisor plan --micro-batch N",
    Outcome.DIVERGED: "look at the losses in {run}/log.jsonl; plan again and lower learning_rate in the plan's run",
    Outcome.FAILED: "read {run}/stdout.log, fix the cause, then: advisor resume {run}",
}


def line(progress: Progress) -> str:
    """Describes an active run on one line: steps, loss, tokens/s, time left and cost; or what it waits for."""
    if progress.state != RunState.RUNNING:
        because = f": {progress.reason}" if progress.reason else ""
        seen = f"; last seen at step {units.format_count(progress.step)}" if progress.step else ""
        return f"{progress.state}{because}{seen}"
    if progress.step_seconds is None:
        expected = progress.eta_seconds
        to_go = (
            f"; by the plan about {units.format_estimate(expected, units.format_seconds)} to go"
            if expected is not None
            else ""
        )
        return f"starting, {units.format_seconds(progress.elapsed_seconds)} so far{to_go}"
    parts = [f"step {units.format_count(progress.step)}/{units.format_count(progress.steps)}"]
    if progress.tokens_per_second is None:  # of an adopted command
        planned = units.format_estimate(progress.step_seconds_predicted, units.format_seconds)
        parts.append(f"{units.format_seconds(progress.step_seconds)} a step (planned {planned})")
    else:
        parts += [f"loss {_loss(progress)}", f"{units.format_rate(progress.tokens_per_second)} now"]
    if progress.mfu is not None:
        parts.append(f"MFU {units.format_percent(progress.mfu)}")
    if (left := left_words(progress)) is not None:
        parts.append(left)
    if progress.usd_per_hour:
        at_end = f", {units.format_estimate(progress.usd_at_end, units.format_usd)} at the end"
        parts.append(f"{units.format_usd(progress.usd_so_far)} so far{at_end if progress.usd_at_end else ''}")
    return "   ".join(parts)


def left_words(progress: Progress) -> str | None:
    """Says how long a run still takes, or when its limit stops it if that comes first; None if nothing is known."""
    if progress.eta_seconds is None:
        return None
    if not progress.stops_early:
        return time_left(progress.eta_seconds)
    words = f"stops at its limit in {units.format_seconds(progress.guard_seconds_left)}"
    if not progress.step_seconds or progress.guard_seconds_left is None:
        return words
    share = progress.guard_seconds_left / progress.eta_seconds.value  # of what is left, evaluations too
    reached = min(progress.steps - 1, progress.step + round((progress.steps - progress.step) * share))
    return f"{words}, about step {units.format_count(reached)} of {units.format_count(progress.steps)}"


def time_left(seconds: Estimate, left: str = " left") -> str:
    """Says how long a run still takes; for an unsteady run, only the longest time it may take."""
    if seconds.high <= UNSTEADY * max(seconds.low, 1.0):
        return f"{units.format_estimate(seconds, units.format_seconds)}{left}"
    unit = next((name for length, name in _LENGTHS if seconds.high >= 2 * length), "seconds")
    return f"{units.format_seconds(seconds.value)} to several {unit}{left}, unsteady"


def state_words(progress: Progress) -> tuple[str, str]:
    """Returns a run's state in a word, and a sentence that says how it will end, how it ended or what it waits for."""
    reason, step = progress.reason or "", units.format_count(progress.step)
    if progress.state == RunState.RUNNING and progress.step_seconds is None:
        return "starting", left_words(progress) or f"{units.format_seconds(progress.elapsed_seconds)} so far"
    if progress.state == RunState.RUNNING:
        if progress.eta_seconds is None or progress.stops_early:
            return "running", left_words(progress) or ""
        limit, within = progress.guard_seconds_left, ""
        if limit is not None:
            stops = f", or stops at its limit in {units.format_seconds(limit)}"
            within = ", within its limit" if progress.eta_seconds.high <= limit else stops
        return "running", f"ends in {time_left(progress.eta_seconds, '')}{within}"
    if progress.state == RunState.NEVER_STARTED or goes_on(progress.state):
        return progress.state, reason
    word = (progress.outcome or progress.state).replace("_", " ")
    took = units.format_seconds(progress.elapsed_seconds)
    kept = progress.checkpoint_step
    checkpoint = f"; checkpoint kept at step {units.format_count(kept)}" if kept is not None else ""
    if progress.outcome == Outcome.COMPLETED:
        total = progress.total_seconds_predicted
        planned = f" (planned {units.format_estimate(total, units.format_seconds)})" if total is not None else ""
        return word, f"all {units.format_count(progress.steps)} steps in {took}{planned}"
    if progress.more_hours is not None:
        return word, f"at its limit after {took}{checkpoint}"
    if progress.reason == BY_YOU:
        return word, f"{BY_YOU} at step {step}{', checkpoint kept' if checkpoint else ''}"
    return word, f"at step {step}{reason and ': '}{reason}"


@dataclass(frozen=True, kw_only=True)
class TimeBar:
    """The bar of a run: times since its start as shares of the bar. None: unknown or not on the bar."""

    now: float
    end: tuple[float, float, float] | None = None  # the expected end, with its interval
    limit: float | None = None
    end_words: str = ""
    limit_words: str = ""


def time_bar(progress: Progress) -> TimeBar:
    """Returns the bar of a run, by the clock while it runs and its end or limit is known, else by its steps.

    Once the run is complete, the bar shows its time and the planned time.

    A limit that is far beyond the end is named, but lies outside the bar.
    """
    now, eta, room = progress.elapsed_seconds, progress.eta_seconds, progress.guard_seconds_left
    limit = None if room is None else now + room
    end = None if eta is None else (now + eta.value, now + eta.low, min(now + eta.high, 2 * (now + eta.value)))
    if end is None and limit is None:
        planned = progress.total_seconds_predicted
        if progress.outcome == Outcome.COMPLETED and planned is not None:
            span = max(1.0, now, planned.high)
            end = (planned.value / span, planned.low / span, planned.high / span)
            return TimeBar(now=now / span, end=end, end_words="predicted")  # its numbers stand in the sentence above
        done, at_limit = min(1.0, progress.step / max(1, progress.steps)), progress.more_hours is not None
        return TimeBar(now=done, limit=done if at_limit else None, limit_words="limit" if at_limit else "")
    longest = max(end) if end is not None else 0.0
    far = limit is not None and end is not None and limit > 1.5 * longest
    span = max(1.0, longest if far or limit is None else max(longest, limit))
    return TimeBar(
        now=now / span,
        end=None if end is None else (end[0] / span, end[1] / span, end[2] / span),
        limit=None if limit is None or far else limit / span,
        end_words="" if end is None else f"end {units.format_seconds(end[0])}",
        limit_words="" if limit is None else f"limit {units.format_seconds(limit)}",
    )


def closing_lines(progress: Progress, run_dir: Path) -> list[str]:
    """Returns lines that describe the run's state and suggest the next command."""
    if goes_on(progress.state):
        return [line(progress), f"next: advisor watch {run_dir}"]
    if progress.state == RunState.NEVER_STARTED:
        because = f": {progress.reason}" if progress.reason else ""
        return [f"{run_dir} was never started{because}", f"next: advisor resume {run_dir}"]
    word, ended = state_words(progress)
    if progress.reason != BY_YOU:  # the terminal has room for the whole reason
        ended = f": {progress.reason}" if progress.reason and progress.outcome != Outcome.COMPLETED else ""
    tokens = f"{units.format_tokens(progress.tokens)} tokens in " if progress.tokens_planned else ""
    parts = [
        f"{units.format_count(progress.step)} of {units.format_count(progress.steps)} steps",
        f"{tokens}{units.format_seconds(progress.elapsed_seconds)}",
    ]
    if progress.total_seconds_predicted is not None and progress.outcome == Outcome.COMPLETED:
        parts[-1] += f" (planned {units.format_estimate(progress.total_seconds_predicted, units.format_seconds)})"
    if progress.tokens_per_second is not None:
        parts.append(f"{units.format_rate(progress.tokens_per_second)} at the median step")
    if progress.loss_so_far is not None:
        parts.append(f"training loss {_loss(progress)}")
    if progress.eval_loss is not None:
        parts.append(f"validation loss {units.format_number(progress.eval_loss)}")
    if progress.usd_so_far is not None:
        parts.append(units.format_usd(progress.usd_so_far))
    lines = [f"{word}{' ' if progress.reason == BY_YOU else ''}{ended}", ", ".join(parts)]
    if progress.message:
        lines.append(f"warning: {progress.message}")
    lines.append(f"run folder: {run_dir}")
    if progress.outcome == Outcome.STOPPED and progress.more_hours is not None:
        enough = units.write_duration(math.ceil(progress.more_hours * HOUR))  # for the rest, as a user would type it
        step = f"its limit leaves no time for another step: advisor resume {run_dir} --deadline {enough}"
    elif progress.outcome is not None:
        step = _NEXT[Outcome(progress.outcome)].format(run=run_dir)
    elif progress.checkpoint_step is not None:
        step = f"continue from step {units.format_count(progress.checkpoint_step)}: advisor resume {run_dir}"
    else:
        step = f"read {run_dir}/stdout.log; start it again: advisor resume {run_dir}"
    return [*lines, f"next: {step}"]


def _loss(progress: Progress) -> str:
    """Returns the training loss so far, and the plan's interval for it at this step."""
    loss, expected = units.format_number(progress.loss_so_far), progress.loss_expected
    if expected is None:
        return loss
    return f"{loss} (planned {units.format_number(expected.low)} to {units.format_number(expected.high)} here)"


def line_of_log(seen: LogLook) -> str:
    """Describes a log's progress, loss, measured speed and time left, or how the run ended."""
    parts = []
    if seen.step is not None:
        planned = f"/{units.format_count(int(seen.planned))}" if seen.planned else ""
        parts.append(f"{seen.counts} {units.format_count(int(seen.step))}{planned}")
    if seen.loss is not None:
        parts.append(f"loss {units.format_number(seen.loss)}")
    if seen.over:
        parts.append(f"{seen.status}: {seen.reason}")
        return "   ".join(parts)
    if seen.seconds_per_step is not None:
        parts.append(f"{units.format_seconds(seen.seconds_per_step)} a {seen.counts}, as watched")
    if seen.left_seconds is not None:
        parts.append(f"{units.format_seconds(seen.left_seconds)} left")
    if seen.quiet_seconds >= _QUIET:
        parts.append(f"nothing written for {units.format_seconds(seen.quiet_seconds)}")
    return "   ".join(parts) or "no training step yet"
