"""Explain why no run stays within the limits: which limit binds, and which change would be enough.

A hint is a list of changes, each the same question with a few options changed. It names those that were found to work.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from advisor.hardware.catalog import GpuSpec, load_gpus
from advisor.hardware.offers import cheapest_offer
from advisor.offer import seller_of
from advisor.options import Goal, GpuPrice
from advisor.planning.costs import Costs
from advisor.planning.evaluate import LEAST_STEPS
from advisor.planning.models import NamedModel, smaller_models
from advisor.planning.offers import ANY, OWN
from advisor.planning.search_space import SearchSpace
from advisor.prediction.profile import FIT_MARGIN
from advisor.prediction.wallclock import NOTICE_SECONDS
from advisor.records import Estimate, Prediction
from advisor.settings import SHARDINGS
from advisor.units import (
    format_bytes,
    format_count,
    format_estimate,
    format_fit_chance,
    format_seconds,
    format_tokens,
    format_usd,
    format_usd_rate,
    parse_seconds,
    parse_tokens,
    parse_usd,
)

# A change of the goal in words ("": the options say it), and the options to try with the goal that each makes.
Way = tuple[str, Iterable[tuple[str, Goal]]]
T = TypeVar("T")  # what is asked: a goal, or the options of a prediction

GRADIENT_BYTES = 4  # for each parameter, in fp32
STATE_BINDS = 0.9  # share of the usable memory that weights, gradients and optimizer may take, since batches need some
SHARED_OVER = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)  # numbers of GPUs to try
_MORE = (1, 2, 8, 32)  # times what the least run needs
_SHORT = 128  # tokens of a sequence; no shorter one is offered
USUAL_LEAST = 2048  # tokens of a sequence that training of published models usually has at least
_PRICE = 2.0  # dollars per GPU-hour; how a price is typed
_EXAMPLES = "50k"  # of the fine-tune that is offered


def explain(space: SearchSpace, goal: Goal, feasible: Callable[[Goal], bool]) -> tuple[str, str]:
    """Return a message and a hint, with expected values, or with high ends of the intervals under --sure.

    The hint names only changes of the `goal` that are `feasible`.
    """
    message, ways = explained(space, goal)
    here = [("this CPU", [("--gpu cpu", replace(goal, gpu="cpu", gpus=1, counts=(), providers=()))])]
    return message, hint([*ways, *(here if goal.gpu == ANY else [])], feasible)


def enough(ways: Iterable[tuple[str, Iterable[tuple[str, T]]]], works: Callable[[T], bool]) -> Iterator[str]:
    """Yield the changes that are enough, each with the first of its options that works."""
    for words, tried in ways:
        option = next((option for option, changed in tried if works(changed)), None)
        if option is not None:
            yield f"{words} ({option})" if words else option


def hint(ways: Iterable[Way], feasible: Callable[[Goal], bool]) -> str:
    """Return the changes of a goal that are feasible."""
    found = list(dict.fromkeys(enough(ways, feasible)))
    return f"feasible with {' or '.join(found)}" if found else "no one change of its options was found to be enough"


def may_not_fit(run: Prediction, ways: Iterable[Way] = (), feasible: Callable[[Goal], bool] = bool) -> str:
    """Return a warning that a planned run may not fit, with the changes with which one is planned without it."""
    per = " per GPU" if run.workload.gpus > 1 else ""
    sure = " or ".join(dict.fromkeys(enough(ways, feasible)))
    text = memory_with_chance(run.device_bytes, run.device_memory_bytes, run.fit_probability, per)
    return f"{text}; 90 % or more with {sure}" if sure else text


def memory_with_chance(needs: Estimate | None, has: float | None, chance: float | None, per: str = "") -> str:
    """Say with which chance memory is enough, how much is needed and how much there is."""
    return (
        f"{format_fit_chance(chance)}: needs about {format_estimate(needs, format_bytes)}{per}, "
        f"and the GPU has {format_bytes(has)}"
    )


def other_offers(goal: Goal) -> Iterator[Way]:
    """Yield other offers for a goal that finds no machine, or only machines whose speed cannot be predicted."""
    if goal.providers:
        yield "the machines of any provider", [("without --provider", replace(goal, providers=()))]
    if goal.spot == "only":
        yield "machines on demand too", [("--spot any", replace(goal, spot="any"))]
    elif not goal.providers and goal.gpu not in (ANY, OWN):
        prices = [GpuPrice(gpu=key, usd_per_gpu_hour=_PRICE) for key in goal.gpu.split(",")]
        yield "a price of yours", [(f"--price {one.gpu}={_PRICE:g}", replace(goal, prices=(one,))) for one in prices]
    if max(goal.counts or (goal.gpus,)) > 1:
        yield "a single GPU", [(f"{_named(goal)}--gpus 1", replace(goal, gpus=1, counts=()))]
    yield from any_gpu(goal, "rented machines of any kind")


def explained(space: SearchSpace, goal: Goal) -> tuple[str, Iterator[Way]]:
    """Return why no run of the space stays within the limits, and changes of the goal that might help."""
    places = np.nonzero(space.candidates.fits & space.allowed)[0]
    if not len(places):
        return explain_memory(space, goal)
    # Every row does the least work: the settled tokens at the global batch that suits them, or LEAST_STEPS steps.
    costs = Costs(space.candidates.rows(places))
    settled = costs.settled_steps()
    steps = np.full_like(costs.step_tokens, LEAST_STEPS) if settled is None else settled
    kept = np.full(len(places), True) if settled is None else costs.batch_is_nearest(settled)[:, 0]
    taken = costs.taken_before_saving(steps)
    if taken is not None and taken[kept].all():
        return _notice(space, goal, places[kept], Costs(space.candidates.rows(places[kept])))
    if taken is not None:
        kept &= ~taken.any(axis=1)
    return _limits(space, goal, places[kept], Costs(space.candidates.rows(places[kept])), steps[kept])


def _limits(
    space: SearchSpace, goal: Goal, places: np.ndarray, costs: Costs, steps: np.ndarray
) -> tuple[str, Iterator[Way]]:
    """Return an explanation for the deadline or budget that no run of these steps stays within."""
    bills, limits = costs.bills(steps), space.limits
    seconds, usd = limits.counted(bills.clock.total_seconds)[:, 0], limits.counted(bills.usd)[:, 0]
    late, dear = limits.overruns(seconds, usd)
    # The money may be enough, but not together with the price of waiting.
    waited = limits.patient.overruns(seconds, usd)[1].min() <= 1 < dear.min()
    needed = usd + limits.waiting_usd(seconds) if waited else usd
    up_to = "up to " if limits.sure else ""
    least = "" if space.brief.settled else f" for even {LEAST_STEPS} steps"
    in_budget, in_time = np.nonzero(dear <= 1)[0], np.nonzero(late <= 1)[0]
    fastest = int(in_budget[seconds[in_budget].argmin()] if len(in_budget) else seconds.argmin())
    cheapest = int(in_time[needed[in_time].argmin()] if len(in_time) else needed.argmin())
    if late.min() > 1:
        assumed = ", assumed because no limit was given" if space.goal.deadline_seconds is None else ""
        within = "" if fastest == int(seconds.argmin()) else f" for {format_usd(limits.budget_usd)}"
        message = f"no plan ends within {format_seconds(limits.deadline_seconds)}{assumed}: "
        message += f"{_who(space, places[fastest], 'fastest')} needs {up_to}{format_seconds(seconds[fastest])}"
        message += f"{within}{least}"
    elif dear.min() > 1:
        requested, most = limits.budget_usd, float(needed[cheapest])
        form = format_usd if format_usd(requested) != format_usd(most) else format_usd_rate  # shows parts of a cent
        within = "" if cheapest == int(needed.argmin()) else f" within {format_seconds(limits.deadline_seconds)}"
        message = f"no plan costs {form(requested)} or less{', waiting counted' if waited else ''}: "
        message += f"{_who(space, places[cheapest], 'cheapest')} needs {up_to}{form(most)}{within}{least}"
    else:
        money, time = format_usd(limits.budget_usd), format_seconds(limits.deadline_seconds)
        message = (
            f"no plan keeps both {time} and {money}{least}: for {money} {_who(space, places[fastest], 'fastest')} "
            f"takes {up_to}{format_seconds(seconds[fastest])}; within {time} "
            f"{_who(space, places[cheapest], 'cheapest')} costs {up_to}{format_usd(usd[cheapest])}"
        )
    share = 1 / float(np.maximum(late, dear).min())  # of the tokens, about as much as the limits allow

    def ways() -> Iterator[Way]:
        same, quick, both = ("", goal), int(seconds.argmin()), []
        if goal.budget_usd is not None and goal.deadline_seconds is not None:
            both = [_with_deadline(_with_budget(same, float(needed[quick])), float(seconds[quick]))]
        if dear.min() <= 1 and late.max() > 1:
            yield "", [*(_with_deadline(same, more * float(seconds[fastest])) for more in _MORE), *both]
        if late.min() <= 1 and dear.max() > 1:
            yield "", [*(_with_budget(same, more * float(needed[cheapest])) for more in _MORE), *both]
        if late.min() > 1 and dear.min() > 1:
            yield "", both
        if waited:
            yield "", [("--value-of-time 0", replace(goal, usd_per_waiting_hour=0.0))]
        if goal.tokens is not None:
            texts = [_floored(goal.tokens * share * less) for less in (0.97, 0.8, 0.5, 0.2)]
            yield "", [(f"--tokens {text}", replace(goal, tokens=parse_tokens(text))) for text in texts]

    return message, ways()


def _with_deadline(change: tuple[str, Goal], seconds: float) -> tuple[str, Goal]:
    """Return the change with a deadline that is enough, rounded up to a usual duration."""
    enough = int(seconds * 1.05)
    hours = -(-enough // 3600) + 1
    text = f"{hours}h" if hours < 100 else f"{-(-hours // 24)}d"
    if seconds < 4 * 3600:
        text = f"{-(-enough // 10) * 10 + 10}s" if seconds < 300 else f"{-(-enough // 60) + 1}min"
    return f"--deadline {text} {change[0]}".rstrip(), replace(change[1], deadline_seconds=parse_seconds(text))


def _with_budget(change: tuple[str, Goal], usd: float) -> tuple[str, Goal]:
    """Return the change with a budget that is enough, rounded up to two digits."""
    enough = usd * 1.02
    digit = 10.0 ** (math.floor(math.log10(enough)) - 1)
    text = f"{math.ceil(enough / digit) * digit:.10g}"
    return f"--budget {text} {change[0]}".rstrip(), replace(change[1], budget_usd=parse_usd(text))


def _floored(count: float) -> str:
    """Return a number of tokens or parameters in two digits, rounded down, as an option takes it."""
    digit = 10.0 ** max(0, math.floor(math.log10(max(1.0, count))) - 1)
    return format_tokens(max(1.0, math.floor(count / digit) * digit)).replace(" ", "")


def _notice(space: SearchSpace, goal: Goal, places: np.ndarray, costs: Costs) -> tuple[str, Iterator[Way]]:
    """Return an explanation that every spot machine is taken back before the run can save."""
    needed = (costs.terms.step.high + costs.terms.write.high)[:, 0]
    quickest = int(needed.argmin())
    provider = space.offer(int(places[quickest])).provider or ""
    message = (
        f"no spot machine here saves before it is taken away: {_who(space, places[quickest], 'fastest')} needs up to "
        f"{format_seconds(needed[quickest])} for a step and a checkpoint, {seller_of(provider)} gives "
        f"{NOTICE_SECONDS[provider]} s"
    )

    def ways() -> Iterator[Way]:
        yield "machines on demand", [("--spot none", replace(goal, spot="none"))]
        if goal.providers:
            yield "the machines of any provider", [("without --provider", replace(goal, providers=()))]
        yield more_gpus(goal)

    return message, ways()


def explain_memory(space: SearchSpace, goal: Goal) -> tuple[str, Iterator[Way]]:
    """Return an explanation that no configuration fits the memory, with the one that comes nearest."""
    rows = np.nonzero(space.allowed)[0]
    sizes = np.array([space.device(int(place)).profile.device_memory_bytes or 0 for place in rows])
    high = space.candidates.memory.high[rows]
    nearest = int((high / sizes).argmin())
    place, usable = int(rows[nearest]), FIT_MARGIN * float(sizes[nearest])
    workload = space.candidates.workload(place)
    single = len(space.candidates.machines.devices) == 1
    message = f"nothing fits the memory of {space.brief.goal.gpu if single else 'any GPU'}: {_who(space, place)}"
    if not single:
        message += f" at {_micro_batch(space, place)}"
    message += f" needs up to {format_bytes(float(high[nearest]))} of {format_bytes(usable)} usable"
    # Weights, gradients (fp32) and the optimizer's moments stay in memory from step to step.
    parameters = float(space.candidates.parameters[place])
    shares, _, _ = SHARDINGS[workload.sharding].shares(workload.gpus)
    each = float(space.candidates.state_bytes[place]) / parameters + GRADIENT_BYTES
    state = each * parameters / shares
    of_activations = state < usable and 2 * state < high[nearest]
    if not of_activations:
        shared = f" over {shares} GPUs" if shares > 1 else ""
        message += (
            f"; {each:.0f} bytes of weights, gradients and optimizer state for each of {format_count(parameters)} "
            f"parameters{shared} alone are {format_bytes(state)}"
        )

    def ways() -> Iterator[Way]:
        if of_activations:
            yield from _smaller_activations(goal, space.brief.seq_len)
        if goal.sharding != "none":
            yield more_gpus(goal)
        yield from larger_gpu(goal)
        if not of_activations:
            yield from _adapters(goal)
            yield _fewer_parameters(goal, STATE_BINDS * usable * shares / each)

    return message, ways()


def _smaller_activations(goal: Goal, seq_len: int) -> Iterator[Way]:
    """Yield changes of what the goal fixes, from the smallest to the largest; a later one includes those before it."""
    least, options = goal, ""
    if goal.activation_checkpointing not in (None, "full"):
        least, options = replace(goal, activation_checkpointing="full"), "--activation-checkpointing full"
        yield "full activation checkpointing", [(options, least)]
    if goal.micro_batch is not None and goal.micro_batch > 1:
        yield "a smaller micro-batch", each_value("micro_batch", halves(goal.micro_batch), ("", goal), (options, least))
        least, options = replace(least, micro_batch=1), f"--micro-batch 1 {options}".rstrip()
    yield "shorter sequences", each_value("seq_len", halves(seq_len, _SHORT), ("", goal), (options, least))


def halves(number: int, least: int = 1) -> list[int]:
    """Return half of a number, a quarter and so on, rounded down, as long as they are not below `least`."""
    return [number >> times for times in range(1, number.bit_length()) if number >> times >= least]


def each_value(name: str, values: Iterable[Any], *changes: tuple[str, Goal]) -> list[tuple[str, Goal]]:
    """Return each value of an option, alone and with the other options that were already changed."""
    return [
        (f"--{name.replace('_', '-')} {value} {more}".rstrip(), replace(requested, **{name: value}))
        for more, requested in dict.fromkeys(changes)
        for value in values
    ]


def _named(goal: Goal) -> str:
    """Return the GPUs of a goal as an option, for a number typed with the name would contradict --gpus."""
    return "" if goal.gpu == OWN else f"--gpu {goal.gpu} "


def more_gpus(goal: Goal) -> Way:
    """Return more GPUs of the same type; of the user's own, more in one machine."""
    if goal.own:
        own = goal.own[0]
        more_own = [replace(own, gpus=count) for count in (2, 4, 8) if count > own.gpus]
        machines = [(f"--own {o.gpus}x{o.gpu}", replace(goal, own=(o,), counts=(o.gpus,))) for o in more_own]
        return "more of them", machines
    most = max(goal.counts or (goal.gpus,))
    counts = [count for count in SHARED_OVER if count > most]
    more = [(f"{_named(goal)}--gpus {count}", replace(goal, gpus=count, counts=())) for count in counts]
    return "more GPUs that share the model", more


