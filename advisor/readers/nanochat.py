"""nanochat: `step 00001/21400 (0.00%) | loss: … | dt: …ms | tok/sec: … | mfu: …`, its evaluations and its banner.

Reports loss as a moving average of one micro-batch on rank 0 (0.9, debiased), mfu against the bf16 peak; fine-tuning
prints no total. `mfu: 0.00` means that the peak of the device is not known to it.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, NUMBER, Facts, LineFormat, Row, Sign

_STEP = Row(
    pattern=(
        rb"\s*step (?P<step>\d+)(?:/(?P<planned_steps>\d+))? \([\d.]+%\) \| loss: (?P<loss>" + LOSS + rb")"
        rb"(?: \| grad norm: (?P<grad_norm>" + LOSS + rb"))?(?: \| lrm: [\d.]+)?"
        rb"(?: \| dt: (?P<seconds__ms>[\d.]+)ms)?(?: \| tok/sec: (?P<tokens_per_second>[\d,]+))?"
        rb"(?: \| (?:\w+_)?mfu: (?P<mfu__percent>[\d.]+))?(?: \| epoch: (?P<epoch>[\d.]+)(?: pq: \d+ rg: \d+)?)?"
        rb"(?: \| total time: (?P<elapsed_seconds__min>[\d.]+)m)?"
    ),
    needs=b"| loss: ",
    missing={"mfu": 0.0},
)
_BPB = Row(
    pattern=rb"\s*Step (?P<step>\d+) \| Validation bpb: (?P<eval_bits_per_byte>" + LOSS + rb")",
    kind=EVAL,
    needs=b"Validation bpb",
)

FORMAT = LineFormat(
    name="nanochat",
    framework="nanochat",
    rows=(_STEP, _BPB),
    facts=(
        Facts(pattern=rb"(?m)^Vocab size: (?P<vocab_size>[\d,]+)", needs=b"Vocab size"),
    ),
    signs=(Sign(pattern=rb"nanochat", weight=0.5),),
)
