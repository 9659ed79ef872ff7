"""True sentences about well-known trainings, each in its publication's own numbers: none may be accused."""

from pathlib import Path

import pytest

from advisor.auditing.paper.cards import mentions
from tests.advisor.auditing.test_paper import accused

PUBLISHED = """
GPT-3 175B was trained on 300B tokens, which took 3.14e23 FLOPs, or 3,640 petaflop/s-days.
PaLM 540B was trained on 780B tokens with 6144 TPU v4 chips at an MFU of 46.2% (57.8% hardware FLOPs utilization).
Chinchilla has 70B parameters and was trained on 1.4T tokens, 5.76e23 FLOPs.
LLaMA 65B processes around 380 tokens/sec/GPU on 2048 A100 80GB GPUs, so 1.4T tokens take approximately 21 days.
LLaMA-65B needed 1,022,362 A100 GPU-hours for its 1.4T tokens.
BLOOM 176B was trained on 366B tokens with 384 A100 80GB GPUs for 3.5 months, 1,082,990 GPU hours.
OPT-175B was trained on 992 80GB A100 GPUs, at up to 147 TFLOP/s per GPU, on 180B tokens.
MPT-7B was trained on 1T tokens with 440 A100-40GB GPUs in about 9.5 days for roughly $200k.
Pythia-12B was trained on 300B tokens and took 72,300 A100 GPU hours.
TinyLlama 1.1B was trained on 3T tokens with 16 A100-40G GPUs in 90 days, at 24k tokens/s per A100-40G, an MFU of 56%.
Stable LM 2 1.6B took 92k GPU hours on A100 40GB for 2T tokens.
StarCoder 15.5B saw 1T tokens on 512 A100 80GB GPUs in 24 days, 320,256 GPU hours.
nanoGPT reproduces GPT-2 124M on one 8xA100 40GB node in about 4 days of training, 600k steps of about 0.5M tokens.
llm.c reproduces GPT-2 (124M) in 90 minutes for $20 on 8xA100 80GB, training on 10B tokens.
llm.c reproduces GPT-2 1.6B in 24 hours for $672 on one 8xH100 node.
nanochat d20 has 561M parameters, trained on 11.2B tokens on 8xH100 in about 3 hours; the node costs $24/hour.
Megatron-Turing NLG 530B reaches 126 TFLOP/s per GPU on 280 DGX A100 servers (2240 A100 GPUs).
Galactica 120B was trained on 450B tokens, 4.25 epochs of 106B tokens.
Phi-1.5 has 1.3B parameters and was trained on 150B tokens for 8 days on 32 A100-40G.
Phi-2 has 2.7B parameters and was trained on 1.4T tokens for 14 days on 96 A100 GPUs.
Llama 3 405B was trained on 15.6T tokens with 3.8e25 FLOPs on up to 16K H100 GPUs, at 38-43% MFU, 54 days.
SmolLM3 3B was trained on 11.2T tokens with 384 H100 GPUs for 24 days.
Amber 7B: 1.26T tokens on 224 A100 GPUs, 582.4k tokens per second.
H2O-Danube 1.8B was trained on 1T tokens on a single 8xH100 node at 292.7k tokens/s in FP8.
CroissantLLM 1.3B was trained on 3T tokens for 17 days on 30 nodes of 8 A100, 99,648 A100 hours.
JetMoE-8B was trained with 1.25T tokens and 30,000 H100 GPU hours, for less than $0.1 million.
Fine-tuning Alpaca 7B on 52K examples took 3 hours on 8 80GB A100s, less than $100.
QLoRA fine-tunes a 65B model on a single 48GB GPU in 24 hours.
DistilBERT was trained on 8 16GB V100 GPUs for approximately 90 hours.
GPT-NeoX-20B reached 117 TFLOP/s per GPU on 96 A100 40GB GPUs.
Baichuan 2 was trained on 2.6T tokens with 1,024 A800 GPUs at 180 TFLOPS per GPU.
Falcon-180B was trained on 3.5T tokens on up to 4096 A100 40GB GPUs, about 7,000,000 GPU hours.
Gopher has 280B parameters and was trained on 300B tokens.
GPT-2 has 1.5B parameters, 48 layers, width 1600, 25 heads and a vocabulary of 50,257.
Llama 2 70B used 1,720,320 A100 GPU hours for 2T tokens and emitted 291.42 tCO2eq.
Llama 3.1 8B used 1.46M H100 GPU hours for 15T tokens.
An H100 SXM has 989 TFLOP/s in bf16, 1,979 with sparsity, and 3.35 TB/s of memory bandwidth.
Training a 7B model with Adam in mixed precision takes 16 bytes per parameter, so 112 GB before activations.
OLMo 2 32B was trained on 6T tokens at over 1,800 tokens per second per GPU, an MFU of about 38% on H100.
Cerebras-GPT 13B was trained on 257B tokens, 20 per parameter, 2.3e22 FLOPs.
MosaicBERT-Base reaches a GLUE score of 79.6 in 1.13 hours on 8 A100 80GB for about $20.
The loss of an untrained GPT-2 is about 10.8, ln of 50,257.
Qwen2.5-72B was trained on 18T tokens.
A 1.3B model at 2048 context reaches 21.5k tokens/s on one A100 80GB, 60% MFU.
Karpathy's GPT-2 speedrun: 8xH100 in 3.04 hours at about $73, versus $43,000 in 2019, roughly 600x cheaper.
Llama-2-7B LoRA with r=8 on 1 A100 40GB needs 14 GB for the weights in bf16.
Gemma 2B was trained on 3T tokens and Gemma 7B on 6T tokens.
YaLM 100B was trained for 65 days on 800 A100 cards with 1.7 TB of text.
GLM-130B was trained on 400B tokens on 96 DGX-A100 (8x40G) nodes in 60 days.
""".strip().splitlines()


