"""Peak memory of published software, which keeps other tensors alive than this project's trainer.

The peak of our own trainer is traced (`memory_terms`). For other software the tensors are counted: state from the types
of weights and gradients, activations from the operations that save them, logits from the copies that the loss makes. If
the state or the loss is unknown, the result is a mixture of a few weighted cases. Factors on the counts are fitted to
published peaks (`benchmarks/fit_memory.py` writes profiles/published_memory.yaml).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from advisor.prediction.adapters import NF4_BYTES
from advisor.prediction.intervals import Mixture
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import NamedSoftware, table
from advisor.records import Software
from advisor.settings import OPTIMIZERS, PRECISIONS, SHARDINGS
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

_GIB = float(1 << 30)
# Bytes per parameter: weights, fp32 master copy, each moment, gradients (sources §2.1).
_STATE_BYTES = {"fp32": (4.0, 0.0, 4.0, 4.0), "copied": (2.0, 4.0, 4.0, 2.0), "16bit": (2.0, 0.0, 2.0, 2.0)}
# Other states that a run may have if its description leaves the state open, with their probabilities: people load
# checkpoints in 16 bits, or let DeepSpeed choose.
_OTHER_STATES = {
    "fp32": (("16bit", 0.85), ("copied", 0.15)),
    "copied": (("fp32", 0.5), ("16bit", 0.5)),
    "16bit": (("fp32", 0.5), ("copied", 0.5)),
}
_FROZEN_BYTES = 2.0  # bytes of a weight that is not trained, unless it has 4 bits
# DeepSpeed reduces and gathers in buckets of 5e8 elements, and its ZeRO-3 keeps up to 1e9 gathered ones (documented
# defaults), 16-bit each.
_BUCKET_ELEMENTS, _LIVE_ELEMENTS = 5e8, 1e9
# 4-bit matrices save their input, and bitsandbytes' products also save their output: 15 to 25 bytes per token and width
# more than frozen 16-bit matrices (LitGPT's published pairs of LoRA and QLoRA, six models).
_UNPACKED_BYTES = 16.0
# The share of the gradients that is alive together with the activations, for one micro-batch per step on one GPU. In
# about half of the runs, wrappers keep the gradients (Hugging Face runs of two people).
_WRAPPERS_HOLD = 0.5
# Per-operator checkpointing keeps attention's output and every second matrix product (torchtitan): about a third.
SELECTIVE = 0.4
_CHUNKED_LOGIT_BYTES = 1.0  # per logit of all tokens, for a loss in chunks
_LOGIT_BYTES = {"compiled": 7.0, "megatron": 6.0, "c": 4.0}
# Priors without published peaks: the allocator's pool as a share of the temporary tensors; GiB of the driver and of the
# communication library (sources §2.4).
_POOL, _NEEDED_POOL, _CONTEXT_GIB, _NCCL_GIB = 0.08, 0.02, 0.6, 1.0
_BASE_GIB = 0.25  # workspaces, batches, small tensors, leftovers of loading
CLASSES = ("plain", "hf", "compiled", "megatron", "c")  # decide which tensors operations save
PARTS = ("activations", "logits")  # have a factor for each class
_STATE = ("weights", "optimizer", "gradients", "inputs")  # parts whose counts have no uncertainty
_OTHERS = ("gathered", "base", "pool", "context")
FACTORS = (*(f"{part} {name}" for part in PARTS for name in CLASSES), "selective", *_OTHERS)


@dataclass(frozen=True, kw_only=True)
class StateCase:
    """One possible combination of state and loss for a run whose description leaves them open."""

    state: str
    whole_logits: bool
    weight: float


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Counted bytes by part, each of shape (n,), before any factor."""

    weights: np.ndarray
    optimizer: np.ndarray
    gradients: np.ndarray
    stepping: np.ndarray  # temporaries of the optimizer step: square roots of moments, Muon's stacked matrices
    held: np.ndarray  # gradients that are alive together with the activations
    inputs: np.ndarray  # inputs of recomputed blocks
    activations: np.ndarray  # saved by blocks until their backward pass
    worked: np.ndarray  # activations of the one block that is being recomputed
    logits: np.ndarray
    gathered: np.ndarray  # 16-bit weights gathered or cast for use, buckets of collectives


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What decides which factors apply to the bytes of runs."""

    name: str  # one of CLASSES
    software: Software | None
    selective: np.ndarray | bool  # every other matrix product is recomputed
    several: np.ndarray | bool  # GPUs

    @property
    def loss(self) -> str:
        """The entry of CLASSES whose loss it uses. Eager software with its own count of logits uses Megatron's loss."""
        named = table().get((self.software or Software()).name or "")
        own = self.name == "plain" and named is not None and named.logit_bytes is not None and not named.compiled
        return "megatron" if own else self.name

    @classmethod
    def of(cls, a: WorkloadArrays) -> Kind:
        software, selective = a.software or Software(), a.activation_checkpointing == "selective"
        name = class_of(software, a.compile)
        return cls(name=name, software=a.software, selective=selective, several=a.gpus > 1)


