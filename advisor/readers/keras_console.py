"""Keras' `fit` on a console: `Epoch 3/10`, then a bar whose last state has the means of the epoch.

`469/469 [====] - 3s 6ms/step - loss: 0.25 - val_loss: 0.13`, in Keras 3 with `━` for the bar; `verbose=2` has none.
The states of the bar before its last one are running means of an unfinished epoch: no records.
"""

from __future__ import annotations

from typing import Any

from advisor.readers.line_format import LOSS, SETS, LineFormat, Pairs, Row, Sign

_BAR = rb"(?:\[=*>?\.*\]|(?:\xe2\x94\x81)+)"
# `485/485 ━━━ 0s 105ms/step`: what is left after so many steps of that length; they did not take it
_LEFT = (
    rb"(?!\s*\d{3,}/\d+ (?:" + _BAR + rb" )?(?:- )?0s \d{2,}ms)(?!\s*\d\d/\d+ (?:" + _BAR + rb" )?(?:- )?0s \d{3,}ms)"
)
_PAIRS: dict[str, Any] = dict(
    pair=rb"(?:^|- )?(?P<key>[a-z]\w*): (?P<value>" + LOSS + rb")(?= - |\s*$| -)",
    keys={
        "loss": "loss",
        "val loss": "eval_loss",
        "accuracy": "accuracy",
        "acc": "accuracy",
        "val accuracy": "eval_accuracy",
        "val acc": "eval_accuracy",
        "lr": "learning_rate",
        "learning rate": "learning_rate",
    },
    required=("loss",),
    needs=b"loss: ",
)
_EPOCH = Pairs(
    start=_LEFT + rb"\s*(\d+)/\1 (?:" + _BAR + rb" )?(?:- )?(?=\d)"
    rb"(?:(?P<epoch_seconds>\d+)s |\d+h?:?[\d:]*m?s )?[^:\n]*?(?=[a-z])",
    **_PAIRS,
)
# `3083s - loss: 1.7197 - acc: 0.5893`: verbose=2 of older versions has neither bar nor steps
_BARE = Pairs(start=rb"\s*(?:- )?(?P<epoch_seconds>\d+)s (?:\d+[mu]s/(?:step|sample|epoch) )?- (?=loss: )", **_PAIRS)
FORMAT = LineFormat(
    name="keras",
    framework="keras",
    rows=(
        _EPOCH,
        _BARE,
        Row(pattern=rb"\s*Epoch (?P<epoch>\d+)/(?P<planned_epochs>\d+)\s*$", kind=SETS, needs=b"Epoch "),
    ),
    signs=(
        Sign(pattern=rb"(?m)^\s*Epoch \d+/\d+\s*\n.*\[[=>.]{5,}\]", weight=0.3),
        Sign(pattern=rb"(?m)^\s*Epoch \d+/\d+\s*\n\s*(?:- )?\d+s (?:\d+[mu]s/\w+ )?- loss: ", weight=0.3),
    ),
    notes={"loss": "the mean over each epoch", "accuracy": "the mean over each epoch"},
)
