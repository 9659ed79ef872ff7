"""How much faster a step is if only a part of the weights is trained.

Frozen blocks need no backward pass and no recomputation, so that 2 of their 6 passes remain (2 of 8 with
recomputation). Nobody has published measurements with and without frozen blocks.

With adapters, the backward pass computes the gradient of every matrix's input, but weight gradients only for the
adapters. 4 of 6 passes over the weights remain, or 6 of 8 with recomputation (sources §1.2, and Hu et al. 2021). The
formula gives 0.67 of the time where NeMo measured 0.58 to 0.65 (Llama 70B on H100, GB200 and GB300), and 0.75 where
torchtune measured 0.87 (3B on an A100, with recomputation).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.laws import flops
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.records import Workload

# Software that loops over experts waits for launches: about 10 for each expert and layer in a forward pass, of which
# one asks the GPU for the expert's tokens, and 20 in a backward pass, of 5 to 10 µs each and 20 µs for the question. So
# with LoRA on H200 30B-A3B takes 1.6 times as long as a dense 32B at micro-batches of 1,024 tokens, as long at 2,048.
# Measured was 1.6, at sizes that are not stated (github.com/hiyouga/LlamaFactory/issues/7921).
_LOOP_SECONDS, _LOOP_RECOMPUTED_SECONDS = 200e-6, 80e-6
NF4_BYTES = 0.5 + 4 / 64  # bytes of a 4-bit weight: 64 weights share a 32-bit scale (QLoRA, Dettmers et al. 2023, §3)
_DEVIATION = 0.12  # log standard deviation of the measurements around the formula
_EAGER_DEVIATION = 0.25  # the same for eager code, between runs of different owners (`benchmarks/adapters.py`)
_FROZEN_DEVIATION = 0.15  # our judgement, because nobody measured frozen blocks
# Converting one 4-bit weight to 16 bits moves this many bytes through memory. In theory it reads and writes 2.6 bytes.
# The extra time of a micro-batch corresponds to 5 (torchtune, 3B, A100) or 9 to 11 (bitsandbytes in LitGPT, 3B and 7B).
_UNPACKED_BYTES = 7.0
# Bytes of memory traffic, forward and backward, for each number that enters a matrix with an adapter, and for each
# number that leaves it. PEFT's fp32 adapters run as separate casts, products and sums. Counting these gives 30 and 60
# bytes; the level is fitted to the runs of seven owners (`benchmarks/adapters.py`).
_BYTES_IN, _BYTES_OUT = 75.0, 150.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """The time of a step divided by its time when all weights are trained, with its log standard deviation."""

    of_time: np.ndarray | float = 1.0
    deviation: float = 0.0


def share_of_a_step(a: WorkloadArrays) -> Share:
    """Return the share of a step's computing time that remains, shape (n,), or 1 if all weights are trained."""
    adapters = a.software.adapters if a.software is not None else None
    recomputed = 2.0 if a.activation_checkpointing == "full" else 0.0
    if adapters is None:
        through = a.trained_share
        if isinstance(through, float):
            return Share()
        return Share(of_time=(2.0 + (4.0 + recomputed) * through) / (6.0 + recomputed), deviation=_FROZEN_DEVIATION)
    trained = flops.adapter_parameters(a, adapters.rank, adapters.targets) / flops.matmul_parameters(a)
    deviation = _EAGER_DEVIATION if _unfused(a) else _DEVIATION
    return Share(of_time=(4.0 + recomputed + 6.0 * trained) / (6.0 + recomputed), deviation=deviation)


def forward_share(w: Workload) -> float:
    """Return the share of a step that a forward pass without gradients takes: 2 of 6 passes over the weights.

    With adapters it is 2 of 4. If the backward pass recomputes the forward pass, it is 2 of 8 or 6 (sources §1.2).
    """
    adapters = w.software.adapters if w.software is not None else None
    return 2 / ((6 if adapters is None else 4) + (2 if w.activation_checkpointing == "full" else 0))


def _unfused(a: WorkloadArrays) -> bool:
    """Return True if adapters run as separate operations, as in eager code without hand-written kernels."""
    return a.software is not None and not a.compile and not a.software.fused_kernels


def seconds_added(a: WorkloadArrays, spec: GpuSpec | None) -> tuple[np.ndarray | float, float]:
    """Return the seconds that adapters and loops over experts add to a micro-batch, shape (n,); 0 if there are none.

    The second value is what loops add once more at the high end of the time: they take up to twice as long.
    4-bit weights are converted to 16 bits. In eager code, the adapters' own operations also pass through memory.
    """
    if a.software is None:
        return 0.0, 0.0
    recomputed = a.activation_checkpointing == "full"
    looped = (_LOOP_SECONDS + (_LOOP_RECOMPUTED_SECONDS if recomputed else 0.0)) * a.software.looped_experts
    if spec is None:
        return 0.0, looped
    if (adapters := a.software.adapters) is None:
        return looped, looped
    moved = np.zeros(len(a.depth))
    if adapters.quantized:
        moved = (3.0 if recomputed else 2.0) * _UNPACKED_BYTES * (a.block_matrices + a.software.expert_parameters)
    if _unfused(a):
        entering, leaving = flops.adapted_widths(a, adapters.targets)
        passes = 4 / 3 if recomputed else 1.0
        moved = moved + passes * a.tokens * a.depth * (_BYTES_IN * entering + _BYTES_OUT * leaving)
    return looped + moved / spec.memory_bytes_per_second, looped
