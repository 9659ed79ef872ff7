"""Keeps a log's records in constant memory. A very long log is thinned by its steps, while counts stay exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from advisor.readers.line_format import EVAL, MORE, SETS, TRAIN

MOST_RECORDS = 1 << 19  # above it, every second step is dropped; ten columns of this length take 42 MB


@dataclass(frozen=True, kw_only=True)
class Records:
    """Records in file order, NaN where a record did not print a column. MORE records are already merged."""

    line: np.ndarray  # 1-based
    kind: np.ndarray  # TRAIN or EVAL
    rule: np.ndarray  # index of the format's row
    order: np.ndarray  # place in the file, in lines; those that end with a lone CR also count
    columns: dict[str, np.ndarray]
    losses: int  # TRAIN records with a loss, or whose steps were all skipped, before thinning
    evals: int  # records with a validation loss, before thinning
    train: int  # TRAIN records, before thinning
    kept_every: int = 1

    def __len__(self) -> int:
        return len(self.line)

    def column(self, name: str) -> np.ndarray:
        return self.columns.get(name, np.full(len(self), np.nan))

    def take(self, index: np.ndarray) -> Records:
        """Return some of the records, by mask or index; the counts remain those of the file."""
        return Records(
            line=self.line[index],
            kind=self.kind[index],
            rule=self.rule[index],
            order=self.order[index],
            columns={name: values[index] for name, values in self.columns.items()},
            losses=self.losses,
            evals=self.evals,
            train=self.train,
            kept_every=self.kept_every,
        )


@dataclass(frozen=True, kw_only=True)
class _Block:
    order: np.ndarray
    line: np.ndarray
    rule: np.ndarray
    columns: dict[str, np.ndarray]


@dataclass(kw_only=True)
class RecordStore:
    """Collects blocks of records. `kinds` gives the kind of each of the format's rows."""

    kinds: Sequence[int]
    most: int = MOST_RECORDS
    kept_every: int = 1
    blocks: list[_Block] = field(default_factory=list)
    size: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: {"losses": 0, "evals": 0, "train": 0})
    stride: float | None = None
    said: dict[str, float] = field(default_factory=dict)  # values of the last SETS records that were taken out
    filled_to: int = -1  # order up to which records have received the values of SETS records

    def add(self, *, order: np.ndarray, line: np.ndarray, rule: int, columns: dict[str, np.ndarray]) -> None:
        """Add records of one rule; `order` is their place in the file, unique over all rules."""
        self.blocks.append(_Block(order=order, line=line, rule=np.full(len(order), rule, np.int16), columns=columns))
        self.size += len(order)

    def end_of_chunk(self) -> None:
        """Thin the records if there are too many."""
        if self.size > self.most:
            self._thin(self._merged())

    def records(self) -> Records:
        """Return all records so far in file order."""
        block = self._merged()
        kept = self._count(block)
        return Records(
            line=block.line,
            kind=self._kind(block.rule),
            rule=block.rule,
            order=block.order,
            columns=block.columns,
            kept_every=self.kept_every,
            **{name: kept[name] + self.dropped[name] for name in kept},
        )

    def _merged(self) -> _Block:
        """Return all blocks as one, with SETS and MORE records merged into the records that they describe."""
        return _merge_more(self._filled(_join(self.blocks)), self._kind)

    def _filled(self, block: _Block) -> _Block:
        sets = self._kind(block.rule) == SETS
        if not len(sets) or not (sets.any() or self.said):
            return block
        new = ~sets & (block.order > self.filled_to)
        for name, values in block.columns.items():
            own = sets & ~np.isnan(values)
            source = np.maximum.accumulate(np.where(own, np.arange(len(own)), -1))
            before = self.said.get(name, np.nan)
            said = np.where(source >= 0, values[np.maximum(source, 0)], before)
            if own.any():
                self.said[name] = float(said[-1])
            if own.any() or not np.isnan(before):
                values[new & np.isnan(values)] = said[new & np.isnan(values)]
        self.filled_to = int(block.order[-1])
        return _take(block, ~sets)

    def _kind(self, rule: np.ndarray) -> np.ndarray:
        return np.asarray([*self.kinds, TRAIN], np.int8)[rule]

    def _count(self, block: _Block) -> dict[str, int]:
        train = self._kind(block.rule) == TRAIN
        return {
            "losses": int((train & has_loss(block.columns, len(train))).sum()),
            "evals": int((~np.isnan(block.columns["eval_loss"])).sum()) if "eval_loss" in block.columns else 0,
            "train": int(train.sum()),
        }

    def _thin(self, block: _Block) -> None:
        """Keep one step in so many that half the room is free. The ends of attempts and of the file stay."""
        before, rows = self._count(block), len(block.order)
        axis = block.columns.get("step", block.order.astype(np.float64))
        moves = np.diff(axis)
        if self.stride is None:
            forward = moves[moves > 0]
            self.stride = float(np.median(forward)) if len(forward) else 1.0
        ends = np.concatenate(([True], moves < 0)) | np.concatenate((moves < 0, [True]))
        ends[1:-1] &= ends.sum() < rows / 16
        evals = self._kind(block.rule) == EVAL
        ends |= evals & (evals.sum() < self.most / 8)  # evaluations are few and costly
        keep = self._in_step(axis) | ends
        while keep.sum() > self.most / 2 and self.kept_every < rows:
            self.kept_every *= 2
            keep = self._in_step(axis) | ends
        if keep.sum() > self.most / 2:  # steps that do not advance are dropped by place
            keep = np.arange(rows) % 2 == 0
            keep[-1] = True
        kept = _take(block, keep)
        after = self._count(kept)
        for name in self.dropped:
            self.dropped[name] += before[name] - after[name]
        self.blocks, self.size = [kept], len(kept.order)

    def _in_step(self, axis: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.round(axis / (self.stride or 1.0)) % self.kept_every == 0


def has_loss(columns: dict[str, np.ndarray], rows: int) -> np.ndarray:
    """Return which records count as having a training loss: one was printed, even NaN, or all steps were skipped."""
    printed = np.zeros(rows, bool)
    if "loss_is_nan" in columns:
        printed |= ~np.isnan(columns["loss_is_nan"])
    if "skipped" in columns:
        printed |= columns["skipped"] > 0
    return printed


def _join(blocks: Sequence[_Block]) -> _Block:
    if not blocks:
        empty = np.zeros(0, np.int64)
        return _Block(order=empty, line=empty, rule=empty.astype(np.int16), columns={})
    order = np.concatenate([b.order for b in blocks])
    by_order = np.argsort(order, kind="stable")
    columns: dict[str, np.ndarray] = {}
    at = 0
    for block in blocks:
        end = at + len(block.order)
        for name, values in block.columns.items():
            if name not in columns:
                columns[name] = np.full(len(order), np.nan)
            columns[name][at:end] = values
        at = end
    return _Block(
        order=order[by_order],
        line=np.concatenate([b.line for b in blocks])[by_order],
        rule=np.concatenate([b.rule for b in blocks])[by_order],
        columns={name: values[by_order] for name, values in columns.items()},
    )


def _take(block: _Block, keep: np.ndarray) -> _Block:
    columns = {name: values[keep] for name, values in block.columns.items()}
    return _Block(order=block.order[keep], line=block.line[keep], rule=block.rule[keep], columns=columns)


def _merge_more(block: _Block, kind_of: Callable[[np.ndarray], np.ndarray]) -> _Block:
    """Put the values of MORE records into the record before them. If two print the same column, the first counts."""
    more = kind_of(block.rule) == MORE
    if not more.any():
        return block
    owner = np.maximum.accumulate(np.where(more, -1, np.arange(len(more))))
    at = np.flatnonzero(more & (owner >= 0))
    for values in block.columns.values():
        source = at[~np.isnan(values[at])]
        targets, first = np.unique(owner[source], return_index=True)
        free = np.isnan(values[targets])
        values[targets[free]] = values[source[first[free]]]
    return _take(block, ~more)
