"""The amount of text in a token, by the size of the vocabulary."""

from __future__ import annotations

import math

# The loss laws count nats per token for a vocabulary of 32,000 tokens with this many bytes per token (sources §4.1).
LAW_BYTES_PER_TOKEN = 4.4


def bytes_per_token(vocab_size: int) -> float:
    """Return the estimated bytes of English text in one BPE token.

    A vocabulary of 4,000 gives 3.2, 32,000 gives 4.4 and 65,536 gives 4.8 (sources §4.3, §4.1 and §4.6). Other
    languages and code differ by a fifth or more.
    """
    return max(1.0, 3.2 + 0.4 * math.log2(vocab_size / 4000))


# Text is downloaded in compressed shards. FineWeb-Edu as repacked by karpathy/nanochat has 250 M characters in about
# 100 MB of parquet (its speedrun.sh, October 2025). Code compresses better, and other scripts need more bytes.
SHARD_TEXT_BYTES, SHARD_BYTES = 250e6, 100e6
PREPARED_BYTES_PER_CORE_SECOND = 1.5e6  # of text with `advisor data prepare`: we measured 1 to 2 MB/s


def compressed_bytes_per_token(vocab_size: int) -> float:
    """Return the bytes of a compressed download per token of English text."""
    return bytes_per_token(vocab_size) * SHARD_BYTES / SHARD_TEXT_BYTES
