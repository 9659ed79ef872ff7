"""The sizes of a model, and how a run divides it over GPUs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The experts of a mixture-of-experts model."""

    count: int
    per_token: int  # routed experts that process a token
    width: int  # feed-forward width of one expert
    shared: int = 0  # experts of the same width that process every token
    layers: int  # layers with experts; the other layers are dense
    groups: tuple[int, int] = (1, 1)  # groups of experts, each on GPUs of its own, and how many process a token


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a decoder, as in its config.json."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int  # of the dense layers
    gated: bool  # a feed-forward block has three matrices instead of two
    vocab_size: int
    tied: bool  # the head is the embedding table
    experts: Experts | None = None
    attention_parameters: int | None = None  # of one layer; None: as in four matrices with grouped keys and values
    attending: float = 1.0  # share of layers with attention; the other layers are Mamba
    ahead: int = 0  # extra layers with a head for multi-token prediction
    name: str = ""  # as published
    family: str = ""  # the trainer's family that it is a model of; "": like a llama if gated, else a gpt2
    published: int | None = None  # all weights; None: as the sizes say

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def attention(self) -> int:
        """Attention weights of one layer."""
        if self.attention_parameters is not None:
            return self.attention_parameters
        return 2 * self.width * self.head_dim * (self.heads + self.kv_heads)

    @property
    def expert_layers(self) -> int:
        return self.experts.layers if self.experts else 0

    @property
    def dense(self) -> int:
        """Weights of all matrices that process every token, in all layers."""
        shared = self.experts.shared * self.experts.width * self.experts.layers if self.experts else 0
        widths = (self.layers - self.expert_layers) * self.ffn_width + shared
        return self.layers * self.attention + self.matrices * self.width * widths

    @property
    def one_expert(self) -> int:
        return self.matrices * self.width * self.experts.width if self.experts else 0

    @property
    def parameters(self) -> int:
        """All weights: matrices, embeddings, norms and routers, without biases."""
        small = self.width * (2 * self.layers + 1)
        if self.experts is None:
            return self.dense + self.tables + small
        routed = self.experts.count * self.expert_layers * (self.one_expert + self.width)
        return self.dense + self.tables + small + routed

    @property
    def active(self) -> int:
        """Active parameters: the weights that process one token, embeddings included."""
        routed = self.experts.per_token * self.expert_layers * self.one_expert if self.experts else 0
        return self.dense + self.tables + routed

    @property
    def tables(self) -> int:
        """Weights of the embedding table, and of the head if it is not tied."""
        return self.vocab_size * self.width * (1 if self.tied else 2)

    @property
    def products(self) -> int:
        """Weights of the matrix products of one token, the head included."""
        return self.active - self.tables + self.vocab_size * self.width


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The parallel degrees of a run."""

    tensor: int = 1
    sequence: bool = False  # sequence parallelism: tensor-parallel GPUs also split norms and residuals
    pipeline: int = 1
    virtual: int = 1  # chunks of layers on each pipeline stage (interleaved schedule)
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    data: int = 1
    sharding: str = "optimizer"  # over data-parallel GPUs: none | optimizer | full

    @property
    def gpus(self) -> int:
        return self.tensor * self.pipeline * self.context * self.data


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """The answers of one step of RL post-training, and the engines that generate them."""

    algorithm: str  # grpo | dapo | ppo
    prompts: int  # of one step
    group: int  # answers to each prompt
    prompt_len: float  # mean, in tokens
    response_len: float  # mean, in tokens
    response_max: int  # in tokens; longer responses are cut
    engine_gpus: int  # that generate
    engine_tensor: int  # GPUs of one engine
    colocated: bool  # engines and trainer take turns on the same GPUs
    staleness: float = 0.0  # steps that the answers may be older than the weights
    updates: int = 1  # optimizer steps on the answers of one step
    memory_share: float | None = None  # of a GPU's memory that an engine may fill
    offloaded: bool = False  # the trainer's weights and optimizer are in the host's memory while engines generate
    engine_fp8: bool = False  # the engines' weights have 8 bits
    reference: bool = True  # a frozen copy of the model gives log-probabilities for a KL term
    trained_share: float = 1.0  # of the generated answers; the others are in groups without a difference
    judge: str | None = None  # a model that judges the answers; None: rules do
    judge_len: float = 0.0  # mean tokens that it writes of an answer; 0: a reward model, which only reads
    judge_gpus: int = 0  # of its own; 0: it takes turns with the engines
    judge_tensor: int = 1  # GPUs of one engine of the judge

    @property
    def step_tokens(self) -> int:
        """Return the prompt and answer tokens that one step trains on."""
        return round(self.prompts * self.group * (self.prompt_len + self.response_len))