@dataclass(frozen=True, kw_only=True)
class PublishedMemory:
    """Factors on the counts, fitted to published peaks. A factor is stored as its log and the standard deviation."""

    factors: Mapping[str, tuple[float, float]]
    software: Mapping[str, tuple[float, float]]  # on the activations of one named software package
    spreads: Mapping[str, float]  # between people: log standard deviation of activations, logits, state and the rest
    more: Mapping[str, float]  # runs with unexplained extra memory: their share, log shift and log standard deviation
    row: float  # log standard deviation of one peak around the other peaks of the same person

    def software_factor(self, software: Software | None) -> tuple[float, float]:
        """Return the log factor on the activations of one software package, and its standard deviation."""
        unknown = (0.0, self.spreads["software"])
        return self.software.get(software.name or "", unknown) if software is not None else unknown


@lru_cache(maxsize=1)
def load_published_memory() -> PublishedMemory:
    """Read profiles/published_memory.yaml. Raises AdvisorError if the file is unusable."""
    raw = read_yaml(profiles_folder() / "published_memory.yaml", "table of memory factors")
    pairs = {key: {name: tuple(pair) for name, pair in raw[key].items()} for key in ("factors", "software")}
    return PublishedMemory(spreads=raw["spreads"], more=raw["more"], row=raw["row"], **pairs)


def cases(software: Software) -> tuple[StateCase, ...]:
    """Return the possible cases for a run of this software, likeliest first. Their weights add up to one."""
    chance = software.state_chance
    states = [(software.state, chance)]
    if chance < 1:
        states += [(name, (1 - chance) * share) for name, share in _OTHER_STATES[software.state]]
    losses = ((True, 0.6), (False, 0.4)) if software.whole_logits is None else ((software.whole_logits, 1.0),)
    return tuple(
        StateCase(state=state, whole_logits=whole, weight=weight * share)
        for (state, weight), (whole, share) in itertools.product(states, losses)
    )


def class_of(software: Software, compile: bool) -> str:
    """Return the one of CLASSES that describes which tensors the operations of a run save."""
    if software.kind in ("c", "megatron"):
        return software.kind
    if compile or software.kind == "fused" or (software.fused_kernels and software.kind != "tuned"):
        return "compiled"
    named = table().get(software.name or "")
    return "hf" if named is not None and named.hf_models else "plain"


