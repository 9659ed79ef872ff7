"""What a run on this machine needs, looked at before it starts: cards, PyTorch, memory, disk, data."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.hardware.here import cards, check_is_here
from advisor.hardware.software_support import installed_problem
from advisor.launch.cards import taken_by, visible_ids
from advisor.launch.engines import PLACES, describe
from advisor.launch.state import RunState, this_host
from advisor.records import Plan
from advisor.run_records import Place
from advisor.store.run_folder import is_run_folder, read_launch
from advisor.store.store import Store
from advisor.units import format_bytes, format_tokens
from advisor.workflows.data import read_data
from trainer.schema import RunConfig

LOG_BYTES_PER_STEP = 420  # a step record of our own log: 350 to 420 bytes


class Finding(StrEnum):
    """What a look found."""

    FINE = "fine"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that a run needs."""

    of: str  # card | PyTorch | memory | disk | data | other runs
    finding: Finding
    words: str


def preflight(store: Store, source: Plan | RunConfig, place: Place, folder: Path | None = None) -> list[Check]:
    """Everything that a run needs here, each looked at; nothing is started or written. It will lie in `folder`."""
    config = source.run if isinstance(source, Plan) else source
    checks = [*_cards(source, config, place), *_data(config), *_other_runs(store, config)]
    if isinstance(source, Plan):
        checks += [*_torch(source), *_memory(source, config, place), *_disk(source, folder or store.home)]
    return checks


def told(checks: list[Check]) -> list[str]:
    """The warnings, and what another place says, in words; AdvisorError that names everything missing, at once."""
    lacking = [f"{check.of}: {check.words}" for check in checks if check.finding is Finding.MISSING]
    if lacking:
        hint = "launch it where all is there (the plan is all it needs): advisor launch PLAN.yaml --on ssh:HOST"
        raise AdvisorError("the run cannot start:" + "".join(f"\n  {line}" for line in lacking), hint)
    warnings = [f"warning: {check.words}" for check in checks if check.finding is Finding.WARNING]
    return warnings + [check.words for check in checks if check.of in PLACES and check.finding is Finding.FINE]


def _cards(source: Plan | RunConfig, config: RunConfig, place: Place) -> Iterator[Check]:
    if config.device == "cpu":
        return
    needed = source.workload.gpus if isinstance(source, Plan) else 1
    if isinstance(source, Plan) and source.workload.gpu != "cpu":
        try:
            warning = check_is_here(source.workload.gpu, needed)
        except AdvisorError as error:
            yield Check(of="card", finding=Finding.MISSING, words=error.message)
            return
        if warning:
            yield Check(of="card", finding=Finding.WARNING, words=warning)
    visible, taken = visible_ids() or (), taken_by()
    unknown = [number for number in place.gpu_ids if number not in visible]
    if unknown:
        has = ", ".join(map(str, visible)) or "none"
        yield Check(of="card", finding=Finding.MISSING, words=f"there is no GPU {unknown[0]} here; there are: {has}")
        return
    free = [number for number in (place.gpu_ids or visible) if number not in taken]
    who = "; ".join(f"GPU {number} is taken by {run}" for number, run in taken.items())
    if visible and len(free) < needed:
        yield Check(of="card", finding=Finding.MISSING, words=f"{needed} free ones are needed: {who}")
    elif free:
        yield Check(of="card", finding=Finding.FINE, words=f"GPU {', '.join(map(str, free[:needed]))} is free")


def _torch(plan: Plan) -> Iterator[Check]:
    try:
        installed = version("torch")
    except PackageNotFoundError:
        yield Check(of="PyTorch", finding=Finding.MISSING, words="not installed: pip install torch")
        return
    spec = find_gpu(plan.workload.gpu)
    problem = installed_problem(spec, installed) if spec is not None else None
    yield Check(of="PyTorch", finding=Finding.WARNING if problem else Finding.FINE, words=problem or installed)


def _memory(plan: Plan, config: RunConfig, place: Place) -> Iterator[Check]:
    """The predicted peak beside what is free now, on the fullest of the cards."""
    peak = plan.prediction.peak_reserved_bytes
    if config.device == "cpu" or plan.workload.gpu == "cpu":
        free: int | None = psutil.virtual_memory().available
    else:
        present = cards()
        chosen = [number for number in place.gpu_ids or range(len(present)) if number < len(present)]
        known = [card.free_bytes for card in (present[number] for number in chosen) if card.free_bytes is not None]
        best = sorted(known, reverse=True)[: plan.workload.gpus]
        free = min(best) if best else None
    if peak is None or free is None:
        return
    words = f"{format_bytes(free)} are free now, {format_bytes(peak.value)} predicted (to {format_bytes(peak.high)})"
    finding = Finding.MISSING if peak.value > free else Finding.WARNING if peak.high > free else Finding.FINE
    yield Check(of="memory", finding=finding, words=words)


def _disk(plan: Plan, folder: Path) -> Iterator[Check]:
    """All checkpoints that are kept at once, and the log, beside what is free."""
    needed = (plan.prediction.disk_bytes or 0) + plan.run.steps * LOG_BYTES_PER_STEP
    there = next(path for path in (folder, *folder.resolve().parents) if path.exists())
    free = shutil.disk_usage(there).free
    words = f"{format_bytes(free)} are free at {there}, checkpoints and log take {format_bytes(needed)}"
    yield Check(of="disk", finding=Finding.MISSING if needed > free else Finding.FINE, words=words)


def _data(config: RunConfig) -> Iterator[Check]:
    """The token files are whole, of a vocabulary that the model has, and long enough for one sample of each split."""
    if config.data.path is None:
        return
    try:
        meta = read_data(config.data.path)
    except AdvisorError as error:
        yield Check(of="data", finding=Finding.MISSING, words=error.message)
        return
    assert meta is not None  # there is a path
    sample, vocabulary = config.model.seq_len + 1, config.model.vocab_size
    lacking = []
    if meta.vocab_size > vocabulary:
        lacking.append(f"its tokens go up to {meta.vocab_size}, the model's vocabulary to {vocabulary}")
    if meta.tokens < sample:
        lacking.append(f"{meta.tokens} tokens are fewer than one sample of {sample}")
    if config.eval.tokens and meta.validation_tokens < sample:
        lacking.append(f"{meta.validation_tokens} tokens to evaluate on are fewer than one sample of {sample}")
    words = (
        "; ".join(lacking)
        or f"{format_tokens(meta.tokens)} tokens, {format_tokens(meta.validation_tokens)} to evaluate on"
    )
    yield Check(of="data", finding=Finding.MISSING if lacking else Finding.FINE, words=f"{config.data.path}: {words}")


def _other_runs(store: Store, config: RunConfig) -> Iterator[Check]:
    """Runs on the processor are not kept apart, but each makes the others slower than planned."""
    if config.device != "cpu":
        return
    for row in store.runs():
        folder = Path(row.path)
        launch = read_launch(folder) if is_run_folder(folder) else None
        if launch is None or launch.place.engine != "local" or launch.host != this_host():
            continue
        if describe(folder, store).state is RunState.RUNNING:
            words = f"{folder.name} is running on this machine: both will be slower than planned"
            yield Check(of="other runs", finding=Finding.WARNING, words=words)
