"""The part of docs/accuracy.md about published runs: predictions for GPUs and software that were left out of the fit.

Called by accuracy.py. Everything is computed again from profiles/public_runs.csv; nothing is measured here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import fit_memory
import numpy as np
import peers
import prior_model
import whole_runs
from left_out import HeldOut, leave_out, weighted_quantile
from prior_model import Run

from advisor.calibration.fit import fit
from advisor.hardware.catalog import GpuSpec
from advisor.laws.intervals import Z80
from advisor.prediction.prior import (
    CoefficientPrior,
    datasheet_rates,
    measured_prior,
    relative_to_datasheet,
)
from advisor.prediction.published import CLASSES, PublishedSetting, classes
from advisor.prediction.throughput import Rates, predict_log, sizes
from advisor.records import MeasuredStep, Workload
from benchmarks.rows.reader import RowError

CALIBRATION_ROWS = 5
DRAWS = 40  # random choices of those rows
FEWEST_ROWS = 8  # of one source on one GPU, so that some remain to be predicted
ROW_NOISE = 0.02  # of one published throughput; identical nodes differ by 3 %, medians of many steps by less
USUAL_CEILING, USUAL_BANDWIDTH = 0.82, 0.88  # of the data sheet, if nobody published the GPU's best product
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table: errors of tokens per second or bytes, and whether intervals held (None: no intervals).

    `owners` names the owner of each row, so that every owner can count once.
    """

    name: str
    errors: np.ndarray  # |predicted / measured - 1|
    owners: Sequence[str]
    inside: np.ndarray | None = None

    def text(self) -> str:
        if not len(self.errors):
            return f"| {self.name} | 0, 0 | - | - | - | - |"
        count = Counter(self.owners)
        weights = np.array([1 / count[owner] for owner in self.owners])
        both = [
            f"{weighted_quantile(self.errors, w, 0.5):.1%} / {weighted_quantile(self.errors, w, 0.9):.1%}"
            for w in (weights, np.ones(len(self.errors)))
        ]
        held = ("none given", "")
        if self.inside is not None:
            held = (f"{np.average(self.inside, weights=weights):.0%}", f"{self.inside.mean():.0%}")
        return f"| {self.name} | {len(self.errors)}, {len(count)} | {both[0]} | {held[0]} | {both[1]} | {held[1]} |"


_COLUMNS = (
    "| predictor | rows, owners | each owner once: median / p90 | inside 80 % intervals | rows: median / p90 | inside |"
)


def section() -> str:
    """Return the section in Markdown."""
    known = prior_model.published_cards()
    runs = prior_model.read_runs()
    decoders = [run for run in runs if not run.encoder]
    held = leave_out(runs, [run.owner for run in runs], known)
    speed = [*held_out_speed(held, runs, known), *calibrated(runs, known), *peers_speed(decoders, known)]
    head = [_COLUMNS, "|---|---|---|---|---|---|"]
    return "\n".join(
        [
            _HEAD,
            "### Tokens per second (asked, every owner once: 13 % / 35 %, 76-86 % inside, high / low 1.8, score 1.15;"
            " tuned software half-width 30 %; with 5 rows 3.5 % / 11 %, 72-88 %)\n",
            *head,
            *(line if isinstance(line, str) else line.text() for line in speed),
            "",
            *by_class(held),
            "",
            half_width(held),
            "\n### Memory per GPU, uncalibrated (asked, every owner once: 8 % / 25 %, 74-86 % inside)\n",
            *head,
            *(line if isinstance(line, str) else line.text() for line in memory_lines(known)),
            "",
            whole_runs.section(),
            "### What was read of each source\n",
            "| source | rows | predicted | why not the rest |",
            "|---|---|---|---|",
            *reading_lines(),
            "",
        ]
    )


_HEAD = """## Published runs

`profiles/public_runs.csv`: two collections of what people published of their runs. Left out means that the beliefs
were fitted without any row of that owner (a person or project, on whatever cards) or of that GPU. A source is one owner
on one kind of machine. What a step spends on exposed communication, by the formula, is taken off before the fit and
before the comparison; whole runs below have it in. Peers get the same rows, as far as they can express them.
"""


def held_out_speed(held: HeldOut, runs: Sequence[Run], known: dict[str, GpuSpec]) -> Iterator[Line]:
    """Yield each owner, then each GPU, predicted by a fit to all others; tuned software also alone."""
    yield _line("prior, one owner left out", held)
    yield _line("of these, tuned software (compiled, fused attention, stated)", held.of(tuned(held.runs)))
    yield _line("prior, one GPU model left out", leave_out(runs, [run.likeliest.gpu for run in runs], known))


