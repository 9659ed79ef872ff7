"""The functions of the expressions in `kinds.yaml`, by their names there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import yaml

from advisor.auditing import run
from advisor.auditing.counts import VOCABULARIES
from advisor.auditing.facts import SPARSE, dense_peak, gpus_of, half
from advisor.auditing.fields import gpus_meant
from advisor.auditing.quantity import ClaimedQuantity
from advisor.auditing.verdict import Known, Names, Question, UnstatedError, between, exactly, show_as
from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.hardware.offers import cheapest_offer
from advisor.hardware.prices import load_prices
from advisor.laws import initial_loss
from advisor.laws.annealing import cosine
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of, chance_interval
from advisor.laws.phase import phase_problem
from advisor.prediction.loss import effective_tokens
from advisor.store.folders import profiles_folder
from advisor.units import format_count, format_flops, format_percent

# (bits, exponent bits, explicit mantissa bits): IEEE 754 for fp32 and fp16; bfloat16; NVIDIA's TF32
FORMATS = {"fp32": (32, 8, 23), "tf32": (19, 8, 10), "bf16": (16, 8, 7), "fp16": (16, 5, 10)}
_NVLINK = re.compile(r"nvlink\d\S* (\d+(?:\.\d+)?)")  # of the catalog: both directions, also of bridges
_CLOSE = 0.08  # relative difference to a data sheet's number: editions, binary units, roundings
_PAGES = ("<?xml", "<!doctype", "<html", "<error")
_STEP = re.compile(r"\b(?:step|iter(?:ation)?s?)\W{0,3}(\d+)", re.IGNORECASE)


def _applied(function: Callable[..., float], name: str) -> Callable[..., Known]:
    def result(q: Question, *terms: Any) -> Known:
        for term in terms:
            positive(q, term)
        ends = sorted((function(*(t.low for t in terms)), function(*(t.high for t in terms))))
        return ends[0], ends[1], f"{name} {', '.join(t.text for t in terms)}"

    return result


def _bandwidth(spec: GpuSpec) -> float | None:
    return spec.memory_bytes_per_second


def _for_money(figure: Callable[[GpuSpec], float | None]) -> Callable[[GpuSpec], float | None]:
    """Return a figure per dollar per hour, at the cheapest listed price."""

    def result(spec: GpuSpec) -> float | None:
        offer, value = cheapest_offer(spec.key), figure(spec)
        return value / offer.usd_per_gpu_hour if value and offer and offer.usd_per_gpu_hour else None

    return result


def _ratios(
    q: Question, than: str, figures: Sequence[Callable[[GpuSpec], float | None]], words: str, either: float = 1.0
) -> Known:
    """Return the ratios of figures between any editions of two GPUs, each of which may be `either` times larger."""
    found = [
        mine / its
        for one in gpus_of(q) for other in gpus_meant(than) for figure in figures
        if (mine := figure(one)) and (its := figure(other))
    ]  # fmt: skip
    if not found:
        raise UnstatedError("one of the GPUs, or its price,")
    return min(found) / either, max(found) * either, words


FUNCTIONS = Names(
    {
        "span": lambda q, low, high: (low.low, high.high, f"{low.low:.4g}-{high.high:.4g}"),
        "ln": _applied(math.log, "ln"),
        "root": _applied(math.sqrt, "√"),
        "smaller_of": lambda q, a, b: (min(a.low, b.low), min(a.high, b.high), f"{min(a.high, b.high):.3g}"),
        "least_of": lambda q, many: min((t.low, t.high, t.text) for t in many),
        "most_of": lambda q, many: max((t.low, t.high, t.text) for t in many),
        "sum_of": lambda q, many: (
            sum(t.low for t in many),
            sum(t.high for t in many),
            " + ".join(t.text for t in many),
        ),
        "nearest_of": lambda q, term, *ends: exactly(min(abs(term.middle - end.low) for end in ends), term.text),
        "lower_end": lambda q, term: exactly(term.low, term.text),
        "upper_end": lambda q, term: exactly(term.high, term.text),
        "is_larger": lambda q, one, other: exactly(one.low > other.high),
        "peak_ratio": lambda q, than: _ratios(q, than, (half,), "16-bit peaks, either of them dense or sparse", SPARSE),
        "money_ratio": lambda q, than: _ratios(
            q, than, (_for_money(half), _for_money(_bandwidth)), "peak and bandwidth for a dollar"
        ),
        # all weights are trained, on so many tokens that start-up and evaluation hardly count
        "whole_training": lambda q, tokens, method: exactly(
            tokens is not None and tokens.low >= 1e9 and method != "adapters"
        ),
        "worth_of": lambda q, tokens, epochs: exactly(
            effective_tokens(tokens.middle * epochs.middle, tokens.middle), f"{epochs.text} passes over {tokens.text}"
        ),
    }
)


@FUNCTIONS.add
def distance(q: Question, term: Any) -> Known:
    """Return the smallest and largest distance from zero."""
    ends = abs(term.low), abs(term.high)
    return 0.0 if term.low <= 0 <= term.high else min(ends), max(ends), term.text


@FUNCTIONS.add
def rank_correlation(q: Question, ours: Sequence[Any], over: Sequence[Any]) -> Known:
    """Return Spearman's coefficient of pairs; fewer than four, or constant values, show no trend."""
    if len(ours) != len(over) or len(ours) < 4:
        raise UnstatedError("a trend of four pairs or more")
    ranks = []
    for column in (ours, over):
        values = [term.middle for term in column]
        ordered = sorted(values)
        places = [ordered.index(value) + (ordered.count(value) - 1) / 2 for value in values]
        ranks.append([place - sum(places) / len(places) for place in places])
    together = sum(a * b for a, b in zip(*ranks, strict=True))
    related = together / math.sqrt(math.prod(sum(a * a for a in column) for column in ranks))
    return exactly(related, f"rank correlation of {len(ours)} pairs")


