"""Exports the run of an adopted command: its plan, its guard with the probe, and a script.

The command, its data and its environment belong to the user. They exist on the other machine, or the user's bootstrap
line creates them. Only the guard is exported; it needs a Python with pyyaml and psutil.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
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
_ROOTS = Path(advisor.__path__[0]), Path(trainer.__path__[0])


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
        return 0 if self.plan.offer.gpu == "cpu" else self.plan.offer.gpus

    @property
    def grace_seconds(self) -> int:
        """Seconds that an engine must allow between the signal and the kill."""
        return grace_seconds(self.plan.ending_seconds)

    @property
    def limit_seconds(self) -> int:
        """Return when the engine ends the run."""
        return engine_limit(self.plan.limit_seconds, self.plan.bill.wall_clock.total_seconds, self.grace_seconds)


def adopted_files(job: AdoptedJob) -> dict[str, str]:
    """Return the files of the export by name, the same for every engine."""
    plan, by_log = job.plan, job.plan.basis == LOG
    # a shell line of the user's, then the guard, which starts the command
    none = "# no bootstrap line: the command finds its programs by the PATH that is there"
    folder = f'"$HOME"/{shlex.quote(plan.folder[2:])}' if plan.folder.startswith("~/") else shlex.quote(plan.folder)
    needed = (*PACKAGES, "scipy", "click", "rich") if by_log else _GUARD_PACKAGES
    return {
        PLAN: dump_adopted_plan(plan),
        RECIPE: job.recipe,
        "requirements.txt": "".join(pinned(needed)),
        SETUP: setup_script(None),
        RUN: script("adopted_run.sh", run_id=job.run_id, folder=folder, bootstrap=plan.bootstrap or none, guard=GUARD),
        **guard_sources(whole=by_log),
    }


def guard_sources(*, whole: bool) -> dict[str, str]:
    """Return the sources of the guard and the probe; `whole` takes all sources, as a guard that reads logs needs."""
    code = f"import sys, {GUARD}; print(*(getattr(m, '__file__', '') for m in sys.modules.values()), sep=chr(10))"
    loaded = subprocess.check_output([sys.executable, "-c", code], cwd=_ROOTS[0].parent, text=True).splitlines()
    probe = _ROOTS[0] / "adopt" / "probe"
    found = {}
    for root in _ROOTS:
        for path in sorted(root.rglob("*")):
            needed = whole or probe in path.parents or str(path) in loaded
            if needed and path.is_file() and path.suffix != ".pyc":
                found[path.relative_to(root.parent).as_posix()] = path.read_text(encoding="utf-8")
    return found
