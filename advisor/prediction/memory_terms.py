"""The memory of a training step of this project's trainer, as sums of products of sizes with traced coefficients.

At any moment of a step the live bytes are a sum of products of sizes, such as 14·L·t·d for the saved activations. The
peak is the largest of a few such moments. The moments and their coefficients were traced from the trainer's model:
`benchmarks/trace_memory.py` writes profiles/memory.json.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

import numpy as np

from advisor.errors import AdvisorError
from advisor.laws import flops
from advisor.records import Software, Workload
from advisor.settings import OPTIMIZERS, PRECISIONS, SHARDINGS

# Each term is a product of sizes. L: blocks; t: tokens of a micro-batch; d: width; f: FFN width; k: width of the keys;
# h: query heads; q: head size; p: parameters of a block; V: vocabulary; T: context; c: tokens of one chunk of the loss.
TERMS = (
    "L*t*d", "L*t*f", "L*t*k", "L*t*h", "L*t", "t*d", "t*f", "t*k", "t*h", "t",
    "L*p", "f*d", "d*d", "k*d", "V*d", "T*d", "T*q", "c*V", "c*d", "c", "L", "1",
)  # fmt: skip

_ROWS_AT_ONCE = 16384  # workloads at once, so that their terms fit in the cache of a core
_SIZES = ("depth", "width", "heads", "kv_heads", "ffn_width", "vocab_size", "seq_len")


@dataclass(frozen=True, kw_only=True)
class WorkloadArrays:
    """Many workloads that differ only in sizes. The sizes are integer arrays of one length; the rest is common to all.

    The class provides the attributes of a ModelShape, so that the functions of `flops` work on all workloads at once.
    """

    family: str
    device_type: str  # cpu | cuda
    precision: str
    compile: bool
    activation_checkpointing: str
    optimizer: str
    sharding: str
    gpus: int
    depth: np.ndarray
    width: np.ndarray
    heads: np.ndarray
    kv_heads: np.ndarray
    ffn_width: np.ndarray
    vocab_size: np.ndarray
    seq_len: np.ndarray
    micro_batch: np.ndarray
    accumulate: np.ndarray  # bool: more than one micro-batch per step
    software: Software | None = None

    @classmethod
    def of(cls, workloads: Sequence[Workload]) -> WorkloadArrays:
        """Return workloads that differ only in sizes, as arrays. Raises ValueError if they differ in more."""
        common = {_common(w) for w in workloads}
        if len(common) != 1:
            raise ValueError(f"workloads of {len(common)} kinds cannot be gathered into one")
        sizes = {name: np.array([getattr(w.shape, name) for w in workloads], dtype=np.int64) for name in _SIZES}
        first = workloads[0]
        return cls(
            family=first.shape.family,
            device_type=device_type(first),
            precision=first.precision,
            compile=first.compile,
            activation_checkpointing=first.activation_checkpointing,
            optimizer=first.optimizer,
            sharding=first.sharding,
            gpus=first.gpus,
            software=first.software,
            micro_batch=np.array([w.micro_batch for w in workloads], dtype=np.int64),
            accumulate=np.array([w.grad_accum > 1 for w in workloads]),
            **sizes,
        )

    def rows(self, chosen: np.ndarray) -> WorkloadArrays:
        """Return the chosen workloads."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in (*_SIZES, "micro_batch", "accumulate")})

    @cached_property
    def memo(self) -> dict:
        """A cache for results about these workloads, shared by all functions."""
        return {}

    @cached_property
    def sizes(self) -> tuple[tuple[int, ...], ...]:
        """The sizes of the models, as a key of a cache."""
        return tuple(tuple(getattr(self, name).tolist()) for name in _SIZES)

    @property
    def head_dim(self) -> np.ndarray:
        return self.width // self.heads

    @property
    def tokens(self) -> np.ndarray:
        return self.micro_batch * self.seq_len

    @property
    def grouped(self) -> np.ndarray:
        """True for workloads with fewer key heads than query heads."""
        return self.kv_heads < self.heads

    @cached_property
    def parameters(self) -> np.ndarray:
        return flops.parameters(self)

    @cached_property
    def block_parameters(self) -> np.ndarray:
        """Parameters of one block, biases and norms included."""
        tables = self.vocab_size * self.width * (1 if self.family == "gpt2" else 2)
        others = {"gpt2": self.seq_len + 2, "llama": 1, "nanochat": 0}[self.family] * self.width
        return (self.parameters - tables - others) // self.depth

    @cached_property
    def block_matrices(self) -> np.ndarray:
        """Weights of the matrices in all blocks, which Muon updates."""
        return flops.block_matrix_parameters(self)

    @cached_property
    def trained_parameters(self) -> np.ndarray:
        """Number of trained parameters. If blocks are frozen, so are the embeddings, and a tied head with them."""
        if self.software is None:
            return self.parameters
        if (adapters := self.software.adapters) is not None:
            return flops.adapter_parameters(self, adapters.rank, adapters.targets)
        every = self.parameters + self.software.extra_parameters + self.software.expert_parameters
        if not self.software.frozen_blocks:
            return every
        return every - self.software.frozen_blocks * self.block_parameters - self.vocab_size * self.width

    @property
    def trained_share(self) -> np.ndarray | float:
        """Share of the blocks with a backward pass; 1 if no block is frozen."""
        frozen = self.software.frozen_blocks if self.software is not None else 0
        return 1.0 - frozen / self.depth if frozen else 1.0


