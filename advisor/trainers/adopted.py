"""Adopted training commands. The guard of a run writes `steps.jsonl`, from the probe or from the command's own log."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.store.adopted import PLAN, Recipe, load_adopted_plan, record_of
from advisor.store.disk import read_yaml
from advisor.trainers.own import OwnTrainer, log_records
from trainer.budget import Attempt, Spent
from trainer.runlog import Record

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable

LOG, RECIPE, PROBE_FOLDER = "steps.jsonl", "recipe.yaml", "probe"


def recipe_of(folder: Path) -> Recipe:
    """Read the recipe of an adopted run. Raises AdvisorError if it is unusable."""
    path = folder / RECIPE
    return record_of(Recipe, read_yaml(path, "recipe"), path, "recipe", "launch the plan again")


def attempts_of(folder: Path) -> list[list[Record]]:
    """Read the records of a run's log by attempt; each group starts with the header."""
    attempts: list[list[Record]] = []
    for record in log_records(folder / LOG):
        if record["kind"] == "header":
            attempts.append([])
        if attempts:
            attempts[-1].append(record)
    return attempts


class AdoptedTrainer(OwnTrainer):
    """Any training command, run by `advisor.adopt.guard`."""

    name = "adopted"
    log_name = LOG
    plan_field = "steps_are_set"

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """Return the command of the guard, which starts the training command."""
        return (sys.executable, "-m", "advisor.adopt.guard", str(folder))

    def python(self, folder: Path) -> str:
        """Return the Python that the command runs with, or this interpreter if the command does not show it."""
        program = shutil.which(load_adopted_plan(folder / PLAN).command[0])
        if program is None or Path(program).name.startswith("python"):
            return program or sys.executable
        neighbour = Path(program).parent / "python"
        return str(neighbour) if neighbour.exists() else sys.executable

    def read_log(self, folder: Path) -> RunTable:
        """Read the steps from the probe or from the command's own log."""
        from advisor.readers.adopted_log import adopted_run  # imports numpy, which launching does not need

        return adopted_run(folder, attempts_of(folder))

    def planned_steps(self, folder: Path) -> int:
        """Read the planned steps from the plan."""
        return load_adopted_plan(folder / PLAN).steps

    def booked(self, folder: Path) -> Spent:
        """Return the duration of each attempt up to its last record, at the price of the launch."""
        ends = [(attempt[0], attempt[-1]["time"]) for attempt in attempts_of(folder)]
        return Spent(attempts=tuple(
            Attempt(session=str(first["attempt"]), host=first["host"], began=first["time"],
                    seconds=end - first["time"], usd_per_hour=None)
            for first, end in ends
        ))  # fmt: skip

    spent = booked


ADOPTED = AdoptedTrainer()