def parts(a: WorkloadArrays, case: StateCase) -> Parts:
    """Return the bytes of one case by part, shape (n,), as counted.

    With adapters, the weights include the frozen weights, but only the adapters have gradients and moments. Frozen
    blocks below the first trained block save no activations.
    """
    software = a.software or Software()
    named = table().get(software.name or "")
    adapters, hf = software.adapters, named is not None and named.hf_models
    # PEFT keeps adapters in fp32 beside 16-bit weights (its autocast_adapter_dtype)
    own = "fp32" if adapters is not None and hf else case.state
    weight, master, moment, gradient = state_bytes(own, software)
    optimizer = OPTIMIZERS[a.optimizer] if adapters is None else OPTIMIZERS["adamw"]
    moments = master + moment * optimizer.moments
    if software.moment_bytes is not None and adapters is None:
        moments = software.moment_bytes + master
    weights_shards, state_shards, gradient_shards = SHARDINGS[a.sharding].shares(a.gpus)
    n = (a.parameters + software.extra_parameters + software.expert_parameters).astype(float)
    matrices = a.block_matrices + software.expert_parameters
    trained = a.trained_parameters.astype(float)
    frozen = _FROZEN_BYTES * (n if adapters is not None else n - trained)
    if adapters is not None and adapters.quantized:
        if hf:  # PEFT converts unquantized weights to fp32 (prepare_model_for_kbit_training)
            frozen = frozen + 2.0 * (n - matrices)
        frozen = frozen + (NF4_BYTES - _FROZEN_BYTES) * matrices
    halved = np.zeros(len(n))  # parameters of embedding tables with weights and moments in 16 bits
    if named is not None and named.half_tables and case.state == "fp32":
        halved = (a.vocab_size * a.width + max(software.extra_parameters, 0)).astype(float)
    saved = moment * (optimizer.moments - optimizer.matrix_moments) * a.block_matrices * a.trained_share
    gradients = 0.0 * n if software.steps_in_backward else (trained * gradient - 2.0 * halved) / gradient_shards
    inputs, kept, worked = _activations(a, software, named, case)
    tables, full = (a.vocab_size * a.width) * (1 if a.family == "gpt2" else 2), SHARDINGS[a.sharding].weights
    packed = adapters is not None and adapters.quantized
    casts = PRECISIONS[a.precision].casts
    gathered = gathered_bytes(
        software, case, full=full, several=a.gpus > 1, elements=a.parameters, block=a.block_parameters,
        tables=tables, cast=a.block_matrices * (casts and a.activation_checkpointing != "full"),
        per_weight=2.0 * NF4_BYTES if packed else 4.0 if adapters is not None else 6.0,
    )  # fmt: skip
    if adapters is not None and not full:  # one matrix converted from 4 bits, without a gradient
        gathered = 2.0 * packed * a.width * a.ffn_width
    # With fp32 moments AdamW computes the square root of all second moments at once, unless the optimizer is PyTorch's
    # fused one. If the software is unknown, half of the runs use the fused one.
    stacks = OPTIMIZERS[a.optimizer].orthogonalizes
    step_bytes = named.step_bytes if named is not None else 0.0 if stacks else 2.0
    stepped = (1.0 if stacks else moments / 8) * trained
    if optimizer.orthogonalizes:
        stepped = a.block_matrices * a.trained_share
    cells = a.tokens * a.vocab_size
    return Parts(
        weights=(trained * weight + frozen - 2.0 * halved) / weights_shards,
        optimizer=(trained * moments - saved - 4.0 * halved) / state_shards,
        gradients=gradients,
        stepping=step_bytes * stepped / state_shards,
        held=gradients * (1.0 if a.gpus > 1 else np.where(a.accumulate, 1.0, _WRAPPERS_HOLD if hf else 0.0)),
        inputs=inputs * a.trained_share,
        activations=kept * a.trained_share,
        worked=worked,
        logits=cells * logit_bytes(software, case, compile=a.compile, casts=casts, autocast=_autocast(a, case)),
        gathered=gathered,
    )


