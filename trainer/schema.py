"""The trainer's contract: model shape, run configuration and log record kinds.

Imports only the standard library and pyyaml, so that the advisor can read and write these without importing torch.
`docs/file-formats.md` describes the same fields for people.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from trainer.plain import ConfigError, build, close, record_from_dict, to_dict

__all__ = ["ConfigError", "record_from_dict", "to_dict"]  # in addition to what this module defines

SCHEMA = 1

FAMILIES = ("nanochat", "gpt2", "llama")
PRECISIONS = ("auto", "bf16", "fp16", "fp32")
DEVICES = ("auto", "cpu", "cuda")
OPTIMIZERS = ("adamw", "muon")
SCHEDULES = ("cosine", "wsd")
ACTIVATION_CHECKPOINTING = ("none", "selective", "full")
SHARDINGS = ("none", "full")
ATTENTION_KERNELS = ("auto", "flash", "efficient", "cudnn", "math")
CONFIG = "run.yaml"  # in a run folder: the configuration, whose limits count even if they change while it runs
TRACES = "traces"  # in a run folder: the profiler trace of each process
TRACE_LEAD, TRACE_WARMUP = 6, 2  # steps of an attempt before a trace: without the profiler, and while it warms up


class Outcome(StrEnum):
    """How a run or a burst ended. It is a value in the data, never an exception that is recognised by its text."""

    COMPLETED = "completed"
    STOPPED = "stopped"  # a signal, a guard or a stop condition; a checkpoint was written
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"  # the loss or the gradient norm stopped being finite
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Everything that determines the parameter count and the FLOPs of a decoder-only transformer."""

    family: str
    depth: int  # transformer blocks
    width: int  # residual stream
    heads: int  # query heads
    kv_heads: int  # key/value heads (grouped-query attention if fewer than heads)
    ffn_width: int
    vocab_size: int  # rows of the embedding table, including padding
    seq_len: int  # context length; also the number of learned positions (gpt2)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def problems(self) -> list[str]:
        """Return every reason why this shape cannot be built."""
        found = []
        if self.family not in FAMILIES:
            near = close(self.family, FAMILIES)
            found.append(f"model.family: {self.family!r} is not one of {', '.join(FAMILIES)}{near}")
        for name in ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len"):
            if getattr(self, name) < 1:
                found.append(f"model.{name}: {getattr(self, name)} must be at least 1")
        if found:
            return found
        if self.width % self.heads:
            found.append(f"model.width: {self.width} is not a multiple of heads ({self.heads})")
        if self.heads % self.kv_heads:
            found.append(f"model.heads: {self.heads} is not a multiple of kv_heads ({self.kv_heads})")
        if self.family != "gpt2" and not self.width % self.heads and self.head_dim % 2:
            found.append(f"model: head size {self.head_dim} is odd, rotary positions need an even one")
        return found


