"""The JSON Schemas that ship: they are those of the records, and files that the program writes are valid by them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from advisor import documents
from benchmarks import document_types
from tests.terminal import advisor, document

ROOT = Path(__file__).resolve().parents[2]
RAW = "cpu-nanochat-20261121-042637-seed0.yaml"


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(advisor("schema", name, expect=0).stdout))


def test_what_ships_is_what_the_records_say() -> None:
    """Fails until `python -m benchmarks.document_types` is run, which gives a changed schema the next number."""
    assert documents.FILE.read_text(encoding="utf-8") == document_types.as_text(document_types.written())


def test_a_changed_schema_gets_the_next_number_and_another_word_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: entry["version"] for name, entry in documents.shipped()["documents"].items()}
    monkeypatch.setitem(document_types.DOCUMENTS, "runs", {"runs": [str]})
    monkeypatch.setattr(document_types.Deleted, "__doc__", "Another sentence.")
    after = {name: entry["version"] for name, entry in document_types.written()["documents"].items()}
    assert after == before | {"runs": before["runs"] + 1}


def test_every_schema_is_one_and_all_of_them_are_listed() -> None:
    listed = document("schema")["schemas"]
    assert {"plan", "predict", "gpus", "plan.yaml", "log.jsonl", "card"} <= {entry["name"] for entry in listed}
    for entry in listed:
        schema = documents.schema_of(entry["name"])
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["version"] == entry["version"]
    assert "document" in advisor("schema").stdout
    assert "did you mean" in advisor("schema", "pln", expect=2).stderr


def test_a_schema_tells_a_document_from_another() -> None:
    gpus = json.loads(advisor("gpus", "--json").stdout)
    assert (gpus["document"], gpus["document_schema"]) == ("gpus", validator("gpus").schema["version"])
    for wrong in ({**gpus, "document_schema": 0}, {**gpus, "more": 1}, {"gpus": gpus["gpus"]}):
        assert not validator("gpus").is_valid(wrong)
    assert not validator("runs").is_valid(gpus)


def test_files_are_valid(advisor_home: Path, tmp_path: Path) -> None:
    """Those of a run that is planned by a calibration and trains, and of its tokens."""
    calibration, run, plan = ROOT / "benchmarks" / "raw" / RAW, tmp_path / "run", tmp_path / "plan.yaml"
    (advisor_home / "calibrations").mkdir()
    shutil.copy(calibration, advisor_home / "calibrations")
    words = "--gpu cpu --depth 1 --seq-len 32 --vocab-size 128 --tokens 20000 --synthetic"
    advisor("plan", *words.split(), "--out", plan, expect=0)
    assert document("launch", plan, "--run-dir", run)["progress"]["outcome"] == "completed"
    (tmp_path / "text.txt").write_text("A line of text.\n" * 2000)
    document("data", "prepare", tmp_path / "text.txt", "--out", tmp_path / "data", "--vocab-size", "300")
    run_files = [run / name for name in ("run.json", "run.yaml", "budget.json", "plan.yaml")]
    for path in (calibration, plan, tmp_path / "data" / "meta.json", *run_files):
        name = "calibration.yaml" if path == calibration else path.name
        validator(name).validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    for log in (ROOT / "examples/run/log.jsonl", run / "log.jsonl"):
        for line in log.read_text(encoding="utf-8").splitlines():
            validator("log.jsonl").validate(json.loads(line))


def test_rows_of_a_table_are_valid(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("gpu,model,micro_batch\nl4,gpt2,8\nh100,mixtral-8x7b,1\nnone,gpt2,1\n")
    for line in advisor("predict", "--rows", table, expect=0).stdout.splitlines():
        validator("predict-row").validate(json.loads(line))
