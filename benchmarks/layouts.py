"""Fit and score the laws of layouts: `python benchmarks/layouts.py score | fit | whole`.

    layouts.py score       each source left out in turn: step time (also with a few measured runs), memory, ran or
                           failed, choice of layout
    layouts.py fit         write profiles/layouts.yaml from all measured runs
    layouts.py whole       named whole runs, in GPU hours: layouts as published, else the search's own

Measured runs: benchmarks/parallel_runs.csv and the rows of profiles/public_runs.csv that state a layout. Every source
counts once, however many rows it has; within a source every model on every number of nodes does.

Sources of parallel_runs.csv (facts only; the rows' ids begin as given):
us- Hugging Face's Ultra-Scale Playbook, scatter plot of the Space nanotron/ultrascale-playbook (rank 0's memory);
vt- github.com/VIA-Research/vTrain, data/ground_truth_single.csv; mb- github.com/NVIDIA-NeMo/Megatron-Bridge,
docs/performance-summary-archive.md; gv- github.com/NVIDIA/Megatron-LM, tests/functional_tests (the last rank's memory);
am- github.com/NVIDIA-NeMo/Automodel, docs/performance-summary.mdx. DP = GPUs / (TP x PP x CP).
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import yaml
from scipy.optimize import least_squares, minimize
from scipy.stats import rankdata

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))
from advisor.architecture import Layout, Model  # noqa: E402
from advisor.laws.intervals import Z80  # noqa: E402
from advisor.planning.layouts import search  # noqa: E402
from advisor.planning.models import require_architecture  # noqa: E402
from advisor.prediction.layout_batch import SURE, predict_layouts  # noqa: E402
from advisor.prediction.layout_own import OwnSpreads, condition  # noqa: E402
from advisor.prediction.layout_runs import whole_run  # noqa: E402
from advisor.prediction.layout_time import COSTS, EXCHANGES, LayoutLaw, load_law, measure_runs, read_time_law  # noqa: E402
from advisor.prediction.layouts import LayoutRun  # noqa: E402
from advisor.prediction.whole_models import layout_run, workload_of  # noqa: E402
from advisor.records import Estimate  # noqa: E402
from advisor.report.prediction import layout_words  # noqa: E402
from benchmarks.prior_model import owner_of  # noqa: E402
from benchmarks.rows.gpu_names import load_published_gpus  # noqa: E402
from benchmarks.rows.layouts import LayoutReading, LayoutRows, measured_seconds  # noqa: E402

GIB = float(1 << 30)
# Priors of the costs before any run: log-normal, as middle and log standard deviation.
BELIEFS = {
    "tensor": (0.8, 0.4),
    "tensor_calls": (2.0, 0.7),
    "pipeline": (0.65, 0.7),
    "pipeline_calls": (100.0, 0.8),
    "context": (0.35, 0.7),
    "expert": (1.2, 0.5),
    "routing": (20.0, 0.7),
    "expert_calls": (6.0, 0.7),
    "small_experts": (0.5, 0.8),
    "narrow": (0.1, 0.8),
}
FEW_BITS = 0.15  # log deviation of the work with 8 bits or fewer
OWNER, OWNER_LINKS, ROW = 0.15, 0.4, 0.1  # log deviations of one owner's machine, of its links, and of a row
OWN = ("setup", "links", "model", "rest")  # see `layout_own`
OWN_BELIEFS = (0.15, 0.4, 0.1, 0.1)
LEAST_MFU = 0.10  # slower rows are layouts that nobody would use
MOST_ROWS = 60  # of one source, in weight
SCORED = ("Ultra-Scale", "vTrain", "Megatron-Bridge", "Megatron-LM golden", "AutoModel")
OWNERS = {
    **dict.fromkeys(("Megatron", "NeMo"), "nvidia"),
    "Ultra-Scale": "huggingface",
    "vTrain": "kaist",
}  # of SCORED, by the first word
UNBALANCED = 1.15  # of a mixture of experts' step, at the upper end; judged, as measured runs force balanced routing
HEADER = (
    "# What cutting a run over many GPUs costs: fitted by `python benchmarks/layouts.py fit`; "
    "format in profiles/README.md.\n"
)


@dataclass(frozen=True)
class Measured:
    """One measured run: the prediction and the measurement."""

    source: str
    id: str
    run: LayoutRun
    seconds: float | None
    gib: float | None
    ran: bool
    sure: bool
    owner: str
    notes: str


def measured() -> list[Measured]:
    """Return every readable row of the two tables. The number of unreadable rows is printed on stderr."""
    cards, found, refused = load_published_gpus(), [], {}
    for path in (REPO / "benchmarks" / "parallel_runs.csv", REPO / "profiles" / "public_runs.csv"):
        public = path.name == "public_runs.csv"
        with path.open(encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file)
            reader = LayoutRows(cards, lines.fieldnames or ())
            for at, row in enumerate(lines, 2):
                reading = reader.read(list(row.values()))
                twice = public and ("ultrascale" in row["source"].lower() or "LoRA" in row["parallelism"])
                if reading is None or twice or not row["seq_len"]:  # an assumed length teaches nothing
                    continue
                if not isinstance(reading, LayoutReading):
                    refused.setdefault(reading.reason, []).append(at)
                    continue
                found.append(_measured(row, reading.run, public, at))
    for reason, rows in refused.items():
        print(f"refused {len(rows)}: {reason} (line {rows[0]})", file=sys.stderr)
    return found


def _measured(row: dict[str, str], run: LayoutRun, public: bool, at: int) -> Measured:
    def of(*names: str) -> float | None:
        return next((float(row[name]) for name in names if row.get(name)), None)

    seconds = measured_seconds(row, run)
    return Measured(
        source=("public " if public else "") + row["source"],
        id=row.get("id") or f"public-{at}",
        run=run,
        seconds=seconds if "not stated" not in row.get("n_gpus", "") and (public or row["n_gpus"]) else None,
        gib=of("memory_gib_per_gpu", "mem_gib_per_gpu"),
        ran=row.get("outcome", "ok") == "ok",
        sure=row.get("confidence", "high") != "low",
        owner=owner_of(row) if public else next(o for start, o in OWNERS.items() if row["source"].startswith(start)),
        notes=row["notes"],
    )


def weights(rows: Sequence[Measured]) -> np.ndarray:
    """Return row weights: a source counts at most as MOST_ROWS, and its groups (model and GPUs) count equally."""
    groups = [(m.source, m.run.model.layers, m.run.model.width, m.run.layout.gpus) for m in rows]
    size = {g: groups.count(g) for g in set(groups)}
    of_source = {s: [g for g in size if g[0] == s] for s in {m.source for m in rows}}
    total = {s: min(sum(size[g] for g in gs), MOST_ROWS) / len(gs) for s, gs in of_source.items()}
    return np.array([total[g[0]] / size[g] for g in groups])


def quantile(values: np.ndarray, share: np.ndarray, at: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(share[order])
    return float(values[order][np.searchsorted(reached, at * reached[-1] - 1e-9)])


@dataclass(frozen=True)
class Seen:
    """Measured steps as the fit sees them."""

    rows: list[Measured]
    one: np.ndarray  # seconds of one GPU's work
    costs: np.ndarray  # (n, len(COSTS)) at coefficient one
    exchange: np.ndarray  # seconds of the data-parallel exchange
    deviation: np.ndarray  # log standard deviation of the work
    logs: np.ndarray  # of measured seconds
    share: np.ndarray
    owner: np.ndarray
    eight: np.ndarray  # products in 8 bits or fewer
    whole: np.ndarray  # (n, 3) log seconds of runs that split only the batch: low, value, high; NaN for the others

    def predicted(self, x: np.ndarray) -> np.ndarray:
        """Return log seconds: by a fit's log costs and eight bits, or for whole models as every command says."""
        split = np.log(self.one * np.exp(x[-1] * self.eight) + self.costs @ np.exp(x[:-1]) + self.exchange)
        return np.where(np.isnan(self.whole[:, 1]), split, self.whole[:, 1])


