"""Why this plan: reasons, warnings and rejections in words. Compares trials; changes none."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.hardware.offers import spot_range
from advisor.laws.hyperparameters import batch_band, scale_flops
from advisor.plan import recipe
from advisor.plan.goal import MOST_EPOCHS, Brief, describe_limits
from advisor.plan.trial import LEAST_STEPS, Obstacle, Trial, fixed_tokens
from advisor.predict.loss import effective_tokens, loss_range_problem
from advisor.predict.profile import FIT_MARGIN, Profile
from advisor.records import Basis, Candidate, Estimate
from advisor.units import (
    format_bytes,
    format_estimate,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
    format_watts,
)

LEVEL = 1.001  # scores this close are the same, and the smaller model the better one: cheaper, harder to overfit
_COUNTED = {"matrices+head": "matrix and head parameter", "total": "parameter", "matrices": "matrix parameter"}


def reasons(brief: Brief, chosen: Trial, firsts: Sequence[Trial]) -> Iterator[str]:
    """Say why this depth, these tokens, this batch and this learning rate."""
    yield _why_tokens(brief, chosen)
    yield _why_depth(brief, chosen, firsts)
    yield _why_batch(brief, chosen)
    run = chosen.bill.run
    yield (
        f"learning rate {run.optimizer.learning_rate:g}: the lower of the DeepSeek and Step Law values, scaled to the "
        f"batch and kept between 1e-4 and 3e-3; {run.schedule.warmup_steps} steps of warm-up, then cosine to a tenth"
    )
    yield _why_limits(brief, chosen)


def warnings(brief: Brief, profile: Profile, chosen: Trial, *, thin: bool) -> Iterator[str]:
    """Say what may go wrong or is not known."""
    shape, prediction = chosen.prediction.workload.shape, chosen.prediction
    if not profile.calibrated:
        minutes = f"2 minutes{_price_of(brief, 120.0)} there narrow them: advisor calibrate --gpu {profile.key}"
        yield f"{profile.key} was never calibrated here, all times are priors: {minutes}"
    elif brief.goal.power_cap_watts is not None:
        yield (
            f"{profile.key} was calibrated at the power limit it had then: its times hold under a cap of "
            f"{format_watts(brief.goal.power_cap_watts)} only if that was it"
        )
    if profile.calibrated and prediction.step_seconds and prediction.step_seconds.basis == Basis.EXTRAPOLATED:
        yield "this configuration lies outside the calibrated range: --measure runs one burst at it"
    if thin:
        yield (
            f"every depth sees few tokens: this one {format_number(chosen.ratio)} per "
            f"{_COUNTED[brief.ratio_counts]} where {format_number(brief.ratio)} are recommended; allow more time"
        )
    if chosen.bill.run.steps < recipe.TOO_FEW_STEPS:
        yield f"only {chosen.bill.run.steps} optimizer steps: fewer than {recipe.TOO_FEW_STEPS} learn little"
    if chosen.epochs is not None:
        yield from _epoch_warning(chosen.epochs, chosen.tokens, brief.unique_tokens)
    problem = loss_range_problem(prediction.parameters, chosen.tokens, brief.unique_tokens, shape.vocab_size)
    if problem:
        yield f"no loss is promised: {problem}"
    if prediction.fits is None:
        yield "the device's memory is unknown, so nothing is said about whether this fits"
    if brief.usd_per_hour is None:
        yield f"the cost is unknown ({brief.price_source}): give --price"
    yield from _money_warnings(brief, chosen)
    deepest = max(brief.depths)
    if brief.goal.depth is None and shape.depth == deepest and chosen.ratio > brief.ratio and deepest > 1:
        yield (
            f"depth {deepest} is the deepest that was looked at, and sees more tokens than recommended: a deeper one "
            f"may be better, --depth {round(1.25 * deepest)} asks for it"
        )


def inputs(brief: Brief, profile: Profile) -> Iterator[str]:
    """Everything the plan rests on: calibration, sources, laws, price, data."""
    if not profile.calibrated:
        yield f"no calibration: prior beliefs about {profile.key}"
    yield from profile.sources
    yield "loss: Besiroglu et al. 2024; repetition: Muennighoff et al. 2023"
    yield "batch: DeepSeek LLM 2024, Step Law 2025, nanochat 2026; learning rate: DeepSeek LLM 2024, Step Law 2025"
    yield f"price: {brief.price_source}"
    yield f"data: {brief.goal.data}" if brief.goal.data else "data: synthetic tokens"


def rejection(brief: Brief, trial: Trial, chosen: Trial) -> str | None:
    """Why a trial was not chosen, in words; None when it was merely beaten on the score."""
    prediction, bill = trial.prediction, trial.bill
    match trial.obstacle:
        case Obstacle.MEMORY:
            return f"does not fit memory: {_memory(trial)}"
        case Obstacle.TIME:
            assert brief.deadline_seconds is not None
            needs = format_estimate(bill.clock.total_seconds, format_seconds)
            steps = f" for {bill.run.steps} steps" if fixed_tokens(brief, brief.counted(bill.run.model)) is None else ""
            return f"too slow: {needs}{steps} of {format_seconds(brief.deadline_seconds)}"
        case Obstacle.MONEY:
            return f"over budget: {format_estimate(bill.cost_usd, format_usd)} of {format_usd(brief.goal.budget_usd)}"
        case Obstacle.THIN:
            return f"too slow: {format_number(trial.ratio)} of {format_number(brief.ratio)} tokens per parameter"
        case Obstacle.SLOWER | Obstacle.LARGER:
            assert prediction.tokens_per_second and chosen.prediction.tokens_per_second
            change = prediction.tokens_per_second.value / chosen.prediction.tokens_per_second.value - 1
            if trial.obstacle is Obstacle.SLOWER:
                than = ", over 2 % off the fastest" if -change < 0.02 else ""  # as search.ENOUGH chooses
                return f"{format_percent(-change)} fewer tokens/s{than}"
            return "no more than 2 % faster, needs more memory"
    return None


def verdict(candidate: Candidate, chosen: Candidate) -> str:
    """What became of one row of the tables: chosen, rejected for a reason, or what its score came to."""
    score = f"score {candidate.score:.4g}"
    if candidate is chosen:
        return f"chosen: {score}"
    level = candidate.score <= LEVEL * chosen.score and candidate.parameters > chosen.parameters
    return candidate.rejected or (f"level, but larger: {score}" if level else f"beaten: {score}")


def nothing_fits(brief: Brief, firsts: Sequence[Trial]) -> tuple[str, str]:
    """The binding constraint of a goal that nothing meets, and what would make it feasible."""
    out_of_memory = [trial for trial in firsts if trial.obstacle is Obstacle.MEMORY]
    if len(out_of_memory) == len(firsts):
        smallest = min(firsts, key=lambda trial: trial.device_bytes.high)
        hint = "a shorter --seq-len, a smaller --micro-batch or --depth, or a device with more memory"
        return f"nothing fits the memory of {brief.goal.gpu}: {_describe(smallest)} needs {_memory(smallest)}", hint
    late = [trial for trial in firsts if trial.obstacle is not Obstacle.MEMORY]
    end = "high" if brief.goal.sure else "value"  # what the limits are held against
    settled = fixed_tokens(brief, 1) is not None
    what = "" if settled else f" for the least worth doing ({LEAST_STEPS} steps)"
    if any(trial.obstacle is Obstacle.MONEY for trial in late):
        cheapest = min(late, key=lambda trial: getattr(trial.bill.cost_usd, end))
        needs = cheapest.bill.cost_usd
        enough = feasible_budget(getattr(needs, end))
        words = format_estimate(needs, format_usd)
        limit = format_usd(brief.goal.budget_usd)
        return f"no plan costs {limit} or less: {_describe(cheapest)} needs {words}{what}", f"feasible with {enough}"
    fastest = min(late, key=lambda trial: getattr(trial.bill.clock.total_seconds, end))
    total = fastest.bill.clock.total_seconds
    limit = format_seconds(brief.deadline_seconds)
    words = format_estimate(total, format_seconds)
    hint = f"feasible with {feasible_deadline(getattr(total, end))}" + (" or fewer --tokens" if settled else "")
    return f"no plan ends within {limit}: {_describe(fastest)} needs {words}{what}", hint


def _describe(trial: Trial) -> str:
    workload = trial.prediction.workload
    return f"depth {workload.shape.depth} at micro-batch {workload.micro_batch} x {workload.shape.seq_len}"


def memory_needed(needed: Estimate, device_bytes: float) -> str:
    """Why something does not fit: the interval's high end against the part of the memory that is counted on."""
    return f"up to {format_bytes(needed.high)} of {format_bytes(FIT_MARGIN * device_bytes)} usable"


