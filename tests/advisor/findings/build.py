"""Synthetic runs for the tests of detectors: a healthy one, to which each test does one thing wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from advisor.findings.case import Case, Finding
from advisor.findings.registry import judge
from advisor.hardware.catalog import require_gpu
from advisor.prediction.batch import predict_batch
from advisor.prediction.profile import Profile
from advisor.prediction.uncalibrated import prior_profile
from advisor.readers.run_table import Event, Phase, RunTable, Status, names_of
from advisor.records import Prediction, Workload
from trainer.schema import ModelShape, make_shape


def shape(family: str = "gpt2", depth: int = 12, vocab_size: int = 50257, seq_len: int = 1024) -> ModelShape:
    return make_shape(family, depth=depth, vocab_size=vocab_size, seq_len=seq_len)


def workload(**changes: Any) -> Workload:
    """GPT-2 124M on one A100 80 GB: 32 sequences of 1,024, accumulated 16 times: 524,288 tokens per step."""
    made = Workload(shape=shape(), micro_batch=32, grad_accum=16, gpu="a100-80gb-sxm", precision="bf16", compile=True)
    return dataclasses.replace(made, **changes)


def run(*, steps: int = 400, facts: dict[str, Any] | None = None, noise: float = 0.01, **columns: Any) -> RunTable:
    """A finished run of `steps` steps of one second, its loss falling; every keyword that is a column sets it.

    `events`, `status`, `telemetry`, `phases`, `status_reason` may be given too.
    """
    random = np.random.default_rng(7)
    step = np.arange(1, steps + 1, dtype=float)
    seconds = 1.0 + noise * random.standard_normal(steps)
    values = {
        "step": step,
        "loss": 3.0 + 7.8 * (step + 5.0) ** -0.35 + 0.02 * random.standard_normal(steps),
        "seconds": seconds,
    }
    other = {name: columns.pop(name) for name in list(columns) if name not in names_of("columns")}
    values |= {name: np.broadcast_to(np.asarray(value, dtype=float), (steps,)) for name, value in columns.items()}
    loss = values.get("loss")
    return RunTable(
        source="synthetic",
        format="synthetic",
        framework=other.pop("framework", None),
        columns={name: np.array(value) for name, value in values.items() if value is not None},
        provenance={name: "made for a test" for name in values},
        phases=other.pop("phases", (Phase(name="train", first_row=0, last_row=steps - 1),)),
        facts={"planned_steps": steps, **(facts or {})},
        events=tuple(other.pop("events", ())),
        status=other.pop("status", Status.COMPLETED),
        rows=steps,
        first_step=float(values["step"][0]) if steps else None,
        last_step=float(values["step"][-1]) if steps else None,
        first_loss=float(loss[0]) if steps and loss is not None else None,
        last_loss=float(loss[-1]) if steps and loss is not None else None,
        **other,
    )


def without(table: RunTable, *names: str) -> RunTable:
    """The run as if these columns had never been logged."""
    kept = {name: values for name, values in table.columns.items() if name not in names}
    return dataclasses.replace(table, columns=kept)


def telemetry(readings: int = 600, *, gpus: int = 1, hz: float = 1.0, **columns: Any) -> dict[str, np.ndarray]:
    """Readings of busy cards: 350 W, 95 % busy, 60 of 80 GB, 65 °C, 1,410 MHz, no throttling."""
    values = {
        "unix_seconds": np.repeat(np.arange(readings) / hz, gpus),
        "gpu": np.tile(np.arange(gpus, dtype=float), readings),
        "power_watts": 350.0,
        "utilization": 0.95,
        "memory_utilization": 0.5,
        "memory_used_bytes": 60e9,
        "memory_total_bytes": 85.9e9,
        "temperature_celsius": 65.0,
        "sm_clock_mhz": 1410.0,
        "throttle_reasons": 0.0,
        **columns,
    }
    assert set(values) <= set(names_of("telemetry"))
    shape_ = (readings * gpus,)
    return {k: np.array(np.broadcast_to(np.asarray(v, float), shape_)) for k, v in values.items() if v is not None}


def profile(key: str = "a100-80gb-sxm", **options: Any) -> Profile:
    """What is believed of a card that nobody has calibrated."""
    return prior_profile(require_gpu(key), **options)


def expected(w: Workload, p: Profile | None = None) -> Prediction:
    return predict_batch(p or profile(w.gpu, precision=w.precision, compile=w.compile), [w])[0]


def case(table: RunTable | None = None, w: Workload | None = None, **other: Any) -> Case:
    """A case with everything known: workload, prior profile, prediction and $2 per hour."""
    w = w or workload()
    card = None if w.gpu == "cpu" else profile(w.gpu, precision=w.precision, compile=w.compile)
    known = {"profile": card, "usd_per_hour": 2.0, **other}
    return Case(
        run=table if table is not None else healthy(w),
        workload=w,
        expected=predict_batch(known["profile"], [w])[0] if known["profile"] else None,
        **known,
    )


def healthy(w: Workload | None = None, **changes: Any) -> RunTable:
    """A run of this workload that goes as fast as predicted, with a spread of 1 %."""
    w = w or workload()
    promised = expected(w).step_seconds
    assert promised is not None
    steps = changes.pop("steps", 400)
    random = np.random.default_rng(11)
    seconds = changes.pop("seconds", promised.value * (1 + 0.01 * random.standard_normal(steps)))
    facts = {"step_tokens": w.step_tokens, "world_size": w.gpus, **changes.pop("facts", {})}
    return run(steps=steps, seconds=seconds, facts=facts, **changes)


def event(kind: str, text: str = "", step: float | None = None, **numbers: float) -> Event:
    return Event(kind=kind, text=text or kind, step=step, numbers=numbers)


Check = Callable[[dict[str, Finding], set[str]], None]  # by findings and by what could not be judged


def found(
    code: str, severity: str = "", *title: str, says: tuple[str, ...] | str = (), hours: Any = None, usd: Any = None,
    steps: tuple[float | None, float | None] | None = None, starts: str = "",
) -> Check:  # fmt: skip
    """Asserts a finding: words of its title and of its other sentences, what it saves, the steps of its evidence."""

    def check(findings: dict[str, Finding], _: set[str]) -> None:
        one = findings.get(code)
        assert one is not None, f"no {code} among {sorted(findings)}"
        assert severity in ("", one.severity), f"{code} is of severity {one.severity}: {one.title}"
        assert one.title.startswith(starts) and all(words in one.title for words in title), one.title
        rest = " / ".join(
            [*(part.text for part in one.evidence), *one.causes, *one.actions, f"confidence: {one.confidence}"]
        )
        assert all(words in rest for words in ((says,) if isinstance(says, str) else says)), rest
        for wanted, saved in ((hours, one.saved_hours), (usd, one.saved_usd)):
            assert wanted is None or (saved is None if wanted == "none" else saved.value == wanted), saved
        assert steps is None or (one.evidence[0].first_step, one.evidence[0].last_step) == steps, one.evidence

    return check


def silent(*codes: str) -> Check:
    """Asserts that these detectors judged, and found nothing."""

    def check(findings: dict[str, Finding], missing: set[str]) -> None:
        assert not set(codes) & (findings.keys() | missing), [findings.get(code, "not judged") for code in codes]

    return check


def unjudged(*codes: str) -> Check:
    """Asserts that these detectors say what they lack."""

    def check(findings: dict[str, Finding], missing: set[str]) -> None:
        assert missing >= set(codes) and not findings.keys() & set(codes), (sorted(missing), sorted(findings))

    return check


def verify(made: Case, *checks: Check) -> None:
    """Judges a case and asserts what is found."""
    findings, missing = judge(made)
    for check in checks:
        check({one.code: one for one in findings}, {one.code for one in missing})