def any_gpu(goal: Goal, words: str) -> Iterator[Way]:
    """Yield all GPUs for rent, unless they are asked for, or one price was given for what is asked for."""
    if goal.gpu != ANY and goal.usd_per_gpu_hour is None:
        counts = dict.fromkeys([goal.counts or (goal.gpus,), (1, 2, 4, 8)])
        yield (
            words,
            [(f"--gpu any --gpus {','.join(map(str, few))}",
              replace(goal, gpu=ANY, gpus=few[0], counts=few if len(few) > 1 else ())) for few in counts],
        )  # fmt: skip


def larger_gpu(goal: Goal, usable: Callable[[GpuSpec], bool] = lambda spec: spec.is_cuda) -> Iterator[Way]:
    """Yield usable GPUs with more memory than those asked for, of each size the cheapest for rent; then all."""
    for words, every in any_gpu(goal, "a GPU with more memory"):
        cards, counts = load_gpus(), goal.counts or (goal.gpus,)
        named = [*([] if goal.gpu == OWN else goal.gpu.split(",")), *(machine.gpu for machine in goal.own)]
        most = max(cards[key].memory_bytes if key in cards else 0 for key in named)
        rented = [
            (spec.memory_bytes, offer.usd_per_hour or 0.0, key)
            for key, spec in cards.items()
            if usable(spec) and spec.memory_bytes > most
            and (offer := cheapest_offer(key, min(counts), providers=goal.providers)) is not None
        ]  # fmt: skip
        cheapest = {size: key for size, _, key in sorted(rented, reverse=True)}
        option = f"--gpus {','.join(map(str, counts))}"
        larger = [(f"--gpu {key} {option}", replace(goal, gpu=key)) for _, key in sorted(cheapest.items())]
        yield words, [*larger, *every]


