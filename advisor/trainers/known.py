"""The trainers there are, by the name that launch records give."""

from __future__ import annotations

from advisor.errors import AdvisorError
from advisor.trainers.adapter import Trainer
from advisor.trainers.own import OWN

TRAINERS: dict[str, Trainer] = {OWN.name: OWN}


def trainer_of(name: str) -> Trainer:
    """The adapter of a trainer; raises AdvisorError for a name that this version does not know."""
    if name not in TRAINERS:
        message = f"the run was started with the trainer {name!r}, which this version does not know"
        raise AdvisorError(message, f"it knows: {', '.join(TRAINERS)}; upgrade training-advisor")
    return TRAINERS[name]
