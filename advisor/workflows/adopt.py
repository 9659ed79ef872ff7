"""Measures and plans the user's own training command, here or in a child process, and lists its runs."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path

import psutil

from advisor.adopt.command import launcher_knob, launcher_of
from advisor.adopt.help_text import KNOBS, by_command, by_help, draft_recipe, in_bursts
from advisor.adopt.plan import make_plan
from advisor.adopt.session import Command, adopt
from advisor.engines.background import BackgroundCommand
from advisor.engines.background import Started as StartedCommand
from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import find_gpu
from advisor.options import AdoptedGoal
from advisor.store.adopted import (
    FOLDER,
    Adopted,
    AdoptedBurst,
    AdoptedPlan,
    Knob,
    Recipe,
    dump_adopted_plan,
    save_adopted,
)
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import is_run_folder, read_launch
from advisor.store.store import Store
from advisor.trainers.adopted import ADOPTED
from advisor.workflows.goal import model_of_config
from trainer.schema import ModelShape

BUDGET_SECONDS = 240.0
_HELP_SECONDS = 120.0  # imports come before a program reads its arguments
_FREE_SHARE = 0.9  # share of a machine's free memory that a run may fill
_CONTAINERS, _ELSEWHERE = ("docker", "podman", "nerdctl"), ("ssh", "kubectl")
_CONFIG = "config.json"  # a model's configuration, in the folder of its weights
_SAME_MODEL = 0.1  # relative difference in parameters: a head that shares the embedding's weights may be counted or not
_PYTHON = re.compile(r"python(\d+(\.\d+)?)?$")
VARIABLE = re.compile(r"[A-Za-z_]\w*=")  # a variable that a shell or `env` sets before a program starts
_PLANS = "plans"  # folder beside the adopted commands for plans that `advisor adopt` makes without being asked
_OF_A_SHELL = frozenset(("|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1", "2>"))


def adopt_command(
    store: Store,
    command: Sequence[str],
    *,
    name: str | None = None,
    knobs: Mapping[str, str] | None = None,
    budget_seconds: float = BUDGET_SECONDS,
    on_event: Callable[[str, float], None] = lambda text, seconds: None,
) -> Adopted:
    """Find a command's knobs, measure the command, and store both under `name`.

    `knobs` are options that the user named, by canonical name. Raises AdvisorError if the command does not train, its
    steps cannot be seen, or a knob is not an option of the command.
    """
    # Refuse commands in containers or on other machines, because a burst could not end the program there.
    program = Path(command[0]).name
    if program in _CONTAINERS and "run" in command and "--init" not in command:
        raise AdvisorError(
            f"{program} run without --init does not pass signals on: a stopped burst would continue in its container",
            f"{program} run --init --rm -e PYTHONUNBUFFERED=1 …, or advisor adopt inside the container",
            exit_code=2,
        )
    if program in _ELSEWHERE:
        message = f"what {program} starts runs elsewhere, and a burst of it cannot be ended from here"
        hint = "advisor adopt there"
        raise AdvisorError(message, hint, exit_code=2)
    on_event("reading the options of the command", 0.0)
    recipe = with_named(recipe_of_command(command), knobs or {})

    words = Command(arguments=tuple(command), folder=Path.cwd(), environment=dict(os.environ), recipe=recipe)
    adopted = adopt(words, name_of(command, name or ""), budget_seconds, on_event)
    base, *others = adopted.bursts
    base = replace(base, model=base.model or configured_model(command, base))
    adopted = replace(adopted, bursts=(base, *others))
    save_adopted(store.home, adopted)
    return adopted


def configured_model(command: Sequence[str], base: AdoptedBurst) -> ModelShape | None:
    """Returns the decoder that a config.json in the command describes, for a program whose weights were not seen.

    If the number of trained parameters was seen, it must be that of the whole model.
    """
    if base.shape is None or base.shape.length is None:
        return None
    named = [part for word in command[1:] for part in (word, word.partition("=")[2]) if part]
    paths = [name if os.path.basename(name) == _CONFIG else os.path.join(name, _CONFIG) for name in named]
    found = next((path for path in paths if os.path.isfile(path)), None)  # False for anything that is not a path
    if found is None:
        return None
    with disk_errors("read", Path(found)):
        text = Path(found).read_text(encoding="utf-8", errors="replace")
    try:
        model = model_of_config(text, seq_len=round(base.shape.length))
    except AdvisorError:  # the configuration of another kind of model, or no model's
        return None
    same = base.elements is None or abs(base.elements / model.parameters - 1) <= _SAME_MODEL
    return model.shape if same and model.head_dim is None else None


def recipe_of_command(command: Sequence[str]) -> Recipe:
    """Returns the shipped recipe of a known trainer, or one drafted from the program's help."""
    known = by_command(command)
    if known is None:
        if shutil.which(command[0]) is None:
            hint = "it is started as typed, without a shell: check its spelling, or give its full path"
            raise AdvisorError(f"there is no program {command[0]!r}", hint, exit_code=2)
        text = ""  # a program without options can still train, but has no help
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            done = subprocess.run(
                [*_program(command), "--help"], capture_output=True, text=True, errors="replace",
                timeout=_HELP_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            text = done.stdout if done.returncode == 0 else ""
        known = by_help(text, command) or draft_recipe(name_of(command), text, command)
    if (launcher := launcher_knob(command)) is None:
        return known
    return replace(known, knobs=(*(knob for knob in known.knobs if knob.name != "gpus"), launcher))


def named_knobs(words: Sequence[str]) -> dict[str, str]:
    """Returns the knobs that the user named, each as KNOB=OPTION. Raises AdvisorError for a word of another form."""
    pairs = [word.partition("=")[::2] for word in words]
    if bad := next((word for word, pair in zip(words, pairs, strict=True) if not all(pair)), None):
        raise AdvisorError(f"{bad!r} is not KNOB=OPTION", "like micro_batch=--bsz", exit_code=2)
    return dict(pairs)


def can_be_planned(adopted: Adopted, goal: AdoptedGoal) -> bool:
    """Tells whether the goal or the command states how long it trains."""
    requested = replace(goal, usd_per_gpu_hour=None, gpus=None) != AdoptedGoal()
    given = {knob.name for knob in adopted.recipe.knobs if knob.value is not None and knob.value > 0}
    own = bool(given & {"steps", "tokens"}) or ("epochs" in given and adopted.bursts[0].step_epochs is not None)
    return requested or own


def with_named(recipe: Recipe, knobs: Mapping[str, str]) -> Recipe:
    """Returns the recipe with the user's knobs: an option, `KEY=` for KEY=VALUE, or `$VARIABLE`."""
    for name, key in knobs.items():
        if name not in KNOBS:
            near = close_matches(name, KNOBS)
            raise AdvisorError(f"there is no knob {name!r}", f"did you mean {' or '.join(near or KNOBS)}?", exit_code=2)
        how = "env" if key.startswith("$") else "equals" if key.endswith("=") else "option"
        knob = Knob(name=name, key=key.strip("$="), how=how, in_bursts=in_bursts(name))
        recipe = replace(recipe, knobs=(*(k for k in recipe.knobs if k.name != name), knob))
    return recipe


def plan_adopted(adopted: Adopted, goal: AdoptedGoal) -> AdoptedPlan:
    """Plans a run of an adopted command; raises AdvisorError if nothing fits."""
    now = datetime.now(UTC)
    # A run may fill the GPU's memory, or this machine's free memory.
    spec, on_cpu = find_gpu(adopted.device_key), adopted.device_key == "cpu"
    room = psutil.virtual_memory().available if on_cpu else spec.memory_bytes if spec is not None else None
    limited = replace(goal, memory_bytes=goal.memory_bytes or (room and room * _FREE_SHARE))
    return make_plan(
        adopted, limited, plan_id=f"{adopted.name}-{now:%Y%m%d-%H%M%S}", created=now.isoformat(timespec="seconds")
    )


def save_plan(plan: AdoptedPlan, path: Path) -> None:
    """Write a plan for `advisor launch`."""
    write_atomic(path, dump_adopted_plan(plan))


def _program(command: Sequence[str]) -> list[str]:
    """Returns the command up to its program: a script, a module, or the first word with its verbs."""
    launcher = launcher_of(command)
    for place, word in enumerate(command):
        if word.endswith(".py"):
            return list(command[: place + 1])
        if word == "-m" and place + 1 < len(command) and (launcher is None or place >= launcher.first):
            return list(command[: place + 2])
    verbs = takewhile(lambda word: not (word.startswith("-") or "=" in word or "." in word), command[1:])
    return [command[0], *verbs]


def name_of(command: Sequence[str], given: str = "") -> str:
    """Returns the name of an adopted command: the user's, or one from its script or its program and verbs."""
    launcher = launcher_of(command)
    program = _program(command)[launcher.end if launcher is not None else 0 :]
    words = [word for word in program if not word.startswith("-") and not VARIABLE.match(word)]
    last = [Path(word).stem for word in words if Path(word).name != "env" and not _PYTHON.fullmatch(Path(word).name)]
    return re.sub(r"[^\w.-]+", "-", given or "-".join(last[-2:])).strip("-.") or "training"


def typed_command(text: str) -> tuple[str, ...]:
    """Splits a command into words as a shell does; raises AdvisorError for syntax that needs a shell."""
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise AdvisorError(f"the command cannot be read: {error}", "close every quotation mark", exit_code=2) from error
    if not words:
        raise AdvisorError("which command?", "as it is typed in a terminal: python train.py …", exit_code=2)
    if found := [word for word in words if word in _OF_A_SHELL or word.startswith(("$(", "`"))]:
        hint = "leave it out; or put all of it into a script: bash train.sh"
        raise AdvisorError(f"{found[0]} needs a shell, and the command is started without one", hint, exit_code=2)
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
    """Adopt a command in a child process, as if typed in `folder`; returns the name that it will have.

    Raises AdvisorError if the command cannot be read, the folder does not exist, or another adoption is running.
    """
    words, called = typed_command(text), name.strip()
    if not folder.is_dir():
        raise AdvisorError(f"there is no folder {folder}", "the folder in which the command is typed", exit_code=2)
    called = name_of(words, called)
    plan = store.home / FOLDER / _PLANS / f"{called}.yaml"
    plan.parent.mkdir(parents=True, exist_ok=True)
    named = [part for knob, key in (knobs or {}).items() for part in ("--knob", f"{knob}={key}")]
    options = ["--name", called, "--out", str(plan), "--budget-seconds", f"{budget_seconds:g}", *named]
    adopting(store).start(("adopt", *options, "--", *words), budget_seconds, folder=folder, subject=called)
    return called


def adopting(store: Store) -> BackgroundCommand:
    """Returns the adoption in the background, with which a page can watch and cancel it."""
    return BackgroundCommand(home=store.home, name="adopting", description="an adoption")


def was_adopted(store: Store, state: StartedCommand) -> bool:
    """Tells whether an adoption in the background has ended with a command that can be planned."""
    path = store.home / FOLDER / f"{state.subject}.yaml"
    return not state.running and path.exists() and path.stat().st_mtime >= state.unix_seconds


def runs_of_command(store: Store, name: str) -> list[Path]:
    """Returns the run folders of an adopted command, newest first."""
    folders = [folder for row in store.runs() if is_run_folder(folder := Path(row.path))]
    launches = [(folder, read_launch(folder)) for folder in folders]
    return [folder for folder, it in launches if it is not None and (it.trainer, it.name) == (ADOPTED.name, name)]
