"""What the estimated speed of a device rests on: its own calibration, or how many published runs of which cards. Pure.

Said beside every choice between devices: the best of many estimates is more often one that is too high, and the fewer
runs an estimate rests on the farther off it may be.
"""

from __future__ import annotations

from advisor.predict.prior import published_runs
from advisor.predict.profile import Profile
from advisor.records import Grounds, Plan


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


def briefly(grounds: Grounds | None) -> str:
    """A cell of a table: "measured here", or how many published runs, as in "1 run of it, 6 of Volta"."""
    if grounds is None:
        return "unknown"
    if grounds.calibration is not None:
        return "measured here"
    runs = "run" if grounds.card_runs == 1 else "runs"
    return f"{grounds.card_runs} {runs} of it, {grounds.generation_runs} of {grounds.generation}"


def in_words(plan: Plan) -> str | None:
    """One or two sentences to stand beside the recommendation; None for a plan that does not say."""
    grounds = plan.grounds
    if grounds is None:
        return None
    if grounds.calibration is not None:
        return f"The speed was measured here ({grounds.calibration})."
    others = grounds.all_runs - grounds.generation_runs
    text = (
        f"The speed is an estimate from data sheets and published runs: {grounds.card_runs or 'none'} of this card, "
        f"{grounds.generation_runs or 'none'} of its generation ({grounds.generation}), {others} of others."
    )
    count = len(plan.search.devices) if plan.search else 1
    if count > 1:
        text += f" The best of {count} estimates is more likely too high than too low: calibrate before spending."
    return text
