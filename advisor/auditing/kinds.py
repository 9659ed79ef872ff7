"""Every kind of claim: its fields, and the check that judges it. `docs/file-formats.md` describes them for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from advisor.auditing import (
    arithmetic,
    budget,
    compute,
    floors,
    forms,
    general,
    hardware,
    inference,
    learning,
    memory,
    reasoning,
    speed,
    trainings,
)
from advisor.auditing.card import COLUMNS
from advisor.auditing.expression import expression
from advisor.auditing.verdict import Check, Judgement, Question, unknown


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of claim; `fields` as `fields.read_fields` reads them."""

    check: Check
    fields: Mapping[str, str] = field(default_factory=dict)


def _kind(check: Check, **fields: str) -> Kind:
    return Kind(check=check, fields={name.rstrip("_"): spec for name, spec in fields.items()})


def not_judged(q: Question) -> Judgement:
    """What no card can settle: the claim says itself what would be needed."""
    return unknown(q.get("why"))


def rests_on(q: Question) -> Judgement:
    """What follows from other claims: `audit.audit` judges it when they are judged."""
    return unknown(f"it rests on {', '.join(q.get('premises'))}")


_COLUMN = "|".join(COLUMNS)
_RATES = "bf16|fp16|fp32|tf32|fp8"
_FORMATS = "|".join(hardware.FORMATS)

