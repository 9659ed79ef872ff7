"""Lines that print a counter and no loss: what the records below them are of, or all that a log has of its progress."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from advisor.readers.generic_lines import LearntRow, Reading, readings
from advisor.readers.line_format import SETS, TRAIN, Found
from advisor.readers.names import column_of, normalise
from advisor.readers.slots import COUNTED

FEWEST = 3  # lines of progress that are a run's
MAY_MATTER = re.compile(
    rb"(?i)loss|entropy|nll|xent|rmse|train|\btrl\b|\btel\b|\bval|epoch|episode|step|iter|batch|round|update|\bit\b|\bep\b"
    rb"|[\x80-\xff]|\d/ *\d"
)
_BEGIN = re.compile(r"(?:start|starting|begin|beginning|training|train|running|current|info|now|in)_")
_PLANS = {"epochs", "steps", "iterations", "iters", "num_epochs", "num_steps", "total_steps", "max_steps"}
# what only a training measures; a time or an accuracy alone may be anybody's
_OF_TRAINING = {
    *("accuracy", "eval_accuracy", "reward", "eval_reward", "learning_rate", "grad_norm", "loss_scale", "mfu"),
    *("tokens_per_second", "skipped"),
}


def says(read: Mapping[str, Reading]) -> set[str]:
    """The counters that a line without a loss states of what follows it: as its subject, not in passing."""
    if "loss" in read or "eval_loss" in read:
        return set()
    return {name for name in ("epoch", "step") if name in read and _is_subject(read[name])}


def _is_subject(reading: Reading) -> bool:
    if reading.key == COUNTED:
        return True
    name = _BEGIN.sub("", normalise(reading.slot.name)[0])
    named = column_of(name)
    whole = name == reading.key or (named is not None and named.column == reading.column)
    return whole and reading.key not in _PLANS


class LearntContext(LearntRow):
    """A line that says what the records below it are of."""

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Where its counters stand; None for a line that states none, or that is a record itself."""
        if not MAY_MATTER.search(line):
            return None
        read = readings(line)
        said = says(read) & self.only
        return self._found(line, {name: read[name] for name in said}) if said else None


class LearntProgress(LearntRow):
    """A record of a run that prints no loss at all: a counter beside something that only a training measures."""

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Where its numbers stand; None for any other line."""
        if not MAY_MATTER.search(line):
            return None
        read = readings(line)
        return self._found(line, read) if is_progress(read) and set(self.required) <= read.keys() else None


def is_progress(read: Mapping[str, Reading]) -> bool:
    """Whether a line counts something by name and measures something of a training."""
    return bool(_OF_TRAINING & read.keys()) and any(read[name].key != COUNTED for name in says(read))


def context(reads: Sequence[Mapping[str, Reading]], counted: frozenset[str]) -> list[LearntContext]:
    """The rule of lines that say what the next records are of, where these do not say so themselves."""
    wanted = {"epoch"} if "step" in counted else {"epoch", "step"}
    if "epoch" in counted or not any(says(read) & wanted for read in reads):
        return []
    return [LearntContext(kind=SETS, losses=frozenset(), needs=b"", only=frozenset(wanted), stamps=False)]


def progress(reads: Sequence[tuple[Mapping[str, Reading], int]]) -> tuple[LearntProgress, int] | None:
    """The rule of a log without losses, by what its lines count, and how many do; None where too few do."""
    for counter in ("step", "epoch"):
        rows = sum(count for read, count in reads if counter in read and is_progress(read))
        if rows >= FEWEST:
            return LearntProgress(kind=TRAIN, losses=frozenset(), needs=b"", required=(counter,)), rows
    return None
