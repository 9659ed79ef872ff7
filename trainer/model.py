"""One decoder-only transformer whose switches give the nanochat, GPT-2 and LLaMA shapes.

Weights are fp32. Under autocast the model casts them itself, once per use, and keeps its residual stream in bf16 too
(as nanochat does). If autocast chose per operation, fp32 copies would be kept around every norm. With fp16, whose range
a residual stream can exceed, the stream stays fp32.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trainer.cpu_kernels import RmsNormFunction, causal_attention, is_eager_cpu
from trainer.loss import Pointwise, chunk_gradient, chunk_gradient_pure, linear_cross_entropy
from trainer.schema import ModelShape
from trainer.split import first_row, is_split, local_rows

ROTARY_BASE = 10_000.0  # Su et al. 2021, "RoFormer"; nanochat and LLaMA use it too
_INIT_STD = 0.02  # GPT-2 and LLaMA
# Each compiled shape of block is one recompilation of the same code, and a worker process meets many. The compiler's
# default of 8 would silently fall back to uncompiled code.
_RECOMPILE_LIMIT = 512


@dataclass(frozen=True, kw_only=True)
class _Style:
    """What distinguishes the families besides their sizes."""

    norm: str  # rms | rms_weight | layer
    norm_eps: float
    mlp: str  # relu2 | gelu | swiglu
    bias: bool
    rotary: bool
    qk_norm: bool
    embedding_norm: bool
    tied: bool
    softcap: float | None


# nanochat as of December 2025 (karpathy/nanochat 92c6654); GPT-2: Radford et al. 2019; LLaMA: Touvron et al. 2023.
_STYLES = {
    "nanochat": _Style(
        norm="rms", norm_eps=1e-6, mlp="relu2", bias=False, rotary=True, qk_norm=True,
        embedding_norm=True, tied=False, softcap=15.0,
    ),
    "gpt2": _Style(
        norm="layer", norm_eps=1e-5, mlp="gelu", bias=True, rotary=False, qk_norm=False,
        embedding_norm=False, tied=True, softcap=None,
    ),
    "llama": _Style(
        norm="rms_weight", norm_eps=1e-5, mlp="swiglu", bias=False, rotary=True, qk_norm=False,
        embedding_norm=False, tied=False, softcap=None,
    ),
}  # fmt: skip


def build_model(shape: ModelShape, *, activation_checkpointing: str = "none") -> Transformer:
    """Build and initialise the model of a shape on the current default device, from the global random generator.

    Under `torch.device("meta")` it takes no memory. "full" activation checkpointing keeps only each block's input and
    recomputes the rest in the backward pass. "selective" recomputes the feed-forward's activation from its input, so
    that no matrix product is done twice.
    """
    return Transformer(shape, activation_checkpointing=activation_checkpointing)


class Transformer(nn.Module):
    """Turns token ids (batch, time) into hidden states (batch, time, width), or with targets into the mean loss."""

    rotary: Tensor | None  # a buffer; without this annotation its type would be tensor or module

    def __init__(self, shape: ModelShape, *, activation_checkpointing: str = "none"):
        super().__init__()
        style = _STYLES[shape.family]
        self.shape = shape
        self.softcap = style.softcap
        self.recompute = activation_checkpointing == "full"
        self.embedding = _Embedding(shape.vocab_size, shape.width)
        self.positions = None if style.rotary else _Embedding(shape.seq_len, shape.width)
        self.embedding_norm = _norm(style, shape.width) if style.embedding_norm else None
        selective = activation_checkpointing == "selective"
        self.blocks = nn.ModuleList(Block(shape, style, selective) for _ in range(shape.depth))
        self.final_norm = _norm(style, shape.width)
        self.head = None if style.tied else Linear(shape.width, shape.vocab_size, bias=False)
        self.register_buffer("rotary", None, persistent=False)
        self._pointwise: Pointwise = chunk_gradient
        self.loss_chunk_tokens: int | None = None  # None lets the device decide
        self.some_targets_count = False  # targets of -1 do not count
        initialise(self)

    @property
    def head_weight(self) -> Tensor:
        """Return the (vocabulary, width) matrix that turns hidden states into logits."""
        return self.embedding.weight if self.head is None else self.head.weight

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return hidden states after the final norm, or with targets (batch, time) the mean loss in nats per token.

        The loss is computed here, because DistributedDataParallel sees only forward and must cover the whole model.
        """
        device_type = tokens.device.type
        autocast = torch.is_autocast_enabled(device_type)
        dtype = torch.get_autocast_dtype(device_type) if autocast else self.embedding.weight.dtype
        with torch.autocast(device_type, enabled=False):
            hidden = self._hidden(tokens, dtype)
            if targets is None:
                return hidden
            return linear_cross_entropy(
                hidden, self.head_weight, targets, softcap=self.softcap, pointwise=self._pointwise,
                chunk_tokens=self.loss_chunk_tokens, some_count=self.some_targets_count,
            )  # fmt: skip

    @torch.no_grad()
    def next_logits(self, tokens: Tensor, caches: Sequence[KeyValues], dtype: torch.dtype) -> Tensor:
        """Return fp32 logits (batch, vocabulary) of what follows `tokens` (batch, time), which follow what caches hold.

        The first call may have any number of tokens, later calls one each. All calls together have at most `seq_len`.
        """
        last = self._hidden(tokens, dtype, caches)[:, -1]
        logits = F.linear(last, self.head_weight.to(last.dtype)).float()
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def empty_caches(self, batch: int, dtype: torch.dtype) -> list[KeyValues]:
        """Return one empty cache for each block, with room for `seq_len` tokens."""
        size = (batch, self.shape.seq_len, self.shape.kv_heads, self.shape.head_dim)
        device = self.embedding.weight.device
        return [KeyValues(size, dtype, device) for _ in self.blocks]

    def use_blocked_attention(self, on: bool) -> None:
        """Let attention on the CPU be computed over blocks of rows (the default) or by PyTorch's kernels."""
        for module in self.modules():
            if isinstance(module, Attention):
                module.blocked = on

    def renew_rotary(self) -> None:
        """Compute the table of rotary positions, which no checkpoint has, if the model uses one."""
        if _STYLES[self.shape.family].rotary:
            with self.embedding.weight.device:
                self.rotary = _rotary_table(self.shape.seq_len, self.shape.head_dim)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats per token."""
        return self(tokens, targets)

    def compile_blocks(self, backend: str = "inductor") -> None:
        """Compile each block and the loss's pointwise part in place. Another depth then needs no new compilation."""
        import torch._dynamo.config as dynamo  # takes a second to import, and only compiled runs need it

        dynamo.recompile_limit = _RECOMPILE_LIMIT
        dynamo.accumulated_recompile_limit = 4 * _RECOMPILE_LIMIT
        for block in self.blocks:
            block.compile(dynamic=False, backend=backend)
        self._pointwise = torch.compile(chunk_gradient_pure, dynamic=False, backend=backend)

    def _hidden(self, tokens: Tensor, dtype: torch.dtype, caches: Sequence[KeyValues] = ()) -> Tensor:
        begin = caches[0].length if caches else 0
        end = begin + tokens.shape[1]
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[begin:end]
        if dtype == torch.bfloat16:
            x = x.to(dtype)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        rotary = None if self.rotary is None else self.rotary[:, begin:end].to(dtype)
        for block, cache in itertools.zip_longest(self.blocks, caches):
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, rotary, dtype, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, rotary, dtype, cache)
        return self.final_norm(x).to(dtype)


