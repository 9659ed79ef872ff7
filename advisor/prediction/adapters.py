"""What training a part of the weights takes of the time that training all of them does. Numpy only.

Below frozen blocks no backward pass goes, and none of them is computed again: of a block's 2 + 4 passes, 8 with
recomputation, 2 are left. Nobody has published a pair of that.

With adapters forward is the same; backward passes through every matrix for its input's gradient, and makes a weight's
gradient of the adapters alone: of 2 + 2 + 2 passes over the weights 4 are left, of 8 with recomputation 6 (sources
§1.2, and Hu et al. 2021). Measured pairs of one set-up with and without adapters are 0.58 to 0.65 of the time where it
says 0.67 (NeMo, Llama 70B on H100, GB200 and GB300) and 0.87 where it says 0.75 (torchtune, 3B on an A100, recomputed).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.laws import flops
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.trained import trained_share

_DEVIATION = 0.12  # of the log, between those pairs and the count of passes
_FROZEN_DEVIATION = 0.15  # judged: of frozen blocks there are no pairs
# Bytes through memory for each weight of 4 bits whenever it is made 16-bit again: 2.6 are read and written. Measured
# were 5 (torchtune, 3B, A100) and 9 to 11 (bitsandbytes in LitGPT, 3B and 7B) by what a micro-batch took longer
_UNPACKED_BYTES = 7.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """Of the time of training everything; `deviation`: of its log."""

    of_time: np.ndarray | float = 1.0
    deviation: float = 0.0


def share_of_a_step(a: WorkloadArrays) -> Share:
    """The share of a step's computing time that is left, shape (n,); 1 where all weights are trained."""
    adapters = a.software.adapters if a.software is not None else None
    again = 2.0 if a.activation_checkpointing == "full" else 0.0
    if adapters is None:
        through = trained_share(a)
        if isinstance(through, float):
            return Share()
        return Share(of_time=(2.0 + (4.0 + again) * through) / (6.0 + again), deviation=_FROZEN_DEVIATION)
    trained = flops.adapter_parameters(a, adapters.rank, adapters.targets) / flops.matmul_parameters(a)
    return Share(of_time=(4.0 + again + 6.0 * trained) / (6.0 + again), deviation=_DEVIATION)


def unpacking_seconds(a: WorkloadArrays, spec: GpuSpec | None) -> np.ndarray | float:
    """Seconds that a micro-batch spends making 16-bit weights of 4-bit ones, shape (n,); 0 without such."""
    adapters = a.software.adapters if a.software is not None else None
    if adapters is None or not adapters.quantized or spec is None:
        return 0.0
    passes = 3.0 if a.activation_checkpointing == "full" else 2.0
    return passes * _UNPACKED_BYTES * a.block_matrices / spec.memory_bytes_per_second
