"""Kernels that can be chosen: the same losses but for rounding, and torch's own words where there is none."""

from __future__ import annotations

import pytest

from tests.trainer.small import config
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import EvalConfig, OptimizerConfig, Outcome

CHOICES = {
    "math": {"attention": "math"},
    "math, recomputed": {"attention": "math", "activation_checkpointing": "full"},
    "flash": {"attention": "flash"},
    "small chunks": {"loss_chunk_tokens": 7},  # which do not divide the micro-batch's 64 tokens
    "one chunk": {"loss_chunk_tokens": 10**6},
    "not fused": {"optimizer": OptimizerConfig(learning_rate=3e-3, fused=False)},
}


def losses(folder, **changes):
    assert run(config(eval=EvalConfig(tokens=64), **changes), folder) is Outcome.COMPLETED
    log = load_run_log(folder / LOG_NAME)
    return [record["loss"] for record in (*log.steps, *log.evals)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    return losses(tmp_path_factory.mktemp("usual"))


@pytest.mark.parametrize("name", CHOICES)
def test_a_kernel_changes_no_loss_but_by_rounding(name, usual, tmp_path):
    assert losses(tmp_path, **CHOICES[name]) == pytest.approx(usual, rel=2e-5)


def test_a_kernel_that_a_device_lacks_is_how_the_run_ended(tmp_path):
    assert run(config(attention="cudnn"), tmp_path) is Outcome.FAILED
    assert "No viable backend for scaled_dot_product_attention" in load_run_log(tmp_path / LOG_NAME).final["reason"]


def test_an_unknown_kernel_is_refused_with_those_that_there_are():
    assert config(attention="flsh").problems() == [
        "attention: 'flsh' is not one of auto, flash, efficient, cudnn, math (did you mean flash?)"
    ]
    assert config(loss_chunk_tokens=0).problems() == ["loss_chunk_tokens: out of range"]
