"""Names the quantities that plans, predictions and cards of options show, and formats their numbers.

`name` is the title of a row; `column` is the shorter title of a column or on a card.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from advisor import units
from advisor.records import Estimate, Run
from advisor.units import Formatter

INTERVAL = "predicted (80 % interval)"  # the title above estimates


@dataclass(frozen=True)
class Quantity:
    """A name and a way to write numbers."""

    name: str
    words: Formatter
    short: str = ""

    @property
    def column(self) -> str:
        """The title of a column, which is shorter than a long name."""
        return self.short or self.name

    def of(self, estimate: Estimate | None) -> str:
        """Returns an estimate with its interval; "unknown" for None."""
        return units.format_estimate(estimate, self.words)

    def expected(self, estimate: Estimate | None) -> str:
        """Returns an estimate's value without its interval but with the same digits, or "unknown" for None."""
        return units.format_centre(estimate, self.words)

    def row(self, estimate: Estimate | None) -> tuple[str, str, str]:
        """Returns name, estimate with its interval, and basis."""
        return self.name, self.of(estimate), basis(estimate)


class _Cost(Quantity):
    """Dollars of a run; on a machine of one's own they are none as long as nobody says what electricity costs."""

    def of(self, estimate: Estimate | None) -> str:
        free = estimate is not None and not estimate.high
        return f"{super().of(estimate)}{' without electricity' if free else ''}"


def basis(estimate: Estimate | None) -> str:
    """Returns the basis of an estimate; a dash for None."""
    return estimate.basis if estimate else "-"


TIME = Quantity("time", units.format_seconds)  # from ordering the machine to the end
COST: Quantity = _Cost("cost", units.format_usd)
LOSS = Quantity("validation loss", units.format_loss, "loss")
STEP_TIME = Quantity("step time", units.format_seconds)
THROUGHPUT = Quantity("throughput", units.format_rate, "tokens/s")  # the unit is in the column title, not in its cells
SAMPLE_RATE = Quantity("samples", units.format_sample_rate, "samples/s")  # for models without tokens
MFU = Quantity("MFU", units.format_percent)
# Three measures of memory: what a device must hold, including the context, and two that PyTorch reports
DEVICE_MEMORY = Quantity("memory per GPU", units.format_bytes, "memory per GPU")
PROCESS_MEMORY = Quantity("process memory", units.format_bytes)  # on a CPU
RESERVED = Quantity("peak memory, reserved", units.format_bytes)
ALLOCATED = Quantity("peak memory, allocated", units.format_bytes)
POWER = Quantity("power of the GPUs", units.format_watts)
ENERGY = Quantity("energy of the GPUs", units.format_energy)
CARBON = Quantity("CO2e, whole site", units.format_mass)
BITS = Quantity("bits per byte", units.format_number)


def cost_of(run: Run) -> str:
    """Returns the cost of a planned run in words, with the option that states a price of electricity."""
    usd = run.cost_usd
    if usd is None:
        return "unknown cost"
    return COST.of(usd) + ("" if usd.high or run.offer.gpu == "cpu" else " (give --kwh-price)")


def memory_of(gpu: str) -> Quantity:
    """Returns the quantity for the memory that a device must hold; a CPU holds it for the process."""
    return PROCESS_MEMORY if gpu == "cpu" else DEVICE_MEMORY


def setting_value(name: str, given: Any) -> str:
    """Returns a setting's value as text."""
    if given is None:
        return "unknown"
    if isinstance(given, bool):
        return "on" if given else "off"
    if name in ("tokens", "global_batch"):
        return units.format_tokens(given)
    if name.endswith("_bytes"):
        return units.format_bytes(given)
    return units.format_number(given) if isinstance(given, float) else str(given)
