"""One full run: everything around the steps. Log, evaluations, checkpoints, signals, stop conditions, outcome."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import platform
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from trainer.checkpointing import Checkpoints
from trainer.data import open_tokens
from trainer.device import DeviceContext, describe_device, is_out_of_memory, reset_peak_memory, resolve_device
from trainer.loop import StepRecord, Trainer, Wishes
from trainer.parallel import World
from trainer.runlog import LOG_NAME, RunLogWriter, load_run_log
from trainer.schema import SCHEMA, Outcome, RunConfig, to_dict
from trainer.telemetry import TelemetryHandle, start_telemetry
from trainer.token_folder import TokenMeta
from trainer.witness import ReferenceKernel, StealMeter

CHECKPOINT_FOLDER = "checkpoints"

_WITNESS_EVERY_SECONDS = 5.0
_SAY_EVERY_SECONDS = 5.0
_LOSS_MEMORY = 0.9  # of the smoothed loss that stop conditions look at, per step
_SKIPPED_STEPS_LIMIT = 25  # fp16: so many overflowing steps in a row bring the loss scale from 65,536 below 1
_COMPILED_STEPS = 6  # the first of them compile, the last three show the steady pace


def run(config: RunConfig, out_dir: str | Path) -> Outcome:
    """Train as configured into a run folder, going on from its newest checkpoint if it has one.

    Every way to end is an outcome in the log's last record; only a log that cannot be written raises (OSError,
    RunLogError). Under torchrun all processes call this; the first one writes.
    """
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    world = World.from_environment()
    journal = _Journal(out_dir / LOG_NAME, world)
    with _stop_signals() as signals:
        try:
            session = _Session(config, out_dir, world, journal, signals)
            with session.telemetry(), _quiet_garbage_collector():
                outcome, reason = session.train()
        except (Exception, KeyboardInterrupt) as error:  # whatever went wrong is this run's outcome
            traceback.print_exc(file=sys.stdout)
            outcome = Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.FAILED
            reason = _in_words(error)
        journal.final(outcome, reason)
    ended_together = outcome in (Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED)
    if dist.is_initialized() and dist.get_backend() == "nccl" and ended_together:
        dist.destroy_process_group()  # after an error others may wait in a collective: leaving at once ends them
    return outcome


class _Journal:
    """The log and the screen; the first process writes, the others stay silent."""

    def __init__(self, path: Path, world: World):
        self._writes = world.is_main
        self.step = 0
        self.attempt, self.earlier_seconds = 1, 0.0
        if self._writes:
            if path.exists():
                before = load_run_log(path)
                self.attempt, self.earlier_seconds = before.attempts + 1, before.used_seconds
            self._log = RunLogWriter(path)
        self._said = 0.0

    def write(self, kind: str, **fields: Any) -> None:
        if self._writes:
            self._log.write(kind, **fields)

    def message(self, level: str, text: str) -> None:
        self.write("message", level=level, text=text)
        self.say(f"{level}: {text}")

    def write_step(self, record: StepRecord, steps: int) -> None:
        self.step = record.step
        self.write("step", **dataclasses.asdict(record))
        if time.monotonic() - self._said >= _SAY_EVERY_SECONDS or record.step == steps:
            self._said = time.monotonic()
            self.say(f"step {record.step}/{steps}  loss {record.loss:.4f}  {record.seconds:.3f} s")

    def final(self, outcome: Outcome, reason: str) -> None:
        self.write("final", outcome=outcome.value, reason=reason, step=self.step, seconds=_process_seconds())
        self.say(f"{outcome.value}: {reason}")

    def say(self, text: str) -> None:
        if self._writes:
            print(text, flush=True)


class _Signals:
    """The name of the signal that asked this process to stop, once one has."""

    received: str | None = None


class _Session:
    """One attempt at a run."""

    def __init__(self, config: RunConfig, out_dir: Path, world: World, journal: _Journal, signals: _Signals):
        self.config, self.out_dir, self.world = config, out_dir, world
        self.journal, self.signals = journal, signals
        context = resolve_device(config.device, config.precision, local_rank=world.local_rank, tf32=config.tf32)
        self.context = context
        if world.size > 1:
            dist.init_process_group("nccl" if context.is_cuda else "gloo")
        tokens = open_tokens(config.data, config.model.vocab_size, config.model.seq_len, config.seed)
        reset_peak_memory(context)
        self.trainer = Trainer(config, context, tokens, world)
        warnings: list[str] = []  # kept until the header is written: a record belongs to the header before it
        restored = self.trainer.resume(out_dir / CHECKPOINT_FOLDER, warnings.append) or {}
        self.smoothed_loss: float | None = restored.get("smoothed_loss")
        self.resumed_from = journal.step = self.trainer.steps_done
        self.checkpoints = Checkpoints(out_dir / CHECKPOINT_FOLDER, self.trainer, journal)
        self.evaluated_step = 0
        self.skipped_in_a_row = 0
        self.witness = _Witness(context, journal) if world.is_main and not context.is_cuda else None
        self.compile_bill = _CompileBill(journal) if config.compile else None
        journal.write("header", **self._header(tokens.meta))
        for text in warnings:
            journal.message("warning", text)
        if self.resumed_from:
            journal.say(f"resumed from step {self.resumed_from}")

    def telemetry(self) -> AbstractContextManager[None]:
        """Samples the device beside the run, on the first process, unless switched off."""
        if not self.world.is_main:
            return nullcontext()
        kind, hz = self.context.device.type, self.config.telemetry.hz
        return _stopped_at_the_end(start_telemetry(self.out_dir, os.getpid(), kind, hz, gpus=self.world.size))

    def train(self) -> tuple[Outcome, str]:
        """Step until something ends the run; the last lines of `while` are the whole story."""
        config, trainer = self.config, self.trainer
        while trainer.steps_done < config.steps:
            saves = self.checkpoints
            trainer.wishes = Wishes(stop=self._stop_reason() is not None, save=saves.time_is_up, written=saves.written)
            ending = self._settle(trainer.step())
            if ending is None and self._something_is_due():
                ending = self._settle(trainer.flush())
                if ending is None:
                    self._do_what_is_due()
            if ending is not None:
                return self._end(*ending)
        ending = self._settle(trainer.flush())
        if ending is not None and ending[0] is Outcome.DIVERGED:
            return self._end(*ending)
        self._evaluate()
        if config.checkpoint.final:
            self._save()
        self.checkpoints.finish()
        return Outcome.COMPLETED, f"all {config.steps} steps done"

    def _settle(self, record: StepRecord | None) -> tuple[Outcome, str] | None:
        """Log a step and say whether it ends the run."""
        if record is None:
            return None
        self.journal.write_step(record, self.config.steps)
        if self.compile_bill is not None:
            self.compile_bill.add(record.seconds)
        return self._divergence(record) or self._stop(record)

    def _divergence(self, record: StepRecord) -> tuple[Outcome, str] | None:
        if not math.isfinite(record.loss):
            return Outcome.DIVERGED, f"the loss was {record.loss} at step {record.step}"
        overflowed = not math.isfinite(record.grad_norm)
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if overflowed else 0
        if overflowed and self.context.precision != "fp16":
            return Outcome.DIVERGED, f"the gradient norm was {record.grad_norm} at step {record.step}"
        if self.skipped_in_a_row >= _SKIPPED_STEPS_LIMIT:  # fp16 skips such steps and lowers its loss scale
            return Outcome.DIVERGED, f"{self.skipped_in_a_row} steps in a row overflowed fp16, up to step {record.step}"
        return None

    def _stop(self, record: StepRecord) -> tuple[Outcome, str] | None:
        last = record.loss if self.smoothed_loss is None else self.smoothed_loss
        self.smoothed_loss = _LOSS_MEMORY * last + (1 - _LOSS_MEMORY) * record.loss
        for condition in self.config.stop.loss:
            if record.step >= condition.step and self.smoothed_loss > condition.above:
                return Outcome.STOPPED, (
                    f"the smoothed loss {self.smoothed_loss:.4f} was above {condition.above} at step {record.step}"
                )
        if self.trainer.agreed.stop:
            return Outcome.STOPPED, self._stop_reason() or "another process of this run was asked to stop"
        return None

    def _stop_reason(self) -> str | None:
        """Why this process wants to stop; the processes agree on it through the trainer."""
        if self.signals.received is not None:
            return f"received {self.signals.received}"
        limit = self.config.stop.max_seconds
        if limit is not None and self.world.is_main:
            seconds = self.journal.earlier_seconds + _process_seconds()
            if seconds >= limit:
                return f"{seconds:.0f} s had passed of the {limit:g} s allowed"
        return None

    def _something_is_due(self) -> bool:
        witness_due = self.witness is not None and self.witness.due()
        return self._evaluation_due() or self.checkpoints.something_is_due or witness_due

    def _do_what_is_due(self) -> None:
        if self._evaluation_due():
            self._evaluate()
        self.checkpoints.do_what_is_due({"smoothed_loss": self.smoothed_loss})
        if self.witness is not None and self.witness.due():
            self.witness.measure(self.trainer)

    def _evaluation_due(self) -> bool:
        every = self.config.eval.every_steps
        return every is not None and self.trainer.steps_done % every == 0 and self.config.eval.tokens > 0

    def _end(self, outcome: Outcome, reason: str) -> tuple[Outcome, str]:
        """A stopped run can go on later: it leaves a checkpoint. A diverged one has nothing worth keeping."""
        record = self.trainer.flush()
        if record is not None:
            self.journal.write_step(record, self.config.steps)
            if outcome is Outcome.STOPPED:
                outcome, reason = self._divergence(record) or (outcome, reason)
        if outcome is Outcome.STOPPED:
            self._save()
            if (newest := self.checkpoints.newest_step) != self.trainer.steps_done:
                reason += f"; no checkpoint could be written, the newest is of step {newest}"
        return outcome, reason

    def _evaluate(self) -> None:
        step = self.trainer.steps_done
        if self.config.eval.tokens == 0 or self.evaluated_step == step:
            return
        done = self.trainer.evaluate()
        self.evaluated_step = step
        per_token = self.trainer.tokens.bytes_per_token
        bits = None if per_token is None else done.loss / math.log(2) / per_token
        self.journal.write(
            "eval", step=step, loss=done.loss, bits_per_byte=bits, tokens=done.tokens, seconds=done.seconds
        )
        self.journal.say(f"step {step}  validation loss {done.loss:.4f}  {done.tokens} tokens in {done.seconds:.2f} s")
        gc.collect()

    def _save(self) -> None:
        """Leave a checkpoint of this very moment, on disk."""
        self.checkpoints.begin({"smoothed_loss": self.smoothed_loss})
        self.checkpoints.finish()

    def _header(self, meta: TokenMeta | None) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "attempt": self.journal.attempt,
            "config": dataclasses.asdict(self.config),
            "parameters": self.trainer.parameters,
            "world_size": self.world.size,
            "tokens_per_step": self.trainer.tokens_per_step,
            "precision": self.context.precision,
            "device": to_dict(describe_device(self.context, self.world.size)),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "data": to_dict(meta),
            "resumed_from_step": self.resumed_from,
            "startup_seconds": _process_seconds(),
        }


class _Witness:
    """Every few seconds between two steps, the machine's own speed. CPU runs: cards have clocks to read instead."""

    def __init__(self, context: DeviceContext, journal: _Journal):
        self._kernel, self._steal, self._journal = ReferenceKernel(context.device), StealMeter(), journal
        self._measured_at = -math.inf

    def due(self) -> bool:
        return time.monotonic() - self._measured_at >= _WITNESS_EVERY_SECONDS

    def measure(self, trainer: Trainer) -> None:
        seconds = self._kernel.measure()
        self._journal.write(
            "witness", step=trainer.steps_done, reference_seconds=seconds, steal_fraction=self._steal.fraction()
        )
        self._measured_at = time.monotonic()
        trainer.restart_clock()


