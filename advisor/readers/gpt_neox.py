"""GPT-NeoX: Megatron's record with `samples/sec: 41.2 |` in front and `lm_loss:`, and DeepSpeed's own lines between."""

from __future__ import annotations

from advisor.readers.line_format import LineFormat, Pairs, Sign
from advisor.readers.megatron import ARGUMENTS, FINAL_VALIDATION, KEYS, MEMORY, MISSING, PAIR, TIMES, VALIDATION

_ITERATION = Pairs(
    start=rb"(?:[\w.-]+: )?\s*samples/sec: [\d.]+ \| iteration +(?P<step>\d+)/ *(?P<planned_steps>\d+) \|",
    pair=PAIR,
    keys=KEYS,
    required=("seconds__ms", "loss"),
    needs=b"samples/sec: ",
    missing=MISSING,
)

FORMAT = LineFormat(
    name="gpt_neox",
    framework="GPT-NeoX",
    rows=(_ITERATION, TIMES, MEMORY, VALIDATION, FINAL_VALIDATION),
    facts=ARGUMENTS,
    signs=(Sign(pattern=rb"(?i)gpt-?neox|NeoXArgs", weight=0.5),),
    notes={
        "seconds": "mean of the iterations since the last record",
        "skipped": "iterations skipped by loss scaling since the last record",
    },
)
