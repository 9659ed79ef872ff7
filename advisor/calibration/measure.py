"""Controls the worker, a child process that runs bursts of the real trainer, and makes bursts of workloads."""

from __future__ import annotations

import os
import queue
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.findings.series import finite
from advisor.records import Workload
from advisor.store.calibration import Burst, Rehearsal, Settings
from advisor.trainers.adapter import Trainer
from advisor.trainers.own import OWN
from trainer import messages
from trainer.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    OptimizerConfig,
    RunConfig,
    TelemetryConfig,
    make_shape,
)

LATE_SECONDS = 20.0  # a burst is ended if it takes this much longer than expected
_WARMUP_STEPS_MOST = 12
_START_SECONDS = 180.0  # importing torch may come from a cold network disk


class WorkerDied(Exception):
    """Says that the worker process ended or stopped answering. `outcome` is the result of the burst it was running."""

    def __init__(self, outcome: str, reason: str):
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Ready:
    """What the worker reported when it started."""

    seconds: float  # from process start to ready: imports and device initialisation
    device: messages.WorkerDevice
    torch: str
    python: str


class Worker:
    """One worker process of a trainer. It is a context manager, so that the process never outlives its caller."""

    def __init__(
        self,
        device: str = "auto",
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        trainer: Trainer = OWN,
    ):
        self._device, self._log, self._env, self._trainer = device, log, env, trainer
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.Queue[str | None] = queue.Queue()
        self.ready: Ready | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> Path | None:
        """Return the file that receives the process's standard error."""
        return self._log

    @property
    def pid(self) -> int | None:
        """Return the process id, or None if no process runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> Ready:
        """Start the process if it is not running. Raises AdvisorError if it cannot start."""
        if self._process is not None and self._process.poll() is None and self.ready is not None:
            return self.ready
        command = self._trainer.burst_worker(self._device)
        if command is None:
            message = f"the trainer {self._trainer.name!r} has no worker that runs bursts"
            raise AdvisorError(message, f"calibrate with our own trainer: advisor calibrate --gpu {self._device}")
        began = time.perf_counter()
        self._answers = queue.Queue()
        stderr = open(self._log, "ab") if self._log else subprocess.DEVNULL  # noqa: SIM115 - handed to the child
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **(self._env or {})},
            )
        finally:
            if not isinstance(stderr, int):
                stderr.close()
        answers, output = self._answers, self._process.stdout
        assert output is not None

        def read() -> None:
            for line in output:
                if line.startswith("{"):  # libraries may print too; answers are JSON objects
                    answers.put(line)
            answers.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            hello = self._receive(_START_SECONDS).body
        except WorkerDied as error:
            hint = f"read {self._log} for the reason" if self._log else f"run `{shlex.join(command)}` to see why"
            raise AdvisorError(f"the calibration worker did not start: {error.reason}", hint) from error
        if isinstance(hello, messages.Refused):
            hint = "run this on the machine with the GPU, or calibrate what is here: advisor calibrate --gpu cpu"
            raise AdvisorError(f"there is no such GPU here: {hello.reason}", hint)
        assert isinstance(hello, messages.Ready)
        self.ready = Ready(
            seconds=time.perf_counter() - began, device=hello.device, torch=hello.torch, python=hello.python
        )
        return self.ready

    def ceilings(self, request: messages.CeilingsRequest, timeout: float) -> messages.Ceilings:
        """Measure the device's ceilings. Raises WorkerDied; then `start` starts another worker."""
        answer = self._ask(request, timeout)
        assert isinstance(answer, messages.Ceilings)
        return answer

    def burst(self, request: messages.BurstRequest, timeout: float) -> messages.BurstResult:
        """Run one burst. Raises WorkerDied; then `start` starts another worker."""
        answer = self._ask(request, timeout)
        assert isinstance(answer, messages.BurstResult)
        return answer

    def _ask(self, request: messages.Request, timeout: float) -> messages.Body:
        """Send one request and wait for its answer. If the worker says that this was its last answer, wait until its
        process has ended, because it holds its memory until then."""
        self.start()
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(messages.write_request(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._died("the worker was gone") from error
        answer = self._receive(timeout)
        if answer.last:
            self.close()
        return answer.body

    def close(self) -> None:
        """End the process; a second call does nothing."""
        process, self._process, self.ready = self._process, None, None
        if process is None or process.poll() is not None:
            return
        assert process.stdin is not None
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _receive(self, timeout: float) -> messages.Answer:
        try:
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise WorkerDied("timed_out", f"no answer within {timeout:.0f} s") from None
        if line is None:
            raise self._died("the worker ended")
        return messages.read_answer(line)

    def _died(self, what: str) -> WorkerDied:
        process = self._process
        code = process.wait(10) if process is not None else None
        self.close()
        if code == -9:  # on Linux almost always the kernel's out-of-memory killer
            return WorkerDied("out_of_memory", "killed (SIGKILL), as the kernel does when memory runs out")
        return WorkerDied("failed", f"{what} (exit code {code})")


def rehearse(config: RunConfig, timeout: float, log: Path | None = None, trainer: Trainer = OWN) -> Rehearsal | None:
    """Run a trainer for the configured steps in a temporary folder. Returns None if the run does not complete.

    The output of the run is appended to `log`, where it can show why the run failed. The fastest step counts as the
    steady step time. Whatever the first steps take beyond that counts as overhead.
    """
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as name:
        folder = Path(name)
        for file_name, text in trainer.files(config).items():
            (folder / file_name).write_text(text, encoding="utf-8")
        with open(log or os.devnull, "ab") as output:
            command, began = trainer.command(folder, 1), time.perf_counter()
            try:
                done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=timeout)
            except subprocess.TimeoutExpired:
                return None
            wall = time.perf_counter() - began
        if done.returncode != 0:
            return None
        run = trainer.read_log(folder)
    steps, evals = finite(run.column("seconds")), finite(run.column("eval_seconds"))
    written = [event.numbers for event in run.events if event.kind == "checkpoint"][-1]
    counted = float(steps.min()) * len(steps) + float(evals.sum()) + written["seconds"]
    return Rehearsal(
        overhead_seconds=wall - counted, checkpoint_bytes=int(written["bytes"]), checkpoint_seconds=written["seconds"]
    )


def disk_bytes_per_second(folder: Path, size: int = 64 << 20) -> float:
    """Measure the speed at which the disk writes checkpoints, with one temporary, flushed file of `size` bytes. Raises
    OSError if the disk is full."""
    block = os.urandom(1 << 20)
    path = folder / f".speed-{os.getpid()}"
    began = time.perf_counter()
    try:
        with open(path, "wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        return size / (time.perf_counter() - began)
    finally:
        path.unlink(missing_ok=True)


def run_burst(worker: Worker, settings: Settings, workload: Workload, limit: float) -> Burst:
    """Run one burst in the worker. Every outcome, also a failure, is a value in the record."""
    request = messages.BurstRequest(
        config=burst_config(settings, workload),
        seconds=burst_seconds(settings),
        least_steps=3,
        most_warmup=_WARMUP_STEPS_MOST,
        limit_seconds=max(1.0, limit),
    )
    began, started = time.monotonic(), time.time()
    try:
        result = worker.burst(request, timeout=max(5.0, request.limit_seconds) + LATE_SECONDS)
    except WorkerDied as death:
        result = messages.BurstResult(outcome=death.outcome, reason=death.reason)
    seconds = round(time.monotonic() - began, 4)
    return Burst(**vars(result), workload=workload, started=round(started, 3), seconds=seconds)


def burst_seconds(settings: Settings) -> float:
    """Return the timed seconds of one burst: enough for a median, and few enough for thirty in a small budget."""
    return min(1.5, settings.budget_seconds / 30)


def burst_config(settings: Settings, workload: Workload) -> RunConfig:
    """Return the configuration of a burst: that of the full run without checkpoints and telemetry."""
    config = RunConfig(
        model=workload.shape,
        steps=10_000,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        name="burst",
        device=settings.device,
        precision=workload.precision,
        compile=workload.compile,
        activation_checkpointing=workload.activation_checkpointing,
        data=DataConfig(path=settings.data),
        optimizer=OptimizerConfig(name=workload.optimizer),
        eval=EvalConfig(tokens=workload.micro_tokens),
        checkpoint=CheckpointConfig(every_seconds=None, final=False),
        telemetry=TelemetryConfig(hz=0),
    )
    return settings.kernels.set_in(config)


def describe(w: Workload) -> str:
    """Describe one burst in words."""
    accumulated = f" × {w.grad_accum} gradient-accumulation steps" if w.grad_accum > 1 else ""
    return f"depth {w.shape.depth}, micro-batch {w.micro_batch} × {w.shape.seq_len}{accumulated}"


def base_workload(settings: Settings, depth: int) -> Workload:
    shape = make_shape(settings.family, depth=depth, vocab_size=settings.vocab_size, seq_len=settings.seq_len)
    return Workload(
        shape=shape,
        micro_batch=1,
        gpu=settings.gpu,
        precision=settings.precision,
        compile=settings.compile,
        activation_checkpointing=settings.activation_checkpointing,
        optimizer=settings.optimizer,
    )
