"""A log teaches its own format: which lines are records, what counts, and which say what the next ones are of.

The lines of a sample are grouped by shape and read by their named numbers. The loss that most lines print is the log's;
lines that print it with a step are its records, and where there are such, sums of an epoch are none. Where records
print no epoch or step, lines that print nothing else (`Epoch 3/60`) say it for those below. What the numbers themselves
show is believed before their names: a counter rises, a time that always rises is the time since the start.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

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
from advisor.readers.line_templates import number
from advisor.readers.slots import COUNTED, LONGEST, slots
from advisor.readers.sniff import distinct_lines
from advisor.readers.table_lines import TableRow, headers
from advisor.readers.telemetry_names import PREFIX

MOST_SHAPES = 6000  # lines of different shape that are read
MOST_COUNTED = 2000  # lines in which rows of a table are counted
SERIES = 400  # lines whose numbers are looked at
FEWEST = 3  # rows that need no other sign of being a log
MANY = 20  # rows that no page about a run quotes
OFTEN = 0.05  # of the most frequent record: what prints less often is a remark
RISING = 0.7  # share of a counter's moves that do not go back: it may start again
_BAR_CLOCK = "clock of a bar"
_ALIKE, _APART = 0.1, 4  # of a time; steps between lines that a first step cannot last as long as by its start alone
_HANDS = {"seconds": "clock called time", "elapsed_seconds": "clock called elapsed"}  # `Time: 0:03:39` beside a row
_AVERAGED = re.compile(rb" ?s?,?[\d ./a-z]{0,24}\( {0,8}\d{1,9}\.\d{1,9}s?[,)]")
_OF_SEVERAL = {"loss_unit": "one of several losses"}
_MOMENT = re.compile(r"\d{1,4}[-/:]\d\d(?:[-/:]\d\d(?:[.,]\d+)?)?Z?|[12]\d{3}-\d\d-\d\dT[\d:.,]+Z?")
_PRINTED = re.compile(rb"(?<![\w.])[-+]?\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?(?:[%\w/:]|\.\d|\xc2\xb0)*")
# what a line without a loss may say of the record above it
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
    """What a log taught: the rules that read it, how many of the sample's lines are records, and how surely."""

    rules: tuple[Rule, ...] = ()
    rows: int = 0
    evaluations: int = 0
    without_loss: int = 0  # lines that count and measure in a log that prints no loss at all
    notes: tuple[str, ...] = ()


@dataclass(kw_only=True)
class _Line:
    text: bytes
    count: int
    read: dict[str, Reading]

    def progress(self, column: str) -> frozenset[str]:
        """What counts on the line; the place in an evaluation counts nothing."""
        own = column == "loss"
        return frozenset(n for n in PROGRESS if n in self.read and (own or self.read[n].key != COUNTED))


@dataclass(kw_only=True)
class _Kind:
    """Lines that print one loss with the same counters."""

    loss: str
    progress: frozenset[str]
    rank: int
    bar: bool  # what counts on them is the place in a progress bar
    lines: list[_Line] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(line.count for line in self.lines)


@lru_cache(maxsize=2)
def learn(head: bytes) -> Lesson:
    """The format of a log by a cleaned sample of it. A text that is no log teaches nothing."""
    lesson = _taught(head)
    return Lesson() if lesson.rows < MANY and _is_page(head) else lesson


def _taught(head: bytes) -> Lesson:
    table = _tables(head)
    lines = _read_lines(head)
    train = _kinds(lines, "loss")
    most = max((kind.count for kind in train), default=0)
    main = max(train, key=lambda kind: _weight(kind, most), default=None)
    if main is not None and main.bar:
        main = next((kind for kind in train if _closes(kind, main)), main)
    if main is not None and main.count <= sum(rows for _, rows in table):
        main = None
    rows = {id(line) for line in main.lines} if main else set()
    evals = _kinds([line for line in lines if id(line) not in rows], "eval_loss")
    if main is not None:
        return _lesson(head, lines, train, main, evals)
    found = [row for row, _ in table]
    rules: list[Rule] = [*found, *_evaluations(evals, None, bool(found))]
    if not rules and (bare := progress([(line.read, line.count) for line in lines], head)) is not None:
        return Lesson(rules=(bare[0],), without_loss=bare[1])
    passed = [title for row in found for title in row.passed]
    return Lesson(
        rules=tuple(rules),
        rows=sum(rows for _, rows in table),
        evaluations=sum(e.count for e in evals),
        notes=tuple(not_read(passed)),
    )


