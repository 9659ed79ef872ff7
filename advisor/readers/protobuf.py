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

Field = tuple[int, int, int | bytes]  # number, wire type, value


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


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields of one message in order. Raises Damaged if the bytes are not a message."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        length = {FIXED64: 8, FIXED32: 4}.get(wire)
        if wire == BYTES:
            length, at = _varint(message, at)
        if length is None or at + length > end:
            raise Damaged("a message ends within a field")
        yield number, wire, message[at : at + length]
        at += length


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


def signed(value: int) -> int:
    """Return a varint as int64."""
    return value - (1 << 64) if value >= 1 << 63 else value


def double(data: bytes) -> float:
    """Return a float64 from its eight bytes."""
    return struct.unpack("<d", data)[0]


def single(data: bytes) -> float:
    """Return a float32 from its four bytes."""
    return struct.unpack("<f", data)[0]


def first_number(tensor: bytes) -> float | None:
    """Return the number in a TensorProto that holds a scalar; None for any other. Source: TensorFlow's tensor.proto."""
    kinds = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}  # DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64
    kind, content = None, b""
    for number, wire, value in fields(tensor):
        if isinstance(value, int):
            kind = kinds.get(value) if number == 1 else kind
        elif (number, wire) in ((4, BYTES), (5, BYTES), (6, BYTES), (5, FIXED32), (6, FIXED64)):
            content = value
    if kind is None or len(content) != np.dtype(kind).itemsize:
        return None
    return float(np.frombuffer(content, kind)[0])
