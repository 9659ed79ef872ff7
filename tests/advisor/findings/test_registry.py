"""All detectors together: complete, quiet on a healthy run, in order, never a crash; and how much could be judged."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import advisor.findings.detectors
from advisor.findings import registry
from advisor.findings.case import Case, Finding, Insufficient, Severity, texts
from advisor.findings.forecast import Targets, forecast
from advisor.findings.registry import DETECTORS, coverage, judge
from advisor.readers.run_table import Event, RunTable, Status, names_of
from tests.advisor.findings import build
from tests.advisor.findings.build_learning import learning_case, learning_run


def test_every_detector_is_asked_once():
    folder = Path(advisor.findings.detectors.__path__[0])
    written = "".join(file.read_text(encoding="utf-8") for file in folder.glob("*.py")).count("\ndef detect_")
    assert len(set(registry.DETECTORS)) == len(registry.DETECTORS) == written


def test_every_row_of_words_is_of_a_finding():
    folder = Path(advisor.findings.detectors.__path__[0])
    files = [*folder.glob("*.py"), *folder.parent.glob("traces/*.py")]
    sources = "".join(file.read_text(encoding="utf-8") for file in files)
    assert [name for name in texts() if f'"{name}"' not in sources] == []


def test_a_healthy_run_has_no_error_and_no_warning():
    telemetry = build.telemetry(900)
    table = build.healthy(unix_seconds=None, telemetry=telemetry, memory_bytes=60e9)
    findings, _ = registry.judge(build.case(table))
    assert [f.code for f in findings if f.severity is not Severity.NOTE] == []
    assert not {f.code for f in registry.judge(learning_case())[0]} - {"cost"}


def test_worst_and_dearest_first():
    seconds = np.where(np.arange(1, 401) % 50 == 0, 30.0, 2.6)
    table = build.healthy(seconds=seconds, optimizer_seconds=1e-5, data_seconds=0.5)
    findings, _ = registry.judge(build.case(table))
    ranks = [list(Severity).index(f.severity) for f in findings]
    assert ranks == sorted(ranks) and {"optimizer_floor", "data_stall"} <= {f.code for f in findings}
    warnings_ = [f.saved_usd.value if f.saved_usd else 0 for f in findings if f.severity is Severity.WARNING]
    assert warnings_ == sorted(warnings_, reverse=True)


def test_doubts_about_the_result_come_before_what_would_save_time():
    rows = 600
    low = 2.1 + 1.98 * np.exp(-np.arange(rows) / 60) + 0.01 * np.random.default_rng(2).standard_normal(rows)
    slow = np.where(np.arange(1, rows + 1) % 50 == 0, 30.0, 2.6)
    table = build.run(steps=rows, loss=low, seconds=slow, facts={"vocab_size": 50257})
    findings, _ = registry.judge(Case(run=table, usd_per_hour=2.0))
    codes = [f.code for f in findings]
    assert codes[0] == "initial_loss_low" and findings[1].saved_usd.value > 0, codes
    fresh = learning_run()
    assert "initial_loss_low" not in {f.code for f in registry.judge(Case(run=fresh))[0]}


values = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 1.0, -1.0, float("nan"), 1e-300, 1e300]),
)


FACTS = ("planned_steps", "step_tokens", "world_size", "total_seconds", "gpu_memory_bytes", "eval_every_steps",
         "usd_per_hour", "precision", "optimizer", "vocab_size", "checkpoint_every_steps", "seq_len", "parameters",
         "micro_batch", "dataset_tokens", "grad_clip", "learning_rate", "warmup_steps", "schedule")  # fmt: skip


@st.composite
def tables(draw):
    rows = draw(st.integers(0, 80))
    names = draw(st.lists(st.sampled_from(sorted(names_of("columns"))), unique=True, max_size=12))
    seed = draw(st.integers(0, 2**31))
    random = np.random.default_rng(seed)
    columns = {}
    for name in names:
        kind = draw(st.sampled_from(["constant", "noise", "count", "holes"]))
        base = {
            "constant": np.full(rows, draw(values)),
            "noise": np.exp(random.standard_normal(rows) * draw(st.sampled_from([0.01, 1, 50]))),
            "count": np.arange(rows, dtype=float) * draw(st.sampled_from([1.0, -1.0, 1e9])),
            "holes": np.where(random.random(rows) < 0.5, np.nan, random.standard_normal(rows)),
        }
        columns[name] = base[kind]
    facts = {
        name: draw(values | st.integers(-3, 10**7) | st.sampled_from(["auto", "cosine", "x"]) | st.none())
        for name in draw(st.lists(st.sampled_from(FACTS), unique=True))
    }
    status = draw(st.sampled_from(list(Status)))
    kinds = ["out_of_memory", "nccl_timeout", "time_limit", "exception", "restart", "checkpoint", "killed", "signal"]
    events = tuple(
        Event(kind=draw(st.sampled_from(kinds)), text="x", step=draw(st.none() | values), numbers={"signal": 9.0})
        for _ in range(draw(st.integers(0, 3)))
    )
    telemetry = build.telemetry(draw(st.integers(0, 30)), utilization=draw(values)) if draw(st.booleans()) else None
    return RunTable(
        source="", format="", framework=None, columns=columns, provenance={}, facts=facts, events=events,
        status=status, telemetry=telemetry, rows=rows,
    )  # fmt: skip


known_case = functools.cache(build.case)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tables(), st.booleans())
def test_no_run_makes_a_detector_fail(table, known):
    case = dataclasses.replace(known_case(), run=table) if known else Case(run=table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(all="ignore"):
            for detector in registry.DETECTORS:
                verdict = detector(case)
                assert verdict is None or isinstance(verdict, Finding | Insufficient)
                if isinstance(verdict, Finding) and verdict.saved_hours:
                    assert verdict.saved_hours.low <= verdict.saved_hours.high
            forecast(case, Targets(final_loss=3.0, usd=1.0, hours=1.0))


def test_a_pace_that_rounds_to_nothing_is_not_known():
    absurd = build.run(seconds=np.full(400, 1e27), facts={"step_tokens": 1e-300})
    _, insufficient = registry.judge(dataclasses.replace(build.case(), run=absurd))
    assert {"software_bound", "cpu_fallback"} <= {one.code for one in insufficient}


def test_ranks_that_interleave_are_read_as_one_curve():
    table = learning_run(2000)
    double = {name: np.repeat(values, 2) for name, values in table.columns.items()}
    double["rank"] = np.tile([0.0, 1.0], 2000)
    double["loss"] = double["loss"] + np.where(double["rank"] == 1, 5.0, 0.0)
    both = dataclasses.replace(table, columns=double, phases=())
    assert not [v for d in registry.LEARNING if isinstance(v := d(learning_case(both)), Finding)]


# what the program's own words alone decide, which a log of words has
BY_WORDS = {"detect_out_of_memory", "detect_nccl_timeout", "detect_time_limit", "detect_exception",
            "detect_killed"}  # fmt: skip
ONE_DEVICE = {"detect_straggler"}  # nothing says that there were several


def empty(format_: str) -> Case:
    return Case(run=RunTable(source="x", format=format_, framework=None, columns={}, provenance={}))


def test_of_nothing_nothing_is_judged():
    assert {d.__name__ for d in DETECTORS if d(empty("csv")) is None} <= ONE_DEVICE
    assert {d.__name__ for d in DETECTORS if d(empty("generic")) is None} <= BY_WORDS | ONE_DEVICE


def test_what_is_lacking_is_named_and_counted():
    seen = coverage(empty("csv"), judge(empty("csv"))[1])
    assert seen.possible <= 1 and seen.checks == len(DETECTORS)
    assert seen.lacking[:3] == ("the training loss of each step", "step times", "the GPU's name")
    full = build.case()
    more = coverage(full, judge(full)[1])
    assert more.possible > 30 and "step times" not in more.lacking and "the GPU's name" not in more.lacking


def test_a_finding_is_a_check_that_was_possible():
    broken = build.case(build.run(loss_is_nan=1.0))
    findings, missing = judge(broken)
    assert all(isinstance(f, Finding) for f in findings)
    assert coverage(broken, missing).possible == len(DETECTORS) - len(missing)
