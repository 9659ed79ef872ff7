"""Check that runs are in the same phase of their learning-rate schedule. Only then are their losses comparable.

A lower learning rate lowers the loss in proportion to the decrease as a share of the peak, by 0.12 to 0.14 nats for the
whole peak. This holds for two laws of annealing on public curves of 100 M parameters (Tissue et al. 2024 and the
Multi-Power Law of Luo et al. 2025, sources §4.5). Phases are therefore compared by the difference of the shares and not
by their ratio: 100 % against 80 % of the peak makes 0.025 nats, 5 % against 1 % only 0.005.
"""

from __future__ import annotations

from collections.abc import Sequence

# A twentieth of the peak changes the loss by 0.007 nats, at most 0.01. Two seeds differ by as much.
SAME_PHASE = 0.05
_ROUNDING = 1e-9  # in floating point, 0.15 - 0.1 is slightly more than 0.05


def same_phase(shares: Sequence[float | None]) -> bool:
    """Return True if learning rates, as shares of their peaks, are close enough to compare losses; None is ignored."""
    seen = [share for share in shares if share is not None]
    return not seen or max(seen) - min(seen) <= SAME_PHASE + _ROUNDING


def phase_problem(shares: Sequence[float | None], names: Sequence[str] = ()) -> str | None:
    """Return the reason why losses at these shares of the peak cannot be compared, or None if they can.

    With `names`, the text gives the share of each run, otherwise the smallest and the largest share.
    """
    if same_phase(shares):
        return None
    seen = [share for share in shares if share is not None]
    if names:
        each = (f"{name} at {_percent(share)}" for name, share in zip(names, shares, strict=True) if share is not None)
        return f"not in the same learning-rate phase: {', '.join(each)} of the peak"
    return (
        f"not in the same learning-rate phase: learning rates at {_percent(min(seen))} and {_percent(max(seen))} "
        "of their peaks"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
