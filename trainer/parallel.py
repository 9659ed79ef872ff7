"""Trains one model in several processes: a whole copy in each (DDP), or split over them (FSDP2)."""

from __future__ import annotations

import inspect
import json
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.compiled import keep_compiled_code
from trainer.device import DeviceContext
from trainer.model import Transformer, build_model, initialise
from trainer.schema import RunConfig


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among the processes that train one model together."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @staticmethod
    def from_environment() -> World:
        """Return the world that torchrun describes. It is a single process if torchrun set nothing."""
        names = {"rank": "RANK", "local_rank": "LOCAL_RANK", "size": "WORLD_SIZE"}
        return World(**{field: int(os.environ[name]) for field, name in names.items() if name in os.environ})

    def gather(self, value: Any, device: torch.device) -> list[Any]:
        """Collect a value from every process, by rank. All processes must call this at the same time, and wait.

        Values are JSON, so that nothing another machine sends is executed.
        """
        if self.size == 1:
            return [value]
        own = json.dumps(value).encode()
        length = torch.tensor(len(own), device=device)
        dist.all_reduce(length, op=dist.ReduceOp.MAX)
        padded = torch.frombuffer(bytearray(own.ljust(int(length))), dtype=torch.uint8).to(device)
        gathered = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(gathered, padded)
        return [json.loads(text.cpu().numpy().tobytes()) for text in gathered]


def build(config: RunConfig, context: DeviceContext, world: World) -> Transformer:
    """Return the initialised model on its device: this process's rows if it is split, else all of it.

    A split model is never whole on any device. Its parameters are drawn one by one, each as in the whole model.
    """
    split = config.sharding == "full" and world.size > 1
    torch.manual_seed(config.seed)
    with torch.device("meta") if split else context.device:
        model = build_model(config.model, activation_checkpointing=config.activation_checkpointing)
    model.loss_chunk_tokens = config.loss_chunk_tokens
    model.use_blocked_attention(config.attention == "auto")
    if config.compile:
        keep_compiled_code()
        model.compile_blocks()
    if split:
        _split(model, context, world)
        model.to_empty(device=context.device)
        initialise(model)
    return model


def replicate(model: Transformer, config: RunConfig, context: DeviceContext, world: World) -> nn.Module:
    """Return the module that a step calls: the model, wrapped to average gradients if each process has a whole copy."""
    if world.size == 1 or config.sharding == "full":
        return model
    devices = [context.device] if context.is_cuda else None
    # The only buffer is the rotary table, which is the same everywhere. torch 2.13 renamed the switch.
    known = inspect.signature(DistributedDataParallel).parameters
    no_sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    switches: dict[str, Any] = {"gradient_as_bucket_view": True, no_sync: False}
    return DistributedDataParallel(model, device_ids=devices, **switches)


def synchronised(replica: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Average the gradients of whole copies over processes, with the last micro-batch only.

    Gradients of a split model are averaged with each micro-batch: kept whole, they would take the memory that is saved.
    """
    if last or not isinstance(replica, DistributedDataParallel):
        return nullcontext()
    return replica.no_sync()


def _split(model: Transformer, context: DeviceContext, world: World) -> None:
    """Split each block, and the rest together, by rows.

    What the blocks cast to 16 bits for arithmetic is gathered in 16 bits. Embeddings and head are used in fp32 and
    gathered in fp32. Gradients are summed over processes in fp32, as in DistributedDataParallel.
    """
    from torch.distributed.device_mesh import init_device_mesh  # these two imports take seconds, and few runs are split
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(context.device.type, (world.size,))
    fp32: dict[str, Any] = {"reduce_dtype": torch.float32, "cast_forward_inputs": False}
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=context.dtype, **fp32))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**fp32))


def gathered_no_more(model: nn.Module) -> None:
    """Release what a forward pass without a backward pass gathered of a split model."""
    if (reshard := getattr(model, "reshard", None)) is not None:
        reshard()


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the norm of all gradients together. Gradients of split parameters count over all processes."""
    norm: Any = torch.nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
