"""Plans for two invented devices, a small CPU and a large GPU, as the tests of the planner ask for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from advisor.options import Goal
from advisor.planning.answer import bare_plan
from advisor.records import Plan
from tests.advisor.devices import big_gpu, small_cpu, token_meta
from trainer.token_folder import TokenMeta

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RENTED = 3.0  # dollars an hour
CPU, GPU = Goal(gpu="cpu"), Goal(gpu="h200-141gb-sxm")


def plan_cpu(data_meta=None, profile=None, **wishes) -> Plan:
    return bare_plan(replace(CPU, **wishes), profile or small_cpu(), now=NOW, data_meta=data_meta)


def plan_gpu(price: float | None = RENTED, profile=None, **wishes) -> Plan:
    return bare_plan(replace(GPU, usd_per_gpu_hour=price, **wishes), profile or big_gpu(), now=NOW)


def data_of(tokens: int, vocab_size: int = 4096) -> TokenMeta:
    return token_meta(tokens=tokens, validation_tokens=tokens // 20, vocab_size=vocab_size)
