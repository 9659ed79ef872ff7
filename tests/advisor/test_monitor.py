"""`advisor monitor`: rows of every card at the rate asked for, summed up as they come, kept and read back."""

import io
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pynvml
import pytest

from advisor.errors import AdvisorError
from advisor.findings.measured import cards
from advisor.readers.read import read_run
from advisor.report import monitor as words
from advisor.workflows.monitor import Watching, monitor
from tests.terminal import advisor, document
from trainer.monitor import stream
from trainer.telemetry_sources import GPU_COLUMNS

ROOT = Path(__file__).parents[2]
# cards without a driver: what they answer is written here, everything else is the sampler's own code
SAMPLER = textwrap.dedent("""
    import sys, time
    from tests.advisor.test_monitor import Cards
    from trainer.monitor import stream
    hz, seconds = float(sys.argv[2]), float(sys.argv[4])
    end = time.monotonic() + seconds
    stream(Cards(), sys.stdout, hz, lambda: time.monotonic() < end)
""")


class Cards:
    """Two cards; the second has no energy counter and is held back by its power cap."""

    columns = GPU_COLUMNS

    def __init__(self):
        self.reads = 0

    def describe(self):
        return [
            {"gpu": 0, "name": "Card A", "memory_bytes": 80 * 2**30, "power_limit_milliwatts": 700_000},
            {"gpu": 1, "name": "Card B", "memory_bytes": None, "power_limit_milliwatts": None},
        ]

    def read_power(self):
        self.reads += 1
        return [6000 + self.reads % 7, None if self.reads % 10 == 0 else 3000]

    def read_slow(self):
        return [
            (97, 10 * 2**30, 60 + self.reads % 3, 1700, 2619, 0x0, 10**9 + self.reads * 6000),
            (40, 2**30, 50, 1650, None, 0x4, None),
        ]


def recorded(rows):
    """So many rows as the sampler prints them, as fast as the machine can."""
    out, source, asked = io.StringIO(), Cards(), iter(range(10**9))
    stream(source, out, 100.0, lambda: next(asked) < 4 * rows and source.reads < rows)
    return out.getvalue().splitlines(keepends=True)


def watched(lines, csv=None):
    watching = Watching(lines[0], lines[1], csv)
    for line in lines[2:]:
        watching.add(line)
    return watching.seen()


def test_the_summary_is_that_of_the_table_it_keeps(tmp_path):
    lines, path = recorded(60), tmp_path / "m.csv"
    with open(path, "w") as csv:
        seen = watched(lines, csv)
    frame = pd.read_csv(path)  # no comment in it, equal columns
    assert len(frame) == len(lines) - 2 and list(frame)[:3] == ["timestamp", "elapsed_sec", "gpu0_power_w"]
    first, second = (card.readings for card in seen.cards)
    for card, number in ((first, 0), (second, 1)):
        power = frame[f"gpu{number}_power_w"].dropna()
        spread = card.quantities["power_watts"]
        assert (spread.mean, spread.low, spread.high) == pytest.approx((power.mean(), power.min(), power.max()))
    counter = frame.gpu0_energy_j.dropna()
    assert first.joules == pytest.approx(counter.iloc[-1] - counter.iloc[0], abs=1e-3)
    known = frame.dropna(subset="gpu1_power_w")
    assert second.joules == pytest.approx(np.trapezoid(known.gpu1_power_w, known.elapsed_sec))
    assert (first.throttled, second.throttled, second.reasons) == (0.0, 1.0, ("power cap",))
    back = cards(read_run(path).telemetry)
    for card, again in zip((first, second), back, strict=True):
        for name, spread in again.quantities.items():
            assert spread.mean == pytest.approx(card.quantities[name].mean), name
        assert again.throttled == card.throttled
        assert again.joules == pytest.approx(card.joules, rel=1e-3)


def test_a_hundred_readings_a_second_are_kept_up_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "sampler.py").write_text(SAMPLER)
    looks = []
    csv = tmp_path / "m.csv"
    sampler = (sys.executable, str(tmp_path / "sampler.py"))
    seen = monitor(hz=100, seconds=3.0, csv=csv, on_look=lambda one: looks.append(time.monotonic()), sampler=sampler)
    assert seen.hz == pytest.approx(100, rel=0.1)  # a machine with other work on it may miss some
    assert len(pd.read_csv(csv)) == len(looks)
    shown = " ".join(" ".join(row) for row in words.live(seen)) + words.headline(seen)
    assert "Card A" in shown and "readings a second" in shown
    assert any("of 700 W" in row[1] for row in words.summary(seen))
    with pytest.raises(AdvisorError, match="there already"):
        monitor(hz=100, seconds=1.0, csv=csv, on_look=lambda one: None, sampler=sampler)


def test_a_line_cut_by_a_kill_is_passed_over():
    lines = recorded(20)
    whole = watched(lines).cards[0].readings.readings
    assert watched([*lines, lines[-1][:12]]).cards[0].readings.readings == whole


def test_a_machine_without_a_card_says_so_in_a_sentence(tmp_path):
    try:
        pynvml.nvmlInit()
        pytest.skip("this machine has a driver")
    except pynvml.NVMLError:
        done = advisor("monitor", "--for", "1s", "--csv", tmp_path / "m.csv")
    assert done.returncode == 1 and "there is no NVIDIA GPU to monitor here" in done.stderr
    assert not (tmp_path / "m.csv").exists() and "Traceback" not in done.stderr


def test_other_monitors_tables_are_read_with_statistics_and_written_whole(tmp_path):
    path, table = tmp_path / "gpu_metrics.csv", tmp_path / "t.csv"
    elapsed = np.arange(200) / 100
    times = pd.Timestamp("2025-12-21 07:03:19") + pd.to_timedelta(elapsed, unit="s")
    frame = pd.DataFrame({
        "timestamp": times.strftime("%Y-%m-%d %H:%M:%S.%f"), "elapsed_sec": elapsed, "gpu0_power_w": 600 + elapsed,
        "gpu0_temp_c": 60.0, "gpu1_power_w": 650 - elapsed, "gpu1_temp_c": 61.0,
    })  # fmt: skip
    frame.to_csv(path, index=False)
    first, second = document("analyze", path, "--table", table)["measured"]["cards"]
    assert first["quantities"]["power_watts"]["mean"] == pytest.approx(frame.gpu0_power_w.mean())
    assert second["quantities"]["power_watts"]["high"] == pytest.approx(650)
    assert first["joules"] == pytest.approx(np.trapezoid(frame.gpu0_power_w, elapsed), rel=1e-6)
    written = pd.read_csv(table)
    assert len(written) == 400 and written.power_watts.sum() == pytest.approx(250 * 1000)  # 200 x (600 + 650) W
