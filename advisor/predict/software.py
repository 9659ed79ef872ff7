"""Training software by name: what of it decides memory and speed. Loads nothing, so that options can list the names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from advisor.records import Adapters, Software


@dataclass(frozen=True)
class Named:
    """One trainer as its own defaults have it."""

    words: str
    kind: str  # as `Software.kind`
    compiled: bool
    state: str  # as `Software.state`, where all weights are trained
    whole_logits: bool = True


NAMED = {
    "axolotl": Named("axolotl", "wrapper", False, "fp32"),  # Cut Cross Entropy and Liger are plugins (docs.axolotl.ai)
    "deepspeed": Named("DeepSpeed", "wrapper", False, "copied"),
    "lightning": Named("Lightning", "wrapper", False, "fp32"),
    "litgpt": Named("LitGPT", "wrapper", True, "fp32"),
    "llama-factory": Named("LLaMA-Factory", "wrapper", False, "fp32"),  # enable_liger_kernel is off
    "llm-foundry": Named("LLM Foundry", "tuned", True, "fp32"),
    "llm.c": Named("llm.c", "c", True, "copied"),
    "megatron": Named("Megatron-LM", "megatron", False, "copied"),
    "nanochat": Named("nanochat", "tuned", True, "fp32"),
    "nanogpt": Named("nanoGPT", "plain", True, "fp32"),
    "nemo": Named("NeMo", "megatron", False, "copied"),
    "torchtitan": Named("torchtitan", "tuned", True, "fp32"),
    # its recipes take LinearCrossEntropyLoss, in eight chunks (docs.pytorch.org/torchtune)
    "torchtune": Named("torchtune", "plain", True, "16bit", whole_logits=False),
    "transformers": Named("Hugging Face's Trainer", "wrapper", False, "fp32"),
    "trl": Named("TRL", "wrapper", False, "fp32"),  # use_liger_kernel is off (huggingface.co/docs/trl)
    # its loss takes slices of the sequence (docs.unsloth.ai/new/500k-context-length-fine-tuning)
    "unsloth": Named("Unsloth", "wrapper", False, "16bit", whole_logits=False),
}


def software_of(
    name: str | None,
    *,
    adapters: Adapters | None = None,
    frozen_blocks: int = 0,
    fp8: bool = False,
    extra_parameters: int = 0,
) -> Software:
    """Published software by its name; None: of nobody in particular, in 16 bits where it trains a part."""
    part = Software(adapters=adapters, frozen_blocks=frozen_blocks, fp8=fp8, extra_parameters=extra_parameters)
    if name is None:
        in_part = adapters is not None or frozen_blocks > 0
        return replace(part, state="16bit" if in_part else "fp32", whole_logits=None)
    own = NAMED[name]
    return replace(part, name=own.words, kind=own.kind, state=own.state, whole_logits=own.whole_logits)