def leaner(words: str, option: str, lean: Goal, usable: Callable[[GpuSpec], bool]) -> Way:
    """Return a change that needs less memory, alone and, if that is not enough, on GPUs with more."""
    larger = [(f"{option} {more}", goal) for _, tried in larger_gpu(lean, usable) for more, goal in tried]
    return words, [(option, lean), *larger]


def smaller_model(goal: Goal, model: NamedModel) -> Way:
    """Return the smaller models of the family of the goal's, the largest first; for RL each also with adapters."""
    tried = []
    for one in smaller_models(model):
        tried.append((f"--model {one.name}", replace(goal, model=one.name)))
        if goal.rl is not None and not goal.lora:
            tried.append((f"--model {one.name} --lora", replace(goal, model=one.name, lora=True)))
    return "a smaller model", tried


def _adapters(goal: Goal) -> Iterator[Way]:
    """Yield a fine-tune of the published model on the same GPUs, with adapters beside weights of 16 or 4 bits."""
    if goal.model is not None and goal.gpu not in (OWN, "cpu"):
        counts = ",".join(map(str, goal.counts or (goal.gpus,)))
        kept = Goal(gpu=goal.gpu, gpus=goal.gpus, counts=goal.counts, model=goal.model)
        command = f"advisor plan --model {shlex.quote(goal.model)} --gpu {goal.gpu} --gpus {counts}"
        examples = int(parse_tokens(_EXAMPLES))
        yield (
            "fine-tuning it in place of training it anew",
            [(f"`{command} --finetune {method} --examples {_EXAMPLES}`",
              replace(kept, finetune=method, examples=examples)) for method in ("lora", "qlora")],
        )  # fmt: skip


