"""A driver library that answers as a table says: compiled here from `nvml.c`, whose head describes the tables."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAME = "libnvidia-ml.so.1"  # as nvidia-ml-py asks for it


COMPILER = shutil.which("cc") if sys.platform == "linux" else None


@functools.cache
def library() -> Path:
    """The library's file, compiled once for each process."""
    assert COMPILER is not None
    path = Path(tempfile.mkdtemp(prefix="nvml-")) / NAME
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    command = [COMPILER, "-O2", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", str(path), str(HERE / "nvml.c")]
    subprocess.run(command, check=True)
    return path


def table(path: Path, recorded: str, *lines: str) -> Path:
    """Write a table: a recorded one of this folder, and lines that go before it."""
    path.write_text((HERE / f"{recorded}.txt").read_text() + "".join(f"{line}\n" for line in lines))
    return path


def environment(table: Path, answers: Path | None = None) -> dict[str, str]:
    """What a process needs to find this driver, and to write down what it answers."""
    paths = [str(library().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    log = {"NVML_ANSWERS": str(answers)} if answers is not None else {}
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths), "NVML_TABLE": str(table), **log}


def answers(path: Path) -> list[tuple[str, str, str]]:
    """Card, quantity and value of each answer of all processes that was no error, in its order."""
    lines = [line.split() for part in path.parent.glob(f"{path.name}.*") for line in part.read_text().splitlines()]
    return [(card, quantity, value) for card, quantity, result, value in lines if result == "0"]
