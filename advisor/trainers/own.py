"""The trainer of this project, `python -m trainer`."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors
from advisor.store.run_folder import CONFIG, LOG, read_run_config
from advisor.trainers.adapter import LogEnd
from trainer.budget import Spent, read_spent, with_log
from trainer.runlog import RunLogError, load_run_log, loss_so_far, read_records
from trainer.schema import Outcome, RunConfig, dump_config

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable

TAIL_BYTES = 65536  # enough for the last records of any run


class OwnTrainer:
    """Trains with `run.yaml` and writes `log.jsonl` next to the checkpoints."""

    name = "own"
    log_name = LOG
    plan_field = "run"

    def files(self, config: RunConfig) -> Mapping[str, str]:
        """Return one file, `run.yaml`."""
        return {CONFIG: dump_config(config)}

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """Return a command of this Python interpreter, with torchrun for several devices."""
        trainer = ("-m", "trainer", str(folder / CONFIG), "--out", str(folder))
        if gpus == 1:
            return (sys.executable, *trainer)
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
        return (sys.executable, *torchrun, *trainer)

    def python(self, folder: Path) -> str:
        return sys.executable

    def read_log(self, folder: Path) -> RunTable:
        """Read `log.jsonl` and the telemetry."""
        from advisor.readers.folder import own_run  # imports all readers, which launching does not need

        return own_run(folder)

    def log_end(self, folder: Path) -> LogEnd | None:
        """Read the last records, and the header of the latest attempt, which may be further up in a long log."""
        path = folder / self.log_name
        # enough for the last 2 % of the steps
        records = log_records(path, max(TAIL_BYTES, path.stat().st_size // 25) if path.exists() else TAIL_BYTES)
        if not records:
            return None
        if not (header := _last(records, "header")):
            with disk_errors("read", path), open(path, "rb") as file:
                lines = [line for line in file if b'"header"' in line[:200] and line.endswith(b"\n")]
            header = json.loads(lines[-1]) if lines else {}
        final = _last(records, "header", "final")  # a header means that a new attempt has started since the last end
        outcome = final.get("outcome")
        step, losses = _last(records, "step"), dict[int, float]()
        for record in records:
            if record["kind"] == "step" and "loss" in record:
                losses[record["step"]] = record["loss"]
            elif record["kind"] == "header":  # what came after its checkpoint is repeated
                losses = {at: loss for at, loss in losses.items() if at <= (record.get("resumed_from_step") or 0)}
        return LogEnd(
            unix_seconds=records[-1]["time"],
            attempt=header.get("attempt", 0),
            outcome=Outcome(outcome) if outcome is not None else None,
            reason=final.get("reason"),
            step=step.get("step"),
            loss=loss_so_far(reversed(losses.values()), step.get("step") or 0),
            host=header.get("host"),
            pid=header.get("pid"),
            process_started=header["time"] - (header.get("startup_seconds") or 0.0) if header else None,
        )

    def planned_steps(self, folder: Path) -> int:
        """Read the planned steps from the configuration."""
        return read_run_config(folder).steps

    def booked(self, folder: Path) -> Spent:
        """Read the budget file."""
        with disk_errors("read the budget in", folder):
            return read_spent(folder)

    def spent(self, folder: Path) -> Spent:
        """Add what only the log has, as the trainer does when it resumes."""
        path, spent = folder / LOG, self.booked(folder)
        if not path.exists():
            return spent
        with disk_errors("read", path):
            try:
                return with_log(spent, load_run_log(path))
            except RunLogError:  # the trainer also ignores a damaged log here, with a warning
                return spent

    def burst_worker(self, device: str) -> tuple[str, ...]:
        """Return the command `python -m trainer.bursts`."""
        return (sys.executable, "-m", "trainer.bursts", "--device", device)


def log_records(path: Path, most_bytes: float = math.inf) -> list[dict[str, Any]]:
    """Read the records at the end of a log, empty if there is no log; raises AdvisorError if it is damaged."""
    if not path.exists():
        return []
    with disk_errors("read", path):
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - most_bytes)
            file.seek(int(start))
            first_line = len(file.readline()) if start else 0
        try:
            return read_records(path, int(start) + first_line)[0]
        except RunLogError as error:
            raise AdvisorError(f"the log is damaged: {error}", f"fix or remove that line of {path}") from error


def _last(records: Sequence[dict[str, Any]], *kinds: str) -> dict[str, Any]:
    """Return the last record of these kinds, or an empty dict."""
    return next((record for record in reversed(records) if record["kind"] in kinds), {})


OWN = OwnTrainer()
