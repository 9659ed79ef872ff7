"""The prior of a GPU's speed before any burst has run on it, fitted to published runs (profiles/prior.yaml)."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, generation_in_words, peak_flops
from advisor.prediction.published import OWN, PublishedSetting, Spreads, names_of_unknowns, selector, software_effects
from advisor.prediction.throughput import TERMS, Posterior, Rates
from advisor.records import Software
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

PRIOR_SCHEMA = 3
LAUNCH_SECONDS = 5e-6  # launch of one kernel from eager PyTorch: 5-10 µs (sources §3.2, unverified there)
# No GPU multiplies much faster than its data sheet says: GeForce GPUs boost 5-10 % beyond the stated clock.
FASTEST = (0.08, 0.05)  # log of rate over peak at which the bound starts, and its softness (standard deviation)
FAR_SLOWER = 3.0  # times the predicted step
_WITHOUT_TENSOR_UNITS = ("Maxwell", "Pascal")


@dataclass(frozen=True, kw_only=True)
class CoefficientPrior:
    """The Gaussian prior of the log coefficients of the throughput terms, and the error that the terms leave."""

    mean: np.ndarray  # (len(TERMS),)
    covariance: np.ndarray  # (len(TERMS), len(TERMS))
    discrepancy: float  # standard deviation of log step seconds that the terms do not explain
    source: str

    def posterior(self, rates: Rates, drift: float = 0.0) -> Posterior:
        """Return the posterior without any measurement. `drift` is the log deviation of the machine's speed."""
        nothing = np.zeros(0)
        return Posterior(
            rates=rates,
            theta=self.mean,
            covariance=self.covariance,
            discrepancy=self.discrepancy,
            drift=drift,
            points=np.zeros((0, 6)),
            gradients=np.zeros((0, len(TERMS))),
            residuals=nothing,
            noise=nothing,
        )


def measured_prior() -> CoefficientPrior:
    """Return the prior for a device with measured limits and without a data sheet.

    The means are typical factors on the physical minimum of each term (sources §3.1). Matrix products reach 80-90 % of
    the best measured product, attention 30-40 % (fitted a2/a1 of 1.5-2.4). Activations pass through memory 20-60 times
    per layer (a3 of 100-380 B over 2-byte elements), fp32 logits about 6 times, weights about 5 times. A layer has
    about 60 launches in eager mode. The optimizer takes 1.3 times its minimum.
    """
    beliefs = {
        "matmul": (1.2, 0.25),
        "attention": (2.5, 0.6),
        "traffic": (40.0, 0.8),
        "logits": (6.0, 0.8),
        "weights": (5.0, 0.7),
        "layer_overhead": (80.0, 0.8),
        "micro_overhead": (150.0, 0.8),
        "optimizer": (1.3, 0.5),
        "step_overhead": (300.0, 0.8),
    }
    return CoefficientPrior(
        mean=np.log([beliefs[t][0] for t in TERMS]),
        covariance=np.diag([beliefs[t][1] ** 2 for t in TERMS]),
        discrepancy=0.03,
        source="physical floors measured on the device (sources §3.1)",
    )


def datasheet_rates(spec: GpuSpec, precision: str, *, tf32: bool = True) -> Rates | None:
    """Return the rates to which `load_prior` is relative, or None if the GPU has no units for the precision.

    On GPUs without tensor units, 16-bit products with fp32 accumulation are as slow as fp32 products.
    """
    peak = peak_flops(spec, precision, tf32=tf32)
    if precision == "fp16" and spec.architecture in _WITHOUT_TENSOR_UNITS:
        peak = spec.fp32_flops
    if peak is None:
        return None
    return Rates(matmul_flops=peak, bandwidth=spec.memory_bytes_per_second, launch_seconds=LAUNCH_SECONDS)


def power_headroom(spec: GpuSpec, precision: str) -> float | None:
    """Return the log of the GPU's power limit in watts per dense TFLOP/s, or None if either is not published."""
    rates = datasheet_rates(spec, precision)
    return math.log(spec.tdp_watts / (rates.matmul_flops / 1e12)) if rates and spec.tdp_watts else None


def load_prior(
    generation: str | None,
    precision: str,
    compile: bool | None,
    spec: GpuSpec | None = None,
    *,
    software: Software | None = None,
    sharding: str = "none",
) -> CoefficientPrior:
    """Return the prior of a run on a GPU without calibration, relative to `datasheet_rates` (profiles/prior.yaml).

    A GPU without published runs gets the mean of its generation, and a generation without runs the mean of all. The
    spread between GPUs or generations is then added. If `compile` is None, compiled and eager are averaged. `spec`
    gives the power limit. `software` None means this project's trainer, for which nobody has published runs. Raises
    AdvisorError if the file is unusable.
    """
    shared = _shared()
    beliefs = [
        shared.belief(generation, spec, _setting(precision, on, spec, software or OWN, sharding))
        for on in ((False, True) if compile is None else (compile,))
    ]
    k = len(TERMS)
    mean = sum((m for m, _ in beliefs), np.zeros(k)) / len(beliefs)
    covariance = sum((c + np.outer(m - mean, m - mean) for m, c in beliefs), np.zeros((k, k))) / len(beliefs)
    # Of a configuration without similar published runs.
    unexplained = float(np.hypot(shared.spreads.row, shared.spreads.near))
    rows, own = sum(shared.rows_by_generation.values()), shared.rows_by_generation.get(generation or "", 0)
    source = f"{rows} published runs, {own} of them on {generation_in_words(generation)} ({shared.dated})"
    if not own:
        here = generation_in_words(generation) or "this device"
        source = f"{rows} published runs of other generations, none of {here} ({shared.dated})"
    return CoefficientPrior(mean=mean, covariance=covariance, discrepancy=unexplained, source=source)


