"""What a trained model says: a cache that changes nothing, draws as their numbers say, and text from a run folder."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.small import config
from trainer.device import resolve_device
from trainer.generate import Drawing, draw, generate
from trainer.model import build_model
from trainer.prepare import prepare
from trainer.run import run
from trainer.schema import CheckpointConfig, DataConfig, OptimizerConfig, dump_config, make_shape
from trainer.trained import NothingTrainedError, Trained, load_trained

TEXT = "the cat sat on the mat and the dog sat on the log. " * 40


def model_of(family, **changes):
    torch.manual_seed(1)
    shape = make_shape(family, **{"depth": 2, "width": 32, "heads": 4, "vocab_size": 50, "seq_len": 16, **changes})
    model = build_model(shape)
    for parameter in model.parameters():  # some heads start at zero, where every cache looks right
        parameter.data.normal_(std=0.3)
    return model


def whole_logits(model, tokens):
    """By the training path, which has no cache."""
    hidden = model(tokens)
    logits = (hidden @ model.head_weight.t()).float()
    return logits if model.softcap is None else model.softcap * torch.tanh(logits / model.softcap)


@pytest.mark.parametrize(
    "family, changes", [("nanochat", {}), ("gpt2", {}), ("llama", {"kv_heads": 2}), ("llama", {"kv_heads": 1})]
)
def test_a_cache_changes_no_logits(family, changes):
    model = model_of(family, **changes)
    tokens = torch.randint(0, 50, (2, 16), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        whole = whole_logits(model, tokens)
    caches = model.empty_caches(2, torch.float32)
    assert torch.allclose(model.next_logits(tokens[:, :7], caches, torch.float32), whole[:, 6], atol=1e-5)
    for at in range(7, 16):
        assert torch.allclose(model.next_logits(tokens[:, at : at + 1], caches, torch.float32), whole[:, at], atol=1e-5)


def test_a_full_context_is_gone_on_from_by_its_newer_half():
    settings = config(model=make_shape("gpt2", depth=2, width=32, heads=4, vocab_size=50, seq_len=16))
    trained = Trained(model=model_of("gpt2"), config=settings, context=resolve_device("cpu", "fp32"), step=1)
    likeliest = Drawing(temperature=0.0)
    made = list(itertools.islice(generate(trained, [5, 6, 7], likeliest), 40))
    read = [5, 6, 7, *made]
    with torch.no_grad():
        assert read[16] == int(whole_logits(trained.model, torch.tensor([read[:16]]))[0, -1].argmax())
        # token 17 does not fit beside 16 others: it is asked for after the 8 newest
        assert read[17] == int(whole_logits(trained.model, torch.tensor([read[9:17]]))[0, -1].argmax())
    long = list(range(40))  # a prompt longer than the context
    with torch.no_grad():
        after = int(whole_logits(trained.model, torch.tensor([long[-16:]]))[0, -1].argmax())
    assert next(generate(trained, long, likeliest)) == after


@given(st.lists(st.integers(-40, 40), min_size=2, max_size=8, unique=True), st.integers(0, 1000))
def test_draws_keep_to_what_is_allowed(logits, seed):
    values, chance = torch.tensor(logits) / 8, torch.Generator().manual_seed(seed)
    best = int(values.argmax())
    assert draw(values, Drawing(temperature=0.0), chance) == best
    assert draw(values, Drawing(temperature=1.0, top_k=1), chance) == best
    assert draw(values, Drawing(temperature=1.0, top_p=1e-6), chance) == best
    assert draw(values, Drawing(temperature=1.0, top_k=2), chance) in values.topk(2).indices.tolist()


def test_draws_are_as_frequent_as_the_softmax_says():
    """Logits ln 1, ln 2, ln 5 at temperature 1: 1/8, 2/8, 5/8."""
    logits, chance = torch.log(torch.tensor([1.0, 2.0, 5.0])), torch.Generator().manual_seed(4)
    counts = torch.bincount(torch.tensor([draw(logits, Drawing(temperature=1.0), chance) for _ in range(4000)]))
    assert (counts / 4000).tolist() == pytest.approx([0.125, 0.25, 0.625], abs=0.03)  # 4 standard errors: 0.031


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory):
    """A run that has learnt two sentences by heart."""
    home = tmp_path_factory.mktemp("trained")
    (home / "text.txt").write_text(TEXT)
    meta = prepare([home / "text.txt"], home / "data", vocab_size=300, validation_fraction=0.2)
    settings = config(
        model=make_shape("gpt2", depth=2, width=64, heads=2, vocab_size=meta.vocab_size, seq_len=32),
        steps=60,
        micro_batch=8,
        data=DataConfig(path=str(home / "data")),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        checkpoint=CheckpointConfig(every_steps=30, every_seconds=None),
    )
    folder = home / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(settings))
    run(settings, folder)
    return folder


def sampled(folder, *words, prompt="the cat"):
    command = [sys.executable, "-m", "trainer.sample", str(folder), "--device", "cpu", *words]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()], done


def test_text_of_a_run_in_a_process_of_its_own(trained_run):
    lines, done = sampled(trained_run, "--tokens", "12", "--temperature", "0", "--samples", "2")
    assert done.returncode == 0, done.stderr
    assert [line["kind"] for line in lines if line["kind"] != "text"] == ["model", "end", "end"]
    assert lines[0]["step"] == 60
    first = "".join(line["text"] for line in lines[1 : lines.index(next(x for x in lines if x["kind"] == "end"))])
    assert first.startswith(" sat on the")
    assert [line["tokens"] for line in lines if line["kind"] == "end"] == [12, 12]


def test_a_damaged_checkpoint_is_passed_over_and_none_is_said(trained_run, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained_run, folder)
    newest = folder / "checkpoints" / "step-00000060" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(bytes(content))
    said: list[str] = []
    assert load_trained(folder, "cpu", said.append).step == 30
    assert "does not match its checksum" in said[0]
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(NothingTrainedError, match="no checkpoint that can be used") as refusal:
        load_trained(folder, "cpu")
    assert refusal.value.hint == f"go on with it: advisor resume {folder}"


@pytest.mark.long
def test_the_command_writes_what_the_process_says(trained_run, tmp_path):
    def sample(*words, given=None):
        command = [sys.executable, "-m", "advisor", "sample", *words, "--device", "cpu", "--temperature", "0"]
        env = {**os.environ, "ADVISOR_HOME": str(tmp_path)}
        return subprocess.run(command, input=given, capture_output=True, text=True, timeout=300, env=env)

    shown = sample(str(trained_run), "--prompt", "the cat", "--max-tokens", "4")
    assert shown.stdout.startswith("the cat sat on the") and "after step 60" in shown.stderr
    read = sample(str(trained_run), "--prompt", "-", "--json", given="the cat")
    text = json.loads(read.stdout)["samples"][0]["text"]
    assert (read.returncode, text[:11]) == (0, " sat on the")
    nothing = sample(str(tmp_path / "none"))
    assert nothing.returncode == 2 and "hint: see all runs" in nothing.stderr
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "log.jsonl").write_text("")
    bare = sample(str(tmp_path / "bare"))
    assert bare.returncode == 1 and "has no run.yaml" in bare.stderr and "Traceback" not in bare.stderr


@pytest.mark.long
def test_synthetic_tokens_have_no_text(tmp_path):
    settings = config(steps=2)
    (tmp_path / "run.yaml").write_text(dump_config(settings))
    run(settings, tmp_path)
    lines, done = sampled(tmp_path)
    assert done.returncode == 1 and lines[-1]["kind"] == "error"
    assert lines[-1]["text"] == "the run was trained on synthetic tokens, which mean nothing"
