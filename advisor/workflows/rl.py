"""Predicts steps of RL post-training from options, on any number of GPUs."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus, read_gpus, require_gpu
from advisor.laws.intervals import Z80
from advisor.options import Goal, PredictOptions, RolloutOptions, options_of
from advisor.planning.rl import LEAST_STATE, RlWay, best_updates, search_rl, training_sizes
from advisor.prediction.generation import Answers, load_rl
from advisor.prediction.judge import Judge
from advisor.prediction.layout_batch import SURE
from advisor.prediction.rl import RlRun, RlSoftware, RlWork, require_rl_software
from advisor.records import Basis, Estimate, Prediction
from advisor.store.store import Store
from advisor.units import format_bytes, format_centre, parse_number
from advisor.workflows.goal import RL_SOFTWARE, find_any_model
from advisor.workflows.option_rows import OptionRow, read_row, timed_rows
from advisor.workflows.plan_finetune import RANK, finetune_batch, finetune_software
from advisor.workflows.predict import Predicted

UPDATES = 4  # optimizer steps on the answers of one step, as in the recipes of verl and NeMo RL
# Mean length where only the limit is stated, by published runs: a quarter of a limit up to 4,096, less of longer ones.
_MEAN_AT, _LIMIT = 1100.0, 4096.0
_THINKING_AT, _LONG = 5000.0, 8192.0  # of models that reason at length before they answer
_THINKS, _NO_THOUGHT = r"r1|qwq|qwen3|think|nemotron|gpt-oss|magistral", r"base|instruct|coder"
STEP_PROMPTS, GROUP, PROMPT_LEN = 128, 8, 200.0
LIMIT_OF_LENGTH = 4.0  # longest answer over the mean one, if nothing is stated
LIMIT = 4096
UNSURE = 0.5  # log standard deviation of a step whose work is assumed (benchmarks/rl.py)
_DROPPED = 0.5  # share of the groups that DAPO drops because their answers are all right or all wrong
_REWARD_SECONDS = 1.0  # of rules: 0.8-0.9 s for 5,120 answers (verl)
_JUDGE_LEN = 256.0  # tokens that a judge writes about an answer
_OWN_STEP = 0.06  # log standard deviation of later steps around the first ones, whose answers had another length
_OTHER_GPUS = 0.2  # added on another number of GPUs than those that were timed


@dataclass(frozen=True, kw_only=True)
class RlRequest(RlWork):
    """RL post-training of a model, before its GPUs are chosen."""

    typed: str  # the model, as typed
    rank: int | None = None  # of adapters; None: all weights
    placement: str = "any"  # any | colocated | split
    staleness: float | None = None  # None: one step where GPUs are split
    precision: str = "bf16"
    network: float | None = None  # bytes per second
    engine_gpus: int | None = None  # GPUs that only generate; None: the best number
    engine_tensor: int | None = None  # GPUs of one engine; None: the best number

    def on(self, gpu: str, gpus: int, updates: Mapping[tuple[str, int], Prediction]) -> list[RlWay]:
        """Return the ways to do a step on these GPUs with these updates, the fastest that surely fits first."""
        found = {count: one for (key, count), one in updates.items() if key == gpu}
        if not found or gpus <= self.judging_gpus:
            return []
        work = {one.name: getattr(self, one.name) for one in fields(RlWork)}
        spec = require_gpu(gpu).with_network(self.network)
        base = RlRun(
            **work, update=next(iter(found.values())), gpu=spec, train_gpus=gpus, engine_gpus=gpus, tensor=1
        )  # fmt: skip
        shared, engines = gpus - self.judging_gpus, (self.engine_gpus, self.engine_tensor)
        return search_rl(base, shared, found.get, self.placement, self.staleness, *engines)

    def lacks(self, gpu: str, gpus: int, updates: Mapping[tuple[str, int], Prediction]) -> str:
        """Return why there is no way to do a step on these GPUs, if it is more than the size of the model."""
        if gpus <= self.judging_gpus:
            return f"{self.judging_gpus} of them judge, and no GPU is left"
        if self.memory_share is not None and replace(self, memory_share=None).on(gpu, gpus, updates):
            return f"its engines have no room in {self.memory_share:.0%} of a GPU (--rollout-memory)"
        if self.judge is None or not replace(self, judge=None).on(gpu, gpus - self.judging_gpus, updates):
            return ""
        own = self.judging_gpus
        where = f"on GPUs of its own (--judge-gpus {own})" if own else "beside the engines, in turn"
        return f"{self.judge.model.name} has no room {where}"

    def updates_on(
        self, machines: Iterable[tuple[str, int]], store: Store, least_state: float = LEAST_STATE
    ) -> dict[tuple[str, int], Prediction]:
        """Return one optimizer step over the answers on each number of GPUs that trainers may get of these machines.

        Machines with fewer than `least_state` bytes for each weight are left out.
        """
        sizes = dict.fromkeys(
            (gpu, size)
            for gpu, gpus in machines
            if gpus > self.judging_gpus
            for size in training_sizes(gpus - self.judging_gpus, self.placement, self.engine_gpus)
        )
        if self.rank is None:
            specs = {gpu: require_gpu(gpu).with_network(self.network) for gpu, _ in sizes}
            return best_updates(
                self.model, [(specs[gpu], size) for gpu, size in sizes], self.answers, self.software,
                updates=self.updates, precision=self.precision, least_state=least_state,
            )  # fmt: skip
        longest = round(self.answers.prompt_len + self.answers.response_max)
        model = find_any_model(self.typed).at(longest)
        software = finetune_software("lora", model, self.rank, self.software.training)
        # engines on the same GPUs keep some memory; a little more, since their chance to fit is counted otherwise
        asleep = 1.5 * float(load_rl()["memory"]["engine_asleep_bytes"]["value"])
        found = {
            (gpu, size): finetune_batch(store, gpu, size, model, software, 1, self.network, asleep)[1]
            for gpu, size in sizes
        }
        return {
            (gpu, size): replace(
                one, workload=replace(one.workload, model=self.model), device_memory_bytes=require_gpu(gpu).memory_bytes
            )
            for (gpu, size), one in found.items()
            if one.step_seconds and one.fit_probability is not None
        }


def request_of(goal: Goal | PredictOptions, network: float | None) -> tuple[RlRequest, float, list[str]]:
    """Return what options ask, the mean response length at the end, and what was assumed."""
    assert goal.rl is not None and goal.model is not None
    software = require_rl_software(goal.software or RL_SOFTWARE)
    if goal.placement == "colocated" and (goal.staleness or goal.rollout_gpus):
        message = f"{'--staleness' if goal.staleness else '--rollout-gpus'} is of split GPUs, and these are colocated"
        raise AdvisorError(message, "leave it out, or --placement split", exit_code=2)
    if goal.staleness and not software.overlaps:
        message = f"{software.name} does not generate while it trains, so --staleness {goal.staleness:g} is not planned"
        raise AdvisorError(message, "nearest: --staleness 0, or --software verl", exit_code=2)
    usual = {"prompts_per_step": STEP_PROMPTS, "group": GROUP, "prompt_len": PROMPT_LEN}
    value = {name: getattr(goal, name) or number for name, number in usual.items()}
    missing = [name for name in usual if getattr(goal, name) is None]
    assumed = [f"--{name.replace('_', '-')} {usual[name]:g}" for name in missing]
    limit = goal.response_max or (round(LIMIT_OF_LENGTH * goal.response_len) if goal.response_len else LIMIT)
    mean = goal.response_len or usual_length(limit, goal.model)
    longer = getattr(goal, "response_len_end", None) or mean
    if goal.response_max is None:
        limit = max(limit, round(1.5 * longer))
        assumed.append(f"--response-max {limit}")
    if goal.response_len is None:
        assumed.append(f"--response-len {mean:.0f}")
    if max(mean, longer) > limit:
        message = f"answers of {max(mean, longer):,.0f} tokens are longer than --response-max {limit:,}"
        raise AdvisorError(message, "make --response-max longer", exit_code=2)
    judge, usual_drop = _judge_of(goal, assumed), _DROPPED if goal.rl == "dapo" else 0.0
    if goal.dropped_groups is None and usual_drop:
        assumed.append(f"--dropped-groups {usual_drop:g}")
    answers = Answers(
        prompts=int(value["prompts_per_step"]), group=int(value["group"]), prompt_len=float(value["prompt_len"]),
        response_len=mean, response_max=limit,
    )  # fmt: skip
    rank = (goal.lora_rank or RANK) if goal.lora or goal.lora_rank else None
    request = RlRequest(
        typed=goal.model, model=find_any_model(goal.model).model, answers=answers, software=software,
        updates=usual_updates(software), algorithm=goal.rl, rank=rank, adapters=rank is not None,
        placement=goal.placement or "any", staleness=goal.staleness, turns=goal.turns or 1,
        tool_seconds=goal.tool_seconds or 0.0,
        reward_seconds=_REWARD_SECONDS if goal.reward_seconds is None else goal.reward_seconds,
        precision="bf16" if goal.precision == "auto" else goal.precision, network=network,
        unsure=UNSURE if goal.response_len is None else 0.0, engine_gpus=goal.rollout_gpus,
        engine_tensor=goal.rollout_tp, memory_share=goal.rollout_memory,
        eight_bits=(goal.rollout_precision or goal.precision) == "fp8", judge=judge,
        reference=goal.reference == "yes" if goal.reference else goal.rl != "dapo",
        trained_share=1.0 - (usual_drop if goal.dropped_groups is None else goal.dropped_groups),
    )  # fmt: skip
    return request, longer, assumed


def usual_updates(software: RlSoftware) -> int:
    """Return the usual number of optimizer steps on the answers of one step."""
    return 1 if software.name == "trl" else UPDATES


def _judge_of(goal: Goal | PredictOptions, assumed: list[str]) -> Judge | None:
    if goal.judge is None:
        for flag, value in (("--judge-len", goal.judge_len), ("--judge-gpus", goal.judge_gpus)):
            if value is not None:
                raise AdvisorError(f"{flag} is of a judge", "say which: --judge Qwen/Qwen3-32B", exit_code=2)
        return None
    try:
        model = find_any_model(goal.judge).model
    except AdvisorError as error:
        raise AdvisorError(error.message.replace("--model", "--judge"), error.hint, exit_code=2) from error
    if goal.judge_len is None:
        assumed.append(f"--judge-len {_JUDGE_LEN:g} (0 for a reward model, which only reads)")
    written = _JUDGE_LEN if goal.judge_len is None else goal.judge_len
    return Judge(model=model, tokens=written, gpus=goal.judge_gpus or 0)


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Steps of RL that the user timed on one number of GPUs; None: the number that is planned."""

    gpus: int | None
    seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class OwnPace:
    """How much longer the user's steps take than predicted, and on how many GPUs that was seen."""

    factor: float
    deviation: float  # log standard deviation of a step at that pace
    gpus: tuple[int | None, ...]


