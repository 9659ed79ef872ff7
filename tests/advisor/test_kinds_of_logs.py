"""Kinds of fault that logs of strangers showed, each by a small log of that kind, through `analyze`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze


def loss(i: int, of: int = 100) -> float:
    return 3 + 6 * math.exp(-4 * i / of)


def analysed(tmp_path: Path, lines: Iterable[str], name: str = "train.log") -> Analysis:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return analyze(path, Given(), Store(tmp_path / "home"))


def stamped(start: datetime, rows: int, minutes: float, form: str = "%Y-%m-%d %H:%M:%S", first: int = 0) -> list[str]:
    moments = (start + timedelta(minutes=minutes * i) for i in range(rows))
    return [
        f"[{at.strftime(form)}] step {100 * (first + i)} loss {loss(first + i):.4f}" for i, at in enumerate(moments)
    ]


@pytest.mark.parametrize(
    "form", ["%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%d/%m/%Y %I:%M:%S %p"]
)
@pytest.mark.parametrize("day", [11, 2])  # of February: either order of the first days is a date, or of all of them
def test_the_whole_log_decides_which_number_is_the_day(tmp_path, form, day):
    found = analysed(tmp_path, stamped(datetime(2024, 2, day, 20), 100, 20, form))
    assert found.spent_hours == pytest.approx(33.0)


LISTING = ["2024-03-01 08:00 ckpt-1000.pt", "2024-03-01 12:00 ckpt-5000.pt", "2024-03-01 18:00 ckpt-9900.pt"]
ROWS = [f"step {100 * i} | loss {loss(i):.4f} | lr 0.0003" for i in range(100)]


@pytest.mark.parametrize(
    ("lines", "hours"),
    [
        (LISTING + ROWS, None),
        (ROWS + ["saved:", *LISTING], None),
        (["2024-03-01 08:00:00 tokenizer of this date found", *stamped(datetime(2024, 3, 2, 10), 121, 1)], 2.0),
        # start-up and a last evaluation beside the rows are of the run
        (
            ["2024-03-02 09:48:00 reading", *stamped(datetime(2024, 3, 2, 10), 100, 1), "2024-03-02 12:00:00 tested"],
            2.2,
        ),
        # rows without stamps between two that have one
        (["started 2024-03-02 09:00:00", *ROWS, "ended 2024-03-02 14:00:00"], 5.0),
    ],
)
def test_only_stamps_on_or_around_rows_are_the_runs_clock(tmp_path, lines, hours):
    found = analysed(tmp_path, lines)
    assert found.spent_hours == (None if hours is None else pytest.approx(hours))


def test_the_time_between_sessions_is_no_hour_of_the_run(tmp_path):
    first, second = stamped(datetime(2024, 1, 1, 10), 21, 6), stamped(datetime(2024, 1, 3, 9), 31, 6, first=20)
    assert analysed(tmp_path, [*first, "Resumed from step 2000", *second]).spent_hours == pytest.approx(5.0)
    again = stamped(datetime(2024, 1, 4, 10), 31, 6)
    assert analysed(tmp_path, [*first, "Training finished.", *again]).spent_hours == pytest.approx(5.0)


def test_a_duration_said_twice_in_other_words_is_one(tmp_path):
    said = ["Starting training of the model", "epochs: 3, optimizer: AdamW, batch size 8"]
    said += ["Training completed in 2:30:00.31", "Completed training in 9000.52s", "Training complete"]
    assert analysed(tmp_path, said).spent_hours == pytest.approx(2.5, rel=0.01)


def test_an_epochs_own_clock_begins_anew_with_the_next(tmp_path):
    rows = [
        line
        for epoch in range(1, 13)
        for line in (
            *(f"Epoch: {epoch:3d} | Batch: {b:5d}/ 1330 | Loss: {loss(epoch, 30):.4f} | Time: {b * 0.3:.1f}s"
              for b in range(100, 1301, 100)),
            f"| end of epoch {epoch:3d} | time: 400.00s | valid loss {loss(epoch, 30):.2f}",
        )
    ]  # fmt: skip
    assert analysed(tmp_path, rows).spent_hours == pytest.approx(12 * 400 / 3600, rel=0.05)
    assert analysed(tmp_path, [row for row in rows if "end" not in row]).spent_hours == pytest.approx(12 * 390 / 3600)
