"""What a column, key or tag is, told by its name: "Step Time (ms)", "train/loss", "tok/s", "val_loss", "mfu_pct".

One table of names for every format whose columns are named by its user: CSV, JSON lines, W&B, TensorBoard, MLflow and
Markdown tables. A name that several columns could claim goes to none rather than to the wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from advisor.readers.foreign_names import english

KIB, MIB, GIB = 2**10, 2**20, 2**30
STAMPS_FROM = 1e8  # seconds: no training takes three years
MAX_NAME = 100  # characters; what is longer is text, no name

# unit as written → factor to seconds, bytes, a share of 1
SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    "ns": 1e-9,
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
# What MB and GB in a log mean, for all formats: powers of 1024, which nvidia-smi, torch's messages, Megatron,
# DeepSpeed, verl and nanoGPT's kin divide by. The two tools known to divide by powers of 1000 are named below.
BYTES = {
    **dict.fromkeys(("b", "byte", "bytes"), 1.0),
    **dict.fromkeys(("kb", "kib"), float(KIB)),
    **dict.fromkeys(("mb", "mib", "m"), float(MIB)),
    **dict.fromkeys(("gb", "gib", "g"), float(GIB)),
    **dict.fromkeys(("tb", "tib"), float(2**40)),
    "mb_": 1e6,  # as OLMo prints it: max_memory_allocated / 1000000 (olmo/torch_util.py)
    "gb_": 1e9,  # as Composer prints it: memory_stats / 1.0e9 (composer/callbacks/memory_monitor.py)
}
DECIMAL = frozenset(("mb_", "gb_"))
_DECIMAL_NAMES = re.compile(
    r"(?P<mb>system_peak_gpu_memory)|memory_(?:current_|peak_)?(?:allocated|reserved|active)_mem"
)
SHARES = {**dict.fromkeys(("%", "pct", "percent", "percentage"), 0.01)}
_UNITS = {**SECONDS, **BYTES, **SHARES}

_EVAL = (
    r"(?:val|valid|validation|eval|evaluation|dev|test|cv|heldout|held_out|holdout|vali|valset|devset|testset|vl|vld|va"
    r"|tst)"
)
_LOSS_WORD = (
    r"(?:loss|cross_entropy|crossentropy|crossentropyloss|language_cross_entropy|nll|nll_loss|ce_loss|lm_loss|xent"
    r"|log_?loss)"
)
_ACCURACY = (
    r"(?:(?:mean_|token_|mean_token_|batch_|binary_|categorical_|sparse_categorical_|top_?1_?)?"
    r"(?:accuracy|acc|acc_?1)|top_?1)"
)
# the mean over so many episodes says how many; "reward_10" without a mean may be that of a tenth agent
_REWARD = (
    r"(?:(?:mean_|avg_|average_|episode_|episodic_|ep_)?(?:reward|return|rew)(?:_mean|_avg)?|ep_(?:rew|reward)_mean"
    r"|(?:avg_|average_|mean_)?(?:ep|episode)_?ret"
    r"|(?:mean|avg|average)_(?:reward|return|rew)_(?:last_)?\d{2,4}(?:_ep(?:isode)?s?)?)"
)
_TOKEN = r"(?:tok|toks|token|tokens)"
_PER = r"(?:_per_|_p_|_)"
_DEVICE = r"(?:gpu|device|chip|card|rank|worker)"

# column → kind of quantity, and its names, the surest first; matched whole on the normalised name without its unit
_TABLE: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("step", "count", (
        "step", "global_step", "trainer_global_step", "iter", "iteration", "steps", "iters", "iterations",
        "num_updates", "update", "updates", "optimizer_step", "train_step", "training_step", "num_steps", "it",
        "step_num", "step_number", "nupdates", "iter_num", "batch_idx", "_step", "current_steps", "current_step",
        "steps_done", "time_total_timesteps", "total_timesteps", "timesteps", "n_updates",
        "global_step_max_steps", "iter_train", "total_steps_done", "learning_iteration", "tick",
        "total_num_frames",
    )),
    ("epoch", "count", (
        "epoch", "epochs", "current_epoch", "epoch_num", "train_epoch", "epch", "epoch_number", "epoch_idx",
        "epoch_train", "ep",
    )),
    ("tokens", "count", (
        "tokens_seen", "total_tokens", "num_tokens_seen", "num_input_tokens_seen", "n_tokens_seen", "num_tokens",
        "train_tokens", "tokens_processed", "consumed_tokens", "total_tokens_seen", "tokens", "time_token",
        "throughput_total_tokens", "ntokens_seen",
    )),
    ("loss", "loss", (
        "loss", "train_loss_step", "loss_step", "train_loss", "training_loss", "loss_train", "total_loss",
        "train_total_loss", "loss_total", "overall_loss", "lm_loss", "ce_loss",
        "train_ce_loss", "train_lm_loss", "train_cross_entropy", "train_cross_entropy_loss", "cross_entropy",
        "cross_entropy_loss", "xent", "trl", "log_?loss", "train_crossentropyloss",
        "metrics_train_language_cross_entropy", "loss_train_total",
        "lm_loss_training_lm_loss", "nll_loss", "nll", "train_nll", "loss_metrics_global_avg_loss", "global_avg_loss",
        "train_train_loss", "train_loss_epoch", "loss_epoch", "batch_loss", "loss_batch", "avg_loss", "loss_avg",
        "train_avg_loss", "mean_loss", "running_loss", "train_box_loss", "box_loss",
        "ce", "task_loss", "main_loss", "loss_task", "loss_main",
        r"(?:train(?:ing)?_)?(?:rmse|[a-z]*logloss)|rmse_(?:trn|train)",  # what boosted trees and potentials minimise
    )),
    ("eval_loss", "loss", (
        "tel", rf"{_EVAL}_?{_LOSS_WORD}", rf"{_LOSS_WORD}_{_EVAL}", rf"{_EVAL}_{_LOSS_WORD}_epoch",
        rf"{_EVAL}_{_EVAL}_{_LOSS_WORD}", rf"(?:metrics|loss)_{_EVAL}_(?:\w+_)?{_LOSS_WORD}",
        rf"{_LOSS_WORD}_{_EVAL}_total", rf"{_EVAL}_(?:avg|mean|total)_loss", rf"{_EVAL}_\w+_loss", rf"{_EVAL}_loss_\w+",
        rf"{_EVAL}(?:_?\d+)?_(?:rmse|[a-z_]*logloss)|rmse_{_EVAL}",
    )),
    ("eval_accuracy", "share", (
        rf"{_EVAL}_?{_ACCURACY}", rf"{_ACCURACY}_{_EVAL}", rf"{_EVAL}_{_ACCURACY}_epoch",
    )),
    ("accuracy", "share", (_ACCURACY, rf"train(?:ing)?_{_ACCURACY}", rf"{_ACCURACY}_train", rf"{_ACCURACY}_epoch")),
    ("eval_reward", "plain", (rf"{_EVAL}_{_REWARD}", rf"{_EVAL}_critic_(?:rewards?|score)_mean")),
    ("reward", "plain", (
        _REWARD, rf"train(?:ing)?_{_REWARD}", rf"rollout_{_REWARD}", r"critic_(?:rewards?|score)_mean",
        r"objective_(?:scores|rlhf_reward)",
    )),
    ("learning_rate_share", "plain", ("lrm", "lr_multiplier", "lr_mult", "lr_scale", "lr_factor")),
    ("step_samples", "count", ("global_batch_size", "train_batch_size_global")),
    ("learning_rate", "plain", (
        "learning_rate", "lr", "current_lr", "lr_0", "lr_pg0", "lr_group0", "learning_rate_group0", "lr_default",
        r"lr_[a-z_]*(?:adam|sgd|lion|muon|lamb|adafactor)[a-z_]*(?:_pg_?1|_group_?0)?", "lr_group_0", "base_lr",
        "base_learning_rate", "learningrate", "lr_abs",
    )),
    ("grad_norm", "plain", (
        "grad_norm", "gradient_norm", "gradnorm", "total_grad_norm", "total_norm", "gnorm", "grad_norm_total", "grad",
        "l2_norm_grad_global", "grad_l2_norm", "grad_2_0_norm_total", "global_grad_norm", "grad_norm_global", "norm",
        "gradients_norm", "actor_grad_norm", "grdn", "grad_norms",
    )),
    ("clipped", "share", (
        "clipped", "clip_fraction", "clipped_fraction", "clip_share", "clip_pct", "clip_percent", "clip_rate",
        "grad_clip_pct", "clipped_share",
    )),
    ("skipped", "count", ("skipped", "skipped_iters", "skipped_iterations", "skipped_steps", "overflow", "overflows")),
    ("loss_scale", "plain", ("loss_scale", "grad_scale", "scaler_scale", "fp16_scale", "loss_scaling")),
    ("mfu", "share", ("mfu", "bf16_mfu", "model_flops_utilization", "throughput_device_mfu", "mfu_avg", "avg_mfu")),
    ("data_seconds", "seconds", (
        "data_time", "data_load", "data_loading", "data_loading_time", "data_load_time", "dataload",
        "data_wait", "data_fetch", "dataloader_time", "time_metrics_data_loading", "batch_load_time", "dataloader",
    )),
    ("forward_seconds", "seconds", ("forward", "fwd", "forward_pass", "forward_time", "fwd_time", "time_forward")),
    ("backward_seconds", "seconds", ("backward", "bwd", "backward_pass", "backward_time", "bwd_time", "time_backward")),
    ("grad_norm_seconds", "seconds", ("grad_norm_time", "timing_grad_norm", "time_grad_norm")),
    ("flush_seconds", "seconds", ("flush_time", "timing_flush", "time_flush")),
    ("clip_seconds", "seconds", ("clip_time", "grad_clip_time", "gradient_clip", "grad_clip", "clip_grad_time")),
    ("optimizer_seconds", "seconds", (
        "optimizer_time", "optim_time", "opt_time", "optimizer", "optim", "opt", "optimizer_step_time",
        "time_optimizer",
    )),
    ("eval_seconds", "seconds", (
        rf"{_EVAL}_(?:time|runtime|duration|took)", rf"time_{_EVAL}", rf"{_EVAL}_\w+_runtime",
    )),
    ("checkpoint_seconds", "seconds", (
        "checkpoint_time", "ckpt_time", "save_time", "checkpoint_duration", "time_checkpoint",
    )),
    ("tokens_per_second", "rate", (
        rf"(?:throughput_)?{_TOKEN}{_PER}(?:s|sec|second)", rf"(?:total|global|train)_{_TOKEN}{_PER}(?:s|sec|second)",
        "tps", "throughput_tps", "tokps", "throughput_tok_s", "throughput_tokens_s", "tokens_throughput",
        "token_throughput", rf"{_TOKEN}ps",
    )),
    ("seconds", "seconds", (
        "step_time", "time_per_step", "iter_time", "iteration_time", "dt", "time_per_iter", "time_per_iteration",
        "step_duration", "step_seconds", "seconds_per_step", "sec_per_step", "s_per_step", "s_it", "sec_it",
        "time_step", "time_batch", "batch_time", "train_step_time", "elapsed_time_per_iteration", "timing_s_step",
        "sec_per_iter", "s_per_iter", "iter_dt", "time_metrics_end_to_end", "seconds_per_iter", "perf_time_per_step",
        "step_dt", "train_dt", "iter_time_s", "updt", "per_step", "per_iter", "per_iteration",
    )),
    ("epoch_seconds", "seconds", ("epoch_duration", "time_per_epoch", "epoch_seconds")),
    ("elapsed_seconds", "seconds", (
        "elapsed", "elapsed_time", "runtime", "_runtime", "total_time", "wall_time", "walltime", "wall", "time_elapsed",
        "train_time", "total_training_time", "training_time", "relative_time", "wall_clock", "time_total",
        "elapsed_total", "time_cost",
        "relative", "total_elapsed", "cumulative_time", "cum_time", "time_cumulative", "time_since_start",
    )),
    ("unix_seconds", "date", ("timestamp", "_timestamp", "time_stamp", "datetime", "date", "unix_time")),
    ("memory_bytes", "bytes", (
        "vram", "memory", "mem", "gpu_memory", "gpu_mem", "memory_allocated", "allocated",
        "mem_allocated", "max_memory", "max_mem", "peak_memory", "peak_mem", "peak_vram",
        "gpu_memory_used", "memory_used", "vram_used", "max_allocated", "max_memory_allocated", "peak_allocated",
        "peak_memory_alloc", "memory_peak_allocated_mem", "memory_max_active",
        "gpu_mem_used", "cuda_memory", "device_memory",
        "mem_alloc", "gpu_vram", "peak_memory_allocated", "peak_memory_active",
        "system_peak_gpu_memory", "memory_current_allocated_mem", "max_vram", "peak_gpu_memory",
    )),
    ("reserved_bytes", "bytes", (
        "reserved", "memory_reserved", "max_reserved", "max_memory_reserved", "peak_reserved", "peak_memory_reserved",
        "memory_max_reserved", "mem_reserved", "memory_peak_reserved_mem", "reserved_memory", "vram_reserved",
    )),
    ("rank", "count", ("rank", "global_rank", "process", "worker", "process_index")),
)  # fmt: skip

# read under other columns: what such a record says per second or per device has to be turned round first
_STEPS_PER_SECOND = re.compile(r"(?:it|its|iter|iters|iterations|step|steps|batches)(?:_per_|_)(?:s|sec|second)")
_PER_DEVICE = re.compile(rf"(?:throughput_)?(?:device_)?{_TOKEN}{_PER}(?:s|sec|second){_PER}{_DEVICE}|"
                         rf"throughput_device_{_TOKEN}{_PER}(?:s|sec|second)|tgs|tps_per_gpu|"
                         rf"{_TOKEN}{_PER}{_DEVICE}{_PER}(?:s|sec|second)")  # fmt: skip
_PER_STEP = ("per_step", "per_iter", "per_iteration")  # behind a unit: "ms_per_step"
# parts of a step that share their name with what they work on: in milliseconds "grad_norm" is the time it takes
_TIMED = {
    **dict.fromkeys(("grad_norm", "gradient_norm", "gradnorm", "norm", "gnorm"), "grad_norm"),
    **dict.fromkeys(("flush", "gpu_flush", "sync", "gpu_sync"), "flush"),
    **dict.fromkeys(("data", "timing_data", "load", "loader", "fetch", "batch_load"), "data"),
    **dict.fromkeys(("clip", "gradclip", "clipping", "gradient_clipping"), "clip"),
    **dict.fromkeys(("optimizer_step", "optim_step", "opt_step", "optstep", "update"), "optimizer"),
    **dict.fromkeys(("backprop", "bw"), "backward"),
    "fw": "forward",
    **dict.fromkeys(("step", "iter", "iteration"), "step"),
}
_AMBIGUOUS_TIME = re.compile(r"time|time_s|t|seconds|secs|sec|dur|duration")
_OUTER = re.compile(
    r"(?:train|training|trainer|metrics|perf|performance|time|timing|timings|optim|stats|global|model|gpu)_"
)
_NOT_MEASURED = re.compile(
    r"(?:^|_)(?:expected|target|predicted|projected|estimated|goal|best|ideal|baseline|est|final|lowest|previous|prev"
    r"|initial|improved|decreased|remaining|eta|left)(?:_|$)"
)
# any other name with a loss in it: one part of several, or somebody's own word for it. Never a setting of one
_SOME_LOSS = re.compile(
    r"(?:\w+_)?[a-z]*loss(?:_\w+)?|l_(?:pix(?:el)?|percep|style|gan|total|sum|all|[gd]_\w+|mos|metric|fea(?:t(?:ure)?)?"
    r"|reg|cls|rec(?:on)?|kl|adv|vgg|l1|l2|mse|fm|edge|fft|freq|codebook|ssim|content|tv|id)"
)
_OBJECTIVE = re.compile(
    rf"(?:(?:train(?:ing)?|mean|avg|{_EVAL})_)?(?:cost|objective|elbo|mse|mae|smooth_?l1|bits_per_dim|bpd|error)"
)
_NO_LOSS = re.compile(
    r"loss_(?:\w+_)?(?:weights?|scale|scaler|coefs?|coeff|lambda|factor|type|fn|func|function|mask|ratio|reduction|id"
    r"|threshold|smoothing|config|name|over|per|after|at|patience|count|num|gain|lr|rate|time|ms|s|std|var|grad|norm"
    r"|steps?|epochs?|is|was|window|delta)(?:_|$)"
    r"|(?:^|_)(?:no|stop|packet|over|per|num|n|use|delta|std|var)_(?:\w+_)?loss"
)
PART = 300  # rank of losses that are named by what they are of; 600: a score that may be one
_WHOLE_LOSS = re.compile(r"(?:^|_)(?:total|sum|overall|all|combined|train|training)(?:_|$)")
_SIDE_LOSS = re.compile(r"(?:^|_)(?:aux|kl|reg|entropy|value|vf|critic|z|router|balance|commit|gp|penalty)(?:_|$)")
_HELD_OUT = re.compile(rf"(?:^|_){_EVAL}(?:_|$)")
# `v_loss` is validation's beside `t_loss` or `loss`, a critic's beside a policy's, and a speed's beside `u_loss`
_BY_LETTER = re.compile(rf"(?P<letter>[a-z])_?(?P<what>{_LOSS_WORD}|acc(?:uracy)?)|(?P<of>loss|acc)_(?P<behind>[a-z])")
_PAIRS = 3  # of names with and without a letter before them
_OF_TRAINING = re.compile(rf"(?:t|tr|trn|train|training)_?{_LOSS_WORD}|loss(?:_(?:t|tr|trn|train|training))?")
_OF_POLICIES = re.compile(r"(?:^|_)(?:pg|pi|policy|actor|critic|entropy|value|vf|kl|clipfrac|reward|return|q)(?:_|$)")


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name stands for. `rank` orders several names of one column in a file: the lowest is taken."""

    column: str  # of COLUMNS
    kind: str  # count | loss | plain | share | seconds | rate | bytes | date | time | steps_per_second
    unit: str | None  # as written in the name
    rank: int
    per_device: bool = False


