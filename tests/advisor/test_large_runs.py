"""Plans of many GPUs: failures, checkpoints and what joins the machines."""

import json
import shlex
from datetime import UTC, datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from advisor.calibrate.profiles import prior_profile
from advisor.hardware.catalog import require_gpu
from advisor.plan.answer import bare_plan
from tests.advisor.plans import goal_of

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LLAMA_3_70B = (
    "--family llama --depth 80 --width 8192 --heads 64 --kv-heads 8 --ffn-width 28672 --vocab-size 128256 "
    "--seq-len 8192 --tokens 15T"
)


def test_llama_3_70b_takes_what_meta_says(call):
    """6.4 M H100 hours for 15 T tokens (Meta's model card)."""
    _, out, _ = call("plan", "--gpu", "h100-80gb-sxm", "--gpus", "1024", *LLAMA_3_70B.split(), "--json")
    total = json.loads(out)["prediction"]["wall_clock"]["total_seconds"]
    assert total["value"] / 3600 * 1024 == pytest.approx(6.4e6, rel=0.25)


@settings(max_examples=25, deadline=None)
@given(
    gpu=st.sampled_from(["h100-80gb-sxm", "a100-80gb-sxm", "b200"]),
    nodes=st.integers(0, 7).map(lambda n: 2**n),
    depth=st.sampled_from([12, 24, 40, 64, 96]),
    tokens=st.sampled_from(["10B", "300B", "15T"]),
)
@example(gpu="b200", nodes=128, depth=96, tokens="15T")
@example(gpu="h100-80gb-sxm", nodes=1, depth=40, tokens="15T")
def test_failures_and_checkpoints_take_under_a_tenth_of_the_time(gpu, nodes, depth, tokens):
    goal = goal_of(shlex.split(f"--gpu {gpu} --gpus {8 * nodes} --depth {depth} --tokens {tokens}"))
    plan = bare_plan(goal, prior_profile(require_gpu(gpu)), now=NOW)
    clock = plan.prediction.wall_clock
    lost = clock.interruptions_seconds.value + clock.checkpoints_seconds.value
    assert lost < 0.1 * clock.total_seconds.value
