"""Axolotl: the Hugging Face Trainer's dictionaries, with memory in GiB, between its own `[axolotl.…]` lines."""

from __future__ import annotations

from advisor.readers.hugging_face import FACTS, NOTES, ROWS, SIGNS, row_with
from advisor.readers.line_format import Facts, LineFormat, Sign

FORMAT = LineFormat(
    name="axolotl",
    framework="Axolotl",
    rows=(row_with(rb"max_mem_active\(gib\)|max_active \(GiB\)"), *ROWS),
    facts=(
        Facts(pattern=rb"Maximum number of steps set at (?P<planned_steps>\d+)", needs=b"Maximum number of steps"),
        Facts(pattern=rb"total_num_steps: (?P<planned_steps>\d+)", needs=b"total_num_steps"),
        *FACTS,
    ),
    signs=(Sign(pattern=rb"\[axolotl\.|axolotl\.cli", weight=0.97), *SIGNS),
    notes=NOTES,
    steps_by_bar=True,
)
