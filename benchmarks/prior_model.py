"""The hierarchical model of published runs to which the prior is fitted: rows in, posterior and left-out errors out.

log step = log Σ_k exp(θ_k) x_k + u_owner + f(software, size, card, switches) + ε

x_k are the terms of advisor.prediction.throughput at datasheet rates, and θ consists of the unknowns of
advisor.prediction.published. u is the common effect of one owner's software and machines on all their rows. f is what
the terms miss for similar runs of one software package (advisor.prediction.nearest). Both are integrated out as
correlated errors, so that an owner of 129 rows counts as one witness of their software. A row that leaves something
open is a mixture of the workloads it may mean, and their differences are part of its error.

Owners and GPUs enter as groups to be left out, never by name. Runs of encoders show how GPUs compare if no decoder was
published; they are fitted but never predicted.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from advisor.hardware.catalog import GpuSpec  # noqa: E402
from advisor.prediction import comm  # noqa: E402
from advisor.prediction.nearest import PublishedRun, as_published, correlation  # noqa: E402
from advisor.prediction.prior import FASTEST, SharedBelief, datasheet_rates, power_headroom  # noqa: E402
from advisor.prediction.published import (  # noqa: E402
    CLASSES,
    FUSED,
    LAUNCHES,
    PublishedSetting,
    Spreads,
    classes,
    names_of_unknowns,
    selector,
    software_effects,
)
from advisor.prediction.throughput import TERMS, sizes, terms  # noqa: E402
from advisor.records import Workload  # noqa: E402
from benchmarks.rows.reader import Reading, RowError, RowReader  # noqa: E402

Known = dict[str, GpuSpec]
RUNS = ROOT / "profiles" / "public_runs.csv"
ENCODERS = ROOT / "profiles" / "public_encoder_runs.csv"
# Before any row: eager PyTorch against datasheet rates. Products reach the measured 73-87 % of peak (catalog, MAMF),
# less for smaller shapes; attention 40 %; activations pass memory about 60 times per layer, forward and backward;
# launches take 5 µs; the rest as in advisor.prediction.prior.measured_prior. (coefficient, sd of its log, sd of a
# generation's deviation, sd of a software package's deviation)
BELIEFS = {
    "matmul": (1.35, 0.25, 0.20, 0.06),
    "attention": (2.5, 0.4, 0.25, 0.11),
    "traffic": (60.0, 0.8, 0.25, 0.14),
    "logits": (6.0, 0.7, 0.25, 0.17),
    "weights": (5.0, 0.7, 0.20, 0.17),
    "layer_overhead": (80.0, 0.8, 0.20, 0.34),
    "micro_overhead": (150.0, 0.8, 0.20, 0.34),
    "optimizer": (1.5, 0.4, 0.20, 0.22),
    "step_overhead": (600.0, 0.8, 0.20, 0.45),
}
# The effect of fused operations on the log coefficients: fewer passes over activations, fewer launches (mean, sd).
COMPILED = {"traffic": (-0.8, 0.4), "logits": (-0.4, 0.4), "layer_overhead": (-1.0, 0.5), "micro_overhead": (-0.7, 0.5)}
# The loss of products and attention per log of watts per peak TFLOP/s (mean, sd): 0.24 from the best measured products
# of the A100 as PCIe and SXM card (0.81 and 0.87 of peak at 0.96 and 1.28 W per TFLOP/s).
HEADROOM = (0.2, 0.1)
ENCODER_DEVIATION = 0.2
ENCODER_SOFTWARE = 0.1  # sd of the effect of encoders' software on all terms
CLASS_EFFECT = 0.5  # sd of the effect of a class of software on all terms
# Hand-written kernels in eager code (Liger, Transformer Engine, apex): three quarters of a compiler's effect, and sd.
BY_HAND = {term: (0.75 * mean, 0.1) for term, (mean, _) in COMPILED.items()}
# (mean, sd): shards are gathered during the computation; TF32 and 8-bit products stay further from their peak.
OTHER_EFFECTS = {
    "sharding full": (0.03, 0.1),
    "sharding optimizer": (0.0, 0.05),
    "precision tf32": (0.1, 0.2),
    "precision fp32": (0.0, 0.2),
    "precision fp8": (0.3, 0.2),
}
# Chosen by the interval score of left-out owners, each counted once (docs/log.md has what else was tried).
SPREADS = Spreads(
    owner=0.04,
    classes={
        **{"c": 0.10, "fused": 0.08, "wrapper": 0.27, "megatron": 0.10},
        **{"tuned": 0.03, "plain": 0.10, "loose": 0.25, "unstated": 0.30},
    },
    terms=0.3 * np.array([BELIEFS[term][3] for term in TERMS]),
    software=0.07,
    on_generation=0.09,
    machine=0.04,
    card=0.10,
    row=0.05,
    near=0.10,
    launch=0.15,
)
_USUAL = 2.0  # standard deviations; a larger mean error of an owner widens its error, so that it counts less
_ROUNDS = 12


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """One workload that a row may mean."""

    workload: Workload
    x: np.ndarray  # (k,) terms at coefficient one, over the measured seconds
    setting: PublishedSetting
    weight: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One published run."""

    meanings: tuple[Meaning, ...]
    line: dict[str, str]
    owner: str
    source: str
    published: PublishedRun  # its likeliest meaning, without its residual

    @property
    def likeliest(self) -> Workload:
        return max(self.meanings, key=lambda m: m.weight).workload

    @property
    def encoder(self) -> bool:
        return self.meanings[0].setting.encoder


