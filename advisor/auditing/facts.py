"""Facts from outside a claim: its configuration, GPUs, prices, number formats, published trainings."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import yaml

from advisor.auditing import run
from advisor.auditing.fields import gpus_meant
from advisor.auditing.quantity import ClaimedQuantity, parse_quantity
from advisor.auditing.verdict import Known, Question, UnstatedError, between, show_as
from advisor.hardware.catalog import GpuSpec, load_gpus, peak_flops
from advisor.hardware.offers import cheapest_offer
from advisor.hardware.prices import load_prices
from advisor.laws.flops import IMPOSSIBLE_MFU
from advisor.laws.initial_loss import FAULT_BELOW, SOUND
from advisor.prediction.loss import FREE_EPOCHS, WASTEFUL_EPOCHS, effective_tokens
from advisor.store.folders import profiles_folder
from advisor.units import format_bandwidth, format_bytes, format_count, format_flops, format_usd_rate

SPARSE = 2.0  # vendors print twice the dense rate, for 2:4 sparsity, which training does not use
PRICES = (0.3, 2.5)  # factors on the cheapest and the most expensive listed price: lists age, spot and contracts differ
# FLOPs per parameter and token: 4 if only adapters are trained, 6 in full training, 8.5 if every activation is computed
# twice, with attention (sources §1.2). In a small model, some parameters are a lookup table, which costs none (§1.1).
_FLOPS_EACH = {"full": (6.0, 8.5), "adapters": (4.0, 8.5)}
_WITH_ATTENTION = 7.2  # of full training, nothing computed twice, at up to the usual context
_USUAL_CONTEXT, _MOST_LAYERS = 4096, 100
_SMALL_MODEL, _LOOKED_UP, _MOSTLY_TABLES = 3e9, 0.7, 0.5
_NVLINK = re.compile(r"nvlink\d\S* (\d+(?:\.\d+)?)")  # of the catalog: both directions, also of bridges
# (bits, exponent bits, explicit mantissa bits): IEEE 754 for fp32 and fp16; bfloat16; NVIDIA's TF32
FORMATS = {"fp32": (32, 8, 23), "tf32": (19, 8, 10), "bf16": (16, 8, 7), "fp16": (16, 5, 10)}
_AVERAGED = ("Ampere", "Ada", "Hopper", "Blackwell")  # power over one second, GA100 excepted (NVML documentation)
# how a report says that a price is for one GPU, or for all of them
_EACH = re.compile(r"(?:/|\bper|\ban?)[ -]?(?:\w+[ -])?(?:GPU|card)\b|\beach\b|GPU[- ]?(?:hour|hr|h)\b", re.IGNORECASE)
_WHOLE = re.compile(
    r"\b(?:machine|node|instance|server|box|cluster|VM|pod|rig|workstation|together|in (?:all|total))s?\b"
    r"|\d\s?[x×]\s?[A-Z]+\d",
    re.IGNORECASE,
)
# limits shared with the findings about logs
_LIMITS = {"impossible_mfu": IMPOSSIBLE_MFU, "fault_below": FAULT_BELOW, "sound_start": SOUND}
_LIMITS |= {"free_epochs": FREE_EPOCHS, "wasteful_epochs": WASTEFUL_EPOCHS}
_CLOSE = 0.08  # relative difference to a data sheet's number: editions, binary units, roundings


def quantity_of(number: float) -> ClaimedQuantity:
    """Return a plain number as a claim would state it."""
    return parse_quantity(f"{number:.12g}")


def known(q: Question, name: str, *, alone: bool) -> Known | None:
    """Return a limit, a quantity of the claim's GPU or (not with `alone`) of its run; None if it is unknown."""
    if name in _LIMITS:
        return _LIMITS[name], _LIMITS[name], f"{_LIMITS[name]:g}"
    found = _OF_GPU[name](q) if name in _OF_GPU else None
    if found is not None or alone:
        return found or ((1.0, 1.0, "1") if name == "gpus" else None)
    return run.NODES[name](q) if name in run.NODES else run.declared(q, name)


