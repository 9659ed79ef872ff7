"""Fit the factors on counted bytes to published peaks, and write profiles/published_memory.yaml.

    python benchmarks/fit_memory.py [--rows FILE ...]

log peak = log Σ_k exp(θ_k) bytes_k + u_owner + ε, with bytes of `advisor.prediction.memory_published`. Each owner's
rows are one block of correlated errors, so an owner with 40 rows is one witness of their own habits. If a row leaves
something open, it is a mixture of cases, each weighted by how well it explains the peak.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import adapters
import layouts
import numpy as np
import prior_model
import yaml

from advisor.prediction.layout_memory import STAGES, fullest, kind_of, layout_mixture
from advisor.prediction.layout_memory import counted as counted_parts
from advisor.prediction.layouts import Columns, LayoutRun, columns_of
from advisor.prediction.memory_published import (
    FACTORS,
    PARTS,
    Kind,
    Mixture,
    Parts,
    PublishedMemory,
    StateCase,
    cases,
    parts,
    peak,
    published_mixture,
)
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import software_of
from advisor.prediction.whole_models import workload_of
from advisor.records import Software, Workload
from benchmarks.rows.reader import RowError, RowReader

GIB = 2**30
UNSAID = "unsaid"
# The weighted meanings of memory if its source does not say: people print PyTorch's peak or read a monitor.
KINDS = {UNSAID: (("allocated", 0.4), ("reserved", 0.25), ("device", 0.35))}
# Log standard deviations between people of what a group of tensors holds. They were judged from the first owners, and
# are checked by how often intervals contain the values of left-out owners.
SPREADS = {
    "state": 0.05, "activations": 0.12, "logits": 0.15, "selective": 0.2, "gathered": 0.4, "base": 1.5, "pool": 0.5,
    "context": 0.3, "software": 0.08,
}  # fmt: skip
BELIEF = 0.25  # prior log standard deviation of every factor
ROW = 0.06
# Some runs hold far more than their row says: an fp32 copy, remains of loading, a second model. Judged like the
# spreads.
MORE = {"chance": 0.15, "shift": 0.3, "deviation": 0.25}
MOST_ROWS = 150  # of one owner, about
ROUNDS = 8  # of the fit to all rows; fits without one owner start from it
CASE_DEVIATION = 0.12  # of a log peak around its own case; it decides how well a row tells its cases apart


@dataclass(frozen=True, kw_only=True)
class Peak:
    """One published peak: the possible meanings of its row, each with a weight."""

    owner: str
    source: str
    meanings: tuple[tuple[Workload | LayoutRun, float], ...]
    gib: float
    counted: str  # as in `advisor.prediction.memory_published.peak`, or unsaid
    note: str


def counted_as(notes: str) -> str:
    """Return the meaning of a source's memory: all that the driver sees, or what the allocator used or reserved."""
    low = notes.lower()
    if re.search(r"nvidia-smi|nvml|nvitop|nvtop|device memory|whole device|wandb|system metric", low):
        return "device"
    if "reserved" in re.sub(r"reserved[ :(]*(?:peak )?\d", "", low):  # a figure beside the row's own
        return "reserved"
    return "allocated" if re.search(r"alloc|active|peak_vram", low) else UNSAID


# words that exclude a row from timing but not from memory
_ONLY_TIME = re.compile(r"document mask\w*|[\w-]* ?windows?\w*|sliding|\bswa\b|\b[SL]{3,}\b|unpacked", re.IGNORECASE)


def read_peaks(paths: Sequence[Path]) -> list[Peak]:
    """Return every row that states its memory and can be read, and the peaks of adapters and of layouts."""
    found = [peak_ for path in paths for peak_ in _of_table(path)]
    found += [_of_layout(m) for m in layouts.measured() if m.gib and m.gib > 1 and m.ran and m.sure]
    for row in adapters.rows():
        owner = {"torchtune": "meta-pytorch"}.get(row.source, "lightning-ai")
        counted = "reserved" if row.reserved else "allocated"
        found.append(Peak(owner=owner, source=row.source, meanings=((row.workload, 1.0),), gib=row.peak,
                          counted=counted, note=row.what))  # fmt: skip
    return found


