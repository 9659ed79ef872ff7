"""The frozen records that flow between rooms. A unit is part of the name; None means unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from advisor.offer import Offer
from trainer.schema import ModelShape, RunConfig


class Basis(StrEnum):
    """Where a number comes from, best first."""

    MEASURED = "measured"  # this very point was run on this device
    INTERPOLATED = "interpolated"  # inside the calibrated range
    EXTRAPOLATED = "extrapolated"  # outside it
    PRIOR = "prior"  # never calibrated here: datasheets and published runs only


_WORST_LAST = list(Basis)


def worst_basis(*bases: Basis) -> Basis:
    """The weakest of several bases: a sum is only as well founded as its weakest part."""
    return max(bases, key=_WORST_LAST.index)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A predicted number with its 80 % interval and its basis; the unit is in the field that holds it."""

    value: float
    low: float
    high: float
    basis: Basis

    def scaled(self, factor: float) -> Estimate:
        """The estimate times a known constant (a negative one swaps the ends)."""
        low, high = sorted((self.low * factor, self.high * factor))
        return Estimate(value=self.value * factor, low=low, high=high, basis=self.basis)

    def contains(self, actual: float) -> bool:
        return self.low <= actual <= self.high


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """What is trained beside weights that stay as they are: two thin matrices for each (LoRA, Hu et al. 2021)."""

    rank: int
    targets: str = "all"  # all | attention: the matrices of a block that have one
    quantized: bool = False  # the blocks' matrices are held in 4 bits (QLoRA, Dettmers et al. 2023)