def _is_of_run(q: Question) -> bool:
    """Return True if a claim names no GPU other than that of its configuration."""
    return q.get("gpu") is None or any(spec in gpus_meant(q.get("gpu")) for spec in _gpus_of_run(q))


def gpus_of(q: Question) -> list[GpuSpec]:
    """Return every GPU that the claim can mean: by the name that it states, or else that of its configuration."""
    return gpus_meant(q.get("gpu")) if q.get("gpu") else _gpus_of_run(q)


def _gpus_of_run(q: Question) -> list[GpuSpec]:
    """Return the GPU of the claim's configuration, or all its forms if the name leaves the form open."""
    spec = run.spec_of(q.setup)
    return [spec] if spec else gpus_meant(q.setup.gpu) if q.setup.gpu else []


def peak_in(spec: GpuSpec, precision: str | None) -> float | None:
    """Return the dense peak in a format, or the 16-bit peak if the format is unnamed or has no rate of its own."""
    if precision in ("fp32", "tf32"):
        return spec.fp32_flops if precision == "fp32" else spec.tf32_flops
    own = {"fp8": spec.fp8_flops, "fp16": spec.fp16_flops}.get(precision or "")
    return own or half(spec)


def half(spec: GpuSpec) -> float | None:
    """Return the dense peak of the 16-bit format in which the GPU trains."""
    return spec.bf16_flops or spec.fp16_flops


def _peak(q: Question) -> Known | None:
    specs = gpus_of(q)
    if q.get("gpu") is None:
        rates = [rate for spec in specs if (rate := run.peak(spec, q.setup.precision))]
    else:
        rates = [rate for spec in specs if (rate := peak_in(spec, q.get("precision")))]
    # products in FP8 are often compared with the 16-bit peak
    rates += [rate for spec in specs if q.get("precision") == "fp8" and (rate := half(spec))]
    return (min(rates), max(rates), f"{between((min(rates), max(rates)), format_flops)} dense") if rates else None


def _figure(
    figure: Callable[[GpuSpec], float | None], show: Callable[[float], str]
) -> Callable[[Question], Known | None]:
    def found(q: Question) -> Known | None:
        values = [value for spec in gpus_of(q) if (value := figure(spec))]
        return (min(values), max(values), between((min(values), max(values)), show)) if values else None

    return found


def _rents(specs: Sequence[GpuSpec], machine: str | None = None) -> list[tuple[float, GpuSpec]]:
    """Return each listed price per hour of one GPU, with the GPU; only the machine type's prices if it is listed."""
    keys = {spec.key: spec for spec in specs}
    rows = [row for row in load_prices() if row.gpu in keys and row.on_demand_usd_per_hour and row.gpu_count]
    rows = [row for row in rows if row.instance_type == machine] or rows
    return [((row.on_demand_usd_per_hour or 0.0) / row.gpu_count, keys[row.gpu]) for row in rows]


def _listed_rent(q: Question) -> Known | None:
    rents = sorted(rent for rent, _ in _rents(gpus_of(q), q.setup.machine if q.get("gpu") is None else None))
    if not rents:
        return None
    words = f"{between((rents[0], rents[-1]), format_usd_rate)}/h as listed, {PRICES[0]:g} to {PRICES[1]:g} times that"
    return PRICES[0] * rents[0], PRICES[1] * rents[-1], words


def _price(q: Question) -> Known | None:
    """Return the price that the claim states, or that of its configuration unless the claim is about another GPU."""
    price = q.get("price") or (q.setup.price if _is_of_run(q) else None)
    return (price.low, price.high, price.text) if price else None


def _price_of_all(q: Question) -> Known | None:
    """Return the same price if the words or the configuration say that it is for all GPUs together."""
    words = f"{q.claim.quote} {q.claim.text}"
    said = _WHOLE.search(words) and not _EACH.search(words)
    of_run = q.get("price") is None and q.setup.price_of == "machine"
    return _price(q) if said or of_run else None


