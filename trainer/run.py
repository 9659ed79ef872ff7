"""Runs one full run. Adds to the steps: log, evaluations, checkpoints, signals, stop conditions, outcome."""

from __future__ import annotations

import dataclasses
import gc
import math
import os
import platform
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.banner import banner
from trainer.checkpointing import Checkpoints, checkpoint_folder
from trainer.data import open_tokens
from trainer.device import DeviceContext, describe_device, is_out_of_memory, reset_peak_memory, resolve_device
from trainer.guard import Guard
from trainer.journal import Journal
from trainer.loop import StepRecord, Trainer, Wishes
from trainer.pace import Pace
from trainer.parallel import World
from trainer.runlog import loss_so_far, recent_rows
from trainer.schema import SCHEMA, Gate, Outcome, RunConfig, to_dict
from trainer.telemetry import TelemetryHandle, start_telemetry
from trainer.token_folder import TokenMeta
from trainer.trace import StepTrace
from trainer.witness import ReferenceKernel, StealMeter

_WITNESS_EVERY_SECONDS = 5.0
_SKIPPED_STEPS_LIMIT = 25  # fp16: this many overflows in a row bring the loss scale from 65,536 below 1
_COMPILED_STEPS = 6  # the first of these steps compile, and the last three show the steady pace


def run(config: RunConfig, out_dir: str | Path) -> Outcome:
    """Train as configured into a run folder, and continue from its newest checkpoint if it has one.

    However the run ends, the log's last record has the outcome. Only an unusable folder raises (OSError, RunLogError).
    Under torchrun all processes call this, and the first one writes.
    """
    world = World.from_environment()
    with Guard(config.stop, out_dir, is_main=world.is_main, alone=world.size == 1) as guard:
        return run_guarded(config, guard)


def run_guarded(config: RunConfig, guard: Guard) -> Outcome:
    """Train as `run` does, under a guard that has existed since the process started."""
    with guard.requests.from_signals():
        try:
            session = _Session(config, guard, World.from_environment())
            with session.telemetry(), _quiet_garbage_collector():
                outcome, reason = session.train()
                guard.dead_man.doing("ending", None)
        except (Exception, KeyboardInterrupt) as error:  # any error is an outcome of this run
            traceback.print_exc(file=sys.stdout)
            outcome = Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.FAILED
            reason = _in_words(error)
        guard.end(outcome, reason)
    ended_together = outcome in (Outcome.COMPLETED, Outcome.STOPPED, Outcome.DIVERGED)
    if dist.is_initialized() and dist.get_backend() == "nccl" and ended_together:
        dist.destroy_process_group()  # after an error others may wait in a collective, and leaving at once ends them
    return outcome