class KeyValues:
    """Keys and values of the tokens that one block has read, each (batch, seq_len, heads, head size)."""

    def __init__(self, size: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device):
        self.length = 0
        self._keys, self._values = (torch.empty(size, dtype=dtype, device=device) for _ in range(2))

    def add(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of the newest tokens, and return those of all tokens."""
        end = self.length + key.shape[1]
        self._keys[:, self.length : end], self._values[:, self.length : end] = key, value
        self.length = end
        return self._keys[:, :end], self._values[:, :end]


class Block(nn.Module):
    """Attention and feed-forward, each added to the residual stream."""

    def __init__(self, shape: ModelShape, style: _Style, selective: bool):
        super().__init__()
        self.attention_norm = _norm(style, shape.width)
        self.attention = Attention(shape, style)
        self.mlp_norm = _norm(style, shape.width)
        self.mlp = Mlp(shape, style, selective)

    def forward(self, x: Tensor, rotary: Tensor | None, dtype: torch.dtype, cache: KeyValues | None = None) -> Tensor:
        x = x + self.attention(self.attention_norm(x).to(dtype), rotary, cache)
        return x + self.mlp(self.mlp_norm(x).to(dtype))


class Attention(nn.Module):
    """Causal self-attention. Query, key and value have separate matrices: Muon orthogonalises each by itself."""

    def __init__(self, shape: ModelShape, style: _Style):
        super().__init__()
        kv_width = shape.kv_heads * shape.head_dim
        self.head_dim = shape.head_dim
        self.grouped = shape.kv_heads != shape.heads
        self.blocked = True  # on the CPU: products over blocks of rows, not PyTorch's kernel
        self.qk_norm = RmsNorm(shape.head_dim, style.norm_eps, weight=False) if style.qk_norm else None
        self.query = Linear(shape.width, shape.width, bias=style.bias)
        self.key = Linear(shape.width, kv_width, bias=style.bias)
        self.value = Linear(shape.width, kv_width, bias=style.bias)
        self.output = Linear(shape.width, shape.width, bias=style.bias)

    def forward(self, x: Tensor, rotary: Tensor | None, cache: KeyValues | None = None) -> Tensor:
        heads = (*x.shape[:2], -1, self.head_dim)
        query, key, value = self.query(x).view(heads), self.key(x).view(heads), self.value(x).view(heads)
        if rotary is not None:
            query, key = _rotate(query, rotary), _rotate(key, rotary)
        if self.qk_norm is not None:
            query, key = self.qk_norm(query), self.qk_norm(key)
        causal = True
        if cache is not None:
            key, value = cache.add(key, value)
            causal = x.shape[1] == key.shape[1]  # else there is one token, which may see all keys
        if self.blocked and cache is None and is_eager_cpu(x):
            return self.output(causal_attention(query, key, value).flatten(2))
        grouped = self.grouped
        if grouped and x.is_cuda and x.dtype != torch.bfloat16:
            # PyTorch's fused kernels for fp32 and for GPUs without bf16 lack groups, so that all scores would be built.
            repeats = query.shape[2] // key.shape[2]
            key, value = key.repeat_interleave(repeats, dim=2), value.repeat_interleave(repeats, dim=2)
            grouped = False
        mixed = F.scaled_dot_product_attention(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=causal, enable_gqa=grouped
        )
        return self.output(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """ReLU² (So et al. 2021, "Primer"), tanh-GELU, or SwiGLU (Shazeer 2020), which has a second input matrix."""

    def __init__(self, shape: ModelShape, style: _Style, selective: bool):
        super().__init__()
        self.kind, self.recompute = style.mlp, selective
        self.gate = Linear(shape.width, shape.ffn_width, bias=False) if style.mlp == "swiglu" else None
        self.up = Linear(shape.width, shape.ffn_width, bias=style.bias)
        self.down = Linear(shape.ffn_width, shape.width, bias=style.bias)

    def forward(self, x: Tensor) -> Tensor:
        gate = None if self.gate is None else self.gate(x)
        up = self.up(x)
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self._finish, up, gate, use_reentrant=False, preserve_rng_state=False)
        return self._finish(up, gate)

    def _finish(self, up: Tensor, gate: Tensor | None) -> Tensor:
        if gate is not None:
            return self.down(F.silu(gate) * up)
        if self.kind == "relu2":
            return self.down(F.relu(up).square())
        return self.down(F.gelu(up, approximate="tanh"))


class Linear(nn.Linear):
    """A linear map in its input's type, from fp32 weights. `initialise` fills it, so nn.Linear draws nothing."""

    def reset_parameters(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        pass


class LayerNorm(nn.LayerNorm):
    """Layer norm in its input's type, from fp32 weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.bias.to(x.dtype), self.eps)


class RmsNorm(nn.Module):
    """x / rms(x) over the last dimension (Zhang and Sennrich 2019), with or without a weight."""

    def __init__(self, width: int, eps: float, *, weight: bool):
        super().__init__()
        self.width, self.eps = width, eps
        self.weight = nn.Parameter(torch.ones(width)) if weight else None

    def forward(self, x: Tensor) -> Tensor:
        if is_eager_cpu(x):
            y = RmsNormFunction.apply(x, self.eps)
            return y if self.weight is None else y * self.weight.to(x.dtype)
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, (self.width,), weight, self.eps)


def initialise(model: Transformer) -> None:
    """Draw all weights. Matrices that write to the residual stream start at zero (nanochat) or small (GPT-2, LLaMA).

    The loss then starts at ln V, or for normal heads at most about 0.3 above it (sources §7.1). A sharded model gets
    exactly the weights of the whole model.
    """
    shape = model.shape
    nanochat = shape.family == "nanochat"
    for module in model.modules():
        if isinstance(module, Linear):
            if nanochat:  # uniform, with the standard deviation 1/√fan_in
                bound = math.sqrt(3 / module.in_features)
                _fill(module.weight, partial(nn.init.uniform_, a=-bound, b=bound))
            else:
                _draw(module.weight, _INIT_STD)
            if module.bias is not None:
                _fill(module.bias, nn.init.zeros_)
        elif isinstance(module, LayerNorm | RmsNorm) and module.weight is not None:
            _fill(module.weight, nn.init.ones_)
            if isinstance(module, LayerNorm):
                _fill(module.bias, nn.init.zeros_)
    for block in model.blocks:
        assert isinstance(block, Block)
        for matrix in (block.attention.output.weight, block.mlp.down.weight):
            if nanochat:
                _fill(matrix, nn.init.zeros_)
            else:  # GPT-2: so the sum of 2·depth contributions keeps its size
                _draw(matrix, _INIT_STD / math.sqrt(2 * shape.depth))
    _draw(model.embedding.weight, 1.0 if nanochat else _INIT_STD)
    if model.positions is not None:
        _draw(model.positions.weight, _INIT_STD)
    if model.head is not None:
        # The first logits have a standard deviation of half a nat at any width; nanochat starts them near zero.
        _draw(model.head.weight, 0.001 if nanochat else 0.5 / math.sqrt(shape.width))
    model.renew_rotary()


def _draw(parameter: Tensor, std: float) -> None:
    _fill(parameter, partial(nn.init.normal_, std=std))


def _fill(parameter: Tensor, fill: Callable[[Tensor], Tensor]) -> None:
    """Fill a parameter. If it is split, each process fills the whole, one parameter at a time, and keeps its rows."""
    if not is_split(parameter):
        fill(parameter)
        return
    whole = fill(torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device))
    with torch.no_grad():
        local_rows(parameter).copy_(whole[first_row(parameter) :][: len(local_rows(parameter))])


def _norm(style: _Style, width: int) -> nn.Module:
    if style.norm == "layer":
        return LayerNorm(width, eps=style.norm_eps)
    return RmsNorm(width, style.norm_eps, weight=style.norm == "rms_weight")


def _rotary_table(seq_len: int, head_dim: int) -> Tensor:
    """Return cosines and sines of position·base^(−2i/head_dim): (2, time, 1, head_dim / 2), fp32."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequencies)
    return torch.stack((angles.cos(), angles.sin())).unsqueeze(2)


def _rotate(x: Tensor, rotary: Tensor) -> Tensor:
    """Rotate each pair (i, i + half) of a head's components by its position's angle. x: (batch, time, heads, size)."""
    cos, sin = rotary
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
