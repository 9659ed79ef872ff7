"""Step time, its parts and memory of RL post-training: GRPO, DAPO and PPO of a language model.

One step generates answers (`generation`), judges them, computes their log-probabilities, updates the policy, and gives
the new weights to the engines. The update is the step of the training law that every plan uses (`layout_batch`) over
prompts and answers; a pass of log-probabilities is its forward part. On the same GPUs the parts add up. On GPUs of
their own, engines generate the next step's answers while the trainer learns from the last ones:

    colocated              generation + reward + log-probabilities + update + sync + rest
    split, synchronous     the same, each part on its own GPUs
    split, one step off    max(generation + reward, log-probabilities + update) + sync + rest
    split, further off     as above, but engines never wait for the longest answer
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from advisor.architecture import Layout, Model, Rollouts
from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, read_link
from advisor.laws.intervals import Z80
from advisor.prediction.generation import Answers, Constants, Engines, Generation, generate, load_rl, rl_constants, room
from advisor.prediction.intervals import reciprocal
from advisor.prediction.judge import Judge, judge_seconds
from advisor.prediction.layout_batch import SURE
from advisor.prediction.layout_time import LayoutLaw, load_law
from advisor.prediction.layouts import LayoutRun
from advisor.prediction.profile import FIT_MARGIN
from advisor.records import Basis, Estimate, Prediction

PARTS = ("generation", "reward", "log_probs", "update", "sync", "rest")
_OF_WORK = ("generation", "log_probs", "update")  # parts that take as long as the answers are long
_WORK = {"none": 3.0, "selective": 3.5, "full": 4.0}  # forward passes' worth of work in an update
SPLIT_BY = "nemo"  # the software that trains models which are split over GPUs, in all of these programs
ONE_OFF = 1.0  # steps that the trainer is behind so that generation and training overlap wholly
_FIRST = 0.3  # of a batch; streaming as much brings nearly all of that (verl, fully_async: 231, 171, 146, 151 s)
_TRAY = 4  # GPUs of a machine in racks that one NVLink spans (NVL72)
LEAST_BIN = 8192  # tokens of a packed micro-batch, if there is room


@dataclass(frozen=True, kw_only=True)
class RlSoftware:
    """A program for RL post-training: an entry of `software` in profiles/rl.yaml."""

    name: str
    training: str  # name in profiles/software.csv of the software whose training it uses
    recompute: str  # one of `layouts.RECOMPUTE`, if it fits
    packed: bool  # answers fill a micro-batch without padding
    splits: bool  # it can generate on GPUs of their own
    overlaps: bool  # and train at the same time
    streams: float  # share of the wait for the longest answer of a step that engines then spend on other answers
    tensor: int  # GPUs of one engine unless told otherwise
    graphs_since: str | None  # date from which its engines use CUDA graphs unless told otherwise; None: they do not
    prompts: int  # of a step in its examples
    group: int
    response_max: int
    memory_share: float  # of a GPU's memory that an engine may fill while it shares the GPU
    sends: str  # weights to engines on other GPUs: node by node ("sharded"), or from one GPU to all ("broadcast")
    source: str


@cache
def rl_software() -> Mapping[str, RlSoftware]:
    """Return the programs of profiles/rl.yaml by name."""
    return {name: RlSoftware(name=name, **entry) for name, entry in load_rl()["software"].items()}


def require_rl_software(name: str) -> RlSoftware:
    """Return the program of this name. Raises AdvisorError (exit 2) if it is none for RL."""
    known = rl_software()
    if name in known:
        return known[name]
    close = close_matches(name, known)
    hint = f"Did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    raise AdvisorError(f"--software {name}: no program for RL post-training of that name", hint, exit_code=2)


@dataclass(frozen=True, kw_only=True)
class RlWork:
    """What a step of RL post-training does, on whatever GPUs."""

    model: Model
    answers: Answers
    software: RlSoftware
    algorithm: str = "grpo"  # or dapo, ppo
    updates: int = 1  # optimizer steps on the answers of one step
    adapters: bool = False  # LoRA: little to optimize, to store and to send
    reference: bool = True  # a frozen copy of the model gives log-probabilities for a KL term
    memory_share: float | None = None  # of a GPU for an engine; None: as the software does
    eight_bits: bool = False  # the engines' weights
    trained_share: float = 1.0  # of the generated answers; DAPO drops groups without a difference
    reward_seconds: float = 1.0  # of judging all answers by rules; more for tests in a sandbox
    judge: Judge | None = None  # a model that judges the answers besides
    unsure: float = 0.0  # log standard deviation of the work, where its lengths or batch are assumed
    turns: int = 1  # of an agent with tools
    tool_seconds: float = 0.0  # the slowest tool call of a turn, which all wait for

    @property
    def critic(self) -> bool:
        """Return True if a second model of the same size learns values."""
        return self.algorithm == "ppo"

    @property
    def judging_gpus(self) -> int:
        """Return the number of GPUs that only judge."""
        return 0 if self.judge is None else self.judge.gpus


@dataclass(frozen=True, kw_only=True)
class RlRun(RlWork):
    """One configuration of RL post-training."""

    update: Prediction  # one optimizer step of the trainer
    gpu: GpuSpec
    train_gpus: int
    engine_gpus: int  # that generate; equal to the trainer's if both share them
    tensor: int  # GPUs of one engine
    colocated: bool = True
    staleness: float = 0.0  # steps that the answers may be older than the weights
    eager: bool | None = None  # engines run without CUDA graphs; None: as the software does

    @property
    def overlaps(self) -> bool:
        """Return True if engines generate while the trainer learns."""
        return not self.colocated and self.staleness > 0

    @property
    def streams(self) -> float:
        """Return the share of the wait for the longest answer of a step that engines spend on other answers."""
        return 0.0 if self.staleness == 0 else self.software.streams if self.staleness == ONE_OFF else 1.0

    @property
    def gpus(self) -> int:
        return self.train_gpus + (0 if self.colocated else self.engine_gpus) + self.judging_gpus

    @property
    def engines(self) -> Engines:
        share = self.memory_share or (
            self.software.memory_share if self.colocated else load_rl()["split_share"]["value"]
        )
        eager = self.software.graphs_since is None if self.eager is None else self.eager
        link = read_link(self.gpu.interconnect)
        node = _TRAY if link is not None and link.gpus > GPUS_PER_NODE else GPUS_PER_NODE
        return Engines(
            gpu=self.gpu, copies=self.engine_gpus // self.tensor, tensor=self.tensor, memory_share=share,
            bytes_per_weight=1.0 if self.eight_bits else 2.0, eager=eager, node_gpus=node,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RlStep:
    """The predicted step of a configuration of RL post-training."""

    step_seconds: Estimate
    parts: Mapping[str, Estimate]  # by PARTS, in seconds; with two groups of GPUs they overlap
    generation: Generation
    tokens_per_second: Estimate  # prompt and answer tokens that are trained on, of all GPUs
    bytes: Mapping[str, float]  # that the fullest GPU must provide while it generates, updates and changes over
    device_bytes: Estimate  # at the fullest moment
    fit_probability: float
    offloaded: bool  # the trainer's weights and optimizer go to the host's memory while engines generate
    judge_tensor: int  # GPUs of one engine of the judge


def predict_rl(run: RlRun, constants: Constants | None = None) -> RlStep | None:
    """Return the predicted step; None if the engines have no room for an answer, or the judge for its weights."""
    c = constants or rl_constants()
    made = replace(run.answers, prompts=max(1, round(run.answers.prompts / run.trained_share)))
    # an agent's turns come one after the other; each reads what the tools said
    longest = max(1, made.response_max // run.turns)
    each = replace(made, response_len=made.response_len / run.turns, response_max=longest)
    in_flight = 1.0 + math.ceil(run.staleness)
    turn = generate(run.model, each, run.engines, in_flight, c)
    if turn is None:
        return None
    generated = turn.seconds * run.turns + run.tool_seconds * (run.turns - 1)
    steady = turn.steady_seconds * run.turns + run.tool_seconds * (run.turns - 1) / in_flight
    generated += run.streams * min(0.0, steady - generated)
    offload = c.linked_offload_bytes_per_second if _on_arm(run.gpu) else c.offload_bytes_per_second
    judging = 0.0, 1
    if run.judge is not None:
        took = judge_seconds(run.judge, made, run.engines, load_rl()["split_share"]["value"], offload, generated,
                             waited_for=not run.streams)  # fmt: skip
        if took is None:
            return None
        judging = took
    log_probs, update = _training_seconds(run, c)
    held, moved = _memory(run)
    device_bytes, chance = _fullest(run, held)
    seconds = {
        "generation": generated,
        "reward": run.reward_seconds + judging[0],
        "log_probs": log_probs,
        "update": update,
        "sync": _sync_seconds(run, c),
        "rest": (c.rest_seconds if run.colocated else c.split_rest_seconds) + moved * 2 / offload,
    }
    spread = {name: float(entry["value"]) for name, entry in load_rl()["deviation"].items()}
    of_part = {name: spread.get(name, spread["rest"]) for name in seconds}
    # Where engines and trainer have their own GPUs, the parts of the longer side set the step.
    sides = (("log_probs", "update"), ("generation", "reward"))
    shorter, longer = sorted(sides, key=lambda side: sum(seconds[name] for name in side))
    hidden = 0.0
    if run.overlaps:
        hidden = min(1.0, run.staleness / (_FIRST if run.streams and run.staleness < ONE_OFF else ONE_OFF))
    total = sum(seconds.values()) - hidden * sum(seconds[name] for name in shorter)
    counted = (*longer, *(() if hidden == 1 else shorter), "sync", "rest")
    each_part = math.sqrt(sum((seconds[name] * of_part[name]) ** 2 for name in counted)) / total
    step = _estimate(total, math.hypot(each_part, spread["step"], run.unsure))
    tokens = run.answers.tokens
    return RlStep(
        step_seconds=step,
        parts={
            name: _estimate(took, math.hypot(of_part[name], run.unsure if name in _OF_WORK else 0.0))
            for name, took in seconds.items()
        },
        generation=turn,
        tokens_per_second=reciprocal(step, tokens),
        bytes=held,
        device_bytes=device_bytes,
        fit_probability=chance,
        offloaded=run.colocated and moved > 0,
        judge_tensor=judging[1],
    )


def _training_seconds(run: RlRun, c: Constants) -> tuple[float, float]:
    """Return the seconds of all log-probabilities and of all updates of a step."""
    one, work = run.update, run.update.workload
    assert one.step_seconds is not None  # whoever makes an RlRun knows the speed of its updates
    # The packed bins of the update hold its tokens; other software pads each answer to the longest of its batch.
    padded = 1.0 if run.software.packed else _padding(run.answers)
    steps = run.answers.tokens * padded / work.step_tokens
    update = one.step_seconds.value * steps * c.update_factor
    parts, passes_of_update = one.step_parts or {}, _WORK[work.activation_checkpointing]
    once = parts.get("optimizer", 0.0) + parts.get("data", 0.0)
    forward = (one.step_seconds.value - once) * steps * c.forward_factor / passes_of_update
    # Launches that are not hidden behind the arithmetic: of short answers in small models, and of experts.
    data, pipeline = (work.layout.data, work.layout.pipeline) if work.layout else (work.gpus, 1)
    of_answers = c.answer_train_seconds * run.answers.count / data
    of_experts = 0.0
    if run.model.experts is not None:
        micro_batches = work.grad_accum * steps + (pipeline - 1) * run.updates
        slower = c.arm_launch_factor if _on_arm(run.gpu) else 1.0
        of_experts = c.expert_layer_seconds * slower * run.model.layers / pipeline * micro_batches
    # If engines never wait for it, the trainer takes their log-probabilities instead of its own.
    passes = run.reference + run.critic + (run.streams < 1)
    update = math.hypot(update, of_answers, of_experts * passes_of_update) * (2 if run.critic else 1)
    return passes * math.hypot(forward, of_answers / 3, of_experts), update


def _sync_seconds(run: RlRun, c: Constants) -> float:
    """Return the seconds in which the engines get the new weights."""
    if run.adapters:
        return c.adapter_sync_seconds
    weights = 2.0 * run.model.parameters
    if run.colocated or run.software.sends == "sharded":
        # Between one place that all weights pass and GPUs that each take their part of them.
        return c.sync_seconds + weights / math.sqrt(run.tensor) / c.sync_bytes_per_second
    return c.sync_seconds + weights / c.broadcast_bytes_per_second


def _on_arm(gpu: GpuSpec) -> bool:
    """Return True if the GPU has a link to a Grace processor."""
    return "c2c" in gpu.interconnect


@cache
def rl_whole() -> LayoutLaw:
    """Return the law of whole runs for RL: its steps are measured among evaluations and slow machines already."""
    raw = load_rl()["whole"]
    beyond, deviation = float(raw["beyond_steps"]["value"]), float(raw["deviation"]["value"])
    return replace(load_law(), whole=math.log(beyond), whole_deviation=deviation)


def _estimate(value: float, deviation: float) -> Estimate:
    width = math.exp(Z80 * deviation)
    return Estimate(value=value, low=value / width, high=value * width, basis=Basis.PRIOR)


def _padding(answers: Answers) -> float:
    """Return the tokens of padded micro-batches over those in them: of a few answers, the longest counts for all."""
    longest = min(float(answers.response_max), 1.6 * answers.response_len)
    return (answers.prompt_len + longest) / (answers.prompt_len + answers.response_len)


def _memory(run: RlRun) -> tuple[dict[str, float], float]:
    """Return the bytes of a GPU at three moments, and those of the trainer that leave it while engines generate."""
    raw = load_rl()["memory"]
    asleep = float(raw["engine_asleep_bytes"]["value"])
    parts = run.update.peak_parts or {}
    state = parts.get("state", 0.0)
    engine, whole = run.engines, run.engines.memory_share * run.gpu.memory_bytes
    assert run.update.device_bytes is not None
    peak = run.update.device_bytes.value  # the reference model waits in the host's memory, as in verl and NeMo RL
    if not run.colocated:
        return {"generate": whole, "update": peak, "switch": peak}, 0.0
    moved = state if whole + state > FIT_MARGIN * run.gpu.memory_bytes else 0.0
    # the engine wakes with its weights while the trainer still has its own
    change = engine.bytes_per_weight * run.model.parameters / engine.tensor + state - moved
    return {"generate": whole + state - moved, "update": peak + asleep, "switch": change + asleep}, moved


def _fullest(run: RlRun, at_moments: Mapping[str, float]) -> tuple[Estimate, float]:
    """Return the bytes of the fullest moment, and the probability that a GPU holds them."""
    update, limit = run.update.device_bytes, FIT_MARGIN * run.gpu.memory_bytes
    assert update is not None
    # an engine fills the share that it is given; only the other moments are uncertain
    filled, other = at_moments["generate"], max(at_moments["update"], at_moments["switch"])
    spread = max(update.high / update.value, 1.02)
    low, value, high = (max(filled, end) for end in (other * update.low / update.value, other, other * spread))
    needed = Estimate(value=value, low=low, high=high, basis=update.basis)
    if filled > limit or room(run.model, run.engines) <= 0:
        return needed, 0.0
    return needed, 0.5 * (1 + math.erf(math.log(limit / other) / math.log(spread) * Z80 / math.sqrt(2)))


def update_runs(
    model: Model, gpu: GpuSpec, answers: Answers, software: RlSoftware, layouts: Sequence[Layout], *,
    updates: int = 1, precision: str = "bf16", recompute: str | None = None, least_bin: int = LEAST_BIN,
) -> list[LayoutRun]:  # fmt: skip
    """Return one optimizer step over the answers as a training run, for each layout.

    A micro-batch holds `least_bin` tokens, or as many as the longest answer needs; attention sees the answers of
    typical length in it. Models that are split over GPUs are trained by Megatron.
    """
    longest = max(answers.prompt_len + answers.response_max, least_bin if software.packed else 0)
    spread = rl_constants().spread
    typical = min(answers.prompt_len + answers.response_len * (1 + spread**2), longest)
    together = max(1, round(longest / typical))
    runs = []
    for layout in layouts:
        bins = answers.tokens / updates / (layout.data * typical * together)
        runs.append(LayoutRun(
            model=model, gpu=gpu, layout=layout, node_gpus=min(GPUS_PER_NODE, layout.gpus),
            seq_len=max(1, round(typical)), micro_batch=together, micro_batches=max(1, round(bins)),
            precision=precision, recompute=recompute or software.recompute,
            software=software.training if layout.data == layout.gpus and model.experts is None else SPLIT_BY,
        ))  # fmt: skip
    return runs


def prediction_of(run: RlRun, step: RlStep) -> Prediction:
    """Return a step of RL as any other prediction: its workload is that of an update, with the answers beside it."""
    a, judge = run.answers, run.judge
    rollouts = Rollouts(
        algorithm=run.algorithm, prompts=a.prompts, group=a.group, prompt_len=a.prompt_len, response_len=a.response_len,
        response_max=a.response_max, engine_gpus=run.engine_gpus,
        engine_tensor=run.tensor, colocated=run.colocated, staleness=run.staleness, updates=run.updates,
        memory_share=run.engines.memory_share, offloaded=step.offloaded, engine_fp8=run.eight_bits,
        reference=run.reference, trained_share=run.trained_share, judge=None if judge is None else judge.model.name,
        judge_len=0.0 if judge is None else judge.tokens, judge_gpus=0 if judge is None else judge.gpus,
        judge_tensor=step.judge_tensor,
    )  # fmt: skip
    held = dict(step.bytes)
    if judge is not None:
        held["the judge's weights"] = 2.0 * judge.model.parameters / step.judge_tensor
    return replace(
        run.update,
        workload=replace(run.update.workload, rollouts=rollouts),
        step_seconds=step.step_seconds,
        tokens_per_second=step.tokens_per_second,
        mfu=None,
        peak_allocated_bytes=step.device_bytes,
        peak_reserved_bytes=None,
        device_bytes=step.device_bytes,
        peak_parts=held,
        fit_probability=step.fit_probability,
        fits=True if step.fit_probability >= SURE else False if step.fit_probability <= 1 - SURE else None,
        step_parts={name: part.value for name, part in step.parts.items()},
    )
