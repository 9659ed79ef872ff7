"""Traces and dumps through the front doors: the command, Python, an assistant and the page; and hostile files."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pytest

import advisor
from advisor.errors import AdvisorError
from advisor.mcp_server import log_reader
from advisor.readers.traces.kinds import Kind, holds_traces, kind_of, opened_parts
from tests import terminal
from tests.advisor.build_trace import Trace, training_step

VERDICT = "30.3 % of each step is communication that nothing hides: $1.82 an hour of $6 for 2 x h100-80gb-sxm."


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return training_step().write(tmp_path / "rank0.pt.trace.json.gz", distributedInfo={"rank": 0, "world_size": 2})


def test_a_trace_is_told_by_its_content_and_judged(trace):
    said = terminal.advisor("analyze", trace, "--price", 3, expect=0).stdout
    assert VERDICT in said and "100 µs" not in said.split("part")[0]
    # 50 of each step's mean 165 µs
    line = next(line for line in said.splitlines() if line.startswith("communication that nothing hides"))
    assert line.split()[4:7] == ["50", "µs", "30.3"]
    assert "do: let gradients be sent while the backward pass runs" in said
    assert "copies from memory that is not pinned" in said and "as stated" in said


def test_every_door_says_the_same(trace):
    document = json.loads(terminal.advisor("analyze", trace, "--price", 3, "--json", expect=0).stdout)
    (judged,) = document["judged"]
    assert document["document"] == "analyze-trace" and judged["kind"] == "kineto"
    assert judged["rate"] == {"gpus": 2, "usd_per_gpu_hour": 3.0, "gpu": "h100-80gb-sxm"}
    assert judged["judgement"]["verdict"] == VERDICT
    assert sum(part["share"] for part in judged["judgement"]["parts"]) == pytest.approx(1)
    answer = advisor.analyze(trace, price=3)
    assert answer.sentence == VERDICT and json.loads(answer.to_json()) == document
    codes = ["exposed_communication", "launch_bound", "copies_from_pageable_memory"]
    assert list(answer.to_frame()["code"]) == codes
    told = log_reader([trace.parent])(str(trace), price="3")
    assert told["answer"] == VERDICT and told["parts"][0]["communication that nothing hides"] == 0.303


def test_without_a_price_there_is_the_catalogs(trace):
    said = terminal.advisor("analyze", trace, "--gpu", "8xh100", expect=0).stdout
    assert "for 8 x h100-80gb-sxm" in said and "price: $" in said


@pytest.mark.parametrize("packing", ["folder", "tar.gz", "zip"])
def test_ranks_in_a_folder_or_archive_are_one_case(tmp_path, packing):
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(3):
        trace = Trace()
        for number in range(6):
            trace.kernel("gemm", 100 * number + 10, 70 if rank == 2 else 40)
            trace.kernel("ncclDevKernel_AllReduce", 100 * number + (80 if rank == 2 else 50), 10 if rank == 2 else 40)
        trace.write(folder / f"rank{rank}.json.gz", distributedInfo={"rank": rank, "world_size": 3})
    path = folder
    if packing == "zip":
        with zipfile.ZipFile(path := tmp_path / "ranks.zip", "w") as archive:
            for file in folder.iterdir():
                archive.write(file, f"run/{file.name}")
            archive.writestr("run/notes.bin", b"\0" * 10)
    elif packing == "tar.gz":
        with tarfile.open(path := tmp_path / "ranks.tar.gz", "w:gz") as archive:
            archive.add(folder, "run")
    said = terminal.advisor("analyze", path, expect=0).stdout
    assert "rank0.json.gz and 2 more" in said
    assert "rank 2 is late: the others wait 25.9 % of the window for it" in said


def test_a_log_stays_a_log(tmp_path):
    log = tmp_path / "train.jsonl"
    log.write_text("".join(json.dumps({"step": n, "loss": 3 - n / 100, "segments": 1}) + "\n" for n in range(40)))
    assert not holds_traces(log) and not holds_traces(tmp_path) and not holds_traces(tmp_path / "none")
    assert terminal.advisor("analyze", log, expect=0).stdout.startswith(str(log))
    (tmp_path / "trace.json").write_text(training_step().text())
    both = terminal.advisor("analyze", log, tmp_path / "trace.json", expect=0).stdout
    assert both.startswith(str(log)) and "30.3 % of each step is communication" in both


def test_a_trace_without_a_gpu_says_what_to_record(tmp_path):
    path = Trace().step(1, 0, 50).op("aten::mm", 0, 8).write(tmp_path / "cpu.json")
    said = " ".join(terminal.advisor("analyze", path, expect=0).stdout.split())
    assert "The trace has no work of a GPU." in said and "torch.profiler.schedule(wait=1" in said


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("run.nsys-rep", b"\x00\x01", "nsys export --type sqlite"),
        ("host.xplane.pb", b"\x0a\x01", "trace_viewer"),
        ("memory.html", b"<html>\n<head><title>Max memory allocated: 3 GB</title></head><img src='data:image/png;",
         "memory.raw.json.gz"),
        ("sums.csv", b"Time (%),Total Time (ns),Instances,Name\n50,10,1,k\n", "nsys export --type sqlite"),
    ],
)  # fmt: skip
def test_kinds_that_cannot_be_read_are_named_with_the_command(tmp_path, name, content, command):
    (tmp_path / name).write_bytes(content)
    failed = terminal.advisor("analyze", tmp_path / name, expect=1)
    assert name in failed.stderr and command in " ".join(failed.stderr.split())


def test_metadata_of_strangers_is_not_repeated(tmp_path):
    secret = "hf_abcdefghijklmnop"
    path = training_step().write(tmp_path / "a.json", env={"HF_TOKEN": secret}, traceName=f"/home/{secret}/a.json",
                                 distributedInfo={"rank": 0, "world_size": 2, "host": secret})  # fmt: skip
    for words in ([], ["--json"], ["--all"]):
        assert secret not in terminal.advisor("analyze", path, *words, expect=0).stdout


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(b'{"traceEvents": [' + b" " * 40_000_000),
        b'{"traceEvents": ' + b"[" * 1_000_000,
        b'{"traceEvents": [{"ph": "' + b"a" * 35_000_000,
    ],
    ids=["gz of spaces", "nested", "one long text"],
)
def test_hostile_traces_are_refused_in_one_sentence(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    failed = terminal.advisor("analyze", tmp_path / "a.json", expect=1)
    assert "\nerror: " in failed.stderr and "a.json" in failed.stderr
    assert "this is a fault of the program" not in failed.stderr


def test_a_damaged_archive_is_refused_and_a_cut_one_read(tmp_path, trace):
    whole = trace.read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) * 3 // 4])
    said = terminal.advisor("analyze", tmp_path / "cut.json.gz", expect=0).stdout
    assert "ends in the middle" in " ".join(said.split())
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.add(trace, "a.json.gz")
    (tmp_path / "cut.tar").write_bytes(out.getvalue()[:900])
    assert terminal.advisor("analyze", tmp_path / "cut.tar").returncode == 1


def test_kinds_by_first_bytes():
    assert kind_of(b'[{"ph": "X", "cat": "kernel", "ts": 1}]') is Kind.KINETO
    assert kind_of(b'{"entries": [{"collective_seq_id": 1}], "pg_config": {}}') is Kind.FLIGHT_RECORDER
    assert kind_of(b'{"segments": [{"segment_type": "large"}], "device_traces": []}') is Kind.SNAPSHOT
    assert kind_of(b"[[-1, 1, 512, 0], [5, 2, 512, 3]]") is Kind.MEMORY_TIMELINE
    assert kind_of(b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 2.0}') is None
    assert kind_of(b"[[1, 2.5, 0.1, 3], [2, 2.4, 0.1, 3]]") is None


def test_another_database_is_no_trace(tmp_path):
    with sqlite3.connect(tmp_path / "runs.db") as database:
        database.execute("CREATE TABLE metrics (key, value)")
    database.close()
    assert not holds_traces(tmp_path / "runs.db")
    with opened_parts(tmp_path / "runs.db") as parts:
        assert parts == []


def test_nothing_is_left_behind_and_options_of_logs_are_refused(trace, tmp_path):
    refused = terminal.advisor("analyze", trace, "--html", tmp_path / "a.html", expect=2)
    assert "--json" in refused.stderr
    with pytest.raises(AdvisorError, match="unknown GPU"):
        advisor.analyze(trace, gpu="h1000000")


def test_windows_of_different_steps_are_not_ranks_of_one(tmp_path):
    for iteration in (10, 20):
        (tmp_path / f"iteration_{iteration}").mkdir()
        for rank in range(2):
            about = {"distributedInfo": {"rank": rank, "world_size": 2}}
            training_step().write(tmp_path / f"iteration_{iteration}" / f"rank{rank}_trace.json", **about)
    judged = advisor.analyze(tmp_path, price=3).record.judged
    assert [one.files for one in judged] == [
        tuple(f"iteration_{iteration}/rank{rank}_trace.json" for rank in range(2)) for iteration in (10, 20)
    ]
    assert [one.judgement.facts["ranks"] for one in judged] == [2, 2]
