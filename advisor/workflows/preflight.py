"""Checks what a run on this machine needs before it starts: GPUs, PyTorch, memory, disk, data, checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from advisor.engines.engines import PLACES, describe
from advisor.engines.gpu_locks import choice, runs_by_gpu, visible_ids
from advisor.engines.guards import refuse_without_data
from advisor.engines.state import RunState, this_host
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.hardware.here import DetectedGpu, broken_cards, check_is_here, device_key, processor_use
from advisor.hardware.software_support import installed_problem
from advisor.records import Basis, Estimate, Plan
from advisor.run_records import Place
from advisor.store.disk import disk_errors
from advisor.store.run_folder import is_run_folder, read_launch, read_run_config
from advisor.store.store import Store
from advisor.trainers.known import workload_of_config
from advisor.units import (
    HOUR,
    format_bytes,
    format_estimate,
    format_number,
    format_percent,
    format_seconds,
    format_tokens,
    format_usd,
)
from advisor.workflows.data import read_data
from trainer.damage import damage
from trainer.schema import RunConfig
from trainer.token_folder import TRAIN_FILE, VALIDATION_FILE, TokenMeta, tokenizer_file

LOG_BYTES_PER_STEP = 420  # a step record of our own log has 350 to 420 bytes
_SLOWER = 1.1  # times, at least; a smaller slowdown is within what a plan allows for


class Readiness(StrEnum):
    """The result of a check."""

    FINE = "fine"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that a run needs."""

    of: str  # card | PyTorch | memory | disk | data | weights | checkpoints | other runs | machine
    finding: Readiness
    words: str
    seconds: Estimate | None = None  # that the run takes instead of the planned ones, if other programs slow it


def preflight(store: Store, source: Plan | RunConfig, place: Place) -> list[Check]:
    """Checks everything that a run needs here; nothing is started or written."""
    config = source.config if isinstance(source, Plan) else source
    checks = [*_cards(source, config, place), *data_checks(config), *_weights(config)]
    if config.device == "cpu":
        # Runs on the processor may share it, but they slow each other down.
        for name in training_here(store):
            words = f"{name} is running on this machine: both will be slower than planned"
            checks.append(Check(of="other runs", finding=Readiness.WARNING, words=words))
        checks += _processor(store, source)
    checks += checkpoint_checks(store, source)
    if isinstance(source, Plan):
        checks += [*_torch(source), *_memory(source, config, place)]
        # Compare the size of all stored checkpoints and the log with the free disk space.
        needed = (source.bill.disk_bytes or 0) + source.config.steps * LOG_BYTES_PER_STEP
        there = next(path for path in (store.home, *store.home.resolve().parents) if path.exists())
        free = shutil.disk_usage(there).free
        words = f"{format_bytes(free)} are free at {there}, checkpoints and log take {format_bytes(needed)}"
        checks.append(Check(of="disk", finding=Readiness.MISSING if needed > free else Readiness.FINE, words=words))
    return checks


def raise_if_missing(checks: list[Check]) -> list[str]:
    """Returns the warnings and the engine's answers as text; raises AdvisorError with everything that is missing."""
    lacking = [f"{check.of}: {check.words}" for check in checks if check.finding is Readiness.MISSING]
    if lacking:
        hint = "launch it where all is there (the plan is all it needs): advisor launch PLAN.yaml --on ssh:HOST"
        raise AdvisorError("the run cannot start:" + "".join(f"\n  {line}" for line in lacking), hint)
    warnings = [f"warning: {check.words}" for check in checks if check.finding is Readiness.WARNING]
    return warnings + [check.words for check in checks if check.of in PLACES and check.finding is Readiness.FINE]


def _cards(source: Plan | RunConfig, config: RunConfig, place: Place) -> Iterator[Check]:
    if config.device == "cpu":
        return
    needed = source.workload.gpus if isinstance(source, Plan) else 1
    if isinstance(source, Plan) and source.workload.gpu != "cpu":
        try:
            warning = check_is_here(source.workload.gpu, needed)
        except AdvisorError as error:
            yield Check(of="card", finding=Readiness.MISSING, words=error.message)
            return
        if warning:
            yield Check(of="card", finding=Readiness.WARNING, words=warning)
    visible, taken, order = visible_ids() or (), runs_by_gpu(), _order(place)
    unknown = [number for number in place.gpu_ids if number not in visible]
    if unknown:
        has = ", ".join(map(str, visible)) or "none"
        yield Check(of="card", finding=Readiness.MISSING, words=f"there is no GPU {unknown[0]} here; there are: {has}")
        return
    free = [card for card in order if card.number not in taken]
    broken = "".join(f"; GPU {number}: {why}" for number, why in broken_cards().items())
    who = "; ".join(f"GPU {number} is taken by {run}" for number, run in taken.items())
    if visible and len(free) < needed:
        yield Check(of="card", finding=Readiness.MISSING, words=f"{needed} free ones are needed: {who}{broken}")
        return
    for card in free[:needed]:
        if card.in_use:
            yield Check(of="card", finding=Readiness.WARNING, words=_shared(card))
        else:
            yield Check(of="card", finding=Readiness.FINE, words=f"GPU {card.number} is free{broken}")


