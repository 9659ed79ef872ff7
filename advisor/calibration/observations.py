"""Turns a raw calibration into drift-corrected step times and the device's rates. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.prediction.throughput import Rates
from advisor.records import MeasuredStep
from advisor.store.adopted import AdoptedBurst
from advisor.store.calibration import Burst
from trainer.messages import Ceilings

# Each prior comes from interleaved runs of small models on shared two-core hosts (docs/log.md).
_EXPONENT_PRIOR = (0.7, 0.3)  # step time varies less than pure matrix products do, because part of it is memory traffic
_VISIT_PRIOR = (0.03, 4.0)  # one burst's log median scatters by 3 %; the prior counts as four bursts
_DRIFT_FLOOR = 0.01
_LONGER = 1.5  # a run lasts longer than a calibration, so the machine's speed varies more during it


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Changes in the machine's own speed during a calibration, seen in the reference kernel timed with each burst."""

    reference_seconds: float | None  # the median; later runs are compared with it
    exponent: float  # step time ∝ reference^exponent
    deviation: float  # of log speed between the calibration and a later run
    noise_floor: float  # standard deviation of one burst's log median after correction


def completed(bursts: Sequence[Burst]) -> list[Burst]:
    """Return the bursts that completed and whose results show that the model trained."""
    return [b for b in bursts if b.completed]


def drift_of(bursts: Sequence[Burst]) -> Drift:
    """Estimate how step time follows the reference kernel, and how much the machine's speed changed.

    The exponent comes from a ridge regression of log step time on log reference time within configurations, pulled to
    its prior. The noise floor is the remaining scatter of repeated bursts.
    """
    done = [b for b in completed(bursts) if b.reference_seconds]
    return drift_among([(b.workload, b.step_seconds, b.reference_seconds) for b in done])


def drift_among(bursts: Sequence[tuple[Hashable, Sequence[float], Sequence[float]]]) -> Drift:
    """Return the drift of any bursts, each given as its configuration, step seconds and reference seconds."""
    if not bursts:
        return Drift(reference_seconds=None, exponent=0.0, deviation=_DRIFT_FLOOR, noise_floor=_VISIT_PRIOR[0])
    logs = np.log([statistics.median(reference) for _, _, reference in bursts])
    steps = np.log([statistics.median(seconds) for _, seconds, _ in bursts])
    groups = _groups([ran for ran, _, _ in bursts])
    step_gaps, reference_gaps = _centred(steps, groups), _centred(logs, groups)
    (belief, deviation), visit = _EXPONENT_PRIOR, _VISIT_PRIOR[0] ** 2
    pull = (reference_gaps * step_gaps).sum() / visit + belief / deviation**2
    exponent = float(np.clip(pull / ((reference_gaps**2).sum() / visit + 1 / deviation**2), 0.0, 1.2))
    left = step_gaps - exponent * reference_gaps
    freedom = len(left) - len(groups)
    noise = np.sqrt(
        (_robust_square(left, freedom) + _VISIT_PRIOR[1] * _VISIT_PRIOR[0] ** 2) / (freedom + _VISIT_PRIOR[1])
    )
    # changes that the reference kernel does not show: the remaining differences between bursts of one configuration
    unseen = np.sqrt(_robust_square(left, freedom) / freedom) if freedom > 1 else 0.0
    moved = _LONGER * float(np.hypot(exponent * np.std(logs), unseen))
    return Drift(
        reference_seconds=float(np.exp(np.median(logs))),
        exponent=exponent,
        deviation=max(_DRIFT_FLOOR, moved),
        noise_floor=float(noise),
    )


def _groups(ran: Sequence[Hashable]) -> list[list[int]]:
    """Return the indices of the bursts of each configuration."""
    by_configuration: dict[Hashable, list[int]] = defaultdict(list)
    for i, configuration in enumerate(ran):
        by_configuration[configuration].append(i)
    return list(by_configuration.values())


def _centred(values: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    out = np.zeros_like(values)
    for g in groups:
        out[g] = values[g] - values[g].mean()
    return out


def _robust_square(left: np.ndarray, freedom: int) -> float:
    """Return the sum of squares, with each residual limited to three median absolute deviations."""
    if freedom <= 0:
        return 0.0
    limit = 3 * 1.4826 * float(np.median(np.abs(left[left != 0]))) if (left != 0).any() else 0.0
    return float((np.clip(left, -limit, limit) ** 2).sum())


def observations(bursts: Sequence[Burst], drift: Drift) -> list[MeasuredStep]:
    """Return one drift-corrected step time per configuration: the median over bursts of each burst's median step."""
    done = completed(bursts)
    observed = []
    for group in _groups([b.workload for b in done]):
        logs = [corrected_log(done[i], drift) for i in group]
        within = np.mean([within_noise(done[i]) ** 2 for i in group])
        observed.append(
            MeasuredStep(
                workload=done[group[0]].workload,
                step_seconds=float(np.exp(np.median(logs))),
                noise=float(np.sqrt((drift.noise_floor**2 + within) / len(group))),
            )
        )
    return observed


def corrected_log(burst: Burst | AdoptedBurst, drift: Drift) -> float:
    """Return the log of a burst's median step, as on the machine at its median speed."""
    log_step = float(np.log(statistics.median(burst.step_seconds)))
    if drift.reference_seconds is None or not burst.reference_seconds:
        return log_step
    return log_step - drift.exponent * float(
        np.log(statistics.median(burst.reference_seconds) / drift.reference_seconds)
    )


def within_noise(burst: Burst) -> float:
    """Return the standard error of a burst's log median step (1.2533 σ/√n for a normal sample), with σ from the MAD."""
    logs = np.log(burst.step_seconds)
    deviation = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return 1.2533 * deviation / np.sqrt(len(logs))


def rates_of(ceilings: Ceilings) -> Rates:
    """Return the device's ceilings: best median product rate, bandwidth of the largest copy, median launch time.

    A small copy would measure a cache instead, and on a GPU also the launch.
    """
    products = [2 * m.m * m.k * m.n / statistics.median(m.seconds) for m in ceilings.matmul]
    outside_caches = max(ceilings.copy, key=lambda copy: copy.bytes)
    return Rates(
        matmul_flops=max(products),
        bandwidth=outside_caches.bytes / statistics.median(outside_caches.seconds),
        launch_seconds=statistics.median(ceilings.launch_seconds),
    )
