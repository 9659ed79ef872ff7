"""Run cards judged, with what is believed here of the devices that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from advisor.auditing.audit import Audit, audit
from advisor.auditing.card import Card, Setup
from advisor.auditing.examples import EXAMPLES
from advisor.auditing.load import load_card
from advisor.auditing.paper.read import card_of, draft
from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.prediction.profile import Profile
from advisor.store.disk import write_atomic
from advisor.store.store import Store

CARDS = (".yaml", ".yml")


def audit_cards(paths: Sequence[Path], store: Store) -> list[Audit]:
    """The audits of cards and of reports in text; raises AdvisorError before the first when one cannot be read."""

    def believe(spec: GpuSpec, setup: Setup) -> Profile | None:
        """The card's calibration here, else the prior; None where the datasheet has no rate for this precision."""
        compiled = bool(setup.compile)
        try:
            return load_profile(spec.key, store, family=setup.family, precision=setup.precision, compile=compiled)
        except AdvisorError:
            return None

    return [audit(card, believe) for card in [_card(path) for path in paths]]


def kinds_with_examples() -> list[Mapping[str, str]]:
    """Every kind of claim with what a report may say and the fields that say it in a card."""
    return [{"kind": kind, "says": said, "fields": fields} for kind, (said, fields) in EXAMPLES.items()]


def write_draft(report: Path, path: Path) -> int:
    """Write the card that a report's text drafts, to be corrected and judged again; how many claims it has."""
    raw = draft(report)
    write_atomic(path, _as_yaml(raw))
    return len(raw["claims"])


def drafted(paper: Path) -> str | None:
    """The same card as text; None where the paper is a card already."""
    return None if paper.suffix.lower() in CARDS else _as_yaml(draft(paper))


def _as_yaml(raw: Mapping[str, Any]) -> str:
    return yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=120)


def _card(path: Path) -> Card:
    """A card's file as it is, any other text by its draft."""
    return load_card(path) if path.suffix.lower() in CARDS else card_of(draft(path))
