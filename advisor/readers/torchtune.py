"""torchtune: `Step 1 | loss:1.234 lr:2e-05 tokens_per_second_per_gpu:1234.5 grad_norm:1.5 peak_memory_active:12.3`.

Memory is in GiB, tokens per second are of one GPU.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, Facts, LineFormat, Pairs, Sign

FORMAT = LineFormat(
    name="torchtune",
    framework="torchtune",
    rows=(
        Pairs(
            start=rb"\s*Step (?P<step>\d+) \|",
            pair=rb" ?(?P<key>[\w/.-]+):(?P<value>" + LOSS + rb")",
            keys={
                "loss": "loss",
                "val loss": "eval_loss",
                "lr": "learning_rate",
                "grad norm": "grad_norm",
                "tokens per second per gpu": "device_tokens_per_second",
                "peak memory active": "memory_bytes__GiB",
                "peak memory reserved": "reserved_bytes__GiB",
            },
            required=("loss", "eval_loss"),
            needs=b" |",
        ),
    ),
    facts=(
        Facts(pattern=rb"(?m)^[ \t]*batch_size: (?P<micro_batch>\d+)", needs=b"batch_size"),
        Facts(pattern=rb"(?m)^[ \t]*gradient_accumulation_steps: (?P<grad_accum>\d+)", needs=b"gradient_accumulation"),
        Facts(pattern=rb"(?m)^[ \t]*max_seq_len: (?P<seq_len>\d+)", needs=b"max_seq_len"),
        Facts(pattern=rb"(?m)^[ \t]*dtype: (?P<precision>\w+)", needs=b"dtype"),
        Facts(pattern=rb"(?m)^[ \t]*epochs: (?P<planned_epochs>\d+)", needs=b"epochs"),
    ),
    signs=(Sign(pattern=rb"\btorchtune\b", weight=0.5),),
)
