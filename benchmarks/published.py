"""The part of docs/accuracy.md about published runs: predictions of cards and software that were left out of the fit.

Called by accuracy.py. Everything is computed anew from profiles/public_runs.csv; nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import peers
import prior_model
import yaml

from advisor.calibrate.fit import fit
from advisor.hardware.catalog import GpuSpec, load_published_gpus
from advisor.laws.intervals import Z80
from advisor.predict.memory import load_memory_model
from advisor.predict.prior import (
    SOFTWARE_DEVIATION,
    CoefficientPrior,
    datasheet_rates,
    measured_prior,
    relative_to_datasheet,
)
from advisor.predict.throughput import Observation, Rates, predict_log, sizes
from advisor.records import Estimate, Workload

CALIBRATION_ROWS = 5
DRAWS = 40  # random choices of those rows
FEWEST_ROWS = 8  # of one source on one GPU, so that some are left to predict
ROW_NOISE = 0.02  # of one published throughput: identical nodes differ by 3 %, medians of many steps by less
USUAL_CEILING, USUAL_BANDWIDTH = 0.82, 0.88  # of the data sheet, where nobody published a card's best product
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: errors of tokens per second or bytes, and whether intervals held (None: no intervals)."""

    name: str
    errors: np.ndarray  # |predicted / measured - 1|
    inside: np.ndarray | None = None

    def text(self) -> str:
        if not len(self.errors):
            return f"| {self.name} | 0 | - | - |"
        held = f"{self.inside.mean():.0%}" if self.inside is not None else "none given"
        median, p90 = np.median(self.errors), np.quantile(self.errors, 0.9)
        return f"| {self.name} | {len(self.errors)} | {median:.1%} / {p90:.1%} | {held} |"


def section() -> str:
    """The section in Markdown."""
    known = load_published_gpus()
    runs = prior_model.read_runs(prior_model.ROOT / "profiles" / "public_runs.csv", known)
    rows = [(runs.workloads[i], known[runs.workloads[i].gpu]) for i in runs.decoders]
    speed = [*held_out_speed(runs, known), *calibrated(runs, known), *peers_speed(runs, rows)]
    head = ["| predictor | rows | median / p90 | inside 80 % intervals |", "|---|---|---|---|"]
    return "\n".join(
        [
            _HEAD,
            "### Tokens per second (asked: uncalibrated 10 % / 28 %, with 5 rows 3.5 % / 11 %, coverage 72-88 %)\n",
            *head,
            *(line if isinstance(line, str) else line.text() for line in speed),
            "\n### Memory per GPU, uncalibrated (asked: 8 % / 25 %, coverage 72-88 %)\n",
            *head,
            *(line if isinstance(line, str) else line.text() for line in memory_lines(runs, rows)),
            "",
        ]
    )


_HEAD = """## Published runs

`profiles/public_runs.csv`: dense decoders in bf16 or fp16, data parallel or sharded, of 7 sources on 7 cards. Left out
means that the prior was fitted without them; the widths of its intervals were set so that 84 % of left-out rows fall
inside, averaged over sources and GPUs. Peers get the same rows, as far as they can express them.
"""


def held_out_speed(runs: prior_model.Runs, known: dict[str, GpuSpec]) -> Iterator[Line]:
    """Each source, then each GPU, predicted by a fit to all others, with prior.yaml's spreads and width."""
    document, spreads = _shipped()
    shifts = prior_model.matmul_shifts(known)
    for name, groups in (("one source left out", runs.sources), ("one GPU model left out", runs.gpus)):
        held = prior_model.leave_out(runs, groups, shifts, *spreads)
        width = Z80 * np.hypot(held.deviations, document["discrepancy"])
        yield Line(
            name=f"prior, {name}",
            errors=np.abs(np.expm1(-held.errors)),
            inside=np.abs(held.errors) <= width,
        )


def _shipped() -> tuple[dict, tuple[float, float]]:
    """The shipped prior, and the spreads of sources and rows it was fitted with."""
    document = yaml.safe_load((prior_model.ROOT / "profiles" / "prior.yaml").read_text(encoding="utf-8"))
    return document, (document["provenance"]["source_spread"], document["provenance"]["row_spread"])


def calibrated(runs: prior_model.Runs, known: dict[str, GpuSpec]) -> Iterator[Line]:
    """Five random rows of one source on one GPU as its calibration: what they update, and how right the others are.

    First a prior that never saw that source on that GPU; then, as this trainer's calibrations have it, one that never
    saw the source at all and doubts its software; last the physical floors that a CPU's calibration updates.
    """
    pairs = np.array([f"{source}|{gpu}" for source, gpu in zip(runs.sources, runs.gpus, strict=True)])
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    chosen = np.random.default_rng(0)
    for pair in sorted(set(pairs[runs.decoders])):
        places = np.flatnonzero(pairs == pair)
        if len(places) < FEWEST_ROWS:
            continue
        priors = _priors(runs, known, pairs, places)
        for _ in range(DRAWS):
            order = chosen.permutation(places)
            for name, prior in priors.items():
                one = _updated(runs, known, prior, order[:CALIBRATION_ROWS], order[CALIBRATION_ROWS:])
                found.setdefault(name, []).append(one)
    for name, parts in found.items():
        errors, widths = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        yield Line(name=name, errors=np.abs(np.expm1(-errors)), inside=np.abs(errors) <= widths)


