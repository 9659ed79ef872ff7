"""torchtitan: `step:  1  loss: 12.2254  grad_norm:  1.8  memory: 27.34GiB(28.78%)  tps: 375  tflops: …  mfu: 2.20%`.

`tps` (once `wps`) is tokens per second *per device*. With several ranks in one log each line begins with `[rank0]:`.
Its loss files for tests are two columns, step and loss, without a header; others write such files of anything.
"""

from __future__ import annotations

import dataclasses

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Row, Sign
from advisor.readers.run_table import WITHOUT_NAME, RunTable

# the comma of the time's milliseconds is a decimal point, that of tokens per second is not: the fraction is left out
_HEAD = (
    rb"[ \t]{0,8}(?:\[rank(?P<rank>\d+)\]:)?[ \t]{0,2}(?:\[titan\] )?"
    rb"(?:(?P<unix_seconds__year>\d{4})-(?P<unix_seconds__month>\d\d)-(?P<unix_seconds__day>\d\d) "
    rb"(?P<unix_seconds__h>\d\d):(?P<unix_seconds__min>\d\d):(?P<unix_seconds__s>\d\d)(?:,\d+)? - )?"
    rb"(?:[\w.]+ - )?(?:INFO - )?"
)
_NUMBERS = (
    rb"(?:[ \t]{1,8}grad_norm:\s*(?P<grad_norm>" + LOSS + rb"))?"
    rb"(?:[ \t]{1,8}m?memory:\s*(?P<memory_bytes__GiB>[\d.]+)GiB\([\d.]+%\))?"
    rb"(?:[ \t]{1,8}[tw]ps:\s*(?P<device_tokens_per_second>\d{1,3}(?:,\d{3})*|\d+)\b)?(?:[ \t]{1,8}tflops:\s*[\d.,]+)?"
    rb"(?:[ \t]{1,8}mfu:\s*(?P<mfu__percent>[\d.]+)%)?"
)

_FRESH = 7.0  # nats: what a model of its vocabularies begins above


def _own(table: RunTable) -> RunTable:
    """The table as nobody's where two bare columns are all there is, and the second begins below any fresh model."""
    bare = table.columns.keys() <= {"step", "loss", "loss_is_nan", "phase"}
    if not bare or (table.first_loss or 0.0) > _FRESH:
        return table
    facts = {**table.facts, "loss_unit": WITHOUT_NAME}
    return dataclasses.replace(table, format="generic", framework=None, facts=facts)


FORMAT = LineFormat(
    name="torchtitan",
    framework="torchtitan",
    rows=(
        Row(pattern=_HEAD + rb"step:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>" + LOSS + rb")" + _NUMBERS, needs=b"loss:"),
        Row(
            pattern=_HEAD + rb"validate step:\s*(?P<step>\d+)\s+loss:\s*(?P<eval_loss>" + LOSS + rb")",
            kind=EVAL,
            needs=b"validate step:",
        ),
        Row(pattern=rb"(?P<step>\d+)[ \t]+(?P<loss>-?\d+\.\d+(?:e[-+]?\d+)?|nan|inf)\s*$", weight=0.6),
    ),
    facts=(
        Facts(
            pattern=rb"local batch size (?P<micro_batch>\d+), global batch size (?P<step_samples>\d+), "
            rb"(?:gradient accumulation steps (?P<grad_accum>\d+), )?sequence length (?P<seq_len>\d+), "
            rb"total steps (?P<planned_steps>\d+) \(warmup (?P<warmup_steps>\d+)\)",
            needs=b"local batch size",
        ),
        Facts(pattern=rb"size: (?P<parameters>[\d,]+) total parameters", needs=b"total parameters"),
        Facts(
            pattern=rb"CUDA capacity: (?P<gpu>[^\n]+?) with (?P<gpu_memory_bytes__GiB>[\d.]+)GiB",
            needs=b"CUDA capacity",
        ),
        Facts(pattern=rb"Peak FLOPS used for computing MFU: (?P<gpu_peak_flops>[\d.e+]+)", needs=b"Peak FLOPS"),
        Facts(
            pattern=rb"Compiling each TransformerBlock with torch\.compile",
            needs=b"Compiling",
            constants={"compile": True},
        ),
        Facts(pattern=rb"[Ww]orld[ _]size[:= ]+(?P<world_size>\d+)", needs=b"orld"),
    ),
    signs=(Sign(pattern=rb"\[titan\] |\btorchtitan\b", weight=0.6),),
    notes={"mfu": "against the peak that the log names"},
    finish=_own,
)
