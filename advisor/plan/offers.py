"""What a goal allows to rent: for each card and number of GPUs the cheapest on-demand and the cheapest spot offer.

A dearer provider of the same machine takes as long and trains the same, so nothing is lost by leaving it out here.
"""

from __future__ import annotations

from advisor.hardware.offers import Offer, RowsByGpu, cheapest_offer
from advisor.records import Goal

# Seconds between interruptions of a spot machine, shortest, expected and longest: sources §6.2 has no hourly hazard
# from any provider and says to treat it as 4 to 48 hours; the middle is geometric.
SPOT_MEAN_SECONDS = (4 * 3600.0, 14 * 3600.0, 48 * 3600.0)


def offers_for(goal: Goal, gpu: str, gpus: int, rows: RowsByGpu | None = None) -> tuple[Offer, ...]:
    """Offers for `gpus` cards of one key that the goal allows; none where nobody rents so many together.

    A price that was given is the only offer. `rows` are `rows_by_gpu()`, for whoever asks many times.
    """
    given = next((p.usd_per_gpu_hour for p in goal.prices if p.gpu == gpu), goal.usd_per_gpu_hour)
    if given is not None:
        return (Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=given * gpus, source="given"),)
    if gpu == "cpu":
        source = "your own machine"
        return (Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=0.0, source=source),)
    kinds = {"none": (False,), "only": (True,), "any": (False, True)}[goal.spot]
    offers = (cheapest_offer(gpu, gpus, spot=spot, providers=goal.providers, rows=rows) for spot in kinds)
    return tuple(offer for offer in offers if offer is not None)
