"""`advisor watch` of another program's log: how far, how fast as watched, and how it ended."""

import json
import os
import subprocess
import sys
import time

import pytest

from advisor.readers.run_table import Status
from advisor.report.progress import line_of_log as line
from advisor.workflows.live import Follower, look


def rows(first, last, every=10):
    return "".join(
        f"[progress] step {n:6d}/2000 | seq 128 | tokens {n * 512:9d} | loss {9 - n / 500:8.4f} | lr  1.0e-4\n"
        for n in range(first, last + 1, every)
    )


def at(path, moment):
    os.utime(path, (moment, moment))


def test_how_fast_it_goes_is_what_it_gained_while_it_was_watched(tmp_path):
    """From step 500 to 700 in 100 s of the clock: half a second a step, and 1,300 steps are left."""
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500))
    at(path, 1000.0)
    following = Follower(path, clock=lambda: 1004.0)
    before = following.look()
    assert (before.step, before.planned, before.loss) == (500, 2000, 8.0) and before.seconds_per_step is None
    path.write_text(rows(10, 700))
    at(path, 1100.0)
    following._clock = lambda: 1160.0
    seen = following.look()
    assert (seen.seconds_per_step, seen.left_seconds, seen.quiet_seconds) == (0.5, 650.0, 60.0)
    assert (
        line(seen) == "step 700/2,000   loss 7.6   500 ms a step, as watched   10.8 min left   nothing written for 60 s"
    )


def test_a_log_that_begins_again_is_timed_anew(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500))
    following = Follower(path)
    following.look()
    path.write_text(rows(10, 100))
    assert following.look().seconds_per_step is None


def test_an_end_is_told_with_its_reason_and_its_exit_code(call, tmp_path):
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500) + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert look(path).status is Status.OUT_OF_MEMORY
    code, out, _ = call("watch", str(path))
    assert code == 1 and "step 500/2,000" in out and f"next: advisor analyze {path}" in out
    path.write_text(rows(10, 500))
    code, out, _ = call("watch", str(path), "--once")
    assert code == 0 and "out of memory" not in out
    code, out, _ = call("watch", str(path), "--json")
    document = json.loads(out)
    assert code == 0 and document["step"] == 500 and document["over"] is False


def test_what_is_no_log_is_refused(call, tmp_path):
    (tmp_path / "x.txt").write_text("hello\n")
    code, _, err = call("watch", str(tmp_path / "x.txt"))
    assert code == 1 and "nothing that looks like a training log" in err


@pytest.mark.long
def test_a_log_that_grows_is_followed_to_its_end(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(rows(10, 500))
    command = [sys.executable, "-m", "advisor", "watch", str(path)]
    with open(tmp_path / "said", "w") as said:
        watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
    for last, sign in ((600, "step 500/2,000"), (2000, "a step, as watched")):
        while sign not in (tmp_path / "said").read_text():
            assert watching.poll() is None
            time.sleep(0.1)
        path.write_text(rows(10, last) + ("Training complete\n" if last == 2000 else ""))
    out, _ = watching.communicate(timeout=300)
    assert watching.returncode == 0 and "step 2,000/2,000" in out and "completed" in out
