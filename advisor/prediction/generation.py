"""Time in which inference engines generate the answers of one step of RL post-training.

A decode step of an engine on t GPUs with B answers takes

    t0 + c · B + max((weights read + KV cache read) / (η · bandwidth · t), 2 · active · B / (½ · FLOPs · t))

Answers start together, or wait for a slot, and end at their own lengths (log-normal, cut at the limit), so that the
number of answers falls: few of them reach the limit, and an engine with one answer left takes nearly as long for a
step as one with many. Sources of the constants: `profiles/rl.yaml`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from advisor.architecture import Model
from advisor.hardware.catalog import GpuSpec, peak_flops
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

_NORMAL = NormalDist()  # of the standard library, which loads ten times faster than scipy
BINS = 96  # stretches of decode steps in which the number of running answers is taken as constant
MOST_SIMULATED = 4096  # answers of one engine
KV_BYTES = 2  # of one number in the cache
_COMPUTE_SHARE = 0.5  # of peak FLOPs that decoding reaches
_PREFILL_SHARE = 0.4  # of peak FLOPs that reading prompts reaches
_LATENT = 576  # numbers a token keeps in a layer with latent attention (DeepSeek-V2, 512 + 64), on every GPU


@dataclass(frozen=True, kw_only=True)
class Constants:
    """The constants of a step: `profiles/rl.yaml`, sections `generation` and `step`."""

    bandwidth_share: float  # η
    step_seconds: float  # t0, with CUDA graphs
    eager_layer_seconds: float  # of the launches of a layer without them, for which the GPU waits
    answer_seconds: float  # c
    near_layer_seconds: float  # added to t0 for each layer with tensor parallelism inside a node
    far_layer_seconds: float  # and across nodes
    spread: float  # standard deviation of the lengths over their mean
    at_limit: float  # share of answers that reach the limit
    most_answers: float  # that an engine runs at once
    workspace_bytes: float  # that an engine needs besides weights and cache
    update_factor: float  # update over the law of pre-training
    forward_factor: float  # and log-probabilities over its forward part
    answer_train_seconds: float  # launches of one answer's update
    expert_layer_seconds: float  # and of one pass of a micro-batch through a layer with experts
    arm_launch_factor: float  # launches of such layers on the processors of GB200 and GH200
    sync_seconds: float  # of new weights to the engines, however few
    sync_bytes_per_second: float  # on the same GPUs or machine by machine, times the root of an engine's GPUs
    broadcast_bytes_per_second: float  # from one GPU to all
    adapter_sync_seconds: float
    rest_seconds: float  # changing over, data, logging
    split_rest_seconds: float  # the same if engines have GPUs of their own
    offload_bytes_per_second: float  # of a GPU to the host's memory
    linked_offload_bytes_per_second: float  # and where an NVLink leads there (GB200, GH200)


@cache
def load_rl() -> Mapping[str, Any]:
    """Read profiles/rl.yaml."""
    return read_yaml(profiles_folder() / "rl.yaml", "table of RL constants")


@cache
def rl_constants() -> Constants:
    """Return the constants of a step of RL."""
    raw = load_rl()["generation"] | load_rl()["step"]
    return Constants(**{name: float(entry["value"]) for name, entry in raw.items()})


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers of one step: prompts × group, their mean and longest lengths in tokens."""

    prompts: int
    group: int
    prompt_len: float
    response_len: float
    response_max: int

    @property
    def count(self) -> int:
        return self.prompts * self.group

    @property
    def tokens(self) -> float:
        """Prompt and answer tokens that are trained on."""
        return self.count * (self.prompt_len + self.response_len)


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Copies of an inference engine, each on `tensor` GPUs."""

    gpu: GpuSpec
    copies: int
    tensor: int
    memory_share: float  # of each GPU's memory that an engine may fill
    bytes_per_weight: float = 2.0
    eager: bool = False
    node_gpus: int = 8


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How long generation takes."""

    seconds: float  # until the last answer of the step ends
    steady_seconds: float  # the same work in engines that always have other answers to go on with
    at_once: float  # answers that an engine runs at the same time


def kv_token_bytes(model: Model, tensor: int = 1) -> float:
    """Return the bytes that one token keeps in the caches of all GPUs of an engine."""
    if model.attention_parameters is not None and model.experts is not None and model.kv_heads == model.heads:
        return model.layers * _LATENT * KV_BYTES * tensor
    copies = max(1.0, tensor / model.kv_heads)
    return 2 * model.layers * model.attending * model.kv_heads * model.head_dim * KV_BYTES * copies


def room(model: Model, engines: Engines, constants: Constants | None = None) -> float:
    """Return the bytes for the KV cache of one engine; negative if the weights alone do not fit."""
    constants = constants or rl_constants()
    whole = engines.memory_share * engines.gpu.memory_bytes * engines.tensor
    return whole - model.parameters * engines.bytes_per_weight - constants.workspace_bytes * engines.tensor


@lru_cache(maxsize=1024)
def _lengths(count: int, mean: float, longest: float, spread: float, at_limit: float) -> np.ndarray:
    """Return the lengths of `count` answers: quantiles of the log-normal body, and those that reach the limit."""
    sigma = math.sqrt(math.log1p(spread**2))
    cut_at = math.log(longest)
    low, high = math.log(max(mean, 1.0)) - 3.0, cut_at + 3.0
    wanted = min(max((mean - at_limit * longest) / (1 - at_limit), 0.02 * mean), 0.999 * longest)
    for _ in range(40):  # the body's median that gives the mean asked for, once it is cut at the limit
        mu = (low + high) / 2
        cut = (cut_at - mu) / sigma
        body = math.exp(mu + sigma**2 / 2) * _NORMAL.cdf(cut - sigma) + longest * (1 - _NORMAL.cdf(cut))
        low, high = (mu, high) if body < wanted else (low, mu)
    shares = (np.arange(count) + 0.5) / count
    places = np.minimum(shares / (1 - at_limit), 1 - 1e-9).tolist()
    lengths = np.minimum(np.exp(mu + sigma * np.array([_NORMAL.inv_cdf(one) for one in places])), longest)
    return np.where(shares > 1 - at_limit, longest, lengths)


