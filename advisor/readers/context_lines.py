"""Lines that print a counter but no loss. They describe the records below them, or are all the progress a log shows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.readers.cells import seconds_of
from advisor.readers.generic_lines import LearntRow, Reading, readings
from advisor.readers.line_format import SETS, Found
from advisor.readers.names import column_of, normalise
from advisor.readers.slots import COUNTED
from advisor.readers.yaml_rows import regex

FEWEST = 3  # progress lines that make a run
MANY = 5  # lines of one shape that make a run even if they neither count nor measure anything
_SOME = 0.5  # of the rows that count epochs; fewer with a step do not count steps
SHORTEST_BAR = 30  # seconds; a shorter bar is not a training's
MAY_MATTER = re.compile(
    rb"(?i)loss|entropy|nll|xent|rmse|train|\btick\b|\btrl\b|\btel\b|\bval|epoch|episode|step|iter|batch|round|update|\bit\b|\bep\b"
    rb"|\blearn|\bcost|objective|\bmse\b|\bmae\b|elbo|\bup\b|\d/ *\d|\d%\) \d|num frames"
    rb"|\bgpu|vram|forward|fwd|\btok|\btemp|\d ?W\b"
)
_BEGIN = re.compile(r"(?:success|start|starting|begin|beginning|training|train|running|current|info|now|in|at)_")
_PLANS = {"epochs", "batches", "steps", "iterations", "iters", "num_epochs", "num_steps", "total_steps", "max_steps"}
_TRAINING = re.compile(
    rb"(?i)\btrain|\blearning\b|\bepisodes?\b|\bframes: \d|\bepoch \d+ (?:completed|finished|done)\b"
)
_LABEL = 60  # bytes before a bar that say what it counts
# measured only in training; a time or an accuracy alone may come from any program
_OF_TRAINING = {
    *("accuracy", "eval_accuracy", "reward", "eval_reward", "learning_rate", "grad_norm", "loss_scale", "mfu"),
    *("tokens_per_second", "skipped"),
}

_RATES = {"samples_per_second", "tokens_per_second"}


def says(read: Mapping[str, Reading]) -> set[str]:
    """Return the counters that a line without a loss states about what follows, as its subject and not in passing."""
    if "loss" in read or "eval_loss" in read:
        return set()
    # `accuracy: 20.8% (512/2466)` counts correct answers, not steps
    measured = bool(_OF_TRAINING & read.keys())
    said = set()
    for column in read.keys() & {"epoch", "step"}:
        reading = read[column]
        name = _BEGIN.sub("", normalise(reading.slot.name)[0])
        whole = name == reading.key or ((named := column_of(name)) is not None and named.column == column)
        if not measured if reading.key == COUNTED else whole and reading.key not in _PLANS:
            said.add(column)
    return said


@dataclass(frozen=True, kw_only=True)
class LearntContext(LearntRow):
    """A line that describes the records below it. `keys` are the names of its counters."""

    keys: frozenset[str] = frozenset()

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Return where the line's counters stand; None if it states none or is a record itself."""
        if not MAY_MATTER.search(line) or b"train_runtime" in line:  # which sums up what came before
            return None
        read = readings(line)
        said = {name for name in says(read) & self.only if read[name].key in self.keys}
        said |= _RATES & read.keys() if said and "step" in read else set()
        return self._found(line, {name: read[name] for name in said}) if said else None


@dataclass(frozen=True, kw_only=True)
class LearntProgress(LearntRow):
    """A record of a run that prints no loss at all: a counter beside a quantity that only training measures.

    If no line measures anything, `keys` are the counter names that are accepted alone.
    """

    keys: frozenset[str] = frozenset()

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Return where the line's numbers stand; None for any other line."""
        if self.needs not in line or not MAY_MATTER.search(line):
            return None
        read = readings(line)
        if not set(self.required) <= read.keys():
            return None
        if self.keys and all(read[name].key not in self.keys for name in says(read)):
            return None
        return self._found(line, read) if self.needs or self.keys or is_progress(read) else None


