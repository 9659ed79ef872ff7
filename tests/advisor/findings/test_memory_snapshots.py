"""What fills a GPU's memory: small snapshots and timelines with arithmetic by hand, and known values of strangers'."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from pathlib import Path

import pytest

from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.findings.traces.judgement import Rate
from advisor.findings.traces.memory import judge
from advisor.hardware.catalog import find_gpu
from advisor.readers.traces.allocations import read_memory_timeline, read_snapshot
from advisor.readers.traces.frames import Frame, place_of
from advisor.records import Workload
from advisor.workflows.trace_memory import against_prediction, what_would_have_fitted
from tests.advisor.build_snapshot import (
    BACKWARD,
    BUILD,
    CLEAR,
    FORWARD,
    LOSS,
    MIB,
    MODULE,
    ONE_STEP,
    SOFTMAX,
    STEP,
    TORCH,
    event,
    freed,
    snapshot,
)
from tests.terminal import advisor
from trainer.schema import make_shape

TRACES = Path(__file__).parents[4] / "shared" / "traces"
known = pytest.mark.skipif(not TRACES.is_dir(), reason="the collected traces are not here")


def judged(held, rate=None, **written):
    data = json.dumps(held).encode() if written.get("as_json") else pickle.dumps(held, written.get("protocol", 4))
    return judge(read_snapshot(io.BytesIO(data), "snapshot.pickle"), rate or Rate())


def mib(judgement):
    return {part.name: part.value / MIB for part in judgement.parts}


@pytest.mark.parametrize("written", [{"protocol": 2}, {"protocol": 5}, {"as_json": True}])
def test_the_peak_is_replayed_backwards_with_what_was_there_before(written):
    found = judged(snapshot(ONE_STEP, {1: 400, 4: 400, 2: 800}, 2700), **written)
    assert mib(found) == {
        **{"activations": 1000, "before recording": 400, "gradients": 400, "logits and loss": 200},
        **{"backward temporaries": 100, "unused": 300},
    }
    assert found.facts["peak_bytes"] == 2100 * MIB and found.facts["reserved_bytes"] == 2400 * MIB
    assert "2.05 GiB, in the backward pass: 1,000 MiB activations, 400 MiB before recording, 400" in found.verdict
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    first = found.facts["largest_groups"][0]
    assert first == {
        **{"place": "project/model.py:12 forward", "category": "activations"},
        **{"blocks": 1, "bytes_each": 1000 * MIB, "bytes": 1000 * MIB},
    }
    # 300 of 2400 MiB reserved are 12.5 %
    assert [one.code for one in found.findings] == ["memory_unused"] and "300 MiB of 2.34 GiB" in found.findings[
        0
    ].title
    assert "alice" not in repr(found) and "bob" not in repr(found)


def test_the_command_reads_a_snapshot_a_timeline_and_both_in_a_folder(tmp_path):
    (tmp_path / "rank0.pickle").write_bytes(pickle.dumps(snapshot(ONE_STEP, {1: 400, 4: 400, 2: 800}, 2700)))
    (tmp_path / "memory.raw.json.gz").write_bytes(gzip.compress(json.dumps(RAW).encode()))
    said = advisor("analyze", tmp_path / "rank0.pickle", expect=0, COLUMNS=140).stdout
    assert "2.05 GiB, in the backward pass" in said and "project/model.py:12 forward" in said and "alice" not in said
    documents = json.loads(advisor("analyze", tmp_path, "--json", expect=0).stdout)
    peaks = {one["files"][0]: one["judgement"]["facts"]["peak_bytes"] for one in documents["judged"]}
    assert peaks == {"rank0.pickle": 2100 * MIB, "memory.raw.json.gz": 180}
    (tmp_path / "cut.pickle").write_bytes((tmp_path / "rank0.pickle").read_bytes()[:-100])
    error = advisor("analyze", tmp_path / "cut.pickle", expect=1).stderr
    assert "cut.pickle is damaged or cut" in error


def test_what_becomes_of_a_block_decides():
    events = [
        event("alloc", 1, 400, BUILD),
        event("alloc", 2, 800, STEP),
        event("alloc", 3, 50, STEP),
        event("alloc", 4, 400, BACKWARD),
        event("alloc", 5, 30, BACKWARD),  # no weight has this size
        event("alloc", 6, 20, [*FORWARD, *BACKWARD]),  # computed again
        event("alloc", 7, 5, FORWARD),
        event("alloc", 8, 3, [("item", "/home/alice/train.py", 5)]),
        *freed(3, 50, STEP),
        *freed(4, 400, CLEAR),
        *freed(6, 20),
    ]
    found = judged(snapshot(events, {1: 400, 2: 800, 5: 30, 7: 5, 8: 3}, 1708))
    assert mib(found) == {
        **{"weights and buffers": 400, "optimizer state": 800, "optimizer temporaries": 50, "gradients": 400},
        **{"backward temporaries": 50, "activations": 5, "other": 3},
    }
    assert not found.findings


def test_the_innermost_frame_with_a_sign_decides():
    gather = [
        ("unshard", f"{TORCH}/distributed/fsdp/_flat_param.py", 1),
        ("forward", f"{TORCH}/distributed/fsdp/fully_sharded_data_parallel.py", 8),
        MODULE,
    ]
    inside = [*FORWARD, *gather]
    closure = [
        *FORWARD,
        ("wrapper", f"{TORCH}/optim/optimizer.py", 500),
    ]  # Lightning's forward pass lies within the step
    mine = [("train", "/home/alice/optim/logits_fsdp/cross_entropy_project/train.py", 5)]
    events = [
        event("alloc", number, 100, frames) for number, frames in enumerate((gather, inside, closure, mine), start=1)
    ]
    found = judged(snapshot(events, dict.fromkeys((1, 2, 3, 4), 100), 400))
    assert mib(found) == {"sharding buffers": 100, "activations": 200, "other": 100}


def test_without_frames_of_the_engine_who_has_none_is_the_backward_pass():
    python = [frame for frame in FORWARD if frame[1].endswith(".py")]
    events = [event("alloc", 1, 100, python), event("alloc", 2, 30), event("alloc", 3, 40), *freed(2, 30)]
    found = judged(snapshot(events, {1: 100, 3: 40}, 170))
    assert mib(found) == {"activations": 100, "backward temporaries": 30, "gradients": 40}


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/home/alice/train.py", "train.py:3 f"),
        ("/mnt/nfs/home/alice/a/b/train.py", "b/train.py:3 f"),
        ("/data/users/alice/train.py", "train.py:3 f"),
        (r"C:\Users\alice\run\train.py", "run/train.py:3 f"),
        ("/opt/app/lib/train.py", "lib/train.py:3 f"),
        ("/tmp/ipykernel_77/2.py", "ipykernel_77/2.py:3 f"),
        (f"{TORCH}/nn/functional.py", None),
        ("/tmp/torchinductor_alice/ab/cab.py", None),
        ("<frozen importlib>", None),
    ],
)
def test_a_place_in_the_code_has_no_users_name(file, place):
    assert place_of([Frame("f", file, 3)]) == place


def test_annotations_tell_a_step_without_frames():
    spans = [{"stage": stage, "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": time}
             for stage, time in (("START", 10), ("END", 20))]  # fmt: skip
    events = [event("alloc", 1, 800, time_us=12), event("alloc", 2, 90, time_us=13), *freed(2, 90)]
    events[-1]["time_us"] = 14
    found = judged(snapshot(events, {1: 800}, 890, external_annotations=spans))
    assert mib(found) == {"optimizer state": 800, "optimizer temporaries": 90}
    assert "in the optimizer step" in found.verdict and "checkpointing would not lower it" in found.verdict


def test_attention_that_is_not_fused_is_named():
    events = [event("alloc", number, 64, SOFTMAX) for number in range(1, 5)] + [event("alloc", 9, 900, FORWARD)]
    found = judged(snapshot(events, {number: 64 for number in range(1, 5)} | {9: 900}, 1156))
    (one,) = found.findings  # 256 of 1156 MiB
    assert one.code == "attention_written_out" and "256 MiB, 22.1 % of the peak" in one.title
    assert one.evidence[0].text == "4 x 64 MiB activations: project/model.py:30 attend"
    less = judged(snapshot(events, {number: 64 for number in range(1, 5)} | {9: 900, 10: 1500}, 2656))
    assert not less.findings  # 9.6 % of the peak


def test_where_memory_ran_out():
    total = find_gpu("h100-sxm").memory_bytes // MIB
    oom = event("oom", 0, 2048, FORWARD, device_free=500 * MIB)
    del oom["addr"]
    events = [event("alloc", 1, 50_000, FORWARD), oom, *freed(1, 50_000), event("alloc", 2, 10)]
    held = snapshot(events, {2: 10, 3: 5000}, 58_000)
    (one,) = [one for one in judged(held, Rate(gpu="h100-sxm")).findings if one.code == "memory_ran_out"]
    assert "2 GiB were asked for at project/model.py:12 forward" in one.title
    # 58,000 reserved of which 55,000 allocated: 3,000 MiB are free inside, in pieces
    assert "500 MiB left on the GPU" in one.evidence[0].text and "fragmentation: 2.93 GiB" in " ".join(one.causes)
    outside = (total - 500 - 58_000) / 1024
    assert f"{outside:.1f} GiB" in one.evidence[1].text and "outside torch's allocator" in one.evidence[1].text
    found = judged(held)  # an unknown card: nothing is said of what is outside
    assert found.verdict.startswith("Memory ran out, in the forward pass: 2 GiB")
    assert "outside" not in repr(found.findings) and mib(found)["activations"] == 50_000


def test_a_script_that_reserves_less_than_it_allocates_is_not_judged_by_it():
    found = judged(snapshot([event("alloc", 1, 900), *freed(1, 900)], {}, 100))
    assert mib(found) == {"other": 900} and not found.findings


RAN_OUT = [
    event("alloc", 1, 15_000, FORWARD),
    event("alloc", 2, 2000, LOSS),
    event("oom", 0, 100, FORWARD, device_free=50 * MIB),
    *freed(1, 15_000),
    *freed(2, 2000),
]


def test_what_would_have_fitted_is_what_predict_says_fits(store):
    """24 GB, 12 blocks of LLaMA's shape: the sizes named for the snapshot are asked of the command, one by one."""
    profile, shape = load_profile("rtx-4090", store), make_shape("llama", seq_len=2048, vocab_size=32_000, depth=12)
    workload = Workload(shape=shape, micro_batch=32, gpu=profile.key, compile=True)
    parts = profile.memory.breakdown(workload)
    state = round((parts.weights_bytes + parts.optimizer_bytes) / MIB)
    found = against_prediction(judged(snapshot(RAN_OUT, {3: state}, 23_000)), workload, profile)
    rows = {row["name"]: row for row in found.facts["predicted_memory"]}
    assert rows["weights and optimizer"]["measured_bytes"] == state * MIB
    assert rows["weights and optimizer"]["predicted_bytes"] == pytest.approx(state * MIB, rel=1e-3)
    assert rows["activations"]["measured_bytes"] == 15_000 * MIB
    actions = " | ".join(found.findings[0].actions)
    plain = int(re.search(r"^micro-batch (\d+) with (\d+) accumulated", actions)[1])
    recomputed = int(re.search(r"full activation checkpointing(?: and micro-batch (\d+))?", actions)[1] or 32)
    assert plain < recomputed <= 32 and 32 % plain == 0
    assert "a loss in chunks, which needs 1." in actions  # 2000 MiB, of which a chunk's logits are predicted

    def fits(micro_batch, *more):
        words = "predict --gpu rtx-4090 --family llama --depth 12 --seq-len 2048 --vocab-size 32000 --compile --json"
        return json.loads(advisor(*words.split(), "--micro-batch", micro_batch, *more).stdout)["fits"]

    assert fits(plain) is True and fits(2 * plain) is not True
    full = ("--activation-checkpointing", "full")
    assert fits(recomputed, *full) is True and (recomputed == 32 or fits(2 * recomputed, *full) is not True)