@lru_cache(maxsize=4096)
def column_of(name: str) -> Named | None:
    """Which column a name is, or None where it is none or could be several."""
    if len(name) > MAX_NAME:
        return None
    stem, unit = normalise(name)
    if _NOT_MEASURED.search(stem):
        return None
    if _PER_DEVICE.fullmatch(stem):
        return Named(column="tokens_per_second", kind="rate", unit=None, rank=50, per_device=True)
    if _STEPS_PER_SECOND.fullmatch(stem):
        return Named(column="seconds", kind="steps_per_second", unit=None, rank=50)
    if found := _look_up(stem, unit):
        return found
    bare, suffix = _split_unit(stem) if unit is None else (stem, unit)
    if suffix is not None and (found := _look_up(bare, suffix)):
        return found
    shorter = _OUTER.sub("", bare, count=1) if _OUTER.match(bare) else None
    inner = (_look_up(shorter, suffix) or _look_up(_OUTER.sub("", shorter, count=1), suffix)) if shorter else None
    if inner is None:
        return _some_loss(stem) if unit is None else None
    return Named(**{**inner.__dict__, "rank": inner.rank + 100})


def by_letters(names: Sequence[str]) -> dict[str, str]:
    """Names of validation by one letter (`v_loss`, `acc_v`), where those beside them show that it stands for that."""
    stems = {name: normalise(name)[0] for name in names if len(name) <= MAX_NAME}
    found = {name: match for name, stem in stems.items() if (match := _BY_LETTER.fullmatch(stem))}
    letters = {match["letter"] or match["behind"] for match in found.values()}
    if "v" not in letters or not letters <= {"v", "t"}:
        return {}
    # `v_kl` beside `kl` and `v_recons` beside `recons`: the letter marks a split, whatever is measured
    pairs = sum(f"v_{stem}" in stems.values() for stem in stems.values())
    if pairs < _PAIRS and any(_OF_POLICIES.search(stem) for stem in stems.values()):
        return {}
    if not any(_OF_TRAINING.fullmatch(stem) for stem in stems.values()):
        return {}
    of = {name: (match["letter"] or match["behind"], match["what"] or match["of"]) for name, match in found.items()}
    return {name: f"{'val' if letter == 'v' else 'train'}_{what}" for name, (letter, what) in of.items()}


