"""Quantities of the run that a card describes: declared, measured, expected of its GPU, or given by a law."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from advisor.auditing.card import CardSetup
from advisor.auditing.counts import VOCABULARIES, counts, vocabulary, workload_of
from advisor.auditing.quantity import ClaimedQuantity
from advisor.auditing.verdict import Known, Question, UnstatedError, between
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops
from advisor.laws import device_faults, flops, initial_loss
from advisor.laws.annealing import cosine, phase_problem
from advisor.laws.benchmarks import BENCHMARKS, benchmark_of, chance_interval
from advisor.laws.hyperparameters import peak_rates
from advisor.laws.text import LAW_BYTES_PER_TOKEN, bytes_per_token
from advisor.prediction.batch import predict_batch
from advisor.prediction.loss import CHINCHILLA, TOKEN_RANGE, text_floor
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
    return None if value is None or isinstance(value, str) else (float(value), float(value), f"{value:,}")


def unique_tokens(s: CardSetup) -> tuple[float, float] | None:
    """Return the fewest and most unique training tokens: as declared, or the data set's bytes over bytes per token."""
    if s.dataset_tokens is not None:
        return s.dataset_tokens.low, s.dataset_tokens.high
    each = s.bytes_per_token or (bytes_per_token(s.vocab_size) if s.vocab_size else None)
    return None if s.dataset is None or each is None else (s.dataset.low / each / 1.2, s.dataset.high / each * 1.2)


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


def _utilization(q: Question) -> Known | None:
    """Return the MFU of the measured speed, over every reading of the declared shape."""
    s, each, most = q.setup, _flops_per_token(q), peak(spec_of(q.setup), q.setup.precision)
    if most is None or each is None or s.rate is None:
        return None
    low, high = (flops.mfu(f, r, s.gpus, most) for f, r in zip(each[:2], s.rate, strict=True))
    return low, high, between((low, high), format_percent)


def _slowdown(q: Question) -> Known | None:
    """Return how many times slower the run is than the low end of the prediction. Below 1 it is as fast as expected."""
    prediction, rate = expected(q), q.setup.rate
    if prediction is None or prediction.tokens_per_second is None or rate is None:
        return None
    low, high = prediction.tokens_per_second.low, prediction.tokens_per_second.high
    times, use = low / rate[1], _utilization(q)
    words = f"{between(rate, format_rate)} where {between((low, high), format_rate)} is normal"
    if use and prediction.mfu:
        normal = between((prediction.mfu.low, prediction.mfu.high), format_percent)
        words = f"MFU {format_percent(use[1])} where {normal} is normal"
    software = f" with {q.setup.backend}" if q.setup.backend else ""
    return times, times, f"{words}: {times:,.0f} times slow at least{software}"


def _expected_rate(q: Question) -> Known | None:
    prediction = expected(q)
    rate = prediction.tokens_per_second if prediction else None
    return (rate.low, rate.high, f"{between((rate.low, rate.high), format_rate)} expected") if rate else None


def _product_share(q: Question) -> Known | None:
    """Return the share of the step that matrix products need at their best measured rate."""
    spec, use = spec_of(q.setup), _utilization(q)
    most = peak(spec, q.setup.precision)
    if spec is None or use is None or most is None:
        return None
    best = (spec.mamf_bf16_flops if (q.setup.precision or "bf16") == "bf16" else None) or most
    return use[1] * most / best, use[1] * most / best, f"{use[2]} of the peak"


def _memory_share(q: Question) -> Known | None:
    """Return the share of the expected step that is memory traffic."""
    believed = _believed(q, q.setup)
    if believed is None:
        return None
    parts = predict_log(believed[0].posterior_of(believed[1].sharding), sizes([believed[1]])).parts[0]
    named = dict(zip(TERMS, parts / parts.sum(), strict=True))
    share = float(sum(named[term] for term in ("traffic", "logits", "weights", "optimizer")))
    products = format_percent(float(named["matmul"] + named["attention"]))
    return share, share, f"memory {format_percent(share)}, products {products} of the expected step"


