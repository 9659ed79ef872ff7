"""Turns conversations into a token folder. The model learns what the assistant says, and only reads the rest.

A turn is `<|role|>`, a line end, the content, and a line end. After the assistant's content comes the end-of-text
token, which is learnt too. A mark is one token if the tokenizer has a token of that name. Otherwise it is spelt in
ordinary tokens, so that any run can be continued without a new vocabulary.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from trainer.corpus import Corpus, PrepareError, gather
from trainer.prepare import dtype_of, end_of, fingerprint_of, hold_out, prepared_before, refuse_occupied
from trainer.publish import published, write_durably
from trainer.token_folder import (
    BEGINS,
    COUNTS,
    MASK_FILE,
    META_FILE,
    SCHEMA,
    TRAIN_FILE,
    VALIDATION_FILE,
    VALIDATION_MASK_FILE,
    TokenMeta,
)
from trainer.tokenizer import TextTokenizer, load_tokenizer_file

ASSISTANT = "assistant"
ROLES = ("system", "user", ASSISTANT, "tool")
KEY = "messages"
_HINT = 'a line each: {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}'
_AT_ONCE = 256  # number of conversations encoded together


@dataclass(frozen=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A conversation as tokens, with a flag for each token that is learnt."""

    tokens: list[int]
    counts: list[bool]


@dataclass(kw_only=True)
class _Split:
    """The counts of one written split."""

    tokens: int = 0
    counted: int = 0
    bytes: int = 0


def prepare_conversations(
    inputs: Sequence[Path],
    out: Path,
    *,
    tokenizer: Path,
    validation_fraction: float = 0.01,
    seed: int = 1337,
    skip_bad: bool = False,
    force: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> TokenMeta:
    """Turn JSON lines or Parquet files with `messages` into the token folder `out` and return its metadata.

    `tokenizer` is the tokenizer of the run to continue. If the same inputs and settings were prepared already, this
    returns at once. Other tokens in `out` are replaced only with `force`. Raises PrepareError; `out` is then unchanged.
    """
    report = on_progress or (lambda stage, done, total: None)
    corpus = gather(list(inputs), text_key=KEY, skip_bad=skip_bad)
    encoder = load_tokenizer_file(tokenizer)
    fingerprint = fingerprint_of(corpus, tokenizer, SCHEMA, validation_fraction, seed)
    before = prepared_before(out)
    if before and before.fingerprint == fingerprint:
        return before
    refuse_occupied(out, None if force else before)
    sizes = [_size(messages) for messages in _conversations(corpus)]
    report("read", 1, 1)
    draw = random.Random(seed).random
    held_out = hold_out(np.array([draw() for _ in sizes]), np.array(sizes), validation_fraction, corpus)
    with published(out, 4 * sum(sizes)) as folder:
        splits = _encode(corpus, encoder, held_out, folder, lambda done: report("encode", done, len(sizes)))
        meta = _describe(corpus, encoder, len(sizes), splits, fingerprint)
        write_durably(folder / encoder.file_name, encoder.content())
        write_durably(folder / META_FILE, json.dumps(asdict(meta), indent=1).encode())
    return meta


def render(encoder: TextTokenizer, conversations: Sequence[Sequence[Message]]) -> list[Rendered]:
    """Return conversations as tokens. Content stays text even if it looks like a mark."""
    end, line_end = end_of(encoder), encoder.encode("\n")
    said = iter(encoder.encode_plain([message.content for one in conversations for message in one]))
    heads = {role: mark(encoder, role) for role in ROLES}
    rendered = []
    for one in conversations:
        tokens: list[int] = []
        counts: list[bool] = []
        for message in one:
            learnt = message.role == ASSISTANT
            body = [*next(said), *([end] if learnt else [])]
            tokens += [*heads[message.role], *body, *line_end]
            counts += [False] * len(heads[message.role]) + [learnt] * len(body) + [False] * len(line_end)
        rendered.append(Rendered(tokens=tokens, counts=counts))
    return rendered


def mark(encoder: TextTokenizer, role: str) -> list[int]:
    """Return the tokens that precede a turn."""
    return encoder.encode(f"<|{role}|>\n")


def asked(encoder: TextTokenizer, prompt: str) -> list[int]:
    """Return the tokens of a question, up to the point where the assistant begins."""
    (question,) = render(encoder, [[Message(role="user", content=prompt)]])
    return [*question.tokens, *mark(encoder, ASSISTANT)]


def _size(messages: Sequence[Message]) -> int:
    return sum(len(message.content.encode()) for message in messages)


def _conversations(corpus: Corpus) -> Iterator[tuple[Message, ...]]:
    """Yield every conversation of a corpus, in order. Raises PrepareError for an invalid one if none may be skipped."""
    for where, record in corpus.records():
        try:
            messages = read_messages(record, where)
        except PrepareError as error:
            corpus.leave_out(error)
        else:
            yield messages


def read_messages(record: Any, where: str) -> tuple[Message, ...]:
    """Return the turns of a record. Raises PrepareError that names the invalid turn."""
    if not isinstance(record, list) or not record:
        raise PrepareError(f"{where}: {KEY!r} is {type(record).__name__}, not a list of turns", _HINT)
    messages = tuple(_message(turn, f"{where}, turn {number}") for number, turn in enumerate(record, 1))
    if not any(message.role == ASSISTANT and message.content for message in messages):
        raise PrepareError(f"{where}: the assistant says nothing that could be learnt", _HINT)
    return messages


def _message(turn: Any, where: str) -> Message:
    role, content = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None, None)
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text", "")) for part in content)
    if role not in ROLES:
        raise PrepareError(f"{where}: role {role!r} is not one of {', '.join(ROLES)}", _HINT)
    if not isinstance(content, str):
        raise PrepareError(f"{where}: content is {type(content).__name__}, not text", _HINT)
    return Message(role=role, content=content)


