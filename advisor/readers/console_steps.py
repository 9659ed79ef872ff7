"""Finds the steps of rows that print none, on consoles whose progress bars, epochs and last words count them.

The Hugging Face Trainer prints `{'loss': …, 'epoch': 0.31}` at intervals, without the step. The step follows from:

* the bars: no row is printed before its step, so the next bar is never behind it nor the last one ahead of it;
* the epoch, if the number of steps per epoch is known;
* the end: fewer steps than one interval lie between the last row and the last step;
* `logging_steps`, if the log prints its arguments.

An interval is used if it is the only one that agrees with all of these; otherwise the rows get no step.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.readers.chunks import Lines
from advisor.readers.line_format import EVAL, TRAIN
from advisor.readers.records import Records
from advisor.readers.status import grain
from advisor.readers.yaml_rows import regex

MOST_STRAY = 0.02  # share of rows that may disagree: two processes wrote into each other's lines
MOST_SHARED = 0.2  # share of rows with no bar between them and the next; above it, rows are printed late
MOST_HITS = 0.9  # share of rows that stand beside a bar of their step
MOST_INTERVAL = 5_000  # longest interval between rows that is tried, in steps
COME_DOWN = 0.05  # share of the highest learning rate; below it, a schedule is near its end
LEAST_RESOLVED = 0.8  # share of rows with a step; below it, no row gets one
ROUNDER = 10  # times as round as any other interval that agrees, so somebody set it: 500 against 499 and 501
_NUMBER = rb"['\"]?(\d+(?:\.\d*)?(?:e[-+]?\d+)?)"
_OF_BANNER = {
    name: re.compile(words + rb"[^=\n]*= ([\d,]+)")
    for name, words in {
        "examples": rb"Num examples",
        "epochs": rb"Num Epochs",
        "batch": rb"Total train batch size",
        "steps": rb"Total optimization steps",
    }.items()
}


@dataclass(frozen=True, kw_only=True)
class Span:
    """A number between two bounds."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class _Said:
    """What a run says about its total steps, in the banner before its first row or the summary after its last."""

    place: float
    steps: Span | None = None  # of the whole run
    epoch_steps: Span | None = None
    is_sum: bool = False


@dataclass(frozen=True, kw_only=True)
class ConsoleMarks:
    """The bars, banners and summaries of a log, each with its place: its line number, counted as for records."""

    said: list[_Said]
    bars: np.ndarray  # place, steps done and total steps of each bar


def marks_in(lines: Lines) -> ConsoleMarks:
    """Return the bars, banners and summaries of all lines of a log."""
    text = lines.text
    found = [(match.start(), int(match[1]), int(match[2])) for match in regex("trainer_bar").finditer(text)]
    bars = np.array(found, np.float64).reshape(-1, 3)
    at = lines.indices([bar[0] for bar in found])
    # a bar in the same line as a row stands before or after that row
    begins = zip(lines.starts[at].tolist(), found, strict=True)
    behind = np.array([text.rfind(b"{", first, bar[0]) >= 0 for first, bar in begins], bool)
    bars[:, 0] = at + np.where(behind, 0.25, -0.25)
    said = []
    for match in regex("trainer_sum").finditer(text):
        seconds, rate = float(match[1]), float(match[2])
        # rounded to three decimals, in version 5 to four digits; this matters for the rate, hardly for the seconds
        room = max(0.0005, 0.0005 * 10.0 ** math.floor(math.log10(rate))) if 0 < rate < math.inf else math.inf
        steps = Span(low=seconds * (rate - room) * 0.9995, high=seconds * (rate + room) * 1.0005)
        said.append(_Said(place=lines.index(match.start()), steps=steps, is_sum=True))
    said += [_banner(match, lines.index(match.start())) for match in regex("trainer_banner").finditer(text)]
    return ConsoleMarks(said=said, bars=bars)


