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
from advisor.adopt.self_test import DEAD, SWAPPED, as_declared, cut_apart, end_to_end, tokens_of, verdicts
from advisor.errors import AdvisorError
from advisor.hardware.here import visible_cards
from advisor.store.adopted import LOG, AdoptedBurst, KnobVerdict, Recipe, Setting

_REHEARSAL_STEPS = 8  # steps of the run that ends by itself
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
    on_event("the command as it is", 0.0)
    base = _burst(command, (), _FIRST_SHARE * budget_seconds)
    _refuse_without_steps(command, base)
    # The command's own values: as it states them, or else as seen in the model's input.
    shape, seen = base.shape, {"gpus": float(base.processes)}
    if shape is not None:
        seen |= {"micro_batch": shape.rows, "grad_accum": shape.calls, "seq_len": shape.length}
    knobs = (k if k.value is not None else replace(k, value=seen.get(k.name)) for k in command.recipe.knobs)
    command = replace(command, recipe=replace(command.recipe, knobs=tuple(knobs)))
    bursts = [base]
    # The most processes are as many as GPUs, or as cores if the launcher's processes use no GPU.
    most = (os.cpu_count() or 1) if launcher_of(command.arguments) is not None else 1
    most = len(visible_cards()) if base.on_card else most
    for settings, to_its_end in tries(command.recipe, tokens_of(base), most):
        judged = {verdict.name: verdict.verdict for verdict in _session(command.recipe, bursts).verdicts}
        if any(judged.get(setting.name) in (DEAD, SWAPPED) for setting in settings):
            continue  # one of its settings does not work
        used = time.monotonic() - began
        if budget_seconds - used < statistics.median(burst.seconds for burst in bursts):
            break  # one more burst would take longer
        on_event(f"burst {len(bursts) + 1}: {in_words(settings, command.recipe)}", used)
        bursts.append(_burst(command, settings, budget_seconds - used, to_its_end))
    return _session(command.recipe, bursts)


def _session(recipe: Recipe, bursts: Sequence[AdoptedBurst]) -> Session:
    """Judges the bursts so far."""
    if end_to_end(recipe, bursts[0], bursts[1:]):
        bursts = [cut_apart(recipe, burst) for burst in bursts]
    judged = verdicts(recipe, bursts[0], bursts[1:])
    return Session(recipe=recipe, bursts=tuple(as_declared(recipe, b, judged) for b in bursts), verdicts=judged)


def _burst(
    command: Command, settings: Sequence[Setting], most_seconds: float, to_its_end: bool = False
) -> AdoptedBurst:
    # Ask for more steps than a burst does, if the command sets their number; the burst is ended when it is long enough.
    given = {knob.name for knob in command.recipe.knobs if knob.value is not None and not to_its_end}
    unending = [Setting(name=name, value=value) for name, value in _UNENDING.items() if name in given]
    ready = for_burst(command.arguments, command.recipe, (*unending, *settings))
    limits = BurstLimits(most_seconds=most_seconds, to_its_end=to_its_end)
    with tempfile.TemporaryDirectory(prefix="adopt-") as scratch:
        return run_burst(ready, settings, command.folder, Path(scratch), limits, command.environment)


def _refuse_without_steps(command: Command, base: AdoptedBurst) -> None:
    outcome = base.outcome.replace("_", " ")
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
            f"not one step was seen in {base.seconds:.0f} s ({outcome})",
            "steps are seen from inside by PyTorch 2.5 or later, else by a log that prints a loss; output that is held "
            "back shows when PYTHONUNBUFFERED=1 or python -u is set where it runs. More time: --budget-seconds",
        )
    raise AdvisorError(
        f"its steps did not become steady ({outcome}: {base.reason or f'{base.steps} steps'})",
        "give it more time: --budget-seconds; or a command that does at least ten steps",
    )


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
        if None not in values.values():
            yield tuple(Setting(name=name, value=value) for name, value in values.items()), values is rehearsal


def in_words(settings: Sequence[Setting], recipe: Recipe) -> str:
    """Describes the settings of a burst as they are typed."""
    words = [f"{knob.key} {setting.value:g}" for setting in settings if (knob := recipe.knob(setting.name)) is not None]
    return ", ".join(words) if words else "the command once more"
