"""Savings of several findings without counting a second twice. Pure.

A run's seconds are of three kinds, and each finding says which it could save:

1. *Steps in vain*: a stretch of the run that should not have been done (divergence, overfitting, data repeated). Such
   stretches lie within each other, so the longest counts and the others count nothing.
2. *Seconds lost* of what is left: pauses, gaps, work done twice, other work on the machine. They lie side by side and
   are added.
3. *Slow steps* of what then is left: waiting for data, throttling, a small batch. Each shortens what the others leave.

Findings that see a whole (time beside the steps, steps slower than predicted) count only what the findings that see its
parts leave over. Interruptions that may come are no seconds of this run and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.findings.case import Case, Finding
from advisor.findings.run_facts import price
from advisor.findings.savings import stake_seconds
from advisor.records import Estimate, worst_basis

_IN_VAIN = frozenset((
    "overfitting", "memorised", "repeated_data", "token_budget", "worse_than_uniform", "random_tokens", "no_learning",
    "loss_scale_skips", "all_steps_skipped", "preference_at_chance", "plateau", "learning_rate_zero", "loss_spikes",
    "early_loss_jump", "loss_frozen", "loss_divergence", "loss_not_finite", "best_long_ago", "loss_zero", "reward_flat",
))  # fmt: skip
# of findings in one tuple that see the same seconds the larger counts
_LOST = (
    ("periodic_pauses", "checkpoints_too_frequent"), ("stalls", "long_epochs"), ("gaps_between_steps", "idle_device"),
    ("work_done_twice",), ("machine_busy",), ("step_time_shift", "drift"),
)  # fmt: skip
_BESIDE = ("goodput",)  # sees all of these but the last two
_WITHIN_BESIDE = ("periodic_pauses", "checkpoints_too_frequent", "stalls", "long_epochs",
                  "gaps_between_steps", "idle_device", "work_done_twice")  # fmt: skip
_SLOW = (("data_stall",), ("throttling", "clock_drop"), ("straggler",), ("bigger_batch",))
_WITHIN_SLOW = ("data_stall", "throttling", "clock_drop", "straggler")
_SLOWER = ("software_bound", "cpu_fallback")
EXPECTED = frozenset(("no_checkpoint", "checkpoints_too_rare"))  # interruptions that may come


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one finding adds to the total."""

    code: str
    hours: Estimate


@dataclass(frozen=True, kw_only=True)
class Savings:
    """What acting on all findings would save, each second counted once, to the finding that explains it best."""

    hours: Estimate  # never more than the whole run
    usd: Estimate | None  # None: price unknown
    parts: tuple[Part, ...]  # the largest first


def savings(case: Case, findings: Sequence[Finding], most_hours: float | None = None) -> Savings | None:
    """The total of all findings' savings; None where none is known or the length of the whole run is not.

    `most_hours`: a bound on the whole run known otherwise, such as its forecast.
    """
    whole = stake_seconds(case)
    claims: dict[str, Estimate] = {}
    for finding in findings:
        if finding.saved_hours is not None and finding.saved_hours.value > 0 and finding.code not in EXPECTED:
            claims[finding.code] = finding.saved_hours
    if whole is None or whole <= 0 or not claims:
        return None
    hours = min(whole / 3600, most_hours) if most_hours else whole / 3600
    ends = [_counted({code: getattr(claim, end) for code, claim in claims.items()}, hours) for end in _ENDS]
    parts = [_part(code, [end.get(code, 0.0) for end in ends], claims[code]) for code in ends[0]]
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


def _part(code: str, ends: Sequence[float], claim: Estimate) -> Part:
    value, low, high = ends
    return Part(code=code, hours=Estimate(value=value, low=min(low, value), high=max(high, value), basis=claim.basis))


def _counted(claims: Mapping[str, float], whole: float) -> dict[str, float]:
    """Hours by finding, none twice; their sum is at most `whole`."""
    shares = {code: min(1.0, max(0.0, hours / whole)) for code, hours in claims.items()}
    counted = dict.fromkeys(claims, 0.0)
    vain = [code for code in shares if code in _IN_VAIN or not _known(code)]
    left = 1.0
    if vain:
        longest = max(vain, key=lambda code: shares[code])
        counted[longest] = shares[longest]
        left -= shares[longest]
    after_vain = left
    for code in _largest(shares, _LOST):
        counted[code] = min(left, shares[code] * after_vain)
        left -= counted[code]
    left -= _rest(counted, shares, _BESIDE, _WITHIN_BESIDE, after_vain, left)
    after_lost = left
    for code in _largest(shares, _SLOW):
        counted[code] = shares[code] * left
        left -= counted[code]
    _rest(counted, shares, _SLOWER, _WITHIN_SLOW, after_lost, left)
    return {code: share * whole for code, share in counted.items()}


def _rest(counted: dict[str, float], shares: Mapping[str, float], wholes: Sequence[str], within: Sequence[str],
          of: float, left: float) -> float:  # fmt: skip
    """What a finding that sees a whole adds to its parts: counted, and given back as a share of the run."""
    claimed = [code for code in wholes if code in shares]
    if not claimed:
        return 0.0
    code = max(claimed, key=lambda finding: shares[finding])
    explained = sum(counted.get(finding, 0.0) for finding in within)
    counted[code] = min(left, max(0.0, shares[code] * of - explained))
    return counted[code]


def _largest(shares: Mapping[str, float], groups: Sequence[Sequence[str]]) -> list[str]:
    """Of each group the finding that saves most, in the groups' order."""
    claimed = [[code for code in group if code in shares] for group in groups]
    return [max(codes, key=lambda code: shares[code]) for codes in claimed if codes]


def _known(code: str) -> bool:
    groups = (*_LOST, *_SLOW, _BESIDE, _SLOWER, tuple(EXPECTED), tuple(_IN_VAIN))
    return any(code in group for group in groups)
