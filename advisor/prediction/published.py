"""What published runs share: how the coefficients of one card and one piece of software are made of common unknowns.

    θ = μ + δ_generation + δ_card + compiled · c (or kernels by hand · k) - headroom · β
        + effects of the software's class, of the software by name, of it on the generation, and of precision (+ w)

headroom is the log of the watts a card may draw per peak TFLOP/s: with few it throttles. w is what encoders do
otherwise. Every owner's runs share an error of their own (`Spreads.owner`). `benchmarks/fit_prior.py` fits the
unknowns, `advisor.prediction.prior` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.prediction.throughput import TERMS
from advisor.records import Software, Workload

THROTTLED = ("matmul", "attention")  # terms that a card's power limit slows down
FUSED = ("traffic", "logits", "layer_overhead", "micro_overhead")  # terms that compiling changes
# Effects of a class of software on all terms alike, by the name of the class (see `classes`), and of sharding.
CLASSES = ("c", "fused", "wrapper", "megatron", "tuned", "plain", "loose", "unstated")
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
    """The classes of software that a run belongs to: the kind in profiles/software.csv, where somebody's own loop is
    "loose" unless it is compiled and has fused attention.
    """
    software = setting.software
    kind = software.kind
    if kind == "plain" and not (setting.compile and software.fused_attention):
        kind = "loose"
    return (kind, *(("unstated",) if software.unstated else ()))


def software_effects(setting: Setting, generation: str | None) -> tuple[str, ...]:
    """The unknowns of a named piece of software: everywhere, and on one generation; none of somebody's own loop."""
    name = setting.software.name
    return () if name is None or setting.encoder else (f"software {name}", f"software {name} on {generation}")


def names_of_unknowns(generations: Sequence[str], cards: Sequence[str], software: Sequence[str]) -> tuple[str, ...]:
    """The names of all unknowns, in their order; those of terms are next to each other, in the order of TERMS.

    `software` are the names that `software_effects` gave.
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
    """Standard deviations of log step seconds that differ from run to run."""

    owner: float  # of one owner's runs about their class, all alike
    classes: Mapping[str, float]  # more of that for the software of a class
    terms: np.ndarray  # (k,) of one owner's runs, each term by itself
    software: float  # of a named piece of software about its class
    on_generation: float  # of a named piece of software on one generation of cards
    machine: float  # of one machine among those of its card
    card: float  # of one card among those of its generation
    row: float  # of one configuration
    near: float  # of configurations that lie near each other, of one piece of software (see `nearest`)
    launch: float  # of the launch terms of one configuration: they are hidden behind work, or are not

    @property
    def unexplained(self) -> float:
        """Of one configuration nobody published a neighbour of."""
        return float(np.hypot(self.row, self.near))

    def of_software(self, setting: Setting) -> np.ndarray:
        """The covariance (k, k) of what one owner's software does to its coefficients on any card."""
        return self.between(setting, setting)

    def between(self, one: Setting, other: Setting) -> np.ndarray:
        """The covariance (k, k) of what one owner's software does in two settings, which share the classes of both."""
        shared = set(classes(one)) & set(classes(other))
        common = self.owner**2 + sum(self.classes[name] ** 2 for name in shared)
        return common * np.ones((len(TERMS),) * 2) + np.diag(self.terms**2)

    def of_unknown(self, names: Sequence[str]) -> float:
        """The variance of these effects of software, of which there are no runs."""
        return sum((self.on_generation if " on " in name else self.software) ** 2 for name in names)

    def of_machine(self) -> np.ndarray:
        """The covariance (k, k) of what one machine does to them, whose launches are hidden or are not."""
        launches = np.array([self.launch * (term in LAUNCHES) for term in TERMS])
        return self.machine**2 * np.ones((len(TERMS),) * 2) + np.outer(launches, launches)