def _lesson(head: bytes, lines: list[_Line], train: list[_Kind], main: _Kind, evals: list[_Kind]) -> Lesson:
    needs = _needs(main)
    series = _series(head, main, needs)
    targets = _by_their_numbers(series)
    targets |= {column: _by_hands(series[clock], column, main) for column, clock in _HANDS.items() if clock in series}
    targets |= _by_their_size(series, main)
    by_epoch = "step" not in main.progress and "epoch" in main.progress
    if targets.get("seconds") == "" and by_epoch and _HANDS["seconds"] not in series:
        targets["seconds"] = _of_an_epoch(main)
    if targets.get("seconds", "seconds") == "seconds" and _of_a_step_or_of_several(main, series):
        targets["seconds"] = ""
    counted = frozenset(name for name in main.progress if targets.get(name, name) == name)
    if "step" not in counted:
        targets["step"] = ""  # of a bar before one row in so many
    above = context([line.read for line in lines], counted)
    varied = len({repr(value) for value in series.get("loss", [])}) > 1
    rows = main.count
    unnamed = any(not line.read["loss"].slot.sure and line.read["loss"].slot.word == b"" for line in main.lines)
    if unnamed and max(series.get("loss", [0.0])) <= 1:
        return Lesson()  # `250 train 0.61`: an accuracy as well as a loss
    summed = above and all("eval_loss" in line.read for line in main.lines)  # an epoch's lines, however few
    if not counted and not summed and not (varied and max(line.count for line in main.lines) >= FEWEST):
        return Lesson()
    if rows < FEWEST and not any(line.read["loss"].slot.sure or b"|" in line.text for line in main.lines):
        return Lesson()
    if rows >= FEWEST and not varied and not _moves(series):
        return Lesson()
    row = LearntRow(
        losses=frozenset({main.loss}),
        needs=needs,
        required=("loss", *sorted(counted)),
        targets_of=targets,
        bar=main.bar if any(_is_other_bar(kind, main) for kind in train) else None,
        step=BAR if main.bar else "",
        facts=_kind_of_loss(main) | _repeated_facts(head, main, needs),
    )
    other = sorted({kind.loss for kind in train if kind is not main and kind.progress == main.progress})
    notes = [f"of several losses ({', '.join([main.loss, *other][:4])}) {main.loss!r} is read"] if other else []
    notes += _passed_over(main, row)
    rules = (row, *_evaluations(evals, main, True), *_beside(lines, main, row), *above)
    evaluations = sum(kind.count for kind in evals)
    return Lesson(rules=rules, rows=rows, evaluations=evaluations, notes=tuple(notes))


def _by_their_size(series: Mapping[str, Sequence[float]], main: _Kind) -> dict[str, str]:
    """Columns of memory and utilisation that are printed without a unit: in which one, by the size of their numbers."""
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
    """Settings that every record repeats: `seq 1024` in all of them is the sequence length."""
    found: dict[str, set[int]] = {}
    rows = 0
    for line in head.split(b"\n"):
        if needs not in line or len(line) > LONGEST or main.lines[0].read["loss"].slot.word not in line:
            continue
        for slot in slots(line):
            fact = spoken_name(slot.name) if slot.name.lower() != "batch" else None  # which counts, as a rule
            if fact in BATCH_FACTS and not slot.unit and line[slot.start : slot.end].isdigit():
                found.setdefault(fact, set()).add(int(line[slot.start : slot.end]))
        rows += 1
        if rows >= SERIES:
            break
    return {fact: values.pop() for fact, values in found.items() if rows >= FEWEST and len(values) == 1}


def _passed_over(main: _Kind, row: LearntRow) -> list[str]:
    """A note of the numbers that the commonest record has and no column took."""
    line = max(main.lines, key=lambda one: one.count).text
    seen = row.find(line)
    if seen is None:
        return []
    repeated = [Found(target=slot.name, start=slot.start, end=slot.end) for slot in slots(line)
                if spoken_name(slot.name) in row.facts]  # fmt: skip
    return not_read(unread(line, [*seen[0], *repeated]))


