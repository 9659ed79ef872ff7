"""Check the values of a card against what each field must be, and collect every problem."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from advisor.auditing.quantity import DIMENSIONS, ClaimedQuantity, parse_quantity
from advisor.errors import close_matches
from advisor.hardware.catalog import GpuSpec, gpus_named, load_gpus


def read_fields(raw: Any, specs: Mapping[str, str], where: str, problems: list[str], **names: Any) -> dict[str, Any]:
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
        return _quantity(value, spec, where, problems)
    if spec == "setup" or "|" in spec:
        allowed = names["setups"] if spec == "setup" else spec.split("|")
        if value not in allowed:
            close = close_matches(str(value), allowed, 1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            problems.append(f"{where}: {value!r} is not one of {', '.join(allowed)}{hint}")
        return value
    return _plain(value, spec, where, problems)


def _quantity(value: Any, spec: str, where: str, problems: list[str]) -> ClaimedQuantity | None:
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
        kinds = {
            "flag": "true or false",
            "text": "text",
            "gpu": "a GPU's name",
            "whole": "a whole number above 0",
            "float": "a number",
        }
        problems.append(f"{where}: expected {kinds[spec]}, found {value!r}")
    return value


def gpus_meant(name: str) -> list[GpuSpec]:
    """Return every GPU of the catalog that a name can mean: by key, driver name, or its chip alone ("V100")."""
    return gpus_named(name) or [spec for key, spec in load_gpus().items() if key.split("-")[0] == name.strip().lower()]