def _gpus_paid(q: Question) -> Known:
    """Return the GPUs that the claim states, or those of its configuration unless the claim is about another GPU."""
    if (stated := q.get("gpus")) and not q.get("per_gpu"):
        return stated.low, stated.high, stated.text
    count = q.setup.gpus if _is_of_run(q) and not q.get("per_gpu") else 1
    return float(count), float(count), f"{count}"


def _rent_per_flop(q: Question) -> Known | None:
    """Return the lowest possible price of a FLOP: 0.3 of the lowest price over the whole peak, of the cheapest GPU."""
    specs = gpus_of(q) if q.get("gpu") else list(load_gpus().values())
    each = [(rent / peak, spec.key) for rent, spec in _rents(specs) if (peak := peak_in(spec, "fp8"))]
    if not each:
        return None
    least = PRICES[0] * min(each)[0] / 3600
    return least, least, f"{PRICES[0]:g} of the lowest listed price of {min(each)[1]} by its peak"


def _power_hertz(q: Question) -> Known | None:
    spec = next(iter(gpus_of(q)), None)
    if spec is None:
        return None
    averaged = spec.architecture in _AVERAGED and not spec.key.startswith(("a100", "a30"))
    return (1.0, 1.0, "one reading a second") if averaged else (0.0, math.inf, "as fast as it is sampled")


def _memory_of_value(q: Question) -> Known | None:
    """Return the memory that a claim states, or else that of the largest GPU."""
    value = q.get("value")
    if value is not None:
        return value.least, value.most, value.text
    largest = max(spec.memory_gb for spec in load_gpus().values()) * 1e9
    return largest, largest, "the largest GPU"


_OF_GPU: dict[str, Callable[[Question], Known | None]] = {
    "peak": _peak,
    "bf16_peak": _figure(lambda spec: spec.bf16_flops, format_flops),
    "bandwidth": _figure(lambda spec: spec.memory_bytes_per_second, format_bandwidth),
    "device_memory": _figure(lambda spec: float(spec.memory_bytes), format_bytes),
    "device_bytes": _figure(lambda spec: spec.memory_gb * 1e9, show_as("bytes")),
    "listed_rent": _listed_rent,
    "listed_rent_per_flop": _rent_per_flop,
    "power_hertz": _power_hertz,
    "memory_of_value": _memory_of_value,
    "price": lambda q: _price(q),
    "gpus_paid": _gpus_paid,
    "price_of_all": _price_of_all,
    "rent_without_price": lambda q: None if _price(q) else _listed_rent(q),
    "flops_each": lambda q: _flops_each(q),
}


def _flops_each(q: Question) -> Known:
    least, most = _FLOPS_EACH[q.get("method") or "full"]
    size = q.get("parameters")
    if q.get("mfu") is not None:  # it counts the model's FLOPs once, with attention
        most = _WITH_ATTENTION
    seq_len = q.setup.seq_len or 0
    if size is not None and seq_len > _USUAL_CONTEXT:  # the narrowest model of this size: attention adds T / 6d
        most *= 1 + seq_len / (6 * math.sqrt(size.middle / (12 * _MOST_LAYERS)))
    if size is not None and size.middle < _SMALL_MODEL:
        least *= _MOSTLY_TABLES if q.get("tables") else _LOOKED_UP
    return least, most, f"{least:g}-{most:g} FLOP"


def _rank_correlation(q: Question, ours: Sequence[Any], over: Sequence[Any]) -> Known:
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
    return related, related, f"rank correlation of {len(ours)} pairs"


def _ratios(figures: Sequence[Callable[[GpuSpec], float | None]], q: Question, than: str) -> tuple[float, float]:
    """Return the smallest and the largest ratio of figures between any editions of two GPUs."""
    found = [
        mine / its
        for one in gpus_of(q) for other in gpus_meant(than) for figure in figures
        if (mine := figure(one)) and (its := figure(other))
    ]  # fmt: skip
    if not found:
        raise UnstatedError("one of the GPUs, or its price,")
    return min(found), max(found)


