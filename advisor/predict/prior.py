"""Beliefs about a device before any burst has run on it: profiles/prior.yaml, by generation (`GpuSpec.generation`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import yaml

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.predict.throughput import TERMS, Rates
from advisor.store.folders import profiles_folder

PRIOR_SCHEMA = 1
LAUNCH_SECONDS = 5e-6  # of one kernel from eager PyTorch: 5-10 µs (sources §3.2, unverified there)
# No row of fp32 training is among the published runs: what TF32 products reach of their peak is less sure.
_FP32_DEVIATION = 0.3
THROTTLED = ("matmul", "attention")  # terms that a card's power limit slows down
# No card multiplies much faster than its data sheet says: GeForce cards boost 5-10 % beyond the stated clock.
FASTEST = (0.08, 0.05)  # log of rate over peak where the bound begins, and how softly (sd)


@dataclass(frozen=True, kw_only=True)
class CoefficientPrior:
    """Gaussian beliefs about the log coefficients of the throughput terms; what no formula explains; both learnt from
    published runs.
    """

    mean: np.ndarray  # (len(TERMS),)
    covariance: np.ndarray  # (len(TERMS), len(TERMS))
    discrepancy: float  # standard deviation of log step seconds that the terms leave unexplained
    source: str


def measured_prior() -> CoefficientPrior:
    """Beliefs when the device's own ceilings were measured: every term within a factor of a few of its physical floor.

    Means: products of a training step reach 80-90 % of the best measured product, attention 30-40 % of it (fitted
    a2/a1 of 1.5-2.4, sources §3.1); activations pass memory 20-60 times per layer forward and backward (a3 of
    100-380 B over 2-byte elements), logits about 6 times in fp32, weights about 5 times; launches per layer 60 eager;
    optimizer at 1.3 times its floor.
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


def datasheet_rates(spec: GpuSpec, precision: str) -> Rates | None:
    """The rates that the beliefs of `load_prior` refer to; None where the card has no units for the precision."""
    peak = peak_flops(spec, precision)
    if peak is None:
        return None
    return Rates(matmul_flops=peak, bandwidth=spec.memory_bytes_per_second, launch_seconds=LAUNCH_SECONDS)


def power_headroom(spec: GpuSpec, precision: str) -> float | None:
    """Log of the watts a card may draw per dense TFLOP/s of the precision; None where either is not published."""
    peak = peak_flops(spec, precision)
    return math.log(spec.tdp_watts / (peak / 1e12)) if peak and spec.tdp_watts else None


def load_prior(
    generation: str | None, precision: str, compile: bool | None, spec: GpuSpec | None = None
) -> CoefficientPrior:
    """Beliefs about a card nobody has calibrated, relative to `datasheet_rates`, from profiles/prior.yaml.

    A generation without published runs (or None) gets what all others have in common, with the spread between them
    added. `compile` None: not known, both are possible. `spec` tells how its power limit compares with that of its
    generation's measured cards. AdvisorError if the file is unusable.
    """
    document = _prior_document()
    generations = document["generations"]
    name = generation if generation is not None and generation in generations else "unmeasured"
    beliefs = [
        (np.array(generations[name][label]["mean"]), np.array(generations[name][label]["covariance"]))
        for label, wanted in (("eager", compile is not True), ("compiled", compile is not False))
        if wanted
    ]
    k = len(TERMS)
    mean = sum((m for m, _ in beliefs), np.zeros(k)) / len(beliefs)
    covariance = sum((c + np.outer(m - mean, m - mean) for m, c in beliefs), np.zeros((k, k))) / len(beliefs)
    matmul = TERMS.index("matmul")
    if name == "unmeasured":
        mean[matmul] += document["matmul_shifts"].get(generation, 0.0)
    headroom = power_headroom(spec, precision) if spec else None
    if headroom is not None:
        more = np.array([float(t in THROTTLED) for t in TERMS]) * (headroom - generations[name]["headroom"])
        mean = mean - document["headroom"]["mean"] * more
        covariance = covariance + document["headroom"]["deviation"] ** 2 * np.outer(more, more)
        if more.any() and headroom > generations[name]["headroom"]:
            mean, covariance = bounded(mean, covariance)
    if precision == "fp32":
        covariance[matmul, matmul] += _FP32_DEVIATION**2
    return CoefficientPrior(
        mean=mean,
        covariance=covariance,
        discrepancy=float(document["discrepancy"]),
        source=_source(document, generation, name),
    )


def published_runs(key: str, generation: str | None) -> tuple[int, int, int]:
    """How many published runs the beliefs of `load_prior` rest on, those of encoders among them: of this very card, of
    its generation, in all.
    """
    document = _prior_document()
    by_card, generations = document["rows_by_card"], document["generations"]
    of_generation = generations[generation]["rows"] if generation in generations else 0
    return by_card.get(key, 0), of_generation, sum(by_card.values())