def _encode(
    corpus: Corpus, encoder: TextTokenizer, held_out: np.ndarray, folder: Path, report: Callable[[int], None]
) -> tuple[_Split, _Split]:
    """Write tokens and masks of both splits; return the counts of training and validation."""
    dtype = np.dtype(dtype_of(encoder)).newbyteorder("<")
    splits, number = (_Split(), _Split()), 0
    names = ((TRAIN_FILE, MASK_FILE), (VALIDATION_FILE, VALIDATION_MASK_FILE))
    files = [[(folder / name).open("wb") for name in pair] for pair in names]
    found = _conversations(corpus)
    while batch := list(islice(found, _AT_ONCE)):
        for messages, one in zip(batch, render(encoder, batch), strict=True):
            if number >= len(held_out):
                raise PrepareError("the inputs changed while they were being read", "run the same command again")
            split = int(held_out[number])
            mask = np.array(one.counts, dtype=np.uint8) * COUNTS
            mask[0] |= BEGINS
            files[split][0].write(np.array(one.tokens, dtype=dtype).tobytes())
            files[split][1].write(mask.tobytes())
            splits[split].tokens += len(one.tokens)
            splits[split].counted += sum(one.counts)
            splits[split].bytes += _size(messages)
            number += 1
        report(number)
    for file in (file for pair in files for file in pair):
        _close(file)
    return splits


def _close(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()


def _describe(
    corpus: Corpus, encoder: TextTokenizer, count: int, splits: tuple[_Split, _Split], fingerprint: str
) -> TokenMeta:
    train, validation = splits
    return TokenMeta(
        schema=SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        vocab_size=encoder.vocab_size,
        dtype=dtype_of(encoder),
        end_of_text=end_of(encoder),
        documents=count,
        bytes=train.bytes,
        tokens=train.tokens,
        validation_tokens=validation.tokens,
        validation_bytes=validation.bytes,
        bytes_per_token=train.bytes / train.tokens,
        sources=tuple(corpus.sources),
        skipped=tuple([*corpus.passed_over, *corpus.skipped][:100]),
        fingerprint=fingerprint,
        counted_tokens=train.counted,
        validation_counted_tokens=validation.counted,
    )
