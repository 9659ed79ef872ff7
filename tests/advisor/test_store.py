import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.options import GpuPrice
from advisor.records import Basis, Estimate, MeasuredStep, Workload
from advisor.run_records import Guards, LaunchRecord, RunRow
from advisor.store.calibration import (
    Burst,
    Calibration,
    Cost,
    Environment,
    Settings,
    calibration_to_dict,
)
from advisor.store.disk import disk_errors, read_yaml, write_atomic
from advisor.store.plan_files import dump_plan, load_plan
from advisor.store.run_folder import read_launch, read_run_config, run_id, run_row, write_launch
from advisor.store.store import Store
from tests.advisor.plans import altered, small_plan, small_run
from trainer.messages import Ceilings, WorkerDevice
from trainer.schema import LossStop, StopConfig, dump_config, to_dict

OLD_PLAN = Path(__file__).parents[2] / "examples" / "run" / "plan.yaml"
NOW = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)


def calibration(name="cpu-1", device="cpu", created="2026-11-20T00:00:00+00:00"):
    workload = Workload(shape=small_run().model, micro_batch=4, gpu=device, precision="fp32")
    died = Burst(workload=workload, started=1.5, seconds=2.0, outcome="out_of_memory", reason="killed")
    return Calibration(
        id=name,
        created=created,
        status="partial",
        device_key=device,
        device=WorkerDevice(type="cpu", name="a CPU", memory_bytes=8 * 10**9, auto_precision="fp32"),
        environment=Environment(torch="2.13.0", python="3.11.7", ready_seconds=1.0),
        settings=Settings(
            gpu=device,
            device="cpu",
            family="nanochat",
            depths=(2, 4),
            seq_len=256,
            vocab_size=4096,
            data=None,
            budget_seconds=90.0,
            precision="fp32",
            compile=False,
            activation_checkpointing="none",
            optimizer="adamw",
            memory_bytes=None,
            most_micro_tokens=2048,
            usd_per_hour=None,
        ),
        disk_bytes_per_second=10**9,
        ceilings=Ceilings(precision="fp32", matmul=(), copy=(), launch_seconds=(1e-6,)),
        bursts=(died, replace(died, outcome="completed", trained=True, step_seconds=(0.1, 0.25))),
        cost=Cost(seconds=90.0, usd=None),
    )


def observed(run_id="run-1", **changes):
    workload = Workload(shape=small_run().model, micro_batch=4, gpu="cpu:Xeon (R)", precision="fp32")
    run = MeasuredStep(run_id=run_id, created="2026", workload=workload, step_seconds=0.5, steps=20)
    return replace(run, **changes)


# Plans


def test_a_plan_comes_back_equal(store, tmp_path):
    plan = small_plan(run=small_run(stop=StopConfig(max_seconds=60.5, loss=(LossStop(step=5, above=9.5),))))
    path = store.save_plan(plan, tmp_path / "plan.yaml")
    assert load_plan(path) == plan
    assert load_plan(store.save_plan(plan)) == plan
    assert "basis: measured" not in path.read_text() and "basis: extrapolated" in path.read_text()


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(value=finite, width=st.floats(0, 1e6), text=st.text(max_size=40), steps=st.integers(1, 10**12))
def test_any_numbers_and_words_survive_the_plan_file(tmp_path_factory, value, width, text, steps):
    estimate = Estimate(value=value, low=value - width, high=value + width, basis=Basis.PRIOR)
    plan = small_plan(reasons=(text,), run=small_run(steps))
    plan = altered(plan, step_seconds=estimate)
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    write_atomic(path, dump_plan(plan))
    assert load_plan(path) == plan


