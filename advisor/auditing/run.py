"""Quantities of the run that a card describes: declared, measured, expected of its GPU, or given by a law."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advisor.auditing.card import CardSetup
from advisor.auditing.counts import counts, vocabulary, workload_of
from advisor.auditing.quantity import ClaimedQuantity
from advisor.auditing.verdict import Known, Names, Question, between, exactly
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops
from advisor.laws import cpu_fallback, flops, initial_loss
from advisor.laws.hyperparameters import peak_rates
from advisor.laws.text import LAW_BYTES_PER_TOKEN, bytes_per_token
from advisor.prediction.batch import predict_batch
from advisor.prediction.loss import CHINCHILLA, TOKEN_RANGE
from advisor.prediction.loss import text_floor as entropy_of_text
from advisor.prediction.profile import Profile
from advisor.prediction.throughput import TERMS, predict_log, sizes
from advisor.records import Prediction, Workload
from advisor.units import format_bytes, format_count, format_percent, format_rate, format_usd

# Bytes per parameter that training keeps: weights, gradients and optimizer state (sources §2.1). The wide band reaches
# from bf16 throughout to Megatron's fp32 masters and gradients; the usual band omits what few programs do. Bytes per
# token, layer and width kept for the backward pass in 16 bits: compiled, eager, eager without fused attention in fp32
# (§2.2). Bytes per token and vocabulary row (§2.3). Context, libraries, fragmentation (§2.4).
_BANDS = {
    "usual": {"state": (10.0, 18.0), "activations": (24.0, 56.0), "logits": (6.0, 12.0), "context": (1e9, 3e9)},
    # 4: everything is sharded over several GPUs
    "wide": {"state": (4.0, 20.0), "activations": (2.0, 240.0), "logits": (0.0, 16.0), "context": (0.3e9, 5e9)},
}


def spec_of(setup: CardSetup) -> GpuSpec | None:
    """Return the GPU of a configuration, or None if it names none or an unknown one."""
    return find_gpu(setup.gpu) if setup.gpu else None


def peak(spec: GpuSpec | None, precision: str | None) -> float | None:
    """Return the dense FLOP/s of a GPU at a run's precision (bf16 if unstated), or None if the GPU is unknown."""
    return (peak_flops(spec, precision or "bf16") or peak_flops(spec, "fp16")) if spec else None


def declared(q: Question, name: str) -> Known | None:
    """Return a numeric field of the configuration, or None if it is not a number or not stated."""
    field = {"rate": "throughput", "stated_step_tokens": "step_tokens"}.get(name, name)
    value = getattr(q.setup, field, None)
    if isinstance(value, ClaimedQuantity):
        return value.low, value.high, value.text
    return None if value is None or isinstance(value, str) else exactly(value, f"{value:,}")


def _interval(ends: Sequence[float], show: Callable[[float], str], words: str = "") -> Known:
    return ends[0], ends[1], between(ends, show) + words


def _one(number: float | None, words: str = "") -> Known | None:
    return None if number is None else exactly(number, words or f"{number:,.4g}")


def column(q: Question, name: str) -> list[float]:
    """Return the printed numbers of a column."""
    return [number for number in q.card.column(name) if number is not None]


def _believed(q: Question, setup: CardSetup) -> tuple[Profile, Workload] | None:
    """Return the profile of the GPU and the workload of the run, or None if either is unknown."""
    spec = spec_of(setup)
    workload = workload_of(setup, spec.key) if spec else None
    profile = q.believe(spec, setup) if spec and workload else None
    return (profile, workload) if profile and workload else None


def expected(q: Question, setup: CardSetup | None = None) -> Prediction | None:
    """Return the predicted speed and memory of a configuration on its GPUs, or None if there is no prediction."""
    believed = _believed(q, setup or q.setup)
    return predict_batch(believed[0], [believed[1]])[0] if believed else None


