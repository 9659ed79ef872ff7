"""Claims about cards, number formats and what a setting acts on."""

from __future__ import annotations

from dataclasses import dataclass

from advisor.auditing import signs
from advisor.auditing.fields import cards_named
from advisor.auditing.quantity import Quantity
from advisor.auditing.verdict import Judgement, Question, compare, does_not_follow, holds, show_bytes, unknown, wrong
from advisor.findings.case import Severity
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops
from advisor.hardware.offers import cheapest_offer
from advisor.hardware.prices import PriceRow, load_prices
from advisor.units import format_bandwidth, format_flops, format_number, format_seconds, format_usd_rate, format_watts

SPARSE = 2.0  # vendors print the rate with 2:4 sparsity, which training does not use: twice the dense one

# (bits, exponent bits, explicit mantissa bits): IEEE 754 for fp32 and fp16; bfloat16; NVIDIA's TF32
_SAVED_BY_FREEZING = 0.5  # a third, and what the optimizer's step takes
_ROUGHLY = (0.9, 1.12)  # "65,000" for 65,504, "6e-8" for 5.96e-8
FORMATS = {"fp32": (32, 8, 23), "tf32": (19, 8, 10), "bf16": (16, 8, 7), "fp16": (16, 5, 10)}


def gpu_fact(q: Question) -> Judgement:
    """A card's memory, bandwidth, architecture, peak or power against the catalog; a machine's processors and RAM."""
    fact, spec = q.get("fact"), find_gpu(q.get("gpu") or q.setup.gpu or "")
    if fact in ("vcpus", "ram"):
        return _machine(q, fact)
    if spec is None:
        return unknown(f"no card {q.get('gpu') or q.setup.gpu!r} is in the catalog")
    if fact == "architecture":
        said = q.get("words") or ""
        if spec.architecture.lower() in said.lower():
            return holds(spec.architecture, f"catalog: {spec.key}")
        return wrong(f"{spec.key} is {spec.architecture}", f"catalog: {spec.key}")
    if fact in ("bf16", "fp8"):
        native = (spec.bf16_flops if fact == "bf16" else spec.fp8_flops) is not None
        so = f"{spec.key} has {'' if native else 'no '}{fact} matrix units"
        return holds(so, "catalog") if native == (q.get("native") is not False) else wrong(so, "catalog")
    return _figure(q, fact, spec)


def _figure(q: Question, fact: str, spec: GpuSpec) -> Judgement:
    value = q.get("value")
    if value is None:
        return unknown("no value is stated")
    if fact == "memory":
        number = (q.get("count").middle if q.get("count") else 1) * spec.memory_gb * 1e9
        real = (q.get("count").middle if q.get("count") else 1) * spec.memory_bytes
        return compare(
            value, min(number, real), max(number, real), show=show_bytes(value), arithmetic=f"catalog: {spec.key}"
        )
    figures = {
        "bandwidth": (spec.memory_bytes_per_second, format_bandwidth),
        "power": (spec.tdp_watts, format_watts),
        "peak": (peak_flops(spec, q.get("precision") or "bf16"), format_flops),
    }
    truth, show = figures[fact]
    if truth is None:
        return unknown(f"the datasheet of {spec.key} gives none")
    judgement = compare(value, truth, show=show, arithmetic=f"catalog: {spec.key}, dense")
    if fact == "peak" and not value.admits(truth) and value.admits(SPARSE * truth):
        return wrong(
            f"{show(truth)} dense; the figure is the one with 2:4 sparsity",
            f"catalog: {spec.key}",
            consequence="utilisation against it comes out half of what it is",
        )
    return judgement


def _machine(q: Question, fact: str) -> Judgement:
    """Processors and RAM: of the machine type where it is named, else of any machine with this one card."""
    spec = find_gpu(q.get("gpu") or q.setup.gpu or "")
    if q.get("value") is None:
        return unknown("no value is stated")
    rows = [r for r in load_prices() if spec and r.gpu == spec.key and r.gpu_count == q.setup.gpus]
    named = [r for r in rows if r.instance_type == q.setup.machine]
    sizes = [(r.instance_type, size) for r in named or rows if (size := _size(r, fact)) is not None]
    fitting = sorted(name for name, size in sizes if q.get("value").admits(size))
    if fitting:
        return holds(f"as {fitting[0]}", "price lists")
    if not named:
        return unknown("the machine type is not stated")
    if not sizes:
        return unknown(f"no price list says it of {named[0].instance_type}")
    return wrong(f"{sizes[0][0]} has {sizes[0][1]:g}", "price lists")


