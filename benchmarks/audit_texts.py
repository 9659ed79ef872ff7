"""Compares an audit of texts with an auditor's: `python benchmarks/audit_texts.py FOLDER [--wrong]`.

FOLDER holds texts and a key.csv: file, line, claim, verdict (ok, wrong, does_not_follow, cannot_be_judged), reason with
arithmetic, severity, correct value. Claims are judged by hand, one by one. The score counts the wrong and unfounded
claims of high or medium severity that are named near their line, and the right claims that are accused. `--wrong` lists
them for each text. Without it only totals are printed, so that held-back texts can be scored without being opened.
"""

from __future__ import annotations

import argparse
import csv
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from advisor.auditing.audit import Judged
from advisor.auditing.verdict import Ruling
from advisor.errors import AdvisorError
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards

BAD = ("wrong", "does_not_follow")
GRAVE = ("high", "medium")
NEAR = 1  # lines
_QUOTED = 3  # words of a claim whose presence in a sentence is not a coincidence
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Key:
    """One claim of the key."""

    line: int
    claim: str
    verdict: str
    severity: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """One text: claims that should be named and were named, right claims, accused right claims, other accusations."""

    due: list[Key]
    named: list[Key]
    right: list[Key]
    accused: list[tuple[Key, Judged]]
    others: list[Judged]


def accusations(path: Path, store: Store) -> list[Judged]:
    """Return what the audit of a text calls wrong or unfounded."""
    try:
        (audit,) = audit_cards([path], store)
    except AdvisorError:
        return []
    return [j for j in audit.judged if j.judgement.ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)]


def score(keys: list[Key], accused: list[Judged]) -> Score:
    """Match each accusation with the key: by its line first, then by its numbers if the line has several claims."""
    named: set[int] = set()
    wronged: dict[int, Judged] = {}
    others = []
    for judged in accused:
        at = _matches(keys, judged)
        bad = [i for i in at if keys[i].verdict in BAD]
        if bad:
            named.update(bad)
        elif right := [i for i in at if keys[i].verdict == "ok" and keys[i].line == judged.claim.line]:
            wronged.update((i, judged) for i in right)
        else:
            others.append(judged)
    return Score(
        due=[k for k in keys if k.verdict in BAD and k.severity in GRAVE],
        named=[keys[i] for i in sorted(named) if keys[i].severity in GRAVE],
        right=[k for k in keys if k.verdict == "ok"],
        accused=[(keys[i], judged) for i, judged in wronged.items()],
        others=others,
    )


def _matches(keys: list[Key], judged: Judged) -> list[int]:
    """Return the claims that an accusation may be about: on its line or a neighbouring one, with the same numbers."""
    line = judged.claim.line or 0
    # a contradiction is on each of its lines
    lines = {line, *judged.claim.lines} if judged.claim.form == "agreement" else {line}
    own = [i for i, key in enumerate(keys) if key.line in lines]
    near = [i for i, key in enumerate(keys) if 0 < abs(key.line - line) <= NEAR]
    numbers = _numbers([str(judged.claim.get("value").text)]) if judged.claim.get("value") is not None else set()
    sharing = [i for i in own if numbers & _numbers([keys[i].claim])]
    if not sharing and not numbers & _numbers([judged.claim.text]):  # it accuses words, or a conclusion from them
        sharing = [i for i in own if len(_words(keys[i].claim).split()) >= _QUOTED and _is_quoted(keys[i], judged)]
    if len(own) > 1 and (numbers or sharing):
        own = sharing
    elif own and numbers and not sharing and all(keys[i].verdict == "ok" for i in own):
        own = []  # it accuses another number on that line
    return own + [i for i in near if keys[i].verdict in BAD and (not own or numbers & _numbers([keys[i].claim]))]


def _is_quoted(key: Key, judged: Judged) -> bool:
    """Return whether the accused sentence contains the words of a claim."""
    return _words(key.claim) in _words(judged.claim.text)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[\w.%-]+", text.lower().replace("×", "x")))


def _numbers(texts: Iterable[str]) -> set[float]:
    return {float(n.replace(",", "")) for text in texts for n in _NUMBER.findall(text)}


def read_key(folder: Path) -> dict[str, list[Key]]:
    """Return the key by file."""
    by_file: dict[str, list[Key]] = defaultdict(list)
    with (folder / "key.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            key = Key(line=int(row["line"]), claim=row["claim"], verdict=row["verdict"], severity=row["severity"])
            by_file[row["file"]].append(key)
    return by_file


def main() -> None:
    """Score a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wrong", action="store_true", help="list what was missed and accused, text by text")
    args = parser.parse_args()
    totals = [0] * 5
    shares: list[float] = []
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        for name, keys in sorted(read_key(args.folder).items()):
            if not (args.folder / name).is_file():
                continue
            one = score(keys, accusations(args.folder / name, store))
            parts = (one.due, one.named, one.right, one.accused, one.others)
            totals = [total + len(part) for total, part in zip(totals, parts, strict=True)]
            if one.due:
                shares.append(len(one.named) / len(one.due))
            if args.wrong:
                show(name, one)
    due, named, right, accused, others = totals
    print(f"wrong or unfounded, high or medium: {named} of {due} named ({named / max(1, due):.0%})")
    print(f"each text counted once: {sum(shares) / max(1, len(shares)):.0%} named, mean of {len(shares)} texts")
    print(f"right: {accused} of {right} accused ({accused / max(1, right):.1%}); {others} other accusations")


def show(name: str, one: Score) -> None:
    """Print what was named, missed and accused in a text."""
    print(f"{name}: {len(one.named)} of {len(one.due)} named, {len(one.accused)} of {len(one.right)} accused")
    for key in one.due:
        print(f"  {'named ' if key in one.named else 'MISSED'} {key.line}: {key.claim[:110]}")
    for key, judged in one.accused:
        print(f"  ACCUSED {key.line}: {key.claim[:80]} | {judged.judgement.so[:120]}")
    for judged in one.others:
        print(
            f"  other {judged.claim.line} [{judged.claim.kind}]: {judged.claim.text[:90]} | {judged.judgement.so[:110]}"
        )


if __name__ == "__main__":
    main()
