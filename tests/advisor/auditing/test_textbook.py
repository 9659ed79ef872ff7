"""Sentences whose own numbers, a data sheet or a definition decide: the wrong are named, the right ones are not."""

from pathlib import Path

import pytest

from tests.advisor.auditing.test_paper import accused

WRONG = """
A 7B model in FP32 takes 14 GB of memory.
AdamW needs 4 bytes per parameter for its optimizer states in fp32.
With batch size 32, sequence length 2048 and 8 gradient accumulation steps, each step processes 262,144 tokens.
At 50,000 tokens/s, 10B tokens take about 12 hours.
Chinchilla-optimal for a 1B model is 2B tokens.
100,000 steps with a global batch of 512 sequences of 1024 tokens is 5.2B tokens.
The initial loss should be around ln(50257) = 8.2.
The A100 has 40 GB of HBM2e and 624 TFLOPS of dense BF16 compute.
Our RTX 4090 reaches 400 TFLOPS in BF16 training.
Perplexity 20 corresponds to a loss of 4.0.
Loss dropped from 10.8 to 3.2, a 50% reduction.
We save a checkpoint of the 1.3B model every 1000 steps; each is 2.6 GB including Adam states in fp32.
Training for 5,000 steps at 2.4 s/step takes 1.5 hours.
8 GPUs at $2.50/hr for 10 days costs $2,400.
A model with 12 layers, hidden size 768 and a vocabulary of 50,257 has about 350M parameters.
Training Llama-2 7B from scratch on 2T tokens takes about 3 weeks on 8 A100s.
The dataset is 20 GB of text, roughly 50B tokens.
6 * 1.3e9 * 26e9 = 2.0e21 FLOPs
We used 64 H100 GPUs for 72 hours, 2,304 GPU-hours in total.
LoRA with rank 16 on a 7B model trains 4B parameters, 0.6% of the total.
The model saw 300B tokens of a 100B-token corpus, i.e. 2 epochs.
Our 350M model reached 2.1 tokens per parameter after 7B tokens.
Energy: 8 GPUs x 400 W x 100 hours = 32 kWh.
The H100 is 10x faster than the A100 for bf16 training.
One epoch over 1.2M samples with batch size 64 is 9,375 steps.
A 13B model needs 26 GB for full fine-tuning with AdamW.
It took 4 hours on a single A100 at 35% MFU, so about 1.6e21 FLOPs.
QLoRA can fine-tune a 70B model on a single 24GB GPU.
Llama 3 70B in FP16 runs on a single A100 80GB.
The run reached an MFU of 124% on H100.
We trained for 100 hours on 8 H100s for $50.
Total cost was $90,000 for 1,000 A100 GPU-hours.
SmolLM3 3B was trained on 11.2T tokens with 384 H100 GPUs for 1.2 days.
""".strip().splitlines()
RIGHT = """
A 7B model in FP32 takes 28 GB of memory.
AdamW needs 8 bytes per parameter for its optimizer states in fp32.
With batch size 32, sequence length 2048 and 8 gradient accumulation steps, each step processes 524,288 tokens.
At 50,000 tokens/s, 10B tokens take about 56 hours.
Chinchilla-optimal for a 1B model is 20B tokens.
100,000 steps with a global batch of 512 sequences of 1024 tokens is 52B tokens.
The initial loss should be around ln(50257) = 10.8.
The A100 has 40 GB of HBM2 and 312 TFLOPS of dense BF16 compute.
Our RTX 4090 reaches 120 TFLOPS in BF16 training.
Perplexity 20 corresponds to a loss of 3.0.
Loss dropped from 10.8 to 3.2, a 70% reduction.
We save a checkpoint of the 1.3B model every 1000 steps; each is 15.6 GB including Adam states in fp32.
Training for 5,000 steps at 2.4 s/step takes 3.3 hours.
8 GPUs at $2.50/hr for 10 days costs $4,800.
A model with 12 layers, hidden size 768 and a vocabulary of 50,257 has about 124M parameters.
With 4 GPUs the speed went from 5,000 to 18,000 tokens/s, 90% scaling efficiency.
Training Llama-2 7B from scratch on 2T tokens takes about 184,320 A100 hours.
The dataset is 20 GB of text, roughly 5B tokens.
6 * 1.3e9 * 26e9 = 2.0e20 FLOPs
Warmup of 2,000 of 100,000 steps is 2% of training.
bf16 has fewer mantissa bits than fp16.
We used 64 H100 GPUs for 72 hours, 4,608 GPU-hours in total.
Gradient checkpointing cuts memory and makes training 30% slower.
FlashAttention reduces the memory of attention from quadratic to linear.
LoRA with rank 16 on a 7B model trains 40M parameters, 0.6% of the total.
The model saw 300B tokens of a 100B-token corpus, i.e. 3 epochs.
Our 350M model reached 20 tokens per parameter after 7B tokens.
Energy: 8 GPUs x 400 W x 100 hours = 320 kWh.
Validation loss is 3.5 while training loss is 3.4, a small generalization gap.
The H100 is 2-3x faster than the A100 for bf16 training.
One epoch over 1.2M samples with batch size 64 is 18,750 steps.
A 13B model needs 208 GB for full fine-tuning with AdamW.
It took 4 hours on a single A100 at 35% MFU, so about 1.6e18 FLOPs.
QLoRA can fine-tune a 70B model on a single 48GB GPU.
Llama 3 70B in FP16 does not fit on a single A100 80GB.
The run reached an MFU of 42% on H100, 24% higher than before.
We trained for 100 hours on 8 H100s for $2,000.
Total cost was $1,600 for 1,000 A100 GPU-hours.
SmolLM3 3B was trained on 11.2T tokens with 384 H100 GPUs for 24 days.
ZeRO-2 shards optimizer states and gradients, ZeRO-3 the parameters too.
DDP splits the batch across the GPUs.
Unlike fp16, bf16 training does not require loss scaling.
Chinchilla says to use 20 tokens per parameter.
With 8 GPUs, batch size 4 per GPU and sequence length 2048, each step processes 65,536 tokens.
We trained for 20,000 steps of 0.5M tokens, i.e. 10B tokens, on 8 A100 for 14 hours.
The 1.1B model (22 layers, hidden size 2048, 32 heads) was trained for 3 epochs.
A micro-batch of 8 sequences of 2,048 tokens on 64 GPUs gives 1M tokens per step.
""".strip().splitlines()


@pytest.mark.parametrize("sentence", WRONG)
def test_what_its_own_numbers_refute_is_named(sentence: str, tmp_path: Path) -> None:
    assert set(accused(tmp_path, sentence)) == {1}


@pytest.mark.parametrize("sentence", RIGHT)
def test_what_is_right_is_not_accused(sentence: str, tmp_path: Path) -> None:
    assert not accused(tmp_path, sentence)