def _size(row: PriceRow, fact: str) -> float | None:
    """Processors ("vcpus") or bytes of RAM ("ram") of a priced machine; None: not listed."""
    if fact == "vcpus":
        return row.vcpus
    return None if row.ram_gb is None else row.ram_gb * 1e9


def precision_speedup(q: Question) -> Judgement:
    """Judge "x times faster in A than in B" on one card: no more than the ratio of their dense peaks."""
    spec = signs.spec_of(q.setup)
    if spec is None:
        return unknown("the card is not stated")
    value, (fast, slow) = q.get("value"), (_peak(spec, q.get(name)) for name in ("fast", "slow"))
    if fast is None or slow is None:
        return unknown(f"the datasheet of {spec.key} does not give both rates")
    most = fast / slow
    words = f"{spec.key}: {q.get('fast')} {format_flops(fast)}, {q.get('slow')} {format_flops(slow)} dense"
    words += f": {most:.2f} times at most"
    if value.least > most:
        return wrong(f"{most:.2f} times at most, and only in matrix products", words, consequence=_SCALED)
    if value.high > most * 1.02:
        return wrong(f"the upper end is impossible: {most:.2f} times at most", words, consequence=_SCALED)
    if most < 1:
        return wrong("it is slower", words)
    return holds(f"possible: {most:.2f} times at most", words)


_SCALED = "a schedule scaled by this speed-up does not come true"


def _peak(spec: GpuSpec, precision: str) -> float | None:
    if precision == "fp32":
        return spec.fp32_flops
    return spec.tf32_flops if precision == "tf32" else peak_flops(spec, precision)


def gpu_speedup(q: Question) -> Judgement:
    """Judge "x times faster than another card": between the ratios of memory bandwidth and of dense 16-bit peak."""
    mine, value = signs.spec_of(q.setup), q.get("value")
    others = _cards(q.get("than"))
    if mine is None or not others:
        return unknown("one of the cards is not in the catalog")
    peak = max((_half(mine) or 0) / (_half(o) or float("inf")) for o in others)
    width = max(mine.memory_bytes_per_second / o.memory_bytes_per_second for o in others)
    other = others[0]
    words = f"16-bit dense: {format_flops(_half(mine))} against {format_flops(_half(other))}; memory: "
    words += (
        f"{format_bandwidth(mine.memory_bytes_per_second)} against {format_bandwidth(other.memory_bytes_per_second)}"
    )
    most, least = max(peak, width), min(peak, width)
    so = f"{least:.2f} to {most:.2f} times at equal software"
    if value is None:
        return (
            holds(so, words)
            if least > 1
            else wrong(f"{so}: not faster in any way" if most <= 1 else f"not in general: {so}", words)
        )
    if value.least > most:
        return wrong(so, words, consequence="time and cost planned from this comparison are too small")
    return holds(f"possible: {so}", words)


def _cards(name: str) -> list[GpuSpec]:
    """Every card that a short name can mean ("V100": each of its four kinds)."""
    card = find_gpu(name)
    return [card] if card else cards_named(name)


def _half(spec: GpuSpec) -> float | None:
    """The dense peak of the 16-bit format that the card trains in."""
    return spec.bf16_flops or spec.fp16_flops


def value_for_money(q: Question) -> Judgement:
    """Judge "Better performance for the money than that card": dense peak and bandwidth per dollar, by price lists."""
    mine, others = signs.spec_of(q.setup), _cards(q.get("than"))
    own = _per_dollar(mine) if mine else None
    if own is None:
        return unknown("the card or its price are not known")
    rivals = [rival for other in others if (rival := _per_dollar(other)) is not None]
    if not rivals:
        return unknown(f"no price list has {q.get('than')}")
    words = "; ".join(card.words for card in (own, *rivals))
    if all(own.flops > r.flops and own.bandwidth > r.bandwidth for r in rivals):
        return holds("more peak and more bandwidth for the money", words)
    if any(own.flops < r.flops and own.bandwidth < r.bandwidth for r in rivals):
        return does_not_follow("by the cheapest listed prices the other card gives more of both for the money", words)
    return does_not_follow("it depends on the workload: more peak for the money, less bandwidth, or the reverse", words)


@dataclass(frozen=True, kw_only=True)
class _PerDollar:
    """What a dollar an hour buys of a card at its cheapest listed price."""

    flops: float  # per second, dense, 16 bits
    bandwidth: float  # bytes per second
    words: str


def _per_dollar(spec: GpuSpec) -> _PerDollar | None:
    offer = cheapest_offer(spec.key)
    usd = offer.usd_per_gpu_hour if offer else None
    if usd is None:
        return None
    flops, bandwidth = (_half(spec) or 0.0) / usd, spec.memory_bytes_per_second / usd
    words = f"{spec.key} {format_usd_rate(usd)}/h: {flops / 1e12:,.0f} TFLOP/s and {bandwidth / 1e9:,.0f} GB/s a dollar"
    return _PerDollar(flops=flops, bandwidth=bandwidth, words=words)