def _memory(trial: Trial) -> str:
    assert trial.device_bytes is not None and trial.prediction.device_memory_bytes is not None
    return memory_needed(trial.device_bytes, trial.prediction.device_memory_bytes)


def _why_tokens(brief: Brief, chosen: Trial) -> str:
    per = _COUNTED[brief.ratio_counts]
    seen = f"{format_number(chosen.ratio)} tokens per {per} ({format_number(brief.ratio)} recommended)"
    tokens = format_tokens(chosen.tokens)
    if brief.goal.tokens is not None:
        return f"{tokens} tokens as asked: {seen}"
    if chosen.data_bound:
        return f"{tokens} tokens: the data {MOST_EPOCHS} times over, more repetition is mostly waste; {seen}"
    if fixed_tokens(brief, 1) is not None:
        asked = "asked for" if brief.goal.ratio is not None else f"the custom for {brief.goal.family}"
        if brief.goal.inference_tokens is not None:
            asked = "for what it is to serve"
        return f"{tokens} tokens: {format_number(brief.ratio)} per {per}, {asked}"
    limits = describe_limits(brief)
    return f"{tokens} tokens: as many as fit {limits}, start-up, evaluations and checkpoints included; {seen}"


def _why_depth(brief: Brief, chosen: Trial, firsts: Sequence[Trial]) -> str:
    depth = chosen.prediction.workload.shape.depth
    if brief.goal.depth is not None:
        return f"depth {depth} as asked"
    if brief.goal.tokens is not None and not brief.limited:
        return f"depth {depth}: of {len(firsts)} depths the one that brings these tokens nearest the recommended ratio"
    if not brief.limited:
        limit = format_seconds(brief.deadline_seconds)
        return f"depth {depth}: the best that ends within {limit}, assumed because no limit was given"
    runners = sorted((t for t in firsts if t is not chosen and t.obstacle is None), key=lambda trial: trial.score)
    text = (
        f"depth {depth}: lowest score of {len(firsts)} depths within {describe_limits(brief)} "
        "(a loss law stretched to any size)"
    )
    if runners:
        gap = runners[0].score / chosen.score - 1
        other = f"depth {runners[0].prediction.workload.shape.depth}"
        text += f"; {other} comes next, {format_percent(gap)} higher" if gap > 0.001 else f"; {other} is level with it"
    return text


