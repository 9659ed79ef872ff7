"""True published numbers, written out as tables and sentences: an audit accuses fewer than one in fifty of them.

Sources: Touvron et al. 2023 (Llama 2), tables 2 and 3, and of Llama 1 table 15; Brown et al. 2020 (GPT-3), table 2.1;
Hoffmann et al. 2022, table 3; mosaicml/llm-foundry's benchmarking tables of MPT; NVIDIA's data sheets of A100 and H100;
Chowdhery et al. 2022 (PaLM), table 3; Zhang et al. 2024 (TinyLlama); Korthikanti et al. 2023.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.auditing.verdict import Ruling
from advisor.errors import AdvisorError
from tests.advisor.auditing.made_up import ask
from tests.advisor.auditing.test_paper import judged

TEXTS = {
    "llama-2": """# Llama 2

| Model | Params | Context Length | Tokens | Time (GPU hours) | Power (W) | LR |
|---|---|---|---|---|---|---|
| Llama 2 7B | 7B | 4k | 2.0T | 184,320 | 400 | 3.0e-4 |
| Llama 2 13B | 13B | 4k | 2.0T | 368,640 | 400 | 3.0e-4 |
| Llama 2 34B | 34B | 4k | 2.0T | 1,038,336 | 350 | 1.5e-4 |
| Llama 2 70B | 70B | 4k | 2.0T | 1,720,320 | 400 | 1.5e-4 |

All were pretrained on A100-80GB cards, in total 3.3M GPU-hours. After 2T tokens the 7B reaches a training loss of 1.75
and the 70B 1.5. Training LLaMA-65B on 1.4T tokens took 2048 A100 GPUs and 21 days at 380 tokens/sec/GPU.
""",
    "gpt-3": """# GPT-3

| Model Name | Params | Layers | Hidden size | Heads | Head dim | Batch Size (tokens) | Learning Rate |
|---|---|---|---|---|---|---|---|
| GPT-3 Small | 125M | 12 | 768 | 12 | 64 | 0.5M | 6.0e-4 |
| GPT-3 Medium | 350M | 24 | 1024 | 16 | 64 | 0.5M | 3.0e-4 |
| GPT-3 XL | 1.3B | 24 | 2048 | 24 | 128 | 1M | 2.0e-4 |
| GPT-3 6.7B | 6.7B | 32 | 4096 | 32 | 128 | 2M | 1.2e-4 |
| GPT-3 175B | 175.0B | 96 | 12288 | 96 | 128 | 3.2M | 0.6e-4 |

All were trained for 300B tokens; GPT-3 175B needed 3.14e23 FLOPs: 6 × 174.6e9 × 300e9 = 3.14e23.
""",
    "chinchilla": """# Compute-optimal training

| Parameters | FLOPs | Tokens |
|---|---|---|
| 400M | 1.92e19 | 8.0B |
| 1B | 1.21e20 | 20.2B |
| 10B | 1.23e22 | 205.1B |
| 67B | 5.76e23 | 1.5T |
| 175B | 3.85e24 | 3.7T |

Chinchilla has 70B parameters, 4x fewer than Gopher (280B), and saw 1.4T tokens: 20 tokens per parameter.
""",
    "mpt": """# MPT on H100

| Model | GPUs | Throughput (tokens/s/GPU) | MFU |
|---|---|---|---|
| 70b | 8 | 877 | 42.6% |
| 30b | 8 | 2193 | 43.2% |
| 13b | 8 | 5031 | 43.2% |
| 7b | 8 | 9259 | 42.4% |
| 3b | 8 | 21466 | 42.8% |

All were measured on 8x H100 80GB SXM in BF16 at a sequence length of 2048.
""",
    "cards": """# Data sheets

| | A100 80GB SXM | H100 SXM |
|---|---|---|
| GPU Memory | 80GB | 80GB |
| Memory bandwidth | 2,039 GB/s | 3.35 TB/s |
| FP32 | 19.5 TFLOPS | 67 TFLOPS |
| TF32 Tensor Core | 156 TFLOPS | 494.7 TFLOPS |
| BF16 Tensor Core | 312 TFLOPS | 989.4 TFLOPS |
| Max TDP | 400W | 700W |

On the A100, TF32 is up to 8x faster than FP32. The H100 has 3.2x the BF16 peak of the A100 (989 vs 312 TFLOPS).
""",
    "palm": """# Utilisation

| Model | Params | Accelerators | MFU |
|---|---|---|---|
| GPT-3 | 175B | V100 | 21.3% |
| Gopher | 280B | 4096 TPU v3 | 32.5% |
| MT-NLG | 530B | 2240 A100 | 30.2% |
| PaLM | 540B | 6144 TPU v4 | 46.2% |