@dataclass(frozen=True, kw_only=True)
class Software:
    """What a published run does otherwise than this project's trainer, where it decides memory or time."""

    name: str | None = None  # in profiles/software.csv; None: nobody's in particular
    kind: str = "plain"  # of training loop: c | fused | wrapper | megatron | tuned | plain
    fused_kernels: bool = False  # norms, rotary positions, activations or the loss in kernels written by hand
    tf32: bool = True  # fp32 products on the TF32 units, where the card has any
    fp8: bool = False  # products of the blocks in 8-bit floats
    unstated: bool = (
        False  # most of what decides its speed (precision, compilation, attention, recomputation) is not known
    )
    state: str = "fp32"  # fp32: weights and moments | copied: 16-bit weights, fp32 master copies | 16bit: everything
    state_chance: float = 1.0  # that it is so, where nobody says
    moment_bytes: float | None = None  # of optimizer state per weight, where the optimizer is of few bits or none
    steps_in_backward: bool = False  # each gradient is used and let go as it comes
    whole_logits: bool | None = True  # the loss holds all tokens' logits at once; None: that is not known
    fused_attention: bool = True
    attended_tokens: float | None = None  # that a query may see, mean over layers; None: all before it
    extra_parameters: int = 0  # that the shape lacks: an untied head's; negative: of a head that is tied
    adapters: Adapters | None = None  # None: the weights themselves are trained
    frozen_blocks: int = 0  # the first so many blocks and the embeddings below them stay as they are


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training configuration on one kind of device: what a step-time or memory prediction is about."""

    shape: ModelShape
    micro_batch: int  # sequences per device per forward pass
    grad_accum: int = 1
    gpu: str  # catalog key, or "cpu"
    gpus: int = 1
    precision: str = "bf16"  # bf16 | fp16 | fp32, resolved: never "auto"
    compile: bool = False
    activation_checkpointing: str = "none"  # none | full; published runs also: selective (some operations recomputed)
    optimizer: str = "adamw"  # adamw | muon
    sharding: str = "none"  # none | optimizer | full: what data parallelism splits over the GPUs (ZeRO-1/2, FSDP)
    software: Software | None = None  # None: this project's trainer

    @property
    def micro_tokens(self) -> int:
        """Tokens of one micro-batch on one device."""
        return self.micro_batch * self.shape.seq_len

    @property
    def step_tokens(self) -> int:
        """Tokens of one optimizer step over all devices (the global batch)."""
        return self.micro_tokens * self.grad_accum * self.gpus


@dataclass(frozen=True, kw_only=True)
class MeasuredStep:
    """The measured step time of one configuration: of a calibration's bursts, or of a whole run. None: not known."""

    workload: Workload
    step_seconds: float  # median
    noise: float = 0.02  # standard deviation of its log; as of the steady steps of a whole run
    steps: int = 0  # that were timed
    reference_seconds: float | None = None  # of the reference kernel meanwhile; None: not timed
    watts: float | None = None  # mean of one device; None: not metered
    run_id: str = ""  # of the run; empty: of a calibration
    created: str = ""  # ISO 8601, UTC
    own: bool = True  # of this project's trainer; calibrations, which are of it, say nothing of other software

    @property
    def source(self) -> str:
        """How a profile that rests on it names it."""
        return f"run {self.run_id}"


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """How a run computes what its workload says; as a rule nobody sets these, `advisor tune` measures them."""

    tf32: bool = True
    attention: str = "auto"
    loss_chunk_tokens: int | None = None
    fused: bool = True  # AdamW

    def set_in(self, config: RunConfig) -> RunConfig:
        """A run's configuration that computes so."""
        return replace(
            config,
            tf32=self.tf32,
            attention=self.attention,
            loss_chunk_tokens=self.loss_chunk_tokens,
            optimizer=replace(config.optimizer, fused=self.fused),
        )

    @classmethod
    def of(cls, config: RunConfig) -> Kernels:
        """The inverse of `set_in`."""
        return cls(
            tf32=config.tf32,
            attention=config.attention,
            loss_chunk_tokens=config.loss_chunk_tokens,
            fused=config.optimizer.fused,
        )


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Everything `advisor predict` says of one workload. Estimates that cannot be made are None."""

    workload: Workload
    parameters: int
    flops_per_token: float
    step_seconds: Estimate | None
    tokens_per_second: Estimate | None
    mfu: Estimate | None
    peak_allocated_bytes: Estimate | None  # by the framework's allocator, per device
    peak_reserved_bytes: Estimate | None  # by its allocator, free blocks included (CPU: resident set)
    device_bytes: Estimate | None = None  # everything the device must hold: what decides whether it fits
    device_memory_bytes: int | None
    fit_probability: float | None  # that all it holds fits the device's memory; None when either is unknown
    fits: bool | None  # sure (9 times out of 10) that it does, or that it does not; None: neither, or unknown

    @property
    def plannable(self) -> bool:
        """Whether a plan may have it: sure to fit, or nothing is known of the device's memory."""
        return self.fits is True or self.fit_probability is None


@dataclass(frozen=True, kw_only=True)
class WallClock:
    """The whole bill of one run, in seconds; each part an Estimate, `total` their sum."""

    startup_seconds: Estimate
    compile_seconds: Estimate
    steps_seconds: Estimate
    evals_seconds: Estimate
    checkpoints_seconds: Estimate
    total_seconds: Estimate
    interruptions_seconds: Estimate | None = None  # restarts and lost work, where the machine fails or is taken back
    provisioning_seconds: Estimate | None = None  # of a rented machine: ordered until it answers; None: it is here
    download_seconds: Estimate | None = None  # software and data onto a rented machine
    write_seconds: Estimate | None = None  # of one checkpoint until it is on disk; the run need not wait for it


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a run takes, from the order of its machine to its last checkpoint. None: unknown."""

    wall_clock: WallClock
    cost_usd: Estimate | None
    power_watts: Estimate | None = None  # all devices together while they train
    energy_kwh: Estimate | None = None
    carbon_kg: Estimate | None = None  # CO2 equivalent, whole site, at `grid_grams_per_kwh`
    grid_grams_per_kwh: float | None = None
    storage_usd: Estimate | None = None  # of keeping the checkpoints while the run lasts; part of `cost_usd`
    checkpoint_bytes: int | None = None  # of one
    disk_bytes: int | None = None  # of all that are kept at once, the one being written included


@dataclass(frozen=True, kw_only=True)
class GpuPrice:
    """What the user pays for one GPU of a kind, in place of the catalog's price."""

    gpu: str
    usd_per_gpu_hour: float


