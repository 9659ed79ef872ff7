"""Stable-Baselines3's tables of names and numbers: `|    total_timesteps     | 4096        |`.

A table comes after each rollout, with the losses of the updates before it; the first has none. Tables of evaluations
lie between. What counts is time steps of the environment (`stable_baselines3/common/logger.py`, HumanOutputFormat).
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, MORE, SETS, LineFormat, Row

_NUMBER = rb" *\| *(?P<%s>" + LOSS + rb") *\|"


def _cell(name: bytes, column: bytes, kind: int) -> Row:
    return Row(pattern=rb"\| {4}" + name + _NUMBER % column, kind=kind, needs=name)


FORMAT = LineFormat(
    name="stable_baselines3",
    framework="Stable-Baselines3",
    rows=(
        _cell(b"ep_rew_mean", b"reward", SETS),
        _cell(b"time_elapsed", b"elapsed_seconds", SETS),
        Row(pattern=rb"\| {4}total_timesteps" + _NUMBER % b"step", needs=b"total_timesteps"),
        _cell(b"learning_rate", b"learning_rate", MORE),
        _cell(b"loss", b"loss", MORE),
    ),
)
