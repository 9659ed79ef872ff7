"""The ways in which `fuzz_readers` damages a log, each a function of its bytes and a random generator."""

from __future__ import annotations

import gzip
import io
import random
import zipfile
from collections.abc import Callable

NUMBERS = (
    b"9" * 400,
    b"1e999",
    b"-1e308",
    b"nan",
    b"-nan(ind)",
    b"inf",
    b"0x1F",
    b"1_000",
    b"1,2,3,4",
    b"--5",
    b"1e",
    b".",
    b"00000000000000000000000001",
    b"\xd9\xa3\xd9\xa4",  # Arabic digits
    b"1.2.3",
    b"-0",
    b"18446744073709551616",
)
TEXTS = (
    b"\x00" * 50,
    b"\xff\xfe\xfd",
    b"\r\n",
    b"\r" * 40,
    b"\x1b[31m",
    b"\x1b]0;t",
    b"{" * 3000,
    b"[" * 3000,
    b'"',
    b"'",
    b"| ",
    b",,,,,,",
    b"Traceback (most recent call last):\n",
    b"CUDA out of memory. Tried to allocate ",
    b"step 1 ",
    b"loss: nan ",
    b'{"loss": {"a": [1, 2]}, "step": true}\n',
    b"time,loss\n",
    b"\xf0\x9f\x94\xa5",
    b"a: &a [*a, *a]\n",
    b"-" * 3000 + b"x\n",
    b"a:" + b" " * 4000 + b"b" * 300 + b"\n",
    b"\n" * 9000,
    b"# A\n## B\n### C\n```\n**x**: 1\n**y**: 2\n| step | loss |\n|---|---|\n| 1 | 2.5 |\n```\n",
    b"# gpu sm mem aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!\n",
)

Mutation = Callable[[bytes, random.Random, list[bytes]], bytes]


def _cut(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    first, last = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    return data[:last] if rng.random() < 0.5 else data[:first] + data[last:]


def _splice(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    other = rng.choice(corpus)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _noise(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.choice((1, 8, 200, 5000))) + data[at:]


def _flip(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    out = bytearray(data)
    for _ in range(min(len(out), rng.choice((1, 5, 50)))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _number(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    digits = [i for i in rng.sample(range(len(data)), min(len(data), 200)) if 48 <= data[i] <= 57]
    for i in sorted(digits, reverse=True)[: rng.choice((1, 3, 20))]:
        end = i
        while end < len(data) and data[end] in b"0123456789.":
            end += 1
        data = data[:i] + rng.choice(NUMBERS) + data[end:]
    return data


def _text(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TEXTS) * rng.choice((1, 1, 30)) + data[at:]


def _lines(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    lines = data.split(b"\n")
    how = rng.randrange(4)
    if how == 0:
        rng.shuffle(lines)
    elif how == 1:
        lines = [line for line in lines for _ in range(rng.choice((1, 1, 1, 40)))]
    elif how == 2:
        lines = lines[::-1]
    else:
        return b"".join(lines)  # one endless line
    return b"\n".join(lines)


def _encode(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    how = rng.randrange(5)
    if how == 0:
        return data.decode("utf-8", "replace").encode("utf-16")
    if how == 1:
        return data.replace(b"\n", rng.choice((b"\r", b"\r\r\n", b"\r\n", b"\x00", b"\x0b")))
    packed = gzip.compress(data, 1) if how < 4 else _zipped(data, rng, corpus)
    return packed if rng.random() < 0.5 else packed[: rng.randrange(len(packed) + 1)]


def _zipped(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    names = rng.sample(
        ("train.log", "config.yaml", "gpu.csv", "metrics.jsonl", "../out.log", "a/b/trainer_state.json"), 2
    )
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(names[0], data)
        if rng.random() < 0.5:
            archive.writestr(names[1], rng.choice(corpus))
    return memory.getvalue()


def _random(data: bytes, rng: random.Random, corpus: list[bytes]) -> bytes:
    return rng.randbytes(rng.randrange(5000))


MUTATIONS: tuple[Mutation, ...] = (
    _cut,
    _cut,
    _splice,
    _splice,
    _noise,
    _flip,
    _number,
    _number,
    _text,
    _lines,
    _encode,
    _random,
)
