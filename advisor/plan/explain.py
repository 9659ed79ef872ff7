"""Why this plan: reasons, warnings and rejections in words. Compares trials; changes none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from advisor.laws.hyperparameters import batch_band, scale_flops
from advisor.laws.text import PREPARED_BYTES_PER_CORE_SECOND, SHARD_BYTES, bytes_per_token
from advisor.plan import recipe
from advisor.plan.choose import ALIKE_USD, LEVEL
from advisor.plan.evaluate import Violation
from advisor.plan.goal import MOST_EPOCHS, Brief, describe_limits
from advisor.plan.trial import Trial
from advisor.predict.batch import BACKWARD
from advisor.predict.comm import exposed_seconds
from advisor.predict.intervals import known, reciprocal
from advisor.predict.loss import effective_tokens
from advisor.predict.micro_batch import ENOUGH
from advisor.predict.notice import save_seconds, short_notice
from advisor.predict.profile import FIT_MARGIN
from advisor.predict.whose import closest_run, whose
from advisor.records import Candidate, Estimate, Goal
from advisor.units import (
    format_bytes,
    format_error,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)
from trainer.schema import ModelShape

_NO_TIME = known(0.0)
COUNTED = {"matrices+head": "matrix and head parameter", "total": "parameter", "matrices": "matrix parameter"}


def reasons(chosen: Trial, depths: Sequence[Trial], plain: Trial | None = None) -> Iterator[str]:
    """Say why this depth, these tokens, this batch, this learning rate and this memory.

    `depths` are all that were weighed; `plain` is the same run without the recomputation that a pinned micro-batch
    forces.
    """
    brief = chosen.device.brief
    yield _why_tokens(brief, chosen)
    yield _why_depth(brief, chosen, depths)
    yield _why_batch(brief, chosen)
    run = chosen.run
    yield (
        f"learning rate {run.optimizer.learning_rate:g}: the lower of the DeepSeek and Step Law values, scaled to the "
        f"batch and kept between 1e-4 and 3e-3; {run.schedule.warmup_steps} steps of warm-up, then cosine to a tenth"
    )
    yield _why_memory(brief, chosen)
    if chosen.prediction.workload.sharding == "full":
        yield _why_sharded(chosen)
    if plain is not None:
        yield _without_recomputation(chosen, plain)
    yield _why_limits(brief, chosen)
    yield f"for {whose(chosen.device.profile, chosen.prediction.workload)}"
    if near := closest_run(chosen.device.profile, chosen.prediction.workload):
        yield f"closest published run: {near}"
    if brief.bytes_to_fetch:
        yield _what_to_fetch(brief, chosen)
    if brief.goal.own:
        yield _what_is_owned(brief.goal)
    yield from _why_no_longer(brief, chosen)


def inputs(chosen: Trial) -> Iterator[str]:
    """Everything the plan rests on: calibration, sources, laws, price, data."""
    brief, profile = chosen.device.brief, chosen.device.profile
    if not profile.calibrated:
        yield f"no calibration: {profile.key} is estimated from published runs"
    yield from profile.sources
    yield "loss: Besiroglu et al. 2024; repetition: Muennighoff et al. 2023"
    yield "batch: DeepSeek LLM 2024, Step Law 2025, nanochat 2026; learning rate: DeepSeek LLM 2024, Step Law 2025"
    yield f"price: {chosen.offer.source}"
    if brief.goal.data_tokens:
        yield f"data: {format_tokens(brief.goal.data_tokens)} tokens that are not here"
    else:
        yield f"data: {brief.goal.data}" if brief.goal.data else "data: synthetic tokens"


def rejection(trial: Trial) -> str | None:
    """What stands against a run, in words; None when it was merely beaten on the score."""
    brief, bill, violation = trial.device.brief, trial.bill, trial.violation
    if Violation.MEMORY in violation:
        return f"does not fit memory: {_memory(trial)}"
    if Violation.TIME in violation:
        needs = format_estimate(bill.clock.total_seconds, format_seconds)
        steps = "" if brief.settled else f" for {trial.run.steps} steps"
        return f"too slow: {needs}{steps} of {format_seconds(brief.deadline_seconds)}"
    if Violation.MONEY in violation and bill.usd is not None and not brief.limits.patient.broken(_NO_TIME, bill.usd)[1]:
        waited = format_usd(brief.limits.waiting_usd(brief.limits.counted(bill.clock.total_seconds)))
        return f"too slow: {format_estimate(bill.clock.total_seconds, format_seconds)} of waiting count as {waited}"
    if Violation.MONEY in violation:
        return f"over budget: {format_estimate(bill.usd, format_usd)} of {format_usd(brief.goal.budget_usd)}"
    if Violation.NOTICE in violation:
        return f"gone before it has saved: {caught(trial)}"
    if Violation.THIN in violation:
        return f"too slow: {format_number(trial.ratio)} of {format_number(brief.ratio)} tokens per parameter"
    return None


def caught(trial: Trial) -> str | None:
    """Why the machine of a run is taken away before it has saved; None: it is not."""
    assert trial.prediction.step_seconds is not None
    needed = save_seconds(trial.run, trial.bill.clock, trial.prediction.step_seconds)
    return short_notice(trial.offer.provider, needed)


def micro_batch_rejection(trial: Trial, chosen: Trial) -> str:
    """Why another micro-batch of the chosen depth and global batch was not chosen."""
    if Violation.MEMORY in trial.violation:
        return f"does not fit memory: {_memory(trial)}"
    rate, chosen_rate = trial.prediction.tokens_per_second, chosen.prediction.tokens_per_second
    held, chosen_held = trial.device_bytes, chosen.device_bytes
    assert rate is not None and chosen_rate is not None and held is not None and chosen_held is not None
    change = rate.value / chosen_rate.value - 1
    memory = ", needs more memory" if held.value > chosen_held.value else ""
    if change <= 0:
        return f"{format_percent(-change)} fewer tokens/s{memory}"
    apart = trial.prediction.workload.step_tokens / chosen.prediction.workload.step_tokens - 1
    batch = f", global batch {format_percent(abs(apart))} {'larger' if apart > 0 else 'smaller'}" if apart else ""
    more = ", no more than 2 %" if change <= 1 / ENOUGH - 1 else ""
    return f"{format_percent(change)} more tokens/s{more}{memory}{batch}"


def verdict(candidate: Candidate, chosen: Candidate) -> str:
    """What became of one row of the tables: chosen, rejected for a reason, or what its score came to."""
    score = f"score {candidate.score:.4g}"
    if candidate is chosen:
        return f"chosen: {score}"
    if candidate.rejected:
        return candidate.rejected
    if LEVEL * candidate.score < chosen.score:
        return f"better, but {_drawback(candidate, chosen)}: {score}"
    level = candidate.score <= LEVEL * chosen.score and candidate.parameters > chosen.parameters
    return f"level, but larger: {score}" if level else f"beaten: {score}"


def _drawback(better: Candidate, chosen: Candidate) -> str:
    """What a run of a better score costs more than the chosen one: dollars, time, or the balance of its tokens."""
    paid, asked = (c.cost_usd.value if c.cost_usd else 0.0 for c in (chosen, better))
    more = ["dearer"] if asked > ALIKE_USD * paid else []
    more += ["slower"] if better.total_seconds.value > ALIKE_USD * chosen.total_seconds.value else []
    return " and ".join(more) or "its tokens suit its size less"


def memory_needed(needed: Estimate, device_bytes: float) -> str:
    """Why something does not fit: the interval's high end against the part of the memory that is counted on."""
    return f"up to {format_bytes(needed.high)} of {format_bytes(FIT_MARGIN * device_bytes)} usable"


