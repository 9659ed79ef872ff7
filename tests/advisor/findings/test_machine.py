"""Other work on the machine: the reference kernel decides, and nothing else is blamed for what it explains."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from advisor.findings import run_metrics
from advisor.findings.case import Finding, Insufficient, Severity
from advisor.findings.detectors import machine, money, speed, step_time
from advisor.findings.make_case import make_case
from advisor.findings.registry import judge
from advisor.findings.savings import most_saved_seconds
from advisor.options import Goal
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from tests.advisor.findings import build

STEP = np.arange(1, 401)
NOISE = 1 + 0.01 * np.random.default_rng(3).standard_normal(400)
BUSY = (STEP > 100) & (STEP <= 300)
# a reading after every tenth step: 6 ms, and 60 ms while somebody else has the cores
AT = [float(step) for step in range(10, 401, 10)]
WITNESS = {"witness_steps": AT, "witness_seconds": [0.06 if 110 <= step <= 300 else 0.006 for step in AT]}


def on_cpu(seconds, facts=WITNESS, **other):
    w = build.workload(gpu="cpu", precision="fp32", compile=False)
    return build.case(build.run(seconds=seconds, facts={"gpu": "cpu", **facts}, **other), w, usd_per_hour=0.0)


def test_other_work_is_named_and_counted():
    # 200 steps of 5 s beside readings ten times as slow, 200 of 1 s
    found = machine.detect_machine_busy(on_cpu(np.where(BUSY, 5.0, 1.0) * NOISE))
    assert isinstance(found, Finding) and found.severity is Severity.WARNING
    # 20 of 40 readings; the steps from 101 to 310 lie beside one of them: 200 · 4 s beyond the quiet 1 s of 1,200 s
    assert found.title.startswith("Other work on the machine took 66.")
    assert "20 of 40 readings, 6 ms when quiet: 10x" in found.evidence[0].text
    assert found.saved_hours is None  # what others do there is not the reader's to stop


def test_stolen_time_names_the_host():
    found = machine.detect_machine_busy(on_cpu(np.where(BUSY, 5.0, 1.0) * NOISE, {**WITNESS, "stolen_share": 0.3}))
    assert "30 % of the CPU time was stolen" in found.causes[0]


def test_a_quiet_machine_is_not_busy():
    steady = {**WITNESS, "witness_seconds": [0.006 + 0.001 * (i % 3) for i in range(len(AT))]}
    assert machine.detect_machine_busy(on_cpu(np.where(BUSY, 5.0, 1.0) * NOISE, steady)) is None
    assert isinstance(machine.detect_machine_busy(on_cpu(np.where(BUSY, 5.0, 1.0) * NOISE, {})), Insufficient)
    assert machine.detect_machine_busy(on_cpu(NOISE)) is None  # somebody else worked, and it cost nothing
    for broken in ({"witness_steps": AT}, {**WITNESS, "witness_steps": [1.0]}, {**WITNESS, "witness_seconds": "6 ms"}):
        assert isinstance(machine.detect_machine_busy(on_cpu(NOISE, broken)), Insufficient)


def test_pauses_of_a_busy_machine_are_not_garbage_collection():
    slow = np.where(BUSY & (STEP % 20 == 0), 1.6, 1.0) * NOISE
    assert "garbage collection" in step_time.detect_periodic_pauses(on_cpu(slow, {})).title
    assert step_time.detect_periodic_pauses(on_cpu(slow)) is None
    everywhere = np.where(STEP % 20 == 0, 1.6, 1.0) * NOISE  # also where the machine was quiet: its own habit
    found = step_time.detect_periodic_pauses(on_cpu(everywhere))
    assert found is not None and found.evidence[0].text.startswith("10 pauses")  # at 20 to 100 and 320 to 400


def test_slow_steps_in_a_row_are_one_pause_and_no_period():
    seconds = NOISE.copy()
    seconds[100:115] = 4.0
    assert step_time.detect_periodic_pauses(on_cpu(seconds, {})) is None


def test_a_machine_never_quiet_is_measured_against_the_calibration():
    always = {**WITNESS, "witness_seconds": [0.06] * len(AT)}
    case = on_cpu(5 * NOISE, always)
    assert machine.detect_machine_busy(case) is None  # nothing says what quiet is
    calibrated = dataclasses.replace(build.profile(), key="cpu", spec=None, device_type="cpu", reference_seconds=0.012)
    case = dataclasses.replace(case, profile=calibrated)
    assert machine.slowdown(case) == pytest.approx(5)
    found = machine.detect_machine_busy(case)
    assert found.title.startswith("Other work on the machine took 80 %")  # 4 of 5 s


def slower_than_promised(seconds, facts, **other):
    case = on_cpu(seconds, facts, **other)
    promised = build.expected(build.workload())
    scale = 1.0 / promised.step_seconds.value  # as if one second per step had been promised
    rate = promised.tokens_per_second.scaled(1 / scale)
    return dataclasses.replace(case, expected=dataclasses.replace(promised, tokens_per_second=rate))


def test_a_cpu_is_told_nothing_of_cuda():
    found = speed.detect_software_bound(slower_than_promised(20 * NOISE, {}))
    assert found is not None and not any("CUDA" in text for text in (*found.actions, *found.causes))
    card = build.telemetry(50, utilization=0.0, power_watts=20.0)
    beside_a_card = speed.detect_software_bound(slower_than_promised(20 * NOISE, {}, telemetry=card))
    assert any("CUDA build" in action for action in beside_a_card.actions)


def test_what_the_machine_slowed_is_not_the_software():
    mostly = {**WITNESS, "witness_seconds": [0.06 if step <= 300 else 0.006 for step in AT]}
    seconds = np.where(STEP <= 300, 20.0, 1.0) * NOISE
    assert speed.detect_software_bound(slower_than_promised(seconds, {})) is not None
    assert speed.detect_software_bound(slower_than_promised(seconds, mostly)) is None


def test_the_factor_is_that_of_the_numbers_beside_it_and_says_what_other_programs_took():
    # 10 s where 1 s was promised, 2.5 s in the quiet quarter
    mostly = {**WITNESS, "witness_seconds": [0.06 if step <= 300 else 0.006 for step in AT]}
    found = speed.detect_software_bound(slower_than_promised(np.where(STEP <= 300, 10.0, 2.5) * NOISE, mostly))
    assert found.title.startswith("10x slower than this CPU is at this shape")
    assert found.title.endswith("; 2.5x after other programs are allowed for")


@pytest.mark.parametrize(("steps", "judged"), [(2, False), (19, False), (60, True)])
def test_the_first_steps_are_no_verdict_on_the_speed(steps, judged):
    case = slower_than_promised(20 * NOISE[:steps], {}, steps=steps)
    assert isinstance(speed.detect_software_bound(case), Finding if judged else Insufficient)


@pytest.mark.parametrize(("deadline", "most"), [(None, 60 * 20.0), (1500.0, 300.0), (1000.0, 0.0)])
def test_a_run_that_goes_on_saves_at_most_what_is_left_of_it_or_of_its_deadline(deadline, most):
    # 60 of 120 steps of 20 s, which should take 1 s
    case = slower_than_promised(20 * np.ones(60), {"planned_steps": 120}, steps=60)
    goal = Goal(gpu="cpu", deadline_seconds=deadline)
    case = dataclasses.replace(
        case, run=dataclasses.replace(case.run, status=Status.RUNNING), plan=SimpleNamespace(goal=goal)
    )
    assert most_saved_seconds(case) == pytest.approx(most, abs=25)
    found = next(one for one in judge(case)[0] if one.code == "software_bound")
    assert found.saved_hours.high * 3600 <= most + 25


def test_steps_that_only_scatter_beside_slow_readings_lost_nothing():
    # Half of the steps beside slow readings are 30 % slower than the others, half 30 % faster.
    seconds = np.where(BUSY, np.where(STEP % 2 == 0, 1.3, 0.7), 1.0)
    assert machine.lost_seconds(on_cpu(seconds)) == 0 and machine.detect_machine_busy(on_cpu(seconds)) is None
    taken = machine.detect_machine_busy(on_cpu(np.where(BUSY, 5.0, 1.0)))
    assert taken.title == "Other work on the machine took 66.7 % of the time in steps: 13.3 min of 20 min"


def test_a_busy_machine_is_not_time_beside_the_steps():
    seconds = np.where(BUSY & (STEP > 150), 5.0, 1.0) * NOISE
    clock = 1.7e9 + np.cumsum(seconds)
    assert money.detect_goodput(on_cpu(seconds, {}, unix_seconds=clock)) is not None
    assert money.detect_goodput(on_cpu(seconds, unix_seconds=clock)) is None


def test_read_from_the_own_log(tmp_path):
    header = {"kind": "header", "time": 1.7e9, "schema": 1, "attempt": 1, "device": {"type": "cpu"}, "config": None}
    header |= {"tokens_per_step": 100, "world_size": 1}
    records, now = [header], 1.7e9
    for step in STEP.tolist():
        seconds = 5.0 if 100 < step <= 300 else 1.0
        now += seconds
        step_record = {"kind": "step", "time": now, "step": step, "tokens": 100 * step, "loss": 5.0}
        records.append({**step_record, "seconds": seconds})
        if step % 10 == 0:
            kernel = 0.06 if 100 < step <= 300 else 0.006
            records.append(
                {"kind": "witness", "time": now, "step": step, "reference_seconds": kernel, "steal_fraction": 0.25}
            )
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    case = make_case(read_run(path, None))
    assert run_metrics.without_card(case)
    assert case.run.facts["stolen_share"] == 0.25 and len(case.run.facts["witness_steps"]) == 40
    codes = [finding.code for finding in judge(case)[0]]
    assert "machine_busy" in codes and not {"periodic_pauses", "goodput"} & set(codes)
