"""The training step, which is the same for calibration bursts and for full runs.

On CUDA the measurements of a step are read one step later, when they have arrived, so that the GPU never waits for the
log. On the CPU they are available at once.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from trainer.checkpoint import Snapshot, load_newest, load_weights, take_snapshot
from trainer.checkpoint_files import CHECKPOINTS
from trainer.clock import Clock, Stamp
from trainer.data import TokenSource
from trainer.device import DeviceContext, PeakMemory, peak_memory
from trainer.optim import build_optimizers, learning_rate_factor, set_learning_rate
from trainer.parallel import World, build, gathered_no_more, replicate, synchronised, total_norm
from trainer.schema import RunConfig

_FIRST_SAMPLED_STEPS = 3  # the phases of these steps are timed, and those of every `phases_every`-th step


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One optimizer step as it is logged. `docs/file-formats.md` describes each field."""

    step: int  # optimizer steps done, including this one
    tokens: int  # since the run began, over all devices
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
class Wishes:
    """What a process wants from the others, or what all of them have agreed on."""

    stop: bool = False  # from any process; final once agreed
    save: bool = False  # from any process, if a checkpoint is due
    written: bool = False  # from all processes, once the files of the current checkpoint are on disk


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    loss: float  # nats per token
    tokens: int  # all devices
    seconds: float


@dataclass(frozen=True, kw_only=True)
class _Pending:
    """A step whose measurements may not have arrived yet."""

    step: int
    learning_rate: float
    began: Stamp
    laps: list[tuple[str, Stamp]]  # each phase and its end, on sampled steps
    ended: Stamp
    values: Tensor  # loss, gradient norm, shares of processes with each wish; on the host once `ended` has passed
    memory: PeakMemory


_ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}


def _attention_kernel(name: str) -> AbstractContextManager[Any]:
    """Select the attention kernel for forward and backward passes, because a recomputed block must use the same one."""
    return nullcontext() if name == "auto" else sdpa_kernel(_ATTENTION[name])


