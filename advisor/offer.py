"""The record of a machine with its price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

EIGHT_OF_TEN = NormalDist().inv_cdf(0.9)  # standard deviations on each side of an 80 % interval
CAUTIOUS = 0.67  # standard deviations above the listed price: the upper quartile of today's price
OWN_MACHINE = "your own machine"  # `source` of the user's own machine, whose price is 0 unless the user states one

_SELLERS = {  # how providers write their names, by their key in the price lists
    "aws": "AWS", "azure": "Azure", "coreweave": "CoreWeave", "crusoe": "Crusoe", "do": "DigitalOcean",
    "gcp": "Google Cloud", "hotaisle": "Hot Aisle", "hyperstack": "Hyperstack", "jarvislabs": "JarvisLabs",
    "lambda": "Lambda", "latitude": "Latitude.sh", "massed-compute": "Massed Compute", "nebius": "Nebius",
    "novita": "Novita", "oci": "Oracle Cloud", "openrelay": "OpenRelay", "ovh": "OVHcloud",
    "prime-intellect": "Prime Intellect", "runpod": "RunPod", "runpod-community": "RunPod Community",
    "scaleway": "Scaleway", "spheron": "Spheron", "tensordock": "TensorDock", "thundercompute": "Thunder Compute",
    "together": "Together", "vast": "Vast.ai", "verda": "Verda", "vultr": "Vultr",
}  # fmt: skip
SELLER_KEYS = {name.lower(): key for key, name in _SELLERS.items()}


def seller_of(provider: str) -> str:
    """Return a provider's own name, or its key if it is not known."""
    return _SELLERS.get(provider, provider)


def price_rank(usd_per_hour: float, deviation: float, *, dated: bool) -> tuple[bool, float]:
    """Return the key by which the cheapest of several prices is found.

    Those of a dated list come first, then the one with the lowest cautious price counts.
    """
    return not dated, usd_per_hour * math.exp(CAUTIOUS * deviation)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A number of GPUs of one type at one price."""

    gpu: str
    gpus: int
    provider: str | None  # None: the user's machine, a price from the user, or no provider
    spot: bool
    usd_per_hour: float | None  # for all rented GPUs, idle ones included; None: unknown
    source: str  # of the price, or why it is unknown
    instance_type: str | None = None  # name in the provider's price list; None if there is no list
    region: str | None = None
    machines: int = 1  # number of rented machines of that type
    rented: int | None = None  # GPUs paid for, if more than the GPUs in use; None: as many
    most_usd_per_hour: float | None = None  # highest spot price of the provider in any region
    age_days: int | None = None  # largest possible age of the price; None: not asked, unknown, or no price list
    price_deviation: float = 0.0  # log standard deviation of today's price; 0: given, or the user's own machine
    likely_usd_per_gpu_hour: tuple[float, float] | None = None  # of an unknown price, in 8 of 10 cases
    dated: bool = False  # the price list has a date, so that `age_days` is exact

    @property
    def seller(self) -> str | None:
        """Return the provider's own name."""
        return None if self.provider is None else seller_of(self.provider)

    def in_words(self, provided: str = " from ") -> str:
        """Return the machine as text; `provided` is the text before the provider."""
        if self.gpu == "cpu":
            return "this CPU"
        provider = f"{provided}{self.seller}" if self.provider else ""
        if self.source == OWN_MACHINE:
            provider = " of your own"
        return f"{self.gpus} x {self.gpu}{provider}{' spot' if self.spot else ''}"

    @property
    def ordered(self) -> bool:
        """Tell whether the machine must be ordered: from a provider, or a GPU for which the user gave a price."""
        given = bool(self.usd_per_hour) and self.gpu != "cpu" and self.source != OWN_MACHINE
        return self.provider is not None or given

    @property
    def price_factor(self) -> float:
        """Return the factor within which today's price is in 8 of 10 cases."""
        return math.exp(EIGHT_OF_TEN * self.price_deviation)

    @property
    def rank(self) -> tuple[bool, float]:
        """Return the `price_rank` of an offer whose price is known."""
        assert self.usd_per_hour is not None
        return price_rank(self.usd_per_hour, self.price_deviation, dated=self.dated)

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """Return the price per GPU, over all GPUs that are paid for. Returns None if unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / (self.rented or self.gpus)
