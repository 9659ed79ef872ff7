"""What can be set otherwise in a run without changing what it computes in the mean: one change each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainer.messages import WorkerDevice
from trainer.schema import ACTIVATION_CHECKPOINTING, RunConfig

_MICRO_BATCHES = (0.25, 0.5, 2, 4)  # times the base's, the effective batch kept
_CHUNKS = (0.25, 4)  # of the default chunk of the loss
_TF32_SINCE = 8.0  # compute capability: Ampere
_DEFAULT_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}  # of logits in fp32, as trainer/loss.py has it


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One setting that differs from the base; `changes` by field of the run's configuration, `a.b` a nested one."""

    knob: str
    name: str
    changes: Mapping[str, Any]

    def of(self, base: RunConfig) -> RunConfig:
        """The base with this setting."""
        config = base
        for path, value in self.changes.items():
            config = _with(config, path.split("."), value)
        return config


def both(one: Variant, other: Variant) -> Variant:
    """Two settings of different knobs at once."""
    return Variant(
        knob=f"{one.knob} and {other.knob}",
        name=f"{one.name}, {other.name}",
        changes={**one.changes, **other.changes},
    )


def variants(base: RunConfig, device: WorkerDevice) -> list[Variant]:
    """Every setting of each knob that this device has and the base does not use; `base.precision` is resolved."""
    return [*_precisions(base, device), *_compiled(base), *_recomputation(base), *_micro_batches(base),
            *_attention(base, device), *_loss_chunks(base, device), *_optimizer(base)]  # fmt: skip


def _precisions(base: RunConfig, device: WorkerDevice) -> Iterator[Variant]:
    cuda = device.type == "cuda"
    for precision in ("fp32", "bf16", "fp16"):
        if precision == base.precision or (precision == "fp16" and not cuda):  # a CPU has no scaled fp16 training
            continue
        name = "fp16, scaled loss" if precision == "fp16" else precision
        yield Variant(knob="precision", name=name, changes={"precision": precision})
    if cuda and float(device.compute_capability or 0) >= _TF32_SINCE:
        if base.precision == "fp32":
            name = "TF32 off" if base.tf32 else "TF32 on"
            yield Variant(knob="TF32", name=name, changes={"tf32": not base.tf32})
        else:
            yield Variant(knob="precision", name="fp32, TF32 off", changes={"precision": "fp32", "tf32": False})


def _compiled(base: RunConfig) -> Iterator[Variant]:
    name = "not compiled" if base.compile else "torch.compile"
    yield Variant(knob="compile", name=name, changes={"compile": not base.compile})


def _recomputation(base: RunConfig) -> Iterator[Variant]:
    for kind in ACTIVATION_CHECKPOINTING:
        if kind != base.activation_checkpointing:
            name = "nothing recomputed" if kind == "none" else f"{kind} recomputation"
            yield Variant(knob="recomputation", name=name, changes={"activation_checkpointing": kind})


def _micro_batches(base: RunConfig) -> Iterator[Variant]:
    whole = base.micro_batch * base.grad_accum
    for factor in _MICRO_BATCHES:
        size = base.micro_batch * factor
        if size >= 1 and size == int(size) and whole % int(size) == 0:
            micro, accumulated = int(size), whole // int(size)
            changes = {"micro_batch": micro, "grad_accum": accumulated}
            yield Variant(knob="micro-batch", name=f"micro-batch {micro} × {accumulated}", changes=changes)


def _attention(base: RunConfig, device: WorkerDevice) -> Iterator[Variant]:
    kernels = ("flash", "efficient", "cudnn", "math") if device.type == "cuda" else ("math",)  # a CPU's own is flash
    for kernel in kernels:
        if kernel != base.attention:
            yield Variant(knob="attention", name=f"{kernel} attention", changes={"attention": kernel})


def _loss_chunks(base: RunConfig, device: WorkerDevice) -> Iterator[Variant]:
    tokens = base.micro_batch * base.model.seq_len
    usual = _DEFAULT_CHUNK_BYTES[device.type] // (4 * base.model.vocab_size)
    sizes = {max(1, min(tokens, int(usual * factor))) for factor in _CHUNKS}
    for size in sorted((sizes - {min(tokens, usual)}) | {tokens}):
        if size != base.loss_chunk_tokens and (size < tokens or usual < tokens):
            name = "logits of a micro-batch at once" if size == tokens else f"loss by {size} tokens"
            yield Variant(knob="loss chunks", name=name, changes={"loss_chunk_tokens": size})


def _optimizer(base: RunConfig) -> Iterator[Variant]:
    fused = base.optimizer.fused
    name = "optimizer not fused" if fused else "fused optimizer"
    yield Variant(knob="fused optimizer", name=name, changes={"optimizer.fused": not fused})


def _with(record: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(record, **{name: _with(getattr(record, name), rest, value) if rest else value})
