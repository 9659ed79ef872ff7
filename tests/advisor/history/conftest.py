"""Told logs and run folders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from advisor.store.store import default_store
from tests.advisor.history.script import Script
from tests.advisor.plans import small_plan


@pytest.fixture
def script(tmp_path):
    return lambda plan, **options: Script(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", plan, **options)


@pytest.fixture
def run_folder(tmp_path):
    """A finished run of a plan, steps 10 % slower than promised, in a folder of its own."""

    def make(name: str = "run-a", steps: int = 20, seconds: float = 0.55, ending: str | None = "completed") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        plan = replace(small_plan(steps=20, step_seconds=0.5), reference_seconds=0.010, drift_exponent=1.0)
        default_store().save_plan(plan, folder / "plan.yaml")
        told = Script(folder / "log.jsonl", plan).start(3.0).witness(0.010).steps(1, steps, seconds)
        if ending:
            told.end(ending)
        return folder

    return make
