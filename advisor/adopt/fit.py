"""Step time and memory of a program: sums of terms in its batch, or our law for decoders, fitted to its own bursts.

    seconds of a step = per step + calls x (per call + per token x tokens + per token and length x tokens x length)
                      + (1 - 1 / processes) x (exchange + beside others x calls x tokens)
    peak memory       = always   + per token x tokens of one call

If the rows of a call are packed end to end into one row, there is a further term in tokens x tokens of each call,
because attention may then see all of them. Processes that train together exchange their gradients; a ring all-reduce
sends 2 (1 - 1/processes) times their size. They also share memory, caches and power, so only processes of
one machine are meant.

Each term is positive. The logarithm of each term has a normal prior, centred on a share of what the bursts take.
Laplace's approximation gives the interval, widened by what the terms leave unexplained and by the machine's drift. The
fit is valid for this program on this machine only. Pure.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.calibration.fit import fit, most_plausible
from advisor.calibration.observations import Drift, corrected_log, drift_among
from advisor.errors import AdvisorError
from advisor.laws.held_out import HeldOut, leave_one_out
from advisor.laws.intervals import Z80
from advisor.prediction.prior import measured_prior
from advisor.prediction.throughput import Rates, predict_log, sizes
from advisor.records import Basis, Estimate, MeasuredStep, Workload
from advisor.store.adopted import LOG, WHOLE_RUN, Adopted, AdoptedBurst
from trainer.schema import ModelShape

# Shares of the terms before any burst: arbitrary except for their order, as most of a step depends on tokens. The last
# two of time are for several processes, as shares of a step with a single process.
_TIME_PRIOR, _MEMORY_PRIOR = (0.1, 0.1, 0.7, 0.1, 0.1, 0.2, 0.2), (0.5, 0.5, 0.1)
_PRIOR_DEVIATION = 1.5  # of the log of each term
_DISCREPANCY, _DISCREPANCY_WEIGHT = 0.05, 4.0  # of the log, unexplained by the terms; weight in bursts
_DRIFT, _DRIFT_WEIGHT = 0.03, 2.0  # between visits of one configuration; weight in visits
_OUTSIDE = 0.08  # for each doubling beyond the measured range: caches, other kernels
# for each doubling of processes: other links, other cores. Arbitrary; added once more if only one process was measured
_OUTSIDE_PROCESSES = 0.25
_RESTLESS = 0.25  # of the log of a burst's steps; steps of one batch on a quiet machine scatter by a few per cent
# Of the log: the time between a line and the end of its step, or memory that is only sampled. On four CPU programs,
# medians were within 0.015 of the probe's. A GPU that runs asynchronously to its host may be worse.
_BY_LOG = 0.05
# Of our law, for a command whose model is a known decoder.
_NOMINAL = Rates(matmul_flops=1e11, bandwidth=2e10, launch_seconds=5e-6)  # of a few cores; only ratios matter
_COMMON = 1.5  # deviation of the log of the common factor: a GPU or a core, another library
_VISIT = 0.05  # of the log of one visit, from the burst's median; the machine's drift is in the prediction


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The batch of one optimizer step in one process. `length` is 1 for rows without tokens.

    With `end_to_end`, the rows of a call are packed end to end into a single row.
    """

    rows: float
    calls: float
    length: float = 1.0
    end_to_end: bool = False
    processes: float = 1.0  # that train together, each with such a batch

    @property
    def tokens(self) -> float:
        """The tokens of one call."""
        return self.rows * self.length


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One measured value, of seconds or bytes."""

    batch: Batch
    value: float
    by_log: bool = False  # read from the log's lines or the system's view of the processes
    drift: float = 0.0  # of the log, by the reference kernel: how much a later run's machine may differ; 0: not timed


def batch_of(burst: AdoptedBurst) -> Batch | None:
    """Returns the batch of a burst's steps, or None if it was not seen.

    If only the log was seen and nothing states the batch, the batch is a single unit.
    """
    shape, many = burst.shape, float(burst.processes)
    if shape is None:
        return Batch(rows=1.0, calls=1.0, processes=many) if burst.source == LOG and not burst.values else None
    length = shape.length or 1.0
    return Batch(rows=shape.rows, calls=shape.calls, length=length, end_to_end=shape.end_to_end, processes=many)


def drift_of(bursts: Sequence[AdoptedBurst]) -> Drift:
    """Measures how the machine's own speed changed during the bursts, by the reference kernel."""
    own = [b for b in bursts if b.source != WHOLE_RUN and b.measured and b.steady]  # runs are compared with these
    timed = [b for b in own if b.reference_seconds and batch_of(b) is not None]
    return drift_among([(batch_of(b), b.step_seconds, b.reference_seconds) for b in timed])


