"""The engine reads by shape what a loop of one regular expression per line would read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.readers import chunks
from advisor.readers.chunks import Lines, clean, read_lines
from advisor.readers.line_format import EVAL, LOSS, MORE, LineFormat, Row
from advisor.readers.read import read_run
from advisor.readers.records import number_in, read_records, unix_seconds

STEP = Row(
    pattern=(
        rb"step (?P<step>\d+)(?:/(?P<planned_steps>\d+))? loss (?P<loss>" + LOSS + rb") \([^)]*z\)"
        rb"(?: lr (?P<learning_rate>[\d.]+(?:e[-+]?\d+)?))?(?: tok/s (?P<tokens_per_second>[\d,]+))?"
        rb"(?: mem (?P<memory_bytes>[\d.]+)(?P<memory_bytes__unit>[MG]iB))?(?: dt (?P<seconds__ms>[\d.]+)ms)?"
    ),
    missing={"seconds": 0.0},
    needs=b" loss ",
)
VALIDATION = Row(pattern=rb"val (?P<eval_loss>" + LOSS + rb")$", kind=EVAL, needs=b"val ")
EXTRA = Row(pattern=rb"  norm (?P<grad_norm>-?[\d.]+)$", kind=MORE, needs=b"norm ")
FORMAT = LineFormat(name="test", framework=None, rows=(STEP, VALIDATION, EXTRA))


def read(text):
    """Records of a text, and its other lines with their numbers."""
    lines = Lines(text=text, numbers=np.arange(1, text.count(b"\n") + 1))
    found, others = read_records(lines, FORMAT.rows)
    return found, list(zip(others.numbers.tolist(), others.each, strict=True))


finite = st.floats(min_value=-1e6, max_value=1e6)
losses = st.one_of(
    finite.map("{:.4f}".format), st.sampled_from(["nan", "inf", "-inf", "   nan".strip(), "12", "1.5e+01"])
)
records = st.builds(
    lambda step, total, loss, z, lr, tok, mem, dt: (
        f"step {step}{'' if total is None else f'/{total}'} loss {loss} ({z}z)"
        + ("" if lr is None else f" lr {lr}")
        + ("" if tok is None else f" tok/s {tok:,}")
        + ("" if mem is None else f" mem {mem[0]}{mem[1]}")
        + ("" if dt is None else f" dt {dt:.2f}ms")
    ),
    st.integers(0, 10**7),
    st.none() | st.integers(1, 10**7),
    losses,
    st.sampled_from(["+nan", "+1.25", "-0.5"]),
    st.none() | st.sampled_from(["1e-05", "3.00e-04", "0.001", "6e-4"]),
    st.none() | st.integers(0, 10**9),
    st.none() | st.tuples(st.sampled_from(["1.5", "12", "30.99"]), st.sampled_from(["MiB", "GiB"])),
    st.none() | st.floats(0, 1e5),
)
others = st.one_of(
    losses.map("val {}".format),
    finite.map("  norm {:.2f}".format),
    st.text(st.characters(codec="ascii", exclude_characters="\n\r\v\f\x1c\x1d\x1e\x85z"), max_size=30),
    st.sampled_from(["", "step x loss", "saving checkpoint", "step 5 loss 1.2.3 (+1z)", "1 2 3 4"]),
)


def expected(lines):
    """What one regular expression per line gives: a list of (line number, rule, values), MORE merged."""
    out = []
    for line_number, line in enumerate(lines, 1):
        for rule, row in enumerate(FORMAT.rows):
            match = row.compiled.match(line)
            if match is None:
                continue
            groups = {k: v for k, v in match.groupdict().items() if v is not None}
            values = {k.partition("__")[0]: number_in(v) for k, v in groups.items() if k != "memory_bytes__unit"}
            if "memory_bytes" in values:
                values["memory_bytes"] *= 2.0 ** (20 if groups["memory_bytes__unit"] == b"MiB" else 30)
            if "seconds" in values:
                values["seconds"] = values["seconds"] / 1000 if values["seconds"] else math.nan
            if row.kind == MORE:
                for key, value in values.items():
                    if out and math.isnan(out[-1][2].get(key, math.nan)):
                        out[-1][2][key] = value
            else:
                out.append((line_number, rule, values))
            break
    return out


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(records, records, others), min_size=1, max_size=60))
def test_reads_what_a_regular_expression_per_line_reads(lines):
    text = "\n".join(lines).encode() + b"\n"
    found, _ = read(text)
    wanted = expected(text.split(b"\n")[:-1])
    assert found.line.tolist() == [line for line, _, _ in wanted]
    assert found.rule.tolist() == [rule for _, rule, _ in wanted]
    for name in {key for _, _, values in wanted for key in values}:
        np.testing.assert_array_equal(
            found.column(name), np.array([values.get(name, math.nan) for _, _, values in wanted]), err_msg=name
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(others, min_size=1, max_size=30))
def test_every_line_that_is_no_record_is_passed_on_with_its_number(lines):
    text = "\n".join(lines).encode() + b"\n"
    _, heard = read(text)
    read_lines = {line for line, _, _ in expected(text.split(b"\n")[:-1])}
    more = {i for i, line in enumerate(text.split(b"\n")[:-1], 1) if EXTRA.compiled.match(line)}
    wanted = [(i, line) for i, line in enumerate(text.split(b"\n")[:-1], 1) if i not in read_lines | more]
    assert heard == wanted


def test_text_behind_a_record_is_passed_on_too():
    _, heard = read(b"step 1/9 loss 3.5 (+1z) slurmstepd: error: *** CANCELLED\nstep 2/9 loss 3.25 (+1z)\n")
    assert [line for line, _ in heard] == [1]


def test_lone_returns_are_line_ends_that_no_number_counts(tmp_path):
    path = tmp_path / "bar.log"
    path.write_bytes(b"a\r\n 10%|#\r 20%|##\rval 3.5\r\nlast\n")
    lines = read_lines(path)
    assert lines.text == b"a\n 10%|#\n 20%|##\nval 3.5\nlast\n"
    found, others = read_records(lines, FORMAT.rows)
    assert found.line.tolist() == [2]
    assert (others.numbers.tolist(), others.each) == ([1, 2, 2, 3], [b"a", b" 10%|#", b" 20%|##", b"last"])


def test_cleaning_takes_escapes_only():
    assert clean(b"\x1b[32mok\x1b[0m \x1b]0;title\x07x\x1b[2Ky")[0] == b"ok xy"
    assert clean(b"plain [32m text")[0] == b"plain [32m text"


def test_of_a_very_long_log_the_beginning_the_middle_and_the_end_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "MOST_BYTES", 4000)
    monkeypatch.setattr(chunks, "PART_BYTES", 1000)
    path, calls = tmp_path / "long.log", []
    path.write_bytes(b"".join(b"step %d loss %.4f\n" % (step, 9 - step / 1000) for step in range(1, 1001)))
    lines = read_lines(path, lambda *done: calls.append(done))
    assert calls == [(path.stat().st_size,) * 2]
    # what is read are whole lines, with their numbers in the file
    numbered = zip(lines.each, lines.numbers.tolist(), strict=True)
    assert all(line == b"step %d loss %.4f" % (number, 9 - number / 1000) for line, number in numbered)
    assert 130 < len(lines) < 200
    assert (lines.numbers[0], lines.numbers[-1]) == (1, 1000) and 480 < np.median(lines.numbers) < 530
    table = read_run(path)
    assert (table.first_step, table.last_step, table.last_loss) == (1, 1000, 8.0)
    assert any("its first, middle and last" in note for note in table.notes)


@pytest.mark.parametrize(
    ("year", "month", "day", "clock", "seconds"),
    [
        (1970, 1, 1, (0, 0, 0), 0),
        (2000, 2, 29, (12, 0, 0), 951825600),
        (2024, 12, 31, (23, 59, 59.5), 1735689599.5),
        (26, 3, 1, (0, 0, 0), 1772323200),
        (2024, 13, 1, (0, 0, 0), math.nan),
    ],
)
def test_dates(year, month, day, clock, seconds):
    parts = {"year": year, "month": month, "day": day, **dict(zip(("h", "min", "s"), clock, strict=True))}
    found = unix_seconds({name: np.array([float(value)]) for name, value in parts.items()}, 1)
    np.testing.assert_array_equal(found, [seconds])
