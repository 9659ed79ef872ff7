"""Reads the plain data of a stranger's pickle or JSON: no class can be loaded, and nothing can be called.

Python's unpickler is not used: with classes forbidden, large memo numbers still exhaust its memory and deeply nested
tuples as keys its stack. The machine below knows only the opcodes that make plain data, and refuses all others.
"""

from __future__ import annotations

import itertools
import json
import pickletools
from typing import Any, BinaryIO

from advisor.errors import AdvisorError

_MOST_BYTES = 2**29  # snapshots of strangers had up to 4 MB; rings of 100,000 events have hundreds
_MOST_DEPTH = 20  # lists and dicts within each other; snapshots have 6
_MOST_CONTAINERS = 20_000_000
_TOO_MANY = f"holds more than {_MOST_CONTAINERS:,} lists and dicts"
_LARGEST_KEY = 2**32  # larger whole numbers can be chosen so that all of them collide in a dict
_BLOCK = 2**20
_LARGEST_NUMBER = 2**63
_WORDS = {dict: "a dict", list: "a list", int: "a whole number", str: "text"}
_GENUINE = "give a file that torch itself wrote"

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
# How many values each takes from the stack; None: all since the last mark.
_GATHERED = {"TUPLE": None, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3, "APPEND": 1, "APPENDS": None, "SETITEM": 2,
             "SETITEMS": None}  # fmt: skip


class _NotPlain(Exception):
    """What a pickle holds besides plain data."""


def load(stream: BinaryIO, name: str) -> Any:
    """Return the dicts, lists, text and numbers of a pickle or of JSON. Raises AdvisorError for everything else."""
    # A read of the whole limit at once would take that much memory, however small the file.
    blocks = itertools.islice(iter(lambda: stream.read(_BLOCK), b""), _MOST_BYTES // _BLOCK + 1)
    data = b"".join(blocks)
    if len(data) > _MOST_BYTES:
        hint = "record fewer events: torch.cuda.memory._record_memory_history(max_entries=100000)"
        raise AdvisorError(f"{name} is larger than {_MOST_BYTES >> 20} MiB unpacked", hint)
    pickled = data[:1] == b"\x80"
    try:
        if not pickled and data.count(b"[") + data.count(b"{") > _MOST_CONTAINERS:
            raise _NotPlain(_TOO_MANY)
        value = _unpickled(data) if pickled else json.loads(data)
        _refuse_depth(value)
    except _NotPlain as error:
        raise AdvisorError(f"{name} {error}; nothing of it was run", _GENUINE) from None
    except RecursionError:
        raise AdvisorError(f"{name} nests its lists too deeply", _GENUINE) from None
    except (IndexError, ValueError):
        kind = "pickle" if pickled else "JSON"
        raise AdvisorError(f"{name} is damaged or cut: its {kind} does not end", "copy or record it anew") from None
    return value


def entry(held: Any, key: str | int, kind: type, name: str) -> Any:
    """Return an item of a dict or list if it is of this kind. Raises AdvisorError otherwise."""
    if (value := optional(held, key, kind)) is None:
        raise AdvisorError(f"{name} has no {key} that is {_WORDS[kind]}", _GENUINE)
    return value


def optional(held: Any, key: str | int, kind: type) -> Any:
    """Return an item of a dict or list if it is there and of this kind, else None. A tuple counts as a list."""
    inside = type(held) in (list, tuple) and isinstance(key, int) and key < len(held)
    value = held[key] if inside or type(held) is dict and key in held else None
    if type(value) is tuple and kind is list:
        return list(value)
    return value if type(value) is kind and not (isinstance(value, int) and abs(value) > _LARGEST_NUMBER) else None


def _unpickled(data: bytes) -> Any:
    """Run the opcodes. Raises IndexError or ValueError if data is missing, _NotPlain at an opcode for anything else."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: list[Any] = []
    made = 0
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])  # type: ignore[index]  # a whole number
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            # Picklers number what they memoize one after another, so that no number can ask for a huge memo.
            if name != "MEMOIZE" and argument != len(memo):
                raise _NotPlain("numbers its memo out of order")
            memo.append(stack[-1])
        elif name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name == "MARK":
            marks.append(len(stack))
        elif name in _EMPTY or name in _GATHERED:
            made += 1
            if name in _EMPTY:
                stack.append(_EMPTY[name]())
            else:
                _gather(name, stack, marks)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _NotPlain(f"holds the pickle opcode {name}, which plain data never needs")
        if made > _MOST_CONTAINERS:
            raise _NotPlain(_TOO_MANY)
    return stack.pop()


def _gather(name: str, stack: list[Any], marks: list[int]) -> None:
    """Take values from the stack into a tuple, or into the list or dict below them."""
    count = _GATHERED[name]
    start = marks.pop() if count is None else len(stack) - count
    if not 0 <= start <= len(stack):
        raise IndexError
    values = stack[start:]
    del stack[start:]
    if name.startswith("TUPLE"):
        stack.append(tuple(values))
        return
    held = stack[-1]
    if type(held) is list and name.startswith("APPEND"):
        held += values
        return
    if type(held) is not dict or len(values) % 2:
        raise _NotPlain("fills what is no list or dict")
    for key, value in zip(values[::2], values[1::2], strict=True):
        if type(key) is not str and not (type(key) is int and abs(key) < _LARGEST_KEY):
            raise _NotPlain("has a key that is neither text nor a whole number")
        held[key] = value


def _refuse_depth(value: Any) -> None:
    """Raise RecursionError beyond _MOST_DEPTH. Each list is visited once, also where lists hold each other."""
    level, seen = [value], {id(value)}
    for _ in range(_MOST_DEPTH):
        below: list[Any] = []
        for held in level:
            for one in held.values() if type(held) is dict else held if type(held) in (list, tuple) else ():
                if type(one) in (dict, list, tuple) and id(one) not in seen:
                    seen.add(id(one))
                    below.append(one)
        level = below
    if level:
        raise RecursionError