def test_a_bad_plan_names_the_file_and_every_wrong_field(store, tmp_path):
    path = store.save_plan(small_plan(), tmp_path / "plan.yaml")
    raw = yaml.safe_load(path.read_text())
    del raw["chosen"]["prediction"]["workload"]
    raw["run"]["step"] = raw["run"].pop("steps")
    raw["chosen"]["prediction"]["step_seconds"]["basis"] = "guessed"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(AdvisorError) as caught:
        load_plan(path)
    for part in (
        str(path),
        "chosen.prediction.workload: missing",
        "run.step: unknown",
        "did you mean steps",
        "run.steps: missing",
    ):
        assert part in caught.value.message
    assert "chosen.prediction.step_seconds.basis: 'guessed'" in caught.value.message


def test_a_plan_whose_run_cannot_work_is_refused(store, tmp_path):
    path = store.save_plan(small_plan(run=small_run(micro_batch=0)), tmp_path / "plan.yaml")
    with pytest.raises(AdvisorError, match="run.micro_batch: 0 must be at least 1"):
        load_plan(path)


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.9])
def test_a_plan_cut_anywhere_is_one_clear_error(store, tmp_path, share):
    path = store.save_plan(small_plan(), tmp_path / "plan.yaml")
    text = path.read_text()
    path.write_text(text[: int(len(text) * share)])
    with pytest.raises(AdvisorError) as caught:
        load_plan(path)
    assert str(path) in caught.value.message and caught.value.hint


def test_a_plan_of_a_newer_version_says_so(store, tmp_path):
    path = store.save_plan(replace(small_plan(), schema=99), tmp_path / "plan.yaml")
    with pytest.raises(AdvisorError, match="newer version"):
        load_plan(path)
    with pytest.raises(AdvisorError, match="No such file"):
        load_plan(tmp_path / "absent.yaml")


def test_a_plan_of_an_older_schema_is_read_with_everything_that_its_run_promised(tmp_path):
    """The example's plan was written when the chosen run was spread over the file."""
    raw, plan = yaml.safe_load(OLD_PLAN.read_text()), load_plan(OLD_PLAN)
    chosen, promise = raw["chosen"], raw["prediction"]
    assert to_dict(plan.workload).items() >= raw["workload"].items() and plan.run.steps == raw["run"]["steps"]
    for part in (plan.prediction, plan.bill, plan.chosen.standing):
        mine = {name: value for name, value in to_dict(part).items() if name in promise}
        assert mine and {name: mine[name] for name in mine if name != "wall_clock"} == {
            name: promise[name] for name in mine if name != "wall_clock"
        }
    assert to_dict(plan.bill.wall_clock).items() >= promise["wall_clock"].items()
    assert [plan.chosen.steps, plan.chosen.tokens, plan.chosen.score] == [
        chosen["steps"], chosen["tokens"], chosen["score"],
    ]  # fmt: skip
    assert [plan.offer.gpu, plan.offer.usd_per_hour, plan.offer.source] == [
        raw["workload"]["gpu"], raw["usd_per_hour"], raw["price_source"],
    ]  # fmt: skip
    again = tmp_path / "plan.yaml"
    write_atomic(again, dump_plan(plan))
    assert load_plan(again) == plan and yaml.safe_load(again.read_text())["schema"] == 3


@pytest.mark.parametrize("schema", [None, 1, 2])
def test_a_price_that_was_given_is_read_from_older_plans(tmp_path, schema):
    """Schema 1 called a GPU's price `usd_per_hour`, as the price of all of them is called in the same file."""
    raw = yaml.safe_load(OLD_PLAN.read_text()) | {"schema": schema}
    if schema is None:
        del raw["schema"]
    name = "usd_per_gpu_hour" if schema == 2 else "usd_per_hour"
    raw["goal"] = {key: value for key, value in raw["goal"].items() if not key.startswith("usd_per")}
    raw["goal"] |= {name: 0.5, "prices": [{"gpu": "l4", name: 0.4}]}
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(raw))
    goal = load_plan(path).goal
    assert goal.usd_per_gpu_hour == 0.5 and goal.prices == (GpuPrice(gpu="l4", usd_per_gpu_hour=0.4),)


# Writing


