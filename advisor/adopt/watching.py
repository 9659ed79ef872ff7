"""Starts and watches a training program: its steps by the probe or by its log, its memory, everything it started."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import pty
import signal
import statistics
import struct
import subprocess
import termios
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from advisor.hardware.here import used_by
from advisor.store.adopted import BatchShape
from advisor.store.disk import disk_errors

if TYPE_CHECKING:
    from advisor.adopt.by_log import LogSteps

HERE = Path(__file__).resolve().parent / "probe"
_SHAPES = 3  # steps whose model input the probe notes
_MEMORY = ("allocated_peak_bytes", "reserved_peak_bytes", "resident_peak_bytes")
_ROWS, _COLUMNS = 50, 200  # of the terminal: wide enough that no log line is broken
_BLOCK = 1 << 16
_LAST_WORDS_SECONDS = 5.0  # allowed for reading the rest after the program has ended
_TERMINAL = {"TERM": "dumb"}  # no colours, no lines that are drawn over
_CLIENTS = frozenset(("docker", "podman", "nerdctl", "srun"))  # processes that they start are not their children
LOOK_SECONDS, LOOK_SHARE = 0.5, 0.1  # between looks at a burst's output; share of the time that looking may take
Timed = tuple[Sequence[int], Sequence[float], Sequence[float]]  # number and end of each step, durations from the second


def probe_variables(folder: Path, shapes: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables with which a program loads the probe and the probe writes into `folder`."""
    before = inherited.get("PYTHONPATH")
    return {"TRAINING_ADVISOR_PROBE": str(folder), "TRAINING_ADVISOR_PROBE_SHAPES": str(shapes),
            "PYTHONPATH": f"{HERE}:{before}" if before else str(HERE), "PYTHONUNBUFFERED": "1"}  # fmt: skip


def start(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], scratch: Path, output: Output | None
) -> subprocess.Popen[bytes]:
    """Start a command whose probe writes into `scratch`, and which prints to `output` if given; raises OSError."""
    inherited = {**environment, **(_TERMINAL if output is not None else {})}
    try:
        return subprocess.Popen(
            arguments, cwd=folder, env={**inherited, **probe_variables(scratch, _SHAPES, inherited)},
            stdin=subprocess.DEVNULL, stdout=output.terminal if output is not None else None,
            stderr=subprocess.STDOUT if output is not None else None, start_new_session=True,
        )  # fmt: skip
    finally:
        if output is not None:
            os.close(output.terminal)  # the program alone keeps it


def end(process: subprocess.Popen[bytes], number: int, started: Iterable[psutil.Process] = ()) -> None:
    """Send a signal to the process group of a command, and kill the processes in `started`.

    The processes of a launcher have sessions of their own, so that the group's signal does not reach them.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
    for one in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()


def how_it_died(code: int) -> tuple[bool, str]:
    """Returns True if a failed process ran out of memory, judged by its exit status, and the reason of its failure."""
    if code == -signal.SIGKILL:
        return True, "killed (SIGKILL), as the kernel does when memory runs out"
    return False, f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"


class ProbedProcess:
    """The records of one process, in their order; of those about memory, only the newest."""

    def __init__(self) -> None:
        self.records: dict[str, list[dict[str, Any]]] = defaultdict(list)  # by kind, apart from the steps
        # By optimizer: ends and durations of its steps, its last step, seconds of the reference kernel since then.
        self._ends: dict[int, list[float]] = defaultdict(list)
        self._durations: dict[int, list[float]] = defaultdict(list)
        self._last: dict[int, dict[str, Any]] = {}
        self._held: dict[int, float] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Add one record. Records of unknown kinds are ignored."""
        if record["kind"] == "step":
            number, now = record["optimizer"], record["time"]
            if (last := self._last.get(number)) is not None:
                on_card = last.get("card_seconds")
                between = max(0.0, now - last["time"] - self._held[number])  # the kernel's time belongs to no step
                self._durations[number].append(between if on_card is None else on_card)
            self._ends[number].append(now)
            self._last[number], self._held[number] = record, 0.0
            return
        if record["kind"] == "memory":
            self.records["memory"].clear()
        if record["kind"] == "witness":
            self._held = {number: held + record["held_seconds"] for number, held in self._held.items()}
        self.records[record["kind"]].append(record)

    def newest(self, kind: str) -> dict[str, Any]:
        """Returns the newest record of a kind; empty if there is none."""
        return (self.records[kind] or [{}])[-1]

    @property
    def main(self) -> dict[str, Any] | None:
        """The program's main optimizer, which has stepped and has the most tensor elements."""
        stepped = (each for each in self.records["optimizer"] if each["optimizer"] in self._ends)
        return max(stepped, key=lambda each: each["elements"], default=None)

    @property
    def moments(self) -> list[float]:
        """Unix seconds at which each step of the main optimizer ended."""
        return [] if (main := self.main) is None else self._ends[main["optimizer"]]

    @property
    def durations(self) -> list[float]:
        """The seconds from the end of each step to the end of the next, by the GPU's clock if it was recorded."""
        return [] if (main := self.main) is None else self._durations[main["optimizer"]]

    @property
    def shape(self) -> BatchShape | None:
        """The model's input in a step; None if nothing was seen."""
        seen = [shape for shape in self.records["shape"] if shape["rows"]]
        if not seen:
            return None
        lengths = [n for shape in seen for n in shape["lengths"] if n is not None]
        tokens = [sum(shape["tokens"]) for shape in seen if None not in shape["tokens"]]
        return BatchShape(
            rows=statistics.median(max(shape["rows"]) for shape in seen),
            calls=round(statistics.median(shape["calls"] for shape in seen)),
            length=statistics.mean(lengths) if lengths else None,
            tokens=statistics.mean(tokens) if tokens else None,
        )


