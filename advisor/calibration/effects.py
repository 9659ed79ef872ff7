"""Computes the effect of each setting from interleaved bursts, as differences within rounds with intervals. Pure.

A round runs the base several times and every setting once, in random order, so that changes of the machine between
rounds cancel. All residuals together give one noise, pulled towards a prior. Intervals are Student's and hold jointly
(Bonferroni 1936), because the best of a dozen settings is picked from the table.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import t as student

from trainer.messages import BurstResult
from trainer.schema import Outcome

_CONFIDENCE = 0.95
_NOISE_PRIOR = (0.03, 4.0)  # of one burst's log median on a shared host (docs/log.md); the prior counts as four bursts
_LEAST_SPEED = 0.005  # a smaller effect does not matter, even if it is certain
_LEAST_LOSS = 0.002  # nats


@dataclass(frozen=True, kw_only=True)
class Visit:
    """One burst of a setting (None for the base) in a round."""

    setting: str | None
    round: int
    started: float  # Unix seconds
    result: BurstResult


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean difference and its 95 % interval, which holds jointly for all intervals of a table."""

    value: float
    low: float
    high: float

    def clears(self, least: float) -> bool:
        """Tell whether the difference is certain and large enough to matter."""
        return (self.low > 0 or self.high < 0) and abs(self.value) >= least


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The effect of one setting, compared with the base."""

    setting: str
    repeats: int
    speed: Interval | None  # log of steps per second; None if it never ran
    memory_bytes: float | None  # median difference of the peak: allocated GPU memory, or growth of the process on a CPU
    loss: Interval | None  # nats per token after equally many steps on the same tokens; None for fewer than two rounds
    loss_steps: int  # number of steps after which the loss was compared
    failure: str | None  # why it did not run

    @property
    def faster(self) -> bool:
        return self.speed is not None and self.speed.clears(_LEAST_SPEED) and self.speed.value > 0

    @property
    def slower(self) -> bool:
        return self.speed is not None and self.speed.clears(_LEAST_SPEED) and self.speed.value < 0

    @property
    def loses(self) -> bool:
        """Tell whether the loss is certainly higher."""
        return self.loss is not None and self.loss.clears(_LEAST_LOSS) and self.loss.value > 0


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The standard deviation of one burst's log step time within a round, and its degrees of freedom."""

    deviation: float
    freedom: float


def effects(visits: Sequence[Visit], exponent: float) -> tuple[dict[str, Effect], Noise]:
    """Return the effect of each setting by name. Step time follows the reference kernel's time to this `exponent`."""
    speeds = _by_round(visits, lambda r: _log_step(r, exponent))
    names = list(dict.fromkeys(v.setting for v in visits if v.setting is not None))
    gains: dict[str, list[float]] = {}  # one per round that has both: log of the speed relative to the base
    for name in names:
        both = [found for found in speeds.values() if found.keys() >= {None, name}]
        gains[name] = [statistics.fmean(found[None]) - statistics.fmean(found[name]) for found in both]
    noise = _noise(gains, speeds)
    return {name: _effect(name, visits, gains[name], noise, len(names)) for name in names}, noise


def interaction(
    visits: Sequence[Visit], one: str, other: str, together: str, exponent: float, noise: Noise
) -> Interval | None:
    """Return the log speed that two settings gain beyond the sum of both. Returns None if no round has them all."""
    speeds = _by_round(visits, lambda r: _log_step(r, exponent))
    rounds = [r for r, found in speeds.items() if all(name in found for name in (None, one, other, together))]
    if not rounds:
        return None
    values = []
    for number in rounds:
        mean = {name: statistics.fmean(found) for name, found in speeds[number].items()}
        values.append(-(mean[together] - mean[one] - mean[other] + mean[None]))
    return interval(values, 2 * noise.deviation / math.sqrt(len(values)), noise.freedom, comparisons=1)