def _speed_ratio(q: Question, than: str) -> Known:
    """Return the ratios of bandwidth and 16-bit peak. If the claim names its GPU, FP8 and software count too."""
    low, high = _ratios((lambda spec: spec.memory_bytes_per_second, half), q, than)
    if q.get("gpu"):
        eights = [f / h for c in gpus_of(q) for o in gpus_meant(than) if (f := c.fp8_flops) and (h := half(o))]
        high = 1.3 * max([high, *eights])
    return low, high, "peak or bandwidth of one over the other"


def _peak_ratio(q: Question, than: str) -> Known:
    low, high = _ratios((half,), q, than)
    return low / SPARSE, high * SPARSE, "16-bit peaks, either of them dense or sparse"


def _for_money(figure: Callable[[GpuSpec], float | None]) -> Callable[[GpuSpec], float | None]:
    """Return a figure per dollar per hour, at the cheapest listed price."""

    def found(spec: GpuSpec) -> float | None:
        offer, value = cheapest_offer(spec.key), figure(spec)
        return value / offer.usd_per_gpu_hour if value and offer and offer.usd_per_gpu_hour else None

    return found


def _money_ratio(q: Question, than: str) -> Known:
    low, high = _ratios((_for_money(half), _for_money(lambda spec: spec.memory_bytes_per_second)), q, than)
    return low, high, "peak and bandwidth for a dollar"


def _peak_of_format(q: Question, precision: str) -> Known:
    spec = run.spec_of(q.setup)
    other = {"fp32": spec.fp32_flops, "tf32": spec.tf32_flops} if spec else {}
    rate = other[precision] if precision in other else peak_flops(spec, precision) if spec else None
    if rate is None:
        raise UnstatedError("the GPU, or its rate in that format,")
    return rate, rate, f"{precision} {format_flops(rate)}"


def _have_memory(q: Question, gpu: str, other: str, memory: Any) -> Known:
    """Return 1 if both GPUs have this much memory. Raises UnstatedError if one does not."""
    for name in (gpu, other):
        sizes = [spec.memory_gb * 1e9 for spec in gpus_meant(name)]
        if not any((1 - _CLOSE) * size <= memory.high and memory.low <= (1 + _CLOSE) * size for size in sizes):
            raise UnstatedError(f"{name} with {memory.text}")
    return 1.0, 1.0, ""


def _positive(q: Question, term: Any) -> Known:
    if term.low <= 0:
        raise UnstatedError("a number above zero")
    return term.low, term.high, term.text


def _whole_training(q: Question, tokens: Any, method: str | None) -> Known:
    """Return 1 if all weights are trained on so many tokens that start-up and evaluation hardly count, else 0."""
    whole = float(tokens is not None and tokens.low >= 1e9 and method != "adapters")
    return whole, whole, ""


def _worth_of(q: Question, tokens: Any, epochs: Any) -> Known:
    worth = float(effective_tokens(tokens.middle * epochs.middle, tokens.middle))
    return worth, worth, f"{epochs.text} passes over {tokens.text}"


_PAGES = ("<?xml", "<!doctype", "<html", "<error")


def _opens_a_page(q: Question, opening: str | None) -> Known:
    if opening is None:
        raise UnstatedError("how the file begins")
    page = float(opening.lstrip().lower().startswith(_PAGES))
    return page, page, f"begins with {opening[:20]!r}"


def _applied(function: Callable[..., float], name: str) -> Callable[..., Known]:
    def found(q: Question, *terms: Any) -> Known:
        if any(t.low <= 0 for t in terms):
            raise UnstatedError("a number above zero")
        ends = sorted((function(*(t.low for t in terms)), function(*(t.high for t in terms))))
        return ends[0], ends[1], f"{name} {', '.join(t.text for t in terms)}"

    return found


def _distance(q: Question, term: Any) -> Known:
    ends = abs(term.low), abs(term.high)
    return 0.0 if term.low <= 0 <= term.high else min(ends), max(ends), term.text


def _nearest(value: ClaimedQuantity | None, figures: Sequence[float], show: Callable[[float], str], of: str) -> Known:
    """Return the figure that is nearest to the claim, of several that a name can mean."""
    if value is None or not figures:
        raise UnstatedError(f"a figure of {of}")
    nearest = min(figures, key=lambda one: abs(one - value.middle))
    return nearest, nearest, f"catalog: {', '.join(dict.fromkeys(map(show, sorted(figures))))}"