def number_format(q: Question) -> Judgement:
    """Width, range and precision of number formats."""
    name, fact = q.get("format"), q.get("fact")
    bits, exponent, mantissa = FORMATS[name]
    layout = f"{name}: {bits} bits = sign + {exponent} exponent + {mantissa} mantissa"
    if fact == "bits":
        return compare(q.get("value"), bits, show=format_number, arithmetic=layout)
    if fact in ("max", "min", "zero"):
        return _end_of_range(q.get("value"), fact, exponent, mantissa, layout)
    other = q.get("as")
    if other is None:
        return unknown("nothing is named to compare it with")
    index = {"range": 1, "precision": 2}[fact]
    mine, its = FORMATS[name][index], FORMATS[other][index]
    words = f"{layout}; {other}: {FORMATS[other][1]} exponent + {FORMATS[other][2]} mantissa"
    relation = "same" if mine == its else "more" if mine > its else "less"
    if relation == (q.get("relation") or "same"):
        return holds(f"{relation}: {mine} against {its} bits", words)
    return wrong(
        f"{name} has {relation} {fact} than {other}: {mine} against {its} bits"
        if relation != "same"
        else f"{name} and {other} have the same {fact}: {mine} bits",
        words,
    )


def _end_of_range(value: Quantity | None, fact: str, exponent: int, mantissa: int, layout: str) -> Judgement:
    """The largest and the smallest number of a format (IEEE 754), and what becomes zero in it: half the smallest."""
    if value is None:
        return unknown("no value is stated")
    top = 2 ** (exponent - 1) - 1
    largest, normal = (2 - 2.0**-mantissa) * 2.0**top, 2.0 ** (1 - top)
    smallest = normal * 2.0**-mantissa
    words = f"{layout}: {smallest:.2g} (subnormal), {normal:.2g} (normal) to {largest:.5g}"
    if fact == "max":
        so, fits = f"{largest:.5g}", value.admits(_ROUGHLY[0] * largest, _ROUGHLY[1] * largest)
    elif fact == "min":
        so, fits = f"{smallest:.2g}", value.admits(_ROUGHLY[0] * smallest, _ROUGHLY[1] * smallest)
    else:
        so, fits = f"what is below {smallest / 2:.2g}", value.least <= smallest * _ROUGHLY[1]
    return holds(so, words) if fits else wrong(so, words)


@dataclass(frozen=True, kw_only=True)
class Technique:
    """A setting: what it needs to act on, and which resource it can change."""

    acts_on: str
    helps: tuple[str, ...]  # resources: speed | device_memory | host_memory | stability
    not_on: str  # why it does nothing elsewhere
    source: str


TECHNIQUES = {
    "cudnn_benchmark": Technique(
        acts_on="convolutions",
        helps=("speed",),
        source="PyTorch documentation of torch.backends.cudnn",
        not_on="it picks convolution algorithms; a transformer language model has no convolution",
    ),
    "channels_last": Technique(
        acts_on="convolutions",
        helps=("speed",),
        source="PyTorch documentation of memory formats",
        not_on="it is a layout of four-dimensional images",
    ),
    "data_workers": Technique(
        acts_on="host",
        helps=("speed", "host_memory"),
        source="PyTorch documentation of torch.utils.data",
        not_on="workers are processes on the host: they hold host memory, not the card's",
    ),
    "smaller_batch": Technique(
        acts_on="transformer", helps=("device_memory",), source="activations grow with the micro-batch", not_on=""
    ),
    "activation_checkpointing": Technique(
        acts_on="transformer",
        helps=("device_memory",),
        source="Chen et al. 2016, sublinear memory",
        not_on="it costs time and saves memory",
    ),
    "loss_scaling": Technique(
        acts_on="fp16", helps=("stability",), source="8 exponent bits against 5", not_on="bf16 has the range of fp32"
    ),
}


def technique(q: Question) -> Judgement:
    """A setting and the effect that is claimed of it (or denied: effect "none")."""
    name, effect = q.get("name"), q.get("effect")
    setting = TECHNIQUES.get(name)
    if setting is None:
        return unknown(f"what {name} acts on is not known here")
    acts = setting.acts_on in ("transformer", "host") or setting.acts_on == (q.setup.precision or "")
    if effect == "none":
        return wrong("it does something here", setting.source) if acts else holds(setting.not_on, setting.source)
    if not acts:
        return does_not_follow(f"no effect here: {setting.not_on}", setting.source)
    if effect not in setting.helps:
        return does_not_follow(f"no effect on {effect.replace('_', ' ')}: {setting.not_on}", setting.source)
    if q.get("size") is not None:
        return unknown(
            f"the effect is possible; whether it is {q.get('size').text} would have to be measured", setting.source
        )
    return holds("it acts on that", setting.source)