def bounded(mean: np.ndarray, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Beliefs once more told that no card multiplies much faster than its peak; unchanged where they do not say so.

    For cards with more watts per TFLOP/s than those fitted, whose own products `benchmarks/fit_prior.py` bounded alike.
    """
    matmul, (most, softness) = TERMS.index("matmul"), FASTEST
    excess = -most - mean[matmul]
    if excess <= 0:
        return mean, covariance
    gain = covariance[:, matmul] / (covariance[matmul, matmul] + softness**2)
    return mean + gain * excess, covariance - np.outer(gain, covariance[matmul])


# By how much (sd of logs) one trainer's coefficients differ from those of the published software, on every card alike:
# like the spread between architectures, and judged as that is.
SOFTWARE_DEVIATION = 0.2


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """What a calibration found on another card, its coefficients relative to that card's datasheet rates."""

    theta: np.ndarray  # (len(TERMS),)
    covariance: np.ndarray
    prior_mean: np.ndarray  # what the calibration itself started from, to take it out again
    prior_covariance: np.ndarray
    spec: GpuSpec
    precision: str
    compile: bool
    source: str


def relative_to_datasheet(theta: np.ndarray, rates: Rates, datasheet: Rates) -> np.ndarray:
    """Log coefficients fitted at measured ceilings as they would be at datasheet rates: the same seconds."""
    flops = math.log(datasheet.matmul_flops / rates.matmul_flops)
    bandwidth = math.log(datasheet.bandwidth / rates.bandwidth)
    launch = math.log(rates.launch_seconds / datasheet.launch_seconds)
    kinds = dict.fromkeys(("matmul", "attention"), flops)
    kinds |= dict.fromkeys(("layer_overhead", "micro_overhead", "step_overhead"), launch)
    return theta + np.array([kinds.get(term, bandwidth) for term in TERMS])


def calibration_prior(spec: GpuSpec | None, precision: str, compile: bool, rates: Rates) -> CoefficientPrior:
    """What a calibration's bursts update, relative to its measured ceilings: what published runs say of the card, and
    more doubt for the trainer's own software. Without a card or its data sheet the physical floors of `measured_prior`.
    """
    datasheet = datasheet_rates(spec, precision) if spec is not None else None
    if spec is None or datasheet is None:
        return measured_prior()
    prior = load_prior(spec.generation, precision, compile, spec)
    moved = relative_to_datasheet(np.zeros(len(TERMS)), rates, datasheet)
    return replace(
        prior, mean=prior.mean - moved, covariance=prior.covariance + SOFTWARE_DEVIATION**2 * np.eye(len(TERMS))
    )


def transferred(prior: CoefficientPrior, spec: GpuSpec, compile: bool, elsewhere: Elsewhere) -> CoefficientPrior:
    """Beliefs about `spec` after the same trainer was calibrated on another card.

    A Gaussian update: what the other card showed moves what both cards share and what the trainer's software does on
    either. The discrepancy becomes the one that leaving a GPU out leaves when the software is known.
    """
    document = _prior_document()
    there = load_prior(elsewhere.spec.generation, elsewhere.precision, elsewhere.compile, elsewhere.spec)
    software = SOFTWARE_DEVIATION**2 * np.eye(len(TERMS))
    cross = _cross(document, spec.generation, elsewhere.spec.generation, compile, prior) + software
    mean, after = _seen(there.mean, there.covariance + software, elsewhere)
    gain = cross @ np.linalg.inv(there.covariance + software)
    covariance = prior.covariance + software - gain @ (there.covariance + software - after) @ gain.T
    return CoefficientPrior(
        mean=prior.mean + gain @ (mean - there.mean),
        covariance=_positive(covariance),
        discrepancy=float(document["transfer_discrepancy"]),
        source=f"{prior.source}, updated by {elsewhere.source}",
    )


def _seen(mean: np.ndarray, covariance: np.ndarray, elsewhere: Elsewhere) -> tuple[np.ndarray, np.ndarray]:
    """Belief about the other card after its bursts alone: its calibration's own prior is replaced by this one."""
    own, start = np.linalg.inv(elsewhere.covariance), np.linalg.inv(elsewhere.prior_covariance)
    before = np.linalg.inv(covariance)
    after = np.linalg.inv(before + own - start)
    return after @ (before @ mean + own @ elsewhere.theta - start @ elsewhere.prior_mean), after


def _cross(document: dict, here: str, there: str, compile: bool, prior: CoefficientPrior) -> np.ndarray:
    """Covariance between the two cards' coefficients; cards of one generation share all that is believed of it."""
    if here == there:
        return prior.covariance
    generations = document["generations"]
    first, second = (name if name in generations else "unmeasured" for name in (here, there))
    table = document["cross_covariance"]["compiled" if compile else "eager"]
    if f"{first} {second}" in table:
        return np.array(table[f"{first} {second}"])
    return np.array(table[f"{second} {first}"]).T


def _positive(covariance: np.ndarray) -> np.ndarray:
    """The nearest covariance that no direction of has less than a thousandth: rounding must not make one negative."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    return (vectors * np.maximum(values, 1e-4)) @ vectors.T


def _source(document: dict, generation: str | None, name: str) -> str:
    told = document["provenance"]
    rows, dated = told["rows"] + told["encoder_rows"], f"profiles/prior.yaml, {told['date']}"
    if name == "unmeasured":
        return f"{rows} published runs of other generations, none of {generation or 'this device'} ({dated})"
    own = document["generations"][name]["rows"]
    return f"{rows} published runs, {own} of them on {name} ({dated})"


@cache
def _prior_document() -> dict:
    path = profiles_folder() / "prior.yaml"
    hint = "restore it, or make it again with `python benchmarks/fit_prior.py`"
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, yaml.YAMLError) as error:
        raise AdvisorError(f"cannot read {path}: {error}", hint) from error
    if not isinstance(document, dict) or document.get("schema") != PRIOR_SCHEMA or document.get("terms") != list(TERMS):
        raise AdvisorError(f"{path} does not hold beliefs about the terms {', '.join(TERMS)}", hint)
    return document
