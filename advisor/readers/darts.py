"""DARTS and its many descendants: `train 050 2.107612e+00 20.649511 71.844368` under `epoch 3 lr 2.5e-02`.

What follows the word is the batch within the epoch, the running mean of the epoch's loss, then accuracies
(quark0/darts, `train_search.py`: `logging.info('train %03d %e %f %f', …)`). Batches start again with every epoch,
which is what counts.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, MORE, SETS, LineFormat, Row

_DATE = rb"(?P<unix_seconds__year>\d{4})-(?P<unix_seconds__month>\d\d)-(?P<unix_seconds__day>\d\d) "
_CLOCK = rb"(?P<unix_seconds__h>\d\d):(?P<unix_seconds__min>\d\d):(?P<unix_seconds__s>\d\d)"
_STAMP = rb"(?:(?:" + _DATE + rb")?" + _CLOCK + rb",\d{3} )?"
_FRONT = rb"(?:\d\d/\d\d \d\d:\d\d:\d\d [AP]M (?:\| )?|" + _STAMP + rb")"
_MEAN = rb" \d{3,} (?P<%s>\d\.\d+e[-+]\d\d|nan|inf)"

FORMAT = LineFormat(
    name="darts",
    framework="DARTS (PyTorch)",
    rows=(
        Row(pattern=_FRONT + rb"train" + _MEAN % b"loss", needs=b"train ", comma=b" "),
        Row(
            pattern=_FRONT + rb"valid_loss:? +(?P<eval_loss>" + LOSS + rb")", kind=MORE, needs=b"valid_loss", comma=b" "
        ),
        Row(pattern=rb"(?:[\d/:, -]+|[AP]M )*epoch (?P<epoch>\d+) lr", kind=SETS, needs=b"epoch "),
    ),
    notes={"loss": "the running mean of the epoch"},
)