def _catalog(q: Question, fact: str, count: Any) -> Known:
    """Return a data sheet's figure times the number of GPUs, for the edition that is nearest to the claim."""
    figures: dict[str, Callable[[GpuSpec], Sequence[float | None]]] = {
        "memory": lambda spec: (spec.memory_gb * 1e9, float(spec.memory_bytes)),
        "bandwidth": lambda spec: (spec.memory_bytes_per_second,),
        "power": lambda spec: (spec.tdp_watts,),
        "link": lambda spec: [k * float(rate) * 1e9 for rate in _NVLINK.findall(spec.interconnect) for k in (0.5, 1.0)],
    }
    number, value = count.middle if count else 1.0, q.get("value")
    found = [number * one for spec in gpus_of(q) for one in figures[fact](spec) if one]
    return _nearest(
        value, found, show_as(value.dimension if value else "count", value), str(q.get("gpu") or q.setup.gpu)
    )


def _has(q: Question, fact: str) -> Known:
    """Return whether a GPU is of the claimed architecture, or has (or lacks, as claimed) matrix units of a format."""
    spec = next(iter(gpus_of(q)), None)
    if spec is None:
        raise UnstatedError("the GPU")
    if fact == "architecture":
        right = spec.architecture.lower() in (q.get("words") or "").lower()
        return float(right), float(right), f"{spec.key} is {spec.architecture}"
    native = getattr(spec, f"{fact}_flops") is not None
    right = native == (q.get("native") is not False)
    return float(right), float(right), f"{spec.key} has {'' if native else 'no '}{fact} matrix units"


def _peak_sense(q: Question, count: Any) -> Known:
    """Return in which sense a number is a peak: 0 dense, 1 with sparsity, 2 another rate of the GPU, 3 none."""
    value, precision, specs, number = q.get("value"), q.get("precision"), gpus_of(q), count.middle if count else 1.0
    dense = [number * rate for spec in specs if (rate := peak_in(spec, precision))]
    if not dense or value is None:
        raise UnstatedError("such a rate of the GPU")
    words = f"{between((min(dense), max(dense)), format_flops)} dense"
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
    return sense, sense, words


def _machine_size(q: Question, fact: str) -> Known:
    """Return processors or RAM of the named machine type, or of any machine with these GPUs that fits the claim."""
    value, keys = q.get("value"), {spec.key for spec in gpus_of(q)}
    rows = [row for row in load_prices() if row.gpu in keys and row.gpu_count == q.setup.gpus]
    named = [row for row in rows if row.instance_type == q.setup.machine]
    figures = [row.vcpus if fact == "vcpus" else row.ram_gb and row.ram_gb * 1e9 for row in named or rows]
    sizes = [size for size in figures if size and value and (named or value.admits(size))]
    return _nearest(value, sizes, show_as("count"), "the machine type")


def _machine_has(q: Question, name: str, gpu: str, count: Any) -> Known:
    rows = [row for row in load_prices() if row.instance_type.lower() == name.lower() and row.gpu]
    if not rows:
        raise UnstatedError(f"a machine {name}")
    held, keys = {(row.gpu, row.gpu_count) for row in rows}, {spec.key for spec in gpus_meant(gpu)}
    right = float(any(key in keys and count.low <= number <= count.high for key, number in held))
    return right, right, f"a {name} has {', '.join(f'{number:g} × {key}' for key, number in sorted(held))}"


def _largest(q: Question, name: str) -> Known:
    _, exponent, mantissa = FORMATS[name]
    largest = (2 - 2.0**-mantissa) * 2.0 ** (2 ** (exponent - 1) - 1)
    return largest, largest, f"{name}: {exponent} exponent + {mantissa} mantissa bits"


def _smallest(q: Question, name: str) -> Known:
    _, exponent, mantissa = FORMATS[name]
    smallest = 2.0 ** (2 - 2 ** (exponent - 1) - mantissa)  # subnormal; half of it becomes zero
    return smallest, smallest, f"{name}: {exponent} exponent + {mantissa} mantissa bits"


