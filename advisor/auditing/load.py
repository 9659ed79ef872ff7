"""Read a run card. All its problems are reported at once, with the names of the fields."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from advisor.auditing.card import COLUMNS, MEASURED, PHASES, SCHEMA, SETUP_FIELDS, Card, CardSetup, Claim, gpus_meant
from advisor.auditing.kinds import named, names
from advisor.auditing.quantity import DIMENSIONS, parse_quantity
from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import load_gpus

_CARD_FIELDS = {"schema": "whole", "id": "text", "title": "text", "source": "text?", "assumed": "[text]?"}
_CARD_FIELDS |= {"unplaced": "[text]?"}
_PARTS = ("run", "others", "rows", "timing", "claims")
_CLAIM_FIELDS = {"id": "text", "text": "text", "line": "whole?", "about": "setup?", "premises": "[text]?"}
_CLAIM_FIELDS |= {"lines": "[whole]?"}
_CLAIM_FIELDS |= dict.fromkeys(("quote", "opinion", "because", "correct"), "text?")
_MOST_BYTES = 4 * 2**20
_FORMAT = 'docs/file-formats.md, "Run card", lists the fields; examples/reports/ has cards'
_EXPECTED = {"flag": "true or false", "text": "text", "gpu": "a GPU's name", "whole": "a whole number above 0"}
_EXPECTED |= {"float": "a number"}


def load_card(path: str | Path) -> Card:
    """Return the card in a YAML file. Raises AdvisorError, which names every problem at once."""
    path = Path(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise AdvisorError(
                f"{path} is larger than any run card", "give a card, not a log: advisor analyze reads logs"
            )
        raw = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        raise AdvisorError(f"cannot read {path}: {error.strerror}", "check the path") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        words = " ".join(str(error).split())[:300]
        raise AdvisorError(f"{path} is not a YAML file: {words}", _FORMAT) from error
    if isinstance(raw, dict) and {"goal", "chosen"} <= raw.keys():
        raise AdvisorError(
            f"{path} is a plan that `advisor plan` made, not a run card",
            "its numbers are predictions with their intervals: advisor launch runs it, advisor compare judges it",
        )
    problems: list[str] = []
    card = card_from_dict(raw, problems)
    if problems or card is None:
        lines = "".join(f"\n  {problem}" for problem in problems)
        raise AdvisorError(f"{path} is not a run card:{lines}", _FORMAT)
    return card


def card_from_dict(raw: Any, problems: list[str]) -> Card | None:
    """Return a card from plain dicts, or None if it cannot be built; every problem is then added to the list."""
    if not isinstance(raw, Mapping):
        problems.append(f"expected a mapping, found {type(raw).__name__}")
        return None
    plain = {key: value for key, value in raw.items() if key not in _PARTS}
    head = _read_fields(plain, _CARD_FIELDS, "", problems)
    if head.get("schema", SCHEMA) != SCHEMA:
        problems.append(f"schema: {raw.get('schema')} is not one this version reads ({SCHEMA})")
    # the other configurations inherit what they leave out, except measurements
    base = raw.get("run")
    run = _setup(base if base is not None else {}, "run", problems, name="run")
    entries: Any = raw.get("others") or []
    others: list[CardSetup] = []
    if not isinstance(entries, list):
        problems.append(f"others: expected a list, found {type(entries).__name__}")
        entries = ()
    inherited = {k: v for k, v in base.items() if k not in MEASURED} if isinstance(base, Mapping) else {}
    for i, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not entry.get("name"):
            problems.append(f"others[{i}]: expected a mapping with a name, found {entry!r}")
            continue
        alone = entry.get("inherit") is False
        own = {k: v for k, v in entry.items() if k != "inherit"}
        others.append(_setup(own if alone else {**inherited, **own}, f"others[{i}]", problems, name=str(entry["name"])))
    names = [other.name for other in others]
    problems += [f"others: two are named {name!r}" for name in _repeated(names)]
    rows, timing = _rows(raw.get("rows"), problems), raw.get("timing")
    if timing is not None:
        timing = _read_fields(timing, dict.fromkeys((*PHASES, "total"), "seconds?"), "timing", problems)
    entries = raw.get("claims")
    if not isinstance(entries, list):
        problems.append("claims: expected a list of claims")
        return None
    read = [_claim(entry, f"claims[{i}]", ["run", *names], problems) for i, entry in enumerate(entries)]
    claims = tuple(claim for claim in read if claim is not None)
    problems += [f"claims: two have the id {name!r}" for name in _repeated(claim.id for claim in claims)]
    if problems:
        return None
    head.pop("schema", None)
    return Card(**head, run=run, others=tuple(others), rows=rows, timing=timing or {}, claims=claims)


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def problems_of(**parts: Any) -> list[str]:
    """Return the problems of parts of a card, each in words."""
    problems: list[str] = []
    card_from_dict({"schema": SCHEMA, "id": "x", "title": "x", "run": {}, "claims": [], **parts}, problems)
    return problems


def _setup(raw: Any, where: str, problems: list[str], *, name: str) -> CardSetup:
    before = len(problems)
    values = _read_fields(raw, SETUP_FIELDS, where, problems)
    return CardSetup(**{**values, "name": name}) if len(problems) == before else CardSetup(name=name)


def _rows(raw: Any, problems: list[str]) -> dict[str, list[float | None]]:
    columns, values = (raw.get("columns"), raw.get("values")) if isinstance(raw, Mapping) else (None, None)
    if raw is None or not isinstance(columns, list) or not isinstance(values, list):
        problems += [] if raw is None else ["rows: expected columns (a list of names) and values (a list of rows)"]
        return {}
    before = len(problems)
    for name in (name for name in columns if name not in COLUMNS):
        close = close_matches(str(name), COLUMNS, 1)
        problems.append(f"rows.columns: {name!r} is unknown{f' (did you mean {close[0]}?)' if close else ''}")
    for i, row in enumerate(values):
        if not isinstance(row, list) or len(row) != len(columns):
            problems.append(f"rows.values[{i}]: expected {len(columns)} values, found {row!r}")
        elif bad := [v for v in row if v is not None and _number(v) is None]:
            problems.append(f"rows.values[{i}]: {bad[0]!r} is not a number")
    if len(problems) > before:
        return {}
    return {name: [None if row[i] is None else _number(row[i]) for row in values] for i, name in enumerate(columns)}


def _number(value: Any) -> float | None:
    """Return a finite number, also if YAML reads 5e-5 as text, or None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _claim(raw: Any, where: str, setups: list[str], problems: list[str]) -> Claim | None:
    if not isinstance(raw, Mapping):
        problems.append(f"{where}: expected a mapping, found {raw!r}")
        return None
    where = f"{where} ({raw['id']})" if isinstance(raw.get("id"), str) else where
    found = named(raw)
    if found is None:
        written = [str(raw[name]) for name in ("kind", "that") if raw.get(name) is not None]
        close = close_matches(written[-1], names(), 1) if written else []
        hint = f" (did you mean {close[0]}?)" if close else ""
        problems.append(
            f"{where}.kind: {' '.join(map(repr, written))} is unknown{hint}" if written else f"{where}.kind: missing"
        )
        return None
    form, entry = found
    before = len(problems)
    values = _read_fields(entry, {**_CLAIM_FIELDS, **form.fields}, where, problems, setups=setups)
    if len(problems) > before:
        return None
    own = {name: values.pop(name) for name in form.fields if name in values and name != "premises"}
    return Claim(**values, kind=form.kind, form=form.name, says=own)


