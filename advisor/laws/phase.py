"""Whether runs are in the same learning-rate phase: only then does a difference of their losses say anything.

A falling learning rate lowers the loss by itself, in proportion to the fall as a share of the peak and hardly by where
on the way down it happens: 0.12 to 0.14 nats for the whole peak, after some thousand steps, by two laws of annealing on
public curves of 100 M parameters (Tissue et al. 2024 and the Multi-Power Law of Luo et al. 2025, sources §4.5). So runs
compare by the difference of their shares, not by the ratio: 100 % against 80 % of the peak is worth 0.025 nats, 5 %
against 1 % only 0.005.
"""

from __future__ import annotations

from collections.abc import Sequence

# A twentieth of the peak is worth 0.007 nats, 0.01 where annealing brings most: what two seeds differ by.
SAME_PHASE = 0.05
_ROUNDING = 1e-9  # shares are quotients: 0.15 - 0.1 is a little more than 0.05


def same_phase(shares: Sequence[float | None]) -> bool:
    """Whether learning rates, as shares of their runs' peaks, are near enough for the losses to be compared.

    An unknown share (None) speaks neither for nor against.
    """
    seen = [share for share in shares if share is not None]
    return not seen or max(seen) - min(seen) <= SAME_PHASE + _ROUNDING


def phase_problem(shares: Sequence[float | None], names: Sequence[str] = ()) -> str | None:
    """Why losses at these shares of their peaks must not be compared, in words; None where they may.

    With `names`, one for each share, the words tell which run is where; without, how far apart they are.
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
