"""Where readings come from: the host, the processor's counters, the cards."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from trainer.telemetry_sources import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    EnergyMeter,
    HostSource,
    RaplCounter,
)


def test_host_readings_are_what_the_machine_does(tmp_path):
    burner = [sys.executable, "-c", "x = bytearray(50_000_000)\nwhile True: pass"]
    with subprocess.Popen(burner) as child:
        source = HostSource(child.pid)
        before = psutil.Process(child.pid).cpu_times()
        time.sleep(1.0)
        values = dict(zip(HOST_COLUMNS, source.read_slow()[0], strict=True))
        after = psutil.Process(child.pid).cpu_times()
        child.kill()
    spent = after.user + after.system - before.user - before.system
    assert values["process_cpu_percent"] == pytest.approx(100 * spent, abs=25)
    assert 0 < values["cpu_percent"] <= 100
    assert values["process_resident_bytes"] > 50_000_000
    assert 0 < values["available_memory_bytes"] < psutil.virtual_memory().total
    child.wait()
    assert source.read_slow()[0][HOST_COLUMNS.index("process_resident_bytes")] is None


def test_processor_energy_is_summed_over_packages_and_past_the_wrap(tmp_path):
    def write(package, energy):
        folder = tmp_path / f"intel-rapl:{package}"
        folder.mkdir(exist_ok=True)
        (folder / "energy_uj").write_text(f"{energy}\n")
        (folder / "max_energy_range_uj").write_text("999999\n")

    write(0, 990_000)
    write(1, 100_000)
    write("0:0", 500_000)  # a part of package 0: already counted
    counter = RaplCounter(tmp_path)
    write(0, 10_000)  # 20 000 further, past the wrap
    write(1, 105_000)
    assert counter.read_millijoules() == 25
    (tmp_path / "intel-rapl:1" / "energy_uj").unlink()
    assert counter.read_millijoules() is None
    assert RaplCounter(tmp_path / "none").read_millijoules() is None


def test_mean_power_is_the_counters_difference_over_the_time(tmp_path):
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("262143328850")
    (package / "energy_uj").write_text("1000000")
    began = time.monotonic()  # before the meter's own clock, so that the bound below holds on a busy machine
    meter = EnergyMeter(HostSource(os.getpid(), rapl_root=tmp_path))
    time.sleep(0.1)
    (package / "energy_uj").write_text("21000000")  # 20 J
    watts, most = meter.watts(), 20.0 / 0.1
    assert 20.0 / (time.monotonic() - began) <= watts <= most
    time.sleep(0.01)
    assert meter.watts() == 0.0  # since the last call
    (package / "energy_uj").unlink()
    assert meter.watts() is None and EnergyMeter(None).watts() is None


def test_a_source_that_sees_no_card_has_no_energy():
    class NoCards:
        columns = GPU_COLUMNS

        def describe(self):
            return []

        def read_power(self):
            return []

        def read_slow(self):
            return []

    assert EnergyMeter(NoCards()).watts() is None
