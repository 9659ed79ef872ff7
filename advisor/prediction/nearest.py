"""How published runs correct a prediction for similar runs of the same software, and which published run is closest.

The formula of `published` leaves a residual for every published run. The residuals of one software package vary
smoothly with the size of the workload (a Gaussian process over `throughput.coordinates`), and a little with the GPU and
with switches. All runs of one owner share a further error. `benchmarks/fit_prior.py` writes profiles/prior_runs.csv.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from advisor.laws.intervals import Z80
from advisor.prediction.prior import datasheet_rates, load_prior
from advisor.prediction.profile import Profile
from advisor.prediction.published import PublishedSetting
from advisor.prediction.software import software_of, table, words_of
from advisor.prediction.throughput import Nearby, coordinates, sizes, terms
from advisor.records import Software, Workload
from advisor.settings import SHARDINGS
from advisor.store.folders import profiles_folder
from advisor.units import format_number, format_tokens

# Correlation of the residuals of one software between two GPU types, and between two settings of switches. Chosen by
# cross-validation over owners, together with the spreads of benchmarks/prior_model.py.
OTHER_CARD, OTHER_SWITCHES = 0.9, 0.6
# Factors on the similarity of a published run that differs in one of these fields.
_UNLIKE = {"software": 0.3, "gpu": 0.5, "gpus": 0.8, "checkpointing": 0.8}
_AXES = ("layers", "width", "tokens per micro-batch", "context length", "vocabulary size")
_SAME_LOG2 = 0.1  # sizes within 7 % count as equal
LENGTH_LOG2 = 2.0  # a factor of four in one size gives residuals a correlation of exp(-1/2)


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One row of profiles/prior_runs.csv: a published run and its residual from the formula."""

    owner: str = ""
    source: str = ""
    address: str = ""
    software: str  # name in profiles/software.csv, or the kind of a custom training loop
    gpu: str
    gpus: int
    switches: str
    checkpointing: str
    where: tuple[float, ...]  # `coordinates`
    tokens_per_second: float = 0.0  # of all GPUs
    residual: float = 0.0  # log of measured over predicted step seconds
    noise: float = 0.0  # standard deviation of this run's residual
    owner_deviation: float = 0.0  # standard deviation of the error that all runs of the owner share


def switches_of(w: Workload) -> str:
    """Return precision, compilation and sharding of a workload as text."""
    return switches_in_words(w.precision, w.compile, w.sharding, fp8=w.software is not None and w.software.fp8)


def switches_in_words(precision: str, compile: bool, sharding: str, *, fp8: bool = False) -> str:
    """Return precision, compilation and sharding as text."""
    words = ["fp8" if fp8 else precision, "compiled" if compile else "eager"]
    return ", ".join(filter(None, [*words, SHARDINGS[sharding].words]))


def correlation(ones: Sequence[PublishedRun], others: Sequence[PublishedRun]) -> np.ndarray:
    """Return the correlation of the residuals of runs of one software, shape (len(ones), len(others))."""
    alike = np.ones((len(ones), len(others)))
    for of, otherwise in (("gpu", OTHER_CARD), ("switches", OTHER_SWITCHES)):
        one, other = (np.array([getattr(run, of) for run in runs]) for runs in (ones, others))
        alike[one[:, None] != other[None]] *= otherwise
    one, other = (np.array([run.where for run in runs]) for runs in (ones, others))
    return alike * np.exp(-0.5 * ((one[:, None] - other[None]) ** 2).sum(axis=2) / LENGTH_LOG2**2)


