"""`advisor watch --gpus` on a machine without a card, and tables of other monitors; with cards: `nvml/test_nvml.py`."""

import numpy as np
import pandas as pd
import pynvml
import pytest

from tests.terminal import advisor, document


def test_a_machine_without_a_card_says_so_in_a_sentence(tmp_path):
    try:
        pynvml.nvmlInit()
        pytest.skip("this machine has a driver")
    except pynvml.NVMLError:
        done = advisor("monitor", "--for", "1s", "--csv", tmp_path / "m.csv")
    assert done.returncode == 1 and "there is no NVIDIA GPU to monitor here" in done.stderr
    assert not (tmp_path / "m.csv").exists() and "Traceback" not in done.stderr


def test_a_table_that_is_there_is_not_written_over(tmp_path, call):
    (tmp_path / "m.csv").write_text("mine")
    code, _, err = call("monitor", "--csv", str(tmp_path / "m.csv"))
    assert code == 2 and "already exists" in err and (tmp_path / "m.csv").read_text() == "mine"


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
