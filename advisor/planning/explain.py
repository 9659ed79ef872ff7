"""Why this plan: reasons, warnings and rejections in words. Compares runs; changes none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from advisor.laws.hyperparameters import batch_band, scale_flops
from advisor.laws.text import PREPARED_BYTES_PER_CORE_SECOND, SHARD_BYTES, bytes_per_token
from advisor.planning import recipe
from advisor.planning.candidates import Device
from advisor.planning.choose import ALIKE_USD, LEVEL
from advisor.planning.goal import MOST_EPOCHS, Brief, describe_limits
from advisor.planning.run import config_of
from advisor.prediction.batch import BACKWARD
from advisor.prediction.comm import exposed_seconds
from advisor.prediction.intervals import known, reciprocal
from advisor.prediction.loss import effective_tokens
from advisor.prediction.micro_batch import ENOUGH
from advisor.prediction.notice import save_seconds, short_notice
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.prediction.whose import closest_run, whose
from advisor.records import Run
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
from trainer.schema import ModelShape, RunConfig

_NO_TIME = known(0.0)
COUNTED = {"matrices+head": "matrix and head parameter", "total": "parameter", "matrices": "matrix parameter"}


def reasons(
    device: Device, run: RunConfig, chosen: Run, depths: Sequence[Run], plain: Run | None = None
) -> Iterator[str]:
    """Say why this depth, these tokens, this batch, this learning rate and this memory.

    `run` is the chosen one as the trainer takes it; `depths` are all that were weighed; `plain` is the same without the
    recomputation that a pinned micro-batch forces.
    """
    brief, goal, workload = device.brief, device.brief.goal, chosen.workload
    yield _why_tokens(brief, chosen)
    yield _why_depth(brief, chosen, depths)
    yield _why_batch(brief, chosen)
    yield (
        f"learning rate {run.optimizer.learning_rate:g}: the lower of the DeepSeek and Step Law values, scaled to the "
        f"batch and kept between 1e-4 and 3e-3; {run.schedule.warmup_steps} steps of warm-up, then cosine to a tenth"
    )
    yield _why_memory(brief, chosen)
    if workload.sharding == "full":
        yield _why_sharded(device.profile, chosen)
    if plain is not None:
        rate = format_error(chosen.tokens_per_second, plain.prediction.tokens_per_second, format_rate)
        work = f"{format_tokens(plain.tokens)} tokens in {format_estimate(plain.total_seconds, format_seconds)}"
        yield (
            f"micro-batch {workload.micro_batch} as asked forces recomputation; --micro-batch "
            f"{plain.workload.micro_batch} does without: {rate} tokens/s, {work}"
        )
    yield _why_limits(brief, chosen)
    yield f"for {whose(device.profile, workload)}"
    if near := closest_run(device.profile, workload):
        yield f"closest published run: {near}"
    if brief.bytes_to_fetch:
        yield _what_to_fetch(brief, chosen)
    if goal.own:
        machines = ", ".join(f"{machine.gpus} x {machine.gpu}" for machine in goal.own)
        energy = f"energy at {format_usd(goal.usd_per_kwh)} per kWh" if goal.usd_per_kwh else ""
        own = {machine.gpu for machine in goal.own}
        prices = [f"{format_usd(p.usd_per_gpu_hour)} an hour for each {p.gpu}" for p in goal.prices if p.gpu in own]
        paid = ", ".join([*(prices or ["no rent"]), energy or "energy not counted (--kwh-price)"])
        yield f"your own: {machines} and no more of them (--own GPU:N says how many a machine has); {paid}"
    yield from _why_no_longer(brief, chosen)


def inputs(device: Device, chosen: Run) -> Iterator[str]:
    """Everything the plan rests on: calibration, sources, laws, price, data."""
    goal, profile = device.brief.goal, device.profile
    if not profile.calibrated:
        yield f"no calibration: {profile.key} is estimated from published runs"
    yield from profile.sources
    yield "loss: Besiroglu et al. 2024; repetition: Muennighoff et al. 2023"
    yield "batch: DeepSeek LLM 2024, Step Law 2025, nanochat 2026; learning rate: DeepSeek LLM 2024, Step Law 2025"
    yield f"price: {chosen.offer.source}"
    if goal.data_tokens:
        yield f"data: {format_tokens(goal.data_tokens)} tokens that are not here"
    else:
        yield f"data: {goal.data}" if goal.data else "data: synthetic tokens"


def rejection(device: Device, run: Run) -> str | None:
    """What stands against a run, in words; None when it was merely beaten on the score."""
    brief, bill, against = device.brief, run.bill, run.standing.against
    total, cost = bill.wall_clock.total_seconds, bill.cost_usd
    if "memory" in against:
        return _not_fitting(run)
    if "time" in against:
        steps = "" if brief.settled else f" for {run.steps} steps"
        needs = format_estimate(total, format_seconds)
        return f"too slow: {needs}{steps} of {format_seconds(brief.deadline_seconds)}"
    if "money" in against and cost is not None and not brief.limits.patient.broken(_NO_TIME, cost)[1]:
        waited = format_usd(brief.limits.waiting_usd(brief.limits.counted(total)))
        return f"too slow: {format_estimate(total, format_seconds)} of waiting count as {waited}"
    if "money" in against:
        return f"over budget: {format_estimate(cost, format_usd)} of {format_usd(brief.goal.budget_usd)}"
    if "notice" in against:
        assert run.prediction.step_seconds is not None
        needed = save_seconds(config_of(device, run), bill.wall_clock, run.prediction.step_seconds)
        return f"gone before it has saved: {short_notice(run.offer.provider, needed)}"
    if "thin" in against:
        return f"too slow: {format_number(run.standing.ratio)} of {format_number(brief.ratio)} tokens per parameter"
    return None


def micro_batch_rejection(run: Run, chosen: Run) -> str:
    """Why another micro-batch of the chosen depth and global batch was not chosen."""
    if "memory" in run.standing.against:
        return _not_fitting(run)
    rate, chosen_rate = run.prediction.tokens_per_second, chosen.tokens_per_second
    held, chosen_held = run.prediction.device_bytes, chosen.prediction.device_bytes
    assert rate is not None and chosen_rate is not None and held is not None and chosen_held is not None
    change = rate.value / chosen_rate.value - 1
    memory = ", needs more memory" if held.value > chosen_held.value else ""
    if change <= 0:
        return f"{format_percent(-change)} fewer tokens/s{memory}"
    apart = run.workload.step_tokens / chosen.workload.step_tokens - 1
    batch = f", global batch {format_percent(abs(apart))} {'larger' if apart > 0 else 'smaller'}" if apart else ""
    more = ", no more than 2 %" if change <= 1 / ENOUGH - 1 else ""
    return f"{format_percent(change)} more tokens/s{more}{memory}{batch}"


def verdict(run: Run, chosen: Run) -> str:
    """What became of one row of the tables: chosen, rejected for a reason, or what its score came to."""
    score = f"score {run.score:.4g}"
    if run is chosen:
        return f"chosen: {score}"
    if run.standing.why:
        return run.standing.why
    if LEVEL * run.score < chosen.score:
        # what the better score costs more than the chosen one: dollars, time, or the balance of its tokens
        paid, asked = (one.cost_usd.value if one.cost_usd else 0.0 for one in (chosen, run))
        more = ["dearer"] if asked > ALIKE_USD * paid else []
        more += ["slower"] if run.total_seconds.value > ALIKE_USD * chosen.total_seconds.value else []
        return f"better, but {' and '.join(more) or 'its tokens suit its size less'}: {score}"
    level = run.score <= LEVEL * chosen.score and run.parameters > chosen.parameters
    return f"level, but larger: {score}" if level else f"beaten: {score}"


def _not_fitting(run: Run) -> str:
    """The high end of what a GPU must hold against the part of its memory that is counted on."""
    held, whole = run.prediction.device_bytes, run.prediction.device_memory_bytes
    assert held is not None and whole is not None
    return f"does not fit memory: up to {format_bytes(held.high)} of {format_bytes(FIT_MARGIN * whole)} usable"


def _why_tokens(brief: Brief, chosen: Run) -> str:
    per = COUNTED[brief.ratio_counts]
    seen = f"{format_number(chosen.standing.ratio)} tokens per {per} ({format_number(brief.ratio)} recommended)"
    tokens = format_tokens(chosen.tokens)
    if brief.goal.epochs is not None:
        return f"{tokens} tokens, the data {format_number(brief.goal.epochs)} times over as asked: {seen}"
    if brief.goal.tokens is not None:
        exact = "" if chosen.tokens == brief.goal.tokens else ", to the nearest whole step"
        return f"{tokens} tokens as asked{exact}: {seen}"
    if brief.data_bound(chosen):
        return f"{tokens} tokens: the data {MOST_EPOCHS} times over, more repetition is mostly waste; {seen}"
    if brief.settled:
        asked = "asked for" if brief.goal.ratio is not None else f"the custom for {brief.goal.family}"
        if brief.goal.inference_tokens is not None:
            asked = "for what it is to serve"
        return f"{tokens} tokens: {format_number(brief.ratio)} per {per}, {asked}"
    limits = describe_limits(brief)
    return f"{tokens} tokens: as many as fit {limits}, start-up, evaluations and checkpoints included; {seen}"


def _what_to_fetch(brief: Brief, chosen: Run) -> str:
    """The download that the bill holds, and how often it is seen."""
    assert brief.unique_tokens is not None and chosen.standing.epochs is not None
    fresh = min(chosen.tokens, brief.unique_tokens)
    size = fresh * brief.bytes_to_fetch
    seconds = reciprocal(brief.download_rate, size)
    worth = effective_tokens(chosen.tokens, brief.unique_tokens)
    often = "seen once at most"
    if chosen.standing.epochs > 1:
        often = f"seen {format_number(chosen.standing.epochs)} times, worth {format_tokens(worth)} fresh tokens"
    return (
        f"data to bring: {format_tokens(fresh)} of {format_tokens(brief.unique_tokens)} tokens, about "
        f"{format_number(size / 1e9)} GB of compressed text in {math.ceil(size / SHARD_BYTES):,} shards of 100 MB, "
        f"{format_estimate(seconds, format_seconds)} of the bill; {often}"
    )


def data_elsewhere(brief: Brief, chosen: Run) -> str:
    text_bytes = min(chosen.tokens, brief.unique_tokens or 0) * bytes_per_token(brief.vocab_size)
    core_seconds = format_seconds(text_bytes / PREPARED_BYTES_PER_CORE_SECOND)
    return (
        "the data are not here: bring them, turn them into a token folder with `advisor data prepare` (about "
        f"{core_seconds} of one core, not in the bill), and plan again with --data"
    )


def _why_depth(brief: Brief, chosen: Run, depths: Sequence[Run]) -> str:
    shape = chosen.workload.shape
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
    runners = sorted((t for t in depths if t is not chosen and not t.standing.against), key=lambda trial: trial.score)
    text = (
        f"depth {depth}: lowest score of {len(depths)} depths within {describe_limits(brief)} "
        "(a loss law used beyond the sizes it was fitted on)"
    )
    if runners:
        gap = runners[0].score / chosen.score - 1
        other = f"depth {runners[0].depth}"
        text += f"; {other} comes next, {format_percent(gap)} higher" if gap > 0.001 else f"; {other} is level with it"
    return text


def _why_shape(brief: Brief, shape: ModelShape) -> str:
    goal, sizes = brief.goal, f"depth {shape.depth} and width {shape.width}"
    if goal.model is not None:
        return f"{sizes} as in {goal.model}, vocabulary {shape.vocab_size}"
    if goal.parameters is not None:
        return f"{sizes}: of {goal.family}'s shapes the nearest to {format_tokens(goal.parameters)}"
    return f"depth {shape.depth}{f' and width {shape.width}' if goal.width else ''} as asked"


def _why_batch(brief: Brief, chosen: Run) -> str:
    workload = chosen.workload
    band = batch_band(scale_flops(workload.shape), chosen.tokens)
    laws = ", ".join(f"{name} {format_tokens(tokens)}" for name, tokens in band.named.items())
    text = f"{format_tokens(workload.step_tokens)} tokens per step"
    if brief.goal.global_batch_tokens is not None:
        text += ", " + off if (off := off_request(brief, chosen)) else " as asked"
    elif max(workload.step_tokens, chosen.tokens / recipe.FEWEST_STEPS) < band.median:
        text += f", kept small for {chosen.steps} steps"
    place = "inside" if band.on_plateau(workload.step_tokens) else "outside"
    size = f"micro-batch {workload.micro_batch}"
    rule = "is the smallest within 2 % of the best tokens/s at this batch"
    why = "as asked" if brief.goal.micro_batch is not None else rule
    return f"{text} ({laws}; {place} the plateau around their median); {size} {why}"


def _why_no_longer(brief: Brief, chosen: Run) -> Iterator[str]:
    """What waiting counts as, and what it comes to; nothing where it costs nothing."""
    limits, cost = brief.limits, chosen.cost_usd
    if limits.budget_usd is None and limits.usd_per_waiting_hour is None:
        yield (
            "waiting counts between machines that do the same, each day after the first as the root of the cheapest "
            "one's dollars (assumed)"
        )
    if not limits.usd_per_waiting_second or limits.budget_usd is None or cost is None:
        return
    seconds = limits.counted(chosen.total_seconds)
    if brief.usd_per_waiting_hour is None:
        price = f"each day after the first as {format_usd(86400 * limits.usd_per_waiting_second)} (√budget, assumed)"
        other = "--value-of-time says otherwise, 0 that it costs nothing, --deadline when it must be done"
    else:
        price, other = f"each hour as {format_usd(brief.usd_per_waiting_hour)}", "as asked"
    waited = f"{format_usd(limits.waiting_usd(seconds))} beside {format_usd(limits.counted(cost))}"
    against = "between machines that do the same" if limits.settled else "against the budget"
    yield f"waiting counts {against}, {price}: {waited}; {other}"


def off_request(brief: Brief, chosen: Run) -> str:
    """By how much the global batch misses the one asked for, in words; "" where it is met."""
    asked, made = brief.goal.global_batch_tokens, chosen.workload.step_tokens
    if asked is None or asked == made:
        return ""
    return f"{format_percent(abs(made / asked - 1))} {'more' if made > asked else 'fewer'} than the {asked:,} asked for"


def _why_memory(brief: Brief, chosen: Run) -> str:
    """How much memory is used of what is counted on, at which precision, and whether activations are recomputed."""
    workload, held = chosen.workload, format_estimate(chosen.prediction.device_bytes, format_bytes)
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


def _why_sharded(profile: Profile, chosen: Run) -> str:
    """What a copy of the model on each GPU would take, and what sharing one out costs in time."""
    workload = chosen.workload
    whole = replace(workload, sharding="none", activation_checkpointing="full", micro_batch=1)
    held = format_estimate(profile.memory.device_total_bytes(whole), format_bytes)
    step = chosen.step_seconds
    backward = BACKWARD * step.value / workload.grad_accum if step is not None else 0.0
    exposed = exposed_seconds(workload, profile.spec, backward, expected=True)
    assert step is not None and exposed is not None  # steps of unknown links are no candidates
    cost = format_estimate(exposed.scaled(1 / step.value), format_percent)
    return (
        f"weights, gradients and optimizer state sharded over the {workload.gpus} GPUs: a copy on each would take "
        f"{held} even at micro-batch 1 with everything recomputed; what gathering and reducing them takes beside the "
        f"arithmetic is {cost} of a step"
    )


def _why_limits(brief: Brief, chosen: Run) -> str:
    clock = chosen.total_seconds
    if brief.goal.sure:
        return "the high end of the interval keeps the limits, as asked by --sure"
    late, dear = replace(brief.limits.patient, sure=True).broken(clock, chosen.cost_usd)
    if late and brief.limited:
        return (
            "the expected time keeps the deadline, the high end of its interval does not: --sure plans for the high end"
        )
    if dear and chosen.cost_usd is not None:
        return (
            "the expected cost keeps the budget, the high end of its interval does not: --sure plans for the high end"
        )
    return "the bill counts start-up, compilation, evaluations and checkpoints, not steps alone"
