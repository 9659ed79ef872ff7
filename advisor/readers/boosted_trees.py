"""XGBoost and LightGBM: `[100]\ttrain-logloss:0.49\teval-logloss:0.51`, `[100]\tvalid_0's l2: 0.2`; a round is a step.

Of several metrics the first that is a loss is taken; sets that are called training are, every other is a validation set
(scikit-learn's interface calls whatever it is given `validation_0`). At the end the best round is printed once more:
that line is no record.
"""

from __future__ import annotations

import re

from advisor.readers.chunks import Chunk
from advisor.readers.line_format import LOSS, LineFormat, Mark, Row, Sign
from advisor.readers.line_reader import LineReader

_ROUND = rb"\s*(?:\[\d\d:\d\d:\d\d\]\s*)?\[(?P<step>\d+)\][\t ]+"
_METRIC = rb"(?:-|'s )(?:m?logloss|binary_logloss|multi_logloss|cross_entropy|m?error|rmsle|rmse|mae|l1|l2)\s?: ?"
_OTHER = rb"(?:[\w. ]{1,40}(?:-|'s )[\w@. ]{1,30}: ?[-\d.e]{1,24}[\t ]+){0,6}?"
_TRAIN = rb"train(?:ing)?" + _METRIC + rb"(?P<loss>" + LOSS + rb")"
_VALID = rb"(?!train)[A-Za-z]\w{0,30}" + _METRIC + rb"(?P<eval_loss>" + LOSS + rb")"

FORMAT = LineFormat(
    name="boosted_trees",
    framework="boosted trees",
    rows=(
        Row(
            pattern=_ROUND + _OTHER + _TRAIN + rb"(?:[\t ]+" + _OTHER + _VALID + rb")?",
            needs=b"train",
        ),
        Row(pattern=_ROUND + _OTHER + _VALID, needs=b"["),
    ),
    marks=(
        Mark(
            pattern=rb"(?i)\s*(?:early stopping|did not meet early stopping)[,.]? ?best iteration is",
            kind="finished",
            needs=b"est iteration is",
        ),
    ),
    signs=(
        Sign(pattern=rb"(?m)^\[LightGBM\] \[(?:Info|Warning)\] ", weight=0.3),
        Sign(pattern=rb"(?m)^\s*\[\d+\]\t[A-Za-z]\w*(?:-|'s )\w+: ?[\d.]", weight=0.5),
    ),
    notes={"step": "rounds of boosting: each adds a tree"},
)


def _best_on_its_line(chunk: Chunk) -> Chunk:
    text = re.sub(rb"(?m)(est iteration is:)[\t ]*\n(?=\[\d+\])", rb"\1 ", chunk.text)
    return chunk if text == chunk.text else Chunk(text=text, first_line=chunk.first_line)


READER = LineReader(FORMAT, _best_on_its_line)
