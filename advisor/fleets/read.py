"""Reads fleet.yaml: every problem at once, each with its line and field."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from advisor import units
from advisor.engines.engines import parse_place
from advisor.errors import AdvisorError, close_matches
from advisor.fleets.records import FleetRun, Pool, PoolKind
from advisor.hardware.catalog import read_gpus
from advisor.units import HOUR

_FIELDS = {"earliest": "earliest_hours", "deadline": "deadline_hours", "value_per_day": "usd_per_day",
           "late_per_day": "usd_per_late_day"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of `runs`: a goal or a plan, and when it has to be done."""

    name: str
    line: int
    goal: Mapping[str, Any] | None  # options of `advisor plan`
    plan: Path | None
    count: int
    run: FleetRun  # without ways


@dataclass(frozen=True, kw_only=True)
class FleetFile:
    """The content of a fleet.yaml."""

    path: Path
    name: str
    starts: datetime
    probability: float
    budgets_usd: Mapping[str, float]
    pools: tuple[Pool, ...]
    entries: tuple[Entry, ...]


class _Reader:
    """Reads sections and collects problems."""

    def __init__(self, path: Path, now: datetime):
        self.path, self.now = path, now
        self.problems: list[tuple[int, str]] = []

    def say(self, node: yaml.Node | int, text: str) -> None:
        line = node if isinstance(node, int) else node.start_mark.line + 1
        self.problems.append((line, text))

    def fields(
        self, node: yaml.Node, known: Mapping[str, Callable[[Any], Any]], where: str, needed: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Return the read values of a mapping; problems are collected."""
        read: dict[str, Any] = {}
        if not isinstance(node, yaml.MappingNode):
            self.say(node, f"{where} is not a mapping of fields")
            return read
        for key, value in node.value:
            name = str(key.value).replace("-", "_")
            if name not in known:
                close = close_matches(name, known)
                maybe = f"; {close[0]}?" if close else f"; known are {', '.join(known)}"
                self.say(key, f"{where} has no field {key.value}{maybe}")
                continue
            if name in read:
                self.say(key, f"{where}.{name} is stated twice")
            try:
                read[name] = known[name](_value(value))
            except (AdvisorError, ValueError) as error:
                text = error.message if isinstance(error, AdvisorError) else str(error)
                self.say(value, f"{where}.{name}: {text}")
        for name in needed:
            if name not in read and not any(str(key.value).replace("-", "_") == name for key, _ in node.value):
                self.say(node, f"{where} lacks {name}")
        return read

    # --- the kinds of values ---

    def hours(self, value: Any) -> float:
        """Return hours from the fleet's start: a duration, or a moment."""
        if isinstance(value, datetime):
            value = value.isoformat()
        return units.parse_deadline(str(value), self.now) / HOUR

    def money(self, value: Any) -> float:
        usd = units.parse_usd(str(value)) if not isinstance(value, bool) else math.nan
        if not usd >= 0:
            raise ValueError(f"{value} is no amount of money")
        return usd


def _value(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_object(node, deep=True)


def read_fleet(path: Path, now: datetime) -> FleetFile:
    """Read a fleet file. Raises AdvisorError (exit 2) with every problem, each with its line."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise AdvisorError(f"{path}: {error.strerror}", "advisor fleet example prints one", exit_code=2) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = f"{path} is not valid YAML: {' '.join(str(error).split())}"
        raise AdvisorError(message, "advisor fleet example prints one", exit_code=2) from error
    if not isinstance(root, yaml.MappingNode):
        raise AdvisorError(f"{path} is empty or no mapping", "advisor fleet example prints one", exit_code=2)
    reader = _Reader(path, now)
    sections = {str(key.value): value for key, value in root.value}
    top = reader.fields(
        root, {"name": str, "starts": lambda v: v, "probability": _share, "budget": reader.money,
               "teams": lambda v: v, "pools": lambda v: v, "runs": lambda v: v},
        "the file", ("pools", "runs"),
    )  # fmt: skip
    if "starts" in top:
        try:
            reader.now = top["starts"] if isinstance(top["starts"], datetime) else datetime.fromisoformat(top["starts"])
        except (TypeError, ValueError):
            reader.say(sections["starts"], f"starts: {top['starts']} is no moment like 2026-12-01T09:00")
    budgets = {"": top["budget"]} if "budget" in top else {}
    for name, node in _named(reader, sections.get("teams"), "teams"):
        found = reader.fields(node, {"budget": reader.money}, f"teams.{name}", ("budget",))
        budgets |= {name: found["budget"]} if "budget" in found else {}
    pools = [
        pool for name, node in _named(reader, sections.get("pools"), "pools") for pool in _pools(reader, name, node)
    ]
    entries = _entries(reader, sections.get("runs"))
    teams = {name for name, _ in _named(_Reader(path, now), sections.get("teams"), "teams")}
    for entry in entries:
        if entry.run.team is not None and entry.run.team not in teams:
            reader.say(entry.line, f"runs.{entry.name}.team: there is no team {entry.run.team}")
    if reader.problems:
        listed = "; ".join(f"line {line}: {text}" for line, text in sorted(set(reader.problems)))
        raise AdvisorError(f"{path}: {listed}", "advisor fleet example prints a file that is right", exit_code=2)
    return FleetFile(
        path=path, name=top.get("name", path.stem), starts=reader.now, probability=top.get("probability", 0.9),
        budgets_usd=budgets, pools=tuple(pools), entries=tuple(entries),
    )  # fmt: skip


def _named(reader: _Reader, node: yaml.Node | None, where: str) -> list[tuple[str, yaml.Node]]:
    """Return the entries of a mapping from names."""
    if node is None:
        return []
    if not isinstance(node, yaml.MappingNode) or not node.value:
        reader.say(node, f"{where} has no entries by name")
        return []
    names = [str(key.value) for key, _ in node.value]
    for name in {name for name in names if names.count(name) > 1}:
        reader.say(node, f"{where} has {name} twice")
    return [(str(key.value), value) for key, value in node.value]


def _pools(reader: _Reader, name: str, node: yaml.Node) -> list[Pool]:
    """Return one pool for each GPU type of an entry."""
    where = f"pools.{name}"
    known: dict[str, Callable[[Any], Any]] = {
        "kind": _kind, "gpu": _gpu_keys, "gpus": _whole, "quota": _quota, "from": reader.hours, "until": reader.hours,
        "usd_per_gpu_hour": reader.money, "upfront": reader.money, "most": _whole, "bought": _whole, "refund": _share,
        "availability": _share, "up_time": lambda v: units.parse_seconds(str(v)) / HOUR,
        "queue": lambda v: units.parse_seconds(str(v)) / HOUR, "provider": str, "engine": _engine,
    }  # fmt: skip
    read = reader.fields(node, known, where, ("kind",))
    if "kind" not in read:
        return []
    kind: PoolKind = read["kind"]
    quota: dict[str, int | None] = dict(read.get("quota", {}))
    for gpu in read.get("gpu", ()):
        quota.setdefault(gpu, read.get("gpus"))
    if not quota:
        reader.say(node, f"{where} names no GPU: gpu: h100, or quota: {{h100: 16}}")
    if kind in (PoolKind.OWNED, PoolKind.RESERVATION) and None in quota.values():
        reader.say(node, f"{where} lacks gpus: how many there are")
    if kind is PoolKind.RESERVATION:
        for needed in ("from", "until"):
            if needed not in read:
                reader.say(node, f"{where} lacks {needed}: when the reservation begins and ends")
        if "upfront" not in read and not read.get("bought"):
            reader.say(node, f"{where} lacks upfront: the dollars of one block, or bought: 1 if it is paid for")
    opens, closes = read.get("from", 0.0), read.get("until", math.inf)
    if opens >= closes:
        reader.say(node, f"{where} ends before it begins")
    availability = read.get("availability", 1.0)
    if kind is PoolKind.SPOT and not 0 < availability <= 1:
        reader.say(node, f"{where}.availability must be above 0 and at most 1")
        availability = 1.0
    free = kind in (PoolKind.OWNED, PoolKind.RESERVATION)
    bought = read.get("bought", 0)
    return [
        Pool(
            name=name if len(quota) == 1 else f"{name}/{gpu}", kind=kind, gpu=gpu, gpus=gpus, from_hours=opens,
            until_hours=closes, usd_per_gpu_hour=read.get("usd_per_gpu_hour", 0.0 if free else None),
            upfront_usd=read.get("upfront", 0.0), most_blocks=max(bought, read.get("most", max(1, bought))),
            bought_blocks=bought, refund_share=read.get("refund", 0.0), availability=availability,
            up_hours=read.get("up_time", math.inf), queue_hours=read.get("queue", 0.0), provider=read.get("provider"),
            engine=read.get("engine"),
        )
        for gpu, gpus in quota.items()
    ]  # fmt: skip


def _entries(reader: _Reader, node: yaml.Node | None) -> list[Entry]:
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        reader.say(node, "runs is no list of runs")
        return []
    known: dict[str, Callable[[Any], Any]] = {
        "name": str, "goal": _options, "plan": lambda v: Path(str(v)), "count": _whole, "earliest": reader.hours,
        "deadline": reader.hours, "value_per_day": reader.money, "late_per_day": reader.money, "priority": int,
        "team": str, "interruptible": _yes_no,
    }  # fmt: skip
    entries: list[Entry] = []
    for at, item in enumerate(node.value):
        read = reader.fields(item, known, f"run {at + 1}", ("name",))
        name, line = read.get("name", f"run {at + 1}"), item.start_mark.line + 1
        if ("goal" in read) == ("plan" in read):
            reader.say(item, f"runs.{name} needs either goal or plan")
        if any(entry.name == name for entry in entries):
            reader.say(item, f"two runs are called {name}")
        if read.get("count", 1) < 1:
            reader.say(item, f"runs.{name}.count must be at least 1")
        given = {_FIELDS.get(key, key): read[key] for key in read if key not in ("name", "goal", "plan", "count")}
        run = FleetRun(name=name, group=name, must="late_per_day" not in read, ways=(), **given)
        if run.deadline_hours <= run.earliest_hours:
            reader.say(item, f"runs.{name} may begin only after its deadline")
        plan = None if "plan" not in read else reader.path.parent / read["plan"]
        entries.append(
            Entry(name=name, line=line, goal=read.get("goal"), plan=plan, count=read.get("count", 1), run=run)
        )
    return entries


def _share(value: Any) -> float:
    share = units.parse_percent(value) if isinstance(value, str) else float(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{value} is not between 0 and 100 %")
    return share


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value} is no whole number")
    return value


def _kind(value: Any) -> PoolKind:
    text = str(value).replace("_", "-")
    if text not in list(PoolKind):
        raise ValueError(f"{value} is none of {', '.join(PoolKind)}")
    return PoolKind(text)


def _gpu_keys(value: Any) -> list[str]:
    names = value if isinstance(value, list) else str(value).split(",")
    return [read_gpus(str(name).strip()).key for name in names]


def _quota(value: Any) -> dict[str, int | None]:
    if not isinstance(value, dict):
        raise ValueError("it is no mapping from GPUs to how many at once, like {h100: 16}")
    return {read_gpus(str(name)).key: None if count is None else _whole(count) for name, count in value.items()}


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise ValueError("it is no mapping of options of `advisor plan`, like {model: gpt2, tokens: 2B}")
    return {str(name).replace("-", "_"): given for name, given in value.items()}


def _engine(value: Any) -> str:
    parse_place(str(value))
    return str(value)


def _yes_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value} is neither true nor false")
    return value