def read_steps(path: Path) -> tuple[MeasuredSteps, ...]:
    """Read a CSV file of timed steps, with a column step_seconds and perhaps gpus. Raises AdvisorError (exit 2)."""

    def timed(row: OptionRow) -> tuple[int | None, float]:
        stated = row.cells.get("step_seconds", "")
        seconds = parse_number(stated) if stated else 0.0
        if row.cells.keys() - {"step_seconds", "gpus"} or not 0 < seconds < math.inf:
            hint = "columns: step_seconds, and gpus if they differ from --gpus"
            raise AdvisorError(f"{stated or ', '.join(row.cells)} is no time of a step of RL", hint, exit_code=2)
        return read_row(row.cells).gpus, seconds

    found: dict[int | None, list[float]] = {}
    for count, seconds in timed_rows(path, timed):
        found.setdefault(count, []).append(seconds)
    return tuple(MeasuredSteps(gpus=count, seconds=tuple(seconds)) for count, seconds in found.items())


def pace_deviation(timed: int) -> float:
    """Return the log standard deviation of later steps around the median of some timed ones."""
    return math.hypot(_OWN_STEP, 0.15 / math.sqrt(timed))


def own_pace(
    request: RlRequest, gpu: str, measured: Sequence[MeasuredSteps], store: Store, planned: int | None = None
) -> OwnPace | None:
    """Return how the user's steps compare with the predicted ones on the same GPUs; None if none can be predicted."""
    logs, seen = [], []
    for one in measured:
        gpus = one.gpus or planned
        ways = request.on(gpu, gpus, request.updates_on([(gpu, gpus)], store)) if gpus else []
        if ways:
            # the first step of a run warms up, so the median counts
            logs.append((math.log(statistics.median(one.seconds) / ways[0].step.step_seconds.value), len(one.seconds)))
            seen.append(one.gpus)
    if not logs:
        return None
    weight = sum(count for _, count in logs)
    middle = sum(value * count for value, count in logs) / weight
    return OwnPace(factor=math.exp(middle), deviation=pace_deviation(weight), gpus=tuple(seen))


