"""An adoption as a process of its own, as a page starts it; and the runs that an adopted command has had."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.engines.beside import Beside
from advisor.errors import AdvisorError
from advisor.history.adopted import is_adopted
from advisor.store.adopted import FOLDER, PLAN, load_adopted_plan
from advisor.store.run_folder import is_run_folder
from advisor.store.store import Store
from advisor.workflows.adopt import BUDGET_SECONDS, VARIABLE, name_of

_PLANS = "plans"  # beside the adopted commands: what `advisor adopt` plans of its own accord
_OF_A_SHELL = frozenset(("|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", "2>"))


@dataclass(frozen=True, kw_only=True)
class Adopting:
    """The newest adoption that was started this way."""

    name: str  # of the command
    running: bool
    elapsed_seconds: float
    budget_seconds: float
    done: bool  # the command was adopted
    said: tuple[str, ...]  # its newest lines


def typed_command(text: str) -> tuple[str, ...]:
    """The words of a command as a shell would part them; raises AdvisorError for what only a shell understands."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise AdvisorError(f"the command cannot be read: {error}", "close every quotation mark", exit_code=2) from error
    if not words:
        raise AdvisorError("which command?", "as it is typed in a terminal: python train.py …", exit_code=2)
    if found := [word for word in words if word in _OF_A_SHELL or word.startswith(("$(", "`"))]:
        raise AdvisorError(
            f"{found[0]} is a shell's, and the command is started without one",
            "leave it out; or put the whole into a script: bash train.sh",
            exit_code=2,
        )
    return ("env", *words) if VARIABLE.match(words[0]) else tuple(words)


def start_adopting(
    store: Store,
    text: str,
    folder: Path,
    *,
    name: str = "",
    knobs: Mapping[str, str] | None = None,
    budget_seconds: float = BUDGET_SECONDS,
) -> str:
    """Adopt a command beside this process, as it is typed in `folder`; gives the name that it will have.

    Raises AdvisorError for a command that cannot be read, a folder that is not there, or when one is being adopted.
    """
    words, called = typed_command(text), name.strip()
    if not folder.is_dir():
        raise AdvisorError(f"there is no folder {folder}", "the folder in which the command is typed", exit_code=2)
    called = name_of(words, called)
    plan = store.home / FOLDER / _PLANS / f"{called}.yaml"
    plan.parent.mkdir(parents=True, exist_ok=True)
    named = [part for knob, key in (knobs or {}).items() for part in ("--knob", f"{knob}={key}")]
    options = ["--name", called, "--out", str(plan), "--budget-seconds", f"{budget_seconds:g}", *named]
    _beside(store).start(("adopt", *options, "--", *words), budget_seconds, folder=folder, subject=called)
    return called


def look_adopting(store: Store) -> Adopting | None:
    """How the newest of them stands; None: there was none."""
    beside = _beside(store)
    state = beside.look()
    if state is None:
        return None
    path, running = store.home / FOLDER / f"{state.subject}.yaml", state.running
    return Adopting(
        name=state.subject,
        running=running,
        elapsed_seconds=state.elapsed_seconds,
        budget_seconds=state.budget_seconds,
        done=not running and path.exists() and path.stat().st_mtime >= state.unix_seconds,
        said=beside.said(),
    )


def cancel_adopting(store: Store) -> None:
    """End it with everything that it started; what it measured is lost."""
    _beside(store).cancel(with_children=True)


def _beside(store: Store) -> Beside:
    return Beside(home=store.home, name="adopting", what="an adoption")


def runs_of_command(store: Store, name: str) -> list[Path]:
    """The folders of the runs that were launched of an adopted command, newest first."""
    folders = [Path(row.path) for row in store.runs()]
    return [
        folder
        for folder in folders
        if is_run_folder(folder) and is_adopted(folder) and load_adopted_plan(folder / PLAN).trainer == name
    ]
