"""Describe what may go wrong with a plan, and what is unknown about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.hardware.catalog import GPUS_PER_NODE
from advisor.hardware.software_support import untried
from advisor.laws.flops import scaling_parameters
from advisor.laws.text import PREPARED_BYTES_PER_CORE_SECOND, bytes_per_token
from advisor.planning import recipe
from advisor.planning.alternatives import paid
from advisor.planning.candidates import Device
from advisor.planning.choose import USED_UP
from advisor.planning.explain import COUNTED, off_request, rejection
from advisor.planning.goal import LONGEST_SECONDS, Brief
from advisor.planning.infeasible import may_not_fit
from advisor.planning.offers import SEVERAL_NODES
from advisor.prediction.comm import assumed_network
from advisor.prediction.loss import (
    FREE_EPOCHS,
    OVERFIT_EPOCHS,
    WASTEFUL_EPOCHS,
    effective_tokens,
    loss_range_problem,
    predict_loss,
)
from advisor.records import Basis, Run
from advisor.units import (
    DAY,
    format_loss,
    format_number,
    format_seconds,
    format_share,
    format_tokens,
    format_usd,
    format_watts,
)

NOT_MEASURED = "this size was not measured here"
TOO_SHORT = "too short for any size"
TOO_LARGE = "this size is too large"
REPEATED = "the data would be seen"
FRESH_DAYS = 45  # an older price gets a warning


def warnings(device: Device, chosen: Run, depths: Sequence[Run]) -> Iterator[str]:
    """Yield the warnings, the most serious first; `depths` are the best runs of all depths."""
    brief, goal, offer = device.brief, device.brief.goal, chosen.offer
    if not chosen.prediction.plannable:
        yield may_not_fit(chosen.prediction)
    if device.profile.spec and not device.profile.spec.is_cuda:
        yield untried(device.profile.spec)
    yield from _work_warnings(brief, chosen)
    if offer.usd_per_hour is None:
        yield f"the cost is unknown ({offer.source}): give --price"
    yield from _machine_warnings(device, chosen)
    yield from _unspent(device, chosen, depths)
    if offer.gpus == max(SEVERAL_NODES) == max(goal.counts, default=0):
        yield f"more than {offer.gpus} GPUs were not looked at: --gpus {2 * offer.gpus} plans for more"
    yield from _money_warnings(brief, chosen)
    if brief.bytes_to_fetch:
        text_bytes = min(chosen.tokens, brief.unique_tokens or 0) * bytes_per_token(brief.vocab_size)
        yield (
            "the data are not here: bring them, turn them into a token folder with `advisor data prepare` (about "
            f"{format_seconds(text_bytes / PREPARED_BYTES_PER_CORE_SECOND)} of one core, not in the bill), and plan "
            "again with --data"
        )
    workload, prediction = chosen.workload, chosen.prediction
    vocab_size = workload.shape.vocab_size
    if goal.synthetic:
        yield "no loss is predicted: random tokens teach nothing"
    elif problem := loss_range_problem(prediction.parameters, chosen.tokens, brief.unique_tokens, vocab_size):
        yield f"no loss is predicted: {problem}"
    if prediction.fit_probability is None:
        yield "the GPU's memory is unknown, so whether this fits is unknown"
    if off := off_request(brief, chosen):
        least = workload.gpus * workload.shape.seq_len * (goal.micro_batch or 1)
        devices = f"{workload.gpus} GPUs" if workload.gpus > 1 else "one GPU"
        yield (
            f"{workload.step_tokens:,} tokens per step are {off}, because {devices} take whole micro-batches: "
            f"--global-batch takes multiples of {least:,} here"
        )


def _work_warnings(brief: Brief, chosen: Run) -> Iterator[str]:
    """Yield warnings about missing data, too few tokens or steps, and data repeated too often."""
    goal, epochs, ratio = brief.goal, chosen.standing.epochs, chosen.standing.ratio
    if goal.data is None and not (goal.data_tokens or goal.synthetic):
        yield (
            "no data given: this run would train on random tokens. Give --data DIR "
            "(advisor data prepare FILES --out DIR), or --synthetic for a speed test"
        )
    if chosen.standing.against == ("thin",):
        late, dear = brief.limits.patient.overruns(chosen.total_seconds.value, paid(chosen))
        scarce = "money" if dear >= late else "time"
        what, smaller = TOO_SHORT, ""
        if goal.depth is not None:
            what, smaller = f"{TOO_LARGE} for the {scarce}", "a smaller model would be trained better, or "
        yield (
            f"{what}: {format_number(ratio)} tokens per {COUNTED[brief.ratio_counts]}, {format_number(brief.ratio)} "
            f"are usual; {smaller}allow more {scarce}"
        )
    if chosen.steps < recipe.TOO_FEW_STEPS:
        yield f"only {chosen.steps} optimizer steps: fewer than {recipe.TOO_FEW_STEPS} learn little"
    for most, effect in (
        (OVERFIT_EPOCHS, "expect overfitting; get more data or train on fewer tokens"),
        (WASTEFUL_EPOCHS, "most of the further repetition is waste"),
        (FREE_EPOCHS, "up to four times is nearly as good as fresh data"),
    ):
        if epochs is not None and epochs > most:
            worth = format_tokens(effective_tokens(chosen.tokens, brief.unique_tokens))
            effect = _more_data(brief, chosen) or effect
            yield (
                f"{REPEATED} {format_number(epochs)} times, worth {worth} fresh tokens of "
                f"{format_tokens(chosen.tokens)}: {effect}"
            )
            return


def _more_data(brief: Brief, chosen: Run) -> str | None:
    """Return what more data would give, or None unless the run ends because its data are used up."""
    wanted = round(brief.ratio * scaling_parameters(chosen.workload.shape, brief.ratio_counts))
    if not brief.data_bound(chosen) or wanted <= chosen.tokens:
        return None
    loss = predict_loss(chosen.parameters, wanted, wanted, brief.vocab_size) if chosen.loss else None
    then = ""
    if loss and chosen.loss:
        then = f", which would take the loss from {format_loss(chosen.loss.value)} to {format_loss(loss.value)}"
    return (
        f"more repetition is mostly waste, so the run ends here. {format_tokens(wanted)} fresh tokens are recommended "
        f"for this size{then}"
    )


def _machine_warnings(device: Device, chosen: Run) -> Iterator[str]:
    """Yield warnings about idle GPUs, a run of a year, missing measurements and the assumed network."""
    brief, profile, offer, step = device.brief, device.profile, chosen.offer, chosen.step_seconds
    seconds = chosen.total_seconds.value
    if offer.rented and offer.rented > offer.gpus:
        yield (
            f"{offer.gpus} x {offer.gpu}: the machine has {offer.rented} and all are paid for, "
            f"{offer.rented - offer.gpus} of them are idle: --gpus {offer.rented} uses them"
        )
    if seconds >= 0.98 * LONGEST_SECONDS:
        ended = "" if brief.settled or brief.goal.deadline_seconds else ", although money is left"
        yield f"a run of {format_seconds(seconds)} outlives its hardware{ended}: use more GPUs (--gpus 16,32,64)"
    yield from profile.caveats
    if not profile.calibrated:
        usable, price = "usable " if profile.caveats else "", ""
        if offer.usd_per_hour:  # a calibration needs only one of the machines that the run uses
            machines = offer.machines if offer.instance_type else math.ceil(offer.gpus / GPUS_PER_NODE)
            price = f" ({format_usd(offer.usd_per_hour / machines * 120 / 3600)})"
        yield (
            f"estimate only: there is no {usable}calibration of {profile.key}; two minutes on one machine{price} "
            f"narrow the intervals: advisor calibrate --gpu {profile.key}"
        )
    elif brief.goal.power_cap_watts is not None:
        yield (
            f"{profile.key} was calibrated at another time's power limit: the step times hold under a cap of "
            f"{format_watts(brief.goal.power_cap_watts)} only if that limit was the same"
        )
    if profile.calibrated and step.basis == Basis.EXTRAPOLATED:
        yield f"{NOT_MEASURED}: --measure measures it in a few seconds"
    if (network := assumed_network(chosen.workload, profile.spec, step.value)) is not None:
        slower = ""
        if network.ethernet_step_seconds is not None:
            longer = seconds + chosen.steps * (network.ethernet_step_seconds - step.value)
            slower = f": on 100 Gb/s Ethernet the run would take {format_seconds(longer)}"
        yield f"assumes {network.words}{slower}; ask the provider what joins its machines, and say it: --network 8x400G"


def _unspent(device: Device, chosen: Run, depths: Sequence[Run]) -> Iterator[str]:
    """Return why a large part of the budget stays unspent."""
    brief, cost = device.brief, chosen.cost_usd
    limits = brief.limits
    if cost is None or limits.budget_usd is None or limits.counted(cost) >= USED_UP * limits.budget_usd:
        return
    if not cost.value:
        yield "--budget limits nothing: your own machine costs nothing per hour"
        return
    late = limits.patient.overruns(limits.counted(chosen.total_seconds), 0.0)[0]
    deeper = [t for t in depths if t.parameters > chosen.parameters and t.standing.against]
    if brief.goal.objective != "loss":
        why = f"the run of least {brief.goal.objective} needs no more"
    elif brief.settled and brief.goal.depth is not None:
        why = "model and tokens are as asked"
    elif brief.settled and deeper:
        nearest = min(deeper, key=lambda run: run.parameters)
        fixed = "the tokens are" if brief.goal.tokens is not None else "tokens per parameter are"
        why = f"{fixed} settled, and depth {nearest.depth} is {rejection(device, nearest)}"
    elif brief.data_bound(chosen):
        why = "the data are used up"
    elif late >= USED_UP:
        why = "the deadline ends the run first"
    elif limits.waiting_usd(limits.counted(chosen.total_seconds)) > 0:
        why = "waiting longer counts against the budget (--value-of-time 0 makes it free)"
    else:
        return
    left = format_usd(limits.budget_usd - limits.counted(cost))
    yield f"{left} of the {format_usd(limits.budget_usd)} stay unspent: {why}"


def _money_warnings(brief: Brief, chosen: Run) -> Iterator[str]:
    """Yield warnings about costs that the interval of the bill does not include."""
    offer = chosen.offer
    if offer.age_days is not None and offer.age_days > FRESH_DAYS and offer.instance_type is not None:
        at_most = "" if offer.dated else "up to "
        drift = offer.price_factor
        spread = f"-{format_share(1 - 1 / drift)} to +{format_share(drift - 1)}"
        yield (
            f"the price is {at_most}{format_seconds(offer.age_days * DAY)} old and may be off by {spread}: "
            "advisor gpus --refresh"
        )
    if offer.spot and offer.usd_per_hour and offer.most_usd_per_hour:
        low, high = format_usd(offer.usd_per_hour), format_usd(offer.most_usd_per_hour)
        moving = f"{offer.seller} asks {low} to {high} an hour by region, which the interval includes"
        once = f"{offer.seller} lists it in one region only, at one moment"
        yield f"the price of a spot machine moves: {moving if low != high else once}"
    if brief.usd_per_kwh and offer.ordered:
        rent = f"{offer.seller}'s rent" if offer.provider else "the price given"
        yield f"--kwh-price is added to {rent}: on a GPU of your own say --price 0"
