"""Describes token folders for terminal and page."""

from __future__ import annotations

from pathlib import Path

from advisor.units import format_bytes, format_count, format_number, format_tokens
from trainer.token_folder import TokenMeta


def facts(folder: Path, meta: TokenMeta) -> list[tuple[str, str]]:
    """Returns the content of a token folder, as pairs of name and text."""
    held_out = f"{format_tokens(meta.validation_tokens)} tokens, {format_bytes(meta.validation_bytes)}"
    return [
        ("folder", str(folder)),
        ("sources", "; ".join(meta.sources)),
        ("documents", format_count(meta.documents)),
        ("training", f"{format_tokens(meta.tokens)} tokens, {format_bytes(meta.bytes)}"),
        ("validation", held_out),
        *([] if meta.counted_tokens is None else [("of these trained on", _learnt(meta))]),
        ("bytes per token", format_number(meta.bytes_per_token)),
        ("vocabulary", f"{meta.vocab_size} tokens, stored as {meta.dtype}"),
        ("created", meta.created),
    ]


def _learnt(meta: TokenMeta) -> str:
    """Says how much of the conversations is the assistant's text."""
    training, held_out = (format_tokens(n or 0) for n in (meta.counted_tokens, meta.validation_counted_tokens))
    return f"{training} tokens of the training split, {held_out} of the validation split"