class _CompileBill:
    """What the first steps cost beyond steady ones."""

    def __init__(self, journal: _Journal):
        self._journal = journal
        self._seconds: list[float] = []

    def add(self, step_seconds: float) -> None:
        if len(self._seconds) == _COMPILED_STEPS:
            return
        self._seconds.append(step_seconds)
        if len(self._seconds) == _COMPILED_STEPS:
            steady = sorted(self._seconds[-3:])[1]
            self._journal.write("compile", seconds=max(0.0, sum(self._seconds) - _COMPILED_STEPS * steady))


@contextmanager
def _stop_signals() -> Iterator[_Signals]:
    """SIGTERM and SIGINT ask to stop after the step in progress; a second SIGINT interrupts at once."""
    signals = _Signals()

    def receive(number: int, _frame: Any) -> None:
        if signals.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        signals.received = signal.Signals(number).name

    before = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _quiet_garbage_collector() -> Iterator[None]:
    """Python's collector walks every object of torch in the middle of a step, up to half a second (sources §7.3)."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


@contextmanager
def _stopped_at_the_end(handle: TelemetryHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.stop()


def _in_words(error: BaseException) -> str:
    """One line: what kind of error, its words, and its hint if it has one."""
    hint = getattr(error, "hint", None)
    return " ".join(f"{type(error).__name__}: {error}{f' ({hint})' if hint else ''}".split())


def _process_seconds() -> float:
    """Since this process started, the interpreter's start and the imports included."""
    return time.time() - psutil.Process().create_time()