def half_width(held: HeldOut) -> str:
    """Return how wide the intervals of tuned and other software are."""
    on = tuned(held.runs)
    widths = [np.expm1(Z80 * weighted_quantile(h.deviations, h.weights, 0.5)) for h in (held.of(on), held.of(~on))]
    return (
        f"Median half-width of the intervals of an unseen owner: {widths[0]:.0%} tuned, {widths[1]:.0%} other software."
    )


def tuned(runs: Sequence[Run]) -> np.ndarray:
    """Return which runs are in no class of software that the prior treats as slower or less certain."""
    return np.array([all(set(classes(m.setting)) <= {"tuned", "plain"} for m in run.meanings) for run in runs])


def by_class(held: HeldOut) -> Iterator[str]:
    """Yield lines of Markdown for each class of software and each switch, with owners left out and counted once."""
    w = [run.likeliest for run in held.runs]
    groups = {f"class {name}": [name in classes(run.meanings[0].setting) for run in held.runs] for name in CLASSES}
    groups |= {
        "compiled": [one.compile for one in w],
        "eager, kernels by hand": [not one.compile and one.software.fused_kernels for one in w],
        "eager, no such kernels": [not one.compile and not one.software.fused_kernels for one in w],
        "compilation not stated": [not run.line["compile"] for run in held.runs],
        "software with a name": [one.software.name is not None for one in w],
        "weights in 16 bits": [one.software.state == "16bit" for one in w],
        "all activations recomputed": [one.activation_checkpointing == "full" for one in w],
        "several GPUs": [one.gpus > 1 for one in w],
        "one GPU": [one.gpus == 1 for one in w],
    }
    yield "| owners left out | rows, owners | median / p90 | signed median | inside 80 % | high / low | score |"
    yield "|---|---|---|---|---|---|---|"
    for name, chosen in {"all": [True] * len(w), **groups}.items():
        if not any(chosen):
            continue
        part = held.of(np.array(chosen))
        errors = [f"{weighted_quantile(part.relative, part.weights, q):.0%}" for q in (0.5, 0.9)]
        inside = f"{np.average(part.inside, weights=part.weights):.0%}"
        count = f"{len(part.runs)}, {len({run.owner for run in part.runs})}"
        scores = f"{part.signed:+.1%} | {inside} | {part.width:.2f} | {part.interval_score:.2f}"
        yield f"| {name} | {count} | {' / '.join(errors)} | {scores} |"


def _line(name: str, held: HeldOut) -> Line:
    return Line(name=name, errors=held.relative, owners=[run.owner for run in held.runs], inside=held.inside)


def calibrated(runs: Sequence[Run], known: dict[str, GpuSpec]) -> Iterator[Line]:
    """Use five random rows of one source as its calibration, and score its other rows with and without this update.

    The first prior never saw the owner, as with this trainer's calibrations. The second is made of the physical floors
    that a CPU's calibration updates.
    """
    alike: dict[tuple, list[Run]] = defaultdict(list)  # of one source, GPU and set of switches, as a calibration is
    for run in runs:
        if not run.encoder:
            w = run.likeliest
            how = PublishedSetting.of(w, known[w.gpu])
            alike[run.source, w.gpu, how.precision, how.compile, how.sharding, *_switches(how)].append(run)
    found: dict[str, list[tuple[np.ndarray, np.ndarray, str]]] = defaultdict(list)
    chosen = np.random.default_rng(0)
    for (source, *_), mine in sorted(alike.items(), key=lambda item: str(item[0])):
        if len(mine) < FEWEST_ROWS:
            continue
        priors = _priors(runs, known, mine[0])
        for _ in range(DRAWS):
            order = [mine[i] for i in chosen.permutation(len(mine))]
            for name, prior in priors.items():
                errors, widths = _updated(known, prior, order[:CALIBRATION_ROWS], order[CALIBRATION_ROWS:])
                found[name].append((errors, widths, source))
    for name, parts in found.items():
        errors, widths = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        sources = [part[2] for part in parts for _ in part[0]]
        yield Line(name=name, errors=np.abs(np.expm1(-errors)), owners=sources, inside=np.abs(errors) <= widths)


def _switches(how: PublishedSetting) -> tuple[bool, ...]:
    return (how.tf32, how.software.fp8, how.software.fused_attention)


def _priors(runs: Sequence[Run], known: dict[str, GpuSpec], first: Run) -> dict[str, CoefficientPrior]:
    """Return the priors that the rows of a source like `first` may update, by the name of their line."""
    w = first.likeliest
    spec = known[w.gpu]
    belief = prior_model.fit([run for run in runs if run.owner != first.owner], known)
    mean, covariance = belief.belief(spec.generation, spec, PublishedSetting.of(w, spec))
    floors, datasheet = measured_prior(), datasheet_rates(spec, w.precision)
    ceilings = Rates(
        matmul_flops=spec.mamf_bf16_flops or USUAL_CEILING * datasheet.matmul_flops,
        bandwidth=USUAL_BANDWIDTH * datasheet.bandwidth,
        launch_seconds=datasheet.launch_seconds,
    )
    several = f"{CALIBRATION_ROWS} rows"
    return {
        f"{several} as calibration, its owner left out on every GPU": CoefficientPrior(
            mean=mean, covariance=covariance, discrepancy=belief.spreads.row, source="published runs"
        ),
        f"{several} as calibration, from physical floors alone": replace(
            floors, mean=relative_to_datasheet(floors.mean, ceilings, datasheet)
        ),
    }