class ProbeFolder:
    """What the probe wrote from inside all processes of one program, in files that are read as they grow."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._offsets: dict[Path, int] = defaultdict(int)
        self._processes: dict[Path, ProbedProcess] = defaultdict(ProbedProcess)

    def look(self, pid: int | None = None) -> None:
        """Read what was written since the last call, except an incomplete line."""
        for path in sorted(self.folder.glob("probe-*.jsonl")):
            with disk_errors("read", path), open(path, "rb") as file:
                file.seek(self._offsets[path])
                text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._offsets[path] += len(whole)
            for line in whole.splitlines():
                self._processes[path].add(json.loads(line))

    finish = look

    @property
    def processes(self) -> list[ProbedProcess]:
        """Returns the processes that trained, by rank."""
        trained = [process for process in self._processes.values() if process.main is not None]
        return sorted(trained, key=lambda process: process.newest("process").get("rank", 0))

    @property
    def first(self) -> ProbedProcess | None:
        """The process that represents the program: rank 0, or None if none has trained."""
        return next(iter(self.processes), None)

    @property
    def timed(self) -> Timed:
        """The steps so far."""
        if (first := self.first) is None:
            return (), (), ()
        return range(1, len(first.moments) + 1), first.moments, first.durations

    @property
    def memory(self) -> dict[str, Any]:
        """The known peaks: of the fullest GPU, and on the host of all processes together."""
        newest = [process.newest("memory") for process in self.processes]
        seen = {name: [each[name] for each in newest if each.get(name) is not None] for name in _MEMORY}
        return {name: (sum if name == "resident_peak_bytes" else max)(all_) for name, all_ in seen.items() if all_}


class Output:
    """A terminal that a program prints to. A program sends a terminal each finished line, but buffers output to a file.

    Output is written to `path` and to `also`. The program gets `terminal`.
    """

    def __init__(self, path: Path, also: int | None = None):
        self.path = path
        self.ends = array("d")  # Unix seconds at which the lines ended, in order
        self._master, self.terminal = pty.openpty()
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        modes = termios.tcgetattr(self.terminal)
        modes[1] &= ~termios.OPOST  # keep line ends as they are printed
        termios.tcsetattr(self.terminal, termios.TCSANOW, modes)
        self._to = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), *([also] if also is not None else [])]
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Read the rest of the output of a program that has ended."""
        self._thread.join(_LAST_WORDS_SECONDS)

    def _read(self) -> None:
        clock = time.time() - time.monotonic()  # changing the system clock shifts no line
        with contextlib.suppress(OSError):  # EIO: the last process that could print has ended
            while block := os.read(self._master, _BLOCK):
                now = clock + time.monotonic()
                for file in self._to:
                    left = block
                    with contextlib.suppress(OSError):  # with a full disk the program continues, and its lines count
                        while left:
                            left = left[os.write(file, left) :]
                self.ends.extend([now] * block.count(b"\n"))
        os.close(self._master)
        os.close(self._to[0])


class LogWatch:
    """The steps that a program's log has shown so far, and the peak memory of its processes."""

    def __init__(self, output: Output, look_seconds: float = LOOK_SECONDS, look_share: float = LOOK_SHARE):
        self.output, self._seconds, self._share = output, look_seconds, look_share
        self.logged: LogSteps | None = None
        self.peaks: dict[str, int] = {}  # of host memory, and by NVML on the fullest GPU
        self.processes = 1  # number of processes that train together
        self.elsewhere = False  # the training processes are not children of the command, so their memory is unknown
        self._next_look = 0.0

    def look(self, pid: int) -> None:
        """Read the output and the memory, unless the last look was too recent for the cost of a look."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._read()
        processes = tree(pid)
        self.elsewhere = self.elsewhere or any(answer_or_none(process.name) in _CLIENTS for process in processes)
        used = used_by({process.pid for process in processes})
        for name, bytes_ in (("resident_peak_bytes", resident_bytes(processes)), ("device_peak_bytes", used)):
            if bytes_:
                self.peaks[name] = max(self.peaks.get(name, 0), bytes_)
        # the launcher tells each process how many train together
        worlds = [(answer_or_none(process.environ) or {}).get("WORLD_SIZE", "") for process in processes]
        self.processes = max([self.processes, *(int(world) for world in worlds if world.isdigit())])
        self._next_look = time.monotonic() + max(self._seconds, (time.monotonic() - now) / self._share)

    def finish(self) -> None:
        """Read the log of a program that has ended."""
        self.output.finish()
        self._read()
        self._next_look = math.inf

    def _read(self) -> None:
        from advisor.adopt.by_log import read_steps  # all readers, which a guard with the probe does not need

        self.logged = read_steps(self.output.path, self.output.ends)

    @property
    def timed(self) -> Timed:
        """The steps so far."""
        logged = self.logged
        return (logged.steps, logged.moments, logged.durations) if logged is not None else ((), (), ())

    @property
    def memory(self) -> dict[str, int]:
        """The known peaks."""
        return {} if self.elsewhere else self.peaks


def tree(pid: int) -> list[psutil.Process]:
    """Returns a process and its descendants, or an empty list if it has ended."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return []


def resident_bytes(processes: Sequence[psutil.Process]) -> int:
    """Returns the bytes of host memory that processes hold now."""
    return sum(memory.rss for process in processes if (memory := answer_or_none(process.memory_info)) is not None)


def answer_or_none(ask: Callable[[], Any]) -> Any:
    """Returns the answer of a process, or None if it has ended or may not be asked."""
    try:
        return ask()
    except psutil.Error:
        return None
