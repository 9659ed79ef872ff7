"""Chooses the fit of an adopted command, and lists the splits of its global batch over rows, calls, processes. Pure.

Each split keeps the command's own global batch. A program may count rows and accumulation per process, share
accumulation among processes, or derive its micro-batches from a global batch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from advisor.adopt.empirical import Batch, Fitted, Seen, fit_law, fit_memory, fit_time, hold_each_out
from advisor.adopt.self_test import rows_of_all
from advisor.adopt.session import batch_of, memory_kind, seen_memory, seen_times
from advisor.errors import AdvisorError
from advisor.laws.held_out import HeldOut
from advisor.records import Estimate
from advisor.store.adopted import Adopted, AdoptedBurst, Setting

_FARTHEST = 2.0  # times the measured values; nothing beyond is planned


@dataclass(frozen=True, kw_only=True)
class Option:
    """One way to split the global batch."""

    batch: Batch
    settings: tuple[Setting, ...]
    step_seconds: Estimate
    memory_bytes: Estimate | None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The chosen fit of a command's step times, with its held-out errors (None: too few bursts)."""

    fit: Callable[[Sequence[Seen]], Fitted]
    held_out: HeldOut | None
    by_law: bool


@functools.lru_cache(maxsize=16)
def choose_fit(adopted: Adopted) -> Chosen:
    """Chooses the law if the model is known, one process trains and the law's held-out error is no larger.

    Only the terms fit bursts of several processes. The two fits are compared on bursts of one process.
    """
    seen, model = seen_times(adopted.bursts), adopted.bursts[0].model
    terms = hold_each_out(seen, fit_time)
    if model is None or terms is None or adopted.bursts[0].processes > 1:
        return Chosen(fit=fit_time, held_out=terms, by_law=False)
    known, alone = model, [one for one in seen if one.batch.processes == 1]

    def by_law(some: Sequence[Seen]) -> Fitted:
        return fit_law(known, [one for one in some if one.batch.processes == 1])

    law = hold_each_out(alone, by_law)
    # the terms are compared on the batches that the law predicts
    same = [point for point in terms.points if law is not None and law.of(point.configuration)]
    if law is None or law.median > HeldOut(points=tuple(same)).median:
        return Chosen(fit=fit_time, held_out=terms, by_law=False)
    return Chosen(fit=by_law, held_out=law, by_law=True)


def time_of(adopted: Adopted, many: float | None = None) -> Fitted:
    """Returns the model of a command's step time with this many processes (None: its own number).

    Raises AdvisorError if no burst was steady.
    """
    seen = seen_times(adopted.bursts)
    if not seen:
        raise AdvisorError(
            "no burst had steady steps whose batch could be seen", "adopt it again with more time: --budget-seconds"
        )
    base = adopted.bursts[0].processes
    return fit_time(seen) if many not in (None, base) else choose_fit(adopted).fit(seen)


def batch_options(adopted: Adopted, gpus: int | None = None) -> list[Option]:
    """Returns every split of the command's global batch that its knobs can set and that is near the measured batches.

    `gpus` processes train together (None: the command's own number). The first split is the command's own, or the
    nearest to it. Raises AdvisorError if this number of processes cannot have that batch.
    """
    memory_seen, kind = seen_memory(adopted.bursts), memory_kind(adopted.bursts)
    memory = fit_memory(memory_seen) if memory_seen else None
    many = float(adopted.bursts[0].processes if gpus is None else gpus)
    time, base = time_of(adopted, many), batch_of(adopted.bursts[0])
    assert base is not None  # a batch with times was seen
    _refuse_processes(adopted, base, many)

    def option(batch: Batch) -> Option:
        # processes share the memory of the host, and have a GPU each
        bytes_ = memory.estimate(batch).scaled(many if kind == "resident" else 1.0) if memory else None
        return Option(batch=batch, settings=_settings(adopted, base, batch), step_seconds=time.estimate(batch),
                      memory_bytes=bytes_)  # fmt: skip

    splits = list(_splits(adopted, base, time, many))
    if many != base.processes:
        splits.sort(key=lambda batch: abs(math.log(batch.rows / base.rows)))
    if not splits:
        raise AdvisorError(
            f"its batch of {base.rows * base.calls * base.processes:g} rows cannot stay with {many:g} processes: "
            "nothing that was seen to work sets the rows of each",
            "name the option: --knob micro_batch=--OPTION or grad_accum=--OPTION, and adopt it again",
            exit_code=3,
        )
    return [option(batch) for batch in splits]


