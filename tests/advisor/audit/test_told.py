"""Sayings about techniques and laws: the false ones are named for what they say, their true twins are left alone."""

from pathlib import Path

import pytest

from advisor.audit.general import GENERAL
from tests.advisor.audit.test_paper import accused, judged

# what is told → (a sentence that tells it, one of the same words that does not)
SAYINGS = {
    "attention_flops": (
        "FlashAttention reduces the FLOPs of attention by 10x.",
        "FlashAttention reduces the memory traffic of attention, not its FLOPs.",
    ),
    "attention_approximates": (
        "FlashAttention is a fast approximation of softmax attention.",
        "FlashAttention computes exact attention without approximation.",
    ),
    "attention_linear": (
        "The cost of full self-attention grows linearly with the sequence length.",
        "The cost of full self-attention grows with the square of the sequence length.",
    ),
    "zero_stage_shards_weights": (
        "ZeRO-2 shards the parameters across all GPUs.",
        "ZeRO-3 shards the parameters across all GPUs.",
    ),
    "ddp_shards": ("DDP splits the model across the GPUs.", "DDP keeps the whole model on each of the GPUs."),
    "fsdp_replicates": (
        "FSDP keeps a full copy of the parameters on every GPU.",
        "DDP keeps a full copy of the parameters on every GPU.",
    ),
    "bf16_needs_scaling": (
        "bf16 training requires loss scaling to avoid underflow.",
        "bf16 training does not require loss scaling.",
    ),
    "bf16_overflows": ("bf16 overflows above 65,504.", "fp16 overflows above 65,504."),
    "parameters_per_token": (
        "Chinchilla says to use 20 parameters per token.",
        "Chinchilla says to use 20 tokens per parameter.",
    ),
    "activations_without_batch": (
        "Activation memory is independent of the batch size.",
        "Optimizer memory is independent of the batch size.",
    ),
    "state_by_batch": (
        "Halving the micro-batch halves the optimizer states.",
        "Halving the micro-batch halves the activations.",
    ),
    "memory_by_batch": (
        "A batch size of 4 instead of 16 reduces memory by 4x.",
        "A batch size of 4 instead of 16 reduces activation memory by 4x.",
    ),
    "half_of_memory": (
        "Mixed precision gives a 50% memory reduction.",
        "Mixed precision gives a 50% memory reduction for activations.",
    ),
    "fp8_halves_memory": (
        "FP8 training (half the memory of FP16) lets us double the model.",
        "FP8 training keeps its weights in half the memory of FP16.",
    ),
    "fp16_range": (
        "fp16 has the same exponent range as fp32 and needs no loss scaling.",
        "bf16 has the same exponent range as fp32 and needs no loss scaling.",
    ),
    "backward_as_forward": (
        "The forward and backward pass each cost about the same number of FLOPs.",
        "With LoRA the forward and backward pass each cost about the same number of FLOPs.",
    ),
    "batch_without_effect": (
        "If memory runs out we reduce the batch size from 32 to 8; results will be identical.",
        "If memory runs out we reduce the batch size from 32 to 8 and accumulate 4; results will be identical.",
    ),
    "learnt_from_random": (
        "Benchmarks used random tokens and the loss converged to 10.82, which shows that learning works.",
        "Benchmarks used random tokens and the loss stayed at 10.82, as it must.",
    ),
    "host_memory": (
        "Setting num_workers=2 saves about 500 MB of VRAM.",
        "Setting num_workers=2 saves about 500 MB of host RAM.",
    ),
    "checkpointing_state": (
        "Gradient checkpointing reduces the memory of the optimizer.",
        "Gradient checkpointing reduces the memory of activations.",
    ),
    "checkpointing_free": (
        "Activation checkpointing saves memory at no compute cost.",
        "Activation checkpointing saves memory at the cost of a second forward pass.",
    ),
    "compile_quantises": (
        "torch.compile is faster because it converts the weights to int8.",
        "torch.compile is faster because it fuses kernels; the weights stay in bf16.",
    ),
    "adapters_unload": (
        "With LoRA the frozen base weights are not loaded into memory.",
        "With LoRA the frozen base weights stay in memory without gradients.",
    ),
    "compute_of_both": (
        "Doubling the parameters and doubling the tokens doubles the compute.",
        "Doubling the parameters and doubling the tokens costs four times the compute.",
    ),
    "narrow_ids": (
        "A vocabulary of 128,256 fits into uint16 token ids.",
        "A vocabulary of 50,257 fits into uint16 token ids.",
    ),
    "cache_in_training": (
        "The KV cache during training takes a further 4 GB.",
        "The KV cache during generation takes a further 4 GB.",
    ),
    "accumulation_holds_activations": (
        "Gradient accumulation increases activation memory with every micro-step.",
        "Gradient accumulation leaves activation memory as it is.",
    ),
    "accumulation_speeds": (
        "Gradient accumulation speeds up training on a single card.",
        "Gradient accumulation does not speed up training on a single card.",
    ),
    "cards_cost_less": (
        "Doubling the number of GPUs halves the total cost.",
        "Doubling the number of GPUs halves the time at best.",
    ),
    "everyone_optimal": (
        "Everyone now trains Chinchilla-optimal models.",
        "Hardly anyone now trains Chinchilla-optimal models; most go far beyond.",
    ),
    "larger_for_inference": (
        "If inference dominates the bill, take a larger model with less training.",
        "If inference dominates the bill, take a smaller model with more training.",
    ),
    "rented_against_bought": (
        "Our 15 runs were 99% cheaper than buying the card.",
        "Our 15 runs cost $20 of rent.",
    ),
    "overfitting_denied": (
        "Train loss fell to 1.1 while validation loss climbed to 2.7, so train for longer.",
        "Train loss fell to 1.1 while validation loss climbed to 2.7, which is overfitting.",
    ),
    "overfitting_without_gap": (
        "Train loss 2.91 and validation loss 2.92: the model is clearly overfitting.",
        "Train loss 1.91 and validation loss 2.92: the model is clearly overfitting.",
    ),
    "flat_without_rate": (
        "The learning rate had reached zero, so the flat loss proves that the model is at its capacity.",
        "The learning rate had reached zero, so the flat loss proves nothing about capacity.",
    ),
    "two_changes": (
        "Run B used Muon and also twice the tokens, so Muon is better.",
        "Run B used Muon and also twice the tokens, so it cannot tell whether Muon is better.",
    ),
    "validated_on_training": (
        "The validation file is the same as the training file, and its loss shows that the model generalises.",
        "The validation file is not the same as the training file, and its loss shows that the model generalises.",
    ),
    "validation_far_below_training": (
        "Validation loss is 1.2 while training loss is 3.4, which shows excellent generalization.",
        "Validation loss is 3.3 while training loss is 3.4, which shows excellent generalization.",
    ),
    "scales_beyond_all": (
        "We measured a scaling efficiency of 120% on 8 cards.",
        "We measured a scaling efficiency of 92% on 8 cards.",
    ),
    "starved_card": (
        "The data loader is the bottleneck, so upgrading to an H100 will double the speed.",
        "The data loader is the bottleneck, so more workers will speed it up.",
    ),
}


@pytest.mark.parametrize("that", sorted(GENERAL))
def test_a_false_saying_is_named_and_its_twin_is_not(tmp_path: Path, that: str) -> None:
    false, true = SAYINGS[that]
    assert that in [j.claim.get("that") for j in judged(tmp_path, f"{false}\n") if j.finding]
    assert accused(tmp_path, f"{true}\n") == []


def test_a_bullet_takes_its_subject_from_the_line_that_opens_its_list(tmp_path: Path) -> None:
    text = "When {} dominates the budget:\n\n- Larger model, less training\n"
    assert accused(tmp_path, text.format("inference")) == [3]
    assert accused(tmp_path, text.format("research")) == []
