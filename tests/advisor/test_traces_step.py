"""Where a step goes: parts that add up, idle time by cause, late ranks; by hand, and as known of real files."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.findings.traces.judgement import Rate
from advisor.findings.traces.ranks import arrival
from advisor.findings.traces.step import judge
from advisor.findings.traces.step_parts import StepParts
from advisor.readers.traces import intervals
from advisor.readers.traces.kinds import opened_parts
from advisor.readers.traces.kineto import read_kineto
from advisor.readers.traces.nsys import read_nsys
from tests.advisor.build_trace import AUTOGRAD, Trace, training_step

REAL = Path(__file__).parents[3] / "shared" / "traces"


def parts_of(trace: Trace, name: str = "rank0.json", **layout) -> StepParts:
    return StepParts(read_kineto(io.BytesIO(trace.text(**layout).encode()), name))


def real(name: str) -> list[StepParts]:
    if not (REAL / name).exists():
        pytest.skip("the traces of others are not here")
    with opened_parts(REAL / name) as parts:
        return [StepParts(read_kineto(part.open(), part.name)) for part in parts]


def micro(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def test_intervals():
    a = intervals.union(np.array([5.0, 0.0, 1.0, 9.0]), np.array([6.0, 2.0, 3.0, 9.5]))
    assert a.tolist() == [[0, 3], [5, 6], [9, 9.5]] and intervals.length(a) == 4.5
    b = np.array([[2.0, 5.5], [9.25, 20.0]])
    assert intervals.intersect(a, b).tolist() == [[2, 3], [5, 5.5], [9.25, 9.5]]
    assert intervals.minus(a, b).tolist() == [[0, 2], [5.5, 6], [9, 9.25]]
    assert intervals.overlaps(a, b).tolist() == [1, 0.5, 0.25]
    assert intervals.inside(a, np.array([-1.0, 0, 3, 5.5, 30])).tolist() == [-1, 0, -1, 1, -1]


@pytest.mark.parametrize("layout", [{}, {"keys_after": True}, {"compact": True}])
def test_parts_of_a_step_add_up(layout):
    parts = parts_of(training_step(), **layout)
    # A step covers 110 to 240: 40 product, 50 of the all-reduce alone (150-200), 20 copy (220-240), 20 idle. Between
    # the steps the device waits from 240 to 310. The kernel from before the window does not count.
    assert parts.timeline.unlinked == 1 and len(parts.device) == 6
    assert micro(parts.span_seconds) == 330 and micro(parts.compute_seconds) == 80
    assert micro(parts.communication_seconds) == 120
    assert micro(intervals.length(parts.exposed_communication)) == 100
    assert micro(parts.exposed_copy_seconds) == 40 and micro(parts.idle_seconds) == 110
    assert [micro(step) for step in parts.steps] == [200, 130]
    # The gaps in the steps wait for something else than the host; the next step's kernel was launched at 301, too late.
    assert micro(parts.idle.host) == 70 and micro(parts.idle.device) == 40
    assert {term: micro(seconds) for term, seconds in parts.terms.items() if seconds} == {
        "matrix products": 80, "communication": 120, "memory passes": 40}  # fmt: skip
    assert parts.timeline.gpu == "NVIDIA H100 80GB HBM3"


def test_findings_have_shares_and_dollars_and_the_dearest_is_first():
    judgement = judge([parts_of(training_step()).timeline], Rate(gpus=2, usd_per_gpu_hour=3.0, gpu="h100"))
    assert sum(part.share for part in judgement.parts) == pytest.approx(1)
    # 100 of 330 µs; 6 dollars an hour for both GPUs
    assert judgement.verdict == (
        "30.3 % of each step is communication that nothing hides: $1.82 an hour of $6 for 2 x h100."
    )
    assert [found.code for found in judgement.findings] == [
        "exposed_communication", "launch_bound", "copies_from_pageable_memory"]  # fmt: skip
    assert "1 allreduce of default_pg (60 µs); 3.81 MiB in all" in [e.text for e in judgement.findings[0].evidence]


def test_idle_time_is_divided_by_what_the_host_did():
    trace = Trace()
    trace.kernel("k", 10, 10, launched=1)
    trace.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 50)
    trace.kernel("k", 80, 10, launched=75)  # 60 idle, 50 of them in the data loader
    trace.add("cuda_runtime", "cudaMalloc", 92, 20)
    trace.kernel("k", 120, 10, launched=115)  # 30 idle, 20 of them in cudaMalloc
    trace.op("aten::item", 125, 6)
    trace.kernel("k", 150, 10, launched=145)  # 20 idle; the host still read a value when the device ended at 130
    trace.kernel("k", 165, 10, launched=150)  # 5 idle, although it was launched in time
    idle = parts_of(trace).idle
    assert micro(idle.data_loading) == 50 and micro(idle.allocating) == 20
    assert micro(idle.synchronizing) == 20 and micro(idle.host) == 20 and micro(idle.device) == 5


def test_one_long_gap_before_the_work_is_no_slow_host():
    def codes(*late: int) -> list[str]:
        """Kernels of 100 µs, each launched as it begins, with so long a gap before each."""
        trace, time = Trace(), 0
        for gap in late:
            trace.kernel("k", time + gap, 100, launched=time + gap - 1)
            time += gap + 100
        return [found.code for found in judge([parts_of(trace).timeline], Rate()).findings]

    assert codes(0, 900, 5, 5, 5, 5) == []  # one gap of 900 of 1,520 µs: the program's start
    assert codes(0, 100, 100, 100, 100) == ["launch_bound"]  # four gaps; without the longest 300 of 900 µs


def test_parts_add_up_where_code_was_compiled():
    trace = Trace().kernel("k", 10, 10, launched=1).range("TorchDynamo Cache Lookup", 20, 50)
    judgement = judge([parts_of(trace.kernel("k", 80, 10, launched=75)).timeline], Rate())
    assert {part.name: micro(part.value) for part in judgement.parts} == {
        "computation": 20, "idle: code was compiled": 50, "idle: the host launched too late": 10}  # fmt: skip


def test_memory_that_is_allocated_before_the_steps_is_no_retry():
    def codes(*steps: int) -> set[str]:
        trace = Trace().kernel("k", 10, 10, launched=1)
        trace.add("cuda_runtime", "cudaMalloc", 20, 50)
        trace.kernel("k", 80, 10, launched=75).kernel("k", 90, 20, launched=76)
        for number in steps:
            trace.step(number, 70 * number, 70)
        return {one.code for one in judge([parts_of(trace).timeline], Rate()).findings}

    assert "allocator_retries" in codes(0, 1) and "allocator_retries" not in codes()


def test_a_gap_that_the_host_did_not_make_is_named():
    trace = Trace().kernel("k", 10, 10, launched=1).kernel("k", 60, 20, launched=2)
    found = {one.code: one.title for one in judge([parts_of(trace).timeline], Rate()).findings}
    title = "the GPU is idle, although its work was launched in time, for 57.1 % of the window"
    assert found == {"idle_unexplained": title}


@pytest.mark.parametrize(
    ("name", "args", "inside"),
    [
        ("multimem_all_reduce_kernel", {}, None),
        ("void deep_ep::intranode::dispatch<8>", {}, None),
        ("some_kernel", {"Collective name": "all_to_allv"}, None),
        ("some_kernel", {}, "nccl:all_to_all"),
        ("some_kernel", {}, "moe_dispatch"),
    ],
)
def test_communication_is_told_by_arguments_and_ranges_too(name, args, inside):
    trace = Trace().kernel("gemm", 10, 10, launched=1).kernel(name, 30, 10, launched=25, **args)
    if inside:
        trace.range(inside, 22, 6)
    assert parts_of(trace).communication.tolist() == [False, True]


def test_an_operator_inside_an_annotation_of_experts_is_no_communication():
    trace = Trace().range("moe_dispatch", 0, 50).op("aten::sort", 20, 10).kernel("sort", 30, 10, launched=25)
    trace.kernel("triton_poi_fused_all_gather_into_tensor_3", 45, 5)
    assert not parts_of(trace.kernel("hipMemcpyKernel", 60, 5)).communication.any()


def test_categories_of_old_traces_are_known():
    trace = training_step()
    old = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator",
           "user_annotation": "Operator"}  # fmt: skip
    for event in trace.events:
        event["cat"] = old[event["cat"]]
    parts = parts_of(trace)
    assert [micro(step) for step in parts.steps] == [200, 130] and micro(parts.exposed_copy_seconds) == 40


def test_a_forward_pass_inside_the_backward_pass_is_recomputation():
    trace = Trace()
    trace.op("autograd::engine::evaluate_function: MmBackward0", 0, 60, AUTOGRAD)
    trace.op("aten::linear", 5, 10, AUTOGRAD, **{"Sequence number": 7})
    trace.kernel("gemm", 20, 10, launched=6, thread=AUTOGRAD)
    trace.op("aten::mm", 30, 10, AUTOGRAD)
    trace.kernel("gemm", 40, 30, launched=31, thread=AUTOGRAD)
    parts = parts_of(trace)
    assert parts.recomputed.tolist() == [True, False]
    found = {one.code: one.title for one in judge([parts.timeline], Rate()).findings}
    assert found["recomputation"] == "25 % of the computation is done again in the backward pass"


def test_logits_are_products_as_wide_as_the_loss():
    dims = {"Input Dims": [[8, 512], [512, 32000]]}
    trace = Trace().op("aten::mm", 0, 5, **dims).kernel("gemm", 10, 10, launched=1)
    trace.op("aten::mm", 20, 5, **{"Input Dims": [[8, 512], [512, 2048]]}).kernel("gemm", 30, 5, launched=21)
    trace.op("aten::cross_entropy_loss", 40, 5, **{"Input Dims": [[8, 32000], [8]]}).kernel("k", 50, 2, launched=41)
    terms = parts_of(trace).terms
    assert micro(terms["logits and loss"]) == 12 and micro(terms["matrix products"]) == 5


def test_attention_that_is_written_out_is_found():
    square = [2, 8, 512, 512]
    trace = Trace().op("aten::softmax", 0, 5, **{"Input Dims": [square, [], []]}).kernel("softmax", 10, 20, launched=1)
    trace.op("aten::matmul", 30, 5, **{"Input Dims": [square, [2, 8, 512, 64]]}).kernel("gemm", 40, 20, launched=31)
    trace.op("aten::mm", 60, 5, **{"Input Dims": [[512, 64], [64, 64]]}).kernel("gemm", 62, 38, launched=61)
    found = {one.code: one for one in judge([parts_of(trace).timeline], Rate()).findings}
    assert found["attention_written_out"].title == "attention that is not fused takes 44.4 % of the window"
    fused = trace.op("aten::_flash_attention_forward", 110, 5).kernel("flash_fwd_kernel", 120, 5, launched=111)
    assert "attention_written_out" not in {one.code for one in judge([parts_of(fused).timeline], Rate()).findings}


def test_the_late_rank_waits_least():
    ranks = []
    for rank in range(3):
        trace = Trace()
        for number in range(6):
            # Each collective transfers for 10; ranks 0 and 1 also wait 30 for rank 2, which computes longer.
            trace.kernel("gemm", 100 * number + 10, 70 if rank == 2 else 40)
            trace.kernel("ncclDevKernel_AllReduce", 100 * number + (80 if rank == 2 else 50), 10 if rank == 2 else 40)
        ranks.append(parts_of(trace, distributedInfo={"rank": rank, "world_size": 3}))
    found = arrival(ranks)
    assert found.late == 2 and found.last_in == found.collectives == 5  # the first is left out
    assert [micro(wait) for wait in found.waits_seconds.values()] == [150, 150, 0]
    assert found.share == pytest.approx(150 / 580) and micro(found.transfer_seconds) == 50
    judgement = judge([parts.timeline for parts in ranks], Rate())
    late = next(one for one in judgement.findings if one.code == "late_rank")
    assert late.title == "rank 2 is late: the others wait 25.9 % of the window for it"
    assert judgement.facts["waits_seconds"][2] == 0


def test_a_busy_device_has_no_findings():
    trace = Trace()
    for number in range(1, 5):
        trace.step(number, 100 * number, 100).op("aten::mm", 100 * number, 8)
        trace.kernel("ampere_bf16_s16816gemm", 100 * number + 10, 99, launched=100 * number + 1)
        trace.op("autograd::engine::evaluate_function: MmBackward0", 100 * number + 20, 5, AUTOGRAD)
    judgement = judge([parts_of(trace).timeline], Rate(gpus=8, usd_per_gpu_hour=2.0))
    assert judgement.findings == () and judgement.lacking == ()
    assert judgement.verdict == "99.2 % of each step is computation; nothing that costs much stands out."


@pytest.mark.parametrize("compact", [False, True])
def test_a_trace_that_is_cut_is_read_as_far_as_it_goes(compact):
    text = training_step().text(compact=compact)
    whole = read_kineto(io.BytesIO(text.encode()), "a.json")
    cut = read_kineto(io.BytesIO(text[: int(len(text) * 0.8)].encode()), "a.json")
    assert not whole.cut and cut.cut and 0 < len(cut.device) < len(whole.device)
    assert [one.code for one in judge([cut], Rate()).lacking if one.code == "whole_file"]


def test_a_broken_event_is_skipped():
    text = training_step().text(keys_after=True)
    broken = text.replace('"ncclDevKernel_AllReduce_Sum"', '"nccl"Dev"', 1).encode() + b"\xff\xfe"
    timeline = read_kineto(io.BytesIO(broken), "a.json")
    assert timeline.broken == 1 and len(timeline.device) == 5 and not timeline.cut


def test_kernels_without_any_launch_all_count():
    trace = Trace()
    for number in range(4):
        trace.kernel("gemm", 10 + 20 * number, 10, launched=-1)
    timeline = parts_of(trace).timeline
    assert not timeline.linked and len(timeline.device) == 4
    assert "launches" in {one.code for one in judge([timeline], Rate()).lacking}


# Of other people's traces: the values that were measured with another script (MANIFEST.csv of shared/traces).
GOLDEN = {
    "bert_small_h100_inference.json.gz": {"span": 3.907825, "idle": 3.598387, "compute": 0.307198, "copies": 0.002240},
    "qwen05b_mi300x_inference.json.gz": {"span": 33.131, "idle": 3.387, "copies": 0.00076, "unlinked": 463},
    "resnet_act_checkpoint_mi300x_ddp8_rank0.json.gz": {
        "span": 56.518, "idle": 0.284, "compute": 19.562, "communication": 47.200, "exposed": 35.088, "unlinked": 968,
        "recomputed": 4.122, "steps": [18.980, 18.983, 18.554]},
    "ddp2_v100_rank1.json.gz": {
        "span": 1732.965, "idle": 732.352, "late": 709.288, "compute": 621.408, "communication": 357.343,
        "exposed": 357.343},
    "resnet_a100_ddp2_rank0.json.gz": {
        "span": 660.551, "idle": 503.051, "late": 501.051, "compute": 116.047, "communication": 46.876,
        "exposed": 39.529},
}  # fmt: skip


@pytest.mark.parametrize("name", GOLDEN)
def test_values_known_of_real_traces(name):
    (parts,) = real(name)
    measured = {
        "span": parts.span_seconds, "idle": parts.idle_seconds, "late": parts.idle_seconds - parts.idle.device,
        "compute": parts.compute_seconds, "communication": parts.communication_seconds,
        "exposed": intervals.length(parts.exposed_communication), "copies": parts.exposed_copy_seconds,
        "recomputed": float(parts.device.seconds[parts.recomputed].sum()),
    }  # fmt: skip
    assert parts.timeline.unlinked == GOLDEN[name].get("unlinked", 0)
    for what, expected in GOLDEN[name].items():
        if what == "steps":
            assert [step * 1e3 for step in parts.steps] == pytest.approx(expected, rel=1e-4)
        elif what != "unlinked":
            assert measured[what] * 1e3 == pytest.approx(expected, rel=1e-3, abs=6e-4), what


def test_findings_of_real_traces():
    codes = {name: [one.code for one in judge([real(name)[0].timeline], Rate(gpus=1)).findings] for name in GOLDEN}
    assert codes["qwen05b_mi300x_inference.json.gz"] == []
    assert codes["bert_small_h100_inference.json.gz"][0] == codes["resnet_a100_ddp2_rank0.json.gz"][0] == "launch_bound"
    assert set(codes["ddp2_v100_rank1.json.gz"]) == {
        "launch_bound", "full_precision_products", "exposed_communication", "collectives_not_bucketed"}  # fmt: skip
    assert codes["resnet_act_checkpoint_mi300x_ddp8_rank0.json.gz"] == ["exposed_communication", "recomputation"]


def test_messages_of_a_real_trace():
    (parts,) = real("resnet_a100_ddp2_rank0.json.gz")
    found = judge([parts.timeline], Rate()).facts
    assert found["overlap"] == pytest.approx(0.157, abs=1e-3) and len(parts.device) == 3 * 1258
    sizes = [one.elements_in for one in parts.timeline.messages]
    assert parts.timeline.message[parts.timeline.message >= 0].size == 21 and sum(sizes) > 25e6


def test_the_late_rank_of_a_real_node():
    ranks = real("dlrm_v100_8ranks.tar.gz")
    found = arrival(ranks)
    assert [parts.timeline.rank for parts in ranks] == list(range(8)) and found.late == 7
    assert [micro(parts.communication_seconds) / 1e3 for parts in ranks] == pytest.approx(
        [5.798, 11.336, 3.492, 9.774, 6.587, 6.251, 3.558, 1.746], abs=1e-3)  # fmt: skip


def test_invalid_bytes_and_other_json_are_one_sentence():
    for data in (b"[" * 1_000_000, b'{"traceEvents": ' + b"[" * 1_000_000, b"nothing"):
        with pytest.raises(AdvisorError, match="nested too deeply|is not JSON"):
            read_kineto(io.BytesIO(data), "a.json")
    odd = {"ph": "X", "cat": "kernel", "name": [], "ts": "now", "args": 1}
    events = [1, "a", None, {}, {"cat": []}, odd, {**odd, "ts": 1}, {**odd, "ts": 1e400}, {**odd, "ts": 1, "dur": -5}]
    timeline = read_kineto(io.BytesIO(json.dumps({"traceEvents": events}).encode()), "a.json")
    assert not judge([timeline], Rate()).findings and timeline.broken


EVENT = "start, end, deviceId, streamId, correlationId, globalPid"
PID, OTHER = 7 << 24, 8 << 24


def nsys_export(path: Path, *more: str) -> Path:
    """Write an export of two processes on one GPU, with times in nanoseconds."""
    statements = [
        "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)",
        "INSERT INTO StringIds VALUES (1, 'ampere_sgemm_128x64_tn'), (2, 'ncclDevKernel_AllReduce'), "
        "(3, 'cudaLaunchKernel_v7000'), (4, 'cudaStreamSynchronize_v3020'), (5, 'Optimizer.step#AdamW.step')",
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER)",
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA A100-SXM4-80GB', 85000000000)",
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({EVENT}, demangledName)",
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({EVENT}, copyKind, srcKind, dstKind)",
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, correlationId, nameId, globalTid)",
        "CREATE TABLE NVTX_EVENTS (start, end, eventType, text TEXT, textId, globalTid)",
        *(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1000, 2000, 1, 3, {pid + 1}), "
          f"(3000, 4000, 2, 3, {pid + 1}), (70000, 90000, 3, 4, {pid + 1}), (91000, 92000, 4, 3, {pid + 1})"
          for pid in (PID, OTHER)),
        *(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10000, 60000, 0, 7, 1, {pid}, 1), "
          f"(60000, 80000, 0, 7, 2, {pid}, 2)" for pid in (PID, OTHER)),
        f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (100000, 110000, 0, 7, 4, {PID}, 1, 0, 2)",
        f"INSERT INTO NVTX_EVENTS VALUES (500, 2500, 59, 'aten::linear, seq = 3', NULL, {PID + 1}), "
        f"(90500, 95000, 59, NULL, 5, {PID + 1})",
        *more,
    ]  # fmt: skip
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def test_an_export_of_nsight_systems_has_the_same_parts(tmp_path):
    with open(nsys_export(tmp_path / "report.sqlite"), "rb") as stream:
        ranks = [StepParts(one) for one in read_nsys(stream, "report.sqlite")]
    parts = ranks[0]
    assert [one.timeline.rank for one in ranks] == [0, 1] and parts.timeline.gpu == "NVIDIA A100-SXM4-80GB"
    assert micro(parts.span_seconds) == 100 and micro(parts.compute_seconds) == 50
    assert micro(parts.communication_seconds) == micro(parts.idle_seconds) == 20
    assert micro(parts.exposed_copy_seconds) == 10
    # The host still waited in cudaStreamSynchronize when the GPU fell idle.
    assert micro(parts.idle.synchronizing) == 20 and micro(parts.terms["matrix products"]) == 50
    found = {one.code: one.title for one in judge([parts.timeline], Rate()).findings}
    assert found["full_precision_products"] == "50 % of the window is matrix products in fp32 or tf32"
    assert found["copies_from_pageable_memory"].startswith("10 % of the window is copies")


def test_a_database_runs_nothing(tmp_path):
    wrote = "CREATE TRIGGER t AFTER INSERT ON StringIds BEGIN DELETE FROM StringIds; END"
    secrets = ("CREATE TABLE secrets (a)", "INSERT INTO secrets VALUES ('hf_1')")
    view = ("DROP TABLE NVTX_EVENTS", "CREATE VIEW NVTX_EVENTS AS SELECT a AS text FROM secrets")
    path = nsys_export(tmp_path / "a.sqlite", wrote, *secrets, *view)
    before = path.read_bytes()
    with open(path, "rb") as stream:
        (timeline, _) = read_nsys(stream, "a.sqlite")
    assert path.read_bytes() == before and not len(timeline.ranges) and "hf_1" not in "".join(timeline.names)


@pytest.mark.parametrize("damage", ["cut", "no_cuda", "bytes"])
def test_a_damaged_database_is_one_sentence(tmp_path, damage):
    drops = ["DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL", "DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY"]
    data = bytearray(nsys_export(tmp_path / "a.sqlite", *drops * (damage == "no_cuda")).read_bytes())
    data = data[:6000] if damage == "cut" else data
    if damage == "bytes":
        data[4096:20000] = b"\xff" * (20000 - 4096)
    with pytest.raises(AdvisorError, match=r"a.sqlite (cannot be read|holds no CUDA activity)"):
        read_nsys(io.BytesIO(bytes(data)), "a.sqlite")


def test_values_known_of_a_real_export():
    if not (REAL / "nsys_t4_unified_memory.sqlite.gz").exists():
        pytest.skip("the traces of others are not here")
    with opened_parts(REAL / "nsys_t4_unified_memory.sqlite.gz") as (part,):
        (parts,) = (StepParts(one) for one in read_nsys(part.open(), part.name))
    assert parts.compute_seconds == pytest.approx(35_629_661e-9) and parts.kernels.sum() == 1
    assert parts.device.seconds[parts.copies].sum() == pytest.approx(86_717_154e-9) and parts.copies.sum() == 2370
    assert intervals.length(parts.busy) == pytest.approx(99_532_669e-9)
    assert parts.span_seconds == pytest.approx(1_039_870_596e-9)
