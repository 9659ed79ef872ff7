"""build-nanogpt: its log file (`250 val 4.97`, `250 train 5.01`, `250 hella 0.25`) and its console lines.

The console prints tokens/s of all devices and time with synchronisation; the file has neither.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Mark, Row, Sign

_CONSOLE = Row(
    pattern=(
        rb"\s*step\s+(?P<step>\d+) \| loss: (?P<loss>" + LOSS + rb") \|(?: lr:? (?P<learning_rate>[\d.e+-]+) \|)?"
        rb" norm: (?P<grad_norm>" + LOSS + rb") \| (?:dt|time): (?P<seconds__ms>[\d.]+) ?ms"
        rb" \| tok(?:ens)?/sec: (?P<tokens_per_second>[\d.,]+)"
    ),
    needs=b"| norm: ",
)

FORMAT = LineFormat(
    name="build_nanogpt",
    framework="build-nanogpt",
    rows=(
        Row(pattern=rb"(?P<step>\d+) train (?P<loss>" + LOSS + rb")\s*$", needs=b" train "),
        Row(pattern=rb"(?P<step>\d+) val (?P<eval_loss>" + LOSS + rb")\s*$", kind=EVAL, needs=b" val "),
        _CONSOLE,
        Row(
            pattern=rb"\s*validation loss: (?P<eval_loss>" + LOSS + rb")",
            kind=EVAL,
            needs=b"validation loss: ",
            step="next",
            weight=0.5,
        ),
    ),
    facts=(
        Facts(pattern=rb"total desired batch size: (?P<step_tokens>\d+)", needs=b"total desired batch size"),
        Facts(pattern=rb"calculated gradient accumulation steps: (?P<grad_accum>\d+)", needs=b"accumulation steps"),
    ),
    marks=(
        Mark(pattern=rb"(?m)^\d+ hella (?P<hellaswag>[\d.]+)\s*$", kind="score", needs=b" hella "),
        Mark(pattern=rb"HellaSwag accuracy: \d+/\d+=(?P<hellaswag>[\d.]+)", kind="score", needs=b"HellaSwag accuracy"),
    ),
    signs=(
        Sign(pattern=rb"(?i)build[-_]?nanogpt", weight=0.4, path=True),
        Sign(pattern=rb"=> calculated gradient accumulation steps:", weight=0.8),
    ),
)
