"""Profiles of invented devices for the tests of plan and review: real predictor, round numbers, no measurement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np

from advisor.hardware.catalog import require_gpu
from advisor.hardware.offers import Offer
from advisor.laws import flops
from advisor.options import Goal
from advisor.planning.answer import weigh
from advisor.planning.candidates import WIDEST_WINDOW, Device
from advisor.planning.choose import select
from advisor.planning.goal import make_brief
from advisor.planning.search_space import space_of
from advisor.prediction.intervals import EstimateArrays
from advisor.prediction.memory import MemoryParts
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.prior import measured_prior
from advisor.prediction.profile import Profile, RunCosts
from advisor.prediction.throughput import TERMS, Posterior, Rates, coordinates, sizes, terms
from advisor.records import Basis, Estimate, Plan, Workload
from trainer.schema import make_shape
from trainer.token_folder import TokenMeta


def around(value: float, relative: float, basis: Basis = Basis.MEASURED) -> Estimate:
    return Estimate(value=value, low=value * (1 - relative), high=value * (1 + relative), basis=basis)


@dataclass(frozen=True, kw_only=True)
class LinearMemory:
    """A memory model in closed form: 16 bytes per parameter and 68 per token, layer and unit of width."""

    context_bytes: float = 0.5e9
    observations: tuple = ()

    def is_published(self, a: WorkloadArrays) -> bool:
        return False

    def bases_many(self, a: WorkloadArrays) -> list[Basis]:
        return [Basis.PRIOR] * len(a.depth)

    def allocated_many(self, a: WorkloadArrays) -> EstimateArrays:
        per_token = 68 * a.depth * a.width
        if a.activation_checkpointing == "full":
            per_token = 68 * a.width + 2 * a.depth * a.width
        value = 16.0 * a.parameters + a.tokens * per_token
        return EstimateArrays(value=value, low=0.95 * value, high=1.05 * value)

    def breakdown(self, workload: Workload) -> MemoryParts:
        a = WorkloadArrays.of([workload])
        n = float(a.parameters[0])
        return MemoryParts(
            weights_bytes=4 * n, gradients_bytes=4 * n, gathered_bytes=0.0, optimizer_bytes=8 * n,
            activations_bytes=float(self.allocated_many(a).value[0]) - 16 * n, logits_bytes=0.0, overhead_bytes=0.0,
        )  # fmt: skip

    def reserved_many(self, a: WorkloadArrays) -> EstimateArrays:
        e = self.allocated_many(a)
        return EstimateArrays(value=1.1 * e.value, low=1.1 * e.low, high=1.1 * e.high)

    def device_total_many(self, a: WorkloadArrays) -> EstimateArrays:
        e, more = self.reserved_many(a), self.context_bytes
        return EstimateArrays(value=e.value + more, low=e.low + more, high=e.high + more)

    def allocated_bytes(self, workload: Workload) -> Estimate:
        shape = workload.shape
        per_token = 68 * shape.depth * shape.width
        if workload.activation_checkpointing == "full":
            per_token = 68 * shape.width + 2 * shape.depth * shape.width
        return around(16 * flops.parameters(shape) + workload.micro_tokens * per_token, 0.05, Basis.PRIOR)

    def reserved_bytes(self, workload: Workload) -> Estimate:
        return self.allocated_bytes(workload).scaled(1.1)

    def device_total_bytes(self, workload: Workload) -> Estimate:
        reserved, more = self.reserved_bytes(workload), self.context_bytes
        return Estimate(
            value=reserved.value + more, low=reserved.low + more, high=reserved.high + more, basis=reserved.basis
        )


def _posterior(rates: Rates, calibrated: list[Workload]) -> Posterior:
    theta = measured_prior().mean
    z = sizes(calibrated)
    seconds = terms(z, rates) * np.exp(theta)
    return Posterior(
        rates=rates,
        theta=theta,
        covariance=np.eye(len(TERMS)) * 0.03**2,
        discrepancy=0.03,
        drift=0.02,
        points=coordinates(z),
        gradients=seconds / seconds.sum(axis=1, keepdims=True),
        residuals=np.zeros(len(calibrated)),
        noise=np.full(len(calibrated), 0.02),
    )


def small_cpu(*, memory_bytes: int = 8 * 2**30, depths: tuple[int, ...] = (2, 4, 8)) -> Profile:
    """A CPU of 120 GFLOP/s, calibrated on nanochat shapes of 256 tokens and a vocabulary of 4,096."""
    shapes = [make_shape("nanochat", depth=depth, vocab_size=4096, seq_len=256) for depth in depths]
    bursts = [Workload(shape=s, micro_batch=b, gpu="cpu", precision="fp32") for s in shapes for b in (1, 4, 16)]
    return Profile(
        key="cpu",
        name="a small CPU",
        device_type="cpu",
        spec=None,
        device_memory_bytes=memory_bytes,
        posterior=_posterior(Rates(matmul_flops=1.2e11, bandwidth=1e10, launch_seconds=4e-6), bursts),
        memory=LinearMemory(),
        costs=RunCosts(
            startup_seconds=around(4.0, 0.2),
            build_seconds_per_parameter=5e-9,
            compile_seconds=around(0.0, 0.0),
            checkpoint_bytes_per_second=around(3e8, 0.3),
            forward_fraction=0.33,
        ),
        family="nanochat",
        seq_len=256,
        vocab_size=4096,
        precision="fp32",
        depths=depths,
        calibration_id="cpu-1",
        sources=("calibration cpu-1",),
        reference_seconds=0.010,
        drift_exponent=1.0,
    )


def big_gpu(key: str = "h200-141gb-sxm", *, memory_bytes: int | None = None) -> Profile:
    """A GPU of 700 TFLOP/s and 4 TB/s, calibrated on nanochat shapes of 2,048 tokens and a vocabulary of 65,536."""
    spec = require_gpu(key)
    shapes = [make_shape("nanochat", depth=depth, vocab_size=65536, seq_len=2048) for depth in (8, 12, 16)]
    bursts = [Workload(shape=s, micro_batch=b, gpu=key, compile=True) for s in shapes for b in (4, 16)]
    return Profile(
        key=key,
        name=key,
        device_type="cuda",
        spec=spec,
        device_memory_bytes=memory_bytes or spec.memory_bytes,
        posterior=_posterior(Rates(matmul_flops=7e14, bandwidth=4e12, launch_seconds=5e-6), bursts),
        memory=LinearMemory(),
        costs=RunCosts(
            startup_seconds=around(12.0, 0.3),
            build_seconds_per_parameter=2e-9,
            compile_seconds=around(30.0, 0.3),
            checkpoint_bytes_per_second=around(1e9, 0.3),
            forward_fraction=0.33,
        ),
        family="nanochat",
        seq_len=2048,
        vocab_size=65536,
        compile=True,
        depths=(8, 12, 16),
        calibration_id="h200-1",
        sources=("calibration h200-1",),
    )


def plan_on(offer: Offer, goal: Goal, profile: Profile, now: datetime) -> Plan:
    """The plan for a goal on one device at one price."""
    device = Device(profile=profile, brief=make_brief(goal, profile, None, offer), offers=(offer,))
    space = space_of(goal, [device], (), WIDEST_WINDOW)
    chosen = select(space, space.limits, spot=True)
    assert chosen is not None
    return weigh(space, chosen, now)


def token_meta(
    *, tokens: int, vocab_size: int, validation_tokens: int, validation_bytes: int | None = None
) -> TokenMeta:
    """The metadata of a token folder of 4 bytes a token."""
    return TokenMeta(
        schema=1,
        created="2026-11-21T00:00:00+00:00",
        vocab_size=vocab_size,
        dtype="uint16" if vocab_size <= 65536 else "uint32",
        end_of_text=0,
        documents=1,
        bytes=4 * tokens,
        tokens=tokens,
        validation_tokens=validation_tokens,
        validation_bytes=4 * validation_tokens if validation_bytes is None else validation_bytes,
        bytes_per_token=4.0,
        sources=("corpus",),
        skipped=(),
        fingerprint="0",
    )