def _activations(
    a: WorkloadArrays, software: Software, named: NamedSoftware | None, case: StateCase
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the bytes of recomputed blocks' inputs, of the activations that blocks save, and of the block in work."""
    element, name, adapters = PRECISIONS[a.precision].element_bytes, class_of(software, a.compile), software.adapters
    kept = block_bytes(
        name, gated=a.family == "llama", residual=a.width, queries=a.width, keys=a.kv_heads * a.head_dim,
        ffn=a.ffn_width, element=float(element), autocast=_autocast(a, case),
        lanes=named.extra_lanes if named is not None else 0.0,
    )  # fmt: skip
    if name in ("plain", "hf") and adapters is not None and adapters.quantized:
        kept = kept + _UNPACKED_BYTES * a.width
    elif name in ("plain", "hf") and adapters is not None and adapters.targets == "attention":
        kept = kept - element * a.ffn_width  # the input of a frozen matrix is not saved
    if not software.fused_attention:  # the output of softmax and, in 16 bits, a copy; mask and output of dropout
        kept = kept + (6.0 if element == 2 else 9.0) * a.heads * a.seq_len
    block, nothing = a.tokens * kept, np.zeros(len(a.depth))
    if a.activation_checkpointing == "full":
        stream = 4.0 if _autocast(a, case) and name in ("plain", "hf") else element
        return a.depth * a.tokens * stream * a.width, nothing, block
    if a.activation_checkpointing == "selective":
        return nothing, a.depth * SELECTIVE * block, (1 - SELECTIVE) * block
    return nothing, a.depth * block, nothing


def state_bytes(state: str, software: Software) -> tuple[float, float, float, float]:
    """Return the bytes per parameter of weights, fp32 master copy, each moment and gradients."""
    weight, master, moment, gradient = _STATE_BYTES[state]
    named = table().get(software.name or "")
    summed = state == "copied" and named is not None and named.gradients == "fp32"
    return weight, master, moment, 4.0 if summed else gradient


def block_bytes(
    name: str, *, gated: np.ndarray | bool, residual: np.ndarray, queries: np.ndarray, keys: np.ndarray,
    ffn: np.ndarray, element: float = 2.0, autocast: np.ndarray | bool = False, lanes: float = 0.0,
) -> np.ndarray:  # fmt: skip
    """Return the bytes per token that a block of one of CLASSES saves, for widths on one GPU.

    These are inputs and outputs of two norms, q, k, v, the output of attention, and the FFN's values before and after
    the activation function, with a gate if it has one. torch.compile saves the same amount, according to its
    partitioner. `lanes` are further 16-bit values of the width of the residual stream.
    """
    gate = 3.0 if name == "megatron" else 4.0  # its fused_bias_swiglu.py saves its input alone
    kept = element * (4.0 * residual + 2.0 * queries + 2.0 * keys + np.where(gated, gate, 2.0) * ffn)
    kept = kept + 2.0 * lanes * residual
    if name == "megatron":  # GPTs keep the masks of two dropouts
        return kept + np.where(gated, 0.0, 2.0) * residual
    if name not in ("plain", "hf"):
        return kept
    # The output of attention is copied to be contiguous. Norms save an fp32 input; norms without a kernel, as in
    # llamas, also save the normalized values.
    norms = np.where(gated, np.where(autocast, 12.0, 8.0), np.where(autocast, 4.0, 0.0))
    kept = kept + element * queries + norms * residual
    if name != "hf":
        return kept
    # Keys and values are repeated for every head. GELU without a kernel saves three FFN widths more; dropout.
    return kept + np.where(gated, element * 2.0 * (queries - keys), 3.0 * element * ffn + 3.0 * residual)


def _autocast(a: WorkloadArrays, case: StateCase) -> bool:
    """Return True if values between a block's 16-bit products are fp32. FSDP gathers weights in 16 bits."""
    return case.state == "fp32" and PRECISIONS[a.precision].casts and not SHARDINGS[a.sharding].weights


def logit_bytes(
    software: Software, case: StateCase, *, compile: bool, casts: bool = True, autocast: np.ndarray | bool = False
) -> np.ndarray | float:
    """Return the bytes per token and vocabulary entry at the peak of the loss.

    In eager mode these are 16-bit logits, fp32 log-probabilities (autocast, Hugging Face's copy), and the gradients of
    NLL and softmax, which are as large. Everything in 16 bits without a copy takes 2 x 4. A compiler fuses some of it.
    With head and loss in one graph, only logits and their gradient remain (sources §2.3). Megatron's loss overwrites
    its fp32 copy (core/tensor_parallel/cross_entropy.py). Software may have its own number.
    """
    if not case.whole_logits:
        return _CHUNKED_LOGIT_BYTES
    kind, named = class_of(software, compile), table().get(software.name or "")
    if named is not None and named.logit_bytes is not None and (compile or not named.compiled):
        return named.logit_bytes
    if kind in _LOGIT_BYTES:
        return _LOGIT_BYTES[kind]
    if not casts:
        return 16.0
    return 12.0 if kind == "hf" else np.where(autocast, 14.0, 8.0)


def gathered_bytes(
    software: Software, case: StateCase, *, full: np.ndarray | bool, several: np.ndarray | bool, elements: np.ndarray,
    block: np.ndarray, tables: np.ndarray, cast: np.ndarray | float, per_weight: float = 6.0,
) -> np.ndarray:  # fmt: skip
    """Return the bytes of gathered and cast weights and of the buckets of collectives.

    `elements` are all weights of a GPU, `cast` those that autocast keeps in 16 bits until the forward pass ends. FSDP
    gathers two blocks and all tables, and keeps a block's gradient before its reduce-scatter: `per_weight` bytes.
    Software that sums gradients in one fp32 buffer has no other buckets.
    """
    named = table().get(software.name or "")
    copied = case.state == "copied" and (named is None or named.gradients != "fp32")
    live = 2.0 * np.minimum(_BUCKET_ELEMENTS + _LIVE_ELEMENTS, elements) if copied else 0.0
    buckets = np.where(several | (software.kind == "wrapper"), 4.0 * np.minimum(_BUCKET_ELEMENTS, elements), 0.0)
    whole = buckets if copied else 2.0 * cast * (case.state == "fp32")
    return np.where(full, per_weight * block + 2.0 * tables + live, whole)


def peak(p: Parts, kind: Kind, counted: str, factor: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the bytes at the peak of one case by part, each multiplied by its factor. They add up to the peak.

    `counted` is allocated, reserved (by the allocator), device (as the driver reports), or needed (the smallest device
    memory that works: before it fails, the allocator frees its cache). The peak is at the start of the backward pass,
    when all activations and the logits are alive, or in the optimizer step, when all gradients are alive.
    """
    blocks = factor[f"activations {kind.name}"] * factor["software"]
    kept = blocks * p.activations * np.where(kind.selective, factor["selective"], 1.0)
    logits, worked = factor[f"logits {kind.loss}"] * p.logits, blocks * p.worked
    stepping = p.held + p.inputs + kept + np.maximum(logits, worked) < p.gradients + p.stepping
    losing, zero = ~stepping & (logits >= worked), np.zeros_like(kept)
    found = {
        "weights": p.weights,
        "optimizer": p.optimizer,
        "gradients": np.where(stepping, p.gradients + p.stepping, p.held),
        "inputs": np.where(stepping, zero, p.inputs),
        "activations": np.where(stepping, zero, kept + np.where(losing, zero, worked)),
        "logits": np.where(losing, logits, zero),
        "gathered": factor["gathered"] * p.gathered + zero,
        "base": factor["base"] * _BASE_GIB * _GIB + zero,
    }
    if counted != "allocated":
        moving = sum(found.values()) - p.weights - p.optimizer
        found["pool"] = factor["pool"] * (_NEEDED_POOL if counted == "needed" else _POOL) * moving
    if counted in ("device", "needed"):
        found["context"] = factor["context"] * _GIB * (_CONTEXT_GIB + np.where(kind.several, _NCCL_GIB, 0.0)) + zero
    return found


def likeliest(software: Software) -> StateCase:
    """Return the likeliest case of a run of this software."""
    return max(cases(software), key=lambda one: one.weight)


def published_parts(a: WorkloadArrays) -> dict[str, np.ndarray]:
    """Return the expected allocated bytes at the peak of workloads by part, for their likeliest case."""
    return peak(parts(a, likeliest(a.software or Software())), Kind.of(a), "allocated", factors(a.software))


def factors(software: Software | None, belief: PublishedMemory | None = None) -> dict[str, float]:
    """Return the factor on each counted part for one software package."""
    belief = belief or load_published_memory()
    own = belief.software_factor(software)[0]
    return {name: float(np.exp(belief.factors[name][0])) for name in FACTORS} | {"software": float(np.exp(own))}


def published_mixture(a: WorkloadArrays, counted: str, belief: PublishedMemory | None = None) -> Mixture:
    """Return the memory of published software for workloads of one kind; `counted` works as in `peak`."""
    belief = belief or load_published_memory()
    kind, factor, found = Kind.of(a), factors(a.software, belief), []
    for case in cases(a.software or Software()):
        p = a.memo[case] = a.memo.get(case) or parts(a, case)
        found.append((case.weight, peak(p, kind, counted, factor)))
    return mixture(found, kind, belief)


def mixture(found: Sequence[tuple[float, Mapping[str, np.ndarray]]], kind: Kind, belief: PublishedMemory) -> Mixture:
    """Return the mixture of cases, each with its weight and its peak memory in bytes by component."""
    # The deviation of each part is the spread between people and the error of the factor.
    fitted: dict[str, np.ndarray | float] = {name: belief.factors[name][1] for name in _OTHERS}
    fitted |= {"logits": belief.factors[f"logits {kind.loss}"][1], "state": 0.0}
    kept = np.hypot(belief.factors[f"activations {kind.name}"][1], belief.software_factor(kind.software)[1])
    part = np.hypot(belief.factors["selective"][1], belief.spreads["selective"])
    fitted["activations"] = np.asarray(np.where(kind.selective, np.hypot(kept, part), kept))
    deviations, more = {name: np.hypot(belief.spreads[name], own) for name, own in fitted.items()}, belief.more
    logs: list[np.ndarray] = []
    variances: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for weight, held in found:
        total = np.sum(list(held.values()), axis=0)
        state = np.sum([held[name] for name in _STATE], axis=0)
        groups = {"state": state} | {name: bytes_ for name, bytes_ in held.items() if name not in _STATE}
        shares = [(bytes_ / total * deviations[name]) ** 2 for name, bytes_ in groups.items()]
        variance = belief.row**2 + np.sum(shares, axis=0)
        logs += [np.log(total), np.log(total) + more["shift"]]
        variances += [variance, variance + more["deviation"] ** 2]
        weights += [np.full(len(total), weight * share) for share in (1 - more["chance"], more["chance"])]
    return Mixture(logs=np.array(logs), deviations=np.sqrt(variances), weights=np.array(weights))
