"""Turns text into a token folder: surveys the corpus, trains or loads a tokenizer, encodes, publishes in one rename.

The corpus is read twice, so that the disk limits its size and not the memory. Each document gets one random number. The
smallest numbers are held out for validation, the largest train the tokenizer, so that the two never overlap.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import os
import random
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

import numpy as np

from trainer.corpus import Corpus, PrepareError, gather
from trainer.publish import published, write_durably
from trainer.token_folder import (
    FILES,
    META_FILE,
    TRAIN_FILE,
    VALIDATION_FILE,
    DataError,
    TokenMeta,
    read_meta,
    tokenizer_file,
)
from trainer.tokenizer import END_OF_TEXT, TextTokenizer, load_tokenizer_file, train_tokenizer

__all__ = ["PrepareError", "prepare"]

_TEXT_SCHEMA = 1
_SAMPLE_BYTES = 6_000_000  # for training the tokenizer; more text hardly changes its merges, but takes seconds
_MIN_PIECE, _MAX_PIECE = 1 << 10, 1 << 20  # characters
_BATCH_CHARS = 1 << 20  # characters that the tokenizer's threads encode at once
_MAX_SKIPPED_LISTED = 100
_FORECAST_BYTES = 20_000_000  # of text; from this size on, the expected time of encoding is announced
_TIMED_PARTS, _TIMED_BYTES = 4, 400_000  # of the sample, encoded to estimate that time, which takes a second or two

Progress = Callable[[str, int, int], None]  # stage ("read", "tokenizer", "encode"), bytes done, total bytes


@dataclass(frozen=True, kw_only=True)
class Survey:
    """The result of one reading of the corpus: sizes, the held-out pieces, a sample for the tokenizer."""

    documents: int
    bytes: int
    held_out: np.ndarray  # one flag per piece
    sample: list[str]


def prepare(
    inputs: list[Path] | None,
    out: Path,
    *,
    vocab_size: int = 4096,
    tokenizer: Path | None = None,
    validation_fraction: float = 0.01,
    seed: int = 1337,
    text_key: str = "text",
    skip_bad: bool = False,
    force: bool = False,
    on_progress: Progress | None = None,
    on_forecast: Callable[[Forecast], None] | None = None,
) -> TokenMeta:
    """Turn text into the token folder `out` and return its metadata.

    `inputs` are text, JSON lines or Parquet files, and folders of such files; None reads the Python standard library.
    `tokenizer` is a tokenizer.json or a SentencePiece model; None trains a byte-level BPE of `vocab_size`. If the same
    inputs and settings were prepared already, this returns at once. Other tokens in `out` are replaced only with
    `force`. `on_forecast` receives the expected time of encoding, unless that is very short. Raises PrepareError; `out`
    is then unchanged.
    """
    _check_settings(vocab_size, validation_fraction)
    report = on_progress or (lambda stage, done, total: None)
    corpus = gather(inputs, text_key=text_key, skip_bad=skip_bad)
    encoder = load_tokenizer_file(tokenizer) if tokenizer else None
    fingerprint = fingerprint_of(corpus, tokenizer, vocab_size, validation_fraction, seed)
    before = prepared_before(out)
    if before and before.fingerprint == fingerprint:
        return before
    refuse_occupied(out, None if force else before)
    if encoder is not None:
        end_of(encoder)
    max_chars = int(min(max(corpus.stored_bytes * validation_fraction, _MIN_PIECE), _MAX_PIECE))
    began = time.perf_counter()
    survey = _survey(corpus, max_chars, validation_fraction, seed, report)
    reading_seconds = time.perf_counter() - began
    if encoder is None:
        report("tokenizer", 0, 1)
        encoder = train_tokenizer(survey.sample, vocab_size)
    report("tokenizer", 1, 1)
    if on_forecast is not None and survey.bytes >= _FORECAST_BYTES:
        on_forecast(_forecast(encoder, survey, reading_seconds))
    with published(out, survey.bytes) as folder:
        counts = _encode(corpus, max_chars, encoder, survey, folder, report)
        meta = _describe(corpus, encoder, survey, counts, fingerprint)
        write_durably(folder / encoder.file_name, encoder.content())
        write_durably(folder / META_FILE, json.dumps(asdict(meta), indent=1).encode())
    return meta


def _check_settings(vocab_size: int, validation_fraction: float) -> None:
    if not 257 <= vocab_size < 1 << 32:
        raise PrepareError(f"vocab_size {vocab_size}: a byte-level vocabulary needs at least 257", "--vocab-size 4096")
    if not 0 < validation_fraction <= 0.5:
        hint = "--validation-fraction 0.01 holds out one percent"
        raise PrepareError(f"validation_fraction {validation_fraction} is not above 0 and at most 0.5", hint)


def fingerprint_of(corpus: Corpus, tokenizer: Path | None, vocab_size: int, fraction: float, seed: int) -> str:
    """Return a hash of everything that decides the tokens: settings, and each file's path, size and change time."""
    digest = hashlib.sha256()
    settings = [_TEXT_SCHEMA, None if tokenizer else vocab_size, fraction, seed, corpus.text_key, corpus.skip_bad]
    digest.update(json.dumps(settings).encode())
    for file in corpus.files:
        status = file.stat()
        digest.update(os.fsencode(file.resolve()) + f"|{status.st_size}|{status.st_mtime_ns}\n".encode())
    if tokenizer:
        digest.update(tokenizer.read_bytes())
    return digest.hexdigest()