def _first_step(q: Question) -> tuple[float, float] | tuple[None, None]:
    """Return the seconds of the first printed step and the median of the later steps."""
    seconds, steps = column(q, "seconds"), q.card.column("step")
    if len(seconds) < 3 or not steps or (steps[0] or 0) > 1:
        return None, None
    later = sorted(seconds[1:])
    return seconds[0], later[len(later) // 2]


def _need(q: Question, band: str, *, state: bool = True) -> Known | None:
    """Return the least and most bytes that training software needs on one GPU; None without shape, batch and length."""
    s, model, bytes_of = q.setup, counts(q.setup), _BANDS[band]
    if model is None or s.micro_batch is None or s.seq_len is None:
        return None
    shape, tokens = model.readings[0].shape, s.micro_batch * s.seq_len
    lanes, rows = tokens * shape.depth * shape.width, [tokens * v for v in vocabulary(s)]
    low, high = (bytes_of["activations"][end] * lanes + bytes_of["logits"][end] * rows[end] for end in (0, 1))
    words = f"{bytes_of['activations'][0]:g}-{bytes_of['activations'][1]:g} B × {tokens:,} tokens × {shape.depth} × "
    words += f"{shape.width} + {bytes_of['logits'][0]:g}-{bytes_of['logits'][1]:g} B × tokens × vocabulary"
    if not state:
        return low, high, words
    low, high = (
        total + bytes_of["state"][end] * model.parameters[end] + bytes_of["context"][end]
        for end, total in enumerate((low, high))
    )
    return low, high, f"{words} + {bytes_of['state'][0]:g}-{bytes_of['state'][1]:g} B × parameters + context"


def _law_tokens(q: Question) -> Known | None:
    each, steps = q.setup.tokens_of_a_step, q.steps
    return None if q.setup.data == "random" or each is None or steps is None else _one(steps * each)


def uniform_loss(q: Question) -> Known | None:
    """Return ln V, the loss of a model that knows nothing, or None without a stated vocabulary."""
    size = q.setup.vocab_size
    return _one(initial_loss.uniform_loss(size), f"ln {size:,}") if size else None


def _timed(phase: str) -> Callable[[Question], Known | None]:
    def seconds(q: Question) -> Known | None:
        stated = q.card.timing.get(phase)
        return (stated.low, stated.high, stated.text) if stated else None

    return seconds


NODES = Names(
    {
        "first_step_time": lambda q: _one(_first_step(q)[0]),
        "later_step_time": lambda q: _one(_first_step(q)[1]),
        **{f"{phase}_time": _timed(phase) for phase in ("forward", "backward", "data", "total")},
        "first_loss": lambda q: _one(next(iter(column(q, "loss")), None)),
        "last_loss": lambda q: _one(column(q, "loss")[-1] if len(column(q, "loss")) > 1 else None),
        "random_data": lambda q: exactly(q.setup.data == "random", "random tokens"),
        "largest_norm": lambda q: _one(max(column(q, "grad_norm"), default=None)),
        "usual_need": lambda q: _need(q, "usual"),
        "wide_need": lambda q: _need(q, "wide"),
        "usual_activations": lambda q: _need(q, "usual", state=False),
        "wide_activations": lambda q: _need(q, "wide", state=False),
        "law_tokens": _law_tokens,
        "law_tokens_from": lambda q: _one(TOKEN_RANGE[0]),
        "uniform_loss": uniform_loss,
    }
)


@NODES.add
def parameters(q: Question) -> Known | None:
    """Return the parameters of the declared shape, or the stated number without a shape or for a shape with experts."""
    model, stated = counts(q.setup), q.setup.parameters
    if stated is not None and (model is None or q.setup.active_parameters is not None):
        return stated.low, stated.high, stated.text
    return _interval(model.parameters, format_count) if model else None


@NODES.add
def flops_per_token(q: Question) -> Known | None:
    """Return 6 FLOPs for each parameter that a token uses; with a shape, attention is added."""
    active = q.setup.active_parameters
    if active is not None:
        return 6 * active.low, 6 * active.high, f"6 × {active.text} active"
    model = counts(q.setup) if q.setup.seq_len else None
    return _interval(model.flops, format_count) if model else None


@NODES.add
def step_tokens(q: Question) -> Known | None:
    """Return the tokens of a step, with the product that gives them if they are not stated."""
    s, tokens = q.setup, q.setup.tokens_of_a_step
    if tokens is None or s.step_tokens is not None:
        return None if tokens is None else exactly(tokens, f"{tokens:,}")
    return exactly(tokens, f"({s.micro_batch} × {s.grad_accum} × {s.seq_len} × {s.gpus} = {tokens:,})")


@NODES.add
def run_tokens(q: Question) -> Known | None:
    """Return the tokens of all planned steps."""
    tokens, steps = q.setup.tokens_of_a_step, q.setup.steps
    return None if tokens is None or steps is None else exactly(tokens * steps, f"{steps:,} × {tokens:,}")


@NODES.add
def unique_tokens(q: Question) -> Known | None:
    """Return the fewest and most unique training tokens: as declared, or the data set's bytes over bytes per token."""
    s = q.setup
    if s.data == "random":
        return None
    if s.dataset_tokens is not None:
        low, high = s.dataset_tokens.low, s.dataset_tokens.high
    else:
        each = s.bytes_per_token or (bytes_per_token(s.vocab_size) if s.vocab_size else None)
        low, high = (s.dataset.low / each / 1.2, s.dataset.high / each * 1.2) if s.dataset and each else (0.0, 0.0)
    return _interval((low, high), format_count) if low and high else None


@NODES.add
def utilization(q: Question) -> Known | None:
    """Return the MFU of the measured speed, over every reading of the declared shape."""
    s, each, most = q.setup, flops_per_token(q), peak(spec_of(q.setup), q.setup.precision)
    if most is None or each is None or s.rate is None:
        return None
    low, high = (flops.mfu(f, r, s.gpus, most) for f, r in zip(each[:2], s.rate, strict=True))
    return _interval((low, high), format_percent)


@NODES.add
def expected_rate(q: Question) -> Known | None:
    """Return the predicted tokens per second."""
    rate = (prediction := expected(q)) and prediction.tokens_per_second
    return _interval((rate.low, rate.high), format_rate, " expected") if rate else None


@NODES.add
def slowdown(q: Question) -> Known | None:
    """Return how many times slower the run is than the low end of the prediction. Below 1 it is as fast as expected."""
    prediction, rate = expected(q), q.setup.rate
    if prediction is None or prediction.tokens_per_second is None or rate is None:
        return None
    low, high = prediction.tokens_per_second.low, prediction.tokens_per_second.high
    times, use = low / rate[1], utilization(q)
    words = f"{between(rate, format_rate)} where {between((low, high), format_rate)} is normal"
    if use and prediction.mfu:
        normal = between((prediction.mfu.low, prediction.mfu.high), format_percent)
        words = f"MFU {format_percent(use[1])} where {normal} is normal"
    software = f" with {q.setup.backend}" if q.setup.backend else ""
    return exactly(times, f"{words}: {times:,.0f} times slow at least{software}")


@NODES.add
def product_share(q: Question) -> Known | None:
    """Return the share of the step that matrix products need at their best measured rate."""
    spec, use = spec_of(q.setup), utilization(q)
    most = peak(spec, q.setup.precision)
    if spec is None or use is None or most is None:
        return None
    best = (spec.mamf_bf16_flops if (q.setup.precision or "bf16") == "bf16" else None) or most
    return exactly(use[1] * most / best, f"{use[2]} of the peak")


@NODES.add
def memory_share(q: Question) -> Known | None:
    """Return the share of the expected step that is memory traffic."""
    believed = _believed(q, q.setup)
    if believed is None:
        return None
    parts = predict_log(believed[0].posterior_of(believed[1].sharding), sizes([believed[1]])).parts[0]
    named = dict(zip(TERMS, parts / parts.sum(), strict=True))
    share = float(sum(named[term] for term in ("traffic", "logits", "weights", "optimizer")))
    products = format_percent(float(named["matmul"] + named["attention"]))
    return exactly(share, f"memory {format_percent(share)}, products {products} of the expected step")


@NODES.add
def cpu_signs(q: Question) -> Known | None:
    """Return how many signs say that the GPU does not do the work. A sign counts if all readings have it."""
    s, model, spec, use = q.setup, counts(q.setup), spec_of(q.setup), utilization(q)
    most = peak(spec, s.precision)
    first, later = _first_step(q)
    readings = cpu_fallback.FallbackReadings(
        parameters=model.parameters[0] if model else None,
        memory_used_bytes=s.memory_used.most if s.memory_used else None,
        power_watts=s.power.most if s.power else None,
        power_limit_watts=spec.tdp_watts if spec else None,
        utilization=s.utilization.most if s.utilization else None,
        flops_per_second=use[1] * most if use and most else None,
        peak_flops=most,
        first_step_seconds=first,
        later_step_seconds=later,
    )
    signs = [sign.text for sign in cpu_fallback.cpu_signs(readings) if sign.applies]
    return exactly(len(signs), "; ".join(signs) or "no sign")


@NODES.add
def norm_growth(q: Question) -> Known | None:
    """Return the mean of the later printed gradient norms over that of the earlier ones, without warm-up."""
    norms = column(q, "grad_norm")
    if len(norms) < 6:
        return None
    late = norms[len(norms) // 4 :]
    before, after = (sum(part) / len(part) for part in (late[: len(late) // 2], late[len(late) // 2 :]))
    return _one(after / before, f"mean printed norm {before:.2f}, later {after:.2f}")


@NODES.add
def planned_need(q: Question) -> Known | None:
    """Return the least bytes of a run on one GPU, or None once it runs, because it may recompute activations."""
    s = q.setup
    has_run = any((s.steps_done, s.step_time, s.throughput, s.memory_used))
    return _need(q, "wide") if s.gpus == 1 and not has_run else None


@NODES.add
def predicted_need(q: Question) -> Known | None:
    """Return the predicted bytes of the run, with those of its GPU in words."""
    prediction = expected(q)
    if prediction is None or prediction.peak_reserved_bytes is None or prediction.device_memory_bytes is None:
        return None
    peak_bytes, words = prediction.peak_reserved_bytes, f" of {format_bytes(prediction.device_memory_bytes)}"
    if prediction.fits is False:
        words += ": more than that, unless activations are recomputed or it is split"
    ends = peak_bytes.low, peak_bytes.high
    return *ends, f"predicted {between(ends, format_bytes)}{words}"


@NODES.add
def law_loss(q: Question) -> Known | None:
    """Return the loss that the loss law expects for all parameters and tokens, at the vocabulary's bytes per token."""
    s, model, tokens = q.setup, counts(q.setup), _law_tokens(q)
    if model is None or tokens is None:
        return None
    pairs = [*zip(vocabulary(s), model.parameters, strict=True), (vocabulary(s)[0], model.parameters[1])]
    losses = [CHINCHILLA.loss(n, tokens[0]) * bytes_per_token(v) / LAW_BYTES_PER_TOKEN for v, n in pairs]
    words = f"loss law of {between(model.parameters, format_count)} parameters and {format_count(tokens[0])} tokens"
    return min(losses), max(losses), words


@NODES.add
def text_floor(q: Question) -> Known | None:
    """Return the entropy of text in nats per token of the vocabulary; random tokens have none."""
    each = bytes_per_token(vocabulary(q.setup)[0]) if _law_tokens(q) and counts(q.setup) else None
    return None if each is None else _one(entropy_of_text(each))


@NODES.add
def random_floor(q: Question) -> Known | None:
    """Return the lowest loss on random tokens: that of a uniform guess, because they contain nothing to learn."""
    base = uniform_loss(q) if q.setup.data == "random" else None
    return exactly(base[0] - initial_loss.SOUND, base[2]) if base else None


@NODES.add
def rate_of_untrained(q: Question) -> Known | None:
    """Return the learning rate if the first loss is that of an untrained model (fine-tunes use far lower rates)."""
    base, first = uniform_loss(q), q.setup.initial_loss
    untrained = base is not None and first is not None and first.most >= base[0] - initial_loss.SOUND
    return declared(q, "learning_rate") if untrained else None


@NODES.add
def law_rates(q: Question) -> Known | None:
    """Return the learning rates that the laws give; they are AdamW's."""
    s, model = q.setup, counts(q.setup)
    if s.optimizer != "adamw" or model is None or s.tokens_of_a_step is None or s.steps is None or s.seq_len is None:
        return None
    rates = peak_rates(model.readings[0].shape, s.steps * s.tokens_of_a_step)
    return min(rates.values()), max(rates.values()), ", ".join(f"{name} {rate:.2g}" for name, rate in rates.items())


@NODES.add
def run_bill(q: Question) -> Known | None:
    """Return the hours of all steps at the measured speed, and their cost if a price is stated."""
    s, seconds = q.setup, q.setup.seconds_of_a_step
    if seconds is None or s.steps is None:
        return None
    low, high = s.steps * seconds[0] / 3600, s.steps * seconds[1] / 3600
    count, price = (1 if s.price_of == "machine" else s.gpus), s.price
    bill = f" and {between((count * low * price.low, count * high * price.high), format_usd)}" if price else ""
    return low, high, f"{between((low, high), '{:,.1f} h'.format)}{bill}"