def _of_table(path: Path) -> Iterator[Peak]:
    with path.open(encoding="utf-8", newline="") as file:
        lines = csv.DictReader(file)
        reader = RowReader(prior_model.published_cards(), list(lines.fieldnames or ()))
        for line in lines:
            if not line["mem_gib_per_gpu"] or "SUSPECT" in line["notes"]:
                continue
            reading = reader.read(list((line | {"notes": _ONLY_TIME.sub(" ", line["notes"])}).values()))
            if not isinstance(reading, RowError):
                yield Peak(
                    owner=(line.get("owner") or prior_model.owner_of(line)).lower(),
                    source=line["source"],
                    meanings=tuple(zip(reading.workloads, reading.weights, strict=True)),
                    gib=float(line["mem_gib_per_gpu"]),
                    counted=counted_as(f"{line['notes']} {line.get('memory_kind') or ''}"),
                    note=line["notes"],
                )


def _of_layout(m: layouts.Measured) -> Peak:
    """Return the peak of a run with a layout. One without a stated schedule may have either."""
    schedules = (
        (replace(m.run, afab=float(all_forward)), share)
        for all_forward, share in enumerate((1 - m.run.afab, m.run.afab))
    )
    meanings = tuple((workload_of(run) or run, share) for run, share in schedules if share)
    # Megatron-LM and nanotron print what PyTorch has allocated.
    counted = counted_as(m.notes) if m.source.startswith("public") else "allocated"
    return Peak(owner=m.owner.lower(), source=m.source, meanings=meanings, gib=m.gib or 0.0, counted=counted, note=m.id)