KINDS: dict[str, Kind] = {
    # arithmetic
    "expression": _kind(expression, value="number", readings="[text]", in_units="flag?"),
    "product": _kind(arithmetic.product, value="number", factors="[number]"),
    "sum": _kind(arithmetic.total, value="number", parts="[number]"),
    "difference": _kind(arithmetic.difference, value="number", whole="number", part="number"),
    "quotient": _kind(arithmetic.quotient, value="number", over="number", by="number"),
    "share": _kind(arithmetic.share, value="fraction", part="number", whole="number"),
    "change": _kind(arithmetic.change, value="fraction", from_="number", to="number", way="less|more|slower|faster"),
    "mean": _kind(arithmetic.mean, value="number", column=_COLUMN, first_step="whole?", last_step="whole?"),
    "range": _kind(arithmetic.span, value="number", column=_COLUMN, ends="both|min|max?"),
    "agreement": _kind(arithmetic.agreement, values="[number]?", words="[text]?"),
    "dates": _kind(arithmetic.dates, dates="[text]"),
    "multiples": _kind(arithmetic.multiples, every="count", last="count", listed="[count]"),
    # tokens, time, money
    "parameters": _kind(budget.parameter_count, value="count"),
    "size_ratio": _kind(speed.size_ratio, value="number", than="setup"),
    "tokens_per_step": _kind(budget.tokens_per_step, value="count"),
    "total_tokens": _kind(budget.total_tokens, value="count", steps="count?"),
    "ratio_tokens": _kind(budget.ratio_tokens, value="count", ratio="count"),
    "ratio_steps": _kind(budget.ratio_steps, value="count", ratio="count"),
    "ratio_multiple": _kind(budget.ratio_multiple, value="times", ratio="count"),
    "data_need": _kind(budget.data_need, value="count", tokens="count", ratio="count?", part_tokens="count?"),
    "epochs": _kind(budget.epochs, value="count?", steps="count?"),
    "duration": _kind(
        budget.duration,
        value="seconds",
        steps="count?",
        tokens="count?",
        ratio="count?",
        step_time="seconds?",
        remaining="flag?",
    ),
    "cost": _kind(budget.cost, value="usd", time="seconds", price="usd_per_hour?"),
    "price": _kind(budget.price, value="usd_per_hour"),
    # speed
    "throughput": _kind(speed.throughput, value="rate", step_time="seconds?"),
    "average_throughput": _kind(speed.average_throughput, value="rate", steps="count?", elapsed="seconds?"),
    "step_time": _kind(speed.step_time, value="seconds", rate="rate?", elapsed="seconds?", steps="count?"),
    "mfu": _kind(speed.mfu, value="fraction", rate="rate?"),
    "slower_by_flops": _kind(speed.cost_of_flops, value="times", than="setup"),
    "expected_speed": _kind(speed.expected_speed, value="number", seen="flag?"),
    "phase_time": _kind(speed.phase_time, value="seconds", phase="forward|backward|optimizer|clip|data"),
    "run_identity": _kind(speed.run_identity, steps="count", elapsed="seconds"),
    # memory
    "memory_part": _kind(memory.memory_part, value="bytes", bytes_each="count", part="weights|gradients|optimizer"),
    "activations": _kind(memory.activations, value="bytes"),
    "memory_total": _kind(memory.memory_total, value="bytes"),
    "memory_fits": _kind(memory.fits, value="bytes"),
    "matches": _kind(memory.matches, estimate="number", measured="[number]"),
    "checkpoint_size": _kind(memory.checkpoint_size, value="bytes", resumable="flag?"),
    "checkpoint_total": _kind(memory.checkpoint_total, value="bytes", count="count"),
    "unsaved_work": _kind(memory.unsaved_work, saved_step="whole?"),
    "memory_overhead": _kind(memory.overhead, value="bytes"),
    "exceeds_card": _kind(memory.exceeds, value="bytes", than="bytes"),
    "fits_card": _kind(memory.fits_card, value="bytes", needs="bytes"),
    # learning
    "perplexity": _kind(learning.perplexity, value="count", loss="count"),
    "initial_loss": _kind(learning.initial_loss, value="count"),
    "expected_loss": _kind(learning.expected_loss, value="count", steps="count?"),
    "printed_loss": _kind(learning.printed_loss, value="count", step="count"),
    "bits_per_byte": _kind(learning.bits_per_byte, value="count", loss="count"),
    "evaluation": _kind(learning.evaluation, value="fraction", task="text", items="count?"),
    "better": _kind(learning.better, value="count", other="count", phase="fraction?", other_phase="fraction?"),
    "learning_rate": _kind(learning.learning_rate, value="count"),
    "learning_rate_at": _kind(learning.learning_rate_at, value="count", step="count"),
    "clip_share": _kind(learning.clip_share, value="fraction"),
    "converging": _kind(learning.converging),
    # hardware
    "gpu_fact": _kind(
        hardware.gpu_fact,
        fact="memory|bandwidth|peak|power|architecture|bf16|fp8|vcpus|ram",
        gpu="card?",
        value="number?",
        words="text?",
        precision="bf16|fp16|fp32|fp8?",
        count="count?",
        native="flag?",
    ),
    "precision_speedup": _kind(hardware.precision_speedup, value="times", fast=_FORMATS, slow=_FORMATS),
    "gpu_speedup": _kind(hardware.gpu_speedup, than="card", value="times?"),
    "value_for_money": _kind(hardware.value_for_money, than="card"),
    "number_format": _kind(
        hardware.number_format,
        format=_FORMATS,
        fact="bits|range|precision|max|min|zero",
        value="number?",
        as_=f"{_FORMATS}?",
        relation="same|more|less?",
    ),
    "technique": _kind(
        hardware.technique, name="text", effect="speed|device_memory|host_memory|stability|none", size="number?"
    ),
    "recompute_cost": _kind(hardware.recompute_cost, value="fraction"),
    "adapter_saving": _kind(hardware.adapter_saving, value="fraction"),
    "full_precision": _kind(hardware.full_precision),
    "autocast": _kind(hardware.autocast_split, products="fp32|tf32|bf16|fp16", rest="fp32|tf32|bf16|fp16"),
    "tool_interval": _kind(hardware.tool_interval, tool="text", value="seconds"),
    "power_sampling": _kind(hardware.sampling, rate="hertz"),
    # what a card can do and hold, from parameters and tokens alone
    "training_time": _kind(
        compute.training_time,
        value="number",
        parameters="count?",
        tokens="count?",
        work="work?",
        gpu="card",
        gpus="count?",
        mfu="fraction?",
        precision=f"{_RATES}?",
        method="full|adapters?",
    ),
    "training_cost": _kind(
        compute.training_cost,
        value="usd",
        parameters="count",
        tokens="count",
        gpu="card?",
        method="full|adapters?",
    ),
    "training_rate": _kind(
        compute.training_rate,
        value="rate",
        parameters="count?",
        work="work?",
        gpu="card",
        gpus="count?",
        mfu="fraction?",
        precision=f"{_RATES}?",
        method="full|adapters?",
        per_gpu="flag?",
        long="flag?",
        tables="flag?",
    ),
    "training_memory": _kind(compute.training_memory, parameters="count", value="bytes?", state="count?"),
    "optimizer_time": _kind(compute.optimizer_time, value="seconds", parameters="count", gpu="card"),
    "largest_model": _kind(compute.largest_model, parameters="count", value="bytes"),
    "sustained_rate": _kind(compute.sustained_rate, value="flops", gpu="card", gpus="count?", precision=f"{_RATES}?"),
    "peak_ratio": _kind(compute.peak_ratio, value="times", gpu="card", than="card"),
    "card_price": _kind(compute.card_price, value="usd_per_hour", gpu="card", count="count?"),
    "card_memory": _kind(compute.card_memory, value="bytes", gpu="card"),
    "card_peak": _kind(
        compute.card_peak, value="flops", gpu="card", count="count?", precision=f"{_RATES}?", sparse="flag?"
    ),
    "utilisation": _kind(floors.utilisation, value="fraction"),
    "rent": _kind(floors.rent, value="usd", gpu="card", time="number", gpus="count?"),
    "weights_fit": _kind(floors.weights_fit, value="bytes", parameters="count", bits="count"),
    "tokens_per_parameter": _kind(compute.tokens_per_parameter, value="number", parameters="count", tokens="count"),
    "training_work": _kind(inference.training_work, value="work", parameters="count", tokens="count"),
    "optimal_tokens": _kind(inference.optimal_tokens, value="count", parameters="count"),
    "shape_size": _kind(inference.shape_size, value="count", layers="count", width="count"),
    "cards_speed": _kind(inference.cards_speed, value="times", gpu="card", than="card"),
    "equal_memory": _kind(
        inference.equal_memory, value="count", gpu="card", than="count", than_gpu="card", memory="bytes"
    ),
    "card_figure": _kind(inference.card_figure, value="number", gpu="card", fact="bandwidth|power|link"),
    "adapter_memory": _kind(inference.adapter_memory, value="bytes", parameters="count", bytes_each="count"),
    "weights_memory": _kind(inference.weights_memory, value="bytes", parameters="count", bytes_each="count"),
    "optimizer_state": _kind(inference.optimizer_state, value="count"),
    "state_total": _kind(inference.state_total, value="times", parts="[times]"),
    # comparisons and generalisations
    "unequal_work": _kind(
        inference.unequal_work,
        seconds="seconds",
        tokens="count",
        than_seconds="seconds",
        than_tokens="count",
        way="slower|faster",
    ),
    "range_of": _kind(inference.range_of, value="number", members="[number]"),
    "repetition_worth": _kind(inference.repetition_worth, value="count", tokens="count", epochs="count"),
    "repetition_limit": _kind(inference.repetition_limit, epochs="count"),
    "perfect_score": _kind(inference.perfect_score, value="fraction", benchmark="text"),
    "optimizer_work": _kind(inference.optimizer_work, value="number"),
    "swiglu_cost": _kind(inference.swiglu_cost, value="fraction", expansion="number?"),
    "compared_losses": _kind(inference.compared_losses, vocabularies="[count]"),
    "loss_prediction": _kind(inference.loss_prediction, value="count", reached="count"),
    # faults of form
    "share_of_quality": _kind(
        forms.share_of_quality,
        value="fraction",
        of="loss|accuracy",
        reached="fraction?",
        target="fraction?",
        chance="fraction?",
    ),
    "one_cause": _kind(forms.one_cause),
    "compute_of_size": _kind(forms.compute_of_size, value="times", size="times"),
    "uniform_loss": _kind(forms.uniform_loss, value="count", vocabulary="count"),
    "linear_speedup": _kind(forms.linear_speedup, value="seconds", gpus="count", than="seconds", than_gpus="count"),
    "scaling": _kind(inference.scaling, value="number", gpus="count", than="number", than_gpus="count"),
    "cheaper": _kind(inference.cheaper, value="usd_per_hour", than="usd_per_hour"),
    "machine": _kind(hardware.machine, name="text", gpu="card", count="count"),
    "trend": _kind(forms.trend, of="[number]", over="[number]"),
    "negligible": _kind(forms.negligible, value="count", than="count", of="perplexity|loss"),
    "tokens_support": _kind(forms.tokens_support, value="count", tokens="count", ratio="number?"),
    "larger_in_less": _kind(
        forms.larger_in_less, value="gpu_hours", parameters="count", than="gpu_hours", than_parameters="count"
    ),
    "card_hours_of_more": _kind(forms.card_hours_of_more, value="gpu_hours", gpus="count", than="gpu_hours"),
    "stacked_gains": _kind(forms.stacked_gains, value="fraction", parts="whole"),
    "untrained_loss": _kind(forms.untrained_loss, value="count"),
    "praised": _kind(forms.praised, what="rate|memory", value="number", gpu="card", parameters="count?"),
    "no_loss": _kind(forms.no_loss, words="inf|nan"),
    "published_training": _kind(
        trainings.published_training, name="text", fact="tokens|card_hours|card", value="number?", words="text?"
    ),
    "rests_on": _kind(rests_on, premises="[text]"),
    # conclusions
    "conclusion": _kind(
        reasoning.conclusion,
        that="|".join(reasoning.CONCLUSIONS),
        to="count?",
        size="bytes?",
        full_size="bytes?",
        opening="text?",
    ),
    "generality": _kind(general.generality, that="|".join(general.GENERAL)),
    "score_gap": _kind(general.score_gap, value="fraction", other="fraction", items="count"),
    "not_judged": _kind(not_judged, why="text"),
}
