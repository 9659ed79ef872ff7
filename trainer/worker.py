"""Serves calibration bursts of the real trainer from one process: JSON requests on stdin, JSON lines on stdout.

    {"op": "ceilings", "precision": "bf16", "seconds": 3}
    {"op": "burst", "config": {…RunConfig…}, "seconds": 1.5, "least_steps": 3, "most_warmup": 12, "limit_seconds": 20}

`trainer.messages` has the records. How a burst ended is a value in its answer (`outcome`). The process ends after it
ran out of memory, because what the allocator then holds would falsify the next burst. It also ends after any error of a
GPU, which would stay with it. The answer then says `"last": true`, and the caller starts another process.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TextIO

import psutil
import torch

from trainer.ceilings import measure_ceilings
from trainer.data import DataError, open_tokens
from trainer.device import (
    DeviceContext,
    DeviceError,
    PeakMemory,
    describe_device,
    is_out_of_memory,
    peak_memory,
    release_memory,
    reset_peak_memory,
    resolve_device,
)
from trainer.loop import StepRecord, Trainer
from trainer.messages import (
    Answer,
    BurstRequest,
    BurstResult,
    Ceilings,
    CeilingsRequest,
    Ready,
    Refused,
    Request,
    WorkerDevice,
    read_request,
    write_answer,
)
from trainer.schema import Outcome
from trainer.telemetry_sources import open_energy_meter
from trainer.witness import ReferenceKernel, StealMeter

_STEADY_WITHIN = 0.10  # of the median of the last steps (sources §7.3, with fewer steps because bursts are short)
_LEAST_WARMUP = 2
_WARMUP_SHARE = 0.4  # of the burst's limit; the rest must suffice to time some steps
_REFERENCE_EVERY_SECONDS = 0.33
_LONG_STEP_SECONDS = 0.25  # above this, refilling a CPU's caches does not matter: 20 MiB at 10 GB/s are 2 ms
_CARD_STEPS_BETWEEN = 4  # a GPU's steps between two reference kernels, because a step after a wait differs
_DIGITS = 6


def main(arguments: list[str] | None = None) -> None:
    """Answer requests until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m trainer.worker", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    device = parser.parse_args(arguments).device
    answers, sys.stdout = sys.stdout, sys.stderr  # output of libraries must not mix with the answers
    try:
        server = _Server(resolve_device(device, "auto"))
    except DeviceError as error:
        _send(answers, Answer(body=Refused(reason=str(error)), last=True))
        return
    _send(answers, Answer(body=server.hello()))
    for line in sys.stdin:
        body = server.answer(read_request(line))
        _send(answers, Answer(body=body, last=server.spoiled))
        if server.spoiled:
            return


def _send(answers: TextIO, answer: Answer) -> None:
    answers.write(write_answer(answer) + "\n")
    answers.flush()


@dataclass(kw_only=True)
class _Measuring:
    """What one burst measures. It is filled in during the burst, so that an early end keeps it."""

    resident_before_bytes: int
    parameters: int | None = None
    build_seconds: float | None = None
    warmup: list[StepRecord] = field(default_factory=list)
    timed: list[StepRecord] = field(default_factory=list)
    reference_seconds: list[float] = field(default_factory=list)
    watts: float | None = None
    peak: PeakMemory | None = None
    device_used_bytes: int | None = None
    eval_seconds: float | None = None


