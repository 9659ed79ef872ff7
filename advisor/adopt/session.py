"""Adopts a command: measures it unchanged, then in bursts with other values of its knobs.

It starts child processes in a scratch folder, which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advisor.adopt.command import Ready, for_burst, launcher_of
from advisor.adopt.decoder import Weights, decoder_of
from advisor.adopt.self_test import DEAD, SWAPPED, as_declared, cut_apart, end_to_end, tokens_of, verdicts
from advisor.adopt.watching import LogWatch, Output, ProbeFolder, end, how_it_died, resident_bytes, start, tree
from advisor.errors import AdvisorError
from advisor.hardware.here import device_key, visible_cards
from advisor.readers.read import read_run
from advisor.readers.run_table import Status
from advisor.store.adopted import LOG, Adopted, AdoptedBurst, KnobVerdict, Recipe, Setting
from trainer.schema import Outcome

_REHEARSAL_STEPS = 8  # steps of the run that ends by itself
_UNENDING = {"steps": 1e6, "tokens": 1e12}
_FIRST_SHARE = 0.5  # share of the time that the unchanged command may take
_LEAST_STEPS, _TIMED_STEPS = 4, 6  # enough for two windows of two steps each; fewest timed steps of a whole burst
_AGREE = 0.1  # windows agree if the logarithms of their medians differ by less (DeepView's rule, with room for noise)
_POLL_SECONDS = 0.05
_UNPRINTED = 2  # steps that may follow the last printed line, because fast programs print rows in blocks
_UNPRINTED_SHARE = 0.25  # as a share of all steps; a counter of other things is off by a factor of 2 or more
_GRACE_SECONDS = 3.0  # from SIGTERM to SIGKILL; a burst has nothing to save
TIMED_OUT = "timed_out"


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command to adopt, with its folder and environment."""

    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]  # the whole environment
    recipe: Recipe


def adopt(command: Command, name: str, budget_seconds: float, on_event: Callable[[str, float], None]) -> Adopted:
    """Measure a command within about `budget_seconds`. `on_event` receives what comes next and the seconds used so far.

    Raises AdvisorError if the command does not train, or its steps cannot be seen.
    """
    began = time.monotonic()
    on_event("running the command unchanged", 0.0)
    base = one_burst(command, (), _FIRST_SHARE * budget_seconds)
    _refuse_without_steps(command, base)
    # The command's own values: as it states them, or else as seen in the model's input.
    shape = base.shape
    seen: dict[str, float | None] = {"gpus": float(base.processes)}
    if shape is not None:
        seen |= {"micro_batch": shape.rows, "grad_accum": shape.calls, "seq_len": shape.length}
    knobs = (k if k.value is not None else replace(k, value=seen.get(k.name)) for k in command.recipe.knobs)
    command = replace(command, recipe=replace(command.recipe, knobs=tuple(knobs)))
    bursts = [base]
    # The most processes are as many as GPUs, or as cores if the launcher's processes use no GPU.
    most = (os.cpu_count() or 1) if launcher_of(command.arguments) is not None else 1
    most = len(visible_cards()) if base.on_card else most
    for settings, to_its_end in tries(command.recipe, tokens_of(base), most):
        judged = {verdict.name: verdict.verdict for verdict in _judged(command.recipe, bursts)[1]}
        if any(judged.get(setting.name) in (DEAD, SWAPPED) for setting in settings):
            continue  # one of its settings does not work
        used = time.monotonic() - began
        if budget_seconds - used < statistics.median(burst.seconds for burst in bursts):
            break  # one more burst would take longer
        on_event(f"burst {len(bursts) + 1}: {in_words(settings, command.recipe)}", used)
        bursts.append(one_burst(command, settings, budget_seconds - used, to_its_end))
    measured, judgements = _judged(command.recipe, bursts)
    return Adopted(
        name=name, created=datetime.now(UTC).isoformat(timespec="seconds"), command=command.arguments,
        folder=str(command.folder), recipe=command.recipe, device_key=device_key("auto") if base.on_card else "cpu",
        torch=base.torch, gpus=base.processes, verdicts=judgements, bursts=measured,
        seconds=round(time.monotonic() - began, 2),
    )  # fmt: skip


def _judged(recipe: Recipe, bursts: Sequence[AdoptedBurst]) -> tuple[tuple[AdoptedBurst, ...], tuple[KnobVerdict, ...]]:
    """Returns the bursts so far, with the batches that their knobs set, and the verdicts on the knobs."""
    if end_to_end(recipe, bursts[0], bursts[1:]):
        bursts = [cut_apart(recipe, burst) for burst in bursts]
    judged = verdicts(recipe, bursts[0], bursts[1:])
    return tuple(as_declared(recipe, burst, judged) for burst in bursts), judged


