"""Finds what a column, key or tag means by its name: "Step Time (ms)", "train/loss", "tok/s", "val_loss", "mfu_pct".

One table of names serves every format with user-defined columns: CSV, JSON lines, W&B, TensorBoard, MLflow and Markdown
tables. A name that could mean several columns is given to none of them, to avoid a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from advisor.readers.yaml_rows import filled, rows_of_file

KIB, MIB, GIB = 2**10, 2**20, 2**30
STAMPS_FROM = 1e8  # seconds; no training takes three years
MAX_NAME = 100  # characters; a longer text is not a name

# unit as written → factor to seconds, to bytes or to a share of 1
SECONDS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("ms", "msec", "millis", "milliseconds"), 1e-3),
    **dict.fromkeys(("us", "µs", "μs"), 1e-6),
    "ns": 1e-9,
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
}
# MB and GB in a log mean powers of 1024 in all formats, because nvidia-smi, torch's messages, Megatron, DeepSpeed, verl
# and nanoGPT's derivatives divide by them. The two tools known to divide by powers of 1000 are named below.
BYTES = {
    **dict.fromkeys(("b", "byte", "bytes"), 1.0),
    **dict.fromkeys(("kb", "kib"), float(KIB)),
    **dict.fromkeys(("mb", "mib", "m"), float(MIB)),
    **dict.fromkeys(("gb", "gib", "g"), float(GIB)),
    **dict.fromkeys(("tb", "tib"), float(2**40)),
    "mb_": 1e6,  # as OLMo prints it: max_memory_allocated / 1000000 (olmo/torch_util.py)
    "gb_": 1e9,  # as Composer prints it: memory_stats / 1.0e9 (composer/callbacks/memory_monitor.py)
}
DECIMAL = frozenset(("mb_", "gb_"))
SHARES = {**dict.fromkeys(("%", "pct", "percent", "percentage"), 0.01)}
_UNITS = {**SECONDS, **BYTES, **SHARES}

_PER_STEP = ("per_step", "per_iter", "per_iteration")  # after a unit: "ms_per_step"
PART = 300  # rank of losses named by what they measure; 600 is a score that may be one
_PAIRS = 3  # pairs of names with and without a letter before them


@dataclass(frozen=True, kw_only=True)
class Named:
    """What a name means. `rank` orders several names for one column in a file; the lowest is used."""

    column: str  # a run's column
    kind: str  # count | loss | plain | share | seconds | rate | bytes | date | time | steps_per_second
    unit: str | None  # as written in the name
    rank: int
    per_device: bool = False


@lru_cache(maxsize=4096)
def column_of(name: str) -> Named | None:
    """Return the column that a name means; None if it means none or could mean several."""
    if len(name) > MAX_NAME:
        return None
    stem, unit = normalise(name)
    if _pattern("not_measured").search(stem):
        return None
    if _pattern("per_device").fullmatch(stem):
        return Named(column="tokens_per_second", kind="rate", unit=None, rank=50, per_device=True)
    if _pattern("steps_per_second").fullmatch(stem):
        return Named(column="seconds", kind="steps_per_second", unit=None, rank=50)
    if found := _look_up(stem, unit):
        return found
    bare, suffix = stem, unit
    if unit is None:  # the last word may be the unit, or the first one of "ms_per_step"
        (head, _, last), (first, _, rest) = stem.rpartition("_"), stem.partition("_")
        if head and last in _UNITS:
            bare, suffix = head, last
        elif first in SECONDS and rest in _PER_STEP:
            bare, suffix = rest, first
    if suffix is not None and (found := _look_up(bare, suffix)):
        return found
    shorter = _pattern("outer").sub("", bare, count=1)
    for inner in (shorter, _pattern("outer").sub("", shorter, count=1)) if shorter != bare else ():
        if found := _look_up(inner, suffix):
            return replace(found, rank=found.rank + 100)
    return _some_loss(stem) if unit is None else None


def by_letters(names: Sequence[str]) -> dict[str, str]:
    """Return one-letter validation names (`v_loss`, `acc_v`) if the names beside them show what the letter means."""
    stems = {name: normalise(name)[0] for name in names if len(name) <= MAX_NAME}
    found = {name: match for name, stem in stems.items() if (match := _pattern("by_letter").fullmatch(stem))}
    letters = {match["letter"] or match["behind"] for match in found.values()}
    if "v" not in letters or not letters <= {"v", "t"}:
        return {}
    # `v_kl` beside `kl` and `v_recons` beside `recons`: the letter marks a split, whatever is measured
    pairs = sum(f"v_{stem}" in stems.values() for stem in stems.values())
    if pairs < _PAIRS and any(_pattern("of_policies").search(stem) for stem in stems.values()):
        return {}
    if not any(_pattern("of_training").fullmatch(stem) for stem in stems.values()):
        return {}
    of = {name: (match["letter"] or match["behind"], match["what"] or match["of"]) for name, match in found.items()}
    return {name: f"{'val' if letter == 'v' else 'train'}_{what}" for name, (letter, what) in of.items()}


def not_measured(name: str) -> bool:
    """Return whether a name means a goal, an estimate or a best value, and not a measurement of this moment."""
    return _pattern("not_measured").search(normalise(name)[0]) is not None


def _some_loss(stem: str) -> Named | None:
    """Return the meaning of a loss with its own name: the whole ranks before a part, a part before a side term."""
    if _pattern("objective").fullmatch(stem):  # a score beside a loss, or the loss itself if there is no other
        rank = PART + 300
    elif not _pattern("some_loss").fullmatch(stem) or _pattern("no_loss").search(stem):
        return None
    else:
        whole, side = (_pattern(name).search(stem) for name in ("whole_loss", "side_loss"))
        rank = PART + (0 if whole else 200 if side else 100)
    return Named(column="eval_loss" if _pattern("held_out").search(stem) else "loss", kind="loss", unit=None, rank=rank)


def normalise(name: str, units: Container[str] = _UNITS) -> tuple[str, str | None]:
    """Return a name in lower case with underscores, and the unit in brackets: "Step Time (ms)" → "step_time", "ms"."""
    text, unit = name.strip(), None
    if match := re.search(r"[(\[]\s*([^)\]\s]{1,12})\s*[)\]]", text):
        word = match[1].lower()
        unit = word if word in units else None
        text = text[: match.start()] + (" " if unit else f" {word} ") + text[match.end() :]
    if text.rstrip().endswith("%"):
        unit, text = "%", text.rstrip()[:-1]
    stem = re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower())
    lead = "_" if name.strip().startswith("_") else ""
    return lead + stem.strip("_"), unit


def _look_up(stem: str, unit: str | None) -> Named | None:
    if unit in SECONDS and stem in meanings("timed"):
        stem = f"{meanings('timed')[stem]}_time"
    if unit in SHARES and stem in ("clip", "clipping", "grad_clip", "gradient_clipping"):
        stem = "clipped"  # without a percent sign it is the clipping threshold
    if _pattern("ambiguous_time").fullmatch(stem):
        return Named(column="seconds", kind="time", unit=unit or ("s" if stem != "time" else None), rank=60)
    words, pattern, meant = _columns()
    found = pattern.fullmatch(stem)
    at = min(words.get(stem, len(meant)), int(found.lastgroup[1:]) if found and found.lastgroup else len(meant))
    if at == len(meant):
        return None
    column, kind, rank = meant[at]
    if kind == "bytes" and (known := _pattern("decimal_bytes").fullmatch(stem)):
        unit = "mb_" if known["mb"] else "gb_"
    # "memory (%)" is no number of bytes; `loss_g` is a generator's loss, not gigabytes
    units = {"seconds": SECONDS, "bytes": BYTES, "share": SHARES, "count": {}, "loss": SHARES}
    fits = unit is None or kind not in units or unit in units[kind]
    return Named(column=column, kind=kind, unit=unit, rank=rank) if fits else None


@cache
def _pattern(name: str) -> re.Pattern[str]:
    rows = rows_of_file("names")
    return re.compile(filled(rows["patterns"][name], rows["parts"]))


@cache
def _columns() -> tuple[dict[str, int], re.Pattern[str], list[tuple[str, str, int]]]:
    """Return the places of the names that are plain words, one pattern of the others, and what the name at each place
    means: column, kind and rank."""
    table = rows_of_file("names")
    meant = [(row["column"], row["kind"], rank) for row in table["columns"] for rank in range(len(row["names"]))]
    names = [filled(name, table["parts"]) for row in table["columns"] for name in row["names"]]
    words = {name: at for at, name in reversed([*enumerate(names)]) if name.replace("_", "").isalnum()}
    others = (f"(?P<n{at}>{name})" for at, name in enumerate(names) if name not in words)
    return words, re.compile("|".join(others)), meant


@cache
def meanings(section: str) -> dict[str, str]:
    """Return what each name of a section of `names.yaml` means."""
    return {name: meaning for meaning, names in rows_of_file("names")[section].items() for name in names}


def in_unit(named: Named, values: np.ndarray) -> tuple[str, np.ndarray, str]:
    """Return a column's name, its values in the column's unit, and how they were converted.

    If the name states no unit, it is inferred from the size of the numbers, and the conversion says so.
    """
    known, unit, factor = values[np.isfinite(values)], named.unit, SECONDS.get(named.unit or "s", 1.0)
    with np.errstate(all="ignore"):
        if named.kind == "time":  # of a date, since the start if it never falls, else of one step
            if len(known) and np.median(known) > STAMPS_FROM:
                return "unix_seconds", values, "by its size a time stamp"
            if len(known) > 2 and np.all(np.diff(known) > 0) and known[-1] > 2 * known[0]:
                return "elapsed_seconds", scaled(values, factor), "always rising: time since the start"
            return "seconds", scaled(values, factor), "taken as the time of one step"
        if named.kind == "steps_per_second":
            return named.column, np.where(values > 0, 1 / values, np.nan), "1 / steps per second"
        if named.kind == "seconds" and len(known) and np.median(known) > STAMPS_FROM:
            return "unix_seconds", values, "by its size a time stamp"
        if named.kind == "seconds":
            return named.column, scaled(values, factor), f"from {unit}" if factor != 1 else ""
        if named.kind == "bytes":
            return named.column, *_bytes(unit, values)
        if named.kind == "share":  # more than 1.5 without a unit means percent; below 0, "not collected" (nanoGPT)
            percent = unit is not None or (len(known) > 0 and np.max(known) > 1.5)
            said = ("percent" if unit is not None else "by its size in percent") if percent else ""
            return named.column, np.where(values < 0, np.nan, values / 100 if percent else values), said
    return named.column, values, ""


def scaled(values: np.ndarray, factor: float) -> np.ndarray:
    """Multiply, or divide by the inverse of a small factor, which keeps 13651.72 ms exactly at 13.65172 s."""
    with np.errstate(all="ignore"):
        return values / round(1 / factor) if factor < 1 else values * factor


def _bytes(unit: str | None, values: np.ndarray) -> tuple[np.ndarray, str]:
    factor, said = bytes_factor(values)
    if unit in DECIMAL and factor != 1:  # Composer printed bytes until 0.12
        return values * BYTES[unit], f"{unit[:-1].upper()} as powers of 1000, which this tool divides by"
    if unit is not None and unit not in DECIMAL:
        return values * BYTES[unit], f"{unit} as 1024-based" if BYTES[unit] != 1 else ""
    return values * factor, said


def bytes_factor(values: np.ndarray) -> tuple[float, str]:
    """Return the bytes per unit of memory without a unit, by its size: GPUs have less than 4 TB and at least 640 MB."""
    known = values[np.isfinite(values)]
    most = float(np.max(known)) if len(known) else 0.0
    if most > 4e6:
        return 1.0, "by its size in bytes"
    if most < 640 and np.any(known != np.round(known)):
        return float(GIB), "by its size in GiB"
    return float(MIB), "by its size in MiB"
