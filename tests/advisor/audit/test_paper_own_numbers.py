"""Texts against their own numbers, and against published trainings: what is named, and the same said rightly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.advisor.audit.test_paper import accused, judged

_PRICES = "| GPU | $/Hour |\n|---|---|\n| H100 | $2.00 |\n| B200 | $6.00 |\n"
_LIST = "| Model | Org | GPUs | Tokens |\n|---|---|---|---|\n"
_HOURS = "| Scale | GPU Hours (RTX 3090) | GPU Hours (2x RTX 3090) |\n|---|---|---|\n"
_STATE = "| Component | Size | Notes |\n|---|---|---|\n| Model Weights | 40 MB | 10M params × 4 bytes |\n"
_GAINS = "| Change | Expected MFU Gain | New MFU |\n|---|---|---|\n| a | +8% | 38% |\n"
_RUN = (
    "# Training a GPT\n\n- Parameters: 124M\n- GPUs: 8x H100 80GB\n- Sequence length: 128\n"
    "- Batch size per device: 16\n\n"
)
_WORK = "# LLM training cost\n\nA 7B model on 2T tokens is 8.4e22 FLOPs."
_METHODS = "# Fine-tuning\n\n| Method | VRAM (7B) | VRAM (70B) |\n|---|---|---|\n"

# name → (wrong, right)
PAIRS = {
    "card-hours in two units": (
        f"{_WORK} On an A100 sustaining 156 TFLOP/s this takes 9 million GPU-seconds, or about 104 GPU-days.\n",
        f"{_WORK} On an A100 sustaining 156 TFLOP/s this takes 538 million GPU-seconds, or about 6,230 GPU-days.\n",
    ),
    "a product over a product": (  # 4.2e23 ÷ (8 · 989e12 · 86,400 · 0.4) = 1,536 days
        "Training time: (1T × 70B × 6) / (8 × 989 × 86400 × 0.4) = 152 days\n",
        "Training time: (1T × 70B × 6) / (8 × 989 × 86400 × 0.4) = 1536 days\n",
    ),
    "the fewest cards": (
        "# Sizing GPUs for training\n\nState: Parameters × 16 bytes.\n\nMinimum GPUs for 70B on 80GB cards: use 8.\n",
        "# Sizing GPUs for training\n\nState: Parameters × 16 bytes.\n\nMinimum GPUs for 70B on 80GB cards: use 16.\n",
    ),
    "full fine-tuning in a row": (
        f"{_METHODS}| Full fine-tuning | 14 GB | 140 GB |\n| QLoRA | 6 GB | 48 GB |\n",
        f"{_METHODS}| Full fine-tuning | 112 GB | 1,120 GB |\n| QLoRA | 6 GB | 48 GB |\n",
    ),
    "the card of a known training": (
        "GPT-3 was trained on 10,000 A100 GPUs.\n",
        "GPT-3 was trained on 10,000 V100 GPUs.\n",
    ),
    "the tokens of a known training": (
        f"{_LIST}| Llama 2 70B | Meta | 2K A100 | 1.4T |\n| Llama 2 7B | Meta | 1K A100 | 2T |\n",
        f"{_LIST}| Llama 2 70B | Meta | 2K A100 | 2T |\n| Llama 2 7B | Meta | 1K A100 | 2T |\n",
    ),
    "the gap": (
        "The A100's peak is 312 TFLOPS. The loop computes at 94 TFLOPS. That 30% gap is wasted.\n",
        "The A100's peak is 312 TFLOPS. The loop computes at 94 TFLOPS. That 70% gap is wasted.\n",
    ),
    "times a price": (f"B200: newest, 5x H100 cost.\n\n{_PRICES}", f"B200: newest, 3x H100 cost.\n\n{_PRICES}"),
    "no loss": (
        "# Results\n\nValidation loss: inf (target 3.28)\n",
        "# Results\n\nValidation loss: 3.27 (target 3.28)\n",
    ),
    "a larger model in less": (
        "LLaMA-2, the 7B one, required 180,000 GPU hours.\n\nA 10B LLaMA-2 takes 100,000 GPU hours.\n",
        "LLaMA-2, the 7B one, required 180,000 GPU hours.\n\nA 10B LLaMA-2 takes 260,000 GPU hours.\n",
    ),
    "card-hours on two": (f"{_HOURS}| Small | 200 | 100 |\n", f"{_HOURS}| Small | 200 | 210 |\n"),
    "moments": (
        f"{_STATE}| Optimizer State | 120 MB | AdamW: 2× params |\n",
        f"{_STATE}| Optimizer State | 80 MB | AdamW: 2× params |\n",
    ),
    "checkpoints": (
        "With 2 GB per checkpoint and 31K checkpoints you'll need 60 GB storage.\n",
        "With 2 GB per checkpoint and 30 checkpoints you'll need 60 GB storage.\n",
    ),
    "checkpoints by share": (
        "There will be 31,000 checkpoints (saving every 5%).\n",
        "There will be 20 checkpoints (saving every 5%).\n",
    ),
    "gains added up": (
        f"{_GAINS}| b | +5% | 43% |\n| c | +2% | 45% |\n",
        "| Change | Measured MFU | New MFU |\n|---|---|---|\n| a | 38% | 38% |\n| b | 41% | 41% |\n| c | 42% | 42% |\n",
    ),
    "a praised speed": (f"{_RUN}15,570 tokens/sec is excellent.\n", f"{_RUN}1,200,000 tokens/sec is excellent.\n"),
    "praised memory": (
        f"{_RUN}Memory usage: 2.5 GB per GPU (efficient)\n",
        f"{_RUN}Memory usage: 66 GB per GPU (efficient)\n",
    ),
    "convergence": (  # 16 · 128 · 8 · 1,000 = 16.4 M tokens of 124 M parameters
        f"{_RUN}Run 1000 steps for full convergence.\n",
        f"{_RUN}Run 150,000 steps for full convergence.\n",
    ),
    "a first loss": (
        "# Training a language model\n\n## Initial loss (step 0)\n\n- GPU 0: 0.549\n- GPU 1: 0.548\n",
        "# Training a language model\n\n## Initial loss (step 0)\n\n- GPU 0: 10.83\n- GPU 1: 10.84\n",
    ),
    "overhead": ("Total CUDA overhead: 50-60 GB, this is normal.\n", "Total CUDA overhead: 1-2 GB, this is normal.\n"),
    "overhead in a row": (
        "| Component | Memory (GB) |\n|---|---|\n| Weights | 1.6 |\n| CUDA overhead | 50-60 |\n",
        "| Component | Memory (GB) |\n|---|---|\n| Weights | 1.6 |\n| CUDA overhead | 1-2 |\n",
    ),
    "activations of accumulation": (
        "# Memory\n\n## Gradient accumulation\n\n- Each micro-step adds activation memory\n",
        "# Memory\n\n## Gradient accumulation\n\n- Each micro-step adds to the gradients\n",
    ),
    "gradients under FSDP": (
        "# FSDP run\n\n## Gradients (sharded by FSDP)\n\n- Gradients are all-reduced across GPUs\n",
        "# FSDP run\n\n## Gradients (sharded by FSDP)\n\n- Gradients are reduce-scattered across GPUs\n",
    ),
    "a need that fits": (
        "Each GPU: 74.7 GB used out of 93.6 GB.\n\nTotal: 86.4 GB (exceeds a single GPU)\n",
        "Each GPU: 74.7 GB used out of 93.6 GB.\n\nTotal: 106.4 GB (exceeds a single GPU)\n",
    ),
    "a speed by the clock": (
        "| Metric | A | B |\n|---|---|---|\n| input tokens seen | 6,553,600 | 19,660,800 |\n"
        "| runtime | 0:06:48.60 | 0:04:59.19 |\n| tokens/sec | 2,004.87 | 2,737.98 |\n",
        "| Metric | A | B |\n|---|---|---|\n| input tokens seen | 6,553,600 | 19,660,800 |\n"
        "| runtime | 0:06:48.60 | 0:04:59.19 |\n| tokens/sec | 16,039 | 65,712 |\n",
    ),
    "the peak of a node": (
        "| Component | Specification | Note |\n|---|---|---|\n| GPU | 8x NVIDIA H100 (80GB HBM3) | target |\n"
        "| Peak FLOPs | ~2 PetaFLOPs (bf16) | per node |\n",
        "| Component | Specification | Note |\n|---|---|---|\n| GPU | 8x NVIDIA H100 (80GB HBM3) | target |\n"
        "| Peak FLOPs | ~7.9 PetaFLOPs (bf16) | per node |\n",
    ),
    "NVLink of an edition": (
        "| | H100 PCIe | H100 SXM |\n|---|---|---|\n| NVLink | Yes (1,800 GB/s) | Yes (900 GB/s) |\n",
        "| | H100 PCIe | H100 SXM |\n|---|---|---|\n| NVLink | Yes (600 GB/s) | Yes (900 GB/s) |\n",
    ),
    "a rent of several as each one's": (
        "| Hardware | Hourly Rate | Total GPU Hours | Total Cost |\n|---|---|---|---|\n"
        "| 8x RTX 3090 | $8.00/hr | 2000 | $16,000 |\n| 4x RTX 3090 | $4.00/hr | 1000 | $4,000 |\n",
        "| Hardware | Hourly Rate | Total GPU Hours | Total Cost |\n|---|---|---|---|\n"
        "| 8x RTX 3090 | $0.30/hr | 2000 | $600 |\n| 4x RTX 3090 | $0.30/hr | 1000 | $300 |\n",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_a_text_s_own_numbers_refute_is_named(tmp_path: Path, name: str) -> None:
    wrong, right = PAIRS[name]
    assert accused(tmp_path, wrong)
    assert accused(tmp_path, right) == []


def test_what_follows_from_a_wrong_number_is_reckoned_with_the_right_one(tmp_path: Path) -> None:
    text = "# LLM training cost\n\nA 7B model trained on 2 trillion tokens takes roughly 84 quintillion FLOPs. "
    text += "On an A100 GPU delivering about 312 teraFLOPs per second, this takes roughly 9 million GPU-seconds.\n"
    hours = next(one for one in judged(tmp_path, text) if "GPU-seconds" in one.claim.text).judgement
    assert "too little" in hours.so  # 8.4e22 ÷ 312e12 = 269 million seconds


# right, and once accused
RIGHT = {
    "a data set's name": (
        "# NanoGPT card\n\nGPT-2 124M on one A100.\n\n"
        "Dataset: FineWeb-10B (sample-10BT)\n\nThroughput: ~195,000 tokens/second\n"
    ),
    "the peak, and what is reached next": (
        "An A100 80GB delivers approximately 312 TFLOPS in BF16. In practice, with 45-55% utilization, it is 140-170.\n"
    ),
    "a rack's speed": (
        "# Llama 3 70B\n\nOne rack gives 90 petaFLOPS effective throughput. Training takes 6.3e24 FLOPs.\n\n"
        "At 16,384 GPUs the run finishes in roughly 2 weeks.\n"
    ),
    "cards of a setup": (
        "# H100 or A100\n\nThree scenarios, assuming 8 GPUs per setup.\n\n"
        "| GPU | Price/GPU/hr | Est. hours | Total cost |\n|---|---|---|---|\n| A100 80GB | $1.89 | 40 hrs | $605 |\n"
    ),
    "samples, not tokens": "# 500M model\n\n## A100 80GB\n\n- Throughput: ~90-110 samples/sec\n- Tokens/sec: ~20,000\n",
    "one card's name in two parts": (
        "# Estimates\n\n## 10M model\n\n"
        "| Hardware | Hourly Rate | Total Cost |\n|---|---|---|\n| A100 80GB | $2.50/hr | ~$25 |\n\n"
        "## 500M model\n\n### A100 80GB\n\n- Estimate: 500-600 GPU hours\n"
    ),
    "a speed said thrice": "Peak rate 15,570 tok/s.\n\nLoRA keeps memory use efficient: 6 GB per GPU on an H100.\n",
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_accused(tmp_path: Path, name: str) -> None:
    assert accused(tmp_path, RIGHT[name]) == []
