"""What logs say beside numbers, from lines as programs print them."""

from __future__ import annotations

import dataclasses
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.readers.chunks import lines_of
from advisor.readers.event_lines import memory_sizes, pattern_of, read_line
from advisor.readers.events import events_in, joined
from advisor.readers.run_table import Event, Status
from advisor.readers.status import status_of
from advisor.readers.yaml_rows import rows_of_file

MIB, GIB = 2**20, 2**30


def scan_text(text):
    return events_in(lines_of(text))


NEW_TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.11 GiB of"
    " which 1.25 GiB is free. Process 4711 has 10.00 GiB memory in use. Including non-PyTorch memory, this process has"
    " 67.86 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 6.50 GiB is reserved by"
    " PyTorch but unallocated. If reserved but unallocated memory is large try setting"
    " PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
OLD_TORCH = (
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 15.75 GiB total capacity; 13.50 GiB already"
    " allocated; 400.25 MiB free; 14.00 GiB reserved in total by PyTorch)"
)


def test_memory_sizes_of_torch_messages():
    assert memory_sizes(NEW_TORCH) == {
        "requested_bytes": 2.5 * GIB,
        "total_bytes": 79.11 * GIB,
        "free_bytes": 1.25 * GIB,
        "allocated_bytes": 60 * GIB,
        "unallocated_bytes": 6.5 * GIB,
        "reserved_bytes": 66.5 * GIB,
        "process_bytes": 67.86 * GIB,
        "gpu": 3,
        "other_processes": 1,
        "other_bytes": 10 * GIB,
        "other_pid_1": 4711,
    }
    assert memory_sizes(OLD_TORCH) == {
        "requested_bytes": 512 * MIB,
        "total_bytes": 15.75 * GIB,
        "free_bytes": 400.25 * MIB,
        "allocated_bytes": 13.5 * GIB,
        "reserved_bytes": 14 * GIB,
        "gpu": 0,
    }


def test_own_process_is_found_where_torch_cannot_name_it():
    sizes = memory_sizes(
        "CUDA out of memory. Tried to allocate 960.00 MiB. GPU 0 has a total capacity of 11.00 GiB of which 1.00 GiB is"
        " free. Process 10 has 4.00 GiB memory in use. Process 11 has 6.00 GiB memory in use. Of the allocated memory"
        " 5.00 GiB is allocated by PyTorch, and 0.25 GiB is reserved by PyTorch but unallocated."
    )
    assert sizes["process_bytes"] == 6 * GIB  # the one of 4 GiB cannot hold the 5.25 GiB that are reserved
    assert (sizes["other_processes"], sizes["other_bytes"]) == (1, 4 * GIB)


ROWS = [(rule["kind"], row) for rule in rows_of_file("events") for row in rule["rows"]]


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[f"{kind}-{row['example'][:20]}" for kind, row in ROWS])
def test_each_row_of_the_table_reads_its_example(kind, row):
    said, pattern = read_line(row["example"]), pattern_of([row["pattern"]])
    assert said is not None and said.kind == kind
    assert said.numbers == pytest.approx(row.get("gives", {}))
    assert pattern.search(row["example"]) or pattern.search(said.text), "another row reads it"
    assert [event.kind for event in scan_text(row["example"].encode())] == [kind]


@pytest.mark.parametrize(
    "line",
    [
        '    print(f"saving checkpoint to {out_dir}")',
        '        print0("stopping_early: wallclock_cap")',
        "except torch.cuda.OutOfMemoryError: # CUDA out of memory",
        'raise ValueError("loss is nan, out of memory")',
        "WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt",
        "  checkpoint_activations .......... True",
        "| checkpoint_every      | 5000           |",
        "Did not save the model output_dir/pytorch_model.bin because stage3_gather is False",
        "vfs_fuse.c:281  UCX  ERROR inotify_add_watch(/tmp) failed: No space left on device",
        "rustbpe - INFO - Finished training: 65271 merges completed",
        "Skipping /home/x/.cache/shard_00000.parquet (already exists)",
        "No existing checkpoint found checkpoints/checkpoint_last.pt",
        "step 5 | loss nan (+nanz)| norm nan",
    ],
)
def test_lines_that_say_nothing(line):
    assert read_line(line) is None
    assert scan_text(line.encode()) == []


TRACEBACK = b"""Traceback (most recent call last):
  File "/home/me/train.py", line 320, in <module>
    main()
  File "/opt/lib/python3.12/site-packages/torch/nn/module.py", line 1739, in _call
    return forward(x)
           ^^^^^^^^^^
%s
"""


def test_traceback_gives_the_exception_its_place_and_the_users_own_line():
    (event,) = scan_text(b"step 1\n" + TRACEBACK % b"RuntimeError: mat1 and mat2 shapes cannot be multiplied")
    assert (event.kind, event.line) == ("exception", 2)
    where = "[nn/module.py:1739, from me/train.py:320]"
    assert event.text == f"RuntimeError: mat1 and mat2 shapes cannot be multiplied {where}"


