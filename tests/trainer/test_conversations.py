"""Conversations: only what the assistant says is learnt, windows begin with whole ones, and runs go on from others."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.trainer.small import config
from trainer.conversations import Message, prepare_conversations, render
from trainer.corpus import PrepareError
from trainer.data import open_tokens
from trainer.device import resolve_device
from trainer.loop import Trainer
from trainer.loss import linear_cross_entropy
from trainer.masked import _packed
from trainer.prepare import prepare
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.sample import main as sample
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, OptimizerConfig, Outcome, dump_config, make_shape
from trainer.scoring import held_out
from trainer.token_folder import read_meta
from trainer.tokenizer import load_tokenizer_file
from trainer.trained import load_trained

SENTENCE = "the cat sat on the mat and the dog sat on the log. "


def chat(*turns):
    """Turns of user and assistant, one after the other."""
    return [{"role": ("user", "assistant")[number % 2], "content": said} for number, said in enumerate(turns)]


def write_chats(file, chats):
    file.write_text("".join(json.dumps({"messages": one}) + "\n" for one in chats))
    return file


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run on plain text, and conversations made with its tokenizer."""
    home = tmp_path_factory.mktemp("base")
    (home / "text.txt").write_text(SENTENCE * 40)
    meta = prepare([home / "text.txt"], home / "text", vocab_size=300, validation_fraction=0.2)
    settings = config(
        model=make_shape("llama", depth=2, width=64, heads=2, vocab_size=meta.vocab_size, seq_len=64),
        steps=3,
        micro_batch=2,
        data=DataConfig(path=str(home / "text")),
        checkpoint=CheckpointConfig(every_seconds=None),
    )
    (home / "run").mkdir()
    (home / "run" / "run.yaml").write_text(dump_config(settings))
    run(settings, home / "run")
    chats = [chat("who sat?", "the cat"), chat("and then?", "the dog sat on the log", "where?", "the mat")] * 15
    write_chats(home / "chats.jsonl", chats)
    tokenizer = home / "text" / "tokenizer.json"
    prepare_conversations([home / "chats.jsonl"], home / "chats", tokenizer=tokenizer, validation_fraction=0.2)
    return home, settings


def test_what_the_assistant_says_and_its_end_is_learnt_and_nothing_else(base):
    encoder = load_tokenizer_file(base[0] / "text" / "tokenizer.json")
    turns = [Message(role="system", content="be brief"), Message(role="user", content="<|endoftext|>?"),
             Message(role="assistant", content="the cat"), Message(role="user", content="and?"),
             Message(role="assistant", content="")]  # fmt: skip
    (one,) = render(encoder, [turns])
    learnt = [token for token, counts in zip(one.tokens, one.counts, strict=True) if counts]
    assert learnt == [*encoder.encode("the cat"), encoder.end_of_text, encoder.end_of_text]
    assert one.tokens.count(encoder.end_of_text) == 2  # what a user writes is text, whatever it looks like
    assert encoder.decode(one.tokens) == (
        "<|system|>\nbe brief\n<|user|>\n<|endoftext|>?\n<|assistant|>\nthe cat\n<|user|>\nand?\n<|assistant|>\n\n"
    )


def test_the_folder_says_how_much_is_learnt(base):
    meta = read_meta(base[0] / "chats")
    encoder = load_tokenizer_file(base[0] / "text" / "tokenizer.json")
    short = len(encoder.encode("the cat")) + 1
    long = len(encoder.encode("the dog sat on the log")) + len(encoder.encode("the mat")) + 2
    assert meta.counted_tokens + meta.validation_counted_tokens == 15 * (short + long)
    assert (meta.documents, meta.schema) == (30, 2)
    masks = [np.fromfile(base[0] / "chats" / name, np.uint8) for name in ("mask.bin", "val_mask.bin")]
    assert [len(mask) for mask in masks] == [meta.tokens, meta.validation_tokens]
    assert [int((mask & 1).sum()) for mask in masks] == [meta.counted_tokens, meta.validation_counted_tokens]
    assert sum(int((mask & 2 > 0).sum()) for mask in masks) == 30