def seen_times(bursts: Sequence[AdoptedBurst]) -> list[Seen]:
    """Returns the median step of each steady burst, corrected for the machine's own speed."""
    drift, seen = drift_of(bursts), []
    moved = drift.deviation if drift.reference_seconds is not None else 0.0
    for burst in bursts:
        if not burst.measured or not burst.steady or (batch := batch_of(burst)) is None:
            continue
        # Small scatter of the steps averages out in a long run. Large scatter comes from other work that comes and
        # goes, and no burst says how often it will.
        scatter = statistics.pstdev([math.log(seconds) for seconds in burst.step_seconds if seconds > 0] or [0.0])
        seen.append(Seen(batch=batch, value=math.exp(corrected_log(burst, drift)), by_log=bursts[0].source == LOG,
                         drift=max(moved, scatter if scatter > _RESTLESS else 0.0)))  # fmt: skip
    return seen


def memory_kind(bursts: Sequence[AdoptedBurst]) -> str:
    """Returns who counted the bursts' memory: PyTorch or the driver on a GPU, or else the operating system."""
    kinds = ("allocated", "device")
    return next((kind for kind in kinds if any(getattr(b, f"{kind}_peak_bytes") for b in bursts)), "resident")


def seen_memory(bursts: Sequence[AdoptedBurst]) -> list[Seen]:
    """Returns the peak memory of each burst with steady steps, for one process or its GPU."""
    kind, seen = memory_kind(bursts), []
    for burst in bursts:
        bytes_, batch = getattr(burst, f"{kind}_peak_bytes"), batch_of(burst)
        if burst.measured and bytes_ and batch is not None:
            each = bytes_ / (burst.processes if kind == "resident" else 1)
            seen.append(Seen(batch=batch, value=each, by_log=burst.source == LOG))
    return seen


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A fitted model of step time or memory."""

    log_of: Callable[[Batch], tuple[float, float]]  # mean and deviation of the logarithm at a batch
    seen: tuple[Batch, ...]  # the batches that it was fitted to

    def estimate(self, batch: Batch) -> Estimate:
        """Returns the value at a batch with its 80 % interval."""
        mean, deviation = self.log_of(batch)
        value, width = math.exp(mean), math.exp(Z80 * deviation)
        between = Basis.EXTRAPOLATED if _outside(batch, self.seen) else Basis.INTERPOLATED
        basis = Basis.MEASURED if batch in self.seen else between
        return Estimate(value=value, low=value / width, high=value * width, basis=basis)


def _outside(batch: Batch, seen: Sequence[Batch], *names: str) -> float:
    """Counts the doublings of these quantities (default: all) by which a batch lies outside the measured ones."""
    names = names or ("rows", "calls", "length", "processes")
    pairs = [(getattr(batch, name), [getattr(each, name) for each in seen]) for name in names]
    return sum(max(0.0, math.log2(value / max(known)), math.log2(min(known) / value)) for value, known in pairs)


def fit_time(seen: Sequence[Seen]) -> Fitted:
    """Returns the fitted step time of a program; raises ValueError without a burst."""

    def terms(batch: Batch) -> tuple[float, ...]:
        work, others = batch.calls * batch.tokens, 1 - 1 / batch.processes
        together = work * batch.tokens * batch.end_to_end
        return 1.0, batch.calls, work, work * batch.length, together, others, others * work

    return _fit(seen, terms, _TIME_PRIOR)


def fit_memory(seen: Sequence[Seen]) -> Fitted:
    """Returns the fitted peak memory of a program; raises ValueError without a burst."""
    return _fit(seen, lambda batch: (1.0, batch.tokens, batch.tokens**2 * batch.end_to_end), _MEMORY_PRIOR)


def _visits(seen: Sequence[Seen]) -> tuple[dict[Batch, list[float]], float, float]:
    """Returns the logarithms of the values at each batch, their deviation between visits, and that of a later run.

    The deviation between visits is shrunk to its prior. Raises ValueError if nothing was measured.
    """
    if not seen:
        raise ValueError("no burst was measured")
    visits: dict[Batch, list[float]] = {}
    for one in seen:
        visits.setdefault(one.batch, []).append(math.log(one.value))
    squares = sum((value - statistics.mean(logs)) ** 2 for logs in visits.values() for value in logs)
    drift = math.sqrt((_DRIFT_WEIGHT * _DRIFT**2 + squares) / (_DRIFT_WEIGHT + len(seen) - len(visits)))
    by_log = _BY_LOG if any(one.by_log for one in seen) else 0.0
    return visits, drift, math.hypot(max(drift, *(one.drift for one in seen)), by_log)


def _fit(seen: Sequence[Seen], terms: Callable[[Batch], tuple[float, ...]], shares: Sequence[float]) -> Fitted:
    visits, drift, unsteady = _visits(seen)
    batches = tuple(visits)
    x = np.array([terms(batch) for batch in batches])
    y = np.array([statistics.median(logs) for logs in visits.values()])
    alone = np.array([terms(replace(batch, processes=1.0)) for batch in batches]) > 0
    prior_shares = np.array(shares) / sum(np.array(shares)[alone.any(axis=0)])  # for a typical measured batch
    # Each term's mean logarithm over the batches that have it. A term that no batch has keeps its prior; a term of
    # several processes, as if there were many.
    many = np.array([terms(replace(batch, processes=math.inf)) for batch in batches])
    full = np.where((x > 0).any(axis=0), x, many)
    middle = np.log(full, out=np.zeros_like(full), where=full > 0).sum(axis=0) / np.maximum((full > 0).sum(axis=0), 1)
    prior = y.mean() + np.log(prior_shares) - middle
    noise = np.sqrt(drift**2 / np.array([len(logs) for logs in visits.values()]) + _DISCREPANCY**2)

    theta, precision, _ = most_plausible(x, y, np.diag(1 / noise), prior, np.eye(len(prior)) / _PRIOR_DEVIATION)
    left = y - np.log(x @ np.exp(theta))
    discrepancy = math.sqrt(
        (_DISCREPANCY_WEIGHT * _DISCREPANCY**2 + float((left**2).sum())) / (_DISCREPANCY_WEIGHT + len(left))
    )
    covariance, unexplained = np.linalg.inv(precision), math.hypot(discrepancy, unsteady)

    def log_of(batch: Batch) -> tuple[float, float]:
        parts = np.array(terms(batch)) * np.exp(theta)
        gradient = parts / parts.sum()
        # one more doubling if only single processes were measured and several are asked for
        doublings = _outside(batch, batches, "processes")
        doublings += batch.processes > max(each.processes for each in batches) == 1
        beyond = _OUTSIDE * _outside(batch, batches, "rows", "calls", "length"), _OUTSIDE_PROCESSES * doublings
        deviation = math.hypot(math.sqrt(gradient @ covariance @ gradient), unexplained, *beyond)
        return math.log(float(parts.sum())), deviation

    return Fitted(log_of=log_of, seen=batches)


def workload(model: ModelShape, batch: Batch) -> Workload:
    """Returns the workload of a batch; rows that are packed end to end count as one long row."""
    rows, length = (1, round(batch.tokens)) if batch.end_to_end else (round(batch.rows), round(batch.length))
    shape = replace(model, seq_len=max(1, length))
    return Workload(shape=shape, micro_batch=max(1, rows), grad_accum=round(batch.calls), gpu="cpu", precision="fp32")


def fit_law(model: ModelShape, seen: Sequence[Seen]) -> Fitted:
    """Returns our law's step time for a command with this model; raises ValueError without a burst.

    The rates are nominal, and the prior on a common factor of all coefficients is wide, so that only their ratios come
    from the law. Rates off by ten times change the errors on two recorded commands by a hundredth at most
    (docs/log.md, 2026-11-23).
    """
    visits, _, drift = _visits(seen)
    observed = [
        MeasuredStep(workload=workload(model, batch), step_seconds=math.exp(statistics.median(logs)),
                    noise=_VISIT / math.sqrt(len(logs)))
        for batch, logs in visits.items()
    ]  # fmt: skip
    house = measured_prior()
    prior = replace(house, covariance=house.covariance + _COMMON**2 * np.ones_like(house.covariance))
    posterior = fit(observed, _NOMINAL, prior, drift)
    # What the law leaves unexplained of bursts on a busy machine is far more than their noise.
    logs = predict_log(posterior, sizes([step.workload for step in observed])).mean
    left = float(np.sqrt(np.mean((logs - np.log([step.step_seconds for step in observed])) ** 2)))

    def log_of(batch: Batch) -> tuple[float, float]:
        found = predict_log(posterior, sizes([workload(model, batch)]))
        return float(found.mean[0]), math.hypot(float(found.deviation[0]), drift, left)

    return Fitted(log_of=log_of, seen=tuple(visits))


def hold_each_out(seen: Sequence[Seen], fitted: Callable[[Sequence[Seen]], Fitted]) -> HeldOut | None:
    """Predicts each batch from the others. Returns None for fewer than four batches."""
    return leave_one_out(
        seen,
        configuration=lambda one: one.batch,
        measured=lambda one: one.value,
        predict=lambda rest, one: fitted(rest).estimate(one.batch),
    )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The chosen fit of a command's step times, with its held-out errors (None: too few bursts)."""

    fitted: Fitted
    held_out: HeldOut | None
    by_law: bool


