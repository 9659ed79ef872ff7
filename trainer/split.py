"""Handles tensors whose rows are split over processes (DTensors of FSDP2): this process's rows, and the whole tensor.

Each of W processes holds ceil(rows / W) rows in the order of the ranks, the last ones fewer or none. Plain tensors are
whole everywhere. Attributes are tested, not types: importing torch's types takes seconds, and most runs have none.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def is_split(tensor: Tensor) -> bool:
    """Tell whether this process holds only some rows of a tensor."""
    return hasattr(tensor, "device_mesh")


def local_rows(tensor: Any) -> Tensor:
    """Return the rows in this process. They share the tensor's memory."""
    return tensor.to_local().detach() if is_split(tensor) else tensor.detach()


def first_row(tensor: Any) -> int:
    """Return the index in the whole tensor at which this process's rows begin."""
    if not is_split(tensor):
        return 0
    mesh = tensor.device_mesh
    each = -(-tensor.shape[0] // mesh.size())
    return min(mesh.get_local_rank() * each, tensor.shape[0])


def whole(tensor: Any) -> Tensor:
    """Return the whole tensor on every process. All processes must call this at the same time."""
    return tensor.full_tensor() if is_split(tensor) else tensor


def like(tensor: Any, rows: Tensor) -> Tensor:
    """Return the rows in this process as a tensor that is split like another one."""
    if not is_split(tensor):
        return rows
    return type(tensor.data).from_local(
        rows, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
