"""Run cards judged, with what is believed here of the devices that they name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advisor.audit.audit import Audit, audit
from advisor.audit.card import Setup
from advisor.audit.load import load_card
from advisor.calibrate.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.predict.profile import Profile
from advisor.store.store import Store


def audit_cards(paths: Sequence[Path], store: Store) -> list[Audit]:
    """The audits of all cards; raises AdvisorError before the first when one of them cannot be read."""

    def believe(spec: GpuSpec, setup: Setup) -> Profile | None:
        """The card's calibration here, else the prior; None where the datasheet has no rate for this precision."""
        compiled = bool(setup.compile)
        try:
            return load_profile(spec.key, store, family=setup.family, precision=setup.precision, compile=compiled)
        except AdvisorError:
            return None

    return [audit(card, believe) for card in [load_card(path) for path in paths]]
