"""Peak memory of published runs, whose software keeps other tensors alive than this project's trainer.

The trainer's own peak is traced (`memory_terms`). Of other software the tensors are counted: state by what weights and
gradients are kept in, activations by the operations that save them, logits by the copies that the loss makes. What is
not said is a mixture of a few cases, each with its weight; a few factors on the counts are fitted to published peaks
(`benchmarks/fit_memory.py` writes profiles/published_memory.yaml). Numpy only.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import yaml

from advisor.errors import AdvisorError
from advisor.prediction.intervals import EstimateArrays
from advisor.prediction.memory_terms import WorkloadArrays
from advisor.prediction.software import Named, table
from advisor.prediction.trained import trained_parameters, trained_share
from advisor.records import Software
from advisor.store.folders import profiles_folder

_GIB = float(1 << 30)
# Bytes per parameter: weights, their fp32 master copy with both moments, gradients (sources §2.1).
_STATE_BYTES: dict[str, tuple[float, float, float]] = {"fp32": (4, 8, 4), "copied": (2, 12, 2), "16bit": (2, 4, 2)}
# Other states that a run may have after all where nobody says, with their weights: people load checkpoints in their
# own 16 bits, or leave it to DeepSpeed.
_OTHER_STATES = {
    "fp32": (("16bit", 0.85), ("copied", 0.15)),
    "copied": (("fp32", 0.5), ("16bit", 0.5)),
    "16bit": (("fp32", 0.5), ("copied", 0.5)),
}
# Frozen weights are 16-bit; in 4 bits with a 32-bit scale for each 64 of them (QLoRA, Dettmers et al. 2023, §3).
_FROZEN_BYTES, _NF4_BYTES = 2.0, 0.5 + 4 / 64
# Megatron and DeepSpeed reduce and gather in buckets of 5e8 elements, and ZeRO-3 keeps up to 1e9 gathered ones
# (DeepSpeed's documented defaults), 16-bit each.
_BUCKET_ELEMENTS, _LIVE_ELEMENTS = 5e8, 1e9
# Matrices of 4 bits keep their input, and bitsandbytes' products their output: 15 to 25 bytes per token and width more
# than frozen 16-bit matrices (LitGPT's published pairs of LoRA and QLoRA, six models).
_UNPACKED_BYTES = 16.0
# How much of the gradients is alive with the activations where a step is one micro-batch on one GPU: wrappers hold them
# as often as not (Hugging Face's rows of two people).
_WRAPPERS_HOLD = 0.5
# Per-operator checkpointing keeps attention's output and every second matrix product (torchtitan): about a third.
_SELECTIVE = 0.4
_CHUNKED_LOGIT_BYTES = 1.0  # of a loss in chunks, over all tokens
_LOGIT_BYTES = {"compiled": 7.0, "megatron": 16.0, "c": 4.0}
# Before any published peak: pools beyond what is allocated, as a share of what comes and goes; GiB of the driver and of
# the communication library (sources §2.4).
_POOL, _NEEDED_POOL, _CONTEXT_GIB, _NCCL_GIB = 0.08, 0.02, 0.6, 1.0
_BASE_GIB = 0.25  # workspaces, batches, small tensors, what loading left behind
CLASSES = ("plain", "hf", "compiled", "megatron", "c")  # of what operations keep
PARTS = ("activations", "logits")  # whose factor depends on the class
_STATE = ("weights", "optimizer", "gradients", "inputs")  # whose bytes are counted as sure
FACTORS = (
    *(f"{part} {name}" for part in PARTS for name in CLASSES),
    "selective",
    "gathered",
    "base",
    "pool",
    "context",
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing that a run may be where it does not say: what its state is, and how its loss is taken."""

    state: str
    whole_logits: bool
    weight: float


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Bytes by what holds them, each of shape (n,), before any factor."""

    weights: np.ndarray
    optimizer: np.ndarray
    gradients: np.ndarray
    stepping: np.ndarray  # what the optimizer's step makes anew: moments' roots of all weights, Muon's stacked matrices
    held: np.ndarray  # of the gradients, what is alive while activations are
    inputs: np.ndarray  # of recomputed blocks
    activations: np.ndarray  # that blocks keep until their backward pass
    worked: np.ndarray  # of the one block that is recomputed at a time
    logits: np.ndarray
    gathered: np.ndarray  # 16-bit weights gathered or cast for use, buckets of collectives


@dataclass(frozen=True, kw_only=True)
class PublishedMemory:
    """What published peaks teach about the counts; each factor by the log of its mean and its standard deviation."""

    factors: Mapping[str, tuple[float, float]]
    software: Mapping[str, tuple[float, float]]  # of the activations of one named software
    spreads: Mapping[str, float]  # between people: log standard deviation of activations, logits, state and the rest
    more: Mapping[str, float]  # how likely a run holds more than anybody says: chance, log shift, log deviation
    row: float  # of one peak around its owner's others

    def software_factor(self, software: Software | None) -> tuple[float, float]:
        """Log of what one software's activations are multiplied by, and its standard deviation."""
        unknown = (0.0, self.spreads["software"])
        return self.software.get(software.name or "", unknown) if software is not None else unknown


