"""Learning detectors on logs of real runs, where the folder of development logs lies beside the repository."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from advisor.findings.case import Case, Finding, Severity
from advisor.findings.forecast import forecast
from advisor.findings.registry import LEARNING
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable, Status

LOGS = Path(__file__).resolve().parents[4] / "shared" / "logs"
pytestmark = pytest.mark.skipif(not LOGS.is_dir(), reason="no development logs (../shared/logs) here")

# what is known to be wrong with these runs → the code that has to say so
KNOWN = {
    "nanochat/nanochat_jonhenshaw_speedrun.log": "steps_missing",
    "nanochat/nanochat_kwizzle_sft_nan.log": "loss_not_finite",
    "llmc_stdout/llmc_hector_11679010_nan.log": "loss_not_finite",
    "nanogpt/nanogpt_jack_191836.log": "overfitting",
    "wandb/wandb_jack_191836_wandb-summary.json": "generalisation_gap",
    "megatron/bigscience_megds3d_on.out": "grad_norm_not_collected",
    "megatron/bigscience_megdszero.out": "loss_divergence",
    "megatron/bigscience_meg_perf_n16_allskipped.out": "all_steps_skipped",
    "deepspeed_hf/bigscience_hfds_perf_n16.out": "loss_scale_at_minimum",
    "hf_trainer_state/ts_aigoncharov.json": "overfitting",
    "hf_trainer_state/ts_anonymousgigachad.json": "grad_norm_large",
    "hf_stdout/hf_yunsaijc_sft.log": "memorised",
    "trl/trl_iiicellled_dpo.log": "preference_at_chance",
    "hf_stdout/olora_hoilap_train_and_infer_lr0.log": "learning_rate_zero",
}


def findings(run: RunTable) -> list[Finding]:
    return [v for detector in LEARNING if isinstance(v := detector(Case(run=run)), Finding)]


@pytest.mark.parametrize("name", KNOWN)
def test_the_known_problem_is_found(name):
    assert KNOWN[name] in {found.code for found in findings(read_run(LOGS / name))}


def healthy_logs() -> list[str]:
    if not LOGS.is_dir():
        return []
    with (LOGS / "MANIFEST.csv").open(encoding="utf-8", newline="") as file:
        return [row["file"] for row in csv.DictReader(file) if row["known_problem"].startswith("none")]


@pytest.mark.parametrize("name", healthy_logs())
def test_healthy_runs_have_no_error(name):
    assert [f.title for f in findings(read_run(LOGS / name)) if f.severity is Severity.ERROR] == []


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_end_of_a_real_run_is_foretold_from_its_beginning(share):
    run = read_run(LOGS / "llmc_mainlog/llmc_siddanth_main.log")
    loss = run.column("loss")
    end = float(np.median(loss[np.isfinite(loss)][-200:]))
    cut = int(share * len(run))
    part = dataclasses.replace(
        run,
        columns={name: values[:cut] for name, values in run.columns.items()},
        phases=(),
        status=Status.RUNNING,
        facts={**run.facts, "planned_steps": 19_552},
    )
    foretold = forecast(Case(run=part)).loss.final_loss
    assert foretold is not None
    assert foretold.low < end < foretold.high
    assert abs(foretold.value - end) < 0.03
