"""OLMo and OLMo-core: a header `[step=1/739328,epoch=0]` and one `key=value` line per metric under it.

Device rates are per device; MFU is a percentage in OLMo-core. Headers of other ranks have nothing under them.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, MORE, Facts, LineFormat, Pairs, Row, Sign

_METRICS = {
    "train/crossentropyloss": "loss",
    "train/ce loss": "loss",
    "optim/total grad norm": "grad_norm",
    "optim/learning rate group0": "learning_rate",
    "optim/lr": "learning_rate",
    "optim/lr (group 0)": "learning_rate",
    "optim/step skipped": "skipped",
    "throughput/total tokens": "tokens",
    "throughput/device/tokens per second": "device_tokens_per_second",
    "throughput/device/tps": "device_tokens_per_second",
    "throughput/device/batches per second": "seconds__inverse",
    "throughput/device/bps": "seconds__inverse",
    "throughput/device/mfu": "mfu__percent",
    "throughput/device/data loading (s)": "data_seconds",
    "system/peak gpu memory (mb)": "memory_bytes__MB_",
    "gpu memory/gpu active mem (gib)": "memory_bytes__GiB",
    "gpu memory/gpu reserved mem (gib)": "reserved_bytes__GiB",
}

FORMAT = LineFormat(
    name="olmo",
    framework="OLMo",
    rows=(
        Row(
            pattern=(
                rb".{0,200}?(?:rank=(?P<rank>\d+)\] ?.{0,40}?)?"
                rb"\[step=(?P<step>\d+)/(?P<planned_steps>\d+)(?:,\s*epoch=(?P<epoch>\d+))?(?:,\s*eta=[^\]]*)?\]"
            ),
            needs=b"[step=",
        ),
        Pairs(
            start=rb"[ \t]{1,16}(?=\w)",
            pair=rb"(?P<key>[\w/ ().-]{1,80}?)=(?P<value>" + LOSS + rb")\s*$",
            keys=_METRICS,
            required=tuple(set(_METRICS.values())),
            kind=MORE,
            needs=b"/",
        ),
    ),
    facts=(
        Facts(pattern=rb"Total number of parameters: (?P<parameters>[\d,]+)", needs=b"number of parameters"),
        Facts(pattern=rb"(?m)world[_ ]size[:=] ?(?P<world_size>\d+)", needs=b"world"),
        Facts(pattern=rb"Training for (?P<planned_steps>[\d,]+) steps", needs=b"Training for"),
    ),
    signs=(Sign(pattern=rb"\bolmo(?:_core)?\.train", weight=0.6),),
)
