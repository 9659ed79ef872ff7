"""What logs say beside numbers, from lines as programs print them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.readers.event_lines import read_line
from advisor.readers.events import EventScanner, joined, scan_text
from advisor.readers.memory_messages import memory_sizes
from advisor.readers.run_table import Event, Status
from advisor.readers.status import status_of

MIB, GIB = 2**20, 2**30

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


LINES = [
    (NEW_TORCH, "out_of_memory", {"requested_bytes": 2.5 * GIB}),
    ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", "out_of_memory",
     {"requested_bytes": 8 * GIB}),
    ("MPS backend out of memory (MPS allocated: 5.00 GB, other allocations: 1.00 GB, max allowed: 6.80 GB). Tried to"
     " allocate 256.00 MB on private pool.", "out_of_memory",
     {"requested_bytes": 256 * MIB, "allocated_bytes": 5 * GIB, "total_bytes": 6.8 * GIB}),
    ("2023-06-30 14:18:28 | WARNING | fairseq.trainer | attempting to recover from OOM in forward/backward pass",
     "out_of_memory", {}),
    ("Out of memory: Killed process 1234 (python) total-vm:99kB, anon-rss:98kB", "host_memory", {}),
    ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.batch.", "host_memory", {}),
    ("/bin/bash: line 1:   991 Killed                  python train.py", "killed", {}),
    ("[rank2]:[E1 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88,"
     " OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600021 milliseconds before timing out.",
     "nccl_timeout", {"sequence": 88, "timeout_seconds": 600, "ran_seconds": 600.021}),
    ("RuntimeError: [buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete", "nccl_timeout",
     {"timeout_seconds": 1800}),
    ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2024-10-10T18:59:58 DUE TO TIME LIMIT ***", "time_limit", {}),
    ("=>> PBS: job killed: walltime 3608 exceeded limit 3600", "time_limit",
     {"used_seconds": 3608, "limit_seconds": 3600}),
    ("slurmstepd: error: *** STEP 5.0 ON n1 CANCELLED AT 2021-05-23T08:46:02 ***", "killed", {}),
    ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2021-05-23T08:46:02 ***", "interrupt", {}),  # scancel
    ("slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2021-05-23T08:46:02 DUE TO NODE FAILURE ***", "killed", {}),
    ("Sending process 79301 closing signal SIGTERM", "signal", {"signal": 15}),
    ("Main process received SIGTERM, exiting", "signal", {"signal": 15}),
    ("  exitcode  : -9 (pid: 77)", "child_failed", {"exitcode": -9, "pid": 77}),
    ("NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: 64.0", "overflow",
     {"loss_scale": 64}),
    ("[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 4096, reducing to 2048", "overflow",
     {"loss_scale": 2048}),
    ("Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0", "overflow",
     {"loss_scale": 32768}),
    ("OSError: [Errno 28] No space left on device: 'out/ckpt.pt'", "disk_full", {}),
    ("Saved checkpoint c/checkpoint_best.pt (epoch 10 @ 4791 updates, score 3.7) (writing took 2.5 seconds)",
     "checkpoint", {"step": 4791, "seconds": 2.5}),
    ("saving checkpoint to out-shakespeare-char", "checkpoint", {}),
    ("Saved model file to: /home/me/base_checkpoints/d20/model_001500.pt", "checkpoint", {"step": 1500}),
    ("successfully saved checkpoint at iteration   20000 to /ckpt/gpt", "checkpoint", {"step": 20000}),
    ("Saving model checkpoint to out/checkpoint-500", "checkpoint", {"step": 500}),
    ("Writing model to log124M/model_00005000.bin", "checkpoint", {"step": 5000}),
    ("time (ms) | save-checkpoint: 12340.5", "checkpoint", {"seconds": 12.3405}),
    ("INFO:torchtune.utils.logging:Model checkpoint of size 2.00 GiB saved to /tmp/m/epoch_0", "checkpoint",
     {"bytes": 2 * GIB}),
    ("  Continuing training from global step 1500", "restart", {"step": 1500}),
    ("Resuming optimization from step 700", "restart", {"step": 700}),
    ("loaded checkpoint from /ckpt at iteration 1200", "restart", {"step": 1200}),
    ("Loaded checkpoint c/checkpoint_last.pt (epoch 3 @ 900 updates)", "restart", {"step": 900}),
    ("UnpicklingError: invalid load key, '<'.", "error_page", {}),
    ("First bytes of input.txt: <!DOCTYPE html>", "error_page", {}),
    ("stopping_early: wallclock_cap train_time:600038ms step:13780/20000", "early_stop", {}),
    ("[2025-02-16 18:05:22,170] [INFO] [launch.py:351:main] Process 4143570 exits successfully.", "exited", {}),
    ("{'train_runtime': 90.5, 'train_samples_per_second': 3.6, 'train_loss': 2.5, 'epoch': 1.0}", "finished",
     {"seconds": 90.5}),
    ("`Trainer.fit` stopped: `max_steps=100` reached.", "finished", {}),
    ("[2024-05-01 10:00:00] INFO [olmo.train:100] Training complete", "finished", {}),
    ("Training time: 1234.5s", "finished", {"seconds": 1234.5}),
    ("done training in 2471.5 seconds", "finished", {"seconds": 2471.5}),
    ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", "diverged", {}),
    ("thread 'main' panicked at src/main.rs:12:5:", "exception", {}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "kind", "numbers"), LINES, ids=[kind + "-" + line[:20] for line, kind, _ in LINES])
def test_lines(line, kind, numbers):
    said = read_line(line)
    assert said is not None and said.kind == kind
    assert {name: said.numbers.get(name) for name in numbers} == pytest.approx(numbers)
    assert [event.kind for event in scan_text(line.encode())] == [kind]


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
        (b"FloatingPointError: Minimum loss scale reached (0.0001).", "diverged"),
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


def test_c_program_out_of_memory_takes_the_size_from_what_it_was_allocating():
    text = b"allocating 237 MiB for parameter gradients\nallocating 39612 MiB for activations\n"
    (event,) = scan_text(text + b"[CUDA ERROR] at file train_gpt2.cu:265:\nout of memory\n")
    assert (event.kind, event.line) == ("out_of_memory", 3)
    assert event.numbers["requested_bytes"] == 39612 * MIB
    assert "39612 MiB for activations" in event.text


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
def test_events_do_not_depend_on_how_the_log_is_cut(parts, size):
    text = b"".join(parts)
    lines = text.splitlines(keepends=True)
    scanner = EventScanner()
    for first in range(0, len(lines), size):
        piece = lines[first : first + size]
        scanner.feed(b"".join(piece), np.arange(first + 1, first + 1 + len(piece)))
    assert scanner.finish() == scan_text(text)


@settings(max_examples=200, deadline=None)
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
    ("ends without a word, and nobody says how far it was to go", [], 100, None, 0, Status.INCOMPLETE),
    ("planned end, steps from 1", [], 100, 100, 0, Status.COMPLETED),
    ("planned end, steps from 0", [], 99, 100, 0, Status.COMPLETED),
    ("log just ends", [], 90, 100, 0, Status.INCOMPLETE),
    ("log just ends though a launcher is content", [_event("exited")], 90, 100, 0, Status.INCOMPLETE),
    ("says that it is done", [_event("finished")], 90, None, 0, Status.COMPLETED),
    ("another program finished before the steps", [_event("finished", rows_after=9)], 9, None, 0, Status.INCOMPLETE),
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
    ("no step at all", [], None, 100, 0, Status.INCOMPLETE),
]  # fmt: skip


@pytest.mark.parametrize(("events", "last", "planned", "nan", "status"), [s[1:] for s in STATUSES],
                         ids=[s[0] for s in STATUSES])  # fmt: skip
def test_status(events, last, planned, nan, status):
    found, reason = status_of(events, last, planned, nan)
    assert found is status and reason