def owner_of(line: dict[str, str]) -> str:
    """Return the person or project behind a row, because sources of one owner share their software."""
    name = re.sub(r"\([^)]*\)", "", line["source"]).strip().lower()
    if name.startswith(("parameter-golf ", "build-nanogpt notes")):  # one repository of many people
        return name
    for project in ("runpod one-file", "fastcode", "llm trainer", "lzwjava", "verify/gpt2", "gpuburnout", "dialogpt"):
        if project in name:
            return project
    address = re.match(r"https?://github\.com/([^/]+)/", line["repo_or_url"])
    return (address[1] if address else name).lower()


def read_lines(path: Path) -> Iterator[tuple[dict[str, str], Reading | RowError]]:
    """Yield every row of a table with its reading."""
    known = published_cards()
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        reader = RowReader(known, list(lines.fieldnames or ()))
        for number, line in enumerate(lines, start=1):
            yield line, reader.read(list(line.values()), number)


def published_cards() -> dict[str, GpuSpec]:
    from benchmarks.rows.gpu_names import load_published_gpus

    return load_published_gpus()


def read_runs(path: Path = RUNS, encoders: Path = ENCODERS) -> list[Run]:
    """Return the readable rows that state a throughput and are not suspect; then those of encoders."""
    known = published_cards()
    runs = [run for line, reading in read_lines(path) if (run := _run(line, reading, known))]
    with encoders.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        reader = RowReader(known, list(lines.fieldnames or ()))
        for line in lines:
            said = line | {"notes": ""}  # the notes say that it is an encoder
            run = _run(line, reader.read(list(said.values())), known, encoder=True)
            if run:
                runs.append(run)
    return runs


