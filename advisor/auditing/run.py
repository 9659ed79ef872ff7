"""Quantities of the run that a card describes: declared, measured, expected of its GPU, or given by a law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partialmethod

from advisor.auditing.card import CardSetup
from advisor.auditing.counts import Counts, counts, vocabulary, workload_of
from advisor.auditing.quantity import ClaimedQuantity
from advisor.auditing.verdict import Known, Question, between, exactly
from advisor.hardware.catalog import GpuSpec, find_gpu, peak_flops
from advisor.laws import device_faults, flops, initial_loss
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


def _interval(ends: Sequence[float], show: Callable[[float], str], words: str = "") -> Known:
    return ends[0], ends[1], between(ends, show) + words


def _one(number: float | None, words: str = "") -> Known | None:
    return None if number is None else exactly(number, words or f"{number:,.4g}")


def declared(q: Question, name: str) -> Known | None:
    """Return a number that the card states, or None if it is not a number or not stated."""
    field = {"rate": "throughput", "stated_step_tokens": "step_tokens"}.get(name, name)
    timed = name in ("forward_time", "backward_time", "data_time", "total_time")  # phases of one step
    value = q.card.timing.get(name.removesuffix("_time")) if timed else getattr(q.setup, field, None)
    if isinstance(value, ClaimedQuantity):
        return value.low, value.high, value.text
    return None if value is None or isinstance(value, str) else exactly(value, f"{value:,}")


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


class RunQuantities:
    """The quantities of a claim's run that its card implies, by the names that expressions in `kinds.yaml` use."""

    def __init__(self, q: Question) -> None:
        self.q, self.s, self.spec = q, q.setup, spec_of(q.setup)
        self.most = peak(self.spec, q.setup.precision)

    @cached_property
    def _model(self) -> Counts | None:
        return counts(self.s)

    def _step_seconds(self, which: int) -> float | None:
        """Return the seconds of the first printed step (0), or the median of the later steps (1)."""
        seconds, steps = column(self.q, "seconds"), self.q.card.column("step")
        if len(seconds) < 3 or not steps or (steps[0] or 0) > 1:
            return None
        return (seconds[0], sorted(seconds[1:])[len(seconds[1:]) // 2])[which]

    def _printed(self, name: str, number: Callable[[list[float]], float | None]) -> Known | None:
        return _one(number(column(self.q, name)))

    first_loss = partialmethod(_printed, "loss", lambda losses: losses[0] if losses else None)
    last_loss = partialmethod(_printed, "loss", lambda losses: losses[-1] if len(losses) > 1 else None)
    largest_norm = partialmethod(_printed, "grad_norm", lambda norms: max(norms, default=None))

    def first_step_time(self) -> Known | None:
        return _one(self._step_seconds(0))

    def later_step_time(self) -> Known | None:
        return _one(self._step_seconds(1))

    def _need(self, band: str, *, state: bool = True) -> Known | None:
        """Return the least and most bytes that software needs on one GPU; None if shape, batch or length is unknown."""
        s, model, bytes_of = self.s, self._model, _BANDS[band]
        if model is None or s.micro_batch is None or s.seq_len is None:
            return None
        shape, tokens = model.readings[0].shape, s.micro_batch * s.seq_len
        lanes, rows = tokens * shape.depth * shape.width, [tokens * v for v in vocabulary(s)]
        low, high = (bytes_of["activations"][end] * lanes + bytes_of["logits"][end] * rows[end] for end in (0, 1))
        spelt = {part: f"{low:g}-{high:g} B" for part, (low, high) in bytes_of.items()}
        words = f"{spelt['activations']} × {tokens:,} tokens × {shape.depth} × {shape.width}"
        words += f" + {spelt['logits']} × tokens × vocabulary"
        if not state:
            return low, high, words
        low, high = (
            total + bytes_of["state"][end] * model.parameters[end] + bytes_of["context"][end]
            for end, total in enumerate((low, high))
        )
        return low, high, f"{words} + {spelt['state']} × parameters + context"

    usual_need, wide_need = partialmethod(_need, "usual"), partialmethod(_need, "wide")
    usual_activations = partialmethod(_need, "usual", state=False)
    wide_activations = partialmethod(_need, "wide", state=False)

    def parameters(self) -> Known | None:
        """Return the parameters of the declared shape, or the stated number without a shape or with experts."""
        model, stated = self._model, self.s.parameters
        if stated is not None and (model is None or self.s.active_parameters is not None):
            return stated.low, stated.high, stated.text
        return _interval(model.parameters, format_count) if model else None

    def flops_per_token(self) -> Known | None:
        """Return 6 FLOPs for each parameter that a token uses; with a shape, attention is added."""
        active = self.s.active_parameters
        if active is not None:
            return 6 * active.low, 6 * active.high, f"6 × {active.text} active"
        model = self._model if self.s.seq_len else None
        return _interval(model.flops, format_count) if model else None

    def step_tokens(self) -> Known | None:
        """Return the tokens of a step, with the product that gives them if they are not stated."""
        s, tokens = self.s, self.s.tokens_of_a_step
        if tokens is None or s.step_tokens is not None:
            return None if tokens is None else exactly(tokens, f"{tokens:,}")
        return exactly(tokens, f"({s.micro_batch} × {s.grad_accum} × {s.seq_len} × {s.gpus} = {tokens:,})")

    def run_tokens(self) -> Known | None:
        """Return the tokens of all planned steps."""
        tokens, steps = self.s.tokens_of_a_step, self.s.steps
        return None if tokens is None or steps is None else exactly(tokens * steps, f"{steps:,} × {tokens:,}")

    def unique_tokens(self) -> Known | None:
        """Return the fewest and most unique tokens: as declared, or the data set's bytes over bytes per token."""
        s = self.s
        if s.data == "random":
            return None
        if s.dataset_tokens is not None:
            low, high = s.dataset_tokens.low, s.dataset_tokens.high
        else:
            each = s.bytes_per_token or (bytes_per_token(s.vocab_size) if s.vocab_size else None)
            low, high = (s.dataset.low / each / 1.2, s.dataset.high / each * 1.2) if s.dataset and each else (0.0, 0.0)
        return _interval((low, high), format_count) if low and high else None

    def utilization(self) -> Known | None:
        """Return the MFU of the measured speed, over every reading of the declared shape."""
        s, each, most = self.s, self.flops_per_token(), self.most
        if most is None or each is None or s.rate is None:
            return None
        low, high = (flops.mfu(f, r, s.gpus, most) for f, r in zip(each[:2], s.rate, strict=True))
        return _interval((low, high), format_percent)

    def expected_rate(self) -> Known | None:
        """Return the predicted tokens per second."""
        rate = (prediction := expected(self.q)) and prediction.tokens_per_second
        return _interval((rate.low, rate.high), format_rate, " expected") if rate else None

    def slowdown(self) -> Known | None:
        """Return how many times slower the run is than the low end of the prediction; below 1 it is as expected."""
        prediction, rate = expected(self.q), self.s.rate
        if prediction is None or prediction.tokens_per_second is None or rate is None:
            return None
        low, high = prediction.tokens_per_second.low, prediction.tokens_per_second.high
        times, use = low / rate[1], self.utilization()
        words = f"{between(rate, format_rate)} where {between((low, high), format_rate)} is normal"
        if use and prediction.mfu:
            normal = between((prediction.mfu.low, prediction.mfu.high), format_percent)
            words = f"MFU {format_percent(use[1])} where {normal} is normal"
        software = f" with {self.s.backend}" if self.s.backend else ""
        return exactly(times, f"{words}: {times:,.0f} times slow at least{software}")

    def product_share(self) -> Known | None:
        """Return the share of the step that matrix products need at their best measured rate."""
        spec, use = self.spec, self.utilization()
        most = peak(spec, self.s.precision)
        if spec is None or use is None or most is None:
            return None
        best = (spec.mamf_bf16_flops if (self.s.precision or "bf16") == "bf16" else None) or most
        return exactly(use[1] * most / best, f"{use[2]} of the peak")

    def memory_share(self) -> Known | None:
        """Return the share of the expected step that is memory traffic."""
        believed = _believed(self.q, self.s)
        if believed is None:
            return None
        parts = predict_log(believed[0].posterior_of(believed[1].sharding), sizes([believed[1]])).parts[0]
        named = dict(zip(TERMS, parts / parts.sum(), strict=True))
        share = float(sum(named[term] for term in ("traffic", "logits", "weights", "optimizer")))
        products = format_percent(float(named["matmul"] + named["attention"]))
        return exactly(share, f"memory {format_percent(share)}, products {products} of the expected step")

    def cpu_signs(self) -> Known | None:
        """Return how many signs say that the GPU does not do the work. A sign counts if all readings have it."""
        s, model, use, most = self.s, self._model, self.utilization(), self.most
        readings = device_faults.FallbackReadings(
            parameters=model.parameters[0] if model else None,
            memory_used_bytes=s.memory_used.most if s.memory_used else None,
            power_watts=s.power.most if s.power else None,
            power_limit_watts=self.spec.tdp_watts if self.spec else None,
            utilization=s.utilization.most if s.utilization else None,
            flops_per_second=use[1] * most if use and most else None,
            peak_flops=most,
            first_step_seconds=self._step_seconds(0),
            later_step_seconds=self._step_seconds(1),
        )
        signs = [sign.text for sign in device_faults.cpu_signs(readings) if sign.applies]
        return exactly(len(signs), "; ".join(signs) or "no sign")

    def norm_growth(self) -> Known | None:
        """Return the ratio of the mean late gradient norm to the mean early one, both after warm-up."""
        norms = column(self.q, "grad_norm")
        if len(norms) < 6:
            return None
        late = norms[len(norms) // 4 :]
        before, after = (sum(part) / len(part) for part in (late[: len(late) // 2], late[len(late) // 2 :]))
        return _one(after / before, f"mean printed norm {before:.2f}, later {after:.2f}")

    def planned_need(self) -> Known | None:
        """Return the least bytes of a run on one GPU, or None once it runs, because it may recompute activations."""
        s = self.s
        has_run = any((s.steps_done, s.step_time, s.throughput, s.memory_used))
        return self._need("wide") if s.gpus == 1 and not has_run else None

    def predicted_need(self) -> Known | None:
        """Return the predicted bytes of the run, and the memory of its GPU as text."""
        prediction = expected(self.q)
        if prediction is None or prediction.peak_reserved_bytes is None or prediction.device_memory_bytes is None:
            return None
        peak_bytes, words = prediction.peak_reserved_bytes, f" of {format_bytes(prediction.device_memory_bytes)}"
        if prediction.fits is False:
            words += ": more than that, unless activations are recomputed or it is split"
        ends = peak_bytes.low, peak_bytes.high
        return *ends, f"predicted {between(ends, format_bytes)}{words}"

    def law_loss(self) -> Known | None:
        """Return the loss that the law gives for all parameters and tokens, at the vocabulary's bytes per token."""
        s, model, tokens = self.s, self._model, self.law_tokens()
        if model is None or tokens is None:
            return None
        pairs = [*zip(vocabulary(s), model.parameters, strict=True), (vocabulary(s)[0], model.parameters[1])]
        losses = [CHINCHILLA.loss(n, tokens[0]) * bytes_per_token(v) / LAW_BYTES_PER_TOKEN for v, n in pairs]
        words = f"loss law of {between(model.parameters, format_count)} parameters and {format_count(tokens[0])} tokens"
        return min(losses), max(losses), words

    def text_floor(self) -> Known | None:
        """Return the entropy of text in nats per token for this vocabulary; None if tokens are random or unknown."""
        each = bytes_per_token(vocabulary(self.s)[0]) if self.law_tokens() and self._model else None
        return None if each is None else _one(entropy_of_text(each))

    def random_floor(self) -> Known | None:
        """Return the lowest possible loss on random tokens, which is the loss of a uniform guess."""
        base = self.uniform_loss() if self.s.data == "random" else None
        return exactly(base[0] - initial_loss.SOUND, base[2]) if base else None

    def rate_of_untrained(self) -> Known | None:
        """Return the learning rate if the first loss is that of an untrained model (fine-tunes use far lower rates)."""
        base, first = self.uniform_loss(), self.s.initial_loss
        untrained = base is not None and first is not None and first.most >= base[0] - initial_loss.SOUND
        return declared(self.q, "learning_rate") if untrained else None

    def law_rates(self) -> Known | None:
        """Return the learning rates that the laws give; they are AdamW's."""
        s, model = self.s, self._model
        if (
            s.optimizer != "adamw"
            or model is None
            or s.tokens_of_a_step is None
            or s.steps is None
            or s.seq_len is None
        ):
            return None
        rates = peak_rates(model.readings[0].shape, s.steps * s.tokens_of_a_step)
        return min(rates.values()), max(rates.values()), ", ".join(f"{name} {rate:.2g}" for name, rate in rates.items())

    def run_bill(self) -> Known | None:
        """Return the hours of all steps at the measured speed, and their cost if a price is stated."""
        s, seconds = self.s, self.s.seconds_of_a_step
        if seconds is None or s.steps is None:
            return None
        low, high = s.steps * seconds[0] / 3600, s.steps * seconds[1] / 3600
        count, price = (1 if s.price_of == "machine" else s.gpus), s.price
        bill = f" and {between((count * low * price.low, count * high * price.high), format_usd)}" if price else ""
        return low, high, f"{between((low, high), '{:,.1f} h'.format)}{bill}"

    def uniform_loss(self) -> Known | None:
        """Return ln V, the loss of an untrained model, or None if the vocabulary is not stated."""
        size = self.s.vocab_size
        return _one(initial_loss.uniform_loss(size), f"ln {size:,}") if size else None

    def law_tokens(self) -> Known | None:
        each, steps = self.s.tokens_of_a_step, self.q.steps
        return None if self.s.data == "random" or each is None or steps is None else _one(steps * each)

    def law_tokens_from(self) -> Known:
        return exactly(TOKEN_RANGE[0], f"{TOKEN_RANGE[0]:,.4g}")

    def random_data(self) -> Known:
        return exactly(self.s.data == "random", "random tokens")
