"""What a card's numbers say of the run by themselves: the physics that claims and conclusions are held against."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from advisor.auditing.card import Card, Setup
from advisor.auditing.counts import Counts, counts, workload_of
from advisor.auditing.verdict import Believe
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops
from advisor.laws import cpu_fallback, flops, initial_loss
from advisor.prediction.batch import predict_batch
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import OPTIMIZER_BYTES, TERMS, predict_log, sizes
from advisor.records import Prediction, Workload
from advisor.units import format_flops, format_percent

FAR_UNDER = 3.0  # times slower than the low end of what is expected: no setting of the run explains that, software does


@dataclass(frozen=True, kw_only=True)
class Utilisation:
    """MFU from exact FLOPs and the card's dense peak, over all readings of the declaration."""

    low: float
    high: float
    achieved_flops: float  # per second, all GPUs, at most
    arithmetic: str


def spec_of(setup: Setup) -> GpuSpec | None:
    """The card of a configuration, None where none or an unknown one is named."""
    return find_gpu(setup.gpu) if setup.gpu else None


def utilisation(setup: Setup, rate: tuple[float, float] | None = None) -> Utilisation | None:
    """MFU at a rate of tokens per second (default: the measured one); None where shape, card or rate are unknown."""
    spec, model, rate = spec_of(setup), counts(setup), rate or setup.rate
    if spec is None or model is None or rate is None or setup.seq_len is None:
        return None
    precision, most = setup.precision or "bf16", peak(setup)
    if most is None:
        return None
    each = model.flops(setup.seq_len)
    low, high = (flops.mfu(f, r, setup.gpus, most) for f, r in zip(each, rate, strict=True))
    words = (
        f"{each[1]:.4g} FLOP a token × {rate[1]:,.6g} tok/s ÷ ({setup.gpus} × {format_flops(most)} dense {precision})"
    )
    return Utilisation(
        low=low, high=high, achieved_flops=each[1] * rate[1], arithmetic=f"{words} = {_percent(low, high)}"
    )


def expected(setup: Setup, believe: Believe) -> Prediction | None:
    """What the cards should give at this shape, all together, by calibration or prior; None where it cannot be said."""
    believed = _believed(setup, believe)
    return predict_batch(believed.profile, [believed.workload])[0] if believed else None


def shares(setup: Setup, believe: Believe) -> dict[str, float] | None:
    """Share of the expected step in matrix products, memory traffic and launches; None where it cannot be said."""
    believed = _believed(setup, believe)
    if believed is None:
        return None
    parts = predict_log(believed.profile.posterior, sizes([believed.workload])).parts[0]
    named = dict(zip(TERMS, parts / parts.sum(), strict=True))
    groups = {"products": ("matmul", "attention"), "memory": ("traffic", "logits", "weights", "optimizer")}
    groups["launches"] = ("layer_overhead", "micro_overhead", "step_overhead")
    return {group: float(sum(named[t] for t in terms)) for group, terms in groups.items()}


@dataclass(frozen=True, kw_only=True)
class _Believed:
    profile: Profile
    workload: Workload


def _believed(setup: Setup, believe: Believe) -> _Believed | None:
    """The run as a prediction is about it, and what is believed of its card; None where either is not known."""
    spec = spec_of(setup)
    workload = workload_of(setup, spec.key) if spec else None
    profile = believe(spec, setup) if spec and workload else None
    return _Believed(profile=profile, workload=workload) if profile and workload else None


def slowdown(setup: Setup, believe: Believe, rate: tuple[float, float] | None = None) -> float | None:
    """How many times slower than expected of the card, at least; below 1: as fast as expected. None: not known."""
    prediction, rate = expected(setup, believe), rate or setup.rate
    if prediction is None or rate is None or prediction.tokens_per_second is None:
        return None
    return prediction.tokens_per_second.low / rate[1]


def weight_bytes(setup: Setup) -> tuple[float, float] | None:
    """Bytes of the weights, least (two bytes each) and as trained in full precision; None without a shape."""
    model = counts(setup)
    if model is None:
        return None
    return 2.0 * model.parameters[0], 4.0 * model.parameters[0]


