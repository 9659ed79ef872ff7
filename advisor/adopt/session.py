"""Adopts a command: measures it unchanged, then in bursts with other values of its knobs.

It starts child processes in a scratch folder, which is removed afterwards.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.adopt.burst import BurstLimits, run_burst
from advisor.adopt.command import for_burst, launcher_of
from advisor.adopt.empirical import Batch, Seen
from advisor.adopt.self_test import DEAD, SWAPPED, as_declared, cut_apart, end_to_end, tokens_of, verdicts
from advisor.calibration.observations import Drift, corrected_log, drift_among
from advisor.errors import AdvisorError
from advisor.hardware.here import visible_cards
from advisor.store.adopted import LOG, WHOLE_RUN, AdoptedBurst, KnobVerdict, Recipe, Setting

_REHEARSAL_STEPS = 8  # steps of the run that ends by itself
RESTLESS = 0.25  # of the log of a burst's steps; steps of one batch on a quiet machine scatter by a few per cent
_UNENDING = {"steps": 1e6, "tokens": 1e12}
_FIRST_SHARE = 0.5  # share of the time that the unchanged command may take


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command to adopt, with its folder and environment."""

    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]  # the whole environment
    recipe: Recipe


@dataclass(frozen=True, kw_only=True)
class Session:
    """The results of an adoption."""

    recipe: Recipe  # with the command's own values
    bursts: tuple[AdoptedBurst, ...]  # the first burst is the unchanged command
    verdicts: tuple[KnobVerdict, ...]


def adopt(command: Command, budget_seconds: float, on_event: Callable[[str, float], None]) -> Session:
    """Measure a command within about `budget_seconds`. `on_event` receives what comes next and the seconds used so far.

    Raises AdvisorError if the command does not train, or its steps cannot be seen.
    """
    began = time.monotonic()

    def left() -> float:
        return budget_seconds - (time.monotonic() - began)

    on_event("the command as it is", 0.0)
    base = _burst(command, (), _FIRST_SHARE * budget_seconds)
    _refuse_without_steps(command, base)
    command = replace(command, recipe=with_base_values(command.recipe, base))
    bursts = [base]
    # The most processes are as many as GPUs, or as cores if the launcher's processes use no GPU.
    most = (os.cpu_count() or 1) if launcher_of(command.arguments) is not None else 1
    most = len(visible_cards()) if base.on_card else most
    for settings, to_its_end in tries(command.recipe, tokens_of(base), most):
        told = {verdict.name: verdict.verdict for verdict in _session(command.recipe, bursts).verdicts}
        if any(told.get(setting.name) in (DEAD, SWAPPED) for setting in settings):
            continue  # one of its settings does not work
        # Seconds of one more burst.
        if left() < statistics.median(burst.seconds for burst in bursts):
            break
        on_event(f"burst {len(bursts) + 1}: {in_words(settings, command.recipe)}", time.monotonic() - began)
        bursts.append(_burst(command, settings, left(), to_its_end))
    return _session(command.recipe, bursts)


def _session(recipe: Recipe, bursts: Sequence[AdoptedBurst]) -> Session:
    """Judges the bursts so far."""
    if end_to_end(recipe, bursts[0], bursts[1:]):
        bursts = [cut_apart(recipe, burst) for burst in bursts]
    told = verdicts(recipe, bursts[0], bursts[1:])
    return Session(recipe=recipe, bursts=tuple(as_declared(recipe, b, told) for b in bursts), verdicts=told)


def _burst(
    command: Command, settings: Sequence[Setting], most_seconds: float, to_its_end: bool = False
) -> AdoptedBurst:
    with tempfile.TemporaryDirectory(prefix="adopt-") as name:
        scratch = Path(name)
        # Ask for more steps than a burst does, if the command has a knob for them; the burst is ended when it is long
        # enough.
        knobs = [(name, command.recipe.knob(name)) for name in _UNENDING]
        given = [name for name, knob in knobs if knob is not None and knob.value is not None]
        unending = () if to_its_end else tuple(Setting(name=name, value=_UNENDING[name]) for name in given)
        asked = (*unending, *settings)
        ready = for_burst(command.arguments, command.recipe, asked)
        limits = BurstLimits(most_seconds=most_seconds, to_its_end=to_its_end)
        return run_burst(ready, settings, command.folder, scratch, limits, command.environment)


def _refuse_without_steps(command: Command, base: AdoptedBurst) -> None:
    if base.measured and base.steady:
        log_every = command.recipe.knob("log_every")
        if base.source == LOG and not base.step_printed and (log_every is None or log_every.in_bursts != "1"):
            message = "its log does not say how many steps lie between two of its lines, and nothing sets that"
            hint = "name what makes it log each step: --knob log_every=--OPTION"
            raise AdvisorError(message, hint)
        return
    if base.outcome == "failed":
        raise AdvisorError(f"the command fails as it is: {base.reason}", "it must train before it can be adopted")
    if base.outcome in ("completed", "stopped", "timed_out") and base.steps == 0:
        raise AdvisorError(
            f"not one step was seen in {base.seconds:.0f} s ({base.outcome.replace('_', ' ')})",
            "steps are seen from inside by PyTorch 2.5 or later, else by a log that prints a loss; output that is held "
            "back shows when PYTHONUNBUFFERED=1 or python -u is set where it runs. More time: --budget-seconds",
        )
    raise AdvisorError(
        f"its steps did not become steady ({base.outcome.replace('_', ' ')}: {base.reason or f'{base.steps} steps'})",
        "give it more time: --budget-seconds; or a command that does at least ten steps",
    )


