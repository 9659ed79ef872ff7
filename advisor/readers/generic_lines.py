"""Gives the named numbers of a line in an unknown log their meaning, and the rules that a lesson (`learning.py`) makes.

Names are those of `names.py`. A line is a record if it has the loss by which the log was learnt. A loss on a line that
mentions validation is a validation loss. A time is read only beside a step, because otherwise it is not a step's time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.readers.line_format import EVAL, TRAIN, UNITS, Found, Rule
from advisor.readers.names import (
    BYTES,
    GIB,
    MIB,
    PART,
    SECONDS,
    Named,
    by_letters,
    bytes_factor,
    column_of,
    normalise,
    not_measured,
)
from advisor.readers.slots import COUNTED, Slot, slots, stamp
from advisor.readers.telemetry_names import KIND, PREFIX, card_column, in_unit

PROGRESS = ("step", "epoch", "tokens")
PLANNED = {"step": "planned_steps", "epoch": "planned_epochs"}
_SIZES = {unit.lower(): unit for unit in UNITS if unit.lower() in BYTES and len(unit) > 1}
_PERCENT = ("%", "pct", "percent")
_SUFFIXES = ("K", "M", "k")  # after a count: thousands, millions
_OWN = 200  # rank of names that have a meaning only on a log's line; never preferred to a column's name
_COUNTERS = {
    **dict.fromkeys(
        ("batch", "itr", "episode", "minibatch", "mini_batch", "batches", "global_iter", "up", "cycle", "generation"),
        "step",
    ),
    "s": "step",  # llm.c, modded-nanogpt: `s:100 trl:5.2`
    **dict.fromkeys(("train", "round", "global_round"), "epoch"),  # `Train(0)` in loops that count epochs that way
}
_PERIOD = re.compile(r"(s|sec|secs|seconds?|ms)/(?:it|iter|iters|iteration|step|batch|epoch)")
_SAMPLES = re.compile(r"(?:samples?|examples?|images?|imgs?|seq(?:uence)?s?)/s\w*")
_FREQUENCY = re.compile(r"(?:it|iters?|iterations?|steps?|batch(?:es)?)/s\w*")
_SCORE = re.compile(rb"(?i)acc|score|reward|return|f1|auc|bleu|ppl|perplexity|bpb|bpc|time|sec|%")
_OWN_DATA, _HELD_DATA = ("train", "training", "learn"), ("val", "valid", "validation", "dev", "test", "heldout")
_RANK = re.compile(rb"^(?:[^\d]{0,40}[Rr]ank|\W{0,3}(?:GPU|gpu|cuda|proc|worker))[ _:=]?(?P<rank>\d+)(?![\d.])")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One number of a line, assigned to a column. `target` includes the unit; `key` is the name it was read by."""

    column: str
    target: str
    slot: Slot
    rank: int
    kind: str
    key: str


def readings(line: bytes, passed: frozenset[str] = frozenset()) -> dict[str, Reading]:
    """Return the columns that a line prints, each read by the surest name, or the first of equally sure ones.

    Numbers with a name in `passed` are not read.
    """
    best: dict[str, Reading] = {}
    found = [slot for slot in slots(line) if not passed or normalise(slot.name)[0] not in passed]
    known = by_letters([slot.name for slot in found])
    found = [replace(slot, name=known[slot.name]) if slot.name in known else slot for slot in found]
    for slot in found:
        reading = None if slot.name in ("", COUNTED, "bar clock") else _named_reading(slot)
        if reading is None:
            reading = _rate(slot)
        if reading is not None and (reading.column not in best or reading.rank < best[reading.column].rank):
            best[reading.column] = reading
    for slot in found:  # `45/100` are steps if the line has no other, a bar's clock is the time since its start
        column, kind = ("step", "count") if slot.name == COUNTED else ("elapsed_seconds", "clock")
        if slot.name in (COUNTED, "bar clock") and column not in best:
            best[column] = Reading(column=column, target=column, slot=slot, rank=_OWN, kind=kind, key=slot.name)
    if "loss" not in best and "eval_loss" not in best:
        _with_data(line, found, best)
    return best


def is_one_of_several(line: bytes, loss: Reading) -> bool:
    """Return whether a line has several losses named by what they measure: `[D loss: 0.69] [G loss: 0.68]`."""
    if loss.rank < PART:
        return False
    others = [_named_reading(slot) for slot in slots(line) if slot.name not in ("", COUNTED, "bar clock")]
    parts = {one.key for one in others if one is not None and one.column == "loss" and one.rank >= PART}
    return len(parts) > 1


