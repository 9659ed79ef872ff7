"""`plan --layout any --measured`: what a person's own timed runs change in the times of other layouts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import advisor as api
from advisor.architecture import Layout
from advisor.hardware.catalog import load_gpus
from advisor.planning.models import require_architecture
from advisor.prediction.layout_batch import predict_layouts
from advisor.prediction.layout_own import OwnSpreads, condition
from advisor.prediction.layouts import LayoutRun

SPREADS = OwnSpreads(setup=0.15, links=0.4, model=0.1, rest=0.1)
ONE_NODE = LayoutRun(
    model=replace(require_architecture("llama-3-70b").model, layers=8),
    layout=Layout(tensor=8, sequence=True),
    gpu=load_gpus()["h100-80gb-sxm"],
    seq_len=8192,
    micro_batch=1,
    micro_batches=8,
    software="nemo",
)


COLUMNS = "depth,tp,pp,gpus,micro-batch,grad-accum"


def table(tmp_path: Path, *rows: str, columns: str = f"{COLUMNS},step_seconds") -> Path:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join((columns, *rows)) + "\n", encoding="utf-8")
    return path


def planned(measured: Path | None = None, **options):
    asked = {"model": "llama-3-70b", "gpu": "h100", "gpus": 64, "tokens": "100B", "seq_len": 8192} | options
    return api.plan(layout="any", **asked, **({"measured": measured} if measured else {}))


def test_one_run_without_exchanges_moves_others_by_its_weight():
    """The gain of a single observation is the shared variance over the whole one (Gaussian conditioning)."""
    found = condition(np.array([0.3]), np.zeros(1), np.array([4096]), 4096, SPREADS)
    shared = 0.15**2 + 0.1**2
    gain = shared / (shared + 0.1**2)
    assert found.log_factor(np.array([0.0, 0.5])) == pytest.approx([0.3 * gain] * 2)
    assert found.deviation(np.zeros(1)) == pytest.approx(math.sqrt(shared * (1 - gain) + 0.1**2))
    # nothing was learnt of the links, so that a step of exchanges is as unsure as before
    widened = found.deviation(np.ones(1))[0] ** 2 - found.deviation(np.zeros(1))[0] ** 2
    assert widened == pytest.approx(0.4**2)


def test_runs_of_another_model_say_less():
    own, other = (condition(np.array([0.3]), np.zeros(1), np.array([w]), 4096, SPREADS) for w in (4096, 2048))
    assert 0 < other.log_factor(np.zeros(1)) < own.log_factor(np.zeros(1))
    assert other.deviation(np.zeros(1)) > own.deviation(np.zeros(1))


def test_measured_runs_move_the_plan_and_narrow_it(tmp_path):
    """Eight layers of the model on one node, measured a quarter slower than predicted."""
    seconds = 1.25 * predict_layouts([ONE_NODE])[0].step_seconds.value
    rows = [f"8,8,1,8,1,8,{seconds}", f"8,8,1,8,1,8,{1.02 * seconds}"]
    plain, found = planned(), planned(table(tmp_path, *rows))
    before, after = (answer.record.chosen.step_seconds for answer in (plain, found))
    assert 1.1 < after.value / before.value < 1.25
    assert after.high / after.low < 0.95 * before.high / before.low  # before, the low end is what products take
    assert found.record.grounds.own_runs == 2
    assert json.loads(found.to_json())["chosen"]["grounds"]["own_slowdown"] == pytest.approx(1.25, abs=0.1)


def test_a_rate_says_the_same_as_the_seconds(tmp_path):
    by_seconds = planned(table(tmp_path, "8,8,1,8,1,8,3.2")).record
    by_rate = planned(table(tmp_path, f"8,8,1,8,1,8,{8 * 8192 / 3.2}", columns=f"{COLUMNS},tokens_per_second")).record
    assert by_rate.grounds.own_slowdown == pytest.approx(by_seconds.grounds.own_slowdown)
    assert by_rate.chosen.step_seconds == by_seconds.chosen.step_seconds


def test_a_row_is_the_run_that_predict_predicts(tmp_path):
    """Measured exactly as fast as `predict` says, runs of the model and of another one move nothing."""
    common = {"gpu": "h100", "micro_batch": 1, "grad_accum": 4, "seq_len": 8192, "software": "nemo"}
    runs = [{"model": "llama-3-70b", "gpus": 16, "tp": 8}, {"model": "mixtral-8x7b", "gpus": 8, "pp": 2, "zero": 1}]
    rows = []
    for run in runs:
        took = api.predict(**common, **run).record.step_seconds.value
        cells = common | {"tp": "", "pp": "", "zero": ""} | run | {"step_seconds": took}
        rows.append(",".join(str(cell) for _, cell in sorted(cells.items())))
    found = planned(table(tmp_path, *rows, columns=",".join(sorted(cells)))).record
    assert found.grounds.own_runs == 2 and found.grounds.own_slowdown == pytest.approx(1, abs=1e-9)
    assert found.chosen.step_seconds.value == pytest.approx(planned().record.chosen.step_seconds.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("8,8,1,8,1,8,", "line 2: no step_seconds"),
        ("8,8,1,8,1,8,0.01", "of the peak of 8 x h100-80gb-sxm"),
        ("8,3,1,8,1,8,3.2", "line 2: --tp 3 x --pp 1 does not divide 8 GPUs"),
        ("8,8,1,8,1.5,8,3.2", "line 2: --micro-batch: '1.5' is not a whole number"),
        ("8,8,1,8,,8,3.2", "line 2: micro-batch is not given"),
        ("8,8,1,8,1,8,fast", "line 2: 'fast' is not a number"),
    ],
)
def test_rows_that_say_nothing_are_named(tmp_path, row: str, said: str):
    with pytest.raises(api.AdvisorError) as caught:
        planned(table(tmp_path, row))
    assert said in str(caught.value) and "runs.csv" in str(caught.value)


def test_runs_of_other_gpus_or_software_are_not_used(tmp_path):
    path = table(tmp_path, "8,8,1,8,1,8,3.2")
    with pytest.raises(api.AdvisorError, match="no run of NeMo on a100"):
        planned(table(tmp_path, "h100,8,8,1,8,1,8,3.2", columns=f"gpu,{path.read_text().splitlines()[0]}"), gpu="a100")
    with pytest.raises(api.AdvisorError, match="--measured is of runs over layouts"):
        api.plan(measured=path, budget=20)
    with pytest.raises(api.AdvisorError, match="has no row"):
        planned(table(tmp_path))
    with pytest.raises(api.AdvisorError, match="n_gpus is now gpus; virtual_pp is now vpp"):
        planned(table(tmp_path, "8,1,3.2", columns="n_gpus,virtual_pp,step_seconds"))
