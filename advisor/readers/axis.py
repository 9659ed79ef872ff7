"""Chooses the axis of a log: printed steps, steps made cumulative over epochs, tokens, epochs or row numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.readers.line_format import TRAIN
from advisor.readers.records import Records

FEWEST_RECORDS = 3  # training and validation records that show how each counts
GOES_ON = 0.9  # share of the counter's rounds that continue; above it, they are epochs of one run
ONE_EPOCH = 1.5  # times the largest step printed in an epoch; a longer plan covers several epochs
BAR = "bar"  # a bar, whose step may not belong to the loss beside it
JOINED = "steps start again with every epoch: made cumulative"
JOINED_BY_LAST = f"{JOINED}, each epoch as long as its largest printed step: perhaps longer"
JOINED_BY_TOTAL = "steps start again with every epoch, whose number of steps is printed: made cumulative"
NOT_PRINTED = (JOINED, JOINED_BY_LAST)  # after which a step of the table is no step of the log


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The axis. `values`: one per record; `unique`: one training record per value; `printed`: taken from the log."""

    values: np.ndarray
    unique: bool
    printed: bool
    note: str = ""
    epoch_steps: float | None = None  # if epochs were joined: the largest step printed within one


def axis_of(records: Records, borrowed: dict[int, str]) -> Axis:
    """Choose the axis, and join the epochs if the log restarts its steps with every epoch.

    `borrowed` names the rules whose records take the step of the record before ("previous"), of the record after
    ("next"), or of a bar.
    """
    step = records.column("step")
    if np.isfinite(step).any() and not _stands_still(step, records):
        for rule in (rule for rule, side in borrowed.items() if side == BAR):
            step = _moved_on(step, records, rule)
        joined = _joined(step, records)
        if joined is None:
            return Axis(values=_borrow(step, records.rule, borrowed), unique=True, printed=True)
        values, note = joined
        largest = float(np.nanmax(step))
        values = _borrow(values, records.rule, borrowed)
        return Axis(values=values, unique=True, printed=True, note=note, epoch_steps=largest)
    for name in ("tokens", "epoch"):
        values = records.column(name)
        if np.isfinite(values).any():
            return Axis(values=values, unique=name == "tokens", printed=False)
    return Axis(values=np.full(len(records), np.nan), unique=False, printed=False)


def _stands_still(step: np.ndarray, records: Records) -> bool:
    """Return whether all rows show one step number, as a bar drawn at its end does; it then counts nothing."""
    counted = step[(records.kind == TRAIN) & np.isfinite(step)]
    if len(counted) >= FEWEST_RECORDS and np.ptp(counted) == 0 and np.isnan(records.column("epoch")).all():
        return True
    epoch = records.column("epoch")
    at = (records.kind == TRAIN) & np.isfinite(step) & np.isfinite(epoch)
    still = at.any() and np.ptp(step[at]) == 0 and not np.any((records.kind == TRAIN) & np.isfinite(step) & ~at)
    return bool(still and np.sum(at) == len(np.unique(epoch[at])) > 1)


def _moved_on(step: np.ndarray, records: Records, rule: int) -> np.ndarray:
    """Return corrected steps of a bar that shows each loss before counting its step, as a bar with a loss at step 0
    does.

    The step shown with a new loss is then the previous step. If the bar moves on with the same loss, the step is
    correct.
    """
    at = np.flatnonzero((records.rule == rule) & np.isfinite(step))
    shown, loss = step[at], records.column("loss")[at]
    moves = np.diff(shown)
    if not np.any((shown == 0) & np.isfinite(loss)) or not np.any(moves > 0) or np.median(moves[moves > 0]) != 1:
        return step
    new = np.concatenate(([True], (loss[1:] != loss[:-1]) | (shown[1:] < shown[:-1])))
    began = np.maximum.accumulate(np.where(new, np.arange(len(at)), 0))
    step = step.copy()
    step[at] = np.fmin(np.maximum(shown, shown[began] + 1), records.column("planned_steps")[at])
    return step


