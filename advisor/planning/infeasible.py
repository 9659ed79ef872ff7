"""Explain why no run stays within the limits: which limit binds, and which change would be enough."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from advisor.planning.costs import Costs
from advisor.planning.evaluate import LEAST_STEPS
from advisor.planning.offers import ANY
from advisor.planning.search_space import SearchSpace
from advisor.prediction.batch import fits
from advisor.prediction.comm import bus_bytes_per_second
from advisor.prediction.notice import NOTICE_SECONDS
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.records import Adapters, Software, Workload
from advisor.units import format_bytes, format_count, format_seconds, format_usd, format_usd_rate

GRADIENT_BYTES = 4  # for each parameter, in fp32
STATE_BINDS = 0.9  # share of the usable memory that weights, gradients and optimizer may take, since batches need some
SHARED_OVER = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # numbers of GPUs to try


def explain(space: SearchSpace) -> tuple[str, str]:
    """Return a message and a hint, with expected values, or with high ends of the intervals under --sure."""
    places = np.nonzero(space.candidates.fits & space.allowed)[0]
    if not len(places):
        return _memory(space)
    # Every row does the least work: the settled tokens at the global batch that suits them, or LEAST_STEPS steps.
    costs = Costs(space.candidates.rows(places))
    settled = costs.settled_steps()
    steps = np.full_like(costs.step_tokens, LEAST_STEPS) if settled is None else settled
    kept = np.full(len(places), True) if settled is None else costs.batch_is_nearest(settled)[:, 0]
    taken = costs.taken_before_saving(steps)
    if taken is not None and taken[kept].all():
        return _notice(space, places[kept], Costs(space.candidates.rows(places[kept])))
    if taken is not None:
        kept &= ~taken.any(axis=1)
    return _limits(space, places[kept], Costs(space.candidates.rows(places[kept])), steps[kept])


def _limits(space: SearchSpace, places: np.ndarray, costs: Costs, steps: np.ndarray) -> tuple[str, str]:
    """Return an explanation for the deadline or budget that no run of these steps stays within."""
    bills, limits = costs.bills(steps), space.limits
    seconds, usd = limits.counted(bills.clock.total_seconds)[:, 0], limits.counted(bills.usd)[:, 0]
    late, dear = limits.overruns(seconds, usd)
    # The money may be enough, but not together with the price of waiting.
    waited = limits.patient.overruns(seconds, usd)[1].min() <= 1 < dear.min()
    if waited:
        usd = usd + limits.waiting_usd(seconds)
    up_to = "up to " if limits.sure else ""
    least = "" if space.brief.settled else f" for even {LEAST_STEPS} steps"
    fewer = " or fewer --tokens" if space.goal.tokens is not None else ""
    if late.min() > 1:
        fastest = int(seconds.argmin())
        assumed = ", assumed because no limit was given" if space.goal.deadline_seconds is None else ""
        message = f"no plan ends within {format_seconds(limits.deadline_seconds)}{assumed}: "
        message += f"{_who(space, places[fastest], 'fastest')} needs {up_to}{format_seconds(seconds[fastest])}{least}"
        return message, f"feasible with {feasible_deadline(seconds[fastest])}{fewer}"
    if dear.min() > 1:
        cheapest = int(usd.argmin())
        asked, needed = limits.budget_usd, float(usd[cheapest])
        form = format_usd if format_usd(asked) != format_usd(needed) else format_usd_rate  # shows parts of a cent
        message = f"no plan costs {form(asked)} or less{', waiting counted' if waited else ''}: "
        message += f"{_who(space, places[cheapest], 'cheapest')} needs {up_to}{form(needed)}{least}"
        sooner = " or a lower --value-of-time" if waited else ""
        return message, f"feasible with {feasible_budget(needed)}{sooner}{fewer}"
    in_budget, in_time = np.nonzero(dear <= 1)[0], np.nonzero(late <= 1)[0]
    fastest, cheapest = in_budget[seconds[in_budget].argmin()], in_time[usd[in_time].argmin()]
    money, time = format_usd(limits.budget_usd), format_seconds(limits.deadline_seconds)
    message = (
        f"no plan keeps both {time} and {money}{least}: for {money} {_who(space, places[fastest], 'fastest')} "
        f"takes {up_to}{format_seconds(seconds[fastest])}; within {time} {_who(space, places[cheapest], 'cheapest')} "
        f"costs {up_to}{format_usd(usd[cheapest])}"
    )
    return message, f"feasible with {feasible_deadline(seconds[fastest])} or {feasible_budget(usd[cheapest])}{fewer}"


def feasible_budget(usd: float) -> str:
    """Return the option with a budget that is enough, rounded up to two digits."""
    enough = usd * 1.02
    digit = 10.0 ** (math.floor(math.log10(enough)) - 1)
    return f"--budget {math.ceil(enough / digit) * digit:.10g}"


def feasible_deadline(seconds: float) -> str:
    """Return the option with a deadline that is enough, rounded up to a usual duration."""
    enough = int(seconds * 1.05)
    if seconds < 300:
        return f"--deadline {-(-enough // 10) * 10 + 10}s"
    if seconds < 4 * 3600:
        return f"--deadline {-(-enough // 60) + 1}min"
    hours = -(-enough // 3600) + 1
    return f"--deadline {hours}h" if hours < 100 else f"--deadline {-(-hours // 24)}d"


def _notice(space: SearchSpace, places: np.ndarray, costs: Costs) -> tuple[str, str]:
    """Return an explanation that every spot machine is taken back before the run can save."""
    needed = (costs.terms.step.high + costs.terms.write.high)[:, 0]
    quickest = int(needed.argmin())
    provider = space.offer(int(places[quickest])).provider or ""
    message = (
        f"no spot machine here saves before it is taken away: {_who(space, places[quickest], 'fastest')} needs up to "
        f"{format_seconds(needed[quickest])} for a step and a checkpoint, {provider} gives {NOTICE_SECONDS[provider]} s"
    )
    return message, "use machines on demand (--spot none), another --provider, or more GPUs (--gpus 16,32)"


def _memory(space: SearchSpace) -> tuple[str, str]:
    """Return an explanation that no configuration fits the memory, with the one that comes nearest."""
    rows = np.nonzero(space.allowed)[0]
    sizes = np.array([space.device(int(place)).profile.device_memory_bytes or 0 for place in rows])
    high = space.candidates.memory.high[rows]
    nearest = int((high / sizes).argmin())
    place, usable = int(rows[nearest]), FIT_MARGIN * float(sizes[nearest])
    workload, profile = space.candidates.workload(place), space.device(place).profile
    single = len(space.candidates.devices) == 1
    message = f"nothing fits the memory of {space.brief.goal.gpu if single else 'any GPU'}: {_who(space, place)}"
    if not single:
        message += f" at {_micro_batch(space, place)}"
    message += f" needs up to {format_bytes(float(high[nearest]))} of {format_bytes(usable)} usable"
    # Weights, gradients (fp32) and the optimizer's moments stay in memory from step to step.
    parameters = float(space.candidates.parameters[place])
    shares = workload.gpus if workload.sharding == "full" else 1
    each = float(space.candidates.state_bytes[place]) / parameters + GRADIENT_BYTES
    state = each * parameters / shares
    if state < usable and 2 * state < high[nearest]:
        smaller = [
            "a shorter --seq-len",
            "a smaller --micro-batch" if workload.micro_batch > 1 else "",
            "--activation-checkpointing full" if space.goal.activation_checkpointing == "none" else "",
        ]
        return message, ", or ".join([*filter(None, smaller), *_roomier(space, workload, profile)])
    shared = f" over {shares} GPUs" if shares > 1 else ""
    message += (
        f"; {each:.0f} bytes of weights, gradients and optimizer state for each of {format_count(parameters)} "
        f"parameters{shared} alone are {format_bytes(state)}"
    )
    fewer = f"a model of at most about {format_count(float(f'{STATE_BINDS * usable * shares / each:.2g}'))} parameters"
    return message, ", or ".join([*_roomier(space, workload, profile), *_adapters(workload, profile), fewer])


def _roomier(space: SearchSpace, workload: Workload, profile: Profile) -> Iterator[str]:
    """Yield the fewest GPUs over which the model can be sharded, if their links are known, or else other GPUs."""
    apart = replace(workload, sharding="full", micro_batch=space.goal.micro_batch or 1, activation_checkpointing="full")
    for gpus in () if space.goal.sharding == "none" else SHARED_OVER:
        known = profile.spec is not None and bus_bytes_per_second(profile.spec, gpus) is not None
        if gpus > workload.gpus and known:
            needed = profile.memory.device_total_bytes(replace(apart, gpus=gpus))
            if fits(needed, profile.device_memory_bytes):
                yield f"more GPUs that share the model (--gpus {gpus})"
                return
    if space.goal.gpu != ANY:
        yield "a GPU with more memory (--gpu any)"


def _adapters(workload: Workload, profile: Profile) -> Iterator[str]:
    """Yield adapters on frozen weights in 16 bits, or else in 4 bits, if either fits a single GPU."""
    alone = replace(workload, gpus=1, sharding="none", micro_batch=1, activation_checkpointing="full")
    for quantized, words in ((False, "--lora-rank 16"), (True, "--lora-rank 16 --qlora")):
        software = Software(state="16bit", adapters=Adapters(rank=16, quantized=quantized))
        if profile.device_type == "cuda" and fits(
            profile.memory.device_total_bytes(replace(alone, software=software)), profile.device_memory_bytes
        ):
            yield f"adapters beside frozen weights for fine-tuning (`advisor predict` with {words})"
            return


def _who(space: SearchSpace, place: int, rank: str = "") -> str:
    """Return the name of a configuration; among several machines, also its machine and rank, such as "cheapest"."""
    depth = f"depth {space.candidates.depth[place]}"
    if len(space.candidates.offers) == 1 or len(space.candidates.devices) == 1 and not space.goal.counts:
        return f"{depth} at {_micro_batch(space, place)}"
    offer = space.offer(int(place))
    described = f"{depth} on {offer.gpus} x {offer.gpu}{' spot' if offer.spot else ''}"
    return f"the {rank}, {described}," if rank else described


def _micro_batch(space: SearchSpace, place: int) -> str:
    return f"micro-batch {space.candidates.micro_batch[place]} x {space.brief.seq_len}"