def _why_batch(brief: Brief, chosen: Trial) -> str:
    workload = chosen.prediction.workload
    band = batch_band(scale_flops(workload.shape), chosen.tokens)
    laws = ", ".join(f"{name} {format_tokens(tokens)}" for name, tokens in band.named.items())
    text = f"{format_tokens(workload.step_tokens)} tokens per step"
    if brief.goal.global_batch_tokens is not None:
        text += " as asked"
    elif chosen.tokens / recipe.FEWEST_STEPS < band.median:
        text += f", kept small for {chosen.bill.run.steps} steps"
    place = "inside" if band.on_plateau(workload.step_tokens) else "outside"
    size = f"micro-batch {workload.micro_batch}"
    why = "as asked" if brief.goal.micro_batch is not None else "is the smallest within 2 % of the best tokens/s"
    return f"{text} ({laws}; {place} the plateau around their median); {size} {why}"


def _why_limits(brief: Brief, chosen: Trial) -> str:
    clock = chosen.bill.clock.total_seconds
    if brief.goal.sure:
        return "the high end of the interval keeps the limits, as asked by --sure"
    if brief.deadline_seconds is not None and clock.high > brief.deadline_seconds and brief.limited:
        return (
            f"the expected time keeps the deadline, its high end ({format_seconds(clock.high)}) does not: "
            "--sure plans for the high end"
        )
    cost = chosen.bill.cost_usd
    if brief.goal.budget_usd is not None and cost and cost.high > brief.goal.budget_usd:
        return (
            f"the expected cost keeps the budget, its high end ({format_usd(cost.high)}) does not: "
            "--sure plans for the high end"
        )
    return "the bill counts start-up, compilation, evaluations and checkpoints, not steps alone"


