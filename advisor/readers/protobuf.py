"""Reads TFRecord and protobuf's wire format, as far as TensorBoard's files need them.

TFRecord (tensorflow/core/lib/io/record_writer.h): length as uint64, its masked CRC-32C, the data, their masked CRC-32C,
all little-endian. Wire format: protobuf.dev/programming-guides/encoding. CRC-32C: RFC 3720 appendix B.4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO

import numpy as np

MAX_RECORD_BYTES = 64 * 2**20  # images and graphs are smaller, so a longer length is damage
_CHECKED_BYTES = 4096  # longer records (images, histograms) hold no scalars, so their data are not checked
_MASK_DELTA = 0xA282EAD8
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Damaged(ValueError):
    """Bytes that do not follow the format."""


@cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


def masked_crc32c(data: bytes) -> int:
    """Return TFRecord's checksum: CRC-32C, rotated right by 15 bits and offset, so that data may contain checksums."""
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the data of all whole records, up to an incomplete last one. Raises Damaged at the first wrong checksum."""
    position = 0
    while len(head := file.read(12)) == 12:
        length, length_crc = struct.unpack("<QI", head)
        if masked_crc32c(head[:8]) != length_crc or length > MAX_RECORD_BYTES:
            raise Damaged(f"the record at byte {position} has a damaged length")
        body = file.read(length + 4)
        if len(body) < length + 4:
            return
        data = body[:-4]
        if length <= _CHECKED_BYTES and masked_crc32c(data) != struct.unpack("<I", body[-4:])[0]:
            raise Damaged(f"the record at byte {position} fails its checksum")
        position += 16 + length
        yield data


class Message:
    """The fields of one protobuf message: its numbers (varints), and its texts, floats and inner messages as bytes."""

    def __init__(self, data: bytes) -> None:
        self.ints: dict[int, int] = {}  # the last of each field
        self.parts: dict[int, list[bytes]] = {}
        at, end = 0, len(data)
        while at < end:
            key, at = _varint(data, at)
            number, wire = key >> 3, key & 7
            if wire == VARINT:
                self.ints[number], at = _varint(data, at)
                continue
            length = {FIXED64: 8, FIXED32: 4}.get(wire)
            if wire == BYTES:
                length, at = _varint(data, at)
            if length is None or at + length > end:
                raise Damaged("a message ends within a field")
            self.parts.setdefault(number, []).append(data[at : at + length])
            at += length

    def whole(self, number: int) -> int:
        """Return a varint as int64, which may be negative; 0 if there is none."""
        value = self.ints.get(number, 0)
        return value - (1 << 64) if value >= 1 << 63 else value

    def last(self, number: int) -> bytes:
        """Return the last value of a field; b"" if there is none."""
        return self.parts.get(number, [b""])[-1]

    def text(self, number: int) -> str:
        return self.last(number).decode("utf-8", "replace")

    def inner(self, number: int) -> list[Message]:
        """Return the messages in a field."""
        return [Message(data) for data in self.parts.get(number, [])]


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise Damaged("a number has no end")


def float_of(data: bytes) -> float | None:
    """Return a float from its four or eight bytes; None for any other length."""
    form = {4: "<f", 8: "<d"}.get(len(data))
    return None if form is None else struct.unpack(form, data)[0]


def first_number(tensor: Message) -> float | None:
    """Return the number in a TensorProto that holds a scalar; None for any other. Source: TensorFlow's tensor.proto."""
    kind = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}.get(tensor.whole(1))  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64
    content = next((tensor.last(number) for number in (4, 5, 6) if number in tensor.parts), b"")
    if kind is None or len(content) != np.dtype(kind).itemsize:
        return None
    return float(np.frombuffer(content, kind)[0])