def _cpu_signs(q: Question) -> Known | None:
    """Return how many signs say that the GPU does not do the work. A sign counts if all readings have it."""
    s, model, spec, use = q.setup, counts(q.setup), spec_of(q.setup), _utilization(q)
    most = peak(spec, s.precision)
    first, later = _first_step(q) or (None, None)
    readings = device_faults.FallbackReadings(
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
    signs = [sign.text for sign in device_faults.cpu_signs(readings) if sign.applies]
    return len(signs), len(signs), "; ".join(signs) or "no sign"


def _first_step(q: Question) -> tuple[float, float] | None:
    """Return the seconds of the first printed step and the median of the later steps."""
    seconds, steps = [s for s in q.card.column("seconds") if s is not None], q.card.column("step")
    if len(seconds) < 3 or not steps or (steps[0] or 0) > 1:
        return None
    later = sorted(seconds[1:])
    return seconds[0], later[len(later) // 2]


def _column(q: Question, name: str) -> list[float]:
    return [number for number in q.card.column(name) if number is not None]


def _one(number: float | None, words: str = "") -> Known | None:
    return None if number is None else (number, number, words or f"{number:,.4g}")


def _norm_growth(q: Question) -> Known | None:
    """Return the mean of the later printed gradient norms over that of the earlier ones, without warm-up."""
    norms = _column(q, "grad_norm")
    if len(norms) < 6:
        return None
    late = norms[len(norms) // 4 :]
    before, after = (sum(part) / len(part) for part in (late[: len(late) // 2], late[len(late) // 2 :]))
    return _one(after / before, f"mean printed norm {before:.2f}, later {after:.2f}")


def need(q: Question, band: str, *, state: bool = True) -> Known | None:
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


def _planned_need(q: Question) -> Known | None:
    """Return the least bytes that a run on one GPU needs, or None once it runs, because it may recompute
    activations."""
    s = q.setup
    has_run = any((s.steps_done, s.step_time, s.throughput, s.memory_used))
    return need(q, "wide") if s.gpus == 1 and not has_run else None


def _predicted_need(q: Question) -> Known | None:
    prediction = expected(q)
    held, size = (prediction.peak_reserved_bytes, prediction.device_memory_bytes) if prediction else (None, None)
    if prediction is None or held is None or size is None:
        return None
    words = f"predicted {between((held.low, held.high), format_bytes)} of {format_bytes(size)}"
    more = "" if prediction.fits is not False else ": more than that, unless activations are recomputed or it is split"
    return held.low, held.high, words + more


def _law_loss(q: Question) -> Known | None:
    """Return the loss that the loss law expects for all parameters and tokens, at the vocabulary's bytes per token."""
    s, model, tokens = q.setup, counts(q.setup), _law_tokens(q)
    if model is None or tokens is None:
        return None
    pairs = [*zip(vocabulary(s), model.parameters, strict=True), (vocabulary(s)[0], model.parameters[1])]
    losses = [CHINCHILLA.loss(n, tokens[0]) * bytes_per_token(v) / LAW_BYTES_PER_TOKEN for v, n in pairs]
    words = f"loss law of {between(model.parameters, format_count)} parameters and {format_count(tokens[0])} tokens"
    return min(losses), max(losses), words


def _law_tokens(q: Question) -> Known | None:
    each, steps = q.setup.tokens_of_a_step, q.steps
    return None if q.setup.data == "random" or each is None or steps is None else _one(steps * each)


def _text_floor(q: Question) -> Known | None:
    """Return the entropy of text in nats per token of the vocabulary; random tokens have none."""
    known = _law_tokens(q) and counts(q.setup)
    return _one(text_floor(bytes_per_token(vocabulary(q.setup)[0]))) if known else None


def _random_floor(q: Question) -> Known | None:
    """Return the lowest loss on random tokens: that of a uniform guess, because they contain nothing to learn."""
    base = _uniform_loss(q) if q.setup.data == "random" else None
    return _one(base[0] - initial_loss.SOUND, base[2]) if base else None


def _law_rates(q: Question) -> Known | None:
    s, model = q.setup, counts(q.setup)
    if s.optimizer != "adamw" or model is None or s.tokens_of_a_step is None or s.steps is None or s.seq_len is None:
        return None  # the laws are AdamW's
    rates = peak_rates(model.readings[0].shape, s.steps * s.tokens_of_a_step)
    return min(rates.values()), max(rates.values()), ", ".join(f"{name} {rate:.2g}" for name, rate in rates.items())


def _rate_of_untrained(q: Question) -> Known | None:
    """Return the learning rate if the first loss is that of an untrained model (fine-tunes use far lower rates)."""
    s, base = q.setup, _uniform_loss(q)
    first = s.initial_loss
    untrained = base is not None and first is not None and first.most >= base[0] - initial_loss.SOUND
    return declared(q, "learning_rate") if untrained else None


def _uniform_loss(q: Question) -> Known | None:
    """Return ln V, the loss of a model that knows nothing, or None without a stated vocabulary."""
    size = q.setup.vocab_size
    return _one(initial_loss.uniform_loss(size), f"ln {size:,}") if size else None


def _run_bill(q: Question) -> Known | None:
    """Return the hours of all steps at the measured speed, and their cost if a price is stated."""
    s, seconds = q.setup, q.setup.seconds_of_a_step
    if seconds is None or s.steps is None:
        return None
    low, high = s.steps * seconds[0] / 3600, s.steps * seconds[1] / 3600
    count, price = (1 if s.price_of == "machine" else s.gpus), s.price
    bill = f" and {between((count * low * price.low, count * high * price.high), format_usd)}" if price else ""
    return low, high, f"{between((low, high), '{:,.1f} h'.format)}{bill}"


def _parameters(q: Question) -> Known | None:
    """Return the parameters of the declared shape, or the stated number without a shape or for a shape with experts."""
    model, stated = counts(q.setup), q.setup.parameters
    if stated is not None and (model is None or q.setup.active_parameters is not None):
        return stated.low, stated.high, stated.text
    return (*model.parameters, between(model.parameters, format_count)) if model else None


def _flops_per_token(q: Question) -> Known | None:
    """Return 6 FLOPs for each parameter that a token uses; with a shape, attention is added."""
    active = q.setup.active_parameters
    if active is not None:
        return 6 * active.low, 6 * active.high, f"6 × {active.text} active"
    model = counts(q.setup) if q.setup.seq_len else None
    return (*model.flops, between(model.flops, format_count)) if model else None


def _step_tokens(q: Question) -> Known | None:
    s, tokens = q.setup, q.setup.tokens_of_a_step
    product = "" if s.step_tokens is not None else f"{s.micro_batch} × {s.grad_accum} × {s.seq_len} × {s.gpus} = "
    return None if tokens is None else (tokens, tokens, f"({product}{tokens:,})" if product else f"{tokens:,}")


def _run_tokens(q: Question) -> Known | None:
    tokens, steps = q.setup.tokens_of_a_step, q.setup.steps
    return None if tokens is None or steps is None else _one(tokens * steps, f"{steps:,} × {tokens:,}")


def _unique(q: Question) -> Known | None:
    unique = unique_tokens(q.setup) if q.setup.data != "random" else None
    return (*unique, between(unique, format_count)) if unique and all(unique) else None


def _timed(phase: str) -> Callable[[Question], Known | None]:
    def found(q: Question) -> Known | None:
        seconds = q.card.timing.get(phase)
        return (seconds.low, seconds.high, seconds.text) if seconds else None

    return found


NODES: dict[str, Callable[[Question], Known | None]] = {
    "parameters": _parameters,
    "flops_per_token": _flops_per_token,
    "step_tokens": _step_tokens,
    "run_tokens": _run_tokens,
    "run_bill": _run_bill,
    "unique_tokens": _unique,
    "utilization": _utilization,
    "expected_rate": _expected_rate,
    "slowdown": _slowdown,
    "product_share": _product_share,
    "memory_share": _memory_share,
    "cpu_signs": _cpu_signs,
    "first_step_time": lambda q: _one((_first_step(q) or (None, None))[0]),
    "later_step_time": lambda q: _one((_first_step(q) or (None, None))[1]),
    **{f"{phase}_time": _timed(phase) for phase in ("forward", "backward", "data", "total")},
    "first_loss": lambda q: _one(next(iter(_column(q, "loss")), None)),
    "last_loss": lambda q: _one(_column(q, "loss")[-1] if len(_column(q, "loss")) > 1 else None),
    "random_data": lambda q: _one(float(q.setup.data == "random"), "random tokens"),
    "largest_norm": lambda q: _one(max(_column(q, "grad_norm"), default=None)),
    "norm_growth": _norm_growth,
    "usual_need": lambda q: need(q, "usual"),
    "wide_need": lambda q: need(q, "wide"),
    "usual_activations": lambda q: need(q, "usual", state=False),
    "wide_activations": lambda q: need(q, "wide", state=False),
    "planned_need": _planned_need,
    "predicted_need": _predicted_need,
    "law_loss": _law_loss,
    "law_tokens": _law_tokens,
    "law_tokens_from": lambda q: _one(TOKEN_RANGE[0]),
    "text_floor": _text_floor,
    "random_floor": _random_floor,
    "law_rates": _law_rates,
    "rate_of_untrained": _rate_of_untrained,
    "uniform_loss": _uniform_loss,
}


def _fault_above(q: Question, first: Any) -> Known:
    """Return the first loss above which something is broken, and what may explain this first loss in words."""
    s, base = q.setup, _uniform_loss(q)
    least = (base[0] if base else math.log(VOCABULARIES[1])) + initial_loss.FAULT_ABOVE
    if base is None or s.vocab_size is None:
        return least, least, "over any vocabulary in use"
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
    return least, least, "; or ".join(found) or "no single factor explains it"


def _chance(q: Question, task: str, items: Any) -> Known:
    """Return the score of guessing on a test set, with its 95 % interval."""
    name = benchmark_of(task)
    if name is None:
        raise UnstatedError(f"the chance level of {task}")
    test = replace(BENCHMARKS[name], questions=round(items.middle)) if items else BENCHMARKS[name]
    low, high = chance_interval(test)
    return low, high, f"chance {format_percent(test.chance)} ± {format_percent(test.standard_error)}"


def _phases_apart(q: Question, one: Any, other: Any) -> Known:
    problem = phase_problem([phase and phase.middle for phase in (one, other)])
    return float(problem is not None), float(problem is not None), problem or "one phase of the schedule"


def _scheduled_rate(q: Question, step: Any) -> Known:
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
        return rate, rate, f"cosine at {format_percent(share)}"
    return s.learning_rate, s.learning_rate, "constant"


def _perplexity_of(q: Question, loss: Any) -> Known:
    log10 = loss.middle / math.log(10)
    return loss.low, loss.high, f"{10 ** (log10 % 1):.1f}e{math.floor(log10)}"


def _batch(q: Question, to: Any) -> tuple[Prediction, Prediction, int]:
    """Return the predictions for the run's batch and for another batch, by default twice as large."""
    s = q.setup
    if s.micro_batch is None:
        raise UnstatedError("the batch")
    target = int(to.middle if to else 2 * s.micro_batch)
    here, there = expected(q), expected(q, replace(s, micro_batch=target, step_tokens=None))
    if not (here and there and here.tokens_per_second and there.tokens_per_second):
        raise UnstatedError("the GPU or the shape, without which no curve of throughput can be drawn,")
    return here, there, target


def _batch_fit(q: Question, to: Any) -> Known:
    _, there, target = _batch(q, to)
    fit = 0.0 if there.fits is False else 1.0 if there.plannable else 0.5
    return fit, fit, f"batch {target}"


def _batch_gain(q: Question, to: Any) -> Known:
    here, there, target = _batch(q, to)
    assert here.tokens_per_second is not None and there.tokens_per_second is not None
    gain = there.tokens_per_second.value / here.tokens_per_second.value - 1
    words = f"{format_percent(max(gain, 0.0))} more throughput at batch {target}, by the model's own curve"
    return gain, gain, words


def _mean_of(q: Question, column: str, first: Any, last: Any) -> Known:
    start, end = first.low if first else -math.inf, last.low if last else math.inf
    pairs: Sequence[tuple[Any, Any]] = list(zip(q.card.column("step"), q.card.column(column), strict=False))
    chosen = [number for step, number in pairs if number is not None and start <= (step or 0) <= end]
    if not chosen:
        raise UnstatedError(f"no {column} between these steps")
    mean = sum(chosen) / len(chosen)
    return mean, mean, f"mean of {len(chosen)} printed values"


def _loss_at(q: Question, step: Any) -> Known:
    loss = dict(zip(q.card.column("step"), q.card.column("loss"), strict=False)).get(step.low)
    if loss is None:
        raise UnstatedError(f"a printed row of step {step.low:g}")
    return loss, loss, f"its own row of step {step.low:g}"


def _clipped_share(q: Question) -> Known:
    norms, clip = _column(q, "grad_norm"), q.setup.grad_clip
    if not norms or clip is None:
        raise UnstatedError("threshold or norms")
    share = sum(norm > clip for norm in norms) / len(norms)
    return share, share, f"{len(norms)} printed norms against {clip:g}"


def _steps_trained(q: Question) -> Known:
    """The step at which the claim's own words say that a loss was read; 1 if they name none."""
    named = re.search(r"\b(?:step|iter(?:ation)?s?)\W{0,3}(\d+)", f"{q.claim.quote} {q.claim.text}", re.IGNORECASE)
    step = float(named[1]) if named else 1.0
    return step, step, f"{step:g}"


FUNCTIONS: dict[str, Callable[..., Known]] = {
    "steps_trained": _steps_trained,
    "fault_above": _fault_above,
    "chance": _chance,
    "phases_apart": _phases_apart,
    "scheduled_rate": _scheduled_rate,
    "perplexity_of": _perplexity_of,
    "batch_fit": _batch_fit,
    "batch_gain": _batch_gain,
    "mean_of": _mean_of,
    "loss_at": _loss_at,
    "clipped_share": _clipped_share,
}