class _Server:
    def __init__(self, context: DeviceContext):
        self._context = context
        self._reference = ReferenceKernel(context.device)
        self._energy = open_energy_meter(context.device.type, os.getpid())
        self.spoiled = False

    def hello(self) -> Ready:
        """Return the first answer, with what this process found."""
        facts = describe_device(self._context)
        device = WorkerDevice(**vars(facts), auto_precision=self._context.precision)
        return Ready(device=device, torch=torch.__version__, python=platform.python_version())

    def answer(self, request: Request) -> Ceilings | BurstResult:
        if isinstance(request, CeilingsRequest):
            measured = measure_ceilings(self._context.device, request.precision, request.seconds)
            release_memory(self._context)
            return measured
        return self._burst(request)

    def _burst(self, request: BurstRequest) -> BurstResult:
        """Train for a short time. Every way to end gives an answer."""
        self._clean()
        measuring, steal = _Measuring(resident_before_bytes=psutil.Process().memory_info().rss), StealMeter()
        outcome, reason = Outcome.COMPLETED, None
        try:
            self._train(request, measuring)
        except (RuntimeError, MemoryError, DataError) as error:
            outcome = Outcome.OUT_OF_MEMORY if is_out_of_memory(error) else Outcome.FAILED
            reason = f"{type(error).__name__}: {error}"[:500]
            cards_error = self._context.is_cuda and not isinstance(error, DataError)
            self.spoiled = outcome is Outcome.OUT_OF_MEMORY or cards_error
        losses = [r.loss for r in (*measuring.warmup, *measuring.timed)]
        if outcome is Outcome.COMPLETED and not all(abs(x) < float("inf") for x in losses):
            outcome, reason = Outcome.DIVERGED, "the loss stopped being finite"
        return _result(outcome, reason, measuring, steal.fraction())

    def _train(self, request: BurstRequest, measuring: _Measuring) -> None:
        began, config = time.perf_counter(), request.config
        context = resolve_device(config.device, config.precision, tf32=config.tf32)
        tokens = open_tokens(config.data, config.model.vocab_size, config.model.seq_len, config.seed)
        trainer = Trainer(config, context, tokens, phases_every=4)
        context.synchronise()
        measuring.parameters = trainer.parameters
        measuring.build_seconds = round(time.perf_counter() - began, _DIGITS)
        limit = began + request.limit_seconds
        warmup_end = began + _WARMUP_SHARE * request.limit_seconds
        while not _steady(measuring.warmup, request.most_warmup) and (
            len(measuring.warmup) < _LEAST_WARMUP or time.perf_counter() < warmup_end
        ):
            measuring.warmup.append(_one_step(trainer))
        self._energy.watts()  # starts the interval
        self._time(trainer, measuring, request.least_steps, min(limit, time.perf_counter() + request.seconds))
        watts = self._energy.watts()
        measuring.watts = None if watts is None else round(watts, 1)
        measuring.peak, measuring.device_used_bytes = _memory(context, self._reference.held_bytes)
        measuring.eval_seconds = _evaluation(trainer)

    def _time(self, trainer: Trainer, measuring: _Measuring, least: int, end: float) -> None:
        """Time steps until `end`, with the reference kernel before them, every third of a second between, and after
        them.

        The kernel pushes the model out of a CPU's caches, so a short step right after it is slow and does not count. A
        GPU's step right after it never counts, because no work was queued before it, as in a run.
        """
        cuda, cold_step, due_step, referred = self._context.is_cuda, 0, 0, -math.inf

        def keep(record: StepRecord | None) -> None:
            if record is None:  # a GPU's record has not arrived yet
                return
            if record.step != cold_step or (not cuda and record.seconds > _LONG_STEP_SECONDS):
                measuring.timed.append(record)

        while len(measuring.timed) < least or time.perf_counter() < end:
            if time.perf_counter() - referred > _REFERENCE_EVERY_SECONDS and trainer.steps_done >= due_step:
                keep(trainer.flush())
                measuring.reference_seconds.append(self._refer(trainer))
                referred = time.perf_counter()
                cold_step = trainer.steps_done + 1
                due_step = trainer.steps_done + (_CARD_STEPS_BETWEEN if cuda else 1)
            keep(trainer.step())
        keep(trainer.flush())
        measuring.reference_seconds.append(self._refer(trainer))

    def _refer(self, trainer: Trainer) -> float:
        seconds = self._reference.measure()
        trainer.restart_clock()
        return seconds

    def _clean(self) -> None:
        """Discard the last burst as far as the allocators allow, so that this burst's peaks are its own."""
        gc.collect()
        release_memory(self._context)
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        reset_peak_memory(self._context)