@lru_cache(maxsize=1)
def load_published_memory() -> PublishedMemory:
    """Read profiles/published_memory.yaml; raises AdvisorError where it is unusable."""
    path = profiles_folder() / "published_memory.yaml"
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "reinstall the package, or run benchmarks/fit_memory.py in a checkout"
        raise AdvisorError(f"cannot read {path}: {error.strerror}", hint) from error
    pairs = {key: {name: tuple(pair) for name, pair in raw[key].items()} for key in ("factors", "software")}
    return PublishedMemory(spreads=raw["spreads"], more=raw["more"], row=raw["row"], **pairs)


def cases(software: Software) -> tuple[Case, ...]:
    """Every case that a run of this software may be, likeliest first; the weights add up to one."""
    chance = software.state_chance
    states = [(software.state, chance)]
    if chance < 1:
        states += [(name, (1 - chance) * share) for name, share in _OTHER_STATES[software.state]]
    losses = ((True, 0.6), (False, 0.4)) if software.whole_logits is None else ((software.whole_logits, 1.0),)
    return tuple(
        Case(state=state, whole_logits=whole, weight=weight * share)
        for (state, weight), (whole, share) in itertools.product(states, losses)
    )


def class_of(a: WorkloadArrays) -> str:
    """Which of CLASSES decides what a run's operations keep."""
    software = a.software or Software()
    if software.kind in ("c", "megatron"):
        return software.kind
    if a.compile or software.kind == "fused" or (software.fused_kernels and software.kind != "tuned"):
        return "compiled"
    return "hf" if _models_of_hf(software) else "plain"


def _models_of_hf(software: Software) -> bool:
    """Whether it trains Hugging Face's own code of a model."""
    named = table().get(software.name or "")
    return named is not None and named.hf_models


def parts(a: WorkloadArrays, case: Case) -> Parts:
    """Count what one case holds, shape (n,).

    Of adapters the weights are those that stay frozen too, gradients and moments their own. Below the first block that
    is trained nothing is kept for a backward pass that does not reach it.
    """
    software = a.software or Software()
    named = table().get(software.name or "")
    adapters = software.adapters
    # PEFT keeps adapters in fp32 beside 16-bit weights (its autocast_adapter_dtype)
    state = "fp32" if adapters is not None and _models_of_hf(software) else case.state
    weight, moments, gradient = _STATE_BYTES[state]
    if case.state == "copied" and named is not None and named.gradients == "fp32":
        gradient = 4
    if software.moment_bytes is not None and adapters is None:
        moments = software.moment_bytes + (4 if case.state == "copied" else 0)
    weights_shards, state_shards = {"none": (1, 1), "optimizer": (1, a.gpus), "full": (a.gpus, a.gpus)}[a.sharding]
    n = (a.parameters + software.extra_parameters).astype(float)
    trained = trained_parameters(a).astype(float)
    frozen = _FROZEN_BYTES * (n if adapters is not None else n - trained)
    if adapters is not None and adapters.quantized:
        if _models_of_hf(software):  # PEFT makes all that is not quantized fp32 (prepare_model_for_kbit_training)
            frozen = frozen + 2.0 * (n - a.block_matrices)
        frozen = frozen + (_NF4_BYTES - _FROZEN_BYTES) * a.block_matrices
    halved = np.zeros(len(n))  # parameters of embedding tables that are in 16 bits with moments in 16
    if named is not None and named.half_tables and case.state == "fp32":
        halved = (a.vocab_size * a.width + max(software.extra_parameters, 0)).astype(float)
    muon = a.optimizer == "muon" and adapters is None  # one moment instead of two
    saved = 4.0 * a.block_matrices * trained_share(a) if muon else 0.0
    hf = _models_of_hf(software)
    gradients = 0.0 * n if software.steps_in_backward else (trained * gradient - 2.0 * halved) / weights_shards
    inputs, kept, worked = _activations(a, software, named, case)
    return Parts(
        weights=(trained * weight + frozen - 2.0 * halved) / weights_shards,
        optimizer=(trained * moments - saved - 4.0 * halved) / state_shards,
        gradients=gradients,
        stepping=_step_bytes(a, named)
        * (moments / 8 if a.optimizer != "muon" else 1.0)
        * (a.block_matrices * trained_share(a) if muon else trained)
        / state_shards,
        held=gradients * (1.0 if a.gpus > 1 else np.where(a.accumulate, 1.0, _WRAPPERS_HOLD if hf else 0.0)),
        inputs=inputs * trained_share(a),
        activations=kept * trained_share(a),
        worked=worked,
        logits=_logit_bytes(a, named, case) * a.tokens * a.vocab_size,
        gathered=_gathered(a, software, case),
    )