@FUNCTIONS.add
def speed_ratio(q: Question, than: str) -> Known:
    """Return the ratios of bandwidth and 16-bit peak. If the claim names its GPU, FP8 and software count too."""
    low, high, words = _ratios(q, than, (_bandwidth, half), "peak or bandwidth of one over the other")
    if q.get("gpu"):
        eights = [f / h for c in gpus_of(q) for o in gpus_meant(than) if (f := c.fp8_flops) and (h := half(o))]
        high = 1.3 * max([high, *eights])
    return low, high, words


@FUNCTIONS.add
def peak_in(q: Question, precision: str) -> Known:
    """Return the peak of the run's GPU in a format."""
    spec = run.spec_of(q.setup)
    other = {"fp32": spec.fp32_flops, "tf32": spec.tf32_flops} if spec else {}
    rate = other[precision] if precision in other else peak_flops(spec, precision) if spec else None
    if rate is None:
        raise UnstatedError("the GPU, or its rate in that format,")
    return exactly(rate, f"{precision} {format_flops(rate)}")


@FUNCTIONS.add
def have_memory(q: Question, gpu: str, other: str, memory: Any) -> Known:
    """Return 1 if both GPUs have this much memory. Raises UnstatedError if one does not."""
    for name in (gpu, other):
        sizes = [spec.memory_gb * 1e9 for spec in gpus_meant(name)]
        if not any((1 - _CLOSE) * size <= memory.high and memory.low <= (1 + _CLOSE) * size for size in sizes):
            raise UnstatedError(f"{name} with {memory.text}")
    return exactly(1.0)


@FUNCTIONS.add
def positive(q: Question, term: Any) -> Known:
    """Return a number above zero as it is."""
    if term.low <= 0:
        raise UnstatedError("a number above zero")
    return term.low, term.high, term.text


@FUNCTIONS.add
def opens_a_page(q: Question, opening: str | None) -> Known:
    """Return whether a file begins as a web page does."""
    if opening is None:
        raise UnstatedError("how the file begins")
    return exactly(opening.lstrip().lower().startswith(_PAGES), f"begins with {opening[:20]!r}")


def _nearest(value: ClaimedQuantity | None, figures: Sequence[float], show: Callable[[float], str], of: str) -> Known:
    """Return the figure that is nearest to the claim, of several that a name can mean."""
    if value is None or not figures:
        raise UnstatedError(f"a figure of {of}")
    nearest = min(figures, key=lambda one: abs(one - value.middle))
    return exactly(nearest, f"catalog: {', '.join(dict.fromkeys(map(show, sorted(figures))))}")


@FUNCTIONS.add
def catalog(q: Question, fact: str, count: Any) -> Known:
    """Return a data sheet's figure times the number of GPUs, for the edition that is nearest to the claim."""
    figures: dict[str, Callable[[GpuSpec], Sequence[float | None]]] = {
        "memory": lambda spec: (spec.memory_gb * 1e9, float(spec.memory_bytes)),
        "bandwidth": lambda spec: (spec.memory_bytes_per_second,),
        "power": lambda spec: (spec.tdp_watts,),
        "link": lambda spec: [k * float(rate) * 1e9 for rate in _NVLINK.findall(spec.interconnect) for k in (0.5, 1.0)],
    }
    number, value = count.middle if count else 1.0, q.get("value")
    found = [number * one for spec in gpus_of(q) for one in figures[fact](spec) if one]
    show = show_as(value.dimension if value else "count", value)
    return _nearest(value, found, show, str(q.get("gpu") or q.setup.gpu))


