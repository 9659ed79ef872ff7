"""The engine reads by shape what a loop of one regular expression per line would read."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.readers.chunks import Chunk, chunks, clean
from advisor.readers.line_format import EVAL, LOSS, MORE, LineFormat, Row
from advisor.readers.line_reader import Engine
from advisor.readers.line_templates import bulk, make_plan, number, unix_seconds
from advisor.readers.records import RecordStore

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


class Heard:
    def __init__(self):
        self.lines = []

    def feed(self, text, lines):
        self.lines += list(zip(lines.tolist(), text.split(b"\n")[:-1], strict=True))


def read(text, size=None, format=FORMAT):
    """Records and other lines of a text, fed in chunks of whole lines of about `size` bytes."""
    store, heard = RecordStore(kinds=tuple(row.kind for row in format.rows)), Heard()
    engine = Engine(format=format, store=store, listeners=(heard,))
    lines, first = text.splitlines(keepends=True), 1
    while lines:
        take = 1 if size is None else max(1, size // 40)
        part, lines = (lines, []) if size is None else (lines[:take], lines[take:])
        engine.feed(Chunk(text=b"".join(part), first_line=first))
        first += len(part)
    return store.records(), heard.lines


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
            values = {k.partition("__")[0]: number(v) for k, v in groups.items() if k != "memory_bytes__unit"}
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
@given(st.lists(st.one_of(records, records, others), min_size=1, max_size=60), st.sampled_from([None, 40, 400]))
def test_reads_what_a_regular_expression_per_line_reads(lines, size):
    text = "\n".join(lines).encode() + b"\n"
    found, _ = read(text, size)
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


def test_numbers_that_only_arrow_or_only_numpy_would_take_come_out_the_same():
    line = b"step 12/99 loss -3.25 (+1.5z) lr 1e-05 tok/s 1,234 dt 5.50ms"
    text = line + b"\n" + b"step 13/99 loss -.5 (+2.z) lr 3e-04 tok/s 9,876 dt 6.00ms\n"
    plan = make_plan(line, FORMAT.rows)
    assert plan.numbers == 7
    first, second = bulk(text, plan, 2), bulk(text, plan, 2, long_log=True)
    np.testing.assert_array_equal(first, second)
    assert first[:, 0].tolist() == [12, 13] and first[1, 2] == -0.5
    for long_log in (False, True):
        assert bulk(b"step 12/99 loss -3.2.5 (+1.5z) lr 1e-05 tok/s 1,234 dt 5.50ms\n", plan, 1, long_log) is None


def test_text_behind_a_record_is_passed_on_too():
    _, heard = read(b"step 1/9 loss 3.5 (+1z) slurmstepd: error: *** CANCELLED\nstep 2/9 loss 3.25 (+1z)\n")
    assert [line for line, _ in heard] == [1]


def test_lone_returns_are_line_ends_that_no_number_counts(tmp_path):
    path = tmp_path / "bar.log"
    path.write_bytes(b"a\r\n 10%|#\r 20%|##\rval 3.5\r\nlast\n")
    parts = list(chunks(path))
    assert b"".join(part.text for part in parts) == b"a\n 10%|#\n 20%|##\nval 3.5\nlast\n"
    store, heard = RecordStore(kinds=(0, EVAL, MORE)), Heard()
    engine = Engine(format=FORMAT, store=store, listeners=(heard,))
    for part in parts:
        engine.feed(part)
    assert store.records().line.tolist() == [2]
    assert heard.lines == [(1, b"a"), (2, b" 10%|#"), (2, b" 20%|##"), (3, b"last")]


def test_cleaning_takes_escapes_only():
    assert clean(b"\x1b[32mok\x1b[0m \x1b]0;title\x07x\x1b[2Ky")[0] == b"ok xy"
    assert clean(b"plain [32m text")[0] == b"plain [32m text"


def test_a_chunk_never_splits_a_line(tmp_path):
    path = tmp_path / "long.log"
    lines = [b"%d " % i + b"x" * (i * 37 % 5000) + b"\n" for i in range(1000)]
    path.write_bytes(b"".join(lines))
    parts = list(chunks(path))
    assert len(parts) > 2 and b"".join(part.text for part in parts) == b"".join(lines)
    assert [part.first_line for part in parts] == np.cumsum([1] + [p.text.count(b"\n") for p in parts[:-1]]).tolist()


def test_progress_counts_the_bytes_of_the_file(tmp_path):
    path = tmp_path / "long.log"
    path.write_bytes(b"step 1 loss 2 (z)\n" * 100_000)
    calls = []
    list(chunks(path, lambda done, total: calls.append((done, total))))
    assert calls[-1] == (1_800_000, 1_800_000) and calls == sorted(calls)


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


def thinned(steps, most):
    store = RecordStore(kinds=(0, EVAL), most=most)
    for start in range(0, len(steps), 100):
        part = np.asarray(steps[start : start + 100], float)
        order = np.arange(start, start + len(part))
        columns = {"step": part, "loss": 10 - part / 1e5, "loss_is_nan": np.zeros(len(part))}
        store.add(order=order, line=order + 1, rule=0, columns=columns)
        store.end_of_chunk()
    return store.records()


def test_a_very_long_log_is_thinned_with_exact_counts_and_ends():
    found = thinned(range(0, 300_000, 10), most=1000)
    assert found.losses == found.train == 30_000 and found.kept_every == 64
    assert 30_000 // 64 <= len(found) <= 1100 and found.columns["step"][[0, -1]].tolist() == [0, 299_990]


def test_thinning_keeps_where_a_restart_begins():
    found = thinned([*range(20_000), *range(12_345, 25_000)], most=1000)
    steps = found.columns["step"].tolist()
    back = [i for i in range(1, len(steps)) if steps[i] < steps[i - 1]]
    assert len(back) == 1 and (steps[back[0] - 1], steps[back[0]]) == (19_999, 12_345)
    assert found.losses == 20_000 + 25_000 - 12_345


def test_thinning_holds_without_steps():
    store = RecordStore(kinds=(0,), most=500)
    for start in range(0, 20_000, 100):
        order = np.arange(start, start + 100)
        store.add(order=order, line=order, rule=0, columns={"loss": order * 1.0, "loss_is_nan": order * 0.0})
        store.end_of_chunk()
    found = store.records()
    assert found.losses == 20_000 and len(found) <= 600 and found.columns["loss"][[0, -1]].tolist() == [0, 19_999]