def _run(line: dict[str, str], reading: Reading | RowError, known: Known, *, encoder: bool = False) -> Run | None:
    if isinstance(reading, RowError) or "SUSPECT" in line["notes"] or not line["tok_per_s_per_gpu"]:
        return None
    rate, meanings = float(line["tok_per_s_per_gpu"]), []
    for w, weight in zip(reading.workloads, reading.weights, strict=True):
        spec = known[w.gpu]
        x = term_row(w, spec, encoder=encoder)
        if w.software is not None and w.software.adapters is not None:  # adapters use a share of these terms
            continue
        if x is None or power_headroom(spec, w.precision) is None:
            continue
        step = w.step_tokens / w.gpus / rate
        x = x / (step - _exposed(w, spec, step))
        meanings.append(Meaning(workload=w, x=x, setting=PublishedSetting.of(w, spec, encoder=encoder), weight=weight))
    if not meanings:
        return None
    total = sum(m.weight for m in meanings)
    meanings = [replace(m, weight=m.weight / total) for m in meanings]
    likeliest = max(meanings, key=lambda m: m.weight)
    published = replace(
        as_published(likeliest.workload, likeliest.setting),
        owner=owner_of(line),
        source=line["source"],
        address=line["repo_or_url"],
        tokens_per_second=rate * likeliest.workload.gpus,
    )
    owner, source = published.owner, published.source
    return Run(meanings=tuple(meanings), line=line, owner=owner, source=source, published=published)


def term_row(w: Workload, spec: GpuSpec, *, encoder: bool = False) -> np.ndarray | None:
    """Return one workload's terms, shape (k,), as a prediction has them; an encoder has no head over a vocabulary."""
    rates = datasheet_rates(spec, w.precision, tf32=w.software is None or w.software.tf32)
    if rates is None:
        return None
    z = sizes([w])
    if encoder:
        z = replace(z, head_matmul=0.0 * z.head_matmul, vocab=0.0 * z.vocab)
    return terms(z, rates)[0]


def _exposed(w: Workload, spec: GpuSpec, step_seconds: float) -> float:
    """Return seconds of exposed communication in a measured step; backward takes two thirds of a micro-step."""
    exposed = comm.exposed_seconds(w, spec, 2 / 3 * step_seconds / w.grad_accum)
    return min(exposed.value, 0.4 * step_seconds) if exposed else 0.0


def fit(runs: Sequence[Run], known: Known, spreads: Spreads = SPREADS) -> SharedBelief:
    """Return MAP and Laplace covariance of the unknowns, by Gauss-Newton on errors whitened by their covariance."""
    return fitted(runs, known, spreads)[0]


def fitted(
    runs: Sequence[Run], known: Known, spreads: Spreads = SPREADS, begin: SharedBelief | None = None
) -> tuple[SharedBelief, tuple[PublishedRun, ...]]:
    """Return the result of `fit`, and the decoders with what the formula leaves unexplained of each.

    `begin` is the start of the search for the mode, which ends sooner from a fit to nearly the same runs.
    """
    generations = sorted({known[run.likeliest.gpu].generation for run in runs})
    cards = sorted({m.workload.gpu for run in runs for m in run.meanings})
    shifts = matmul_shifts(known)
    software = sorted({name for run in runs for name in _software(run, known)})
    names = names_of_unknowns(generations, cards, software)
    place = {name: at for at, name in enumerate(names)}
    start, deviations = _before(place, generations, cards, shifts, spreads)
    picks = [np.array([_pick(place, known, m) for m in run.meanings]) for run in runs]
    products = np.unique(  # one per GPU and setting
        np.concatenate([p[:, TERMS.index("matmul")] for run, p in zip(runs, picks, strict=True) if not run.encoder]),
        axis=0,
    )
    p = start.copy()
    if begin is not None:
        p = np.array([begin.mode[begin.place[name]] if name in begin.place else p[at] for name, at in place.items()])
    errors = Errors(runs, spreads)
    for _ in range(_ROUNDS):
        seen = _evaluate(runs, picks, p)
        weighted = np.linalg.solve(errors.covariance(seen), seen.slopes).T
        normal = np.diag(deviations**-2.0) + weighted @ seen.slopes
        pull = (start - p) / deviations**2 - weighted @ seen.errors
        excess = products @ p + FASTEST[0]
        beyond = products[excess < 0]
        normal = normal + beyond.T @ beyond / FASTEST[1] ** 2
        pull = pull - beyond.T @ excess[excess < 0] / FASTEST[1] ** 2
        step = np.linalg.solve(normal, pull)
        p = p + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 1e-3:
            break
    generation_of = [known[run.likeliest.gpu].generation for run in runs]
    headrooms = {
        name: float(np.mean([_headroom(known, run) for run, g in zip(runs, generation_of, strict=True) if g == name]))
        for name in generations
    }
    belief = SharedBelief(
        place=place,
        mode=p,
        covariance=np.linalg.inv(normal),
        spreads=spreads,
        generation_spread=np.array([BELIEFS[term][2] for term in TERMS]),
        matmul_shifts=shifts,
        headrooms=headrooms,
        rows_by_generation={name: generation_of.count(name) for name in generations},
        rows_by_card={key: sum(run.likeliest.gpu == key for run in runs) for key in cards},
    )
    return belief, errors.residuals(_evaluate(runs, picks, p))


