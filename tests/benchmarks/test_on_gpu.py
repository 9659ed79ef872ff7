"""The GPU session's stages with real processes: what outlives its time is ended, and what was measured stays."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "benchmarks" / "on_gpu.py"
GRANDCHILD = "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']"


@pytest.fixture(scope="module")
def on_gpu():
    spec = importlib.util.spec_from_file_location("on_gpu", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_gpu"] = module  # its dataclasses look for their module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["on_gpu"]


def stage(on_gpu, *programs: str, seconds: float = 60.0):
    return on_gpu.Stage(name="some", commands=tuple((sys.executable, "-c", p) for p in programs), seconds=seconds)


def test_commands_follow_one_another_until_one_fails(on_gpu, tmp_path):
    result = on_gpu.run_stage(
        stage(on_gpu, "print('one')", "import sys; sys.exit('two')", "print('three')"), tmp_path, time.monotonic() + 60
    )
    assert (result.outcome, result.exit_code) == ("failed", 1)
    assert (tmp_path / "some.txt").read_text() == "one\ntwo\n"


def test_a_stage_whose_time_is_up_is_ended_with_all_it_started(on_gpu, tmp_path):
    detached = GRANDCHILD + ", start_new_session=True); print(p.pid, flush=True); time.sleep(60)"
    began = time.monotonic()
    result = on_gpu.run_stage(stage(on_gpu, detached, seconds=2.0), tmp_path, began + 60)
    assert result.outcome == "stopped" and result.exit_code is None and time.monotonic() - began < 20
    pid = int((tmp_path / "some.txt").read_text())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_stage_without_time_or_without_its_program_says_so(on_gpu, tmp_path):
    late = on_gpu.run_stage(stage(on_gpu, "print('one')"), tmp_path, time.monotonic() + 1)
    assert late.outcome == "skipped" and not (tmp_path / "some.txt").exists()
    absent = on_gpu.Stage(name="absent", commands=((str(tmp_path / "no-such-program"),),), seconds=60)
    assert on_gpu.run_stage(absent, tmp_path, time.monotonic() + 60).exit_code == 127


def test_the_bundle_has_all_but_checkpoints_and_large_files(on_gpu, tmp_path):
    for name in ("held-out/raw.yaml", "run/log.jsonl", "run/checkpoints/step-1/model.safetensors", "home/data/tokens"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "large").write_bytes(bytes((8 << 20) + 1))
    for _ in range(2):  # again, over itself
        on_gpu.bundle(tmp_path, tmp_path / "all.tar.gz")
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["held-out/raw.yaml", "run/log.jsonl"]


def test_stages_are_chosen_by_name_and_each_program_exists(on_gpu, tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--stages", "machine,nonsense"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2 and "no stage is called nonsense" in refused.stderr
    unasked = [s for s in on_gpu.stages(tmp_path) if s.unasked]
    assert [s.name for s in unasked] == ["machine", "check", "held-out", "loop-against-plain", "planned-run"]
    scripts = [c[1] for s in on_gpu.stages(tmp_path) for c in s.commands if len(c) > 1 and c[1].endswith(".py")]
    assert len(scripts) >= 4 and all(Path(script).is_file() for script in scripts)


def test_what_happened_is_kept_after_each_stage(on_gpu, tmp_path):
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--stages", "machine", "--seconds", "16"]
    subprocess.run(command, capture_output=True, text=True, timeout=300)
    [kept] = json.loads((tmp_path / "stages.json").read_text())
    assert kept["stage"] == "machine" and kept["outcome"] in ("done", "failed")
