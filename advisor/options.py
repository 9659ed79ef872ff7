"""The table of all shared options, from which the command line, the page and the Python API are generated.

Each option of a command is a field of its record (`Goal` of `plan`, `PredictOptions` of `predict`, …): the field
contains the value, and its metadata the name, parser, help and range. `SHARED` lists the options that several commands
have. A new option needs an entry here and the code in which it takes effect.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from advisor import settings

Record = TypeVar("Record")
MOST_DEPTH = 512  # nanochat of this depth has 7e12 parameters, more than any machine of the catalog can train
_DECADE = 3650 * 86400.0
FAMILIES = ("nanochat", "gpt2", "llama")
PRECISIONS = ("auto", *settings.PRECISIONS)
_OPTIMIZERS, EIGHT_BIT = tuple(settings.OPTIMIZERS), "adamw-8bit"
RECOMPUTED = ("none", "selective", "full")


class Kind(StrEnum):
    """How the text of an option is parsed and its value is written."""

    USD = "dollars"  # $20, 1.5k
    SECONDS = "duration"  # 90s, 30min, 8h, 3d
    DEADLINE = "deadline"  # a duration, or a moment
    COUNT = "tokens"  # 500M, 1.5B
    WHOLE = "integer"
    NUMBER = "number"
    NUMBERS = "numbers"  # 8, 2-8 or 1,2,4,8
    BYTES = "bytes"  # 100MB
    NETWORK = "network"  # 200G, 8x400G
    SWITCH = "switch"  # without a value
    YES_NO = "yes or no"
    CHOICE = "choice"
    SOFTWARE = "software"
    MODEL = "model"
    GPUS = "gpus"
    PRICE = "price"
    OWN = "machine"
    PROVIDER = "provider"
    FOLDER = "folder"
    FILE = "file"  # to read
    NEW_FILE = "new file"  # to write
    NEW_FOLDER = "new folder"
    EXISTING = "path"  # of a file or a folder
    SHARE = "percentage"  # 10%
    TEXT = "text"


class Section(StrEnum):
    """The section of an option in the help and on the page."""

    GOAL = "Goal"
    MODEL = "Model"
    MACHINES = "Machines"
    ADVANCED = "Advanced"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option. `name` is the keyword in Python and, with dashes, the name on the command line and in an address."""

    name: str
    kind: Kind
    help: str
    section: Section | None = None
    label: str = ""  # on the page
    empty: str = ""  # what an empty field of the page means
    default: Any = None
    choices: tuple[str, ...] = ()
    least: float | None = None  # smallest allowed value, in the unit of the field
    most: float | None = None
    several: bool = False  # may be given several times
    metavar: str | None = None
    also: tuple[str, ...] = ()  # other spellings on the command line
    field: str = ""  # name of the field in its record

    @property
    def flag(self) -> str:
        """The option's name on the command line."""
        return f"--{self.name.replace('_', '-')}"


