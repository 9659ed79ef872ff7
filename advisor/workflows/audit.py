"""Judges reports and run cards with the calibrations and priors of the devices that they name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from advisor.assistant import Asking, Reader, json_in
from advisor.auditing.audit import Audit, audit
from advisor.auditing.card import SCHEMA, Card, CardSetup
from advisor.auditing.gate import gated
from advisor.auditing.load import card_from_dict, load_card
from advisor.auditing.schema import card_schema, examples, prompt
from advisor.auditing.tables import declared, has_prose, lines_of_sentences
from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.prediction.profile import Profile
from advisor.readers.chunks import read_text
from advisor.redact import for_sending
from advisor.store.disk import write_atomic
from advisor.store.store import Store

CARDS = (".yaml", ".yml", ".json")
IN_SENTENCES = "those in sentences"  # numbers that only an assistant can place
AS_LINES = "lines “tokens: 160 B”, “tokens per second: 400,000”, “duration: 4.6 days”"  # which are checked together
HOW_TO_READ = (
    "your assistant can read them: `advisor audit {name} --reader CMD`; or give it the prompt that "
    "`advisor audit {name} --schema` prints, and pass its answer with `--answer FILE`"
)
_LONGEST = 400_000  # characters of text sent to an assistant


def audit_cards(
    paths: Sequence[Path], store: Store, reader: Reader | None = None, answer: str | None = None
) -> list[Audit]:
    """Returns the audits of run cards and text reports. If one cannot be read, raises AdvisorError before the first.

    `reader` asks an assistant to read a report, or `answer` is what an assistant answered earlier. With neither, only
    tables and "name: value" lines are read, and their numbers are checked.
    """

    def believe(spec: GpuSpec, setup: CardSetup) -> Profile | None:
        """Returns a GPU's profile from its calibration here or its prior; None if it has no rate for this precision."""
        compiled = bool(setup.compile)
        try:
            return load_profile(spec.key, store, family=setup.family, precision=setup.precision, compile=compiled)
        except AdvisorError:
            return None

    return [audit(card, believe) for card in [_card(path, reader, answer) for path in paths]]


def asking(paper: Path | None = None) -> Asking:
    """Returns the prompt for a report (None: for a text that follows) and the schema of the answer."""
    return Asking(prompt=for_sending(prompt(None if paper is None else _text(paper))), schema=card_schema())


def kinds_with_examples() -> list[Mapping[str, Any]]:
    """Returns every form of every kind of claim, with an example sentence and the fields that state it in a card."""
    return [{"that": name, **entry} for name, entry in examples().items()]


def write_draft(report: Path, path: Path, reader: Reader | None = None, answer: str | None = None) -> int:
    """Write a report's card, which the user can correct and audit again; returns its number of claims."""
    raw = _read(report, reader, answer)
    write_atomic(path, _as_yaml(raw))
    return len(raw["claims"])


def drafted(paper: Path, answer: str | None = None) -> str | None:
    """Returns the card of a paper as text; None if the paper is a card."""
    return None if paper.suffix.lower() in CARDS else _as_yaml(_read(paper, None, answer))


def _as_yaml(raw: Mapping[str, Any]) -> str:
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=120)


def _card(path: Path, reader: Reader | None, answer: str | None) -> Card:
    """Returns the card in a file, or the card of another text."""
    if path.suffix.lower() in CARDS:
        return load_card(path)
    problems: list[str] = []
    card = card_from_dict(_read(path, reader, answer), problems)
    if card is None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise AdvisorError(f"the card that was read from {path} cannot be used:{lines}", "ask the reader again")
    return card


def _read(path: Path, reader: Reader | None, answer: str | None) -> dict[str, Any]:
    """Returns the card of a text: what the assistant answered and the text supports, or else what its tables state."""
    text, stem = _text(path), re.sub(r"[^\w-]+", "-", path.stem).strip("-") or "report"
    lines = [line.lstrip("#* ").strip() for line in sorted(text.split("\n"), key=lambda line: line[:1] != "#")]
    head = {"schema": SCHEMA, "id": stem, "title": next(filter(None, lines), path.name)[:200], "source": path.name}
    if answer is not None or reader is not None:
        said = answer if answer is not None else reader(prompt(text)) if reader is not None else ""
        return gated({**json_in(said), **head}, text)
    stated, how = declared(path), HOW_TO_READ.format(name=path.name)
    if not stated:
        message = f"{path} has sentences, and no table or line with a figure that can be checked"
        drawn = lines_of_sentences(text).replace("\n", "”, “")
        shown = f"lines, as “{drawn}”" if drawn else AS_LINES
        raise AdvisorError(message, f"write its figures as {shown}; or {how}")
    if has_prose(text):
        stated["unplaced"] = [*stated.get("unplaced", ()), f"{IN_SENTENCES}: {how}"]
    return {**head, "run": {}, "claims": [], **stated}


def _text(path: Path) -> str:
    text = read_text(path).replace("\r\n", "\n")
    if not text.strip() or "\0" in text:
        why = "is a binary file, not text" if text.strip() else "is empty"
        raise AdvisorError(f"{path} {why}", "give the report as text, Markdown or HTML")
    if len(text) > _LONGEST:
        hint = "cut it into parts, and audit each"
        raise AdvisorError(f"{path} has {len(text):,} characters: more than an assistant reads at once", hint)
    return text