def not_measured(name: str) -> bool:
    """Whether a name speaks of a goal, a guess or a record: no measurement of this moment."""
    return _NOT_MEASURED.search(normalise(name)[0]) is not None


def _some_loss(stem: str) -> Named | None:
    """A loss under a name of its own: the whole before a part, a part before a side term."""
    if _OBJECTIVE.fullmatch(stem):  # a score beside a loss, the loss itself where there is no other
        return Named(column="eval_loss" if _HELD_OUT.search(stem) else "loss", kind="loss", unit=None, rank=600)
    if not _SOME_LOSS.fullmatch(stem) or _NO_LOSS.search(stem):
        return None
    rank = PART if _WHOLE_LOSS.search(stem) else PART + 200 if _SIDE_LOSS.search(stem) else PART + 100
    return Named(column="eval_loss" if _HELD_OUT.search(stem) else "loss", kind="loss", unit=None, rank=rank)


def normalise(name: str) -> tuple[str, str | None]:
    """A name in lower case with underscores and the unit in brackets: "Step Time (ms)" gives "step_time", "ms"."""
    text, unit = english(name).strip(), None
    if match := re.search(r"[(\[]\s*([a-zA-Zµμ%/]+)\s*[)\]]", text):
        word = match[1].lower()
        if word in _UNITS:
            unit = word
        text = text[: match.start()] + (" " if unit else f" {word} ") + text[match.end() :]
    if text.rstrip().endswith("%"):
        unit, text = "%", text.rstrip()[:-1]
    stem = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower())
    lead = "_" if name.strip().startswith("_") else ""
    return lead + stem.strip("_"), unit


