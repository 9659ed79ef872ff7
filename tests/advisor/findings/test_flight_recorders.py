"""Who is stuck, differs or comes late: dumps written here, and jobs of torch.distributed that really hang."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from advisor.errors import AdvisorError
from advisor.findings.traces.judgement import Rate
from advisor.findings.traces.stuck import judge
from advisor.readers.traces.collectives import read_dumps
from tests.terminal import advisor

TRACES = Path(__file__).parents[4] / "shared" / "traces"
known = pytest.mark.skipif(not TRACES.is_dir(), reason="the collected traces are not here")
MS = 1_000_000
TORCH = "/home/alice/env/lib/python3.11/site-packages/torch"


class Job:
    """The calls of several ranks, as their flight recorders would dump them."""

    def __init__(self, ranks, groups=None, backend="nccl", state="scheduled"):
        self.entries = {rank: [] for rank in range(ranks)}
        self.groups = {"0": ("default_pg", tuple(range(ranks)))} | (groups or {})
        self.backend, self.state, self.stated = backend, state, True

    def call(self, operation, at_ms, ranks, group="0", *, inputs=((4096,),), outputs=None, line=7, state=None, **more):
        for rank in ranks:
            mine = [one for one in self.entries[rank] if one["process_group"][0] == group and not one["is_p2p"]]
            ms = at_ms[rank] if isinstance(at_ms, dict) else at_ms + rank / 100
            entry = {
                "record_id": 1 + self.entries[rank][-1]["record_id"] if self.entries[rank] else 0,
                "process_group": (group, self.groups[group][0]),
                "collective_seq_id": 1 + max((one["collective_seq_id"] for one in mine), default=0),
                "profiling_name": f"{self.backend}:{operation}",
                "input_sizes": [list(size) for size in inputs],
                "input_dtypes": ["BFloat16"] * len(inputs),
                "output_sizes": [list(size) for size in (inputs if outputs is None else outputs)],
                "state": state or self.state,
                "time_created_ns": 1_795_000_000_000_000_000 + int(ms * MS),
                "is_p2p": False,
                "frames": [
                    {"name": "all_reduce", "filename": f"{TORCH}/distributed/distributed_c10d.py", "line": 3245},
                    {"name": "step", "filename": "/home/alice/job/train.py", "line": line},
                ],
            }
            self.entries[rank].append(entry | more)
        return self

    def dump(self, rank, kind=pickle):
        config = {name: {"name": name, "desc": label, "ranks": str(list(ranks)) if self.stated else "[]"}
                  for name, (label, ranks) in self.groups.items() if rank in ranks}  # fmt: skip
        held = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": self.entries[rank]}
        if kind is json:
            held["entries"] = [{key: value for key, value in one.items() if key != "frames"} for one in held["entries"]]
            return json.dumps(held).encode()
        return pickle.dumps(held, protocol=2)

    def judged(self, files=None, rate=None, kind=pickle, name="nccl_trace_rank_{}"):
        files = self.entries if files is None else files
        parts = [(name.format(rank), io.BytesIO(self.dump(rank, kind))) for rank in files]
        return judge(read_dumps(parts), rate or Rate())


def training(job, steps=4, ranks=None):
    """Three collectives in each step of 100 ms, which all ranks make."""
    ranks = list(job.entries) if ranks is None else ranks
    for step in range(steps):
        job.call("all_reduce", 100 * step, ranks, line=7)
        job.call("all_reduce", 100 * step + 40, ranks, inputs=((64,),), line=9)
        job.call("all_gather", 100 * step + 80, ranks, inputs=((8,),), outputs=((3, 8),), line=11)
    return job


def stuck(judgement):
    return judgement.facts.get("stuck_ranks")


@pytest.mark.parametrize("kind", [pickle, json])
def test_the_command_names_the_rank_and_the_price(tmp_path, kind):
    job = training(Job(3)).call("all_gather", 400, (0, 1), line=20)
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(job.dump(rank, kind))
    said = advisor("analyze", tmp_path, "--gpus", 8, "--price", 2.5, expect=0, COLUMNS=200).stdout
    assert "Rank 2 never came to all_gather (call 13 of default_pg)" in said and "$20 for each hour of waiting" in said
    (one,) = json.loads(advisor("analyze", tmp_path, "--json", expect=0).stdout)["judged"]
    assert one["judgement"]["facts"]["stuck_ranks"] == [2] and one["kind"] == "flight_recorder"
    assert ("at job/train.py:20 step" in one["judgement"]["verdict"]) == (kind is pickle)
    found = one["judgement"]["findings"][0]
    assert found["severity"] == "error" and "rank 2: last all_gather of 8 BFloat16" in found["evidence"][0]["text"]
    assert "alice" not in said + repr(one)


@pytest.mark.parametrize("early", [-9, 9])  # ms that the rank comes to the next call before the others come to this one
@pytest.mark.parametrize("stated", [True, False])  # gloo does not say who is in a group, if there are subgroups
@pytest.mark.parametrize("names", [("tp", "tp"), ("a", "b")])
def test_a_rank_that_skipped_a_call_of_its_subgroup_where_all_wait_for_each_other(names, stated, early):
    job = Job(4, {"1": (names[0], (0, 1)), "2": (names[1], (2, 3))})
    job.stated = stated
    for step in range(4):
        job.call("all_reduce", 100 * step, range(4), line=7)
        job.call("all_reduce", 100 * step + 50, (0, 1), "1", line=8)
        job.call("all_reduce", 100 * step + 50, (2, 3) if step < 3 else (2,), "2", line=8)  # the last time not 3
        if step < 3:
            job.call("all_reduce", 100 * step + 60, range(4), line=9)
    job.call("all_reduce", {0: 360, 1: 360, 3: 350 - early}, (0, 1, 3), line=9)
    found = job.judged()
    assert stuck(found) == [3] and found.verdict.startswith(f"Rank 3 skipped all_reduce (call 4 of {names[1]})")
    assert "ranks 0, 1, 3 wait in all_reduce (call 8 of default_pg) for rank 2" in repr(found.findings[0].evidence)


def test_who_is_waited_for_is_followed_to_what_it_waits_for():
    job = training(Job(4, {"1": ("tp", (2, 3))}))
    job.call("all_reduce", 400, (0, 1)).call("all_reduce", 450, (2,), "1")  # 2 waits for 3, which does nothing
    found = job.judged()
    assert stuck(found) == [3] and "Rank 3 never came to all_reduce (call 1 of tp)" in found.verdict
    assert "ranks 0, 1 wait in all_reduce (call 13 of default_pg) for ranks 2, 3" in repr(found.findings[0].evidence)


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"operation": "broadcast"}, "rank 1: broadcast of 4096 BFloat16"),
        ({"inputs": ((4095,),)}, "rank 1: all_reduce of 4095 BFloat16"),
        ({"input_dtypes": ["Float"]}, "rank 1: all_reduce of 4096 Float"),
    ],
)
def test_the_minority_called_something_else(odd, said):
    job = training(Job(3)).call("all_reduce", 400, (0, 2), line=20)
    job.call(**{"operation": "all_reduce", "at_ms": 400, "ranks": (1,), "line": 25} | odd)
    job.call("all_reduce", 500, (0, 2))  # which only the majority reaches: a consequence
    found = job.judged()
    assert stuck(found) == [1] and found.findings[0].code == "collectives_differ"
    assert "Rank 1 called something else than the others in all_reduce (call 13" in found.verdict
    assert f"{said} at job/train.py:25 step" in [one.text for one in found.findings[0].evidence]


def test_of_two_ranks_that_differ_the_one_is_named_that_did_so_before_never():
    job = training(Job(2)).call("all_reduce", 400, (0,)).call("broadcast", 400, (1,))
    assert stuck(job.judged()) == [1] and "Rank 1 called something else than the others" in job.judged().verdict
    first = Job(2).call("all_reduce", 0, (0,)).call("broadcast", 0, (1,))  # nothing came before: no one can tell
    assert stuck(first.judged()) == [0, 1] and "Ranks 0, 1 disagree in call 1 of default_pg" in first.judged().verdict


def hung_job(rng, fault, ranks):
    """A job of tensor-parallel pairs over two data-parallel groups, one rank of which has a fault, until nobody moves.

    Calls return at once if `ahead` are open at most, as on a GPU, and each machine has a clock of its own.
    """
    pairs = {f"p{rank // 2}": ("tp", (rank, rank + 1)) for rank in range(0, ranks, 2)}
    job = Job(ranks, pairs | {f"d{odd}": ("dp", tuple(range(odd, ranks, 2))) for odd in (0, 1)})
    programs = {}
    for rank in range(ranks):
        pair, data = f"p{rank // 2}", f"d{rank % 2}"
        layers = [(pair, "all_reduce", 64, 20), (data, "reduce_scatter", 128, 30)] * 3
        step = [("0", "all_reduce", 1, 5), *[(pair, "all_reduce", 64, 10)] * 3, *layers, (data, "all_gather", 32, 40)]
        programs[rank] = 5 * [*step, ("0", "all_reduce", 2, 50)]
    guilty, at = rng.randrange(ranks), rng.randrange(2 * len(step), 4 * len(step))
    group, operation, size, line = programs[guilty][at]
    changed = {
        "skips": [],
        "differs": [(group, "broadcast", size, 99)],
        "resizes": [(group, operation, size + 1, line)],
    }
    programs[guilty][at : at + 1 if fault in changed else None] = changed.get(fault, [])
    ahead, clock = rng.choice((0, 0, 3, 9)), {rank: rng.uniform(0, 20) for rank in range(ranks)}
    joined, open_calls, numbers = {}, {rank: [] for rank in range(ranks)}, {}

    def is_open(call):
        members = job.groups[call[0]][1]
        return len(joined[call]) < len(members) or len(set(joined[call].values())) > 1

    def can_call(rank):
        while open_calls[rank] and not is_open(open_calls[rank][0]):
            open_calls[rank].pop(0)
        return programs[rank] and len(open_calls[rank]) <= ahead

    while able := [rank for rank in range(ranks) if can_call(rank)]:
        rank = rng.choice(able)
        group, operation, size, line = programs[rank].pop(0)
        clock[rank] += rng.uniform(0.5, 2)
        numbers[rank, group] = numbers.get((rank, group), 0) + 1
        joined.setdefault(call := (group, numbers[rank, group]), {})[rank] = operation, size
        open_calls[rank].append(call)
        job.call(operation, {rank: clock[rank]}, (rank,), group, inputs=((size,),), line=line)
    return job, guilty


@pytest.mark.parametrize("kind", [pickle, json])
@pytest.mark.parametrize("fault", ["stops", "dies", "skips", "differs", "resizes"])
def test_the_guilty_rank_of_random_jobs_is_named(fault, kind):
    for seed in range(8):
        rng = random.Random(f"{fault} {seed}")
        job, guilty = hung_job(rng, fault, rng.choice((4, 8)))
        files = [rank for rank in job.entries if rank != guilty or fault != "dies"]
        found = job.judged(files=files, kind=kind)
        assert stuck(found) == [guilty], (seed, guilty, found.verdict)


def test_only_one_rank_gathers_and_scatters_and_splits_need_only_add_up():
    job = training(Job(2))
    job.call("gather", 400, (0,), outputs=((8, 4096),)).call("gather", 400, (1,), outputs=())
    job.call("scatter", 410, (0,)).call("scatter", 410, (1,), inputs=(), outputs=((4096,),))
    job.call("all_to_all", 420, (0,), inputs=((6, 4),), outputs=((2, 4),))
    job.call("all_to_all", 420, (1,), inputs=((4, 4),), outputs=((8, 4),))
    job.call("all_gather_v", 425, (0,), inputs=((6,),)).call("all_gather_v", 425, (1,), inputs=((7,),))
    job.call("all_reduce", 427, (0,), inputs=((6, 2),)).call("all_reduce", 427, (1,), inputs=((12,),))
    assert "Nothing is stuck" in job.judged().verdict
    job.call("all_to_all", 430, (0,), inputs=((6, 4),), outputs=((2, 4),))
    job.call("all_to_all", 430, (1,), inputs=((4, 4),), outputs=((7, 4),))
    assert stuck(job.judged()) == [0, 1]


def test_a_rank_without_a_dump_is_the_first_suspect():
    found = training(Job(4)).judged(files=(0, 1, 3))
    assert stuck(found) == [2] and found.findings[0].code == "rank_without_dump"
    assert not training(Job(4, state="completed")).judged(files=(0, 1, 3)).findings  # all went well
    job = training(Job(4)).call("all_reduce", 400, (0, 1))  # 3 never came, and 2 wrote nothing
    found = job.judged(files=(0, 1, 3))
    assert stuck(found) == [3] and "rank 2 wrote no dump" in repr(found.findings[0].evidence)
    few = training(Job(4)).judged(files=(1,))
    assert not few.findings and "ranks 0, 2, 3" in few.lacking[0].missing


def test_who_waits_for_a_rank_without_a_dump_is_its_victim():
    for stated in (True, False):
        job = training(Job(4, {"1": ("tp", (0, 1)), "2": ("tp", (2, 3))}))
        job.stated = stated
        job.call("all_reduce", 400, (0, 1), "1").call("all_reduce", 400, (2, 3), "2")
        job.call("all_reduce", 500, (0,), "1")  # rank 1 was killed before
        job.call("all_reduce", 500, (2, 3), "2").call("all_reduce", 510, (2, 3))
        assert stuck(job.judged(files=(0, 2, 3))) == [1]


def test_calls_that_a_full_ring_has_lost_are_no_gap():
    job = training(Job(3), steps=6)
    job.entries[1] = job.entries[1][10:]
    assert "Nothing is stuck" in job.judged().verdict
    job.call("all_reduce", 700, (0, 1))
    assert stuck(job.judged()) == [2]


@pytest.mark.parametrize(
    ("states", "stuck_ranks", "said"),
    [
        (("scheduled",) * 3, [0, 1, 2], "no GPU has begun"),
        (("started",) * 3, [0, 1, 2], "none has ended"),
        (("completed", "started", "completed"), [1], "rank 1 did not end"),
        (("started", "scheduled", "started"), [1], "none has ended"),
    ],
)
def test_what_all_have_called_and_not_all_have_completed(states, stuck_ranks, said):
    job = training(Job(3, state="completed"))
    for rank, state in enumerate(states):
        job.call("all_reduce", 400, (rank,), state=state)
    found = job.judged()
    assert stuck(found) == stuck_ranks and said in found.verdict and found.findings[0].severity == "warning"


def late(**delays):
    job = Job(3, state="completed")
    for step in range(5):
        at = {rank: 100 * step + rank / 100 for rank in range(3)}
        job.call("all_reduce", {rank: ms + delays.get("first", 0) * (rank == 1) for rank, ms in at.items()}, range(3))
        then = {rank: ms + 50 + delays.get("second", 0) * (rank == 1) for rank, ms in at.items()}
        job.call("all_reduce", then, range(3), inputs=((9,),), line=9)
    return job


def test_a_rank_that_comes_late_to_one_line_in_each_step():
    found = late(second=30).judged(rate=Rate(gpus=3, usd_per_gpu_hour=10.0))
    assert found.facts["late_rank"] == 1 and found.facts["late_seconds"] == pytest.approx(0.03, abs=1e-4)
    assert found.facts["step_seconds"] == pytest.approx(0.1, abs=1e-3)
    assert (
        "30 ms late to all_reduce at job/train.py:9 step in each step: the others wait 30 % of it, $9 an hour"
        in found.verdict
    )
    assert not late(second=5).judged().findings  # 5 % of a step
    assert not late(first=400, second=400).judged().findings  # another clock


def test_a_rank_that_came_in_the_end():
    job = late()
    job.call("all_reduce", {0: 500, 1: 8500, 2: 500}, range(3))
    assert stuck(job.judged()) == [1] and "8 s after the others to the last call" in job.judged().verdict


def test_healthy_dumps_are_silent():
    for job in (training(Job(3, state="completed")), training(Job(8, backend="gloo")), late()):
        found = job.judged()
        assert not found.findings and found.verdict.startswith("Nothing is stuck: ")
    assert "only the others' dumps can say" in training(Job(1)).judged().verdict


def test_a_receive_that_was_never_called():
    job = Job(2, state="completed")
    for step in range(3):
        job.call("send 0->1", 100 * step, (0,), is_p2p=True)
        if step < 2:
            job.call("recv 1<-0", 100 * step, (1,), is_p2p=True)
    assert stuck(job.judged()) == [1] and "send and recv (call 3 of default_pg 0->1)" in job.judged().verdict


def test_the_rank_is_the_last_number_of_the_name_that_can_be_one():
    job = training(Job(3)).call("all_gather", 400, (0, 1))
    for name in ("nccl_trace_rank_container-node02_{}", "run7/comm_traces/rank_{}", "rank_{}.step900.pickle",
                 "rank{}.json.gz"):  # fmt: skip
        assert stuck(job.judged(name=name)) == [2]
    both = [(f"rank_{rank}{end}", io.BytesIO(job.dump(rank, kind)))
            for kind, end in ((json, ".json"), (pickle, "")) for rank in range(3)]  # fmt: skip
    # Of two files of a rank, the one with lines counts.
    assert "at job/train.py:7 step" in judge(read_dumps(both), Rate()).verdict
    for name, data in (("dump", job.dump(0)), ("rank_9", job.dump(0)), ("rank_0", b"\x80\x02}."), ("rank_0", b"[1]"),
                       ("rank_0", pickle.dumps({"entries": [{}]}))):  # fmt: skip
        with pytest.raises(AdvisorError) as error:
            read_dumps([(name, io.BytesIO(data))])
        assert "\n" not in error.value.message


def test_words_of_strangers_are_cleaned():
    job = training(Job(3, {"1": ("/home/alice/\x1b[31mtp" + "x" * 200, (0, 1))}))
    job.call("all_reduce\n\x1b", 400, (0,), "1", line=3)
    assert stuck(found := job.judged()) == [1]
    assert not any(bad in found.verdict for bad in ("alice", "\x1b", "\n")) and len(found.verdict) < 250


@known
@pytest.mark.parametrize("name", ["fr_missing_rank", "fr_slow_rank"])
def test_dumps_with_known_truth(name):
    with tarfile.open(TRACES / f"{name}.tar.gz") as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        parts = [(member.name, io.BytesIO(archive.extractfile(member).read())) for member in files]
    found = judge(read_dumps(parts), Rate())
    if name == "fr_missing_rank":
        assert stuck(found) == [2] and "all_gather (call 15 of default_pg)" in found.verdict
        assert "train.py:15 metrics" in found.verdict
        assert "last all_reduce of 4096 Float at job/train.py:12 sync_grads" in found.findings[0].evidence[0].text
    else:
        assert found.facts["late_rank"] == 2 and found.facts["late_seconds"] == pytest.approx(0.3005, abs=1e-4)
        assert "sync_grads" in found.facts["place"]


JOB = """
import os, sys, time
from datetime import timedelta
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

