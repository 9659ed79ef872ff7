"""What trainers call the options that decide about memory: advice is given in the names of the log's own trainer.

From their documentation: transformers' TrainingArguments, TRL's SFTConfig, Axolotl's and LLaMA-Factory's configuration
references, Megatron-LM's and fairseq's arguments, torchtune's recipes, torchtitan's JobConfig, LitGPT's TrainArgs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Names as their users write them. None: the trainer has no such option."""

    micro_batch: str = "micro_batch"
    grad_accum: str | None = "grad_accum"  # None: it follows from the global batch
    recompute: str | None = "activation_checkpointing: full"
    longest: str | None = None  # sequence; of trainers whose batches are not all of one length


_HUGGING_FACE = Options(
    micro_batch="per_device_train_batch_size",
    grad_accum="gradient_accumulation_steps",
    recompute="gradient_checkpointing=True",
    longest="max_length",
)
_BY_FORMAT = {
    **dict.fromkeys(("hf_stdout", "trl", "hf_trainer_state", "deepspeed_hf"), _HUGGING_FACE),
    "llama_factory": Options(
        micro_batch="per_device_train_batch_size",
        grad_accum="gradient_accumulation_steps",
        recompute="disable_gradient_checkpointing: false",
        longest="cutoff_len",
    ),
    "axolotl": Options(
        micro_batch="micro_batch_size",
        grad_accum="gradient_accumulation_steps",
        recompute="gradient_checkpointing: true",
        longest="sequence_len",
    ),
    "torchtune": Options(
        micro_batch="batch_size",
        grad_accum="gradient_accumulation_steps",
        recompute="enable_activation_checkpointing=True",
        longest="tokenizer.max_seq_len",
    ),
    "fairseq": Options(
        micro_batch="--max-tokens",
        grad_accum="--update-freq",
        recompute="--checkpoint-activations",
        longest="--max-source-positions",
    ),
    "megatron": Options(micro_batch="--micro-batch-size", grad_accum=None, recompute="--recompute-granularity full"),
    "gpt_neox": Options(
        micro_batch="train_micro_batch_size_per_gpu",
        grad_accum="gradient_accumulation_steps",
        recompute='"checkpoint-activations": true',
    ),
    "nanogpt": Options(micro_batch="batch_size", grad_accum="gradient_accumulation_steps", recompute=None),
    "nanochat": Options(micro_batch="--device-batch-size", grad_accum=None, recompute=None),
    "litgpt": Options(micro_batch="--train.micro_batch_size", grad_accum=None, recompute=None),
    "torchtitan": Options(
        micro_batch="training.local_batch_size",
        grad_accum=None,
        recompute="activation_checkpoint.mode=full",
    ),
    "composer": Options(
        micro_batch="device_train_microbatch_size", grad_accum=None, recompute="activation_checkpointing: true"
    ),
}


def options_of(format: str) -> Options:
    """The names of the trainer whose log has this format; the advisor's own where it is not known."""
    return _BY_FORMAT.get(format, Options())