def test_a_failed_write_leaves_the_older_file_and_no_litter(tmp_path):
    path = tmp_path / "a.yaml"
    write_atomic(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half \udc80")  # cannot be encoded: fails after the temporary file was opened
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.yaml"]


def test_disk_errors_say_what_to_do(tmp_path):
    with pytest.raises(AdvisorError) as caught, disk_errors("write", "x"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.message == "cannot write x: No space left on device" and "free some space" in caught.value.hint
    (tmp_path / "file").write_text("")
    with pytest.raises(AdvisorError, match="cannot write"):
        write_atomic(tmp_path / "file" / "below.yaml", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_reaches_the_user_in_words(store):
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200));"
        "from advisor.store.disk import write_atomic; write_atomic(sys.argv[1], 'x' * 10_000)"
    )
    path = store.home / "plans" / "p.yaml"
    write_atomic(path, "old")
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True)
    assert "AdvisorError: cannot write" in done.stderr
    assert path.read_text() == "old" and os.listdir(path.parent) == ["p.yaml"]


def test_yaml_that_is_no_mapping_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(AdvisorError, match="contains a list"):
        read_yaml(tmp_path / "a.yaml", "plan")
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AdvisorError, match="is not a plan: not valid YAML, .*character"):
        read_yaml(tmp_path / "a.yaml", "plan")


# Calibrations and observations


def test_calibrations_are_listed_newest_first_and_found_by_id(store):
    store.save_calibration(calibration("cpu-old", created="2026-01-01T00:00:00+00:00"))
    path = store.save_calibration(calibration("cpu-new"))
    store.save_calibration(calibration("h200-1", device="h200", created="2026-11-21T00:00:00+00:00"))
    assert [entry.id for entry in store.list_calibrations()] == ["h200-1", "cpu-new", "cpu-old"]
    assert store.load_calibration("cpu-new") == calibration("cpu-new") == store.load_calibration(path)
    assert store.newest_calibration("cpu").id == "cpu-new"
    assert store.newest_calibration("cpu", family="gpt2") is None
    assert store.newest_calibration("l4") is None
    with pytest.raises(AdvisorError) as caught:
        store.load_calibration("cpu-nwe")
    assert "cpu-new" in caught.value.hint and caught.value.exit_code == 2


def test_shipped_calibrations_are_read_but_the_users_own_win(tmp_path):
    shipped = Store(tmp_path / "a")
    shipped.save_calibration(calibration("theirs", created="2027-01-01T00:00:00+00:00"))
    store = Store(tmp_path / "b", shipped=tmp_path / "a" / "calibrations")
    assert store.newest_calibration("cpu").id == "theirs"
    assert store.list_calibrations()[0].shipped
    store.save_calibration(calibration("mine"))
    assert store.newest_calibration("cpu").id == "mine"


def test_the_list_reads_the_head_whatever_the_order_of_fields(store):
    store.save_calibration(calibration())
    path = store.home / "calibrations" / "other.yaml"
    path.write_text(yaml.safe_dump(calibration_to_dict(calibration("other")), sort_keys=True))  # bursts before id
    listed = {(entry.id, entry.device_name) for entry in store.list_calibrations()}
    assert listed == {("cpu-1", "a CPU"), ("other", "a CPU")}


def test_a_damaged_calibration_is_named(store):
    path = store.save_calibration(calibration())
    path.write_text("schema: 1\nkind: calibration\n")
    with pytest.raises(AdvisorError, match="cpu-1.yaml is not a complete calibration: missing id, created, device"):
        store.list_calibrations()
    with pytest.raises(AdvisorError, match="cpu-1.yaml is not a complete calibration: id: missing; created: missing"):
        store.load_calibration(path)


def test_observations_are_kept_by_device_and_replaced_by_run(store):
    store.add_observation(observed())
    store.add_observation(observed(step_seconds=0.25, watts=90.0))
    path = store.add_observation(observed("run-2", step_seconds=1.0))
    assert store.observations("cpu:Xeon (R)") == [
        observed(step_seconds=0.25, watts=90.0),
        observed("run-2", step_seconds=1.0),
    ]
    assert store.observations("h200") == []
    assert store.take_back("run-1", NOW) and len(store.observations("cpu:Xeon (R)")) == 1
    path.write_text('{"run_id": "run-2"}')
    with pytest.raises(AdvisorError, match="run-2.json cannot be used: .*step_seconds: missing"):
        store.observations("cpu:Xeon (R)")


