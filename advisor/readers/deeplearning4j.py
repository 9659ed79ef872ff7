"""Deeplearning4j's `ScoreIterationListener`: `Score at iteration 100 is 1.39`; the score is the last batch's loss."""

from __future__ import annotations

from advisor.readers.line_format import LOSS, LineFormat, Row

FORMAT = LineFormat(
    name="deeplearning4j",
    framework="Deeplearning4j",
    rows=(
        Row(
            pattern=rb".{0,160}?Score at iteration (?P<step>\d+) is (?P<loss>" + LOSS + rb")",
            needs=b"Score at iteration ",
        ),
    ),
)