def _relates(q: Question, name: str, fact: str) -> Known:
    """Return whether a format has the claimed range or precision in comparison with another format."""
    other = q.get("as")
    if other is None:
        raise UnstatedError("a format to compare it with")
    mine, its = (FORMATS[one][1 if fact == "range" else 2] for one in (name, other))
    relation = "same" if mine == its else "more" if mine > its else "less"
    link = "as" if relation == "same" else "than"
    right = float(relation == (q.get("relation") or "same"))
    return right, right, f"{name} has {relation} {fact} {link} {other}: {mine} against {its} bits"


@cache
def trainings() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    """Return every training of profiles/trainings.yaml with the pattern of its names."""
    with (profiles_folder() / "trainings.yaml").open(encoding="utf-8") as file:
        rows = yaml.safe_load(file)
    around = r"(?<![\w.-])(?:{})(?![\w.]|-\d|-[A-Z])"
    return tuple((re.compile(around.format("|".join(row["names"])), re.IGNORECASE), row) for row in rows)


def _bits_of(q: Question, name: str) -> Known:
    """Return the bits of a number format, or its bytes if the claim states bytes."""
    value, bits = q.get("value"), float(FORMATS[name][0])
    in_bytes = value is not None and value.dimension == "bytes"
    return (bits / 8, bits / 8, f"bytes of {name}") if in_bytes else (bits, bits, f"bits of {name}")


def _published(q: Question, name: str, fact: str) -> Known:
    """Return the published tokens or GPU-hours of a training, or whether its GPU is the claimed one."""
    found = [(len(match[0]), at, row) for at, (names, row) in enumerate(trainings()) if (match := names.search(name))]
    row = max(found)[2] if found else {}
    if fact != "gpu":
        known = _nearest(q.get("value"), [float(n) for n in row.get(fact, ())], format_count, f"the training of {name}")
        return known[0], known[1], f"{name}: {row['source']}"
    said, names = q.get("words"), row.get("gpus", ())
    if said is None or not names:
        raise UnstatedError(f"the GPU of {name}")
    right = float(any(said.upper().startswith(one.upper()) for one in names))
    return right, right, f"{name} was trained on {' or '.join(names)} ({row['source']})"


FUNCTIONS: dict[str, Callable[..., Known]] = {
    "span": lambda q, low, high: (low.low, high.high, f"{low.low:.4g}-{high.high:.4g}"),
    "ln": _applied(math.log, "ln"),
    "root": _applied(math.sqrt, "√"),
    "distance": _distance,
    "smaller_of": lambda q, a, b: (min(a.low, b.low), min(a.high, b.high), f"{min(a.high, b.high):.3g}"),
    "least_of": lambda q, many: min((t.low, t.high, t.text) for t in many),
    "most_of": lambda q, many: max((t.low, t.high, t.text) for t in many),
    "sum_of": lambda q, many: (sum(t.low for t in many), sum(t.high for t in many), " + ".join(t.text for t in many)),
    "nearest_of": lambda q, term, *ends: (*2 * (min(abs(term.middle - end.low) for end in ends),), term.text),
    "lower_end": lambda q, term: (term.low, term.low, term.text),
    "upper_end": lambda q, term: (term.high, term.high, term.text),
    "rank_correlation": _rank_correlation,
    "speed_ratio": _speed_ratio,
    "peak_ratio": _peak_ratio,
    "money_ratio": _money_ratio,
    "peak_in": _peak_of_format,
    "have_memory": _have_memory,
    "positive": _positive,
    "whole_training": _whole_training,
    "is_larger": lambda q, one, other: (*2 * (float(one.low > other.high),), ""),
    "worth_of": _worth_of,
    "opens_a_page": _opens_a_page,
    "catalog": _catalog,
    "has": _has,
    "peak_sense": _peak_sense,
    "machine_size": _machine_size,
    "machine_has": _machine_has,
    "bits_of": _bits_of,
    "largest": _largest,
    "smallest": _smallest,
    "relates": _relates,
    "published": _published,
    **run.FUNCTIONS,
}