def _option(
    name: str,
    kind: Kind,
    section: Section,
    label: str,
    help: str,
    *,
    holds: Any = ...,
    needed: bool = False,
    **rest: Any,
) -> Any:
    """Make a field of `Goal` with its option. `holds` is the field's default if it differs from the option's."""
    value = rest.get("default") if holds is ... else holds
    metadata = {"option": Option(name=name, kind=kind, section=section, label=label, help=help, **rest)}
    return field(metadata=metadata) if needed else field(default=value, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class GpuPrice:
    """The price that the user pays for one type of GPU, instead of the catalog's price."""

    gpu: str
    usd_per_gpu_hour: float


@dataclass(frozen=True, kw_only=True)
class OwnMachine:
    """One machine of the user, with a number of GPUs of one type."""

    gpu: str
    gpus: int


_GOAL, _MODEL, _MACHINES, _ADVANCED = Section


@dataclass(frozen=True, kw_only=True)
class _Aims:
    """What is trained, how much of it, and within which limits. None means no constraint."""

    budget_usd: float | None = _option(
        "budget",
        Kind.USD,
        _GOAL,
        "Budget",
        "Spend at most this many dollars, e.g. $20.",
        empty="no limit",
        least=1e-6,
        most=1e10,
    )
    deadline_seconds: float | None = _option(
        "deadline", Kind.DEADLINE, _GOAL, "Deadline",
        "Finish within this time, e.g. 90s, 30min or 8h, or before this moment by this machine's clock, e.g. "
        "'Monday 9:00' or 2026-12-01T09:00.", empty="no limit", least=1e-3, most=_DECADE,
    )  # fmt: skip
    deadline_at: str | None = None  # the moment that was stated as the deadline, in ISO 8601; None: a duration
    objective: str = _option(
        "objective", Kind.CHOICE, _GOAL, "Minimise",
        "What to minimise within the limits. Minimising cost or time requires a fixed amount of training: give "
        "--tokens or --depth.",
        choices=("loss", "cost", "time"), default="loss",
    )  # fmt: skip
    sure: bool = _option(
        "sure", Kind.SWITCH, _GOAL, "Stay within limits 9 times in 10",
        "Stay within budget and deadline in 9 of 10 cases. By default only the expected cost and time stay within "
        "them, so about every second run exceeds them.", default=False,
    )  # fmt: skip
    usd_per_waiting_hour: float | None = _option(
        "value_of_time", Kind.USD, _GOAL, "Value of time",
        "Dollars of the budget that an hour of waiting is worth. Default, with several machines and no deadline: "
        "nothing for the first day, then the square root of the budget per day.", empty="$ per hour", least=0, most=1e9,
    )  # fmt: skip
    tokens: int | None = _option(
        "tokens", Kind.COUNT, _GOAL, "Training tokens",
        "Training tokens, e.g. 500M. Default: as many as the limits or the ratio allow.", empty="as the limits allow",
        least=1, most=1e16,
    )  # fmt: skip
    ratio: float | None = _option(
        "ratio", Kind.NUMBER, _GOAL, "Tokens per parameter",
        "Training tokens per counted parameter (Chinchilla's ratio). Default: 12 for nanochat and 20 for the other "
        "families, or what the limits allow.", empty="as the limits allow", least=1e-6, most=1e6,
    )  # fmt: skip
    ratio_counts: str = _option(
        "ratio_counts", Kind.CHOICE, _GOAL, "Which parameters to count", "Which parameters --ratio counts.",
        empty="default", holds="matrices+head", choices=("matrices+head", "total", "matrices"),
    )  # fmt: skip
    data: str | None = _option(
        "data", Kind.FOLDER, _GOAL, "Data", "Token folder from `advisor data prepare`.",
        empty="none yet",
    )  # fmt: skip
    data_tokens: int | None = _option(
        "data_tokens", Kind.COUNT, _GOAL, "Data size (tokens)",
        "Number of tokens in your data, e.g. 3B, if the data are not on this machine.",
        empty="unlimited", least=1, most=1e16,
    )  # fmt: skip
    epochs: float | None = _option(
        "epochs", Kind.NUMBER, _GOAL, "Epochs", "Number of passes over the data. Default: chosen by the planner.",
        empty="the best", least=1e-3, most=1e6,
    )  # fmt: skip
    synthetic: bool = _option(
        "synthetic", Kind.SWITCH, _GOAL, "Random tokens, no data",
        "Train on random tokens: a speed test with a meaningless loss.", default=False,
    )  # fmt: skip
    inference_tokens: float | None = _option(
        "inference_tokens", Kind.COUNT, _GOAL, "Tokens generated in use",
        "Number of tokens that the trained model will serve. A larger number favours a smaller model that is "
        "trained longer.", empty="not counted", least=1, most=1e18,
    )  # fmt: skip
    finetune: str | None = _option(
        "finetune", Kind.CHOICE, _GOAL, "Train",
        "How to fine-tune --model: train adapters on frozen weights (lora), adapters on frozen 4-bit "
        "weights (qlora), or all weights (full).", empty="from scratch", choices=("lora", "qlora", "full"),
    )  # fmt: skip
    stage: str | None = _option(
        "stage", Kind.CHOICE, _GOAL, "Stage",
        "What --finetune trains on: answers (sft), or pairs of a better and a worse answer (dpo). Default: sft.",
        empty="sft", choices=("sft", "dpo"),
    )  # fmt: skip
    examples: int | None = _option(
        "examples", Kind.COUNT, _GOAL, "Examples", "Number of examples (with dpo: pairs) to fine-tune on, e.g. 50k.",
        empty="fine-tunes only", metavar="COUNT", least=1, most=1e12,
    )  # fmt: skip
    length: int | None = _option(
        "length", Kind.WHOLE, _GOAL, "Tokens per example",
        "Mean number of tokens in an example (with dpo: in the prompt and one of the two answers). Default: 1024.",
        empty="1024", least=1, most=10_000_000,
    )  # fmt: skip
    lora_rank: int | None = _option(
        "lora_rank", Kind.WHOLE, _GOAL, "Adapter rank", "Rank of the adapters of --finetune. Default: 16.",
        empty="16", least=1, most=100_000,
    )  # fmt: skip
    rl: str | None = _option(
        "rl", Kind.CHOICE, _GOAL, "Train",
        "Post-train --model by RL with this algorithm: answers are generated, judged and trained on.",
        empty="no RL", choices=("grpo", "dapo", "ppo"),
    )  # fmt: skip
    prompts: int | None = _option(
        "prompts", Kind.COUNT, _GOAL, "Prompts", "Number of prompts to train on with --rl, e.g. 20k.",
        empty="RL only", metavar="COUNT", least=1, most=1e12,
    )  # fmt: skip
    response_len_end: float | None = _option(
        "response_len_end", Kind.NUMBER, _GOAL, "Response length at the end",
        "Mean response length in tokens at the end of training (responses usually grow during RL). Default: as at the "
        "start.",
        empty="the same", least=1, most=10_000_000,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RolloutOptions:
    """The options of a step of RL post-training. None: not given."""

    prompts_per_step: int | None = _option(
        "prompts_per_step", Kind.WHOLE, _GOAL, "Prompts per step",
        "Number of prompts per step (train_batch_size), for --rl. Default: 128.", empty="128", least=1, most=1_000_000,
    )  # fmt: skip
    group: int | None = _option(
        "group", Kind.WHOLE, _GOAL, "Answers per prompt",
        "Number of answers per prompt (num_generations), for --rl. Default: 8.",
        empty="8", least=1, most=100_000,
    )  # fmt: skip
    prompt_len: float | None = _option(
        "prompt_len", Kind.NUMBER, _GOAL, "Prompt length", "Mean prompt length in tokens, for --rl. Default: 200.",
        empty="200", least=1, most=10_000_000,
    )  # fmt: skip
    response_len: float | None = _option(
        "response_len", Kind.NUMBER, _GOAL, "Response length",
        "Mean response length in tokens at the start of training, for --rl. Default: estimated from --response-max.",
        empty="by the limit", least=1, most=10_000_000,
    )  # fmt: skip
    response_max: int | None = _option(
        "response_max", Kind.WHOLE, _GOAL, "Maximum response length",
        "Maximum response length in tokens (max_completion_length), for --rl; longer responses are cut. Default: four "
        "times --response-len.",
        empty="4 x the length", least=1, most=10_000_000,
    )  # fmt: skip
    placement: str | None = _option(
        "placement", Kind.CHOICE, _GOAL, "Engines",
        "Where --rl generates: on the trainer's GPUs in turn (colocated), or on GPUs of their own (split). Default: "
        "whichever is better.", empty="the better", choices=("colocated", "split"),
    )  # fmt: skip
    staleness: float | None = _option(
        "staleness", Kind.NUMBER, _GOAL, "Staleness",
        "Asynchronous training on split GPUs: the number of steps by which answers may be older than the weights (off "
        "policy); 0: engines and trainer wait for each other. Default: 1.", empty="1", least=0, most=100,
    )  # fmt: skip
    rollout_gpus: int | None = _option(
        "rollout_gpus", Kind.WHOLE, _GOAL, "GPUs that generate",
        "Number of GPUs that only generate (split placement). Default: the fastest split.", empty="the fastest split",
        least=1, most=100_000,
    )  # fmt: skip
    rollout_tp: int | None = _option(
        "rollout_tp", Kind.WHOLE, _GOAL, "GPUs per engine",
        "Tensor-parallel size of an inference engine (vLLM's tensor_parallel_size). Default: the fastest.",
        empty="the fastest", least=1, most=1024,
    )  # fmt: skip
    rollout_memory: float | None = _option(
        "rollout_memory", Kind.NUMBER, _GOAL, "Memory of engines",
        "Share of a GPU's memory that an inference engine may fill (vLLM's gpu_memory_utilization), e.g. 0.5. Default: "
        "the software's, or more if the weights need it.", empty="the software's", least=0.01, most=0.99,
    )  # fmt: skip
    rollout_precision: str | None = _option(
        "rollout_precision", Kind.CHOICE, _GOAL, "Precision of engines",
        "Precision of the weights in the inference engines. Default: as --precision.", empty="as in training",
        choices=("bf16", "fp8"),
    )  # fmt: skip
    turns: int | None = _option(
        "turns", Kind.WHOLE, _GOAL, "Turns",
        "Number of turns in one answer of an agent that calls tools. Default: 1.", empty="1", least=1, most=10_000,
    )  # fmt: skip
    tool_seconds: float | None = _option(
        "tool_seconds", Kind.SECONDS, _GOAL, "Tool time",
        "90th percentile of the time of the tool calls in a turn, e.g. 5s. Default: none.", empty="none", least=0,
        most=_DECADE,
    )  # fmt: skip
    reward_seconds: float | None = _option(
        "reward_seconds", Kind.SECONDS, _GOAL, "Time of rewards",
        "Time in which rules, or tests in a sandbox, judge all answers of a step, e.g. 30s. Default: 1s.", empty="1s",
        least=0, most=_DECADE,
    )  # fmt: skip
    judge: str | None = _option(
        "judge", Kind.MODEL, _GOAL, "Judge or reward model",
        "A model that judges the answers of --rl, e.g. Qwen/Qwen3-32B, or a config.json. Default: rules, which "
        "take --reward-seconds.", empty="rules",
    )  # fmt: skip
    judge_len: float | None = _option(
        "judge_len", Kind.NUMBER, _GOAL, "Tokens per judgement",
        "Mean number of tokens that --judge writes about an answer; 0: a reward model, which only reads. Default: 256.",
        empty="256", least=0, most=1_000_000,
    )  # fmt: skip
    judge_gpus: int | None = _option(
        "judge_gpus", Kind.WHOLE, _GOAL, "GPUs that judge",
        "Number of GPUs that only run --judge. Default: none; it takes turns with the engines on their GPUs.",
        empty="none", least=1, most=100_000,
    )  # fmt: skip
    reference: str | None = _option(
        "reference", Kind.CHOICE, _GOAL, "Reference model",
        "Whether a frozen reference model gives log-probabilities for a KL term in the loss (beta above 0). Default: "
        "yes, and no for dapo.", empty="by the algorithm", choices=("yes", "no"),
    )  # fmt: skip
    dropped_groups: float | None = _option(
        "dropped_groups", Kind.NUMBER, _GOAL, "Dropped groups",
        "Share of the groups that dynamic sampling drops because all answers are right or all wrong, e.g. 0.3; others "
        "are generated instead. Default: 0.5 for dapo, else 0.", empty="by the algorithm", least=0, most=0.95,
    )  # fmt: skip
    lora: bool = _option(
        "lora", Kind.SWITCH, _GOAL, "Adapters only", "With --rl: train adapters of rank --lora-rank.", default=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Goal(RolloutOptions, _Aims):
    """The user's goal. None means no constraint."""

    # Model
    model: str | None = _option(
        "model", Kind.MODEL, _MODEL, "Model",
        "A published model, e.g. gpt2-xl or meta-llama/Llama-3.1-8B, or a config.json. If the name is unknown, all "
        "known names are listed.",
        empty="any size",
    )  # fmt: skip
    parameters: int | None = _option(
        "params", Kind.COUNT, _MODEL, "Parameters",
        "Number of parameters, e.g. 1.5B. The family's nearest shape is used.", empty="the best", metavar="COUNT",
        least=1, most=1e14,
    )  # fmt: skip
    family: str = _option(
        "family", Kind.CHOICE, _MODEL, "Model family",
        "The model architecture, with its usual proportions of width to depth.", choices=FAMILIES,
        default="nanochat",
    )  # fmt: skip
    depth: int | None = _option(
        "depth", Kind.WHOLE, _MODEL, "Depth", "Number of transformer blocks. Default: chosen by the planner.",
        empty="the best", also=("--layers",), least=1, most=MOST_DEPTH,
    )  # fmt: skip
    width: int | None = _option(
        "width", Kind.WHOLE, _MODEL, "Width",
        "Size of the residual stream. Default: the usual value for the model family.", empty="default",
        least=1, most=1_000_000,
    )  # fmt: skip
    heads: int | None = _option(
        "heads", Kind.WHOLE, _MODEL, "Heads",
        "Number of query heads. Default: the usual number for the model family.", empty="default", least=1,
        most=100_000,
    )  # fmt: skip
    kv_heads: int | None = _option(
        "kv_heads", Kind.WHOLE, _MODEL, "Key/value heads",
        "Number of key/value heads. Default: the usual number for the model family.",
        empty="default", least=1, most=100_000,
    )  # fmt: skip
    ffn_width: int | None = _option(
        "ffn_width", Kind.WHOLE, _MODEL, "Feed-forward width",
        "Hidden size of the feed-forward blocks. Default: the usual value for the model family.",
        empty="default", least=1, most=10_000_000,
    )  # fmt: skip
    seq_len: int | None = _option(
        "seq_len", Kind.WHOLE, _MODEL, "Context length", "Tokens per sequence. Default: as calibrated, else 2048.",
        empty="as calibrated", least=16, most=10_000_000,
    )  # fmt: skip
    vocab_size: int | None = _option(
        "vocab_size", Kind.WHOLE, _MODEL, "Vocabulary",
        "Rows of the embedding table. Default: as in the data, else as calibrated, else 32768.", empty="default",
        least=2, most=10_000_000,
    )  # fmt: skip
    software: str | None = _option(
        "software", Kind.SOFTWARE, _MODEL, "Software",
        "The training software, with its default settings: nanogpt, hf-trainer, megatron, … If the name is unknown, "
        "similar names are listed. Default: own, this project's trainer, the only software that can be launched.",
    )  # fmt: skip
    # Machines
    gpu: str = _option(  # one key, several keys with commas, "any" (all rented types), or "own" (only those of `own`)
        "gpu", Kind.GPUS, _MACHINES, "GPUs", "The GPU: auto, cpu, h100, 8xh100, several (l4,h200), or any.",
        empty="any for rent", default="auto", needed=True,
    )  # fmt: skip
    gpus: int = _option(
        "gpus", Kind.NUMBERS, _MACHINES, "How many GPUs",
        "Number of GPUs, or numbers to choose from, e.g. 8 or 1,2,4,8. Default: 1; for several types of GPU, or any: "
        "1,2,4,8, and also 16,32,64 if a run takes days.", empty="one rented type: 1; any: 1,2,4,8",
        holds=1, least=1, most=100_000,
    )  # fmt: skip
    counts: tuple[int, ...] = ()  # numbers of GPUs to choose from; empty: exactly `gpus`
    own: tuple[OwnMachine, ...] = _option(
        "own", Kind.OWN, _MACHINES, "Your own machines",
        "Your own machine with its number of GPUs, or a file that lists your machines. You pay only their "
        "electricity. With --gpu, rented GPUs are searched too.",
        empty="rtx-4090:2 rtx-3090:1", default=(), several=True, metavar="GPU:N|FILE",
    )  # fmt: skip
    usd_per_gpu_hour: float | None = _option(  # None: the catalog's price, or 0 on the user's machine
        "price", Kind.PRICE, _MACHINES, "Your own prices",
        "Dollars per GPU-hour; l4=0.50 for one type of GPU. Default: the catalog's price; 0 on your own machine.",
        empty="l4=0.50 h200=2.10", default=(), holds=None, several=True, metavar="[GPU=]USD", least=0, most=1e6,
    )  # fmt: skip
    prices: tuple[GpuPrice, ...] = ()  # replace the catalog's prices
    providers: tuple[str, ...] = _option(
        "provider", Kind.PROVIDER, _MACHINES, "Providers", "Rent from this provider only; may be given several times.",
        empty="any", default=(), several=True,
    )  # fmt: skip
    spot: str = _option(
        "spot", Kind.CHOICE, _MACHINES, "Spot machines",
        "Rent cheaper machines that the provider may take back. The plan counts the time that this loses. any: "
        "spot or on demand.", choices=("none", "any", "only"), default="none",
    )  # fmt: skip
    usd_per_kwh: float | None = _option(
        "kwh_price", Kind.USD, _MACHINES, "Electricity", "Dollars per kWh of electricity, added to the price.",
        empty="$ per kWh", least=0, most=10_000,
    )  # fmt: skip
    grid_grams_per_kwh: float | None = _option(
        "grid_carbon", Kind.NUMBER, _MACHINES, "Grid carbon",
        "Grams of CO2e per kWh. Default: 475, the world average.", empty="475 g/kWh", least=0, most=100_000,
    )  # fmt: skip
    power_cap_watts: float | None = _option(
        "power_cap", Kind.NUMBER, _MACHINES, "Power cap",
        "Power limit of each GPU in watts (nvidia-smi -pl). It saves energy and costs speed.", empty="not set",
        least=1.0, most=100_000,
    )  # fmt: skip
    interruption_seconds: float | None = _option(
        "interruptions", Kind.SECONDS, _MACHINES, "Interrupted every",
        "Mean time between interruptions of a machine, e.g. 12h. Default: 4-48 h for a spot machine, several days "
        "otherwise.", empty="4-48 h on spot, else several days",
        least=60.0, most=_DECADE,  # with more interruptions a run never starts
    )  # fmt: skip
    download_bytes_per_second: float | None = _option(
        "download_rate", Kind.BYTES, _MACHINES, "Download rate",
        "Download rate of the data in bytes per second, e.g. 100MB.", empty="25 to 400 MB/s",
    )  # fmt: skip
    network_bytes_per_second: float | None = _option(
        "network", Kind.NETWORK, _MACHINES, "Network",
        "Network of one machine to others, e.g. 8x400G or 100G. Default: the vendor's reference machine, else 100G.",
        empty="as usual for the GPU",
    )  # fmt: skip
    # Advanced
    micro_batch: int | None = _option(
        "micro_batch", Kind.WHOLE, _ADVANCED, "Micro-batch", "Sequences per GPU and forward pass.", empty="the best",
        least=1, most=1_000_000,
    )  # fmt: skip
    global_batch_tokens: int | None = _option(
        "global_batch", Kind.COUNT, _ADVANCED, "Global batch", "Tokens per optimizer step, e.g. 512k.",
        empty="the best",
        least=1, most=1e12,
    )  # fmt: skip
    precision: str = _option(
        "precision", Kind.CHOICE, _ADVANCED, "Precision", "Number format of the matrix products.",
        choices=(*PRECISIONS, "fp8"), default="auto",
    )  # fmt: skip
    compile: bool | None = _option(
        "compile", Kind.YES_NO, _ADVANCED, "torch.compile", "Use torch.compile. Default: as calibrated.",
        empty="as calibrated",
    )  # fmt: skip
    activation_checkpointing: str | None = _option(
        "activation_checkpointing", Kind.CHOICE, _ADVANCED, "Activation checkpointing",
        "Which activations are recomputed in the backward pass. Default: none, or more if the run would not fit "
        "otherwise.", empty="where needed", choices=RECOMPUTED,
    )  # fmt: skip
    sharding: str | None = _option(
        "sharding", Kind.CHOICE, _ADVANCED, "Sharding",
        "full: each GPU holds a share of the model (FSDP). Default: full if the model does not fit on one GPU.",
        empty="where needed", choices=("none", "full"),
    )  # fmt: skip
    layout: str | None = _option(
        "layout", Kind.CHOICE, _ADVANCED, "Parallelism",
        "any: plan for other software, which can also split the model over the GPUs (tensor, pipeline, context, "
        "expert parallelism). Default: only data parallelism, which is what this project's trainer does.",
        empty="data", choices=("data", "any"),
    )  # fmt: skip
    measured: str | None = _option(
        "measured", Kind.FILE, _ADVANCED, "Your measured runs",
        "With --layout any: a CSV file of runs that you timed on fewer GPUs or layers, to correct the predicted times. "
        "Columns: options of `predict` (tp, pp, gpus, micro-batch, grad-accum, depth), and step_seconds or "
        "tokens_per_second. With --rl: steps that you timed on this type of GPU, in a column step_seconds (and gpus).",
    )  # fmt: skip
    optimizer: str = _option(
        "optimizer", Kind.CHOICE, _ADVANCED, "Optimizer",
        "The optimizer. adamw-8bit stores its moments in 8 bits and needs --finetune full. Default: adamw, or the "
        "software's.",
        empty="default", holds="adamw", choices=(*_OPTIMIZERS, EIGHT_BIT),
    )  # fmt: skip
    checkpoint_seconds: float | None = _option(
        "checkpoint_every", Kind.SECONDS, _ADVANCED, "Checkpoint every",
        "Time between checkpoints, e.g. 30min. Default: Daly's interval, but at least a minute.",
        empty="automatic", least=1.0, most=_DECADE,
    )  # fmt: skip

    @property
    def needs_other_software(self) -> bool:
        """Whether it asks for a fine-tune, RL or a plan over layouts, which the trainer here does not do."""
        return self.finetune is not None or self.layout == "any" or self.rl is not None


_OPTIONS_OF: dict[type, Mapping[str, Option]] = {}  # made once: a plan checks the goal of each of a hundred devices


def options_of(record: type) -> Mapping[str, Option]:
    """Returns the options by name that are fields of a record."""
    if record not in _OPTIONS_OF:
        fields = [field for field in dataclasses.fields(record) if "option" in field.metadata]
        named = [dataclasses.replace(field.metadata["option"], field=field.name) for field in fields]
        _OPTIONS_OF[record] = MappingProxyType({option.name: option for option in named})
    return _OPTIONS_OF[record]


def filled(record: type[Record], values: Mapping[str, Any]) -> Record:
    """Return a command's record with these values by the names of its options; other names are ignored."""
    return record(**{option.field: values[name] for name, option in options_of(record).items() if name in values})


# The options of the goal by name.
OPTIONS: Final[Mapping[str, Option]] = options_of(Goal)

# What TRL, verl and vLLM, or another command, call an option; several names if it depends on the command.
CALLED_ELSEWHERE: Final[Mapping[str, str]] = MappingProxyType({
    "num_generations": "group", "max_completion_length": "response_max", "max_response_length": "response_max",
    "max_new_tokens": "response_max", "max_prompt_length": "prompt_len", "train_batch_size": "prompts_per_step",
    "max_steps": "tokens prompts", "steps": "tokens prompts", "gpu_memory_utilization": "rollout_memory",
    "vllm_gpu_memory_utilization": "rollout_memory", "vllm_tensor_parallel_size": "rollout_tp",
    "tensor_model_parallel_size": "rollout_tp", "tensor_parallel_size": "rollout_tp", "vllm_mode": "placement",
    "beta": "reference", "use_kl_loss": "reference", "kl_coef": "reference", "filter_groups": "dropped_groups",
    "staleness_threshold": "staleness", "max_turns": "turns", "max_assistant_turns": "turns", "reward_model": "judge",
    "reward_model_name_or_path": "judge", "kv_cache_dtype": "rollout_precision", "quantization": "rollout_precision",
    "finetune": "lora_rank qlora freeze_blocks",
})  # fmt: skip


def called_here(name: str, known: Iterable[str]) -> list[str]:
    """Return what another program or command calls `name`, as far as it is among the `known` options."""
    names = CALLED_ELSEWHERE.get(name.strip("-").replace("-", "_"), "").split()
    return [called for called in names if called in set(known)]


_A_DAY = 86400.0

# Options of several commands that are not part of a goal. The key is the name, or tells apart two forms of an option.
SHARED: Final[Mapping[str, Option]] = MappingProxyType({
    "one_price": Option(name="price", kind=Kind.USD, help="Dollars per GPU-hour.", label="Price ($ per GPU-hour)",
                        least=0, most=1e6),
    "one_count": Option(name="gpus", kind=Kind.WHOLE, help="Number of GPUs.", section=_MACHINES, least=1, most=100_000),
    "budget_seconds": Option(name="budget_seconds", kind=Kind.SECONDS, help="Time for the measurements, e.g. 90s.",
                             least=10.0, most=_A_DAY),
    "grad_accum": Option(name="grad_accum", kind=Kind.WHOLE, help="Micro-batches per optimizer step.",
                         section=_ADVANCED, least=1, most=10_000_000),
    "depths": Option(name="depths", kind=Kind.NUMBERS,
                     help="Also predict the parts of step time and memory at these depths, e.g. 16,20,24."),
    "gate": Option(name="gate", kind=Kind.TEXT, several=True, metavar="STEP[:LOSS]",
                   help="Evaluate at STEP and stop if the loss is above LOSS, e.g. 10k:4.2. Without LOSS (10k or "
                   "50%), stop if it is above the predicted loss."),
    "stop_loss": Option(name="stop_loss", kind=Kind.TEXT, several=True, metavar="STEP:LOSS",
                        help="From STEP on, stop if the loss is above LOSS."),
    "account": Option(name="account", kind=Kind.TEXT, help="Slurm account."),
    "qos": Option(name="qos", kind=Kind.TEXT, help="Slurm quality of service."),
    "constraint": Option(name="constraint", kind=Kind.TEXT, help="Slurm constraint, e.g. h100."),
    "device": Option(name="device", kind=Kind.CHOICE, help="Where the model runs.", choices=("auto", "cpu", "cuda"),
                     default="auto"),
    "may_change": Option(name="may_change", kind=Kind.CHOICE, choices=("depth",),
                         help="Let the new plan also change the depth, not only steps and batch."),
    "stop_if_over": Option(name="stop_if_over", kind=Kind.SHARE, help="Do not start if the planned work takes this "
                           "much longer than planned, e.g. 10%."),
    "tokenizer": Option(name="tokenizer", kind=Kind.FILE,
                        help="A tokenizer.json or SentencePiece .model. Default: the tokenizer of the run's data."),
    "plan": Option(name="plan", kind=Kind.FILE, help="The run's plan.yaml. Default: the one in the run's folder."),
    "md": Option(name="md", kind=Kind.NEW_FILE, help="Write a report to this Markdown file."),
})  # fmt: skip


def _like(name: str, help: str = "", **changes: Any) -> Any:
    """Make a field of a command's record from an option of the tables, with another help or other settings there."""
    option = OPTIONS.get(name) or SHARED[name]
    option = dataclasses.replace(option, help=help or option.help, **changes)
    return field(default=() if option.several else option.default, metadata={"option": option})


def _own(name: str, kind: Kind, help: str, **settings: Any) -> Any:
    """Make a field of a command's record from an option that no other command has."""
    option = Option(name=name, kind=kind, help=help, **settings)
    return field(default=option.default, metadata={"option": option})


SHARDINGS = tuple(settings.SHARDINGS)  # by their stage of ZeRO, from 0 to 3
LAYOUT_DEGREES = ("tp", "pp", "cp", "ep", "vpp")  # of `PredictOptions`


def _degree(name: str, kind: str, help: str) -> Any:
    also = (f"--{kind}-parallel", f"--{kind}-parallel-size")
    return _own(name, Kind.WHOLE, help, section=_ADVANCED, least=1, most=16384, also=also)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(RolloutOptions):
    """The options of `predict`. None: not given."""

    gpu: str = _like("gpu", "auto, cpu, or a GPU: h100, 8xh100, l4, …")
    gpus: int | None = _like("one_count", "Data-parallel GPUs. Default: 1, or the number in --gpu, e.g. 8xh100.")
    model: str | None = _like("model")
    params: int | None = _like("params")
    family: str = _like("family")
    depth: int | None = _like("depth", "Number of transformer blocks.")
    width: int | None = _like("width")
    heads: int | None = _like("heads")
    kv_heads: int | None = _like("kv_heads")
    head_dim: int | None = _own("head_dim", Kind.WHOLE, "Size of a head. Default: width / heads.", section=_MODEL,
                                least=1, most=100_000)  # fmt: skip
    ffn_width: int | None = _like("ffn_width")
    tied: bool = _own("tied", Kind.SWITCH, "Use the embedding table as the head, as gpt2 always does.", section=_MODEL,
                      default=False)  # fmt: skip
    seq_len: int | None = _like("seq_len")
    vocab_size: int | None = _like("vocab_size")
    software: str | None = _like("software")
    micro_batch: int | None = _like(
        "micro_batch", "Sequences per GPU and forward pass. Default: the smallest that is within 2 % of the fastest."
    )
    grad_accum: int = _like("grad_accum", default=1)
    precision: str = _like("precision", "fp8: 8-bit floats for the products of the blocks, bf16 for the rest.")
    compile: bool | None = _like("compile")
    activation_checkpointing: str | None = _like(
        "activation_checkpointing",
        "Which activations are recomputed in the backward pass. Default: none, or the software's default.",
    )
    sharding: str | None = _like(
        "sharding", "What is divided among the GPUs: nothing (DDP), the moments (ZeRO-1), gradients too (ZeRO-2), "
        "all of it (ZeRO-3, FSDP). Default: none, or the software's.", choices=SHARDINGS,
    )  # fmt: skip
    zero: int | None = _own("zero", Kind.WHOLE, "The same as a stage of ZeRO: 0 to 3.", section=_ADVANCED, least=0,
                            most=3)  # fmt: skip
    optimizer: str | None = _like("optimizer", "The optimizer. Default: adamw, or the software's.", choices=_OPTIMIZERS)
    lora_rank: int | None = _like("lora_rank", "Train adapters of this rank on frozen 16-bit weights (LoRA).",
                                  section=_ADVANCED)  # fmt: skip
    lora_targets: str | None = _own(
        "lora_targets", Kind.CHOICE,
        "Which matrices of a block have adapters. Default: all; for a mixture of experts, attention.",
        section=_ADVANCED, choices=("all", "attention"),
    )  # fmt: skip
    qlora: bool = _own("qlora", Kind.SWITCH, "With --lora-rank: store the frozen weights of the blocks in 4 bits.",
                       section=_ADVANCED, default=False)  # fmt: skip
    freeze_blocks: int | None = _own(
        "freeze_blocks", Kind.WHOLE, "Number of first blocks to freeze. The embeddings are frozen too.",
        section=_ADVANCED, least=1, most=100_000,
    )  # fmt: skip
    tp: int | None = _degree("tp", "tensor", "Tensor-parallel GPUs: pieces of each matrix.")
    pp: int | None = _degree("pp", "pipeline", "Pipeline stages.")
    cp: int | None = _degree("cp", "context", "Context-parallel GPUs: pieces of each sequence.")
    ep: int | None = _degree("ep", "expert", "GPUs that share the experts. Default: as many as possible.")
    vpp: int | None = _degree("vpp", "virtual-pipeline", "Pieces of layers on each pipeline stage (interleaved).")
    rl: str | None = _like("rl")
    response_len: float | None = _like(
        "response_len", "Mean response length in tokens, for --rl. Default: estimated from --response-max."
    )
    depths: tuple[int, ...] | None = _like("depths")
    tokens: int | None = _like("tokens", "Also show how much text this number of tokens is, in shards and gigabytes.")
    network: float | None = _like("network")
    download_rate: float | None = _like(
        "download_rate", "Download rate of the text of --tokens in bytes per second, e.g. 100MB. Default: 25 to 400 MB."
    )


@dataclass(frozen=True, kw_only=True)
class _BurstOptions:
    """The options of the commands that run bursts here. None: the usual setting of this device."""

    gpu: str = _like("gpu", "auto, cpu, or the GPU that this machine should have (l4, h200, …).")
    family: str = _like("family")
    seq_len: int | None = _like("seq_len", "Tokens per sequence. Default: 256 on a CPU, 2048 on a GPU.")
    vocab_size: int | None = _like(
        "vocab_size", "Rows of the embedding table. Default: as in the data, else 4096 on a CPU, 32768 on a GPU."
    )  # fmt: skip
    data: Path | None = _like("data", "Token folder from `advisor data prepare`. Default: random tokens.")
    precision: str = _like("precision", choices=PRECISIONS)
    compile: bool | None = _like("compile", "Use torch.compile. Default: yes on a GPU, no on a CPU.")
    activation_checkpointing: str = _like(
        "activation_checkpointing", "Which activations are recomputed in the backward pass.", default="none"
    )  # fmt: skip
    optimizer: str = _like("optimizer", "The optimizer of the bursts.", default="adamw", choices=_OPTIMIZERS)
    price: float | None = _like("one_price", "Dollars per GPU-hour, to compute the cost of the measurement.")


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(_BurstOptions):
    """The options of `calibrate`."""

    depths: tuple[int, ...] | None = _like(
        "depths", "Depths to measure: 2-8 or 2,4,6. Default: 2-8 on a CPU, 4-20 on a GPU."
    )
    budget_seconds: float | None = _like(
        "budget_seconds", "Total time for the bursts (short timed runs). Default: 90s on a CPU, 120s on a GPU."
    )
    fresh: bool = _own("fresh", Kind.SWITCH, "Start over even if an interrupted calibration could be continued.",
                       default=False)  # fmt: skip
    settings: bool = _own(
        "settings", Kind.SWITCH, "Afterwards also measure what each optimisation gives here (precision, compilation, "
        "activation checkpointing, optimizer, attention, …): takes up to twice the time of the bursts.", default=False,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _StartOptions:
    """The options of a run that is started here or elsewhere, or exported."""

    budget: float | None = _like(
        "budget", "Save a checkpoint and stop before the run costs more than this. Default: the plan's budget."
    )
    deadline: float | None = _like(
        "deadline", "Save a checkpoint and stop before this time is over (8h) or before this moment ('Monday 9:00')."
    )
    no_limits: bool = _own("no_limits", Kind.SWITCH, "Do not stop the run at its plan's budget and deadline.",
                           default=False)  # fmt: skip
    synthetic: bool = _like("synthetic", "Train on random tokens if the plan has no data: a speed test.")
    bootstrap: str | None = _own(
        "bootstrap", Kind.TEXT,
        "For an adopted command on another machine: the shell line that sets up its environment.", metavar="LINE",
    )  # fmt: skip
    folder: str | None = _own(
        "folder", Kind.TEXT, "For an adopted command on another machine: the folder in which it runs. Default: the "
        "same path as here.", metavar="FOLDER",
    )  # fmt: skip
    account: str | None = _like("account")
    qos: str | None = _like("qos")
    constraint: str | None = _like("constraint")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions(_StartOptions):
    """The options of `launch`."""

    on: str = _own("on", Kind.TEXT, "Where to run: local, slurm, slurm:PARTITION, ssh:HOST, skypilot, "
                   "skypilot:CLOUD/REGION,... Default: local.", default="local", metavar="ENGINE[:NAME]")  # fmt: skip
    run_dir: Path | None = _own("run_dir", Kind.NEW_FOLDER, "Run folder. Default: ADVISOR_HOME/runs/NAME-TIME.")
    stop_loss: tuple[str, ...] = _like("stop_loss")
    gate: tuple[str, ...] = _like("gate")
    notice: str | None = _own(
        "notice", Kind.TEXT, "Save a checkpoint and stop when FILE appears or when this URL on the machine "
        "answers. Either means that the machine is about to be taken away.", metavar="FILE|URL",
    )  # fmt: skip
    trace: int | None = _own("trace", Kind.WHOLE, "Record a profiler trace of this many steps near the start, for "
                             "`advisor analyze RUN`.", metavar="STEPS")  # fmt: skip
    again: bool = _own("again", Kind.SWITCH, "Start the run even if another run of the same plan is still active.",
                       default=False)  # fmt: skip
    calibrate: bool | None = _own(
        "calibrate", Kind.YES_NO, "First measure this machine (at most two minutes) and plan again within the same "
        "limits. Default: yes if the plan's GPU was never calibrated.",
    )  # fmt: skip
    may_change: str | None = _like("may_change")
    stop_if_over: float | None = _like("stop_if_over")
    gpu_ids: str | None = _own(
        "gpu_ids", Kind.TEXT, "GPUs of this machine to use. Default: the first free ones.", metavar="0,1"
    )


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """The options of `resume`."""

    price: float | None = _like("one_price", "Dollars per GPU-hour from now on. Earlier attempts keep their price.")
    budget: float | None = _like("budget", "New limit on the dollars of all attempts together.")
    deadline: float | None = _like("deadline", "New limit on the time of all attempts together, e.g. 8h.")
    stop_loss: tuple[str, ...] = _like("stop_loss", "New rule for stopping on the loss; `none` removes it.")
    synthetic: bool = _like(
        "synthetic", "Train on random tokens from now on, even if the run's run.yaml does not ask for them."
    )


@dataclass(frozen=True, kw_only=True)
class ExportOptions(_StartOptions):
    """The options of `export` for a plan."""

    data_at: str | None = _own("data_at", Kind.TEXT, "Path of the token folder on the machines that will train.")
    partition: str | None = _own("partition", Kind.TEXT, "Slurm partition.")
    image: str | None = _own("image", Kind.TEXT, "Container image for Kubernetes, to be built from the Dockerfile.")
    volume_claim: str | None = _own(
        "volume_claim", Kind.TEXT, "Volume that outlives the job, for Kubernetes and dstack."
    )
    infra: str | None = _own(
        "infra", Kind.TEXT, "Where SkyPilot or dstack may rent, e.g. aws. Default: the plan's provider."
    )


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions:
    """The options of `analyze` that state what a log does not say, or ask about the rest of its run."""

    gpu: str | None = _like("gpu", "The GPU, if the log does not name it: h100, 8xh100, l4, … or cpu.", default=None)
    gpus: int | None = _like("one_count")
    price: float | None = _like("one_price", "Dollars per GPU-hour. Default: the catalog's lowest price for the GPU.")
    config: Path | None = _own("config", Kind.EXISTING, "The run's configuration, if the log does not contain it.")
    telemetry: Path | None = _own("telemetry", Kind.EXISTING, "Readings of the GPU by nvidia-smi or another program.")
    plan: Path | None = _like("plan")
    format: str | None = _own("format", Kind.TEXT, "Read the log in this format: a name, or a YAML file of your own.")
    target_loss: float | None = _own(
        "target_loss", Kind.NUMBER, "Say whether the run will reach this loss.", least=0, most=1e6
    )
    budget: float | None = _like("budget", "Say whether the whole run stays within this many dollars.")
    deadline: float | None = _like(
        "deadline", "Say whether the whole run ends in this time, e.g. 8h.", kind=Kind.SECONDS
    )


@dataclass(frozen=True, kw_only=True)
class AdoptedGoal:
    """The goal of an adopted command. None: not given; without any goal it does the steps of its own command."""

    deadline_seconds: float | None = _like(
        "deadline", "Plan as many steps as can finish by this time: 3min, 8h, 'Monday 9:00'."
    )
    budget_usd: float | None = _like("budget", "Plan as many steps as this pays for, at --price.")
    usd_per_gpu_hour: float | None = _like("one_price")
    steps: int | None = _own("steps", Kind.WHOLE, "Optimizer steps to plan for.", label="Steps", least=1, most=1e12)
    tokens: int | None = _like("tokens", "Number of training tokens to plan for; with --epochs, the tokens per epoch.")
    rows: int | None = _own(
        "samples", Kind.COUNT, "Number of samples to plan for, if the data are not tokenised.",
        label="Samples", least=1, most=1e15,
    )  # fmt: skip
    epochs: float | None = _like("epochs", "Number of passes over the data to plan for.", empty="")
    gpus: int | None = _like(
        "one_count", "Number of processes to plan for. Default: the command's own number.", label="Processes", most=1024
    )
    memory_bytes: float | None = None  # that may be filled; None: not limited


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """The options of `model sample`: how text is drawn."""

    tokens: int = _own("max_tokens", Kind.WHOLE, "Maximum number of tokens per text.", default=200, least=1, most=1e7)
    samples: int = _own("texts", Kind.WHOLE, "Number of texts, each with its own seed.", default=1, least=1, most=1e7)
    temperature: float = _own("temperature", Kind.NUMBER, "0: the likeliest token.", default=0.8, least=0, most=1e6)
    top_k: int | None = _own("top_k", Kind.WHOLE, "Draw only from this number of likeliest tokens.", least=1, most=1e7)
    top_p: float | None = _own(
        "top_p", Kind.NUMBER, "Draw only from the likeliest tokens with this total probability.", least=1e-6, most=1
    )
    seed: int = _own("seed", Kind.WHOLE, "Seed of the first text.", default=0, least=0, most=1e7)
    chat: bool = _own("chat", Kind.SWITCH, "Treat the prompt as a user's message to a chat model.", default=False)
    device: str = _like("device")
    tokenizer: Path | None = _like("tokenizer")
