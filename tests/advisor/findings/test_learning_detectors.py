"""All learning detectors together: silent on a healthy run, alive on anything a reader may hand them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.findings.case import Finding, Insufficient
from advisor.findings.forecast import Targets, forecast
from advisor.findings.registry import LEARNING
from advisor.readers.run_table import RunTable, Status, names_of
from tests.advisor.findings.build_learning import learning_case, learning_run


@pytest.mark.parametrize("detector", LEARNING)
def test_a_healthy_run_has_no_finding(detector):
    assert not isinstance(detector(learning_case()), Finding)


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("detector", LEARNING)
def test_almost_empty_logs_are_survived(detector, rows):
    empty = RunTable(source="x", format="x", framework=None, columns={}, provenance={})
    table = empty if rows == 0 else learning_run(rows)
    verdict = detector(learning_case(table))
    assert verdict is None or isinstance(verdict, Finding | Insufficient)


odd_floats = st.one_of(st.floats(), st.sampled_from([0.0, -1.0, 1e300, np.nan, np.inf]), st.floats(0, 20))


FACTS = (
    *("vocab_size", "seq_len", "parameters", "micro_batch", "step_tokens", "dataset_tokens", "planned_steps"),
    *("grad_clip", "learning_rate", "warmup_steps", "schedule", "checkpoint_every_steps", "eval_every_steps"),
)
odd_facts = st.one_of(odd_floats, st.integers(-3, 10**7), st.sampled_from(["auto", "cosine", None]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_numbers_are_survived(data):
    rows = data.draw(st.sampled_from([1, 3, 25, 130]))
    names = data.draw(st.lists(st.sampled_from(sorted(set(names_of("columns")) - {"phase"})), unique=True))
    columns = {}
    for name in {*names, "loss"}:
        few = data.draw(st.lists(odd_floats, min_size=1, max_size=6))
        columns[name] = np.resize(np.array(few, dtype=float), rows)
    facts = data.draw(st.dictionaries(st.sampled_from(FACTS), odd_facts))
    table = RunTable(source="x", format="x", framework=None, columns=columns, provenance={}, facts=facts,
                     status=data.draw(st.sampled_from(list(Status))))  # fmt: skip
    case = learning_case(table)
    with np.errstate(all="ignore"):
        for detector in LEARNING:
            verdict = detector(case)
            assert verdict is None or isinstance(verdict, Finding | Insufficient), detector.__name__
        forecast(case, Targets(final_loss=3.0, usd=1.0, hours=1.0))


def test_ranks_that_interleave_are_read_as_one_curve():
    table = learning_run(2000)
    double = {name: np.repeat(values, 2) for name, values in table.columns.items()}
    double["rank"] = np.tile([0.0, 1.0], 2000)
    double["loss"] = double["loss"] + np.where(double["rank"] == 1, 5.0, 0.0)
    both = dataclasses.replace(table, columns=double, phases=())
    assert not [v for d in LEARNING if isinstance(v := d(learning_case(both)), Finding)]