def make_shape(
    family: str,
    *,
    depth: int,
    vocab_size: int,
    seq_len: int,
    width: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    ffn_width: int | None = None,
) -> ModelShape:
    """Complete a shape from its family's proportions. Given values override derived ones.

    nanochat: width 64·depth rounded up to a multiple of 128, heads of 128, FFN 4·width (karpathy/nanochat, sources
    §1.1). gpt2: width 64·depth, heads of 64, FFN 4·width (GPT-2 small is depth 12; larger published sizes give their
    width). llama: width 128·depth, heads of 128, SwiGLU of 8/3·width rounded up to a multiple of 256 (LLaMA-7B is depth
    32: 4096 and 11008). Raises ConfigError with every problem at once.
    """
    if family not in FAMILIES:
        raise ConfigError([f"family: {family!r} is not one of {', '.join(FAMILIES)}{close(family, FAMILIES)}"])
    unit, head = {"nanochat": (64, 128), "gpt2": (64, 64), "llama": (128, 128)}[family]
    width = width if width is not None else _round_up(unit * depth, head)
    heads = heads if heads is not None else max(1, width // head)
    if ffn_width is None:
        ffn_width = _round_up(-(-8 * width // 3), 256) if family == "llama" else 4 * width
    shape = ModelShape(
        family=family,
        depth=depth,
        width=width,
        heads=heads,
        kv_heads=kv_heads if kv_heads is not None else heads,
        ffn_width=ffn_width,
        vocab_size=vocab_size,
        seq_len=seq_len,
    )
    if problems := shape.problems():
        raise ConfigError(problems)
    return shape


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the tokens come from: a folder written by `advisor data prepare`, or a synthetic stream."""

    path: str | None = None  # folder with tokens.bin, meta.json, tokenizer.json; None: synthetic tokens
    synthetic: bool = False  # synthetic tokens were requested; `advisor` starts no run that has neither them nor a path


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    name: str = "adamw"  # muon: torch.optim.Muon for matrices inside blocks, AdamW for the rest
    learning_rate: float = 3e-4  # peak
    muon_learning_rate: float = 0.02  # peak, matrices only
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1  # on matrices only
    grad_clip: float | None = 1.0  # None logs the norm and does not clip
    fused: bool = True  # AdamW in one kernel


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    name: str = "cosine"
    warmup_steps: int = 0
    final_fraction: float = 0.1  # of the peak learning rate
    decay_fraction: float = 0.2  # wsd only: the last part of the steps, which is linear


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    every_steps: int | None = None  # None evaluates only at the end
    tokens: int = 65536  # validation tokens per evaluation; 0 switches it off


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    every_steps: int | None = None
    every_seconds: float | None = 900.0
    keep: int = 2
    final: bool = True  # write one at the end of a completed run
    background: bool | None = None  # write during the next steps, from a copy in host memory; None does so on CUDA


@dataclass(frozen=True, kw_only=True)
class LossStop:
    """Stop with a checkpoint if the training loss so far is above `above` at or after `step`."""

    step: int
    above: float


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Evaluate after `step`. Continue only if the loss is at most `above` (nats per token), else stop and save."""

    step: int
    above: float


@dataclass(frozen=True, kw_only=True)
class StopConfig:
    max_seconds: float | None = None  # over all attempts at the run, wherever they ran
    max_usd: float | None = None  # over all attempts, each at its own price
    usd_per_hour: float | None = None  # for all devices together; TRAINER_USD_PER_HOUR overrides it for one attempt
    hang_factor: float | None = None  # end a process whose step takes this many times the usual; None switches it off
    hang_seconds: float = 300.0  # the least time that counts as a hang
    step_seconds: float | None = None  # expected time of a step, used until steps are measured
    notice: str | None = None  # a file that appears, or a loopback URL that answers, when the machine is taken away
    loss: tuple[LossStop, ...] = ()
    gates: tuple[Gate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    hz: float | None = None  # None: 10 on CUDA, 2 on CPU; 0: off. At most 100


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One complete training run. `python -m trainer run.yaml --out DIR` needs nothing else."""

    model: ModelShape
    steps: int
    micro_batch: int  # sequences per device per forward pass
    grad_accum: int = 1  # micro-batches per optimizer step on each device
    name: str = "run"
    schema: int = SCHEMA
    seed: int = 1337
    device: str = "auto"
    precision: str = "auto"  # auto: the precision that trains fastest (trainer/device.py)
    tf32: bool = True
    compile: bool = False  # torch.compile, block by block
    activation_checkpointing: str = "none"  # selective: the feed-forward's activation; full: whole blocks
    sharding: str = "none"  # full: weights, gradients and optimizer state split over the processes (FSDP2)
    attention: str = "auto"  # one of torch's kernels; auto lets torch choose
    loss_chunk_tokens: int | None = None  # tokens whose logits exist at once; None chooses by device and vocabulary
    trace_steps: int = 0  # steps near the start of an attempt of which a profiler writes a trace; 0: none
    init_from: str | None = None  # run folder from whose newest checkpoint the weights are taken; None draws new ones
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    telemetry: TelemetryConfig = field(default_factory=TelemetryConfig)

    def tokens_per_step(self, world_size: int = 1) -> int:
        """Return the tokens of one optimizer step over all devices (the global batch)."""
        return self.micro_batch * self.grad_accum * self.model.seq_len * world_size

    def problems(self) -> list[str]:
        """Return every reason why this configuration cannot run."""
        found = self.model.problems()
        if self.schema > SCHEMA:
            found.append(f"schema: {self.schema} was written by a newer version (this one reads up to {SCHEMA})")
        for name in ("steps", "micro_batch", "grad_accum"):
            if getattr(self, name) < 1:
                found.append(f"{name}: {getattr(self, name)} must be at least 1")
        choices = {
            "device": (self.device, DEVICES),
            "precision": (self.precision, PRECISIONS),
            "activation_checkpointing": (self.activation_checkpointing, ACTIVATION_CHECKPOINTING),
            "sharding": (self.sharding, SHARDINGS),
            "attention": (self.attention, ATTENTION_KERNELS),
            "optimizer.name": (self.optimizer.name, OPTIMIZERS),
            "schedule.name": (self.schedule.name, SCHEDULES),
        }
        for name, (value, allowed) in choices.items():
            if value not in allowed:
                found.append(f"{name}: {value!r} is not one of {', '.join(allowed)}{close(value, allowed)}")
        if self.data.synthetic and self.data.path is not None:
            found.append("data.synthetic: true, but data.path names a folder: leave one of them out")
        if self.stop.max_usd is not None and self.stop.usd_per_hour is None:
            found.append("stop.max_usd: dollars are counted by stop.usd_per_hour, which is missing")
        if (notice := self.stop.notice) is not None and "://" in notice and not _is_loopback(notice):
            found.append(f"stop.notice: {notice!r} is neither a file nor an http address of this machine")
        return found + self._range_problems()

    def _range_problems(self) -> list[str]:
        checks = {
            "optimizer.learning_rate": self.optimizer.learning_rate > 0,
            "optimizer.muon_learning_rate": self.optimizer.muon_learning_rate > 0,
            "optimizer.beta1": 0 <= self.optimizer.beta1 < 1,
            "optimizer.beta2": 0 <= self.optimizer.beta2 < 1,
            "optimizer.weight_decay": self.optimizer.weight_decay >= 0,
            "optimizer.grad_clip": self.optimizer.grad_clip is None or self.optimizer.grad_clip > 0,
            "schedule.warmup_steps": self.schedule.warmup_steps >= 0,
            "schedule.final_fraction": 0 <= self.schedule.final_fraction <= 1,
            "schedule.decay_fraction": 0 <= self.schedule.decay_fraction <= 1,
            "eval.every_steps": self.eval.every_steps is None or self.eval.every_steps >= 1,
            "eval.tokens": self.eval.tokens >= 0,
            "checkpoint.every_steps": self.checkpoint.every_steps is None or self.checkpoint.every_steps >= 1,
            "checkpoint.every_seconds": self.checkpoint.every_seconds is None or self.checkpoint.every_seconds > 0,
            "checkpoint.keep": self.checkpoint.keep >= 1,
            "stop.max_seconds": self.stop.max_seconds is None or self.stop.max_seconds > 0,
            "stop.max_usd": self.stop.max_usd is None or self.stop.max_usd > 0,
            "stop.usd_per_hour": self.stop.usd_per_hour is None or self.stop.usd_per_hour >= 0,
            "stop.hang_factor": self.stop.hang_factor is None or self.stop.hang_factor > 1,
            "stop.hang_seconds": self.stop.hang_seconds > 0,
            "stop.step_seconds": self.stop.step_seconds is None or self.stop.step_seconds > 0,
            "stop.gates": all(1 <= gate.step < self.steps and gate.above > 0 for gate in self.stop.gates),
            "eval.tokens, which gates need": not self.stop.gates or self.eval.tokens > 0,
            f"trace_steps, before which there are {TRACE_LEAD + TRACE_WARMUP} steps": (
                0 <= self.trace_steps <= max(0, self.steps - TRACE_LEAD - TRACE_WARMUP)
            ),
            "loss_chunk_tokens": self.loss_chunk_tokens is None or self.loss_chunk_tokens >= 1,
            "telemetry.hz": self.telemetry.hz is None or 0 <= self.telemetry.hz <= 100,
        }
        return [f"{name}: out of range" for name, ok in checks.items() if not ok]


@dataclass(frozen=True, kw_only=True)
class DeviceFacts:
    """What is known about the device of a process. A field is None if it does not exist there or is unknown."""

    type: str  # cpu | cuda
    name: str | None
    memory_bytes: int  # of the GPU, or of the host as far as this process may use it
    compute_capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    count: int = 1  # devices used by the run
    cpu_threads: int | None = None
    fp32_flops: float | None = None  # per second, of one CPU thread in a measured matrix product
    bf16_flops: float | None = None


def config_from_dict(raw: Any) -> RunConfig:
    """Read a run configuration from plain dicts. Raises ConfigError with every problem at once."""
    problems: list[str] = []
    config = build(RunConfig, raw, "", problems)
    if not problems and config is not None:
        problems += config.problems()
    if problems or config is None:
        raise ConfigError(problems)
    return config


def load_config(path: str | Path) -> RunConfig:
    """Read a run configuration from a YAML file, or that of a plan, its `run`. Raises ConfigError or OSError."""
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError([f"{path} is not valid YAML: {' '.join(str(error).split())}"]) from error
    return config_from_dict(raw.get("run", raw) if isinstance(raw, dict) else raw)


def dump_config(config: RunConfig) -> str:
    """Write a run configuration as YAML text that `load_config` reads back unchanged."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def _is_loopback(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")


def _round_up(value: int, multiple: int) -> int:
    return max(1, -(-value // multiple)) * multiple