def test_a_plan_gives_the_prediction_beside(tmp_path, advisor_home):
    plan = tmp_path / "plan.yaml"
    words = "plan --gpu rtx-4090 --family llama --depth 12 --seq-len 2048 --vocab-size 32000 --deadline 8h --price 0.4"
    advisor(*words.split(), "--out", plan, expect=0)
    (tmp_path / "oom.pickle").write_bytes(pickle.dumps(snapshot(RAN_OUT, {3: 5000}, 23_000)))
    said = advisor("analyze", tmp_path / "oom.pickle", "--plan", plan, expect=0, COLUMNS=160).stdout
    assert re.search(r"beside 21.5 GiB \([\d.]+ GiB predicted\)", said) and "weights and optimizer" in said
    assert "do: micro-batch " in said or "do: full activation checkpointing" in said


def test_a_program_that_needs_more_than_predicted_is_offered_less(store):
    profile, shape = load_profile("rtx-4090", store), make_shape("llama", seq_len=2048, vocab_size=32_000, depth=12)
    workload = Workload(shape=shape, micro_batch=32, gpu=profile.key)
    plain, greedy = (next(what_would_have_fitted(workload, profile, appetite)) for appetite in (1, 3))
    sizes = [int(re.search(r"micro-batch (\d+)", words)[1]) for words in (plain, greedy)]
    assert sizes[1] < sizes[0]
    assert not list(what_would_have_fitted(workload, profile, 1e6))