def _software(run: Run, known: Known) -> set[str]:
    effects = [software_effects(m.setting, known[m.workload.gpu].generation) for m in run.meanings]
    return {name for names in effects for name in names}


def _headroom(known: Known, run: Run) -> float:
    return power_headroom(known[run.likeliest.gpu], run.likeliest.precision) or 0.0


def _before(
    place: dict[str, int], generations: Sequence[str], cards: Sequence[str], shifts: dict[str, float], spreads: Spreads
) -> tuple[np.ndarray, np.ndarray]:
    """Return the prior of the unknowns before any row: means and standard deviations, shapes (p,)."""
    mean, deviation = np.zeros(len(place)), np.full(len(place), np.nan)
    beliefs: dict[str, tuple[float, float]] = dict(OTHER_EFFECTS)
    for term, (value, wide, between, _) in BELIEFS.items():
        beliefs[f"mean {term}"] = (float(np.log(value)), wide)
        beliefs[f"encoder {term}"] = (0.0, ENCODER_DEVIATION)
        for name in generations:
            beliefs[f"generation {name} {term}"] = (shifts.get(name, 0.0) if term == "matmul" else 0.0, between)
    beliefs |= {f"compiled {term}": COMPILED[term] for term in FUSED} | {"headroom": HEADROOM}
    beliefs |= {f"by hand {term}": BY_HAND[term] for term in FUSED}
    beliefs |= {f"class {name}": (0.0, CLASS_EFFECT) for name in CLASSES}
    beliefs |= {f"card {key}": (0.0, spreads.card) for key in cards}
    for name, at in place.items():
        unseen = (0.0, spreads.of_unknown([name]) ** 0.5)
        mean[at], deviation[at] = unseen if name.startswith("software ") else beliefs[name]
    return mean, deviation


