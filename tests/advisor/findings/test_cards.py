"""Several cards beside each other: which was idle, when, beside whom; hot, capped, or somebody else's."""

from __future__ import annotations

import numpy as np

from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import cards, money
from tests.advisor.findings import build

READINGS = 600


def case(gpus: int = 4, readings: int = READINGS, facts: dict | None = None, w=None, **columns):
    """Busy cards, one reading a second; each keyword is a column per card or per card and reading."""
    wide = {name: np.broadcast_to(np.asarray(v, float), (readings, gpus)).ravel() for name, v in columns.items()}
    table = build.healthy(telemetry=build.telemetry(readings, gpus=gpus, **wide), facts=facts or {})
    return build.case(table, w)


def test_gpus_alike_are_silent_and_one_has_no_others():
    random = np.random.default_rng(3)
    assert cards.detect_card_idle(case(power_watts=350 + 25 * random.standard_normal((READINGS, 4)))) is None
    assert isinstance(cards.detect_card_idle(case(gpus=1)), Insufficient)


def test_idle_cards_are_named_beside_those_that_work():
    used = {"utilization": [0.97, 0.95, 0.02, 0.97], "power_watts": [340, 350, 62, 345]}
    found = cards.detect_card_idle(case(facts={"world_size": 4}, **used))
    assert cards.detect_card_idle(case(facts={"world_size": 3}, **used)).severity is Severity.NOTE  # as asked for
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    assert found.title == "GPU 2 of 4: 2 % utilisation, where the others have 97 %"
    assert "62 W" in found.evidence[2].text


def test_a_snapshot_is_a_note():
    found = cards.detect_card_idle(case(8, 1, utilization=[0.05, 0.33, 0.06, 0.33, 0.19, 0.21, 0.24, 0.43]))
    assert isinstance(found, Finding) and found.severity is Severity.NOTE
    assert found.title.startswith("GPUs 0, 2 of 8") and found.title.endswith("(a snapshot)")


def test_a_stretch_without_work_says_when_and_beside_whom():
    used = np.full((READINGS, 2), 0.9)
    used[100:401, 1] = 0.0
    found = cards.detect_card_idle(case(2, utilization=used))
    assert found.title.startswith("GPU 1 of 2 had nothing to do for 5 min")
    assert "from 100 s to 6.67 min" in found.evidence[0].text and "others at 90 %" in found.evidence[0].text
    rare = np.where(np.arange(READINGS)[:, None] % 5, np.nan, used)  # our own telemetry reads power more often than use
    assert cards.detect_card_idle(case(2, utilization=rare)).title.startswith("GPU 1 of 2 had nothing to do for 5 min")
    used[100:401, 0] = 0.0  # both idle: a pause of the run, which is another finding
    assert cards.detect_card_idle(case(2, utilization=used)) is None


def test_memory_held_while_nothing_runs():
    idle = case(gpus=1, utilization=np.where(np.arange(READINGS)[:, None] > 100, 0.0, 0.9))
    found = money.detect_idle_device(idle)
    assert found.severity is Severity.WARNING and "stay allocated" in found.evidence[1].text


def test_one_card_without_work_is_one_finding():
    busy = np.tile([0.95, 0.0], 1200)  # two cards, the second never used
    case = build.case(build.healthy(telemetry=build.telemetry(1200, gpus=2, utilization=busy)))
    assert cards.detect_card_idle(case).title.startswith("GPU 1 of 2")
    assert money.detect_idle_device(case) is None
    both = np.where(np.arange(2400) < 800, 0.0, busy)  # and 400 of the 1,200 seconds in which the first had none either
    found = money.detect_idle_device(
        build.case(build.healthy(telemetry=build.telemetry(1200, gpus=2, utilization=both)))
    )
    assert found.title.startswith("Nothing ran on the GPU for 6.65 min")
