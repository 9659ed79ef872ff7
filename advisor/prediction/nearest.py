"""Published runs near a prediction: those of the same software pull it to what they reached; the nearest is shown.

The formula of `published` leaves a residual of every published run. Residuals of one piece of software vary smoothly
with the size of what is trained (a Gaussian process over `throughput.coordinates`), a little with the card and with
switches; each owner's share an error of their own. `benchmarks/fit_prior.py` writes them to profiles/prior_runs.csv.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from advisor.prediction.published import Setting
from advisor.prediction.throughput import Nearby, coordinates, sizes
from advisor.records import Workload
from advisor.store.folders import profiles_folder
from advisor.units import format_tokens

# How alike the residuals of one piece of software are on two cards, and with other switches. Chosen with the spreads
# of benchmarks/prior_model.py, by predictions of owners left out.
OTHER_CARD, OTHER_SWITCHES = 0.9, 0.6
# What makes a published run less worth showing beside a prediction.
_UNLIKE = {"software": 0.3, "gpu": 0.5, "gpus": 0.8, "checkpointing": 0.8}
_AXES = ("layers", "width", "tokens of a micro-batch", "tokens of context", "rows of the vocabulary")
_SAME_LOG2 = 0.1  # sizes within 7 % are alike
LENGTH_LOG2 = 2.0  # residuals of runs a factor of four apart in one size correlate by exp(-1/2)


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """One published run and what the formula leaves unexplained of it; a row of the table."""

    owner: str
    source: str
    address: str
    software: str  # its name in profiles/software.csv, or the kind of somebody's own loop
    gpu: str
    gpus: int
    switches: str
    checkpointing: str
    where: tuple[float, ...]  # `coordinates`
    tokens_per_second: float  # of all GPUs
    residual: float  # log of measured over modelled step seconds
    noise: float  # standard deviation of that, of this run alone
    owner_deviation: float  # of all runs of its owner alike


def software_key(setting: Setting) -> str:
    """What runs must share for one's residual to say something of the other's."""
    return setting.software.name or setting.software.kind


def switches_of(w: Workload) -> str:
    """The switches that decide a run's speed besides recomputation, in words."""
    return switches_in_words(w.precision, w.compile, w.sharding, fp8=w.software is not None and w.software.fp8)


def switches_in_words(precision: str, compile: bool, sharding: str, *, fp8: bool = False) -> str:
    """As `switches_of`."""
    words = ["fp8" if fp8 else precision, "compiled" if compile else "eager"]
    words += [{"optimizer": "optimizer sharded", "full": "fully sharded"}[sharding]] if sharding != "none" else []
    return ", ".join(words)


def correlation(ones: Sequence[PublishedRun], others: Sequence[PublishedRun]) -> np.ndarray:
    """How alike the residuals of runs are, software aside, shape (len(ones), len(others))."""
    alike = np.ones((len(ones), len(others)))
    for of, otherwise in (("gpu", OTHER_CARD), ("switches", OTHER_SWITCHES)):
        one, other = (np.array([getattr(run, of) for run in runs]) for runs in (ones, others))
        alike[one[:, None] != other[None]] *= otherwise
    one, other = (np.array([run.where for run in runs]) for runs in (ones, others))
    return alike * np.exp(-0.5 * ((one[:, None] - other[None]) ** 2).sum(axis=2) / LENGTH_LOG2**2)


def nearby(runs: Sequence[PublishedRun], name: str | None, gpu: str, switches: str, deviation: float) -> Nearby | None:
    """What the runs of this software say of runs on one card with these switches; None where there are none."""
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
    """Every published run that the beliefs rest on."""
    with (profiles_folder() / "prior_runs.csv").open(encoding="utf-8", newline="") as file:
        return tuple(_run(row) for row in csv.DictReader(file))


def _run(row: dict[str, str]) -> PublishedRun:
    return PublishedRun(
        owner=row["owner"],
        source=re.sub(r" \([^()]*\bfile \d+[^()]*\)", "", row["source"]),  # where the table's author kept a copy
        address=row["address"],
        software=row["software"],
        gpu=row["gpu"],
        gpus=int(row["gpus"]),
        switches=row["switches"],
        checkpointing=row["checkpointing"],
        where=tuple(float(row[f"where_{axis}"]) for axis in range(6)),
        tokens_per_second=float(row["tokens_per_second"]),
        residual=float(row["residual"]),
        noise=float(row["noise"]),
        owner_deviation=float(row["owner_deviation"]),
    )


@lru_cache(maxsize=4096)
def nearby_of(name: str | None, gpu: str, switches: str, deviation: float) -> Nearby | None:
    """`nearby` of the published runs."""
    return None if name is None else nearby(published_runs(), name, gpu, switches, deviation)


def as_published(w: Workload, setting: Setting) -> PublishedRun:
    """A workload as a row of the table would have it, of nobody and with nothing measured."""
    return PublishedRun(
        owner="",
        source="",
        address="",
        software=software_key(setting),
        gpu=w.gpu,
        gpus=w.gpus,
        switches=switches_of(w),
        checkpointing=w.activation_checkpointing,
        where=tuple(coordinates(sizes([w]))[0]),
        tokens_per_second=0.0,
        residual=0.0,
        noise=0.0,
        owner_deviation=0.0,
    )


def closest(w: Workload, setting: Setting) -> str:
    """The published run that is most like this one, what it reached and what differs, in one sentence."""
    here, runs = as_published(w, setting), published_runs()
    alike = correlation([here], runs)[0]
    for of, otherwise in _UNLIKE.items():
        alike = alike * np.where([getattr(run, of) == getattr(here, of) for run in runs], 1.0, otherwise)
    run = runs[int(alike.argmax())]
    differs = [] if run.software == here.software else [f"software ({run.software})"]
    differs += [] if run.switches == here.switches else [f"switches ({run.switches})"]
    differs += [] if run.checkpointing == here.checkpointing else [f"recomputation ({run.checkpointing})"]
    differs += [
        f"{name} ({round(2**there):,}, here {round(2**own):,})"
        for name, own, there in zip(_AXES, here.where, run.where, strict=False)
        if abs(own - there) > _SAME_LOG2
    ]
    words = f"{run.source}, {format_tokens(run.tokens_per_second)} tokens/s on {run.gpus} x {run.gpu}"
    if run.address.startswith("http"):
        words += f" ({run.address})"
    return f"{words}; this differs in {', '.join(differs)}" if differs else f"{words}, the same in all that is known"