@pytest.mark.parametrize(
    ("exception", "kind"),
    [
        (b"KeyboardInterrupt", "interrupt"),
        (b"ImportError: KeyboardInterrupt: ", "interrupt"),  # amid the import of a compiled module
        (b"ValueError: no handler of KeyboardInterrupt", "exception"),
        (NEW_TORCH.encode(), "out_of_memory"),
        (b"torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15", "signal"),
        (b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "child_failed"),
        (b"OSError: [Errno 28] No space left on device", "disk_full"),
        (b"torch.distributed.DistBackendError: NCCL error in: x.cpp:10, unhandled system error", "nccl_error"),
    ],
)
def test_tracebacks_are_known_by_their_exception(exception, kind):
    assert [event.kind for event in scan_text(TRACEBACK % exception)] == [kind]


def test_tracebacks_of_interleaved_ranks_and_with_time_stamps():
    lines = (TRACEBACK % b"ValueError: rank %d").decode().splitlines()
    mixed = [f"[rank{rank}]: {line % rank if '%' in line else line}" for line in lines for rank in (0, 1)]
    events = scan_text("\n".join(mixed).encode())
    assert sorted(event.text[:18] for event in events) == ["ValueError: rank 0", "ValueError: rank 1"]
    (event,) = scan_text(b"2024-01-01 10:00:00,1 - ERROR - " + TRACEBACK % b"KeyError: 'x'")
    assert event.text.startswith("KeyError: 'x' [nn/module.py:1739")
    assert len(joined(events)) == 1 and joined(events)[0].numbers["count"] == 2


@pytest.mark.parametrize("before", [b"Exception ignored in: <function f at 0x7f>\n", b"--- Logging error ---\n"])
def test_exceptions_that_end_nothing_are_no_events(before):
    assert scan_text(before + TRACEBACK % b"TypeError: x") == []


def test_watchdog_abort_is_a_timeout_though_its_words_stand_in_the_next_line():
    (event,) = scan_text(
        b"terminate called after throwing an instance of 'c10::DistBackendError'\n"
        b"  what():  [PG 0 Rank 2] Process group watchdog thread terminated with exception: [Rank 2] Watchdog caught"
        b" collective operation timeout: WorkNCCL(SeqNum=88, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600021"
        b" milliseconds before timing out.\n"
    )
    assert (event.kind, event.line, event.numbers["timeout_seconds"]) == ("nccl_timeout", 1, 600)


