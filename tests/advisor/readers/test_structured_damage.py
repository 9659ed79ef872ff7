"""Damaged files: cut, spliced, overwritten; whatever comes, the answer is a table or one clear error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.readers.read import STRUCTURED
from advisor.readers.run_table import names_of

RECORDED = Path(__file__).parents[1] / "recorded" / "logs"
NAMES = (
    *("metrics.csv", "keras.csv", "results.csv", "named.csv", "headerless.csv", "tokens.tsv", "nvidia_smi.csv"),
    *("headerless_smi.csv", "pynvml_wide.csv", "pynvml_bare.csv", "dmon.txt", "dmon_dated.txt", "wandb-events.jsonl"),
    *("trainer_state.json", "metrics.jsonl", "mlperf_llama.txt", "mlperf_v05.txt", "wandb-summary.json"),
    *("wandb_config.yaml", "report.md", "report_mojibake.md"),
)
FILES = [RECORDED / name for name in NAMES] + [Path(__file__).parents[2] / "recorded" / "small.jsonl"]
JUNK = (
    b"\0",
    b"\xff\xfe",
    b"9" * 400,
    b"nan",
    b"-",
    b",",
    b"|",
    b"\n",
    b"\r",
    b'"',
    b"{",
    b"[" * 50,
    b"1e999",
    b"\x1b[31m",
)


@st.composite
def damaged(draw):
    data = draw(st.sampled_from(FILES)).read_bytes()[:6000]
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        kind = draw(st.sampled_from(("cut", "drop", "junk", "repeat", "splice")))
        if kind == "cut":
            data = data[:end]
        elif kind == "drop":
            data = data[:start] + data[end:]
        elif kind == "junk":
            data = data[:start] + draw(st.sampled_from(JUNK)) + data[min(end, start + 30) :]
        elif kind == "repeat":
            data = data[:end] + data[start:]
        else:
            data = data[:start] + draw(st.sampled_from(FILES)).read_bytes()[:2000] + data[start:]
    return data


def check(table):
    assert set(table.columns) <= set(names_of("columns"))
    assert len({len(values) for values in table.columns.values()}) <= 1
    for values in table.columns.values():
        assert isinstance(values, np.ndarray) and values.dtype == np.float64
    if table.telemetry is not None:
        assert len({len(values) for values in table.telemetry.values()}) <= 1


@settings(max_examples=150)
@given(data=damaged(), reader=st.sampled_from(STRUCTURED), any_reader=st.booleans())
def test_damage_is_a_table_or_a_clear_error(tmp_path_factory, data, reader, any_reader):
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    path.write_bytes(data)
    scores = {one: one.score(data, path) for one in STRUCTURED}
    assert all(0 <= score <= 1 for score in scores.values())
    chosen = reader if any_reader else max(scores, key=scores.get)
    try:
        check(chosen.read(path))
    except AdvisorError as error:
        assert "\n" not in error.message


@pytest.mark.parametrize("reader", STRUCTURED, ids=[reader.name for reader in STRUCTURED])
@given(data=st.binary(max_size=300))
@settings(max_examples=20)
def test_noise_is_refused_by_every_reader(tmp_path_factory, reader, data):
    path = tmp_path_factory.getbasetemp() / "noise"
    path.write_bytes(data)
    try:
        check(reader.read(path))
    except AdvisorError as error:
        assert "\n" not in error.message
