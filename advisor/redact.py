"""Masks credentials that appear in quotes from logs, because people share reports."""

from __future__ import annotations

import re

MASK = "[hidden]"
# The documented key formats of Hugging Face, OpenAI and Anthropic, GitHub, AWS, Slack and Google, and values of 16 or
# more characters that are called a key, a password or a token.
_FORMS = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{30,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAIza[A-Za-z0-9_-]{30,}"
)
_CALLED = re.compile(
    r"(?i)((?:api[_-]?key|access[_-]?key|secret|password|passwd|auth[_-]?token|access[_-]?token|bearer)[\w-]*"
    r"[\"']?\s*[:=]?\s*[\"']?)([A-Za-z0-9+/_=.-]{16,})"
)


def hide_secrets(text: str) -> str:
    """Return the text with credentials masked."""
    return _CALLED.sub(rf"\1{MASK}", _FORMS.sub(MASK, text))