def fit(peaks: Sequence[Peak], start: PublishedMemory | None = None) -> PublishedMemory:
    """Return the factors' MAP by Gauss-Newton, with errors correlated per owner. `start` is a fit to more rows."""
    count = Counter(one.owner for one in peaks)
    peaks = [one for at, one in enumerate(peaks) if at % (1 + count[one.owner] // MOST_ROWS) == 0]
    names = [*FACTORS, *sorted({f"software {n}" for p in peaks for w, _ in p.meanings if (n := _software(w).name)})]
    place = {name: at for at, name in enumerate(names)}
    before = np.array([SPREADS["software"] if name.startswith("software") else BELIEF for name in names])
    theta, owners = np.zeros(len(names)), defaultdict(list)
    if start is not None:
        known = dict(start.factors) | {f"software {name}": pair for name, pair in start.software.items()}
        theta = np.array([known[name][0] for name in names])
    for at, one in enumerate(peaks):
        owners[one.owner].append(at)
    normal = np.diag(before**-2.0)
    for _ in range(ROUNDS if start is None else 3):
        errors, slopes = _errors(peaks, place, theta)
        normal, pull = np.diag(before**-2.0), -theta / before**2
        for places in owners.values():
            slope = slopes[places]
            covariance = ROW**2 * np.eye(len(places)) + SPREADS["state"] ** 2
            for name, at in place.items():
                spread = SPREADS[name.split()[0]]
                covariance = covariance + spread**2 * np.outer(slope[:, at], slope[:, at])
            # heavy tails: an owner far from the others counts less (Student's t with 4 degrees of freedom)
            weights = np.linalg.inv(covariance)
            far = errors[places] @ weights @ errors[places] / len(places)
            weights = weights * (4 + 1) / (4 + far)
            normal += slope.T @ weights @ slope
            pull -= slope.T @ weights @ errors[places]
        theta = theta + np.clip(np.linalg.solve(normal, pull), -0.3, 0.3)
    deviations = np.sqrt(np.diag(np.linalg.inv(normal)))
    pairs = {name: (float(theta[at]), float(deviations[at])) for name, at in place.items()}
    return PublishedMemory(
        factors={name: pairs[name] for name in FACTORS},
        software={n.removeprefix("software "): pair for n, pair in pairs.items() if n.startswith("software ")},
        spreads=SPREADS,
        more=MORE,
        row=ROW,
    )


@cache
def _sizes(w: Workload | LayoutRun) -> WorkloadArrays | Columns:
    return WorkloadArrays.of([w]) if isinstance(w, Workload) else columns_of([w])


@cache
def _parts(w: Workload | LayoutRun, case: StateCase) -> list[Parts]:
    """Return what a case holds before any factor, counted once for all rounds of all fits, by pipeline stage."""
    if isinstance(w, Workload):
        return [parts(_sizes(w), case)]
    return [counted_parts(_sizes(w), _software(w), case, end, afab=w.afab > 0) for end in ("first", "last")]


def _peak(w: Workload | LayoutRun, case: StateCase, counted: str, factor: dict[str, float]) -> dict[str, np.ndarray]:
    """Return the bytes at the peak by part."""
    both = _parts(w, case)
    if isinstance(w, Workload):
        return peak(both[0], _kind(w), counted, factor)
    return fullest(both, _kind(w), counted, factor, STAGES.index(w.stage))


@cache
def _kind(w: Workload | LayoutRun) -> Kind:
    return Kind.of(_sizes(w)) if isinstance(w, Workload) else kind_of(_sizes(w), _software(w))


def _mixture(w: Workload | LayoutRun, counted: str, belief: PublishedMemory) -> Mixture:
    if isinstance(w, Workload):
        return published_mixture(_sizes(w), counted, belief)
    afab, stage = w.afab > 0, STAGES.index(w.stage)
    return layout_mixture(_sizes(w), _software(w), counted, stage, afab=afab, belief=belief)


def _software(w: Workload | LayoutRun) -> Software:
    return (w.software or Software()) if isinstance(w, Workload) else software_of(w.software)


def _errors(peaks: Sequence[Peak], place: dict[str, int], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's log modelled minus log measured, and its slopes in the factors, over its possible meanings."""
    errors, slopes = np.zeros(len(peaks)), np.zeros((len(peaks), len(place)))
    every = {name: float(np.exp(theta[at])) for name, at in place.items()}
    for at, one in enumerate(peaks):
        found, weights = [], []
        for w, chance in one.meanings:
            kind, own = _kind(w), f"software {_software(w).name}"
            for case, (counted, part) in itertools.product(
                cases(_software(w)), KINDS.get(one.counted, ((one.counted, 1.0),))
            ):
                held = _peak(w, case, counted, every | {"software": every.get(own, 1.0)})
                total = sum(float(v[0]) for v in held.values())
                slope = np.zeros(len(place))
                for name, bytes_ in held.items():
                    keys = [f"{name} {kind.loss if name == 'logits' else kind.name}" if name in PARTS else name]
                    if name == "activations":
                        keys += [own, "selective" if np.all(kind.selective) else ""]
                    for key in keys:
                        if key in place:
                            slope[place[key]] += float(bytes_[0]) / total
                error = float(np.log(total / GIB / one.gib))
                found.append((error, slope))
                weights.append(chance * part * case.weight * np.exp(-0.5 * (error / CASE_DEVIATION) ** 2) + 1e-12)
        share = np.array(weights) / sum(weights)
        errors[at] = share @ [error for error, _ in found]
        slopes[at] = share @ np.array([slope for _, slope in found])
    return errors, slopes


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One predicted peak, in GiB."""

    peak: Peak
    value: float
    low: float
    high: float

    @property
    def error(self) -> float:
        return self.value / self.peak.gib - 1

    @property
    def inside(self) -> bool:
        return self.low <= self.peak.gib <= self.high

    @property
    def score(self) -> float:
        """Return the interval score of the logs at 80 % (Gneiting and Raftery 2007): width, plus ten times any miss."""
        low, high, actual = np.log([self.low, self.high, self.peak.gib])
        return float(high - low + 10 * (max(low - actual, 0.0) + max(actual - high, 0.0)))


def predicted(one: Peak, belief: PublishedMemory, cards: dict) -> Answer:
    """Return the prediction for a run that is known to have run on its GPU."""
    mixtures = [
        (_mixture(w, counted, belief), weight * part)
        for w, weight in one.meanings
        for counted, part in KINDS.get(one.counted, ((one.counted, 1.0),))
    ]
    whole = Mixture(
        logs=np.concatenate([m.logs for m, _ in mixtures]),
        deviations=np.concatenate([m.deviations for m, _ in mixtures]),
        weights=np.concatenate([m.weights * weight for m, weight in mixtures]),
    )
    first = one.meanings[0][0]
    memory = cards[first.gpu].memory_bytes if isinstance(first, Workload) else first.gpu.memory_bytes
    found = whole.estimates(ran_in=memory)
    value, low, high = (float(side[0]) / GIB for side in (found.value, found.low, found.high))
    return Answer(peak=one, value=value, low=low, high=high)


def left_out(peaks: Sequence[Peak]) -> list[Answer]:
    """Return each owner's peaks, predicted by a fit to all other owners."""
    cards, answers, every = prior_model.published_cards(), [], fit(peaks)
    for owner in dict.fromkeys(one.owner for one in peaks):
        belief = fit([one for one in peaks if one.owner != owner], every)
        answers += [predicted(one, belief, cards) for one in peaks if one.owner == owner]
    return answers


def summary(answers: Sequence[Answer]) -> dict:
    """Return the errors of predictions for left-out owners, with every owner counted once."""
    count = Counter(a.peak.owner for a in answers)
    weights = np.array([1 / count[a.peak.owner] for a in answers])
    errors = np.abs([a.error for a in answers])
    order = np.argsort(errors)
    along = np.cumsum(weights[order]) / weights.sum()
    at = {share: float(errors[order][np.searchsorted(along, share)]) for share in (0.5, 0.9)}
    widths = np.log([a.high / a.low for a in answers])
    return {
        "rows": len(answers),
        "owners": len(count),
        "median": round(at[0.5], 4),
        "p90": round(at[0.9], 4),
        "inside_80_percent": round(float(np.average([a.inside for a in answers], weights=weights)), 3),
        "interval_score": round(float(np.average([a.score for a in answers], weights=weights)), 3),
        "signed_mean_of_log": round(float(np.average(np.log1p([a.error for a in answers]), weights=weights)), 3),
        "width": round(float(np.exp(np.average(widths, weights=weights))), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=Path, action="append", default=[], help="further tables of published runs")
    peaks = read_peaks([prior_model.RUNS, *parser.parse_args().rows])
    answers = left_out(peaks)
    split = [a for a in answers if isinstance(a.peak.meanings[0][0], LayoutRun)]
    whole = [a for a in answers if a not in split]
    print(summary(whole), summary(split), sep="\n")
    for source in sorted({m.source for m in layouts.measured()} & {a.peak.source for a in answers}):
        for name, some in (("only the batch", whole), ("split", split)):
            if mine := [a for a in some if a.peak.source == source]:
                print(source, name, summary(mine))
    belief = fit(peaks)
    made = {
        "script": "benchmarks/fit_memory.py",
        "left_out": summary(whole),
        "left_out_split": summary(split),
        "factors": {n: [round(v, 4) for v in pair] for n, pair in belief.factors.items()},
        "software": {n: [round(v, 4) for v in pair] for n, pair in belief.software.items()},
        "spreads": dict(belief.spreads),
        "more": dict(belief.more),
        "row": belief.row,
    }
    out = prior_model.ROOT / "profiles" / "published_memory.yaml"
    out.write_text(yaml.safe_dump(made, sort_keys=False, default_flow_style=None, width=140), encoding="utf-8")


if __name__ == "__main__":
    main()
