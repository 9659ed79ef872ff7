"""verl: `step:1 - actor/pg_loss:0.001 - actor/grad_norm:0.02 - …`, through ray with `(TaskRunner pid=1)` in front.

The loss is the policy-gradient loss of the actor, near zero by construction: it says little of learning.
"""

from __future__ import annotations

from advisor.readers.line_format import EVAL, LOSS, Facts, LineFormat, Pairs, Sign

_START = rb"(?:\([\w.:]+ pid=\d+[^)]*\) ?)?(?:\w+ - )?step:(?P<step>\d+)(?= - )"
_PAIR = rb" - (?P<key>[^\s:]+(?: [^\s:]+)*?):(?:np\.\w+\()?(?P<value>" + LOSS + rb")\)?(?= - |\s*$)"
_POLICY = Pairs(
    start=_START,
    pair=_PAIR,
    keys={
        "actor/pg loss": "loss",
        "actor/grad norm": "grad_norm",
        "actor/lr": "learning_rate",
        "critic/score/mean": "reward",
        "timing s/step": "seconds",
        "training/epoch": "epoch",
        "perf/mfu/actor": "mfu",
        "perf/throughput": "device_tokens_per_second",
        "perf/max memory allocated gb": "memory_bytes__GiB",
        "perf/max memory reserved gb": "reserved_bytes__GiB",
    },
    required=("loss",),
    needs=b"actor/pg_loss:",
    facts={"loss_unit": "policy gradient"},
    missing={"learning_rate": 0.0},  # printed with three decimals: 0.000 is a rounded 1e-06
)
_SUPERVISED = Pairs(
    start=_START,
    pair=_PAIR,
    keys={
        "train/loss": "loss",
        "train/grad norm": "grad_norm",
        "train/lr": "learning_rate",
        "train/time(s)": "seconds",
    },
    required=("loss",),
    needs=b"train/loss:",
)
_VALIDATION = Pairs(
    start=_START, pair=_PAIR, keys={"val/loss": "eval_loss"}, required=("eval_loss",), kind=EVAL, needs=b"val/loss"
)

FORMAT = LineFormat(
    name="verl",
    framework="verl",
    rows=(_POLICY, _SUPERVISED, _VALIDATION),
    facts=(
        Facts(pattern=rb"Total training steps: (?P<planned_steps>\d+)", needs=b"Total training steps"),
        Facts(pattern=rb"'total_epochs': (?P<planned_epochs>\d+)", needs=b"'total_epochs'"),
        Facts(pattern=rb"trainer\.total_epochs=(?P<planned_epochs>\d+)", needs=b"trainer.total_epochs="),
        Facts(pattern=rb"'grad_clip': (?P<grad_clip>[\d.]+)", needs=b"'grad_clip'"),
        Facts(pattern=rb"'optim': \{'lr': (?P<learning_rate>[\d.e-]+)", needs=b"'optim': {'lr'"),
    ),
    signs=(
        Sign(pattern=rb"actor_rollout_ref|verl/trainer|verl/workers", weight=0.7),
        Sign(pattern=rb"\((?:main_task|TaskRunner|WorkerDict) pid=\d+", weight=0.4),
    ),
    notes={
        "mfu": "of the actor's update as verl computes it",
        "memory_bytes": "verl's gb are 2**30 bytes",
        "learning_rate": "0.000 is read as not printed: three decimals cannot show it",
    },
)
