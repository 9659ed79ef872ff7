"""Stages that go on from a trained run: their settings, their time and cost, and that they run one after the other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from advisor.errors import AdvisorError
from advisor.store.plan_files import dump_plan
from advisor.workflows.data import prepare_conversations, prepare_data
from advisor.workflows.finetune import plan_stages
from tests.advisor.plans import altered, small_plan, small_run
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import DataConfig, EvalConfig, Outcome, dump_config, load_config, make_shape, to_dict

SENTENCE = "the cat sat on the mat and the dog sat on the log. "


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A base run, and data of two stages by its tokenizer."""
    home = tmp_path_factory.mktemp("stages")
    (home / "text.txt").write_text(SENTENCE * 60)
    meta = prepare_data([home / "text.txt"], home / "base", vocab_size=300, validation_fraction=0.2)
    tokenizer = home / "base" / "tokenizer.json"
    (home / "more.txt").write_text("the dog sat on the cat. " * 60)
    prepare_data([home / "more.txt"], home / "mid", vocab_size=300, tokenizer=tokenizer, validation_fraction=0.2)
    turns = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "the cat"}]
    (home / "chats.jsonl").write_text("".join(json.dumps({"messages": turns}) + "\n" for _ in range(40)))
    prepare_conversations([home / "chats.jsonl"], home / "chats", tokenizer=tokenizer, validation_fraction=0.2)
    shape = make_shape("gpt2", depth=1, width=32, heads=2, vocab_size=meta.vocab_size, seq_len=64)
    settings = small_run(steps=30, model=shape, data=DataConfig(path=str(home / "base")), eval=EvalConfig(tokens=128))
    (home / "run").mkdir()
    (home / "run" / "run.yaml").write_text(dump_config(settings))
    assert run(settings, home / "run") is Outcome.COMPLETED
    return home


def test_each_stage_takes_what_its_steps_take_at_the_pace_of_the_run(home):
    stages = plan_stages(home / "run", [home / "mid", home / "chats"], home / "out", epochs=3, usd_per_gpu_hour=7.2)
    mid, chats = stages
    tokens = json.loads((home / "mid" / "meta.json").read_text())["tokens"]
    assert mid.config.steps == -(-3 * tokens // 128)  # 2 sequences of 64
    assert mid.tokens == mid.config.steps * 128
    base = load_config(home / "run" / "run.yaml")
    assert mid.config.optimizer.learning_rate == pytest.approx(0.1 * base.optimizer.learning_rate)
    assert chats.config.optimizer.learning_rate == pytest.approx(0.01 * base.optimizer.learning_rate)
    assert mid.config.init_from == str((home / "run").resolve()) and chats.config.init_from == str(mid.run_dir)
    assert (mid.learnt_tokens, chats.learnt_tokens is not None) == (None, True)
    log = load_run_log(home / "run" / LOG_NAME)
    seconds = sorted(step["seconds"] for step in log.steps[3:])
    around = log.header["startup_seconds"] + max(c["seconds"] for c in log.checkpoints)
    for stage in stages:
        assert around + stage.config.steps * seconds[0] < stage.seconds.value
        assert stage.seconds.low < stage.seconds.value < stage.seconds.high
        assert stage.usd.value == pytest.approx(stage.seconds.value * 7.2 / 3600)


def test_data_of_another_vocabulary_are_refused(home, tmp_path):
    (tmp_path / "text.txt").write_text("".join(chr(0x4E00 + n % 900) for n in range(9000)))
    prepare_data([tmp_path / "text.txt"], tmp_path / "far", vocab_size=900)
    with pytest.raises(AdvisorError, match="tokens, the model"):
        plan_stages(home / "run", [tmp_path / "far"], tmp_path / "out")


def test_the_command_writes_stages_that_run_one_after_the_other(home, tmp_path, call):
    out = tmp_path / "stages"
    words = ("--data", str(home / "mid"), "--data", str(home / "chats"), "--out", str(out), "--json")
    code, text, _ = call("finetune", str(home / "run"), *words)
    document = json.loads(text)
    assert code == 0 and [stage["name"] for stage in document["stages"]] == ["1-mid", "2-chats"]
    assert document["commands"][1] == f"advisor launch {out / '2-chats.yaml'} --run-dir {out / 'runs' / '2-chats'}"
    for name in ("1-mid", "2-chats"):  # as launched: a folder each, in this order
        config = load_config(out / f"{name}.yaml")
        assert run(config, out / "runs" / name) is Outcome.COMPLETED
        said = [message["text"] for message in load_run_log(out / "runs" / name / LOG_NAME).messages]
        assert any(text.startswith("begins with the weights of") for text in said)
        (out / "runs" / name / "run.yaml").write_text(dump_config(config))
    code, _, err = call("finetune", str(home / "run"), *words)
    assert code == 1 and "is there already" in err
    code, text, _ = call("finetune", str(home / "run"), *words[:4], "--out", str(tmp_path / "again"), "--price", "2")
    assert code == 0 and "1-mid" in text and "$" in text and "&& advisor launch" in " ".join(text.split())


def test_a_plan_is_the_first_of_its_stages(home, call, tmp_path):
    """Base, mid and conversations of one plan, by hand: steps at what it promises, and everything around them."""
    base = load_config(home / "run" / "run.yaml")
    plan = small_plan(steps=40, step_seconds=0.5)
    shape = replace(base.model, vocab_size=max(base.model.vocab_size, plan.run.model.vocab_size))
    run_of_plan = replace(plan.run, model=replace(shape, seq_len=plan.run.model.seq_len))
    path = tmp_path / "plan.yaml"
    path.write_text(dump_plan(altered(plan, run=run_of_plan, usd_per_hour=3.6)))
    words = ("finetune", str(path), "--data", str(home / "mid"), "--data", str(home / "chats"))
    code, out, err = call(*words, "--out", str(tmp_path / "stages"), "--json")
    assert code == 0, err
    first, mid, chats = json.loads(out)["stages"]
    assert first["seconds"] == to_dict(plan.bill.wall_clock.total_seconds) and first["steps"] == 40
    clock = plan.bill.wall_clock
    least = clock.startup_seconds.value + clock.compile_seconds.value + 0.5 * mid["steps"]
    assert least <= mid["seconds"]["value"] < least + clock.total_seconds.value
    assert mid["usd"]["value"] == pytest.approx(mid["seconds"]["value"] / 1000)
    told = json.loads(out)["commands"]
    assert told[0] == f"advisor launch {path} --run-dir {first['run_dir']}" and len(told) == 3
    written = load_config(tmp_path / "stages" / f"{mid['name']}.yaml")
    assert written.init_from == first["run_dir"]
    assert load_config(tmp_path / "stages" / f"{chats['name']}.yaml").init_from == mid["run_dir"]
    code, out, _ = call(*words, "--out", str(tmp_path / "again"))
    assert code == 0 and "as planned" in out and "all" in out