def _processor(store: Store, source: Plan | RunConfig) -> Iterator[Check]:
    """Warns if other programs use the processor now, with the time that the run then takes."""
    use = processor_use()
    shared = 1 + use.wanted / use.cores
    if shared < _SLOWER:
        return
    # Three runs on one busy machine took shared^0.84, ^1.06 and ^1.67 times as long: the others come and go.
    slowdown = Estimate(value=shared**1.2, low=shared**0.6, high=shared**1.8, basis=Basis.PRIOR)
    alone = expected_seconds(store, source)
    slower, show = slowdown.scaled(alone or 1.0), format_seconds if alone else format_number
    planned = f" instead of {format_seconds(float(f'{alone:.2g}'))}" if alone else " times as long"
    close = f". To avoid this, close {', '.join(use.largest)}" if use.largest else ""
    words = f"other programs use this machine: expect {format_estimate(slower, show)}{planned}{close}"
    yield Check(of="machine", finding=Readiness.WARNING, words=words, seconds=slower if alone else None)


def _order(place: Place) -> list[DetectedGpu]:
    """Returns the GPUs in the order in which the run takes them."""
    by_number = {card.number: card for card in choice()}
    return [by_number[number] for number in place.gpu_ids or by_number if number in by_number]


def _shared(card: DetectedGpu) -> str:
    """Says who uses a GPU that the run would take."""
    who = f"process {', '.join(map(str, card.processes))}" if card.processes else "another program"
    total, free = card.memory_bytes, card.free_bytes
    held = f" with {format_bytes(total - free)} of memory" if total is not None and free is not None else ""
    held += f", computing {format_percent(card.busy_share)} of the time" if card.busy_share else ""
    return f"GPU {card.number} is in use by {who}{held}: the run would share it, and take longer than predicted"


def _torch(plan: Plan) -> Iterator[Check]:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        yield Check(of="PyTorch", finding=Readiness.MISSING, words="not installed: pip install torch")
        return
    spec = find_gpu(plan.workload.gpu)
    problem = installed_problem(spec, installed) if spec is not None else None
    yield Check(of="PyTorch", finding=Readiness.WARNING if problem else Readiness.FINE, words=problem or installed)


def _memory(plan: Plan, config: RunConfig, place: Place) -> Iterator[Check]:
    """Compares the predicted peak with the free memory of the fullest GPU."""
    peak = plan.prediction.peak_reserved_bytes
    if config.device == "cpu" or plan.workload.gpu == "cpu":
        free: int | None = psutil.virtual_memory().available
    else:
        taken = runs_by_gpu()
        chosen = sorted(_order(place), key=lambda card: card.number in taken)[: plan.workload.gpus]
        free = min((card.free_bytes for card in chosen if card.free_bytes is not None), default=None)
    if peak is None or free is None:
        return
    words = f"{format_bytes(free)} are free now, {format_bytes(peak.value)} predicted (to {format_bytes(peak.high)})"
    finding = Readiness.MISSING if peak.value > free else Readiness.WARNING if peak.high > free else Readiness.FINE
    yield Check(of="memory", finding=finding, words=words)


def data_checks(config: RunConfig) -> Iterator[Check]:
    """Checks that the token files are whole, fit the model's vocabulary, and have at least one sample per split."""
    if config.data.path is None:
        if config.data.synthetic:
            words = "it trains on random tokens, as --synthetic asks: a speed test with a meaningless loss"
            yield Check(of="data", finding=Readiness.WARNING, words=words)
            return
        try:
            refuse_without_data(config.data)
        except AdvisorError as error:
            yield Check(of="data", finding=Readiness.MISSING, words=f"{error.message}; {error.hint}")
        return
    try:
        meta = read_data(config.data.path)
    except AdvisorError as error:
        yield Check(of="data", finding=Readiness.MISSING, words=error.message)
        return
    assert meta is not None  # a path is set
    lacking = [*_unfit(config, meta)]
    # Read the content of both token files: their length does not reveal an incomplete copy.
    for name in (TRAIN_FILE, VALIDATION_FILE):
        with disk_errors("read", Path(config.data.path, name)):
            found = damage(Path(config.data.path, name))
        lacking += [f"{name}: {found}"] if found is not None else []
    words = (
        "; ".join(lacking)
        or f"{format_tokens(meta.tokens)} tokens, {format_tokens(meta.validation_tokens)} of them for validation"
    )
    yield Check(
        of="data", finding=Readiness.MISSING if lacking else Readiness.FINE, words=f"{config.data.path}: {words}"
    )
    if tokenizer_file(config.data.path) is None:
        words = f"{config.data.path} has no tokenizer: the trained model will have no text"
        yield Check(of="data", finding=Readiness.WARNING, words=words)


