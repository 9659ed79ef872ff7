"""What published runs share: how the coefficients of one card and one piece of software are made of common unknowns.

    θ = μ + δ_generation + δ_card + compiled · c - headroom · β + effects of the software's class and precision (+ w)

headroom is the log of the watts a card may draw per peak TFLOP/s: with few it throttles. w is what encoders do
otherwise. Every piece of software that nobody measured brings an error of its own, the same for all its runs: its
spread is `Spreads.software`. `benchmarks/fit_prior.py` fits the unknowns, `advisor.predict.prior` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.predict.throughput import TERMS
from advisor.records import Software, Workload

THROTTLED = ("matmul", "attention")  # terms that a card's power limit slows down
FUSED = ("traffic", "logits", "layer_overhead", "micro_overhead")  # terms that compiling changes
# Effects of a class of software on all terms alike, by the name of the class (see `classes`), and of sharding.
CLASSES = ("c", "wrapper", "megatron", "loose", "unstated")
SHARDED = ("optimizer", "full")
PRECISIONS = ("tf32", "fp32", "fp8")  # effects on products, against 16 bits
LAUNCHES = ("layer_overhead", "micro_overhead", "step_overhead")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What decides a run's coefficients besides the card."""

    precision: str
    compile: bool
    software: Software
    tf32: bool  # fp32 products on TF32 units, which the card has
    sharding: str = "none"
    encoder: bool = False

    @classmethod
    def of(cls, w: Workload, spec: GpuSpec | None, *, encoder: bool = False) -> Setting:
        """The setting of a workload on its card."""
        software = w.software or OWN
        return cls(
            precision=w.precision,
            compile=w.compile,
            software=software,
            tf32=software.tf32 and (spec is None or spec.tf32_flops is not None),
            sharding=w.sharding,
            encoder=encoder,
        )


OWN = Software(
    kind="plain"
)  # this project's trainer: one more loop in PyTorch that nobody measured, until it is calibrated


def classes(setting: Setting) -> tuple[str, ...]:
    """The classes of software that a run belongs to: none if its loop is tuned, or somebody's own, compiled and with
    fused attention.
    """
    software = setting.software
    kind = software.kind
    if kind == "plain" and not (setting.compile and software.fused_attention):
        kind = "loose"
    return (*((kind,) if kind in CLASSES else ()), *(("unstated",) if software.unstated else ()))


def names_of_unknowns(generations: Sequence[str], cards: Sequence[str]) -> tuple[str, ...]:
    """The names of all unknowns, in their order; those of terms are next to each other, in the order of TERMS."""
    return (
        *(f"mean {term}" for term in TERMS),
        *(f"generation {name} {term}" for name in generations for term in TERMS),
        *(f"encoder {term}" for term in TERMS),
        *(f"compiled {term}" for term in FUSED),
        "headroom",
        *(f"class {name}" for name in CLASSES),
        *(f"sharding {name}" for name in SHARDED),
        *(f"precision {name}" for name in PRECISIONS),
        *(f"card {key}" for key in cards),
    )


def selector(
    place: Mapping[str, int], generation: str | None, card: str | None, headroom: float, setting: Setting
) -> np.ndarray:
    """The (k, p) matrix that makes θ of the unknowns; `place` has the place of each by its name."""
    k = len(TERMS)
    made = np.zeros((k, len(place)))
    made[:, :k] = np.eye(k)
    blocks = [f"generation {generation}", *(["encoder"] if setting.encoder else [])]
    for block in blocks:
        first = place.get(f"{block} {TERMS[0]}")
        if first is not None:
            made[:, first : first + k] = np.eye(k)
    if setting.compile:
        for term in FUSED:
            made[TERMS.index(term), place[f"compiled {term}"]] = 1.0
    products = [TERMS.index(term) for term in THROTTLED]
    made[products, place["headroom"]] = -headroom
    software = setting.software
    common = [] if setting.encoder else [f"class {name}" for name in classes(setting)]
    for name in (*common, f"sharding {setting.sharding}", f"card {card}"):
        if name in place:
            made[:, place[name]] = 1.0
    if setting.precision == "fp32":
        made[products, place[f"precision {'tf32' if setting.tf32 else 'fp32'}"]] = 1.0
    if software.fp8:
        made[TERMS.index("matmul"), place["precision fp8"]] = 1.0
    return made


@dataclass(frozen=True, kw_only=True)
class Spreads:
    """Standard deviations of log step seconds that differ from run to run."""

    software: float  # of one piece of software about its class, on all its runs alike
    classes: Mapping[str, float]  # more of that for the software of a class
    terms: np.ndarray  # (k,) of one piece of software, each term by itself
    machine: float  # of one machine among those of its card
    card: float  # of one card among those of its generation
    row: float  # of one configuration
    launch: float  # of the launch terms of one configuration: they are hidden behind work, or are not

    def of_software(self, setting: Setting) -> np.ndarray:
        """The covariance (k, k) of what one piece of software does to its coefficients on any card."""
        return self.between(setting, setting)

    def between(self, one: Setting, other: Setting) -> np.ndarray:
        """The covariance (k, k) of what one piece of software does in two settings, which share the classes of both."""
        shared = set(classes(one)) & set(classes(other))
        common = self.software**2 + sum(self.classes[name] ** 2 for name in shared)
        return common * np.ones((len(TERMS),) * 2) + np.diag(self.terms**2)

    def of_machine(self) -> np.ndarray:
        """The covariance (k, k) of what one machine does to them, whose launches are hidden or are not."""
        launches = np.array([self.launch * (term in LAUNCHES) for term in TERMS])
        return self.machine**2 * np.ones((len(TERMS),) * 2) + np.outer(launches, launches)