def _split_unit(stem: str) -> tuple[str, str | None]:
    head, _, last = stem.rpartition("_")
    if head and last in _UNITS:
        return head, last
    first, _, rest = stem.partition("_")
    return (rest, first) if first in SECONDS and rest in _PER_STEP else (stem, None)


def _look_up(stem: str, unit: str | None) -> Named | None:
    if unit in SECONDS and stem in _TIMED:
        stem = f"{_TIMED[stem]}_time"
    if unit in SHARES and stem in ("clip", "clipping", "grad_clip", "gradient_clipping"):
        stem = "clipped"  # without a percent sign it is the threshold
    if _AMBIGUOUS_TIME.fullmatch(stem):
        return Named(column="seconds", kind="time", unit=unit or ("s" if stem != "time" else None), rank=60)
    for column, kind, patterns in _compiled():
        for rank, pattern in enumerate(patterns):
            if pattern.fullmatch(stem):
                if kind == "bytes" and (known := _DECIMAL_NAMES.fullmatch(stem)):
                    unit = "mb_" if known["mb"] else "gb_"
                return Named(column=column, kind=kind, unit=unit, rank=rank) if _fits(kind, unit) else None
    return None


def _fits(kind: str, unit: str | None) -> bool:
    """A unit contradicts a quantity: "memory (%)" is no number of bytes."""
    wanted = {"seconds": SECONDS, "bytes": BYTES, "share": SHARES}.get(kind)
    if kind in ("count", "loss"):
        return unit is None or (kind == "loss" and unit in SHARES)  # `loss_g`: a generator's, not gigabytes
    return unit is None or wanted is None or unit in wanted


