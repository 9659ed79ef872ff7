"""Plans the fine-tuning of a published model on each GPU with other software: batch, memory, hours, dollars."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, require_gpu
from advisor.hardware.offers import rows_by_gpu, unpriced
from advisor.offer import Offer
from advisor.options import EIGHT_BIT, Goal
from advisor.planning.choose import sorted_by_preference
from advisor.planning.costs import whole_usd
from advisor.planning.goal import Limits, interruptions, power_of
from advisor.planning.models import NamedModel
from advisor.planning.offers import ANY, OWN, offers_for, own_offers, within_a_node
from advisor.planning.what_fits import adapted, largest_context
from advisor.prediction.adapters import forward_share
from advisor.prediction.intervals import reciprocal, sum_shared
from advisor.prediction.layout_runs import STATE_BYTES, interrupted
from advisor.prediction.micro_batch import ALIKE
from advisor.prediction.profile import Profile
from advisor.prediction.software import software_of, table, words_of
from advisor.prediction.wallclock import rented_setup
from advisor.records import Adapters, Estimate, Prediction, Software
from advisor.store.store import Store
from advisor.workflows.goal import find_any_model

BYTES_PER_TOKEN = 4  # of text to fetch; small compared with the model
RANK, LENGTH, EPOCHS = 16, 1024, 3.0  # defaults, as in most tutorials
PAIR_EPOCHS = 1.0  # of preference pairs (Tunstall et al. 2023, "Zephyr", trains one to three)
# Sequences per example. A pair has two trained sequences. The reference model reads both once beforehand without
# gradients (Rafailov et al. 2023, §4; TRL's precompute_ref_log_probs), so that it needs no memory of its own.
SEQUENCES = {"sft": 1, "dpo": 2}
# Two moments per weight (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").
_EIGHT_BIT_BYTES = 2.0
_Batch = tuple[Profile, Prediction]


@dataclass(frozen=True, kw_only=True)
class FinetuneRun:
    """One way to fine-tune: a machine, its batch, and the time and cost of the whole run."""

    offer: Offer
    prediction: Prediction
    seconds: Estimate  # from ordering the machine to the last step
    usd: Estimate | None
    longest_context: int | None  # tokens of one sequence that surely fit
    keeps: tuple[bool, bool]  # whether it is within the deadline, and within the budget


@dataclass(frozen=True, kw_only=True)
class FinetunePlan:
    """The ways to fine-tune a model, the best first; those that break a limit come last."""

    goal: Goal
    model: NamedModel
    stage: str  # sft, or dpo for pairs of answers
    software: str  # its name in words
    tokens: int  # trained on, in all epochs
    tokens_padded: int  # computed on if every example is padded to the context length
    runs: tuple[FinetuneRun, ...]
    does_not_fit: tuple[str, ...]  # names of GPUs
    assumed: tuple[str, ...]  # options that were not given, with the assumed values

    @property
    def too_long(self) -> str | None:
        """A sentence if the examples are longer than any sequence that the model reads."""
        return self.model.details.past_longest(self.model.name, self.model.shape.seq_len)

    @property
    def chosen(self) -> FinetuneRun:
        return self.runs[0]


def plan_finetune(goal: Goal, store: Store) -> FinetunePlan:
    """Returns the ways to reach the goal's `finetune` on each GPU and number of GPUs that the goal allows.

    The best is the cheapest within the limits, where waiting beyond a day has a price (`Limits`). If the goal's
    objective is time, the best is the fastest. Raises AdvisorError if the amount of training is not stated, and (exit
    3) if the model fits none of the GPUs.
    """
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
        raise AdvisorError("nothing says how much is to be trained", "say it: --examples 50k", exit_code=2)
    tokens = round(per_epoch * (epochs if goal.examples is not None else 1))
    if goal.finetune == "full" and model.expert_width is not None:  # of all its weights only layouts have a law
        gpus = ",".join(map(str, goal.counts or (goal.gpus,)))
        words = f"--gpu {goal.gpu} --gpus {gpus} --tokens {tokens} --seq-len {context}"
        message = f"all weights of {model.name}, a mixture of experts, are planned over layouts"
        raise AdvisorError(message, f"advisor plan --layout any --model {model.name} {words}", exit_code=2)
    software = _software(goal, model, rank)
    runs, does_not_fit = _tried(goal, store, model, software, tokens)
    if not runs:
        message = f"{model.name} does not surely fit {', '.join(does_not_fit)}"
        if (too_long := model.details.past_longest(model.name, context)) is not None:
            message += f", and {too_long}"
        raise AdvisorError(message, _would_fit(goal, store, model, rank, length, tokens), exit_code=3)

    padded = round(tokens * context / length)
    return FinetunePlan(
        goal=goal,
        model=model,
        stage=stage,
        software=words_of(software),
        tokens=tokens,
        tokens_padded=padded,
        runs=tuple(sorted_by_preference(goal, runs)),
        does_not_fit=tuple(does_not_fit),
        assumed=tuple(assumed),
    )


def _software(goal: Goal, model: NamedModel, rank: int) -> Software:
    software = finetune_software(goal.finetune or "full", model, rank, goal.software)
    return replace(software, moment_bytes=_EIGHT_BIT_BYTES) if goal.optimizer == EIGHT_BIT else software


def _tried(
    goal: Goal, store: Store, model: NamedModel, software: Software, tokens: int
) -> tuple[list[FinetuneRun], list[str]]:
    """Returns the runs on all machines that the goal allows, and the GPUs that are rented but cannot hold the run."""
    runs: list[FinetuneRun] = []
    does_not_fit: list[str] = []
    for gpu, offers in _machines(goal):
        found = list(_runs(goal, store, gpu, offers, model, software, tokens)) if offers else []
        runs += found
        does_not_fit += [gpu] if offers and not found else []
    return runs, does_not_fit


def _would_fit(goal: Goal, store: Store, model: NamedModel, rank: int, length: int, tokens: int) -> str:
    """Returns the options with which the fine-tune surely fits; each was planned before it is named."""

    def fits(context: int = model.shape.seq_len, **changed: Any) -> bool:
        asked = replace(goal, **changed)
        shorter = model.at(context)
        return bool(_tried(asked, store, shorter, _software(asked, shorter, rank), tokens)[0])

    found = []
    if goal.finetune != "qlora" and fits(finetune="qlora"):
        found.append("train less of it: --finetune qlora")
    most = max((goal.gpus, *(goal.counts or ()), *(machine.gpus for machine in goal.own)))
    more = [count for count in (2, 4, 8) if count > most]
    if goal.own:
        own = goal.own[0]
        if count := next((n for n in more if fits(own=(replace(own, gpus=n),), counts=(n,))), None):
            found.append(f"more of them: --own {count}x{own.gpu}")
    elif count := next((n for n in more if fits(counts=(n,))), None):
        found.append(f"more GPUs: --gpus {count}")
    cards = load_gpus()
    if goal.gpu not in (ANY, OWN):
        room = max(cards[key].memory_bytes for key in goal.gpu.split(","))
        larger = sorted(
            (cards[key].memory_bytes, key)
            for key in rows_by_gpu()
            if cards[key].is_cuda and cards[key].memory_bytes > room
        )
        if key := next((key for _, key in larger if fits(gpu=key)), None):
            found.append(f"a GPU with more memory: --gpu {key}")
    shorter = [2**power for power in range(20, 8, -1) if 2**power < model.shape.seq_len]
    if found_length := next((one for one in shorter if fits(one)), None):
        options = f"--seq-len {found_length}" if goal.seq_len is not None else ""
        options += f" --length {found_length}" if found_length < length or not options else ""
        found.append(f"shorter examples: {options.strip()}")
    if found:
        return f"would fit: {'; or '.join(found)}"
    return "neither QLoRA nor 8 of these GPUs nor half the length would: a smaller --model, or --layout any"


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


def _machines(goal: Goal) -> Iterator[tuple[str, Sequence[Offer]]]:
    """Yields each GPU that the goal allows, with its offers on one node."""
    goal, prices, today = within_a_node(goal), rows_by_gpu(), datetime.date.today()
    cards = load_gpus()
    named = [] if goal.gpu == OWN else goal.gpu.split(",")
    keys = [key for key, spec in cards.items() if spec.is_cuda] if goal.gpu == ANY else named
    for machine in goal.own:
        yield machine.gpu, own_offers(goal, machine)
    for key in keys:
        counts = goal.counts or (goal.gpus,)
        offers = [offer for count in counts for offer in offers_for(goal, key, count, prices, today)]
        if not offers and goal.gpu != ANY:
            offers = [unpriced(key, count, goal.providers, prices) for count in counts]
        yield key, offers


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
) -> _Batch:
    """Returns the batch, with the plainest sharding of the software that is about as fast as its fastest.

    The model is as `NamedModel.at` returns it. `network` is the rate between machines in bytes per second.
    """
    spec = require_gpu(gpu)
    precision = "bf16" if spec.bf16_flops is not None else "fp16"
    adapters = software.adapters
    shardings = table()[software.name or "trl"].shardings
    if gpus == 1:
        shardings = ("none",)
    elif adapters is not None:  # their optimizer state is tiny compared with the weights
        shardings = tuple(sharding for sharding in shardings if sharding != "optimizer")
    profile = load_profile(
        gpu, store, family=model.shape.family, precision=precision, compile=False, software=software
    ).with_network(network)
    tried = [adapted(profile, model.shape, software, gpus, sharding, together) for sharding in shardings]
    rates = [one.tokens_per_second.value if one.fits and one.tokens_per_second else 0.0 for one in tried]
    return profile, next(one for one, rate in zip(tried, rates, strict=True) if rate >= ALIKE * max(rates))


def _runs(
    goal: Goal, store: Store, gpu: str, offers: Sequence[Offer], model: NamedModel, software: Software, tokens: int
) -> Iterator[FinetuneRun]:
    """Yields the runs on one GPU, one for each offer on which the model surely fits."""
    together = SEQUENCES[goal.stage or "sft"]
    by_count: dict[int, _Batch] = {}
    for offer in offers:
        if offer.gpus not in by_count:
            by_count[offer.gpus] = finetune_batch(
                store, gpu, offer.gpus, model, software, together, goal.network_bytes_per_second
            )
        profile, found = by_count[offer.gpus]
        rate = found.tokens_per_second
        if not found.fits or rate is None:
            continue
        seconds = reciprocal(rate, tokens)
        if together > 1:
            read_once = forward_share(found.workload) / (goal.epochs or usual_epochs(goal))
            seconds = seconds.scaled(1 + read_once)
        if offer.ordered:
            setup = rented_setup(2.0 * model.parameters + BYTES_PER_TOKEN * tokens)
            whole = sum_shared(seconds, setup.provisioning_seconds, setup.download_seconds)
            seconds = replace(whole, basis=seconds.basis)
        taken = interruptions(goal, spot=offer.spot, gpus=offer.gpus)
        if taken is not None:
            held = 0.0 if goal.finetune != "full" else model.parameters * STATE_BYTES
            seconds = interrupted(seconds, taken, held_bytes=held)
        usd = whole_usd(goal, offer, seconds, found.mfu, power_of(profile))
        late, dear = Limits.of(goal).broken(seconds, usd)
        leanest = replace(found.workload, micro_batch=together, activation_checkpointing="full")
        yield FinetuneRun(
            offer=offer,
            prediction=found,
            seconds=seconds,
            usd=usd,
            longest_context=largest_context(profile, leanest),
            keeps=(not late, not dear and (usd is not None or goal.budget_usd is None)),
        )
