"""The speed of a run from its table, whatever the log printed: steady steps, rates, clocks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.findings import series
from advisor.findings.case import Case, Confidence, answered_once
from advisor.findings.curves import main_rows, sum_of_parts
from advisor.findings.run_facts import number, positive, step_samples, step_tokens
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops
from advisor.laws import flops
from advisor.readers.axis import JOINED_BY_LAST
from advisor.readers.run_table import RunTable
from advisor.records import Estimate

BROKEN_FACTOR = 3.0  # times slower than predicted: no shape, batch or interconnect explains it, the software path does
IDLE_SECONDS = 120.0  # a shorter stretch without kernels is an evaluation or a checkpoint
IDLE_UTILIZATION = 0.02
COMPILED_STEPS = 6  # the trainer's compilation takes place in its first steps
_SAME_COUNT = 0.001
_CARD_COLUMNS = ("power_watts", "utilization", "memory_total_bytes")  # of telemetry; CPUs have none of them
_PAUSE, _PAUSE_NEIGHBOURS = 1.5, 51  # times the running median of so many rows
_SLOWER = 1.3  # times the former step time, at once and over all rows
_APART = 0.95  # of the rows on each side of a slowdown that lie on their side of the middle
_SLOW_ROWS = 10  # on each side
# Sources of the seconds of a step, the best first.
PRINTED, FROM_RATE, FROM_CLOCK = "printed", "from tokens per second", "from time stamps"
FROM_SAMPLES = "from samples per second"
FROM_PARTS = "the sum of its timed parts"


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds per optimizer step, one for each printed row of the main phase that has a time."""

    row: np.ndarray  # index into the run's columns
    step: np.ndarray
    seconds: np.ndarray
    start: int  # index from which the run is steady; compilation and warm-up come before
    source: str  # one of those above

    @property
    def steady_step(self) -> np.ndarray:
        return self.step[self.start :]

    @property
    def steady_seconds(self) -> np.ndarray:
        return self.seconds[self.start :]

    @property
    def stride(self) -> float:
        """Steps between printed rows."""
        gaps = np.diff(self.step)
        return max(1.0, series.median(gaps[gaps > 0])) if (gaps > 0).any() else 1.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The steady speed of a run, as medians that spikes and pauses do not change."""

    step_seconds: float | None
    step_tokens: float | None
    tokens_per_second: float  # of all devices
    source: str  # in words


def main_column(run: RunTable, name: str) -> np.ndarray:
    """Return one column in the main phase's rows, of the first rank only if several ranks printed."""
    return run.column(name)[main_rows(run)]


@answered_once
def step_times(case: Case) -> StepTimes | None:
    """Return the seconds of each step: printed, or from a rate, the clock or the sum of parts; else None.

    Times from the clock include evaluations, checkpoints and gaps between steps.
    """
    rows = main_rows(case.run)
    step = case.run.column("step")[rows]
    step = np.where(np.isfinite(step), step, np.arange(1.0, len(step) + 1)) if len(step) else step
    run, candidates = case.run, [(PRINTED, case.run.column("seconds")[rows])]
    if tokens := step_tokens(case):
        rate = run.column("tokens_per_second")[rows]
        candidates.append((FROM_RATE, tokens / np.where(rate > 0, rate, np.nan)))
    rate = run.column("samples_per_second")[rows]
    if (samples := step_samples(run.facts)) and np.isfinite(rate).sum() > 1:  # one alone sums a run up
        candidates.append((FROM_SAMPLES, samples / np.where(rate > 0, rate, np.nan)))
    for name in ("elapsed_seconds", "unix_seconds"):
        candidates.append((FROM_CLOCK, seconds_between(run, name)))
    candidates.append((FROM_PARTS, sum_of_parts(run)[rows]))
    timed = [(source, s, np.isfinite(s) & (s > 0)) for source, s in candidates]
    most = max(int(good.sum()) for _, _, good in timed)
    for source, seconds, good in timed:
        if good.any() and good.sum() >= most / 2:  # a report may time one step and give a rate for all steps
            start = series.steady_start(seconds[good])
            if run.attempts and run.attempts[0].compile_seconds is not None:  # its bill is made of the first steps
                after = run.attempts[0].resumed_from_step + COMPILED_STEPS
                compiled = int(np.searchsorted(step[good], after, side="right"))
                start = max(start, min(compiled, int(good.sum()) - 1))
            return StepTimes(row=rows[good], step=step[good], seconds=seconds[good], start=start, source=source)
    return None


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """A step time that rose from one step to the next and stayed up until the log's end."""

    step: float  # the first slow one
    before_seconds: float
    after_seconds: float
    excess_seconds: float  # of all slow steps so far, beyond the former step time