def machine(q: Question) -> Judgement:
    """The cards in a machine type of a cloud, by the price lists that name it."""
    name, gpu, count = q.get("name"), q.get("gpu"), q.get("count")
    rows = [row for row in load_prices() if row.instance_type.lower() == name.lower() and row.gpu]
    if not rows:
        return unknown(f"no price list has a machine {name}")
    held = {(row.gpu, row.gpu_count) for row in rows}
    words = f"price lists: {', '.join(f'{number:g} × {card}' for card, number in sorted(held))}"
    keys = {card.key for card in cards_named(gpu)}
    if any(card in keys and count.admits(number) for card, number in held):
        return holds(words, words)
    return wrong(f"a {name} has {words.removeprefix('price lists: ')}", words)


def recompute_cost(q: Question) -> Judgement:
    """Time that full activation checkpointing adds: one more forward pass, a third of the FLOPs at most."""
    value = q.get("value")
    words = "forward 2 + backward 4 becomes 2 + 2 + 4 FLOPs a parameter and token: 33 % more at most"
    return (
        holds("plausible: 33 % more work at most", words)
        if value.least <= 1 / 3 and value.low > 0.05
        else wrong("one more forward pass costs up to 33 % more", words)
    )


def adapter_saving(q: Question) -> Judgement:
    """FLOPs that frozen weights save: their gradients, 2 of the 6 a parameter and token; the other passes stay."""
    value = q.get("value")
    words = "forward 2 and backward through the activations 2 stay, 2 of the weights' gradients go: a third at most"
    if value.least <= _SAVED_BY_FREEZING:
        return holds("plausible: a third at most", words)
    return wrong(
        "a third at most: the frozen weights are still passed through, forward and backward",
        words,
        consequence="time and cost of the fine-tuning are planned too small",
    )


def full_precision(q: Question) -> Judgement:
    """Judge "Full FP32": not while TF32 products are switched on."""
    if q.setup.tf32 is None:
        return unknown("whether TF32 is switched on is not stated")
    if not q.setup.tf32:
        return holds("TF32 is off", "")
    return wrong(
        "with TF32 switched on, fp32 products keep 10 of 23 mantissa bits",
        "tf32: 8 exponent + 10 mantissa bits",
        actions=("switch TF32 off too: torch.set_float32_matmul_precision('highest')",),
    )


def autocast_split(q: Question) -> Judgement:
    """Which format does the matrix products under autocast, and which the rest."""
    products, rest = q.get("products"), q.get("rest")
    words = "autocast: products in the 16-bit format, reductions and norms in fp32 (PyTorch documentation of torch.amp)"
    if products in ("bf16", "fp16") and rest == "fp32":
        return holds("as autocast does it", words)
    return wrong(
        "the reverse: products run in the 16-bit format, TF32 touches only fp32 products, sums stay in fp32", words
    )


def sampling(q: Question) -> Judgement:
    """Resolution of power readings sampled at a rate, by what the driver averages over."""
    spec, every = signs.spec_of(q.setup), 1 / q.get("rate").middle
    if spec is None:
        return unknown("the card is not stated")
    averaged = spec.architecture in ("Ampere", "Ada", "Hopper", "Blackwell") and not spec.key.startswith(
        ("a100", "a30-", "a30")
    )
    words = "nvmlDeviceGetPowerUsage averages over one second on Ampere (except GA100) and newer (NVML documentation)"
    if averaged and every < 1:
        return does_not_follow(
            f"readings every {every * 1e3:.0f} ms of a one-second average resolve one second",
            words,
            actions=("read the instantaneous power, NVML field 186, or differences of the energy counter",),
        )
    return holds("the reading is no slower than the sampling", words)


# the shortest interval at which a tool reads: nvidia-smi by its manual (--loop-ms)
SHORTEST_SECONDS = {"nvidia-smi": (1e-3, "its option --loop-ms takes milliseconds (nvidia-smi manual)")}


def tool_interval(q: Question) -> Judgement:
    """The shortest interval at which a monitoring tool is said to read."""
    shortest = SHORTEST_SECONDS.get(q.get("tool"))
    if shortest is None:
        return unknown(f"the shortest interval of {q.get('tool')} is not known here")
    return compare(q.get("value"), shortest[0], show=format_seconds, arithmetic=shortest[1], severity=Severity.NOTE)
