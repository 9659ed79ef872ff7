"""Hugging Face Trainer on stdout: `{'loss': 3.5, 'grad_norm': 0.3, 'learning_rate': 5e-05, 'epoch': 0.01}`.

The Trainer prints Python dictionaries with an epoch and no step, rounded so that epochs repeat: `console_steps` finds
the steps. A progress bar may stand before the dictionary in its line. Version 5 prints the numbers as strings.
`learning_rate` is that of the next step, `loss` the mean since the last record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.readers.deepspeed import FACTS as DEEPSPEED_FACTS
from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Pairs, Sign

# ms-swift counts: 'global_step/max_steps': '5/40'
_COUNTED = rb"(?:(?=[^}]*['\"]global_step/max_steps['\"]: ['\"]\d+/(?P<planned_steps>\d+))|(?=['\"]))"
_START = rb"[^{]*\{" + _COUNTED
_PAIR = rb"['\"](?P<key>[^'\"]{1,80})['\"]: ['\"]?(?P<value>" + LOSS + rb")(?:/\d+)?['\"]?(?=[,}])"
_TRAIN_KEYS = {
    "loss": "loss",
    "learning rate": "learning_rate",
    "grad norm": "grad_norm",
    "epoch": "epoch",
    "step": "step",
    "iter": "step",
    "global step": "step",
    "global step/max steps": "step",
    "num tokens": "tokens",
    "num input tokens seen": "tokens",
    "tokens per second per gpu": "device_tokens_per_second",
    "memory/max mem active(gib)": "memory_bytes__GiB",
    "memory/max active (gib)": "memory_bytes__GiB",
    "memory/device mem reserved(gib)": "reserved_bytes__GiB",
    "memory/device reserved (gib)": "reserved_bytes__GiB",
}
_EVAL_KEYS = {
    "eval loss": "eval_loss",
    "eval runtime": "eval_seconds",
    "epoch": "epoch",
    "step": "step",
}
# the same for trainers built on this one, which try their own rows first
ROWS = (
    Pairs(start=_START, pair=_PAIR, keys=_TRAIN_KEYS, required=("loss",), needs=b"loss", weight=0.9),
    Pairs(
        start=_START, pair=_PAIR, keys=_EVAL_KEYS, required=("eval_loss",), kind=EVAL, needs=b"eval_loss", weight=0.9
    ),
)


def row_with(text: bytes, facts: Mapping[str, Any] | None = None) -> Pairs:
    """A training record that only a trainer built on this one prints: its dictionary has `text` (an expression)."""
    start = rb"[^{]*\{(?=[^}]*(?:" + text + rb"))" + _COUNTED
    return Pairs(start=start, pair=_PAIR, keys=_TRAIN_KEYS, required=("loss",), needs=b"loss", facts=facts or {})


def _option(name: bytes, fact: bytes, value: bytes = rb"[\d.eE+-]+", needs: bytes = b"") -> Facts:
    """A fact from the command line, `--name value`, as launchers and shells with -x print it."""
    return Facts(pattern=rb"--" + name + rb"[ =]['\"]?(?P<" + fact + rb">" + value + rb")", needs=needs or b"--" + name)


def _setting(name: bytes, fact: bytes, value: bytes) -> Facts:
    """The same wherever it is printed: `name=10`, `'name': 10`, `name: 10`, `--name 10`."""
    return Facts(
        pattern=rb"(?<![\w.])" + name + rb"['\"]?\s*[=: ]\s*['\"]?(?P<" + fact + rb">" + value + rb")(?![\w.])",
        needs=name,
    )


FACTS = (
    Facts(pattern=rb"Total optimization steps = (?P<planned_steps>[\d,]+)", needs=b"Total optimization steps"),
    Facts(pattern=rb"Num Epochs = (?P<planned_epochs>[\d,]+)", needs=b"Num Epochs"),
    Facts(pattern=rb"Instantaneous batch size per device = (?P<micro_batch>[\d,]+)", needs=b"Instantaneous batch"),
    Facts(pattern=rb"Gradient Accumulation steps = (?P<grad_accum>[\d,]+)", needs=b"Gradient Accumulation"),
    Facts(pattern=rb"Total train batch size \([^)\n]*\) = (?P<step_samples>[\d,]+)", needs=b"Total train batch size"),
    Facts(
        pattern=rb"trainable params: (?P<trained_parameters>[\d,]+) \|\| all params: (?P<parameters>[\d,]+)",
        needs=b"|| all params",
    ),
    Facts(pattern=rb"Number of trainable parameters = (?P<trained_parameters>[\d,]+)", needs=b"trainable parameters ="),
    Facts(
        pattern=rb"Trainable parameters = (?P<trained_parameters>[\d,]+)(?:/| of )(?P<parameters>[\d,]+)",
        needs=b"Trainable parameters =",  # Unsloth
    ),
    _setting(b"logging_steps", b"logging_steps", rb"[1-9]\d*|0?\.\d+"),
    _setting(b"max_steps", b"planned_steps", rb"[1-9]\d*"),
    _option(b"num_train_epochs", b"planned_epochs", rb"[\d.]+"),
    _option(b"per_device_train_batch_size", b"micro_batch", rb"\d+"),
    _option(b"gradient_accumulation_steps", b"grad_accum", rb"\d+"),
    _option(b"learning_rate", b"learning_rate"),
    _option(b"lr_scheduler_type", b"schedule", rb"\w+"),
    _option(b"warmup_steps", b"warmup_steps", rb"\d+"),
    _option(b"weight_decay", b"weight_decay"),
    _option(b"max_grad_norm", b"grad_clip"),
    _option(b"(?:model_max_length|max_seq_length|max_seq_len)", b"seq_len", rb"\d+", needs=b"--m"),
    _option(rb"save_strategy[ =]['\"]?steps\b[^\n]*--save_steps", b"checkpoint_every_steps", rb"\d+", b"--save_steps"),
    Facts(pattern=rb"--bf16(?:[ =]True| --)", needs=b"--bf16", constants={"precision": "bf16"}),
    Facts(pattern=rb"--fp16(?:[ =]True| --)", needs=b"--fp16", constants={"precision": "fp16"}),
    *DEEPSPEED_FACTS,
)
NOTES = {
    "loss": "mean since the last record",
    "learning_rate": "of the step after the record",
    "epoch": "rounded by the Trainer",
}
SIGNS = (
    Sign(pattern=rb"['\"]train_runtime['\"]:|\*{5} Running training \*{5}", weight=0.5),
    Sign(pattern=rb"transformers/trainer\.py|--per_device_train_batch_size|TrainingArguments", weight=0.35),
)
FORMAT = LineFormat(
    name="hf_stdout",
    framework="Hugging Face Trainer",
    rows=ROWS,
    facts=FACTS,
    signs=SIGNS,
    notes=NOTES,
    steps_by_bar=True,
)