def seen(rows: Sequence[Measured]) -> Seen:
    rows = timed(rows)
    work = measure_runs([m.run for m in rows])
    return Seen(
        rows=rows,
        one=work.seconds.sum(axis=-1),
        costs=work.costs,
        exchange=work.exchange.value,
        deviation=work.deviation,
        logs=np.log([m.seconds for m in rows]),
        share=weights(rows),
        owner=np.array([m.source for m in rows]),
        eight=work.eight,
        whole=_whole_seconds([m.run for m in rows]),
    )


def _whole_seconds(runs: Sequence[LayoutRun]) -> np.ndarray:
    found = np.full((len(runs), 3), np.nan)
    places = [at for at, run in enumerate(runs) if workload_of(run) is not None]
    for at, p in zip(places, predict_layouts([runs[at] for at in places]), strict=True):
        found[at] = np.log([p.step_seconds.low, p.step_seconds.value, p.step_seconds.high])
    return found


def fit_costs(s: Seen, some: np.ndarray) -> np.ndarray:
    """Return log coefficients of COSTS and of eight bits, from a robust fit with an offset for each owner's machine and
    one for its links."""
    names, at = np.unique(s.owner[some], return_inverse=True)
    mean = np.array([*np.log([BELIEFS[c][0] for c in COSTS]), 0.0])
    deviation = np.array([*(BELIEFS[c][1] for c in COSTS), FEW_BITS])
    links = np.array([c in EXCHANGES for c in COSTS])
    k, o = len(COSTS), len(names)
    one, costs, exchange, logs, share, eight = (
        part[some] for part in (s.one, s.costs, s.exchange, s.logs, s.share, s.eight)
    )

    def residuals(x: np.ndarray) -> np.ndarray:
        machine, link = x[k + 1 : k + 1 + o], x[k + 1 + o :]
        scaled = (costs * np.exp(x[:k] + links * link[at][:, None])).sum(axis=1) + exchange * np.exp(link[at])
        off = (logs - np.log(one * np.exp(machine[at] + x[k] * eight) + scaled)) / ROW
        off = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off * off) - 1))
        return np.concatenate(
            [off * np.sqrt(share), (x[: k + 1] - mean) / deviation, machine / OWNER, link / OWNER_LINKS]
        )

    start = np.concatenate([mean, np.zeros(2 * o)])
    return least_squares(residuals, start, x_scale="jac", max_nfev=60).x[: k + 1]


