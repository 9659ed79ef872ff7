"""Peak memory of published runs, whose software keeps other tensors alive than this project's trainer.

The trainer's own peak is traced (`memory_terms`). Of other software only the custom is known: 16-bit activations as
Korthikanti et al. 2022 count them, whole logits, the state that mixed precision and sharding keep (sources §2.1-2.3).
Numpy only.
"""

from __future__ import annotations

import numpy as np

from advisor.predict.memory_terms import WorkloadArrays
from advisor.predict.trained import trained_parameters, trained_share
from advisor.records import Software

# Bytes per parameter: weights, their fp32 master copy with both moments, gradients (sources §2.1).
_STATE_BYTES = {"fp32": (4, 8, 4), "copied": (2, 12, 2), "16bit": (2, 4, 2)}
# Frozen weights are 16-bit; in 4 bits with a 32-bit scale for each 64 of them (QLoRA, Dettmers et al. 2023, §3).
_FROZEN_BYTES, _NF4_BYTES = 2.0, 0.5 + 4 / 64
# Megatron and DeepSpeed reduce and gather in buckets of 5e8 elements (DeepSpeed's documented defaults), 16-bit each.
_BUCKET_ELEMENTS = 5e8
# Bytes per token and row of the vocabulary at the loss's peak: 16-bit logits, fp32 log-probabilities, fp32 gradient
# (sources §2.3: 8-12 eager, 0-2 in chunks). Tuned code has its loss compiled with the head, and keeps the logits and
# their gradient in 16 bits; in people's own loops more of it stays: 650-740 kB a token of a GPT-2 124M, whose blocks
# hold 295. Hugging Face's models copy the logits to fp32 and shift that copy.
_LOGIT_BYTES = {"eager": 10.0, "wrapper": 16.0, "compiled": 7.0, "tuned": 4.0, "chunked": 1.0}
# Per-operator checkpointing keeps attention's output and every second matrix product; Megatron's kind keeps all but the
# scores. Half of the fused block's activations is the middle of what is called selective today.
_SELECTIVE = 0.5


def published_bytes(a: WorkloadArrays) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of weights and optimizer state, and the most beyond them, of each workload; shapes (n,).

    The peak beyond the state is at the start of the backward pass, where all activations and the logits live, or in
    the optimizer's step, where all gradients do.
    """
    parts = published_parts(a)
    beyond = np.maximum(parts["held"] + parts["activations"] + parts["logits"], parts["gradients"])
    return parts["weights"] + parts["optimizer"], beyond + parts["copies"]


def published_parts(a: WorkloadArrays) -> dict[str, np.ndarray]:
    """Bytes by what holds them; `held`: the gradients that are alive while activations are.

    Of adapters the weights are those that stay frozen too, gradients and moments their own. Below the first block that
    is trained nothing is kept for a backward pass that does not reach it.
    """
    software = a.software or Software()
    weight, moments, gradient = _STATE_BYTES[software.state]
    weights_shards, state_shards = {"none": (1, 1), "optimizer": (1, a.gpus), "full": (a.gpus, a.gpus)}[a.sharding]
    n = (a.parameters + software.extra_parameters).astype(float)
    adapters = software.adapters
    trained = trained_parameters(a).astype(float)
    frozen = _FROZEN_BYTES * (n if adapters is not None else n - trained)
    if adapters is not None and adapters.quantized:
        frozen = frozen + (_NF4_BYTES - _FROZEN_BYTES) * a.block_matrices
    muon = a.optimizer == "muon" and adapters is None  # one moment instead of two
    saved = 4.0 * a.block_matrices * trained_share(a) if muon else 0.0
    gradients = trained * gradient / weights_shards
    return {
        "weights": (trained * weight + frozen) / weights_shards,
        "optimizer": (trained * moments - saved) / state_shards,
        "gradients": gradients,
        "held": gradients if a.gpus > 1 else np.where(a.accumulate, gradients, 0.0),
        "activations": _activations(a, software) * trained_share(a),
        "logits": np.add(*_logits(a, software)) / 2,
        "copies": _copies(a, software),
    }


def _activations(a: WorkloadArrays, software: Software) -> np.ndarray:
    """What forward leaves for backward, with one block's worth on top where blocks are recomputed."""
    tokens, element = a.tokens.astype(float), 4.0 if a.precision == "fp32" else 2.0
    # RMSNorm written out, as eager llamas have it, keeps its input in fp32 and the product before its weights: two more
    # lanes of the width for each of a block's two norms
    norms = tokens * element * a.width * (4.0 if a.family == "llama" and not a.compile else 0.0)
    block = tokens * element * _lanes(a) + norms
    scores = np.zeros_like(block) if software.fused_attention else 5.0 * a.heads * a.seq_len * tokens
    if a.activation_checkpointing == "full":
        return a.depth * tokens * element * a.width + block + scores
    if a.activation_checkpointing == "selective":
        kept = block if not software.fused_attention else _SELECTIVE * (block - norms)
        return a.depth * kept + (block - kept) + scores
    return a.depth * (block + scores)


def _lanes(a: WorkloadArrays) -> np.ndarray:
    """16-bit numbers that a block keeps per token: two norm inputs and outputs, q, k, v, attention's output, the FFN's.

    A plain FFN keeps what goes into and comes out of its activation function, a gated one also the gate's product. The
    compiler keeps as much (its partitioner, asked for such blocks).
    """
    keys = a.kv_heads * a.head_dim
    inner = 2.0 if a.family != "llama" else 4.0
    return 6.0 * a.width + 2.0 * keys + inner * a.ffn_width


def _logits(a: WorkloadArrays, software: Software) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that the loss may hold: the same where it is known whether it is taken in chunks."""
    compiled = "tuned" if software.kind in ("tuned", "c") else "compiled"
    eager = "wrapper" if software.kind == "wrapper" else "eager"
    whole = compiled if a.compile else eager
    kinds = {None: ("chunked", whole), True: (whole, whole), False: ("chunked", "chunked")}[software.whole_logits]
    least, most = (_LOGIT_BYTES[kind] * a.tokens * a.vocab_size for kind in kinds)
    return least, most


def logits_deviation(a: WorkloadArrays) -> np.ndarray:
    """Standard deviation of the loss's bytes where nobody says how it is taken: one way or the other."""
    least, most = _logits(a, a.software or Software())
    return (most - least) / 2


def _copies(a: WorkloadArrays, software: Software) -> np.ndarray:
    """16-bit weights gathered or cast for use, and the buckets of collectives."""
    table = a.vocab_size * a.width
    if software.adapters is not None and a.sharding != "full":  # a matrix on its way from 4 bits; no gradients of it
        return 2.0 * a.width * a.ffn_width if software.adapters.quantized else np.zeros(len(a.depth))
    if a.sharding == "full":  # two blocks on their way, both tables, and a block's gradient before it is scattered
        return 6.0 * a.block_parameters + 2.0 * table * (1 if a.family == "gpt2" else 2)
    if software.state == "copied" and a.gpus > 1:
        return 2.0 * 2.0 * np.minimum(_BUCKET_ELEMENTS, a.parameters)
    if software.state == "fp32" and a.precision != "fp32":
        return 2.0 * a.block_matrices  # autocast keeps its casts until the forward pass ends
    return np.zeros(len(a.depth))
