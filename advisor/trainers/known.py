"""The trainers there are, by the name that launch records give."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.store.run_folder import read_launch
from advisor.trainers.adapter import Trainer
from advisor.trainers.adopted import ADOPTED
from advisor.trainers.own import OWN

TRAINERS: dict[str, Trainer] = {OWN.name: OWN, ADOPTED.name: ADOPTED}


def trainer_of(name: str) -> Trainer:
    """The adapter of a trainer; raises AdvisorError for a name that this version does not know."""
    if name not in TRAINERS:
        message = f"the run was started with the trainer {name!r}, which this version does not know"
        raise AdvisorError(message, f"it knows: {', '.join(TRAINERS)}; upgrade training-advisor")
    return TRAINERS[name]


def trainer_of_run(folder: Path) -> Trainer:
    """The adapter that a run folder's launch record names; our own trainer's where no launch was recorded."""
    launch = read_launch(folder)
    return trainer_of(launch.trainer) if launch is not None else OWN
