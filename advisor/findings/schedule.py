"""Learning-rate schedules as shares of the peak at each step: declared, or recognised from the rates so far."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from advisor.findings.case import Case, answered_once
from advisor.findings.curves import curve, rate_curve
from advisor.findings.run_facts import number
from advisor.laws.annealing import learning_rate_shares, planned_shares
from advisor.readers.own_log import NAME as OWN_LOG
from advisor.readers.run_table import RunTable

_FITS = 0.01  # of the peak: mean difference up to which a schedule fits the rates so far
_FINALS = (0.0, 0.1)  # shares of the peak at which schedules end, if nothing states it
_DECAYS = (0.1, 0.2, 0.4)  # of the steps, for trapezoidal schedules
_LEAST_SEEN = 10  # rows with a rate


_SWEEP_ROWS, _SWEEP_DECADES, _SWEEP_OFF = 20, 2.5, 0.04  # no warm-up rises by a constant factor over several decades
_JUMP = 2.0  # times the lowest rate before
_BACK = 0.5  # of the highest rate so far: a restart rises from below this to above it; a warm-up has not fallen before
_SUDDEN = 0.01  # of the rows


def is_rate_sweep(run: RunTable) -> bool:
    """Return True for a search for a learning rate: it rises by a constant factor from row to row, up to its end."""
    rates = curve(run, "learning_rate")
    if len(rates) < _SWEEP_ROWS or rates.value.min() <= 0 or rates.step[-1] <= rates.step[0]:
        return False
    decades = np.log10(rates.value)
    span = float(decades[-1] - decades[0])
    line = decades[0] + span * (rates.step - rates.step[0]) / (rates.step[-1] - rates.step[0])
    return span >= _SWEEP_DECADES and float(np.max(np.abs(decades - line))) <= _SWEEP_OFF * span


@dataclass(frozen=True, kw_only=True)
class Return:
    """A learning rate that had fallen to less than half of its peak and came back to half of it or more."""

    low_step: float  # of the last row at its lowest
    low: float
    step: float
    rate: float
    sudden: bool  # within a hundredth of the rows


@answered_once
def rate_returns(run: RunTable) -> list[Return]:
    """Return each time that the learning rate came back to an earlier height; a warm-up has not fallen before."""
    rates = rate_curve(run)
    found: list[Return] = []
    if len(rates) < _LEAST_SEEN:
        return found
    few, high, low = max(1, int(_SUDDEN * len(rates))), float(rates.value[0]), -1
    for at, rate in enumerate(map(float, rates.value)):
        if low < 0:
            high, low = max(high, rate), at if rate < _BACK * max(high, rate) else -1
        elif rate <= rates.value[low]:
            low = at
        elif rate >= _BACK * high and rate > _JUMP * rates.value[low]:
            lowest = {"low_step": float(rates.step[low]), "low": float(rates.value[low])}
            found.append(Return(**lowest, step=float(rates.step[at]), rate=rate, sudden=at - low <= few))
            low = -1
    return found


def rate_jumps(run: RunTable) -> np.ndarray:
    """Return the steps at which the learning rate quickly returned to an earlier height: warm restarts."""
    return np.array([back.step for back in rate_returns(run) if back.sudden])


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A learning-rate schedule: `shares` of the peak at each step, with steps numbered from 0."""

    name: str
    warmup_steps: int
    shares: np.ndarray
    declared: bool = True  # False: one of those that fit the rates so far
    first_step: int = 0  # the step of the first share, as the log counts steps


def kind_of(words: str) -> str | None:
    """Return the kind of schedule that the words of a configuration name, or None."""
    plain = words.lower()
    marks = {
        "cosine": ("cosine",),
        "wsd": ("wsd", "trapez", "warmdown", "stable"),
        "linear": ("linear",),
        "constant": ("constant", "fixed"),
    }
    return next((kind for kind, names in marks.items() if any(name in plain for name in names)), None)


def schedules_of(case: Case, steps: int) -> list[Schedule]:
    """Return the schedules that this run may follow over `steps` steps: the declared one, else all that fit the rates.

    The result is empty if nothing is declared and no known schedule fits.
    """
    declared = _declared(case, steps)
    if declared is not None and (placed := _placed(declared, case)) is not None:
        return [placed]
    rates = rate_curve(case.run)
    if len(rates) < _LEAST_SEEN or rates.value.max() <= 0:
        return []
    warmup = int(number(case.run.facts, "warmup_steps") or _warmup_seen(rates.step, rates.value))
    return [placed for s in _known(steps, warmup) if (placed := _placed(s, case)) is not None]


def _declared(case: Case, steps: int) -> Schedule | None:
    if case.plan is not None:
        plan = case.plan.config.schedule
        return Schedule(name=plan.name, warmup_steps=plan.warmup_steps, shares=planned_shares(plan, steps))
    facts = case.run.facts
    kind = kind_of(str(facts.get("schedule") or ""))
    if kind is None or kind == "wsd":  # the facts do not say how long it decays, which is recognised below
        return None
    peak, least = number(facts, "learning_rate"), number(facts, "min_learning_rate")
    warmup, rates = number(facts, "warmup_steps"), rate_curve(case.run)
    if warmup is None:
        warmup = _warmup_seen(rates.step, rates.value) if len(rates) >= _LEAST_SEEN else 0
    final = least / peak if peak and least is not None else 0.0
    made = learning_rate_shares(kind, steps, warmup_steps=int(warmup), final_share=final)
    return Schedule(name=kind, warmup_steps=int(warmup), shares=made)


def _warmup_seen(step: np.ndarray, rate: np.ndarray) -> int:
    """Return the steps until the rate first reaches its peak if it began far below, else 0."""
    if rate[0] >= 0.9 * rate.max():
        return 0
    return int(step[int(np.argmax(rate >= 0.999 * rate.max()))])


def _known(steps: int, warmup: int) -> list[Schedule]:
    made = [("constant", 1.0, 0.0), *((kind, final, 0.0) for kind in ("cosine", "linear") for final in _FINALS)]
    made += [("wsd", final, decay) for final in _FINALS for decay in _DECAYS]
    schedules = []
    for kind, final, decay in made:
        values = learning_rate_shares(kind, steps, warmup_steps=warmup, final_share=final, decay_share=decay)
        name = kind if kind == "constant" else f"{kind} to {final:.0%}"
        name += f" over the last {decay:.0%}" if kind == "wsd" else ""
        schedules.append(Schedule(name=name, warmup_steps=warmup, shares=values, declared=False))
    return schedules


def _placed(schedule: Schedule, case: Case) -> Schedule | None:
    """Return the schedule with its first step in the log if the rates so far fit it, else None.

    Logs that count from 1 print the schedule's first rate at step 1, or its second if they step the schedule before.
    """
    rates = rate_curve(case.run)
    firsts = [1] if case.run.format == OWN_LOG else [0, 1] if len(rates) and rates.step.min() >= 1 else [0]
    if len(rates) < _LEAST_SEEN or rates.value.max() <= 0:
        return replace(schedule, first_step=firsts[0])  # nothing contradicts it
    gaps = []  # mean distances of the printed rates from the schedule's, both as shares of their largest so far
    for first in firsts:
        place = np.clip(rates.step.astype(int) - first, 0, len(schedule.shares) - 1)
        expected = schedule.shares[place] / max(schedule.shares[: place.max() + 1].max(), 1e-12)
        gaps.append(float(np.mean(np.abs(rates.value / rates.value.max() - expected))))
    best = int(np.argmin(gaps))
    return replace(schedule, first_step=firsts[best]) if gaps[best] < _FITS else None
