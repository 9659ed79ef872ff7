"""Other work on the machine: the reference kernel decides, and nothing else is blamed for what it explains."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest

from advisor.findings import run_metrics
from advisor.findings.make_case import make_case
from advisor.findings.registry import judge
from advisor.findings.savings import most_saved_seconds
from advisor.options import Goal
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from tests.advisor.findings import build
from tests.advisor.findings.build import found, silent, unjudged, verify

STEP = np.arange(1, 401)
NOISE = 1 + 0.01 * np.random.default_rng(3).standard_normal(400)
BUSY = (STEP > 100) & (STEP <= 300)
FIVE = np.where(BUSY, 5.0, 1.0)
# a reading after every tenth step: 6 ms, and 60 ms while somebody else has the cores
AT = [float(step) for step in range(10, 401, 10)]


def readings(*slow):
    """Facts of a run whose readings are slow after these steps, first and last."""
    return {"witness_steps": AT, "witness_seconds": [0.06 if slow[0] <= at <= slow[1] else 0.006 for at in AT]}


WITNESS, MOSTLY, ALWAYS = readings(110, 300), readings(0, 300), readings(0, 400)
STEADY = WITNESS | {"witness_seconds": [0.006 + 0.001 * (i % 3) for i in range(len(AT))]}


def on_cpu(seconds, facts=WITNESS, profile=None, **other):
    w = build.workload(gpu="cpu", precision="fp32", compile=False)
    case = build.case(build.run(seconds=seconds, facts={"gpu": "cpu", **facts}, **other), w, usd_per_hour=0.0)
    return dataclasses.replace(case, profile=profile) if profile else case


def slower_than_promised(seconds, facts, **other):
    case = on_cpu(seconds, facts, **other)
    promised = build.expected(build.workload())
    scale = 1.0 / promised.step_seconds.value  # as if one second per step had been promised
    rate = promised.tokens_per_second.scaled(1 / scale)
    return dataclasses.replace(case, expected=dataclasses.replace(promised, tokens_per_second=rate))


CALIBRATED = dataclasses.replace(build.profile(), key="cpu", spec=None, device_type="cpu", reference_seconds=0.012)
LATE = np.where(BUSY & (STEP > 150), 5.0, 1.0) * NOISE
CASES = {
    # 20 of 40 readings; the steps from 101 to 310 lie beside one of them: 200 · 4 s beyond the quiet 1 s of 1,200 s
    "other work": (on_cpu(FIVE), found(
        # not the reader's to stop
        "machine_busy", "warning", says="20 of 40 readings, 6 ms when quiet: 10x", hours="none",
        starts="Other programs on this machine cost 13 min of the 20 min spent in steps (66.7 %)")),
    "stolen time": (on_cpu(FIVE * NOISE, {**WITNESS, "stolen_share": 0.3}),
        found("machine_busy", says="30 % of the CPU time was stolen")),
    "a quiet machine": (on_cpu(FIVE * NOISE, STEADY), silent("machine_busy")),
    "no readings": (on_cpu(FIVE * NOISE, {}), unjudged("machine_busy")),
    "other work that cost nothing": (on_cpu(NOISE), silent("machine_busy")),
    "readings without seconds": (on_cpu(NOISE, {"witness_steps": AT}), unjudged("machine_busy")),
    "readings of another number": (on_cpu(NOISE, {**WITNESS, "witness_steps": [1.0]}), unjudged("machine_busy")),
    "readings in words": (on_cpu(NOISE, {**WITNESS, "witness_seconds": "6 ms"}), unjudged("machine_busy")),
    # half of the steps beside slow readings are 30 % slower than the others, half 30 % faster
    "steps that only scatter": (on_cpu(np.where(BUSY, np.where(STEP % 2 == 0, 1.3, 0.7), 1.0)), silent("machine_busy")),
    "never quiet": (on_cpu(5 * NOISE, ALWAYS), silent("machine_busy")),  # nothing says what quiet is
    "never quiet, and calibrated": (on_cpu(5 * NOISE, ALWAYS, CALIBRATED), found(  # 4 of 5 s
        "machine_busy", starts="Other programs on this machine cost 27 min of the 33.3 min spent in steps (80 %)")),
    # pauses of a busy machine are not garbage collection
    "pauses": (on_cpu(np.where(BUSY & (STEP % 20 == 0), 1.6, 1.0) * NOISE, {}),
        found("periodic_pauses", "", "garbage collection")),
    "pauses beside other work": (on_cpu(np.where(BUSY & (STEP % 20 == 0), 1.6, 1.0) * NOISE),
        silent("periodic_pauses")),
    "pauses where it was quiet, too": (on_cpu(np.where(STEP % 20 == 0, 1.6, 1.0) * NOISE),
        found("periodic_pauses", says="10 pauses")),
    "slow steps in a row are one pause": (on_cpu(np.where((STEP > 100) & (STEP <= 115), 4.0, NOISE), {}),
        silent("periodic_pauses")),
    # slow steps are steps: their sum fills the wall clock, although the median step is short
    "late steps": (on_cpu(LATE, {}, unix_seconds=1.7e9 + np.cumsum(LATE)), silent("goodput")),
    "time of a busy machine": (on_cpu(LATE, unix_seconds=1.7e9 + np.cumsum(LATE)), silent("goodput")),
    # what the machine slowed is not the software; 10 s where 1 s was promised, 2.5 s in the quiet quarter
    "slow software": (slower_than_promised(np.where(STEP <= 300, 20.0, 1.0) * NOISE, {}), found("software_bound")),
    "a slow machine": (slower_than_promised(np.where(STEP <= 300, 20.0, 1.0) * NOISE, MOSTLY),
        silent("software_bound")),
    "both": (slower_than_promised(np.where(STEP <= 300, 10.0, 2.5) * NOISE, MOSTLY), found(
        "software_bound", "", "; 2.5x slower without the time of other programs",
            starts="10x slower than this CPU is at this shape")),
    "a CPU beside a GPU": (
        slower_than_promised(20 * NOISE, {}, telemetry=build.telemetry(50, utilization=0.0, power_watts=20.0)),
        found("software_bound", says="CUDA build")),
    "two steps": (slower_than_promised(20 * NOISE[:2], {}, steps=2), unjudged("software_bound")),
    "nineteen steps": (slower_than_promised(20 * NOISE[:19], {}, steps=19), unjudged("software_bound")),
    "sixty steps": (slower_than_promised(20 * NOISE[:60], {}, steps=60), found("software_bound")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_found(name):
    made, *checks = CASES[name]
    verify(made, *checks)


def test_a_cpu_is_told_nothing_of_cuda():
    bound = next(one for one in judge(slower_than_promised(20 * NOISE, {}))[0] if one.code == "software_bound")
    assert not any("CUDA" in text for text in (*bound.actions, *bound.causes))


@pytest.mark.parametrize(("deadline", "raised", "most"), [
    (None, {}, 60 * 20.0), (1500.0, {}, 300.0), (1000.0, {}, 0.0),
    (1000.0, {"limit_seconds": 1800.0}, 600.0), (1000.0, {"limit_seconds": None}, 60 * 20.0),
])  # fmt: skip
def test_a_run_that_goes_on_saves_at_most_what_is_left_of_it_or_of_its_limit(deadline, raised, most):
    # 60 of 120 steps of 20 s, which should take 1 s
    case = slower_than_promised(20 * np.ones(60), {"planned_steps": 120, **raised}, steps=60)
    plan = SimpleNamespace(goal=Goal(gpu="cpu", deadline_seconds=deadline))
    case = dataclasses.replace(case, run=dataclasses.replace(case.run, status=Status.RUNNING), plan=plan)
    assert most_saved_seconds(case) == pytest.approx(most, abs=25)
    bound = next(one for one in judge(case)[0] if one.code == "software_bound")
    assert bound.saved_hours.high * 3600 <= most + 25


def test_read_from_the_own_log(tmp_path):
    header = {"kind": "header", "time": 1.7e9, "schema": 1, "attempt": 1, "device": {"type": "cpu"}, "config": None}
    records, now = [header | {"tokens_per_step": 100, "world_size": 1}], 1.7e9
    for step, seconds in zip(STEP.tolist(), FIVE.tolist(), strict=True):
        now += seconds
        records.append(
            {"kind": "step", "time": now, "step": step, "tokens": 100 * step, "loss": 5.0, "seconds": seconds}
        )
        if step % 10 == 0:
            kernel = {"reference_seconds": 0.06 if seconds > 1 else 0.006, "steal_fraction": 0.25}
            records.append({"kind": "witness", "time": now, "step": step, **kernel})
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    case = make_case(read_run(path, None))
    assert run_metrics.without_card(case)
    assert case.run.facts["stolen_share"] == 0.25 and len(case.run.facts["witness_steps"]) == 40
    codes = {finding.code for finding in judge(case)[0]}
    assert "machine_busy" in codes and not {"periodic_pauses", "goodput"} & codes
