"""Every detector by name, and the one function that asks them all."""

from __future__ import annotations

from collections.abc import Callable

from advisor.findings.case import Case, Confidence, Finding, Insufficient, Severity, Verdict

DETECTORS: tuple[Callable[[Case], Verdict], ...] = ()

_SEVERITIES, _CONFIDENCES = list(Severity), list(Confidence)


def judge(case: Case) -> tuple[list[Finding], list[Insufficient]]:
    """What all detectors say of a case: findings, the worst and dearest first, and what could not be judged."""
    verdicts = [detector(case) for detector in DETECTORS]
    findings = [v for v in verdicts if isinstance(v, Finding)]
    return sorted(findings, key=_order), [v for v in verdicts if isinstance(v, Insufficient)]


def _order(finding: Finding) -> tuple[int, float, float, int]:
    """Severity, then money, then hours, then confidence: what to read first."""
    usd = finding.saved_usd.value if finding.saved_usd else 0.0
    hours = finding.saved_hours.value if finding.saved_hours else 0.0
    return _SEVERITIES.index(finding.severity), -usd, -hours, _CONFIDENCES.index(finding.confidence)
