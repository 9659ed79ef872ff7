"""Starts detached child processes, identifies them by pid and start time, stops them, and finds who writes a file."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from advisor.errors import AdvisorError

# The wall clock may change, and a start computed from a log is inexact; no pid is reused within this time.
START_TOLERANCE_SECONDS = 30.0
_children: dict[int, subprocess.Popen] = {}  # our children, kept so that they are reaped and do not stay as zombies
_PROCESSES = Path("/proc")
_ATTEMPT_LOCK = ".attempt.lock"
_MOMENT = 60.0  # seconds, at least, because programs write their output when a buffer is full
_WRITING = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """A process identified by pid and start time, since pids are reused."""

    pid: int
    started: float  # Unix seconds


def start_detached(command: Sequence[str], folder: Path, output: Path, variables: Mapping[str, str],
                   keep: Sequence[int] = ()) -> ProcessId:  # fmt: skip
    """Start a process that outlives this one and its terminal, with `folder` as its working directory.

    `variables` are added to the inherited environment; the open files `keep` are inherited. Standard input is empty;
    standard output and error are appended to `output`. Raises AdvisorError.
    """
    try:
        with open(output, "ab") as out:
            child = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                pass_fds=keep,
                start_new_session=True,  # so that neither Ctrl-C nor the end of the terminal reaches it
            )
    except OSError as error:
        raise AdvisorError(f"cannot start {command[0]}: {error.strerror}", f"try it by hand in {folder}") from error
    _children[child.pid] = child
    try:
        started = psutil.Process(child.pid).create_time()
    except psutil.NoSuchProcess:
        started = time.time()  # it has already ended; the first status check will show that
    return ProcessId(pid=child.pid, started=started)


def is_alive(process: ProcessId) -> bool:
    """Tell whether this process still runs on this machine; a zombie does not."""
    return _find(process) is not None


def ask_to_stop(process: ProcessId, *, workers_only: bool) -> None:
    """Send SIGTERM; with `workers_only` to its children, as torchrun gives its workers only 30 s to save."""
    running = _find(process)
    if running is None:
        return
    targets = (running.children() if workers_only else []) or [running]
    for target in targets:
        with contextlib.suppress(psutil.NoSuchProcess):
            target.send_signal(signal.SIGTERM)


def kill_tree(process: ProcessId) -> None:
    """Kill a process with everything it started (workers of torchrun have sessions of their own)."""
    running = _find(process)
    if running is None:
        return
    for target in [*running.children(recursive=True), running]:
        with contextlib.suppress(psutil.NoSuchProcess):
            target.kill()


def wait_until_gone(process: ProcessId, timeout_seconds: float) -> bool:
    """Wait for a process to end; returns False if it still runs after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while is_alive(process):
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.05)
    return True


def python_variables() -> dict[str, str]:
    """Return the environment variables with which a Python child finds our packages from any folder."""
    variables = {"PYTHONUNBUFFERED": "1"}
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").exists() or (root / ".git").exists():  # a checkout, perhaps not installed
        before = os.environ.get("PYTHONPATH")
        variables["PYTHONPATH"] = f"{root}{os.pathsep}{before}" if before else str(root)
    return variables


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder's launch lock; raises AdvisorError if another process holds it. The lock ends with this process."""
    busy = AdvisorError(f"{folder} is being started by another command", f"advisor watch {folder}")
    with waiting_lock(folder / ".launch.lock", 0.0, busy):
        yield


def attempt_lock(folder: Path) -> contextlib.AbstractContextManager[IO[str]]:
    """Hold a lock that the process of a starting attempt inherits, so that its id may be lost and it still be seen."""
    busy = AdvisorError(f"a process of {folder} is still there", f"advisor watch {folder}")
    return waiting_lock(folder / _ATTEMPT_LOCK, 5.0, busy)


def attempt_is_there(folder: Path) -> bool:
    """Tell whether the process of the folder's newest attempt lives, or whoever starts it."""
    if not (folder / _ATTEMPT_LOCK).exists():
        return False
    with open(folder / _ATTEMPT_LOCK, "a", encoding="utf-8") as file:
        return not try_lock(file)


@contextlib.contextmanager
def waiting_lock(path: Path, seconds: float = math.inf, busy: AdvisorError | None = None) -> Iterator[IO[str]]:
    """Hold the lock of a file, after waiting for its holder; raises `busy` if that takes more than `seconds`."""
    with open(path, "a", encoding="utf-8") as file:
        deadline = time.monotonic() + seconds
        while not try_lock(file):
            if busy is not None and time.monotonic() >= deadline:
                raise busy
            time.sleep(0.05)
        yield file


def try_lock(file: IO[str] | int) -> bool:
    """Lock an open file for this process until it is closed; returns False if another process or thread holds it."""
    import fcntl  # POSIX only, like everything that starts processes here

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def python_command(*arguments: str) -> tuple[str, ...]:
    """Return the command that runs this same interpreter."""
    return (sys.executable, *arguments)


def _find(process: ProcessId) -> psutil.Process | None:
    if child := _children.get(process.pid):
        child.poll()  # reaps it if it has ended
    try:
        running = psutil.Process(process.pid)
        same = abs(running.create_time() - process.started) <= START_TOLERANCE_SECONDS
        return running if same and running.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def is_being_written(path: Path) -> bool:
    """Tell whether a process of this machine has the file open for writing; False if the system does not say."""
    try:
        target = str(path.resolve(strict=True))
        processes = [name for name in os.listdir(_PROCESSES) if name.isdigit()]
    except OSError:
        return False
    return any(_writes(_PROCESSES / process, target) for process in processes)


def was_just_written(path: Path, stamp: float, every: float) -> bool:
    """Tell whether a file's last record is recent by its own time stamp, read as UTC or as local time.

    `stamp` is the time of the last record in seconds since 1970, `every` the seconds between records. A copy of an old
    log has a new file date and old stamps. Returns False if the file cannot be read.
    """
    now = time.time()
    try:
        written = path.stat().st_mtime
    except OSError:
        return False
    moment = max(_MOMENT, 5 * every)
    here = time.localtime(now).tm_gmtoff
    return 0 <= now - written <= moment and any(-1 <= now + zone - stamp <= moment for zone in (0, here))


def _writes(process: Path, target: str) -> bool:
    """Tell whether a process writes the file; False if the process has ended or belongs to somebody else."""
    try:
        for number in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                if os.readlink(process / "fd" / number) == target:
                    info = (process / "fdinfo" / number).read_text(encoding="ascii").splitlines()
                    flags = next((line.split()[1] for line in info if line.startswith("flags:")), "0")
                    if int(flags, 8) & _WRITING:
                        return True
    except OSError:
        pass
    return False