def _banner(match: re.Match[bytes], place: float) -> _Said:
    found = {name: pattern.search(match[0]) for name, pattern in _OF_BANNER.items()}
    number = {name: float(m[1].replace(b",", b"")) for name, m in found.items() if m is not None}
    steps = number.get("steps")
    each = None
    ratio = number.get("examples", 0.0) / (number.get("batch") or math.inf)
    if 0 < ratio < math.inf:
        each = Span(low=math.floor(ratio), high=math.ceil(ratio))
    elif steps and number.get("epochs", 0) >= 2 and steps % number["epochs"] == 0:  # no step limit ends it early
        each = Span(low=steps / number["epochs"], high=steps / number["epochs"])
    return _Said(place=place, steps=None if steps is None else Span(low=steps, high=steps), epoch_steps=each)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The rows of one training, and what is known about its steps."""

    epoch: np.ndarray
    room: np.ndarray  # how far a printed epoch may be rounded
    before: np.ndarray  # steps of the last bar before each row and of the first bar after it
    behind: np.ndarray
    reached: float  # steps of the last bar
    steps: Span | None  # of the whole run
    epoch_steps: Span | None
    every: float | None  # `logging_steps`
    over: bool  # the run completed all its steps
    late: bool  # rows are printed late, so a bar says nothing about the row beside it


def with_steps(
    records: Records, marks: ConsoleMarks, facts: Mapping[str, Any]
) -> tuple[Records, list[tuple[int, float]]]:
    """Return records with the steps that the log implies, and how far the bars went after the last row of each run.

    The second value is a list of (line, steps). Records that print a step, or whose log implies none, are unchanged.
    """
    train = np.flatnonzero(records.kind == TRAIN)
    printed = records.column("step")
    if not len(train) or np.isfinite(printed[train]).any():
        return records, []
    step, planned = printed.copy(), records.column("planned_steps").copy()
    bars, further, resolved = marks.bars, [], 0
    twice = _printed_twice(records, train)
    parts = _runs(records, train[~twice], marks)
    borders = [-np.inf, *(float(records.order[part[0]]) for part in parts[1:]), np.inf]
    for number, part in enumerate(parts):
        within = (borders[number], borders[number + 1])
        before = float(records.order[parts[number - 1][-1]]) if number else -np.inf
        run, total = _run(records, part, bars[(bars[:, 0] > before) & (bars[:, 0] < within[1])], marks, facts, within)
        found = _steps(run)
        if found is None and run.epoch_steps is not None:  # the batch of a banner of GRPO counts answers, not prompts
            run = dataclasses.replace(run, epoch_steps=None)
            found = _steps(run)
        if found is None:
            continue
        step[part] = found
        planned[part] = total if total is not None else planned[part]
        _place_evaluations(step, records, part, run, within)
        resolved += len(part)
        if run.reached > found[-1]:
            further.append((int(records.line[part[-1]]), run.reached))
    if resolved < LEAST_RESOLVED * np.sum(~twice):
        return records, []
    step[train[twice]] = step[train[np.flatnonzero(twice) - 1]]
    columns = {**records.columns, "step": step, "planned_steps": planned}
    return dataclasses.replace(records, columns=columns), further


def _runs(records: Records, train: np.ndarray, marks: ConsoleMarks) -> list[np.ndarray]:
    """Return the rows of each training. A new one begins if epochs go back or a summary stands between two rows."""
    epoch, order = records.column("epoch")[train], records.order[train]
    back = np.diff(epoch) < 0
    ends = np.array([said.place for said in marks.said if said.is_sum])
    over = np.diff(np.searchsorted(ends, order)) > 0
    return np.split(train, np.flatnonzero(back | over) + 1)


def _printed_twice(records: Records, part: np.ndarray) -> np.ndarray:
    """Return which rows repeat the row before, because some programs also log a shorter copy of each row."""
    again = np.append(False, np.ones(len(part) - 1, bool))
    for name, room in (("loss", 5e-5), ("epoch", 0.0051)):
        values = records.column(name)[part]
        again[1:] &= np.isclose(values[1:], values[:-1], rtol=0, atol=room)
    rates = records.column("learning_rate")[part]
    again[1:] &= np.isclose(rates[1:], rates[:-1], rtol=1e-3, atol=0) & np.isfinite(rates[1:])
    return again & bool(again.mean() > MOST_HITS / 2)


def _run(
    records: Records,
    rows: np.ndarray,
    bars: np.ndarray,
    marks: ConsoleMarks,
    facts: Mapping[str, Any],
    within: tuple[float, float],
) -> tuple[_Run, float | None]:
    """Return what the log says about the steps of these rows, and the total of their bar."""
    place = records.order[rows].astype(np.float64)
    said = [one for one in marks.said if (one.place < within[1] and one.place > place[-1]) == one.is_sum]
    ends = [one for one in said if one.is_sum and one.place > place[-1]][:1]
    begins = [one for one in said if not one.is_sum and one.place < place[0]][-1:]
    stated = [one.steps for one in (*begins, *ends) if one.steps]
    if planned := facts.get("planned_steps"):
        stated.append(Span(low=planned, high=planned))
    total, own = _training_bar(bars, place, stated)
    at = np.searchsorted(own[:, 0], place)
    done = np.append(own[:, 1], np.nan)
    steps = Span(low=total, high=total) if total else next(iter(stated), None)
    reached = float(own[:, 1].max()) if len(own) else -math.inf
    # a run may have stopped early if it was evaluated and its learning rate had not come down
    evaluated = np.any((records.kind == EVAL) & (records.order > within[0]) & (records.order < within[1]))
    rates = records.column("learning_rate")[rows]
    stopped = evaluated and not rates[-1] <= COME_DOWN * np.nanmax(rates, initial=0.0)
    over = reached >= total if total else bool(ends) and not stopped
    each = next((one.epoch_steps for one in begins if one.epoch_steps), None)
    every = facts.get("logging_steps")
    epoch = records.column("epoch")[rows]
    run = _Run(
        epoch=epoch,
        room=_room(epoch),
        before=np.where(at > 0, done[np.maximum(at - 1, 0)], np.nan),
        behind=done[at],
        reached=reached,
        steps=steps,
        epoch_steps=each,
        every=every if every is not None and every >= 1 else None,
        over=over,
        late=len(own) > 0 and len(at) > 1 and float(np.mean(np.diff(at) == 0)) > MOST_SHARED,
    )
    return run, total


def _training_bar(bars: np.ndarray, place: np.ndarray, stated: Sequence[Span]) -> tuple[float | None, np.ndarray]:
    """Return the total and the bars that count these rows' steps. The bars of evaluations start again and again."""
    best, found = (-1, -1, -1.0), (None, np.zeros((0, 3)))
    for total in np.unique(bars[:, 2]).tolist():
        own = bars[bars[:, 2] == total]
        back = own[1:, 0][np.diff(own[:, 1]) < 0]
        first = back[back < place[0]].max(initial=-np.inf)
        last = back[back > place[0]].min(initial=np.inf)
        own = own[(own[:, 0] >= first) & (own[:, 0] < last)]
        if last < place[-1] or not len(own) or own[:, 1].max() < 1 or total < len(place) - 1:
            continue
        at = np.searchsorted(own[:, 0], place)
        beside = int(np.sum(np.diff(np.concatenate(([0], at, [len(own)]))) > 0))
        score = (sum(span.low <= total <= span.high for span in stated), beside, total)
        if score > best:
            best, found = score, (total, own)
    return found


