"""The frozen records that all rooms share. Names contain the unit; None means unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from advisor.architecture import Layout, Model, Rollouts
from advisor.errors import AdvisorError
from advisor.offer import Offer
from advisor.options import Goal
from trainer.schema import ModelShape, RunConfig


class Basis(StrEnum):
    """The origin of a number, best first."""

    MEASURED = "measured"  # this configuration ran on this device
    INTERPOLATED = "interpolated"  # inside the calibrated range
    EXTRAPOLATED = "extrapolated"  # outside the calibrated range
    PRIOR = "prior"  # no calibration: from data sheets and published runs only


_WORST_LAST = list(Basis)


def worst_basis(*bases: Basis) -> Basis:
    """Return the weakest of several bases, which is the basis of a sum."""
    return max(bases, key=_WORST_LAST.index)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted number with its 80 % interval and its basis. The name of the field gives the unit."""

    value: float
    low: float
    high: float
    basis: Basis

    def scaled(self, factor: float) -> Estimate:
        """Multiply the estimate by an exact factor; a negative factor swaps the ends."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(value=self.value * factor, low=low, high=high, basis=self.basis)

    def contains(self, actual: float) -> bool:
        return self.low <= actual <= self.high


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """LoRA adapters: two thin, trained matrices for each frozen matrix (Hu et al. 2021)."""

    rank: int
    targets: str = "all"  # matrices of a block that have an adapter: all | attention
    quantized: bool = False  # the frozen block matrices have 4 bits (QLoRA, Dettmers et al. 2023)


@dataclass(frozen=True, kw_only=True)
class Software:
    """How the software of a published run differs from this project's trainer in memory or time."""

    name: str | None = None  # in profiles/software.csv; None: unknown software
    kind: str = "plain"  # type of training loop: c | fused | wrapper | megatron | tuned | plain
    fused_kernels: bool = False  # norms, rotary positions, activations or the loss in kernels written by hand
    tf32: bool = True  # fp32 products use TF32 units if the GPU has any
    fp8: bool = False  # products of the blocks in 8-bit floats
    unstated: bool = False  # most of precision, compilation, attention and recomputation is not stated
    state: str = "fp32"  # fp32: weights and moments | copied: 16-bit weights, fp32 master copies | 16bit: everything
    state_chance: float = 1.0  # probability of `state` if it is not stated
    moment_bytes: float | None = None  # optimizer state per weight, for optimizers that keep little state
    steps_in_backward: bool = False  # each gradient is applied and freed during the backward pass
    whole_logits: bool | None = True  # the loss keeps the logits of all tokens at once; None: unknown
    fused_attention: bool = True
    attended_tokens: float | None = None  # tokens that a query attends to, mean over layers; None: all earlier ones
    extra_parameters: int = 0  # parameters beyond the shape, for an untied head; negative for a tied head
    expert_parameters: int = 0  # expert weights beyond those that a token uses, which are in the shape
    looped_experts: int = 0  # experts of all layers that run one after the other
    adapters: Adapters | None = None  # None: the weights themselves are trained
    frozen_blocks: int = 0  # number of frozen first blocks; the embeddings are then frozen too


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training configuration on one type of device, for which step time and memory are predicted."""

    shape: ModelShape
    micro_batch: int  # sequences per device per forward pass
    grad_accum: int = 1
    gpu: str  # catalog key, or "cpu"
    gpus: int = 1
    precision: str = "bf16"  # bf16 | fp16 | fp32, resolved: never "auto"
    compile: bool = False
    activation_checkpointing: str = "none"  # none | full; published runs also: selective (recomputes some operations)
    optimizer: str = "adamw"  # adamw | muon
    sharding: str = "none"  # none | optimizer (ZeRO-1) | gradients (ZeRO-2) | full (ZeRO-3, FSDP)
    software: Software | None = None  # None: this project's trainer
    model: Model | None = None  # exact sizes of a published model; None: `shape` has them
    layout: Layout | None = None  # None: only the batch is divided
    rollouts: Rollouts | None = None  # of RL post-training; the fields above are those of its updates

    @property
    def micro_tokens(self) -> int:
        """Return the tokens of one micro-batch on one device."""
        return self.micro_batch * self.shape.seq_len

    @property
    def step_tokens(self) -> int:
        """Return the tokens of one optimizer step on all devices (the global batch)."""
        return self.micro_tokens * self.grad_accum * (self.gpus if self.layout is None else self.layout.data)


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """The measured step time of one configuration, from the bursts of a calibration or from a whole run."""

    workload: Workload
    step_seconds: float  # median
    noise: float = 0.02  # standard deviation of its log; the default is typical for the steady steps of a run
    steps: int = 0  # number of timed steps
    reference_seconds: float | None = None  # time of the reference kernel during the run; None: not timed
    watts: float | None = None  # mean of one device; None: not measured
    run_id: str = ""  # empty for a calibration
    created: str = ""  # ISO 8601, UTC
    own: bool = True  # from this project's trainer; only such measurements enter a calibration

    @property
    def source(self) -> str:
        """Return the name of this measurement among the sources of a profile."""
        return f"run {self.run_id}"


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Implementation choices of a run that do not change its results. `advisor calibrate --settings` measures them."""

    tf32: bool = True
    attention: str = "auto"
    loss_chunk_tokens: int | None = None
    fused: bool = True  # AdamW

    def set_in(self, config: RunConfig) -> RunConfig:
        """Return a configuration with these choices."""
        return replace(
            config,
            tf32=self.tf32,
            attention=self.attention,
            loss_chunk_tokens=self.loss_chunk_tokens,
            optimizer=replace(config.optimizer, fused=self.fused),
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction for one workload. A field is None if the estimate is not possible."""

    workload: Workload
    parameters: int
    flops_per_token: float
    step_seconds: Estimate | None
    tokens_per_second: Estimate | None
    mfu: Estimate | None
    peak_allocated_bytes: Estimate | None  # of the framework's allocator, per device
    peak_reserved_bytes: Estimate | None  # of the allocator with free blocks (CPU: resident set)
    device_bytes: Estimate | None = None  # memory that the device must provide
    device_memory_bytes: int | None
    fit_probability: float | None  # probability that `device_bytes` fits; None if unknown
    fits: bool | None  # True or False with a probability of at least 0.9; None: unsure or unknown
    step_parts: Mapping[str, float] | None = None  # seconds; None: only known in total
    peak_parts: Mapping[str, float] | None = None  # bytes of `peak_allocated_bytes`; None: only known in total

    @property
    def plannable(self) -> bool:
        """Tell whether a plan may use this configuration: it surely fits, or the device's memory is unknown."""
        return self.fits is True or self.fit_probability is None


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """The time of one run, divided into parts, in seconds. `total_seconds` is the sum.

    A part that is None does not happen, or is known only as a part of the steps.
    """

    startup_seconds: Estimate | None = None
    compile_seconds: Estimate | None = None
    steps_seconds: Estimate
    evals_seconds: Estimate | None = None
    checkpoints_seconds: Estimate | None = None
    total_seconds: Estimate
    interruptions_seconds: Estimate | None = None  # restarts and lost work after failures and spot interruptions
    provisioning_seconds: Estimate | None = None  # from the order of a rented machine until it answers
    download_seconds: Estimate | None = None  # software and data onto a rented machine
    write_seconds: Estimate | None = None  # one checkpoint until it is on disk, even if the run does not wait for it


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Time, cost and energy of a run, from the order of its machine to its last checkpoint."""

    wall_clock: WallClock
    cost_usd: Estimate | None
    power_watts: Estimate | None = None  # of all devices together during training
    energy_kwh: Estimate | None = None
    carbon_kg: Estimate | None = None  # CO2 equivalent for the whole site, at `grid_grams_per_kwh`
    grid_grams_per_kwh: float | None = None
    storage_usd: Estimate | None = None  # storage of checkpoints during the run; included in `cost_usd`
    checkpoint_bytes: int | None = None  # of one checkpoint
    disk_bytes: int | None = None  # of all checkpoints on disk at once
    failures: float | None = None  # expected number of failures or interruptions; None: not counted


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """The data behind the estimated speed of a device."""

    calibration: str | None  # its id; with a calibration, published runs hardly matter
    generation: str | None  # of the GPU (`GpuSpec.generation`); None for a CPU
    card_runs: int  # published runs on this GPU type
    generation_runs: int  # published runs on its generation, including this GPU type
    all_runs: int
    own_runs: int = 0  # runs that the user timed, which correct the speed
    own_slowdown: float | None = None  # their usual step time over the one of published runs; None: no own runs

    @property
    def other_runs(self) -> int:
        """Return the number of published runs on other generations."""
        return self.all_runs - self.generation_runs


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How well a run meets the goal, and why it was chosen or rejected."""

    score: float | None  # the search minimises it; None: the work is settled, and only time and money differ
    ratio: float  # tokens per counted parameter
    epochs: float | None = None  # passes over the data; None: unlimited data
    loss: Estimate | None = None  # validation loss at the end, nats per token; None outside the range of the laws
    loss_shift: float = 0.0  # log of `loss` relative to the law's loss, from the user's own runs on this data
    bits_per_byte: Estimate | None = None  # computed from `loss` and the measured bytes per token of the tokenizer
    against: tuple[str, ...] = ()  # limits that it violates, named as in `plan.evaluate.Violation`
    name: str = ""  # conservative | balanced (the plan) | aggressive
    why: str = ""  # its advantage, or the reason why it was rejected


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a search: its prediction, machine, cost, and standing."""

    prediction: Prediction  # of the workload: model, batch and GPUs
    steps: int
    tokens: int  # of all steps
    offer: Offer
    bill: Bill
    standing: Standing
    grounds: Grounds | None = None  # data behind the predicted speed
    longest_context: int | None = None  # tokens of one sequence that surely fit; None: not searched

    @property
    def workload(self) -> Workload:
        return self.prediction.workload

    @property
    def depth(self) -> int:
        return self.workload.shape.depth

    @property
    def parameters(self) -> int:
        return self.prediction.parameters

    @property
    def step_seconds(self) -> Estimate:
        assert self.prediction.step_seconds is not None  # a search has no runs without a step time
        return self.prediction.step_seconds

    @property
    def tokens_per_second(self) -> Estimate:
        assert self.prediction.tokens_per_second is not None
        return self.prediction.tokens_per_second

    @property
    def total_seconds(self) -> Estimate:
        return self.bill.wall_clock.total_seconds

    @property
    def cost_usd(self) -> Estimate | None:
        return self.bill.cost_usd

    @property
    def loss(self) -> Estimate | None:
        return self.standing.loss

    @property
    def score(self) -> float:
        assert self.standing.score is not None  # runs that differ in quality have one
        return self.standing.score

    @property
    def headroom_bytes(self) -> float | None:
        """Return the expected free memory of a GPU. Returns None if unknown."""
        held, whole = self.prediction.device_bytes, self.prediction.device_memory_bytes
        return None if held is None or whole is None else whole - held.value

    def judged(self, **changes: Any) -> Run:
        """Return the run with these changes to its standing."""
        return replace(self, standing=replace(self.standing, **changes))


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The chosen run on another number of GPUs, with the same model, tokens and, if possible, global batch."""

    gpus: int
    tokens_per_second: float
    total_seconds: float
    cost_usd: float | None
    efficiency: float  # tokens per second per GPU, relative to the fewest GPUs
    provider: str | None = None  # None: the user's machine, or a price from the user
    rented: int | None = None  # GPUs paid for, including idle ones; None: `gpus`
    other_batch_tokens: int | None = None  # global batch if it differs from the plan's


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """The results of a search other than the plan's run."""

    candidates: int  # number of evaluated configurations
    devices: tuple[str, ...]  # keys of the searched devices
    options: tuple[Run, ...]  # conservative and aggressive alternatives
    front: tuple[Run, ...]  # Pareto front of cost, time and score, shortened for display
    front_size: int  # number of runs on the whole front, including the plan's own
    near_misses: tuple[Run, ...]  # better than the plan, but beyond one limit
    sensitivity: tuple[str, ...]
    scaling: tuple[ScalingPoint, ...] = ()
    scaling_left_out: tuple[str, ...] = ()  # numbers of GPUs that `scaling` does not show, with reasons
    pays_up_to_gpus: int | None = None  # beyond this number of GPUs, cost rises by a larger factor than time falls
    left_out: tuple[str, ...] = ()  # parts of the search that were omitted, with reasons
    does_not_fit: tuple[str, ...] = ()  # machines that surely cannot hold a settled piece of work
    machines: tuple[Run, ...] = ()  # the best run on each other machine named by the user, or that settled work allows
    neighbours: tuple[Run, ...] = ()  # much faster for little more, and cheaper on a machine that nobody has published
    sure: Run | None = None  # the run for --sure; None if it is the plan, there is no limit, or no run qualifies


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A complete recommendation: the goal, the chosen run, and the alternatives."""

    id: str
    created: str  # ISO 8601, UTC
    goal: Goal
    run: RunConfig | None  # the chosen run as a configuration of the trainer; None: other software trains
    chosen: Run
    considered: tuple[Run, ...]  # other depths and micro-batches on the same machine; `why` says why not
    reasons: tuple[str, ...]  # for the chosen run
    warnings: tuple[str, ...]
    inputs: tuple[str, ...]  # calibration ids, profile files, laws and prices that were used
    assumed: tuple[str, ...] = ()  # options that were not given, with the assumed values
    reference_seconds: float | None = None  # of the reference kernel during calibration; None if not calibrated
    drift_exponent: float = 0.0  # step time is proportional to this power of the reference kernel's time
    search: SearchReport | None = None
    schema: int = 3

    @property
    def config(self) -> RunConfig:
        """Return the trainer's configuration. Raises AdvisorError (exit 2) if the trainer cannot run this plan."""
        if self.run is None:
            hint = "write the file that it starts from: advisor plan ... --out FILE"
            raise AdvisorError("this plan is for other software, which cannot be started from here", hint, exit_code=2)
        return self.run

    @property
    def workload(self) -> Workload:
        return self.chosen.workload

    @property
    def prediction(self) -> Prediction:
        return self.chosen.prediction

    @property
    def bill(self) -> Bill:
        return self.chosen.bill

    @property
    def offer(self) -> Offer:
        return self.chosen.offer

    @property
    def grounds(self) -> Grounds | None:
        return self.chosen.grounds

    @property
    def options(self) -> tuple[Run, ...]:
        """Return the conservative run, the plan's own run and the aggressive run, as far as there are any."""
        others = self.search.options if self.search else ()
        return (*(run for run in others if run.standing.name == "conservative"), self.chosen,
                *(run for run in others if run.standing.name != "conservative"))  # fmt: skip