# Run folders


def test_run_folders_of_one_second_do_not_collide(store):
    first, second = store.new_run_folder("d4 / a", NOW), store.new_run_folder("d4 / a", NOW)
    assert (first.name, second.name) == ("d4-a-20261121-030405", "d4-a-20261121-030405-2")


def launch(**changes):
    record = LaunchRecord(id="r1", name="small", attempt=1, launched_at="2026-11-21T03:04:05+00:00", host="h", pid=12,
                          process_started=1.5, command=("python", "-m", "trainer"), usd_per_hour=2.5,
                          guards=Guards(max_usd=1, max_seconds=60.0, loss=(LossStop(step=5, above=2.0),)))  # fmt: skip
    return replace(record, **changes)


def test_the_launch_record_comes_back_equal_and_names_the_run_in_a_copy(tmp_path):
    write_launch(tmp_path / "a", launch())
    assert read_launch(tmp_path / "a") == launch()
    (tmp_path / "a").rename(tmp_path / "copied")
    assert run_id(tmp_path / "copied") == "r1"
    assert run_row(tmp_path / "copied").path == str(tmp_path / "copied")


def test_a_folder_the_trainer_made_alone_has_a_name_too(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(small_run()), encoding="utf-8")
    (folder / "log.jsonl").write_text(json.dumps({"kind": "header", "time": 1795230245.5}) + "\n")
    assert read_launch(folder) is None
    assert run_id(folder) == "mine-1795230245"
    assert run_row(folder).created.startswith("2026-11-")
    assert read_run_config(folder) == small_run()


def test_a_torn_launch_record_is_one_clear_error(tmp_path):
    (tmp_path / "run.json").write_text('{"id": "r1", "na')
    with pytest.raises(AdvisorError, match="run.json is not valid JSON"):
        read_launch(tmp_path)
    (tmp_path / "run.json").write_text('{"id": "r1"}')
    with pytest.raises(AdvisorError, match="name: missing"):
        read_launch(tmp_path)


def test_runs_are_found_by_path_name_prefix_and_latest(store, tmp_path):
    inside = store.new_run_folder("alpha", NOW)
    write_launch(inside, launch(id="alpha-1", name="alpha"))
    outside = tmp_path / "elsewhere"
    write_launch(outside, launch(id="beta-1", name="beta", launched_at="2026-11-22T00:00:00+00:00"))
    with pytest.raises(AdvisorError, match="no run folder and no run is called beta"):
        store.find_run("beta")
    store.register_run(run_row(outside))
    assert [row.id for row in store.runs()] == ["beta-1", "alpha-1"]
    for word in ("beta", "be", "beta-1", "elsewhere", "latest", outside):
        assert store.find_run(word) == outside
    assert store.find_run("alpha") == inside
    with pytest.raises(AdvisorError, match="did you mean alpha|no run") as caught:
        store.find_run("alhpa")
    assert "alpha" in caught.value.hint


def test_an_ambiguous_or_vanished_run_is_said_so(store, tmp_path):
    for name in ("a1", "a2"):
        write_launch(tmp_path / name, launch(id=name, name="same"))
        store.register_run(run_row(tmp_path / name))
    with pytest.raises(AdvisorError, match="could be any of 2 runs"):
        store.find_run("same")
    store.register_run(RunRow(id="gone", name="gone", path=str(tmp_path / "nowhere"), created="2026-01-01"))
    with pytest.raises(AdvisorError, match="the folder of run gone is gone"):
        store.find_run("gone")
    with pytest.raises(AdvisorError, match="contains no run"):
        store.find_run(tmp_path)
    with pytest.raises(AdvisorError, match="no run was started yet"):
        Store(tmp_path / "empty").find_run("latest")
