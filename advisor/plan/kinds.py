"""How a configuration may save memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a configuration saves memory. None: checkpointing as asked for, or as it was calibrated."""

    checkpointing: str | None
    sharding: str


# In the order in which they are taken where they are alike in size: what costs least first.
KINDS = tuple(
    Kind(checkpointing=c, sharding=s) for s in ("none", "optimizer", "full") for c in (None, "selective", "full")
)
