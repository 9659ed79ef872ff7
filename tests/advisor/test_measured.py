"""A run's statistics: what stands in the rows of one log, by independent arithmetic, and in each form of report."""

import json

import numpy as np
import pandas as pd
import pytest

from advisor.findings.measured import cards, joules
from advisor.readers.names import column_of, in_unit
from advisor.readers.read import read_run
from advisor.report.files import write_reports
from advisor.workflows.analysis import Given, to_document
from advisor.workflows.analyze import analyze
from tests.terminal import advisor

STEPS = 120


def rows():
    """Steps of two seconds whose parts, norms and card readings differ from row to row."""
    draw = np.random.default_rng(4)
    step = np.arange(1, STEPS + 1)
    took = 2000 + draw.uniform(0, 200, STEPS)
    return pd.DataFrame({
        "step": step, "loss": 8 * step**-0.1, "lr": 5e-5,
        "gradNorm": np.where(step == 57, 326.62, draw.uniform(1, 2, STEPS)),
        "elapsed_ms": took.cumsum(), "tokens_per_sec": 10_240_000 / took, "ms_per_iter": took,
        "gpu_util_pct": draw.integers(6, 40, STEPS), "gpu_power_w": draw.uniform(50, 70, STEPS),
        "gpu_temp_c": 70 + step // 20, "gpu_vram_used_mb": draw.integers(2900, 3900, STEPS), "gpu_vram_total_mb": 23034,
        "timing_fwd_ms": took * 0.5, "timing_bwd_ms": took * 0.44, "timing_optim_ms": 0.6, "timing_data_ms": 0.1,
        "timing_grad_norm_ms": 57.1, "timing_grad_clip_ms": 33.0, "timing_flush_ms": 28.4,
        "clip_pct": draw.uniform(0, 48, STEPS),
    })  # fmt: skip


def write(path, frame):
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
    return path


@pytest.mark.parametrize(
    ("name", "column", "one"),
    [
        ("ms_per_iter", "seconds", 1e-3),
        ("ms_per_step", "seconds", 1e-3),
        ("timing_grad_norm_ms", "grad_norm_seconds", 1e-3),
        ("grad_norm_ms", "grad_norm_seconds", 1e-3),
        ("train/grad_norm", "grad_norm", 1.0),
        ("timing_flush_ms", "flush_seconds", 1e-3),
        ("timing_data_ms", "data_seconds", 1e-3),
    ],
)
def test_times_named_after_what_they_time_are_times(name, column, one):
    named = column_of(name)
    assert named is not None and named.column == column
    assert in_unit(named, np.array([1.0, 2.0]))[1] == pytest.approx([one, 2 * one])


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_cards_readings_in_the_rows_of_a_log_are_telemetry(tmp_path, suffix):
    frame = rows()
    run = read_run(write(tmp_path / f"metrics.{suffix}", frame))
    assert run.telemetry is not None and len(run) == STEPS
    assert run.telemetry["utilization"] == pytest.approx(frame.gpu_util_pct / 100)
    assert run.telemetry["power_watts"] == pytest.approx(frame.gpu_power_w)
    assert run.telemetry["temperature_celsius"] == pytest.approx(frame.gpu_temp_c)
    assert set(run.telemetry["memory_total_bytes"]) == {23034 * 2**20}
    assert run.telemetry["unix_seconds"] == pytest.approx(frame.elapsed_ms / 1000)
    assert run.column("grad_norm") == pytest.approx(frame.gradNorm)  # not the milliseconds it takes
    assert run.column("flush_seconds") == pytest.approx(0.0284) and run.column("grad_norm_seconds")[0] == 0.0571


def test_a_temperature_that_names_no_card_is_no_telemetry(tmp_path):
    frame = rows()[["step", "loss"]].assign(temperature=0.7, power=2, load=3)
    assert read_run(write(tmp_path / "metrics.csv", frame)).telemetry is None


def test_two_cards_of_one_row_are_two_cards(tmp_path):
    frame = rows()[["step", "loss", "elapsed_ms"]].assign(gpu0_power_w=100.0, gpu1_power_w=300.0)
    both = cards(read_run(write(tmp_path / "metrics.csv", frame)).telemetry)
    assert [card.quantities["power_watts"].mean for card in both] == [100, 300]
    took = (frame.elapsed_ms.iloc[-1] - frame.elapsed_ms.iloc[0]) / 1000
    assert [card.joules for card in both] == pytest.approx([100 * took, 300 * took])


def test_the_statistics_are_those_of_the_columns(store, tmp_path):
    frame = rows()
    found = analyze(write(tmp_path / "metrics.jsonl", frame), Given(gpu="l4"), store).measured
    rate, norm, clipped = found.tokens_per_second, found.gradients.norm, found.gradients.clipped
    assert (rate.mean, rate.low, rate.high, rate.count) == pytest.approx(
        (*frame.tokens_per_sec.agg(["mean", "min", "max"]), STEPS)
    )
    assert (norm.mean, norm.high, norm.high_step) == pytest.approx((frame.gradNorm.mean(), 326.62, 57))
    assert clipped.mean == pytest.approx(frame.clip_pct.mean() / 100)
    assert found.memory_bytes.mean == pytest.approx(frame.gpu_vram_used_mb.mean() * 2**20)
    (card,) = found.cards
    assert card.quantities["utilization"].mean == pytest.approx(frame.gpu_util_pct.mean() / 100)
    watts, seconds = frame.gpu_power_w.to_numpy(), frame.elapsed_ms.to_numpy() / 1000
    assert card.joules == pytest.approx(np.trapezoid(watts, seconds))


def test_readings_a_minute_apart_are_no_gaps():
    clock, power = np.arange(0, 600, 60.0), np.full(10, 100.0)
    assert joules(clock, np.full(10, np.nan), power) == pytest.approx(54_000)


def test_every_form_of_the_report_holds_the_statistics(store, tmp_path):
    log = write(tmp_path / "metrics.jsonl", rows())
    (tmp_path / "c.json").write_text(json.dumps({"vocab_size": 4000, "n_layer": 8, "n_embd": 384, "n_head": 8,
                                                 "block_size": 512, "batch_size": 20, "max_iters": 5000}))  # fmt: skip
    given = Given(gpu="l4", config=tmp_path / "c.json", usd_per_gpu_hour=0.7)
    found = analyze(log, given, store)
    html, md = tmp_path / "r.html", tmp_path / "r.md"
    write_reports([found], {"html": html, "md": md})
    shown = advisor("analyze", log, "--gpu", "l4", expect=0).stdout
    for text in (shown, md.read_text(), html.read_text()):
        for words in ("gradient norm", "327 (step 57)", "power, of 72 W", "time with a kernel"):
            assert words in text, words
    assert "grad_norm" in md.read_text() and "flush" in md.read_text()
    assert to_document(found)["measured"].tokens_per_second.count == STEPS