def _memory(trial: Trial) -> str:
    assert trial.device_bytes is not None and trial.prediction.device_memory_bytes is not None
    return memory_needed(trial.device_bytes, trial.prediction.device_memory_bytes)


def _why_tokens(brief: Brief, chosen: Trial) -> str:
    per = COUNTED[brief.ratio_counts]
    seen = f"{format_number(chosen.ratio)} tokens per {per} ({format_number(brief.ratio)} recommended)"
    tokens = format_tokens(chosen.tokens)
    if brief.goal.epochs is not None:
        return f"{tokens} tokens, the data {format_number(brief.goal.epochs)} times over as asked: {seen}"
    if brief.goal.tokens is not None:
        exact = "" if chosen.tokens == brief.goal.tokens else ", to the nearest whole step"
        return f"{tokens} tokens as asked{exact}: {seen}"
    if chosen.data_bound:
        return f"{tokens} tokens: the data {MOST_EPOCHS} times over, more repetition is mostly waste; {seen}"
    if brief.settled:
        asked = "asked for" if brief.goal.ratio is not None else f"the custom for {brief.goal.family}"
        if brief.goal.inference_tokens is not None:
            asked = "for what it is to serve"
        return f"{tokens} tokens: {format_number(brief.ratio)} per {per}, {asked}"
    limits = describe_limits(brief)
    return f"{tokens} tokens: as many as fit {limits}, start-up, evaluations and checkpoints included; {seen}"


