"""A made-up healthy run on one A100, and a way to ask one question of it."""

from __future__ import annotations

from typing import Any

from advisor.auditing.audit import JudgedClaim, audit
from advisor.auditing.card import CardSetup
from advisor.auditing.load import card_from_dict
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.prediction.profile import Profile
from advisor.prediction.uncalibrated import prior_profile

# 70,371,840 parameters: 32,000·640 + 1024·640 + 10·(12·640² + 13·640) + 2·640.
# 496,435,200 FLOP a token: 6·(10·12·640² + 32,000·640) + 12·10·640·1024.
# 65,536 tokens a step in 0.30 s: 218,453 tok/s, 34.8 % of 312 TFLOP/s.
RUN = {
    "family": "gpt2",
    "tied_head": True,
    "depth": 10,
    "width": 640,
    "heads": 10,
    "vocab_size": 32000,
    "seq_len": 1024,
    "micro_batch": 16,
    "grad_accum": 4,
    "gpu": "a100-80gb-sxm",
    "precision": "bf16",
    "compile": True,
    "tf32": True,
    "learning_rate": 6e-4,
    "min_learning_rate": 6e-5,
    "warmup_steps": 500,
    "schedule": "cosine",
    "grad_clip": 1.0,
    "steps": 20000,
    "steps_done": 10000,
    "step_time": "0.30 s",
    "memory_used": "14.0 GB",
    "utilization": "99 %",
    "power": "360 W",
    "price": "$2.00/h",
    "dataset": "6.0 GB",
    "elapsed": "50 min",
}
OTHERS = [
    {"name": "wide", "width": 1280, "heads": 20, "step_time": "0.90 s", "steps": 20000},
    {"name": "huge", "depth": 80, "width": 8192, "heads": 64, "micro_batch": 64},
]
ROWS = {
    "columns": ["step", "loss", "grad_norm", "seconds", "learning_rate"],
    "values": [
        [1, 10.41, 2.0, 9.0, 1.2e-6],
        [100, 7.20, 1.2, 0.31, 1.2e-4],
        [1000, 4.90, 0.5, 0.30, 6.0e-4],
        [3000, 4.10, 0.4, 0.30, 5.8e-4],
        [5000, 3.80, 0.4, 0.30, 5.3e-4],
        [7000, 3.70, 0.4, 0.29, 4.6e-4],
        [9000, 3.60, 0.4, 0.30, 3.7e-4],
        [10000, 3.55, 0.4, 0.30, 3.2e-4],
    ],
}
TIMING = {"forward": "90 ms", "backward": "185 ms", "optimizer": "4 ms", "data": "2 ms", "total": "300 ms"}


def believe(spec: GpuSpec, setup: CardSetup) -> Profile | None:
    """The prior alone, whatever is calibrated on this machine."""
    try:
        return prior_profile(spec, precision=setup.precision, compile=bool(setup.compile))
    except AdvisorError:
        return None


def ask(
    kind: str, *, run: dict[str, Any] | None = None, card: dict[str, Any] | None = None, **fields: Any
) -> JudgedClaim:
    """The judgement of one claim about the made-up run, changed by `run` and `card`."""
    return judge({"id": "claim", "kind": kind, "text": "a claim", **fields}, run=run, card=card)[0]


def judge(
    *claims: dict[str, Any], run: dict[str, Any] | None = None, card: dict[str, Any] | None = None
) -> tuple[JudgedClaim, ...]:
    """The judgements of claims about the made-up run, in their order."""
    raw = {
        "schema": 1,
        "id": "made-up",
        "title": "a made-up run",
        "run": {k: v for k, v in {**RUN, **(run or {})}.items() if v is not None},
        "others": OTHERS,
        "rows": ROWS,
        "timing": TIMING,
        **(card or {}),
        "claims": list(claims),
    }
    problems: list[str] = []
    made = card_from_dict(raw, problems)
    assert made is not None, problems
    return audit(made, believe).judged
