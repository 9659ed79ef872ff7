"""Scores an assistant with this program by a key: `python benchmarks/audit_reader.py ANSWERS TEXTS [--wrong]`.

TEXTS holds texts and a key.csv: file, line, claim, verdict (ok, wrong, does_not_follow, cannot_be_judged), reason with
arithmetic, severity, correct value. Claims are judged by hand, one by one. ANSWERS holds, as NAME.json, an assistant's
answer to `advisor audit --schema NAME.md` for each text NAME.md. No assistant is asked here, so the scores can be
reproduced at any time.

Three rows are printed. *The program* counts only the program's verdicts. *The program or the assistant* adds what the
assistant calls wrong or unfounded, unless the program finds it right. *The assistant alone* counts its opinions. Each
row says how many wrong claims of high or medium severity are found, and how many right claims are accused.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from advisor.assistant import json_in
from advisor.auditing.audit import JudgedClaim, objects
from advisor.auditing.card import Claim
from advisor.auditing.verdict import BAD, Judgement, Ruling
from advisor.errors import AdvisorError
from advisor.readers.chunks import read_text
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards

SHARED = Path(__file__).parent.parent.parent / "shared" / "audit"
BAD_IN_KEY = ("wrong", "does_not_follow")
GRAVE = ("high", "medium")
NEAR = 1  # lines
_QUOTED = 3  # words of a claim whose presence in a sentence is not a coincidence
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
ROWS = ("the program", "the program or the assistant", "the assistant alone")


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
    accused: list[tuple[Key, JudgedClaim]]
    others: list[JudgedClaim]


def accusations(
    text: Path, answer: str, store: Store
) -> tuple[list[JudgedClaim], list[JudgedClaim], list[JudgedClaim]]:
    """Return what each of the three rows accuses in a text."""
    (audit,) = audit_cards([text], store, answer=answer)
    program = [one for one in audit.judged if one.judgement.ruling in BAD]
    judged = {one.claim.text: one for one in audit.judged}
    opinions = [_opinion(claim, judged) for claim in json_in(answer).get("claims", ()) if isinstance(claim, Mapping)]
    alone = [one for one in opinions if one.judgement.ruling in BAD]
    refuted = {one.claim.id for one in audit.judged if not objects(one)}
    named = {one.claim.id for one in program}
    both = [*program, *(one for one in alone if one.claim.id not in refuted | named)]
    return program, both, alone


def _opinion(claim: Mapping[str, Any], judged: Mapping[str, JudgedClaim]) -> JudgedClaim:
    """Return the assistant's own opinion of a claim, on the line where the program found the claim."""
    opinion = str(claim.get("opinion"))
    ruling = Ruling(opinion) if opinion in set(Ruling) else Ruling.CANNOT_BE_JUDGED
    judgement = Judgement(ruling=ruling, so=str(claim.get("because", "")))
    found = judged.get(str(claim.get("text", claim.get("quote"))))
    if found is not None:
        return replace(found, judgement=judgement)
    line = claim.get("line")
    unplaced = Claim(id=str(claim.get("id")), kind=str(claim.get("kind")), form="", text=str(claim.get("text")),
                     line=line if isinstance(line, int) else None)  # fmt: skip
    return JudgedClaim(claim=unplaced, judgement=judgement, finding=None)


def scores(answers: Path, texts: Path) -> dict[str, tuple[Score, Score, Score]]:
    """Return the three scores of every text that has a key and an answer."""
    found: dict[str, tuple[Score, Score, Score]] = {}
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        for name, keys in sorted(read_key(texts).items()):
            answer = answers / f"{Path(name).stem}.json"
            if answer.is_file() and (texts / name).is_file():
                rows = accusations(texts / name, read_text(answer), store)
                found[name] = _scored(keys, rows)
    return found


def _scored(
    keys: list[Key], rows: tuple[list[JudgedClaim], list[JudgedClaim], list[JudgedClaim]]
) -> tuple[Score, Score, Score]:
    program, both, alone = rows
    # a claim that only rests on a wrong one is listed with it, but is not itself accused
    resting = {one.claim.id for one in program if one.finding is None}

    def fair(accused: list[JudgedClaim]) -> Score:
        found = score(keys, accused)
        return replace(found, accused=[pair for pair in found.accused if pair[1].claim.id not in resting])

    return fair(program), fair(both), score(keys, alone)


def score(keys: list[Key], accused: list[JudgedClaim]) -> Score:
    """Match each accusation with the key: by its line first, then by its numbers if the line has several claims."""
    named: set[int] = set()
    wronged: dict[int, JudgedClaim] = {}
    others = []
    for judged in accused:
        at = _matches(keys, judged)
        bad = [i for i in at if keys[i].verdict in BAD_IN_KEY]
        if bad:
            named.update(bad)
        elif right := [i for i in at if keys[i].verdict == "ok" and keys[i].line == judged.claim.line]:
            wronged.update((i, judged) for i in right)
        else:
            others.append(judged)
    return Score(
        due=[k for k in keys if k.verdict in BAD_IN_KEY and k.severity in GRAVE],
        named=[keys[i] for i in sorted(named) if keys[i].severity in GRAVE],
        right=[k for k in keys if k.verdict == "ok"],
        accused=[(keys[i], judged) for i, judged in wronged.items()],
        others=others,
    )


def _matches(keys: list[Key], judged: JudgedClaim) -> list[int]:
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
    return own + [i for i in near if keys[i].verdict in BAD_IN_KEY and (not own or numbers & _numbers([keys[i].claim]))]


def _is_quoted(key: Key, judged: JudgedClaim) -> bool:
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


def main() -> None:
    """Score a folder of answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("answers", type=Path, help="folder with an assistant's answer to each text, NAME.json")
    parser.add_argument("texts", type=Path, nargs="?", default=SHARED, help="folder with the texts and key.csv")
    parser.add_argument("--wrong", action="store_true", help="list what was missed and accused by program or assistant")
    given = parser.parse_args()
    if not (given.texts / "key.csv").is_file():
        print(f"skipped: {given.texts} has no texts with a key.csv")
        return
    try:
        found = scores(given.answers, given.texts)
    except AdvisorError as error:
        sys.exit(f"{given.answers}: {error}")
    if given.wrong:
        for name, (_, both, _) in found.items():
            show(name, both)
    print(f"{len(found)} texts with an answer")
    for at, row in enumerate(ROWS):
        one = [three[at] for three in found.values()]
        due, named = sum(len(s.due) for s in one), sum(len(s.named) for s in one)
        right, accused = sum(len(s.right) for s in one), sum(len(s.accused) for s in one)
        print(f"{row}: {named} of {due} wrong claims found ({named / max(1, due):.0%}); "
              f"{accused} of {right} right ones accused ({accused / max(1, right):.1%})")  # fmt: skip


if __name__ == "__main__":
    main()
