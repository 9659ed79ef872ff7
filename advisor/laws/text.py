"""How much text a token holds, by the size of the vocabulary."""

from __future__ import annotations

import math

# The loss laws count nats per token of a 32,000-token vocabulary at so many bytes a token (sources §4.1).
LAW_BYTES_PER_TOKEN = 4.4


def bytes_per_token(vocab_size: int) -> float:
    """Bytes of English text in one BPE token, about: a line through 3.2 at 4,000, 4.4 at 32,000 and 4.8 at 65,536.

    The three are sources §4.3, §4.1 and §4.6; other languages and code differ by a fifth and more.
    """
    return max(1.0, 3.2 + 0.4 * math.log2(vocab_size / 4000))


# Text comes in compressed shards: FineWeb-Edu's, as karpathy/nanochat repacks it, hold 250 M characters in some 100 MB
# of parquet (its speedrun.sh, October 2025). English: code packs better, other scripts need more bytes a character.
SHARD_TEXT_BYTES, SHARD_BYTES = 250e6, 100e6
PREPARED_BYTES_PER_CORE_SECOND = 1.5e6  # of text by `advisor data prepare`: 1 to 2 MB/s measured here


def compressed_bytes_per_token(vocab_size: int) -> float:
    """Bytes of a download that hold one token of English text."""
    return bytes_per_token(vocab_size) * SHARD_BYTES / SHARD_TEXT_BYTES
