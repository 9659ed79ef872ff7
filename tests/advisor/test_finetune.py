"""A stage that trains a run further: its settings, its time and cost, and that it runs."""

from __future__ import annotations

import json

import pytest

from advisor.errors import AdvisorError
from advisor.workflows.data import prepare_conversations, prepare_data
from advisor.workflows.finetune import plan_stage
from tests.advisor.plans import small_run
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import DataConfig, EvalConfig, Outcome, dump_config, load_config, make_shape

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


def test_a_stage_takes_what_its_steps_take_at_the_pace_of_the_run(home):
    mid = plan_stage(home / "run", home / "mid", home / "out", epochs=3, usd_per_gpu_hour=7.2)
    tokens = json.loads((home / "mid" / "meta.json").read_text())["tokens"]
    assert mid.steps == -(-3 * tokens // 128)  # 2 sequences of 64
    assert mid.tokens == mid.steps * 128 and mid.learnt_tokens is None
    base = load_config(home / "run" / "run.yaml")
    assert mid.config.optimizer.learning_rate == pytest.approx(0.1 * base.optimizer.learning_rate)
    assert mid.config.init_from == str((home / "run").resolve())
    log = load_run_log(home / "run" / LOG_NAME)
    seconds = sorted(step["seconds"] for step in log.steps[3:])
    around = log.header["startup_seconds"] + max(c["seconds"] for c in log.checkpoints)
    assert around + mid.steps * seconds[0] < mid.seconds.value
    assert mid.seconds.low < mid.seconds.value < mid.seconds.high
    assert mid.usd.value == pytest.approx(mid.seconds.value * 7.2 / 3600)
    assert plan_stage(home / "run", home / "chats", home / "out").learnt_tokens is not None


def test_data_of_another_vocabulary_are_refused(home, tmp_path):
    (tmp_path / "text.txt").write_text("".join(chr(0x4E00 + n % 900) for n in range(9000)))
    prepare_data([tmp_path / "text.txt"], tmp_path / "far", vocab_size=900)
    with pytest.raises(AdvisorError, match="vocabulary of [0-9]+, but the model's vocabulary is [0-9]+"):
        plan_stage(home / "run", tmp_path / "far", tmp_path / "out")


def test_stages_run_one_after_the_other(home, tmp_path, call):
    out, source = tmp_path / "stages", home / "run"
    for name in ("mid", "chats"):
        code, text, err = call("finetune", str(source), "--data", str(home / name), "--out", str(out), "--json")
        assert code == 0, err
        source = out / "runs" / name
        assert json.loads(text[text.index("{") :])["command"] == f"advisor launch {out / name}.yaml --run-dir {source}"
        config = load_config(out / f"{name}.yaml")
        assert run(config, source) is Outcome.COMPLETED
        said = [message["text"] for message in load_run_log(source / LOG_NAME).messages]
        assert any(text.startswith("begins with the weights of") for text in said)
        (source / "run.yaml").write_text(dump_config(config))
    words = ("finetune", str(home / "run"), "--data", str(home / "mid"), "--out")
    code, _, err = call(*words, str(out))
    assert code == 1 and "already exists" in err
    code, text, _ = call(*words, str(tmp_path / "again"), "--price", "2")
    assert code == 0 and "mid" in text and "$" in text and "next: advisor launch" in " ".join(text.split())


def test_chains_of_stages_and_stages_of_plans_say_what_to_type_instead(home, tmp_path, call):
    data = ("--data", str(home / "mid"), "--out", str(tmp_path / "out"))
    code, _, err = call("finetune", str(home / "run"), *data, "--data", str(home / "chats"))
    assert code == 2 and "one stage at a time" in err and "train this stage, then: advisor model finetune" in err
    (tmp_path / "plan.yaml").write_text("")
    code, _, err = call("finetune", str(tmp_path / "plan.yaml"), *data)
    assert code == 2 and f"train it first: advisor launch {tmp_path / 'plan.yaml'}" in " ".join(err.split())
