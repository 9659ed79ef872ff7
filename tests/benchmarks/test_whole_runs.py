"""Whole public runs, large ones included, by fits that never saw their owner."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def runs():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        from whole_runs import whole_runs

        return list(whole_runs())
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.long
def test_one_whole_run_at_most_is_off_by_more_than_two(runs):
    """Of 18 well-known runs, asked as if the trainer here had done them, 8 lay outside: their own is slower."""
    names = {"LLaMA 7B", "LLaMA 65B", "Llama 2 70B", "Llama 3 8B", "Llama 3 70B", "MPT-7B", "Pythia 12B", "BLOOM 176B"}
    assert names <= {run.name for run in runs} and len(runs) >= 27
    # Llama 3 8B says next to nothing of its software and took 2.1 times the hours; every other is within two
    assert sum(not 0.5 < run.predicted_hours / run.gpu_hours < 2 for run in runs) <= 1
    assert 0.7 <= sum(run.inside for run in runs) / len(runs) <= 0.9