def nearby(runs: Sequence[PublishedRun], name: str | None, gpu: str, switches: str, deviation: float) -> Nearby | None:
    """Return the correction from runs of the software `name` on one GPU type, or None if there are no such runs."""
    mine = [run for run in runs if name is not None and run.software == name]
    if not mine:
        return None
    cards, hows, owners = (np.array([getattr(run, of) for run in mine]) for of in ("gpu", "switches", "owner"))
    shared = np.array([run.owner_deviation for run in mine])
    between = deviation**2 * correlation(mine, mine) + (owners[:, None] == owners[None]) * np.outer(shared, shared)
    between += np.diag([run.noise**2 for run in mine])
    inverse = np.linalg.inv(between)
    alike = np.where(cards == gpu, 1.0, OTHER_CARD) * np.where(hows == switches, 1.0, OTHER_SWITCHES)
    return Nearby(
        points=np.array([run.where for run in mine]),
        covariance=deviation**2 * alike,
        inverse=inverse,
        pull=inverse @ np.array([run.residual for run in mine]),
        length=LENGTH_LOG2,
    )


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Read profiles/prior_runs.csv."""
    numbers = ("tokens_per_second", "residual", "noise", "owner_deviation")
    runs = []
    with (profiles_folder() / "prior_runs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            cells: dict[str, Any] = {name: row[name] for name in ("owner", "address", "software", "gpu", "switches")}
            cells |= {name: float(row[name]) for name in numbers}
            source = re.sub(r" \([^()]*\bfile \d+[^()]*\)", "", row["source"])  # without the author's local copies
            where = tuple(float(row[f"where_{axis}"]) for axis in range(6))
            how = {"gpus": int(row["gpus"]), "checkpointing": row["checkpointing"]}
            runs.append(PublishedRun(**cells | how, source=source, where=where))
    return tuple(runs)


@lru_cache(maxsize=4096)
def nearby_of(name: str | None, gpu: str, switches: str, deviation: float) -> Nearby | None:
    """Return `nearby` for all published runs."""
    return None if name is None else nearby(published_runs(), name, gpu, switches, deviation)


def as_published(w: Workload, setting: PublishedSetting) -> PublishedRun:
    """Return a workload as a row of the table, without owner and measurements."""
    return PublishedRun(
        software=setting.software.name or setting.software.kind,  # others are unrelated
        gpu=w.gpu,
        gpus=w.gpus,
        switches=switches_of(w),
        checkpointing=w.activation_checkpointing,
        where=tuple(coordinates(sizes([w]))[0]),
    )


def closest_run(profile: Profile, w: Workload) -> str | None:
    """Return a sentence about the most similar published run, with its speed and the differences.

    Returns None if the device was calibrated.
    """
    if profile.calibrated or profile.spec is None:
        return None
    here, runs = as_published(w, PublishedSetting.of(w, profile.spec)), published_runs()
    alike = correlation([here], runs)[0]
    for of, otherwise in _UNLIKE.items():
        alike = alike * np.where([getattr(run, of) == getattr(here, of) for run in runs], 1.0, otherwise)
    run = runs[int(alike.argmax())]
    differs = [] if run.software == here.software else [f"software ({run.software})"]
    differs += [] if run.switches == here.switches else [f"options ({run.switches})"]
    differs += [] if run.checkpointing == here.checkpointing else [f"activation checkpointing ({run.checkpointing})"]
    differs += [
        f"{name} ({round(2**there):,}, this run {round(2**own):,})"
        for name, own, there in zip(_AXES, here.where, run.where, strict=False)
        if abs(own - there) > _SAME_LOG2
    ]
    words = f"{run.source}, {format_tokens(run.tokens_per_second)} tokens/s on {run.gpus} x {run.gpu}"
    if run.address.startswith("http"):
        words += f" ({run.address})"
    return (
        f"{words}; it differs from this run in {', '.join(differs)}"
        if differs
        else f"{words}, the same in all that is known"
    )


# The most common software, with which a prediction for our own trainer is compared; None: a custom eager loop.
_OTHERS = ("hf-trainer", None, "megatron")


def whose(profile: Profile, workload: Workload) -> str:
    """Return a sentence that names the software of a prediction and says how long other software takes."""
    software = workload.software
    if software is not None and software.name is not None:
        return f"{words_of(software)} as its defaults are, {'compiled' if workload.compile else 'eager'}"
    if software is not None:
        return (
            "unstated software: the interval contains a loss in chunks (torchtune, Unsloth) as well as one over "
            "whole logits (TRL, axolotl); --software says whose"
        )
    own = f"this project's trainer, {'compiled' if workload.compile else 'eager'}"
    if profile.calibrated or profile.spec is None:
        return f"{own}, as measured here"
    names = {name: table()[name].words if name else "a PyTorch loop without compilation" for name in _OTHERS}
    others = ", ".join(f"{words} {_times(profile, workload, name)}" for name, words in names.items())
    return f"{own}; for other software multiply the time by: {others}"


def _times(profile: Profile, workload: Workload, name: str | None) -> str:
    """Return the step time with other software relative to this prediction, with its 80 % interval, as text."""
    spec = profile.spec
    assert spec is not None
    rates = datasheet_rates(spec, workload.precision)
    assert rates is not None  # every GPU with a prior has them
    middles, deviation = [], 0.0
    other = Software() if name is None else software_of(name)
    compiled = name is not None and table()[name].compiled
    for on, software in ((workload.compile, None), (compiled, other)):
        prior = load_prior(spec.generation, workload.precision, on, spec, software=software)
        seconds = terms(sizes([workload]), rates)[0] * np.exp(prior.mean)
        share = seconds / seconds.sum()
        middles.append(float(seconds.sum()))
        deviation = float(np.sqrt(share @ prior.covariance @ share))
    ratio = middles[1] / middles[0]
    low, value, high = (format_number(float(f"{ratio * np.exp(n * Z80 * deviation):.2g}")) for n in (-1, 0, 1))
    return f"{value} ({low}-{high})"