def prepared_before(out: Path) -> TokenMeta | None:
    """Return the metadata of a folder. Returns None if the folder has none or is damaged."""
    try:
        meta = read_meta(out)
    except DataError:  # absent or damaged, so the folder will be written
        return None
    return meta if tokenizer_file(out) is not None else None


def refuse_occupied(out: Path, before: TokenMeta | None) -> None:
    """Refuse to replace a folder that is not a token folder, or the complete token folder that `before` describes."""
    if out.exists() and not out.is_dir():
        raise PrepareError(f"{out} is a file", "name a folder with --out")
    others = sorted(set(os.listdir(out)) - set(FILES)) if out.is_dir() else []
    if others:
        raise PrepareError(f"{out} is not a token folder: it holds {', '.join(others[:3])}", "name another --out")
    if before:
        made = f"{before.tokens:,} tokens of {'; '.join(before.sources)}, vocabulary {before.vocab_size:,}"
        raise PrepareError(f"{out} holds other data: {made}", "name another --out, or replace it with --force")


def _survey(corpus: Corpus, max_chars: int, fraction: float, seed: int, report: Progress) -> Survey:
    draw = random.Random(seed).random  # the only generator whose stream Python guarantees
    keys, sizes = array("d"), array("Q")
    sample: list[tuple[float, int, str]] = []
    documents = sample_bytes = total_bytes = 0
    expected_bytes = corpus.stored_bytes
    for number, piece in enumerate(corpus.pieces(max_chars)):
        key, size = draw(), len(piece.text.encode())
        keys.append(key)
        sizes.append(size)
        documents += piece.starts_document
        total_bytes += size
        sample_bytes += size
        heapq.heappush(sample, (key, number, piece.text))
        while sample_bytes > _SAMPLE_BYTES:
            sample_bytes -= len(heapq.heappop(sample)[2].encode())
        report("read", total_bytes, max(total_bytes, expected_bytes))
    held_out = hold_out(np.array(keys), np.array(sizes), fraction, corpus)
    texts = [text for _, number, text in sorted(sample, key=lambda item: item[1]) if not held_out[number]]
    return Survey(documents=documents, bytes=total_bytes, held_out=held_out, sample=texts)