@functools.lru_cache(maxsize=16)
def choose_fit(adopted: Adopted) -> Chosen:
    """Chooses the law if the model is known, one process trains and the law's held-out error is no larger.

    Only the terms fit bursts of several processes. The two fits are compared on the batches of one process. Raises
    AdvisorError if no burst was steady.
    """
    seen, base = seen_times(adopted.bursts), adopted.bursts[0]
    if not seen:
        hint = "adopt it again with more time: --budget-seconds"
        raise AdvisorError("no burst had steady steps whose batch could be seen", hint)
    terms = hold_each_out(seen, fit_time)
    if base.model is not None and base.processes == 1 and terms is not None:
        by_law, alone = functools.partial(fit_law, base.model), [one for one in seen if one.batch.processes == 1]
        law = hold_each_out(alone, by_law)
        same = [point for point in terms.points if law is not None and law.of(point.configuration)]
        if law is not None and law.median <= HeldOut(points=tuple(same)).median:
            return Chosen(fitted=by_law(alone), held_out=law, by_law=True)
    return Chosen(fitted=fit_time(seen), held_out=terms, by_law=False)


def time_of(adopted: Adopted, many: float | None = None) -> Fitted:
    """Returns the model of a command's step time with this many processes, or with its own number if None."""
    own = many in (None, adopted.bursts[0].processes)
    return choose_fit(adopted).fitted if own else fit_time(seen_times(adopted.bursts))
