"""Masks credentials in quotes from logs, because people share reports, and in what is sent to an assistant."""

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


_SENT = re.compile(  # a login in an address, a JSON web token, an e-mail address, a user's or a machine's name
    r"(?<=://)[^\s/@:]+:[^\s/@]+(?=@)"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}"
    r"|(?<![\w.+-])[\w.+-]{1,64}@[\w.-]{1,63}(?=:[~/])"
    r"|(?:(?<=/home/)|(?<=/Users/)|(?<=\\Users\\))[^\s/\\\"':]{1,64}"
    r"|(?i:(?<=hostname: )|(?<=hostname=)|(?<=username: )|(?<=username=))[\w.-]{1,64}"
)
# what is called a password, however short, and a mix of letters and digits that is called a token or a key
_SENT_CALLED = re.compile(
    r"(?i)((?:password|passwd|secret)\w*[\"']?\s*[:=]\s*[\"']?)([^\s\"',;]{4,})"
    r"|((?:[a-z]_token|-token|api[_-]?key)[\"']?[\s:=]\s*[\"']?)"
    r"(?=[^\s\"',;]{0,80}\d)(?=[^\s\"',;]{0,80}[a-z])([^\s\"',;<>()\[\]{}|]{8,})"
)


def for_sending(text: str) -> str:
    """Return the text with credentials, e-mail addresses, and names of users and machines masked, ready to be sent."""
    return _SENT_CALLED.sub(lambda found: f"{found[1] or found[3]}{MASK}", _SENT.sub(MASK, hide_secrets(text)))
