"""The probe inside real programs: every step, nothing else, and never in the way."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.adopt.watching import ProbeFolder, probe_variables

SCRIPT = Path(__file__).parent / "never_seen.py"


def run(tmp_path: Path, *arguments: str, shapes: int = 3, folder: Path | None = None, **variables: str):
    environment = {**os.environ, **probe_variables(folder or tmp_path, shapes, os.environ), **variables}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, cwd=tmp_path)


def read(folder: Path) -> ProbeFolder:
    probed = ProbeFolder(folder)
    probed.look()
    return probed


def test_every_step_is_seen_with_its_batch_and_its_time(tmp_path):
    done = run(tmp_path, "--num-iters", "40", "--accum-iter", "2", "--bsz", "8")
    assert done.returncode == 0, done.stderr
    (process,) = read(tmp_path).processes
    assert len(process.moments) == 40 and len(process.durations) == 39
    shape = process.shape
    assert (shape.rows, shape.calls, shape.length, shape.tokens) == (8, 2, 32, 2 * 8 * 32)
    # 64 x 32 embedded, 32 x 128 and 128 x 64 with their biases
    assert process.main["elements"] == 64 * 32 + 32 * 128 + 128 + 128 * 64 + 64
    printed = [float(seconds) for seconds in re.findall(r"seconds ([\d.]+)", done.stdout)]
    gaps = [abs(seen / said - 1) for seen, said in zip(process.durations, printed, strict=True)]
    assert statistics.median(gaps) < 0.01
    # the reference kernel is timed beside the steps, and what it takes is no step's
    witnesses = process.records["witness"]
    assert all(0 < witness["reference_seconds"] < 1 for witness in witnesses)
    ends = process.moments
    for witness in witnesses[1:]:  # the first lies before what is printed
        step = sum(end <= witness["time"] for end in ends) - 1
        around = range(max(0, step - 1), min(step + 2, len(printed)))
        left_out = sum(printed[i] - process.durations[i] for i in around)
        assert left_out == pytest.approx(witness["held_seconds"], rel=0.5)  # a stall of the machine may lie beside it


META = """import torch
def model(device):
    return torch.nn.Sequential(torch.nn.Embedding(8, 4, device=device), torch.nn.Linear(4, 8, device=device))
counted, trained = model("meta"), model("cpu")
optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
for step in range(6):
    counted(torch.zeros((3, 50), dtype=torch.long, device="meta"))
    trained(torch.zeros((3, 20), dtype=torch.long)).sum().backward()
    optimizer.step()
"""


def test_a_model_that_only_counts_its_work_is_not_the_one_that_trains(tmp_path):
    """LitGPT runs one on the meta device, with longer rows."""
    environment = {**os.environ, **probe_variables(tmp_path, 3, os.environ)}
    subprocess.run([sys.executable, "-c", META], env=environment, check=True, timeout=300)
    shape = read(tmp_path).first.shape
    assert (shape.rows, shape.calls, shape.length, shape.tokens) == (3, 1, 20, 60)


def test_a_users_crash_is_theirs_and_off_it_writes_nothing(tmp_path):
    """Of a script that crashes at its fifth step, with and without the probe's variable."""
    done = {}
    for name, changes in (("off", {"TRAINING_ADVISOR_PROBE": ""}), ("on", {})):
        (tmp_path / name).mkdir()
        done[name] = run(tmp_path / name, "--crash-at", "5", **changes)
    assert list((tmp_path / "off").iterdir()) == []
    assert done["on"].returncode == done["off"].returncode == 1
    assert done["on"].stderr == done["off"].stderr and "the user's own mistake" in done["on"].stderr
    assert "training_advisor_probe" not in done["on"].stderr
    assert len(read(tmp_path / "on").first.moments) == 4  # written as the program ends, crash or not


def test_a_probe_that_cannot_write_ends_and_the_program_goes_on(tmp_path):
    done = run(tmp_path, "--num-iters", "5", folder=tmp_path / "gone")
    assert done.returncode == 0 and done.stdout.count("iter ") == 5
    assert done.stderr.count("training-advisor's probe ended: FileNotFoundError") == 1


def test_processes_that_do_not_train_leave_nothing(tmp_path):
    environment = {**os.environ, **probe_variables(tmp_path, 3, os.environ)}
    subprocess.run(
        [sys.executable, "-c", "import torch; torch.nn.Linear(2, 2)"], env=environment, check=True, timeout=300
    )
    assert list(tmp_path.iterdir()) == []


def test_a_line_that_is_being_written_waits(tmp_path):
    path = tmp_path / "probe-1.jsonl"
    path.write_text('{"kind": "process", "pid": 1}\n{"kind": "optimizer", "optimizer": 0, "elements": 3}\n{"kind": "st')
    probed = read(tmp_path)
    assert probed.first is None
    with path.open("a") as file:
        file.write('ep", "optimizer": 0, "time": 5.0}\n{"kind": "later version"}\n')
    probed.look()
    assert probed.first.moments == [5.0]


def test_the_optimizer_with_most_elements_counts_the_steps(tmp_path):
    lines = [
        '{"kind": "optimizer", "optimizer": 0, "elements": 10}',
        '{"kind": "optimizer", "optimizer": 1, "elements": 1000}',
        *(f'{{"kind": "step", "optimizer": {i % 2}, "time": {i / 2 + (i % 2) / 100}}}' for i in range(10)),
    ]
    (tmp_path / "probe-1.jsonl").write_text("\n".join(lines) + "\n")
    process = read(tmp_path).first
    assert process.main["optimizer"] == 1 and len(process.moments) == 5
    assert process.durations == pytest.approx([1.0] * 4)