def _what_to_fetch(brief: Brief, chosen: Trial) -> str:
    """The download that the bill holds, and how often it is seen."""
    assert brief.unique_tokens is not None and chosen.epochs is not None
    fresh = min(chosen.tokens, brief.unique_tokens)
    size = fresh * brief.bytes_to_fetch
    seconds = reciprocal(brief.download_rate, size)
    worth = effective_tokens(chosen.tokens, brief.unique_tokens)
    often = f"seen {format_number(chosen.epochs)} times, worth {format_tokens(worth)} fresh tokens"
    return (
        f"data to bring: {format_tokens(fresh)} of {format_tokens(brief.unique_tokens)} tokens, about "
        f"{format_number(size / 1e9)} GB of compressed text in {math.ceil(size / SHARD_BYTES):,} shards of 100 MB, "
        f"{format_estimate(seconds, format_seconds)} of the bill; {often if chosen.epochs > 1 else 'seen once at most'}"
    )


def data_elsewhere(brief: Brief, chosen: Trial) -> str:
    text_bytes = min(chosen.tokens, brief.unique_tokens or 0) * bytes_per_token(brief.vocab_size)
    core_seconds = format_seconds(text_bytes / PREPARED_BYTES_PER_CORE_SECOND)
    return (
        "the data are not here: bring them, turn them into a token folder with `advisor data prepare` (about "
        f"{core_seconds} of one core, not in the bill), and plan again with --data"
    )


def _what_is_owned(goal: Goal) -> str:
    """Which machines were counted as the user's, and what they cost."""
    machines = ", ".join(f"{machine.gpus} x {machine.gpu}" for machine in goal.own)
    energy = (
        f"energy at {format_usd(goal.usd_per_kwh)} per kWh" if goal.usd_per_kwh else "energy not counted (--kwh-price)"
    )
    own = {machine.gpu for machine in goal.own}
    prices = [f"{format_usd(p.usd_per_gpu_hour)} an hour for each {p.gpu}" for p in goal.prices if p.gpu in own]
    paid = ", ".join([*(prices or ["no rent"]), energy])
    return f"your own: {machines} and no more of them (--own GPU:N says how many a machine has); {paid}"


def _why_depth(brief: Brief, chosen: Trial, depths: Sequence[Trial]) -> str:
    shape = chosen.prediction.workload.shape
    depth = shape.depth
    if brief.goal.depth is not None:
        return f"{_why_shape(brief, shape)}: {chosen.prediction.parameters:,} parameters"
    if brief.goal.objective != "loss":
        return f"depth {depth}: of all that do the work the one of least {brief.goal.objective}"
    if brief.goal.tokens is not None and not brief.limited:
        return f"depth {depth}: of {len(depths)} depths the one that brings these tokens nearest the recommended ratio"
    if not brief.limited:
        limit = format_seconds(brief.deadline_seconds)
        return f"depth {depth}: the best that ends within {limit}, assumed because no limit was given"
    runners = sorted((t for t in depths if t is not chosen and not t.violation), key=lambda trial: trial.score)
    text = (
        f"depth {depth}: lowest score of {len(depths)} depths within {describe_limits(brief)} "
        "(a loss law used beyond the sizes it was fitted on)"
    )
    if runners:
        gap = runners[0].score / chosen.score - 1
        other = f"depth {runners[0].prediction.workload.shape.depth}"
        text += f"; {other} comes next, {format_percent(gap)} higher" if gap > 0.001 else f"; {other} is level with it"
    return text


def _why_shape(brief: Brief, shape: ModelShape) -> str:
    goal, sizes = brief.goal, f"depth {shape.depth} and width {shape.width}"
    if goal.model is not None:
        return f"{sizes} as in {goal.model}, vocabulary {shape.vocab_size}"
    if goal.parameters is not None:
        return f"{sizes}: of {goal.family}'s shapes the nearest to {format_tokens(goal.parameters)}"
    return f"depth {shape.depth}{f' and width {shape.width}' if goal.width else ''} as asked"


def _why_batch(brief: Brief, chosen: Trial) -> str:
    workload = chosen.prediction.workload
    band = batch_band(scale_flops(workload.shape), chosen.tokens)
    laws = ", ".join(f"{name} {format_tokens(tokens)}" for name, tokens in band.named.items())
    text = f"{format_tokens(workload.step_tokens)} tokens per step"
    if brief.goal.global_batch_tokens is not None:
        text += ", " + off if (off := off_request(chosen)) else " as asked"
    elif max(workload.step_tokens, chosen.tokens / recipe.FEWEST_STEPS) < band.median:
        text += f", kept small for {chosen.run.steps} steps"
    place = "inside" if band.on_plateau(workload.step_tokens) else "outside"
    size = f"micro-batch {workload.micro_batch}"
    rule = "is the smallest within 2 % of the best tokens/s at this batch"
    why = "as asked" if brief.goal.micro_batch is not None else rule
    return f"{text} ({laws}; {place} the plateau around their median); {size} {why}"