def _room(epoch: np.ndarray) -> np.ndarray:
    """Return the possible rounding of printed epochs: two decimals, in version 5 four digits, or no rounding."""
    known = epoch[np.isfinite(epoch)]
    texts = [f"{value:.10g}" for value in known[:256].tolist()]
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    digits = max((len(text.replace(".", "").lstrip("0")) for text in texts), default=0)
    if decimals <= 2:
        return np.full(len(epoch), 0.005)
    if digits <= 4:
        return 0.5 * 10.0 ** (np.floor(np.log10(np.maximum(epoch, 1e-6))) - 3)
    return np.full(len(epoch), 1e-6)


def _steps(run: _Run) -> np.ndarray | None:
    """Return the step of each row; None if it cannot be determined, or if several values fit everything known."""
    each = run.epoch_steps
    if each is not None and each.low == each.high and np.all(run.epoch == np.round(run.epoch)):
        by_epoch = run.epoch * each.low  # one row per epoch
        return by_epoch if _agrees(by_epoch, run, each.low) else None
    longest = _most(run) / max(1, len(run.epoch) - 1)
    intervals = range(1, int(min(longest, MOST_INTERVAL)) + 1) if np.isfinite(longest) else []
    rows = np.arange(1.0, len(run.epoch) + 1)
    for first in (False, True):  # with a row for step 1 before the others (`logging_first_step`)
        grids = ((every, every * rows) for every in ([run.every] if run.every else intervals) if every > 1 or not first)
        grids = ((every, np.concatenate(([1.0], steps[:-1])) if first else steps) for every, steps in grids)
        answers = [(every, steps) for every, steps in grids if _agrees(steps, run, every)]
        if answers:
            every, steps = max(answers, key=lambda one: grain(int(one[0])))
            rounder = all(grain(int(every)) >= ROUNDER * grain(int(other)) for other, _ in answers if other != every)
            return steps if rounder and _is_told(every, run) else None
    return None