def cpu_signs(card: Card, setup: Setup) -> list[str]:
    """Signs that the work is not done on the GPU, each at the most that the report's words can mean."""
    model, use, spec = counts(setup), utilisation(setup), spec_of(setup)
    first, later = first_step(card) or (None, None)
    readings = cpu_fallback.Readings(
        parameters=model.parameters[0] if model else None,
        memory_used_bytes=setup.memory_used.most if setup.memory_used else None,
        power_watts=setup.power.most if setup.power else None,
        power_limit_watts=spec.tdp_watts if spec else None,
        utilization=setup.utilization.most if setup.utilization else None,
        flops_per_second=use.achieved_flops / setup.gpus if use else None,
        peak_flops=peak(setup),
        first_step_seconds=first,
        later_step_seconds=later,
    )
    return [sign.text for sign in cpu_fallback.cpu_signs(readings) if sign.applies]


def peak(setup: Setup) -> float | None:
    """Dense FLOP/s of the card at the declared precision, bf16 where none is; None without a known card."""
    spec, precision = spec_of(setup), setup.precision or "bf16"
    return (peak_flops(spec, precision) or peak_flops(spec, "fp16")) if spec else None


def first_step(card: Card) -> tuple[float, float] | None:
    """Seconds of the first printed step and the median of the later ones."""
    seconds = [s for s in card.column("seconds") if s is not None]
    steps = card.column("step")
    if len(seconds) < 3 or not steps or (steps[0] or 0) > 1:
        return None
    later = sorted(seconds[1:])
    return seconds[0], later[len(later) // 2]


def losses(card: Card) -> list[float]:
    """The printed losses, in the order of the rows."""
    return [loss for loss in card.column("loss") if loss is not None]


def uniform_loss(setup: Setup) -> float | None:
    """ln V: the loss of a model that knows nothing; None without a stated vocabulary."""
    return initial_loss.uniform_loss(setup.vocab_size) if setup.vocab_size else None


def initial_loss_reading(first: float, setup: Setup) -> str:
    """What a first loss far from ln V may be: a sum in place of a mean, unscaled weights, or another vocabulary."""
    assert setup.vocab_size is not None  # asked of losses that are above ln V
    sizes = {"batch": setup.micro_batch, "sequence length": setup.seq_len}
    readings = [
        f"it is summed over {divisor.name} ({first / divisor.count:.2f} each)"
        for divisor in initial_loss.summed_over(first, setup.vocab_size, sizes)
    ]
    if setup.width and setup.vocab_size > 1:
        readings += _unscaled_readings(first, setup.width, setup.vocab_size, sizes)
    if first < 13 and not readings:
        readings.append(f"it would be right for a vocabulary of {math.exp(first):,.0f}")
    return "; or ".join(readings) or "no single factor explains it"


def _unscaled_readings(first: float, width: int, vocab_size: int, sizes: Mapping[str, float | None]) -> Iterator[str]:
    """Weights of unit variance as the reason, for the loss as it is and summed over what a batch has."""
    about = f"weights of unit variance give about {initial_loss.unscaled_loss(width, vocab_size):.0f}"
    if initial_loss.is_unscaled(first, width, vocab_size):
        yield f"{about}: scale the initialisation"
    for divisor in initial_loss.divisors(sizes):
        each = first / divisor.count
        if initial_loss.is_unscaled(each, width, vocab_size):
            yield f"{about}, summed over {divisor.name} ({each:.0f} each): scale the initialisation"


def optimizer_floor_seconds(model: Counts, spec: GpuSpec) -> float:
    """AdamW in fp32 moves at least 28 bytes a parameter (sources §3.2): the least time of a synchronised step."""
    return OPTIMIZER_BYTES * model.parameters[0] / spec.memory_bytes_per_second


def _percent(low: float, high: float) -> str:
    texts = dict.fromkeys((format_percent(low), format_percent(high)))
    return " to ".join(texts)
