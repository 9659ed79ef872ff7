"""The run card: what a plan or report declares, measures and claims. `docs/file-formats.md` lists the fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from advisor.auditing.quantity import ClaimedQuantity
from advisor.hardware.catalog import GpuSpec, gpus_named, load_gpus

SCHEMA = 1
COLUMNS = (
    *("step", "loss", "perplexity", "learning_rate", "grad_norm", "seconds", "tokens_per_second"),
    *("utilization_percent", "memory_mib"),
)
PHASES = ("forward", "backward", "grad_norm", "clip", "optimizer", "flush", "data", "other")
MEASURED = ("steps_done", "step_time", "throughput", "memory_used", "power", "utilization", "initial_loss", "elapsed")


def _stated(spec: str) -> Any:
    """Return a field of a configuration with the kind of value that it must have: see `load.read_fields`."""
    return field(default=None, metadata={"spec": spec})


@dataclass(frozen=True, kw_only=True)
class CardSetup:
    """One configuration with its measurements. None means that the report does not state the value."""

    name: str = field(default="run", metadata={"spec": "text"})
    family: str | None = _stated("nanochat|gpt2|llama")
    depth: int | None = _stated("whole")
    width: int | None = _stated("whole")
    heads: int | None = _stated("whole")
    kv_heads: int | None = _stated("whole")
    ffn_width: int | None = _stated("whole")
    vocab_size: int | None = _stated("whole")
    seq_len: int | None = _stated("whole")
    tied_head: bool | None = _stated("flag")
    micro_batch: int | None = _stated("whole")
    grad_accum: int = field(default=1, metadata={"spec": "whole"})
    gpus: int = field(default=1, metadata={"spec": "whole"})
    step_tokens: int | None = _stated("whole")
    steps: int | None = _stated("whole")
    steps_done: int | None = _stated("whole")
    gpu: str | None = _stated("gpu")
    machine: str | None = _stated("text")  # the provider's name for it
    backend: str | None = _stated("text")
    precision: str | None = _stated("bf16|fp16|fp32")
    tf32: bool | None = _stated("flag")  # whether fp32 products run in TF32
    compile: bool | None = _stated("flag")
    optimizer: str = field(default="adamw", metadata={"spec": "adamw|muon"})
    schedule: str | None = _stated("cosine|constant")
    learning_rate: float | None = _stated("float")
    min_learning_rate: float | None = _stated("float")
    warmup_steps: int | None = _stated("whole")
    grad_clip: float | None = _stated("float")
    data: str | None = _stated("text|random")
    parameters: ClaimedQuantity | None = _stated("count")  # as printed; if the shape is stated, it decides
    active_parameters: ClaimedQuantity | None = _stated("count")  # that a token uses, for a mixture of experts
    dataset: ClaimedQuantity | None = _stated("bytes")
    dataset_tokens: ClaimedQuantity | None = _stated("count")
    bytes_per_token: float | None = _stated("float")
    price: ClaimedQuantity | None = _stated("usd_per_hour")  # of one GPU
    price_of: str | None = _stated("gpu|machine")  # machine: the text says that `price` is for all GPUs together
    step_time: ClaimedQuantity | None = _stated("seconds")
    throughput: ClaimedQuantity | None = _stated("rate")  # of all GPUs together
    memory_used: ClaimedQuantity | None = _stated("bytes")  # per GPU
    utilization: ClaimedQuantity | None = _stated("fraction")
    power: ClaimedQuantity | None = _stated("watts")
    initial_loss: ClaimedQuantity | None = _stated("count")
    elapsed: ClaimedQuantity | None = _stated("seconds")

    @property
    def tokens_of_a_step(self) -> int | None:
        """Return the tokens of one optimizer step over all GPUs: as stated, or else batch × accumulation × length."""
        if self.step_tokens is not None:
            return self.step_tokens
        if self.micro_batch is None or self.seq_len is None:
            return None
        return self.micro_batch * self.grad_accum * self.seq_len * self.gpus

    @property
    def rate(self) -> tuple[float, float] | None:
        """Return the lowest and highest tokens per second of all GPUs: as measured, or else from the step time."""
        if self.throughput is not None:
            return self.throughput.low, self.throughput.high
        tokens = self.tokens_of_a_step
        if self.step_time is None or tokens is None or self.step_time.low <= 0:
            return None
        return tokens / self.step_time.high, tokens / self.step_time.low

    @property
    def seconds_of_a_step(self) -> tuple[float, float] | None:
        """Return the lowest and highest seconds of one optimizer step."""
        if self.step_time is not None:
            return self.step_time.low, self.step_time.high
        if self.throughput is None or self.tokens_of_a_step is None:
            return None
        return self.tokens_of_a_step / self.throughput.high, self.tokens_of_a_step / self.throughput.low


SETUP_FIELDS: dict[str, str] = {one.name: f"{one.metadata['spec']}?" for one in fields(CardSetup)}


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of a report, in a form that can be checked."""

    id: str
    kind: str
    form: str  # form of its kind: `kinds.yaml`
    text: str  # short paraphrase
    line: int | None = None  # of the report
    lines: tuple[int, ...] = ()  # lines of all its quotes
    about: str = "run"  # name of a setup
    says: Mapping[str, Any] = field(default_factory=dict)  # the fields of its form
    premises: tuple[str, ...] = ()  # ids of the claims on which it depends
    quote: str = ""  # the report's own words
    opinion: str = ""  # what the reader of the report thinks of the claim; decides nothing
    because: str = ""
    correct: str = ""  # the value that the reader would put in its place

    def get(self, name: str) -> Any:
        """Return a field of the claim's kind, or None if the claim leaves it out."""
        return self.says.get(name)


@dataclass(frozen=True, kw_only=True)
class Card:
    """One complete report or plan."""

    id: str
    title: str
    run: CardSetup
    claims: tuple[Claim, ...]
    source: str = ""
    others: tuple[CardSetup, ...] = ()
    rows: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # of COLUMNS, equally long
    timing: Mapping[str, ClaimedQuantity] = field(default_factory=dict)  # phase → seconds of one step
    assumed: tuple[str, ...] = ()  # what the card assumes because the report does not say it, in words
    unplaced: tuple[str, ...] = ()  # sentences with numbers that fit no kind of claim, with their lines

    def setup(self, name: str) -> CardSetup:
        """Return the run itself, or another configuration by its name. Raises KeyError for an unknown name."""
        return {"run": self.run, **{other.name: other for other in self.others}}[name]

    def column(self, name: str) -> list[float | None]:
        """Return a measured column, which is empty if the report has none."""
        assert name in COLUMNS, name
        return list(self.rows.get(name, ()))


def gpus_meant(name: str) -> list[GpuSpec]:
    """Return every GPU of the catalog that a name can mean: by key, driver name, or its chip alone ("V100")."""
    return gpus_named(name) or [spec for key, spec in load_gpus().items() if key.split("-")[0] == name.strip().lower()]
