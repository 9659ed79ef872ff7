"""MaxText: `completed step: 4, seconds: 1.182, TFLOP/s/device: …, Tokens/s/device: …, total_weights: …, loss: 10.187`.

Rates are per device; `total_weights` counts the tokens of the global batch that are not padding.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Pairs, Row, Sign

FORMAT = LineFormat(
    name="maxtext",
    framework="MaxText",
    rows=(
        Pairs(
            start=rb"(?:.{0,120}?\] ?)?\s*completed step: (?P<step>\d+)",
            pair=rb", (?P<key>[A-Za-z_/()]+): (?P<value>" + LOSS + rb")",
            keys={
                "seconds": "seconds",
                "tokens/s/device": "device_tokens_per_second",
                "total weights": "step_tokens",
                "loss": "loss",
                "lr": "learning_rate",
                "learning rate": "learning_rate",
                "grad norm": "grad_norm",
            },
            required=("loss", "seconds"),
            needs=b"completed step:",
        ),
        Row(
            pattern=rb"(?:.{0,120}?\] ?)?\s*eval metrics after step: (?P<step>\d+), loss=(?P<eval_loss>" + LOSS + rb")",
            kind=EVAL,
            needs=b"eval metrics after step:",
        ),
    ),
    facts=(
        Facts(
            pattern=rb"(?i)number parameters: (?P<parameters>[\d.]+) (?P<parameters__unit>[mb]illion)",
            needs=b"arameters",
        ),
        Facts(pattern=rb"Num_devices: (?P<world_size>\d+)", needs=b"Num_devices"),
        Facts(pattern=rb"Config param steps: (?P<planned_steps>\d+)", needs=b"Config param"),
        Facts(pattern=rb"Config param max_target_length: (?P<seq_len>\d+)", needs=b"Config param"),
        Facts(pattern=rb"Config param base_emb_dim: (?P<width>\d+)", needs=b"Config param"),
        Facts(pattern=rb"Config param base_num_decoder_layers: (?P<depth>\d+)", needs=b"Config param"),
        Facts(pattern=rb"Config param vocab_size: (?P<vocab_size>\d+)", needs=b"Config param"),
        Facts(pattern=rb"Config param learning_rate: (?P<learning_rate>[\d.e-]+)", needs=b"Config param"),
        Facts(pattern=rb"Config param checkpoint_period: (?P<checkpoint_every_steps>[1-9]\d*)", needs=b"Config param"),
    ),
    signs=(Sign(pattern=rb"\bMaxText\b|Config param base_num_decoder_layers:", weight=0.6),),
)
