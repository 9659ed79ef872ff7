"""Telemetry: what is read is what was sampled, whatever ended the sampling; and it is small."""

import math
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.waiting import waited
from trainer.telemetry import read_metadata, read_telemetry, sample, start_telemetry
from trainer.telemetry_files import DeviceBuffer, TelemetryWriter
from trainer.telemetry_sources import (
    GPU_COLUMNS,
    HOST_COLUMNS,
)

DEADLINE_SECONDS = 180


class Clock:
    """Time that passes only in sleep."""

    def __init__(self):
        self.now = 1000.0

    def read(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Cards:
    """Two cards with noisy power; the second offers no memory clock and, now and then, no power."""

    columns = GPU_COLUMNS

    def __init__(self):
        self.random = np.random.default_rng(3)
        self.reads = 0

    def describe(self):
        return [{"gpu": 0}, {"gpu": 1}]

    def read_power(self):
        self.reads += 1
        first, second = (6000 + 150 * self.random.standard_normal(2)).astype(int).tolist()
        return [first, None if self.reads % 10 == 0 else second]

    def read_slow(self):
        return [(97, 10**11, 60, 1700, 2619, 0x4, 10**15 + self.reads), (98, 10**11, 61, 1650, None, 0x28, None)]


class Host:
    columns = HOST_COLUMNS

    def describe(self):
        return [{"gpu": None}]

    def read_power(self):
        return [None]

    def read_slow(self):
        return [(12.5, 0.0, 99.9, 2**31, 2**35, 2000, None)]


def simulate(run_dir, seconds, hz=100.0, sources=None):
    clock, errors = Clock(), []
    writer = TelemetryWriter(run_dir, {"hz": hz})
    end = clock.now + seconds
    sample(
        sources or [Cards(), Host()],
        writer,
        hz,
        goes_on=lambda: clock.now < end,
        on_error=errors.append,
        monotonic=clock.read,
        clock=clock.read,
        sleep=clock.sleep,
    )
    return writer, errors


def test_power_is_read_at_every_tick_and_the_rest_twice_a_second(tmp_path):
    simulate(tmp_path, 130.0)
    assert len(list((tmp_path / "telemetry").glob("part-*.parquet"))) == 3  # two minutes and the rest
    frame = read_telemetry(tmp_path)
    assert frame["time"].is_monotonic_increasing
    counts = frame.groupby("gpu", dropna=False).count()
    assert abs(counts.loc[0, "time"] - 13000) <= 2 and abs(counts.loc[0, "temperature_celsius"] - 260) <= 2
    assert counts.loc[1, "time"] == counts.loc[0, "time"]
    assert abs(counts.loc[1, "power_watts"] - 0.9 * 13000) <= 2  # a missing reading is missing, not 0
    host = frame[frame["gpu"].isna()]
    assert abs(len(host) - 260) <= 2 and host["power_watts"].isna().all()
    assert host["cpu_percent"].eq(12.5).all() and host["process_resident_bytes"].eq(2**31).all()
    second = frame[frame["gpu"] == 1]
    assert second["memory_clock_mhz"].isna().all() and second["energy_millijoules"].isna().all()
    assert set(second["throttle_reasons"].dropna()) == {0x28}
    assert frame[frame["gpu"] == 0]["energy_millijoules"].max() > 10**15


def test_joining_changes_nothing_but_the_files(tmp_path):
    writer, _ = simulate(tmp_path, 130.0)
    before = read_telemetry(tmp_path)
    writer.join({"cpu_seconds": 1.5})
    assert not list((tmp_path / "telemetry").glob("*.parquet"))
    key = ["time", "gpu"]
    after = read_telemetry(tmp_path).sort_values(key, ignore_index=True)
    assert after.equals(before.sort_values(key, ignore_index=True))
    assert read_metadata(tmp_path)["hz"] == 100 and read_metadata(tmp_path)["cpu_seconds"] == 1.5


def test_noisy_power_at_100_hz_takes_less_than_15_mb_for_8_hours_of_2_gpus(tmp_path):
    writer, _ = simulate(tmp_path, 600.0)
    writer.join({})
    rows = len(read_telemetry(tmp_path, ["power_watts"]))
    per_row = (tmp_path / "telemetry.parquet").stat().st_size / rows
    assert per_row * 8 * 3600 * (2 * 100 + 2) < 15e6


def test_a_crash_between_joining_and_deleting_doubles_nothing(tmp_path):
    writer, _ = simulate(tmp_path, 70.0)
    shutil.copytree(tmp_path / "telemetry", tmp_path / "kept")
    rows = len(read_telemetry(tmp_path))
    writer.join({})
    for part in (tmp_path / "kept").iterdir():
        shutil.copy(part, tmp_path / "telemetry" / part.name)
    assert len(read_telemetry(tmp_path)) == rows
    (tmp_path / "telemetry" / "part-00009.parquet.tmp").write_bytes(b"PAR1 cut short")
    again, _ = simulate(tmp_path, 70.0)  # a resumed run goes on after the old numbers
    assert len(read_telemetry(tmp_path)) == 2 * rows
    again.join({})
    assert len(read_telemetry(tmp_path)) == 2 * rows
    assert not list((tmp_path / "telemetry").iterdir())


def test_ticks_that_were_missed_are_left_out(tmp_path):
    class Slow(Cards):
        def __init__(self, clock):
            super().__init__()
            self.clock = clock

        def read_power(self):
            if self.reads == 10:
                self.clock.now += 1.0
            return super().read_power()

    clock = Clock()
    end = clock.now + 2.0
    sample(
        [Slow(clock)],
        TelemetryWriter(tmp_path, {}),
        10.0,
        goes_on=lambda: clock.now < end,
        on_error=print,
        monotonic=clock.read,
        clock=clock.read,
        sleep=clock.sleep,
    )
    frame = read_telemetry(tmp_path)
    assert len(frame[frame["gpu"] == 0]) == pytest.approx(11, abs=1)  # 20 ticks less those of a second asleep


def test_a_disk_that_refuses_costs_rows_but_not_the_sampling(tmp_path):
    class Hostile(Host):
        """Takes the folder away in the first minute only."""

        def __init__(self):
            self.reads = 0

        def read_slow(self):
            self.reads += 1
            if self.reads == 5:
                os.rename(tmp_path / "telemetry", tmp_path / "away")
            if self.reads == 200:
                os.rename(tmp_path / "away", tmp_path / "telemetry")
            return super().read_slow()

    _, errors = simulate(tmp_path, 150.0, hz=2.0, sources=[Hostile()])
    assert len(errors) == 1 and "lost" in errors[0]
    assert 150 < len(read_telemetry(tmp_path)) < 200  # 300 readings less those of the first minute


VALUES = st.one_of(st.none(), st.integers(0, 2**31 - 1))


@given(st.lists(st.tuples(VALUES, st.one_of(st.none(), st.lists(VALUES, min_size=2, max_size=2))), max_size=40))
def test_every_reading_is_read_back(tmp_path_factory, rows):
    run_dir = tmp_path_factory.mktemp("run")
    buffer = DeviceBuffer(3, ("sm_clock_mhz", "energy_millijoules"))
    for i, (power, slow) in enumerate(rows):
        buffer.add(1000 * i, power, None if slow is None else tuple(slow))
    writer = TelemetryWriter(run_dir, {})
    writer.write_part([buffer])
    assert len(buffer) == 0
    writer.join({})
    frame = read_telemetry(run_dir)
    assert frame["time"].tolist() == [float(i) for i in range(len(rows))]
    for i, (power, slow) in enumerate(rows):
        clock, energy = slow or (None, None)
        for name, value in (("power_watts", power), ("sm_clock_mhz", clock), ("energy_millijoules", energy)):
            found = frame[name][i]
            assert math.isnan(found) if value is None else found == value / (10 if name == "power_watts" else 1)


def test_the_reader_refuses_what_is_not_telemetry_and_knows_its_columns(tmp_path):
    assert read_telemetry(tmp_path).empty and read_metadata(tmp_path) is None
    with pytest.raises(ValueError, match="no telemetry column is called volts"):
        read_telemetry(tmp_path, ["volts"])
    (tmp_path / "telemetry.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(ValueError, match="not readable telemetry"):
        read_telemetry(tmp_path)


def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


def test_a_run_is_sampled_until_it_is_stopped_and_again_when_resumed(tmp_path):
    for _ in range(2):
        handle = start_telemetry(tmp_path, os.getpid(), "cpu", 5.0)
        time.sleep(2.0)
        handle.stop()
        assert handle.process.returncode == 0
    frame = read_telemetry(tmp_path)
    assert len(frame) >= 4 and frame["time"].max() - frame["time"].min() > 1.5
    assert abs(frame["time"].max() - time.time()) < 5
    assert frame["process_resident_bytes"].gt(10**6).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["telemetry.parquet"]
    metadata = read_metadata(tmp_path)
    assert metadata["pid"] == os.getpid() and 0 < metadata["cpu_seconds"] < metadata["wall_seconds"]


def test_sampling_ends_with_the_run_even_when_nobody_reaps_it(tmp_path):
    run = sleeper()
    handle = start_telemetry(tmp_path, run.pid, "cpu", 5.0)
    waited(lambda: psutil.Process(handle.process.pid).cpu_times().user > 0.1)
    time.sleep(1.0)
    os.kill(run.pid, signal.SIGKILL)
    assert handle.process.wait(DEADLINE_SECONDS) == 0
    run.wait()
    assert len(read_telemetry(tmp_path)) >= 1
    handle.stop()  # after the end: nothing to do


def test_a_killed_telemetry_leaves_a_readable_folder(tmp_path):
    simulate(tmp_path, 70.0)
    rows = len(read_telemetry(tmp_path))
    handle = start_telemetry(tmp_path, os.getpid(), "cpu", 5.0)
    time.sleep(0.5)
    handle.process.kill()
    handle.stop()
    assert len(read_telemetry(tmp_path)) == rows


def test_a_run_that_is_gone_and_telemetry_that_is_off(tmp_path):
    run = sleeper()
    run.kill()
    run.wait()
    handle = start_telemetry(tmp_path, run.pid, "cpu")
    assert handle.process.wait(DEADLINE_SECONDS) == 1
    assert str(run.pid) in (tmp_path / "telemetry" / "stderr.txt").read_text()
    off = start_telemetry(tmp_path / "off", os.getpid(), "cpu", 0)
    off.stop()
    assert off.process is None and not (tmp_path / "off").exists()
