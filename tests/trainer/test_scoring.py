"""Held-out loss and questions of a trained model, against arithmetic of their own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.terminal import document
from tests.trainer.small import config
from trainer.prepare import prepare
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, OptimizerConfig, dump_config, make_shape
from trainer.scoring import Question, choice_loss, held_out, read_questions, score
from trainer.tokenizer import load_tokenizer_file
from trainer.trained import NothingTrainedError, load_trained

TEXT = "the cat sat on the mat and the dog sat on the log. " * 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run that has learnt two sentences by heart."""
    home = tmp_path_factory.mktemp("trained")
    (home / "text.txt").write_text(TEXT)
    meta = prepare([home / "text.txt"], home / "data", vocab_size=300, validation_fraction=0.2)
    settings = config(
        model=make_shape("nanochat", depth=2, width=64, heads=2, vocab_size=meta.vocab_size, seq_len=32),
        steps=60,
        micro_batch=8,
        data=DataConfig(path=str(home / "data")),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        eval=EvalConfig(tokens=256),
        checkpoint=CheckpointConfig(every_seconds=None),
    )
    (home / "run").mkdir()
    (home / "run" / "run.yaml").write_text(dump_config(settings))
    run(settings, home / "run")
    return home / "run"


@pytest.fixture(scope="module")
def trained(folder):
    return load_trained(folder, "cpu")


@pytest.fixture(scope="module")
def tokenizer(trained):
    return load_tokenizer_file(Path(trained.config.data.path) / "tokenizer.json")


def test_the_held_out_loss_is_what_the_run_itself_evaluated_last(folder, trained):
    evaluated = load_run_log(folder / LOG_NAME).evals[-1]
    found = held_out(trained, 256)
    assert found.tokens == evaluated["tokens"] and found.windows == 8
    assert found.loss == pytest.approx(evaluated["loss"], rel=1e-5)
    assert found.bits_per_byte == pytest.approx(evaluated["bits_per_byte"], rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(evaluated["loss"]), rel=1e-5)
    assert 0 < found.standard_error < found.loss


def log_probability(trained, tokens, own):
    """Of the last `own` tokens after those before them, one by one, by the definition."""
    total = 0.0
    for at in range(len(tokens) - own, len(tokens)):
        hidden = trained.model(torch.tensor([tokens[:at]]))[0, -1]
        logits = 15 * torch.tanh(trained.model.head_weight @ hidden / 15)  # nanochat's softcap
        total += float(torch.log_softmax(logits, 0)[tokens[at]])
    return total


def test_a_choice_costs_what_its_tokens_cost_after_the_context(trained, tokenizer):
    context, choice = "the dog", "sat on the log"
    whole, before = tokenizer.encode(f"{context} {choice}"), tokenizer.encode(context)
    expected = -log_probability(trained, whole, len(whole) - len(before))
    assert choice_loss(trained, tokenizer, context, choice) == pytest.approx(expected, rel=1e-4)
    long = "the cat sat on the mat and " * 30 + context  # of which the newest 33 tokens are looked at
    tokens = tokenizer.encode(f"{long} {choice}")
    own = len(tokens) - len(tokenizer.encode(long))
    assert choice_loss(trained, tokenizer, long, choice) == pytest.approx(
        -log_probability(trained, tokens[-33:], own), rel=1e-4
    )


def test_what_was_learnt_by_heart_is_chosen(trained, tokenizer):
    questions = [
        Question(context="the cat", choices=("log the dog mat", "sat on the mat"), answer=1),
        Question(context="and the dog sat on", choices=("the log.", "mat mat", "dog the"), answer=0),
        Question(context="the cat", choices=("sat on the mat", "on cat log"), answer=1),  # whose key is wrong
    ]
    found = score(trained, tokenizer, "heart", questions)
    assert (found.right_per_byte, found.questions) == (pytest.approx(2 / 3), 3)
    assert found.standard_error == pytest.approx(math.sqrt(2 / 9 / 3))
    assert found.chance == pytest.approx((1 / 2 + 1 / 3 + 1 / 2) / 3)


@pytest.mark.parametrize(
    "line, said",
    [
        ("{", "line 2: "),
        ("[]", "neither context, choices, answer nor ctx, endings, label"),
        ('{"context": "a", "choices": ["b"], "answer": 0}', "two choices or more"),
        ('{"context": "a", "choices": ["b", "c"], "answer": 2}', "the number of one of them"),
        ('{"context": "a", "choices": ["b", ""], "answer": 0}', "two choices or more"),
    ],
)
def test_a_bad_question_is_named_by_its_line(tmp_path, line, said):
    file = tmp_path / "task.jsonl"
    file.write_text('{"ctx": "a", "endings": ["b", "c"], "label": "1"}\n' + line + "\n")
    with pytest.raises(NothingTrainedError, match=r"task\.jsonl, line 2") as refusal:
        read_questions(file)
    assert said in str(refusal.value)


def test_the_command_on_a_run_with_the_questions_that_come_with_the_program(folder, tmp_path):
    told = document("eval", folder, "--device", "cpu", "--tokens", "256")
    assert told["model"]["step"] == 60 and told["held_out"]["windows"] == 8
    (task,) = told["tasks"]
    assert (task["name"], task["questions"], task["chance"]) == ("everyday", 40, 0.25)