def _most(run: _Run) -> float:
    """Return the largest step that the last row can have."""
    known = run.behind[np.isfinite(run.behind)]
    by_bar = float(known[-1]) if len(known) and np.isfinite(run.behind[-1]) else math.inf
    by_plan = run.steps.high if run.steps else math.inf
    by_reach = run.reached if run.reached > 0 and not np.isfinite(run.behind[-1]) else math.inf
    return min(by_bar, by_plan, by_reach)


def _is_told(every: float, run: _Run) -> bool:
    """Return whether `logging_steps`, bars, epochs or the run's end confirm the only interval that agrees.

    If only the end confirms the interval, it must be one that people would set.
    """
    each = run.epoch_steps
    by_epochs = each is not None and each.high - each.low < 0.1 * each.high
    bars = np.isfinite(run.behind) & np.isfinite(run.before)
    by_bars = (run.over and bool(np.isfinite(run.behind).any())) or (not run.late and bars.mean() >= MOST_HITS)
    digits = f"{every:.0f}".rstrip("0")
    by_end = run.over and (len(digits) <= 1 or digits.endswith("5"))
    return bool(run.every) or by_epochs or by_bars or by_end


def _agrees(steps: np.ndarray, run: _Run, every: float) -> bool:
    """Return whether nothing in the log contradicts these steps."""
    wrong = steps > np.where(np.isfinite(run.behind), run.behind, np.inf)
    if not run.late:
        wrong |= steps < np.where(np.isfinite(run.before), run.before, -np.inf)
    if run.every and every != run.every:
        return False
    if run.steps and (steps[-1] > run.steps.high or (run.over and steps[-1] + every <= run.steps.low)):
        return False
    if np.isfinite(run.epoch).all():
        wrong |= ~_as_epochs_say(steps, run)
    return bool(wrong.mean() <= MOST_STRAY)


def _as_epochs_say(steps: np.ndarray, run: _Run) -> np.ndarray:
    """Return which steps match their epoch, given that an epoch may lack one step at its end."""
    each = run.epoch_steps
    low, high = np.maximum(run.epoch - run.room, 1e-9), run.epoch + run.room
    if each is None:  # all epochs have the same number of steps
        least, most = (steps - 1 - run.epoch) / high, (steps + 1 + run.epoch) / low
        each = Span(low=float(least.max()), high=float(most.min()))
        if each.low > each.high:
            return np.zeros(len(steps), bool)
    return np.asarray((steps >= low * each.low - 1 - run.epoch) & (steps <= high * each.high + 1 + run.epoch))


def _place_evaluations(
    step: np.ndarray, records: Records, part: np.ndarray, run: _Run, within: tuple[float, float]
) -> None:
    """Give each evaluation the step of the row before it if both show the same epoch, else the step of its epoch."""
    others = np.flatnonzero((records.kind == EVAL) & (records.order > within[0]) & (records.order < within[1]))
    epoch, known = records.column("epoch"), np.isfinite(step[part]) & (records.column("epoch")[part] > 0)
    last = part[known][-1] if known.any() else None
    each = run.epoch_steps and (run.epoch_steps.low + run.epoch_steps.high) / 2
    if each is None and last is not None:
        each = step[last] / epoch[last]
    for index in others.tolist():
        at = int(np.searchsorted(part, index))
        least = step[part[at - 1]] if at else 0.0
        most = step[part[at]] if at < len(part) else max(run.reached, run.steps.high if run.steps else least, least)
        same = at > 0 and epoch[index] == epoch[part[at - 1]]
        if same or each is None or not np.isfinite(epoch[index]):
            step[index] = least
        else:
            step[index] = np.clip(round(epoch[index] * each), least, most)


def reached_by(lines: np.ndarray, steps: np.ndarray, further: Sequence[tuple[int, float]]) -> np.ndarray:
    """Return the steps reached by each line, using the bars that went further than the last rows."""
    steps = steps.copy()
    for line, reached in further:
        last = np.flatnonzero(lines <= line)
        if len(last):
            steps[last[-1]] = max(steps[last[-1]], reached)
    return steps