def _fewer_parameters(goal: Goal, most: float) -> Way:
    """Return a smaller model of the goal's family, in place of its sizes."""
    sizes: dict[str, Any] = dict.fromkeys(("model", "depth", "width", "heads", "kv_heads", "ffn_width"))
    typed = [f"--{name.replace('_', '-')}" for name in sizes if getattr(goal, name) is not None]
    in_place, named = f" in place of {' and '.join(typed)}" if typed else "", ""
    if goal.model is not None:  # the model gave these
        in_place = " in place of --model"
        named = f" --family {goal.family} --seq-len {goal.seq_len} --vocab-size {goal.vocab_size}"
    texts = [_floored(most * share) for share in (1, 0.7, 0.5, 0.25, 0.1)]
    return f"a smaller model{in_place}", [
        (f"--params {text}{named}", replace(goal, **sizes, parameters=int(parse_tokens(text)))) for text in texts
    ]


def _who(space: SearchSpace, place: int, rank: str = "") -> str:
    """Return the name of a configuration; among several machines, also its machine and rank, such as "cheapest"."""
    depth = f"depth {space.candidates.depth[place]}"
    machines = space.candidates.machines
    if len(machines.offers) == 1 or len(machines.devices) == 1 and not space.goal.counts:
        return f"{depth} at {_micro_batch(space, place)}"
    offer = space.offer(int(place))
    described = f"{depth} on {offer.gpus} x {offer.gpu}{' spot' if offer.spot else ''}"
    return f"the {rank}, {described}," if rank else described


def _micro_batch(space: SearchSpace, place: int) -> str:
    return f"micro-batch {space.candidates.micro_batch[place]} x {space.brief.seq_len}"
