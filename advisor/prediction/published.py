"""The model of published runs: how the coefficients of a GPU and a software package are sums of shared unknowns.

    θ = μ + δ_generation + δ_card + compiled · c (or fused kernels · k) - headroom · β
        + effects of the software's class, its name, its name on the generation, and the precision (+ w)

δ_card is the effect of one type of GPU, and w the difference of encoders. headroom is the log of the GPU's power limit
in watts per peak TFLOP/s; a GPU with little headroom throttles. All runs of one owner share a further error
(`Spreads.owner`). `benchmarks/fit_prior.py` fits the unknowns and `advisor.prediction.prior` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.prediction.throughput import TERMS
from advisor.records import Software, Workload
from advisor.settings import SHARDINGS

THROTTLED = ("matmul", "attention")  # terms that the power limit slows down
FUSED = ("traffic", "logits", "layer_overhead", "micro_overhead")  # terms that compilation changes
# Classes of software (see `classes`) and kinds of sharding, each with one effect on all terms.
CLASSES = ("c", "fused", "wrapper", "megatron", "tuned", "plain", "loose", "unstated")
SHARDED = ("optimizer", "full")
PRECISIONS = ("tf32", "fp32", "fp8")  # effects on products, relative to 16 bits
LAUNCHES = ("layer_overhead", "micro_overhead", "step_overhead")


@dataclass(frozen=True, kw_only=True)
class PublishedSetting:
    """The settings of a run, other than the GPU, that determine its coefficients."""

    precision: str
    compile: bool
    software: Software
    tf32: bool  # fp32 products use TF32 units, and the GPU has them
    sharding: str = "none"
    encoder: bool = False

    @classmethod
    def of(cls, w: Workload, spec: GpuSpec | None, *, encoder: bool = False) -> PublishedSetting:
        """Return the setting of a workload on its GPU."""
        software = w.software or OWN
        return cls(
            precision=w.precision,
            compile=w.compile,
            software=software,
            tf32=software.tf32 and (spec is None or spec.tf32_flops is not None),
            sharding=SHARDINGS[w.sharding].published,
            encoder=encoder,
        )


# This project's trainer counts as a plain PyTorch loop until it is calibrated.
OWN = Software(kind="plain")


def classes(setting: PublishedSetting) -> tuple[str, ...]:
    """Return the classes of software of a run, from the kind in profiles/software.csv.

    A custom PyTorch loop is "loose" unless it is compiled and has fused attention.
    """
    software = setting.software
    kind = software.kind
    if kind == "plain" and not (setting.compile and software.fused_attention):
        kind = "loose"
    return (kind, *(("unstated",) if software.unstated else ()))


def software_effects(setting: PublishedSetting, generation: str | None) -> tuple[str, ...]:
    """Return the names of a named software's two unknowns: its effect in general, and on one generation of GPUs."""
    name = setting.software.name
    return () if name is None or setting.encoder else (f"software {name}", f"software {name} on {generation}")


def names_of_unknowns(generations: Sequence[str], cards: Sequence[str], software: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all unknowns in order. Unknowns for each term are consecutive, in the order of TERMS.

    `software` are the names from `software_effects`.
    """
    return (
        *(f"mean {term}" for term in TERMS),
        *(f"generation {name} {term}" for name in generations for term in TERMS),
        *(f"encoder {term}" for term in TERMS),
        *(f"compiled {term}" for term in FUSED),
        *(f"by hand {term}" for term in FUSED),
        "headroom",
        *(f"class {name}" for name in CLASSES),
        *(f"sharding {name}" for name in SHARDED),
        *(f"precision {name}" for name in PRECISIONS),
        *(f"card {key}" for key in cards),
        *software,
    )


def selector(
    place: Mapping[str, int], generation: str | None, card: str | None, headroom: float, setting: PublishedSetting
) -> np.ndarray:
    """Return the (k, p) matrix that maps the unknowns to θ; `place` is the index of each unknown by its name."""
    k = len(TERMS)
    made = np.zeros((k, len(place)))
    made[:, :k] = np.eye(k)
    blocks = [f"generation {generation}", *(["encoder"] if setting.encoder else [])]
    for block in blocks:
        first = place.get(f"{block} {TERMS[0]}")
        if first is not None:
            made[:, first : first + k] = np.eye(k)
    software = setting.software
    fused = "compiled" if setting.compile else "by hand" if software.fused_kernels and not setting.encoder else None
    if fused:
        for term in FUSED:
            made[TERMS.index(term), place[f"{fused} {term}"]] = 1.0
    products = [TERMS.index(term) for term in THROTTLED]
    made[products, place["headroom"]] = -headroom
    common = [] if setting.encoder else [f"class {name}" for name in classes(setting)]
    for name in (*common, *software_effects(setting, generation), f"sharding {setting.sharding}", f"card {card}"):
        if name in place:
            made[:, place[name]] = 1.0
    if setting.precision == "fp32":
        made[products, place[f"precision {'tf32' if setting.tf32 else 'fp32'}"]] = 1.0
    if software.fp8:
        made[TERMS.index("matmul"), place["precision fp8"]] = 1.0
    return made


@dataclass(frozen=True, kw_only=True)
class Spreads:
    """Standard deviations of log step seconds, by their cause."""

    owner: float  # between owners of runs with one class of software, equal for all terms
    classes: Mapping[str, float]  # additional deviation between owners for some classes of software
    terms: np.ndarray  # (k,) between owners, for each term by itself
    software: float  # between named software packages of one class
    on_generation: float  # of one named software package between generations of GPUs
    machine: float  # between machines with the same GPU
    card: float  # between the GPU types of one generation
    row: float  # between configurations
    near: float  # of the residual that similar configurations with one software share (see `nearest`)
    launch: float  # of the launch terms between configurations: launches may be hidden behind work or not

    def between(self, one: PublishedSetting, other: PublishedSetting) -> np.ndarray:
        """Return the covariance (k, k) of one owner's deviations in two settings, from the classes that both share."""
        shared = set(classes(one)) & set(classes(other))
        common = self.owner**2 + sum(self.classes[name] ** 2 for name in shared)
        return common * np.ones((len(TERMS),) * 2) + np.diag(self.terms**2)

    def of_unknown(self, names: Sequence[str]) -> float:
        """Return the variance of the effects of software that has no published runs."""
        return sum((self.on_generation if " on " in name else self.software) ** 2 for name in names)

    def of_machine(self) -> np.ndarray:
        """Return the covariance (k, k) of the coefficients between machines."""
        launches = np.array([self.launch * (term in LAUNCHES) for term in TERMS])
        return self.machine**2 * np.ones((len(TERMS),) * 2) + np.outer(launches, launches)
