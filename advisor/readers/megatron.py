"""Megatron-LM and Megatron-DeepSpeed: ` iteration 10/ 1000 | … | lm loss: 1.2E+01 | … |`, then a `time (ms) | …` line.

Two dialects: Megatron-LM prints `lm loss`, Megatron-DeepSpeed `lm-loss` or seconds per iteration. Values are means over
the iterations since the last record. An fp16 run skips iterations while it looks for a loss scale: a record whose
iterations were all skipped has no loss. `grad norm: 0.000` and `loss scale: -1.0` mean that DeepSpeed holds them and
did not tell.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, MORE, NUMBER, Facts, LineFormat, Pairs, Row, Sign

_HOST = rb"(?:[\w.-]+: )?"  # pdsh and srun -l put it in front
_STAMP = (
    rb"(?:\[(?P<unix_seconds__year>\d{4})-(?P<unix_seconds__month>\d\d)-(?P<unix_seconds__day>\d\d)"
    rb" (?P<unix_seconds__h>\d\d):(?P<unix_seconds__min>\d\d):(?P<unix_seconds__s>\d\d)(?:\.\d+)?\] *)?"
)
PAIR = rb" ?(?P<key>[A-Za-z][^|:]*): *(?P<value>" + LOSS + rb") *(?:\||$)"
KEYS = {
    "lm loss": "loss",
    "elapsed time per iteration (ms)": "seconds__ms",
    "elapsed time per iteration (s)": "seconds",
    "throughput per gpu (tflop/s/gpu)": "device_flops__tera",
    "learning rate": "learning_rate",
    "loss scale": "loss_scale",
    "grad norm": "grad_norm",
    "consumed tokens": "tokens",
    "global batch size": "step_samples",
    "number of skipped iterations": "skipped",
}
MISSING = {"grad_norm": 0.0, "loss_scale": -1.0}

_ITERATION = Pairs(
    start=_HOST + rb"\s*" + _STAMP + rb"iteration +(?P<step>\d+)/ *(?P<planned_steps>\d+) \|",
    pair=PAIR,
    keys=KEYS,
    required=("seconds__ms", "seconds", "loss"),
    needs=b"iteration ",
    missing=MISSING,
)
TIMES = Pairs(
    start=_HOST + rb"\s*time \(ms\) \|",
    pair=PAIR,
    keys={
        "forward": "forward_seconds__ms",
        "forward compute": "forward_seconds__ms",
        "backward": "backward_seconds__ms",
        "backward compute": "backward_seconds__ms",
        "optimizer": "optimizer_seconds__ms",
        "batch generator": "data_seconds__ms",
    },
    required=("forward_seconds__ms", "backward_seconds__ms", "optimizer_seconds__ms"),
    kind=MORE,
    needs=b"time (ms) |",
)


def _across_ranks(name: bytes, target: bytes) -> Row:
    """One line of `(min, max) time across ranks (ms):`; the slowest rank makes the step."""
    pattern = rb"\s+" + name + rb" \.+: \([\d.]+, (?P<" + target + rb"_seconds__ms>[\d.]+)\)"
    return Row(pattern=pattern, kind=MORE, needs=name + b" ..")


MEMORY = Row(
    pattern=(
        rb"\s*(?:\[Rank \d+\] )?\(?(?:after \d+ iterations\)? )memory \(MB\) \| allocated: [\d.]+"
        rb" \| max allocated: (?P<memory_bytes__MiB>[\d.]+) \| reserved: [\d.]+"
        rb" \| max reserved: (?P<reserved_bytes__MiB>[\d.]+)"
    ),
    kind=MORE,
    needs=b"memory (MB)",
)
VALIDATION = Row(
    pattern=(
        _HOST + rb"\s*validation (?:loss|results) at iteration (?P<step>\d+)[^|]*\| (?:lm[ _-]?)?loss value: "
        rb"(?P<eval_loss>" + LOSS + rb")"
    ),
    kind=EVAL,
    needs=b"loss value",
)
FINAL_VALIDATION = Row(
    pattern=rb"\s*validation loss at the end of training[^|]*\| lm[ _-]loss value: (?P<eval_loss>" + LOSS + rb")",
    kind=EVAL,
    needs=b"at the end of training",
    step="previous",
)


def argument(name: bytes, fact: bytes, value: bytes = NUMBER) -> Facts:
    """A fact from the dump of arguments, `  name ........ value`."""
    return Facts(pattern=rb"(?m)^[ \t]+" + name + rb" \.{2,} (?P<" + fact + rb">" + value + rb")", needs=name + b" ..")


ARGUMENTS = (
    argument(b"num_layers", b"depth", rb"\d+"),
    argument(b"hidden_size", b"width", rb"\d+"),
    argument(b"num_attention_heads", b"heads", rb"\d+"),
    argument(b"num_query_groups", b"kv_heads", rb"\d+"),
    argument(b"ffn_hidden_size", b"ffn_width", rb"\d+"),
    argument(b"padded_vocab_size", b"vocab_size", rb"\d+"),
    argument(b"seq_length", b"seq_len", rb"\d+"),
    argument(b"micro_batch_size", b"micro_batch", rb"\d+"),
    argument(b"global_batch_size", b"step_samples", rb"\d+"),
    argument(b"world_size", b"world_size", rb"\d+"),
    argument(b"train_iters", b"planned_steps", rb"\d+"),
    argument(b"lr", b"learning_rate"),
    argument(b"min_lr", b"min_learning_rate"),
    argument(b"lr_decay_style", b"schedule", rb"\w+"),
    argument(b"lr_warmup_iters", b"warmup_steps", rb"[1-9]\d*"),
    argument(b"clip_grad", b"grad_clip"),
    argument(b"weight_decay", b"weight_decay"),
    argument(b"save_interval", b"checkpoint_every_steps", rb"\d+"),
    argument(b"eval_interval", b"eval_every_steps", rb"\d+"),
    Facts(pattern=rb"(?m)^[ \t]+bf16 \.+ True", needs=b"bf16 ..", constants={"precision": "bf16"}),
    Facts(pattern=rb"(?m)^[ \t]+fp16 \.+ True", needs=b"fp16 ..", constants={"precision": "fp16"}),
    Facts(pattern=rb"\(new size: (?P<vocab_size>\d+)\)", needs=b"padded vocab"),
    Facts(pattern=rb"and total parameters (?P<parameters__B_>[\d.]+) B", needs=b"total parameters"),
    Facts(pattern=rb"TOTAL_PARAMS=(?P<parameters>\d+)", needs=b"TOTAL_PARAMS="),
)

FORMAT = LineFormat(
    name="megatron",
    framework="Megatron-LM",
    rows=(
        _ITERATION,
        TIMES,
        _across_ranks(b"forward-compute", b"forward"),
        _across_ranks(b"backward-compute", b"backward"),
        _across_ranks(b"optimizer", b"optimizer"),
        _across_ranks(b"batch-generator", b"data"),
        MEMORY,
        VALIDATION,
        FINAL_VALIDATION,
    ),
    facts=ARGUMENTS,
    signs=(
        Sign(pattern=rb"(?i)megatron", weight=0.3),
        Sign(pattern=rb"tensor-model-parallel size: \d+|pretrain_gpt\w*\.py", weight=0.4),
    ),
    notes={
        "seconds": "mean of the iterations since the last record",
        "grad_norm": "0.000 is read as not collected",
        "skipped": "iterations skipped by loss scaling since the last record",
    },
)