def _money_warnings(brief: Brief, chosen: Trial) -> Iterator[str]:
    """What may make the bill larger than the estimate's own interval says."""
    cost, rent, goal = chosen.bill.cost_usd, brief.usd_per_hour, brief.goal
    span = spot_range(goal.gpu, goal.gpus) if brief.spot and brief.provider else None
    if span is not None and cost is not None and rent:
        low, high = (format_usd(side) for side in span)
        said = (
            f"the lists ask {low} to {high} an hour, up to {format_usd(cost.value * max(1.0, span[1] / rent))} in all"
        )
        yield f"the price of a spot machine moves: {said if low != high else 'only one list has it, as of one moment'}"
    if brief.usd_per_kwh and brief.provider is not None:
        yield f"--kwh-price is added to {brief.provider}'s rent: on a card of your own say --price 0"
    elif brief.usd_per_kwh:
        yield "the tariff is counted for the devices alone: the host takes 10-20 % more, cooling more still"


def _price_of(brief: Brief, seconds: float) -> str:
    if not brief.usd_per_hour:
        return ""
    return f", about {format_usd(brief.usd_per_hour * seconds / 3600)},"


def _epoch_warning(epochs: float, tokens: int, unique: int | None) -> Iterator[str]:
    worth = effective_tokens(tokens, unique)
    times = f"the data would be seen {format_number(epochs)} times"
    same = f"worth {format_tokens(worth)} fresh tokens of {format_tokens(tokens)}"
    if epochs > 40:
        yield f"{times}, {same}: expect overfitting; get more data or train on fewer tokens"
    elif epochs > 16:
        yield f"{times}, {same}: most of the further repetition is waste"
    elif epochs > 4:
        yield f"{times}, {same}: up to four times is nearly as good as fresh data"


def feasible_budget(usd: float) -> str:
    """The option with a budget that is enough for so many dollars: rounded up to two digits."""
    enough = usd * 1.02
    digit = 10.0 ** (math.floor(math.log10(enough)) - 1)
    return f"--budget {math.ceil(enough / digit) * digit:.10g}"


def feasible_deadline(seconds: float) -> str:
    """The option with a deadline that is enough for so many seconds: rounded up to what a person would write."""
    return f"--deadline {_round_up_seconds(seconds)}"


def _round_up_seconds(seconds: float) -> str:
    if seconds < 300:
        return f"{-(-int(seconds * 1.05) // 10) * 10 + 10}s"
    if seconds < 4 * 3600:
        return f"{-(-int(seconds * 1.05) // 60) + 1}min"
    return f"{-(-int(seconds * 1.05) // 3600) + 1}h"
