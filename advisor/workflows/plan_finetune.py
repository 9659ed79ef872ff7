"""Plans the fine-tuning of a published model on each GPU with other software: batch, memory, hours, dollars."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.offer import Offer
from advisor.options import EIGHT_BIT, Goal
from advisor.planning.goal import Limits, interruptions, power_of
from advisor.planning.infeasible import Way, larger_gpu, leaner, more_gpus, smaller_model
from advisor.planning.models import NamedModel
from advisor.planning.offers import usual_counts, within_a_node
from advisor.planning.run import grounds_of
from advisor.planning.what_fits import adapted, largest_context
from advisor.prediction.adapters import forward_share
from advisor.prediction.intervals import reciprocal, sum_shared
from advisor.prediction.layout_runs import STATE_BYTES, interrupted
from advisor.prediction.profile import Profile
from advisor.prediction.software import software_of, table, words_of
from advisor.prediction.wallclock import rented_setup
from advisor.records import Adapters, Estimate, Plan, Prediction, Run, Software, WallClock
from advisor.store.store import Store
from advisor.units import format_centre, format_seconds, format_usd
from advisor.workflows.goal import LAYOUT_COUNTS, find_any_model
from advisor.workflows.plan_elsewhere import BestWay, Work
from advisor.workflows.plan_layouts import layout_work

BYTES_PER_TOKEN = 4  # of text to fetch; small compared with the model
RANK, LENGTH, EPOCHS = 16, 1024, 3.0  # defaults, as in most tutorials
EXAMPLES = 10_000  # for which a budget is planned that states no amount
_TRIES = 5  # of a smaller number of examples, until the limits allow one
PAIR_EPOCHS = 1.0  # of preference pairs (Tunstall et al. 2023, "Zephyr", trains one to three)
# Sequences per example. A pair has two trained sequences. The reference model reads both once beforehand without
# gradients (Rafailov et al. 2023, §4; TRL's precompute_ref_log_probs), so that it needs no memory of its own.
SEQUENCES = {"sft": 1, "dpo": 2}
# Two moments per weight (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").
_EIGHT_BIT_BYTES = 2.0
FASTER, _NOTABLY_FASTER = "unsloth", 1.1  # software for one GPU and the models it was written for; times as fast
_Batch = tuple[Profile, Prediction]


@dataclass(frozen=True, kw_only=True)
class FinetuneWork(Work):
    """The fine-tuning of a published model, with the best batch on each number of GPUs."""

    store: Store
    model: NamedModel  # at the context length
    software: Software

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        together = SEQUENCES[self.goal.stage or "sft"]
        network = self.goal.network_bytes_per_second
        profile, found = finetune_batch(self.store, gpu, gpus, self.model, self.software, together, network)
        if found.fits and found.tokens_per_second is None:
            return ""
        leanest = replace(found.workload, micro_batch=together, activation_checkpointing="full")
        return BestWay(
            prediction=replace(found, workload=replace(found.workload, model=self.model.model)),
            power=power_of(profile),
            grounds=grounds_of(profile),
            longest_context=None if found.fits is False else largest_context(profile, leanest),
        )

    def duration(self, prediction: Prediction, offer: Offer, taken: Estimate | None) -> tuple[WallClock, float | None]:
        goal, rate = self.goal, prediction.tokens_per_second
        assert rate is not None  # `best_on` leaves out machines of unknown speed
        steps = reciprocal(rate, self.tokens)
        if SEQUENCES[goal.stage or "sft"] > 1:  # the reference model reads all pairs once, before the first epoch
            steps = steps.scaled(1 + forward_share(prediction.workload) / (goal.epochs or usual_epochs(goal)))
        clock = WallClock(steps_seconds=steps, total_seconds=steps)
        if offer.ordered:
            setup = rented_setup(2.0 * self.model.parameters + BYTES_PER_TOKEN * self.tokens)
            whole = sum_shared(steps, setup.provisioning_seconds, setup.download_seconds)
            clock = replace(clock, **vars(setup), total_seconds=replace(whole, basis=steps.basis))
        if taken is None:
            return clock, None
        held = 0.0 if goal.finetune != "full" else self.model.parameters * STATE_BYTES
        before, after = clock.total_seconds, interrupted(clock.total_seconds, taken, held_bytes=held)
        low, value, high = (getattr(after, end) - getattr(before, end) for end in ("low", "value", "high"))
        lost = Estimate(value=value, low=low, high=high, basis=after.basis)
        clock = replace(clock, interruptions_seconds=lost, total_seconds=after)
        return clock, after.value / taken.value

    def reasons(self, chosen: Run) -> tuple[str, ...]:
        """Return why the usual software is planned although another is faster on the chosen GPU, if one is."""
        goal, offer, usual = self.goal, chosen.offer, chosen.total_seconds
        if goal.software is not None or offer.gpus > 1:
            return ()
        other = finetune_software(goal.finetune or "", self.model, goal.lora_rank or RANK, FASTER)
        other = replace(other, moment_bytes=self.software.moment_bytes)
        faster = replace(self, software=other)
        way = faster.best_on(offer.gpu, 1)
        if not isinstance(way, BestWay) or way.prediction.tokens_per_second is None:
            return ()
        taken = interruptions(goal, spot=offer.spot, gpus=1)
        sooner = faster.duration(way.prediction, offer, taken)[0].total_seconds
        if usual.value < _NOTABLY_FASTER * sooner.value:
            return ()
        slow, fast = (format_centre(seconds, format_seconds) for seconds in (usual, sooner))
        name = words_of(other)
        return (
            f"{words_of(self.software)} is planned, because it trains any model. If {name} supports "
            f"{self.name}, the run takes {fast} instead of {slow}: set --software {FASTER}",
        )

    def changes(self, refused: Sequence[str]) -> Iterator[Way]:
        goal, context = self.goal, self.model.shape.seq_len
        if goal.finetune == "full" and goal.optimizer != EIGHT_BIT:
            yield "moments of 8 bits", [(f"--optimizer {EIGHT_BIT}", replace(goal, optimizer=EIGHT_BIT))]
        if goal.finetune != "qlora":
            yield leaner("4-bit weights", "--finetune qlora", replace(goal, finetune="qlora"), self.usable)
        yield more_gpus(goal)
        shorter = []
        for length in (2**power for power in range(20, 8, -1) if 2**power < context):
            names = ["seq_len"] if goal.seq_len is not None else []
            names += ["length"] if length < (goal.length or LENGTH) or not names else []
            option = " ".join(f"--{name.replace('_', '-')} {length}" for name in names)
            shorter.append((option, replace(goal, **dict.fromkeys(names, length))))
        yield "shorter examples", shorter
        yield from larger_gpu(goal, self.usable)
        yield smaller_model(goal, self.model)


def finetune_work(goal: Goal, store: Store) -> Work:
    """Returns the fine-tune that the goal describes; raises AdvisorError (exit 2) if its amount is not stated."""
    assert goal.finetune is not None and goal.model is not None  # `goal_from` refuses one without the other
    stage, usual = goal.stage or "sft", usual_epochs(goal)
    length, epochs, rank = goal.length or LENGTH, goal.epochs or usual, goal.lora_rank or RANK
    said = {"length": goal.length, "epochs": goal.epochs}
    said |= {"lora_rank": goal.lora_rank} if goal.finetune != "full" else {}
    defaults = {"length": LENGTH, "epochs": f"{usual:g}", "lora_rank": RANK}
    assumed = [f"--{name.replace('_', '-')} {defaults[name]}" for name, value in said.items() if value is None]
    model = find_any_model(goal.model)
    assumed += [model.stand_in] if model.stand_in else []
    context = goal.seq_len or length
    if context < length:
        raise AdvisorError(f"--seq-len {context} cuts examples of {length} tokens", "make it longer", exit_code=2)
    model = model.at(context)
    per_epoch = goal.examples * SEQUENCES[stage] * length if goal.examples is not None else goal.tokens
    if per_epoch is None:
        hint = "state it: --examples 50k, or ask how many a --budget buys"
        raise AdvisorError("the amount of training is not given", hint, exit_code=2)
    tokens = round(per_epoch * (epochs if goal.examples is not None else 1))
    if goal.finetune == "full" and model.expert_width is not None:  # of all its weights only layouts have a law
        return _over_layouts(goal, model, tokens, assumed)
    software = finetune_software(goal.finetune, model, rank, goal.software)
    if goal.optimizer == EIGHT_BIT:
        software = replace(software, moment_bytes=_EIGHT_BIT_BYTES)
    too_long = model.details.past_longest(model.name, context)
    return FinetuneWork(
        goal=within_a_node(goal), name=model.name, store=store, model=model, software=software, tokens=tokens,
        assumed=tuple(assumed), warnings=tuple(filter(None, [too_long])),
        sources=(f"published runs (profiles/public_runs.csv); how {words_of(software)} trains: profiles/software.csv",),
    )  # fmt: skip


def _over_layouts(goal: Goal, model: NamedModel, tokens: int, assumed: list[str]) -> Work:
    """Returns the fine-tune of all weights of a mixture of experts, in the best layout over several GPUs."""
    if goal.stage == "dpo" or goal.optimizer == EIGHT_BIT:
        option = "--stage dpo" if goal.stage == "dpo" else f"--optimizer {EIGHT_BIT}"
        message = f"{option} is not planned for all weights of {model.name}, a mixture of experts"
        raise AdvisorError(message, "leave it out, or train adapters: --finetune lora", exit_code=2)
    stated = goal.own or goal.gpus > 1 or goal.counts not in ((), usual_counts(goal.gpu, goal.own))
    counts = goal.counts if stated else LAYOUT_COUNTS
    work = layout_work(replace(goal, layout="any", counts=counts, tokens=tokens, seq_len=model.shape.seq_len))
    its = [text for text in assumed if text != model.stand_in]  # layouts have the exact sizes
    return replace(work, assumed=(*its, *work.assumed))


def with_usual_examples(goal: Goal) -> Goal:
    """Returns a fine-tune with a budget and no amount for the usual number of examples, any other goal unchanged."""
    stated = goal.examples is not None or goal.tokens is not None
    is_open = goal.finetune is not None and goal.budget_usd is not None and not stated
    return replace(goal, examples=EXAMPLES) if is_open else goal


def with_what_the_budget_buys(plan: Plan, replan: Callable[[Goal], Plan]) -> Plan:
    """Returns the plan for the usual number of examples with the number that its budget buys among its reasons.

    If the limits do not allow the usual number, the plan is made again for the number that they allow.
    """
    goal, run, what = plan.goal, plan.chosen, "pairs" if plan.goal.stage == "dpo" else "examples"
    usual = replace(plan, assumed=(f"--examples {EXAMPLES}", *plan.assumed))
    if not run.cost_usd or not run.cost_usd.value or goal.budget_usd is None:
        return usual
    limits, budget, on = Limits.of(goal), format_usd(goal.budget_usd), run.offer.in_words()
    if not run.standing.against:
        times = _times_within(replace(limits, deadline_seconds=None), run)
        length, epochs = goal.length or LENGTH, goal.epochs or usual_epochs(goal)
        seen = f"each seen {epochs:g} times" if epochs != 1 else "each once"
        total, before = run.total_seconds.value, _start_seconds(run)
        buys = (
            f"{budget} buys about {_two_digits(times * EXAMPLES):,} {what} of {length:,} tokens on {on}, {seen}, "
            f"in {format_seconds(before + (total - before) * times)}"
        )
        return replace(usual, reasons=(buys, *plan.reasons))
    allows = f" and {format_seconds(goal.deadline_seconds)} allow" if goal.deadline_seconds else " buys"
    usd, takes = format_centre(run.cost_usd, format_usd), format_centre(run.total_seconds, format_seconds)
    planned = f"{EXAMPLES:,} {what} would cost {usd} and take {takes} on {on}"
    most = EXAMPLES * max(_times_within(limits, one) for one in (run, *(plan.search.machines if plan.search else ())))
    for _ in range(_TRIES):
        if (count := _two_digits(most)) < 1:
            break
        bought = replan(replace(goal, examples=count))
        if not bought.chosen.standing.against:
            reason = f"{planned}; {budget}{allows} {count:,}"
            return replace(bought, assumed=(f"--examples {count}", *bought.assumed), reasons=(reason, *bought.reasons))
        most = 0.75 * count
    return replace(usual, reasons=(f"{budget}{allows} hardly any {what}: {planned}", *plan.reasons))


def _times_within(limits: Limits, run: Run) -> float:
    """Returns how many times as much work as a run's would keep the limits on its machine.

    The start of a rented machine takes and costs the same for any number of examples; all else grows with it.
    """
    total, before = limits.counted(run.total_seconds), _start_seconds(run)
    times = math.inf if limits.deadline_seconds is None else (limits.deadline_seconds - before) / (total - before)
    if limits.budget_usd is not None and run.cost_usd and run.cost_usd.value:
        start = run.cost_usd.value * before / run.total_seconds.value
        times = min(times, (limits.budget_usd - start) / (limits.counted(run.cost_usd) - start))
    return times if math.isfinite(times) else 0.0


def _start_seconds(run: Run) -> float:
    clock = run.bill.wall_clock
    return sum(part.value for part in (clock.provisioning_seconds, clock.download_seconds) if part)


def _two_digits(count: float) -> int:
    """Returns a number rounded down to two digits, at least 0."""
    whole = max(0, int(count))
    return whole - whole % 10 ** max(0, len(str(whole)) - 2)


def tokens_padded(plan: Plan) -> int:
    """Returns the tokens that are computed on if every example is padded to the context length."""
    return round(plan.chosen.tokens * plan.workload.shape.seq_len / (plan.goal.length or LENGTH))


def finetune_software(method: str, model: NamedModel, rank: int = RANK, name: str | None = None) -> Software:
    """Returns the software that fine-tunes a model with a method, and which weights it trains."""
    adapters = Adapters(rank=rank, targets=model.adapter_targets, quantized=method == "qlora")
    return software_of(
        name or "trl",
        adapters=adapters if method != "full" else None,
        extra_parameters=model.extra_parameters,
        expert_parameters=model.expert_parameters,
        experts=model.experts,
    )


def usual_epochs(goal: Goal) -> float:
    """Returns the usual number of epochs if the goal states none."""
    return PAIR_EPOCHS if goal.stage == "dpo" else EPOCHS


def finetune_batch(
    store: Store,
    gpu: str,
    gpus: int,
    model: NamedModel,
    software: Software,
    together: int = 1,
    network: float | None = None,
    taken_bytes: float = 0.0,
) -> _Batch:
    """Returns the profile for the software, and the best way to train the model with it.

    The model is as `NamedModel.at` returns it. `network` is the rate between machines in bytes per second. Other
    programs have `taken_bytes` of each GPU.
    """
    spec = require_gpu(gpu)
    precision = "bf16" if spec.bf16_flops is not None else "fp16"
    adapters = software.adapters
    shardings = table()[software.name or "trl"].shardings
    if gpus == 1:
        shardings = ("none",)
    elif adapters is not None:  # their optimizer state is tiny, so software that shards it alone copies all weights
        shardings = tuple(sharding for sharding in shardings if sharding != "optimizer") or ("none",)
    profile = load_profile(
        gpu, store, family=model.shape.family, precision=precision, compile=False, software=software
    ).with_network(network)
    if taken_bytes and profile.device_memory_bytes is not None:
        profile = replace(profile, device_memory_bytes=round(profile.device_memory_bytes - taken_bytes))
    return profile, adapted(profile, model.shape, software, gpus, shardings, together)