def is_progress(read: Mapping[str, Reading]) -> bool:
    """Return whether a line counts something by name and measures something of a training."""
    return bool(_OF_TRAINING & read.keys()) and any(read[name].key != COUNTED for name in says(read))


def context(reads: Sequence[Mapping[str, Reading]], counted: frozenset[str]) -> list[LearntContext]:
    """Return the rule for lines that describe the next records, if those records do not describe themselves."""
    wanted = ({"epoch"} if "step" in counted else {"epoch", "step"}) - counted
    wanted -= set() if "epoch" not in counted else {"step"}
    names = {name: [read[name] for read in reads if name in says(read)] for name in wanted}
    keys = frozenset(min(said, key=lambda reading: reading.rank).key for said in names.values() if said)
    if not keys:
        return []
    # the time of an epoch's heading is not the time of its rows
    return [LearntContext(kind=SETS, only=frozenset(wanted | _RATES), keys=keys, stamps="step" in wanted)]


def progress(reads: Sequence[tuple[Mapping[str, Reading], int]], head: bytes) -> tuple[LearntProgress, int] | None:
    """Return the rule for a log without losses, and how many lines it matches; None if it matches too few."""
    measured = {
        counter: [one for one in reads if counter in one[0] and is_progress(one[0])] for counter in ("step", "epoch")
    }
    counts = {counter: sum(count for _, count in rows) for counter, rows in measured.items()}
    # a few rows may follow the bar of another stream on their line
    counter = "step" if counts["step"] >= max(FEWEST, _SOME * counts["epoch"]) else "epoch"
    if counts[counter] >= FEWEST:
        of_bar = (
            dict.fromkeys(("step", "seconds", "elapsed_seconds"), "") if counter == "epoch" and counts["step"] else {}
        )
        targets = {**_no_times(measured[counter]), **of_bar}
        return LearntProgress(required=(counter,), targets_of=targets), counts[counter]
    for counter in ("step", "epoch"):
        named = [(read[counter], count) for read, count in reads if counter in says(read)]
        often = [(reading, count) for reading, count in named if reading.key != COUNTED and count >= MANY]
        if often and _TRAINING.search(head):
            reading, most = max(often, key=lambda one: one[1])
            keys = frozenset({reading.key})
            return LearntProgress(required=(counter,), keys=keys, targets_of=_no_times(reads)), most
    return _longest_bar(head)


def _no_times(reads: Sequence[tuple[Mapping[str, Reading], int]]) -> dict[str, str]:
    """Mark bare times in minutes or hours as not read: without a loss, nothing shows what they measure."""
    times = [read["seconds"] for read, _ in reads if "seconds" in read and read["seconds"].kind == "time"]
    return {"seconds": ""} if any(reading.slot.unit in ("m", "min", "mins", "h") for reading in times) else {}


def _longest_bar(head: bytes) -> tuple[LearntProgress, int] | None:
    """Return the bar that ran longest, unless it belongs to work before or beside the training."""
    found: dict[bytes, tuple[float, int]] = {}
    for match in (*regex("closed_bar").finditer(head), *regex("open_bar").finditer(head)):
        after = b"it [" if match.re is regex("open_bar") else b"/" + match["total"] + b" ["
        longest, rows = found.get(after, (0, 0))
        label = re.split(rb"[\r\n]", head[max(0, match.start() - _LABEL) : match.start()])[-1]
        if regex("work_beside_training").search(label) is None:
            found[after] = max(longest, seconds_of(*match.groups()[-3:])), rows + 1
    needs, (longest, rows) = max(found.items(), key=lambda one: one[1], default=(b"", (0, 0)))
    if rows < FEWEST or longest < SHORTEST_BAR:
        return None
    return LearntProgress(required=("step",), needs=needs), rows
