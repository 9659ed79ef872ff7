"""nanoGPT: `iter 10: loss 4.6810, time 49.27ms, mfu 7.56%` and `step 250: train loss 1.9753, val loss 2.0769`.

The time of an iteration that evaluates has the evaluation in it. `mfu -100.00%` means "not yet measured". Derivatives
print bits per character (`BPC`), at times in one of the two lines only: validation is then brought to the same unit.
"""

from __future__ import annotations

import dataclasses
import math

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Row, Sign
from advisor.readers.run_table import RunTable

_ITER = rb"\s*iter (?P<step>\d+): loss (?P<loss>" + LOSS + rb")"
_TIMES = rb"(?:, time (?P<seconds__ms>[\d.]+)ms)?(?:, mfu (?P<mfu__percent>-?[\d.]+)%)?"
_EVAL = rb"\s*step (?P<step>\d+): train loss (?P<eval_train_loss>" + LOSS + rb")"


def _one_unit(table: RunTable) -> RunTable:
    if table.facts.get("loss_unit") != "bits" or table.facts.get("eval_loss_unit") != "nats":
        return table
    columns, told = dict(table.columns), dict(table.provenance)
    for name in ("eval_loss", "eval_train_loss"):
        if name in columns:
            columns[name] = columns[name] / math.log(2)
            told[name] = "printed in nats, made bits as the training loss is"
    note = "training loss is printed in bits, validation in nats: validation is divided by ln 2"
    facts = {**table.facts, "eval_loss_unit": "bits"}
    return dataclasses.replace(table, columns=columns, provenance=told, facts=facts, notes=(*table.notes, note))


FORMAT = LineFormat(
    name="nanogpt",
    framework="nanoGPT",
    rows=(
        Row(pattern=_ITER + rb" BPC" + _TIMES, needs=b" BPC", missing={"mfu": -1.0}, facts={"loss_unit": "bits"}),
        Row(pattern=_ITER + _TIMES, needs=b": loss ", missing={"mfu": -1.0}),
        Row(
            pattern=_EVAL + rb" BPC, val loss (?P<eval_loss>" + LOSS + rb") BPC",
            kind=EVAL,
            needs=b" BPC, val loss ",
            facts={"eval_loss_unit": "bits"},
        ),
        Row(
            pattern=_EVAL + rb", val loss (?P<eval_loss>" + LOSS + rb")",
            kind=EVAL,
            needs=b", val loss ",
            facts={"eval_loss_unit": "nats"},
        ),
    ),
    facts=(
        Facts(pattern=rb"tokens per iteration will be: (?P<step_tokens>[\d,]+)", needs=b"tokens per iteration"),
        Facts(
            pattern=rb"number of parameters: (?P<parameters>[\d.]+)(?P<parameters__unit>[MB])", needs=b"number of par"
        ),
        Facts(pattern=rb"(?m)^(?:Overriding: )?max_iters = (?P<planned_steps>[\d_]+)", needs=b"max_iters"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?batch_size = (?P<micro_batch>\d+)", needs=b"batch_size"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?block_size = (?P<seq_len>\d+)", needs=b"block_size"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?n_layer = (?P<depth>\d+)", needs=b"n_layer"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?n_head = (?P<heads>\d+)", needs=b"n_head"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?n_embd = (?P<width>\d+)", needs=b"n_embd"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?learning_rate = (?P<learning_rate>[\d.e-]+)", needs=b"learning_rate"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?eval_interval = (?P<eval_every_steps>\d+)", needs=b"eval_interval"),
        Facts(pattern=rb"(?m)^(?:Overriding: )?dropout = (?P<dropout>[\d.]+)", needs=b"dropout"),
        Facts(pattern=rb"found vocab_size = (?P<vocab_size>\d+)", needs=b"found vocab_size"),
        Facts(pattern=rb"compiling the model", needs=b"compiling the model", constants={"compile": True}),
    ),
    signs=(
        Sign(pattern=rb"(?i)\bnano-?gpt/train\.py|out-shakespeare-char", weight=0.8),
        Sign(pattern=rb"tokens per iteration will be:", weight=0.8),
    ),
    notes={"seconds": "of an iteration that evaluates: with the evaluation", "mfu": "-100 % means not measured"},
    finish=_one_unit,
)