def _activations(
    a: WorkloadArrays, software: Software, named: Named | None, case: Case
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs of recomputed blocks, what blocks keep for their backward pass, and the one block worked on."""
    tokens, element = a.tokens.astype(float), 4.0 if a.precision == "fp32" else 2.0
    block = tokens * _kept_bytes(a, software, named, case)
    if not software.fused_attention:  # softmax's output and, in 16 bits, its copy; dropout's mask and output
        block = block + (6.0 if element == 2.0 else 9.0) * a.heads * a.seq_len * tokens
    nothing = np.zeros_like(block)
    if a.activation_checkpointing == "full":
        stream = 4.0 if _autocast(a, case) and class_of(a) in ("plain", "hf") else element
        return a.depth * tokens * stream * a.width, nothing, block
    if a.activation_checkpointing == "selective":
        return nothing, a.depth * _SELECTIVE * block, (1 - _SELECTIVE) * block
    return nothing, a.depth * block, nothing


def _kept_bytes(a: WorkloadArrays, software: Software, named: Named | None, case: Case) -> np.ndarray:
    """Bytes that a block keeps per token: what each of its operations saves for its backward pass.

    Two norms' inputs and outputs, q, k, v, attention's output; a plain FFN's numbers before and after its activation
    function, a gated one's gate too. The compiler keeps as much (its partitioner, asked for such blocks).
    """
    element = 4.0 if a.precision == "fp32" else 2.0
    width, keys, ffn = a.width, a.kv_heads * a.head_dim, a.ffn_width
    kept = element * (6.0 * width + 2.0 * keys + (4.0 if a.family == "llama" else 2.0) * ffn)
    kept = kept + 2.0 * (named.extra_lanes if named is not None else 0.0) * width
    if class_of(a) not in ("plain", "hf"):
        return kept
    autocast = _autocast(a, case)
    # attention's output is copied to be contiguous; norms keep an fp32 input (and, written out as in llamas, its
    # normalized product) beside what the products take
    kept = kept + element * width + {"llama": 12.0 if autocast else 8.0}.get(a.family, 4.0 * autocast) * width
    if software.adapters is not None and software.adapters.quantized:
        kept = kept + _UNPACKED_BYTES * width
    elif software.adapters is not None and software.adapters.targets == "attention":
        kept = kept - element * ffn  # the input of a frozen matrix is not kept
    if class_of(a) != "hf":
        return kept
    if a.family == "llama":  # keys and values repeated for every head
        return kept + element * 2.0 * (width - keys)
    return kept + 3.0 * element * ffn + 3.0 * width  # GELU written out keeps three more of the FFN's width; dropout


def _autocast(a: WorkloadArrays, case: Case) -> bool:
    """Whether what passes through the blocks is fp32 between 16-bit products; FSDP gathers weights in 16 bits, so that
    all is.
    """
    return case.state == "fp32" and a.precision != "fp32" and a.sharding != "full"


def _step_bytes(a: WorkloadArrays, named: Named | None) -> float:
    """Bytes per weight that the optimizer's step makes anew.

    With fp32 moments AdamW takes the root of all second moments at once, unless it is PyTorch's fused one.
    """
    if named is not None:
        return named.step_bytes
    return 0.0 if a.optimizer == "muon" else 2.0  # the fused one as often as not


def _logit_bytes(a: WorkloadArrays, named: Named | None, case: Case) -> float:
    """Bytes per token and row of the vocabulary at the loss's peak.

    Eager: the 16-bit logits, log-probabilities in fp32 (autocast, Hugging Face's copy), the gradients of NLL and of
    softmax, each as large. All in 16 bits without a copy: 2 x 4. A compiler fuses some; where it has the head and the
    loss in one, the logits and their gradient are left (sources §2.3), which is the software's own number.
    """
    if not case.whole_logits:
        return _CHUNKED_LOGIT_BYTES
    kind = class_of(a)
    if kind == "compiled" and named is not None and named.logit_bytes is not None:
        return named.logit_bytes
    if kind in _LOGIT_BYTES:
        return _LOGIT_BYTES[kind]
    if a.precision == "fp32":
        return 16.0
    return 12.0 if kind == "hf" else 14.0 if _autocast(a, case) else 8.0


def _gathered(a: WorkloadArrays, software: Software, case: Case) -> np.ndarray:
    table_size = a.vocab_size * a.width
    if software.adapters is not None and a.sharding != "full":  # a matrix on its way from 4 bits; no gradients of it
        return 2.0 * a.width * a.ffn_width if software.adapters.quantized else np.zeros(len(a.depth))
    if a.sharding == "full":  # two blocks on their way, both tables, and a block's gradient before it is scattered
        live = 2.0 * np.minimum(_BUCKET_ELEMENTS + _LIVE_ELEMENTS, a.parameters) if case.state == "copied" else 0.0
        block = 6.0 if software.adapters is None else 2.0 * _NF4_BYTES if software.adapters.quantized else 4.0
        return block * a.block_parameters + 2.0 * table_size * (1 if a.family == "gpt2" else 2) + live
    if case.state == "copied" and (a.gpus > 1 or software.kind == "wrapper"):
        return 2.0 * 2.0 * np.minimum(_BUCKET_ELEMENTS, a.parameters)
    if case.state == "fp32" and a.precision != "fp32" and a.activation_checkpointing != "full":
        return 2.0 * a.block_matrices  # autocast keeps its casts until the forward pass ends
    return np.zeros(len(a.depth))


def peak(
    a: WorkloadArrays, case: Case, counted: str, factor: Mapping[str, float], p: Parts | None = None
) -> dict[str, np.ndarray]:
    """The bytes at the peak of one case by what holds them, each times its factor; they add up to the peak.

    `counted`: allocated, reserved (by the allocator), device (all that the driver sees), or needed (the least that a
    device must have: the allocator gives back what it only keeps before it fails). The peak is at the start of
    the backward pass, where all activations and the logits live, or in the optimizer's step, where all gradients do.
    """
    p, kind = p or a.memo.get(case) or parts(a, case), class_of(a)
    a.memo[case] = p
    blocks = factor[f"activations {kind}"] * factor["software"]
    kept = blocks * p.activations * (factor["selective"] if a.activation_checkpointing == "selective" else 1.0)
    logits, worked = factor[f"logits {kind}"] * p.logits, blocks * p.worked
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
        found["context"] = factor["context"] * _GIB * (_CONTEXT_GIB + (_NCCL_GIB if a.gpus > 1 else 0.0)) + zero
    return found


def published_parts(a: WorkloadArrays) -> dict[str, float]:
    """Expected allocated bytes of one workload's likeliest case, by what holds them at its peak."""
    case = max(cases(a.software or Software()), key=lambda one: one.weight)
    found = {name: float(held[0]) for name, held in peak(a, case, "allocated", factors(a.software)).items()}
    return found | {"activations": found["activations"] + found["inputs"]}


def factors(software: Software | None, belief: PublishedMemory | None = None) -> dict[str, float]:
    """What each counted group is multiplied by, of one software."""
    belief = belief or load_published_memory()
    own = belief.software_factor(software)[0]
    return {name: float(np.exp(belief.factors[name][0])) for name in FACTORS} | {"software": float(np.exp(own))}


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Bytes of n workloads, each a mixture of log-normal cases, shapes (cases, n)."""

    logs: np.ndarray
    deviations: np.ndarray
    weights: np.ndarray  # each column adds up to one

    def below(self, limit_bytes: np.ndarray | float) -> np.ndarray:
        """How likely each workload stays below a limit, shape (n,)."""
        return (self.weights * _normal((np.log(limit_bytes) - self.logs) / self.deviations)).sum(axis=0)

    def quantiles(self, shares: np.ndarray) -> np.ndarray:
        """The bytes that each workload stays below with each probability, shapes (k, n); by bisection in log bytes."""
        low = np.broadcast_to((self.logs - 5 * self.deviations).min(axis=0), shares.shape)
        high = np.broadcast_to((self.logs + 5 * self.deviations).max(axis=0), shares.shape)
        for _ in range(20):  # to a part in 1e5
            middle = (low + high) / 2
            z = (middle[:, None, :] - self.logs) / self.deviations
            under = (self.weights * _normal(z)).sum(axis=1) < shares
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.exp((low + high) / 2)

    def estimates(self, ran_in: float | None = None) -> EstimateArrays:
        """Median and 80 % interval; `ran_in`: of a run that is known to have run in so many bytes."""
        whole = np.ones(self.logs.shape[1]) if ran_in is None else np.maximum(self.below(ran_in), 1e-6)
        low, value, high = self.quantiles(np.array([[0.1], [0.5], [0.9]]) * whole)
        return EstimateArrays(value=value, low=low, high=high)


def published_mixture(a: WorkloadArrays, counted: str, belief: PublishedMemory | None = None) -> Mixture:
    """What published software is believed to hold, of workloads of one kind; `counted` as in `peak`."""
    belief = belief or load_published_memory()
    factor, unsure = factors(a.software, belief), _deviations(a, belief)
    logs: list[np.ndarray] = []
    variances: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for case in cases(a.software or Software()):
        found = peak(a, case, counted, factor)
        total = np.sum(list(found.values()), axis=0)
        state = np.sum([found[name] for name in _STATE], axis=0)
        groups = {"state": state} | {name: held for name, held in found.items() if name not in _STATE}
        variance = belief.row**2 + np.sum([(held / total * unsure[name]) ** 2 for name, held in groups.items()], axis=0)
        more = belief.more
        logs += [np.log(total), np.log(total) + more["shift"]]
        variances += [variance, variance + more["deviation"] ** 2]
        weights += [np.full(len(a.depth), case.weight * share) for share in (1 - more["chance"], more["chance"])]
    return Mixture(logs=np.array(logs), deviations=np.sqrt(variances), weights=np.array(weights))


def _deviations(a: WorkloadArrays, belief: PublishedMemory) -> dict[str, float]:
    """Standard deviations of the logs of what each group holds: between people, and of the factors themselves."""
    kind, own = class_of(a), belief.software_factor(a.software)[1]
    learnt = {name: belief.factors[name][1] for name in ("gathered", "base", "pool", "context")}
    learnt |= {"activations": float(np.hypot(belief.factors[f"activations {kind}"][1], own))}
    learnt |= {"logits": belief.factors[f"logits {kind}"][1], "state": 0.0}
    if a.activation_checkpointing == "selective":
        part = float(np.hypot(belief.factors["selective"][1], belief.spreads["selective"]))
        learnt["activations"] = float(np.hypot(learnt["activations"], part))
    return {name: float(np.hypot(belief.spreads[name], deviation)) for name, deviation in learnt.items()}


def _normal(z: np.ndarray) -> np.ndarray:
    """The normal distribution function, to 1e-7 (Abramowitz and Stegun 7.1.26): numpy has none."""
    t = 1 / (1 + 0.3275911 * np.abs(z) / np.sqrt(2))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    tail = 0.5 * series * np.exp(-(z**2) / 2)
    return np.where(z > 0, 1 - tail, tail)
