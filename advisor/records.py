"""The frozen records that flow between rooms. A unit is part of the name; None means unknown."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

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
    peak_reserved_bytes: Estimate | None  # what the device must hold (CPU: resident set)
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
class PlanPrediction:
    """What a plan promises of its run; what `compare` scores. None: not predicted."""

    parameters: int
    flops_per_token: float
    step_seconds: Estimate
    tokens_per_second: Estimate
    mfu: Estimate | None
    peak_allocated_bytes: Estimate | None
    peak_reserved_bytes: Estimate | None
    wall_clock: WallClock
    cost_usd: Estimate | None
    energy_kwh: Estimate | None
    loss: Estimate | None  # validation loss at the end, nats per token; None outside the laws' range
    reference_seconds: float | None = None  # the calibration's reference kernel (trainer.witness); None: not calibrated
    drift_exponent: float = 0.0  # step time moves as (reference now / reference then) to this power
    carbon_kg: Estimate | None = None  # CO2 equivalent, whole site, at `grid_grams_per_kwh`
    grid_grams_per_kwh: float | None = None
    power_watts: Estimate | None = None  # all devices together while they train
    checkpoint_bytes: int | None = None  # of one
    disk_bytes: int | None = None  # of all that are kept at once, the one being written included
    storage_usd: Estimate | None = None  # of keeping them while the run lasts; part of `cost_usd`
    bits_per_byte: Estimate | None = None  # `loss` by the tokenizer's measured bytes per token
    loss_shift: float = 0.0  # log of `loss` over the law's, learnt from the user's own runs on this data


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
    usd_per_waiting_hour: float | None = None  # what waiting takes of the budget; None: `plan/goal.waiting_price`
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
class Candidate:
    """One configuration that was weighed; `rejected` says in words why not (None: chosen or merely beaten)."""

    depth: int
    width: int
    parameters: int
    micro_batch: int
    grad_accum: int
    steps: int
    tokens: int
    epochs: float | None
    tokens_per_second: Estimate
    peak_reserved_bytes: Estimate | None
    total_seconds: Estimate
    cost_usd: Estimate | None
    loss: Estimate | None
    score: float  # lower is better; what the search ordered by
    rejected: str | None = None
    activation_checkpointing: str = "none"
    sharding: str = "none"
    device_bytes: Estimate | None = None  # per device, everything it must hold: what decides whether it fits


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What could be rented and trained, and what would come of it: a row of the search's tables."""

    gpu: str
    gpus: int
    provider: str | None  # None: one's own machine, or a price that was given
    spot: bool
    usd_per_hour: float | None  # all devices together
    price_source: str
    depth: int
    parameters: int
    micro_batch: int
    grad_accum: int
    activation_checkpointing: str
    sharding: str = "none"
    steps: int
    tokens: int
    epochs: float | None
    step_seconds: Estimate
    tokens_per_second: Estimate
    total_seconds: Estimate
    cost_usd: Estimate | None
    device_bytes: Estimate | None  # per device, everything the device must hold
    headroom_bytes: float | None  # device memory beyond that
    loss: Estimate | None
    score: float  # lower is better; what the search ordered by
    name: str = ""  # conservative | balanced | aggressive
    why: str = ""  # what it is good for, or what ruled it out
    grounds: Grounds | None = None  # of its speed
    machines: int = 1  # that are rented for it


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
    """What a search over devices, counts, offers, shapes and token budgets found besides the plan."""

    candidates: int  # of which time, memory, cost and loss were computed
    devices: tuple[str, ...]  # keys that were searched
    options: tuple[Choice, ...]  # balanced is the plan; conservative, aggressive where they have what it lacks
    front: tuple[Choice, ...]  # no other is cheaper, faster and better at once; thinned to what a person reads
    front_size: int  # before it was thinned
    near_misses: tuple[Choice, ...]  # better than the plan but for one constraint, which `why` names
    sensitivity: tuple[str, ...]
    scaling: tuple[ScalingPoint, ...] = ()
    pays_up_to_gpus: int | None = None  # beyond it, more GPUs raise the bill by more than they shorten the run
    left_out: tuple[str, ...] = ()  # what was not searched and why
    machines: tuple[Choice, ...] = ()  # the best on each machine that was asked for by name; `why` is why it lost
    sure: Choice | None = None  # what --sure would plan; None: it is planned, nothing is limited, or there is nothing


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A recommendation, complete: the run, what it promises and everything that rests on."""

    id: str
    created: str  # ISO 8601, UTC
    goal: Goal
    run: RunConfig
    workload: Workload
    usd_per_hour: float | None  # all GPUs together
    price_source: str
    prediction: PlanPrediction
    ratio: float  # tokens per counted parameter of the chosen run
    chosen: Candidate
    considered: tuple[Candidate, ...]
    reasons: tuple[str, ...]  # why this one, in words
    warnings: tuple[str, ...]
    inputs: tuple[str, ...]  # calibration ids, profile files, laws and prices it rests on
    reference_seconds: float | None = None  # of the witness kernel during the calibration; None: not calibrated
    drift_exponent: float = 0.0  # step time goes as the witness kernel's time to this power
    provider: str | None = None  # to rent from; None: one's own machine, or a price that was given
    spot: bool = False
    search: SearchReport | None = None
    grounds: Grounds | None = None  # of the predicted speed
    price_age_days: int | None = None  # the most it can be; None: unknown, or no list's price
    machines: int = 1  # that are rented
    schema: int = 2