@FUNCTIONS.add
def has(q: Question, fact: str) -> Known:
    """Return whether a GPU is of the claimed architecture, or has (or lacks, as claimed) matrix units of a format."""
    spec = next(iter(gpus_of(q)), None)
    if spec is None:
        raise UnstatedError("the GPU")
    if fact == "architecture":
        right = spec.architecture.lower() in (q.get("words") or "").lower()
        return exactly(right, f"{spec.key} is {spec.architecture}")
    native = getattr(spec, f"{fact}_flops") is not None
    right = native == (q.get("native") is not False)
    return exactly(right, f"{spec.key} has {'' if native else 'no '}{fact} matrix units")


@FUNCTIONS.add
def peak_sense(q: Question, count: Any) -> Known:
    """Return in which sense a number is a peak: 0 dense, 1 with sparsity, 2 another rate of the GPU, 3 none."""
    value, precision, specs, number = q.get("value"), q.get("precision"), gpus_of(q), count.middle if count else 1.0
    dense = [number * rate for spec in specs if (rate := dense_peak(spec, precision))]
    if not dense or value is None:
        raise UnstatedError("such a rate of the GPU")
    shader = any(s.fp32_flops and value.admits(1.9 * number * s.fp32_flops, 2.1 * number * s.fp32_flops) for s in specs)
    halved = any(spec.generation.endswith("half-rate") for spec in specs)  # sums in fp16 have twice the dense rate
    rates = [(s.fp32_flops, s.tf32_flops, half(s), s.fp8_flops, s.bf16_flops) for s in specs]
    every = [
        number * rate * k for one in rates for rate in one if rate for k in (1, SPARSE, 4)[: 2 if precision else 3]
    ]
    far_below = number > 1 and 1.25 * value.high < 0.45 * min(dense)  # less than the rate of half as many GPUs
    if any(value.admits(0.97 * rate, 1.03 * rate) for rate in dense):
        sense = 0.0
    elif any(value.admits(0.97 * SPARSE * r, 1.03 * SPARSE * r) for r in dense) and not shader and not halved:
        sense = 0.0 if q.get("sparse") else 1.0
    else:
        sense = 2.0 if not far_below and any(value.admits(0.93 * r, 1.07 * r) for r in every) else 3.0
    return exactly(sense, f"{between((min(dense), max(dense)), format_flops)} dense")


@FUNCTIONS.add
def machine_size(q: Question, fact: str) -> Known:
    """Return processors or RAM of the named machine type, or of any machine with these GPUs that fits the claim."""
    value, keys = q.get("value"), {spec.key for spec in gpus_of(q)}
    rows = [row for row in load_prices() if row.gpu in keys and row.gpu_count == q.setup.gpus]
    named = [row for row in rows if row.instance_type == q.setup.machine]
    figures = [row.vcpus if fact == "vcpus" else row.ram_gb and row.ram_gb * 1e9 for row in named or rows]
    sizes = [size for size in figures if size and value and (named or value.admits(size))]
    return _nearest(value, sizes, show_as("count"), "the machine type")


@FUNCTIONS.add
def machine_has(q: Question, name: str, gpu: str, count: Any) -> Known:
    """Return whether a machine type has the claimed GPUs."""
    rows = [row for row in load_prices() if row.instance_type.lower() == name.lower() and row.gpu]
    if not rows:
        raise UnstatedError(f"a machine {name}")
    listed, keys = {(row.gpu, row.gpu_count) for row in rows}, {spec.key for spec in gpus_meant(gpu)}
    right = any(key in keys and count.low <= number <= count.high for key, number in listed)
    return exactly(right, f"a {name} has {', '.join(f'{number:g} × {key}' for key, number in sorted(listed))}")


@FUNCTIONS.add
def largest(q: Question, name: str) -> Known:
    """Return the largest number of a format."""
    _, exponent, mantissa = FORMATS[name]
    number = (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1)
    return exactly(number, f"{name}: {exponent} exponent + {mantissa} mantissa bits")


@FUNCTIONS.add
def smallest(q: Question, name: str) -> Known:
    """Return the smallest positive number of a format, a subnormal one: half of it becomes zero."""
    _, exponent, mantissa = FORMATS[name]
    number = 2.0 ** (2 - 2 ** (exponent - 1) - mantissa)
    return exactly(number, f"{name}: {exponent} exponent + {mantissa} mantissa bits")