@pytest.mark.parametrize(
    "held",
    [
        {"segments": [], "device_traces": []},
        {"segments": [], "device_traces": [[]]},
        {"segments": [], "device_traces": [[3]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -5}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 2**70}]]},
        {"device_traces": [[event("alloc", 1, 1)]]},
        [],
    ],
)
def test_a_damaged_snapshot_is_refused_in_one_sentence(held):
    with pytest.raises(AdvisorError) as error:
        judged(held)
    assert "\n" not in error.value.message and error.value.hint


RAW = [[-1, 1, 100, 0], [5, 2, 50, 4], [5, 3, -100, 0], [5, 3, 100, 0], [7, 2, 30, 5], [9, 4, -50, 4]]
ROWS = [[0, 100, 0, 0, 0, 0, 0, 0, 0], [0, 100, 0, 0, 0, 50, 30, 0, 0]]


@pytest.mark.parametrize("held", [RAW, [[1, 2], ROWS]])
def test_timelines_are_read_in_both_forms(held):
    found = judge(read_memory_timeline(io.BytesIO(json.dumps(held).encode()), "memory.json"), Rate())
    assert {part.name: part.value for part in found.parts} == {"parameters": 100, "activations": 50, "gradients": 30}
    assert found.verdict.startswith("The memory's peak is 180 B: 100 B parameters, 50 B activations") and found.lacking