def _updated(
    known: dict[str, GpuSpec], prior: CoefficientPrior, seen: Sequence[Run], held: Sequence[Run]
) -> tuple[np.ndarray, np.ndarray]:
    """Return log errors of step time of the held-back rows, and half the width of their intervals."""
    observations = [
        MeasuredStep(workload=run.likeliest, step_seconds=_step_seconds(run, known), noise=ROW_NOISE) for run in seen
    ]
    one = seen[0].likeliest
    posterior = fit(observations, datasheet_rates(known[one.gpu], one.precision), prior, drift=0.0)
    predicted = predict_log(posterior, sizes([run.likeliest for run in held]))
    measured = np.log([_step_seconds(run, known) for run in held])
    return predicted.mean - measured, Z80 * np.hypot(predicted.deviation, ROW_NOISE)


def _step_seconds(run: Run, known: dict[str, GpuSpec]) -> float:
    """Return measured seconds of one step on one device, without exposed communication."""
    meaning = max(run.meanings, key=lambda m: m.weight)
    x = prior_model.term_row(meaning.workload, known[meaning.workload.gpu])
    return float(x[0] / meaning.x[0])


def peers_speed(runs: Sequence[Run], known: dict[str, GpuSpec]) -> Iterator[Line | str]:
    """Yield constant MFU, roofline and the packages on the same rows, if each can express the likeliest workload."""
    cases = [(run.likeliest, known[run.likeliest.gpu], float(run.line["tok_per_s_per_gpu"]), run.owner) for run in runs]
    yield _peer(f"constant MFU of {peers.MFU:.0%}", peers.constant_mfu, cases)
    yield _peer("roofline", peers.roofline, cases)
    for name, made in (("llm-analysis 0.2.2, half of peak", peers.llm_analysis()), ("sysplug 0.1.0", peers.sysplug())):
        yield _peer(name, made[0], cases) if made else f"| {name} | {peers.NOT_INSTALLED} | - | - | - | - |"


def _peer(name: str, predictor: peers.Predictor, cases: Sequence[tuple[Workload, GpuSpec, float, str]]) -> Line:
    answers = peers.expressed(predictor, [(w, spec) for w, spec, _, _ in cases])
    pairs = [(a, m, s) for a, (_, _, m, s) in zip(answers, cases, strict=True) if a is not None]
    return Line(name=name, errors=np.array([abs(a / m - 1) for a, m, _ in pairs]), owners=[s for _, _, s in pairs])


def memory_lines(known: dict[str, GpuSpec]) -> Iterator[Line | str]:
    """Yield rows that state their memory, each compared with what its source measured, by a fit without its owner."""
    answers = fit_memory.left_out(fit_memory.read_peaks([prior_model.RUNS]))
    answers = [a for a in answers if isinstance(a.peak.meanings[0][0], Workload)]  # no other program splits models
    yield Line(
        name="ours, its owner left out",
        errors=np.abs([a.error for a in answers]),
        owners=[a.peak.owner for a in answers],
        inside=np.array([a.inside for a in answers]),
    )
    rows = [
        (w, known[w.gpu], a.peak.gib * GIB, a.peak.owner)
        for a in answers
        for w in [max(a.peak.meanings, key=lambda pair: pair[1])[0]]
    ]
    for name, made in (("llm-analysis 0.2.2", peers.llm_analysis()), ("sysplug 0.1.0", peers.sysplug())):
        yield _peer(name, made[1], rows) if made else f"| {name} | {peers.NOT_INSTALLED} | - | - | - | - |"


def reading_lines() -> Iterator[str]:
    """Yield for each source its number of rows, how many are predicted, and the most common reason for the rest."""
    rows: dict[str, list[str | None]] = defaultdict(list)
    for line, reading in prior_model.read_lines(prior_model.RUNS):
        why = reading.error.removeprefix("not predicted: ") if isinstance(reading, RowError) else None
        rows[line["source"]].append("no measurement to trust" if "SUSPECT" in line["notes"] and not why else why)
    for source, reasons in rows.items():
        refused = Counter(reason for reason in reasons if reason)
        most = f"{refused.most_common(1)[0][0][:110].replace('|', '/')}" if refused else ""
        yield f"| {source} | {len(reasons)} | {reasons.count(None)} | {most} |"
