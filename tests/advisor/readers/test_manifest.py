"""Development check: each log of ../shared/logs gives what its manifest says; skipped where that folder is not."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.readers.formats import line_formats
from advisor.readers.read import GENERIC, READERS, read_run

LOGS = Path(__file__).resolve().parents[4] / "shared" / "logs"
MANIFEST = LOGS / "MANIFEST.csv"
# formats that the manifest calls by the kind of file rather than by the program that wrote it
ALIASES = {"gpu_csv": ("gpu_csv", "nvidia_smi"), "wandb": ("wandb",), "deepspeed_hf": ("deepspeed_hf", "deepspeed"),
           "torchtitan": ("torchtitan", "two_columns")}  # fmt: skip


def names(row):
    return ALIASES.get(row["format"], (row["format"],))


READ = {reader.name for reader in READERS}
ROWS = list(csv.DictReader(MANIFEST.open(encoding="utf-8"))) if MANIFEST.exists() else []
ROWS = [row for row in ROWS if READ & set(names(row))]

pytestmark = pytest.mark.skipif(not ROWS, reason="the folder of real logs (../shared/logs) is not here")


@pytest.fixture(scope="module", params=ROWS, ids=[row["file"] for row in ROWS])
def read(request):
    row = request.param
    return row, read_run(LOGS / row["file"])


def test_format(read):
    row, table = read
    assert table.format in names(row)


def test_row_count(read):
    row, table = read
    if row["n_rows"] == "":
        pytest.skip("the manifest counts no rows here")
    found = table.rows if table.telemetry is None else len(next(iter(table.telemetry.values())))
    assert found == int(row["n_rows"])


@pytest.mark.parametrize("end", ["first", "last"])
def test_steps(read, end):
    row, table = read
    expected = row[f"expected_{end}_step"]
    if not expected:
        pytest.skip("the manifest has no step here")
    if expected.startswith("epoch="):
        assert first_or_last(table, "epoch", end) == float(expected.removeprefix("epoch="))
    else:
        assert (table.first_step if end == "first" else table.last_step) == float(expected)


@pytest.mark.parametrize("end", ["first", "last"])
def test_losses(read, end):
    row, table = read
    expected, found = row[f"expected_{end}_loss"], table.first_loss if end == "first" else table.last_loss
    if not expected:
        pytest.skip("the manifest has no loss here")
    if expected == "none":
        assert found is None
    elif expected == "nan":
        assert found is not None and math.isnan(found)
    else:
        assert found == float(expected)


def first_or_last(table, column, end):
    """The value of a column in the first or last record with a loss of the main phase."""
    phase = table.phases[table.main_phase]
    rows = np.arange(phase.first_row, phase.last_row + 1)
    rows = rows[~np.isnan(table.column("loss_is_nan")[rows])]
    return table.column(column)[rows[0 if end == "first" else -1]]


def declared():
    """Real logs that a declared line format reads, with what it gives; none where they are not here."""
    names = {format.name for format in line_formats()}
    for folder in (LOGS, LOGS.parent / "logs2"):
        manifest = folder / "MANIFEST.csv"
        for row in csv.DictReader(manifest.open(encoding="utf-8")) if manifest.exists() else ():
            try:
                table = read_run(folder / row["file"])
            except AdvisorError:
                continue
            if table.format in names and table.rows:
                yield folder / row["file"], table


def ends(table):
    return tuple(repr(value) for value in (table.first_step, table.last_step, table.first_loss, table.last_loss))


@pytest.mark.long
def test_the_general_reader_gives_what_the_declared_ones_give():
    """Seventeen in twenty. What is left: steps without a loss, averages whose batches only DARTS' own reader knows,
    numbers without names, and a score that only Deeplearning4j calls its loss."""
    told = {format.name for format in line_formats() if format.steps_by_bar}  # bars tell the step: losses are compared
    found = [
        (path, ends(table)[2 * (table.format in told) :] == ends(GENERIC.read(path))[2 * (table.format in told) :])
        for path, table in declared()
    ]
    if not found:
        pytest.skip("the folders of real logs are not here")
    assert sum(same for _, same in found) >= 0.85 * len(found), [path.name for path, same in found if not same]
