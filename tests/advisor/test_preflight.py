"""Cards that a run has by itself, and what is looked at before a run starts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from advisor.engines import gpu_locks as locks
from advisor.engines.engines import parse_place
from advisor.engines.gpu_locks import lock_gpus, parse_gpu_ids, runs_by_gpu
from advisor.engines.guards import GuardLimits
from advisor.engines.process import ProcessId, kill_tree, start_detached
from advisor.errors import AdvisorError
from advisor.hardware import here
from advisor.hardware.here import DetectedGpu
from advisor.run_records import Place
from advisor.store.run_folder import read_launch
from advisor.store.store import Store
from advisor.trainers.own import OwnTrainer
from advisor.workflows import preflight as flow
from advisor.workflows.data import prepare_data
from advisor.workflows.launch import beforehand, launch
from advisor.workflows.preflight import Readiness, preflight, raise_if_missing
from tests.advisor.plans import altered, changed, guess, small_plan
from trainer.schema import CheckpointConfig, DataConfig, StopConfig, dump_config, make_shape

H100 = DetectedGpu(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, free_bytes=79 * 2**30)
RUN = Path("/runs/mine")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of so many H100s, whose locks are this test's own."""
    monkeypatch.setattr(locks, "LOCKS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def of(*cards):
        monkeypatch.setattr(here, "cards", lambda: [replace(card, number=n) for n, card in enumerate(cards)])

    return of


class WaitingTrainer(OwnTrainer):
    """Says which cards it sees, and waits."""

    def command(self, folder, gpus):
        words = "import os, time; print(os.environ.get('CUDA_VISIBLE_DEVICES'), flush=True); time.sleep(60)"
        return (sys.executable, "-c", words)


def on_card(**changes):
    plan = small_plan()
    return changed(plan, gpu="h100-80gb-sxm", device="cuda", **changes)


def found(checks, of):
    return [(check.finding, check.words) for check in checks if check.of == of]


def test_the_first_free_cards_are_held_until_the_last_holder_ends(machine, tmp_path):
    machine(H100, H100, H100)
    with lock_gpus(1, (), RUN) as first:
        process = start_detached([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path, tmp_path / "out",
                                 first.variables, keep=first.files)  # fmt: skip
    assert first.ids == (0,) and first.variables == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "0"}
    assert runs_by_gpu() == {0: "/runs/mine"}  # by the process alone: whoever started it has let go
    with lock_gpus(2, (), Path("/runs/other")) as rest:
        assert rest.ids == (1, 2)
        with pytest.raises(AdvisorError, match="1 free GPUs are needed: GPU 0 is taken by /runs/mine; GPU 1"), \
             lock_gpus(1, (), RUN):  # fmt: skip
            pass
    kill_tree(process)
    deadline = time.monotonic() + 300
    while runs_by_gpu():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_cards_that_are_asked_for_are_those_or_none(machine):
    machine(H100, H100)
    with lock_gpus(1, (1,), RUN) as held:
        assert held.ids == (1,)
        with pytest.raises(AdvisorError, match="GPU 1 is taken by /runs/mine"), lock_gpus(1, (1,), RUN):
            pass
    for asked, words in (((0, 1), "names 2 GPUs, the plan is for 1"), ((7,), "there is no GPU 7")):
        with pytest.raises(AdvisorError, match=words), lock_gpus(1, asked, RUN):
            pass


def test_cards_hidden_by_the_environment_are_not_taken(machine, monkeypatch):
    machine(H100, H100)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with lock_gpus(1, (), RUN) as held:
        assert held.ids == (1,)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-12345678")
    with lock_gpus(1, (), RUN) as held:  # nobody can say which it is: left as it is
        assert held.ids == () and held.variables == {}


def test_somebody_elses_link_is_not_followed(machine, tmp_path):
    machine(H100)
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "training-advisor-gpu-0.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(AdvisorError, match="cannot lock the GPU"), lock_gpus(1, (), RUN):
        pass
    assert (tmp_path / "precious").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "a", "0,", "-1", "0;1", "1e3"])
def test_what_is_no_list_of_cards_is_refused(text):
    with pytest.raises(AdvisorError, match="not a list of GPUs"):
        parse_gpu_ids(text)
    assert parse_gpu_ids("0, 3") == (0, 3) and parse_gpu_ids(None) == ()