def _named_reading(slot: Slot) -> Reading | None:
    """Return a slot's reading by its whole name or, failing that, by its last words: `INFO step` is a step."""
    if not_measured(slot.name):
        return None
    words = slot.name.split(" ")
    if len(words) > 1 and words[-1] in ("at", "is", "of", "about"):
        words = words[:-1]  # `GPU at 22%`
    timed = slot.unit if slot.unit in SECONDS or slot.unit == "%" else ""
    for start in range(len(words)):
        name = " ".join(words[start:])
        named = (column_of(f"{name} ({timed})") if timed else None) or column_of(name)
        if (named is None or named.column == "rank") and (reading := card_column(name, slot.unit)) is not None:
            named = reading
        if named is None and (counter := _COUNTERS.get(normalise(name)[0])) is not None:
            named = Named(column=counter, kind="count", unit=None, rank=_OWN)
        if named is not None:
            return _reading(slot, named, normalise(name)[0])
    return None


def _reading(slot: Slot, named: Named, key: str) -> Reading | None:
    column, unit = named.column, slot.unit or named.unit or ""
    if named.unit and slot.unit in _SUFFIXES:
        return None  # thousands of milliseconds have two factors
    if column == "loss" and slot.held_out:
        column = "eval_loss"
    if named.kind == "count" and unit in SECONDS and column == "step":
        column, kind = "seconds", "seconds"  # `iter 190 ms` is the time of one iteration
    else:
        kind = named.kind
    if kind == "rate" and named.per_device:
        column = "device_tokens_per_second"
    target = target_of(column, kind, unit)
    if target is None:
        return None
    return Reading(column=column, target=target, slot=slot, rank=named.rank, kind=named.kind, key=key)


def target_of(column: str, kind: str, unit: str) -> str | None:
    """Return the target of a column's number printed in a unit; None if column and unit contradict each other.

    Returns "" for bytes without a unit, because only all numbers of the column together show it.
    """
    size = _SIZES.get(unit.lower(), "")
    percent = f"{column}__percent" if unit in _PERCENT else column
    if kind in ("count", "rate"):
        return f"{column}__{unit}" if unit in _SUFFIXES else column if kind == "rate" or not unit else None
    if kind == KIND:
        return percent if not column.endswith("_bytes") else f"{column}__{size}" if size else column
    if kind == "bytes":
        return f"{column}__{size}" if size else None if unit else ""
    if kind in ("seconds", "time"):
        return f"{column}__{unit}" if unit in UNITS else None if unit and unit not in SECONDS else column
    if kind == "steps_per_second":
        return f"{column}__inverse"
    if kind == "share":
        return percent
    return None if kind == "date" or unit == "%" or size else column


def _rate(slot: Slot) -> Reading | None:
    """Return a number that a unit names in place of words, after or before it: `1.2 s/it`, `It/sec 1.2`."""
    word = slot.name.rpartition(" ")[2].lower()
    if "/" not in slot.unit and not (_PERIOD.fullmatch(word) or _FREQUENCY.fullmatch(word)):
        return None
    thousands, _, per = (slot.unit if "/" in slot.unit else word).rpartition(" ")
    if match := _PERIOD.fullmatch(per):
        target = "epoch_seconds" if per.endswith("epoch") else "seconds"
        target += "__ms" if match[1] == "ms" else ""
    elif _FREQUENCY.fullmatch(per):
        target = "seconds__inverse"
    else:
        target = "samples_per_second" if _SAMPLES.fullmatch(per) else "tokens_per_second"
        target += f"__{thousands}" if thousands else ""
    return Reading(column=target.partition("__")[0], target=target, slot=slot, rank=_OWN, kind="rate", key=per)


def _with_data(line: bytes, found: list[Slot], best: dict[str, Reading]) -> None:
    """Read `iter 500 | train 3.21 | val 3.25` or `500 train 3.21`: a number named only by its data set is the loss.

    This holds if the line mentions no score and has both data sets or no other number.
    """
    named = {slot.name.rpartition(" ")[2].lower(): slot for slot in found if not line[slot.start : slot.end].isdigit()}
    own = next((named[name] for name in _OWN_DATA if name in named), None)
    held = next((named[name] for name in _HELD_DATA if name in named), None)
    alone = any(slot is not None and not slot.word for slot in (own, held))
    if not alone and (own is None or held is None or _SCORE.search(line)):
        return
    if "step" not in best and ("epoch" not in best or best["epoch"].slot is own):
        return
    if "epoch" in best and best["epoch"].slot is own:
        del best["epoch"]
    for column, slot in (("loss", own), ("eval_loss", held)):
        if slot is not None:
            best[column] = Reading(column=column, target=column, slot=slot, rank=_OWN, kind="loss", key=slot.name)


