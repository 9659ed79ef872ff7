"""Defines the token folder's format: its files, the fields of meta.json, and the only reader of that file.

`trainer/prepare.py` writes the folder and `trainer/data.py` trains from it; `docs/file-formats.md` describes it for
people. Standard library only, so that planning with a folder's metadata loads neither torch nor numpy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

SCHEMA = 2  # 2 for conversations, in which not every token counts; text is still written as 1

TRAIN_FILE = "tokens.bin"
VALIDATION_FILE = "val.bin"
TOKENIZER_FILE, SENTENCEPIECE_FILE = "tokenizer.json", "tokenizer.model"  # a folder has one of the two
MASK_FILE, VALIDATION_MASK_FILE = "mask.bin", "val_mask.bin"  # for conversations: one byte per token
COUNTS, BEGINS = 1, 2  # bits of that byte: the token is learnt; a conversation begins with it
META_FILE = "meta.json"
FILES = (TRAIN_FILE, VALIDATION_FILE, MASK_FILE, VALIDATION_MASK_FILE, TOKENIZER_FILE, SENTENCEPIECE_FILE, META_FILE)

ITEM_BYTES = {"uint16": 2, "uint32": 4}  # both little-endian
# the JSON type of a field, by its annotation
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "int | None": (int, type(None)),
    "str": str,
    "float": (float, int),
    "tuple[str, ...]": list,
}

PREPARE_HINT = "advisor data prepare FILES --out {path}"


class DataError(ValueError):
    """Says that training data cannot be used. `hint` is the next step, often a command."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, kw_only=True)
class TokenMeta:
    """The metadata of a token folder: `meta.json`."""

    schema: int
    created: str  # ISO 8601, UTC
    vocab_size: int  # one more than the largest token number
    dtype: str  # uint16 | uint32
    end_of_text: int  # number of the token that ends each document
    documents: int  # in both splits together
    bytes: int  # of the training split's text
    tokens: int  # of the training split
    validation_tokens: int
    validation_bytes: int
    bytes_per_token: float  # training split
    sources: tuple[str, ...]
    skipped: tuple[str, ...]  # inputs that were left out, in words
    fingerprint: str  # of settings, tokenizer and files
    counted_tokens: int | None = None  # tokens of the training split that are learnt; None for text, in which all are
    validation_counted_tokens: int | None = None


def tokenizer_file(path: str | Path) -> Path | None:
    """Return the file of a token folder's tokenizer. Returns None if it is missing."""
    files = (Path(path) / name for name in (TOKENIZER_FILE, SENTENCEPIECE_FILE))
    return next((file for file in files if file.is_file()), None)


def read_meta(path: str | Path) -> TokenMeta:
    """Read a token folder's metadata, and check it against the folder's files.

    Raises DataError if the folder or a file is missing, meta.json is not what `prepare` writes, or a token file has
    another length than meta.json states.
    """
    folder = Path(path)
    hint = PREPARE_HINT.format(path=folder)
    if folder.is_dir() and not (folder / META_FILE).exists():  # perhaps the folder of the texts themselves
        hint = PREPARE_HINT.replace("FILES", "{path}").format(path=folder) + "-tokens"
    if not folder.is_dir():
        what = "is a file, not a token folder" if folder.exists() else "does not exist"
        raise DataError(f"token folder {folder} {what}", hint)
    meta = _checked(_load_json(folder / META_FILE, hint), folder / META_FILE, hint)
    for name, count in ((TRAIN_FILE, meta.tokens), (VALIDATION_FILE, meta.validation_tokens)):
        _check_length(folder / name, count * ITEM_BYTES[meta.dtype], hint)
    if meta.counted_tokens is not None:
        _check_length(folder / MASK_FILE, meta.tokens, hint)
        _check_length(folder / VALIDATION_MASK_FILE, meta.validation_tokens, hint)
    return meta


def _load_json(file: Path, hint: str) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{file.parent} is not a token folder: it has no {META_FILE}", hint) from None
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}", "check the file's permissions") from error
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are both ValueErrors
        raise DataError(f"{file} is damaged: {error}", hint) from error


def _checked(meta: Any, file: Path, hint: str) -> TokenMeta:
    if not isinstance(meta, dict):
        raise DataError(f"{file} is damaged: expected an object, found {type(meta).__name__}", hint)
    schema = meta.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        upgrade = "upgrade training-advisor, or prepare the data again"
        raise DataError(f"{file} has schema {schema}; this version reads up to {SCHEMA}", upgrade)
    bad = [f.name for f in fields(TokenMeta) if not isinstance(meta.get(f.name), _JSON_TYPES[str(f.type)])]
    if bad:
        raise DataError(f"{file} is damaged: missing or wrong {', '.join(bad)}", hint)
    known = {f.name: meta.get(f.name) for f in fields(TokenMeta)}
    found = TokenMeta(**known | {"sources": tuple(meta["sources"]), "skipped": tuple(meta["skipped"])})
    if found.dtype not in ITEM_BYTES:
        raise DataError(f"{file} is damaged: dtype {found.dtype!r} is not one of {', '.join(ITEM_BYTES)}", hint)
    return found


def _check_length(file: Path, expected_bytes: int, hint: str) -> None:
    try:
        found_bytes = file.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}", hint) from error
    if found_bytes != expected_bytes:
        raise DataError(f"{file} holds {found_bytes} bytes where {META_FILE} promises {expected_bytes}", hint)
