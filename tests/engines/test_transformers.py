"""Exported models as Hugging Face's own library computes them: logits, tokens and texts beside ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from tests.trainer.small import config
from trainer.conversations import Message, prepare_conversations, render
from trainer.device import resolve_device
from trainer.huggingface import main, write
from trainer.model import build_model
from trainer.prepare import prepare
from trainer.run import run
from trainer.schema import CheckpointConfig, DataConfig, OptimizerConfig, dump_config, make_shape
from trainer.tokenizer import load_tokenizer_file
from trainer.trained import Trained, load_trained

THERE = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
asked = json.load(sys.stdin)
model, report = AutoModelForCausalLM.from_pretrained(asked["folder"], output_loading_info=True)
said = {"missing": sorted(report["missing_keys"]), "unexpected": sorted(report["unexpected_keys"])}
said["name"], said["dtype"] = type(model).__name__, str(model.dtype)
with torch.no_grad():
    said["logits"] = model(torch.tensor(asked["tokens"])).logits.tolist()
if asked.get("text"):
    tokenizer = AutoTokenizer.from_pretrained(asked["folder"])
    read = tokenizer(asked["text"], return_tensors="pt")
    made = model.generate(**read, max_new_tokens=8, do_sample=False)[0]
    said["ids"], said["says"], said["end"] = read["input_ids"][0].tolist(), tokenizer.decode(made), tokenizer.eos_token
print(json.dumps(said))
"""


def asked_there(python, folder, tokens, text=None):
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    asked = json.dumps({"folder": str(folder), "tokens": tokens, "text": text})
    done = subprocess.run([python, "-c", THERE], input=asked, capture_output=True, text=True, env=alone, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def own_logits(model, tokens):
    with torch.no_grad():
        logits = F.linear(model(torch.tensor(tokens)), model.head_weight)
    return logits if model.softcap is None else model.softcap * torch.tanh(logits / model.softcap)


@pytest.mark.parametrize(
    "family, changes, name",
    [
        ("llama", {"kv_heads": 2}, "LlamaForCausalLM"),
        ("nanochat", {"kv_heads": 2}, "NanoChatForCausalLM"),
        ("gpt2", {}, "GPT2LMHeadModel"),
        ("gpt2", {"kv_heads": 1}, "GPT2LMHeadModel"),
    ],
)
def test_the_library_computes_the_same_logits(transformers_python, tmp_path, family, changes, name):
    torch.manual_seed(2)
    shape = make_shape(family, **{"depth": 3, "width": 64, "heads": 4, "vocab_size": 101, "seq_len": 32, **changes})
    model = build_model(shape).requires_grad_(False)
    for parameter in model.parameters():  # as after a long training: nothing near zero or one
        parameter.data += 0.2 * torch.randn_like(parameter)
    settings = config(model=shape)
    write(Trained(model=model, config=settings, context=resolve_device("cpu", "fp32"), step=1), tmp_path, None, None)
    tokens = torch.randint(101, (2, 32), generator=torch.Generator().manual_seed(3)).tolist()
    said = asked_there(transformers_python, tmp_path, tokens)
    assert (said["name"], said["dtype"], said["missing"], said["unexpected"]) == (name, "torch.float32", [], [])
    ours, theirs = own_logits(model, tokens), torch.tensor(said["logits"])
    assert ours.std() > 0.5  # logits that differ from each other
    assert torch.allclose(ours, theirs, atol=1e-4, rtol=1e-5), (ours - theirs).abs().max()


def test_a_run_exported_by_the_command_says_there_what_it_says_here(transformers_python, tmp_path):
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log. " * 40)
    meta = prepare([tmp_path / "text.txt"], tmp_path / "data", vocab_size=300, validation_fraction=0.2)
    settings = config(
        model=make_shape("nanochat", depth=2, width=64, heads=2, vocab_size=meta.vocab_size, seq_len=32),
        steps=60,
        micro_batch=8,
        data=DataConfig(path=str(tmp_path / "data")),
        optimizer=OptimizerConfig(learning_rate=3e-3),
        checkpoint=CheckpointConfig(every_seconds=None),
    )
    folder, out = tmp_path / "run", tmp_path / "model"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(settings))
    run(settings, folder)
    command = [sys.executable, "-m", "advisor"]
    environment = {**os.environ, "ADVISOR_HOME": str(tmp_path / "home")}
    export = [*command, "export", str(folder), "--to", "huggingface", "--out", str(out)]
    done = subprocess.run(export, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    sample = [
        *command,
        "sample",
        str(folder),
        "--prompt",
        "the cat",
        "--tokens",
        "8",
        "--temperature",
        "0",
        "--device",
        "cpu",
    ]
    ours = subprocess.run(sample, capture_output=True, text=True, env=environment).stdout.strip("\n")
    tokens = [list(range(1, 33))]
    said = asked_there(transformers_python, out, tokens, "the cat")
    assert said["says"] == ours and "the cat sat on the" in ours
    assert (said["missing"], said["end"]) == ([], "<|endoftext|>")
    trained = load_trained(folder, "cpu")
    assert torch.allclose(own_logits(trained.model, tokens), torch.tensor(said["logits"]), atol=1e-4)


CHAT_THERE = """
import json, sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
print(json.dumps(tokenizer.apply_chat_template(json.loads(sys.argv[2]), add_generation_prompt=True, return_dict=False)))
"""


def test_a_model_that_learnt_conversations_is_asked_there_as_here(transformers_python, tmp_path):
    (tmp_path / "text.txt").write_text("who sat on the mat? the cat sat on the mat. " * 40)
    prepare([tmp_path / "text.txt"], tmp_path / "base", vocab_size=300, validation_fraction=0.2)
    turns = [("user", "who sat on the mat?"), ("assistant", "the cat."), ("user", "and the dog?")]
    messages = [{"role": role, "content": content} for role, content in turns]
    (tmp_path / "chats.jsonl").write_text((json.dumps({"messages": messages[:2]}) + "\n") * 40)
    prepare_conversations(
        [tmp_path / "chats.jsonl"],
        tmp_path / "chats",
        tokenizer=tmp_path / "base" / "tokenizer.json",
        validation_fraction=0.2,
    )
    encoder = load_tokenizer_file(tmp_path / "base" / "tokenizer.json")
    shape = make_shape("gpt2", depth=1, width=16, heads=1, vocab_size=encoder.vocab_size, seq_len=64)
    settings = config(model=shape, steps=2, data=DataConfig(path=str(tmp_path / "chats")))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(settings))
    run(settings, folder)
    assert main([str(folder), "--out", str(tmp_path / "model")]) == 0
    (rendered,) = render(encoder, [[Message(role=role, content=content) for role, content in turns]])
    expected = [*rendered.tokens, *encoder.encode("<|assistant|>\n")]
    words = [str(transformers_python), "-c", CHAT_THERE, str(tmp_path / "model"), json.dumps(messages)]
    there = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout.splitlines()[-1]) == expected
