"""The trainer of this repository, `python -m trainer`."""

from __future__ import annotations

import json
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
from trainer.runlog import RunLogError, load_run_log, read_records
from trainer.schema import Outcome, RunConfig, dump_config

if TYPE_CHECKING:
    from advisor.readers.run_table import RunTable

TAIL_BYTES = 65536  # more than the last records of any run


class OwnTrainer:
    """Reads `run.yaml`, writes `log.jsonl` beside its checkpoints."""

    name = "own"
    log_name = LOG

    def files(self, config: RunConfig) -> Mapping[str, str]:
        """One file, `run.yaml`."""
        return {CONFIG: dump_config(config)}

    def command(self, folder: Path, gpus: int) -> tuple[str, ...]:
        """This very interpreter; under torchrun when there is more than one device."""
        trainer = ("-m", "trainer", str(folder / CONFIG), "--out", str(folder))
        if gpus == 1:
            return (sys.executable, *trainer)
        torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={gpus}")
        return (sys.executable, *torchrun, *trainer)

    def read_log(self, folder: Path) -> RunTable:
        """The table of `log.jsonl`, with the telemetry beside it."""
        from advisor.readers.folder import own_run  # all readers: launching and listing start without them

        return own_run(folder)

    def log_end(self, folder: Path) -> LogEnd | None:
        """From the last records; a long log's header is looked for further up."""
        path = folder / self.log_name
        records = _last_records(path)
        if not records:
            return None
        header = _last_header(path, records)
        final = _last(records, "header", "final")  # a header: the attempt that ended before it is history
        outcome = final.get("outcome")
        step = _last(records, "step")
        return LogEnd(
            unix_seconds=records[-1]["time"],
            attempt=header.get("attempt", 0),
            outcome=Outcome(outcome) if outcome is not None else None,
            reason=final.get("reason"),
            step=step.get("step"),
            loss=step.get("loss"),
            host=header.get("host"),
            pid=header.get("pid"),
            process_started=header["time"] - (header.get("startup_seconds") or 0.0) if header else None,
        )

    def planned_steps(self, folder: Path) -> int:
        """By its configuration."""
        return read_run_config(folder).steps

    def booked_usd(self, folder: Path, usd_per_hour: float | None) -> float | None:
        """By its budget, without a look at the log."""
        with disk_errors("read the budget in", folder):
            spent = read_spent(folder)
        unknown = usd_per_hour is None and any(attempt.usd_per_hour is None for attempt in spent.attempts)
        return None if unknown or not spent.attempts else spent.usd(usd_per_hour or 0.0)

    def used_seconds(self, folder: Path) -> float:
        """Seconds of every attempt, as the trainer itself adds them up."""
        return _spent(folder).seconds

    def needed_seconds(self, folder: Path) -> float:
        """As the last attempt reckoned when its limit ended it."""
        return _spent(folder).needed_seconds or 0.0

    def used_usd(self, folder: Path, usd_per_hour: float) -> float:
        """Dollars of every attempt, as the trainer itself adds them up."""
        return _spent(folder).usd(usd_per_hour)

    def burst_worker(self, device: str) -> tuple[str, ...]:
        """`python -m trainer.bursts`."""
        return (sys.executable, "-m", "trainer.bursts", "--device", device)


def _spent(folder: Path) -> Spent:
    path = folder / LOG
    with disk_errors("read the budget in", folder):
        spent = read_spent(folder)
        if not path.exists():
            return spent
        try:
            return with_log(spent, load_run_log(path))
        except RunLogError:  # the trainer passes over such a line as well, and says so
            return spent


def _last_records(path: Path) -> list[dict[str, Any]]:
    """The last records of a log; empty before there is one."""
    if not path.exists():
        return []
    with disk_errors("read", path):
        with open(path, "rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES)
            file.seek(start)
            first_line = file.read().find(b"\n") + 1 if start else 0
        try:
            return read_records(path, start + first_line)[0]
        except RunLogError as error:
            raise AdvisorError(f"the log is damaged: {error}", f"mend or remove that line of {path}") from error


def _last(records: Sequence[dict[str, Any]], *kinds: str) -> dict[str, Any]:
    """The newest record of these kinds; empty where there is none."""
    return next((record for record in reversed(records) if record["kind"] in kinds), {})


def _last_header(path: Path, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The newest header, from the log's end or, in a long log, from wherever it stands."""
    if header := _last(records, "header"):
        return header
    with disk_errors("read", path), open(path, "rb") as file:
        lines = [line for line in file if b'"header"' in line[:200] and line.endswith(b"\n")]
    return json.loads(lines[-1]) if lines else {}


OWN = OwnTrainer()
