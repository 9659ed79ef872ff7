"""The hierarchical model of published runs that the prior is fitted with: rows in, beliefs and left-out errors out.

    log step = log Σ_k exp(θ_k) x_k + u_source + ε,   θ = μ + δ_generation + compiled · c - headroom · β (+ w)

x_k are the terms of advisor.predict.throughput at datasheet rates; μ, δ, c, β and u have Gaussian priors, so that what
the rows do not say stays wide. headroom is the log of the watts a card may draw per peak TFLOP/s: with few it
throttles. u is what a source's software and machines do to all its rows; a new run brings its own, which is why its
spread goes into the discrepancy. Runs of encoders say how cards compare where no decoder was published: w, one for each
term, is what encoders and their software do otherwise. They are fitted, never predicted. Sources and GPUs enter as
groups to be left out, never by name.
"""

from __future__ import annotations

import csv
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from advisor.hardware.catalog import GpuSpec  # noqa: E402
from advisor.laws.intervals import Z80  # noqa: E402
from advisor.predict import comm  # noqa: E402
from advisor.predict.prior import (  # noqa: E402
    FASTEST,
    SOFTWARE_DEVIATION,
    THROTTLED,
    bounded,
    datasheet_rates,
    power_headroom,
)
from advisor.predict.rows import RowError, RowReader  # noqa: E402
from advisor.predict.throughput import TERMS, sizes, terms  # noqa: E402
from advisor.records import Workload  # noqa: E402

ENCODERS = ROOT / "profiles" / "public_encoder_runs.csv"
KEPT_COLUMNS = (
    *("source", "repo_or_url", "gpu", "gpu_mem_gib", "n_gpus", "params", "layers", "dim", "heads", "ffn_mult", "vocab"),
    *("seq_len", "micro_batch", "grad_accum", "global_batch_tokens", "precision", "compile", "flash_attn", "act_ckpt"),
    *("parallelism", "optimizer", "tok_per_s_total", "tok_per_s_per_gpu", "mem_gib_per_gpu", "notes"),
)
# Before any row: eager PyTorch against datasheet rates. Products reach the measured 73-87 % of peak (catalog, MAMF)
# less their smaller shapes; attention 40 %; activations pass memory some 60 times per layer, forward and backward;
# launches at 5 µs; the rest as in advisor.predict.prior.measured_prior.
# (coefficient, sd of its log, sd of a generation's deviation)
BELIEFS = {
    "matmul": (1.35, 0.25, 0.20),
    "attention": (2.5, 0.4, 0.25),
    "traffic": (60.0, 0.8, 0.25),
    "logits": (6.0, 0.7, 0.25),
    "weights": (5.0, 0.7, 0.20),
    "layer_overhead": (80.0, 0.8, 0.20),
    "micro_overhead": (150.0, 0.8, 0.20),
    "optimizer": (1.5, 0.4, 0.20),
    "step_overhead": (600.0, 0.8, 0.20),
}
# What fusing operations does to the log coefficients: fewer passes over activations, fewer launches (mean, sd).
COMPILED = {"traffic": (-0.8, 0.4), "logits": (-0.4, 0.4), "layer_overhead": (-1.0, 0.5), "micro_overhead": (-0.7, 0.5)}
# What products and attention lose per log of watts per peak TFLOP/s (mean, sd): 0.24 from the best measured products
# of the A100 as PCIe and SXM card (0.81 and 0.87 of peak at 0.96 and 1.28 W per TFLOP/s).
HEADROOM = (0.2, 0.1)


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The rows used, as arrays of equal length n."""

    workloads: tuple[Workload, ...]
    log_step: np.ndarray  # (n,) seconds, without the communication that comm.py says is exposed
    x: np.ndarray  # (n, k) terms at coefficient one, seconds
    compiled: np.ndarray  # (n,) 0 or 1
    headroom: np.ndarray  # (n,) log of watts per TFLOP/s
    sources: np.ndarray
    gpus: np.ndarray
    generations: np.ndarray
    encoder: np.ndarray  # bool
    lines: tuple[dict[str, str], ...]

    @property
    def decoders(self) -> np.ndarray:
        """Places of the rows that predictions are judged by."""
        return np.flatnonzero(~self.encoder)


def read_runs(path: Path, known: dict[str, GpuSpec], encoders: Path = ENCODERS) -> Runs:
    """Keep the rows that the model describes: dense decoders, bf16 or fp16, data parallel or sharded, not suspect.

    `encoders` holds rows of the same columns, of encoders.
    """
    kept = [(w, line, False) for w, line in _workloads(path, known)]
    kept += [(w, line, True) for w, line in _workloads(encoders, known, notes="")]
    workloads = tuple(w for w, _, _ in kept)
    steps = [w.step_tokens / w.gpus / float(line["tok_per_s_per_gpu"]) for w, line, _ in kept]
    return Runs(
        workloads=workloads,
        log_step=np.log([step - hidden_not(w, known[w.gpu], step) for w, step in zip(workloads, steps, strict=True)]),
        x=np.array([term_row(w, known[w.gpu], encoder=encoder) for w, _, encoder in kept]),
        compiled=np.array([float(w.compile) for w in workloads]),
        headroom=np.array([power_headroom(known[w.gpu], w.precision) for w in workloads]),
        sources=np.array([line["source"] for _, line, _ in kept]),
        gpus=np.array([w.gpu for w in workloads]),
        generations=np.array([known[w.gpu].generation for w in workloads]),
        encoder=np.array([encoder for _, _, encoder in kept]),
        lines=tuple(line for _, line, _ in kept),
    )


def _workloads(
    path: Path, known: dict[str, GpuSpec], notes: str | None = None
) -> Iterator[tuple[Workload, dict[str, str]]]:
    """Rows with a throughput that can be read, each with its line; `notes` stands in for the lines' own."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        reader = RowReader(known, lines.fieldnames)
        for number, line in enumerate(lines, start=1):
            said = line if notes is None else line | {"notes": notes}
            workload = reader.read(list(said.values()), number)
            if isinstance(workload, RowError) or workload.precision == "fp32" or "SUSPECT" in line["notes"]:
                continue
            if line["tok_per_s_per_gpu"]:
                yield workload, line


