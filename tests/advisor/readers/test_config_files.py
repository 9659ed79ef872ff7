"""Configurations beside a log: in every notation, as frameworks mean them, and broken."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from advisor.errors import AdvisorError
from advisor.readers.config_names import facts_of_settings, read_config

OWN = Path(__file__).parents[2] / "recorded"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "model:\n  n_layer: 6\n  n_embd: 384\nlearning_rate: 6e-4\nmax_iters: 5000\nbf16: true\n"),
        ("a.json", '{"model": {"n_layer": 6, "n_embd": 384}, "learning_rate": 6e-4, "max_iters": 5000, "bf16": true}'),
        ("a.toml", "learning_rate = 6e-4\nmax_iters = 5_000\nbf16 = true\n[model]\nn_layer = 6\nn_embd = 384\n"),
        (
            "a.py",
            "import os\nn_layer = 6\nn_embd = 384  # 6 * 64\nblock_size = 4 * 64\nlearning_rate = 6e-4\n"
            "max_iters = 5000\ndtype = 'bfloat16'\n"
            "raise SystemExit\n",
        ),
    ],
)
def test_configurations_in_every_notation(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    expected = {"depth": 6, "width": 384, "learning_rate": 6e-4, "planned_steps": 5000, "precision": "bf16"}
    assert read_config(path) == expected


def test_our_own_configuration():
    facts = read_config(OWN / "small.run.yaml")
    raw = yaml.safe_load((OWN / "small.run.yaml").read_text())
    assert facts["depth"] == raw["model"]["depth"] and facts["planned_steps"] == raw["steps"]
    assert facts["family"] == "nanochat"


@pytest.mark.parametrize(
    ("settings", "fact", "value"),
    [
        ({"max_steps": -1}, "planned_steps", None),  # transformers: by epochs
        ({"max_steps": 1000, "warmup_ratio": 0.03, "warmup_steps": 0}, "warmup_steps", 30),
        ({"save_steps": 500, "save_strategy": "epoch"}, "checkpoint_every_steps", None),
        ({"decay_lr": True}, "schedule", "cosine"),
        ({"total_batch_size": 524288}, "step_tokens", 524288),
        ({"total_batch_size": 64}, "step_samples", 64),
        ({"grad_clip": 0.0}, "grad_clip", None),  # nanoGPT: off
        ({"text": {"hidden_size": 768}, "vision": {"hidden_size": 512}}, "width", None),
        ({"hidden_size": 768, "vision": {"hidden_size": 512}}, "width", 768),
        # sizes of files, of validation and of another model are not those of the training
        ({"hidden_size": 768, "aio": {"block_size": 1048576}}, "seq_len", None),
        ({"train": {"batch_size": 8}, "validation": {"batch_size": 64}}, "micro_batch", 8),
        ({"generation_config": {"max_length": 20}, "max_seq_length": 2048}, "seq_len", 2048),
        ({"eval": {"interval": 50}}, "eval_every_steps", 50),
        ({"optimizer": {"name": "AdamW", "lr": 1e-3}}, "optimizer", "adamw"),
        ({"checkpoint": {"interval": 250}}, "checkpoint_every_steps", 250),
        ({"trainer.max_steps": 12}, "planned_steps", 12),
        ({"mixed_precision": "fp16"}, "precision", "fp16"),
        ({"torch_dtype": "bfloat16"}, "precision", "bf16"),
        ({"n_layer": True}, "depth", None),
        ({"lr": "3e-4"}, "learning_rate", 3e-4),
    ],
)
def test_settings_as_frameworks_mean_them(settings, fact, value):
    assert facts_of_settings(settings).get(fact) == value


def test_a_flood_of_yaml_aliases_is_refused(tmp_path):
    path = tmp_path / "bomb.yaml"
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 40) + "]" for n in range(1, 10)]
    path.write_text("\n".join(levels))
    with pytest.raises(AdvisorError, match="aliases"):
        read_config(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.yaml", "a: [1"),
        ("a.json", "{"),
        ("a.toml", "=1"),
        ("b.yaml", "- 1\n- 2\n"),
        ("c.yaml", "!!python/object/apply:os.getcwd []\n"),
    ],
)
def test_broken_configurations_are_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(AdvisorError):
        read_config(path)