class Trainer:
    """A model in training: `step` after `step`, with evaluation, saving and resuming in between.

    Each process states its wishes before a step. After the step, all processes know what any process wishes, or all do.
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
        self.wishes, self.agreed = Wishes(), Wishes()
        self.model = build(config, context, self.world)
        self.model.some_targets_count = tokens.meta is not None and tokens.meta.counted_tokens is not None
        self.optimizers = build_optimizers(self.model, config.optimizer, context.device)
        self._scaler = context.grad_scaler()
        self._replica = replicate(self.model, config, context, self.world)
        self._parameters = list(self.model.parameters())
        self._clock = Clock(context)
        self._last_end: Stamp | None = None
        self._pending: _Pending | None = None
        self._phases_every, self._steps_here = phases_every, 0
        # Several processes must act on a record at the same point of the run, also if one of them flushes alone (to
        # write a checkpoint). So they read each step at once, which leaves the GPU idle for some microseconds.
        self._reads_late = context.is_cuda and self.world.size == 1

    @property
    def parameters(self) -> int:
        """Return the exact number of parameters. Tied parameters are counted once."""
        return sum(p.numel() for p in self._parameters)

    @property
    def tokens_per_step(self) -> int:
        return self.config.tokens_per_step(self.world.size)

    def steps(self, count: int) -> Iterator[StepRecord]:
        """Do `count` steps and yield the record of each, in order."""
        for _ in range(count):
            if (record := self.step()) is not None:
                yield record
        if (record := self.flush()) is not None:
            yield record

    def step(self) -> StepRecord | None:
        """Do one optimizer step. Return the newest complete record: this step's, or on one CUDA GPU the last one's."""
        with _attention_kernel(self.config.attention):
            return self._step()

    def _step(self) -> StepRecord | None:
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
        counted = self.tokens.counted(done, self.world.size, config.micro_batch, config.grad_accum)
        for micro in range(config.grad_accum):
            tokens, targets, weight = self._batch(done, micro, counted)
            lap("data")
            with synchronised(self._replica, last=micro == config.grad_accum - 1):
                with self.context.autocast():
                    micro_loss = self._replica(tokens, targets)
                    if weight is not None:
                        micro_loss = micro_loss * weight
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
        """Wait for measurements that have not arrived yet. Returns None if there are none."""
        pending, self._pending = self._pending, None
        return None if pending is None else self._complete(pending)

    def restart_clock(self) -> None:
        """Exclude work since the last step (an evaluation, a checkpoint) from the next step's seconds."""
        self._last_end = None

    @torch.no_grad()
    def evaluate(self) -> Evaluation:
        """Return the mean loss over the configured validation tokens and restart the clock. Call `flush` before it."""
        began = time.perf_counter()
        total = torch.zeros(2, dtype=torch.float64, device=self.context.device)
        # Compiled code would be compiled again for inference, which a short evaluation never repays.
        eager = torch.compiler.set_stance("force_eager") if self.config.compile else nullcontext()
        with eager, _attention_kernel(self.config.attention):
            for tokens, targets, weight in self._eval_batches():
                with self.context.autocast():
                    loss = self.model(self._to_device(tokens), self._to_device(targets))
                counted = int((targets >= 0).sum())
                total += torch.stack((loss.double(), loss.new_ones(()).double())) * (weight * counted)
        gathered_no_more(self.model)
        if self.world.size > 1:
            dist.all_reduce(total)
        summed, count = total.tolist()
        self.restart_clock()
        return Evaluation(loss=summed / count, tokens=int(count), seconds=time.perf_counter() - began)

    def snapshot(self, extra: dict[str, Any]) -> Snapshot:
        """Return this process's part of a checkpoint at this moment. It shares the model's memory. Flush before it."""
        extra = {**extra, "scaler": self._scaler.state_dict()}
        return take_snapshot(self.steps_done, self.model, self.optimizers, extra, self.world)

    def resume(self, folder: Path, on_message: Callable[[str], None]) -> dict[str, Any] | None:
        """Continue from the newest sound checkpoint, if there is one. Returns what `snapshot` was given."""
        extra = load_newest(folder, self.model, self.optimizers, on_message, self.world)
        if extra is not None:
            self.steps_done = extra["step"]
            if scaler := extra.get("scaler"):
                self._scaler.load_state_dict(scaler)
        return extra

    def begin_from(self, run_dir: Path, on_message: Callable[[str], None]) -> int:
        """Start from the weights of another run's newest sound checkpoint, and return its step."""
        return load_weights(run_dir / CHECKPOINTS, self.model, on_message, self.world)

    def _eval_batches(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield this process's validation batches with weights, as many in each, since split models step together.

        If the batches do not divide evenly, some processes repeat their last one with weight 0.
        """
        rank, size = self.world.rank, self.world.size
        batches = self.tokens.eval_batches(self.config.eval.tokens, self.config.micro_batch)
        while turn := list(itertools.islice(batches, size)):
            yield (*turn[min(rank, len(turn) - 1)], int(rank < len(turn)))

    def _batch(self, step: int, micro: int, counted: int | None) -> tuple[Tensor, Tensor, float | None]:
        """Return a micro-batch and its weight in the step's mean loss. The weight is None if all weigh the same.

        If only some targets count, the step's loss is the mean over all that do, across micro-batches.
        """
        config, world = self.config, self.world
        tokens, targets = self.tokens.train_batch(
            step, micro, world.rank, world.size, config.micro_batch, config.grad_accum
        )
        weight = None
        if counted is not None:
            weight = int((targets >= 0).sum()) * config.grad_accum * world.size / counted
        return self._to_device(tokens), self._to_device(targets), weight

    def _to_device(self, tensor: Tensor) -> Tensor:
        """Copy to the device. From pinned memory the copy is queued behind the previous step, and the CPU continues."""
        if not self.context.is_cuda:
            return tensor
        return tensor.pin_memory().to(self.context.device, non_blocking=True)

    def _clip(self) -> Tensor:
        """Scale the gradients down to the configured norm. Returns the norm before scaling."""
        for optimizer in self.optimizers:
            self._scaler.unscale_(optimizer)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        norm = total_norm(gradients)
        limit = self.config.optimizer.grad_clip
        if limit is None:
            return norm
        # A decision on the CPU is free and mostly saves a pass over all gradients. On CUDA it would wait for the GPU.
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
        """Average loss, norm and wishes over the processes in one exchange."""
        wishes = (self.wishes.stop, self.wishes.save, self.wishes.written)
        # filled on the device, because a tensor of Python's numbers would be copied only after all queued work
        values = torch.stack((loss, norm, *(loss.new_full((), wish) for wish in wishes)))
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
        loss, norm, stop, save, written = pending.values.tolist()
        all_of_them = 1 - 0.5 / self.world.size
        self.agreed = Wishes(stop=self.agreed.stop or stop > 0, save=save > 0, written=written > all_of_them)
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
    """Sum seconds over the micro-batches by phase, from the ends of consecutive phases. All None if none were taken."""
    names = [f"{phase}_seconds" for phase in ("data", "forward", "backward", "clip", "optimizer")]
    if not laps:
        return dict.fromkeys(names)
    sums = dict.fromkeys(names, 0.0)
    for (_, start), (phase, end) in zip(laps, laps[1:], strict=False):
        sums[f"{phase}_seconds"] += clock.between(start, end)
    return sums
