"""Damaged logs of every kind: read, or refused in words; the long run is benchmarks/fuzz_readers.py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.readers.config_names import read_config
from advisor.readers.read import READERS, read_run
from advisor.readers.run_table import names_of

ROOT = Path(__file__).parents[3]
LOGS = sorted(path for path in (ROOT / "tests" / "advisor" / "recorded" / "logs").iterdir() if path.is_file())
WHOLE = {path.name: path.read_bytes()[:20_000] for path in LOGS}


def _read(path: Path, data: bytes, format: str | None = None) -> None:
    path.write_bytes(data)
    try:
        table = read_run(path, format=format)
    except AdvisorError as error:
        assert error.message
        return
    assert set(table.columns) <= set(names_of("columns"))
    assert {len(values) for values in table.columns.values()} <= {len(table)}
    assert all(phase.last_row < len(table) for phase in table.phases)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    first=st.sampled_from(sorted(WHOLE)),
    second=st.sampled_from(sorted(WHOLE)),
    cuts=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    noise=st.binary(max_size=60),
    ending=st.sampled_from(["log", "csv", "json", "jsonl", "txt"]),
)
def test_spliced_logs(tmp_path, first, second, cuts, noise, ending):
    head, tail = WHOLE[first], WHOLE[second]
    data = head[: int(cuts[0] * len(head))] + noise + tail[int(cuts[1] * len(tail)) :]
    _read(tmp_path / f"spliced.{ending}", data)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), format=st.sampled_from([None, *sorted({reader.name for reader in READERS})]))
def test_any_bytes_in_any_format(tmp_path, data, format):
    _read(tmp_path / "any.log", data, format)


ADVERSARIES = {
    "one endless line": b"iteration 1/ 10 | a: 1 |" * 40_000,
    "dashes": b"-" * 400_000 + b"\n# A\n## B\n```\n```\n",
    "blank lines": b"\n" * 300_000 + b"step 1 loss 2\n",
    "blanks": b"a:" + b" " * 100_000 + b"b\n## x\n## y\n```\n```\n",
    "brackets": b"{'loss': [" * 40_000,
    "tracebacks that never end": b'Traceback (most recent call last):\n  File "a.py", line 1, in x\n' * 5_000,
    "words of dmon's header": b"# gpu " + b"a" * 40 + b"!\nstep 1 loss 2\n",
    "words without a path": (b"saving checkpoint " * 5_000 + b"\n") * 3,
    "digits": b"step 1 loss " + b"9" * 100_000 + b"\n",
    "digits in records": b"".join(
        start + b"9" * 20_000 + b"x |\n"
        for start in (
            b" iteration 1/ 10 | lm loss: ",
            b"{'loss': ",
            b"step 1/10 | loss: ",
            b"iter 1: loss ",
            b"2022-12-15 23:55:52 | INFO | train_inner | epoch 001:    101 / 1102 loss=",
            b"step:1 - actor/pg_loss:",
        )
    ),
    "carriage returns": b"\r" * 200_000 + b"step: 1 loss: 2.5\n",
}


@pytest.mark.parametrize("name", ADVERSARIES)
def test_no_text_takes_quadratic_time(tmp_path, name):
    began = time.process_time()
    _read(tmp_path / "bad.log", ADVERSARIES[name])
    assert time.process_time() - began < 5  # seconds; those found by fuzzing took minutes


def test_aliases_that_stand_for_gigabytes_are_refused(tmp_path):
    levels = "".join(f"a{i}: &a{i} {{{', '.join(f'k{j}: *a{i - 1}' for j in range(9))}}}\n" for i in range(1, 12))
    path = tmp_path / "config.yaml"
    path.write_text("a0: &a0 {x: 1}\n" + levels)
    with pytest.raises(AdvisorError, match="aliases"):
        read_config(path)
