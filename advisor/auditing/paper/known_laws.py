"""Which quantities of a training run follow from which others."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Law:
    """A quantity and the expressions that may give it; an expression counts where all its quantities are stated."""

    target: str
    readings: tuple[str, ...]
    own: bool = False  # whether all of it must stand in one record
    told: str = ""  # what sentences, which alone draw it, may take from those before them too

    def roles(self, reading: str) -> list[str]:
        """The quantities of one expression."""
        return re.findall(r"\{(\w+)\}", reading)


def _law(target: str, *readings: str) -> Law:
    return Law(target=target, readings=readings)


LASTS = "{steps} * {step_time}"  # of the steps that a sentence names, at the speed that its section states
PACE = "{tokens} / {duration}"  # by a clock that was read
HOURLY = "{duration} / 3600 * {usd_per_hour}"
_SHARDS = (2, 4, 8, 16, 32, 64, 128)  # cards that hold one copy of the model
_IDLE = (1.1, 1.2)  # times as long as at its full speed: evaluations, checkpoints, start and end of a job
_BATCH = "{micro_batch} * {accumulation}"
LAWS = (
    _law("rate", "{step_tokens} / {step_time}", "{step_tokens} / {step_time} / {gpus}"),
    _law("gpu_rate", "{step_tokens} / {step_time} / {gpus}"),
    _law("step_time", "{step_tokens} / {rate}", "{step_tokens} / {rate} * {gpus}"),
    Law(target="rate", readings=("{gpu_rate} * {gpus}",), own=True),
    _law("rate", PACE),
    _law(
        "step_tokens", "{batch} * {sequence}", "{batch} * {sequence} * {gpus}", "{batch} * {sequence} * {accumulation}"
    ),
    _law("batch", _BATCH, f"{_BATCH} * {{gpus}}", *(f"{_BATCH} * {{gpus}} / {k}" for k in _SHARDS)),
    _law("tokens", "{steps} * {step_tokens}", "{steps} * {step_tokens} * {gpus}"),
    _law("tokens", "{steps} * {batch} * {sequence}", "{steps} * {batch} * {sequence} * {gpus}"),
    Law(target="steps", readings=("{tokens} / {step_tokens}",), told="tokens"),
    _law("duration", LASTS, f"{LASTS} * {{epochs}}"),
    _law("duration", "{tokens} / {gpu_rate} / {header_gpus}", "{tokens} / {gpu_rate} / {gpus}"),
    _law(
        "duration", "{tokens} / {rate}", "{tokens} / {rate} / {gpus}", *(f"{{tokens}} / {{rate}} * {k}" for k in _IDLE)
    ),
    Law(target="duration", readings=("{optimal_tokens} / {tokens_per_hour}",), own=True),
    _law("duration", "{work} / {sustained}", "{work} / {sustained} / {gpus}", "{gpu_hours} * 3600 / {gpus}"),
    _law("gpu_hours", "{work} / {sustained} / 3600", "{work} / {sustained} / 3600 * {gpus}"),
    _law("usd", "{energy} * {usd_per_energy}"),
    _law("tokens_per_hour", "{rate}", "{rate} * {gpus}"),
    _law("tokens_per_day", "{rate}", "{rate} * {gpus}"),
    _law("gpu_hours", "{duration} * {gpus} / 3600"),
    Law(target="gpu_hours", readings=("{duration} * {gpus} / 3600",), told="duration"),
    Law(target="usd", readings=(HOURLY, f"{HOURLY} * {{gpus}}"), told="duration"),
    _law("usd", "{gpu_hours} * {usd_per_hour}", "{gpu_hours} * {usd_per_hour} / {gpus}"),
    _law("usd", HOURLY, f"{HOURLY} * {{gpus}}"),
    _law("mfu", "{achieved} / {peak}", "{achieved} / {peak} / {gpus}", "{achieved} / {peak} * {gpus}"),
    _law("ratio", "{tokens} / {parameters}"),
    _law("epochs", "{tokens} / {dataset}"),
)
