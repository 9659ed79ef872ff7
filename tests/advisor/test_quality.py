"""Calibrations that failed are no belief: verdicts, what predictions make of them, and how they are shown.

The calibrations are a recorded session and what becomes of it when bursts are missing or were disturbed.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from advisor.calibration.fit import FitEvidence
from advisor.calibration.observations import completed
from advisor.calibration.profiles import calibrated_elsewhere, load_profile, profile_of
from advisor.calibration.quality import judge, judged, quality_of, widening
from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.laws.held_out import HeldOut, HeldPoint
from advisor.planning.answer import answer
from advisor.prediction.batch import predict_batch
from advisor.records import Basis, Estimate, Plan, Workload
from advisor.report.calibration import consequence
from advisor.store.calibration import PARTIAL, Calibration, Quality, Verdict, calibration_to_dict
from advisor.store.disk import dump_yaml
from advisor.store.store import Store, default_store, load_calibration
from advisor.workflows.calibrate import Calibrated
from advisor.workflows.plan import load_profiles
from tests.advisor.plans import goal_of
from trainer.schema import make_shape

RECORDED = sorted((Path(__file__).parents[2] / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
NEW, NEWER = "2030-01-01T00:00:00+00:00", "2030-01-02T00:00:00+00:00"
WORKLOAD = Workload(
    shape=make_shape("nanochat", depth=5, vocab_size=4096, seq_len=256), micro_batch=6, gpu="cpu", precision="fp32"
)


@pytest.fixture(scope="module")
def recorded() -> Calibration:
    return load_calibration(RECORDED)


def slowed(calibration: Calibration, factors: tuple[float, ...], **changes) -> Calibration:
    """The calibration with its bursts slowed by these factors in turn."""
    bursts = tuple(
        replace(b, step_seconds=tuple(s * factors[place % len(factors)] for s in b.step_seconds))
        for place, b in enumerate(completed(calibration.bursts))
    )
    return replace(calibration, bursts=bursts, quality=None, held_out_error=None, **changes)


@pytest.fixture(scope="module")
def good(recorded) -> Calibration:
    return replace(recorded, id="cpu-good")


@pytest.fixture(scope="module")
def condemned(recorded) -> Calibration:
    """Other work came and went while its bursts ran."""
    found = judged(slowed(recorded, (1.0, 9.0, 2.0, 5.0, 0.5), id="cpu-condemned", created=NEWER))
    assert found.quality.verdict == Verdict.REJECTED and found.held_out_error.median > 0.25
    return found


@pytest.fixture(scope="module")
def interrupted(recorded) -> Calibration:
    """One burst, of a machine that was ten times slower."""
    one = replace(recorded, bursts=completed(recorded.bursts)[:1], status=PARTIAL)
    return judged(slowed(one, (10.0,), id="cpu-interrupted", created=NEWER))


@pytest.fixture(scope="module")
def doubtful(good) -> Calibration:
    """A verdict as half of the intervals holding gives it, on bursts that are as they were."""
    verdict = Quality(verdict=Verdict.DOUBTFUL, widening=1.8, reason="its held-out intervals held 50%")
    return replace(good, id="cpu-doubtful", created=NEWER, quality=verdict)


def held_out(errors: list[float], widths: list[float]) -> HeldOut:
    values = [(1 + error, math.exp(width)) for error, width in zip(errors, widths, strict=True)]
    promises = [Estimate(value=v, low=v / w, high=v * w, basis=Basis.INTERPOLATED) for v, w in values]
    return HeldOut(points=tuple(HeldPoint(configuration=WORKLOAD, predicted=one, actual=1.0) for one in promises))


def plan_on_cpu(store: Store) -> Plan:
    goal = goal_of(["--gpu", "cpu", "--depth", "4", "--deadline", "10min", "--price", "0"])
    profiles, left_out = load_profiles(goal, store)
    return answer(goal, profiles, now=datetime(2026, 11, 22, tzinfo=UTC), data_meta=None, left_out=left_out)


def without_sources(plan: Plan) -> Plan:
    return replace(plan, id="", inputs=(), warnings=())


def test_the_recorded_sessions_are_good():
    for path in sorted(RECORDED.parent.glob("cpu-*.yaml")):
        quality = quality_of(load_calibration(path))
        assert quality.verdict == Verdict.GOOD and quality.widening == 1


@pytest.mark.parametrize(
    ("errors", "width", "verdict"),
    [
        ([0.02] * 7 + [0.3] * 3, 0.05, Verdict.GOOD),  # 70 % inside
        ([0.02] * 6 + [0.3] * 4, 0.05, Verdict.DOUBTFUL),
        ([0.02] * 3 + [0.2] * 7, 0.05, Verdict.DOUBTFUL),
        ([0.02] * 2 + [0.2] * 8, 0.05, Verdict.REJECTED),  # 20 % inside
        ([0.25] * 10, 0.5, Verdict.GOOD),  # far off, and its wide intervals say so
        ([0.26] * 10, 0.5, Verdict.REJECTED),
        ([0.73] * 6 + [0.01], 0.05, Verdict.REJECTED),  # 73 %, 14 % inside
    ],
)
def test_a_verdict_is_of_errors_and_of_intervals_that_held(errors: list[float], width: float, verdict: Verdict):
    found = judge(held_out(errors, [width] * len(errors)), len(errors), interrupted=False, drift=0.1)
    assert found.verdict == verdict and (found.widening > 1) is (verdict == Verdict.DOUBTFUL)


@pytest.mark.parametrize(
    ("errors", "drift", "words"),
    [
        ([-0.47, -0.14, -0.11, 0.13, 0.05, 0.02], 0.42, "-47% off when predicted from the others and the"),
        ([0.05] * 6, 0.42, "but the machine's own speed moved by ±42%"),
        ([0.45] + [0.05] * 9, 0.1, "but one configuration is +45% off when predicted from the others"),
        ([-0.25] + [0.05] * 9, 0.28, None),  # log(0.75) = -0.29, log(1.4) = 0.34
    ],
)
def test_one_wild_configuration_or_a_machine_that_moves_makes_a_calibration_doubtful(errors, drift, words):
    found = judge(held_out(errors, [0.2] * len(errors)), len(errors), interrupted=False, drift=drift)
    assert (
        found.verdict == (Verdict.DOUBTFUL if words else Verdict.GOOD)
        and (words or "in their 80 % intervals") in found.reason
    )
    assert consequence(found, "cpu").startswith("doubtful: " if words else "good: ")


def test_the_widening_is_what_held_out_intervals_would_have_needed(recorded):
    held = held_out([0.05, -0.05, 0.1, 0.2, -0.3], [0.1] * 5)
    factor = widening(held)
    assert factor == pytest.approx(1.9)  # four of five: log 1.2 over 0.1 is 1.82, rounded up to a tenth
    early = FitEvidence(replace(recorded, bursts=recorded.bursts[:6])).held_out()  # half of its intervals hold
    assert early.coverage == 0.5
    for some in (held, early):
        assert np.mean([abs(math.log1p(p.error)) <= widening(some) * p.width for p in some.points]) >= 0.8


@pytest.mark.parametrize(("bursts", "status", "words"), [
    (1, PARTIAL, "it was interrupted after 1 configuration, and 4 are needed"),
    (3, "complete", "it has 3 configurations, and 4 are needed"),
    (0, PARTIAL, "it was interrupted after 0 configurations"),
])  # fmt: skip
def test_too_few_configurations_are_not_believed(recorded, bursts: int, status: str, words: str):
    found = judged(replace(recorded, bursts=recorded.bursts[:bursts], status=status))
    assert found.quality.verdict == Verdict.REJECTED and found.quality.reason.startswith(words)
    assert found.held_out_error is None


@pytest.mark.parametrize("refused", ["condemned", "interrupted"])
def test_a_refused_calibration_does_not_move_the_plan(good, refused, request, tmp_path):
    calibration = request.getfixturevalue(refused)
    store = Store(tmp_path)
    store.save_calibration(good)
    before = plan_on_cpu(store)
    store.save_calibration(calibration)
    after = plan_on_cpu(store)
    assert without_sources(after) == without_sources(before)
    said = f"calibration {calibration.id} was rejected: {calibration.quality.reason}"
    assert "calibration cpu-good" in after.inputs
    assert any(said in text for text in after.warnings) and any(said in text for text in after.inputs)


@pytest.mark.parametrize("refused", ["condemned", "interrupted"])
def test_an_old_file_without_a_verdict_is_judged_by_what_it_holds(good, refused, request, tmp_path):
    store = Store(tmp_path)
    store.save_calibration(good)
    document = calibration_to_dict(request.getfixturevalue(refused))
    del document["quality"]
    (tmp_path / "calibrations" / "old.yaml").write_text(dump_yaml(document))
    assert load_profile("cpu", store).calibration_id == "cpu-good"


def test_a_cpu_with_nothing_that_is_believed_says_why(condemned, tmp_path):
    store = Store(tmp_path)
    store.save_calibration(condemned)
    with pytest.raises(
        AdvisorError, match=r"cpu-condemned\) was rejected: the median of its held-out errors is"
    ) as refused:
        load_profile("cpu", store)
    assert "advisor calibrate --gpu cpu" in refused.value.hint


def test_a_card_with_nothing_that_is_believed_has_its_prior(condemned, tmp_path):
    store, alone = Store(tmp_path / "a"), load_profile("l4", Store(tmp_path / "b"), precision="fp32")
    on_card = replace(condemned, device_key="l4", device=replace(condemned.device, type="cuda"))
    store.save_calibration(on_card)
    profile = load_profile("l4", store, precision="fp32")
    assert not profile.calibrated and (profile.posterior.theta == alone.posterior.theta).all()
    assert profile.sources[: len(alone.sources)] == alone.sources and "was rejected" in profile.sources[-1]


def test_a_card_that_no_catalog_knows_says_so_too(condemned, tmp_path):
    store = Store(tmp_path)
    store.save_calibration(replace(condemned, device_key="nvidia-imaginary-x1"))
    with pytest.raises(AdvisorError, match="the last calibration of nvidia-imaginary-x1"):
        load_profile("nvidia-imaginary-x1", store)


def test_a_doubtful_calibration_widens_by_exactly_its_factor(good, doubtful, tmp_path):
    store = Store(tmp_path)
    store.save_calibration(good)
    [sure] = predict_batch(load_profile("cpu", store), [WORKLOAD])
    store.save_calibration(doubtful)
    profile = load_profile("cpu", store)
    [wide] = predict_batch(profile, [WORKLOAD])
    before, after = sure.step_seconds, wide.step_seconds
    assert after.value == before.value
    assert np.log(after.high / after.value) == pytest.approx(1.8 * np.log(before.high / before.value))
    assert np.log(after.value / after.low) == pytest.approx(1.8 * np.log(before.value / before.low))
    said = "calibration cpu-doubtful, intervals widened 1.8 times: its held-out intervals held 50%"
    assert profile.sources[0] == said
    plan = plan_on_cpu(store)
    assert said in plan.warnings and said in plan.inputs


def test_other_cards_learn_nothing_from_a_refused_and_less_from_a_doubtful_one(good, doubtful, condemned, tmp_path):
    h100 = require_gpu("h100-80gb-sxm")

    def learnt(name: str, *calibrations: Calibration):
        store = Store(tmp_path / name)
        for calibration in calibrations:
            cuda = replace(calibration.device, type="cuda")
            store.save_calibration(replace(calibration, device_key="l4", device=cuda))
        found = calibrated_elsewhere(h100, store)
        return found, load_profile(h100.key, store, precision="fp32").posterior

    (nothing, prior), (sure, told) = learnt("none", condemned), learnt("good", good, condemned)
    less_sure, told_less = learnt("doubtful", doubtful)
    assert nothing is None and "cpu-good on l4" in sure.source
    assert less_sure.source.endswith("on l4, intervals widened 1.8 times: its held-out intervals held 50%")
    assert np.linalg.eigvalsh(less_sure.covariance - sure.covariance).min() > -1e-9
    assert np.trace(told.covariance) < np.trace(told_less.covariance) < np.trace(prior.covariance)


def test_the_verdict_is_in_the_file_and_goes_when_a_burst_is_added(condemned, tmp_path):
    store = Store(tmp_path)
    path = store.save_calibration(condemned)
    assert load_calibration(path) == condemned
    assert store.list_calibrations()[0].quality == condemned.quality
    assert path.read_text().index("quality:") < path.read_text().index("bursts:")


def test_profiles_show_the_verdict_and_its_reason(call, good, doubtful, condemned):
    store = default_store()
    for calibration in (good, doubtful, condemned):
        store.save_calibration(calibration)
    code, out, _ = call("profiles", "--json")
    found = {entry["id"]: entry["quality"] for entry in json.loads(out)["calibrations"]}
    assert code == 0 and found["cpu-good"]["verdict"] == "good"  # stored without one
    assert found["cpu-doubtful"] == {
        "verdict": "doubtful", "widening": 1.8, "reason": "its held-out intervals held 50%"
    }  # fmt: skip
    assert found["cpu-condemned"]["reason"] == condemned.quality.reason
    _, out, _ = call("profiles")
    said = " ".join(out.split())
    assert (
        "doubtful, 1.8 × wider" in said
        and "! cpu-condemned: rejected, no plan uses it: the median of its held-out errors" in said
    )
    assert "advisor calibrate --gpu cpu" in said and "! cpu-good" not in said


def test_a_calibration_can_be_deleted(call, good, condemned):
    store = default_store()
    store.save_calibration(good), store.save_calibration(condemned)
    assert call("profiles", "--delete", "cpu-condemned")[0] == 0
    assert [entry.id for entry in store.list_calibrations()] == ["cpu-good"]
    code, _, err = call("profiles", "--delete", "cpu-condemned")
    assert code == 2 and "no calibration is called 'cpu-condemned'" in err and "hint:" in err
    code, out, _ = call("profiles", "--delete", "cpu-good", "--json")
    assert code == 0 and json.loads(out)["deleted"] == "cpu-good" and store.list_calibrations() == []


def test_a_shipped_calibration_stays(good, tmp_path):
    Store(tmp_path / "theirs").save_calibration(good)
    store = Store(tmp_path / "mine", shipped=tmp_path / "theirs" / "calibrations")
    with pytest.raises(AdvisorError, match="came with the program"):
        store.delete_calibration("cpu-good")
    assert profile_of(store.newest_calibration("cpu")).widening == 1


def test_a_rejected_calibration_ends_with_a_code_that_scripts_see(call, good, condemned, monkeypatch):
    for calibration, code in ((good, 0), (condemned, 1)):
        done = Calibrated(calibration=calibration, profile=profile_of(calibration), held_out=None)
        monkeypatch.setattr("advisor.workflows.calibrate.calibrate", lambda *given, found=done, **more: found)
        for more in ((), ("--json",)):
            assert call("calibrate", "--gpu", "cpu", *more)[0] == code
