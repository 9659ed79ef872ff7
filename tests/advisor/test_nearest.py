"""Published runs of the same software pull a prediction towards what they reached, and the nearest one is named."""

import json
import re
from dataclasses import replace
from math import exp

import numpy as np
import pytest

from advisor.prediction.nearest import LENGTH_LOG2, OTHER_CARD, PublishedRun, nearby, published_runs

RUN = PublishedRun(
    owner="somebody", source="a report", address="https://example.org", software="nanochat", gpu="h100-80gb-sxm",
    gpus=8, switches="bf16, compiled", checkpointing="none", where=(4.0, 10.0, 15.0, 11.0, 15.0, 0.0),
    tokens_per_second=1e6, residual=-0.2, noise=0.05, owner_deviation=0.1,
)  # fmt: skip


def test_one_run_pulls_by_its_covariance_over_its_variance():
    """Worked by hand: the deviation 0.11, a run an octave deeper, on another card."""
    found = nearby([RUN], "nanochat", "a100-80gb-sxm", "bf16, compiled", 0.11)
    cross = found.cross(np.array([RUN.where]) + np.array([1.0, 0, 0, 0, 0, 0]))
    expected = 0.11**2 * OTHER_CARD * exp(-0.5 / LENGTH_LOG2**2)
    assert cross[0, 0] == pytest.approx(expected)
    assert (cross @ found.pull)[0] == pytest.approx(expected * -0.2 / (0.11**2 + 0.1**2 + 0.05**2))


def test_two_owners_say_more_than_one_owner_twice():
    same, other = [RUN, RUN], [RUN, replace(RUN, owner="somebody else")]
    how, where = ("nanochat", RUN.gpu, RUN.switches, 0.11), np.array([RUN.where])
    pulls = [(found.cross(where) @ found.pull)[0] for found in (nearby(same, *how), nearby(other, *how))]
    assert pulls[1] < pulls[0] < 0  # both say faster
    assert nearby([RUN], "nanogpt", RUN.gpu, RUN.switches, 0.11) is None


def test_a_run_that_many_have_published_is_predicted_as_they_found_it(call):
    """nanochat's d20 speed run on 8 H100: 0.97 to 1.10 M tokens/s in six reports of three people."""
    words = "--gpu 8xh100 --family nanochat --depth 20 --vocab-size 65536 --seq-len 2048 --micro-batch 32"
    _, out, _ = call("predict", *words.split(), "--software", "nanochat", "--json")
    found = json.loads(out)
    rate = found["tokens_per_second"]
    assert rate["value"] == pytest.approx(1.03e6, rel=0.08) and rate["high"] / rate["low"] < 1.6
    assert found["closest published run"].startswith("nanochat") and "8 x h100" in found["closest published run"]


def test_what_differs_from_the_closest_run_is_said(call):
    words = "predict --gpu 8xh100 --model llama-2-7b --software megatron --micro-batch 1"
    _, out, _ = call(*words.split())
    line = " ".join(out.split("closest published run: ")[1].split("from:")[0].split())
    assert "tokens/s on" in line and "; it differs from this run in " in line


def test_a_source_is_named_without_the_number_of_a_copy():
    assert not [run.source for run in published_runs() if re.search(r"file \d", run.source)]
