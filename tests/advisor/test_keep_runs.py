"""Runs that their owner names, describes, tags and deletes."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.engines.state import RunState, Sighting, write_sighting
from advisor.store.folders import example_run
from advisor.store.run_folder import read_launch, run_row, write_launch
from advisor.store.store import default_store


@pytest.fixture
def run(advisor_home) -> Path:
    folder = default_store().home / "runs" / "first-20260101-000000"
    shutil.copytree(example_run(), folder)
    default_store().register_run(run_row(folder))
    return folder


def listed(call, *words: str) -> list[dict]:
    code, out, err = call("runs", *words, "--json")
    assert code == 0, err
    return json.loads(out)["runs"]


def test_a_run_is_called_described_and_tagged_and_found_by_its_name(call, run):
    code, _, err = call(
        "runs", str(run), "--name", "wide batch ✓", "--note", "twice the batch", "--tag", "Sweep", "--tag", "v2"
    )
    assert code == 0, err
    (row,) = listed(call)
    assert (row["name"], row["note"], row["tags"]) == ("wide batch ✓", "twice the batch", ["sweep", "v2"])
    assert run.is_dir()  # the folder keeps its name
    code, out, _ = call("runs", "wide batch ✓", "--untag", "v2", "--note", "")
    assert code == 0 and "tags: sweep" in out and "note" not in out
    assert call("runs", "wide", "--name", "")[0] == 0
    assert listed(call)[0]["name"] == read_launch(run).name


def test_the_list_is_filtered_by_tags(call, run):
    other = run.with_name("second-20260102-000000")
    shutil.copytree(run, other)
    write_launch(other, replace(read_launch(other), id="another"))
    call("runs", str(run), "--tag", "sweep", "--tag", "v2")
    call("runs", str(other), "--tag", "sweep")
    assert len(listed(call, "--tag", "sweep")) == 2
    assert [row["path"] for row in listed(call, "--tag", "sweep", "--tag", "v2")] == [str(run)]
    _, out, _ = call("runs", "--tag", "none-has-it")
    assert "no run has none-has-it; tags in use: sweep, v2" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--name", "x" * 81), "one line of at most 80"),
        (("--name", "two\nlines"), "one line"),
        (("--tag", "two words"), "is not a tag"),
        (("--note", "x" * 10_001), "at most 10,000"),
        (("--delete", "--tag", "x"), "either deleted or described"),
        (("--delete",), "cannot be undone"),  # nobody is there to be asked
    ],
)
def test_what_cannot_be_kept_is_refused_and_nothing_changes(call, run, words, said):
    code, _, err = call("runs", str(run), *words)
    assert code == 2 and said in err
    assert run.is_dir() and not (run / "about.yaml").exists()


def test_a_run_must_be_named_to_be_changed(call, run):
    code, _, err = call("runs", "--name", "x")
    assert code == 2 and "no run is given" in err


def test_a_deleted_run_is_gone_and_what_it_taught_is_not(call, run):
    code, _, err = call("compare", str(run), "--record")
    assert code == 0, err
    code, out, err = call("runs", str(run), "--delete", "--yes")
    assert code == 0 and "deleted" in out and "--forget" in err
    assert not run.exists() and listed(call) == [] and default_store().scores()
    assert list(run.parent.iterdir()) == []


def test_a_run_that_goes_on_is_not_deleted(call, run):
    write_sighting(run, Sighting(state=RunState.RUNNING.value, unix_seconds=0.0, log_bytes=0))
    log = (run / "log.jsonl").read_text().splitlines(keepends=True)
    (run / "log.jsonl").write_text("".join(line for line in log if '"kind":"final"' not in line))
    code, _, err = call("runs", str(run), "--delete", "--yes")
    assert code == 1 and "is running, so it was not deleted" in err and run.is_dir()


def test_a_folder_of_the_users_own_is_taken_from_the_list_and_stays(call, run, tmp_path):
    elsewhere = tmp_path / "project"
    shutil.move(run, elsewhere)
    default_store().register_run(run_row(elsewhere))
    (elsewhere / "thesis.tex").write_text("mine")
    code, out, err = call("runs", str(elsewhere), "--delete", "--yes")
    assert code == 0 and "no longer listed" in out and "rm -r" in err
    assert (elsewhere / "thesis.tex").read_text() == "mine" and listed(call) == []


def test_a_damaged_note_is_named_and_hides_no_run(call, run):
    (run / "about.yaml").write_text("name: [1, 2]\n")
    (row,) = listed(call)
    assert row["state"] == "damaged" and "note of a run" in row["problem"]
    assert os.path.samefile(default_store().find_run("first"), run)
