"""Out-of-memory messages of torch, JAX, C and the system: which sizes each one names."""

from __future__ import annotations

import re

# Every producer below counts in powers of 1024, also those that print "GB" or "G" (MPS, XLA): the letter decides.
_SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+) ?([KMGT]?)i?(?:B|bytes)?\b"

_SINGLE = {
    "requested_bytes": (
        rf"[Tt]ried to allocate {_SIZE}",
        rf"trying to allocate {_SIZE}",
        rf"Unable to allocate {_SIZE}",
        rf"allocating {_SIZE} for",
        rf"Used {_SIZE} of",
    ),
    "total_bytes": (
        rf"total capacity of {_SIZE}",
        rf"; {_SIZE} total capacity",
        rf"max allowed: {_SIZE}",
        rf"Used [\d.]+[KMGT]? of {_SIZE} hbm",
    ),
    "free_bytes": (rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
    "allocated_bytes": (
        rf"; {_SIZE} already allocated",
        rf"{_SIZE} is allocated by PyTorch",
        rf"MPS allocated: {_SIZE}",
    ),
    "reserved_bytes": (rf"; {_SIZE} reserved in total by PyTorch",),
    "unallocated_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
}
_SINGLE_PATTERNS = {name: [re.compile(text) for text in texts] for name, texts in _SINGLE.items()}
_GPU = re.compile(r"\(?GPU (\d+)")
_PROCESS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")


def memory_sizes(message: str) -> dict[str, float]:
    """The sizes that an out-of-memory message names, in bytes.

    Keys, each only where the message says so: `requested_bytes`, `free_bytes`, `total_bytes`, `allocated_bytes` (live
    tensors), `reserved_bytes` (held by the allocator), `unallocated_bytes` (reserved but not in use), `process_bytes`
    (this process with context), `other_processes` (a count) and `other_bytes` (held by them), `gpu` (an index).
    """
    sizes: dict[str, float] = {}
    for name, patterns in _SINGLE_PATTERNS.items():
        value = next((_bytes(match) for p in patterns if (match := p.search(message))), None)
        if value is not None:
            sizes[name] = value
    if "unallocated_bytes" in sizes and "allocated_bytes" in sizes:
        sizes["reserved_bytes"] = sizes["allocated_bytes"] + sizes["unallocated_bytes"]
    if match := _GPU.search(message):
        sizes["gpu"] = float(match[1])
    sizes.update(_other_processes(message, sizes))
    return sizes


def _bytes(match: re.Match[str]) -> float | None:
    try:
        return float(match[1]) * _SCALE[match[2]]
    except ValueError:  # "1.2.3" in a damaged line
        return None


def _other_processes(message: str, sizes: dict[str, float]) -> dict[str, float]:
    """Count and bytes of the other processes on the card.

    Inside a container torch cannot tell which of the listed processes is its own and names all of them: the smallest
    that can hold what this process reserved is taken to be it.
    """
    listed = sorted(size for match in _PROCESS.finditer(message) if (size := _bytes(match)) is not None)
    found: dict[str, float] = {}
    if listed and "process_bytes" not in sizes:
        own = next((size for size in listed if size >= sizes.get("reserved_bytes", 0.0)), listed[-1])
        listed.remove(own)
        found["process_bytes"] = own
    if listed:
        found.update(other_processes=float(len(listed)), other_bytes=sum(listed))
    return found
