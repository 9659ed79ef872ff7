"""Exports the run of an adopted command: its plan, its guard with the probe, and a script.

The command, its data and its environment belong to the user. They exist on the other machine, or the user's bootstrap
line creates them. Only the guard is exported; it needs a Python with pyyaml and psutil.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import advisor
import trainer
from advisor.engines.export.bundle import (
    PACKAGES,
    RUN,
    SETUP,
    engine_limit,
    grace_seconds,
    pinned,
    plain_name,
    setup_script,
)
from advisor.engines.templates import script
from advisor.run_records import Place
from advisor.store.adopted import LOG, PLAN, AdoptedPlan, dump_adopted_plan
from advisor.trainers.adopted import RECIPE

GUARD = "advisor.adopt.guard"
_GUARD_PACKAGES = ("pyyaml", "psutil")
_PACKAGES = {"advisor": Path(advisor.__path__[0]), "trainer": Path(trainer.__path__[0])}


@dataclass(frozen=True, kw_only=True)
class AdoptedJob:
    """The run of an adopted command, for any engine."""

    plan: AdoptedPlan  # its folder is where the command starts there
    recipe: str  # as YAML
    run_id: str
    place: Place = Place()
    here: str = ""  # the command's folder on this machine, copied to a rented one

    @property
    def name(self) -> str:
        """Return a name of lower-case letters, digits and dashes, as clusters require."""
        return plain_name(self.run_id)

    @property
    def cards(self) -> int:
        """Return the number of GPUs on its node; 0 if it uses none."""
        return 0 if self.plan.device_key == "cpu" else self.plan.gpus

    @property
    def grace_seconds(self) -> int:
        """Seconds that an engine must allow between the signal and the kill."""
        return grace_seconds(self.plan.ending_seconds.high if self.plan.ending_seconds is not None else 0.0)

    @property
    def limit_seconds(self) -> int:
        """Return when the engine ends the run."""
        return engine_limit(self.plan.limit_seconds, self.plan.total_seconds, self.grace_seconds)


def adopted_files(job: AdoptedJob) -> dict[str, str]:
    """Return the files of the export by name, the same for every engine."""
    by_log = job.plan.basis == LOG
    needed = (*PACKAGES, "scipy", "click", "rich") if by_log else _GUARD_PACKAGES
    return {
        PLAN: dump_adopted_plan(job.plan),
        RECIPE: job.recipe,
        "requirements.txt": "".join(pinned(needed)),
        SETUP: setup_script(None),
        RUN: run_script(job),
        **guard_sources(whole=by_log),
    }


def run_script(job: AdoptedJob) -> str:
    """Return a script: the user's bootstrap line in the command's folder, then the guard, which starts the command."""
    none = "# no bootstrap line: the command finds its programs by the PATH that is there"
    plan = job.plan
    folder = f'"$HOME"/{shlex.quote(plan.folder[2:])}' if plan.folder.startswith("~/") else shlex.quote(plan.folder)
    return script("adopted_run.sh", run_id=job.run_id, folder=folder, bootstrap=plan.bootstrap or none, guard=GUARD)


def guard_sources(*, whole: bool) -> dict[str, str]:
    """Return the sources of the guard and the probe; `whole` takes all sources, as a guard that reads logs needs."""
    probe = (_PACKAGES["advisor"] / "adopt" / "probe").rglob("*")
    modules = {path for folder in _PACKAGES.values() for path in folder.rglob("*")} if whole else _needed(GUARD)
    files = sorted(path for path in {*modules, *probe} if path.is_file() and path.suffix != ".pyc")
    return {path.relative_to(_root(path)).as_posix(): path.read_text(encoding="utf-8") for path in files}


def _root(path: Path) -> Path:
    """Return the folder that contains a file's package."""
    return next(folder.parent for folder in _PACKAGES.values() if folder in path.parents)


def _needed(module: str) -> set[Path]:
    """Return the files of a module and of everything it imports at import time."""
    found: set[Path] = set()
    waiting = [module]
    while waiting:
        for path in _files(waiting.pop()):
            if path not in found:
                found.add(path)
                # The names that a file imports at its top: modules, or perhaps other names.
                names = []
                for node in ast.parse(path.read_text(encoding="utf-8")).body:
                    if isinstance(node, ast.Import):
                        names += [alias.name for alias in node.names]
                    elif isinstance(node, ast.ImportFrom) and node.module is not None:
                        names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                waiting += names
    return found


def _files(module: str) -> Iterator[Path]:
    """Yield the file of a module and those of its parent packages; nothing for modules that are not ours."""
    parts = module.split(".")
    if parts[0] not in _PACKAGES:
        return
    folder = _PACKAGES[parts[0]].parent
    for part in parts:
        folder = folder / part
        for path in (folder / "__init__.py", folder.with_suffix(".py")):
            if path.is_file():
                yield path