def one_burst(
    command: Command, settings: Sequence[Setting], most_seconds: float, to_its_end: bool = False
) -> AdoptedBurst:
    """Run the command with these settings until its steps are steady, or to its end."""
    # Ask for more steps than a burst does, if the command sets their number; the burst is ended when it is long enough.
    given = {knob.name for knob in command.recipe.knobs if knob.value is not None and not to_its_end}
    unending = [Setting(name=name, value=value) for name, value in _UNENDING.items() if name in given]
    ready = for_burst(command.arguments, command.recipe, (*unending, *settings))
    with tempfile.TemporaryDirectory(prefix="adopt-") as scratch:
        return run_burst(ready, settings, command.folder, Path(scratch), command.environment,
                         most_seconds=most_seconds, to_its_end=to_its_end)  # fmt: skip


def _refuse_without_steps(command: Command, base: AdoptedBurst) -> None:
    outcome = base.outcome.replace("_", " ")
    if base.measured and base.steady:
        log_every = command.recipe.knob("log_every")
        if base.source == LOG and not base.step_printed and (log_every is None or log_every.in_bursts != "1"):
            message = "its log does not say how many steps pass between two lines, and no option sets this"
            hint = "name what makes it log each step: --knob log_every=--OPTION"
            raise AdvisorError(message, hint)
        return
    if base.outcome == "failed":
        raise AdvisorError(f"the unchanged command fails: {base.reason}", "it must train before it can be adopted")
    if base.outcome in ("completed", "stopped", "timed_out") and base.steps == 0:
        raise AdvisorError(
            f"no step was seen in {base.seconds:.0f} s ({outcome})",
            "steps are seen inside PyTorch 2.5 or later, or in a log that prints a loss; output that is held "
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
    """Describes the settings of a burst as text."""
    words = [f"{knob.key} {setting.value:g}" for setting in settings if (knob := recipe.knob(setting.name)) is not None]
    return ", ".join(words) if words else "the command once more"


def warmup_steps(seconds: Sequence[float]) -> int | None:
    """Returns how many first steps to drop: the fewest after which two neighbouring windows agree. None if none do.

    A window is a quarter of the remaining steps, but at least two.
    """
    for first in range(len(seconds) - _LEAST_STEPS + 1):
        left = seconds[first:]
        window = max(2, len(left) // 4)
        medians = [statistics.median(part) for part in (left[:window], left[window : 2 * window], left)]
        if min(medians) > 0 and all(abs(math.log(medians[0] / other)) <= _AGREE for other in medians[1:]):
            return first
    return None


def run_burst(
    ready: Ready,
    settings: Sequence[Setting],
    folder: Path,
    scratch: Path,
    environment: Mapping[str, str],
    *,
    most_seconds: float = 120.0,
    steady_seconds: float = 2.0,
    to_its_end: bool = False,
) -> AdoptedBurst:
    """Run one burst in `folder`, with the advisor's own files in `scratch`; returns its record even if it fails.

    It takes `most_seconds` at most, and ends when steps of `steady_seconds` are timed, or `to_its_end`, so that its
    final save is timed. Raises AdvisorError if the command cannot be started.
    """
    probed, output = ProbeFolder(scratch), Output(scratch / "output.log")
    log, resident_peak, ended_by = LogWatch(output), 0, None
    began, started = time.monotonic(), time.time()
    try:
        process = start(ready.arguments, folder, {**environment, **ready.variables}, scratch, output)
    except OSError as error:
        message = f"cannot start {ready.arguments[0]}: {error.strerror}"
        raise AdvisorError(message, "it is started as typed, without a shell: give its full path") from error
    try:
        while ended_by is None and process.poll() is None:
            time.sleep(_POLL_SECONDS)
            resident_peak = max(resident_peak, resident_bytes(tree(process.pid)))
            probed.look()
            if probed.first is None:
                log.look(process.pid)
            # End it if it has enough steps, or is out of time.
            durations = (probed if probed.first is not None else log).timed[2]
            warmup, seconds = warmup_steps(durations), time.monotonic() - began
            timed = durations[warmup:] if warmup is not None else ()
            if len(timed) >= _TIMED_STEPS and sum(timed) >= steady_seconds and not to_its_end:
                ended_by = Outcome.STOPPED.value
            elif seconds > most_seconds:
                ended_by = Outcome.STOPPED.value if len(durations) >= _LEAST_STEPS else TIMED_OUT
    finally:
        children = tree(process.pid)  # before it ends, because they are found by it
        for number in (signal.SIGTERM, signal.SIGKILL):
            end(process, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_SECONDS)
        end(process, signal.SIGKILL, children)
    seconds = time.monotonic() - began
    log.finish()
    probed.finish()
    if ended_by is not None:
        outcome, reason = ended_by, "no steady steps in the time it was given" if ended_by == TIMED_OUT else None
    else:
        outcome, reason = _ended_itself(process.returncode, output.path)
    burst = AdoptedBurst(values=tuple(settings), outcome=outcome, reason=reason, seconds=seconds, started=started,
                         resident_peak_bytes=resident_peak or None)  # fmt: skip
    return _measured(burst, probed, log, by_itself=to_its_end and outcome == Outcome.COMPLETED)


def _ended_itself(code: int, output: Path) -> tuple[str, str | None]:
    """Returns the outcome of a burst that nobody ended, and the reason if it failed."""
    try:
        run = read_run(output)
    except AdvisorError:  # its output is not a log
        run = None
    if code == 0:
        diverged = run is not None and run.status is Status.DIVERGED
        return (Outcome.DIVERGED, run.status_reason) if diverged and run else (Outcome.COMPLETED, None)
    out_of_memory, reason = how_it_died(code)
    if out_of_memory or (run is not None and run.status is Status.OUT_OF_MEMORY):
        outcome = Outcome.OUT_OF_MEMORY
    else:
        outcome = Outcome.DIVERGED if run is not None and run.status is Status.DIVERGED else Outcome.FAILED
    if code != -signal.SIGKILL:
        lines = [line.strip() for line in output.read_text(encoding="utf-8", errors="replace").splitlines()]
        last = next((line[:200] for line in reversed(lines) if line), None)
        reason = f"{reason}: “{last}”" if last else f"{reason}: it said nothing"
    return outcome, reason


def _measured(burst: AdoptedBurst, probed: ProbeFolder, log: LogWatch, *, by_itself: bool) -> AdoptedBurst:
    """Returns the burst with the measurements of the probe, or else of its own log, which does not state the batch.

    `by_itself`: it ended by itself. The share of an epoch in a step comes from the log, if that counts the same steps.
    """
    process, logged = probed.first, log.logged
    steps, moments, durations = (log if process is None else probed).timed
    if not moments:
        return burst
    dropped = warmup_steps(durations)
    warmup = dropped if dropped is not None else len(durations) // 2
    burst = replace(
        burst,
        startup_seconds=moments[0] - burst.started,
        ending_seconds=burst.started + burst.seconds - moments[-1] if by_itself else None,
        warmup_seconds=tuple(durations[:warmup]),
        step_seconds=tuple(durations[warmup:]),
        steady=dropped is not None,
        steps=steps[-1],
    )
    if process is None:
        assert logged is not None  # the steps are those of the log
        resident = None if log.elsewhere else burst.resident_peak_bytes
        return replace(burst, source=LOG, clock=logged.clock, step_tokens=logged.tokens, step_epochs=logged.epochs,
                       step_printed=logged.printed, device_peak_bytes=log.peaks.get("device_peak_bytes"),
                       resident_peak_bytes=resident, processes=log.processes)  # fmt: skip
    assert process.main is not None  # it has trained
    shape, elements, header = process.shape, process.main["elements"], process.newest("process")
    witnesses, steady_from = process.records["witness"], moments[warmup]
    weights = [Weights(name=each["name"], shape=tuple(each["shape"]), count=each["count"])
               for each in process.newest("model").get("weights", ())]  # fmt: skip
    away = abs(logged.steps[-1] - len(moments)) if logged is not None else math.inf
    return replace(
        burst,
        reference_seconds=tuple(w["reference_seconds"] for w in witnesses if w["time"] >= steady_from),
        shape=shape,
        elements=elements,
        model=decoder_of(weights, elements, round(shape.length or 1)) if shape else None,
        step_epochs=logged.epochs if logged and away <= max(_UNPRINTED, _UNPRINTED_SHARE * len(moments)) else None,
        torch=header.get("torch"),
        # as the launcher sets it, or else the number that trained
        processes=max(header.get("world_size", 1), len(probed.processes)),
        **probed.memory,
    )