def _joined(step: np.ndarray, records: Records) -> tuple[np.ndarray, str] | None:
    """Return cumulative steps if each return to the first step comes with the next whole epoch.

    Also returns a note on them: unless the log prints how many steps an epoch has, its last ones may be missing.
    """
    epoch = records.column("epoch")
    if unnumbered := bool(np.isnan(epoch).all()):
        epoch = _epochs_by_loss(step, records)
    at = np.flatnonzero(~np.isnan(step) & ~np.isnan(epoch) & (records.kind == TRAIN))
    if len(at) < 3:
        return None
    back, moves = np.diff(step[at]) < 0, np.diff(epoch[at])
    whole = np.all(epoch[at] == np.round(epoch[at]))
    if not np.any(back & (moves > 0)) or not whole or not np.array_equal(back, moves != 0):
        return None
    cuts = np.flatnonzero(back)
    begins_at_zero = step[at[0]] == 0
    # a printed total is used if it is the same in all epochs, because an epoch's last steps may not be printed
    of = records.column("planned_steps")[at]
    told = np.ptp(of) == 0 and np.max(step[at]) <= of[0] <= ONE_EPOCH * np.max(step[at])
    lengths = of[cuts] if told else step[at][cuts] + (1 if begins_at_zero else 0)
    # an epoch printed again begins where it began before; another training begins at 0
    offsets, begun = [0.0], {float(epoch[at[0]]): 0.0}
    for cut, length in zip(cuts, lengths, strict=True):
        now = float(epoch[at[cut + 1]])
        offsets.append(begun.get(now, 0.0) if moves[cut] < 0 else offsets[-1] + length)
        begun.setdefault(now, offsets[-1])
    note = JOINED_BY_LAST if not told else JOINED if unnumbered else JOINED_BY_TOTAL
    return step + np.array(offsets)[np.searchsorted(at[cuts + 1], np.arange(len(step)), side="right")], note


def _epochs_by_loss(step: np.ndarray, records: Records) -> np.ndarray:
    """Return the epoch of each training record if the log prints none; NaN if its rounds are not epochs.

    All rounds but the last have the same steps. A new epoch continues at the loss that the previous one reached, but a
    new run begins near the loss of the first one.
    """
    none = np.full(len(step), np.nan)
    loss = records.column("loss")
    at = np.flatnonzero((records.kind == TRAIN) & np.isfinite(step) & np.isfinite(loss))
    begins = np.concatenate(([0], np.flatnonzero(np.diff(step[at]) < 0) + 1)) if len(at) else np.zeros(0, np.int64)
    if len(begins) < FEWEST_RECORDS:
        return none
    ends = np.concatenate((begins[1:] - 1, [len(at) - 1]))
    whole = ends[:-1]
    same = np.ptp(step[at[begins]]) == 0 and np.ptp(step[at[whole]]) == 0 and step[at[-1]] <= step[at[whole[0]]]
    first, last = loss[at[begins]], loss[at[ends]]
    goes_on = np.abs(first[1:] - last[:-1]) < np.abs(first[1:] - first[0])
    if not same or np.any(begins == ends) or goes_on.mean() < GOES_ON or first[0] <= last[-1]:
        return none
    none[at] = np.searchsorted(begins, np.arange(len(at)), side="right")
    return none


def _borrow(step: np.ndarray, rule: np.ndarray, borrowed: dict[int, str]) -> np.ndarray:
    step = step.copy()
    for index, side in borrowed.items():
        if side == BAR:
            continue
        lacking = np.flatnonzero((rule == index) & np.isnan(step))
        own = np.flatnonzero(~np.isnan(step))
        if not len(lacking) or not len(own):
            continue
        place = np.searchsorted(own, lacking)
        if side == "next":
            step[lacking] = np.where(place < len(own), step[own[np.minimum(place, len(own) - 1)]], np.nan)
        else:  # no step has been made before the first record
            step[lacking] = np.where(place > 0, step[own[np.maximum(place - 1, 0)]], 0.0)
    return step


def row_numbers(records: Records) -> np.ndarray:
    """Number the training records 1, 2, … if a log prints no steps. Each other record takes the number before it."""
    return np.maximum(1.0, np.cumsum(records.kind == TRAIN).astype(np.float64))