scenario, rank, size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
store = dist.FileStore(f"{folder}/store", size)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=6))
pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])] if size == 4 else None

def dump():
    with open(f"{folder}/trace_rank_{rank}", "wb") as file:
        file.write(_dump_fr_trace())
    os._exit(0)

def forward():
    dist.all_reduce(torch.ones(1024))

def sync_grads():
    dist.all_reduce(torch.ones(4096))

def metrics():
    if scenario == "wrong" and step == 3 and rank == 1:
        dist.broadcast(torch.ones(8), 1)
    else:
        dist.all_gather([torch.zeros(8) for _ in range(size)], torch.ones(8))

try:
    for step in range(5):
        forward()
        if pairs and not (step == 3 and rank == 3):
            dist.all_reduce(torch.ones(64), group=pairs[rank // 2])
        if scenario == "missing" and step == 4 and rank == 2:
            time.sleep(9)  # longer than the others wait
            dump()
        if scenario == "killed" and step == 3 and rank == 1:
            os.kill(os.getpid(), 9)
        if scenario == "slow" and rank == 2:
            time.sleep(0.2)
        sync_grads()
        metrics()
except RuntimeError:
    pass  # the others were waited for in vain
dump()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("scenario", "ranks", "guilty", "said"),
    [
        ("missing", 3, [2], "Rank 2 never came to all_reduce"),
        ("wrong", 3, [1], "Rank 1 called something else than the others in all_gather"),
        ("slow", 3, [2], "late to all_reduce at"),
        ("killed", 3, [1], "Rank 1 wrote no dump"),
        ("skipped", 4, [3], "Rank 3 skipped all_reduce"),
    ],
)
def test_jobs_that_really_hang(tmp_path, scenario, ranks, guilty, said):
    (tmp_path / "train.py").write_text(JOB, encoding="utf-8")
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "2000", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    jobs = [
        subprocess.Popen([sys.executable, tmp_path / "train.py", scenario, str(rank), str(ranks), tmp_path],
                         env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for rank in range(ranks)
    ]  # fmt: skip
    for job in jobs:
        job.wait(120)
    parts = [(path.name, io.BytesIO(path.read_bytes())) for path in sorted(tmp_path.glob("trace_rank_*"))]
    assert len(parts) == ranks - (scenario == "killed")
    found = judge(read_dumps(parts), Rate())
    named = [found.facts["late_rank"]] if scenario == "slow" else stuck(found)
    assert named == guilty and said in found.verdict
