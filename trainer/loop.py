"""The training step, the same for calibration bursts and for full runs.

On CUDA the measurements of a step are read one step later: by then they have arrived, and the card never waits for the
log. On the CPU they are there at once.
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trainer.checkpoint import load_newest, save_checkpoint
from trainer.clock import Clock, Stamp
from trainer.data import TokenSource
from trainer.device import DeviceContext, PeakMemory, peak_memory
from trainer.model import Transformer, build_model
from trainer.optim import build_optimizers, learning_rate_factor, set_learning_rate
from trainer.schema import RunConfig

_FIRST_SAMPLED_STEPS = 3  # phases are timed on these and on every `phases_every`-th


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among those that train one model together."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    @staticmethod
    def from_environment() -> World:
        """What torchrun says; one process of one where it says nothing."""
        names = {"rank": "RANK", "local_rank": "LOCAL_RANK", "size": "WORLD_SIZE"}
        return World(**{field: int(os.environ[name]) for field, name in names.items() if name in os.environ})


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step as it is logged; `docs/architecture.md` describes each field."""

    step: int  # optimizer steps done, this one included
    tokens: int  # since the run began, all devices
    loss: float
    learning_rate: float
    grad_norm: float
    clipped: bool
    seconds: float
    data_seconds: float | None
    forward_seconds: float | None
    backward_seconds: float | None
    clip_seconds: float | None
    optimizer_seconds: float | None
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    resident_peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    loss: float  # nats per token
    tokens: int  # all devices
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A step whose measurements may still be on their way."""

    step: int
    learning_rate: float
    began: Stamp
    laps: list[tuple[str, Stamp]]  # phase and its end, on sampled steps
    ended: Stamp
    values: Tensor  # loss, gradient norm, share of processes asking to stop; on the host once `ended` has passed
    memory: PeakMemory


class Trainer:
    """A model in training: `step` after `step`, with evaluation, saving and resuming in between.

    `stop_requested` may be set on any process; `stop_agreed` then becomes true on all of them after the same step.
    """

    def __init__(
        self,
        config: RunConfig,
        context: DeviceContext,
        tokens: TokenSource,
        world: World | None = None,
        *,
        phases_every: int = 20,
    ):
        self.config, self.context, self.tokens = config, context, tokens
        self.world = world or World()
        self.steps_done = 0
        self.stop_requested = self.stop_agreed = False
        torch.manual_seed(config.seed)
        with context.device:
            self.model: Transformer = build_model(
                config.model, activation_checkpointing=config.activation_checkpointing
            )
        if config.compile:
            self.model.compile_blocks()
        self.optimizers = build_optimizers(self.model, config.optimizer, context.device)
        self._scaler = context.grad_scaler()
        self._replica = self._replicate()
        self._parameters = list(self.model.parameters())
        self._clock = Clock(context)
        self._last_end: Stamp | None = None
        self._pending: _Pending | None = None
        self._phases_every, self._steps_here = phases_every, 0
        # Several processes must act on a record at the same point of the run, also when one of them alone flushes (to
        # write a checkpoint): they read each step at once, for some microseconds of an idle card.
        self._reads_late = context.is_cuda and self.world.size == 1

    @property
    def parameters(self) -> int:
        """The exact number of parameters, tied ones once."""
        return sum(p.numel() for p in self._parameters)

    @property
    def tokens_per_step(self) -> int:
        return self.config.tokens_per_step(self.world.size)

    def steps(self, count: int) -> Iterator[StepRecord]:
        """Do `count` steps and give the record of each, in order."""
        for _ in range(count):
            if (record := self.step()) is not None:
                yield record
        if (record := self.flush()) is not None:
            yield record

    def step(self) -> StepRecord | None:
        """Do one optimizer step; give the newest complete record: this step's, or on one CUDA card the last one's."""
        config, clock, done = self.config, self._clock, self.steps_done
        sampled = self._steps_here < _FIRST_SAMPLED_STEPS or self._steps_here % self._phases_every == 0
        began = clock.stamp()
        laps: list[tuple[str, Stamp]] = []

        def lap(phase: str) -> None:
            if sampled:
                laps.append((phase, clock.stamp()))

        factor = learning_rate_factor(config.schedule, done, config.steps)
        set_learning_rate(self.optimizers, factor)
        loss = torch.zeros((), device=self.context.device)
        for micro in range(config.grad_accum):
            tokens, targets = self._batch(done, micro)
            lap("data")
            with self._synchronised(micro == config.grad_accum - 1):
                with self.context.autocast():
                    micro_loss = self._replica(tokens, targets)
                lap("forward")
                self._scaler.scale(micro_loss / config.grad_accum).backward()
            loss += micro_loss.detach()
            lap("backward")
        norm = self._clip()
        lap("clip")
        self._update()
        lap("optimizer")
        values = self._to_host(self._averaged(loss / config.grad_accum, norm))
        ended = clock.stamp()
        self.steps_done += 1
        self._steps_here += 1
        before, self._pending = (
            self._pending,
            _Pending(
                step=self.steps_done,
                learning_rate=config.optimizer.learning_rate * factor,
                began=began if self._last_end is None else self._last_end,
                laps=[("", began), *laps] if sampled else [],
                ended=ended,
                values=values,
                memory=peak_memory(self.context),
            ),
        )
        self._last_end = ended
        if not self._reads_late:
            return self.flush()
        return None if before is None else self._complete(before)

    def flush(self) -> StepRecord | None:
        """Wait for the measurements still on their way; None when there are none."""
        pending, self._pending = self._pending, None
        return None if pending is None else self._complete(pending)

    def restart_clock(self) -> None:
        """Leave what was done since the last step (an evaluation, a checkpoint) out of the next step's seconds."""
        self._last_end = None

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Mean loss over the configured validation tokens; leaves the clock restarted. Flush before it."""
        began = time.perf_counter()
        total = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        batches = self.tokens.eval_batches(self.config.eval.tokens, self.config.micro_batch)
        # Compiled code would be compiled once more for inference, which a short evaluation never earns back.
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
        with eager:
            for number, (tokens, targets) in enumerate(batches):
                if number % self.world.size != self.world.rank:
                    continue
                with self.context.autocast():
                    loss = self.model(self._to_device(tokens), self._to_device(targets))
                total += torch.stack((loss.double() * tokens.numel(), loss.new_tensor(tokens.numel()).double()))
        if self.world.size > 1:
            dist.all_reduce(total)
        summed, count = total.tolist()
        self.restart_clock()
        return Evaluation(loss=summed / count, tokens=int(count), seconds=time.perf_counter() - began)

    def save(self, folder: Path, extra: dict[str, Any]) -> tuple[str, int]:
        """Write a checkpoint of this very moment; gives its relative path and bytes. Flush before it; main process."""
        extra = {**extra, "scaler": self._scaler.state_dict()}
        written = save_checkpoint(folder, self.steps_done, self.model, self.optimizers, extra)
        self.restart_clock()
        return written

    def resume(self, folder: Path, on_message: Callable[[str], None]) -> dict[str, Any] | None:
        """Go on from the newest sound checkpoint, if there is one; gives what `save` was given."""
        extra = load_newest(folder, self.model, self.optimizers, on_message)
        if extra is not None:
            self.steps_done = extra["step"]
            if scaler := extra.get("scaler"):
                self._scaler.load_state_dict(scaler)
        return extra

    def _replicate(self) -> nn.Module:
        if self.world.size == 1:
            return self.model
        devices = [self.context.device] if self.context.is_cuda else None
        # the only buffer is the rotary table, the same everywhere; torch 2.13 gave the switch a new name
        known = inspect.signature(DistributedDataParallel).parameters
        no_sync = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
        switches: dict[str, Any] = {"gradient_as_bucket_view": True, no_sync: False}
        return DistributedDataParallel(self.model, device_ids=devices, **switches)

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients are averaged over processes with the last micro-batch only."""
        if last or not isinstance(self._replica, DistributedDataParallel):
            return nullcontext()
        return self._replica.no_sync()

    def _batch(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        config, world = self.config, self.world
        tokens, targets = self.tokens.train_batch(
            step, micro, world.rank, world.size, config.micro_batch, config.grad_accum
        )
        return self._to_device(tokens), self._to_device(targets)

    def _to_device(self, tensor: Tensor) -> Tensor:
        """From pinned memory the copy only queues behind the previous step's work: the CPU goes on."""
        if not self.context.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.context.device, non_blocking=True)

    def _clip(self) -> Tensor:
        """Scale the gradients down to the configured norm; gives the norm they had before."""
        for optimizer in self.optimizers:
            self._scaler.unscale_(optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        limit = self.config.optimizer.grad_clip
        if limit is None:
            return norm
        # A decision on the CPU is free and mostly saves a pass over all gradients; on CUDA it would wait for the card.
        if self.context.is_cuda or not norm.item() <= limit:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, limit, norm)
        return norm

    def _update(self) -> None:
        for optimizer in self.optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _averaged(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Loss, norm and the wish to stop, averaged over the processes in one exchange."""
        values = torch.stack((loss, norm, torch.full_like(loss, float(self.stop_requested))))
        if self.world.size > 1:
            dist.all_reduce(values)
            values /= self.world.size
        return values

    def _to_host(self, values: Tensor) -> Tensor:
        if not self.context.is_cuda:
            return values
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)

    def _complete(self, pending: _Pending) -> StepRecord:
        clock = self._clock
        clock.wait(pending.ended)
        loss, norm, stop = pending.values.tolist()
        self.stop_agreed = self.stop_agreed or stop > 0
        limit = self.config.optimizer.grad_clip
        return StepRecord(
            step=pending.step,
            tokens=pending.step * self.tokens_per_step,
            loss=loss,
            learning_rate=pending.learning_rate,
            grad_norm=norm,
            clipped=limit is not None and not norm <= limit,
            seconds=clock.between(pending.began, pending.ended),
            **_phase_seconds(clock, pending.laps),
            allocated_peak_bytes=pending.memory.allocated_peak_bytes,
            reserved_peak_bytes=pending.memory.reserved_peak_bytes,
            resident_peak_bytes=pending.memory.resident_peak_bytes,
        )


def _phase_seconds(clock: Clock, laps: list[tuple[str, Stamp]]) -> Mapping[str, float | None]:
    """Sums over the micro-batches by phase, from the ends of consecutive phases; all None where none were taken."""
    names = [f"{phase}_seconds" for phase in ("data", "forward", "backward", "clip", "optimizer")]
    if not laps:
        return dict.fromkeys(names)
    sums = dict.fromkeys(names, 0.0)
    for (_, start), (phase, end) in zip(laps, laps[1:], strict=False):
        sums[f"{phase}_seconds"] += clock.between(start, end)
    return sums
