"""What an estimate of speed rests on, in numbers and words: the counts are those of the file the beliefs come from."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
import yaml

from advisor.hardware.catalog import load_gpus, require_gpu
from advisor.options import Goal
from advisor.planning.answer import answer
from advisor.planning.run import grounds_of
from advisor.prediction.prior import published_runs
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Grounds
from advisor.report.plan import briefly, speed_rests_on
from advisor.store.folders import profiles_folder
from advisor.store.plan_files import dump_plan, load_plan
from tests.advisor.devices import small_cpu

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def prior():
    return yaml.safe_load((profiles_folder() / "prior.yaml").read_text())


def test_runs_are_counted_once_by_card_by_generation_and_in_all(prior):
    """Encoders are the lines of public_encoder_runs.csv, 20 on ten cards, two of them on an RTX 6000 Ada."""
    everything = prior["provenance"]["rows"] + prior["provenance"]["encoder_rows"]
    assert prior["provenance"]["encoder_rows"] == 20 and prior["provenance"]["rows"] > 400
    assert sum(published_runs(key, None)[0] for key in prior["cards"]) == everything
    assert sum(published_runs("", name)[1] for name in prior["generations"]) == everything
    left_out = prior["cards"]
    cards = load_gpus()
    assert len(cards.keys() & left_out.keys()) > len(left_out) / 2  # the counts are found by the catalog's keys
    for key, spec in cards.items():
        card, alike, total = published_runs(key, spec.generation)
        assert 0 <= card <= alike <= total == everything
    assert published_runs("nobody-has-it", None)[:2] == (0, 0)


def ground(generation: str, card: int, alike: int, calibration: str | None = None) -> Grounds:
    return Grounds(calibration=calibration, generation=generation, card_runs=card, generation_runs=alike, all_runs=9)


@pytest.mark.parametrize(
    ("grounds", "cell"),
    [
        (None, "unknown"),
        (ground("Ada", 0, 1, "l4-1"), "measured here"),
        (ground("Ada", 1, 3), "1 published run on this GPU and 2 on the same generation (Ada)"),
        (ground("Rubin", 0, 0), "0 published runs on this GPU and 0 on the same generation (Rubin)"),
    ],
)
def test_a_cell_says_it_briefly(grounds, cell):
    assert briefly(grounds) == cell


def test_a_choice_between_cards_says_beside_the_headline_how_little_it_rests_on(tmp_path):
    profiles = [prior_profile(require_gpu(key)) for key in ("rtx-6000-ada", "a100-80gb-sxm")]
    goal = Goal(gpu="rtx-6000-ada,a100-80gb-sxm", counts=(1, 2), budget_usd=20.0)
    plan = answer(goal, profiles, now=NOW)
    expected = {p.key: grounds_of(p) for p in profiles}
    rows = (*plan.options, *plan.search.front, *plan.search.near_misses)
    assert rows and all(row.grounds == expected[row.offer.gpu] for row in rows)
    assert plan.grounds == expected[plan.workload.gpu]
    text = speed_rests_on(plan)
    others = plan.grounds.generation_runs - plan.grounds.card_runs
    assert f"{others or 'none'} of other GPUs of its generation ({plan.grounds.generation})" in text
    assert "2 GPU types were compared; an uncertain speed never counts in a GPU's favour." in text
    other = replace(plan.chosen, grounds=grounds_of(prior_profile(require_gpu("rtx-4060"))))
    alone = speed_rests_on(replace(plan, search=None, chosen=other))
    assert "none of this GPU" in alone and "were compared" not in alone
    assert "; 2 of 68 publishers had a run that took over 3 times as long as predicted." in alone
    (tmp_path / "plan.yaml").write_text(dump_plan(plan))
    assert load_plan(tmp_path / "plan.yaml") == plan


def test_what_was_measured_says_so_and_older_plans_say_nothing():
    plan = answer(Goal(gpu="cpu", deadline_seconds=300.0), [small_cpu()], now=NOW)
    assert speed_rests_on(plan) == f"The speed was measured here ({small_cpu().calibration_id})."
    assert speed_rests_on(replace(plan, chosen=replace(plan.chosen, grounds=None))) is None