def _read_fields(raw: Any, specs: Mapping[str, str], where: str, problems: list[str], **names: Any) -> dict[str, Any]:
    """Return the fields of a mapping, converted. Problems are added with the path of the field.

    A spec is a dimension ("seconds": a quantity of time) or several ("seconds or gpu_hours"), "number" (a quantity of
    any dimension), "text", "whole", "float", "flag", "gpu" (of the catalog, by a name that may mean several), "setup"
    (one of `names["setups"]`) or choices "a|b". "[…]" around a spec makes it a list, and "?" after it makes it
    optional.
    """
    if not isinstance(raw, Mapping):
        problems.append(f"{where}: expected a mapping, found {type(raw).__name__}")
        return {}
    prefix = f"{where}." if where else ""
    for key in raw:
        if key not in specs:
            close = close_matches(str(key), specs, 1)
            problems.append(f"{prefix}{key}: unknown field{f' (did you mean {close[0]}?)' if close else ''}")
    values = {}
    for name, spec in specs.items():
        if raw.get(name) is not None:
            values[name] = _convert(raw[name], spec.removesuffix("?"), prefix + name, problems, names)
        elif not spec.endswith("?"):
            problems.append(f"{prefix}{name}: missing")
    return values


def _convert(value: Any, spec: str, where: str, problems: list[str], names: Mapping[str, Any]) -> Any:
    if spec.startswith("["):
        if not isinstance(value, list) or not value:
            problems.append(f"{where}: expected a list, found {value!r}")
            return ()
        return tuple(_convert(v, spec[1:-1], f"{where}[{i}]", problems, names) for i, v in enumerate(value))
    if spec == "number" or set(spec.split(" or ")) <= set(DIMENSIONS):
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            problems.append(f"{where}: expected a quantity, found {value!r}")
            return None
        try:
            quantity = parse_quantity(value, () if spec == "number" else spec.split(" or "))
        except (ValueError, OverflowError) as error:
            problems.append(f"{where}: {error}")
            return None
        if spec != "number" and quantity.dimension not in spec.split(" or "):
            problems.append(f"{where}: {value!r} is in {quantity.dimension}, expected {spec}")
        return quantity
    if spec == "setup" or "|" in spec:
        allowed = names["setups"] if spec == "setup" else spec.split("|")
        if value not in allowed:
            close = close_matches(str(value), allowed, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            problems.append(f"{where}: {value!r} is not one of {', '.join(allowed)}{hint}")
        return value
    return _plain(value, spec, where, problems)


def _plain(value: Any, spec: str, where: str, problems: list[str]) -> Any:
    if spec == "flag":
        good = isinstance(value, bool)
    elif spec == "text":
        good = isinstance(value, str) and bool(value.strip())
    elif spec == "gpu":
        good = isinstance(value, str) and bool(gpus_meant(value))
        if not good and isinstance(value, str):
            close = close_matches(value.lower(), load_gpus(), 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            problems.append(f"{where}: unknown GPU {value!r}{hint}; `advisor gpus` lists the known ones")
            return value
    else:
        try:
            # a bare number as people write it: "2,048", "32K"
            counted = parse_quantity(value, ("count",)) if isinstance(value, str) else None
            number = float(value) if counted is None else counted.middle if counted.dimension == "count" else math.nan
            number = math.nan if isinstance(value, bool) else number
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        good = math.isfinite(number) and (spec == "float" or (number.is_integer() and number > 0))
        value = (int(number) if spec == "whole" else number) if good else value
    if not good:
        problems.append(f"{where}: expected {_EXPECTED[spec]}, found {value!r}")
    return value
