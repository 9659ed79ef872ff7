"""Count the trained weights: all of them, those above frozen blocks, or adapters."""

from __future__ import annotations

import numpy as np

from advisor.laws import flops
from advisor.prediction.memory_terms import WorkloadArrays


def trained_parameters(a: WorkloadArrays) -> np.ndarray:
    """Return the number of trained parameters, shape (n,).

    If blocks are frozen, the embeddings are frozen too, and with them a tied head (gpt2).
    """
    if a.software is None:
        return a.parameters
    if (adapters := a.software.adapters) is not None:
        return flops.adapter_parameters(a, adapters.rank, adapters.targets)
    every = a.parameters + a.software.extra_parameters + a.software.expert_parameters
    if not a.software.frozen_blocks:
        return every
    return every - a.software.frozen_blocks * a.block_parameters - a.vocab_size * a.width


def trained_share(a: WorkloadArrays) -> np.ndarray | float:
    """Return the share of the blocks with a backward pass, shape (n,), or 1 if no block is frozen."""
    frozen = a.software.frozen_blocks if a.software is not None else 0
    return 1.0 - frozen / a.depth if frozen else 1.0
