"""Scores an assistant with this program by a key: `python benchmarks/audit_reader.py ANSWERS TEXTS [--wrong]`.

TEXTS holds texts and a key.csv (see audit_texts.py). ANSWERS holds, as NAME.json, an assistant's answer to `advisor
audit --schema NAME.md` for each text NAME.md. No assistant is asked here, so the scores can be reproduced at any time.

Three rows are printed. *The program* counts only the program's verdicts. *The program or the assistant* adds what the
assistant calls wrong or unfounded, unless the program finds it right. *The assistant alone* counts its opinions. Each
row says how many wrong claims of high or medium severity are found, and how many right claims are accused.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from advisor.auditing.audit import Judged, objects
from advisor.auditing.card import Claim
from advisor.auditing.reader import card_in
from advisor.auditing.verdict import BAD, Judgement, Ruling
from advisor.errors import AdvisorError
from advisor.readers.chunks import read_text
from advisor.store.store import Store
from advisor.workflows.audit import audit_cards
from benchmarks.audit_texts import Key, Score, read_key, score, show

SHARED = Path(__file__).parent.parent.parent / "shared" / "audit"
ROWS = ("the program", "the program or the assistant", "the assistant alone")


def accusations(text: Path, answer: str, store: Store) -> tuple[list[Judged], list[Judged], list[Judged]]:
    """Return what each of the three rows accuses in a text."""
    (audit,) = audit_cards([text], store, answer=answer)
    program = [one for one in audit.judged if one.judgement.ruling in BAD]
    judged = {one.claim.text: one for one in audit.judged}
    opinions = [_opinion(claim, judged) for claim in card_in(answer).get("claims", ()) if isinstance(claim, Mapping)]
    alone = [one for one in opinions if one.judgement.ruling in BAD]
    refuted = {one.claim.id for one in audit.judged if not objects(one)}
    named = {one.claim.id for one in program}
    both = [*program, *(one for one in alone if one.claim.id not in refuted | named)]
    return program, both, alone


def _opinion(claim: Mapping[str, Any], judged: Mapping[str, Judged]) -> Judged:
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
    return Judged(claim=unplaced, judgement=judgement, finding=None)


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


def _scored(keys: list[Key], rows: tuple[list[Judged], list[Judged], list[Judged]]) -> tuple[Score, Score, Score]:
    program, both, alone = rows
    # a claim that only rests on a wrong one is listed with it, but is not itself accused
    resting = {one.claim.id for one in program if one.finding is None}

    def fair(accused: list[Judged]) -> Score:
        found = score(keys, accused)
        return replace(found, accused=[pair for pair in found.accused if pair[1].claim.id not in resting])

    return fair(program), fair(both), score(keys, alone)


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
