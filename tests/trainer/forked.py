"""The trainer in processes of its own, forked from one that has torch loaded: two seconds less for each start."""

from __future__ import annotations

import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from trainer.schema import RunConfig, dump_config

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["trainer.run", "trainer.__main__", "torch._dynamo", "torch.distributed.fsdp"])


class Forked:
    """A started trainer with what these tests ask of subprocess.Popen."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.output = folder / f"output-{variables.get('RANK', '0')}.txt"
        arguments = (str(folder), str(self.output), {**os.environ, **variables}, torch.get_num_threads())
        self.process = CONTEXT.Process(target=_train, args=arguments, daemon=True)
        self.process.start()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("trainer", timeout)
        return self.process.exitcode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for its end; returns all that it printed."""
        self.wait(timeout)
        return self.output.read_text(encoding="utf-8"), None


def start(folder: Path, settings: RunConfig, variables: dict[str, str] | None = None) -> Forked:
    """The trainer at a folder's run, from a configuration that is written there."""
    _write(folder, settings)
    return Forked(folder, variables or {})


def start_many(folder: Path, settings: RunConfig, processes: int) -> list[Forked]:
    """The same as so many processes that train one model, which find each other as torchrun has them do."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    together = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    _write(folder, settings)  # once: who starts early may be reading it
    return [Forked(folder, {**together, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(processes)]


def _write(folder: Path, settings: RunConfig) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(dump_config(settings), encoding="utf-8")


def _train(folder: str, output: str, variables: dict[str, str], threads: int) -> None:
    from trainer.__main__ import leave, main

    os.environ.clear()  # the server of forks may have been started with variables that a test has taken away
    os.environ.update(variables)
    with open(output, "a", encoding="utf-8") as out:
        for descriptor in (1, 2):
            os.dup2(out.fileno(), descriptor)
        sys.stdout = sys.stderr = out
        torch.set_num_threads(threads)  # or sums round differently
        leave(main([str(Path(folder) / "run.yaml"), "--out", folder]))
