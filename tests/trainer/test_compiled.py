"""Kernels that torch.compile made are found by the next process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.trainer.small import config, start
from trainer.compiled import VARIABLE, keep_compiled_code
from trainer.runlog import LOG_NAME, load_run_log


def kernels(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.suffix in (".so", ".cpp", ".py")}


@pytest.mark.long
def test_the_second_process_compiles_nothing_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)
    found, losses = [], []
    for name in ("first", "second"):
        process = start(tmp_path / name, config(steps=8, compile=True))
        assert process.wait(240) == 0, process.communicate()[0]
        found.append(kernels(tmp_path / "cache" / "training-advisor" / "compiled"))
        losses.append([step["loss"] for step in load_run_log(tmp_path / name / LOG_NAME).steps])
    assert found[0] and found[1] == found[0] and losses[1] == losses[0]


def test_a_folder_of_ones_own_goes_before_and_a_home_that_cannot_be_written_ends_no_run(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "mine")
    keep_compiled_code()
    assert os.environ[VARIABLE] == "mine"
    monkeypatch.delenv(VARIABLE)
    (tmp_path / "training-advisor").write_text("a file in its place")
    keep_compiled_code()
    assert VARIABLE not in os.environ
    (tmp_path / "training-advisor").unlink()
    keep_compiled_code()
    folder = Path(os.environ[VARIABLE])
    assert folder.is_relative_to(tmp_path) and stat.S_IMODE(folder.stat().st_mode) == 0o700