def _why_no_longer(brief: Brief, chosen: Trial) -> Iterator[str]:
    """What waiting counts as, and what it comes to; nothing where it costs nothing."""
    limits, cost = brief.limits, chosen.bill.usd
    if limits.budget_usd is None and limits.usd_per_waiting_hour is None:
        yield (
            "waiting counts between machines that do the same, each day after the first as the root of the cheapest "
            "one's dollars (assumed)"
        )
    if not limits.usd_per_waiting_second or limits.budget_usd is None or cost is None:
        return
    seconds = limits.counted(chosen.bill.clock.total_seconds)
    if brief.usd_per_waiting_hour is None:
        price = f"each day after the first as {format_usd(86400 * limits.usd_per_waiting_second)} (√budget, assumed)"
        other = "--value-of-time says otherwise, 0 that it costs nothing, --deadline when it must be done"
    else:
        price, other = f"each hour as {format_usd(brief.usd_per_waiting_hour)}", "as asked"
    waited = f"{format_usd(limits.waiting_usd(seconds))} beside {format_usd(limits.counted(cost))}"
    against = "between machines that do the same" if limits.settled else "against the budget"
    yield f"waiting counts {against}, {price}: {waited}; {other}"


def off_request(chosen: Trial) -> str:
    """By how much the global batch misses the one asked for, in words; "" where it is met."""
    asked, made = chosen.device.brief.goal.global_batch_tokens, chosen.prediction.workload.step_tokens
    if asked is None or asked == made:
        return ""
    return f"{format_percent(abs(made / asked - 1))} {'more' if made > asked else 'fewer'} than the {asked:,} asked for"


def _why_memory(brief: Brief, chosen: Trial) -> str:
    """How much memory is used of what is counted on, at which precision, and whether activations are recomputed."""
    workload, held = chosen.prediction.workload, format_estimate(chosen.device_bytes, format_bytes)
    whole, asked = chosen.prediction.device_memory_bytes, brief.goal.activation_checkpointing is not None
    usable = (
        f" of {format_bytes(FIT_MARGIN * whole)} usable, {format_percent(FIT_MARGIN)} of the GPU's" if whole else ""
    )
    words = {"none": "nothing", "selective": "feed-forward activations", "full": "activations"}
    recomputed = f"{words[workload.activation_checkpointing]} recomputed"
    why = " as asked" if asked else "" if recomputed.startswith("nothing") else ", without which less or nothing fits"
    precision = f"{workload.precision} as asked" if brief.goal.precision != "auto" else workload.precision
    if workload.precision == "fp16" and brief.goal.precision == "auto":
        precision += " with loss scaling: this GPU has no fast bf16"
    return f"memory {held}{usable}; {recomputed}{why}; {precision}"


def _why_sharded(chosen: Trial) -> str:
    """What a copy of the model on each GPU would take, and what sharing one out costs in time."""
    workload, profile = chosen.prediction.workload, chosen.device.profile
    whole = replace(workload, sharding="none", activation_checkpointing="full", micro_batch=1)
    held = format_estimate(profile.memory.device_total_bytes(whole), format_bytes)
    step = chosen.prediction.step_seconds
    backward = BACKWARD * step.value / workload.grad_accum if step is not None else 0.0
    exposed = exposed_seconds(workload, profile.spec, backward, expected=True)
    assert step is not None and exposed is not None  # steps of unknown links are no candidates
    cost = format_estimate(exposed.scaled(1 / step.value), format_percent)
    return (
        f"weights, gradients and optimizer state sharded over the {workload.gpus} GPUs: a copy on each would take "
        f"{held} even at micro-batch 1 with everything recomputed; what gathering and reducing them takes beside the "
        f"arithmetic is {cost} of a step"
    )


def _without_recomputation(chosen: Trial, plain: Trial) -> str:
    size, seconds = plain.prediction.workload.micro_batch, plain.bill.clock.total_seconds
    rate = format_error(chosen.prediction.tokens_per_second, plain.prediction.tokens_per_second, format_rate)
    work = f"{format_tokens(plain.tokens)} tokens in {format_estimate(seconds, format_seconds)}"
    return (
        f"micro-batch {chosen.prediction.workload.micro_batch} as asked forces recomputation; --micro-batch {size} "
        f"does without: {rate} tokens/s, {work}"
    )


def _why_limits(brief: Brief, chosen: Trial) -> str:
    clock = chosen.bill.clock.total_seconds
    if brief.goal.sure:
        return "the high end of the interval keeps the limits, as asked by --sure"
    late, dear = replace(brief.limits.patient, sure=True).broken(clock, chosen.bill.usd)
    if late and brief.limited:
        return (
            "the expected time keeps the deadline, the high end of its interval does not: --sure plans for the high end"
        )
    if dear and chosen.bill.usd is not None:
        return (
            "the expected cost keeps the budget, the high end of its interval does not: --sure plans for the high end"
        )
    return "the bill counts start-up, compilation, evaluations and checkpoints, not steps alone"
