"""fairseq, `simple` and `json` progress: `| train_inner | epoch 007: 93 / 1102 loss=4.159, …, num_updates=6700, …`.

The step is `num_updates`; `93 / 1102` counts batches of an epoch. `[train]` lines are means of whole epochs and are not
records. fairseq divides its losses by ln 2 before it prints them: they are bits (ppl = 2**nll_loss).
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, NUMBER, Facts, LineFormat, Pairs, Sign

_STAMP = (
    rb"\[?(?P<unix_seconds__year>\d{4})-(?P<unix_seconds__month>\d\d)-(?P<unix_seconds__day>\d\d)"
    rb" (?P<unix_seconds__h>\d\d):(?P<unix_seconds__min>\d\d):(?P<unix_seconds__s>\d\d)(?:,\d+\])?"
)
_KEYS = {
    "loss": "loss",
    "num updates": "step",
    "lr": "learning_rate",
    "gnorm": "grad_norm",
    "clip": "clipped__percent",
    "loss scale": "loss_scale",
    "wps": "tokens_per_second",
    "ups": "seconds__inverse",
    "wall": "elapsed_seconds",
}
_JSON_PAIR = rb"\"(?P<key>\w+)\": \"?(?P<value>" + LOSS + rb")\"?(?=[,}])"
_SIMPLE = Pairs(
    start=_STAMP + rb" \| INFO \| train_inner \| epoch (?P<epoch>\d+): +\d+ / \d+ ",
    pair=rb"(?P<key>\w+)=(?P<value>" + LOSS + rb")(?:, |\s*$)",
    keys=_KEYS,
    required=("loss",),
    needs=b"| train_inner |",
)
_JSON = Pairs(
    start=_STAMP + rb"(?:\[train_inner\]\[INFO\] - | \| INFO \| train_inner \| )\{",
    pair=_JSON_PAIR,
    keys={**_KEYS, "update": "epoch"},
    required=("loss",),
    needs=b"train_inner",
)
_SIMPLE_VALID = Pairs(
    start=_STAMP + rb" \| INFO \| valid \| epoch (?P<epoch>\d+) \| valid on '[^']*' subset",
    pair=rb" \| (?P<key>\w+) (?P<value>" + LOSS + rb")(?= \||\s*$)",
    keys={"loss": "eval_loss", "num updates": "step"},
    required=("eval_loss",),
    kind=EVAL,
    needs=b"| valid |",
)
_JSON_VALID = Pairs(
    start=_STAMP + rb"(?:\[valid\]\[INFO\] - | \| INFO \| valid \| )\{",
    pair=_JSON_PAIR,
    keys={"valid loss": "eval_loss", "valid num updates": "step", "epoch": "epoch"},
    required=("eval_loss",),
    kind=EVAL,
    needs=b"valid",
)


def _setting(name: bytes, fact: bytes, value: bytes) -> Facts:
    """A fact from the dump of the configuration, a Python dictionary in one line; 0 often means "no limit"."""
    return Facts(pattern=rb"'" + name + rb"': \[?(?P<" + fact + rb">" + value + rb")[,\]}]", needs=b"'" + name + b"'")


_POSITIVE = rb"(?=[\d.e-]*[1-9])" + NUMBER
FORMAT = LineFormat(
    name="fairseq",
    framework="fairseq",
    rows=(_SIMPLE, _JSON, _SIMPLE_VALID, _JSON_VALID),
    facts=(
        Facts(pattern=rb"num\. (?:shared )?model params: (?P<parameters>[\d,]+)", needs=b"model params: "),
        Facts(pattern=rb"num\. model params: (?P<parameters>[\d,]+)", needs=b"num. model params"),
        _setting(b"distributed_world_size", b"world_size", rb"\d+"),
        _setting(b"update_freq", b"grad_accum", rb"\d+"),
        _setting(b"tokens_per_sample", b"seq_len", rb"[1-9]\d*"),
        _setting(b"max_update", b"planned_steps", rb"[1-9]\d*"),
        _setting(b"max_epoch", b"planned_epochs", rb"[1-9]\d*"),
        _setting(b"lr", b"learning_rate", _POSITIVE),
        _setting(b"clip_norm", b"grad_clip", _POSITIVE),
        _setting(b"weight_decay", b"weight_decay", NUMBER),
        _setting(b"warmup_updates", b"warmup_steps", rb"\d+"),
        _setting(b"save_interval_updates", b"checkpoint_every_steps", rb"[1-9]\d*"),
        Facts(pattern=rb"'lr_scheduler': \{'_name': '(?P<schedule>\w+)'", needs=b"'lr_scheduler'"),
        Facts(pattern=rb"'optimizer': \{'_name': '(?P<optimizer>\w+)'", needs=b"'optimizer'"),
        Facts(pattern=rb"'bf16': True", needs=b"'bf16': True", constants={"precision": "bf16"}),
        Facts(pattern=rb"'fp16': True", needs=b"'fp16': True", constants={"precision": "fp16"}),
        Facts(pattern=rb"done training in (?P<total_seconds>[\d.]+) seconds", needs=b"done training in"),
    ),
    constants={"loss_unit": "bits"},
    signs=(Sign(pattern=rb"fairseq_cli\.train|fairseq\.trainer|fairseq\.tasks", weight=0.6),),
    notes={"clipped": "share of steps clipped since the last record"},
)