def _setting(
    precision: str, compile: bool, spec: GpuSpec | None, software: Software = OWN, sharding: str = "none"
) -> PublishedSetting:
    tf32 = software.tf32 and (spec is None or spec.tf32_flops is not None)
    return PublishedSetting(precision=precision, compile=compile, software=software, tf32=tf32, sharding=sharding)


def near_deviation() -> float:
    """Return the standard deviation of the residuals that similar published runs share (see `nearest`)."""
    return _shared().spreads.near


def published_runs(key: str, generation: str | None) -> tuple[int, int, int]:
    """Return the numbers of published runs in `load_prior`: on the GPU, on its generation, and in all."""
    shared = _shared()
    return (
        shared.rows_by_card.get(key, 0),
        shared.rows_by_generation.get(generation or "", 0),
        sum(shared.rows_by_card.values()),
    )


def far_slower() -> str:
    """Say how often a run takes far longer than predicted, which no 80 % interval contains."""
    owners, slow = _shared().owners_far_slower
    return f"{slow} of {owners} publishers had a run that took over {FAR_SLOWER:.0f} times as long as predicted"


def bounded(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the prior under the condition that no GPU multiplies much faster than its peak.

    Used for GPUs without published runs. `benchmarks/prior_model.py` has applied the same bound to all others.
    """
    matmul, (most, softness) = TERMS.index("matmul"), FASTEST
    excess = -most - mean[matmul]
    if excess <= 0:
        return mean, covariance
    gain = covariance[:, matmul] / (covariance[matmul, matmul] + softness**2)
    return mean + gain * excess, covariance - np.outer(gain, covariance[matmul])


@dataclass(frozen=True, kw_only=True)
class OtherCalibration:
    """The result of a calibration on another GPU, with coefficients relative to that GPU's datasheet rates."""

    theta: np.ndarray  # (len(TERMS),)
    covariance: np.ndarray
    prior_mean: np.ndarray  # the prior of that calibration, so that it can be removed
    prior_covariance: np.ndarray
    spec: GpuSpec
    precision: str
    compile: bool
    source: str


def relative_to_datasheet(theta: np.ndarray, rates: Rates, datasheet: Rates) -> np.ndarray:
    """Return log coefficients converted from measured to datasheet rates, so that predicted seconds stay the same."""
    flops = math.log(datasheet.matmul_flops / rates.matmul_flops)
    bandwidth = math.log(datasheet.bandwidth / rates.bandwidth)
    launch = math.log(rates.launch_seconds / datasheet.launch_seconds)
    kinds = dict.fromkeys(("matmul", "attention"), flops)
    kinds |= dict.fromkeys(("layer_overhead", "micro_overhead", "step_overhead"), launch)
    return theta + np.array([kinds.get(term, bandwidth) for term in TERMS])


def calibration_prior(spec: GpuSpec | None, precision: str, compile: bool, rates: Rates) -> CoefficientPrior:
    """Return the prior that the bursts of a calibration update, relative to its measured rates.

    It comes from published runs, or from `measured_prior` if there is no data sheet.
    """
    datasheet = datasheet_rates(spec, precision) if spec is not None else None
    if spec is None or datasheet is None:
        return measured_prior()
    prior = load_prior(spec.generation, precision, compile, spec)
    moved = relative_to_datasheet(np.zeros(len(TERMS)), rates, datasheet)
    return replace(prior, mean=prior.mean - moved)


def transferred(prior: CoefficientPrior, spec: GpuSpec, compile: bool, elsewhere: OtherCalibration) -> CoefficientPrior:
    """Return the prior of `spec` updated by a calibration of the same trainer on another GPU.

    The Gaussian update moves the effects that both GPUs share, and the effect of the trainer's software.
    """
    shared, other = _shared(), elsewhere.spec
    there = load_prior(other.generation, elsewhere.precision, elsewhere.compile, other)
    here_setting = _setting(elsewhere.precision, compile, spec)
    there_setting = _setting(elsewhere.precision, elsewhere.compile, other)
    cross = shared.pick(spec.generation, spec, here_setting) @ shared.covariance
    cross = cross @ shared.pick(other.generation, other, there_setting).T
    cross = cross + shared.spreads.between(here_setting, there_setting)
    # The posterior of the other GPU, after the prior of its calibration is replaced by `there`.
    own, start = np.linalg.inv(elsewhere.covariance), np.linalg.inv(elsewhere.prior_covariance)
    before = np.linalg.inv(there.covariance)
    after = np.linalg.inv(before + own - start)
    mean = after @ (before @ there.mean + own @ elsewhere.theta - start @ elsewhere.prior_mean)
    gain = cross @ before
    covariance = prior.covariance - gain @ (there.covariance - after) @ gain.T
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return CoefficientPrior(
        mean=prior.mean + gain @ (mean - there.mean),
        covariance=(vectors * np.maximum(values, 1e-4)) @ vectors.T,  # so that rounding makes no eigenvalue negative
        discrepancy=prior.discrepancy,
        source=f"{prior.source}, updated by {elsewhere.source}",
    )


@dataclass(frozen=True, kw_only=True)
class SharedBelief:
    """The posterior of the unknowns that published runs share, and the spreads of runs around it."""

    place: Mapping[str, int]  # index of each unknown by its name
    mode: np.ndarray  # (p,)
    covariance: np.ndarray  # (p, p)
    spreads: Spreads
    generation_spread: np.ndarray  # (k,) standard deviation of a generation's coefficients around the mean
    matmul_shifts: Mapping[str, float]  # log factor on the products of generations that stay further below their peak
    headrooms: Mapping[str, float]  # mean headroom of each generation's published runs
    rows_by_generation: Mapping[str, int]
    rows_by_card: Mapping[str, int]
    dated: str = ""
    owners_far_slower: tuple[int, int] = (0, 0)  # left-out owners, and those with a run over FAR_SLOWER times slower

    def pick(self, generation: str | None, spec: GpuSpec | None, setting: PublishedSetting) -> np.ndarray:
        """Return the (k, p) matrix for a GPU and a setting. Without a GPU, it uses the mean headroom of the
        generation."""
        headroom = power_headroom(spec, setting.precision) if spec else None
        if headroom is None:
            headroom = self.headrooms.get(generation or "", 0.0)
        return selector(self.place, generation, spec.key if spec else None, headroom, setting)

    def belief(
        self, generation: str | None, spec: GpuSpec | None, setting: PublishedSetting
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (k,) and covariance (k, k) of θ for a run without calibration."""
        picked = self.pick(generation, spec, setting)
        mean = picked @ self.mode
        # Few of the unknowns affect one GPU. Products of whole matrices would start threads that wait for a busy core.
        used = np.flatnonzero(picked.any(axis=0))
        covariance = picked[:, used] @ self.covariance[np.ix_(used, used)] @ picked[:, used].T
        known = f"generation {generation} {TERMS[0]}" in self.place
        if not known:
            mean[TERMS.index("matmul")] += self.matmul_shifts.get(generation or "", 0.0)
            covariance = covariance + np.diag(self.generation_spread**2)
        if spec is None or f"card {spec.key}" not in self.place:
            covariance = covariance + self.spreads.card**2 * np.ones_like(covariance)
            mean, covariance = bounded(mean, covariance)
        unseen = [name for name in software_effects(setting, generation) if name not in self.place]
        covariance = covariance + self.spreads.of_unknown(unseen)
        return mean, covariance + self.spreads.between(setting, setting) + self.spreads.of_machine()


@cache
def _shared() -> SharedBelief:
    path = profiles_folder() / "prior.yaml"
    document = read_yaml(path, "table of beliefs")
    if document.get("schema") != PRIOR_SCHEMA or document.get("terms") != list(TERMS):
        raise AdvisorError(
            f"{path} has no estimates of the terms {', '.join(TERMS)}",
            "python benchmarks/fit_prior.py makes it",
        )
    return read_belief(document)


def read_belief(document: Mapping[str, Any]) -> SharedBelief:
    """Read the posterior from a prior.yaml. The covariance is a lower triangle of 32-bit floats in base64."""
    names = names_of_unknowns(document["generations"], document["cards"], document["software"])
    lower = np.zeros((len(names),) * 2)
    lower[np.tril_indices(len(names))] = np.frombuffer(base64.b64decode(document["covariance"]), dtype="<f4")
    generations, left_out = document["generations"], document["held_out"]["leave_one_owner_out"]
    return SharedBelief(
        place={name: at for at, name in enumerate(names)},
        mode=np.array(document["mode"]),
        covariance=lower + np.tril(lower, -1).T,
        spreads=Spreads(**document["spreads"] | {"terms": np.array(document["spreads"]["terms"])}),
        generation_spread=np.array(document["generation_spread"]),
        matmul_shifts=document["matmul_shifts"],
        headrooms={name: entry["headroom"] for name, entry in generations.items()},
        rows_by_generation={name: entry["rows"] for name, entry in generations.items()},
        rows_by_card=document["cards"],
        dated=f"profiles/prior.yaml, {document['provenance']['date']}",
        owners_far_slower=(left_out["owners"], left_out["owners_far_slower"]),
    )