def unread(line: bytes, found: Sequence[Found], end: int | None = None) -> list[str]:
    """The numbers of a record that no column took, each as it is printed with its name."""
    taken = [(one.start, one.end) for one in found]
    out = []
    for match in _PRINTED.finditer(line, 0, len(line) if end is None else end):
        if any(start < match.end() and match.start() < stop for start, stop in taken):
            continue
        name = next((slot.name for slot in slots(line) if slot.start < match.end() and match.start() < slot.end), "")
        shown = match[0].decode("utf-8", "replace")
        if _MOMENT.fullmatch(shown):
            continue
        out.append(f"{name} {shown}" if name not in ("", COUNTED, "gpu", "bar clock") else shown)
    return out


def _is_page(head: bytes) -> bool:
    """Whether a sample is a page of Markdown about runs: rows quoted in it are not those of a log."""
    text = head[: 1 << 16]
    lines = sum(1 for line in text.split(b"\n") if line.strip())
    return len(_MARKDOWN.findall(text)) > max(3, 0.05 * lines)


def _read_lines(head: bytes) -> list[_Line]:
    out: list[_Line] = []
    for text, count in distinct_lines(head)[: 4 * MOST_SHAPES]:
        if len(out) >= MOST_SHAPES:
            break
        if len(text) <= LONGEST and MAY_MATTER.search(text) and (read := readings(text)):
            out.append(_Line(text=text, count=count, read=read))
    return out


def _kinds(lines: list[_Line], column: str) -> list[_Kind]:
    """Lines by the name of their loss, by what counts on them, and by whether a bar does."""
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


