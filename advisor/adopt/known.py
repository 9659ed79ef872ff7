"""The recipes that ship with the program: how known trainers are told what to do, as data in `profiles/trainers`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.adopt.command import number_of
from advisor.store.adopted import Knob, Recipe
from advisor.store.disk import bad_fields, read_yaml
from advisor.store.folders import profiles_folder
from trainer.schema import ConfigError, record_from_dict


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A recipe and the programs it is for."""

    recipe: Recipe
    detect: tuple[str, ...] = ()  # regular expressions: one is in the command
    detect_help: tuple[str, ...] = ()  # or in the program's own help


def by_command(command: Sequence[str]) -> Recipe | None:
    """The shipped recipe of a command by its words; None: no recipe knows it."""
    line = " ".join(Path(word).name if word.startswith("/") else word for word in command)
    return _first(line, command, lambda shipped: shipped.detect)


def by_help(text: str, command: Sequence[str]) -> Recipe | None:
    """The shipped recipe of a command by its program's help, without what that does not offer; None: none knows it."""
    recipe = _first(text, command, lambda shipped: shipped.detect_help)
    return recipe and replace(recipe, knobs=tuple(knob for knob in recipe.knobs if knob.key in text))


def _first(text: str, command: Sequence[str], patterns: Callable[[Shipped], tuple[str, ...]]) -> Recipe | None:
    recipes = (s.recipe for s in shipped_recipes() if any(re.search(pattern, text) for pattern in patterns(s)))
    recipe = next(recipes, None)
    return with_own_values(recipe, command) if recipe is not None else None


def with_own_values(recipe: Recipe, command: Sequence[str]) -> Recipe:
    """A recipe with what the command itself sets its knobs to; elsewhere they keep the trainer's defaults."""

    def settled(knob: Knob) -> Knob:
        given = number_of(command, recipe, knob)
        return knob if given is None else replace(knob, value=given)

    return replace(recipe, knobs=tuple(settled(knob) for knob in recipe.knobs))


@functools.cache
def shipped_recipes() -> tuple[Shipped, ...]:
    """All of them, the most particular first, as their files are numbered."""
    return tuple(_read(path) for path in sorted((profiles_folder() / "trainers").glob("*.yaml")))


def _read(path: Path) -> Shipped:
    raw = read_yaml(path, "recipe")
    detect, detect_help = tuple(raw.pop("detect", ())), tuple(raw.pop("detect_help", ()))
    try:
        return Shipped(recipe=record_from_dict(Recipe, raw), detect=detect, detect_help=detect_help)
    except ConfigError as error:
        raise bad_fields("recipe", path, error, "this file ships with the program: install it again") from error
