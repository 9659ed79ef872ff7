"""Learns a log's format from the log: which lines are records, which numbers count, and which lines describe others.

The lines of a sample are grouped by shape and read by their named numbers. The loss that most lines print is the log's
loss. Lines that print it with a step are its records; if there are any, an epoch's summaries are not records. If
records print no epoch or step, lines that print nothing else (`Epoch 3/60`) state it for those below. What the numbers
show outweighs their names: a counter rises, and a time that always rises is the time since the start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

from advisor.readers.axis import BAR
from advisor.readers.context_lines import MAY_MATTER, context, progress
from advisor.readers.fact_lines import BATCH_FACTS, spoken_name
from advisor.readers.gather import not_read
from advisor.readers.generic_lines import (
    PROGRESS,
    LearntRow,
    Reading,
    by_size,
    is_of_bar,
    is_one_of_several,
    readings,
)
from advisor.readers.line_format import EVAL, MORE, UNITS, Found, Rule
from advisor.readers.records import number_in
from advisor.readers.slots import COUNTED, LONGEST, slots
from advisor.readers.sniff import distinct_lines
from advisor.readers.table_lines import TableRow, headers
from advisor.readers.telemetry_names import PREFIX
from advisor.readers.yaml_rows import regex

MOST_COUNTED = 2000  # lines in which a table's rows are counted
MOST_SHAPES = 2000  # lines of different shapes that are read, the most common ones
SERIES = 400  # lines whose numbers are examined
FEWEST = 3  # rows that make a log without any other sign
MANY = 20  # rows; a page about a run never quotes so many
OFTEN = 0.05  # share of the most frequent record's count; a rarer line is a remark
RISING = 0.7  # share of a counter's moves that do not go back; it may start again
_ESTIMATES, _FALLING = 8, 0.8  # rows, and the share of their times that do not rise, by which these are of the rest
_BAR_CLOCK = "clock of a bar"
_ALIKE, _APART = 0.1, 4  # tolerance of a time; steps between lines beyond which a first step is never as slow
_HANDS = {"seconds": "clock called time", "elapsed_seconds": "clock called elapsed"}  # `Time: 0:03:39` beside a row
_AVERAGED = re.compile(rb" ?s?,?[\d ./a-z]{0,24}\( {0,8}\d{1,9}\.\d{1,9}s?[,)]")
_OF_SEVERAL = {"loss_unit": "one of several losses"}
_MOMENT = re.compile(r"\d{1,4}[-/:]\d\d(?:[-/:]\d\d(?:[.,]\d+)?)?Z?|[12]\d{3}-\d\d-\d\dT[\d:.,]+Z?")
_PRINTED = re.compile(rb"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?(?:[%\w/:]|\.\d|\xc2\xb0)*")
# what a line without a loss may add to the record above it
_GOES_ON = frozenset(
    (
        *("data_seconds", "forward_seconds", "backward_seconds", "grad_norm_seconds", "clip_seconds"),
        *("optimizer_seconds", "flush_seconds", "memory_bytes", "reserved_bytes", "tokens_per_second", "grad_norm"),
        *("learning_rate", "clipped", "mfu"),
    )
)
_MARKDOWN = re.compile(rb"(?m)^(?:#{1,5} +\w|```|[-*] \*\*|\|[ :-]+\|[ :|-]*$)")


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a log taught: the rules that read it, how many lines of the sample are records or evaluations, and notes."""

    rules: tuple[Rule, ...] = ()
    rows: int = 0
    evaluations: int = 0
    without_loss: int = 0  # lines that count and measure, in a log that prints no loss at all
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Line:
    text: bytes
    count: int
    read: dict[str, Reading]

    def progress(self, column: str) -> frozenset[str]:
        """Return the counters on the line. The place within an evaluation is not a counter."""
        own = column == "loss"
        return frozenset(n for n in PROGRESS if n in self.read and (own or self.read[n].key != COUNTED))


@dataclass(kw_only=True)
class _Kind:
    """Lines that print one loss with the same counters."""

    loss: str
    progress: frozenset[str]
    rank: int
    bar: bool  # their counter is the place in a progress bar
    lines: list[_Line] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(line.count for line in self.lines)