def term_row(w: Workload, spec: GpuSpec, *, encoder: bool = False) -> np.ndarray:
    """Terms of one workload, shape (k,), as a prediction would have them; an encoder has no head over a vocabulary."""
    z = sizes([w])
    if encoder:
        z = dataclasses.replace(z, head_matmul=0.0 * z.head_matmul, vocab=0.0 * z.vocab)
    return terms(z, datasheet_rates(spec, w.precision))[0]


def hidden_not(w: Workload, spec: GpuSpec, step_seconds: float) -> float:
    """Seconds of exposed communication in a measured step, backward taken as two thirds of a micro-step."""
    exposed = comm.exposed_seconds(w, spec, 2 / 3 * step_seconds / w.grad_accum)
    return min(exposed.value, 0.4 * step_seconds) if exposed else 0.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """Which unknowns there are: μ, then δ per generation, c, β, w, u per source; all Gaussian around `start`."""

    generations: tuple[str, ...]
    sources: tuple[str, ...]
    start: np.ndarray  # (p,) prior means
    deviations: np.ndarray  # (p,) prior standard deviations


def make_model(generations: Sequence[str], sources: Sequence[str], shifts: dict[str, float], source_sd: float) -> Model:
    """Lay out the unknowns and what is believed of them before any row."""
    k, matmul = len(TERMS), TERMS.index("matmul")
    mean = np.log([BELIEFS[t][0] for t in TERMS])
    wide, between = (np.array([BELIEFS[t][i] for t in TERMS]) for i in (1, 2))
    deltas = np.zeros((len(generations), k))
    deltas[:, matmul] = [shifts.get(name, 0.0) for name in generations]
    fused = np.array(list(COMPILED.values()))
    return Model(
        generations=tuple(generations),
        sources=tuple(sources),
        start=np.concatenate([mean, deltas.ravel(), fused[:, 0], [HEADROOM[0]], np.zeros(k + len(sources))]),
        deviations=np.concatenate(
            [
                wide,
                np.tile(between, len(generations)),
                fused[:, 1],
                [HEADROOM[1]],
                np.full(k, SOFTWARE_DEVIATION),
                np.full(len(sources), source_sd),
            ]
        ),  # fmt: skip
    )


def selector(model: Model, generation: str, compiled: float, headroom: float, *, encoder: bool = False) -> np.ndarray:
    """The (k, p) matrix that makes θ of one device, compile setting and kind of model from the unknowns."""
    k = len(TERMS)
    made = np.zeros((k, len(model.start)))
    made[:, :k] = np.eye(k)
    if generation in model.generations:
        at = k * (1 + model.generations.index(generation))
        made[:, at : at + k] = np.eye(k)
    at = k * (1 + len(model.generations))
    for i, name in enumerate(COMPILED):
        made[TERMS.index(name), at + i] = compiled
    for name in THROTTLED:
        made[TERMS.index(name), headroom_place(model)] = -headroom
    if encoder:
        at = headroom_place(model) + 1
        made[:, at : at + k] = np.eye(k)
    return made


def headroom_place(model: Model) -> int:
    """Where β stands among the unknowns."""
    return len(TERMS) * (1 + len(model.generations)) + len(COMPILED)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    model: Model
    mode: np.ndarray  # (p,)
    covariance: np.ndarray  # (p, p), Laplace