def _pick(place: dict[str, int], known: Known, m: Meaning) -> np.ndarray:
    spec = known[m.workload.gpu]
    headroom = power_headroom(spec, m.setting.precision) or 0.0
    return selector(place, spec.generation, spec.key, headroom, m.setting)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The runs at one value of the unknowns."""

    errors: np.ndarray  # (n,) log modelled minus log measured
    slopes: np.ndarray  # (n, p)
    shares: np.ndarray  # (n, k) of the terms in the step
    open: np.ndarray  # (n,) sd between the meanings of a row


def _evaluate(runs: Sequence[Run], picks: Sequence[np.ndarray], p: np.ndarray) -> _Seen:
    n = len(runs)
    errors, slopes, shares, spread = np.empty(n), np.empty((n, len(p))), np.empty((n, len(TERMS))), np.empty(n)
    for i, (run, pick) in enumerate(zip(runs, picks, strict=True)):
        weights = np.array([m.weight for m in run.meanings])
        parts = np.array([m.x for m in run.meanings]) * np.exp(pick @ p)  # (meanings, k)
        logs = np.log(parts.sum(axis=1))
        share = parts / parts.sum(axis=1, keepdims=True)
        errors[i] = weights @ logs
        slopes[i] = (weights[:, None] * share).ravel() @ pick.reshape(-1, len(p))
        shares[i] = weights @ share
        spread[i] = np.sqrt(weights @ (logs - errors[i]) ** 2)
    return _Seen(errors=errors, slopes=slopes, shares=shares, open=spread)


class Errors:
    """The covariance of the runs' errors: by owner, by source, by software, and of each run alone."""

    def __init__(self, runs: Sequence[Run], spreads: Spreads):
        self.runs, self.spreads = runs, spreads
        owner, source = (np.array([getattr(run, of) for run in runs]) for of in ("owner", "source"))
        self.same_owner = (owner[:, None] == owner[None]) / (owner[:, None] == owner[None]).sum(axis=1, keepdims=True)
        self.owner, self.source = owner[:, None] == owner[None], source[:, None] == source[None]
        looseness = np.sqrt([_class_variance(run, spreads) for run in runs])
        self.software = spreads.owner**2 + np.outer(looseness, looseness)
        self.near = np.diag([0.0 if run.encoder else spreads.near**2 for run in runs])
        places: dict[str, list[int]] = defaultdict(list)
        for at, run in enumerate(runs):
            if not run.encoder and (name := run.meanings[0].setting.software.name):
                places[name].append(at)
        for mine in places.values():
            published = [runs[at].published for at in mine]
            self.near[np.ix_(mine, mine)] = spreads.near**2 * correlation(published, published)

    def covariance(self, seen: _Seen) -> np.ndarray:
        """Return the covariance of all runs, shape (n, n). An owner far from all others gets a wider error."""
        owners = self.of_owners(seen)
        known = np.sqrt(np.diag(owners) + self.spreads.near**2)
        beyond = np.abs(self.same_owner @ seen.errors) / known / _USUAL
        further = np.maximum(beyond, 1.0)
        return self.near + owners * np.outer(further, further) + np.diag(self.alone(seen))

    def of_owners(self, seen: _Seen) -> np.ndarray:
        """Return what an owner's runs share: software and, within a source, the machine and what rows leave open."""
        software = self.software + (seen.shares * self.spreads.terms**2) @ seen.shares.T
        machine = self.spreads.machine**2 + np.outer(seen.open, seen.open)
        return self.owner * (software + self.source * machine)

    def alone(self, seen: _Seen) -> np.ndarray:
        """Return the variance of each run's own error."""
        launches = seen.shares[:, [TERMS.index(term) for term in LAUNCHES]].sum(axis=1)
        return self.spreads.row**2 + (self.spreads.launch * launches) ** 2

    def residuals(self, seen: _Seen) -> tuple[PublishedRun, ...]:
        """Return the decoders, each with its residual, its own noise and the deviation shared with its owner's runs."""
        noise, shared = np.sqrt(self.alone(seen)), np.sqrt(np.diag(self.of_owners(seen)))
        return tuple(
            replace(run.published, residual=-float(error), noise=float(own), owner_deviation=float(others))
            for run, error, own, others in zip(self.runs, seen.errors, noise, shared, strict=True)
            if not run.encoder
        )


def _class_variance(run: Run, spreads: Spreads) -> float:
    if run.encoder:
        return ENCODER_SOFTWARE**2
    return sum(m.weight * sum(spreads.classes[name] ** 2 for name in classes(m.setting)) for m in run.meanings)


def matmul_shifts(known: Known) -> dict[str, float]:
    """Return the log of how much further a generation's best measured product is from peak than the average one's."""
    shares: dict[str, list[float]] = {}
    for spec in known.values():
        if spec.mamf_bf16_flops and spec.bf16_flops:
            shares.setdefault(spec.generation, []).append(spec.mamf_bf16_flops / spec.bf16_flops)
    average = np.log(np.mean([np.mean(shares[a]) for a in ("Ampere", "Hopper", "Blackwell")]))
    return {a: float(average - np.log(np.mean(s))) for a, s in sorted(shares.items())}
