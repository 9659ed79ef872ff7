"""What a machine can be had for."""

from __future__ import annotations

from dataclasses import dataclass

OWN_MACHINE = "your own machine"  # the source of its price, which is 0 where none was given


@dataclass(frozen=True, kw_only=True)
class Offer:
    """So many GPUs of one kind at one price."""

    gpu: str
    gpus: int
    provider: str | None  # None: one's own machine, a price that was given, or nobody
    spot: bool
    usd_per_hour: float | None  # of everything rented, idle GPUs included; None: unknown
    source: str  # in words; of an unknown price why it is unknown
    instance_type: str | None = None  # as the provider's list calls the machine; None: from no list
    region: str | None = None
    machines: int = 1  # of that type that are rented
    rented: int | None = None  # GPUs paid for, where more than are used may be; None: just these
    most_usd_per_hour: float | None = None  # a spot price moves: the provider's most in any region
    age_days: int | None = None  # of the price, the most it can be; None: not asked, unknown, or from no list
    dated: bool = False  # its list carries the day, so that `age_days` is exact

    @property
    def ordered(self) -> bool:
        """Whether it is a machine that must be ordered: a provider's, or a rented GPU that a price was given for."""
        given = bool(self.usd_per_hour) and self.gpu != "cpu" and self.source != OWN_MACHINE
        return self.provider is not None or given

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The bill over the GPUs paid for, idle ones among them; None: unknown."""
        return None if self.usd_per_hour is None else self.usd_per_hour / (self.rented or self.gpus)
