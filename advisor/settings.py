"""One record for each optimizer, sharding and precision: its bytes, its FLOPs, and what it divides over GPUs.

A prediction asks these records and compares no names, so that another optimizer or sharding is one more record (and, to
be trained here, a change of the trainer).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """An optimizer that keeps fp32 moments of each weight."""

    name: str
    moments: int  # for each weight
    matrix_moments: int  # for each weight in the matrices of blocks
    # Each step orthogonalizes the matrices of blocks (Newton-Schulz, sources §1.2). If they are sharded, they are
    # gathered for it once more.
    orthogonalizes: bool = False
    workspace: str = ""  # section of profiles/memory.json with the bytes of its step beside the moments

    @property
    def saved_bytes(self) -> int:
        """Bytes of moments that a weight in the matrices of blocks has less than any other weight."""
        return 4 * (self.moments - self.matrix_moments)


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """What data-parallel GPUs divide among themselves."""

    name: str
    stage: int  # of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054)
    moments: bool = False  # optimizer's state
    gradients: bool = False
    weights: bool = False
    words: str = ""  # as published runs are listed
    published: str  # the name of the same effect on speed in published tables, which name stages 1 and 2 alike

    def shares(self, gpus: int) -> tuple[int, int, int]:
        """Return over how many GPUs weights, moments and gradients are divided."""
        return gpus if self.weights else 1, gpus if self.moments else 1, gpus if self.gradients else 1


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number format of products and activations of a run whose weights are fp32 or have fp32 masters."""

    name: str
    element_bytes: int
    casts: bool  # weights are cast for products


OPTIMIZERS = {
    one.name: one
    for one in (
        Optimizer(name="adamw", moments=2, matrix_moments=2),
        Optimizer(name="muon", moments=2, matrix_moments=1, orthogonalizes=True, workspace="muon"),
    )
}
SHARDINGS = {
    one.name: one
    for one in (
        Sharding(name="none", stage=0, published="none"),
        Sharding(name="optimizer", stage=1, moments=True, words="optimizer sharded", published="optimizer"),
        Sharding(name="gradients", stage=2, moments=True, gradients=True, words="optimizer and gradients sharded",
                 published="optimizer"),
        Sharding(name="full", stage=3, moments=True, gradients=True, weights=True, words="fully sharded",
                 published="full"),
    )
}  # fmt: skip
PRECISIONS = {
    one.name: one
    for one in (
        Precision(name="bf16", element_bytes=2, casts=True),
        Precision(name="fp16", element_bytes=2, casts=True),
        Precision(name="fp32", element_bytes=4, casts=False),
    )
}
