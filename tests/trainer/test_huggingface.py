"""A trained model by the names and in the layout of Hugging Face's architectures; tests/engines asks the library."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, processors

from tests.trainer.small import config
from trainer.device import resolve_device
from trainer.huggingface import main, model_config, model_tensors, write
from trainer.model import build_model
from trainer.prepare import prepare
from trainer.run import run
from trainer.schema import CheckpointConfig, DataConfig, dump_config, make_shape
from trainer.tokenizer import JsonTokenizer
from trainer.trained import Trained

TEXT = "the cat sat on the mat and the dog sat on the log. " * 40


def model_of(family, **changes):
    torch.manual_seed(1)
    sizes = {"depth": 1, "width": 8, "heads": 2, "vocab_size": 50, "seq_len": 16, "ffn_width": 24} | changes
    model = build_model(make_shape(family, **sizes))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.3)
    return model.requires_grad_(False)


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model_tensors(model).items()}


def test_llama_and_nanochat_have_the_names_of_their_architectures():
    block = "model.layers.0."
    attention = {block + f"self_attn.{name}_proj.weight": (8, 8) for name in ("q", "o")}
    grouped = {block + f"self_attn.{name}_proj.weight": (4, 8) for name in ("k", "v")}
    ends = {"model.embed_tokens.weight": (50, 8), "lm_head.weight": (50, 8)}
    norms = {"model.norm.weight": (8,), block + "input_layernorm.weight": (8,)}
    norms[block + "post_attention_layernorm.weight"] = (8,)
    mlp = {block + f"mlp.{name}_proj.weight": (24, 8) for name in ("gate", "up")} | {
        block + "mlp.down_proj.weight": (8, 24)
    }
    llama = model_of("llama", kv_heads=1)
    assert shapes(llama) == attention | grouped | ends | norms | mlp
    fc = {block + "mlp.fc1.weight": (24, 8), block + "mlp.fc2.weight": (8, 24)}
    assert shapes(model_of("nanochat", kv_heads=1)) == attention | grouped | ends | fc  # its norms have no weights
    described = model_config(llama)
    assert (described["num_attention_heads"], described["num_key_value_heads"], described["head_dim"]) == (2, 1, 4)
    assert (described["rms_norm_eps"], described["rope_parameters"]["rope_theta"]) == (1e-5, 10_000.0)
    assert model_config(model_of("nanochat"))["final_logit_softcapping"] == 15.0


def test_gpt2_has_one_transposed_matrix_of_queries_keys_and_values():
    model = model_of("gpt2", kv_heads=1)
    tensors, attention = model_tensors(model), model.blocks[0].attention
    joined = tensors["transformer.h.0.attn.c_attn.weight"]
    assert joined.shape == (8, 24) and "lm_head.weight" not in tensors  # tied
    assert torch.equal(joined[:, :8], attention.query.weight.t())
    for head in (0, 1):  # both share the one pair of keys and values
        assert torch.equal(joined[:, 8 + 4 * head : 12 + 4 * head], attention.key.weight.t())
        assert torch.equal(joined[:, 16 + 4 * head : 20 + 4 * head], attention.value.weight.t())
    assert torch.equal(tensors["transformer.h.0.attn.c_attn.bias"][12:16], attention.key.bias)
    assert torch.equal(tensors["transformer.h.0.mlp.c_fc.weight"], model.blocks[0].mlp.up.weight.t())
    assert torch.equal(tensors["transformer.h.0.ln_2.bias"], model.blocks[0].mlp_norm.bias)
    assert tensors["transformer.wpe.weight"].shape == (16, 8)


def test_nanochat_heads_meet_as_before_where_they_are_turned_the_other_way_round():
    """Its architecture turns (a, b) to (a·cos + b·sin, b·cos - a·sin), ours to (a·cos - b·sin, a·sin + b·cos)."""
    model = model_of("nanochat", heads=1)
    own, theirs = model.blocks[0].attention, model_tensors(model)
    x = torch.randn(3, 8)

    def turned(vector, place, sign):
        angles = place * 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
        a, b = vector[:4], vector[4:]
        return torch.cat((a * angles.cos() - sign * b * angles.sin(), b * angles.cos() + sign * a * angles.sin()))

    def scores(query, key, sign):
        return [float(turned(query @ x[1], 7, sign) @ turned(key @ x[at], at, sign)) for at in range(3)]

    name = "model.layers.0.self_attn.{}_proj.weight"
    ours = scores(own.query.weight, own.key.weight, 1)
    assert scores(theirs[name.format("q")], theirs[name.format("k")], -1) == pytest.approx(ours, abs=1e-5)
    assert scores(own.query.weight, own.key.weight, -1) != pytest.approx(ours, abs=1e-2)  # it does matter


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two steps with a tokenizer of its own."""
    home = tmp_path_factory.mktemp("finished")
    (home / "text.txt").write_text(TEXT)
    meta = prepare([home / "text.txt"], home / "data", vocab_size=300, validation_fraction=0.2)
    settings = config(
        model=make_shape("llama", depth=1, width=16, heads=2, vocab_size=meta.vocab_size, seq_len=16),
        steps=2,
        data=DataConfig(path=str(home / "data")),
        checkpoint=CheckpointConfig(every_seconds=None),
    )
    folder = home / "run"
    folder.mkdir()
    (folder / "run.yaml").write_text(dump_config(settings))
    run(settings, folder)
    return folder


