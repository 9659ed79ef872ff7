"""Durations that a log's lines speak of: what adds up, what counts on, what is left, and what says nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.readers.read import read_run
from advisor.readers.stamps import SPOKEN, spoken_seconds


def _lines(line: str, values: list[float]) -> bytes:
    return "\n".join(line.format(n=n, t=t) for n, t in enumerate(values, 1)).encode()


@pytest.mark.parametrize(
    ("line", "values", "seconds"),
    [
        ("Epoch {n} finished, mean loss 4.1, time={t}s", [100.5, 99.5, 101.0], 301.0),
        ("Time for epoch {n}: {t} min", [1.5, 1.5], 180.0),
        ("epoch {n} done (loss falls) took {t} s", [60.0], 60.0),
        ("Epoch {n}: elapsed {t} s", [10.0, 20.0, 31.0, 40.0], 40.0),  # counts on
        ("Epoch {n}, 第{n}轮 耗时 {t} 秒", [30.0, 31.0], 61.0),
        ("Epoch {n} ETA {t} s", [30.0, 20.0], None),
        ("Epoch {n} time per batch: {t} s", [0.3, 0.3], None),
        ("Epoch {n} acc ({t}) next", [0.5, 0.6], None),
    ],
)
def test_epochs_durations_add_up(line: str, values: list[float], seconds: float | None) -> None:
    found = spoken_seconds(_lines(line, values))
    assert found == (None if seconds is None else pytest.approx(seconds))


def test_a_time_that_falls_to_nothing_is_what_is_left() -> None:
    """100 lines, evenly spaced, of a run of 200 min: half of it is left at the middle."""
    left = [200.0 - 2 * n for n in range(1, 101)]
    lines = "\n".join(f"Epoch:[1/1]({n}/100) loss: 2.0, epoch_time: {t}min" for n, t in enumerate(left, 1)).encode()
    assert spoken_seconds(lines) == pytest.approx(2 * left[50] * 60)


def test_a_duration_said_of_every_step_is_of_no_epoch() -> None:
    lines = "\n".join(f"Epoch [1/3] step {n} loss 0.5 time: 1.25 s" for n in range(50)).encode()
    assert spoken_seconds(lines) is None


def test_minutes_and_seconds_beside_them_are_one_duration() -> None:
    lines = "\n".join(f"Epoch {n}/50 completed in 2m 30s. Loss: 0.{9 - n}" for n in range(1, 8)).encode()
    assert spoken_seconds(lines) == 7 * 150
    assert spoken_seconds(b"Epoch 1 took 1h 2m 3s\nEpoch 2 took 1 hour, 1 minute\n") == 3723 + 3660


def test_hours_of_a_log_whose_epochs_alone_are_timed(tmp_path: Path) -> None:
    rows = [
        line
        for epoch in (1, 2)
        for line in (
            f"[INFO] Epoch {epoch}/9 started",
            *(f"[INFO] step={n}/40 loss={5 - epoch - n / 100:.3f}" for n in (10, 20, 30, 40)),
            "[INFO] Epoch train finished, avg_loss=3.1, time=120.5s",
        )
    ]
    path = tmp_path / "a.log"
    path.write_text("\n".join(rows) + "\n")
    run = read_run(path)
    assert (run.runs[0].clock_seconds, run.runs[0].clock) == (241.0, SPOKEN)


def test_a_runtime_with_an_exponent(tmp_path: Path) -> None:
    """As version 5 of transformers prints it: 1.573e+04 s are 4.37 h."""
    path = tmp_path / "a.log"
    rows = "".join(f"{{'loss': '{5 / n:.3f}', 'epoch': '{n / 10}'}}\n" for n in range(1, 11))
    path.write_text(rows + "{'train_runtime': '1.573e+04', 'train_loss': '0.5', 'epoch': '1'}\n")
    run = read_run(path)
    assert (run.facts["total_seconds"], run.runs[0].declared_seconds) == (15730.0, 15730.0)


def test_one_duration_that_a_summary_says_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    head = "Number of graphs: 600\nTRAINING START\nEpochs: 200\n"
    path.write_text(head + "Training completed in 76.25 seconds\nTest Accuracy: 0.48\nTraining time: 76.25 seconds\n")
    assert read_run(path).runs[0].declared_seconds == 76.25


def test_times_on_lines_of_their_own_are_those_of_the_epochs_above(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    each = "Epoch {n}/5\n  Train Loss: {l:.4f}  Acc: 0.19\n  Val   Loss: 3.6\n  Time: 1m 34s\n\n"
    path.write_text("".join(each.format(n=n, l=5 / n) for n in range(1, 6)))
    assert read_run(path).runs[0].clock_seconds == 5 * 94
    steps = "Epoch 1/1\n" + "".join(f"step {n} loss {5 / n:.4f}\n  Time: 1m 34s\n" for n in range(1, 6))
    path.write_text(steps)
    assert read_run(path).runs[0].clock_seconds is None