class _Session:
    """One attempt at a run."""

    def __init__(self, config: RunConfig, guard: Guard, world: World):
        self.config, self.guard, self.world = config, guard, world
        self.journal = journal = guard.journal
        context = resolve_device(config.device, config.precision, local_rank=world.local_rank, tf32=config.tf32)
        if world.size > 1:
            dist.init_process_group("nccl" if context.is_cuda else "gloo")
            # each process has measured what `auto` means on a CPU, and the first one's answer counts for all
            context = dataclasses.replace(context, precision=world.gather(context.precision, context.device)[0])
        self.context = context
        tokens = open_tokens(config.data, config.model.vocab_size, config.model.seq_len, config.seed)
        reset_peak_memory(context)
        self.trainer = Trainer(config, context, tokens, world)
        warnings = guard.warnings  # kept until the header is written, because a record belongs to the header before it
        restored = self.trainer.resume(checkpoint_folder(guard), warnings.append) or {}
        taken: int | None = None
        if not restored and config.init_from is not None:
            taken = self.trainer.begin_from(Path(config.init_from), warnings.append)
        self.losses: deque[float] = deque(restored.get("losses", ()), maxlen=recent_rows(config.steps))
        self.resumed_from = journal.step = self.trainer.steps_done
        self.evaluated_step: int = restored.get("evaluated_step", 0)
        self.skipped_in_a_row = 0
        self.pace = Pace(
            config,
            guard.budget,
            parameters=self.trainer.parameters,
            tokens_per_step=self.trainer.tokens_per_step,
            steps_ahead=1 if world.size == 1 and not context.is_cuda else 2,  # because of late readings, or agreement
        )
        self.checkpoints = Checkpoints(self.trainer, guard, self.pace)
        self.witness = _Witness(context, journal) if world.is_main and not context.is_cuda else None
        self.compile_bill = _CompileBill(journal) if config.compile else None
        self.trace = StepTrace(config.trace_steps, context, world, guard) if config.trace_steps else None
        header = self._header(tokens.meta)
        journal.write("header", **header)
        for line in banner(header):
            journal.say(line)
        self._say_where_it_begins(warnings)
        if taken is not None:
            journal.message("info", f"begins with the weights of {config.init_from} after step {taken}")

    def _say_where_it_begins(self, warnings: Sequence[str]) -> None:
        for text in warnings:
            self.journal.message("warning", text)
        again = self.guard.logged_steps - self.resumed_from
        if again > 0:
            begin = f"step {self.resumed_from}" if self.resumed_from else "the start, for there is no checkpoint"
            self.journal.message("info", f"goes on from {begin}: {again} steps are done again")
        elif self.resumed_from:
            self.journal.say(f"resumed from step {self.resumed_from}")

    def telemetry(self) -> AbstractContextManager[None]:
        """Sample the device during the run, in the first process, unless telemetry is switched off."""
        if not self.world.is_main:
            return nullcontext()
        kind, hz = self.context.device.type, self.config.telemetry.hz
        return _stopped_at_the_end(start_telemetry(self.guard.folder.path, os.getpid(), kind, hz, gpus=self.world.size))

    def train(self) -> tuple[Outcome, str]:
        """Do steps until something ends the run."""
        config, trainer = self.config, self.trainer
        missed = self.resumed_from > 0 and self._evaluation_due()  # an earlier attempt stopped before this evaluation
        if missed and (ending := self._evaluate_and_judge()) is not None:
            return self._end(*ending)
        while trainer.steps_done < config.steps:
            reason, saves = self._stop_reason(), self.checkpoints
            if reason is not None and self.world.size == 1:
                return self._end(Outcome.STOPPED, reason)
            trainer.wishes = Wishes(stop=reason is not None, save=saves.time_is_up, written=saves.written)
            self.guard.dead_man.doing(f"step {trainer.steps_done + 1}", self._step_room())
            ending = self._settle(trainer.step())
            if self.trace is not None:
                self.trace.after_step(trainer)
            if ending is None and self._something_is_due():
                ending = self._settle(trainer.flush())
                if ending is None:
                    ending = self._do_what_is_due()
            if ending is not None:
                return self._end(*ending)
        ending = self._settle(trainer.flush())
        if ending is not None:
            return self._end(*ending)
        self._evaluate()
        if config.checkpoint.final:
            self._save()
        self.checkpoints.finish()
        return Outcome.COMPLETED, f"all {config.steps} steps done"

    def _settle(self, record: StepRecord | None) -> tuple[Outcome, str] | None:
        """Log a step. Return the outcome if the step ends the run."""
        if record is None:
            return None
        self.journal.write_step(record, self.config.steps)
        self.pace.add_step(record.seconds)
        if record.step < self.config.steps:
            self.guard.warn_of_budget()
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
        self.losses.append(record.loss)
        for condition in self.config.stop.loss:
            level = loss_so_far(reversed(self.losses), record.step) if record.step >= condition.step else None
            if level is not None and level > condition.above:
                return Outcome.STOPPED, (
                    f"the training loss so far, {level:.4f}, was above {condition.above} at step {record.step}"
                )
        asked = self.world.size == 1 and self.guard.requests.reason is not None  # no other process has to agree
        if self.trainer.agreed.stop or asked:
            return Outcome.STOPPED, self._stop_reason() or "another process of this run was asked to stop"
        return None

    def _stop_reason(self) -> str | None:
        """Say why this process wants to stop. Several processes agree on stopping through the trainer."""
        guard = self.guard
        if guard.requests.reason is not None:
            return guard.requests.reason
        left = guard.budget.seconds_left() if self.world.is_main else None
        needed = self.pace.to_stop(self.trainer.steps_done, self.config.steps)
        if left is None or left > sum(needed.values()):
            return None
        guard.budget.needed_seconds = (guard.budget.start_seconds or 0.0) + sum(needed.values())
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in needed.items())
        return f"{guard.budget.words} are used; there may be needed: {parts}"

    def _step_room(self) -> float | None:
        """Return the usual time of a step. Returns None for the first step of an attempt, which may have to compile."""
        return None if self.trainer.steps_done == self.resumed_from else self.pace.usual_step

    def _something_is_due(self) -> bool:
        witness_due = self.witness is not None and self.witness.due()
        return self._evaluation_due() or self.checkpoints.something_is_due or witness_due

    def _do_what_is_due(self) -> tuple[Outcome, str] | None:
        if self._evaluation_due() and (ending := self._evaluate_and_judge()) is not None:
            return ending
        self.checkpoints.do_what_is_due(self._extra())
        if self.witness is not None and self.witness.due():
            self.witness.measure(self.trainer)
        return None

    def _evaluation_due(self) -> bool:
        every, step = self.config.eval.every_steps, self.trainer.steps_done
        regular = every is not None and step % every == 0
        return (regular or self._gate() is not None) and self.config.eval.tokens > 0

    def _gate(self) -> Gate | None:
        """Return the gate after the step that has just been done."""
        return next((gate for gate in self.config.stop.gates if gate.step == self.trainer.steps_done), None)

    def _evaluate_and_judge(self) -> tuple[Outcome, str] | None:
        """Evaluate, and return the outcome if a gate here ends the run. All processes have the same loss and agree.

        An earlier attempt's gates are not judged again, because whoever resumes after a gate wants to pass it.
        """
        loss, gate = self._evaluate(), self._gate()
        if loss is None or gate is None:
            return None
        words = (
            f"gate after step {gate.step}: the evaluation's loss is {loss:.4f}, at most {gate.above:g} was asked for"
        )
        if not loss <= gate.above:
            return Outcome.STOPPED, words
        self.journal.message("info", f"{words}: goes on")
        return None

    def _end(self, outcome: Outcome, reason: str) -> tuple[Outcome, str]:
        """End the run. A stopped run leaves a checkpoint to resume from. A diverged run has nothing worth keeping."""
        record = self.trainer.flush()
        if record is not None:
            self.journal.write_step(record, self.config.steps)
            if outcome is Outcome.STOPPED:
                outcome, reason = self._divergence(record) or (outcome, reason)
        if outcome is Outcome.STOPPED:
            self._save()
            self._say_how_long_it_took()
            if (newest := self.checkpoints.newest_step) != self.trainer.steps_done:
                reason += f"; no checkpoint could be written, the newest is of step {newest}"
        return outcome, reason

    def _say_how_long_it_took(self) -> None:
        """Log how long a requested stop took, with the expected time."""
        asked_at = self.guard.requests.asked_at
        if asked_at is not None:
            seconds = time.monotonic() - asked_at
            expected = self.pace.longest_step + self.pace.checkpoint_seconds
            self.journal.message("info", f"saved {seconds:.2f} s after it was asked to stop; a step and a checkpoint "
                                         f"take up to {expected:.2f} s")  # fmt: skip

    def _evaluate(self) -> float | None:
        """Evaluate, unless this step has been evaluated already. Returns the loss in nats per token."""
        step = self.trainer.steps_done
        if self.config.eval.tokens == 0 or self.evaluated_step == step:
            return None
        self.guard.dead_man.doing(f"the evaluation after step {step}", self.pace.evaluation_seconds)
        done = self.trainer.evaluate()
        self.pace.add_evaluation(done.seconds)
        self.evaluated_step = step
        per_token = self.trainer.tokens.bytes_per_token
        bits = None if per_token is None else done.loss / math.log(2) / per_token
        self.journal.write(
            "eval", step=step, loss=done.loss, bits_per_byte=bits, tokens=done.tokens, seconds=done.seconds
        )
        self.journal.say(f"step {step}  validation loss {done.loss:.4f}  {done.tokens} tokens in {done.seconds:.2f} s")
        gc.collect()
        return done.loss

    def _save(self) -> None:
        """Write a checkpoint of the present state to disk."""
        self.checkpoints.begin(self._extra())
        self.checkpoints.finish()

    def _extra(self) -> dict[str, Any]:
        """Return what a checkpoint stores in addition to the trainer's state."""
        return {
            "losses": list(self.losses),  # of the newest steps
            "evaluated_step": self.evaluated_step,
            "budget": self.guard.budget.record(),
        }

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
            "session": self.journal.session,
            "usd_per_hour": self.guard.budget.usd_per_hour,
            "startup_seconds": self.guard.budget.own_seconds,
        }


class _Witness:
    """Measures the machine's own speed between steps, every few seconds. On a CPU only: GPUs report their clocks."""

    def __init__(self, context: DeviceContext, journal: Journal):
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
    """The time that the first steps take beyond steady steps."""

    def __init__(self, journal: Journal):
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
def _quiet_garbage_collector() -> Iterator[None]:
    """Keep Python's collector from walking all of torch's objects during a step: up to half a second (sources §7.3)."""
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
    """Describe an error in one line: its kind, its words, and its hint if it has one."""
    hint = getattr(error, "hint", None)
    return " ".join(f"{type(error).__name__}: {error}{f' ({hint})' if hint else ''}".split())