def fit(runs: Runs, index: np.ndarray, shifts: dict[str, float], source_sd: float, row_sd: float) -> Fitted:
    """MAP and Laplace covariance of the hierarchical model on the rows of `index`."""
    sources = sorted(set(runs.sources[index]))
    model = make_model(sorted({str(name) for name in runs.generations[index]}), sources, shifts, source_sd)
    x, y, n = runs.x[index], runs.log_step[index], len(index)
    places = zip(runs.generations[index], runs.compiled[index], runs.headroom[index], runs.encoder[index], strict=True)
    pick = np.array([selector(model, name, on, headroom, encoder=e) for name, on, headroom, e in places])
    source_at = len(model.start) - len(sources) + np.array([sources.index(s) for s in runs.sources[index]])
    products = np.unique(pick[~runs.encoder[index], TERMS.index("matmul")], axis=0)  # one per card

    def residual(p: np.ndarray) -> np.ndarray:
        modelled = np.log((x * np.exp(pick @ p)).sum(axis=1)) + p[source_at]
        excess = np.minimum(products @ p + FASTEST[0], 0.0) / FASTEST[1]
        return np.concatenate([(y - modelled) / row_sd, (p - model.start) / model.deviations, excess])

    def jacobian(p: np.ndarray) -> np.ndarray:
        parts = x * np.exp(pick @ p)
        slope = np.einsum("nk,nkp->np", parts / parts.sum(axis=1, keepdims=True), pick)
        slope[np.arange(n), source_at] += 1
        bound = (products @ p + FASTEST[0] < 0)[:, None] * products / FASTEST[1]
        return np.vstack([-slope / row_sd, np.diag(1 / model.deviations), bound])

    solution = least_squares(residual, model.start, jac=jacobian)
    return Fitted(model=model, mode=solution.x, covariance=np.linalg.inv(solution.jac.T @ solution.jac))


def belief(
    fitted: Fitted, generation: str, compiled: float, headroom: float, shifts: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean (k,) and covariance (k, k) of θ; a generation without rows gets what all share, its own spread added."""
    pick = selector(fitted.model, generation, compiled, headroom)
    mean, covariance = pick @ fitted.mode, pick @ fitted.covariance @ pick.T
    if generation not in fitted.model.generations:
        mean[TERMS.index("matmul")] += shifts.get(generation, 0.0)
        covariance = covariance + np.diag([BELIEFS[t][2] ** 2 for t in TERMS])
        if headroom > 0:  # as load_prior does beyond the headroom of its "unmeasured" entry
            mean, covariance = bounded(mean, covariance)
    return mean, (covariance + covariance.T) / 2


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Predictions of left-out rows."""

    groups: np.ndarray
    errors: np.ndarray  # (n,) log predicted minus log actual step seconds
    deviations: np.ndarray  # (n,) of the coefficients alone

    def coverage(self, discrepancy: float) -> float:
        """Share of rows inside their 80 % interval."""
        return float(np.mean(np.abs(self.errors) <= Z80 * np.hypot(self.deviations, discrepancy)))

    def density(self, discrepancy: float) -> float:
        """Mean log predictive density of a left-out row."""
        sd = np.hypot(self.deviations, discrepancy)
        return float(np.mean(-0.5 * (self.errors / sd) ** 2 - np.log(sd)))


def leave_out(
    runs: Runs, groups: np.ndarray, shifts: dict[str, float], source_sd: float, row_sd: float, *, known: bool = False
) -> HeldOut:
    """Predict each group's rows from a fit to all others.

    `known`: with what the fit learnt of each row's source from its other rows, as a calibration on another card would
    have it; rows of sources without any are left out. Encoders of the group are left out too, and never predicted.
    """
    errors, deviations = np.full(len(groups), np.nan), np.zeros(len(groups))
    for group in sorted(set(groups[runs.decoders])):
        fitted = fit(runs, np.flatnonzero(groups != group), shifts, source_sd, row_sd)
        for i in np.flatnonzero((groups == group) & ~runs.encoder):
            if known and runs.sources[i] not in fitted.model.sources:
                continue
            mean, covariance = belief(fitted, runs.generations[i], runs.compiled[i], runs.headroom[i], shifts)
            parts = runs.x[i] * np.exp(mean)
            share = parts / parts.sum()
            errors[i] = np.log(parts.sum()) - runs.log_step[i]
            if known:
                sources = fitted.model.sources
                errors[i] += fitted.mode[len(fitted.mode) - len(sources) + sources.index(runs.sources[i])]
            deviations[i] = np.sqrt(share @ covariance @ share)
    used = np.isfinite(errors)
    return HeldOut(groups=groups[used], errors=errors[used], deviations=deviations[used])


def matmul_shifts(known: dict[str, GpuSpec]) -> dict[str, float]:
    """Log of how much further from peak a generation's best measured product stays than the average one's."""
    shares: dict[str, list[float]] = {}
    for spec in known.values():
        if spec.mamf_bf16_flops and spec.bf16_flops:
            shares.setdefault(spec.generation, []).append(spec.mamf_bf16_flops / spec.bf16_flops)
    average = np.log(np.mean([np.mean(shares[a]) for a in ("Ampere", "Hopper", "Blackwell")]))
    return {a: float(average - np.log(np.mean(s))) for a, s in sorted(shares.items())}
