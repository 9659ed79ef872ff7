"""Which device a command is about when the user does not say: found through the driver, without importing torch."""

from __future__ import annotations

import re

from advisor.catalog import find_gpu, require_gpu


def device_key(asked: str) -> str:
    """The key of the device meant by --gpu: a catalog key or alias, "cpu", or "auto".

    "auto" is the first card of this machine, else "cpu". A card the catalog does not know is called by its own name,
    as its calibration would be. Raises AdvisorError with close matches for a name that is nothing.
    """
    if asked == "cpu":
        return "cpu"
    if asked != "auto":
        return require_gpu(asked).key
    name = first_card()
    if name is None:
        return "cpu"
    spec = find_gpu(name)
    return spec.key if spec else re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def first_card() -> str | None:
    """The NVML name of the first NVIDIA card; None without a driver or a card."""
    import pynvml  # shared libraries are looked for only when the question is asked

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        if pynvml.nvmlDeviceGetCount() == 0:
            return None
        name = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    finally:
        pynvml.nvmlShutdown()
    return name.decode() if isinstance(name, bytes) else name