@lru_cache(maxsize=2)
def learn(head: bytes) -> Lesson:
    """Return the format of a log, learnt from a cleaned sample. A text that is not a log teaches nothing."""
    # rows that a Markdown page about runs quotes are no log's rows
    page = head[: 1 << 16]
    filled = sum(1 for line in page.split(b"\n") if line.strip())
    lesson = _taught(head)
    return Lesson() if lesson.rows < MANY and len(_MARKDOWN.findall(page)) > max(3, 0.05 * filled) else lesson


def _taught(head: bytes, passed: frozenset[str] = frozenset()) -> Lesson:
    table = _tables(head)
    shapes = [one for one in distinct_lines(head) if len(one[0]) <= LONGEST and MAY_MATTER.search(one[0])]
    rarest = sorted((count for _, count in shapes), reverse=True)[:MOST_SHAPES][-1:]
    often = [one for one in shapes if [one[1]] > rarest]
    rare = [one for one in shapes if [one[1]] == rarest][: MOST_SHAPES - len(often)]
    chosen = {text for text, _ in (*often, *rare)}
    read = [(text, count, readings(text, passed)) for text, count in shapes if text in chosen]
    lines = [_Line(text=text, count=count, read=found) for text, count, found in read if found]
    train = _kinds(lines, "loss")
    most = max((kind.count for kind in train), default=0)

    def likely(kind: _Kind) -> tuple[bool, bool, bool, int, int]:
        # records repeat, have steps or at least a counter, have the surest name, and are many
        repeats = kind.count >= min(FEWEST, most) and kind.count >= OFTEN * most
        counts = bool(kind.progress) and kind.count >= most / 2
        return repeats, "step" in kind.progress, counts, -(kind.rank // 100), kind.count

    main = max(train, key=likely, default=None)
    if main is not None and main.bar:  # lines may repeat what each full bar says: `[98/100] Train Loss: 5.26`
        closed = (main.loss, main.progress, False)
        main = next((one for one in train if (one.loss, one.progress, one.bar) == closed and one.count >= FEWEST), main)
    if main is not None and main.count <= sum(rows for _, rows in table):
        main = None
    rows = {id(line) for line in main.lines} if main else set()
    evals = _kinds([line for line in lines if id(line) not in rows], "eval_loss")
    if main is not None:
        return _lesson(head, lines, train, main, evals, passed)
    found = [row for row, _ in table]
    rules: list[Rule] = [*found, *_evaluations(evals, None, bool(found))]
    if not rules and (bare := progress([(line.read, line.count) for line in lines], head)) is not None:
        return Lesson(rules=(bare[0],), without_loss=bare[1])
    evaluations = sum(kind.count for kind in evals)
    return Lesson(rules=tuple(rules), rows=sum(rows for _, rows in table), evaluations=evaluations)


def _lesson(
    head: bytes, lines: list[_Line], train: list[_Kind], main: _Kind, evals: list[_Kind], passed: frozenset[str]
) -> Lesson:
    # the printed word that all records contain, which is searched first
    words = Counter(line.read["loss"].slot.word for line in main.lines)
    (word, often), *_ = words.most_common(1)
    needs = word if often == len(main.lines) else b""
    series = _series(head, main, needs, passed)
    targets = _by_their_numbers(series)
    if settings := _settings_in(main, targets) - passed:
        return _taught(head, passed | settings)
    targets |= {column: _by_hands(series[clock], column, main) for column, clock in _HANDS.items() if clock in series}
    targets |= _by_their_size(series, main)
    by_epoch = "step" not in main.progress and "epoch" in main.progress
    if targets.get("seconds") == "" and by_epoch and _HANDS["seconds"] not in series:
        targets["seconds"] = _of_an_epoch(main)
    passed_by = series.get("elapsed_seconds", [])
    if (
        by_epoch
        and len(passed_by) >= FEWEST
        and (targets.get("elapsed_seconds") == "" or passed_by[-1] == passed_by[0])
    ):
        targets["elapsed_seconds"] = "epoch_seconds"
    if targets.get("seconds", "seconds") == "seconds" and _of_a_step_or_of_several(main, series):
        targets["seconds"] = ""
    counted = frozenset(name for name in main.progress if targets.get(name, name) == name)
    if "step" not in counted:
        targets["step"] = ""  # it belongs to a bar before only some of the rows
    above = context([line.read for line in lines], counted)
    varied = len({repr(value) for value in series.get("loss", [])}) > 1
    rows = main.count
    unnamed = any(not line.read["loss"].slot.sure and line.read["loss"].slot.word == b"" for line in main.lines)
    if unnamed and max(series.get("loss", [0.0])) <= 1:
        return Lesson()  # `250 train 0.61` may be an accuracy as well as a loss
    summed = above and all("eval_loss" in line.read for line in main.lines)  # the lines of an epoch, however few
    if not counted and not summed and not (varied and max(line.count for line in main.lines) >= FEWEST):
        return Lesson()
    if rows < FEWEST and not any(line.read["loss"].slot.sure or b"|" in line.text for line in main.lines):
        return Lesson()
    if rows >= FEWEST and not varied and not any(len(set(series.get(name, []))) > 1 for name in PROGRESS):
        return Lesson()
    several = all(is_one_of_several(line.text, line.read["loss"]) for line in main.lines)
    # one line may follow a bar
    other_bars = any(kind.bar != main.bar and kind.loss == main.loss and (main.bar or kind.count >= FEWEST)
                     for kind in train)  # fmt: skip
    row = LearntRow(
        losses=frozenset({main.loss}),
        needs=needs,
        required=("loss", *sorted(counted)),
        targets_of=targets,
        passed=passed,
        bar=main.bar if other_bars else None,
        step=BAR if main.bar else "",
        # the height of a loss says little because a line has several losses
        facts=(_OF_SEVERAL if several else {}) | _repeated_facts(head, main, needs),
    )
    other = sorted({kind.loss for kind in train if kind is not main and kind.progress == main.progress})
    notes = [f"of several losses ({', '.join([main.loss, *other][:4])}) {main.loss!r} is read"] if other else []
    notes += _passed_over(main, row)
    rules = (row, *_evaluations(evals, main, True), *_beside(lines, main, row), *above)
    evaluations = sum(kind.count for kind in evals)
    return Lesson(rules=rules, rows=rows, evaluations=evaluations, notes=tuple(notes))


def _by_their_size(series: Mapping[str, Sequence[float]], main: _Kind) -> dict[str, str]:
    """Return the targets of memory and utilisation columns without a unit, by the size of their numbers."""
    out: dict[str, str] = {}
    for column, values in series.items():
        card = column.startswith(PREFIX)
        if not (card or column == "memory_bytes" or column == "reserved_bytes"):
            continue
        printed = [line.read[column] for line in main.lines if column in line.read]
        if any("__" in reading.target or reading.slot.unit for reading in printed):
            continue
        out[column] = by_size(column, values)
    return out


def _repeated_facts(head: bytes, main: _Kind, needs: bytes) -> dict[str, int]:
    """Return settings that every record repeats: `seq 1024` in all records is the sequence length."""
    found: dict[str, set[int]] = {}
    rows = 0
    for line in head.split(b"\n"):
        if needs not in line or len(line) > LONGEST or main.lines[0].read["loss"].slot.word not in line:
            continue
        for slot in slots(line):
            fact = spoken_name(slot.name) if slot.name.lower() != "batch" else None  # usually a counter
            if fact in BATCH_FACTS and not slot.unit and line[slot.start : slot.end].isdigit():
                found.setdefault(fact, set()).add(int(line[slot.start : slot.end]))
        rows += 1
        if rows >= SERIES:
            break
    return {fact: values.pop() for fact, values in found.items() if rows >= FEWEST and len(values) == 1}


def _passed_over(main: _Kind, row: LearntRow) -> list[str]:
    """Return a note on the numbers of the most common record that no column uses."""
    line = max(main.lines, key=lambda one: one.count).text
    seen = row.find(line)
    if seen is None:
        return []
    repeated = [Found(target=slot.name, start=slot.start, end=slot.end) for slot in slots(line)
                if spoken_name(slot.name) in row.facts]  # fmt: skip
    return not_read(unread(line, [*seen[0], *repeated]))


def unread(line: bytes, found: Sequence[Found], end: int | None = None) -> list[str]:
    """Return the numbers of a record that no column uses, each as it is printed with its name."""
    taken = [(one.start, one.end) for one in found]
    out = []
    taken += [match.span() for match in regex("source_place").finditer(line)]
    for match in _PRINTED.finditer(line, 0, len(line) if end is None else end):
        if any(start < match.end() and match.start() < stop for start, stop in taken):
            continue
        name = next((slot.name for slot in slots(line) if slot.start < match.end() and match.start() < slot.end), "")
        shown = match[0].decode("utf-8", "replace")
        if _MOMENT.fullmatch(shown):
            continue
        out.append(f"{name} {shown}" if name not in ("", COUNTED, "gpu", "bar clock") else shown)
    return out


def _kinds(lines: list[_Line], column: str) -> list[_Kind]:
    """Group lines by the name of their loss, by their counters, and by whether a progress bar counts."""
    kinds: dict[tuple[str, frozenset[str], bool], _Kind] = {}
    for line in lines:
        reading = line.read.get(column)
        if reading is None:
            continue
        progress, bar = line.progress(column), is_of_bar(line.read)
        new = _Kind(loss=reading.key, progress=progress, rank=reading.rank, bar=bar)
        kind = kinds.setdefault((reading.key, progress, bar), new)
        kind.lines.append(line)
    return list(kinds.values())


def _series(head: bytes, kind: _Kind, needs: bytes, passed: frozenset[str]) -> dict[str, list[float]]:
    """Return each column's numbers in the lines of one kind, in the order of the file."""
    out: dict[str, list[float]] = {}
    rows = 0
    for line in head.split(b"\n"):
        if needs not in line or len(line) > LONGEST:
            continue
        read = readings(line, passed)
        if "loss" not in read or read["loss"].key != kind.loss or not kind.progress <= read.keys():
            continue
        if is_of_bar(read) != kind.bar:
            continue
        for column, reading in read.items():
            text = line[reading.slot.start : reading.slot.end]
            clock = sum(UNITS[unit][0] * float(line[start:end]) for unit, start, end in reading.slot.parts)
            bar = reading.kind == "clock"
            out.setdefault(column, []).append(float("nan") if bar else clock if reading.slot.parts else number_in(text))
            if reading.slot.parts and (bar or column in _HANDS):
                out.setdefault(_BAR_CLOCK if bar else _HANDS[column], []).append(clock)
        rows += 1
        if rows >= SERIES:
            break
    return out


def _settings_in(main: _Kind, targets: Mapping[str, str]) -> frozenset[str]:
    """Return the name of a step that stands still beside another counter: `[500/50000] loss 0.1 batch 16`."""
    steps = [(line.text, line.read["step"]) for line in main.lines if "step" in line.read]
    if targets.get("step") != "" or not all(step.slot.total is None for _, step in steps):
        return frozenset()
    counters = any(slot.name == COUNTED and slot.total is not None for text, _ in steps for slot in slots(text))
    return frozenset(step.key for _, step in steps if counters)


def _by_their_numbers(series: dict[str, list[float]]) -> dict[str, str]:
    """Return what columns really are if their numbers contradict their names; "" if they are not read."""
    out: dict[str, str] = {}
    for column in ("step", "epoch", "tokens"):
        values = series.get(column, [])
        constant = len(values) >= FEWEST and len(set(values)) == 1
        if column == "tokens" and constant:
            out[column] = "step_tokens"
        elif (column != "epoch" and constant) or not _rises(values):
            out[column] = ""
    times = series.get("seconds", [])
    if len(times) >= FEWEST and _rises(times, 1.0) and times[-1] > 2 * times[0]:
        out["seconds"] = "elapsed_seconds"
    if series.get("elapsed_seconds") and not _rises([v for v in series["elapsed_seconds"] if v == v]):
        out["elapsed_seconds"] = ""
    left = series.get("epoch_seconds", [])
    if (
        len(left) >= _ESTIMATES
        and left[-1] < left[0]
        and sum(b <= a for a, b in pairwise(left)) >= _FALLING * len(left)
    ):
        out["epoch_seconds"] = ""  # what is left of an epoch, by an estimate
    if ("step" not in series or out.get("step") == "") and "seconds" not in out:
        out["seconds"] = ""
    # where every row ends the bar of a new epoch, the bar's clock began with that epoch
    epochs, clocks = series.get("epoch", []), series.get(_BAR_CLOCK, [])
    apart = len(epochs) == len(clocks) >= FEWEST and all(b > a for a, b in pairwise(epochs))
    if apart and 0 < clocks[-1] < 1.5 * clocks[0]:
        out["elapsed_seconds"] = "epoch_seconds"
    return out


def _by_hands(clock: Sequence[float], column: str, kind: _Kind) -> str:
    """Return what `Time: 0:03:39` beside each row is: the time since the start or of an epoch; "" for a step's time."""
    if _rises(clock) and (column == "elapsed_seconds" or clock[-1] > 2 * clock[0]):
        return "elapsed_seconds"
    # a time that always rises a little is the time of day
    return "" if "step" in kind.progress or _rises(clock, 1.0) else "epoch_seconds"


def _of_an_epoch(kind: _Kind) -> str:
    """Return what the time is on lines that count only epochs: the epoch's time, unless its name says otherwise."""
    times = [line.read["seconds"] for line in kind.lines if "seconds" in line.read]
    targets = {reading.target.replace("seconds", "epoch_seconds", 1) for reading in times if reading.kind == "time"}
    return targets.pop() if len(targets) == 1 else ""


def _of_a_step_or_of_several(kind: _Kind, series: Mapping[str, Sequence[float]]) -> bool:
    """Return whether a bare time on lines every few steps may be the last step's or the sum of all steps since.

    Milliseconds are a step's time, because nobody counts minutes between lines in them. So is a time with a mean beside
    it, or one that is about as long on the first line, after one step, as on the others.
    """
    steps, spent = series.get("step", []), series.get("seconds", [])
    times = [(line.text, line.read["seconds"]) for line in kind.lines if "seconds" in line.read]
    if times and all(_AVERAGED.match(text, reading.slot.end) for text, reading in times):
        return False  # `Time 0.51 (0.60)`: the time of each step, and the mean of all
    bare = [reading for _, reading in times if reading.kind == "time" and not reading.target.endswith("ms")]
    moves = sorted(b - a for a, b in pairwise(steps) if b > a)
    stride = moves[len(moves) // 2] if moves else 0.0
    if len(spent) == len(steps) and steps[:1] in ([0.0], [1.0]) and stride >= _APART:
        typical = sorted(spent)[len(spent) // 2]
        if abs(spent[0] - typical) < _ALIKE * typical:
            return False
    return bool(bare) and stride > 1


def _rises(values: Sequence[float], share: float = RISING) -> bool:
    """Return whether most numbers go up. A return to the first value counts as a new start."""
    moves = [b >= a or b == values[0] for a, b in pairwise(values)]
    return not moves or sum(moves) >= share * len(moves)


def _evaluations(kinds: list[_Kind], main: _Kind | None, owned: bool) -> list[LearntRow]:
    """Return rules of validation losses, which have their own counter or belong to the record before them."""
    often = owned or max((kind.count for kind in kinds), default=0) >= FEWEST
    # a log that trains or evaluates repeatedly prints one test after its end; that line is left as a sign of the end
    kinds = [kind for kind in kinds if not (often and kind.count == 1 and kind.loss.startswith("test"))]
    names = frozenset(kind.loss for kind in kinds)
    if not names:
        return []
    counts = {name for kind in kinds for name in kind.progress} & {"step", "epoch"}
    if main is not None:
        counts &= main.progress
    rules = [
        _evaluation(names, EVAL, (counter,), "previous" if main and "step" in main.progress else "")
        for counter in sorted(counts, key=("step", "epoch").index)
    ]
    if owned:
        rules.append(_evaluation(names, MORE, (), ""))
    return rules


def _beside(lines: list[_Line], main: _Kind, row: LearntRow) -> list[LearntRow]:
    """Return rules of lines that continue the record above them: its GPU, the parts of its step, its rate."""
    counts: Counter[frozenset[str]] = Counter()
    for line in lines:
        columns = frozenset(line.read)
        if columns and all(name.startswith(PREFIX) or name in _GOES_ON for name in columns):
            counts[columns] += line.count
    often = [columns for columns, count in counts.items() if count >= max(FEWEST, main.count / 2)]
    return [
        LearntRow(kind=MORE, required=tuple(sorted(columns)), only=columns, stamps=False)
        for columns in often
        if not all(column in main.lines[0].read and row.targets_of.get(column) != "" for column in columns)
    ]


def _evaluation(names: frozenset[str], kind: int, required: tuple[str, ...], step: str) -> LearntRow:
    only = frozenset(("eval_loss", "eval_seconds", *required))
    return LearntRow(kind=kind, losses=names, required=("eval_loss", *required), only=only, stamps=False, step=step)


def _tables(head: bytes) -> list[tuple[TableRow, int]]:
    """Return the tables below headers of a sample, each with how many of its first lines are rows."""
    lines = head.split(b"\n")
    found = headers(lines, (line for line, _ in distinct_lines(head) if len(line) <= LONGEST))
    counts = [sum(row.find(line) is not None for line in lines[:MOST_COUNTED]) for row in found]
    return [(row, rows) for row, rows in zip(found, counts, strict=True) if rows]
