"""The functions of the expressions in `kinds.yaml`, by their names there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import yaml

from advisor.auditing import run
from advisor.auditing.card import gpus_meant
from advisor.auditing.counts import VOCABULARIES
from advisor.auditing.facts import SPARSE, GpuQuantities, dense_peak, half
from advisor.auditing.quantity import ClaimedQuantity
from advisor.auditing.verdict import Known, Question, UnstatedError, between, exactly, show_as
from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.hardware.offers import cheapest_offer
from advisor.hardware.prices import load_prices
from advisor.laws import initial_loss
from advisor.laws.annealing import cosine, phase_problem
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of, chance_interval
from advisor.prediction.loss import effective_tokens
from advisor.store.folders import profiles_folder
from advisor.units import format_count, format_flops, format_percent

# (bits, exponent bits, explicit mantissa bits): IEEE 754 for fp32 and fp16; bfloat16; NVIDIA's TF32
FORMATS = {"fp32": (32, 8, 23), "tf32": (19, 8, 10), "bf16": (16, 8, 7), "fp16": (16, 5, 10)}
_NVLINK = re.compile(r"nvlink\d\S* (\d+(?:\.\d+)?)")
_LN_10 = math.log(10)
_CLOSE = 0.08  # relative difference to a data sheet's number: editions, binary units, roundings
_PAGES = ("<?xml", "<!doctype", "<html", "<error")
_STEP = re.compile(r"\b(?:step|iter(?:ation)?s?)\W{0,3}(\d+)", re.IGNORECASE)


def _bandwidth(spec: GpuSpec) -> float | None:
    return spec.memory_bytes_per_second


def _for_money(figure: Callable[[GpuSpec], float | None]) -> Callable[[GpuSpec], float | None]:
    """Return a figure per dollar per hour, at the cheapest listed price."""

    def result(spec: GpuSpec) -> float | None:
        offer, value = cheapest_offer(spec.key), figure(spec)
        return value / offer.usd_per_gpu_hour if value and offer and offer.usd_per_gpu_hour else None

    return result


def _nearest(value: ClaimedQuantity | None, figures: Sequence[float], show: Callable[[float], str], of: str) -> Known:
    """Return the figure that is nearest to the claim, of several that a name can mean."""
    if value is None or not figures:
        raise UnstatedError(f"a figure of {of}")
    nearest = min(figures, key=lambda one: abs(one - value.middle))
    return exactly(nearest, f"catalog: {', '.join(dict.fromkeys(map(show, sorted(figures))))}")


@cache
def _trainings() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    """Return every training of profiles/trainings.yaml with the pattern of its names."""
    rows = yaml.safe_load((profiles_folder() / "trainings.yaml").read_text(encoding="utf-8"))
    around = r"(?<![\w.-])(?:{})(?![\w.]|-\d|-[A-Z])"
    return tuple((re.compile(around.format("|".join(row["names"])), re.IGNORECASE), row) for row in rows)


def _positive(term: Any) -> Known:
    if term.low <= 0:
        raise UnstatedError("a number above zero")
    return term.low, term.high, term.text


def _applied(function: Callable[..., float], name: str) -> Callable[..., Known]:
    def result(*terms: Any) -> Known:
        low, high = (function(*ends) for ends in list(zip(*map(_positive, terms), strict=True))[:2])
        return min(low, high), max(low, high), f"{name} {', '.join(t.text for t in terms)}"

    return result


def _problem(words: str | None) -> Known:
    return exactly(words is not None, words or "one phase of the schedule")


def _opens_a_page(opening: str | None) -> Known:
    if opening is None:
        raise UnstatedError("how the file begins")
    return exactly(opening.lstrip().lower().startswith(_PAGES), f"begins with {opening[:20]!r}")


def _number_of(name: str, number: Callable[[int, int], float]) -> Known:
    _, exponent, mantissa = FORMATS[name]
    return exactly(number(exponent, mantissa), f"{name}: {exponent} exponent + {mantissa} mantissa bits")


_OF_TERMS: dict[str, Callable[..., Known]] = {
    "positive": _positive,
    "opens_a_page": _opens_a_page,
    "ln": _applied(math.log, "ln"),
    "root": _applied(math.sqrt, "√"),
    "span": lambda low, high: (low.low, high.high, f"{low.low:.4g}-{high.high:.4g}"),
    "smaller_of": lambda a, b: (min(a.low, b.low), min(a.high, b.high), f"{min(a.high, b.high):.3g}"),
    "least_of": lambda many: min((t.low, t.high, t.text) for t in many),
    "most_of": lambda many: max((t.low, t.high, t.text) for t in many),
    "sum_of": lambda many: (sum(t.low for t in many), sum(t.high for t in many), " + ".join(t.text for t in many)),
    "nearest_of": lambda term, *ends: exactly(min(abs(term.middle - end.low) for end in ends), term.text),
    "lower_end": lambda term: exactly(term.low, term.text),
    "upper_end": lambda term: exactly(term.high, term.text),
    "distance": lambda t: (max(0.0, t.low, -t.high), max(abs(t.low), abs(t.high)), t.text),  # from zero
    "is_larger": lambda one, other: exactly(one.low > other.high),
    "largest": lambda name: _number_of(name, lambda e, m: (2 - 2.0**-m) * 2.0 ** (2 ** (e - 1) - 1)),
    # subnormal; half of it becomes zero
    "smallest": lambda name: _number_of(name, lambda e, m: 2.0 ** (2 - 2 ** (e - 1) - m)),
    # all weights are trained, on so many tokens that start-up and evaluation hardly count
    "whole_training": lambda tokens, how: exactly(tokens is not None and tokens.low >= 1e9 and how != "adapters"),
    "phases_apart": lambda one, other: _problem(phase_problem([phase and phase.middle for phase in (one, other)])),
    # its perplexity in words
    "perplexity_of": lambda loss: (
        loss.low,
        loss.high,
        f"{10 ** (loss.middle / _LN_10 % 1):.1f}e{math.floor(loss.middle / _LN_10)}",
    ),
    "worth_of": lambda tokens, epochs: exactly(
        effective_tokens(tokens.middle * epochs.middle, tokens.middle), f"{epochs.text} passes over {tokens.text}"
    ),
}


def result_of(q: Question, name: str, terms: Iterable[Any]) -> Known:
    """Return the result of a function. Raises UnstatedError if nobody states what it needs."""
    return _OF_TERMS[name](*terms) if name in _OF_TERMS else getattr(_Functions(q), name)(*terms)


class _Functions:
    """The functions that need more than their terms: the claim, its run or its GPU."""

    def __init__(self, q: Question) -> None:
        self.q, self.s, self.value, self.gpus = q, q.setup, q.get("value"), GpuQuantities(q).specs

    def _ratios(self, than: str, figures: Sequence[Callable[[GpuSpec], float | None]]) -> tuple[float, float]:
        """Return the smallest and the largest ratio of figures between any editions of two GPUs."""
        found = [
            mine / its
            for one in self.gpus for other in gpus_meant(than) for figure in figures
            if (mine := figure(one)) and (its := figure(other))
        ]  # fmt: skip
        if not found:
            raise UnstatedError("one of the GPUs, or its price,")
        return min(found), max(found)

    def peak_ratio(self, than: str) -> Known:
        low, high = self._ratios(than, (half,))
        return low / SPARSE, high * SPARSE, "16-bit peaks, either of them dense or sparse"

    def money_ratio(self, than: str) -> Known:
        low, high = self._ratios(than, (_for_money(half), _for_money(_bandwidth)))
        return low, high, "peak and bandwidth for a dollar"

    def rank_correlation(self, ours: Sequence[Any], over: Sequence[Any]) -> Known:
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

    def speed_ratio(self, than: str) -> Known:
        """Return the ratios of bandwidth and 16-bit peak. If the claim names its GPU, FP8 and software count too."""
        low, high = self._ratios(than, (_bandwidth, half))
        if self.q.get("gpu"):
            eights = [f / h for c in self.gpus for o in gpus_meant(than) if (f := c.fp8_flops) and (h := half(o))]
            high = 1.3 * max([high, *eights])
        return low, high, "peak or bandwidth of one over the other"

    def peak_in(self, precision: str) -> Known:
        """Return the peak of the run's GPU in a format."""
        spec = run.spec_of(self.s)
        other = {"fp32": spec.fp32_flops, "tf32": spec.tf32_flops} if spec else {}
        rate = other[precision] if precision in other else peak_flops(spec, precision) if spec else None
        if rate is None:
            raise UnstatedError("the GPU, or its rate in that format,")
        return exactly(rate, f"{precision} {format_flops(rate)}")

    def have_memory(self, gpu: str, other: str, memory: Any) -> Known:
        """Return 1 if both GPUs have this much memory. Raises UnstatedError if one does not."""
        for name in (gpu, other):
            sizes = [spec.memory_gb * 1e9 for spec in gpus_meant(name)]
            if not any((1 - _CLOSE) * size <= memory.high and memory.low <= (1 + _CLOSE) * size for size in sizes):
                raise UnstatedError(f"{name} with {memory.text}")
        return exactly(1.0)

    def catalog(self, fact: str, count: Any) -> Known:
        """Return a data sheet's figure times the number of GPUs, for the edition that is nearest to the claim."""
        figures: dict[str, Callable[[GpuSpec], Sequence[float | None]]] = {
            "memory": lambda spec: (spec.memory_gb * 1e9, float(spec.memory_bytes)),
            "bandwidth": lambda spec: (spec.memory_bytes_per_second,),
            "power": lambda spec: (spec.tdp_watts,),
            # both directions, also of bridges
            "link": lambda spec: [k * float(rate) for rate in _NVLINK.findall(spec.interconnect) for k in (5e8, 1e9)],
        }
        number, value = count.middle if count else 1.0, self.value
        found = [number * one for spec in self.gpus for one in figures[fact](spec) if one]
        show = show_as(value.dimension if value else "count", value)
        return _nearest(value, found, show, str(self.q.get("gpu") or self.s.gpu))

    def has(self, fact: str) -> Known:
        """Return whether a GPU is of the claimed architecture, or has (lacks, as claimed) matrix units of a format."""
        spec = next(iter(self.gpus), None)
        if spec is None:
            raise UnstatedError("the GPU")
        if fact == "architecture":
            right = spec.architecture.lower() in (self.q.get("words") or "").lower()
            return exactly(right, f"{spec.key} is {spec.architecture}")
        native = getattr(spec, f"{fact}_flops") is not None
        right = native == (self.q.get("native") is not False)
        return exactly(right, f"{spec.key} has {'' if native else 'no '}{fact} matrix units")

    def peak_sense(self, count: Any) -> Known:
        """Return in which sense a number is a peak: 0 dense, 1 with sparsity, 2 another rate of the GPU, 3 none."""
        value, precision, number = self.value, self.q.get("precision"), count.middle if count else 1.0
        dense = [number * rate for spec in self.gpus if (rate := dense_peak(spec, precision))]
        if not dense or value is None:
            raise UnstatedError("such a rate of the GPU")
        shaders = [number * spec.fp32_flops for spec in self.gpus if spec.fp32_flops]
        shader = any(value.admits(1.9 * rate, 2.1 * rate) for rate in shaders)
        halved = any(
            spec.generation.endswith("half-rate") for spec in self.gpus
        )  # sums in fp16 have twice the dense rate
        rates = [(s.fp32_flops, s.tf32_flops, half(s), s.fp8_flops, s.bf16_flops) for s in self.gpus]
        senses = (1, SPARSE, 4)[: 2 if precision else 3]
        every = [number * rate * k for one in rates for rate in one if rate for k in senses]
        far_below = number > 1 and 1.25 * value.high < 0.45 * min(dense)  # less than the rate of half as many GPUs
        if any(value.admits(0.97 * rate, 1.03 * rate) for rate in dense):
            sense = 0.0
        elif any(value.admits(0.97 * SPARSE * r, 1.03 * SPARSE * r) for r in dense) and not shader and not halved:
            sense = 0.0 if self.q.get("sparse") else 1.0
        else:
            sense = 2.0 if not far_below and any(value.admits(0.93 * r, 1.07 * r) for r in every) else 3.0
        return exactly(sense, f"{between((min(dense), max(dense)), format_flops)} dense")

    def machine_size(self, fact: str) -> Known:
        """Return processors or RAM of the named machine type, or of any machine with these GPUs that fits the claim."""
        value, keys = self.value, {spec.key for spec in self.gpus}
        rows = [row for row in load_prices() if row.gpu in keys and row.gpu_count == self.s.gpus]
        named = [row for row in rows if row.instance_type == self.s.machine]
        figures = [row.vcpus if fact == "vcpus" else row.ram_gb and row.ram_gb * 1e9 for row in named or rows]
        sizes = [size for size in figures if size and value and (named or value.admits(size))]
        return _nearest(value, sizes, show_as("count"), "the machine type")

    def machine_has(self, name: str, gpu: str, count: Any) -> Known:
        """Return whether a machine type has the claimed GPUs."""
        rows = [row for row in load_prices() if row.instance_type.lower() == name.lower() and row.gpu]
        if not rows:
            raise UnstatedError(f"a machine {name}")
        listed, keys = {(row.gpu, row.gpu_count) for row in rows}, {spec.key for spec in gpus_meant(gpu)}
        right = any(key in keys and count.low <= number <= count.high for key, number in listed)
        return exactly(right, f"a {name} has {', '.join(f'{number:g} × {key}' for key, number in sorted(listed))}")

    def relates(self, name: str, fact: str) -> Known:
        """Return True if one format has the claimed range or precision compared with the other format."""
        other = self.q.get("as")
        if other is None:
            raise UnstatedError("a format to compare it with")
        mine, its = (FORMATS[one][1 if fact == "range" else 2] for one in (name, other))
        relation = "same" if mine == its else "more" if mine > its else "less"
        link = "as" if relation == "same" else "than"
        right = relation == (self.q.get("relation") or "same")
        return exactly(right, f"{name} has {relation} {fact} {link} {other}: {mine} against {its} bits")

    def bits_of(self, name: str) -> Known:
        """Return the bits of a number format, or its bytes if the claim states bytes."""
        value, bits = self.value, float(FORMATS[name][0])
        in_bytes = value is not None and value.dimension == "bytes"
        return exactly(bits / 8, f"bytes of {name}") if in_bytes else exactly(bits, f"bits of {name}")

    def published(self, name: str, fact: str) -> Known:
        """Return the published tokens or GPU-hours of a training, or whether its GPU is the claimed one."""
        matches = [(pattern.search(name), row) for pattern, row in _trainings()]
        row = max(((len(match[0]), at, row) for at, (match, row) in enumerate(matches) if match), default=({},))[-1]
        if fact != "gpu":
            figures = [float(number) for number in row.get(fact, ())]
            nearest, _, _ = _nearest(self.value, figures, format_count, f"the training of {name}")
            return exactly(nearest, f"{name}: {row['source']}")
        claimed, names = self.q.get("words"), row.get("gpus", ())
        if claimed is None or not names:
            raise UnstatedError(f"the GPU of {name}")
        right = any(claimed.upper().startswith(one.upper()) for one in names)
        return exactly(right, f"{name} was trained on {' or '.join(names)} ({row['source']})")

    def fault_above(self, first: Any) -> Known:
        """Return the highest plausible first loss, and a text that explains a higher one."""
        s, base = self.s, run.RunQuantities(self.q).uniform_loss()
        least = (base[0] if base else math.log(VOCABULARIES[1])) + initial_loss.FAULT_ABOVE
        if base is None or s.vocab_size is None:
            return exactly(least, "over any vocabulary in use")
        sizes: Mapping[str, float | None] = {"batch": s.micro_batch, "sequence length": s.seq_len}
        sums = initial_loss.summed_over(first.middle, s.vocab_size, sizes)
        found = [f"summed over {one.name} ({first.middle / one.count:.2f} each)" for one in sums]
        parts = [(1.0, ""), *((one.count, f", summed over {one.name}") for one in initial_loss.divisors(sizes))]
        for count, words in parts if s.width and s.vocab_size > 1 else ():
            if initial_loss.is_unscaled(first.middle / count, s.width or 0, s.vocab_size):
                unscaled = initial_loss.unscaled_loss(s.width or 0, s.vocab_size)
                about = f"weights of unit variance give about {unscaled:.0f}"
                found.append(f"{about}{words}" + (f" ({first.middle / count:.0f} each)" if words else ""))
        if first.middle < 13 and not found:
            found.append(f"it would be right for a vocabulary of {math.exp(first.middle):,.0f}")
        return exactly(least, "; or ".join(found) or "no single factor explains it")

    def chance(self, task: str, items: Any) -> Known:
        """Return the score of guessing on a test set, with its 95 % interval."""
        name = benchmark_of(task)
        if name is None:
            raise UnstatedError(f"the chance level of {task}")
        test = replace(BENCHMARKS[name], questions=round(items.middle)) if items else BENCHMARKS[name]
        low, high = chance_interval(test)
        return low, high, f"chance {format_percent(test.chance)} ± {format_percent(test.standard_error)}"

    def scheduled_rate(self, step: Any) -> Known:
        """Return the declared schedule at a step: linear warm-up, then cosine to the end."""
        s, at = self.s, step.low
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

    def _batch(self, to: Any) -> tuple[float, float, int]:
        """Return whether another batch fits (0, 1, or 0.5 for unsure), its gain in throughput, and its size.

        By default, the other batch is twice as large.
        """
        s = self.s
        if s.micro_batch is None:
            raise UnstatedError("the batch")
        target = int(to.middle if to else 2 * s.micro_batch)
        here, there = run.expected(self.q), run.expected(self.q, replace(s, micro_batch=target, step_tokens=None))
        if not (here and there and here.tokens_per_second and there.tokens_per_second):
            raise UnstatedError("the GPU or the shape, without which no curve of throughput can be drawn,")
        fit = 0.0 if there.fits is False else 1.0 if there.plannable else 0.5
        return fit, there.tokens_per_second.value / here.tokens_per_second.value - 1, target

    def batch_fit(self, to: Any) -> Known:
        """Return whether another batch fits: 0, 1, or 0.5 if that is unsure."""
        fit, _, target = self._batch(to)
        return exactly(fit, f"batch {target}")

    def batch_gain(self, to: Any) -> Known:
        """Return how much more throughput another batch gives."""
        _, gain, target = self._batch(to)
        more = f"{format_percent(max(gain, 0.0))} more throughput at batch {target}"
        return exactly(gain, f"{more}, by the model's own curve")

    def mean_of(self, column: str, first: Any, last: Any) -> Known:
        """Return the mean of a printed column between two steps."""
        start, end = first.low if first else -math.inf, last.low if last else math.inf
        pairs: Sequence[tuple[Any, Any]] = list(
            zip(self.q.card.column("step"), self.q.card.column(column), strict=False)
        )
        chosen = [number for step, number in pairs if number is not None and start <= (step or 0) <= end]
        if not chosen:
            raise UnstatedError(f"no {column} between these steps")
        return exactly(sum(chosen) / len(chosen), f"mean of {len(chosen)} printed values")

    def loss_at(self, step: Any) -> Known:
        """Return the printed loss of a step."""
        loss = dict(zip(self.q.card.column("step"), self.q.card.column("loss"), strict=False)).get(step.low)
        if loss is None:
            raise UnstatedError(f"a printed row of step {step.low:g}")
        return exactly(loss, f"its own row of step {step.low:g}")

    def clipped_share(self) -> Known:
        """Return the share of the printed steps whose gradient was clipped."""
        norms, clip = run.column(self.q, "grad_norm"), self.s.grad_clip
        if not norms or clip is None:
            raise UnstatedError("threshold or norms")
        share = sum(norm > clip for norm in norms) / len(norms)
        return exactly(share, f"{len(norms)} printed norms against {clip:g}")

    def steps_trained(self) -> Known:
        """Return the step at which the claim says that a loss was read, or 1 if it names none."""
        named = _STEP.search(f"{self.q.claim.quote} {self.q.claim.text}")
        step = float(named[1]) if named else 1.0
        return exactly(step, f"{step:g}")
