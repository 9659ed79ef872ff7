"""A profiler trace of some steps of a run."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from tests.trainer.small import config
from trainer.run import run
from trainer.runlog import read_records
from trainer.schema import ConfigError, Outcome, config_from_dict, to_dict


def test_run_writes_a_trace_of_the_steps_asked_for(tmp_path):
    assert run(config(trace_steps=3), tmp_path) is Outcome.COMPLETED
    records, _ = read_records(tmp_path / "log.jsonl")
    (trace,) = [record for record in records if record["kind"] == "trace"]
    # six steps without the profiler, two that warm it up, three that are recorded
    assert (trace["first_step"], trace["step"], trace["file"]) == (9, 11, "traces/rank_0.json.gz")
    with gzip.open(tmp_path / trace["file"], "rt") as file:
        events = json.load(file)["traceEvents"]
    steps = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    products = [event for event in events if event.get("name") == "aten::mm" and event["args"].get("Input Dims")]
    assert len(steps) == 3 and products
    assert any("traced steps 9 to 11" in record.get("text", "") for record in records)


def test_run_without_a_trace_writes_none(tmp_path):
    run(config(), tmp_path)
    assert not (tmp_path / "traces").exists()


@pytest.mark.parametrize("steps", [-1, 5])
def test_trace_longer_than_the_run_is_refused(steps):
    with pytest.raises(ConfigError, match="trace_steps, before which there are 8 steps: out of range"):
        config_from_dict(to_dict(config()) | {"trace_steps": steps})  # a run of 12 steps


def test_the_lines_for_other_programs_record_what_they_say(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "traces.md").read_text(encoding="utf-8")
    lines = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1].replace("...  # forward", "work()  # forward")
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    def work():
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    monkeypatch.chdir(tmp_path)
    for name in ("_record_memory_history", "_dump_snapshot"):  # they need CUDA
        monkeypatch.setattr(torch.cuda.memory, name, lambda *given, **more: [Path(one).touch() for one in given])
    exec(lines, {"work": work, "batches": range(14)})
    with gzip.open("rank0.json.gz", "rt") as file:
        names = {str(event.get("name")) for event in json.load(file)["traceEvents"]}
    # five steps before it, two that warm it up, three that are recorded
    assert {name for name in names if name.startswith("ProfilerStep#")} == {f"ProfilerStep#{n}" for n in (7, 8, 9)}
    assert "Optimizer.step#AdamW.step" in names and Path("snapshot0.pickle").exists()