def device_type(workload: Workload) -> str:
    """Return "cpu" or "cuda". Every catalog key except "cpu" is a CUDA device."""
    return "cpu" if workload.gpu == "cpu" else "cuda"


def repeats_keys(device_type: str, precision: str) -> bool:
    """Return True if the trainer repeats keys and values for grouped-query attention, which takes extra memory.

    It does so on CUDA in types other than bf16, for which PyTorch has no fused kernel with grouped heads.
    """
    return device_type == "cuda" and precision != "bf16"


def by_kind(workloads: Sequence[Workload]) -> list[list[int]]:
    """Return the indices of workloads in groups, each of which can become one `WorkloadArrays`."""
    kinds: dict[tuple, list[int]] = {}
    for place, workload in enumerate(workloads):
        kinds.setdefault(_common(workload), []).append(place)
    return list(kinds.values())


def _common(w: Workload) -> tuple:
    kind = (w.shape.family, device_type(w), w.precision, w.compile)
    return (*kind, w.activation_checkpointing, w.optimizer, w.sharding, w.gpus, w.software)


@dataclass(frozen=True, kw_only=True)
class LossChunks:
    """How the trainer's loss splits tokens into chunks on one type of device: a copy of `trainer.loss`'s constants."""

    chunk_bytes: int  # of fp32 logits
    fewest_tokens: int

    def tokens_per_chunk(self, tokens: np.ndarray, vocab_size: np.ndarray) -> np.ndarray:
        """Return the tokens of one chunk by the rule of `trainer.loss.tokens_per_chunk`, which needs torch."""
        most = np.maximum(self.fewest_tokens, self.chunk_bytes // (4 * vocab_size))
        pairs, place = np.unique((tokens << 32) + most, return_inverse=True)  # one sort for both
        chunks = [_chunk(int(pair) >> 32, int(pair) & 0xFFFFFFFF) for pair in pairs]
        return np.array(chunks, dtype=np.int64)[place]


@lru_cache(maxsize=100_000)
def _chunk(tokens: int, most: int) -> int:
    fewest = -(-tokens // most)
    return next((tokens // n for n in range(fewest, 2 * fewest) if tokens % n == 0), min(most, tokens))


@dataclass(frozen=True, kw_only=True)
class Moment:
    """One moment of a step at which memory may reach its peak."""

    phase: str
    coefficients: Mapping[str, float]  # bytes per unit of a term

    @cached_property
    def vector(self) -> np.ndarray:
        return np.array([self.coefficients.get(term, 0.0) for term in TERMS])


@dataclass(frozen=True, kw_only=True)
class Structure:
    """All traced moments. `cells` maps device/family/precision/checkpointing/accumulation to the moments of a step."""

    cells: Mapping[str, tuple[Moment, ...]]
    steps: Mapping[str, Mapping[str, float]]  # workspace of an optimizer's step, by `Optimizer.workspace`
    chunks: Mapping[str, LossChunks]  # by device type
    source: str
    memo: dict = field(default_factory=dict, init=False, repr=False, compare=False)  # by kind of workload

    def moments(self, a: WorkloadArrays) -> tuple[Moment, ...]:
        """Return the moments for workloads of one kind. Raises AdvisorError if the kind was never traced.

        A step with gradient accumulation begins with a micro-batch that finds no gradients, so it has all moments of a
        step without, and its peak is never lower.
        """
        # Like gradient accumulation, DistributedDataParallel keeps all gradients alive in its buckets.
        held = ("single", "accumulate") if a.accumulate[0] or a.gpus > 1 else ("single",)
        moments = tuple(moment for gradients in held for moment in self._traced(a, gradients))
        return tuple(_compiled(m, a.precision) for m in moments) if a.compile else moments

    def _traced(self, a: WorkloadArrays, gradients: str) -> tuple[Moment, ...]:
        repeated = "/grouped" if repeats_keys(a.device_type, a.precision) and a.grouped[0] else ""
        cell = f"{a.device_type}/{a.family}/{a.precision}/{a.activation_checkpointing}/{gradients}{repeated}"
        if a.activation_checkpointing == "selective" and cell not in self.cells:
            cell = cell.replace("/selective/", "/none/")  # never traced on the CPU: "none" overestimates
        if cell not in self.cells:
            raise AdvisorError(f"the memory of {cell} was never traced", f"python benchmarks/trace_memory.py {cell}")
        return self.cells[cell]

    def terms(self, a: WorkloadArrays, names: Sequence[str] = TERMS) -> np.ndarray:
        """Return the value of each named term for every workload, shape (n, len(names))."""
        blocks = a.block_parameters
        size = {
            "L": a.depth, "t": a.tokens, "d": a.width, "f": a.ffn_width, "k": a.kv_heads * a.head_dim, "h": a.heads,
            "q": a.head_dim, "p": blocks, "V": a.vocab_size, "T": a.seq_len, "c": self._chunk_tokens(a),
            "1": np.ones_like(a.depth),
        }  # fmt: skip
        size = {symbol: value.astype(float) for symbol, value in size.items()}
        table = np.empty((len(a.depth), len(names)), order="F")
        for column, name in enumerate(names):
            first, *rest = name.split("*")
            table[:, column] = size[first]
            for symbol in rest:
                table[:, column] *= size[symbol]
        return table

    def _chunk_tokens(self, a: WorkloadArrays) -> np.ndarray:
        return self.chunks[a.device_type].tokens_per_chunk(a.tokens, a.vocab_size)

    def persistent_bytes(self, a: WorkloadArrays) -> np.ndarray:
        """Return the bytes of fp32 weights and optimizer state: 12 per parameter with AdamW, 8 per matrix with Muon.

        Sharding splits the state over the GPUs. "full" (ZeRO-3, FSDP) splits the weights too.
        """
        optimizer, (weights, moments, _) = OPTIMIZERS[a.optimizer], SHARDINGS[a.sharding].shares(a.gpus)
        state = 4.0 * optimizer.moments * a.parameters - optimizer.saved_bytes * a.block_matrices
        return 4.0 * a.parameters / weights + state / moments

    def moment_values(self, a: WorkloadArrays) -> list[tuple[Moment, np.ndarray]]:
        """Return every moment with its live bytes beyond `persistent_bytes`, shape (n,).

        The bytes are −inf for workloads without this moment. All workloads must have the same `accumulate` and
        `grouped`.
        """
        how = (a.precision, a.compile, a.activation_checkpointing, a.gpus > 1)
        kind = (a.device_type, a.family, bool(a.accumulate[0]), bool(a.grouped[0]), *how)
        if kind not in self.memo:
            moments = self.moments(a)
            names = [term for term in TERMS if any(term in moment.coefficients for moment in moments)]
            table = np.array([[m.coefficients.get(n, 0.0) for m in moments] for n in names])
            self.memo[kind] = moments, names, table
        moments, names, table = self.memo[kind]
        values = self.terms(a, names) @ table
        several = a.tokens > self._chunk_tokens(a)
        pairs = [
            (moment, np.where(several, column, -np.inf) if moment.phase == "later_chunk" else column)
            for moment, column in zip(moments, values.T, strict=True)
        ]
        # The optimizer step finds all gradients.
        workspace = Moment(phase="optimizer", coefficients=self.steps.get(OPTIMIZERS[a.optimizer].workspace, {}))
        needed = self.terms(a, [*workspace.coefficients]) @ np.array([*workspace.coefficients.values()])
        pairs.append((workspace, 4.0 * a.parameters + needed))
        return pairs

    def peak_bytes(self, a: WorkloadArrays) -> np.ndarray:
        """Return the peak of the live bytes in a step, shape (n,), as `benchmarks/traced_peak` would measure it."""
        return self.persistent_bytes(a) + self.beyond_bytes(a)

    def beyond_bytes(self, a: WorkloadArrays) -> np.ndarray:
        """Return the peak of the live bytes beyond `persistent_bytes`, shape (n,)."""
        beyond = np.empty(len(a.depth))
        for accumulate, grouped in itertools.product((False, True), repeat=2):
            (rows,) = np.nonzero((a.accumulate == accumulate) & (a.grouped == grouped))
            for some in np.split(rows, range(_ROWS_AT_ONCE, len(rows), _ROWS_AT_ONCE)):
                if len(some):
                    beyond[some] = np.max([values for _, values in self.moment_values(a.rows(some))], axis=0)
        return beyond + self._sharded(a) if SHARDINGS[a.sharding].weights else beyond

    def _sharded(self, a: WorkloadArrays) -> np.ndarray:
        """Return by how many bytes full sharding changes the peak beyond the state, shape (n,).

        Gradients are sharded, and cast weights are not kept, because blocks are gathered in compute type and freed
        after use. Full sharding adds two gathered blocks (the current and the next one) and the gradient of one block,
        which also exists in fp32 for its reduction. Weights outside the blocks stay gathered in fp32, with their
        gradients, from the forward pass to the end of the backward pass.
        """
        precision = PRECISIONS[a.precision]
        kept = 4.0 * a.parameters * (1 - 1 / a.gpus)
        cast = a.block_matrices if precision.casts and a.activation_checkpointing != "full" else 0
        if a.activation_checkpointing == "selective":  # recomputes the cast of the second feed-forward matrix
            cast = cast - (a.depth * a.width * a.ffn_width if precision.casts else 0)
        casts = precision.element_bytes * cast
        return self._gathered(a) - kept - casts

    def _gathered(self, a: WorkloadArrays) -> np.ndarray:
        """Return the bytes of whole layers that full sharding holds at the peak, shape (n,); see `_sharded`."""
        element, outside = float(PRECISIONS[a.precision].element_bytes), a.parameters - a.depth * a.block_parameters
        return (3 * element + 4.0) * a.block_parameters + 8.0 * outside

    def parts_bytes(self, a: WorkloadArrays) -> dict[str, float]:
        """Return the bytes beyond `persistent_bytes` at the peak of one workload, by part."""
        moment, _ = max(self.moment_values(a), key=lambda pair: float(pair[1][0]))
        sums = dict.fromkeys(("gradients", "gathered", "activations", "logits", "overhead"), 0.0)
        for term, value in zip(TERMS, self.terms(a)[0] * moment.vector, strict=True):
            sums[_KIND_OF_TERM.get(term, "activations")] += float(value)
        if moment.phase == "optimizer":
            sums["gradients"] += 4.0 * float(a.parameters[0])
        if SHARDINGS[a.sharding].weights:  # full sharding changes gradients and copies of weights
            sums["gathered"] = float(self._gathered(a)[0])
            sums["gradients"] += float(self._sharded(a)[0]) - sums["gathered"]
        return sums


def _compiled(moment: Moment, precision: str) -> Moment:
    """Return a moment under torch.compile, which fuses the arithmetic on the logits of a chunk.

    The logits, their gradient and the gradient of the previous chunk remain. Blocks save the same tensors as in eager
    mode: for the blocks of the three families, PyTorch's min-cut partitioner saves the same 36 bytes per token and
    width (bf16, FFN of 4·width) as the trace.
    """
    element = float(PRECISIONS[precision].element_bytes)
    most = {"first_chunk": 2 * element, "later_chunk": 3 * element}.get(moment.phase)
    if most is None or moment.coefficients.get("c*V", 0.0) <= most:
        return moment
    return replace(moment, coefficients={**moment.coefficients, "c*V": most})


_WEIGHTS = ("L*p", "f*d", "d*d", "k*d", "V*d", "T*d")
_KIND_OF_TERM = (
    dict.fromkeys(_WEIGHTS, "gradients")
    | dict.fromkeys(("c*V", "c*d", "c"), "logits")
    | dict.fromkeys(("T*q", "L", "1"), "overhead")
)


def structure_from_dict(raw: dict) -> Structure:
    """Return the structure in profiles/memory.json, which benchmarks/trace_memory.py writes."""
    return Structure(
        cells={
            name: tuple(Moment(phase=m["phase"], coefficients=m["bytes"]) for m in moments)
            for name, moments in raw["cells"].items()
        },
        steps={one.workspace: raw[one.workspace] for one in OPTIMIZERS.values() if one.workspace},
        chunks={kind: LossChunks(**values) for kind, values in raw["chunks"].items()},
        source=raw["source"],
    )