def _refuse_processes(adopted: Adopted, base: Batch, many: float) -> None:
    """Raises AdvisorError for another number of processes without a working knob for it."""
    if many == base.processes:
        return
    knob = adopted.recipe.knob("gpus")
    if knob is None:
        hint = "start it by torchrun --nproc-per-node 1 …, or name its own option: --knob gpus=--OPTION"
        raise AdvisorError(f"nothing is known that makes it {many:g} processes", hint, exit_code=2)
    told = next((v for v in adopted.verdicts if v.name == "gpus"), None)
    if told is not None and told.verdict not in ("works", "untested"):
        raise AdvisorError(f"{knob.key} cannot be believed: {told.words}", "leave --gpus out", exit_code=3)


def _splits(adopted: Adopted, base: Batch, time: Fitted, many: float) -> Iterator[Batch]:
    """Yields the batches of each of so many processes that make up the command's own global batch."""
    together = round(base.rows * base.calls * base.processes)
    sets_rows = adopted.working("micro_batch") is not None
    sets_calls = adopted.working("grad_accum") is not None or _accum_follows(adopted)
    if many == base.processes:
        yield base
    most, least = max(b.rows for b in time.seen) * _FARTHEST, min(b.rows for b in time.seen) / _FARTHEST
    least = least if many != base.processes else least * _FARTHEST
    for rows in map(float, range(1, together + 1)) if sets_rows else (base.rows,):
        batch = replace(base, rows=rows, calls=together / (rows * many), processes=many)
        can_be = sets_calls or batch.calls == base.calls
        near = batch != base and least <= rows <= most and batch.calls.is_integer()
        if can_be and near and all(float(each.value).is_integer() for each in _settings(adopted, base, batch)):
            yield batch


def _settings(adopted: Adopted, base: Batch, batch: Batch) -> tuple[Setting, ...]:
    """Returns the settings for a batch, with the number of processes first."""
    found = []
    micro, accum = adopted.working("micro_batch"), adopted.working("grad_accum")
    if batch.processes != base.processes:
        found.append(Setting(name="gpus", value=batch.processes))
    if batch.rows != base.rows:
        assert micro is not None and micro.value  # the knob sets the rows
        found.append(Setting(name="micro_batch", value=micro.value * batch.rows / base.rows))
    if accum is not None and accum.value:
        shared = batch.processes / base.processes if _accum_is_shared(adopted) else 1.0
        value = accum.value * batch.calls * shared / base.calls
        if value != accum.value:
            found.append(Setting(name="grad_accum", value=value))
    return tuple(found)


def _accum_is_shared(adopted: Adopted) -> bool:
    """Tells from bursts with other numbers of processes whether they share accumulation, as in nanoGPT."""
    alone, own = _alone(adopted, "gpus"), adopted.bursts[0].shape
    seen = [(b.shape.calls, b.processes) for b in alone if b.shape is not None]
    if own is None or not seen:
        return False
    return all(calls * many == own.calls * adopted.bursts[0].processes for calls, many in seen)


def _accum_follows(adopted: Adopted) -> bool:
    """Tells whether the program keeps its global batch: bursts of another micro-batch had as many rows per step."""
    base, alone = adopted.bursts[0], [b for b in _alone(adopted, "micro_batch") if b.shape]
    if base.shape is None or adopted.recipe.knob("grad_accum") is not None:
        return False
    return bool(alone) and all(rows_of_all(burst) == rows_of_all(base) for burst in alone)


def _alone(adopted: Adopted, name: str) -> list[AdoptedBurst]:
    """Returns the bursts that set only this knob."""
    return [burst for burst in adopted.bursts if [setting.name for setting in burst.values] == [name]]
