"""Which weights are trained: all, those above frozen blocks, or adapters beside all of them. Numpy only."""

from __future__ import annotations

import numpy as np

from advisor.laws import flops
from advisor.prediction.memory_terms import WorkloadArrays


def trained_parameters(a: WorkloadArrays) -> np.ndarray:
    """What the optimizer updates and several devices exchange the gradients of, shape (n,).

    Under frozen blocks the embeddings are frozen too; a tied head (gpt2) is the embeddings, and frozen with them.
    """
    if a.software is None:
        return a.parameters
    if (adapters := a.software.adapters) is not None:
        return flops.adapter_parameters(a, adapters.rank, adapters.targets)
    every = a.parameters + a.software.extra_parameters
    if not a.software.frozen_blocks:
        return every
    return every - a.software.frozen_blocks * a.block_parameters - a.vocab_size * a.width


def trained_share(a: WorkloadArrays) -> np.ndarray | float:
    """The share of the blocks that a backward pass goes through, shape (n,); 1 where none is frozen."""
    frozen = a.software.frozen_blocks if a.software is not None else 0
    return 1.0 - frozen / a.depth if frozen else 1.0
