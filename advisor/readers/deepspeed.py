"""DeepSpeed's own lines, where nothing else prints records: `[Rank 0] step=10, skipped=0, lr=[…]`, timers, losses.

Its engine prints no loss (the pipeline engine does): such a log is recognised for its events, facts and status.
`forward: … | backward: …` are sums over a step's micro-batches, the `*_microstep` timers those of one.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, MORE, Facts, LineFormat, Pairs, Row, Sign

_FRONT = rb"(?:\[[\d :,.-]+\] \[INFO\] \[[\w.]+:\d+:\w+\] )?(?:\[Rank \d+\] )?(?:rank=\d+ )?"

_STEP = Row(
    pattern=_FRONT + rb"step=(?P<step>\d+), skipped=\d+, lr=\[(?P<learning_rate>[\d.e+-]+)",
    needs=b"step=",
    weight=0.5,
)
_PIPELINE = Row(
    pattern=(
        _FRONT + rb"steps: (?P<step>\d+) loss: (?P<loss>" + LOSS + rb") iter time \(s\): (?P<seconds>[\d.]+)"
        rb" samples/sec: [\d.]+"
    ),
    needs=b"iter time (s)",
)
_MEMORY = Row(
    pattern=(
        _FRONT + rb"epoch=\d+/micro_step=\d+/global_step=(?P<step>\d+), RunningAvgSamplesPerSec=[\d.]+,"
        rb" CurrSamplesPerSec=[\d.]+, MemAllocated=[\d.]+GB, MaxMemAllocated=(?P<memory_bytes__GiB>[\d.]+)GB"
    ),
    needs=b"MaxMemAllocated=",
)
_TIMES = Pairs(
    start=_FRONT + rb"time \(ms\) \|",
    pair=rb" (?P<key>\w+): (?P<value>[\d.]+) *(?:\||$)",
    keys={
        "forward": "forward_seconds__ms",
        "fwd": "forward_seconds__ms",
        "backward": "backward_seconds__ms",
        "bwd": "backward_seconds__ms",
        "step": "optimizer_seconds__ms",
    },
    required=("forward_seconds__ms",),
    kind=MORE,
    needs=b"time (ms) |",
)


def _setting(name: bytes, fact: bytes, value: bytes = rb"\d+") -> Facts:
    """A fact from the dump of the configuration, `[config.py:1000:print]   name ....... value`."""
    return Facts(pattern=rb"print\] +" + name + rb" \.+ (?P<" + fact + rb">" + value + rb")", needs=name + b" ..")


FACTS = (
    _setting(b"world_size", b"world_size"),
    _setting(b"train_micro_batch_size_per_gpu", b"micro_batch"),
    _setting(b"gradient_accumulation_steps", b"grad_accum"),
    _setting(b"train_batch_size", b"step_samples"),
    _setting(b"gradient_clipping", b"grad_clip", rb"[\d.]*[1-9][\d.]*"),
    Facts(pattern=rb"(?:bfloat16|bf16)_enabled \.+ True", needs=b"16_enabled ..", constants={"precision": "bf16"}),
    Facts(pattern=rb"fp16_enabled \.+ True", needs=b"fp16_enabled ..", constants={"precision": "fp16"}),
    Facts(pattern=rb"TOTAL_PARAMS=(?P<parameters>\d+)", needs=b"TOTAL_PARAMS="),
    Facts(
        pattern=rb"['\"]train_runtime['\"]: ['\"]?(?P<total_seconds>[\d.]+(?:e[-+]?\d+)?)",
        needs=b"train_runtime",
        last=True,
    ),
)
_ROWS = (_STEP, _PIPELINE, _MEMORY, _TIMES)
_NOTES = {"memory_bytes": "DeepSpeed's GB are 2**30 bytes"}
_ENGINE = rb"\[config\.py:\d+:print\]|\[logging\.py:\d+:log_dist\]"

FORMAT = LineFormat(
    name="deepspeed",
    framework="DeepSpeed",
    rows=_ROWS,
    facts=FACTS,
    weight=0.6,
    signs=(Sign(pattern=_ENGINE, weight=0.4), Sign(pattern=rb"(?i)deepspeed", weight=0.2)),
    notes=_NOTES,
)
# under the Hugging Face Trainer, which says that it trained, and of losses nothing
UNDER_HUGGING_FACE = LineFormat(
    name="deepspeed_hf",
    framework="Hugging Face Trainer + DeepSpeed",
    rows=_ROWS,
    facts=FACTS,
    weight=0.5,
    signs=(Sign(pattern=rb"(?s)(?:" + _ENGINE + rb").*(?:'train_runtime'|\*{5} Running training)", weight=0.62),),
    notes=_NOTES,
)
