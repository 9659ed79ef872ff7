"""modded-nanogpt: `step:2/6200 train_loss:8.6834 train_time:75965ms step_avg:nanms`, or `s:0 trl:10.9656`.

The log begins with the program's source, so nothing is believed but whole record lines. `step_avg:nanms` is no loss;
the clock starts again after the first ten steps. Newer ones print no training loss: their evaluations count.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Row

_TIME = rb"(?: train_time:(?P<elapsed_seconds__ms>[\d.]+)ms)?(?: step_avg:(?:[\d.]+|nan)ms)?"
_STEP = rb"step:(?P<step>\d+)/(?P<planned_steps>\d+) "
ROWS = (
    Row(pattern=_STEP + rb"train_loss:(?P<loss>" + LOSS + rb")" + _TIME, needs=b"train_loss:"),
    Row(
        pattern=(
            _STEP
            + rb"val_loss:(?P<eval_loss>"
            + LOSS
            + rb")(?: val_bpb:(?P<eval_bits_per_byte>"
            + LOSS
            + rb"))?"
            + _TIME
        ),
        kind=EVAL,
        needs=b"val_loss:",
    ),
    Row(pattern=_STEP + rb"train_time:(?P<elapsed_seconds__ms>[\d.]+)ms step_avg:", needs=b" train_time:"),
)
FACTS = (
    Facts(pattern=rb"(?m)^\|\s+\d+  (?P<gpu>NVIDIA [\w ]+?)\s{2,}(?:On|Off)", needs=b"NVIDIA-SMI"),
    Facts(pattern=rb"MiB / +(?P<gpu_memory_bytes__MiB>\d+)MiB", needs=b"NVIDIA-SMI"),
    # the program runs on every card of its machine: the largest number in nvidia-smi's table tells how many
    *(
        Facts(
            pattern=rb"(?m)^\|\s+%d  NVIDIA " % (count - 1),
            needs=b"NVIDIA-SMI",
            last=True,
            constants={"world_size": count},
        )
        for count in range(1, 17)
    ),
)

FORMAT = LineFormat(
    name="modded_nanogpt",
    framework="modded-nanogpt",
    rows=(
        *ROWS,
        Row(pattern=rb"s:(?P<step>\d+) trl:(?P<loss>" + LOSS + rb")\s*$", needs=b" trl:"),
        Row(pattern=rb"s:(?P<step>\d+) tel:(?P<eval_loss>" + LOSS + rb")\s*$", kind=EVAL, needs=b" tel:"),
    ),
    facts=FACTS,
    notes={"elapsed_seconds": "the clock starts again after the first ten steps and stops for evaluations"},
)
