"""The scoreboard of detectors: what is counted, what is listed as unjudged, when a finding is to be demoted."""

import sys
from pathlib import Path

from advisor.findings import registry
from advisor.findings.case import Confidence, Finding, Severity
from advisor.findings.registry import DEMOTED
from tests.advisor.findings import build

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import detectors  # noqa: E402


def finding(code: str, severity: Severity = Severity.WARNING) -> Finding:
    return Finding(code=code, severity=severity, title=code, evidence=(), confidence=Confidence.HIGH)


def log(file: str, *codes: str, unseen: bool = True, status: str = "unknown"):
    found = tuple(finding(code) for code in codes)
    return detectors.Log(collection="later", file=file, healthy=False, unseen=unseen, status=status, findings=found)


def judged(pairs: dict[tuple[str, str, str], str], *stated: tuple[str, str, frozenset[str], str]):
    return detectors.Judgements(pairs=pairs, built=frozenset(), stated=stated)


def test_a_finding_wrong_more_than_one_time_in_five_is_to_be_demoted():
    logs = [log(str(n), "stalls", "crashed") for n in range(5)]
    words = {("later", str(n), "stalls"): "wrong" if n < 2 else "right" for n in range(5)}
    words |= {("later", str(n), "crashed"): "wrong" if n < 1 else "right" for n in range(5)}
    rows = {line.split("`")[1]: line for line in detectors.page(logs, judged(words)).splitlines() if "| `" in line}
    assert "to be demoted" in rows["stalls"] and "| 0 / 3 | 0 / 2 |" in rows["stalls"]
    assert "to be demoted" not in rows["crashed"]  # one in five exactly


def test_a_pair_without_a_judgement_is_listed():
    page = detectors.page([log("a", "stalls", "drift")], judged({("later", "a", "drift"): "right"}))
    assert "- a: `stalls` (warning)" in page and "- a: `drift`" not in page


def test_stated_problems_are_named_by_any_of_their_findings_or_by_the_end():
    stated = (
        ("later", "a", frozenset(("crashed", "killed")), "it crashed"),
        ("later", "b", frozenset(("status:stopped",)), "it was stopped"),
        ("later", "c", frozenset(), "nothing names this"),
        ("elsewhere", "a", frozenset(("crashed",)), "of a collection that is not here"),
    )
    page = detectors.page([log("a", "killed"), log("b", status="stopped"), log("c")], judged({}, *stated))
    assert "`later`, unseen: 2 of 3 named" in page and "- c: nothing names this" in page


def test_the_judgements_are_well_formed():
    made = detectors.read_judgements()
    assert made.pairs and made.stated and made.built


def test_a_demoted_finding_is_a_note(monkeypatch):
    case = build.case(build.run(facts={"planned_steps": 800}, events=[build.event("restart")]))
    first = registry.judge(case)[0][0]
    assert first.severity is not Severity.NOTE
    monkeypatch.setitem(DEMOTED, first.code, "wrong 3 of 4 times")
    again = next(f for f in registry.judge(case)[0] if f.code == first.code)
    assert again.severity is Severity.NOTE