def paced(prediction: Prediction, own: OwnPace, gpus: int) -> Prediction:
    """Return a prediction at the user's own pace. On another number of GPUs it is less certain."""
    assert prediction.step_seconds is not None and prediction.tokens_per_second is not None
    value = prediction.step_seconds.value * own.factor
    there = gpus in own.gpus or None in own.gpus
    width = math.exp(Z80 * math.hypot(own.deviation, 0.0 if there else _OTHER_GPUS))
    rate = prediction.tokens_per_second.value / own.factor
    basis = Basis.INTERPOLATED if there else Basis.EXTRAPOLATED
    return replace(
        prediction,
        step_seconds=Estimate(value=value, low=value / width, high=value * width, basis=basis),
        tokens_per_second=Estimate(value=rate, low=rate / width, high=rate * width, basis=basis),
        step_parts={name: part * own.factor for name, part in (prediction.step_parts or {}).items()},
    )


def predict_options(options: PredictOptions, store: Store) -> Predicted:
    """Predict a step of RL on the GPUs that options name, in the best way that they leave open.

    Raises AdvisorError (exit 2) for options that describe none, and (exit 3) if engines or updates have no room.
    """
    allowed = {"rl", "model", "gpu", "gpus", "software", "precision", "network", "lora_rank"}
    allowed |= {*options_of(RolloutOptions)}
    known = options_of(PredictOptions)
    if other := [name for name in known if name not in allowed and getattr(options, name) != known[name].default]:
        raise AdvisorError(f"{known[other[0]].flag} changes nothing of RL post-training", "leave it out", exit_code=2)
    if options.model is None:
        raise AdvisorError("--rl needs a model", "--model Qwen/Qwen3-8B", exit_code=2)
    named = read_gpus(options.gpu)
    gpus = named.count or options.gpus or 1
    if named.key not in load_gpus():
        raise AdvisorError(f"RL is predicted on GPUs, not on {named.key}", "name one: --gpu 8xh100", exit_code=2)
    request, _, assumed = request_of(options, options.network)
    updates = request.updates_on([(named.key, gpus)], store, least_state=0.0)
    ways = request.on(named.key, gpus, updates)
    if not ways:
        message = f"{request.model.name} does not fit on {gpus} x {named.key}, or the GPUs cannot be split so"
        update = updates.get((named.key, gpus - request.judging_gpus))
        if update is not None and update.fits is False:
            needs, has = format_centre(update.device_bytes, format_bytes), format_bytes(update.device_memory_bytes)
            message += f": an update needs about {needs} per GPU, which has {has}"
        options_of_split = "--rollout-gpus, --rollout-tp, --rollout-memory and --judge-gpus"
        hint = f"more GPUs, --lora, or other numbers for {options_of_split}"
        raise AdvisorError(request.lacks(named.key, gpus, updates) or message, hint, exit_code=3)
    changes = () if ways[0].step.fit_probability >= SURE else _would_fit(request, named.key, gpus, store)
    return Predicted(
        **vars(ways[0].prediction), would_fit=changes, made_for=request.software.name, assumed=tuple(assumed),
        sources=("published runs of RL post-training (profiles/rl.yaml)",),
    )  # fmt: skip


def _would_fit(request: RlRequest, gpu: str, gpus: int, store: Store) -> tuple[str, ...]:
    """Return the smallest changes with which the step surely fits."""
    changed = [] if request.rank is not None else [("--lora", replace(request, rank=RANK, adapters=True), gpus)]
    changed += [(f"--gpus {count}", request, count) for count in (2 * gpus, 4 * gpus, 8 * gpus)]
    fitting = (
        words
        for words, one, count in changed
        if (ways := one.on(gpu, count, one.updates_on([(gpu, count)], store))) and ways[0].step.fit_probability >= SURE
    )
    return tuple(itertools.islice(fitting, 2))


def usual_length(limit: float, model: str) -> float:
    """Return the mean length of a model's answers of which only the limit is known."""
    name = model.lower()
    if re.search(_THINKS, name) and not re.search(_NO_THOUGHT, name):
        return min(0.6 * limit, _THINKING_AT * (limit / _LONG) ** 0.5)
    return min(0.25 * limit, _MEAN_AT * (limit / _LIMIT) ** 0.3)