@dataclass(frozen=True, kw_only=True)
class OwnMachine:
    """A machine that the user has: so many cards of one kind together, and no copies of it."""

    gpu: str
    gpus: int


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the user wants. None: not constrained."""

    gpu: str  # one key; several, separated by commas; "any": all that somebody rents; "own": those of `own` alone
    gpus: int = 1
    family: str = "nanochat"
    seq_len: int | None = None  # None: the calibration's
    vocab_size: int | None = None  # None: the data's tokenizer, else the calibration's
    budget_usd: float | None = None
    deadline_seconds: float | None = None
    tokens: int | None = None
    depth: int | None = None
    data: str | None = None  # token folder
    synthetic: bool = False  # without one: random tokens were asked for, so that the run may be started
    ratio: float | None = None  # tokens per counted parameter
    ratio_counts: str = "matrices+head"  # matrices+head | total | matrices: which parameters the ratio counts
    usd_per_gpu_hour: float | None = None  # None: the catalog's price, 0 on one's own machine
    usd_per_kwh: float | None = None
    micro_batch: int | None = None
    global_batch_tokens: int | None = None
    precision: str = "auto"
    compile: bool | None = None
    activation_checkpointing: str | None = None  # None: none, more only where nothing else fits
    sharding: str | None = None  # none | full; None: whole where it fits
    optimizer: str = "adamw"
    sure: bool = False  # keep the intervals' high ends within budget and deadline, not only the expected values
    grid_grams_per_kwh: float | None = None  # CO2 equivalent; None: the world's mean
    inference_tokens: float | None = None  # that the model will serve: smaller models trained longer cost less then
    counts: tuple[int, ...] = ()  # numbers of GPUs to choose from; empty: `gpus` alone, which is then asked for
    providers: tuple[str, ...] = ()  # to rent from; empty: any with a price list
    spot: str = "none"  # none | only | any: machines that may be taken back at any time
    objective: str = "loss"  # loss | cost | time: what is made least within the limits
    prices: tuple[GpuPrice, ...] = ()  # by card; go before the catalog's
    power_cap_watts: float | None = None  # each device is limited to; None: its own limit
    interruption_seconds: float | None = None  # mean time between interruptions; None: 4-48 h on spot, else days
    model: str | None = None  # a published one's name; the shape below is its own then
    parameters: int | None = None  # asked for; the search settles depth and width by it
    width: int | None = None  # of the residual stream; None, and of those below: the family's
    heads: int | None = None
    kv_heads: int | None = None
    ffn_width: int | None = None
    data_tokens: int | None = None  # of one's own data that are not here yet; a token folder counts its own
    epochs: float | None = None  # times the data are seen; the search settles the tokens by it
    own: tuple[OwnMachine, ...] = ()  # beside what is rented; the tariff for energy is theirs alone then
    usd_per_waiting_hour: float | None = None  # what waiting takes of the budget; None: `planning/goal.waiting_price`
    checkpoint_seconds: float | None = None  # between checkpoints; None: Daly's interval
    download_bytes_per_second: float | None = None  # that `data_tokens` come at; None: as is usual
    software: str | None = None  # in profiles/software.csv, whose run it is; None: this project's trainer


@dataclass(frozen=True, kw_only=True)
class Grounds:
    """What the estimated speed of a device rests on."""

    calibration: str | None  # id of its own; with one the published runs hardly count
    generation: str | None  # of the card (`GpuSpec.generation`); None: no card
    card_runs: int  # published runs of this very card
    generation_runs: int  # of its generation, its own among them
    all_runs: int

    @property
    def other_runs(self) -> int:
        """Published runs of other generations."""
        return self.all_runs - self.generation_runs


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How good a run is for its goal, and why it was chosen or not."""

    score: float  # what the search orders by, lower is better
    ratio: float  # tokens per counted parameter
    epochs: float | None = None  # times the data are seen; None: a stream without end
    loss: Estimate | None = None  # validation loss at the end, nats per token; None outside the laws' range
    loss_shift: float = 0.0  # log of `loss` over the law's, learnt from the user's own runs on this data
    bits_per_byte: Estimate | None = None  # `loss` by the tokenizer's measured bytes per token
    against: tuple[str, ...] = ()  # what rules it out, as `plan.evaluate.Violation` names it; empty: nothing
    name: str = ""  # conservative | balanced (the plan) | aggressive
    why: str = ""  # what it is good for, or what ruled it out


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a search: what is trained and how fast, on whose machine, what it takes and how it stands."""

    prediction: Prediction  # of its workload: the model, how it is laid out on which GPUs
    steps: int
    tokens: int  # of all steps
    offer: Offer
    bill: Bill
    standing: Standing
    grounds: Grounds | None = None  # of the predicted speed

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
        assert self.prediction.step_seconds is not None  # what has no known time is no run
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
        return self.standing.score

    @property
    def headroom_bytes(self) -> float | None:
        """The part of a GPU's memory that the run is not expected to fill; None: unknown."""
        held, whole = self.prediction.device_bytes, self.prediction.device_memory_bytes
        return None if held is None or whole is None else whole - held.value

    def judged(self, **changes: Any) -> Run:
        """The same run with another name, reason or loss in its standing."""
        return replace(self, standing=replace(self.standing, **changes))


