"""What may go wrong with a plan or is not known of it, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from advisor.hardware.catalog import GPUS_PER_NODE
from advisor.hardware.prices import drift_factor
from advisor.laws.repetition import FREE_EPOCHS, OVERFIT_EPOCHS, WASTEFUL_EPOCHS
from advisor.offer import Offer
from advisor.planning import recipe
from advisor.planning.candidates import Device
from advisor.planning.choose import USED_UP
from advisor.planning.explain import COUNTED, data_elsewhere, off_request, rejection
from advisor.planning.goal import LONGEST_SECONDS, Brief
from advisor.planning.offers import SEVERAL_NODES
from advisor.prediction.comm import assumed_network
from advisor.prediction.loss import effective_tokens, loss_range_problem
from advisor.prediction.profile import Profile
from advisor.records import Basis, Run
from advisor.units import DAY, format_number, format_percent, format_seconds, format_tokens, format_usd, format_watts

FRESH_DAYS = 45  # a price is called old from a month and a half on


def warnings(device: Device, chosen: Run, depths: Sequence[Run]) -> Iterator[str]:
    """Say what may go wrong or is not known, the most serious first; `depths` are all that were weighed."""
    brief, profile = device.brief, device.profile
    if brief.goal.data is None and not (brief.goal.data_tokens or brief.goal.synthetic):
        yield (
            "no data given: this run would train on random tokens. Give --data DIR "
            "(advisor data prepare FILES --out DIR), or --synthetic for a speed test"
        )
    if chosen.standing.against == ("thin",):
        yield (
            f"every depth sees few tokens: this one {format_number(chosen.standing.ratio)} per "
            f"{COUNTED[brief.ratio_counts]} where {format_number(brief.ratio)} are recommended; allow more time"
        )
    if chosen.steps < recipe.TOO_FEW_STEPS:
        yield f"only {chosen.steps} optimizer steps: fewer than {recipe.TOO_FEW_STEPS} learn little"
    if chosen.standing.epochs is not None:
        epochs = chosen.standing.epochs
        tokens = chosen.tokens
        worth = effective_tokens(tokens, brief.unique_tokens)
        times = f"the data would be seen {format_number(epochs)} times"
        same = f"worth {format_tokens(worth)} fresh tokens of {format_tokens(tokens)}"
        if epochs > OVERFIT_EPOCHS:
            yield f"{times}, {same}: expect overfitting; get more data or train on fewer tokens"
        elif epochs > WASTEFUL_EPOCHS:
            yield f"{times}, {same}: most of the further repetition is waste"
        elif epochs > FREE_EPOCHS:
            yield f"{times}, {same}: up to four times is nearly as good as fresh data"
    if chosen.offer.usd_per_hour is None:
        yield f"the cost is unknown ({chosen.offer.source}): give --price"
    yield from _machine_warnings(brief, chosen)
    yield from profile.caveats
    yield from _unmeasured(device, chosen)
    yield from _network_warning(profile, chosen)
    yield from _unspent(device, chosen, depths)
    if chosen.offer.gpus == max(SEVERAL_NODES) == max(brief.goal.counts, default=0):
        yield f"more than {chosen.offer.gpus} GPUs were not looked at: --gpus {2 * chosen.offer.gpus} plans for more"
    yield from _money_warnings(brief, chosen)
    if brief.bytes_to_fetch:
        yield data_elsewhere(brief, chosen)
    workload, prediction = chosen.workload, chosen.prediction
    vocab_size = workload.shape.vocab_size
    if brief.goal.synthetic:
        yield "no loss is promised: random tokens teach nothing"
    elif problem := loss_range_problem(prediction.parameters, chosen.tokens, brief.unique_tokens, vocab_size):
        yield f"no loss is promised: {problem}"
    if prediction.fit_probability is None:
        yield "the GPU's memory is unknown, so nothing is said about whether this fits"
    yield from _batch_warning(brief, chosen)


def _unmeasured(device: Device, chosen: Run) -> Iterator[str]:
    """That nothing of the device was measured, or not as it is to run."""
    brief, profile, step = device.brief, device.profile, chosen.step_seconds
    if not profile.calibrated:
        why = "has no calibration that can be used" if profile.caveats else "was never calibrated here"
        yield (
            f"{profile.key} {why}, so its times are estimates from published runs: a calibration of 2 minutes"
            f"{_price_of_a_machine(chosen.offer, 120.0)} narrows them: advisor calibrate --gpu {profile.key}"
        )
    elif brief.goal.power_cap_watts is not None:
        yield (
            f"{profile.key} was calibrated at the power limit it had then: its times hold under a cap of "
            f"{format_watts(brief.goal.power_cap_watts)} only if that was it"
        )
    if profile.calibrated and step and step.basis == Basis.EXTRAPOLATED:
        yield "this configuration lies outside the calibrated range: --measure runs one burst at it"


def _machine_warnings(brief: Brief, chosen: Run) -> Iterator[str]:
    """That GPUs which are paid for stand idle, and that a run outlives its machine."""
    offer, goal, seconds = chosen.offer, brief.goal, chosen.total_seconds.value
    if offer.rented and offer.rented > offer.gpus:
        idle = offer.rented - offer.gpus
        yield (
            f"{offer.gpus} x {offer.gpu}: the machine has {offer.rented} and all are paid for, {idle} of them stand "
            f"idle: --gpus {offer.rented} uses them"
        )
    if seconds >= 0.98 * LONGEST_SECONDS:
        ended = "" if brief.settled or goal.deadline_seconds else ", where it ends however much money is left"
        yield f"a run of {format_seconds(seconds)} outlives its machine{ended}: take more at once (--gpus 16,32,64)"


def _unspent(device: Device, chosen: Run, depths: Sequence[Run]) -> Iterator[str]:
    """Why much of a budget is left."""
    brief, cost = device.brief, chosen.cost_usd
    limits = brief.limits
    if cost is None or limits.budget_usd is None or limits.counted(cost) >= USED_UP * limits.budget_usd:
        return
    late = limits.patient.overruns(limits.counted(chosen.total_seconds), 0.0)[0]
    deeper = [t for t in depths if t.parameters > chosen.parameters and t.standing.against]
    why = ""
    if brief.goal.objective != "loss":
        why = f"the work is done by the run of least {brief.goal.objective}"
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
        why = "waiting longer counts against the budget (--value-of-time 0: it does not)"
    if why:
        left = format_usd(limits.budget_usd - limits.counted(cost))
        yield f"{left} of the {format_usd(limits.budget_usd)} stay unspent: {why}"


def _batch_warning(brief: Brief, chosen: Run) -> Iterator[str]:
    """That the global batch asked for cannot be made up, by how much it is missed, and what can be."""
    workload = chosen.workload
    if off := off_request(brief, chosen):
        least = workload.gpus * workload.shape.seq_len * (brief.goal.micro_batch or 1)
        devices = f"{workload.gpus} GPUs" if workload.gpus > 1 else "one GPU"
        yield (
            f"{workload.step_tokens:,} tokens per step are {off}, which no whole number of micro-batches on {devices} "
            f"comes to: --global-batch takes multiples of {least:,} here"
        )


def _money_warnings(brief: Brief, chosen: Run) -> Iterator[str]:
    """What may make the bill larger than the estimate's own interval says."""
    offer = chosen.offer
    if offer.age_days is not None and offer.age_days > FRESH_DAYS and offer.instance_type is not None:
        at_most = "" if offer.dated else "up to "
        drift = drift_factor(offer.age_days)
        spread = f"-{format_percent(round(1 - 1 / drift, 2))} to +{format_percent(round(drift - 1, 2))}"
        yield (
            f"the price is {at_most}{format_seconds(offer.age_days * DAY)} old; the interval allows it {spread}: "
            "advisor gpus --refresh"
        )
    if offer.spot and offer.usd_per_hour and offer.most_usd_per_hour:
        low, high = format_usd(offer.usd_per_hour), format_usd(offer.most_usd_per_hour)
        said = f"{offer.provider} asks {low} to {high} an hour by region, which the interval holds"
        once = f"{offer.provider} lists it in one region only, as of one moment"
        yield f"the price of a spot machine moves: {said if low != high else once}"
    if brief.usd_per_kwh and offer.ordered:
        rent = f"{offer.provider}'s rent" if offer.provider else "the price given"
        yield f"--kwh-price is added to {rent}: on a GPU of your own say --price 0"
    elif brief.usd_per_kwh:
        yield "the tariff is counted for the GPUs alone: the host takes 10-20 % more, cooling more still"


def _price_of_a_machine(offer: Offer, seconds: float) -> str:
    """What so many seconds of one machine of an offer cost: one is calibrated, however many the run is on."""
    if not offer.usd_per_hour:
        return ""
    machines = offer.machines if offer.instance_type else math.ceil(offer.gpus / GPUS_PER_NODE)
    return f", about {format_usd(offer.usd_per_hour / machines * seconds / 3600)} for one machine,"


def _network_warning(profile: Profile, chosen: Run) -> Iterator[str]:
    """What is taken to join the machines of a run on several, and how long it takes where that is slower."""
    workload, step = chosen.workload, chosen.step_seconds
    assert step is not None
    network = assumed_network(workload, profile.spec, step.value)
    if network is not None:
        slower = chosen.total_seconds.value + chosen.steps * (network.ethernet_step_seconds - step.value)
        yield (
            f"assumes {network.words}: on 100 Gb/s Ethernet the run would take {format_seconds(slower)}; ask the "
            "provider what joins its machines"
        )
