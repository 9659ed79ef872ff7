"""Finds what single lines of a log say besides numbers, by the rules of `events.yaml`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from advisor.readers.cells import duration_seconds
from advisor.readers.yaml_rows import Written, filled, rows_of_file, text_regex

# Which sizes the out-of-memory messages of torch, JAX, C and the system name.

# All these programs count in powers of 1024, also those that print "GB" or "G" (MPS, XLA), so only the letter matters.
_SCALE = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = r"([\d.]+) ?([KMGT]?)i?(?:B|bytes)?\b"

_SINGLE = {
    "requested_bytes": (
        rf"[Tt]ried to allocate {_SIZE}",
        rf"trying to allocate {_SIZE}",
        rf"Unable to allocate {_SIZE}",
        rf"allocating {_SIZE} for",
    ),
    "total_bytes": (
        rf"total capacity of {_SIZE}",
        rf"; {_SIZE} total capacity",
        rf"max allowed: {_SIZE}",
    ),
    "free_bytes": (rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
    "allocated_bytes": (
        rf"; {_SIZE} already allocated",
        rf"{_SIZE} is allocated by PyTorch",
        rf"MPS allocated: {_SIZE}",
    ),
    "reserved_bytes": (rf"; {_SIZE} reserved in total by PyTorch",),
    "unallocated_bytes": (rf"{_SIZE} is reserved by PyTorch but unallocated",),
    "allowed_bytes": (rf"{_SIZE} allowed",),
    "process_bytes": (rf"this process has {_SIZE} memory in use",),
}
_SINGLE_PATTERNS = {name: [re.compile(text) for text in texts] for name, texts in _SINGLE.items()}
_GPU = re.compile(r"\(?GPU (\d+)")
_PROCESS = re.compile(rf"\bProcess \d+ has {_SIZE} memory in use")


def memory_sizes(message: str) -> dict[str, float]:
    """Return the sizes that an out-of-memory message names, in bytes.

    Keys, if the message states them: `requested_bytes`, `free_bytes`, `total_bytes`, `allocated_bytes` (live tensors),
    `reserved_bytes` (held by the allocator), `unallocated_bytes` (reserved but not in use), `allowed_bytes` (a limit of
    the process, below the GPU's memory), `process_bytes` (this process with its context), `other_processes` (a count),
    `other_bytes` (that those hold) and `other_pid_1` … (the largest first), `gpu` (an index).
    """
    sizes: dict[str, float] = {}
    for name, patterns in _SINGLE_PATTERNS.items():
        value = next((_bytes(match) for p in patterns if (match := p.search(message))), None)
        if value is not None:
            sizes[name] = value
    if "unallocated_bytes" in sizes and "allocated_bytes" in sizes:
        sizes["reserved_bytes"] = sizes["allocated_bytes"] + sizes["unallocated_bytes"]
    if match := _GPU.search(message):
        sizes["gpu"] = float(match[1])
    sizes.update(_other_processes(message, sizes))
    return sizes


def _bytes(match: re.Match[str]) -> float | None:
    try:
        return float(match[1]) * _SCALE[match[2]]
    except ValueError:  # "1.2.3" in a damaged line
        return None


def _other_processes(message: str, sizes: dict[str, float]) -> dict[str, float]:
    """Return the number and the bytes of the other processes on the GPU.

    Inside a container, torch cannot tell which of the listed processes is its own, so it names all of them. The
    smallest one that can hold what this process reserved is taken to be this process.
    """
    known = ((_bytes(match), float(match[0].split()[1])) for match in _PROCESS.finditer(message))
    listed = sorted((size, pid) for size, pid in known if size is not None)
    found: dict[str, float] = {}
    if listed and "process_bytes" not in sizes:
        own = next((one for one in listed if one[0] >= sizes.get("reserved_bytes", 0.0)), listed[-1])
        listed.remove(own)
        found["process_bytes"] = own[0]
    if listed:
        found.update(other_processes=float(len(listed)), other_bytes=sum(size for size, _ in listed))
        found.update({f"other_pid_{number}": pid for number, (_, pid) in enumerate(reversed(listed), 1)})
    return found


TEXT_LENGTH = 300  # longest text of an event, in characters
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SIGNALS = {"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?$")
_SCALED = {
    "milliseconds": ("seconds", 1e-3),
    "timeout_ms": ("timeout_seconds", 1e-3),
    "ran_ms": ("ran_seconds", 1e-3),
    "minutes": ("seconds", 60.0),
    "hours": ("seconds", 3600.0),
    "gib": ("bytes", 2.0**30),
}


_PATH = r"[\"'`<]?(?P<path>[^\s\"'`>]*[\w.\-/\\])"
_DURATION = (
    r"\s{0,4}(?P<duration>(?:\d+ days?,? )?\d+:\d\d(?::\d\d)?(?:\.\d+)?(?![\d:])"
    r"|(?:\d+(?:\.\d+)? ?(?:days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s|小时|分钟|分|秒)(?![A-Za-z])"
    r"(?:,? ?and |,? ?))+)"
)


_WHOLE_TIME = re.compile(r"(?i)\b(?:time|elapsed|took|in|after)\b[:= ]" + _DURATION + r"\W*$")  # at the end of a line


@dataclass(frozen=True, kw_only=True)
class LineRule:
    """One kind of line: it contains any of `needles` and a match of `pattern`."""

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]


@cache
def rules() -> tuple[LineRule, ...]:
    """Return the rules of `events.yaml`, each with its rows combined into one pattern."""
    return tuple(
        LineRule(
            kind=rule["kind"],
            needles=tuple(rule["needles"]),
            pattern=pattern_of([row["pattern"] for row in rule["rows"]]),
        )
        for rule in rows_of_file("events")
    )


def pattern_of(rows: Sequence[Written]) -> re.Pattern[str]:
    """Combine rows into one pattern. A group name that several rows use is numbered, because it may occur only once."""
    text = "|".join(filled(row, {}) for row in rows)
    text = text.replace("<PATH>", _PATH).replace("<DURATION>", _DURATION)
    for name in set(re.findall(r"\(\?P<(\w+)>", text)):
        first, *others = text.split(f"(?P<{name}>")
        text = f"(?P<{name}>".join([first, others[0]]) + "".join(
            f"(?P<{name}__{n}>{o}" for n, o in enumerate(others[1:])
        )
    return re.compile(text)


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one line says."""

    kind: str
    text: str
    numbers: dict[str, float]


def read_line(line: str, *, code: bool = False, among: Sequence[LineRule] | None = None) -> Said | None:
    """Return what a line says by the rules `among` all (None: all), or None.

    Source code that a log prints before its run counts only if `code` is set.
    """
    line = _ANSI.sub("", line)
    if text_regex("installer").match(line):
        return None
    front = text_regex("front_of_line").match(line)
    bare = line[front.end() :] if front else ""
    for rule in rules() if among is None else among:
        if not any(map(line.__contains__, rule.needles)):
            continue
        # text that only starts a line may also follow its time stamp
        match = rule.pattern.search(line) or (rule.pattern.search(bare) if bare else None)
        of_code = not code and (text_regex("source_code").match(line) or text_regex("source_print").search(line))
        if match and not of_code:
            return Said(kind=rule.kind, text=shorten(line), numbers=_numbers(rule.kind, match, line))
    return None


def shorten(line: str) -> str:
    """Return the text as one line of at most `TEXT_LENGTH` characters, without control characters."""
    line = line[max(line.find("slurmstepd: "), 0) :]  # this line may follow an incomplete record
    if front := text_regex("front_of_line").match(line):
        line = line[front.end() :] or line
    line = _ANSI.sub("", line[: 8 * TEXT_LENGTH])
    line = line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
    line = " ".join(line.split())
    return line if len(line) <= TEXT_LENGTH else line[: TEXT_LENGTH - 1] + "…"


def _numbers(kind: str, match: re.Match[str], line: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, raw in match.groupdict().items():
        if raw is None or name.startswith("path"):
            continue
        if raw in _SIGNALS:
            numbers["signal"] = float(_SIGNALS[raw])
        elif name.startswith("duration"):
            if (seconds := duration_seconds(raw)) is not None:
                numbers["seconds"] = seconds
        elif _NUMBER.match(raw) and len(raw) <= 40:
            base = name.partition("__")[0]
            renamed, factor = _SCALED.get(base, (base, 1.0))
            numbers[renamed] = float(raw) * factor
    if (
        kind == "finished"
        and "seconds" not in numbers
        and (said := _WHOLE_TIME.search(line, match.start())) is not None
    ):
        numbers["seconds"] = duration_seconds(said["duration"]) or 0.0
    if kind == "out_of_memory":
        numbers.update(memory_sizes(line))
    if kind == "checkpoint" and "step" not in numbers:
        path = next((raw for name, raw in match.groupdict().items() if raw and name.startswith("path")), "")
        if found := text_regex("step_in_path").search(path):
            numbers["step"] = float(found[1][:15])
    return numbers
