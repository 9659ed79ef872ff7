"""Adopted training commands. The guard of a run writes `steps.jsonl`, from the probe or from the command's own log."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.store.adopted import PLAN, AdoptedPlan, Recipe, load_adopted_plan
from advisor.store.disk import bad_fields, disk_errors, read_yaml
from advisor.trainers.adapter import LogEnd
from trainer.budget import Attempt, Spent
from trainer.schema import ConfigError, Outcome, RunConfig, record_from_dict

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable

LOG, RECIPE, PROBE_FOLDER = "steps.jsonl", "recipe.yaml", "probe"


def recipe_of(folder: Path) -> Recipe:
    """Read the recipe of an adopted run. Raises AdvisorError if it is unusable."""
    path = folder / RECIPE
    try:
        return record_from_dict(Recipe, read_yaml(path, "recipe"))
    except ConfigError as error:
        raise bad_fields("recipe", path, error, "launch the plan again") from error


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the records of a run's log, without an incomplete last line. Raises AdvisorError for a damaged log."""
    path = folder / LOG
    if not path.exists():
        return []
    with disk_errors("read", path):
        lines = path.read_bytes().split(b"\n")[:-1]
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise AdvisorError(f"the log {path} is damaged: {error}", "remove that line of it") from error


class AdoptedLog:
    """Writes the log of an adopted run."""

    def __init__(self, folder: Path):
        self.folder, self._told, self._last, self._witnesses = folder, 0, 0, 0

    def attempts(self) -> int:
        """Count the earlier attempts."""
        return sum(record["kind"] == "header" for record in read_log(self.folder))

    def header(self, plan: AdoptedPlan, attempt: int, began: float, command: Sequence[str]) -> None:
        """Write the start of a new attempt."""
        who = {"host": socket.gethostname(), "pid": os.getpid(), "plan": plan.id, "trainer": plan.trainer,
               "basis": plan.basis, "reference_seconds": plan.reference_seconds}  # fmt: skip
        self._write([{"kind": "header", "time": began, "attempt": attempt, **who, "command": list(command)}])

    def steps(
        self, moments: Sequence[float], durations: Sequence[float], memory: Mapping[str, int],
        numbers: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Write the new steps of this attempt: end, duration (unknown for the first step) and memory.

        `numbers` are the step numbers, if the probe did not see every step.
        """
        new = range(self._told, len(moments))
        self._told = len(moments)
        took, at = (None, *durations), numbers if numbers is not None else range(1, len(moments) + 1)
        self._last = at[-1] if len(at) else 0
        self._write([{"kind": "step", "time": moments[i], "step": at[i], "seconds": took[i], **memory} for i in new])

    def witnesses(self, readings: Sequence[Mapping[str, Any]], moments: Sequence[float]) -> None:
        """Write the new timings of the reference kernel, each with the preceding step of this attempt."""
        new = readings[self._witnesses :]
        self._witnesses = len(readings)
        self._write([{"kind": "witness", "time": reading["time"], "step": bisect_right(moments, reading["time"]),
                      "reference_seconds": reading["reference_seconds"]} for reading in new])  # fmt: skip

    def final(self, outcome: Outcome, reason: str, began: float, now: float) -> None:
        """Write the end of this attempt."""
        self._write([{"kind": "final", "time": now, "outcome": outcome.value, "reason": reason, "seconds": now - began,
                      "step": self._last}])  # fmt: skip

    def _write(self, records: Sequence[Mapping[str, Any]]) -> None:
        if records:
            with open(self.folder / LOG, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(record) + "\n" for record in records))


def attempts_of(records: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group records by attempt; each group starts with the header."""
    attempts: list[list[dict[str, Any]]] = []
    for record in records:
        if record["kind"] == "header":
            attempts.append([])
        if attempts:
            attempts[-1].append(record)
    return attempts


class AdoptedTrainer:
    """Any training command, run by `advisor.adopt.guard`."""

    name = "adopted"
    log_name = LOG
    plan_field = "steps_are_set"

    def files(self, config: RunConfig) -> Mapping[str, str]:
        """Return no files, because an adopted plan has no configuration of our trainer."""
        return {}

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """Return the command of the guard, which starts the training command."""
        return (sys.executable, "-m", "advisor.adopt.guard", str(folder))

    def python(self, folder: Path) -> str:
        """Return the Python that the command runs with, or this interpreter if the command does not show it."""
        program = shutil.which(load_adopted_plan(folder / PLAN).command[0])
        if program is None or Path(program).name.startswith("python"):
            return program or sys.executable
        beside = Path(program).parent / "python"
        return str(beside) if beside.exists() else sys.executable

    def read_log(self, folder: Path) -> RunTable:
        """Read the steps from the probe or from the command's own log."""
        from advisor.readers.adopted_log import adopted_run  # imports numpy, which launching does not need

        return adopted_run(folder, attempts_of(read_log(folder)))

    def log_end(self, folder: Path) -> LogEnd | None:
        """Read the state of the latest attempt."""
        attempts = attempts_of(read_log(folder))
        if not attempts:
            return None
        header, last = attempts[-1][0], attempts[-1][-1]
        final = last if last["kind"] == "final" else {}
        return LogEnd(
            unix_seconds=last["time"],
            attempt=header["attempt"],
            outcome=Outcome(final["outcome"]) if final else None,
            reason=final.get("reason"),
            step=last.get("step"),
            host=header["host"],
            pid=header["pid"],
            process_started=header["time"],
        )

    def planned_steps(self, folder: Path) -> int:
        """Read the planned steps from the plan."""
        return load_adopted_plan(folder / PLAN).steps

    def booked(self, folder: Path) -> Spent:
        """Return the duration of each attempt up to its last record, at the price of the launch."""
        ends = [(attempt[0], attempt[-1]["time"]) for attempt in attempts_of(read_log(folder))]
        return Spent(attempts=tuple(
            Attempt(session=str(first["attempt"]), host=first["host"], began=first["time"],
                    seconds=end - first["time"], usd_per_hour=None)
            for first, end in ends
        ))  # fmt: skip

    spent = booked

    def burst_worker(self, device: str) -> tuple[str, ...] | None:
        """Return None, because `advisor adopt` measures bursts itself."""
        return None


ADOPTED = AdoptedTrainer()