def said(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_files_of_a_run(finished, tmp_path, capsys):
    assert main([str(finished), "--out", str(tmp_path / "model")]) == 0
    model, written = said(capsys)
    assert (model["step"], model["architecture"]) == (2, "LlamaForCausalLM")
    names = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(written["files"]) == names == sorted(file.name for file in (tmp_path / "model").iterdir())
    stored = load_file(finished / "checkpoints" / "step-00000002" / "model.safetensors")
    there = load_file(tmp_path / "model" / "model.safetensors")
    assert torch.equal(there["model.layers.0.mlp.up_proj.weight"], stored["blocks.0.mlp.up.weight"])
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert described["eos_token_id"] == described["bos_token_id"] == 0 and described["pad_token_id"] is None
    assert json.loads((tmp_path / "model" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert main([str(finished), "--out", str(tmp_path / "model")]) == 1  # what is there stays
    assert said(capsys)[-1]["text"].endswith("is not empty")


def test_what_a_tokenizer_adds_of_its_own_accord_is_left_out(finished, tmp_path):
    """Training encodes text alone; one that puts a token before it would say something else of the same text."""
    tokenizer = Tokenizer.from_file(str(finished.parent / "data" / "tokenizer.json"))
    plain = tokenizer.encode("the cat", add_special_tokens=False).ids
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    assert tokenizer.encode("the cat").ids == [0, *plain]
    settings = config(model=make_shape("gpt2", depth=1, width=8, heads=1, vocab_size=300, seq_len=16))
    trained = Trained(model=build_model(settings.model), config=settings, context=resolve_device("cpu", "fp32"), step=1)
    write(trained, tmp_path, JsonTokenizer(tokenizer), 0)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("the cat").ids == plain


def test_a_run_on_synthetic_tokens_has_a_model_only(tmp_path, capsys):
    settings = config(steps=1, checkpoint=CheckpointConfig(every_seconds=None))
    (tmp_path / "run.yaml").write_text(dump_config(settings))
    run(settings, tmp_path)
    capsys.readouterr()
    assert main([str(tmp_path), "--out", str(tmp_path / "model")]) == 0
    lines = said(capsys)
    assert "synthetic tokens" in lines[0]["text"] and "tokenizer.json" not in lines[-1]["files"]
    assert json.loads((tmp_path / "model" / "config.json").read_text())["eos_token_id"] is None