@cache
def _compiled() -> tuple[tuple[str, str, tuple[re.Pattern[str], ...]], ...]:
    return tuple((column, kind, tuple(re.compile(p) for p in patterns)) for column, kind, patterns in _TABLE)


def choose(names: list[str]) -> dict[str, int]:
    """For each column of the table the position of the name that stands for it best; first come wins between equals."""
    best: dict[str, tuple[int, int]] = {}
    known = by_letters(names)
    for position, name in enumerate(names):
        found = column_of(known.get(name, name))
        if found is not None and (found.column not in best or found.rank < best[found.column][0]):
            best[found.column] = (found.rank, position)
    return {column: position for column, (_, position) in best.items()}


def in_unit(named: Named, values: np.ndarray) -> tuple[str, np.ndarray, str]:
    """Values in the column's unit: the column they belong to, the values and how they were converted.

    Units that a name does not say are told by the size of the numbers, and said to be.
    """
    with np.errstate(all="ignore"):
        if named.kind == "time":
            return _ambiguous_time(named, values)
        if named.kind == "steps_per_second":
            return named.column, np.where(values > 0, 1 / values, np.nan), "1 / steps per second"
        if named.kind == "seconds":
            factor = SECONDS.get(named.unit or "s", 1.0)
            return named.column, scaled(values, factor), f"from {named.unit}" if factor != 1 else ""
        if named.kind == "bytes":
            return named.column, *_bytes(named.unit, values)
        if named.kind == "share":
            return named.column, *_share(named, values)
    return named.column, values, ""