@FUNCTIONS.add
def relates(q: Question, name: str, fact: str) -> Known:
    """Return whether a format has the claimed range or precision in comparison with another format."""
    other = q.get("as")
    if other is None:
        raise UnstatedError("a format to compare it with")
    mine, its = (FORMATS[one][1 if fact == "range" else 2] for one in (name, other))
    relation = "same" if mine == its else "more" if mine > its else "less"
    link = "as" if relation == "same" else "than"
    right = relation == (q.get("relation") or "same")
    return exactly(right, f"{name} has {relation} {fact} {link} {other}: {mine} against {its} bits")


@FUNCTIONS.add
def bits_of(q: Question, name: str) -> Known:
    """Return the bits of a number format, or its bytes if the claim states bytes."""
    value, bits = q.get("value"), float(FORMATS[name][0])
    in_bytes = value is not None and value.dimension == "bytes"
    return exactly(bits / 8, f"bytes of {name}") if in_bytes else exactly(bits, f"bits of {name}")


@cache
def _trainings() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    """Return every training of profiles/trainings.yaml with the pattern of its names."""
    rows = yaml.safe_load((profiles_folder() / "trainings.yaml").read_text(encoding="utf-8"))
    around = r"(?<![\w.-])(?:{})(?![\w.]|-\d|-[A-Z])"
    return tuple((re.compile(around.format("|".join(row["names"])), re.IGNORECASE), row) for row in rows)


@FUNCTIONS.add
def published(q: Question, name: str, fact: str) -> Known:
    """Return the published tokens or GPU-hours of a training, or whether its GPU is the claimed one."""
    found = [(len(match[0]), at, row) for at, (names, row) in enumerate(_trainings()) if (match := names.search(name))]
    row = max(found)[2] if found else {}
    if fact != "gpu":
        known = _nearest(q.get("value"), [float(n) for n in row.get(fact, ())], format_count, f"the training of {name}")
        return known[0], known[1], f"{name}: {row['source']}"
    claimed, names = q.get("words"), row.get("gpus", ())
    if claimed is None or not names:
        raise UnstatedError(f"the GPU of {name}")
    right = any(claimed.upper().startswith(one.upper()) for one in names)
    return exactly(right, f"{name} was trained on {' or '.join(names)} ({row['source']})")


@FUNCTIONS.add
def fault_above(q: Question, first: Any) -> Known:
    """Return the first loss above which something is broken, and what may explain this first loss in words."""
    s, base = q.setup, run.uniform_loss(q)
    least = (base[0] if base else math.log(VOCABULARIES[1])) + initial_loss.FAULT_ABOVE
    if base is None or s.vocab_size is None:
        return exactly(least, "over any vocabulary in use")
    sizes: Mapping[str, float | None] = {"batch": s.micro_batch, "sequence length": s.seq_len}
    sums = initial_loss.summed_over(first.middle, s.vocab_size, sizes)
    found = [f"summed over {one.name} ({first.middle / one.count:.2f} each)" for one in sums]
    parts = [(1.0, ""), *((one.count, f", summed over {one.name}") for one in initial_loss.divisors(sizes))]
    for count, words in parts if s.width and s.vocab_size > 1 else ():
        if initial_loss.is_unscaled(first.middle / count, s.width or 0, s.vocab_size):
            about = f"weights of unit variance give about {initial_loss.unscaled_loss(s.width or 0, s.vocab_size):.0f}"
            found.append(f"{about}{words}" + (f" ({first.middle / count:.0f} each)" if words else ""))
    if first.middle < 13 and not found:
        found.append(f"it would be right for a vocabulary of {math.exp(first.middle):,.0f}")
    return exactly(least, "; or ".join(found) or "no single factor explains it")


@FUNCTIONS.add
def chance(q: Question, task: str, items: Any) -> Known:
    """Return the score of guessing on a test set, with its 95 % interval."""
    name = benchmark_of(task)
    if name is None:
        raise UnstatedError(f"the chance level of {task}")
    test = replace(BENCHMARKS[name], questions=round(items.middle)) if items else BENCHMARKS[name]
    low, high = chance_interval(test)
    return low, high, f"chance {format_percent(test.chance)} ± {format_percent(test.standard_error)}"