def test_two_runs_on_two_cards_see_one_each_and_a_third_is_refused(machine, tmp_path):
    machine(H100, H100)
    store, started = Store(tmp_path / "home"), []
    try:
        for _ in range(2):
            started.append(launch(store, on_card(), trainer=WaitingTrainer(), again=True))
        assert [run.launch.cards for run in started] == [(0,), (1,)]
        with pytest.raises(AdvisorError, match="GPU 0 is taken by .*small"):
            launch(store, on_card(), trainer=WaitingTrainer(), again=True)
        deadline = time.monotonic() + 300
        while [(run.run_dir / "stdout.log").read_text() for run in started] != ["0\n", "1\n"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for run in started:
            record = read_launch(run.run_dir)
            kill_tree(ProcessId(pid=record.pid, started=record.process_started))


def test_all_that_is_missing_is_said_at_once(machine, tmp_path, monkeypatch):
    machine(replace(H100, free_bytes=2**30))
    plan = on_card(data=DataConfig(path=str(tmp_path / "nowhere")))
    plan = altered(plan, peak_reserved_bytes=guess(40e9), disk_bytes=10**18)
    with lock_gpus(1, (), RUN), pytest.raises(AdvisorError) as refused:
        raise_if_missing(preflight(Store(tmp_path), plan, Place()))
    words = refused.value.message
    for part in ("card: 1 free ones are needed: GPU 0 is taken by /runs/mine", "GiB are free now, 37",
                 "disk: ", "data: token folder"):  # fmt: skip
        assert part in words
    assert refused.value.hint


def test_too_few_cards_are_missing_and_a_peak_near_the_limit_is_a_warning(machine, tmp_path):
    machine()
    assert found(preflight(Store(tmp_path), on_card(), Place()), "card")[0][0] is Readiness.MISSING
    machine(replace(H100, free_bytes=int(42e9)))
    plan = on_card()
    plan = altered(plan, peak_reserved_bytes=guess(40e9))  # to 44e9
    checks = preflight(Store(tmp_path), plan, Place())
    [(finding, words)] = found(checks, "card")
    assert found(checks, "memory")[0][0] is finding is Readiness.WARNING
    assert "GPU 0 is in use by another program with 40.9 GiB of memory" in words
    assert any("free now" in words for words in raise_if_missing(checks))


def test_data_are_whole_and_fit_the_model(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 400)
    meta = prepare_data([text], tmp_path / "tokens", vocab_size=300)
    plan = small_plan()
    run = replace(plan.run, data=DataConfig(path=str(tmp_path / "tokens")))
    assert meta.vocab_size > run.model.vocab_size
    [(finding, words)] = found(flow.preflight(Store(tmp_path), run, Place()), "data")
    assert finding is Readiness.MISSING and f"tokens go up to {meta.vocab_size}" in words
    fits = replace(run, model=replace(run.model, vocab_size=meta.vocab_size))
    assert found(flow.preflight(Store(tmp_path), fits, Place()), "data")[0][0] is Readiness.FINE
    with (tmp_path / "tokens" / "val.bin").open("ab") as file:
        file.write(b"x")
    assert "val.bin holds" in found(flow.preflight(Store(tmp_path), fits, Place()), "data")[0][1]


def test_a_second_run_on_the_processor_is_warned_of(tmp_path):
    store = Store(tmp_path / "home")
    started = launch(store, small_plan(), trainer=WaitingTrainer())
    try:
        [(finding, words)] = found(preflight(store, small_plan(), Place()), "other runs")
        assert finding is Readiness.WARNING and started.run_dir.name in words
    finally:
        kill_tree(ProcessId(pid=started.launch.pid, started=started.launch.process_started))
    assert started.launch.cards == ()


def test_programs_that_use_the_processor_are_named_before_a_launch_with_the_time_they_cost(tmp_path, call):
    """A plan of 3 min took 8 beside other programs, and nothing was said before the launch."""
    path = Store(tmp_path).save_plan(small_plan(steps=200, step_seconds=0.87), tmp_path / "plan.yaml")  # 180 s in all
    forever = "import os\nfor _ in range(os.cpu_count() - 1): os.fork()\nwhile True: pass"
    browser = tmp_path / "chromium"  # it shows the page that would name it
    browser.symlink_to(sys.executable)
    with (
        subprocess.Popen([browser, "-c", "while True: pass"]) as page,
        subprocess.Popen([sys.executable, "-c", forever], start_new_session=True) as busy,
    ):
        try:
            [(finding, words)] = found(preflight(Store(tmp_path), small_plan(steps=200), Place()), "machine")
            code, script, said = call("launch", str(path), "--dry-run")
        finally:
            os.killpg(busy.pid, signal.SIGKILL)
            page.kill()
    assert "chromium" not in words and str(page.pid) not in words
    assert finding is Readiness.WARNING and code == 0
    assert words.startswith("other programs use this machine: expect ") and "close " in words and "python" in words
    # every core has at least one other program: at least twice the planned 3 min
    expected, unit, planned = re.search(r"expect ([\d.]+) (min|h) .* instead of ([\d.]+) min\. ", said).groups()
    assert float(planned) == 3 and float(expected) * {"min": 1, "h": 60}[unit] > 1.5 * 3
    assert "other programs" not in script


def test_places_are_read_and_what_is_none_is_refused():
    assert parse_place("slurm:a,b", qos="high") == Place(engine="slurm", name="a,b", qos="high")
    assert parse_place("ssh:me@host.example") == Place(engine="ssh", name="me@host.example")
    assert parse_place("skypilot:aws/us-east-1,gcp") == Place(engine="skypilot", name="aws/us-east-1,gcp")
    assert parse_place("local", gpu_ids=(1,)).gpu_ids == (1,)
    refusals = (
        ("dstack", {}, "advisor export PLAN.yaml --to dstack"),
        ("skypilot:--infra", {}, "is not a place"),
        ("skypilot:aws;true", {}, "is not a place"),
        ("slum", {}, "did you mean"),
        ("ssh", {}, "is not a place"),
        ("local:x", {}, "is not a place"),
        ("slurm", {"qos": "--wrap=x"}, "is not a place"),
        ("local", {"qos": "a"}, "only with Slurm"),
        ("ssh:a", {"gpu_ids": (0,)}, "of this machine"),
    )
    for text, more, words in refusals:
        with pytest.raises(AdvisorError) as refused:
            parse_place(text, **more)
        assert words in f"{refused.value.message} {refused.value.hint}" and refused.value.exit_code == 2


def test_check_only_looks(call, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_HOME", str(tmp_path / "home"))
    path = Store(tmp_path).save_plan(small_plan(), tmp_path / "plan.yaml")
    code, out, _ = call("launch", str(path), "--check", "--json")
    document = json.loads(out)
    assert code == 0 and document["can_start"] is True
    assert {check["of"] for check in document["checks"]} >= {"PyTorch", "memory", "disk"}
    assert not (tmp_path / "home" / "runs").exists()
    big = altered(small_plan(), disk_bytes=10**18)
    Store(tmp_path).save_plan(big, path)
    code, out, _ = call("launch", str(path), "--check")
    assert code == 1 and "missing  disk: " in out and "it cannot start" in out
    assert os.listdir(tmp_path) == ["plan.yaml"]


def test_where_skypilot_is_not_installed_it_says_what_to_type(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_SKY", str(tmp_path / "sky"))
    with pytest.raises(AdvisorError, match=r"no SkyPilot here .* pip install 'training-advisor\[skypilot\]'"):
        beforehand(Store(tmp_path), on_card(), parse_place("skypilot:aws"), GuardLimits())


def test_a_run_that_writes_no_checkpoint_on_its_way_says_what_is_at_stake(tmp_path):
    """200,000 steps of 0.9 s and 6 s around them are 50 hours; at 3.6 dollars an hour 180."""
    store, plan = Store(tmp_path), small_plan(steps=200_000, step_seconds=0.9)
    [(finding, words)] = found(preflight(store, plan, Place()), "checkpoints")
    assert finding is Readiness.WARNING and "up to all 200,000 steps, 2.08 days and $180;" in words
    assert f"warning: {words}" in raise_if_missing(preflight(store, plan, Place()))
    bare = replace(
        plan.run, stop=StopConfig(step_seconds=0.9), checkpoint=CheckpointConfig(every_seconds=None, final=False)
    )
    [(_, words)] = found(preflight(store, bare, Place()), "checkpoints")
    assert "200,000 steps, 2.08 days;" in words and "not at its end" in words  # nobody said what an hour costs
    late = CheckpointConfig(every_seconds=None, every_steps=200_000)
    assert found(preflight(store, replace(bare, checkpoint=late), Place()), "checkpoints")
    for kept in (CheckpointConfig(), CheckpointConfig(every_seconds=None, every_steps=1000)):
        assert found(preflight(store, replace(bare, checkpoint=kept), Place()), "checkpoints") == []


def test_evaluation_data_that_were_never_copied_whole_are_missing(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 4000)
    meta = prepare_data([text], tmp_path / "tokens", vocab_size=300, validation_fraction=0.4)
    run = replace(small_plan().run, data=DataConfig(path=str(tmp_path / "tokens")))
    run = replace(run, model=replace(run.model, vocab_size=meta.vocab_size))
    assert found(preflight(Store(tmp_path), run, Place()), "data")[0][0] is Readiness.FINE
    validation = tmp_path / "tokens" / "val.bin"
    size = validation.stat().st_size
    with validation.open("r+b") as file:
        file.truncate(size // 2)
        file.truncate(size)  # its end is zeros
    [(finding, words)] = found(preflight(Store(tmp_path), run, Place()), "data")
    assert finding is Readiness.MISSING and "val.bin: blocks of zeros" in words
    (tmp_path / "tokens" / "tokenizer.json").unlink()
    assert found(preflight(Store(tmp_path), run, Place()), "data")[1][0] is Readiness.WARNING


def test_the_run_whose_weights_are_taken_is_looked_at(tmp_path):
    """It must be there, be of this model, have a checkpoint, and have read text by the same tokenizer."""
    for name, words in (("one", "It was the best of times. "), ("other", "All happy families are alike. ")):
        (tmp_path / f"{name}.txt").write_text(words * 400)
        prepare_data([tmp_path / f"{name}.txt"], tmp_path / name, vocab_size=300)
    base = replace(small_plan().run, data=DataConfig(path=str(tmp_path / "one")))
    base = replace(base, model=replace(base.model, vocab_size=300))
    (tmp_path / "run" / "checkpoints" / "step-00000007").mkdir(parents=True)
    state = tmp_path / "run" / "checkpoints" / "step-00000007" / "state.json"

    def looked_at(config):
        return found(preflight(Store(tmp_path), replace(config, init_from=str(tmp_path / "run")), Place()), "weights")

    assert looked_at(base)[0][0] is Readiness.MISSING  # no run.yaml
    (tmp_path / "run" / "run.yaml").write_text(dump_config(base))
    assert "has no checkpoint" in looked_at(base)[0][1]
    state.touch()
    assert looked_at(base) == [(Readiness.FINE, f"begins with {tmp_path / 'run'}, step-00000007")]
    longer = replace(base, model=replace(base.model, seq_len=64))
    assert looked_at(longer)[0][0] is Readiness.FINE
    wider = replace(base, model=replace(base.model, width=64))
    assert "is of another model" in looked_at(wider)[0][1]
    elsewhere = replace(base, data=DataConfig(path=str(tmp_path / "other")))
    assert "its tokens are not those of" in looked_at(elsewhere)[0][1]


def test_of_a_bare_configuration_what_is_known_of_the_card_says_how_long_it_takes(machine, tmp_path):
    """GPT-2 small, 64 sequences: 6 · 124 M · 65,536 tokens are 49 TFLOP; an H100 does 10 to 60 % of 989 a second."""
    machine(H100)
    shape = make_shape("gpt2", depth=12, vocab_size=50257, seq_len=1024)
    run = replace(small_plan().run, model=shape, micro_batch=64, steps=200_000, device="cuda", precision="auto")
    [(_, words)] = found(preflight(Store(tmp_path), run, Place()), "checkpoints")
    said = re.search(r"all 200,000 steps, ([\d.]+) (h|days);", words)
    hours = float(said[1]) * (24 if said[2] == "days" else 1)
    flops = 200_000 * 6 * 124e6 * 65_536
    assert flops / (0.6 * 989e12) / 3600 < hours < flops / (0.1 * 989e12) / 3600