PaLM 540B reached 238.3K tokens/sec; MT-NLG 530B 65.43K tokens/sec on 2240 A100 GPUs.
""",
    "tinyllama": """# TinyLlama

We train a 1.1B Llama model on 3 trillion tokens in 90 days on 16 A100-40G GPUs. The throughput is 24k tokens per second
per A100-40G GPU, which is 56% model flops utilization. A chinchilla-optimal TinyLlama (1.1B parameters, 22B tokens)
takes 32 hours on 8 A100s.

- Sequence length: 2048
- Batch size: 2 million tokens per step (2048 * 1024)
- Total tokens: 3 trillion (slightly more than 3 epochs over 950B tokens)
- Training FLOPs: 6 * 1.1e9 * 3e12 = 2.0e22
""",
    "memory": """# Mixed-precision training with Adam

A 7.5B model needs 16 bytes per parameter: 7.5B × 16 = 120 GB. Sharding states over 64 GPUs leaves 1.9 GB on each (63x
less). QLoRA fine-tunes a 65B model on a single 48 GB GPU. A 7B model in fp16 takes 14 GB for inference.

| Model | FP16 weights | 8-bit | 4-bit |
|---|---|---|---|
| 7B | 14 GB | 7 GB | 3.5 GB |
| 70B | 140 GB | 70 GB | 35 GB |
""",
}
CLAIMS = 120  # numbers stated in them, counted by hand


def wrongly_accused(tmp_path: Path, text: str) -> list[str]:
    try:
        found = judged(tmp_path, text)
    except AdvisorError:
        return []
    bad = [j for j in found if j.judgement.ruling in (Ruling.WRONG, Ruling.DOES_NOT_FOLLOW)]
    return [f"{j.claim.line}: {j.claim.text}: {j.judgement.so}" for j in bad]


@pytest.mark.parametrize("name", TEXTS)
def test_a_true_text_is_not_accused(tmp_path: Path, name: str) -> None:
    assert wrongly_accused(tmp_path, TEXTS[name]) == []


HARMLESS = {
    "settings and boxes": "- It is 40% faster (batch 32 vs 16).\n- A box with 8x A100 (640GB) and 8×H100 80GB.\n",
    "shader rates": "The RTX 4090 has an FP16 peak of 82.6 TFLOPS, 330 TFLOPS on tensor cores.\n",
    "parallelism": "- GPUs: 64\n- Micro batch size: 2\n- Gradient accumulation: 8\n- Global batch size: 128\n",
    "loaded weights": "We fine-tune.\n\n| Step | Loss |\n|---|---|\n| 0 | 2.1 |\n| 9 | 1.7 |\n\n- Vocab size: 32000\n",
    "working hours": "It takes 2 weeks (80 hours) of work.\n",
    "a bound without its premise": "Prefill is compute-bound. Decoding is memory-bound.\n",
    "adapters": "# QLoRA\n\n| Model | Training memory |\n|---|---|\n| Foo 7B | 9 GB |\n| Foo 70B | 46 GB |\n",
    "score": "| T | Base | Ours | Gain |\n|---|---|---|---|\n| a | 60.1 | 66.3 | 6.2% |\n| b | 50.0 | 55.0 | 10% |\n",
    "over the optimum": "Llama 3 8B saw 15T tokens, far past the Chinchilla-optimal 160B tokens for its size.\n",
    "a short fine-tune": "We fine-tuned a 7B model on 1M tokens on one A100 in 3 hours.\n",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_reads_like_a_contradiction_and_is_none(tmp_path: Path, name: str) -> None:
    assert wrongly_accused(tmp_path, f"# Notes\n\n{HARMLESS[name]}") == []


def test_a_ratio_that_rounds_to_the_most_that_is_possible_is_possible() -> None:
    """TF32 over FP32 on an A100: 156 ÷ 19.5 = 8.0."""
    run = {"gpu": "a100-80gb-sxm"}
    assert ask("precision_speedup", run=run, value="8 x", fast="tf32", slow="fp32").judgement.ruling is Ruling.HOLDS
    assert ask("precision_speedup", run=run, value="12 x", fast="tf32", slow="fp32").judgement.ruling is Ruling.WRONG


def test_arithmetic_that_is_only_half_there_accuses_nobody(tmp_path: Path) -> None:
    text = "- 2.0e9·430,000/(2·989e12) = 43.5 %\n- FLOPs over 16,704·524,288 tokens = 4,945,112,064 each\n"
    assert wrongly_accused(tmp_path, f"# Notes\n\n{text}") == []
    assert wrongly_accused(tmp_path, "# Notes\n\n- 2.0e9·430,000/(2·989e12) = 83.5 %\n") != []
