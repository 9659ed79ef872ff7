"""Searches the ways to do RL post-training on a number of GPUs, which engines and trainer share or divide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from advisor.architecture import Layout, Model
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, read_link
from advisor.prediction.generation import Answers, room
from advisor.prediction.layout_batch import SURE, predict_layouts
from advisor.prediction.rl import LEAST_BIN, RlRun, RlSoftware, RlStep, predict_rl, prediction_of, update_runs
from advisor.records import Prediction
from advisor.units import format_fit_chance, format_seconds, format_share

_PIPELINES = (1, 2, 4, 8, 16)
_TENSORS = (1, 2, 4, 8)
_UNSPLIT = 16e9  # parameters; larger models, and experts, are also tried in pieces
_SHARES = (0.25, 0.5, 0.75)  # of the GPUs that train, where engines have their own
LEAST_STATE = 8.0  # bytes of each weight on all GPUs together, below which no trainer of all weights runs
_MORE_MEMORY = (0.5, 0.65, 0.8, 0.9)  # shares of a GPU for an engine that has no room in its software's usual one
_EQUAL = 0.03  # share of a step that is far below the error of the prediction
_WORDS = {"reward": "judging", "log_probs": "log-probabilities", "sync": "sending new weights"}
UpdateOf = Callable[[int], Prediction | None]  # number of GPUs → one optimizer step in the best layout


@dataclass(frozen=True, kw_only=True)
class RlWay:
    """One way to do a step on some GPUs."""

    run: RlRun
    step: RlStep
    prediction: Prediction
    lost: str = ""  # why it is not the best; empty for the best


def best_updates(
    model: Model, machines: Sequence[tuple[GpuSpec, int]], answers: Answers, software: RlSoftware, *, updates: int = 1,
    precision: str = "bf16", layout: Layout | None = None, least_state: float = LEAST_STATE,
) -> dict[tuple[str, int], Prediction]:  # fmt: skip
    """Return an optimizer step on each number of GPUs, by the GPU's key and the number.

    It is in the fastest layout that surely fits, else in the likeliest to fit; or in `layout`. GPUs are left out whose
    links are unknown, or that have fewer than `least_state` bytes for each weight.
    """
    left = [
        (gpu, gpus, [layout] if layout is not None else list(_layouts(model, gpus)))
        for gpu, gpus in machines
        if read_link(gpu.interconnect) is not None and (gpu.bf16_flops or gpu.fp16_flops)
        and (layout is not None or least_state * model.parameters <= gpus * gpu.memory_bytes)
    ]  # fmt: skip
    best: dict[tuple[str, int], Prediction] = {}
    for least_bin in (LEAST_BIN, 0):  # the smallest micro-batches only where larger ones do not surely fit
        runs, places = [], []
        for gpu, gpus, layouts in left:
            for recompute in dict.fromkeys((software.recompute, "full")):
                made = update_runs(
                    model, gpu, answers, software, layouts, updates=updates, recompute=recompute,
                    precision=precision if gpu.bf16_flops else "fp16", least_bin=least_bin,
                )  # fmt: skip
                runs += made
                places += [(gpu.key, gpus)] * len(made)
        tried: dict[tuple[str, int], list[Prediction]] = {}
        for place, one in zip(places, predict_layouts(runs), strict=True):
            if one.tokens_per_second is not None and one.fit_probability is not None:
                tried.setdefault(place, []).append(one)
        best |= {place: _best(some) for place, some in tried.items()}
        left = [one for one in left if (key := (one[0].key, one[1])) in best and not best[key].fits]
    return best


def _best(tried: Sequence[Prediction]) -> Prediction:
    # Layouts that do not divide the batch evenly do more or less in a step, so their rates are compared.
    fitting = [one for one in tried if one.fits]
    if fitting:
        return max(fitting, key=lambda one: one.tokens_per_second.value if one.tokens_per_second else 0.0)
    return max(tried, key=lambda one: one.fit_probability or 0.0)


def training_sizes(gpus: int, placement: str = "any", engine_gpus: int | None = None) -> list[int]:
    """Return the numbers of GPUs that may train when engines have the others, or share all of them."""
    if engine_gpus is not None:
        return [gpus - engine_gpus] if 0 < engine_gpus < gpus and placement != "colocated" else []
    whole = GPUS_PER_NODE if gpus > GPUS_PER_NODE else 1  # a machine belongs to one side
    some = (
        {min(gpus - whole, max(whole, round(gpus * share / whole) * whole)) for share in _SHARES} if gpus > 1 else set()
    )
    return [*([gpus] if placement != "split" else []), *(sorted(some) if placement != "colocated" else [])]


def _layouts(model: Model, gpus: int) -> Iterator[Layout]:
    """Yield the layouts of a trainer: all weights sharded (FSDP), and of large models tensor and pipeline pieces."""
    experts = model.experts
    if experts is None:
        yield Layout(data=gpus, sharding="full" if gpus > 1 else "none")
    if experts is None and model.parameters < _UNSPLIT:
        return
    for tensor in _TENSORS:
        for pipeline in _PIPELINES:
            data, rest = divmod(gpus, tensor * pipeline)
            if rest or not data or model.heads % tensor or pipeline > model.layers // 2:
                continue
            ranks, dealt = gpus // pipeline, 1
            if experts is not None:
                dealt = max(n for n in range(1, min(ranks, experts.count) + 1) if experts.count % n == ranks % n == 0)
            elif tensor * pipeline == 1:
                continue
            yield Layout(
                tensor=tensor, sequence=tensor > 1, pipeline=pipeline, expert=dealt, data=data, sharding="optimizer"
            )


def search_rl(
    base: RlRun, gpus: int, update_of: UpdateOf, placement: str = "any", staleness: float | None = None,
    engine_gpus: int | None = None, engine_tensor: int | None = None,
) -> list[RlWay]:  # fmt: skip
    """Return the ways to do the step of `base` on this many GPUs, the fastest that surely fits first.

    The GPUs, engines and staleness of `base` itself do not matter. `placement` is any, colocated or split. With split
    GPUs `staleness` counts; None: one step if the software overlaps generation and training. `engine_gpus` and
    `engine_tensor` fix how many GPUs only generate, and how many an engine has.
    """
    apart = staleness if staleness is not None else float(base.software.overlaps)
    tried: list[tuple[RlRun, RlStep]] = []
    for train in training_sizes(gpus, placement if base.software.splits else "colocated", engine_gpus):
        if (update := update_of(train)) is None:
            continue
        colocated = train == gpus
        runs = _with_engines(
            base, engine_tensor, gpus if colocated else gpus - train, train_gpus=train, update=update,
            colocated=colocated, staleness=0.0 if colocated else apart,
        )  # fmt: skip
        tried += [(run, step) for run in runs if (step := predict_rl(run)) is not None]
    # ways that surely fit come first, by their time; of the others the likeliest to fit
    tried.sort(key=lambda one: (one[1].fit_probability < SURE, min(SURE, one[1].fit_probability) * -1.0,
                                one[1].step_seconds.value))  # fmt: skip
    kinds: dict[tuple[bool, float, int], RlWay] = {}
    for run, step in tried:
        key = (run.colocated, run.staleness, run.train_gpus)
        if key not in kinds:
            best = next(iter(kinds.values()), None)
            lost = "" if best is None else _why(step, best.step)
            kinds[key] = RlWay(run=run, step=step, prediction=prediction_of(run, step), lost=lost)
    return list(kinds.values())


def _with_engines(base: RlRun, only: int | None, engine_gpus: int, **changes: object) -> Iterator[RlRun]:
    """Yield the run with engines on few GPUs, with the fewest that have room for some answers, and on twice as many.

    Only if none has room at the software's usual share of memory, engines get more of it.
    """
    found = 0
    for share in (base.memory_share,) if base.memory_share is not None else (None, *_MORE_MEMORY):
        for tensor in (2**n for n in range(math.floor(math.log2(engine_gpus)) + 1)):
            if base.model.heads % tensor or engine_gpus % tensor or only not in (None, tensor):
                continue
            run = replace(base, engine_gpus=engine_gpus, tensor=tensor, memory_share=share, **changes)  # type: ignore[arg-type]
            if room(run.model, run.engines) <= 0:
                continue
            yield run
            found += 1
            if found == 2:
                return
        if found:
            return


def _why(loser: RlStep, best: RlStep) -> str:
    """Return why a way lost: it does not fit, or what takes longer."""
    if loser.fit_probability < SURE:
        return format_fit_chance(loser.fit_probability) if loser.fit_probability > 1 - SURE else "does not fit"
    slower = loser.step_seconds.value / best.step_seconds.value - 1
    if slower < _EQUAL:
        return "about equal"
    part = max(loser.parts, key=lambda name: loser.parts[name].value)
    took = format_seconds(loser.parts[part].value)
    return f"{format_share(slower)} slower; {_WORDS.get(part, part)} takes {took}"
