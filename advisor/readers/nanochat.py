"""nanochat: `step 00001/21400 (0.00%) | loss: … | dt: …ms | tok/sec: … | mfu: …`, its evaluations and its banner.

The loss is a moving average (0.9, debiased) of one micro-batch on rank 0; fine-tuning prints no total. `mfu: 0.00`
means that nanochat does not know the peak of the device, so it is read as unknown.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Mark, Row, Sign

_STEP = Row(
    pattern=(
        rb"\s*step (?P<step>\d+)(?:/(?P<planned_steps>\d+))? \([\d.]+%\) \| loss: (?P<loss>" + LOSS + rb")"
        rb"(?: \| grad norm: (?P<grad_norm>" + LOSS + rb"))?(?: \| lrm: (?P<learning_rate_share>[\d.]+))?"
        rb"(?: \| dt: (?P<seconds__ms>[\d.]+)ms)?(?: \| tok/sec: (?P<tokens_per_second>[\d,]+))?"
        rb"(?: \| (?:\w+_)?mfu: (?P<mfu__percent>[\d.]+))?(?: \| epoch: (?P<epoch>[\d.]+)(?: pq: \d+ rg: \d+)?)?"
        rb"(?: \| total time: (?P<elapsed_seconds__min>[\d.]+)m)?"
    ),
    needs=b"| loss: ",
    missing={"mfu": 0.0},
)
_FINE_TUNING = Row(
    pattern=(
        rb"\s*Step (?P<step>\d+)/(?P<planned_steps>\d+) \| Training loss: (?P<loss>" + LOSS + rb")"
        rb"\| lrm: (?P<learning_rate_share>[\d.]+)\| num_tokens: [\d,]+"
    ),
    needs=b"| Training loss: ",
    phase="fine-tuning",
)
_BPB = Row(
    pattern=rb"\s*Step (?P<step>\d+) \| Validation bpb: (?P<eval_bits_per_byte>" + LOSS + rb")",
    kind=EVAL,
    needs=b"Validation bpb",
)
_FINE_TUNING_EVAL = Row(
    pattern=rb"\s*Step (?P<step>\d+) \| Validation loss: (?P<eval_loss>" + LOSS + rb")",
    kind=EVAL,
    needs=b"Validation loss",
    phase="fine-tuning",
)

FORMAT = LineFormat(
    name="nanochat",
    framework="nanochat",
    rows=(_STEP, _BPB, _FINE_TUNING, _FINE_TUNING_EVAL),
    facts=(
        Facts(pattern=rb"(?m)^Vocab size: (?P<vocab_size>[\d,]+)", needs=b"Vocab size"),
        Facts(pattern=rb"(?m)^num_layers: (?P<depth>\d+)", needs=b"num_layers"),
        Facts(pattern=rb"(?m)^model_dim: (?P<width>\d+)", needs=b"model_dim"),
        Facts(pattern=rb"(?m)^num_heads: (?P<heads>\d+)", needs=b"num_heads"),
        Facts(pattern=rb"(?m)^num_kv_heads: (?P<kv_heads>\d+)", needs=b"num_kv_heads"),
        # newer versions dump the configuration as JSON, older ones of fine-tuning as a Python dict
        Facts(pattern=rb"[\"']sequence_len[\"']: (?P<seq_len>\d+)", needs=b"sequence_len"),
        Facts(pattern=rb"[\"']vocab_size[\"']: (?P<vocab_size>\d+)", needs=b"vocab_size"),
        Facts(pattern=rb"[\"']n_layer[\"']: (?P<depth>\d+)", needs=b"n_layer"),
        Facts(pattern=rb"[\"']n_head[\"']: (?P<heads>\d+)", needs=b"n_head"),
        Facts(pattern=rb"[\"']n_kv_head[\"']: (?P<kv_heads>\d+)", needs=b"n_kv_head"),
        Facts(pattern=rb"[\"']n_embd[\"']: (?P<width>\d+)", needs=b"n_embd"),
        Facts(
            pattern=rb"(?m)^Tokens / micro-batch / rank: (?P<micro_batch>\d+) x (?P<seq_len>\d+)",
            needs=b"micro-batch / rank",
        ),
        Facts(
            pattern=rb"Total batch size (?P<step_tokens>[\d,]+) => gradient accumulation steps: (?P<grad_accum>\d+)",
            needs=b"Total batch size",
        ),
        Facts(pattern=rb"(?m)^Number of parameters: (?P<parameters>[\d,]+)", needs=b"Number of parameters"),
        Facts(pattern=rb"(?m)^total +: (?P<parameters>[\d,]+)$", needs=b"Parameter counts"),
        Facts(pattern=rb"Distributed world size: (?P<world_size>\d+)", needs=b"world size"),
        Facts(pattern=rb"(?m)^GPU: (?P<gpu>[^|\n]+?) \| Peak FLOPS", needs=b"Peak FLOPS"),
        Facts(pattern=rb"Peak FLOPS[^:\n]*: (?P<gpu_peak_flops>[\d.e+]+)$", needs=b"Peak FLOPS"),
        Facts(pattern=rb"COMPUTE_DTYPE: (?P<precision>[\w.]+)", needs=b"COMPUTE_DTYPE"),
        Facts(
            pattern=rb"Total training time: (?P<total_seconds__min>[\d.]+)m", needs=b"Total training time", last=True
        ),
    ),
    marks=(
        Mark(
            pattern=rb"Evaluating: (?P<name>\w+) \([^)\n]*\)\.\.\. accuracy: (?P<value>[\d.]+)",
            kind="score",
            needs=b"Evaluating: ",
        ),
        Mark(
            pattern=rb"(?m)^(?P<name>[A-Z][\w-]+) accuracy: (?P<value>[\d.]+)(?P<percent>%)",
            kind="score",
            needs=b" accuracy: ",
        ),
    ),
    signs=(Sign(pattern=rb"\bnanochat\b", weight=0.5),),
    constants={"family": "nanochat"},
    notes={"loss": "moving average of one micro-batch on rank 0", "mfu": "0.00 means unknown"},
)
