"""The run log: what is written is what is read, whatever a crash left behind."""

import json
import math
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.runlog import RunLogError, RunLogWriter, load_run_log, read_records

NUMBERS = st.one_of(st.none(), st.integers(-(2**53), 2**53), st.floats())
FIELDS = st.dictionaries(st.sampled_from(["loss", "grad_norm", "tokens", "seconds", "learning_rate"]), NUMBERS)


def write_lines(path, *records):
    with RunLogWriter(path) as log:
        for kind, fields in records:
            log.write(kind, **fields)


def same(a, b):
    both_nan = isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)
    return both_nan or a == b


@given(st.lists(FIELDS, max_size=20))
def test_every_number_is_read_back_exactly(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write_lines(path, *(("step", {"step": i, **row}) for i, row in enumerate(rows)))
    records, offset = read_records(path)
    assert offset == path.stat().st_size
    assert len(records) == len(rows)
    for record, row in zip(records, rows, strict=True):
        assert all(same(record[key], value) for key, value in row.items())


def test_a_line_is_plain_json_with_kind_and_time(tmp_path):
    path = tmp_path / "log.jsonl"
    with RunLogWriter(path, clock=lambda: 1700000000.12345) as log:
        log.write("step", step=1, loss=math.inf, grad_norm=math.nan, clipped=True, nested={"a": [-math.inf]})
    expected = {"kind": "step", "time": 1700000000.123, "step": 1, "loss": "inf", "grad_norm": "nan", "clipped": True}
    assert json.loads(path.read_text()) == {**expected, "nested": {"a": ["-inf"]}}


def test_words_that_look_like_numbers_stay_words(tmp_path):
    path = tmp_path / "log.jsonl"
    write_lines(path, ("message", {"level": "info", "text": "nan"}), ("header", {"config": {"name": "inf"}}))
    records, _ = read_records(path)
    assert records[0]["text"] == "nan" and records[1]["config"]["name"] == "inf"


@given(cut=st.integers(min_value=1, max_value=60))
def test_whatever_a_crash_cuts_the_rest_survives(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write_lines(path, ("step", {"step": 1, "loss": 2.5}), ("step", {"step": 2, "loss": 2.25}))
    whole = path.read_bytes()
    first_end = whole.index(b"\n") + 1
    kept = max(first_end + 1, len(whole) - cut)
    path.write_bytes(whole[:kept])
    records, offset = read_records(path)
    assert [r["step"] for r in records] == [1] and offset == first_end
    write_lines(path, ("step", {"step": 3, "loss": 2.0}))
    later, offset = read_records(path, offset)
    expected = [2, 3] if kept == len(whole) - 1 else [3]  # only the line's end was cut: the record is whole
    assert [r["step"] for r in later] == expected
    assert [s["step"] for s in load_run_log(path).steps] == [1, *expected]
    assert path.read_bytes().startswith(whole[:kept])  # append only


def test_reading_goes_on_where_it_stopped(tmp_path):
    path = tmp_path / "log.jsonl"
    with RunLogWriter(path) as log:
        log.write("step", step=1)
        first, offset = read_records(path)
        nothing, same_offset = read_records(path, offset)
        log.write("step", step=2)
        second, _ = read_records(path, offset)
    assert [len(first), len(nothing), len(second)] == [1, 0, 1]
    assert same_offset == offset and second[0]["step"] == 2


@pytest.mark.parametrize(
    "bad", ["{broken", "[1, 2]", '{"no": "kind"}', '{"kind": "step"}', '{"kind":"a"},{"kind":"b"}', "\x00\x00"]
)
def test_a_malformed_middle_line_is_named(tmp_path, bad):
    path = tmp_path / "log.jsonl"
    write_lines(path, *(("step", {"step": i}) for i in range(1, 5001)))
    lines = path.read_text().splitlines()
    lines[4321] = bad
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunLogError, match=r"log\.jsonl, line 4322: not "):
        load_run_log(path)
    after_first = len(lines[0]) + 1
    with pytest.raises(RunLogError, match="line 4322"):
        read_records(path, after_first)


def test_a_log_of_a_newer_version_or_a_shrunken_one_is_refused(tmp_path):
    path = tmp_path / "log.jsonl"
    write_lines(path, ("header", {"schema": 99}))
    with pytest.raises(RunLogError, match="newer version"):
        load_run_log(path)
    with pytest.raises(RunLogError, match="shorter"):
        read_records(path, 10**6)


def test_a_later_attempt_rewrites_history_from_where_it_resumed(tmp_path):
    path = tmp_path / "log.jsonl"
    first = [("header", {"schema": 1, "attempt": 1, "resumed_from_step": 0})]
    first += [("step", {"step": i, "loss": float(i)}) for i in range(1, 8)]
    first += [("eval", {"step": 4, "loss": 9.0}), ("eval", {"step": 6, "loss": 8.0}), ("checkpoint", {"step": 4})]
    second = [("header", {"schema": 1, "attempt": 2, "resumed_from_step": 4})]
    second += [("step", {"step": i, "loss": float(10 * i)}) for i in (5, 6)]
    second += [("final", {"outcome": "stopped", "step": 6}), ("message", {"level": "info", "text": "bye"})]
    write_lines(path, *first, *second)
    log = load_run_log(path)
    assert [s["loss"] for s in log.steps] == [1, 2, 3, 4, 50, 60]
    assert [s["attempt"] for s in log.steps] == [1, 1, 1, 1, 2, 2]
    assert [(r["kind"], r["step"]) for r in log.superseded] == [("step", 5), ("step", 6), ("step", 7), ("eval", 6)]
    assert [e["step"] for e in log.evals] == [4]
    assert log.attempts == 2 and log.header["attempt"] == 2 and log.final["outcome"] == "stopped"
    assert len(log.checkpoints) == len(log.messages) == 1
    write_lines(path, ("header", {"schema": 1, "attempt": 3, "resumed_from_step": 6}))
    assert load_run_log(path).final is None  # the newest attempt has not ended


def test_lines_written_before_a_kill_are_in_the_file(tmp_path):
    path = tmp_path / "log.jsonl"
    code = """
        import sys, time
        from trainer.runlog import RunLogWriter
        log = RunLogWriter(sys.argv[1])
        log.write("step", step=1)
        print("ready", flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGKILL)
    assert [s["step"] for s in load_run_log(path).steps] == [1]


def test_a_record_cut_by_a_full_disk_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "log.jsonl"
    code = """
        import resource, sys
        from trainer.runlog import RunLogWriter
        log = RunLogWriter(sys.argv[1])
        log.write("step", step=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        try:
            log.write("message", level="info", text="x" * 1000)
        except OSError:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            log.write("step", step=2)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(path)], check=True)
    log = load_run_log(path)
    assert [s["step"] for s in log.steps] == [1, 2] and not log.messages


def test_log_preparation_and_telemetry_load_neither_torch_nor_what_they_do_not_need():
    code = """
import sys, trainer.runlog, trainer.prepare
assert not {"torch", "pyarrow"} & sys.modules.keys()
import trainer.telemetry
assert not {"torch", "pandas"} & sys.modules.keys()
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_time_used_counts_the_attempts_that_died_without_a_word(tmp_path):
    """10 s as the first said; the second was killed 7 s after its header, which came 3 s after its start."""
    path = tmp_path / "log.jsonl"
    clock = iter([100.0, 105.0, 108.0, 200.0, 204.0, 207.0])
    with RunLogWriter(path, clock=lambda: next(clock)) as log:
        log.write("header", schema=1, resumed_from_step=0, startup_seconds=2.0)
        log.write("step", step=1)
        log.write("final", outcome="stopped", reason="received SIGTERM", step=1, seconds=10.0)
        log.write("header", schema=1, resumed_from_step=1, startup_seconds=3.0)
        log.write("step", step=2)
        log.write("step", step=3)
    assert load_run_log(path).used_seconds == 10.0 + 3.0 + 7.0
