"""Dollars by the work, MFU, card and price of one sentence, or by card-hours at a price; all made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.audit.test_paper import accused

WORK = "2e25 FLOPs at ~$2/H100-hour and ~32 % MFU implies ~${}M."
HOURS = "${}M in all: 2e6 H800-hours x $2/h."


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (WORK.format(35), True),  # 2e25 / (989e12 · 0.32) / 3600 · 2 = 35.1e6
        (WORK.format(46), True),  # the PCIe card: 756e12
        (WORK.format(63), False),
        (WORK.format(12), False),
        ("2e25 FLOPs at $2/H100-hour and 32 % MFU, instead of 16 %, saves $35M.", True),  # of two things
        (HOURS.format("4.0"), True),
        (HOURS.format("5.6"), False),
        ("It cost $4.0M (2e6 H800-hours at $2/h).", True),
        ("It cost $5.6M (2e6 H800-hours at $2/h).", False),
        ("It cost $5.6M: 2e6 H800-hours at $2/h plus storage.", True),  # there is more
        ("It cost $5.6M: 2e6 H800-hours x $2/h plus storage.", True),
    ],
)
def test_a_sum_is_what_its_sentence_gives(tmp_path: Path, text: str, right: bool) -> None:
    assert sorted(set(accused(tmp_path, f"# Costs\n\n{text}\n"))) == [3] * (not right)