def scaled(values: np.ndarray, factor: float) -> np.ndarray:
    """Multiply; small factors divide instead, which keeps 13651.72 ms at 13.65172 s exactly."""
    with np.errstate(all="ignore"):
        return values / round(1 / factor) if factor < 1 else values * factor


def _ambiguous_time(named: Named, values: np.ndarray) -> tuple[str, np.ndarray, str]:
    """A column called "time": a date, the time since the start where it never falls, else the time of one step."""
    known = values[np.isfinite(values)]
    if len(known) and np.median(known) > STAMPS_FROM:
        return "unix_seconds", values, "by its size a time stamp"
    factor = SECONDS.get(named.unit or "s", 1.0)
    if len(known) > 2 and np.all(np.diff(known) > 0) and known[-1] > 2 * known[0]:
        return "elapsed_seconds", scaled(values, factor), "always rising: time since the start"
    return "seconds", scaled(values, factor), "taken as the time of one step"


def _bytes(unit: str | None, values: np.ndarray) -> tuple[np.ndarray, str]:
    factor, said = bytes_factor(values)
    if unit in DECIMAL and factor != 1:  # Composer printed bytes until 0.12
        return values * BYTES[unit], f"{unit[:-1].upper()} as powers of 1000, which this tool divides by"
    if unit is not None and unit not in DECIMAL:
        return values * BYTES[unit], f"{unit} as 1024-based" if BYTES[unit] != 1 else ""
    return values * factor, said


def bytes_factor(values: np.ndarray) -> tuple[float, str]:
    """Bytes per unit of memory figures without one, by their size: no card has 4 TB, none under 640 MB trains."""
    known = values[np.isfinite(values)]
    most = float(np.max(known)) if len(known) else 0.0
    if most > 4e6:
        return 1.0, "by its size in bytes"
    if most < 640 and np.any(known != np.round(known)):
        return float(GIB), "by its size in GiB"
    return float(MIB), "by its size in MiB"


def _share(named: Named, values: np.ndarray) -> tuple[np.ndarray, str]:
    """Shares of 1; without a unit more than 1.5 anywhere says percent. Negative ones mean "not collected" (nanoGPT)."""
    known = values[np.isfinite(values)]
    if named.unit is not None:
        values, said = values / 100, "percent"
    elif len(known) and np.max(known) > 1.5:
        values, said = values / 100, "by its size in percent"
    else:
        said = ""
    return np.where(values < 0, np.nan, values), said
