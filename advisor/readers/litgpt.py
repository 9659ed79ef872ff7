"""LitGPT: `Epoch 1 | iter 12 step 3 | loss train: 10.123, val: n/a | iter time: 123.45 ms (step)`.

`iter` counts micro-batches and `step` optimizer steps: times are of micro-batches, so they are multiplied by how many a
step has; of several records of one step the last is kept.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Row, Sign

FORMAT = LineFormat(
    name="litgpt",
    framework="LitGPT",
    rows=(
        Row(
            pattern=(
                rb"\s*Epoch (?P<epoch>\d+) \| iter\s+(?P<iteration>\d+) step\s+(?P<step>\d+) \| loss train:\s+(?P<loss>"
                + LOSS
                + rb")(?:,? ?\|?,? val: (?:n/a|(?P<eval_loss>"
                + LOSS
                + rb")))?"
                rb"(?: \| iter time:\s+(?P<seconds__ms>[\d.,]+) ms)?"
            ),
            needs=b"loss train:",
        ),
        Row(
            pattern=rb"\s*(?:Epoch \d+ \| )?iter (?P<iteration>\d+)(?: step (?P<step>\d+))?: val loss (?P<eval_loss>"
            + LOSS
            + rb"), val time: (?P<eval_seconds__ms>[\d.,]+) ms",
            kind=EVAL,
            needs=b": val loss ",
            step="previous",
        ),
        Row(
            pattern=rb"\s*Final evaluation \| val loss: (?P<eval_loss>" + LOSS + rb")",
            kind=EVAL,
            needs=b"Final evaluation | val loss:",
            step="previous",
        ),
    ),
    facts=(
        Facts(pattern=rb"Total parameters: (?P<parameters>[\d,]+)", needs=b"Total parameters"),
        Facts(pattern=rb"Number of trainable parameters: (?P<parameters>[\d,]+)", needs=b"trainable parameters"),
        Facts(pattern=rb"'?max_steps'?[=:] ?(?P<planned_steps>\d+)", needs=b"max_steps"),
        Facts(pattern=rb"'?global_batch_size'?[=:] ?(?P<step_samples>\d+)", needs=b"global_batch_size"),
        Facts(pattern=rb"'?micro_batch_size'?[=:] ?(?P<micro_batch>\d+)", needs=b"micro_batch_size"),
        Facts(pattern=rb"'?max_seq_length'?[=:] ?(?P<seq_len>\d+)", needs=b"max_seq_length"),
        Facts(pattern=rb"'?block_size'?[=:] ?(?P<seq_len>\d+)", needs=b"block_size"),
        Facts(pattern=rb"Training time: (?P<total_seconds>[\d.]+)s", needs=b"Training time"),
    ),
    signs=(Sign(pattern=rb"\blit_?gpt\b|\bLitGPT\b", weight=0.5),),
)
