"""Predicts steps of RL post-training: from options, from rows of a table, and on any number of GPUs."""

from __future__ import annotations

import csv
import itertools
import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.architecture import Layout, Model
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, load_gpus, read_gpus, require_gpu
from advisor.laws.intervals import Z80
from advisor.options import Goal, PredictOptions, options_of
from advisor.planning.models import known_names, mixture_rows, require_architecture
from advisor.planning.rl import RlWay, best_updates, search_rl, training_sizes
from advisor.prediction.generation import Answers, load_rl
from advisor.prediction.judge import Judge
from advisor.prediction.layout_batch import SURE
from advisor.prediction.rl import (
    RlRun,
    RlSoftware,
    predict_rl,
    prediction_of,
    require_rl_software,
    rl_software,
)
from advisor.records import Basis, Estimate, Prediction
from advisor.store.store import Store
from advisor.workflows.goal import RL_SOFTWARE, find_any_model, find_architecture
from advisor.workflows.plan_finetune import RANK, finetune_batch, finetune_software
from advisor.workflows.predict import RL_OPTIONS, Predicted

UPDATES = 4  # optimizer steps on the answers of one step, as in the recipes of verl and NeMo RL
# Mean length where only the limit is stated, by published runs: a quarter of a limit up to 4,096, less of longer ones.
_MEAN_AT, _LIMIT = 1100.0, 4096.0
_THINKING_AT, _LONG = 5000.0, 8192.0  # of models that reason at length before they answer
_THINKS, _NO_THOUGHT = r"r1|qwq|qwen3|think|nemotron|gpt-oss|magistral", r"base|instruct|coder"
STEP_PROMPTS, GROUP, PROMPT_LEN = 128, 8, 200.0
LIMIT_OF_LENGTH = 4.0  # longest answer over the mean one, if nothing is stated
LIMIT = 4096
_OF_WORK = ("response_len", "prompts_per_step", "group_size")  # what the work of a step depends on
_UNSURE = 0.5  # log standard deviation of a step whose work is assumed (benchmarks/rl.py)
_DROPPED = 0.5  # share of the groups that DAPO drops because their answers are all right or all wrong
_REWARD_SECONDS = 1.0  # of rules: 0.8-0.9 s for 5,120 answers (verl)
_JUDGE_LEN = 256.0  # tokens that a judge writes about an answer
_OWN_STEP = 0.06  # log standard deviation of later steps around the first ones, whose answers had another length
_OTHER_GPUS = 0.2  # added on another number of GPUs than those that were timed
_HYBRIDS, _ATTENDING = r"qwen3\.[56]|qwen3-next", 0.25  # one layer in four attends (full_attention_interval)
_FAR = 0.35  # log ratio of parameters beyond which no known model stands in for an unknown one


