"""Ray Tune and RLlib on a console: after each iteration `Result for DQN_game_96499_00000:` and its numbers, indented.

The names are in the order of the alphabet, those of a learner deeper than the others; what counts is time steps of the
environment (`timesteps_total`), which all of an iteration's other numbers but three stand before.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, SETS, TRAIN, LineFormat, Row, Sign


def _number(name: bytes, column: bytes, kind: int = SETS) -> Row:
    return Row(pattern=rb" +" + name + rb": (?P<" + column + rb">" + LOSS + rb")\s*$", kind=kind, needs=name + b": ")


FORMAT = LineFormat(
    name="ray_tune",
    framework="Ray Tune",
    rows=(
        _number(b"episode_reward_mean", b"reward"),
        _number(b"total_loss", b"loss"),
        _number(b"time_total_s", b"elapsed_seconds"),
        _number(b"timesteps_total", b"step", TRAIN),
    ),
    signs=(
        Sign(pattern=rb"(?m)^Result for \S+:$", weight=0.4),
        Sign(pattern=rb"(?m)^== Status ==$", weight=0.3),
        Sign(pattern=rb"(?m)^  (?:training_iteration|time_since_restore): ", weight=0.3),
    ),
)