@FUNCTIONS.add
def scheduled_rate(q: Question, step: Any) -> Known:
    """Return the declared schedule at a step: linear warm-up, then cosine to the end."""
    s, at = q.setup, step.low
    warmup, low = s.warmup_steps or 0, s.min_learning_rate or 0.0
    if s.learning_rate is None or (s.schedule is None and warmup < at):
        raise UnstatedError("learning rate or schedule")
    if warmup and at <= warmup:
        # warm-up starts at zero or at the lowest rate, and counts from step 0 or 1; all are common
        begin = [a + (s.learning_rate - a) * (at - c) / warmup for a in (0.0, low) for c in (0, 1)]
        return min(begin), max(begin), f"warm-up, step {at:g} of {warmup}"
    if s.schedule == "cosine" and s.steps:
        share = min(1.0, (at - warmup) / (s.steps - warmup))
        rate = low + (s.learning_rate - low) * float(cosine(share))
        return exactly(rate, f"cosine at {format_percent(share)}")
    return exactly(s.learning_rate, "constant")


def _batch(q: Question, to: Any) -> tuple[float, float, int]:
    """Return whether another batch fits (0, 1, or 0.5 for unsure), its gain in throughput, and its size.

    By default, the other batch is twice as large.
    """
    s = q.setup
    if s.micro_batch is None:
        raise UnstatedError("the batch")
    target = int(to.middle if to else 2 * s.micro_batch)
    here, there = run.expected(q), run.expected(q, replace(s, micro_batch=target, step_tokens=None))
    if not (here and there and here.tokens_per_second and there.tokens_per_second):
        raise UnstatedError("the GPU or the shape, without which no curve of throughput can be drawn,")
    fit = 0.0 if there.fits is False else 1.0 if there.plannable else 0.5
    return fit, there.tokens_per_second.value / here.tokens_per_second.value - 1, target


@FUNCTIONS.add
def batch_fit(q: Question, to: Any) -> Known:
    """Return whether another batch fits: 0, 1, or 0.5 if that is unsure."""
    fit, _, target = _batch(q, to)
    return exactly(fit, f"batch {target}")


@FUNCTIONS.add
def batch_gain(q: Question, to: Any) -> Known:
    """Return how much more throughput another batch gives."""
    _, gain, target = _batch(q, to)
    more = f"{format_percent(max(gain, 0.0))} more throughput at batch {target}"
    return exactly(gain, f"{more}, by the model's own curve")


@FUNCTIONS.add
def phases_apart(q: Question, one: Any, other: Any) -> Known:
    """Return whether two runs are in different phases of their schedules."""
    problem = phase_problem([phase and phase.middle for phase in (one, other)])
    return exactly(problem is not None, problem or "one phase of the schedule")


@FUNCTIONS.add
def perplexity_of(q: Question, loss: Any) -> Known:
    """Return a loss, with its perplexity in words."""
    log10 = loss.middle / math.log(10)
    return loss.low, loss.high, f"{10 ** (log10 % 1):.1f}e{math.floor(log10)}"


@FUNCTIONS.add
def mean_of(q: Question, column: str, first: Any, last: Any) -> Known:
    """Return the mean of a printed column between two steps."""
    start, end = first.low if first else -math.inf, last.low if last else math.inf
    pairs: Sequence[tuple[Any, Any]] = list(zip(q.card.column("step"), q.card.column(column), strict=False))
    chosen = [number for step, number in pairs if number is not None and start <= (step or 0) <= end]
    if not chosen:
        raise UnstatedError(f"no {column} between these steps")
    return exactly(sum(chosen) / len(chosen), f"mean of {len(chosen)} printed values")


@FUNCTIONS.add
def loss_at(q: Question, step: Any) -> Known:
    """Return the printed loss of a step."""
    loss = dict(zip(q.card.column("step"), q.card.column("loss"), strict=False)).get(step.low)
    if loss is None:
        raise UnstatedError(f"a printed row of step {step.low:g}")
    return exactly(loss, f"its own row of step {step.low:g}")


@FUNCTIONS.add
def clipped_share(q: Question) -> Known:
    """Return the share of the printed steps whose gradient was clipped."""
    norms, clip = run.column(q, "grad_norm"), q.setup.grad_clip
    if not norms or clip is None:
        raise UnstatedError("threshold or norms")
    share = sum(norm > clip for norm in norms) / len(norms)
    return exactly(share, f"{len(norms)} printed norms against {clip:g}")


@FUNCTIONS.add
def steps_trained(q: Question) -> Known:
    """Return the step at which the claim's own words say that a loss was read; 1 if they name none."""
    named = _STEP.search(f"{q.claim.quote} {q.claim.text}")
    step = float(named[1]) if named else 1.0
    return exactly(step, f"{step:g}")
