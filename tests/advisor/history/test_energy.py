"""Energy of a run, from its telemetry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from advisor.history.scoring import measured_kwh, run_kwh
from advisor.readers.own_log import run_table_of
from advisor.readers.run_table import RunTable
from tests.advisor.plans import small_plan


def readings(**columns):
    return {name: np.array(values, float) for name, values in columns.items()}


def test_energy_from_the_counter_or_from_power():
    counter = readings(unix_seconds=[0, 10, 20, 30], gpu=[0] * 4, energy_joules=[5e3, 6e3, 0, 1e3])
    assert measured_kwh(counter) == pytest.approx(2000 / 3.6e6)  # the counter began anew once
    power = readings(unix_seconds=[0, 1, 2, 102], power_watts=[100, 300, 300, 300])
    assert measured_kwh(power) == pytest.approx((200 + 300 + 5 * 300) / 3.6e6)
    assert measured_kwh(readings(unix_seconds=[0], gpu=[0], power_watts=[np.nan])) is None
    two = readings(unix_seconds=[0, 0, 10, 10], gpu=[0, 1, 0, 1], energy_joules=[0, 50, 1e3, 350])
    assert measured_kwh(two) == pytest.approx(1300 / 3.6e6)


def test_the_cards_energy_counts_as_it_was_predicted_and_the_hosts_where_there_are_none(script):
    table = run_table_of(script(small_plan()).start().steps(1, 20, 0.5).end(), "log.jsonl")
    card = readings(unix_seconds=[0, 10], gpu=[0, 0], energy_joules=[0, 2e3])
    host = readings(unix_seconds=[0, 30], energy_joules=[0, 9e3])
    assert run_kwh(replace(table, host_telemetry=host)) == pytest.approx(9000 / 3.6e6)
    assert run_kwh(replace(table, telemetry=card)) == pytest.approx(2000 / 3.6e6)
    assert run_kwh(table) is None


def test_telemetry_of_a_part_of_another_trainers_run_is_not_its_energy():
    log = RunTable(source="x", format="csv", framework=None, columns={}, provenance={}, facts={"total_seconds": 100.0})
    whole, part = (readings(unix_seconds=[0, s], gpu=[0, 0], energy_joules=[0, 36e3]) for s in (98, 40))
    assert run_kwh(replace(log, telemetry=whole)) == pytest.approx(0.01)
    assert run_kwh(replace(log, telemetry=part)) is None