def is_of_bar(read: Mapping[str, Reading]) -> bool:
    """Return whether the only counter on a line is the place in a progress bar."""
    clock = read.get("elapsed_seconds")
    return "step" in read and read["step"].key == COUNTED and clock is not None and clock.kind == "clock"


def founds(reading: Reading, target: str) -> list[Found]:
    """Return where the numbers of a reading stand, including the total after a counter."""
    slot = reading.slot
    if slot.parts:
        return [Found(target=f"{target}__{unit}", start=start, end=end) for unit, start, end in slot.parts]
    out = [Found(target=target, start=slot.start, end=slot.end)]
    planned = PLANNED.get(reading.column) or whole_of(target)
    if planned is not None and slot.total is not None:
        out.append(Found(target=planned, start=slot.total[0], end=slot.total[1]))
    return out


def by_size(column: str, values: Sequence[float]) -> str:
    """Return the target of memory or utilisation without a printed unit, inferred from the size of its numbers."""
    if column.endswith("_bytes"):
        return column + {float(MIB): "__MiB", float(GIB): "__GiB"}.get(bytes_factor(np.array(values))[0], "")
    percent = column.endswith("utilization") and in_unit("utilization", None, np.array(values))[1] == "percent"
    return f"{column}__percent" if percent else column


def whole_of(target: str) -> str | None:
    """Return what stands after a slash behind a GPU reading: its total memory or the most power that it may draw."""
    column, _, unit = target.partition("__")
    if column == "memory_bytes" or column.endswith(" memory_used_bytes"):
        card = "0" if column == "memory_bytes" else column.split()[1]
        return f"{PREFIX}{card} memory_total_bytes__{unit}"
    return column.replace("power_watts", "power_limit_watts") if column.endswith(" power_watts") else None


@dataclass(frozen=True, kw_only=True)
class LearntRow(Rule):
    """A record as it appears in a log.

    `losses` are the names of its loss and `required` the columns that it must print. `targets_of` renames columns whose
    numbers showed that they are something else; "" means that the column is not read.
    """

    losses: frozenset[str] = frozenset()
    required: tuple[str, ...] = ()
    only: frozenset[str] = frozenset()  # columns that are read; all if empty
    targets_of: Mapping[str, str] = field(default_factory=dict)
    passed: frozenset[str] = frozenset()  # names of settings that rows repeat, which count nothing
    stamps: bool = True
    bar: bool | None = None  # read only lines on which a bar counts (True), or only others (False); None for all

    def find(self, line: bytes) -> tuple[list[Found], int] | None:
        """Return where a line's numbers stand and where the record ends; None if the line is not such a record."""
        if self.needs not in line:
            return None
        read = readings(line, self.passed)
        loss = read.get("loss" if self.kind == TRAIN else "eval_loss")
        if self.losses and (loss is None or loss.key not in self.losses):
            return None
        if any(name not in read for name in self.required):
            return None
        if self.bar is not None and is_of_bar(read) != self.bar:
            return None
        if self.kind == EVAL and any(read[name].key == COUNTED for name in self.required):
            return None  # the progress of the evaluation
        return self._found(line, read)

    def _found(self, line: bytes, read: Mapping[str, Reading]) -> tuple[list[Found], int] | None:
        out: list[Found] = []
        for column, reading in read.items():
            target = self.targets_of.get(column, reading.target)
            if target.endswith("_seconds") and column in ("seconds", "elapsed_seconds"):
                target = reading.target.replace(column, target, 1)  # in the unit in which it is printed
            if target and (not self.only or column in self.only):
                out += founds(reading, target)
        if not out:
            return None
        end = max(one.end for one in out)
        if self.stamps:
            out += [Found(target=f"unix_seconds__{part}", start=a, end=b) for part, a, b in stamp(line)]
        if (rank := _RANK.match(line)) is not None and "rank" not in read:
            out.append(Found(target="rank", start=rank.start("rank"), end=rank.end("rank")))
        return out, end