@pytest.mark.parametrize("held", [[], {}, [[1, 2, 3, 9]], [[1, 2]], [[5], [[0, 1]]], "text"])
def test_a_damaged_timeline_is_refused_in_one_sentence(held):
    with pytest.raises(AdvisorError) as error:
        read_memory_timeline(io.BytesIO(json.dumps(held).encode()), "memory.json")
    assert "\n" not in error.value.message


@known
def test_a_training_step_of_a_stranger():
    with gzip.open(TRACES / "gpt423m_ctx512_train_snapshot.pickle.gz") as stream:
        found = judge(read_snapshot(stream, "snapshot"), Rate())
    parts = {part.name: part.value for part in found.parts}
    assert found.facts["peak_bytes"] == 12_435_476_996 and found.facts["reserved_bytes"] == 12_593_397_760
    assert parts["before recording"] == 5_104_415_228 and parts["activations"] == 7_044_308_992
    assert parts["backward temporaries"] == 204_808_196 and parts["logits and loss"] == 81_944_580
    assert found.facts["phase"] == "the backward pass"
    first = found.facts["largest_groups"][0]
    assert first["place"].endswith("nn_utils.py:6 softmax") and first["bytes"] == 24 * 67_108_864 == 1_610_612_736
    assert [one.code for one in found.findings] == ["attention_written_out"]  # 1.3 % are unused
    assert "/home" not in repr(found)


@known
def test_snapshots_and_timelines_of_strangers():
    with open(TRACES / "mosaic_synthetic_snapshot.pickle", "rb") as stream:
        found = judge(read_snapshot(stream, "snapshot"), Rate())
    assert found.facts["peak_bytes"] - found.facts["before_recording_bytes"] == 2_255_398_132 and not found.findings
    with gzip.open(TRACES / "memory_timeline.raw.json.gz") as stream:
        timeline = read_memory_timeline(stream, "timeline")
    row = (102_440_608, 102_228_128, 19_395_584, 0, 2_618_160_128, 58_417_152, 41_811_968, 25_494_440)
    assert timeline.curve[744] == row
    peak = (102_440_608, 102_228_128, 19_395_584, 0, 2_592_465_920, 67_858_432, 64_225_280, 134_218_152)
    assert max(timeline.curve, key=sum) == peak and sum(peak) == 3_082_832_104
