"""What the estimated speed of a device rests on: its own calibration, or how many published runs. Pure."""

from __future__ import annotations

from advisor.predict.prior import published_runs
from advisor.predict.profile import Profile
from advisor.records import Grounds


def grounds_of(profile: Profile) -> Grounds:
    """Count what a device's beliefs about speed were learnt from."""
    generation = profile.spec.generation if profile.spec else None
    card, alike, everything = published_runs(profile.key, generation)
    return Grounds(
        calibration=profile.calibration_id,
        generation=generation,
        card_runs=card,
        generation_runs=alike,
        all_runs=everything,
    )