def _evaluation(trainer: Trainer) -> float | None:
    """Return the seconds of the second run of the configured evaluation. Returns None if none is configured."""
    if not trainer.config.eval.tokens:
        return None
    trainer.evaluate()
    return round(trainer.evaluate().seconds, _DIGITS)


def _one_step(trainer: Trainer) -> StepRecord:
    """Do one step and read its record at once, because the next step may still compile, or may not be wanted."""
    record = trainer.step()
    record = trainer.flush() or record
    assert record is not None
    return record


def _steady(warmup: list[StepRecord], most: int) -> bool:
    """Tell whether the last steps agree with each other, or there have been enough of them."""
    if len(warmup) >= most:
        return True
    if len(warmup) < _LEAST_WARMUP:
        return False
    last = [r.seconds for r in warmup[-3:]]
    return max(last[-2:]) <= (1 + _STEADY_WITHIN) * statistics.median(last)


def _memory(context: DeviceContext, held_bytes: int) -> tuple[PeakMemory, int | None]:
    """Return the burst's peaks and the driver's used memory, without `held_bytes`, a worker's own use of a GPU."""
    peak = peak_memory(context)
    if peak.allocated_peak_bytes is None or peak.reserved_peak_bytes is None:
        return peak, None
    free, total = torch.cuda.mem_get_info(context.device)
    own = replace(
        peak,
        allocated_peak_bytes=peak.allocated_peak_bytes - held_bytes,
        reserved_peak_bytes=peak.reserved_peak_bytes - held_bytes,
    )
    return own, total - free - held_bytes


def _result(outcome: Outcome, reason: str | None, measuring: _Measuring, steal_fraction: float | None) -> BurstResult:
    """Return raw step times, phases, memory and the proof that the burst trained: a changing loss and a gradient."""
    warmup, timed, peak = measuring.warmup, measuring.timed, measuring.peak
    losses, norms = [r.loss for r in (*warmup, *timed)], [r.grad_norm for r in (*warmup, *timed)]
    steady = statistics.median(r.seconds for r in timed) if timed else None
    return BurstResult(
        outcome=outcome.value,
        reason=reason,
        resident_before_bytes=measuring.resident_before_bytes,
        parameters=measuring.parameters,
        build_seconds=measuring.build_seconds,
        allocated_peak_bytes=peak.allocated_peak_bytes if peak else None,
        reserved_peak_bytes=peak.reserved_peak_bytes if peak else None,
        resident_peak_bytes=peak.resident_peak_bytes if peak else None,
        device_used_bytes=measuring.device_used_bytes,
        watts=measuring.watts,
        eval_seconds=measuring.eval_seconds,
        steal_fraction=steal_fraction,
        trained=len(set(losses)) > 1 and all(n > 0 for n in norms),
        warmup_seconds=_rounded(r.seconds for r in warmup),
        step_seconds=_rounded(r.seconds for r in timed),
        reference_seconds=_rounded(measuring.reference_seconds),
        compile_seconds=round(max(0.0, sum(r.seconds - steady for r in warmup)), _DIGITS) if steady else None,
        first_loss=round(losses[0], _DIGITS) if losses else None,
        last_loss=round(losses[-1], _DIGITS) if losses else None,
        grad_norm=round(statistics.median(norms), _DIGITS) if norms else None,
        data_seconds=_median(r.data_seconds for r in timed),
        forward_seconds=_median(r.forward_seconds for r in timed),
        backward_seconds=_median(r.backward_seconds for r in timed),
        clip_seconds=_median(r.clip_seconds for r in timed),
        optimizer_seconds=_median(r.optimizer_seconds for r in timed),
    )


def _rounded(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(round(value, _DIGITS) for value in values)


def _median(seconds: Iterable[float | None]) -> float | None:
    """Return the median of the sampled steps. Returns None if there is no any."""
    sampled = [s for s in seconds if s is not None]
    return round(statistics.median(sampled), _DIGITS) if sampled else None


if __name__ == "__main__":
    main()