def with_base_values(recipe: Recipe, base: AdoptedBurst) -> Recipe:
    """Returns the recipe with the command's own values: as it states them, or else as seen in the model's input."""
    shape = base.shape
    seen = {"micro_batch": shape.rows, "grad_accum": shape.calls, "seq_len": shape.length} if shape is not None else {}
    seen["gpus"] = float(base.processes)
    knobs = (k if k.value is not None else replace(k, value=seen.get(k.name)) for k in recipe.knobs)
    return replace(recipe, knobs=tuple(knobs))


def tries(
    recipe: Recipe, step_tokens: float | None = None, most_processes: int = 1
) -> Iterator[tuple[tuple[Setting, ...], bool]]:
    """Yields the settings of each burst, the most informative first, and whether it is to end by itself.

    First each knob alone. The knob for the length comes early, because no plan can set the length without it. Then come
    knobs in the other direction, the unchanged command, and two knobs at once.
    """
    given = {knob.name: math.floor(knob.value) for knob in recipe.knobs if knob.value is not None and knob.value >= 1}
    micro, accum, seq, own = map(given.get, ("micro_batch", "grad_accum", "seq_len", "gpus"))
    many = [n for n in (2 * own, 4 * own, own // 2) if 1 <= n <= most_processes] if own else []
    twice, four, more = micro and 2 * micro, micro and 4 * micro, accum and 2 * accum
    half, quarter = (micro // part if micro and micro >= part else None for part in (2, 4))
    shorter = seq // 2 if seq and seq >= 16 else None
    rehearsal: dict[str, Any] = {"tokens": step_tokens and round(_REHEARSAL_STEPS * step_tokens)}
    if recipe.knob("steps") is not None or recipe.knob("tokens") is None:
        rehearsal = {"steps": _REHEARSAL_STEPS if recipe.knob("steps") is not None else None}
    wanted: list[dict[str, Any]] = [
        {"micro_batch": twice}, {"grad_accum": more}, {"seq_len": shorter}, rehearsal, *({"gpus": n} for n in many),
        {"micro_batch": half}, {"gpus": many[0] if many else None, "micro_batch": half or twice}, {},
        {"micro_batch": twice, "seq_len": shorter}, {"micro_batch": half, "grad_accum": more},
        {"micro_batch": quarter}, {"micro_batch": four}, {},
    ]  # fmt: skip
    for values in wanted:
        settings = tuple(Setting(name=name, value=value) for name, value in values.items() if value is not None)
        if len(settings) == len(values):
            yield settings, values is rehearsal


def in_words(settings: Sequence[Setting], recipe: Recipe) -> str:
    """Describes the settings of a burst as they are typed."""
    words = [f"{knob.key} {setting.value:g}" for setting in settings if (knob := recipe.knob(setting.name)) is not None]
    return ", ".join(words) if words else "the command once more"


def batch_of(burst: AdoptedBurst) -> Batch | None:
    """Returns the batch of a burst's steps, or None if it was not seen.

    If only the log was seen and nothing states the batch, the batch is a single unit.
    """
    shape, many = burst.shape, float(burst.processes)
    if shape is None:
        return Batch(rows=1.0, calls=1.0, processes=many) if burst.source == LOG and not burst.values else None
    length = shape.length or 1.0
    return Batch(rows=shape.rows, calls=shape.calls, length=length, end_to_end=shape.end_to_end, processes=many)


def seen_times(bursts: Sequence[AdoptedBurst]) -> list[Seen]:
    """Returns the median step of each steady burst, corrected for the machine's own speed."""
    by_log, drift = bursts[0].source == LOG, drift_of(bursts)
    return [
        Seen(
            batch=batch,
            value=math.exp(corrected_log(burst, drift)),
            by_log=by_log,
            drift=max(drift.deviation if drift.reference_seconds is not None else 0.0, scatter(burst)),
        )
        for burst in bursts
        if burst.measured and burst.steady and (batch := batch_of(burst)) is not None
    ]


def scatter(burst: AdoptedBurst) -> float:
    """Returns the standard deviation of the log of a burst's steps if it is large, else 0.

    Small scatter averages out in a long run. Large scatter comes from other work that comes and goes, and no burst says
    how often it will.
    """
    deviation = statistics.pstdev([math.log(seconds) for seconds in burst.step_seconds if seconds > 0] or [0.0])
    return deviation if deviation > RESTLESS else 0.0


def drift_of(bursts: Sequence[AdoptedBurst]) -> Drift:
    """Measures how the machine's own speed changed during the bursts, by the reference kernel."""
    own = [b for b in bursts if b.source != WHOLE_RUN and b.measured and b.steady]  # runs are compared with these
    timed = [b for b in own if b.reference_seconds and batch_of(b) is not None]
    return drift_among([(batch_of(b), b.step_seconds, b.reference_seconds) for b in timed])


def memory_kind(bursts: Sequence[AdoptedBurst]) -> str:
    """Returns the counter of the bursts' memory: PyTorch's or the driver's for a GPU, or else that of the processes."""
    kinds = ("allocated", "device")
    return next((kind for kind in kinds if any(getattr(b, f"{kind}_peak_bytes") for b in bursts)), "resident")


def seen_memory(bursts: Sequence[AdoptedBurst]) -> list[Seen]:
    """Returns the peak memory of each burst with steady steps, for one process or its GPU."""
    kind = memory_kind(bursts)
    name = f"{kind}_peak_bytes"
    return [
        Seen(batch=batch, value=bytes_ / (burst.processes if kind == "resident" else 1), by_log=burst.source == LOG)
        for burst in bursts
        if burst.measured and (bytes_ := getattr(burst, name)) and (batch := batch_of(burst)) is not None
    ]
