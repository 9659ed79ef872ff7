"""How much text a token holds, at the points that the handbook names."""

from __future__ import annotations

import pytest

from advisor.laws.text import LAW_BYTES_PER_TOKEN, bytes_per_token


@pytest.mark.parametrize(("vocab_size", "expected"), [(4000, 3.2), (32_000, LAW_BYTES_PER_TOKEN), (65_536, 4.83)])
def test_bytes_of_a_token(vocab_size, expected):
    assert bytes_per_token(vocab_size) == pytest.approx(expected, abs=0.02)  # sources §4.3, §4.1 and §4.6
