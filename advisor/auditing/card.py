"""The run card: what a plan or report declares, measures and claims. `docs/file-formats.md` lists the fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from advisor.auditing.quantity import Quantity

SCHEMA = 1
COLUMNS = (
    *("step", "loss", "perplexity", "learning_rate", "grad_norm", "seconds", "tokens_per_second"),
    *("utilization_percent", "memory_mib"),
)
PHASES = ("forward", "backward", "grad_norm", "clip", "optimizer", "flush", "data", "other")
MEASURED = (
    *("steps_done", "step_time", "throughput", "memory_used", "power", "utilization", "initial_loss", "elapsed"),
)

# field → what its value must be: see `fields.read_fields`
SETUP_FIELDS = {
    "name": "text?",
    "family": "nanochat|gpt2|llama?",
    **dict.fromkeys(("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len"), "whole?"),
    "tied_head": "flag?",
    **dict.fromkeys(("micro_batch", "grad_accum", "gpus", "step_tokens", "steps", "steps_done"), "whole?"),
    "gpu": "card?",
    "machine": "text?",  # the provider's name of it
    "backend": "text?",
    "precision": "bf16|fp16|fp32?",
    "tf32": "flag?",  # whether fp32 products run in TF32
    "compile": "flag?",
    "optimizer": "adamw|muon?",
    "schedule": "cosine|constant?",
    **dict.fromkeys(("learning_rate", "min_learning_rate", "grad_clip", "bytes_per_token"), "float?"),
    "warmup_steps": "whole?",
    "data": "text|random?",
    "dataset": "bytes?",
    "dataset_tokens": "count?",
    "price": "usd_per_hour?",  # of all GPUs together
    "step_time": "seconds?",
    "throughput": "rate?",  # all GPUs together
    "memory_used": "bytes?",  # per GPU
    "utilization": "fraction?",
    "power": "watts?",
    "initial_loss": "count?",
    "elapsed": "seconds?",
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """One configuration with what was measured of it. None: the report does not say."""

    name: str = "run"
    family: str | None = None
    depth: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn_width: int | None = None
    vocab_size: int | None = None
    seq_len: int | None = None
    tied_head: bool | None = None
    micro_batch: int | None = None
    grad_accum: int = 1
    gpus: int = 1
    step_tokens: int | None = None
    steps: int | None = None
    steps_done: int | None = None
    gpu: str | None = None
    machine: str | None = None
    backend: str | None = None
    precision: str | None = None
    tf32: bool | None = None
    compile: bool | None = None
    optimizer: str = "adamw"
    schedule: str | None = None
    learning_rate: float | None = None
    min_learning_rate: float | None = None
    warmup_steps: int | None = None
    grad_clip: float | None = None
    data: str | None = None
    dataset: Quantity | None = None
    dataset_tokens: Quantity | None = None
    bytes_per_token: float | None = None
    price: Quantity | None = None
    step_time: Quantity | None = None
    throughput: Quantity | None = None
    memory_used: Quantity | None = None
    utilization: Quantity | None = None
    power: Quantity | None = None
    initial_loss: Quantity | None = None
    elapsed: Quantity | None = None

    @property
    def tokens_of_a_step(self) -> int | None:
        """Tokens of one optimizer step over all GPUs: as stated, else the product of batch, accumulation and length."""
        if self.step_tokens is not None:
            return self.step_tokens
        if self.micro_batch is None or self.seq_len is None:
            return None
        return self.micro_batch * self.grad_accum * self.seq_len * self.gpus

    @property
    def rate(self) -> tuple[float, float] | None:
        """Tokens per second, all GPUs, lowest and highest: as measured, else from the step time."""
        if self.throughput is not None:
            return self.throughput.low, self.throughput.high
        tokens = self.tokens_of_a_step
        if self.step_time is None or tokens is None or self.step_time.low <= 0:
            return None
        return tokens / self.step_time.high, tokens / self.step_time.low

    @property
    def seconds_of_a_step(self) -> tuple[float, float] | None:
        """Seconds of one optimizer step, lowest and highest."""
        if self.step_time is not None:
            return self.step_time.low, self.step_time.high
        if self.throughput is None or self.tokens_of_a_step is None:
            return None
        return self.tokens_of_a_step / self.throughput.high, self.tokens_of_a_step / self.throughput.low


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One thing that a report says, in a form that can be checked."""

    id: str
    kind: str
    text: str  # short paraphrase
    line: int | None = None  # of the report
    about: str = "run"  # name of a setup
    says: Mapping[str, Any] = field(default_factory=dict)  # the fields of its kind

    def get(self, name: str) -> Any:
        """A field of the claim's kind, None where the claim leaves it out."""
        return self.says.get(name)


@dataclass(frozen=True, kw_only=True)
class Card:
    """One report or plan, complete."""

    id: str
    title: str
    run: Setup
    claims: tuple[Claim, ...]
    source: str = ""
    others: tuple[Setup, ...] = ()
    rows: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # of COLUMNS, equally long
    timing: Mapping[str, Quantity] = field(default_factory=dict)  # phase → seconds of one step
    assumed: tuple[str, ...] = ()  # what the report does not say and the card fills in, in words
    unplaced: tuple[str, ...] = ()  # sentences with numbers of which no claim could be made, with their lines

    def setup(self, name: str) -> Setup:
        """The run itself, or another configuration by its name; KeyError for an unknown one."""
        return {"run": self.run, **{other.name: other for other in self.others}}[name]

    def column(self, name: str) -> list[float | None]:
        """A measured column, empty where the report has none."""
        assert name in COLUMNS, name
        return list(self.rows.get(name, ()))
