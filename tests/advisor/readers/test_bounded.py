"""Whole files with a limit: gzip streams that break off, and files too large."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from advisor.errors import AdvisorError
from advisor.readers import chunks


@pytest.mark.parametrize("cut", [3000, 60_000, 400_000])
def test_a_cut_gzip_gives_all_that_came_before_the_cut(tmp_path, cut):
    text = b"".join(b"%d,%.6f\n" % (i, x) for i, x in enumerate(np.random.default_rng(0).random(100_000)))
    packed = gzip.compress(text, mtime=0)
    path = tmp_path / "log.csv.gz"
    path.write_bytes(packed[:cut])
    whole = chunks.read_document(path)
    assert text.startswith(whole)
    # deflate held back 32 KiB at most of what the kept bytes say
    assert len(whole) > cut / len(packed) * len(text) - 100_000 and len(whole) > 2000
    assert chunks.read_head(path, 1000) == text[:1000]
    with chunks.plain_file(path) as plain:
        assert plain.read_bytes() == whole


def test_limits(tmp_path):
    path = tmp_path / "big.json.gz"
    path.write_bytes(gzip.compress(b" " * 5_000_000))
    assert len(chunks.read_document(path, 5_000_000)) == 5_000_000
    with pytest.raises(AdvisorError, match="larger than"):
        chunks.read_document(path, 4_999_999)
    with pytest.raises(AdvisorError, match="unpacks to more"), chunks.plain_file(path, 4_000_000):
        pass
