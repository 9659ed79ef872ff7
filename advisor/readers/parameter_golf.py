"""parameter-golf: modded-nanogpt's lines with bits per byte, a banner of settings and a cap on the wall clock.

`final_int8_…` lines evaluate the compressed model after training; they are no step.
"""

from __future__ import annotations

from advisor.readers.line_format import Facts, LineFormat, Sign
from advisor.readers.modded_nanogpt import FACTS, ROWS

FORMAT = LineFormat(
    name="parameter_golf",
    framework="modded-nanogpt",
    rows=ROWS,
    facts=(
        Facts(pattern=rb"(?m)^model_params:(?P<parameters>\d+)", needs=b"model_params:"),
        Facts(
            pattern=rb"(?m)^world_size:(?P<world_size>\d+) grad_accum_steps:(?P<grad_accum>\d+)", needs=b"world_size:"
        ),
        Facts(
            pattern=rb"train_batch_tokens:(?P<step_tokens>\d+) train_seq_len:(?P<seq_len>\d+)"
            rb" iterations:(?P<planned_steps>\d+) warmup_steps:(?P<warmup_steps>\d+)",
            needs=b"train_batch_tokens:",
        ),
        Facts(
            pattern=rb"attention_mode:gqa num_heads:(?P<heads>\d+) num_kv_heads:(?P<kv_heads>\d+)", needs=b"num_heads:"
        ),
        Facts(pattern=rb"tokenizer_kind=\w+ vocab_size=(?P<vocab_size>\d+)", needs=b"vocab_size="),
        Facts(pattern=rb"fineweb_(?P<vocab_size>\d+)_bpe", needs=b"_bpe"),
        *FACTS,
    ),
    signs=(Sign(pattern=rb"(?m)^val_bpb:enabled tokenizer_kind=|^final_int8_zlib_roundtrip ", weight=0.99),),
    weight=0.5,
    notes={"elapsed_seconds": "the clock stops for evaluations"},
)