@dataclass(frozen=True, kw_only=True)
class ScalingPoint:
    """The chosen run on another number of GPUs: same model, tokens and, where it can be split so, global batch."""

    gpus: int
    tokens_per_second: float
    total_seconds: float
    cost_usd: float | None
    efficiency: float  # tokens per second and GPU, relative to one
    provider: str | None = None  # None: one's own machine, or a price that was given
    rented: int | None = None  # GPUs paid for, idle ones included; None: just these
    other_batch_tokens: int | None = None  # the global batch where it is not the plan's; None: it is


@dataclass(frozen=True, kw_only=True)
class SearchReport:
    """What a search over devices, counts, offers, shapes and token budgets found besides the plan's own run."""

    candidates: int  # of which time, memory, cost and loss were computed
    devices: tuple[str, ...]  # keys that were searched
    options: tuple[Run, ...]  # conservative and aggressive, where they have what the plan lacks
    front: tuple[Run, ...]  # no other is cheaper, faster and better at once; thinned to what a person reads
    front_size: int  # before it was thinned, the plan's own run included
    near_misses: tuple[Run, ...]  # better than the plan but for one constraint
    sensitivity: tuple[str, ...]
    scaling: tuple[ScalingPoint, ...] = ()
    pays_up_to_gpus: int | None = None  # beyond it, more GPUs raise the bill by more than they shorten the run
    left_out: tuple[str, ...] = ()  # what was not searched and why
    machines: tuple[Run, ...] = ()  # the best on each other machine that was asked for by name
    sure: Run | None = None  # what --sure would plan; None: it is planned, nothing is limited, or there is nothing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A recommendation, complete: a goal, the run chosen for it, and the runs that were weighed beside it."""

    id: str
    created: str  # ISO 8601, UTC
    goal: Goal
    run: RunConfig  # the chosen run as the trainer takes it
    chosen: Run
    considered: tuple[Run, ...]  # other depths and micro-batches on the same machine; `why` says what rules each out
    reasons: tuple[str, ...]  # why this one, in words
    warnings: tuple[str, ...]
    inputs: tuple[str, ...]  # calibration ids, profile files, laws and prices it rests on
    reference_seconds: float | None = None  # of the witness kernel during the calibration; None: not calibrated
    drift_exponent: float = 0.0  # step time goes as the witness kernel's time to this power
    search: SearchReport | None = None
    schema: int = 3

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
        """The named runs side by side: conservative, the plan's own, aggressive."""
        others = self.search.options if self.search else ()
        return (*(run for run in others if run.standing.name == "conservative"), self.chosen,
                *(run for run in others if run.standing.name != "conservative"))  # fmt: skip
