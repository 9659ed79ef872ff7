"""Files that are not what their names promise, made as servers, tools and broken connections leave them."""

from __future__ import annotations

import gzip
import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.damage import damage


def noise(count):
    return bytes(random.Random(1).randrange(256) for _ in range(count))


def parquet(file, rows=1000):
    pq.write_table(pa.table({"text": [f"document {n}" for n in range(rows)]}), file)
    return file


def zstandard(file, content):
    with pa.output_stream(str(file), compression="zstd") as stream:
        stream.write(content)
    return file


def test_whole_files_are_left_alone(tmp_path):
    lines = b"".join(json.dumps({"error": "none", "text": f"line {n}"}).encode() + b"\n" for n in range(50))
    whole = {
        "a.jsonl": lines,
        "one.jsonl": b'{"message": "an instruction", "text": "what it says"}',
        "b.jsonl.gz": gzip.compress(lines),
        "tokens.bin": np.arange(1, 40_001, dtype=np.uint16).tobytes(),
        "small.bin": bytes(8),
        "page.txt": b"HTML pages begin with <html>",
    }
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
        assert damage(tmp_path / name) is None, name
    assert damage(parquet(tmp_path / "c.parquet")) is None
    assert damage(zstandard(tmp_path / "d.jsonl.zst", lines)) is None


PAGES = {
    "shard.parquet": (
        b"<!DOCTYPE html><html><head><title>403 Forbidden</title>",
        "an HTML page that says “403 Forbidden”",
    ),
    "a.jsonl.gz": (
        b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>",
        "an XML document that says “AccessDenied”",
    ),
    "b.jsonl": (
        b'{"error": {"message": "Rate limit reached", "type": "x"}}',
        "JSON error message that says “Rate limit",
    ),
    "c.bin": (b'{"detail": "Not authenticated"}', "a JSON error message that says “Not authenticated”"),
    "d.parquet": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 104857600\n",
        "a Git LFS pointer to 104,857,600 bytes that were not fetched",
    ),
    "e.txt": (b"", "it is empty"),
    "f.parquet": (b"PK\x03\x04" + noise(100), "no Parquet file: it begins with b'PK"),
    "g.zst": (noise(100), "no Zstandard data"),
    "h.gz": (gzip.compress(b"\n<html><h1>Bad Gateway</h1>"), "an HTML page that says “Bad Gateway”, compressed"),
    "i.gz": (gzip.compress(b""), "its content is empty"),
}


@pytest.mark.parametrize("name", PAGES)
def test_what_stands_in_place_of_data_is_named_with_its_words(tmp_path, name):
    content, words = PAGES[name]
    (tmp_path / name).write_bytes(content)
    assert words in damage(tmp_path / name)


def test_what_breaks_off_is_told_with_how_far_it_goes(tmp_path):
    content = noise(300_000)
    packed = gzip.compress(content)
    (tmp_path / "a.gz").write_bytes(packed[: len(packed) // 2])
    assert "gzip data of " in damage(tmp_path / "a.gz") and "break off after" in damage(tmp_path / "a.gz")
    flipped = bytearray(packed)
    flipped[-6] ^= 1  # the checksum of the content
    (tmp_path / "b.gz").write_bytes(bytes(flipped))
    assert "CRC check failed" in damage(tmp_path / "b.gz") and "after 300,000 bytes" not in damage(tmp_path / "a.gz")
    whole = zstandard(tmp_path / "c.zst", content).read_bytes()
    (tmp_path / "c.zst").write_bytes(whole[: len(whole) // 2])
    assert "Zstandard data of" in damage(tmp_path / "c.zst")
    table = parquet(tmp_path / "d.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(table[:-100])
    assert f"breaks off at byte {len(table) - 100:,}" in damage(tmp_path / "d.parquet")
    assert damage(parquet(tmp_path / "e.parquet", rows=0)) == "a Parquet file without rows"


def test_a_token_file_of_the_right_length_that_was_never_filled(tmp_path):
    """The second half of 2^20 tokens is zeros: of 64 places from end to end 32."""
    tokens = np.zeros(1 << 20, dtype=np.uint16)
    tokens[: 1 << 19] = 7
    tokens.tofile(tmp_path / "tokens.bin")
    assert damage(tmp_path / "tokens.bin").startswith("blocks of zeros at 32 of 64 places")