def timed(rows: Sequence[Measured]) -> list[Measured]:
    return [m for m in rows if m.ran and m.sure and m.seconds and m.run.mfu / m.seconds >= LEAST_MFU]


def kept_out(source: str, rows: Sequence[Measured]) -> np.ndarray:
    """Return which rows are from other owners, because one owner may publish two tables."""
    same = "Megatron-Bridge" if "Megatron-Bridge" in source else source
    return np.array([same not in m.source for m in rows])


def score_time(rows: Sequence[Measured]) -> tuple[np.ndarray, np.ndarray, Seen]:
    """Return each row's log error by the law of the other owners, and the share of exchanges in its predicted step."""
    s = seen(rows)
    off, links = np.full(len(s.rows), np.nan), np.full(len(s.rows), np.nan)
    exchanging = np.array([c in EXCHANGES for c in COSTS])
    print("| step time, source left out | rows | median | p90 | signed |\n|---|---|---|---|---|")
    for source in sorted(set(s.owner)):
        mine = s.owner == source
        x = fit_costs(s, kept_out(source, s.rows))
        predicted = s.predicted(x)[mine]
        off[mine] = predicted - s.logs[mine]
        links[mine] = (s.costs[mine] @ (np.exp(x[:-1]) * exchanging) + s.exchange[mine]) / np.exp(predicted)
        _line(source, off[mine], s.share[mine])
    scored = np.array([o.startswith(SCORED) for o in s.owner])
    experts = np.array([m.run.model.experts is not None for m in s.rows])
    for name, some in (
        ("the five of parallel_runs.csv, each once", scored),
        ("all, each once", np.ones(len(off), bool)),
        ("mixtures of experts, each source once", experts),
    ):
        _line(name, off[some], each_once(s, some))
    return off, links, s