def _weight(kind: _Kind, most: int) -> tuple[bool, bool, bool, int, int]:
    """How likely lines are a log's records: they repeat, print a step, or at least count, have the surest name, are
    many."""
    repeats = kind.count >= min(FEWEST, most) and kind.count >= OFTEN * most
    counts = bool(kind.progress) and kind.count >= most / 2
    return repeats, "step" in kind.progress, counts, -(kind.rank // 100), kind.count


def _closes(kind: _Kind, bars: _Kind) -> bool:
    """Whether lines say again what bars say, when each is full: `[98/100] Train Loss: 5.26`."""
    return (kind.loss, kind.progress, kind.bar) == (bars.loss, bars.progress, False) and kind.count >= FEWEST


def _is_other_bar(kind: _Kind, main: _Kind) -> bool:
    """Whether lines with the loss of the records are another kind for their bar; one line may stand behind a bar's."""
    return kind.bar != main.bar and kind.loss == main.loss and (main.bar or kind.count >= FEWEST)


def _kind_of_loss(kind: _Kind) -> dict[str, str]:
    """What is known of a loss whose height says little: fact `loss_unit`."""
    return _OF_SEVERAL if all(is_one_of_several(line.text, line.read["loss"]) for line in kind.lines) else {}


def _needs(kind: _Kind) -> bytes:
    """The printed word that all lines of a kind have, to be looked for before anything else."""
    words = Counter(line.read["loss"].slot.word for line in kind.lines if "loss" in line.read)
    (word, count), *_ = words.most_common(1) or [(b"", 0)]
    return word if count == len(kind.lines) else b""


def _series(head: bytes, kind: _Kind, needs: bytes) -> dict[str, list[float]]:
    """What each column of a kind of lines holds in the order of the file."""
    out: dict[str, list[float]] = {}
    rows = 0
    for line in head.split(b"\n"):
        if needs not in line or len(line) > LONGEST:
            continue
        read = readings(line)
        if "loss" not in read or read["loss"].key != kind.loss or not kind.progress <= read.keys():
            continue
        if is_of_bar(read) != kind.bar:
            continue
        for column, reading in read.items():
            text = line[reading.slot.start : reading.slot.end]
            clock = sum(UNITS[unit][0] * float(line[start:end]) for unit, start, end in reading.slot.parts)
            bar = reading.kind == "clock"
            out.setdefault(column, []).append(float("nan") if bar else clock if reading.slot.parts else number(text))
            if reading.slot.parts and (bar or column in _HANDS):
                out.setdefault(_BAR_CLOCK if bar else _HANDS[column], []).append(clock)
        rows += 1
        if rows >= SERIES:
            break
    return out


def _by_their_numbers(series: dict[str, list[float]]) -> dict[str, str]:
    """Columns whose numbers are not what their name says: what they are, or "" where that is nothing."""
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
    if ("step" not in series or out.get("step") == "") and "seconds" not in out:
        out["seconds"] = ""
    if _of_each_epoch(series.get("epoch", []), series.get(_BAR_CLOCK, [])):
        out["elapsed_seconds"] = "epoch_seconds"
    return out


def _of_each_epoch(epochs: Sequence[float], clocks: Sequence[float]) -> bool:
    """Whether every row closes the bar of an epoch of its own: its clock began with that."""
    apart = len(epochs) == len(clocks) >= FEWEST and all(b > a for a, b in zip(epochs, epochs[1:], strict=False))
    return apart and 0 < clocks[-1] < 1.5 * clocks[0]


def _by_hands(clock: Sequence[float], column: str, kind: _Kind) -> str:
    """What `Time: 0:03:39` beside each row is: the time since the start, that of an epoch; of a step it is none."""
    if _rises(clock) and (column == "elapsed_seconds" or clock[-1] > 2 * clock[0]):
        return "elapsed_seconds"
    # what always rises by little is the time of day
    return "" if "step" in kind.progress or _rises(clock, 1.0) else "epoch_seconds"


def _of_an_epoch(kind: _Kind) -> str:
    """What the time on lines that count epochs alone is: that of the epoch, where its name does not say otherwise."""
    times = [line.read["seconds"] for line in kind.lines if "seconds" in line.read]
    targets = {reading.target.replace("seconds", "epoch_seconds", 1) for reading in times if reading.kind == "time"}
    return targets.pop() if len(targets) == 1 else ""


def _of_a_step_or_of_several(kind: _Kind, series: Mapping[str, Sequence[float]]) -> bool:
    """Whether a time is called nothing but that on lines every few steps: the last step's, or that of all since.

    Milliseconds are a step's: nobody counts the minutes between two lines in them; so is what has a mean beside it, and
    what the first line, of one step, has as long as the others.
    """
    steps, spent = series.get("step", []), series.get("seconds", [])
    times = [(line.text, line.read["seconds"]) for line in kind.lines if "seconds" in line.read]
    if times and all(_AVERAGED.match(text, reading.slot.end) for text, reading in times):
        return False  # `Time 0.51 (0.60)`: of each step, with the mean of all
    bare = [reading for _, reading in times if reading.kind == "time" and not reading.target.endswith("ms")]
    moves = sorted(b - a for a, b in zip(steps, steps[1:], strict=False) if b > a)
    stride = moves[len(moves) // 2] if moves else 0.0
    if len(spent) == len(steps) and steps[:1] in ([0.0], [1.0]) and stride >= _APART:
        typical = sorted(spent)[len(spent) // 2]
        if abs(spent[0] - typical) < _ALIKE * typical:
            return False
    return bool(bare) and stride > 1


def _rises(values: Sequence[float], share: float = RISING) -> bool:
    """Whether numbers go up, but for a few; to begin where they began is to start again."""
    moves = [b >= a or b == values[0] for a, b in zip(values, values[1:], strict=False)]
    return not moves or sum(moves) >= share * len(moves)


def _moves(series: dict[str, list[float]]) -> bool:
    return any(len(set(series.get(name, []))) > 1 for name in PROGRESS)


def _evaluations(kinds: list[_Kind], main: _Kind | None, owned: bool) -> list[LearntRow]:
    """Rules of validation losses: with a counter of their own, else part of the record before them."""
    often = owned or max((kind.count for kind in kinds), default=0) >= FEWEST
    # of a log that trains or evaluates again and again a test comes once, behind its end: the line is left to say so
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
    """Rules of lines that go on with the record above them: its card, the parts of its step, its rate."""
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
    lines = head.split(b"\n")
    out = []
    distinct = (line for line, _ in distinct_lines(head) if len(line) <= LONGEST)
    for row in headers(lines, distinct):
        rows = sum(row.find(line) is not None for line in lines[:MOST_COUNTED])
        if rows:
            out.append((row, rows))
    return out
