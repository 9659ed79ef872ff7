"""Development check: each log of ../shared/logs gives what its manifest says, and what is known to be wrong with the
run is found; skipped where that folder is not."""

from __future__ import annotations

import csv
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.findings.case import Case, Finding, Severity
from advisor.findings.forecast import forecast
from advisor.findings.registry import LEARNING
from advisor.readers.formats import line_formats
from advisor.readers.read import GENERIC, READERS, read_run
from advisor.readers.run_table import Status

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


# what is known to be wrong with these runs → the code that has to say so
KNOWN = {
    "nanochat/nanochat_jonhenshaw_speedrun.log": "steps_missing",
    "nanochat/nanochat_kwizzle_sft_nan.log": "loss_not_finite",
    "llmc_stdout/llmc_hector_11679010_nan.log": "loss_not_finite",
    "nanogpt/nanogpt_jack_191836.log": "overfitting",
    "wandb/wandb_jack_191836_wandb-summary.json": "generalisation_gap",
    "megatron/bigscience_megds3d_on.out": "grad_norm_not_collected",
    "megatron/bigscience_megdszero.out": "loss_divergence",
    "megatron/bigscience_meg_perf_n16_allskipped.out": "all_steps_skipped",
    "deepspeed_hf/bigscience_hfds_perf_n16.out": "loss_scale_at_minimum",
    "hf_trainer_state/ts_aigoncharov.json": "overfitting",
    "hf_trainer_state/ts_anonymousgigachad.json": "grad_norm_large",
    "hf_stdout/hf_yunsaijc_sft.log": "memorised",
    "trl/trl_iiicellled_dpo.log": "preference_at_chance",
    "hf_stdout/olora_hoilap_train_and_infer_lr0.log": "learning_rate_zero",
}


def test_a_known_problem_is_found_and_a_healthy_run_has_no_error(read):
    row, table = read
    found = [v for detector in LEARNING if isinstance(v := detector(Case(run=table)), Finding)]
    if row["file"] in KNOWN:
        assert KNOWN[row["file"]] in {one.code for one in found}
    elif row["known_problem"].startswith("none"):
        assert [one.title for one in found if one.severity is Severity.ERROR] == []


def test_every_known_problem_is_of_a_log_that_is_read():
    assert KNOWN.keys() <= {row["file"] for row in ROWS}


def test_the_end_of_a_real_run_is_foretold_from_its_beginning():
    run = read_run(LOGS / "llmc_mainlog/llmc_siddanth_main.log")
    loss = run.column("loss")
    end = float(np.median(loss[np.isfinite(loss)][-200:]))
    for share in (0.3, 0.5, 0.8):
        columns = {name: values[: int(share * len(run))] for name, values in run.columns.items()}
        facts = {**run.facts, "planned_steps": 19_552}
        part = dataclasses.replace(run, columns=columns, phases=(), status=Status.RUNNING, facts=facts)
        foretold = forecast(Case(run=part)).loss.final_loss
        assert foretold is not None and foretold.low < end < foretold.high, share
        assert abs(foretold.value - end) < 0.03, share


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
