"""MosaicML Composer and LLM Foundry: `[batch=12/4800]:`, then one indented `Train loss/train/total: 9.5` per metric.

The memory monitor prints gigabytes of 10**9 bytes (whole bytes until 0.12), `time/train` hours since the run began.
"""

from __future__ import annotations

from advisor.readers.line_format import LOSS, MORE, Facts, LineFormat, Row, Sign

_GB = rb"(?P<%s_bytes__GB_>\d{1,5}\.\d+|\d{1,5})\s*$"
_BYTES = rb"(?P<%s_bytes>\d{6,})\s*$"


def _metric(name: bytes, value: bytes) -> Row:
    return Row(pattern=rb"\s+(?:Train|Eval) " + name + rb": " + value, kind=MORE)


FORMAT = LineFormat(
    name="composer",
    framework="Composer",
    rows=(
        Row(
            pattern=rb"\s*\[(?:epoch=(?P<epoch>\d+)(?:/\d+)?\]\[)?batch=(?P<step>\d+)(?:/(?P<planned_steps>\d+))?\]:",
            needs=b"batch=",
        ),
        _metric(rb"loss/train/total", rb"(?P<loss>" + LOSS + rb")"),
        _metric(rb"metrics/eval/(?:[\w./-]+/)?LanguageCrossEntropy", rb"(?P<eval_loss>" + LOSS + rb")"),
        _metric(rb"time/token", rb"(?P<tokens>\d+)\s*$"),
        _metric(rb"time/train", rb"(?P<elapsed_seconds__h>[\d.]+)"),
        _metric(rb"wall_clock/train", rb"(?P<elapsed_seconds>[\d.]+)"),
        _metric(rb"throughput/tokens_per_sec", rb"(?P<tokens_per_second>[\d.]+)"),
        _metric(rb"throughput/device/mfu", rb"(?P<mfu>[\d.]+)"),
        _metric(rb"lr-\w+/group0", rb"(?P<learning_rate>[\d.e+-]+)"),
        _metric(rb"l2_norm/grad/global", rb"(?P<grad_norm>" + LOSS + rb")"),
        _metric(rb"memory/peak_allocated_mem", _GB % b"memory"),
        _metric(rb"memory/peak_reserved_mem", _GB % b"reserved"),
        _metric(rb"memory/allocated_mem", _GB % b"memory"),
        _metric(rb"memory/reserved_mem", _GB % b"reserved"),
        _metric(rb"memory/reserved_mem", _BYTES % b"reserved"),
    ),
    facts=(
        Facts(pattern=rb"n_params: (?P<parameters>[\d.e+]+)", needs=b"n_params: "),
        Facts(pattern=rb"global_train_batch_size: (?P<step_samples>\d+)", needs=b"global_train_batch_size: "),
        Facts(pattern=rb"max_seq_len: (?P<seq_len>\d+)", needs=b"max_seq_len: "),
    ),
    signs=(
        Sign(pattern=rb"composer\.trainer|composer\.utils|mosaicml|llm-foundry|llmfoundry", weight=0.5),
        Sign(pattern=rb"Train trainer/device_train_microbatch_size:", weight=0.5),
    ),
    notes={"tokens": "seen before the batch", "memory_bytes": "Composer's GB are 10**9 bytes"},
)
