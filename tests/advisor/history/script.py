"""A run log told line by line: written by the real writer with round numbers, so that every part of a gap is known."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from advisor.findings.case import Case
from advisor.findings.make_case import make_case
from advisor.readers.own_log import run_table_of
from advisor.records import Plan
from trainer.runlog import RunLog, RunLogWriter, load_run_log

RECORDED = Path(__file__).parents[2] / "recorded" / "small.jsonl"


class Script:
    """A run log told line by line on a clock of its own."""

    def __init__(self, path: Path, plan: Plan, *, device: str = "cpu"):
        self.path, self.plan, self.device, self.now, self.attempt = path, plan, device, 1000.0, 0
        self._writer = RunLogWriter(path, clock=lambda: self.now)

    def start(self, startup: float = 3.0, resumed_from: int = 0, **config) -> Script:
        self.attempt += 1
        self.now += startup
        self._began = self.now - startup
        run = asdict(self.plan.run) | config
        self._writer.write(
            "header", schema=1, attempt=self.attempt, config=run, parameters=20480, world_size=1,
            precision="fp32", tokens_per_step=64,
            device={"type": self.device, "name": "x", "memory_bytes": 10**9}, resumed_from_step=resumed_from,
            startup_seconds=startup,
        )  # fmt: skip
        return self

    def steps(self, first: int, last: int, seconds: float, **fields) -> Script:
        for step in range(first, last + 1):
            self.now += seconds
            record = {
                "loss": 5.0 - 0.01 * step, "learning_rate": 3e-4, "allocated_peak_bytes": None,
                "reserved_peak_bytes": None, "resident_peak_bytes": 400_000_000,
            } | fields  # fmt: skip
            self._writer.write("step", step=step, tokens=64 * step, seconds=seconds, **record)
        return self

    def spend(self, kind: str, seconds: float, **fields) -> Script:
        self.now += seconds
        self._writer.write(kind, seconds=seconds, **fields)
        return self

    def witness(self, seconds: float, step: int = 1) -> Script:
        self._writer.write("witness", step=step, reference_seconds=seconds, steal_fraction=0.0)
        return self

    def end(self, outcome: str = "completed") -> RunLog:
        self._writer.write("final", outcome=outcome, reason="told", step=1, seconds=self.now - self._began)
        return self.log()

    def log(self) -> RunLog:
        return load_run_log(self.path)


def case_of(log: RunLog) -> Case:
    return make_case(run_table_of(log, "log.jsonl"))
