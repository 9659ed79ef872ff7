"""Plans of many GPUs: failures, checkpoints and what joins the machines."""

import json
import re
import shlex
from datetime import UTC, datetime

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import require_gpu
from advisor.laws import flops
from advisor.planning.answer import bare_plan
from advisor.prediction.comm import assumed_network
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Workload
from tests.advisor.plans import goal_of
from trainer.schema import make_shape

NOW = datetime(2026, 11, 22, tzinfo=UTC)
LLAMA_3_70B = (
    "--family llama --depth 80 --width 8192 --heads 64 --kv-heads 8 --ffn-width 28672 --vocab-size 128256 "
    "--seq-len 8192 --tokens 15T"
)


def test_llama_3_70b_takes_what_meta_says(call):
    """6.4 M H100 hours for 15 T tokens (Meta's model card)."""
    _, out, _ = call("plan", "--gpu", "h100-80gb-sxm", "--gpus", "1024", *LLAMA_3_70B.split(), "--json")
    total = json.loads(out)["chosen"]["bill"]["wall_clock"]["total_seconds"]
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
    try:
        plan = bare_plan(goal, prior_profile(require_gpu(gpu)), now=NOW)
    except AdvisorError as error:
        assume("nothing fits the memory" not in str(error))
        raise
    clock = plan.bill.wall_clock
    lost = clock.interruptions_seconds.value + clock.checkpoints_seconds.value
    assert lost < 0.1 * clock.total_seconds.value


def test_money_that_a_sure_plan_leaves_in_time_is_spent_on_more_nodes(call):
    """The time that counts is the high end; by the expected time one node seemed enough, at a sixth of the budget."""
    words = "plan --gpu h100-80gb-sxm,a100-80gb-sxm --budget 8000 --deadline 24h --sure --json"
    chosen = json.loads(call(*words.split())[1])["chosen"]
    usd, seconds = chosen["bill"]["cost_usd"], chosen["bill"]["wall_clock"]["total_seconds"]
    assert chosen["offer"]["gpus"] > 8 and 4000 < usd["high"] <= 8000 and seconds["high"] <= 86400


def test_several_machines_say_what_is_taken_to_join_them(call):
    """One machine says nothing; two take the vendor's 8 x 400 Gb/s for granted, and Ethernet would be slower."""
    for gpus, said in (("8", 0), ("16", 1)):
        words = ["--gpu", "h100-80gb-sxm", "--gpus", gpus, "--params", "7B"]
        _, out, _ = call("plan", *words, "--tokens", "50B", "--json")
        warnings = [line for line in json.loads(out)["warnings"] if "8 x 400 Gb/s between machines" in line]
        assert len(warnings) == said and all("on 100 Gb/s Ethernet the run would take" in line for line in warnings)
    words = "--gpu h100-80gb-sxm --gpus 16 --depth 40 --micro-batch 8 --seq-len 2048 --vocab-size 65536 --grad-accum 2"
    _, out, _ = call("predict", *words.split(), "--sharding", "full", "--json")
    assert json.loads(out)["network"].startswith("assumes 8 x 400 Gb/s between machines; on 100 Gb/s Ethernet")


def test_a_slower_network_takes_what_its_rate_says():
    """Fully sharded over two nodes with nothing to hide behind: all bytes pass a node's 12.5 GB/s at 65 %."""
    shape = make_shape("llama", depth=32, vocab_size=32000, seq_len=2048)
    work = Workload(shape=shape, micro_batch=1, gpu="h100-80gb-sxm", gpus=16, sharding="full", compile=True)
    spec = require_gpu("h100-80gb-sxm")
    step = 1.0  # of which what the reference network exposes is a part
    slow = assumed_network(work, spec, step).ethernet_step_seconds - step
    moved = (2 * 2 + 4) * flops.parameters(shape) * 15 / 16  # two gathers in 16 bits, gradients scattered in 32
    assert slow == pytest.approx(moved / (12.5e9 * 0.65), rel=0.2)


def test_a_guess_at_a_network_wins_no_search(call):
    """Four machines of 8 A4000 over an assumed 100 Gb/s won where nobody had asked for several machines."""
    words = ("plan", "--gpu", "any", "--budget", "100", "--inference-tokens", "100B", "--json")
    workload = json.loads(call(*words)[1])["chosen"]["prediction"]["workload"]
    assert workload["gpus"] <= 8
    for network in ((), ("--network", "100G")):
        asked = ("plan", "--gpu", "a4000", "--gpus", "32", "--budget", "100", *network, "--json")
        assert json.loads(call(*asked)[1])["chosen"]["prediction"]["workload"]["gpus"] == 32


@pytest.mark.parametrize(("gpu", "gpus"), [("h100-80gb-sxm", 1024), ("h100-80gb-sxm", 16), ("b200", 1024)])
def test_one_machine_is_calibrated_however_many_are_rented(call, gpu, gpus):
    """$81.90 and $188 were asked for two minutes of all machines."""
    _, out, _ = call("plan", "--gpu", gpu, "--gpus", str(gpus), "--params", "7B", "--tokens", "100B", "--json")
    plan = json.loads(out)
    [warning] = [line for line in plan["warnings"] if "no calibration of" in line]
    asked = float(re.search(r"one machine \(\$([\d.]+)\)", warning)[1])
    assert asked == pytest.approx(plan["chosen"]["offer"]["usd_per_hour"] / (gpus / 8) / 30, rel=0.02)
