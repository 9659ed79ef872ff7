"""Rust trainers' progress lines: `[  1050/50000 ] loss=5.3218 H=5.31 lr=0.004200 gnorm=8.96 tok/s=137 elapsed=4273s`.

cargo's warnings and a banner come first. Runs may go on beyond the planned steps.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, Facts, LineFormat, Mark, Pairs, Sign

FORMAT = LineFormat(
    name="rust",
    framework="Rust",
    rows=(
        Pairs(
            start=rb"\s*\[(?:progress\]|\s*(?P<step>\d+)\s*/\s*(?P<planned_steps>\d+)\s*\])",
            pair=rb"[ ,|]+(?P<key>[A-Za-z_/]+)[=:] ?(?P<value>" + LOSS + rb")",
            keys={
                "step": "step",
                "loss": "loss",
                "lr": "learning_rate",
                "gnorm": "grad_norm",
                "grad norm": "grad_norm",
                "tok/s": "tokens_per_second",
                "elapsed": "elapsed_seconds",
                "it/s": "seconds__inverse",
            },
            required=("loss",),
            needs=b"loss",
            weight=0.9,
        ),
    ),
    facts=(
        Facts(pattern=rb"(?m)^[ \t]*Total steps: (?P<planned_steps>\d+)", needs=b"Total steps"),
        Facts(pattern=rb"(?m)^[ \t]*Batch size: (?P<micro_batch>\d+)", needs=b"Batch size"),
        Facts(pattern=rb"(?m)^[ \t]*Sequence length: (?P<seq_len>\d+)", needs=b"Sequence length"),
        Facts(pattern=rb"(?m)^[ \t]*Learning rate: (?P<learning_rate>[\d.e-]+)", needs=b"Learning rate"),
        Facts(pattern=rb"(?m)^[ \t]*Dimension: (?P<width>\d+)", needs=b"Dimension"),
        Facts(pattern=rb"(?m)^[ \t]*Layers: (?P<depth>\d+)", needs=b"Layers"),
        Facts(pattern=rb"(?m)^[ \t]*Heads: (?P<heads>\d+)", needs=b"Heads"),
        Facts(
            pattern=rb"Estimated params: (?P<parameters>[\d.]+)(?P<parameters__unit>[KMB])", needs=b"Estimated params"
        ),
        Facts(pattern=rb"Training for (?P<planned_epochs>\d+) epochs", needs=b"epochs"),
        Facts(pattern=rb"(?m)^[ \t]*Device: (?P<gpu>\w+)", needs=b"Device:"),
    ),
    marks=(Mark(pattern=rb"NaN/Inf loss detected at step (?P<step>\d+)", kind="not_finite", needs=b"NaN/Inf loss"),),
    signs=(
        Sign(pattern=rb"(?m)^[ \t]*Running `target/(?:release|debug)/", weight=0.6),
        Sign(pattern=rb"(?m)^[ \t]*Finished `(?:release|dev)` profile", weight=0.6),
    ),
)