def test_ray_error_ends_with_the_remote_exception():
    text = b"""Traceback (most recent call last):
  File "/home/me/main_ppo.py", line 105, in main
    ray.get(main_task.remote(config))
ray.exceptions.RayTaskError(AssertionError): ray::main_task() (pid=2105103, ip=10.0.0.1)
  File "/home/me/ray/base.py", line 274, in _init
    assert actor is not None
AssertionError: failed to get register_center_actor: V9_register_center in []

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
    (event,) = scan_text(text)
    assert event.text.startswith("AssertionError: failed to get register_center_actor")


CHUNKS = [
    TRACEBACK % b"ValueError: x",
    b"plain line\n",
    b"Killed\n",
    b"Traceback (most recent call last):\n",
    b"saving checkpoint to out\n",
    b"\xff\xfe\x00 binary\n",
    b'  File "a.py", line 99999999999999999999, in f\n',
    b"CUDA out of memory. Tried to allocate 1.2.3.4 GiB\n",
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(CHUNKS), max_size=8), st.integers(1, 7))
def test_events_do_not_depend_on_what_stands_before_them(parts, more):
    text = b"".join(parts)
    moved = scan_text(b"plain line\n" * more + text)
    assert moved == [dataclasses.replace(event, line=event.line + more) for event in scan_text(text)]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_scanned(noise):
    for event in scan_text(TRACEBACK % noise + noise + b"\nout of memory\n" + noise):
        assert event.text.isprintable()


def test_very_many_events_stay_bounded_and_counted():
    events = scan_text(b"NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0\n" * 5000)
    assert len(events) == 1000 and events[-1].line == 5000
    assert events[-1].numbers["left_out"] == 4000


def _event(kind: str, line: int = 1, rows_after: int = 0, text: str = "words", **numbers: float) -> Event:
    return Event(kind=kind, text=text, line=line, numbers={"rows_after": rows_after, **numbers})


STATUSES = [
    ("ends without a word, and nobody says how far it was to go", [], 100, None, 0, Status.NO_END),
    ("planned end, steps from 1", [], 100, 100, 0, Status.COMPLETED),
    ("planned end, steps from 0", [], 99, 100, 0, Status.COMPLETED),
    ("log just ends", [], 90, 100, 0, Status.INCOMPLETE),
    ("log just ends though a launcher is content", [_event("exited")], 90, 100, 0, Status.INCOMPLETE),
    ("says that it is done", [_event("finished")], 90, None, 0, Status.COMPLETED),
    ("another program finished before the steps", [_event("finished", rows_after=9)], 9, None, 0, Status.NO_END),
    ("survived", [_event("out_of_memory", rows_after=50)], 100, 100, 0, Status.COMPLETED),
    ("time limit explains signals before it", [_event("signal", 1), _event("time_limit", 2)], 9, 100, 0,
     Status.TIME_LIMIT),
    ("time limit kills with a traceback after it", [_event("time_limit", 1), _event("exception", 2)], 9, 100, 0,
     Status.TIME_LIMIT),
    ("what a tool complained of before the limit ended nothing",
     [_event("exception", 1, text="CommandNotFoundError: no such command"), _event("time_limit", 9)],
     9, 100, 0, Status.TIME_LIMIT),
    ("a script goes on after a command that was killed",
     [_event("killed", 1, text="run.sh: line 5:  8004 Killed   python train.py"), _event("finished", 9)],
     9, None, 0, Status.KILLED),
    ("an exception hung the others", [_event("exception", 1, text="KeyError: 1 [a.py:3]"), _event("time_limit", 9)],
     9, 100, 0, Status.CRASHED),
    ("the launcher reports a crash", [_event("exception", 1), _event("child_failed", 2, exitcode=1)], 9, 100, 0,
     Status.CRASHED),
    ("only the launcher reports", [_event("child_failed", exitcode=1)], 9, 100, 0, Status.CRASHED),
    ("killed outright", [_event("child_failed", exitcode=-9)], 9, 100, 0, Status.KILLED),
    ("aborted by itself", [_event("child_failed", exitcode=-6)], 9, 100, 0, Status.CRASHED),
    ("others lose the rank that ran out", [_event("nccl_timeout", 1), _event("out_of_memory", 2)], 9, 100, 0,
     Status.OUT_OF_MEMORY),
    ("interrupted", [_event("interrupt")], 9, 100, 0, Status.STOPPED),
    ("stopped by itself", [_event("stopped")], 9, 100, 0, Status.STOPPED),
    ("only signals", [_event("signal")], 9, 100, 0, Status.KILLED),
    ("signals after the last step", [_event("signal")], 100, 100, 0, Status.COMPLETED),
    ("NaN to the end", [], 133, None, 0.9, Status.DIVERGED),
    ("NaN and then an exception", [_event("exception")], 133, 200, 1.0, Status.DIVERGED),
    ("NaN until the scheduler came", [_event("time_limit")], 100, 200, 1.0, Status.TIME_LIMIT),
    ("killed, as a shell says it", [_event("child_failed", exitcode=137)], 90, None, 0, Status.KILLED),
    ("control-C, as a shell says it", [_event("child_failed", exitcode=130)], 90, None, 0, Status.STOPPED),
    ("a stage after a training that ended well fails", [_event("finished", 8), _event("exception", 9)], 90, None, 0,
     Status.CRASHED),
    ("handled, then done", [_event("exception", 5), _event("finished", 9)], 90, None, 0, Status.COMPLETED),
    ("signals after the last words", [_event("finished", 8), _event("signal", 9)], 90, None, 0, Status.COMPLETED),
    ("said after every epoch", [_event("finished", 3, 5), _event("finished", 9)], 90, None, 0, Status.NO_END),
    ("stopped early by its own rule", [_event("early_stop", 9)], 90, None, 0, Status.COMPLETED),
    ("tested in the end", [_event("afterwards", 9, text="Test accuracy: 0.91")], 90, None, 0, Status.COMPLETED),
    ("saved the final model", [_event("checkpoint", 9, text="Saved final model to out/m.pt")], 90, None, 0,
     Status.COMPLETED),
    ("saved a model", [_event("checkpoint", 9, text="Saved model to out/m.pt")], 90, None, 0, Status.NO_END),
    ("the machine's memory", [_event("host_memory", 9)], 90, None, 0, Status.OUT_OF_MEMORY),
    ("no step at all", [], None, 100, 0, Status.INCOMPLETE),
]  # fmt: skip


@pytest.mark.parametrize(("events", "last", "planned", "nan", "status"), [s[1:] for s in STATUSES],
                         ids=[s[0] for s in STATUSES])  # fmt: skip
def test_status(events, last, planned, nan, status):
    found, reason = status_of(events, last, planned, nan)
    assert found is status and reason


@pytest.mark.parametrize("sign", ["=", ",", ":", "-", "= "])
def test_a_line_of_signs_is_read_in_time(sign):
    began = time.process_time()
    read_line(f"{sign * 400}rch.distributed.elastic.multiprocessing.errors.ChildFailedError: FAILED")
    assert time.process_time() - began < 2


def test_c_program_out_of_memory_takes_the_size_from_what_it_was_allocating():
    text = b"allocating 237 MiB for parameter gradients\nallocating 39612 MiB for activations\n"
    (event,) = scan_text(text + b"[CUDA ERROR] at file train_gpt2.cu:265:\nout of memory\n")
    assert (event.kind, event.line) == ("out_of_memory", 3)
    assert event.numbers["requested_bytes"] == 39612 * MIB
    assert "39612 MiB for activations" in event.text
