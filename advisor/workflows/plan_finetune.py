"""Plans the fine-tuning of a published model on each GPU with other software: batch, memory, hours, dollars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from advisor.architecture import Model
from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, require_gpu
from advisor.offer import Offer
from advisor.options import EIGHT_BIT, Goal
from advisor.planning.goal import interruptions, power_of
from advisor.planning.infeasible import Way, any_gpu, hint, more_gpus
from advisor.planning.models import NamedModel
from advisor.planning.offers import ANY, within_a_node
from advisor.planning.run import grounds_of
from advisor.planning.what_fits import adapted, largest_context
from advisor.prediction.adapters import forward_share
from advisor.prediction.intervals import reciprocal, sum_shared
from advisor.prediction.layout_runs import STATE_BYTES, interrupted
from advisor.prediction.profile import Profile
from advisor.prediction.software import software_of, table, words_of
from advisor.prediction.wallclock import rented_setup
from advisor.records import Adapters, Estimate, Plan, Prediction, Software, WallClock
from advisor.store.store import Store
from advisor.workflows.goal import find_any_model, find_architecture
from advisor.workflows.plan_elsewhere import ON_DEMAND, BestWay, Duration, plan_of, try_machines

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
class FinetuneWork:
    """The fine-tuning of a published model, with the best batch on each number of GPUs."""

    goal: Goal
    store: Store
    model: NamedModel  # at the context length
    sizes: Model  # exact
    software: Software
    tokens: int  # trained on, in all epochs

    @property
    def sources(self) -> tuple[str, ...]:
        return (f"published runs (profiles/public_runs.csv); {words_of(self.software)} by profiles/software.csv",)

    def lacks(self, gpu: str) -> str:
        return ""

    def gpus(self) -> Sequence[str]:
        requested = self.goal.gpu
        return [key for key, spec in load_gpus().items() if spec.is_cuda] if requested == ANY else requested.split(",")

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        together = SEQUENCES[self.goal.stage or "sft"]
        network = self.goal.network_bytes_per_second
        profile, found = finetune_batch(self.store, gpu, gpus, self.model, self.software, together, network)
        if not found.fits or found.tokens_per_second is None:
            return ""
        leanest = replace(found.workload, micro_batch=together, activation_checkpointing="full")
        return BestWay(
            prediction=replace(found, workload=replace(found.workload, model=self.sizes)),
            power=power_of(profile),
            grounds=grounds_of(profile),
            longest_context=largest_context(profile, leanest),
        )

    def duration(self, prediction: Prediction, offer: Offer) -> Duration:
        goal, rate = self.goal, prediction.tokens_per_second
        assert rate is not None  # `best_on` leaves out machines of unknown speed
        steps = reciprocal(rate, self.tokens)
        if SEQUENCES[goal.stage or "sft"] > 1:  # the reference model reads all pairs once, before the first epoch
            steps = steps.scaled(1 + forward_share(prediction.workload) / (goal.epochs or usual_epochs(goal)))
        clock = WallClock(steps_seconds=steps, total_seconds=steps)
        if offer.ordered:
            setup = rented_setup(2.0 * self.model.parameters + BYTES_PER_TOKEN * self.tokens)
            whole = sum_shared(steps, setup.provisioning_seconds, setup.download_seconds)
            clock = WallClock(
                steps_seconds=steps,
                provisioning_seconds=setup.provisioning_seconds,
                download_seconds=setup.download_seconds,
                total_seconds=replace(whole, basis=steps.basis),
            )
        taken = interruptions(goal, spot=offer.spot, gpus=offer.gpus)
        if taken is None:
            return Duration(clock=clock)
        held = 0.0 if goal.finetune != "full" else self.model.parameters * STATE_BYTES
        before, after = clock.total_seconds, interrupted(clock.total_seconds, taken, held_bytes=held)
        low, value, high = (getattr(after, end) - getattr(before, end) for end in ("low", "value", "high"))
        lost = Estimate(value=value, low=low, high=high, basis=after.basis)
        clock = replace(clock, interruptions_seconds=lost, total_seconds=after)
        return Duration(clock=clock, failures=after.value / taken.value, taken=taken)


def plan_finetune(goal: Goal, store: Store) -> Plan:
    """Returns the ways to reach the goal's `finetune` on each GPU and number of GPUs that the goal allows.

    The best is the cheapest within the limits, where waiting beyond a day has a price (`Limits`). If the goal's
    objective is time, the best is the fastest. Raises AdvisorError if the amount of training is not stated, and (exit
    3) if the model fits none of the GPUs.
    """
    work, assumed = _work(goal, store)
    tried = try_machines(work)
    fitting = {run.offer.gpu for run in tried.runs}  # a GPU of which some number can hold it needs no mention
    no_room = [key for key in dict.fromkeys(gpu for gpu, _ in tried.refused) if key not in fitting]
    too_long = work.model.details.past_longest(work.model.name, work.model.shape.seq_len)
    if not tried.runs and tried.endless:
        raise AdvisorError(f"no run ends on {', '.join(tried.endless)}", ON_DEMAND, exit_code=3)
    if not tried.runs and not no_room:
        message = "no machine that these options allow is offered"
        raise AdvisorError(message, "leave --provider, --spot or --gpus out, or name a --price", exit_code=3)
    if not tried.runs:
        message = f"{work.model.name} does not surely fit {', '.join(no_room)}"
        message += f", and {too_long}" if too_long is not None else ""

        def fits(changed: Goal) -> bool:
            return bool(try_machines(_work(changed, store)[0]).runs)

        raise AdvisorError(message, hint(_ways(goal, work.model.shape.seq_len), fits), exit_code=3)
    tried = replace(tried, does_not_fit=(*no_room, *tried.endless))
    return plan_of(work, tried, assumed=assumed, warnings=[*filter(None, [too_long])])


def _work(goal: Goal, store: Store) -> tuple[FinetuneWork, list[str]]:
    """Returns the work that the goal describes, and what was assumed; raises as `plan_finetune` does."""
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
        raise AdvisorError("the amount of training is not given", "state it: --examples 50k", exit_code=2)
    tokens = round(per_epoch * (epochs if goal.examples is not None else 1))
    if goal.finetune == "full" and model.expert_width is not None:  # of all its weights only layouts have a law
        gpu, counts = goal.gpu, goal.counts or (goal.gpus,)
        if goal.own:
            gpu, counts = goal.own[0].gpu, (goal.own[0].gpus,)
        words = f"--gpu {gpu} --gpus {','.join(map(str, counts))} --tokens {tokens} --seq-len {context}"
        message = f"all weights of {model.name}, a mixture of experts, are planned over layouts"
        raise AdvisorError(message, f"advisor plan --layout any --model {model.name} {words}", exit_code=2)
    software = finetune_software(goal.finetune, model, rank, goal.software)
    if goal.optimizer == EIGHT_BIT:
        software = replace(software, moment_bytes=_EIGHT_BIT_BYTES)
    sizes = find_architecture(goal.model).model
    return FinetuneWork(
        goal=within_a_node(goal), store=store, model=model, sizes=sizes, software=software, tokens=tokens
    ), assumed


def _ways(goal: Goal, context: int) -> Iterator[Way]:
    """Yields changes of the goal with which the fine-tune may fit."""
    if goal.finetune != "qlora":
        yield "4-bit weights", [("--finetune qlora", replace(goal, finetune="qlora"))]
    if goal.own:
        own = goal.own[0]
        more = [(count, replace(own, gpus=count)) for count in (2, 4, 8) if count > own.gpus]
        yield "more of them", [(f"--own {n}x{own.gpu}", replace(goal, own=(many,), counts=(n,))) for n, many in more]
    else:
        yield more_gpus(goal)
        yield from any_gpu(goal, "a GPU with more memory")
    shorter = []
    for length in (2**power for power in range(20, 8, -1) if 2**power < context):
        names = ["seq_len"] if goal.seq_len is not None else []
        names += ["length"] if length < (goal.length or LENGTH) or not names else []
        option = " ".join(f"--{name.replace('_', '-')} {length}" for name in names)
        shorter.append((option, replace(goal, **dict.fromkeys(names, length))))
    yield "shorter examples", shorter


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
    elif adapters is not None:  # their optimizer state is tiny compared with the weights
        shardings = tuple(sharding for sharding in shardings if sharding != "optimizer")
    profile = load_profile(
        gpu, store, family=model.shape.family, precision=precision, compile=False, software=software
    ).with_network(network)
    if taken_bytes and profile.device_memory_bytes is not None:
        profile = replace(profile, device_memory_bytes=round(profile.device_memory_bytes - taken_bytes))
    return profile, adapted(profile, model.shape, software, gpus, shardings, together)