def _priors(
    runs: prior_model.Runs, known: dict[str, GpuSpec], pairs: np.ndarray, places: np.ndarray
) -> dict[str, CoefficientPrior]:
    """What the rows at `places` may update, by the name of its line."""
    spec, precision = known[runs.workloads[places[0]].gpu], runs.workloads[places[0]].precision
    without_pair = _prior_without(runs, known, pairs != pairs[places[0]], places)
    without_source = _prior_without(runs, known, runs.sources != runs.sources[places[0]], places)
    doubt = SOFTWARE_DEVIATION**2 * np.eye(len(without_source.mean))
    floors, datasheet = measured_prior(), datasheet_rates(spec, precision)
    ceilings = Rates(
        matmul_flops=spec.mamf_bf16_flops or USUAL_CEILING * datasheet.matmul_flops,
        bandwidth=USUAL_BANDWIDTH * datasheet.bandwidth,
        launch_seconds=datasheet.launch_seconds,
    )
    several = f"{CALIBRATION_ROWS} rows"
    return {
        f"the same, {several} of that GPU and source as its calibration (the source's other GPUs known)": without_pair,
        f"{several} as calibration, its source left out on every GPU": replace(
            without_source, covariance=without_source.covariance + doubt
        ),
        f"{several} as calibration, from physical floors alone": replace(
            floors, mean=relative_to_datasheet(floors.mean, ceilings, datasheet)
        ),
    }


def _prior_without(
    runs: prior_model.Runs, known: dict[str, GpuSpec], kept: np.ndarray, places: np.ndarray
) -> CoefficientPrior:
    shifts, first = prior_model.matmul_shifts(known), places[0]
    fitted = prior_model.fit(runs, np.flatnonzero(kept), shifts, *_shipped()[1])
    compiled = float(np.mean(runs.compiled[places]))
    mean, covariance = prior_model.belief(fitted, runs.generations[first], compiled, runs.headroom[first], shifts)
    return CoefficientPrior(mean=mean, covariance=covariance, discrepancy=0.0, source="published runs")


def _updated(
    runs: prior_model.Runs,
    known: dict[str, GpuSpec],
    prior: CoefficientPrior,
    seen: Sequence[int],
    held: Sequence[int],
) -> tuple[np.ndarray, np.ndarray]:
    """Log errors of step time of the rows held back, and half the width of their intervals."""
    observations = [
        Observation(workload=runs.workloads[i], step_seconds=float(np.exp(runs.log_step[i])), noise=ROW_NOISE)
        for i in seen
    ]
    one = runs.workloads[seen[0]]
    posterior = fit(observations, datasheet_rates(known[one.gpu], one.precision), prior, drift=0.0)
    workloads = [runs.workloads[i] for i in held]
    predicted = predict_log(posterior, sizes(workloads))
    width = Z80 * np.hypot(predicted.deviation, ROW_NOISE)
    return predicted.mean - runs.log_step[held], width


def peers_speed(runs: prior_model.Runs, rows: Sequence[tuple[Workload, GpuSpec]]) -> Iterator[Line | str]:
    """Constant MFU, roofline and the packages on the same rows."""
    measured = np.array([float(runs.lines[i]["tok_per_s_per_gpu"]) for i in runs.decoders])
    yield _peer(f"constant MFU of {peers.MFU:.0%}", peers.constant_mfu, rows, measured)
    yield _peer("roofline", peers.roofline, rows, measured)
    for name, made in (("llm-analysis 0.2.2, half of peak", peers.llm_analysis()), ("sysplug 0.1.0", peers.sysplug())):
        yield _peer(name, made[0], rows, measured) if made else f"| {name} | {peers.NOT_INSTALLED} | - | - |"


def _peer(
    name: str, predictor: peers.Predictor, rows: Sequence[tuple[Workload, GpuSpec]], measured: np.ndarray
) -> Line:
    said = peers.expressed(predictor, rows)
    pairs = [(p, m) for p, m in zip(said, measured, strict=True) if p is not None]
    return Line(name=name, errors=np.array([abs(p / m - 1) for p, m in pairs]))


def memory_lines(runs: prior_model.Runs, rows: Sequence[tuple[Workload, GpuSpec]]) -> Iterator[Line | str]:
    """Rows that state their memory, each against the quantity that the source measured."""
    stated = [i for i in runs.decoders if runs.lines[i]["mem_gib_per_gpu"]]
    measured = np.array([float(runs.lines[i]["mem_gib_per_gpu"]) * GIB for i in stated])
    ours = [memory_of(runs.workloads[i], runs.lines[i]["notes"]) for i in stated]
    yield Line(
        name="ours",
        errors=np.array([abs(e.value / m - 1) for e, m in zip(ours, measured, strict=True)]),
        inside=np.array([e.contains(m) for e, m in zip(ours, measured, strict=True)]),
    )
    for name, made in (("llm-analysis 0.2.2", peers.llm_analysis()), ("sysplug 0.1.0", peers.sysplug())):
        if made:
            yield _peer(name, made[1], [rows[i] for i in stated], measured)
        else:
            yield f"| {name} | {peers.NOT_INSTALLED} | - | - |"


def memory_of(w: Workload, notes: str) -> Estimate:
    """The prediction of what the source says it measured: allocated (or active), reserved, or all the driver sees."""
    model, said = load_memory_model(), notes.lower()
    if "nvidia-smi" in said or "nvml" in said:
        return model.device_total_bytes(w)
    if "peak allocated" in said or "peak active" in said:
        return model.allocated_bytes(w)
    return model.reserved_bytes(w)