@pytest.mark.parametrize("sentence", PUBLISHED)
def test_what_was_published_and_is_so_is_not_accused(tmp_path: Path, sentence: str) -> None:
    assert accused(tmp_path, f"# Notes\n\n{sentence}\n") == []


@pytest.mark.parametrize(
    "sentence",
    [
        "The 671B model was trained on 14.8T tokens for 2.788M H800 GPU hours.",
        "We used 2.788M H800 hours for 14.8T tokens.",
        "DeepSeek-V3 has 671B parameters, 37B activated for a token. It took 14.8T tokens and 2.788M H800 GPU hours.",
    ],
)
def test_hours_in_millions_are_no_size_and_a_mixture_is_no_dense_model(tmp_path: Path, sentence: str) -> None:
    assert accused(tmp_path, f"# Notes\n\n{sentence}\n") == []


def test_a_dense_model_in_hours_that_cannot_be_is_accused(tmp_path: Path) -> None:
    """6 · 405e9 · 15e12 ÷ (3e6 · 3600 s · 989e12) = 3.4 times the peak."""
    text = "# Notes\n\nA 405B model on 15T tokens needs {} H100 hours.\n"
    assert accused(tmp_path, text.format("3M")) == [3]
    assert accused(tmp_path, text.format("30M")) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("280 DGX A100 servers", 2240),
        ("30 nodes of 8 A100", 240),
        ("4 nodes with 8 H100 GPUs", 32),
        ("one 8xH100 node", 8),
        ("16 H100 nodes", None),
        ("several 8xA100 nodes", None),
    ],
)
def test_cards_of_nodes_are_counted(text: str, count: int | None) -> None:
    assert mentions(text)[0].count == count


@pytest.mark.parametrize(
    ("template", "right", "wrong"),
    [
        # 6 · 2.7e9 · 1.4e12 = 2.3e22 of the 3.6e22 that 96 cards of 312 TFLOP/s do in 14 days
        ("It has 2.7B parameters and was trained on {} tokens for 14 days on 96 A100 GPUs.", "1.4T", "28T"),
        ("Our 20B model reached {} TFLOP/s per GPU on 96 A100 40GB GPUs.", "117", "1170"),
        ("A 7B model in mixed precision takes 16 bytes per parameter, so {} GB.", "112", "212"),
        ("We trained on 30 nodes of 8 A100 for {} days, 99,648 A100 hours.", "17", "170"),
        ("It was trained on 450B tokens, {} epochs of 106B tokens.", "4.25", "14.25"),
    ],
)
def test_a_sentence_with_one_number_changed_is_accused(tmp_path: Path, template: str, right: str, wrong: str) -> None:
    assert accused(tmp_path, f"# Notes\n\n{template.format(right)}\n") == []
    assert set(accused(tmp_path, f"# Notes\n\n{template.format(wrong)}\n")) == {3}


def test_a_number_is_accused_once_by_the_same_arithmetic(tmp_path: Path) -> None:
    """24 h · $28 = $672, or $5,376 were it the price of one of the eight."""
    assert accused(tmp_path, "# Notes\n\nIt took 24 hours on one 8xH100 node, $13,440 at $28/hour.\n") == [3]
