"""What the command line says of a device before it answers."""

from __future__ import annotations

from collections.abc import Iterable

from advisor.hardware.catalog import load_gpus
from advisor.report import render


def warn_of_others(keys: Iterable[str]) -> None:
    """Say of every card that is no CUDA card what a prediction for it can mean."""
    for key in keys:
        spec = load_gpus().get(key)
        if spec is not None and not spec.is_cuda:
            render.remark(
                f"warning: {key} is no CUDA GPU, and the trainer was run on no other: "
                "this supposes software there that is as good as on CUDA GPUs"
            )