def hold_out(keys: np.ndarray, sizes: np.ndarray, fraction: float, corpus: Corpus) -> np.ndarray:
    """Flag the pieces with the smallest keys until their bytes reach the fraction: at least one, but never all."""
    if len(keys) < 2:
        skipped = f" ({len(corpus.skipped)} inputs were left out)" if corpus.skipped else ""
        reason = f"{int(sizes.sum())} bytes of text are too few to hold out a part for validation{skipped}"
        raise PrepareError(reason, "give more text: a few thousand bytes at the least")
    order = np.argsort(keys, kind="stable")
    count = int(np.searchsorted(np.cumsum(sizes[order]), fraction * sizes.sum())) + 1
    held_out = np.zeros(len(keys), dtype=bool)
    held_out[order[: min(count, len(keys) - 1)]] = True
    return held_out


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The expected time of encoding. The corpus is read once more, and encoded at the rate of the timed parts."""

    text_bytes: int
    seconds: float
    low: float  # at the rate of the fastest part
    high: float


def _forecast(encoder: TextTokenizer, survey: Survey, reading_seconds: float) -> Forecast:
    """Time parts of the sample, which comes from all over the corpus. The first part only starts the threads."""
    texts, rates = iter(survey.sample), []
    for _ in range(1 + _TIMED_PARTS):
        part, size = [], 0
        while size < _TIMED_BYTES and (text := next(texts, None)) is not None:
            part.append(text)
            size += len(text.encode())
        began = time.perf_counter()
        encoder.encode_plain(part)
        if size:
            rates.append((time.perf_counter() - began) / size)
    rates = rates[1:] or rates
    seconds = [reading_seconds + rate * survey.bytes for rate in (statistics.fmean(rates), min(rates), max(rates))]
    return Forecast(text_bytes=survey.bytes, seconds=seconds[0], low=seconds[1], high=seconds[2])


@dataclass(kw_only=True)
class Counts:
    """The counts of one written split."""

    tokens: int = 0
    bytes: int = 0


def _encode(
    corpus: Corpus, max_chars: int, encoder: TextTokenizer, survey: Survey, folder: Path, report: Progress
) -> tuple[Counts, Counts]:
    """Write both splits. The end-of-text token ends each piece. Return the counts of training and validation."""
    end, dtype = end_of(encoder), np.dtype(dtype_of(encoder)).newbyteorder("<")
    splits = (Counts(), Counts())
    with (folder / TRAIN_FILE).open("wb") as train, (folder / VALIDATION_FILE).open("wb") as validation:
        files: tuple[IO[bytes], IO[bytes]] = (train, validation)
        number = 0
        for texts in _batches(corpus, max_chars, survey):
            for text, ids in zip(texts, encoder.encode_plain(texts), strict=True):
                split = int(survey.held_out[number])
                tokens = np.array([*ids, end], dtype=dtype)
                files[split].write(tokens.tobytes())
                splits[split].tokens += len(tokens)
                splits[split].bytes += len(text.encode())
                number += 1
            report("encode", splits[0].bytes + splits[1].bytes, survey.bytes)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    _refuse_changed(splits[0].bytes + splits[1].bytes, survey.bytes)
    return splits


def _batches(corpus: Corpus, max_chars: int, survey: Survey) -> Iterator[list[str]]:
    texts, chars, count = [], 0, 0
    for piece in corpus.pieces(max_chars):
        texts.append(piece.text)
        chars, count = chars + len(piece.text), count + 1
        if count > len(survey.held_out):
            _refuse_changed(count, len(survey.held_out))
        if chars >= _BATCH_CHARS:
            yield texts
            texts, chars = [], 0
    if texts:
        yield texts


def _refuse_changed(found: int, expected: int) -> None:
    if found != expected:
        raise PrepareError("the inputs changed while they were being read", "run the same command again")


def dtype_of(encoder: TextTokenizer) -> str:
    """Return the type in which a token folder stores tokens of this vocabulary."""
    return "uint16" if encoder.vocab_size <= 1 << 16 else "uint32"


def end_of(encoder: TextTokenizer) -> int:
    """Return the token that ends a document. Raises PrepareError if there is none."""
    if encoder.end_of_text is None:
        raise PrepareError("the tokenizer has no end-of-text token", f"it needs one, as {END_OF_TEXT} or </s>")
    return encoder.end_of_text


def _describe(
    corpus: Corpus, encoder: TextTokenizer, survey: Survey, counts: tuple[Counts, Counts], fingerprint: str
) -> TokenMeta:
    train, validation = counts
    skipped = corpus.passed_over + corpus.skipped
    if len(skipped) > _MAX_SKIPPED_LISTED:
        skipped = [*skipped[:_MAX_SKIPPED_LISTED], f"and {len(skipped) - _MAX_SKIPPED_LISTED} more"]
    return TokenMeta(
        schema=_TEXT_SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        vocab_size=encoder.vocab_size,
        dtype=dtype_of(encoder),
        end_of_text=end_of(encoder),
        documents=survey.documents,
        bytes=train.bytes,
        tokens=train.tokens,
        validation_tokens=validation.tokens,
        validation_bytes=validation.bytes,
        bytes_per_token=train.bytes / train.tokens,
        sources=tuple(corpus.sources),
        skipped=tuple(skipped),
        fingerprint=fingerprint,
    )
