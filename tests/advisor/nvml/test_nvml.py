"""From the driver's library to the screen, under the real nvidia-ml-py: a library of our own answers for two cards.

What CUDA does with a card is tested nowhere here.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pynvml
import pytest

from advisor.engines import gpu_locks as locks
from advisor.engines.gpu_locks import lock_gpus
from advisor.hardware.here import broken_cards, device_key, used_by
from advisor.store.store import Store
from advisor.workflows.monitor import Watching
from tests.advisor.nvml import driver
from tests.advisor.plans import changed, small_plan
from trainer.telemetry import read_metadata, start_telemetry
from trainer.telemetry_sources import visible_handles

pytestmark = pytest.mark.skipif(driver.COMPILER is None, reason="no C compiler (cc, on Linux) for the driver library")
SPLIT = (
    *("0 0 mig 1", "0 0.0 uuid MIG-0", "0 0.0 name NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    *("0 0.0 memory_total 10468982784", "0 0.0 memory_used 13000000"),
)
OTHERS = "0 0 processes 4242:70000000000"
MEMORY = "0 0 memory_used 70000000000"
HOT = ("0 1 reasons 0x40", "0 1 sm_clock 810", "0 1 temperature 91")


@pytest.fixture(scope="module")
def is_loaded():
    """The library, loaded into this process before nvidia-ml-py looks for one."""
    ctypes.CDLL(str(driver.library()))
    try:
        pynvml.nvmlInit()
        pytest.skip("this machine has a driver of its own, and this process has loaded it")
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
            pytest.skip("this process has looked for a driver before")


@pytest.fixture
def machine(is_loaded, monkeypatch, tmp_path):
    """Makes this process one on a machine with two H100s, changed by lines of a table."""
    monkeypatch.setattr(locks, "LOCKS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def of(*lines):
        path = driver.table(tmp_path / f"cards-{len(list(tmp_path.iterdir()))}.txt", "h100", *lines)
        monkeypatch.setenv("NVML_TABLE", str(path))

    return of


def sampled(tmp_path, *lines, recorded="h100"):
    """Cards and readings of the trainer's monitor, half a second long."""
    env = driver.environment(driver.table(tmp_path / "cards.txt", recorded, *lines))
    command = [sys.executable, "-m", "trainer.monitor", "--hz", "20", "--seconds", "0.5"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    comment, *rows = done.stdout.splitlines(keepends=True) or [""]
    return json.loads(comment.removeprefix("#") or "[]"), pd.read_csv(io.StringIO("".join(rows) or "none\n")), done


def monitored(tmp_path, seconds, *lines):
    """What `advisor watch --gpus` at 100 Hz says and keeps beside recorded cards, and what the driver answered."""
    env = driver.environment(driver.table(tmp_path / "cards.txt", "titan_x", *lines), tmp_path / "answers")
    command = [sys.executable, "-m", "advisor", "monitor", "--hz", "100", "--for", f"{seconds}s", "--json"]
    command += ["--csv", str(tmp_path / "m.csv")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), pd.read_csv(tmp_path / "m.csv"), driver.answers(tmp_path / "answers")


def test_every_answer_is_in_the_table_and_none_is_missed_while_a_card_is_lost(tmp_path, call):
    """It takes three seconds: half of one with both cards, then one is silent, whose driver is slow to say so."""
    seen, frame, answered = monitored(tmp_path, 3, "0 0 energy " + " ".join(map(str, range(10**9, 2 * 10**9, 10**6))),
                                       "0.5 1 delay_us 50000", "0.5 1 * !15")  # fmt: skip
    assert seen["hz"] == pytest.approx(100, rel=0.1)  # a machine with other work on it may miss some
    for card, column in (("0", "gpu0_power_w"), ("1", "gpu1_power_w")):
        given = [int(value) for number, quantity, value in answered if (number, quantity) == (card, "power")]
        # the first found out that it answers; the table has tenths of a watt
        assert frame[column].dropna().tolist() == pytest.approx([(mw + 50) // 100 / 10 for mw in given[1:]])
        power = seen["cards"][int(card)]["readings"]["quantities"]["power_watts"]
        there = frame[column].agg(["mean", "min", "max"])
        assert (power["mean"], power["low"], power["high"]) == pytest.approx(tuple(there))
    first, second = (card["readings"] for card in seen["cards"])
    counter, known = frame.gpu0_energy_j.dropna(), frame.dropna(subset="gpu1_power_w")
    assert first["joules"] == counter.iloc[-1] - counter.iloc[0] > 0  # one has a counter, the other has power and time
    assert second["joules"] == pytest.approx(np.trapezoid(known.gpu1_power_w, known.elapsed_sec))
    assert frame.gpu0_power_w.notna().all() and first["readings"] == len(frame) and first["silent_seconds"] is None
    assert second["readings"] == frame.gpu1_power_w.notna().sum() and second["silent_seconds"] == pytest.approx(
        2.5, abs=0.3
    )
    code, out, _ = call("analyze", str(tmp_path / "m.csv"))
    assert code == 0 and "GPU 1 of 2 gave no answer in the last 2." in out and "no answer  " in out


def test_a_run_has_its_cards_throttling_with_its_reason_in_its_telemetry(tmp_path, monkeypatch, call):
    """The process that the trainer starts beside a run on cards, for a second and a half."""
    table, answers = driver.table(tmp_path / "cards.txt", "titan_x", *HOT), tmp_path / "answers"
    for name, value in driver.environment(table, answers).items():
        monkeypatch.setenv(name, value)
    handle = start_telemetry(tmp_path, os.getpid(), "cuda", 100.0, gpus=2)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("answers.*")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1.5)
    handle.stop()
    metadata = read_metadata(tmp_path)
    assert [card["power"] for card in metadata["devices"][:2]] == ["average", "average"]  # older cards have no other
    code, out, _ = call("analyze", str(tmp_path / "telemetry.parquet"))
    assert code == 0 and "Throttled (hardware thermal slowdown)" in out and "up to 91 °C" in out
    assert "by GPU: GPU 0 in 0 %" in out and "1.7" in out.split("Throttled", 1)[1].split("x slower by SM clock")[0]


def test_a_line_cut_by_a_kill_is_passed_over(tmp_path):
    lines = sampled(tmp_path)[2].stdout.splitlines(keepends=True)

    def readings(*rows):
        watching = Watching(lines[0], lines[1], None)
        for row in rows:
            watching.add(row)
        return watching.seen().cards[0].readings.readings

    assert readings(*lines[2:]) == readings(*lines[2:], lines[-1][:12]) == len(lines) - 2 > 5


def test_the_visible_cards_are_those_that_cuda_shows(machine):
    """By number and by the beginning of a name; CUDA stops at the first that is no card."""
    machine(*SPLIT)
    pynvml.nvmlInit()
    assert len(visible_handles(None)) == 2
    for visible, count in (("", 0), ("99,0", 0), ("0,99", 1), ("1,0", 2), ("GPU-1aa", 1), ("GPU-", 0), ("MIG-0,1", 2)):
        assert len(visible_handles(visible)) == count, visible
    assert pynvml.nvmlDeviceGetUUID(visible_handles("GPU-1aa")[0]).startswith("GPU-1aaaaaaa-")
    assert "MIG 1g.10gb" in pynvml.nvmlDeviceGetName(visible_handles("MIG-0,1")[0])
    pynvml.nvmlShutdown()


# what drivers have not yet, or no more (13: no such function, 26: removed, 25: another version of its structure)
@pytest.mark.parametrize("names", [
    ("nvmlDeviceGetTemperatureV !13", "nvmlDeviceGetCurrentClocksEventReasons !13"),
    ("nvmlDeviceGetTemperature !26", "nvmlDeviceGetCurrentClocksThrottleReasons !26"),
    ("nvmlDeviceGetTemperatureV !25",),
])  # fmt: skip
def test_old_and_new_drivers_are_read_alike(tmp_path, names):
    _, frame, _ = sampled(tmp_path, *(f"0 - {name}" for name in names))
    assert frame.gpu0_temp_c[0] == 31 and frame.gpu1_throttle_reasons[0] == 1


def test_what_a_card_does_not_offer_is_unknown_and_what_it_refuses_once_is_asked_again(tmp_path):
    """In MIG mode use of the whole card is unknown; 999 is NVML's unknown error."""
    cards, frame, _ = sampled(
        tmp_path, "0 0 power_instant !2", "0 0 energy !3", "0 1 utilization !3", "0 1 power_instant 70000 !999 72000"
    )
    assert [card["power"] for card in cards] == ["average", "instant"]
    assert set(frame.gpu0_power_w) == {70.0} and frame.gpu0_energy_j.isna().all() and frame.gpu1_util_pct.isna().all()
    assert 70.0 in set(frame.gpu1_power_w) and 72.0 in set(frame.gpu1_power_w) and frame.gpu1_power_w.isna().any()
    assert frame.gpu1_energy_j[0] == 1000.0


def test_a_card_that_was_lost_before_keeps_its_number_and_the_other_its_readings(tmp_path):
    cards, frame, _ = sampled(tmp_path, "0 0 * !15")
    assert [card["name"] for card in cards] == [None, "NVIDIA H100 80GB HBM3"]
    assert frame.gpu0_power_w.isna().all() and frame.gpu1_power_w.notna().all()


@pytest.mark.parametrize(("error", "words"), [("!9", "Driver Not Loaded"), ("!18", "version mismatch")])
def test_a_driver_that_does_not_start_says_why(tmp_path, error, words):
    _, _, done = sampled(tmp_path, f"0 - init {error}")
    assert done.returncode == 3 and words in done.stderr and "Traceback" not in done.stderr


# lines of the table, CUDA_VISIBLE_DEVICES → the card that a run takes, what preflight says of cards, all in one
@pytest.mark.parametrize(("lines", "visible", "taken", "words"), [
    ((), None, 0, "GPU 0 is free"),
    ((), "1,0", 1, "GPU 1 is free"),
    ((OTHERS, MEMORY), None, 1, "GPU 1 is free"),  # somebody else's process is on the first
    ((MEMORY,), None, 1, "GPU 1 is free"),  # a container does not see whose it is
    ((OTHERS, MEMORY), "0", 0, "GPU 0 is in use by process 4242 with 65.2 GiB of memory: the run would share it"),
    (("0 0 * !15",), None, 1, "GPU 1 is free; GPU 0: GPU is lost"),
    (("0 0 mig 1",), None, 1, "GPU 1 is free; GPU 0: MIG is on and has no instance"),
    (SPLIT, None, 0, "this machine has nvidia-h100-80gb-hbm3-mig-1g-10gb"),
])  # fmt: skip
def test_a_run_takes_the_card_that_preflight_names(machine, monkeypatch, tmp_path, call, lines, visible, taken, words):
    machine(*lines)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    plan = Store(tmp_path).save_plan(changed(small_plan(), gpu="h100-80gb-sxm", device="cuda"), tmp_path / "plan.yaml")
    _, out, _ = call("launch", str(plan), "--check", "--json")
    checks = [check for check in json.loads(out)["checks"] if check["of"] in ("card", "memory")]
    assert words in " ".join(check["words"] for check in checks if check["of"] == "card")
    free = 9.74 if lines is SPLIT else 14.5 if "in use" in words else 79.6
    assert any(check["of"] == "memory" and f"{free} GiB are free" in check["words"] for check in checks)
    with lock_gpus(1, (), tmp_path) as held:
        assert held.ids == (taken,)


def test_two_gpus_of_which_one_is_lost_or_split_are_one(machine, tmp_path, call):
    plan = changed(small_plan(), gpu="h100-80gb-sxm", gpus=2, device="cuda")
    path = str(Store(tmp_path).save_plan(plan, tmp_path / "plan.yaml"))
    for lines, words in (
        (("0 1 * !15",), "has only 1; GPU 1: GPU is lost"),
        (SPLIT, "CUDA sees one instance of one GPU"),
    ):
        machine(*lines)
        code, out, _ = call("launch", path, "--check", "--json")
        assert code == 1 and words in next(c["words"] for c in json.loads(out)["checks"] if c["of"] == "card")


def test_memory_of_a_command_is_that_of_its_processes_on_the_fullest_card(machine):
    machine("0 0 processes 4242:7 77:1000", "0 1 processes 5:3000 6:4000")
    assert (used_by({4242, 77}), used_by({5, 6, 4242}), used_by({1})) == (1007, 7000, None)
    machine("0 0 * !15", "0 1 processes 5:3000")
    assert used_by({5}) == 3000 and broken_cards() == {0: "GPU is lost"} and device_key("auto") == "h100-80gb-sxm"