@lru_cache(maxsize=1024)
def _running(
    count: int, slots: int, mean: float, longest: float, spread: float, at_limit: float, of_all: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the lengths of BINS stretches of decode steps, and in each the answers that run and their mean age.

    It is the engine that has the longest of all answers (`of_all`): the step waits for it. An answer starts when a slot
    is free. Who starts first does not depend on the lengths.
    """
    lengths = _lengths(count, mean, longest, spread, at_limit).copy()
    if of_all > count:
        lengths[-1] = _lengths(min(of_all, MOST_SIMULATED), mean, longest, spread, at_limit)[-1]
    order = np.argsort((np.arange(count) * 0.6180339887498949) % 1.0)  # evenly mixed, and the same each time
    starts = np.zeros(count)
    free: list[float] = []
    for place, one in enumerate(order.tolist()):
        if place >= slots:
            starts[one] = heapq.heappop(free)
        heapq.heappush(free, starts[one] + float(lengths[one]))
    ends = starts + lengths
    edges = np.linspace(0.0, float(ends.max()), BINS + 1)
    middle = (edges[:-1] + edges[1:]) / 2
    begun, ended = np.sort(starts), np.sort(ends)
    running = np.searchsorted(begun, middle, "right") - np.searchsorted(ended, middle, "right")
    summed = np.concatenate([[0.0], np.cumsum(begun)])[np.searchsorted(begun, middle, "right")]
    by_end = np.concatenate([[0.0], np.cumsum(starts[np.argsort(ends, kind="stable")])])
    summed = summed - by_end[np.searchsorted(ended, middle, "right")]
    return np.diff(edges), np.maximum(running, 1), middle - summed / np.maximum(running, 1)


def generate(
    model: Model, answers: Answers, engines: Engines, in_flight: float = 1.0, constants: Constants | None = None
) -> Generation | None:
    """Return how long the engines take for one step's answers; None if an engine has no room for a single answer.

    `in_flight` is how many steps' answers may be generated at the same time, which only `steady_seconds` uses.
    """
    c = constants or rl_constants()
    gpu, t = engines.gpu, engines.tensor
    mean, longest = answers.response_len, float(max(answers.response_max, answers.response_len))
    token_bytes = kv_token_bytes(model, t)
    slots = room(model, engines, c) / (token_bytes * (answers.prompt_len + 0.75 * mean))
    if slots < 1:
        return None
    slots = min(slots, c.most_answers)
    n = max(1.0, answers.count / engines.copies)
    flops = peak_flops(gpu, "bf16") or gpu.fp16_flops or 0.0
    layer = 0.0 if t == 1 else c.near_layer_seconds if t <= engines.node_gpus else c.far_layer_seconds
    fixed = c.step_seconds + layer * model.layers
    launches = c.eager_layer_seconds * model.layers if engines.eager else 0.0

    def seconds(batch: np.ndarray, context: np.ndarray) -> np.ndarray:
        read = weights_read(model, batch) * engines.bytes_per_weight + batch * context * token_bytes
        read_seconds = read / (c.bandwidth_share * gpu.memory_bytes_per_second * t)
        product_seconds = 2 * model.active * batch / (_COMPUTE_SHARE * flops * t)
        return np.maximum(launches, fixed + c.answer_seconds * batch + np.maximum(read_seconds, product_seconds))

    some = min(math.ceil(n), MOST_SIMULATED)  # of more answers, all but these run in full engines
    steps, running, age = _running(some, math.ceil(slots), mean, longest, c.spread, c.at_limit, answers.count)
    running = running * min(1.0, n / some)
    each = seconds(running, answers.prompt_len + age) * steps

    def full(at_once: float, count: float) -> float:
        context = answers.prompt_len + mean / 2 * (1 + c.spread**2)
        return count * mean / at_once * float(seconds(np.array(at_once), np.array(context)))

    at_once = min(n, slots)
    prefill = read_seconds(model, answers.prompts * answers.prompt_len, engines)
    return Generation(
        seconds=float(each.sum() + prefill) + (full(at_once, n - some) if n > some else 0.0),
        steady_seconds=float(full(min(n * in_flight, slots), n) + prefill),
        at_once=float(at_once),
    )


def read_seconds(model: Model, tokens: float, engines: Engines) -> float:
    """Return how long the engines take to read these tokens without writing any."""
    flops = peak_flops(engines.gpu, "bf16") or engines.gpu.fp16_flops or 0.0
    return 2 * model.active * tokens / (engines.copies * _PREFILL_SHARE * flops * engines.tensor)


def weights_read(model: Model, batch: np.ndarray) -> np.ndarray:
    """Return how many weights a decode step of `batch` answers reads: of the experts, those that any of them picks."""
    if model.experts is None:
        return np.full(np.shape(batch), float(model.parameters))
    e = model.experts
    routed = float(e.count * e.layers * model.one_expert)
    return model.parameters - routed + routed * (1 - (1 - e.per_token / e.count) ** np.maximum(batch, 1.0))
