"""Finds where a log starts again: a run printed twice, a restart that overlaps, or another phase of training.

The records are cut into pieces where their steps go back. A piece that repeats an earlier piece value for value is the
same run printed twice and is dropped. A piece that begins inside the previous phase's steps continues it from a
checkpoint; the later attempt wins, because its weights survive. A piece that begins where the previous phase began, or
one record later, is a new phase, such as fine-tuning after pre-training or a run started afresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from advisor.readers.line_format import EVAL, TRAIN
from advisor.readers.records import Records

JITTER = 2  # logged steps by which ranks that print into one file may differ
LONG = 20  # records of a run, after which it has a checkpoint later than its first record
FEWEST_ROUNDS = 3  # rounds of evaluation, or steps of several copies, that show what a log prints
MOST_DIFFER = 0.8  # share of the steps at which the copies of a run have different losses
REPEATED_BY_RANKS = 0.3  # share of records: a restart repeats fewer, two ranks repeat more


@dataclass(kw_only=True)
class Stretch:
    """Indices of the records that belong to one phase, in the order of the file."""

    records: np.ndarray
    name: str = ""
    planned: float | None = None
    planned_epochs: float | None = None
    restarts: int = 0  # later attempts that were joined to it
    first: float = np.nan  # its first step


@dataclass(kw_only=True)
class Attempts:
    """How the pieces of a log fit together."""

    phases: list[Stretch] = field(default_factory=list)
    restarts: list[tuple[int, float, float]] = field(default_factory=list)  # record, its step, and the step before it
    duplicates: int = 0  # training records dropped because they were printed twice


def evaluations_apart(records: Records) -> Records:
    """Return the records with rounds of another length between whole epochs as evaluations: `88/88` after `614/614`.

    Of each round only the last record is kept, at the step of the training before it.
    """
    step, of, loss = (records.column(name) for name in ("step", "planned_steps", "loss"))
    at = np.flatnonzero((records.kind == TRAIN) & np.isfinite(step) & np.isfinite(of) & np.isfinite(loss))
    totals, counts = np.unique(of[at], return_counts=True)
    if len(totals) != 2 or records.column("eval_loss")[at].size != np.isnan(records.column("eval_loss")[at]).sum():
        return records
    main = totals[np.argmax(counts)] if counts[0] != counts[1] else totals.max()
    held_out = of[at] != main
    begins = np.flatnonzero(held_out[1:] & ~held_out[:-1]) + 1
    ends = np.append(np.flatnonzero(held_out[:-1] & ~held_out[1:]), np.flatnonzero(held_out[-1:]) + len(at) - 1)
    # each round stands behind a whole epoch, is whole itself, and training then starts again
    after_epochs = len(begins) >= FEWEST_ROUNDS and not held_out[0] and np.all(step[at[begins - 1]] == main)
    again = ends[ends + 1 < len(at)]
    whole = len(ends) == len(begins) and np.all(step[at[ends[:-1]]] == of[at[ends[:-1]]])
    if not after_epochs or not whole or np.any(step[at[again + 1]] >= main):
        return records
    kind, columns = records.kind.copy(), {name: values.copy() for name, values in records.columns.items()}
    rows, trained = at[ends], at[begins - 1]
    columns.setdefault("eval_loss", np.full(len(records), np.nan))[rows] = loss[rows]
    for name in ("loss", "loss_is_nan", "planned_steps", "seconds"):
        columns.get(name, np.zeros(len(records)))[rows] = np.nan
    columns["step"][rows], kind[rows] = step[trained], EVAL
    gone = np.setdiff1d(at[held_out], rows)
    told = replace(records, kind=kind, columns=columns, losses=records.losses - int(held_out.sum()))
    return told.take(np.setdiff1d(np.arange(len(records)), gone))


def copies_apart(records: Records) -> tuple[Records, int]:
    """Return the first of several runs that print each step in turn into one log without a rank, and their number."""
    step, loss = records.column("step"), records.column("loss")
    at = np.flatnonzero((records.kind == TRAIN) & np.isfinite(step) & np.isfinite(loss))
    steps, counts = np.unique(step[at], return_counts=True)
    if len(steps) < FEWEST_ROUNDS or counts[0] < 2 or np.ptp(counts[:-1]) or counts[-1] > counts[0]:
        return records, 1
    if np.isfinite(records.column("rank")).any() or np.any(np.diff(step[at]) < 0):
        return records, 1
    number = int(counts[0])
    values = loss[at][: number * (len(steps) - 1)].reshape(-1, number)
    if np.mean(np.ptp(values, axis=1) > 0) < MOST_DIFFER:
        return records, 1
    others = at[np.arange(len(at)) % number > 0]
    kept = records.take(np.setdiff1d(np.arange(len(records)), others))
    return kept, number


def attempts(records: Records, axis: np.ndarray, names: Sequence[str], starts: Sequence[int] = ()) -> Attempts:
    """Cut the records into phases. `axis` is each record's step (or its stand-in), `names` the phase of each rule.

    Records with one of the lines `starts` between them belong to two runs, even if they are alike.
    """
    found, named = Attempts(), None
    if any(names):  # validation belongs to any phase unless the format names one
        named = np.asarray(names, object)[records.rule]
        named = np.where((named == "") & (records.kind == TRAIN), "training", named)
    for piece in _without_repeats(_cut(axis, named, records), records, found, starts):
        steps, name = axis[piece[:8]], "" if named is None else next((str(one) for one in named[piece] if one), "")
        first = float(np.nanmin(steps)) if np.isfinite(steps).any() else np.nan
        plans = [records.column(column)[piece] for column in ("planned_steps", "planned_epochs")]
        planned, epochs = (float(known[-1]) if len(known := plan[~np.isnan(plan)]) else None for plan in plans)
        before = found.phases[-1] if found.phases else None
        # a run that goes back to the last step of its beginning uses no checkpoint
        done = distinct(axis[before.records][~np.isnan(axis[before.records])]) if before is not None else np.zeros(0)
        begun = done[1] if len(done) >= LONG else before.first if before is not None else np.inf
        if before is None or name != before.name or not first > begun:
            found.phases.append(Stretch(records=piece, name=name, planned=planned, planned_epochs=epochs, first=first))
            continue
        kept = before.records[~(axis[before.records] >= first)]
        if len(kept) < len(before.records):
            found.restarts.append((int(piece[0]), first, float(np.nanmax(axis[before.records]))))
            before.restarts += 1
        before.records = np.concatenate((kept, piece))
        before.planned = planned if planned is not None else before.planned
    return found


def _cut(axis: np.ndarray, named: np.ndarray | None, records: Records) -> list[np.ndarray]:
    """Return record indices, cut where steps go back further than between ranks, and where a named phase begins."""
    at = np.flatnonzero(~np.isnan(axis))
    if not len(at):
        return [np.arange(len(axis))] if len(axis) else []
    place = np.unique(axis[at], return_inverse=True)[1]
    train = records.kind[at] == TRAIN
    back = np.diff(place)
    # back to the first step of its piece, however short the piece is
    started = np.concatenate(([0], np.flatnonzero(back < -JITTER) + 1))
    first = place[started[np.searchsorted(started, np.arange(len(place) - 1), side="right") - 1]]
    to_start = (back < 0) & (place[1:] <= first) & ((train[1:] == train[:-1]) | (back < -1))
    cut = (back < -JITTER) | to_start
    trained = place[train]
    if train.any() and np.all(np.diff(trained) >= 0):
        cut[:] = False  # training goes on; validation is printed late or has its own counter
    # steps of several ranks that print into one file may go back a little; validation may be printed late
    if len(distinct(trained)) >= (1 - REPEATED_BY_RANKS) * len(trained):
        rows = np.flatnonzero(train)
        cut[rows[1:][np.diff(trained) < 0] - 1] = True
    if named is not None:
        here = named[at]
        known = (here[1:] != "") & (here[:-1] != "")
        cut |= known & (here[1:] != here[:-1])
    return np.split(np.arange(len(axis)), at[1:][cut])


def distinct(numbers: np.ndarray) -> np.ndarray:
    """Return the distinct whole numbers, ascending. `np.unique` hashes them and is 40 times slower if most differ."""
    ordered = np.sort(numbers)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def _without_repeats(
    pieces: list[np.ndarray], records: Records, found: Attempts, starts: Sequence[int]
) -> list[np.ndarray]:
    """Drop each piece that repeats another one, or the beginning of another one, value for value."""
    kept: list[np.ndarray] = []
    for piece in pieces:
        begins = records.line[piece[0]]
        apart = max((line for line in starts if line <= begins), default=0)
        same = (i for i, other in enumerate(kept) if records.line[other[0]] >= apart)
        twin = next((i for i in same if _repeats(piece, kept[i], records)), None)
        if twin is None:
            kept.append(piece)
            continue
        shorter, longer = sorted((piece, kept[twin]), key=len)
        kept[twin] = longer
        found.duplicates += int((records.kind[shorter] == TRAIN).sum())
    return kept


def _repeats(one: np.ndarray, other: np.ndarray, records: Records) -> bool:
    """Return whether two pieces agree up to the end of the shorter one. A handful of records is not enough."""
    n = min(len(one), len(other))
    if n < 3 or n * 2 < max(len(one), len(other)):
        return False
    a, b = one[:n], other[:n]
    if not np.array_equal(records.rule[a], records.rule[b]):
        return False
    return all(np.array_equal(values[a], values[b], equal_nan=True) for values in records.columns.values())


def one_per_step(piece: np.ndarray, records: Records, axis: np.ndarray) -> tuple[np.ndarray, int]:
    """If a step has several training records, keep that of the lowest rank, or the last one if no rank was printed.

    For the first step, the first record is kept, because the log begins with it. Returns the kept indices in file order
    and the number of records left out.
    """
    train = piece[(records.kind[piece] == TRAIN) & ~np.isnan(axis[piece])]
    rank = records.column("rank")[train]
    rank = np.where(np.isnan(rank), 0.0, rank)
    begins = axis[train] == np.min(axis[train], initial=np.inf)
    begins &= len(distinct(records.rule[train][begins])) == 1  # lines of one form; other forms add to the same record
    order = np.lexsort(
        (np.where(begins, train, -train), rank, axis[train])
    )  # for each step: the lowest rank, then the latest record
    steps = axis[train][order]
    first = np.concatenate(([True], steps[1:] != steps[:-1])) if len(steps) else np.zeros(0, bool)
    lost = train[order[~first]]
    kept = np.setdiff1d(piece, lost, assume_unique=True)
    return kept, len(lost)


def merge_evaluations(piece: np.ndarray, records: Records, axis: np.ndarray) -> np.ndarray:
    """Merge evaluation results into the training record of the same step, and return the records that remain rows."""
    evals = piece[(records.kind[piece] == EVAL) & ~np.isnan(axis[piece])]
    if not len(evals):
        return piece
    rows = piece[(records.kind[piece] == TRAIN) & ~np.isnan(axis[piece])]
    own = evals[~np.isin(axis[evals], axis[rows])]
    firsts = own[np.unique(axis[own], return_index=True)[1]] if len(own) else own
    rows = np.concatenate((rows, firsts))
    by_step = rows[np.argsort(axis[rows], kind="stable")]
    target = by_step[np.searchsorted(axis[by_step], axis[evals])]
    for values in records.columns.values():
        source = np.flatnonzero(~np.isnan(values[evals]) & np.isnan(values[target]) & (target != evals))
        places, which = np.unique(target[source], return_index=True)
        values[places] = values[evals[source[which]]]
    return np.setdiff1d(piece, np.setdiff1d(evals, firsts), assume_unique=True)