def test_windows_hold_whole_conversations_and_cut_only_what_is_longer():
    """Lengths 5, 4, 3, 10, 2 in windows of 8: 5 | 4 + 3 | the first 8 of 10 | 2."""
    begins, ends = _packed(np.array([0, 5, 9, 12, 22]), 24, 8)
    assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == [(0, 5), (5, 12), (12, 20), (22, 24)]


def test_batches_are_conversations_whose_other_targets_do_not_count(base):
    home, settings = base
    source = open_tokens(DataConfig(path=str(home / "chats")), settings.model.vocab_size, 160, 1)
    encoder = load_tokenizer_file(home / "text" / "tokenizer.json")
    inputs, targets = source.train_batch(0, 0, 0, 1, 4, 1)
    for row, wanted in zip(inputs, targets, strict=True):
        assert encoder.decode(row.tolist()).startswith("<|user|>\n")
        said = encoder.decode(wanted[wanted >= 0].tolist())
        assert said and not said.replace("the cat", "").replace("the dog sat on the logthe mat", "")
        kept = (wanted >= 0).nonzero().flatten()
        assert torch.equal(wanted[kept[:-1]], row[kept[:-1] + 1])  # the next token of the same window
    assert source.counted(0, 1, 4, 1) == int((targets >= 0).sum()) == source.counted(0, 2, 1, 2)
    pieces = [source.train_batch(0, micro, rank, 2, 1, 2)[0] for micro in range(2) for rank in range(2)]
    assert torch.equal(torch.cat(pieces), inputs)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_loss_is_the_mean_over_the_targets_that_count(softcap):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(30, 8, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(23, 8, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(23, (30,), generator=generator)
    targets[torch.arange(30) % 3 > 0] = -1
    logits = hidden @ weight.t()
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    plain = F.cross_entropy(logits, targets, ignore_index=-1)
    ours = linear_cross_entropy(hidden, weight, targets, softcap=softcap, chunk_tokens=7, some_count=True)
    assert ours.item() == pytest.approx(plain.item(), rel=1e-12)
    for got, want in zip(
        torch.autograd.grad(ours, (hidden, weight)), torch.autograd.grad(plain, (hidden, weight)), strict=True
    ):
        torch.testing.assert_close(got, want)
    nothing = linear_cross_entropy(hidden, weight, torch.full((30,), -1), some_count=True)
    assert nothing.item() == 0 and not any(g.any() for g in torch.autograd.grad(nothing, (hidden, weight)))


def test_a_step_is_the_same_however_its_conversations_lie_in_micro_batches(base):
    """Of micro-batches with 1 and 9 learnt tokens the mean of two means would be another loss."""
    home, settings = base
    data = DataConfig(path=str(home / "chats"))
    steps = {}
    for micro, accumulated in ((4, 1), (1, 4), (2, 2)):
        own = replace(settings, data=data, micro_batch=micro, grad_accum=accumulated, seed=5)
        tokens = open_tokens(data, own.model.vocab_size, 64, own.seed)
        trainer = Trainer(own, resolve_device("cpu", "fp32"), tokens)
        (record,) = trainer.steps(1)
        steps[micro] = (record.loss, record.grad_norm)
        if micro == 4:
            inputs, targets = tokens.train_batch(0, 0, 0, 1, 4, 1)
            fresh = Trainer(own, resolve_device("cpu", "fp32"), tokens).model
            with torch.no_grad():
                logits = F.linear(fresh(inputs), fresh.head_weight)
            expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
            assert record.loss == pytest.approx(float(expected), rel=1e-5)
    assert steps[1] == pytest.approx(steps[4], rel=1e-4) and steps[2] == pytest.approx(steps[4], rel=1e-4)


@pytest.fixture(scope="module")
def tuned(base):
    """A run that goes on from the other one, on conversations."""
    home, settings = base
    before = {path: path.stat().st_mtime_ns for path in (home / "run").rglob("*")}
    own = replace(
        settings,
        steps=120,
        micro_batch=4,
        init_from=str(home / "run"),
        data=DataConfig(path=str(home / "chats")),
        eval=EvalConfig(tokens=256),
        optimizer=OptimizerConfig(learning_rate=3e-3),
    )
    folder = home / "tuned"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(own))
    assert run(own, folder) is Outcome.COMPLETED
    assert before == {path: path.stat().st_mtime_ns for path in (home / "run").rglob("*")}
    return folder, own


def test_a_run_begins_with_the_weights_of_another(base, tuned):
    home, _ = base
    folder, own = tuned
    log = load_run_log(folder / LOG_NAME)
    assert any("begins with the weights of" in m["text"] and "after step 3" in m["text"] for m in log.messages)
    model = load_trained(home / "run", "cpu").model
    tokens = open_tokens(own.data, own.model.vocab_size, 64, own.seed)
    inputs, targets = tokens.train_batch(0, 0, 0, 1, 4, 1)
    with torch.no_grad():
        logits = F.linear(model(inputs), model.head_weight)
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
    assert log.steps[0]["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert log.evals[-1]["bits_per_byte"] is None  # what is learnt is not all that is written
    scored = held_out(load_trained(folder, "cpu"), 256)
    assert scored.loss == pytest.approx(log.evals[-1]["loss"], rel=1e-5) and scored.tokens == log.evals[-1]["tokens"]


def test_it_answers_as_it_was_taught(tuned, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("who sat?"))
    assert sample([str(tuned[0]), "--device", "cpu", "--temperature", "0", "--tokens", "12", "--chat"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(line.get("text", "") for line in lines) == "the cat"
    assert lines[-1]["ended_itself"] is True


def test_a_run_that_goes_on_from_its_own_checkpoint_does_not_begin_again(base, tmp_path):
    home, settings = base
    own = replace(settings, steps=4, init_from=str(home / "run"), data=DataConfig(path=str(home / "chats")))
    run(own, tmp_path / "run")
    gone = replace(own, steps=6, init_from=str(home / "nowhere"))  # which is not looked at any more
    assert run(gone, tmp_path / "run") is Outcome.COMPLETED
    log = load_run_log(tmp_path / "run" / LOG_NAME)
    assert [step["step"] for step in log.steps] == [1, 2, 3, 4, 5, 6]


def test_another_model_and_a_run_without_checkpoints_are_said(base, tmp_path):
    home, settings = base
    other = replace(settings, model=replace(settings.model, width=32), init_from=str(home / "run"))
    assert run(other, tmp_path / "other") is Outcome.FAILED
    assert "is of another model" in load_run_log(tmp_path / "other" / LOG_NAME).final["reason"]
    bare = tmp_path / "bare"
    shutil.copytree(home / "run", bare, ignore=shutil.ignore_patterns("checkpoints"))
    assert run(replace(settings, init_from=str(bare)), tmp_path / "none") is Outcome.FAILED
    assert "no checkpoint whose weights could be taken" in load_run_log(tmp_path / "none" / LOG_NAME).final["reason"]


BAD = {
    "no list": ({"messages": "hello"}, "bad.jsonl:2: 'messages' is str"),
    "a role of its own": ({"messages": [{"role": "human", "content": "a"}]}, "turn 1: role 'human' is not one of"),
    "no text": ({"messages": [{"role": "assistant", "content": None}]}, "turn 1: content is NoneType"),
    "nothing to learn": ({"messages": [{"role": "user", "content": "a"}]}, "the assistant says nothing"),
    "no messages": ({"text": "a"}, "no field 'messages'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_conversation_is_named_with_its_line_or_left_out(base, tmp_path, case):
    record, words = BAD[case]
    good = json.dumps({"messages": chat("who?", "the cat")})
    parts = json.dumps({"messages": [{"role": "assistant", "content": [{"type": "text", "text": "the dog"}]}]})
    (tmp_path / "bad.jsonl").write_text("\n".join([good, json.dumps(record), parts, good, ""]))
    options = {"tokenizer": base[0] / "text" / "tokenizer.json", "validation_fraction": 0.2}
    with pytest.raises(PrepareError, match=r".*bad\.jsonl:2") as refusal:
        prepare_conversations([tmp_path / "bad.jsonl"], tmp_path / "out", **options)
    assert words in str(refusal.value)
    meta = prepare_conversations([tmp_path / "bad.jsonl"], tmp_path / "out", skip_bad=True, **options)
    assert meta.documents == 3 and len(meta.skipped) == 1 and words in meta.skipped[0]