def _unfit(config: RunConfig, meta: TokenMeta) -> Iterator[str]:
    sample, vocabulary = config.model.seq_len + 1, config.model.vocab_size
    if meta.vocab_size > vocabulary:
        yield f"its tokens go up to {meta.vocab_size}, the model's vocabulary to {vocabulary}"
    if meta.tokens < sample:
        yield f"{meta.tokens} tokens are fewer than one sample of {sample}"
    if config.eval.tokens and meta.validation_tokens < sample:
        yield f"{meta.validation_tokens} tokens to evaluate on are fewer than one sample of {sample}"


def _weights(config: RunConfig) -> Iterator[Check]:
    """Checks that the run whose weights are loaded exists and has the same model and tokenizer."""
    if config.init_from is None:
        return
    folder = Path(config.init_from).expanduser()
    try:
        base = read_run_config(folder)
    except AdvisorError as error:
        yield Check(of="weights", finding=Readiness.MISSING, words=error.message)
        return
    newest = max((path.parent.name for path in folder.glob("checkpoints/step-*/state.json")), default=None)
    lacking = [] if newest else [f"{folder} has no checkpoint"]
    shorter = base.model.family != "gpt2"  # learned positions are tied to the context length
    same = replace(base.model, seq_len=config.model.seq_len) if shorter else base.model
    if same != config.model:
        lacking.append(f"{folder} is of another model")
    if _tokenizer_of(base) != _tokenizer_of(config) and None not in (_tokenizer_of(base), _tokenizer_of(config)):
        lacking.append(f"its tokens are not those of {folder}: prepare the data with --tokenizer of that run's data")
    words = "; ".join(lacking) or f"begins with {folder}, {newest}"
    yield Check(of="weights", finding=Readiness.MISSING if lacking else Readiness.FINE, words=words)


def _tokenizer_of(config: RunConfig) -> bytes | None:
    """Returns the content of a run's tokenizer, or None if it has none or its data are gone."""
    file = tokenizer_file(config.data.path) if config.data.path is not None else None
    return file.read_bytes() if file is not None else None


def checkpoint_checks(store: Store, source: Plan | RunConfig) -> Iterator[Check]:
    """Warns if a run writes no checkpoint before its end, with the time that an interruption would lose."""
    config = source.config if isinstance(source, Plan) else source
    kept = config.checkpoint
    on_the_way = kept.every_seconds is not None or (kept.every_steps or config.steps) < config.steps
    if on_the_way:
        return
    seconds = expected_seconds(store, source)
    at_stake = f"all {config.steps:,} steps"
    if seconds is not None:
        price = source.offer.usd_per_hour if isinstance(source, Plan) else config.stop.usd_per_hour
        usd = "" if price is None else f" and {format_usd(price * seconds / HOUR)}"
        at_stake += f", {format_seconds(seconds)}{usd}"
    end = "" if kept.final else ", and not at its end: the trained weights are written nowhere"
    words = (
        f"no checkpoint is written on the way{end}. An interruption loses up to {at_stake}; "
        "checkpoint.every_seconds: 900 in its configuration limits that"
    )
    yield Check(of="checkpoints", finding=Readiness.WARNING, words=words)


def expected_seconds(store: Store, source: Plan | RunConfig) -> float | None:
    """Returns the expected seconds of a run by its plan, its configuration or this device's profile, or None."""
    if isinstance(source, Plan):
        return source.bill.wall_clock.total_seconds.value
    if source.stop.step_seconds is not None:
        return source.steps * source.stop.step_seconds
    from advisor.calibration.profiles import load_profile  # scipy: only without a plan or measurement
    from advisor.prediction.batch import predict_batch

    key = device_key("cpu" if source.device == "cpu" else "auto")
    try:
        profile = load_profile(key, store, family=source.model.family)
    except AdvisorError:  # nothing is known of this device, so the steps at risk are stated
        return None
    work = workload_of_config(source, key)
    step = predict_batch(profile, [work])[0].step_seconds
    return source.steps * step.value if step is not None else None


def training_here(store: Store) -> Iterator[str]:
    """Yields the names of the runs that train on this machine now."""
    for row in store.runs():
        folder = Path(row.path)
        launch = read_launch(folder) if is_run_folder(folder) else None
        if launch is None or launch.place.engine != "local" or launch.host != this_host():
            continue
        if describe(folder, store).state is RunState.RUNNING:
            yield folder.name