def _effect(name: str, visits: Sequence[Visit], gains: Sequence[float], noise: Noise, comparisons: int) -> Effect:
    own = [v.result for v in visits if v.setting == name]
    failed = next((r for r in own if r.outcome != Outcome.COMPLETED), None)
    error = noise.deviation * math.sqrt(1.5 / len(gains)) if gains else math.nan  # of a burst minus two bases
    loss, steps = _loss(name, visits, comparisons)
    return Effect(
        setting=name,
        repeats=len(gains),
        speed=interval(gains, error, noise.freedom, comparisons) if gains else None,
        memory_bytes=_memory(name, visits),
        loss=loss,
        loss_steps=steps,
        failure=None if failed is None else f"{failed.outcome}: {failed.reason}",
    )


def _by_round(
    visits: Sequence[Visit], value: Callable[[BurstResult], float | None]
) -> dict[int, dict[str | None, list[float]]]:
    found: dict[int, dict[str | None, list[float]]] = defaultdict(lambda: defaultdict(list))
    for visit in visits:
        if visit.result.outcome == Outcome.COMPLETED and (number := value(visit.result)) is not None:
            found[visit.round][visit.setting].append(number)
    return found


def _log_step(result: BurstResult, exponent: float) -> float | None:
    if not result.step_seconds:
        return None
    reference = math.log(statistics.median(result.reference_seconds)) if result.reference_seconds else 0.0
    return math.log(statistics.median(result.step_seconds)) - exponent * reference


def _noise(gains: Mapping[str, Sequence[float]], speeds: Mapping[int, Mapping[str | None, list[float]]]) -> Noise:
    """Estimate the noise from the scatter of each setting's gain over rounds, and of the base within rounds."""
    prior, worth = _NOISE_PRIOR
    squares, freedom = worth * prior**2, worth
    for values in gains.values():
        if len(values) > 1:
            squares += sum((v - statistics.fmean(values)) ** 2 for v in values) / 1.5
            freedom += len(values) - 1
    for found in speeds.values():
        base = found.get(None, [])
        if len(base) > 1:
            squares += sum((v - statistics.fmean(base)) ** 2 for v in base)
            freedom += len(base) - 1
    return Noise(deviation=math.sqrt(squares / freedom), freedom=freedom)


def _loss(name: str, visits: Sequence[Visit], comparisons: int) -> tuple[Interval | None, int]:
    """Return the loss difference after the steps that all bursts share. Each round has its own tokens and weights."""
    rounds: dict[int, dict[str | None, BurstResult]] = defaultdict(dict)
    for visit in visits:
        if visit.setting in (None, name) and visit.result.losses:
            rounds[visit.round][visit.setting] = visit.result
    pairs = [(found[None].losses, found[name].losses) for found in rounds.values() if len(found) == 2]
    if len(pairs) < 2:
        return None, 0
    steps = min(len(losses) for pair in pairs for losses in pair)
    differences = [pair[1][steps - 1] - pair[0][steps - 1] for pair in pairs]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return interval(differences, error, len(differences) - 1, comparisons), steps


def _memory(name: str, visits: Sequence[Visit]) -> float | None:
    def held(setting: str | None) -> list[int]:
        return [m for v in visits if v.setting == setting and (m := peak_bytes(v.result)) is not None]

    base, own = held(None), held(name)
    return statistics.median(own) - statistics.median(base) if base and own else None


def peak_bytes(result: BurstResult) -> int | None:
    """Return the peak memory allocated on a GPU, or else the growth of the process."""
    if result.allocated_peak_bytes is not None:
        return result.allocated_peak_bytes
    if result.resident_peak_bytes is None or result.resident_before_bytes is None:
        return None
    return max(0, result.resident_peak_bytes - result.resident_before_bytes)


def interval(values: Sequence[float], error: float, freedom: float, comparisons: int) -> Interval:
    """Return the mean difference and its 95 % interval for so many comparisons. `error` is the error of the mean."""
    mean = statistics.fmean(values)
    reach = float(student.ppf(1 - (1 - _CONFIDENCE) / (2 * comparisons), freedom)) * error
    return Interval(value=mean, low=mean - reach, high=mean + reach)
