"""What a log of no known format says of its run before its first record."""

import time

import pytest

from advisor.readers.read import read_run

BANNERS = {
    "pairs": (["vocab_size: 32000", "n_params: 48211968", "gpu: NVIDIA A100-SXM4-80GB"],
              {"vocab_size": 32000, "parameters": 48211968, "gpu": "NVIDIA A100-SXM4-80GB"}),
    "words": (["Model has 48,211,968 parameters", "Vocab size: 32,000", "Device: NVIDIA GeForce RTX 4090"],
              {"vocab_size": 32000, "parameters": 48211968, "gpu": "NVIDIA GeForce RTX 4090"}),
    "a dictionary": (["config: {'vocab_size': 32000, 'n_layer': 12, 'n_embd': 768, 'n_head': 12, 'block_size': 1024}"],
                     {"vocab_size": 32000, "depth": 12, "width": 768, "heads": 12, "seq_len": 1024}),
    "a namespace": (["Namespace(vocab_size=32000, n_layers=12, d_model=768, batch_size=8, seq_len=1024, lr=0.0003)",
                     "Using device: cuda (NVIDIA H100 80GB HBM3)"],
                    {"vocab_size": 32000, "depth": 12, "width": 768, "micro_batch": 8, "seq_len": 1024,
                     "learning_rate": 0.0003, "gpu": "NVIDIA H100 80GB HBM3"}),
    "a sentence": (["INFO Model: 124.4M parameters, vocab 50257", "INFO Training on 1x RTX 4090"],
                   {"vocab_size": 50257, "parameters": 124_400_000, "gpu": "RTX 4090"}),
    "which card": (["gpu: 3", "devices: 0,1", "params=48.2M"], {"parameters": 48_200_000}),
    "said twice": (["vocab_size: 32000", "vocab_size: 128"], {}),
}  # fmt: skip


def facts(tmp_path, banner, losses):
    path = tmp_path / "train.log"
    rows = [f"step {20 * n} | loss {loss:.4f} | lr 3.0e-04" for n, loss in enumerate(losses)]
    path.write_text("\n".join([*banner, *rows, "vocab_size: 7777"]) + "\n")
    return read_run(path).facts


@pytest.mark.parametrize("name", BANNERS)
def test_a_banner_says_what_is_trained(tmp_path, name):
    banner, told = BANNERS[name]
    assert facts(tmp_path, banner, [10.4 / (1 + n / 9) for n in range(30)]) == told


@pytest.mark.parametrize("first", [0.69, 3.0, 50.0])
def test_a_vocabulary_beside_another_loss_says_nothing_of_it(tmp_path, first):
    """A classifier of 2 or of 20 classes over text, a sum over tokens: nothing of a model of language is told."""
    banner = ["vocab_size: 32000", "n_params: 350M", "seq_len: 512", "batch_size: 32"]
    assert facts(tmp_path, banner, [first / (1 + n / 9) for n in range(30)]) == {"micro_batch": 32}


def test_lists_before_the_first_row_cost_no_time(tmp_path):
    began = time.process_time()
    found = facts(
        tmp_path, ["[" + "1," * 2_000 + "1]"] * 20 + ["vocab_size: 32000"], [10.4 / (1 + n / 9) for n in range(30)]
    )
    assert found["vocab_size"] == 32000 and time.process_time() - began < 20
