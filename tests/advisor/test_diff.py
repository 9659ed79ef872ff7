"""`advisor compare A B` of plans, configurations, calibrations and runs: the settings that differ."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from trainer.schema import make_shape, to_dict

ROOT = Path(__file__).parents[2]
CARD = "a100-80gb-sxm"
SHAPE = make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024)
RAW = sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))


def run_yaml(path: Path, **changes) -> Path:
    settings = {"model": to_dict(SHAPE), "data": {"path": "tokens/"}, "steps": 2000, "micro_batch": 8, "grad_accum": 4}
    path.write_text(yaml.safe_dump(settings | {"precision": "bf16", "compile": True} | changes))
    return path


def differences(call, *words):
    code, out, err = call("compare", *map(str, words), "--json")
    assert code == 0, err
    return {row["setting"]: (row["one"], row["other"]) for row in json.loads(out)["differences"]}


@pytest.fixture
def pair(tmp_path):
    base = run_yaml(tmp_path / "base.yaml")
    return base, lambda **changes: run_yaml(tmp_path / "other.yaml", **changes)


def test_configurations_differ_in_what_was_changed(call, pair):
    base, other = pair
    changed = other(steps=4000, seed=7, optimizer={"learning_rate": 0.01}, name="another", stop={"max_seconds": 5})
    found = differences(call, base, changed, "--gpu", CARD)
    assert found.pop("steps") == (2000, 4000) and found.pop("seed")[1] == 7
    assert found.pop("optimizer.learning_rate")[1] == 0.01 and not found  # names and limits change no result


def test_a_file_differs_from_itself_in_nothing(call, pair):
    code, out, _ = call("diff", str(pair[0]), str(pair[0]), "--gpu", CARD)
    assert code == 0 and "0 settings differ" in out


def test_a_run_has_the_settings_of_its_plan(call, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(ROOT / "examples" / "run", run)
    assert not differences(call, run / "plan.yaml", run, "--settings")


def test_plans_differ_in_their_gpu(call, tmp_path):
    for gpu in (CARD, "h100-80gb-sxm"):
        words = ("--tokens", "1B", "--depth", "12", "--price", f"{gpu}=2", "--out", str(tmp_path / f"{gpu}.yaml"))
        code, _, err = call("plan", "--gpu", gpu, *words)
        assert code == 0, err
    found = differences(call, tmp_path / f"{CARD}.yaml", tmp_path / "h100-80gb-sxm.yaml")
    assert found["gpu"] == (CARD, "h100-80gb-sxm")


def test_calibrations_differ_in_their_settings(call):
    assert differences(call, RAW[0], RAW[1])["settings.seed"] == (0, 1)


@pytest.mark.parametrize(
    ("other", "exit_code", "words"),
    [
        ("calibration", 2, "no settings in common"),
        ("missing", 2, "no run"),
        ("log", 2, "YAML"),
        ("nonsense", 1, "cannot be used"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, pair, tmp_path, other, exit_code, words):
    base, _ = pair
    (tmp_path / "train.log").write_text("step 1 loss 2.0\n")
    (tmp_path / "nonsense.yaml").write_text("a: 1\n")
    paths = {"calibration": RAW[0], "missing": "nowhere", "log": tmp_path / "train.log"}
    code, _, err = call("diff", str(base), str(paths.get(other, tmp_path / "nonsense.yaml")), "--gpu", CARD)
    assert code == exit_code and words in err
