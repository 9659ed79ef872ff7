"""Defines for each trainer how its plans and runs are launched, exported and scored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from advisor.errors import AdvisorError
from advisor.trainers.adapter import Trainer
from advisor.trainers.adopted import ADOPTED
from advisor.trainers.own import OWN


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Options of a command that a trainer's plans or runs do not support."""

    options: tuple[str, ...]
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Flow:
    """The functions for the plans and runs of one trainer; `refused` lists unsupported options by command."""

    launching: Callable[..., Any]  # (store, path of a plan, LaunchOptions, say, measure) -> Launching
    export: Callable[..., Any]  # (store, path of a plan, target, ExportOptions) -> Exported
    read: Callable[..., Any]  # (run folder, plan) -> Reviewed
    learn: Callable[..., Any]  # (store, Reviewed, time of day) -> why the run is not learnt from, or None
    refused: Mapping[str, Refusal]


def _later(module: str, name: str) -> Callable[..., Any]:
    """Returns a function that is imported when it is called, so that launches and resumes start without scipy."""
    return lambda *given, **named: getattr(import_module(f"advisor.workflows.{module}"), name)(*given, **named)


_OF_ADOPTED = Refusal(options=("bootstrap", "folder"), message="--bootstrap and --folder are of adopted commands",
                      hint="leave them out")  # fmt: skip
FLOWS = {
    OWN.name: Flow(
        launching=_later("launch", "launching"),
        export=_later("export", "export_file"),
        read=_later("compare", "read_own"),
        learn=_later("compare", "learn_own"),
        refused={"launch": _OF_ADOPTED, "export": _OF_ADOPTED},
    ),
    ADOPTED.name: Flow(
        launching=_later("adopt_launch", "launching"),
        export=_later("adopt_launch", "export_adopted"),
        read=_later("compare", "read_adopted"),
        learn=_later("compare", "learn_adopted"),
        refused={
            "launch": Refusal(
                options=("budget", "deadline", "no_limits", "stop_loss", "gate", "notice", "calibrate", "may_change",
                         "stop_if_over", "gpu_ids", "synthetic", "trace"),
                message="an adopted command is launched as it was planned",
                hint="its limits are the plan's: advisor adopt --name NAME --deadline …; lines that record a trace "
                     "are in docs/traces.md",
            ),
            "resume": Refusal(
                options=("stop_loss", "price", "synthetic"),
                message="an adopted command has its own data and no --stop-loss, and keeps its price",
                hint="--deadline or --budget",
            ),
            "export": Refusal(
                options=("synthetic", "budget", "deadline", "no_limits"),
                message="an adopted command has its own data, and its limits are its plan's",
                hint="advisor adopt --name NAME --deadline …",
            ),
        },
    ),
}  # fmt: skip


def flow_of(trainer: Trainer, command: str = "", options: Any = None) -> Flow:
    """Returns the flow of a trainer, which is this project's own flow if the table does not have the trainer.

    Raises AdvisorError (exit 2) if the trainer does not support one of the command's options.
    """
    flow = FLOWS.get(trainer.name, FLOWS[OWN.name])
    refusal = flow.refused.get(command)
    if refusal is not None and any(getattr(options, name) for name in refusal.options):
        raise AdvisorError(refusal.message, refusal.hint, exit_code=2)
    return flow
