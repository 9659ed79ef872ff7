"""`advisor compare`: what differs, what each difference does by itself, and what cannot be said."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from advisor.calibration.profiles import load_profile
from advisor.prediction.batch import predict_batch
from advisor.records import Workload
from advisor.store.store import default_store
from trainer.schema import make_shape, to_dict

ROOT = Path(__file__).parents[2]
CARD = "a100-80gb-sxm"
SHAPE = make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024)
RAW = sorted((ROOT / "benchmarks" / "raw").glob("cpu-nanochat-*.yaml"))


def run_yaml(path: Path, **changes) -> Path:
    settings = {"model": to_dict(SHAPE), "data": {"path": "tokens/"}, "steps": 2000, "micro_batch": 8, "grad_accum": 4}
    path.write_text(yaml.safe_dump(settings | {"precision": "bf16", "compile": True} | changes))
    return path


def diff(call, *words):
    code, out, err = call("diff", *map(str, words), "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def pair(tmp_path):
    base = run_yaml(tmp_path / "base.yaml")
    return base, lambda **changes: run_yaml(tmp_path / "other.yaml", **changes)


def only(found):
    (row,) = found["differences"]
    return row


def test_twice_the_steps_take_twice_the_time_and_nothing_else_of_a_step(call, pair):
    base, other = pair
    row = only(diff(call, base, other(steps=4000), "--gpu", CARD))
    assert (row["setting"], row["one"], row["other"]) == ("steps", 2000, 4000)
    assert row["alone"].pop("all steps") == pytest.approx(2) and set(row["alone"]) <= {"loss"}


def test_an_effect_is_what_predict_says_of_the_changed_run(call, pair, advisor_home):
    base, other = pair
    row = only(diff(call, base, other(activation_checkpointing="full"), "--gpu", CARD))
    work = Workload(shape=SHAPE, micro_batch=8, grad_accum=4, gpu=CARD, precision="bf16", compile=True)
    profile = load_profile(CARD, default_store(), family="gpt2", precision="bf16", compile=True)
    before, after = predict_batch(profile, [work, replace(work, activation_checkpointing="full")])
    assert row["alone"]["step"] == pytest.approx(after.step_seconds.value / before.step_seconds.value)
    assert row["alone"]["step"] > 1 > row["alone"]["memory"]  # recomputation costs time and saves memory


def test_the_batch_is_judged_whole_at_equal_effective_batch(call, pair):
    base, other = pair
    first, second = diff(call, base, other(micro_batch=16, grad_accum=2), "--gpu", CARD)["differences"]
    assert (first["setting"], second["setting"], second["unjudged"]) == (
        "micro_batch",
        "grad_accum",
        "with micro_batch",
    )
    assert first["alone"]["memory"] > 1.2 and 0.8 < first["alone"]["step"] < 1.05 and "loss" not in first["alone"]


def test_sizes_of_a_model_are_judged_together(call, pair):
    base, other = pair
    bigger = to_dict(make_shape("gpt2", depth=24, vocab_size=50304, seq_len=1024))
    rows = diff(call, base, other(model=bigger), "--gpu", CARD)["differences"]
    first, *rest = rows
    assert first["setting"] == "model.depth" and {row["unjudged"] for row in rest} == {"with model.depth"}
    assert first["alone"]["step"] > 4  # eight times the weights of 12 layers of half the width


def test_what_no_law_judges_says_why(call, pair):
    base, other = pair
    rows = diff(call, base, other(seed=7, optimizer={"learning_rate": 0.01}, data={"path": "else/"}), "--gpu", CARD)
    said = {row["setting"]: row["unjudged"] for row in rows["differences"]}
    assert said["seed"] == "another draw of the same run" and "ab measures it" in said["optimizer.learning_rate"]
    assert "do not compare" in said["data.path"] and all(row["alone"] == {} for row in rows["differences"])


def test_a_file_beside_itself_differs_in_nothing(call, pair):
    base, _ = pair
    code, out, _ = call("diff", str(base), str(base), "--gpu", CARD)
    assert code == 0 and "0 settings differ" in out and "no setting of the training differs" in out


def test_a_run_stands_beside_its_plan_with_what_was_measured(call, pair, tmp_path, advisor_home):
    run = tmp_path / "a folder far below where its name is longer than any heading may be" / "run"
    shutil.copytree(ROOT / "examples" / "run", run)
    code, out, err = call("diff", str(run / "plan.yaml"), str(run))
    assert code == 0, err
    assert "0 settings differ" in out and "run, measured" in out and "164 ms" in out
    assert "of run its plan's promise stands" in out  # this machine was never calibrated
    assert "168 ms (160-177 ms)" in out  # the plan's own words
    assert "plan plan.yaml (1 x cpu)" in out and "far below" not in out


def test_two_plans_tell_what_the_card_does_to_time_and_cost(call, tmp_path):
    for gpu, name in ((CARD, "a"), ("h100-80gb-sxm", "h")):
        goal = ("--tokens", "1B", "--depth", "12", "--price", f"{gpu}=2")
        code, _, err = call("plan", "--gpu", gpu, *goal, "--out", str(tmp_path / f"{name}.yaml"))
        assert code == 0, err
    found = diff(call, tmp_path / "a.yaml", tmp_path / "h.yaml")
    (row,) = (row for row in found["differences"] if row["setting"] == "gpu")
    assert row["alone"]["step"] < 0.8 and row["alone"]["cost"] == pytest.approx(
        row["alone"]["all steps"]
    )  # equal price


def test_calibrations_are_set_against_each_other_at_the_same_work(call):
    found = diff(call, RAW[0], RAW[1])
    assert {"setting": "settings.seed", "one": 0, "other": 1} in found["differences"]
    assert [row["depth"] for row in found["step_seconds"]] == [2, 3, 4]
    assert all(0.8 < row["other"]["value"] / row["one"]["value"] < 1.25 for row in found["step_seconds"])
    code, out, _ = call("diff", str(RAW[0]), str(RAW[1]))
    assert code == 0 and "second against first" in out


@pytest.mark.parametrize(
    ("other", "exit_code", "words"),
    [
        ("calibration", 2, "nothing in common"),
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
