"""Finds the knobs of a program by the recipe of a known trainer, or else by the program's own help text."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.adopt.command import number_of, value_of
from advisor.readers.yaml_rows import rows_of_file
from advisor.store.adopted import Knob, Recipe, record_of
from advisor.store.disk import read_yaml
from advisor.store.folders import profiles_folder

# knob → fact in readers/names.yaml, whose names it has. Never guessed: `tokens`, because max_tokens is a batch in some
# programs, and `gpus`, which is of a launcher and a list of GPUs in others.
_FACTS = {"micro_batch": "micro_batch", "grad_accum": "grad_accum", "seq_len": "seq_len", "steps": "planned_steps",
          "tokens": "", "epochs": "planned_epochs", "gpus": "", "depth": "depth", "log_every": "",
          "save_every": "checkpoint_every_steps", "eval_every": "eval_every_steps"}  # fmt: skip
_SHORT = {  # further names of options, after those
    "micro_batch": ("microbatch", "train_batch_size", "batchsize", "bsz", "bs", "batch"),
    "grad_accum": ("accum_steps", "accum_iter", "accumulate", "accum"),
    "seq_len": ("context_len", "seqlen"),
    "steps": ("n_steps", "max_iterations", "num_iters"),
    "epochs": ("epoch",),
    "log_every": ("logging_steps", "log_interval", "log_every_n_steps", "log_every", "log_freq"),
}
_A_SHARE = "val_check_interval"  # of an epoch, in Lightning
KNOBS = tuple(_FACTS)
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w.-]*)")
_DEFAULT = re.compile(r"[\[(]default:? *['\"]?([^\s'\")\]]+)")
_FRAME = "│┃|"


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a program's help."""

    names: tuple[str, ...]
    takes_value: bool = True
    default: str = ""
    stands_for: tuple[str, ...] = ()  # how the help names its value: argparse's name of the variable


def read_options(text: str) -> list[Option]:
    """Returns the options in a help text of argparse, jsonargparse, click or tyro.

    A line whose first word is an option begins that option; all words up to the next one belong to it.
    """
    blocks: list[list[str]] = []
    for line in text.splitlines():
        clean = line.strip().strip(_FRAME).strip()
        if clean.startswith("-") and _OPTION.match(clean):
            blocks.append([clean])
        elif blocks and clean:
            blocks[-1].append(clean)
    options = []
    for block in blocks:
        head, default = re.split(r" {2,}", block[0])[0], _DEFAULT.search(" ".join(block))
        value = _OPTION.sub("", head).replace(",", " ").replace("=", " ").split()
        names = tuple(name for name in dict.fromkeys(_OPTION.findall(head)) if name.startswith("--"))
        stands_for = tuple(word.lower() for word in value if word.isupper() and "_" in word)
        if names:
            options.append(Option(names=names, takes_value=bool(value), default=default[1] if default else "",
                                  stands_for=stands_for))  # fmt: skip
    return options


def draft_recipe(name: str, text: str, command: Sequence[str]) -> Recipe:
    """Returns the recipe that a program's help and its command suggest, without the knobs that were not found."""
    options = read_options(text)
    known = {_plain(each) for option in options for each in option.names}
    given = (word.split("=")[0] for word in command if word.startswith("--"))
    options += [Option(names=(each,)) for each in given if _plain(each) not in known]
    return Recipe(name=name, knobs=tuple(k for each in KNOBS if (k := _find(each, options, command)) is not None))


def in_bursts(name: str) -> str | None:
    """Returns a knob's value for bursts, which log each step and never save or evaluate, or None if it stays."""
    return {"log_every": "1", "save_every": "1000000000", "eval_every": "1000000000"}.get(name)


def _find(name: str, options: Iterable[Option], command: Sequence[str]) -> Knob | None:
    with_value = [option for option in options if option.takes_value]
    by_name = {word: option for option in with_value for word in option.stands_for}
    by_name |= {_plain(each): option for option in with_value for each in option.names}
    rows = (row for row in rows_of_file("names")["settings"] if row["fact"] == _FACTS[name])
    names = (*(each for row in rows for each in row["names"]), *_SHORT.get(name, ()))
    option = next((by_name[each] for each in names if each in by_name and each != _A_SHARE), None)
    if option is None:
        return None
    spelled = (n for n in option.names if any(word == n or word.startswith(f"{n}=") for word in command))
    key = next(spelled, max(option.names, key=len))  # as the command calls it, or else by its longest name
    equals = any(word.startswith(f"{key}=") for word in command)
    found = Knob(name=name, key=key, how="equals" if equals else "option", in_bursts=in_bursts(name))
    if found.in_bursts is not None:
        return found
    words = command if value_of(command, found) is not None else (key, option.default.replace(",", ""))
    return replace(found, value=number_of(words, Recipe(name=""), replace(found, how="option")))


def _plain(option: str) -> str:
    return option.lstrip("-").rpartition(".")[2].replace("-", "_").lower()


def by_command(command: Sequence[str]) -> Recipe | None:
    """Returns the shipped recipe that matches a command, or None."""
    line = " ".join(Path(word).name if word.startswith("/") else word for word in command)
    return _first(line, command, "detect")


def by_help(text: str, command: Sequence[str]) -> Recipe | None:
    """Returns the shipped recipe that matches a program's help, without knobs that the help lacks, or None."""
    recipe = _first(text, command, "detect_help")
    return recipe and replace(recipe, knobs=tuple(knob for knob in recipe.knobs if knob.key in text))


def _first(text: str, command: Sequence[str], patterns: str) -> Recipe | None:
    recipes = (r for r in shipped_recipes() if any(re.search(pattern, text) for pattern in getattr(r, patterns)))
    if (recipe := next(recipes, None)) is None:
        return None
    # Knobs that the command does not set keep the trainer's defaults.
    given = [(knob, number_of(command, recipe, knob)) for knob in recipe.knobs]
    return replace(recipe, knobs=tuple(k if value is None else replace(k, value=value) for k, value in given))


@functools.cache
def shipped_recipes() -> tuple[Recipe, ...]:
    """Returns all shipped recipes, the most specific first, as their files are numbered."""
    hint = "this file ships with the program: install it again"
    paths = sorted((profiles_folder() / "trainers").glob("*.yaml"))
    return tuple(record_of(Recipe, read_yaml(path, "recipe"), path, "recipe", hint) for path in paths)
