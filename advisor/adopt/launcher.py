"""What starts the processes that train together: torchrun, accelerate launch, deepspeed, composer. Pure.

A launcher's options stand between it and the program that it starts: behind that they would be the program's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advisor.store.adopted import Knob

LAUNCHER = "launcher"  # how such a knob is set
_TORCHRUN = ("--nproc-per-node", "--nproc_per_node")
_ACCELERATE = ("--num_processes", "--num-processes")
_HOSTS = ("--nnodes", "--num_machines", "--num-machines", "--num_nodes", "--world_size")
_PROGRAMS = {
    ("torchrun",): _TORCHRUN,
    ("torch.distributed.run",): _TORCHRUN,
    ("torch.distributed.launch",): _TORCHRUN,
    ("accelerate", "launch"): _ACCELERATE,
    ("accelerate.commands.launch",): _ACCELERATE,
    ("deepspeed",): ("--num_gpus",),
    ("composer",): ("--nproc", "-n"),
}


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """The launcher of a command."""

    first: int  # the place of the first word behind it
    names: tuple[str, ...]  # of its option, the usual one first


def launcher_of(command: Sequence[str]) -> Launcher | None:
    """What starts a command's processes; None: the command is a process of its own."""
    words = [Path(word).name if "/" in word else word for word in command]
    for place in range(len(words)):
        if words[place].endswith(".py"):
            return None  # what comes behind a program is said to it
        for program, names in _PROGRAMS.items():
            if tuple(words[place : place + len(program)]) == program:
                return Launcher(first=place + len(program), names=names)
    return None


def end_of_launcher(command: Sequence[str], launcher: Launcher) -> int:
    """The place of the first word that is the program's: a script, or what stands before a module."""
    rest = command[launcher.first :]
    found = next((i for i, word in enumerate(rest) if word.endswith(".py") or word in ("-m", "--module")), len(rest))
    return launcher.first + found


def launcher_knob(command: Sequence[str]) -> Knob | None:
    """The knob of how many processes a command's launcher starts; None: none, or they are on several hosts."""
    launcher = launcher_of(command)
    if launcher is None or any(_value(command, launcher, name) not in (None, "1") for name in _HOSTS):
        return None
    text = processes_of(command)
    named = next((name for name in launcher.names if _place(command, launcher, name) is not None), launcher.names[0])
    return Knob(name="gpus", key=named, how=LAUNCHER, value=float(text) if text and text.isdigit() else None)


def processes_of(command: Sequence[str]) -> str | None:
    """What a command says of its processes; None: nothing."""
    launcher = launcher_of(command)
    if launcher is None:
        return None
    return next((text for name in launcher.names if (text := _value(command, launcher, name)) is not None), None)


def with_processes(command: Sequence[str], text: str) -> list[str]:
    """The command with so many processes: where it says how many, else behind its launcher."""
    launcher = launcher_of(command)
    assert launcher is not None  # else it has no such knob
    for name in launcher.names:
        if (place := _place(command, launcher, name)) is not None:
            if command[place] != name:
                return [*command[:place], f"{name}={text}", *command[place + 1 :]]
            return [*command[: place + 1], text, *command[place + 2 :]]
    return [*command[: launcher.first], launcher.names[0], text, *command[launcher.first :]]


def _place(command: Sequence[str], launcher: Launcher, name: str) -> int | None:
    """Where an option of the launcher stands, as a word or with its value behind an equals sign."""
    for place in range(launcher.first, end_of_launcher(command, launcher)):
        if command[place] == name or command[place].startswith(f"{name}="):
            return place
    return None


def _value(command: Sequence[str], launcher: Launcher, name: str) -> str | None:
    place = _place(command, launcher, name)
    if place is None:
        return None
    if command[place] != name:
        return command[place].partition("=")[2]
    return command[place + 1] if place + 1 < len(command) else None
