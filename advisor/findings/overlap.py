"""Total savings of several findings, in which no second counts twice.

A run's seconds are of three kinds, and each finding says which kind it could save:

1. *Steps in vain*: a stretch of the run that should not have been done (divergence, overfitting, data repeated). Such
   stretches overlap, so only the longest counts.
2. *Seconds lost* in the rest: pauses, gaps, work done twice, other work on the machine. They do not overlap and are
   added.
3. *Slow steps* in what then remains: waiting for data, throttling, a small batch. Each shortens what the others leave.

Some findings see a whole (time outside the steps, steps slower than predicted). They only count what the findings about
its parts do not explain. Possible future interruptions are not seconds of this run and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.findings.case import Case, Finding, groups
from advisor.findings.run_facts import price
from advisor.findings.savings import most_saved_seconds
from advisor.records import Estimate, worst_basis

EXPECTED = frozenset(("checkpoints_too_rare",))  # possible future interruptions


@dataclass(frozen=True, kw_only=True)
class SavingsPart:
    """What one finding adds to the total."""

    code: str
    hours: Estimate


@dataclass(frozen=True, kw_only=True)
class Savings:
    """The savings if the user acts on all findings. Each second counts once, for the finding that explains it best."""

    hours: Estimate  # at most the whole run
    usd: Estimate | None  # None: price unknown
    parts: tuple[SavingsPart, ...]  # the largest first


def savings(case: Case, findings: Sequence[Finding], most_hours: float | None = None) -> Savings | None:
    """Return the total of all findings' savings, or None if there are none or the whole run's length is unknown.

    `most_hours` is an upper bound on the whole run from elsewhere, such as its forecast.
    """
    whole = most_saved_seconds(case)
    claims: dict[str, Estimate] = {}
    for finding in findings:
        if finding.saved_hours is not None and finding.saved_hours.value > 0 and finding.code not in EXPECTED:
            claims[finding.code] = finding.saved_hours
    if whole is None or whole <= 0 or not claims:
        return None
    hours = min(whole / 3600, most_hours) if most_hours else whole / 3600
    ends = [_counted({code: getattr(claim, end) for code, claim in claims.items()}, hours) for end in _ENDS]
    parts = []
    for code in ends[0]:
        value, low, high = (end.get(code, 0.0) for end in ends)
        saved = Estimate(value=value, low=min(low, value), high=max(high, value), basis=claims[code].basis)
        parts.append(SavingsPart(code=code, hours=saved))
    value, low, high = (sum(end.values()) for end in ends)
    basis = worst_basis(*(part.hours.basis for part in parts))
    total = Estimate(value=value, low=min(low, value), high=max(high, value), basis=basis)
    usd = price(case)
    return Savings(
        hours=total,
        usd=total.scaled(usd) if usd is not None else None,
        parts=tuple(sorted(parts, key=lambda part: -part.hours.value)),
    )


_ENDS = ("value", "low", "high")


def _counted(claims: Mapping[str, float], whole: float) -> dict[str, float]:
    """Return the hours by finding, none counted twice; their sum is at most `whole`."""
    of = groups()
    shares = {code: min(1.0, max(0.0, hours / whole)) for code, hours in claims.items()}
    counted = dict.fromkeys(claims, 0.0)
    known = (*of["lost"], *of["slow"], of["beside"], of["slower"], EXPECTED)
    vain = [code for code in shares if code in of["in_vain"] or not any(code in group for group in known)]
    left = 1.0
    if vain:
        longest = max(vain, key=lambda code: shares[code])
        counted[longest] = shares[longest]
        left -= shares[longest]
    after_vain = left
    for code in _largest(shares, of["lost"]):
        counted[code] = min(left, shares[code] * after_vain)
        left -= counted[code]
    left -= _rest(counted, shares, of["beside"], of["within_beside"], after_vain, left)
    after_lost = left
    for code in _largest(shares, of["slow"]):
        counted[code] = shares[code] * left
        left -= counted[code]
    _rest(counted, shares, of["slower"], of["within_slow"], after_lost, left)
    return {code: share * whole for code, share in counted.items()}


def _rest(counted: dict[str, float], shares: Mapping[str, float], wholes: Sequence[str], within: Sequence[str],
          of: float, left: float) -> float:  # fmt: skip
    """Return what a finding about a whole adds to its parts, as a share of the run, and count it."""
    claimed = [code for code in wholes if code in shares]
    if not claimed:
        return 0.0
    code = max(claimed, key=lambda finding: shares[finding])
    explained = sum(counted.get(finding, 0.0) for finding in within)
    counted[code] = min(left, max(0.0, shares[code] * of - explained))
    return counted[code]


def _largest(shares: Mapping[str, float], groups: Sequence[Sequence[str]]) -> list[str]:
    """Return for each group the finding that saves most, in the groups' order."""
    claimed = [[code for code in group if code in shares] for group in groups]
    return [max(codes, key=lambda code: shares[code]) for codes in claimed if codes]
