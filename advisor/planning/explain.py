"""Describe the reasons for a plan, and the reasons why other runs were not chosen."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from advisor.laws.hyperparameters import batch_band, scale_flops
from advisor.laws.text import SHARD_BYTES
from advisor.planning import recipe
from advisor.planning.candidates import Device
from advisor.planning.choose import ALIKE_USD, LEVEL
from advisor.planning.costs import own_hour
from advisor.planning.goal import MOST_EPOCHS, Brief, Limits
from advisor.planning.run import config_of
from advisor.prediction.batch import BACKWARD
from advisor.prediction.comm import exposed_seconds
from advisor.prediction.intervals import known, reciprocal
from advisor.prediction.loss import effective_tokens
from advisor.prediction.micro_batch import ENOUGH
from advisor.prediction.nearest import closest_run, whose
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.prediction.wallclock import save_seconds, short_notice
from advisor.records import Estimate, Run
from advisor.settings import SHARDINGS
from advisor.units import (
    Formatter,
    format_bytes,
    format_centre,
    format_error,
    format_estimate,
    format_fit_chance,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_share,
    format_tokens,
    format_usd,
)
from trainer.schema import RunConfig

ALIKE, NEARLY = 0.001, 0.02  # shares of the score by which another depth is as good, or nearly
COUNTED = {
    "matrices+head": "parameter (embeddings not counted)", "total": "parameter",
    "matrices": "parameter (embeddings and head not counted)",
}  # fmt: skip


def reasons(
    device: Device, run: RunConfig, chosen: Run, depths: Sequence[Run], plain: Run | None = None
) -> Iterator[str]:
    """Yield the reasons for the plan's tokens, depth, batch, learning rate and memory, and the sources behind them.

    `run` is the trainer's configuration of the chosen run, and `depths` are the best runs of all depths. If the
    requested micro-batch forces activation checkpointing, `plain` is the run that needs none.
    """
    brief, goal, workload = device.brief, device.brief.goal, chosen.workload
    yield from _why_size(brief, chosen, depths)
    yield _why_batch(brief, chosen)
    yield (
        f"learning rate {run.optimizer.learning_rate:g}: the lower of the DeepSeek and Step Law values, scaled to the "
        f"batch and limited to 1e-4 to 3e-3; {run.schedule.warmup_steps} steps of warm-up, then cosine to a tenth"
    )
    yield _why_memory(brief, chosen)
    if SHARDINGS[workload.sharding].weights:
        yield _why_sharded(device.profile, chosen)
    if plain is not None:
        rate = format_error(chosen.tokens_per_second, plain.prediction.tokens_per_second, format_rate)
        work = f"{format_tokens(plain.tokens)} tokens in {format_estimate(plain.total_seconds, format_seconds)}"
        yield (
            f"micro-batch {workload.micro_batch} as asked forces activation checkpointing; --micro-batch "
            f"{plain.workload.micro_batch} does without: {rate} tokens/s, {work}"
        )
    yield _why_limits(brief, chosen)
    yield f"for {whose(device.profile, workload)}"
    if near := closest_run(device.profile, workload):
        yield f"closest published run: {near}"
    if brief.bytes_to_fetch:
        # The download of the data that the bill includes, and how often the run repeats the data.
        assert brief.unique_tokens is not None and chosen.standing.epochs is not None
        fresh = min(chosen.tokens, brief.unique_tokens)
        size = fresh * brief.bytes_to_fetch
        seconds = format_estimate(reciprocal(brief.download_rate, size), format_seconds)
        often = "seen once at most"
        if chosen.standing.epochs > 1:
            worth = format_tokens(effective_tokens(chosen.tokens, brief.unique_tokens))
            often = f"seen {format_number(chosen.standing.epochs)} times, worth {worth} fresh tokens"
        yield (
            f"data to bring: {format_tokens(fresh)} of {format_tokens(brief.unique_tokens)} tokens, about "
            f"{format_number(size / 1e9)} GB of compressed text in {math.ceil(size / SHARD_BYTES):,} shards of 100 MB, "
            f"{seconds} of the bill; {often}"
        )
    if goal.own:
        machines = ", ".join(f"{machine.gpus} x {machine.gpu}" for machine in goal.own)
        own = {machine.gpu for machine in goal.own}
        prices = [f"{format_usd(p.usd_per_gpu_hour)} an hour for each {p.gpu}" for p in goal.prices if p.gpu in own]
        paid = ", ".join(prices or ["no rent"])
        yield f"your own: {machines} and no more (--own GPU:N states how many GPUs a machine has); {paid}"
    yield from filter(None, [own_hour(goal, chosen)])
    yield from _cost_of_waiting(brief, chosen)


def inputs(device: Device, chosen: Run) -> Iterator[str]:
    """Yield the sources that the plan rests on: calibration, laws, price and data."""
    goal, profile = device.brief.goal, device.profile
    if not profile.calibrated:
        yield f"no calibration: {profile.key} is estimated from published runs"
    yield from profile.sources
    yield "loss: Besiroglu et al. 2024; repetition: Muennighoff et al. 2023"
    yield "batch: DeepSeek LLM 2024, Step Law 2025, nanochat 2026; learning rate: DeepSeek LLM 2024, Step Law 2025"
    yield f"price: {chosen.offer.source}"
    if goal.data_tokens:
        yield f"data: {format_tokens(goal.data_tokens)} tokens, not on this machine"
    else:
        yield f"data: {goal.data}" if goal.data else "data: synthetic tokens"


def rejection(device: Device, run: Run) -> str | None:
    """Return the limit or rule that excludes a run, or None if the run only has a worse score."""
    brief, bill, against = device.brief, run.bill, run.standing.against
    limits, total, cost = brief.limits, bill.wall_clock.total_seconds, bill.cost_usd
    if "memory" in against:
        return _not_fitting(run)
    if "time" in against and limits.deadline_seconds is not None:
        steps = "" if brief.settled else f" for {run.steps} steps"
        return f"too slow{_beyond(total, limits.deadline_seconds, limits, format_seconds, steps)}"
    if "money" in against and cost is not None and not limits.patient.broken(known(0.0), cost)[1]:
        waited = format_usd(limits.waiting_usd(limits.counted(total)))
        return f"too slow: {format_estimate(total, format_seconds)} of waiting cost {waited}"
    if "money" in against and cost is not None and limits.budget_usd is not None:
        return f"over budget{_beyond(cost, limits.budget_usd, limits, format_usd)}"
    if "notice" in against:
        needed = save_seconds(config_of(device, run), bill.wall_clock, run.step_seconds)
        return f"taken back before it writes a checkpoint: {short_notice(run.offer.provider, needed)}"
    if "spot" in against:
        return "on a spot machine; --spot any allows these"
    if "thin" in against:
        return f"too slow: {format_number(run.standing.ratio)} of {format_number(brief.ratio)} tokens per parameter"
    return None


def _beyond(estimate: Estimate, limit: float, limits: Limits, form: Formatter, work: str = "") -> str:
    """Return an estimate with the limit that it exceeds, or the excess in per cent if both would look alike."""
    needed = limits.counted(estimate)
    if form(needed) == form(limit):
        return f" by {format_share(needed / limit - 1)}"
    words = f"up to {form(needed)}" if limits.sure else format_estimate(estimate, form)
    return f": {words}{work}, limit {form(limit)}"


def micro_batch_rejection(run: Run, chosen: Run) -> str:
    """Return the reason why another micro-batch at the chosen depth and global batch was not chosen."""
    if "memory" in run.standing.against:
        return _not_fitting(run)
    used, chosen_used = run.prediction.device_bytes, chosen.prediction.device_bytes
    assert used is not None and chosen_used is not None
    change = run.tokens_per_second.value / chosen.tokens_per_second.value - 1
    memory = ", needs more memory" if used.value > chosen_used.value else ""
    if change <= 0:
        return f"{format_share(-change)} fewer tokens/s{memory}"
    apart = run.workload.step_tokens / chosen.workload.step_tokens - 1
    batch = f", global batch {format_share(abs(apart))} {'larger' if apart > 0 else 'smaller'}" if apart else ""
    more = ", no more than 2 %" if change <= 1 / ENOUGH - 1 else ""
    return f"{format_share(change)} more tokens/s{more}{memory}{batch}"


def verdict(run: Run, chosen: Run) -> str:
    """Return for a row of the tables that the run was chosen, or why it was not, or its score."""
    score = f"score {run.score:.4g}"
    if run is chosen:
        return f"chosen: {score}"
    if run.standing.why:
        return run.standing.why
    if LEVEL * run.score < chosen.score:
        # A run with a better score lost because it costs more, takes longer or has too many tokens for its size.
        paid, asked = (one.cost_usd.value if one.cost_usd else 0.0 for one in (chosen, run))
        more = ["dearer"] if asked > ALIKE_USD * paid else []
        more += ["slower"] if run.total_seconds.value > ALIKE_USD * chosen.total_seconds.value else []
        return f"better, but {' and '.join(more) or 'its number of tokens suits its size less'}: {score}"
    level = run.score <= LEVEL * chosen.score and run.parameters > chosen.parameters
    return f"equal score, but larger: {score}" if level else f"beaten: {score}"


def _not_fitting(run: Run) -> str:
    """Return the memory that a GPU may need, compared with the memory that may be used."""
    used, memory = run.prediction.device_bytes, run.prediction.device_memory_bytes
    assert used is not None and memory is not None
    unsure = run.prediction.fits is None
    words = f"{format_fit_chance(run.prediction.fit_probability)}," if unsure else "does not fit memory:"
    return f"{words} up to {format_bytes(used.high)} of {format_bytes(FIT_MARGIN * memory)} usable"


def _why_size(brief: Brief, chosen: Run, depths: Sequence[Run]) -> Iterator[str]:
    """Yield the reason for the tokens, and the reason for the depth."""
    goal, shape, depth = brief.goal, chosen.workload.shape, chosen.depth
    stated = ((goal.deadline_seconds, format_seconds), (goal.budget_usd, format_usd))
    limits = " and ".join(form(limit) for limit, form in stated if limit is not None)
    per = COUNTED[brief.ratio_counts]
    seen = f"{format_number(chosen.standing.ratio)} tokens per {per}, {format_number(brief.ratio)} are usual"
    tokens = f"{format_tokens(chosen.tokens)} tokens"
    if goal.epochs is not None:
        yield f"{tokens}, the data {format_number(goal.epochs)} times over as asked: {seen}"
    elif goal.tokens is not None:
        exact = "" if chosen.tokens == goal.tokens else ", to the nearest whole step"
        yield f"{tokens} as asked{exact}: {seen}"
    elif brief.data_bound(chosen):
        yield f"{tokens}: the data {MOST_EPOCHS} times over, more repetition is mostly waste; {seen}"
    elif brief.settled:
        asked = "asked for" if goal.ratio is not None else f"the custom for {goal.family}"
        if goal.inference_tokens is not None:
            asked = "for the tokens to serve"
        yield f"{tokens}: {format_number(brief.ratio)} per {per}, {asked}"
    else:
        yield f"{tokens}: as many as {limits} allow, with start-up, evaluations and checkpoints; {seen}"
    if goal.depth is not None:
        sizes = f"depth {depth} and width {shape.width}"
        why = f"depth {depth}{f' and width {shape.width}' if goal.width else ''} as asked"
        if goal.model is not None:
            why = f"{sizes} as in {goal.model}, vocabulary {shape.vocab_size}"
        elif goal.parameters is not None:
            why = f"{sizes}: of {goal.family}'s shapes the nearest to {format_tokens(goal.parameters)}"
        yield f"{why}: {chosen.prediction.parameters:,} parameters"
    elif goal.objective != "loss":
        yield f"depth {depth}: the run of least {goal.objective} among those that do the work"
    elif goal.tokens is not None and not brief.limited:
        yield f"depth {depth}: of {len(depths)} depths the one that brings these tokens nearest the recommended ratio"
    elif not brief.limited:
        limit = format_seconds(brief.deadline_seconds)
        yield f"depth {depth}: the best that ends within {limit}, assumed because no limit was given"
    else:
        text = f"depth {depth}: the best of {len(depths)} depths within {limits}"
        runners = [run for run in depths if run is not chosen and not run.standing.against]
        if runners:
            second = min(runners, key=lambda run: run.score)
            gap = second.score / chosen.score - 1
            behind = "is nearly as good" if gap < NEARLY else f"comes next, its score {format_share(gap)} higher"
            text += f"; depth {second.depth} {'is as good' if gap <= ALIKE else behind}"
        yield f"{text}. The loss law was fitted on other sizes"


def _why_batch(brief: Brief, chosen: Run) -> str:
    workload = chosen.workload
    band = batch_band(scale_flops(workload.shape), chosen.tokens)
    laws = ", ".join(f"{name} {format_tokens(tokens)}" for name, tokens in band.named.items())
    text = f"{format_tokens(workload.step_tokens)} tokens per step"
    if brief.goal.global_batch_tokens is not None:
        text += ", " + off if (off := off_request(brief, chosen)) else " as asked"
    elif max(workload.step_tokens, chosen.tokens / recipe.FEWEST_STEPS) < band.median:
        text += f", small enough for {chosen.steps} steps"
    near = "this size is near enough to them" if band.on_plateau(workload.step_tokens) else "this size is too far off"
    size = f"micro-batch {workload.micro_batch}"
    rule = "is the smallest with 98 % of the speed of the fastest "
    rule += "whose chance to fit is 90 % or more" if chosen.prediction.plannable else "that may fit"
    why = "as asked" if brief.goal.micro_batch is not None else rule
    return f"{text}; published rules say {laws}: {near} for a loss near the lowest; {size} {why}"


def off_request(brief: Brief, chosen: Run) -> str:
    """Return by how much the global batch misses the requested one, or "" if it does not."""
    asked, made = brief.goal.global_batch_tokens, chosen.workload.step_tokens
    if asked is None or asked == made:
        return ""
    return f"{format_share(abs(made / asked - 1))} {'more' if made > asked else 'fewer'} than the {asked:,} asked for"


def _cost_of_waiting(brief: Brief, chosen: Run) -> Iterator[str]:
    """Yield what waiting costs and how much waiting this run has, or nothing if waiting is free."""
    limits, cost = brief.limits, chosen.cost_usd
    if limits.budget_usd is None and limits.usd_per_waiting_hour is None:
        yield (
            "waiting has a price where machines do the same work: each day after the first costs the square root of "
            "the cheapest run's dollars (assumed)"
        )
    rate, _ = limits.waiting
    if not rate or limits.budget_usd is None or cost is None:
        return
    seconds = limits.counted(chosen.total_seconds)
    if brief.usd_per_waiting_hour is None:
        price = f"{format_usd(86400 * rate)} for each day after the first (√budget, assumed)"
        other = "--value-of-time sets another price, --deadline a time limit instead"
    else:
        price, other = f"{format_usd(brief.usd_per_waiting_hour)} an hour", "as asked"
    bill = (format_estimate if limits.sure else format_centre)(cost, format_usd)
    waited = f"{format_usd(limits.waiting_usd(seconds))} besides the bill of {bill}"
    against = "decides between machines that do the same work" if limits.settled else "counts against the budget"
    yield f"the price of waiting {against}: {price}, here {waited}; {other}"


def _why_memory(brief: Brief, chosen: Run) -> str:
    """Return how much of the usable memory the run needs, at which precision and with which checkpointing."""
    workload, used = chosen.workload, format_estimate(chosen.prediction.device_bytes, format_bytes)
    memory, asked = chosen.prediction.device_memory_bytes, brief.goal.activation_checkpointing is not None
    usable = ""
    if memory:
        whose = "this machine's" if workload.gpu == "cpu" else "the GPU's"
        usable = f" of the {format_bytes(FIT_MARGIN * memory)} usable ({format_share(FIT_MARGIN)} of {whose} memory)"
    level = workload.activation_checkpointing
    saved = f"{'no' if level == 'none' else level} activation checkpointing"
    why = " as asked" if asked else "" if level == "none" else ", needed to fit"
    precision = f"{workload.precision} as asked" if brief.goal.precision != "auto" else workload.precision
    if workload.precision == "fp16" and brief.goal.precision == "auto":
        precision += " with loss scaling: this GPU has no fast bf16"
    return f"memory {used}{usable}; {saved}{why}; {precision}"


def _why_sharded(profile: Profile, chosen: Run) -> str:
    """Return the memory that a whole copy of the model would need, compared with the time that sharding costs."""
    workload, step = chosen.workload, chosen.step_seconds
    whole = replace(workload, sharding="none", activation_checkpointing="full", micro_batch=1)
    needed = format_estimate(profile.memory.device_total_bytes(whole), format_bytes)
    exposed = exposed_seconds(workload, profile.spec, BACKWARD * step.value / workload.grad_accum)
    assert exposed is not None  # a configuration over unknown links is no candidate
    cost = format_estimate(exposed.scaled(1 / step.value), format_percent)
    gathered = format_bytes(profile.memory.breakdown(workload).gathered_bytes)
    return (
        f"weights, gradients and optimizer state sharded over the {workload.gpus} GPUs: a copy on each would take "
        f"{needed} even at micro-batch 1 with full activation checkpointing; gathering and reducing them "
        f"takes {cost} of a step beyond the arithmetic, and {gathered} of memory for layers gathered whole"
    )


def _why_limits(brief: Brief, chosen: Run) -> str:
    if brief.goal.sure:
        return "the high end of the interval stays within the limits, as asked by --sure"
    late, dear = replace(brief.limits.patient, sure=True).broken(chosen.total_seconds, chosen.cost_usd)
    for broken, estimate, form in (
        (late and brief.limited, chosen.total_seconds, format_seconds),
        (dear, chosen.cost_usd, format_usd),
    ):
        if broken and estimate is not None:
            takes = f"{'it costs' if estimate is chosen.cost_usd else 'it takes'} {format_centre(estimate, form)}"
            return f"{takes}, or up to {form(estimate.high)}; to plan for that, set --sure"
    return "the bill counts start-up, compilation, evaluations and checkpoints, not steps alone"
