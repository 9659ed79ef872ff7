"""The engines a plan can be exported to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from advisor.engines.export import cloud, kubernetes, scripts, slurm
from advisor.engines.export.bundle import RUN


@dataclass(frozen=True, kw_only=True)
class Target:
    """One engine: which files it adds to the common ones, which of them is the job, and what a person types."""

    main: str
    files: Callable[[Any], Mapping[str, str]]
    steps: Callable[[Any], Sequence[str]]
    commands: bool = False  # it also takes adopted commands: an AdoptedJob in place of an ExportJob
    data_at: str | None = None  # where the token folder lies there; None: where it lies here


TARGETS = {
    "script": Target(main=RUN, files=scripts.script, steps=scripts.script_steps, commands=True),
    "slurm": Target(main=slurm.SCRIPT, files=slurm.slurm, steps=slurm.slurm_steps, commands=True),
    "dockerfile": Target(main="Dockerfile", files=scripts.dockerfile, steps=scripts.dockerfile_steps, data_at="/data"),
    "skypilot": Target(
        main=cloud.SKY, files=cloud.skypilot, steps=cloud.skypilot_steps, data_at="/data", commands=True
    ),
    "dstack": Target(main=cloud.DSTACK, files=cloud.dstack, steps=cloud.dstack_steps, data_at="/data"),
    "trainjob": Target(
        main=kubernetes.TRAINJOB, files=kubernetes.trainjob, steps=kubernetes.trainjob_steps, data_at="/run-folder/data"
    ),
    "jobset": Target(
        main=kubernetes.JOBSET, files=kubernetes.jobset, steps=kubernetes.jobset_steps, data_at="/run-folder/data"
    ),
}