def lasting_slowdown(times: StepTimes | None) -> Slowdown | None:
    """Return where steps became slower for good; None if they did not, if they swing, or if they grow little by little.

    Times that swing belong to batches of several lengths, and times that grow to longer answers or sequences.
    """
    if times is None or len(times.steady_seconds) < 2 * _SLOW_ROWS:
        return None
    seconds = times.steady_seconds
    logs = np.clip(np.log(seconds), *np.log(np.quantile(seconds, (0.05, 0.95))))
    # the cut into two levels that leaves the least variance
    count, total = np.arange(1, len(logs)), np.cumsum(logs)[:-1]
    between = total**2 / count + (logs.sum() - total) ** 2 / (len(logs) - count)
    cut = int(np.argmax(between[_SLOW_ROWS - 1 : len(logs) - _SLOW_ROWS])) + _SLOW_ROWS
    before, after = series.median(seconds[:cut]), series.median(seconds[cut:])
    beside = max(5, len(seconds) // 20)
    rise = series.median(seconds[cut : cut + beside]) / series.median(seconds[cut - beside : cut])
    middle = math.sqrt(before * after)
    apart = min(float((seconds[:cut] < middle).mean()), float((seconds[cut:] > middle).mean()))
    if min(after / before, rise) < _SLOWER or apart < _APART:
        return None
    steps = float(times.steady_step[-1] - times.steady_step[cut]) + 1
    excess = float((seconds[cut:] - before).mean()) * steps
    return Slowdown(
        step=float(times.steady_step[cut]), before_seconds=before, after_seconds=after, excess_seconds=excess
    )


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Steps much slower than their neighbours; several in a row count as one pause."""

    step: np.ndarray  # start of each pause
    excess_seconds: np.ndarray  # of each pause, beyond the running median
    between_seconds: np.ndarray  # of the steady rows, the running median in place of the pauses
    period: series.Period | None


def pauses(times: StepTimes) -> Pauses | None:
    """Return stretches of rows with more than 1.5 times the running median, or None if there are none."""
    seconds, step = times.steady_seconds, times.steady_step
    if len(seconds) < 20:
        return None
    normal = series.rolling_median(seconds, _PAUSE_NEIGHBOURS)
    noise = 4 * series.mad(seconds - normal) / series.NORMAL_MAD
    slow = (seconds > _PAUSE * normal) & (seconds - normal > noise)
    if not slow.any():
        return None
    first, between = [begin for begin, _ in series.stretches(slow)], np.where(slow, normal, seconds)
    period = series.period_of(step[first], tolerance=times.stride)
    excess = np.add.reduceat(seconds - between, first)
    return Pauses(step=step[first], excess_seconds=excess, between_seconds=between, period=period)


def between_pauses(times: StepTimes) -> np.ndarray:
    """Return the seconds of the steady rows without pauses that recur: steps that were not printed had none of them."""
    slow = pauses(times) if times.source in (PRINTED, FROM_PARTS) else None
    return times.steady_seconds if slow is None or slow.period is None else slow.between_seconds


def seconds_between(run: RunTable, name: str) -> np.ndarray:
    """Return the seconds per step since the previous row by a clock; NaN if the steps since then are not known."""
    clock, step, epoch = (main_column(run, column) for column in (name, "step", "epoch"))
    seconds = np.full(len(clock), np.nan)
    places = np.flatnonzero(np.isfinite(clock) & np.isfinite(step)) if run.counts_steps else ()
    if len(places) > 1:
        steps, elapsed = np.diff(step[places]), np.diff(clock[places])
        if run.provenance.get("step") == JOINED_BY_LAST:  # an epoch's last steps may not be printed
            steps[np.diff(epoch[places]) > 0] = 0.0
        seconds[places[1:]] = np.where(steps > 0, elapsed, np.nan) / np.where(steps > 0, steps, 1.0)
    return seconds


def pace(case: Case) -> Pace | None:
    """Return the steady rate, or None if the log has neither times nor rates.

    If step seconds and tokens per step are known, the rate is their quotient. The logged rate is then not used, because
    it may only count one micro-batch or one device.
    """
    times, tokens = step_times(case), step_tokens(case)
    seconds = series.median(times.steady_seconds) if times else None
    if times and seconds and tokens and tokens / seconds > 0:
        words = f"median of {len(times.steady_seconds)} steady steps, {times.source}"
        return Pace(step_seconds=seconds, step_tokens=tokens, tokens_per_second=tokens / seconds, source=words)
    rates = series.finite(main_column(case.run, "tokens_per_second"))
    rates = rates[rates > 0]
    if not len(rates):
        return None
    steady = rates[series.steady_start(1 / rates) :]
    words = f"median of {len(steady)} logged rates"
    return Pace(step_seconds=seconds, step_tokens=tokens, tokens_per_second=series.median(steady), source=words)


def step_seconds(case: Case) -> float | None:
    """Return the median seconds of a steady step, or None if the log has no times."""
    times = step_times(case)
    return series.median(times.steady_seconds) if times else None


def devices(case: Case) -> int:
    """Return the number of devices of the run: from its workload, or from its log, or else one."""
    if case.workload is not None:
        return case.workload.gpus
    return int(positive(case.run.facts, "world_size") or 1)


def card(case: Case) -> GpuSpec | None:
    """Return the GPU's datasheet, or None for a CPU and for GPUs that are not in the catalog."""
    if case.profile is not None:
        return case.profile.spec
    name = case.run.facts.get("gpu")
    return find_gpu(str(name)) if name else None


def on_cpu(case: Case) -> bool:
    """Return True if the run was meant to run on a CPU."""
    if case.workload is not None:
        return case.workload.gpu == "cpu"
    return str(case.run.facts.get("gpu", "")).lower() == "cpu"


def without_card(case: Case) -> bool:
    """Return True if the run was on a CPU, and neither its log nor telemetry mentions a GPU."""
    return on_cpu(case) and not any(len(telemetry(case, name)) for name in _CARD_COLUMNS)


def precision(case: Case) -> str | None:
    """Return the precision that the run states: bf16, fp16, fp32 or fp8; None if it states none."""
    said = str(case.run.facts.get("precision", "")).lower()
    if said in ("bf16", "fp16", "fp32", "fp8"):
        return said
    return case.workload.precision if case.workload else None


def peak(case: Case) -> float | None:
    """Return the dense peak FLOP/s of one device in the run's precision, or None if GPU or precision is unknown."""
    spec, kind = card(case), precision(case)
    if spec is not None and kind is not None:
        return peak_flops(spec, kind)
    if case.profile is not None and case.workload is not None:
        return case.profile.peak_flops(case.workload.precision)
    return None


def flops_per_token(case: Case) -> float | None:
    """Return the exact forward and backward FLOPs per token, or None if the shape is unknown.

    A nanochat with the parameter count of the version of 2026 (value embeddings, sliding windows) is counted as such.
    """
    if case.workload is None:
        return None
    shape, declared = case.workload.shape, number(case.run.facts, "parameters")
    if shape.family == "nanochat" and declared:
        counts = flops.nanochat_2026_counts(
            shape.depth, width=shape.width, vocab_size=shape.vocab_size, seq_len=shape.seq_len
        )
        if abs(counts.total / declared - 1) < _SAME_COUNT:
            return counts.flops_per_token(shape.width, shape.seq_len)
    return flops.flops_per_token(shape)


def mfu(case: Case) -> float | None:
    """Return the MFU from exact FLOPs, the measured rate and the dense peak, or None if one of them is missing.

    More than the peak cannot be true, so it gives None; `share_of_peak` then says by how much.
    """
    share = share_of_peak(case)
    return share if share is not None and share <= 1 else None


def share_of_peak(case: Case) -> float | None:
    """Return the share of the devices' dense peak that the known facts imply, even if it is impossible."""
    speed, work, best = pace(case), flops_per_token(case), peak(case)
    if speed is None or work is None or best is None:
        return None
    return flops.mfu(work, speed.tokens_per_second, devices(case), best)


def logged_mfu(case: Case) -> float | None:
    """Return the MFU that the log prints, as the median of its steady rows, or None if it prints none."""
    values = series.finite(main_column(case.run, "mfu"))
    values = values[values > 0]
    return series.median(values[len(values) // 10 :]) if len(values) else None


def telemetry(case: Case, name: str) -> np.ndarray:
    """Return one telemetry column, or an empty array if nothing was recorded."""
    columns = case.run.telemetry or {}
    values = columns.get(name)
    return values if values is not None and np.isfinite(values).any() else np.empty(0)


def power_limit_watts(case: Case) -> float | None:
    """Return the power limit of the GPU as logged, or else from its datasheet; None if neither is known."""
    printed, spec = series.finite(telemetry(case, "power_limit_watts")), card(case)
    return float(printed.max()) if len(printed) else spec.tdp_watts if spec is not None else None


def idle_stretches(case: Case) -> list[np.ndarray]:
    """Return the indices of the readings in each stretch of minutes in which no kernel ran on one GPU."""
    busy, clock, cards = (telemetry(case, name) for name in ("utilization", "unix_seconds", "gpu"))
    if not len(busy) or len(clock) != len(busy):
        return []
    stretches = []
    for card in np.unique(cards) if len(cards) == len(busy) else [np.nan]:
        mine = np.flatnonzero(cards == card) if np.isfinite(card) else np.arange(len(busy))
        read = np.flatnonzero(np.isfinite(busy[mine]))  # power is read more often
        for first, last in series.stretches(busy[mine[read]] <= IDLE_UTILIZATION):
            if clock[mine[read[last]]] - clock[mine[read[first]]] >= IDLE_SECONDS:
                stretches.append(mine[read[first] : read[last] + 1])
    return stretches


def memory_used_share(case: Case) -> tuple[float | None, float | None]:
    """Return the highest share of the GPU's memory in use, and the GPU's bytes; None if not recorded."""
    total = series.finite(telemetry(case, "memory_total_bytes"))
    size = float(total.max()) if len(total) else positive(case.run.facts, "gpu_memory_bytes")
    if size is None and case.profile is not None and case.profile.device_memory_bytes:
        size = float(case.profile.device_memory_bytes)
    used = [series.finite(telemetry(case, "memory_used_bytes"))]
    used += [series.finite(case.run.column(name)) for name in ("reserved_bytes", "memory_bytes")]
    tops = [float(values.max()) for values in used if len(values)]
    return (max(tops) / size if tops and size else None), size


def promised_rate(case: Case) -> Estimate | None:
    """Return the tokens per second predicted for this workload on this GPU, or None if there is no prediction."""
    return case.expected.tokens_per_second if case.expected else None


def prediction_confidence(case: Case, *, sure: bool = False) -> Confidence:
    """Return how far to trust a finding based on a prediction. Priors and assumptions count less than calibrations.

    `sure` means that the gap found is much larger than the errors of both.
    """
    if sure:
        return Confidence.HIGH if not case.unsure else Confidence.MEDIUM
    calibrated = case.profile is not None and case.profile.calibrated
    return Confidence.MEDIUM if calibrated and not case.unsure else Confidence.LOW


_FEWEST = 5  # rows with a waiting time
_LONGER = 1.02  # times the step: by rounding, a part may be this much larger than its whole
_OFTEN = 0.01  # of the rows; a single row may hold a mean beside a single value
_FEWEST_INTERVALS = 20
_CLEARLY = 0.5  # of the clock's distance from the other reading


@dataclass(frozen=True, kw_only=True)
class Waits:
    """Seconds of a step spent waiting for data."""

    mean: float
    high: float  # 95th percentile
    share: float  # of the step's time, waiting included: 0…1
    beside: bool  # whether the printed seconds of a step exclude them


def waits(case: Case, times: StepTimes) -> Waits | None:
    """Return the waiting time in the steady rows, or None if they have none, or more than clock and step allow."""
    data = case.run.column("data_seconds")[times.row][times.start :]
    timed = np.isfinite(data) & (data >= 0) & np.isfinite(times.steady_seconds)
    if timed.sum() < _FEWEST:
        return None
    waited, step = data[timed], times.steady_seconds[timed]
    mean, whole = float(waited.mean()), float(step.mean())
    beside = times.source != FROM_CLOCK and _is_beside(case, times, timed)
    whole += mean if beside else 0.0
    if not whole > 0 or mean > whole:
        return None
    return Waits(mean=mean, high=float(np.quantile(waited, 0.95)), share=mean / whole, beside=beside)


def seconds_beside(case: Case) -> float:
    """Return the seconds of waiting per step that the printed step time excludes; 0 if it includes all of them."""
    times = step_times(case)
    waited = waits(case, times) if times is not None else None
    return waited.mean if waited is not None and waited.beside else 0.0


def _is_beside(case: Case, times: StepTimes, timed: np.ndarray) -> bool:
    """Return True if the step cannot contain the waiting: it is longer, or the clock has room for both."""
    waited = case.run.column("data_seconds")[times.row][times.start :][timed]
    step = times.steady_seconds[timed]
    if np.mean(waited > _LONGER * step) > _OFTEN or waited.mean() > step.mean():
        return True
    counts = times.steady_step[timed]
    for name in ("unix_seconds", "elapsed_seconds"):
        clock = case.run.column(name)[times.row][times.start :][timed]
        passed, steps = np.diff(clock), np.diff(counts)
        good = np.isfinite(passed) & (passed >= 0) & (steps > 0)
        if good.sum() >= _FEWEST_INTERVALS:
            within = np.abs(passed - steps * step[1:])[good]
            both = np.abs(passed - steps * (step + waited)[1:])[good]
            # medians, because few intervals contain evaluations and checkpoints
            return series.median(both) < _CLEARLY * series.median(within)
    return False