def fit_own(off: np.ndarray, links: np.ndarray, s: Seen, some: np.ndarray) -> OwnSpreads:
    """Return the spreads of set-ups, links, models and rows with which the errors on left-out sources are likeliest.

    Every source counts as at most MOST_ROWS rows; of a source with more, every n-th row is used.
    """
    widths, groups = np.array([m.run.model.width for m in s.rows]), []
    for source in set(s.owner[some]):
        mine = np.flatnonzero(some & (s.owner == source))
        mine = mine[:: -(-len(mine) // (2 * MOST_ROWS))]
        groups.append((off[mine], np.outer(links[mine], links[mine]), widths[mine, None] == widths[None, mine]))

    def loss(x: np.ndarray) -> float:
        setup, link, model, rest = np.exp(2 * x)
        total = float(((x - np.log(OWN_BELIEFS)) ** 2).sum() / 2)
        for error, both, same in groups:
            root = np.linalg.cholesky(setup + link * both + model * same + rest * np.eye(len(error)))
            z = np.linalg.solve(root, error)
            total += (z @ z / 2 + np.log(np.diag(root)).sum()) * min(1.0, MOST_ROWS / len(error))
        return total

    found = np.exp(minimize(loss, np.log(OWN_BELIEFS), method="Nelder-Mead", options={"xatol": 0.01, "fatol": 0.01}).x)
    return OwnSpreads(**{name: round(float(value), 3) for name, value in zip(OWN, found, strict=True)})


def score_own(off: np.ndarray, links: np.ndarray, s: Seen, measured_runs: int = 3) -> None:
    """Print errors on runs with at least twice the GPUs, after the fastest runs on the fewest GPUs were measured.

    The model is the same, and the source had no part in the law or in the spreads.
    """
    print(
        f"| larger runs after {measured_runs} measured runs of the model | runs | median before, after | p90 | inside |"
    )
    print("|---|---|---|---|---|")
    every: list[tuple[np.ndarray, ...]] = []
    for source in sorted(set(s.owner)):
        spreads, found = fit_own(off, links, s, kept_out(source, s.rows)), []
        mine = [i for i in range(len(s.rows)) if s.owner[i] == source]
        for model, gpu in {(s.rows[i].run.model.width, s.rows[i].run.gpu.key) for i in mine}:
            of = [i for i in mine if (s.rows[i].run.model.width, s.rows[i].run.gpu.key) == (model, gpu)]
            gpus = np.array([s.rows[i].run.layout.gpus for i in of])
            least = np.array(of)[gpus == gpus.min()]
            later = np.array(of)[gpus >= 2 * gpus.min()]
            if not len(later):
                continue
            speed = np.array([s.rows[i].run.mfu / s.rows[i].seconds for i in least])
            given = least[np.argsort(-speed)[:measured_runs]]
            own = condition(-off[given], links[given], np.full(len(given), model), model, spreads)
            left = off[later] + own.log_factor(links[later])
            found.append((off[later], left, np.abs(left) < Z80 * own.deviation(links[later]), s.share[later]))
        if found:
            before, after, held, share = (np.concatenate(part) for part in zip(*found, strict=True))
            every.append((before, after, held, share / share.sum()))
            _own_line(source, before, after, held, share)
    _own_line("each source once", *(np.concatenate(part) for part in zip(*every, strict=True)))


def _own_line(name: str, before: np.ndarray, after: np.ndarray, held: np.ndarray, share: np.ndarray) -> None:
    median, tail = ([quantile(np.abs(np.expm1(e)), share, at) for e in (before, after)] for at in (0.5, 0.9))
    print(
        f"| {name} | {len(before)} | {median[0]:.1%}, {median[1]:.1%} | {tail[0]:.1%}, {tail[1]:.1%} | "
        f"{(held * share).sum() / share.sum():.0%} |"
    )


def each_once(s: Seen, some: np.ndarray) -> np.ndarray:
    """Return weights of some rows with which each source counts equally."""
    share, owner = s.share[some], s.owner[some]
    return share / np.array([share[owner == o].sum() for o in owner])


def fit_deviation(off: np.ndarray, s: Seen) -> float:
    """Return the log standard deviation that splitting adds, so that 80 % of left-out rows lie in their intervals."""
    split, low, high = np.isnan(s.whole[:, 1]), 0.0, 1.0
    share = each_once(s, split)
    for _ in range(20):
        middle = (low + high) / 2
        held = np.abs(off[split]) < Z80 * np.hypot(s.deviation[split], middle)
        low, high = (low, middle) if (held * share).sum() > 0.8 * share.sum() else (middle, high)
    return high


def inside(off: np.ndarray, s: Seen, law: LayoutLaw) -> None:
    """Print the share of left-out rows that lie in the interval, and the interval score."""
    experts = np.array([m.run.model.experts is not None for m in s.rows])
    low = Z80 * np.hypot(s.deviation, law.deviation)
    high = low + np.where(experts, math.log(law.unbalanced), 0.0)
    split = np.isnan(s.whole[:, 1])
    low, high = (np.where(split, side, np.abs(s.whole[:, at] - s.whole[:, 1])) for side, at in ((low, 0), (high, 2)))
    held = (off < low) & (off > -high)
    score = low + high + 10 * (np.maximum(off - low, 0) + np.maximum(-high - off, 0))
    for name, some in (
        ("the five", np.array([o.startswith(SCORED) for o in s.owner])),
        ("all", np.ones(len(off), bool)),
        ("mixtures", experts),
    ):
        share = each_once(s, some)
        print(
            f"inside the 80 % interval, {name}, each source once: {(held[some] * share).sum() / share.sum():.0%}; "
            f"interval score {(score[some] * share).sum() / share.sum():.2f}"
        )


def score_regret(rows: Sequence[Measured], x: np.ndarray, law: str) -> None:
    """Print the time of the law's chosen layout over the best measured one of the same model and GPUs (Ultra-Scale).

    Chosen is the fastest of all layouts that ran, and as a plan does, of those alone that surely fit.
    """
    groups: dict[tuple, list[Measured]] = {}
    for m in timed(rows):
        if m.source.startswith("Ultra-Scale"):
            groups.setdefault((m.run.model, m.run.layout.gpus), []).append(m)
    lost = []
    for (model, gpus), mine in groups.items():
        guess, took = seen(mine).predicted(x), np.array([m.seconds for m in mine])
        chance = np.array([p.fit_probability for p in predict_layouts([replace(m.run, stage="most") for m in mine])])
        sure = guess + np.where(chance >= SURE, 0.0, 100.0)
        lost.append([took[int(np.argmin(by))] / took.min() - 1 for by in (guess, sure)])
        random = np.median(took) / took.min() - 1
        words = f"{lost[-1][0]:.1%}, of those that surely fit {lost[-1][1]:.1%}"
        print(f"   width {model.width} on {gpus}: {words}, of {len(mine)} layouts (random {random:.0%})")
    for name, of in zip(("of all that ran", "of those that surely fit"), zip(*lost, strict=True), strict=True):
        print(f"regret, {law}, {name}: median {np.median(of):.1%}, worst {max(of):.1%}")


def _line(name: str, off: np.ndarray, share: np.ndarray) -> None:
    error = np.abs(np.expm1(off))
    middle, tail = quantile(error, share, 0.5), quantile(error, share, 0.9)
    print(f"| {name} | {len(off)} | {middle:.1%} | {tail:.1%} | {math.expm1(quantile(off, share, 0.5)):+.1%} |")


@dataclass(frozen=True)
class Whole:
    """One named whole run of benchmarks/whole_layouts.csv, and its GPU hours by the law without its `whole`."""

    name: str
    owner: str
    run: LayoutRun
    predicted: Estimate
    hours: float  # GPU hours taken


def whole_runs(law: LayoutLaw) -> list[Whole]:
    """Return the named whole runs, with published layouts or else the search's own."""
    cards, found = load_published_gpus(), []
    bare = replace(law, whole=0.0, whole_deviation=0.0)
    with (REPO / "benchmarks" / "whole_layouts.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            sizes = [int(size) for size in row["model"].split("x")] if row["model"][0].isdigit() else None
            gpus, sequences = int(row["gpus"]), int(row["sequences"])
            run = LayoutRun(
                model=_gpt(*sizes) if sizes else require_architecture(row["model"]).model,
                layout=Layout(),
                gpu=cards[row["gpu"]],
                seq_len=int(row["seq_len"]),
                micro_batch=1,
                micro_batches=1,
                precision=row["precision"],
                software=row["software"],
                fused_attention=row["fused_attention"] == "yes",
                hidden_experts=row["hidden_experts"] == "yes",
            )
            if row["tensor"]:
                degrees = {name: int(row[name]) for name in ("tensor", "pipeline", "virtual", "data", "expert")}
                micro = int(row["micro_batch"])
                run = replace(
                    run,
                    layout=Layout(**degrees, sequence=degrees["tensor"] > 1, sharding=row["sharding"]),
                    micro_batch=micro,
                    micro_batches=max(1, sequences // (degrees["data"] * micro)),
                    recompute=row["recompute"],
                )
            else:
                best = search(run, gpus, sequences).best
                assert best is not None
                run = layout_run(best.workload, run.gpu)
            step, steps = predict_layouts([run])[0].step_seconds, float(row["tokens"]) / run.step_tokens
            hours = whole_run(step, steps, gpus, run.model.parameters, bare)[0].total_seconds.scaled(gpus / 3600)
            found.append(Whole(row["run"], row["owner"], run, hours, float(row["gpu_hours"])))
    return found


def fit_whole(runs: Sequence[Whole], without: str | None = None) -> tuple[float, float]:
    """Return the log of how much longer whole runs take than predicted (the median of the owners' medians), and its log
    standard deviation (80 % of the runs, each owner once). `without` is a left-out owner.

    GPT-3 is left out, because NVIDIA computed its hours from a measured step and it is not a whole run.
    """
    runs = [w for w in runs if w.owner not in (without, "NVIDIA")]
    off = {owner: [math.log(w.hours / w.predicted.value) for w in runs if w.owner == owner]
           for owner in sorted({w.owner for w in runs})}  # fmt: skip
    middle = float(np.median([np.median(mine) for mine in off.values()]))
    share = np.array([1 / len(mine) for mine in off.values() for _ in mine])
    spread = quantile(np.abs(np.concatenate(list(off.values())) - middle), share, 0.8) / Z80
    return round(middle, 3), round(spread, 3)


def whole() -> None:
    """Print the hours of named whole runs by the law of all sources, with the extra time of the other owners' runs."""
    law, off, held = load_law(), [], []
    print("| run | layout | GPU hours: predicted (80 % interval) | taken | error | inside |\n|---|---|---|---|---|---|")
    runs = whole_runs(law)
    for w in runs:
        beyond, deviation = fit_whole(runs, w.owner)
        of_step = math.log(w.predicted.high / w.predicted.low) / (2 * Z80)
        unsure = math.exp(Z80 * max(0.0, deviation - of_step))
        hours = w.predicted.scaled(math.exp(beyond))
        hours = replace(hours, low=hours.low / unsure, high=hours.high * unsure)
        off.append(hours.value / w.hours - 1)
        held.append(hours.contains(w.hours))
        print(
            f"| {w.name} | {layout_words(w.run.layout)} | {hours.value:,.0f} ({hours.low:,.0f}-{hours.high:,.0f}) "
            f"| {w.hours:,.0f} | {off[-1]:+.0%} | {'yes' if held[-1] else 'no'} |"
        )
    print(f"\nwithin 35 %: {sum(abs(e) <= 0.35 for e in off)} of {len(off)}; inside: {sum(held)} of {len(held)}")


def _gpt(layers: int, width: int, heads: int, ffn_width: int, vocab: int) -> Model:
    return Model(
        layers=layers, width=width, heads=heads, kv_heads=heads, head_dim=width // heads, ffn_width=ffn_width,
        gated=False, vocab_size=vocab, tied=True,
    )  # fmt: skip


def _named(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return {name: round(float(value), 4) for name, value in zip(names, values, strict=True)}


def score_memory(rows: Sequence[Measured]) -> None:
    """Print the errors of the peaks that `predict_layouts` gives. `fit_memory.py` scores owners that are left out."""
    rows = [m for m in rows if m.gib and m.gib > 1 and m.ran and m.sure]
    found = [p.peak_allocated_bytes for p in predict_layouts([m.run for m in rows])]
    off = np.array([math.log(peak.value / GIB / (m.gib or 0)) for peak, m in zip(found, rows, strict=True)])
    held = np.array([peak.contains(GIB * (m.gib or 0)) for peak, m in zip(found, rows, strict=True)])
    kinds = np.array([f"{m.source}, {'split' if workload_of(m.run) is None else 'only the batch'}" for m in rows])
    print("| peak memory as shipped | rows | median | p90 | signed |\n|---|---|---|---|---|")
    for kind in sorted(set(kinds)):
        mine = kinds == kind
        _line(f"{kind} (inside {held[mine].mean():.0%})", off[mine], np.ones(mine.sum()))


def score_failures(rows: Sequence[Measured]) -> None:
    """Print how well the probability of fitting separates layouts that ran from those that failed (Ultra-Scale)."""
    rows = [m for m in rows if m.source.startswith("Ultra-Scale")]
    found = predict_layouts([replace(m.run, stage="most") for m in rows])
    ran, chance = np.array([m.ran for m in rows]), np.array([p.fit_probability for p in found])
    room = [m.run.gpu.memory_bytes for m in rows]
    small = np.array([p.peak_allocated_bytes.value < 0.7 * memory for p, memory in zip(found, room, strict=True)])
    rank = rankdata(chance)
    area = (rank[ran].sum() - ran.sum() * (ran.sum() + 1) / 2) / (ran.sum() * (~ran).sum())
    print(
        f"ran against failed: area {area:.3f} ({ran.sum()} ran, {(~ran).sum()} failed for reasons not stated, "
        f"{(~ran & small).sum()} of them below 70 % of the memory)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("score", "fit", "whole"))
    asked = parser.parse_args()
    if asked.what == "whole":
        whole()
        return
    rows = measured()
    off, links, s = score_time(rows)
    score_own(off, links, s)
    every = fit_costs(s, np.ones(len(s.rows), bool))
    score_memory(rows)
    document = {
        "time": {
            "costs": _named(COSTS, np.exp(every[:-1])),
            "eight_bits": round(float(every[-1]), 4),
            "deviation": math.ceil(1000 * fit_deviation(off, s)) / 1000,
            "whole": 0.0,
            "whole_deviation": 0.0,
            "unbalanced": UNBALANCED,
        },
        "own": asdict(fit_own(off, links, s, np.ones(len(off), bool))),
    }
    if asked.what == "fit":
        law = read_time_law(document["time"])
        document["time"]["whole"], document["time"]["whole_deviation"] = fit_whole(whole_runs(law))
        text = yaml.safe_dump(document, sort_keys=False)
        (REPO / "profiles" / "layouts.yaml").write_text(HEADER + text, encoding="utf-8")
    print(f"deviation {document['time']['deviation']}")
    inside(off, s, read_time_law(document["time"]))
    score_failures(rows)
    others = fit_costs(s, kept_out("Ultra-Scale Playbook (banner)", s.rows))
    score_regret(rows, others, "its source left out")
    score_regret(rows, every, "law of all sources")


if __name__ == "__main__":
    main()