@dataclass(frozen=True, kw_only=True)
class RlRequest:
    """RL post-training of a model, before its GPUs are chosen."""

    model: str  # as typed
    sizes: Model
    answers: Answers
    software: RlSoftware
    algorithm: str = "grpo"
    rank: int | None = None  # of adapters; None: all weights
    updates: int = UPDATES
    placement: str = "any"  # any | colocated | split
    staleness: float | None = None  # None: one step where GPUs are split
    turns: int = 1
    tool_seconds: float = 0.0
    reward_seconds: float = _REWARD_SECONDS
    precision: str = "bf16"
    network: float | None = None  # bytes per second
    unsure: bool = False  # the length of the answers is assumed
    engine_gpus: int | None = None  # GPUs that only generate; None: the best number
    engine_tensor: int | None = None  # GPUs of one engine; None: the best number
    memory_share: float | None = None  # of a GPU that an engine may fill; None: the software's
    engine_fp8: bool = False  # the engines' weights have 8 bits
    judge: Judge | None = None
    reference: bool = True
    dropped: float = 0.0  # share of the generated groups that are not trained on

    def on(self, gpu: str, gpus: int, updates: Mapping[tuple[str, int], Prediction]) -> list[RlWay]:
        """Return the ways to do a step on these GPUs with these updates, the fastest that surely fits first."""
        found = {count: one for (key, count), one in updates.items() if key == gpu}
        if not found or gpus <= self.judging:
            return []
        base = RlRun(
            model=self.sizes, answers=self.answers, update=next(iter(found.values())),
            gpu=require_gpu(gpu).with_network(self.network), train_gpus=gpus, engine_gpus=gpus, tensor=1,
            software=self.software, updates=self.updates, adapters=self.rank is not None,
            algorithm=self.algorithm, critic=self.algorithm == "ppo", reference=self.reference,
            trained_share=1.0 - self.dropped, reward_seconds=self.reward_seconds, judge=self.judge, turns=self.turns,
            tool_seconds=self.tool_seconds, memory_share=self.memory_share, eight_bits=self.engine_fp8,
            unsure=_UNSURE if self.unsure else 0.0,
        )  # fmt: skip
        return search_rl(
            base, gpus - self.judging, found.get, self.placement, self.staleness, self.engine_gpus, self.engine_tensor
        )  # fmt: skip

    def lacks(self, gpu: str, gpus: int, updates: Mapping[tuple[str, int], Prediction]) -> str:
        """Return why there is no way to do a step on these GPUs, if it is more than the size of the model."""
        if gpus <= self.judging:
            return f"{self.judging} of them judge, and no GPU is left"
        if self.judge is None or not replace(self, judge=None).on(gpu, gpus - self.judging, updates):
            return ""
        where = f"on GPUs of its own (--judge-gpus {self.judging})" if self.judging else "beside the engines, in turn"
        return f"{self.judge.model.name} has no room {where}"

    @property
    def judging(self) -> int:
        """Return the number of GPUs that only judge."""
        return 0 if self.judge is None else self.judge.gpus

    def updates_on(self, machines: Iterable[tuple[str, int]], store: Store) -> dict[tuple[str, int], Prediction]:
        """Return one optimizer step over the answers on each number of GPUs that trainers may get of these machines."""
        sizes = dict.fromkeys(
            (gpu, size)
            for gpu, gpus in machines
            if gpus > self.judging
            for size in training_sizes(gpus - self.judging, self.placement, self.engine_gpus)
        )
        if self.rank is None:
            specs = {gpu: require_gpu(gpu).with_network(self.network) for gpu, _ in sizes}
            return best_updates(
                self.sizes, [(specs[gpu], size) for gpu, size in sizes], self.answers, self.software,
                updates=self.updates, precision=self.precision,
            )  # fmt: skip
        longest = round(self.answers.prompt_len + self.answers.response_max)
        model = find_any_model(self.model).at(longest)
        software = finetune_software("lora", model, self.rank, self.software.training)
        # engines on the same GPUs keep some memory; a little more, since their chance to fit is counted otherwise
        asleep = 1.5 * float(load_rl()["memory"]["engine_asleep_bytes"]["value"])
        found = {
            (gpu, size): finetune_batch(store, gpu, size, model, software, 1, self.network, asleep)[1]
            for gpu, size in sizes
        }
        return {
            (gpu, size): replace(
                one, workload=replace(one.workload, model=self.sizes), device_memory_bytes=require_gpu(gpu).memory_bytes
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
    assumed = []
    said = {"prompts_per_step": STEP_PROMPTS, "group": GROUP, "prompt_len": PROMPT_LEN}
    value = {}
    for name, usual in said.items():
        value[name] = getattr(goal, name) or usual
        if getattr(goal, name) is None:
            assumed.append(f"--{name.replace('_', '-')} {usual:g}")
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
    request = RlRequest(
        model=goal.model, sizes=find_architecture(goal.model).model, answers=answers,
        software=software, updates=_updates(software), algorithm=goal.rl,
        rank=(goal.lora_rank or RANK) if goal.lora or goal.lora_rank else None, placement=goal.placement or "any",
        staleness=goal.staleness, turns=goal.turns or 1, tool_seconds=goal.tool_seconds or 0.0,
        reward_seconds=_REWARD_SECONDS if goal.reward_seconds is None else goal.reward_seconds,
        precision="bf16" if goal.precision == "auto" else goal.precision, network=network,
        unsure=goal.response_len is None, engine_gpus=goal.rollout_gpus, engine_tensor=goal.rollout_tp,
        memory_share=goal.rollout_memory, engine_fp8=(goal.rollout_precision or goal.precision) == "fp8", judge=judge,
        reference=goal.reference == "yes" if goal.reference else goal.rl != "dapo",
        dropped=usual_drop if goal.dropped_groups is None else goal.dropped_groups,
    )  # fmt: skip
    return request, longer, assumed


def _updates(software: RlSoftware) -> int:
    return 1 if software.name == "trl" else UPDATES


def _judge_of(goal: Goal | PredictOptions, assumed: list[str]) -> Judge | None:
    if goal.judge is None:
        for flag, value in (("--judge-len", goal.judge_len), ("--judge-gpus", goal.judge_gpus)):
            if value is not None:
                raise AdvisorError(f"{flag} is of a judge", "say which: --judge Qwen/Qwen3-32B", exit_code=2)
        return None
    try:
        model = find_architecture(goal.judge).model
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
    found: dict[int | None, list[float]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        names = {(name or "").strip() for name in rows.fieldnames or ()}
        if "step_seconds" not in names or names - {"step_seconds", "gpus", "step"}:
            hint = "columns: step_seconds, and gpus if they differ from --gpus"
            raise AdvisorError(f"{path}: no table of timed steps of RL", hint, exit_code=2)
        for row in rows:
            try:
                count = int(row["gpus"]) if row.get("gpus") else None
                found.setdefault(count, []).append(positive_seconds(row["step_seconds"]))
            except ValueError as error:
                raise AdvisorError(
                    f"{path}, line {rows.line_num}: {error}", "numbers of seconds", exit_code=2
                ) from None
    if not found:
        raise AdvisorError(f"{path} has no row", "one row for each step that you timed", exit_code=2)
    return tuple(MeasuredSteps(gpus=count, seconds=tuple(seconds)) for count, seconds in found.items())


def positive_seconds(text: str) -> float:
    """Return a positive number of seconds. Raises ValueError."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(f"{text} is no time of a step")
    return value


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
    allowed = ("rl", "model", "gpu", "gpus", "software", "precision", "network", "lora_rank", *RL_OPTIONS)
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
    updates = request.updates_on([(named.key, gpus)], store)
    ways = request.on(named.key, gpus, updates)
    if not ways:
        message = f"{request.sizes.name} does not fit on {gpus} x {named.key}, or the GPUs cannot be split so"
        message = request.lacks(named.key, gpus, updates) or message
        options_of_split = "--rollout-gpus, --rollout-tp, --rollout-memory and --judge-gpus"
        raise AdvisorError(message, f"more GPUs, --lora, or other numbers for {options_of_split}", exit_code=3)
    changes = () if ways[0].step.fit_probability >= SURE else _would_fit(request, named.key, gpus, store)
    return as_predicted(ways[0], assumed, changes)


def _would_fit(request: RlRequest, gpu: str, gpus: int, store: Store) -> tuple[str, ...]:
    """Return the smallest changes with which the step surely fits."""
    changed = [] if request.rank is not None else [("--lora", replace(request, rank=RANK), gpus)]
    changed += [(f"--gpus {count}", request, count) for count in (2 * gpus, 4 * gpus, 8 * gpus)]
    fitting = (
        words
        for words, one, count in changed
        if (ways := one.on(gpu, count, one.updates_on([(gpu, count)], store))) and ways[0].step.fit_probability >= SURE
    )
    return tuple(itertools.islice(fitting, 2))


@dataclass(frozen=True, kw_only=True)
class RlPredicted:
    """One configuration with its step, and what was assumed."""

    run: RlRun
    way: RlWay
    assumed: tuple[str, ...]


def rl_rows(path: Path, store: Store) -> Iterator[RlPredicted | AdvisorError]:
    """Yield the prediction of each row of a table of RL runs, or why there is none.

    The columns are those of `benchmarks/rl_runs.csv`: model, gpu, n_gpus, prompts_per_step, group_size and so on.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            cells = {name: cell.strip() for name, cell in row.items() if name and cell and cell.strip()}
            try:
                yield predicted_row(cells, store)
            except AdvisorError as error:
                yield error


def predict_rl_rows(path: Path, store: Store) -> Iterator[Predicted | AdvisorError]:
    """Yield each row of a table of RL runs as `predict` answers, or why there is none."""
    for one in rl_rows(path, store):
        yield one if isinstance(one, AdvisorError) else as_predicted(one.way, one.assumed)


def as_predicted(way: RlWay, assumed: Sequence[str], would_fit: tuple[str, ...] = ()) -> Predicted:
    """Return a step of RL as `predict` answers."""
    return Predicted(
        **vars(way.prediction), memory_parts=None, would_fit=would_fit, other_depths=(), data=None,
        made_for=way.run.software.name, closest_run=None, network=None,
        sources=("published runs of RL post-training (profiles/rl.yaml)",), assumed=tuple(assumed), too_long=None,
    )  # fmt: skip


def usual_length(limit: float, model: str) -> float:
    """Return the mean length of a model's answers of which only the limit is known."""
    name = model.lower()
    if re.search(_THINKS, name) and not re.search(_NO_THOUGHT, name):
        return min(0.6 * limit, _THINKING_AT * (limit / _LONG) ** 0.5)
    return min(0.25 * limit, _MEAN_AT * (limit / _LIMIT) ** 0.3)


def is_rl_table(path: Path) -> bool:
    """Return whether a table's columns are those of RL runs."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return {"group_size", "prompts_per_step"} <= set(file.readline().strip().split(","))


def predicted_row(row: Mapping[str, str], store: Store) -> RlPredicted:
    """Return the prediction of one row of such a table. Raises AdvisorError if too little is stated or none fits."""
    assumed: list[str] = []

    def stated(name: str) -> float | None:
        try:
            return float(row[name]) if name in row else None
        except ValueError:
            raise AdvisorError(f"{name}: {row[name]} is no number", "a number of the run", exit_code=2) from None

    def number(name: str, default: float | None) -> float:
        found = stated(name)
        if found is not None:
            return found
        if default is None:
            raise AdvisorError(f"{name} is not stated", "state it in its column", exit_code=2)
        assumed.append(f"{name} {default:g}")
        return default

    sizes = model_of(row.get("model", ""), stated("params_b"), stated("active_params_b"), assumed)
    if "gpu" not in row:
        raise AdvisorError("no gpu is stated", "name it: h100", exit_code=2)
    named = read_gpus(row["gpu"].partition("/")[0])
    spec = require_gpu(named.key)
    software = software_in(row.get("framework", ""), assumed)
    gpus = int(number("n_gpus", None))
    split = "n_train_gpus" in row or "n_rollout_gpus" in row or row.get("mode", "").startswith(("split", "async"))
    train = int(stated("n_train_gpus") or 0) or (gpus // 2 if split and gpus > 1 else gpus)
    engines = int(stated("n_rollout_gpus") or 0) or (gpus - train if split and gpus > train else gpus)
    mode = row.get("mode", "colocated")
    stale = re.search(r"async-([\d.]+)", mode)
    staleness = float(stale[1]) if stale else 2.0 if "async" in mode else 0.0
    degrees = {name: int(value) for name, value in re.findall(r"\b(TP|PP|CP|EP)(\d+)", row.get("layout_train", ""))}
    prompt = number("prompt_len_mean", PROMPT_LEN)
    cap = stated("response_len_max")
    if cap is None and "response_len_mean" not in row:
        cap = number("response_len_max", software.response_max)
    mean = number("response_len_mean", None if cap is None else usual_length(cap, row.get("model", "")))
    limit = max(mean, (cap or 4 * mean) - (prompt if software.name == "nemo-rl" else 0.0))
    answers = Answers(
        prompts=int(number("prompts_per_step", software.prompts)), group=int(number("group_size", software.group)),
        prompt_len=prompt, response_len=mean, response_max=round(limit),
    )  # fmt: skip
    eight_bits = [row.get(name, "") in ("fp8", "mxfp8") for name in ("precision_train", "precision_rollout")]
    eager = software.graphs_since is None or row.get("date", "9") < software.graphs_since
    request = RlRequest(
        model=sizes.name, sizes=sizes, answers=answers, software=software, updates=_updates(software),
        rank=RANK if row.get("method") == "lora" else None, precision="fp8" if eight_bits[0] else "bf16",
        algorithm=next((one for one in ("dapo", "ppo") if one in row.get("algorithm", "").lower()), "grpo"),
    )  # fmt: skip
    update = _update_of_row(request, spec, train, degrees, store)
    if update is None:
        raise AdvisorError(f"the speed of {named.key} for {sizes.name} is unknown", "name another GPU", exit_code=2)
    of_engine = re.findall(r"TP(\d+)", row.get("layout_rollout", ""))
    usual = min(software.tensor, engines)
    tensors = [int(of_engine[0])] if of_engine else [2**n for n in range(8) if engines % 2**n == 0 and 2**n >= usual]
    for tensor in tensors:
        run = RlRun(
            model=sizes, answers=answers, update=update, gpu=spec, train_gpus=train, engine_gpus=engines,
            tensor=min(tensor, engines), software=software, colocated=not split, staleness=staleness,
            updates=request.updates, adapters=request.rank is not None, algorithm=request.algorithm,
            critic=request.algorithm == "ppo", reference=request.algorithm != "dapo", eight_bits=any(eight_bits),
            eager=eager or row.get("rollout_engine", "").lower().startswith("hf"),
            unsure=_UNSURE if any(one.startswith(_OF_WORK) for one in assumed) else 0.0,
        )  # fmt: skip
        step = predict_rl(run)
        if step is not None and step.generation.at_once >= min(8.0, answers.count * tensor / engines):
            return RlPredicted(
                run=run, way=RlWay(run=run, step=step, prediction=prediction_of(run, step)), assumed=tuple(assumed)
            )
    message = f"engines have no room for {sizes.name} on {engines} x {named.key}"
    raise AdvisorError(message, "more GPUs, or a larger share of their memory", exit_code=3)


def _update_of_row(
    request: RlRequest, spec: GpuSpec, gpus: int, degrees: Mapping[str, int], store: Store
) -> Prediction | None:
    """Return an optimizer step in the layout that a row states, or else in the best."""
    pieces = [degrees.get(name, 1) for name in ("TP", "PP", "CP")]
    cut = pieces[0] * pieces[1] * pieces[2]
    if not degrees or gpus % cut or request.rank is not None:
        return replace(request, placement="colocated").updates_on([(spec.key, gpus)], store).get((spec.key, gpus))
    layout = Layout(
        tensor=pieces[0], sequence=pieces[0] > 1, pipeline=pieces[1], context=pieces[2], expert=degrees.get("EP", 1),
        data=gpus // cut, sharding="optimizer",
    )  # fmt: skip
    return best_updates(
        request.sizes, [(spec, gpus)], request.answers, request.software, updates=request.updates,
        precision=request.precision, layout=layout,
    ).get((spec.key, gpus))  # fmt: skip


def software_in(text: str, assumed: list[str]) -> RlSoftware:
    """Return the program that free words name, else the usual one."""
    letters = re.sub(r"[^a-z]", "", text.lower())
    for name in sorted(rl_software(), key=len, reverse=True):
        if name.replace("-", "") in letters:
            return require_rl_software(name)
    assumed.append(f"software {RL_SOFTWARE}")
    return require_rl_software(RL_SOFTWARE)


def model_of(name: str, params_b: float | None, active_b: float | None, assumed: list[str]) -> Model:
    """Return the sizes of a named model, or those of the known model of nearest size.

    Raises AdvisorError (exit 2) if neither name nor size is known.
    """
    plain = re.sub(r"-(instruct|base|math|chat|it|vl)\b", "", name.split(" ")[0].lower())
    plain = plain.replace("deepseek-r1-distill-qwen-", "qwen2.5-").replace("deepseek-r1-distill-llama-", "llama-3.1-")
    for one in (name, name.split(" ")[0], plain, plain.replace("qwen2-", "qwen2.5-")):
        try:
            found = find_architecture(one).model
        except AdvisorError:
            continue
        if params_b is None or abs(found.parameters / (params_b * 1e9) - 1) < 0.5:
            if "-vl" in name.lower() and "-vl" not in one.lower():
                assumed.append(f"{found.name} for {name}, without images and their encoder")
            return found
    if params_b is None:
        raise AdvisorError(f"--model {name or '?'}: unknown", "state its size, or a config.json", exit_code=2)
    wanted, active = params_b * 1e9, (active_b or params_b) * 1e9
    names = list(mixture_rows()) if active < 0.8 * wanted else known_names()
    nearest, far = None, _FAR
    for one in names:
        try:
            model = require_architecture(one).model
        except AdvisorError:
            continue
        off = max(wanted / model.parameters, model.parameters / wanted)
        if off - 1 < far and model.gated:
            nearest, far = model, off - 1
    if nearest is None:
        raise AdvisorError(f"--model {name}: unknown, and no known model has its size", "a config.json", exit_code=2)
    assumed.append(f"{nearest.name}, which is nearest in size, for {name or 'the model'}: its config.json says more")
    return replace(nearest, attending=_ATTENDING if re.search(_HYBRIDS, plain) else nearest.attending)
