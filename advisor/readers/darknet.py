"""Darknet: ` 100: 12.345, 13.456 avg loss, 0.001 rate, 3.2 seconds, 6400 images`; the averaged loss has the name."""

from __future__ import annotations

from advisor.readers.line_format import LOSS, LineFormat, Row

FORMAT = LineFormat(
    name="darknet",
    framework="darknet",
    rows=(
        Row(
            pattern=rb"\s*(?P<step>\d+): " + LOSS + rb", (?P<loss>" + LOSS + rb") avg(?: loss)?, "
            rb"(?P<learning_rate>[\d.e-]+) rate, (?P<seconds>[\d.]+) seconds, \d+ images",
            needs=b" rate, ",
            facts={"loss_unit": "sum of a detector's losses, averaged over the last steps"},
        ),
    ),
)
