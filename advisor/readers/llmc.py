"""llm.c: its console (`step 2/19560 | loss 10.956968 (+nanz)| norm … | lr … | 4557.77 ms | 29.6% bf16 MFU | …`).

`(+nanz)` are z-scores, not losses; tokens/s is a moving average (0.95, debiased). A line that the scheduler's message
cuts keeps what it has. `val loss` before the first step is the untrained model's.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Mark, Row, Sign

_STEP = Row(
    pattern=(
        rb"\s*step\s+(?P<step>\d+)/(?P<planned_steps>\d+) \| (?:train )?loss\s+(?P<loss>"
        + LOSS
        + rb")(?![\d.])(?: \([^)|]*z\))?"
        rb"(?!\s*\| *(?!norm\b|lr |\(?[\d.]+ ms|-?[\d.]+%|n/a)\w)"  # what stands first behind it is another program's
        rb"(?: ?\| norm\s+(?P<grad_norm>"
        + LOSS
        + rb")(?: \([^)|]*z\))?)?(?: ?\| lr (?P<learning_rate>[\d.]+e[-+]\d+))?"
        rb"(?: ?\| \(?(?P<seconds__ms>[\d.]+) ms)?(?: \| (?P<mfu__percent>-?[\d.]+)% \w+ MFU| \| n/a MFU)?"
        rb"(?: \| (?P<tokens_per_second>[\d,.]+) tok/s)?"
    ),
    needs=b"loss",
    missing={"mfu": -1.0},
)
_CPU = Row(
    pattern=rb"step (?P<step>\d+): train loss (?P<loss>" + LOSS + rb") \(took (?P<seconds__ms>[\d.]+) ms\)",
    needs=b"(took ",
)
_VALIDATION = Row(
    pattern=rb"val loss\s+(?P<eval_loss>" + LOSS + rb")\s*$", kind=EVAL, needs=b"val loss", step="previous", weight=0.5
)


def _setting(name: bytes, group: bytes) -> Facts:
    return Facts(pattern=rb"(?m)^\| " + name + rb"\s+\| (?P<" + group + rb") +\|", needs=name.replace(b"\\", b""))


_FACTS = (
    _setting(rb"micro batch size B", rb"micro_batch>\d+"),
    _setting(rb"sequence length T", rb"seq_len>\d+"),
    _setting(rb"total batch size", rb"step_tokens>\d+"),
    _setting(rb"LR scheduler", rb"schedule>\w+"),
    _setting(rb"learning rate \(LR\)", rb"learning_rate>[\d.e+-]+"),
    _setting(rb"warmup iterations", rb"warmup_steps>\d+"),
    _setting(rb"weight decay", rb"weight_decay>[\d.e+-]+"),
    _setting(rb"checkpoint_every", rb"checkpoint_every_steps>[1-9]\d*"),
    _setting(rb"val_loss_every", rb"eval_every_steps>[1-9]\d*"),
    _setting(rb"device", rb"gpu>[^|\n]+?"),
    _setting(rb"peak TFlops", rb"gpu_peak_flops__tera>[\d.]+"),
    _setting(rb"precision", rb"precision>\w+"),
    _setting(rb"padded_vocab_size Vp", rb"vocab_size>\d+"),
    _setting(rb"num_layers L", rb"depth>\d+"),
    _setting(rb"num_heads NH", rb"heads>\d+"),
    _setting(rb"channels C", rb"width>\d+"),
    _setting(rb"num_parameters", rb"parameters>\d+"),
    _setting(rb"train_num_batches", rb"planned_steps>\d+"),
    _setting(rb"num_processes", rb"world_size>\d+"),
    Facts(pattern=rb"=> setting grad_accum_steps=(?P<grad_accum>\d+)", needs=b"grad_accum_steps="),
    Facts(pattern=rb"device memory usage: \d+ MiB / (?P<gpu_memory_bytes__MiB>\d+) MiB", needs=b"device memory usage"),
)

CONSOLE = LineFormat(
    name="llmc_stdout",
    framework="llm.c",
    rows=(_STEP, _VALIDATION, _CPU),
    facts=_FACTS,
    marks=(Mark(pattern=rb"HellaSwag: \d+/\d+ = (?P<hellaswag>[\d.]+)", kind="score", needs=b" = 0."),),
    signs=(Sign(pattern=rb"\| train data pattern +\||at file train_gpt2\.cu|at file train_gpt2\.c:", weight=0.9),),
    constants={"family": "gpt2"},
    notes={"tokens_per_second": "moving average, 0.95", "mfu": "-100 % means that the peak is not known"},
)

MAIN_LOG = LineFormat(
    name="llmc_mainlog",
    framework="llm.c",
    rows=(
        Row(
            pattern=(
                rb"s:(?P<step>\d+) trl:(?P<loss>" + LOSS + rb") lr:(?P<learning_rate>[\d.e+-]+)"
                rb"(?: norm:(?P<grad_norm>" + LOSS + rb"))?"
            ),
            needs=b" trl:",
        ),
        Row(pattern=rb"s:(?P<step>\d+) tel:(?P<eval_loss>" + LOSS + rb")", kind=EVAL, needs=b" tel:", weight=0.7),
    ),
    marks=(Mark(pattern=rb"(?m)^s:\d+ eval:(?P<hellaswag>[\d.]+)", kind="score", needs=b" eval:"),),
    constants={"family": "gpt2"},
    notes={"learning_rate": "six decimals only"},
)
