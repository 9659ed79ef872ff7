"""The verdict on a calibration in words, the same for terminal and page. No arithmetic."""

from __future__ import annotations

from advisor.store.calibration import Quality, Verdict


def verdict(quality: Quality) -> str:
    """The verdict in few words, for a table."""
    return (
        f"{quality.verdict}, {quality.widening:g} × wider" if quality.verdict == Verdict.DOUBTFUL else quality.verdict
    )


def consequence(quality: Quality, device_key: str) -> str:
    """What predictions do with a calibration, why, and what to do about it."""
    again = f"repeat it with nothing else running: advisor calibrate --gpu {device_key}"
    if quality.verdict == Verdict.REJECTED:
        return f"rejected, no plan uses it: {quality.reason}; {again}"
    if quality.verdict == Verdict.DOUBTFUL:
        return f"doubtful, intervals of step times are widened {quality.widening:g} times: {quality.reason}; {again}"
    return f"good: {quality.reason}"
