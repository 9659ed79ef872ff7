"""Runs taken up again: at the loss they had, or with what they had learnt gone."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Insufficient, Severity
from advisor.findings.detectors.runs import detect_resume_lost
from tests.advisor.findings.build import event
from tests.advisor.findings.build_learning import LN_V, STEPS, healthy_loss, learning_case, learning_run

RESTART = event("restart", "steps go back from 1100 to 1001", 1100, first_step=1001.0, last_step=1100.0)


def test_a_run_that_goes_on_where_it_was():
    assert detect_resume_lost(learning_case(learning_run(events=[RESTART]))) is None
    slightly = healthy_loss() + np.where(np.arange(STEPS) < 1000, 0.0, 0.3)  # the optimizer's moments were lost
    assert detect_resume_lost(learning_case(learning_run(loss=slightly, events=[RESTART]))) is None


def test_a_run_that_begins_with_fresh_weights_at_step_1001():
    loss = np.r_[healthy_loss()[:1000], healthy_loss()[:1000]]
    found = detect_resume_lost(learning_case(learning_run(loss=loss, events=[RESTART])))
    assert found.severity is Severity.WARNING and found.title.startswith("Taken up again at step 1001")
    assert isinstance(detect_resume_lost(learning_case(learning_run(loss=loss))), Insufficient)  # no restart is known


def test_a_resumed_run_whose_first_loss_is_ln_v():
    late = {"step": np.arange(5001.0, 5001 + STEPS)}
    facts = {"resumed_from_step": 5000}
    found = detect_resume_lost(learning_case(learning_run(facts=facts, **late)))
    assert found.severity is Severity.WARNING and f"{LN_V:.3g}" in found.evidence[0].text
    sound = learning_run(facts=facts, loss=healthy_loss(start=3.4), **late)
    assert detect_resume_lost(learning_case(sound)) is None
    assert isinstance(detect_resume_lost(learning_case()), Insufficient)
