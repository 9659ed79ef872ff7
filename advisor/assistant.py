"""Send a text to an assistant and return its answer, through a command or a server that speaks chat completions.

This process has no key and no library of a model: the user types the command, and a server is asked by HTTP. Whatever
is sent passes `redact.for_sending`, which masks credentials and e-mail addresses.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from advisor.errors import AdvisorError
from advisor.redact import for_sending

Reader = Callable[[str], str]  # a prompt in, the answer out
KEY = "ADVISOR_READER_KEY"  # environment variable
ELSE = "fix it, or give an answer that another assistant wrote: --answer FILE"
SECONDS = 1800.0  # longest time for an answer
_MOST_BYTES = 16 * 2**20
_FENCE = re.compile(r"```(?:json)?\s*(\{.*\})\s*```", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Asking:
    """What an assistant receives: the prompt, and the schema of its answer."""

    prompt: str
    schema: Mapping[str, Any]


def of_command(command: str) -> Reader:
    """Return a reader that runs a command: prompt on its stdin, answer on its stdout, as in `ollama run NAME`."""
    words = shlex.split(command)
    if not words:
        raise AdvisorError("--reader does not name a command", "--reader 'ollama run NAME'", exit_code=2)

    def ask(prompt: str) -> str:
        try:
            sent = for_sending(prompt)
            done = subprocess.run(words, input=sent, capture_output=True, text=True, timeout=SECONDS)
        except FileNotFoundError as error:
            raise AdvisorError(f"--reader: there is no command {words[0]}", "check its name", exit_code=2) from error
        except subprocess.TimeoutExpired as error:
            raise AdvisorError(f"--reader {words[0]} did not answer within {SECONDS / 60:.0f} minutes", ELSE) from error
        if done.returncode:
            said = " ".join(done.stderr.split())[-300:] or "it said nothing"
            raise AdvisorError(f"--reader {words[0]} ended with exit code {done.returncode}: {said}", ELSE)
        return done.stdout

    return ask


def of_server(base: str, model: str, schema: Mapping[str, Any]) -> Reader:
    """Return a reader that asks a server by chat completions (Ollama, llama.cpp, vLLM and others), with the answer's
    schema.

    Plain HTTP goes to this machine only. The key, if there is one, is the environment's ADVISOR_READER_KEY.
    """
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AdvisorError(f"--reader-url {base}: not an http address", "http://127.0.0.1:11434/v1", exit_code=2)
    try:
        is_here = ipaddress.ip_address(parts.hostname).is_loopback
    except ValueError:
        is_here = parts.hostname == "localhost"
    if parts.scheme == "http" and not is_here:
        hint = "use https, or a server on this machine: http://127.0.0.1:11434/v1"
        raise AdvisorError(f"--reader-url {base}: the text would go over the network unencrypted", hint, exit_code=2)
    key = os.environ.get(KEY)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def ask(prompt: str) -> str:
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        body = {
            "model": model,
            "messages": [{"role": "user", "content": for_sending(prompt)}],
            "response_format": wanted,
        }
        request = urllib.request.Request(
            f"{base.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers, method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as reply:
                answer = json.loads(reply.read(_MOST_BYTES))
            return str(answer["choices"][0]["message"]["content"])
        except (urllib.error.URLError, TimeoutError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise AdvisorError(f"--reader-url {base} does not answer: {reason}", "is the server running?") from error
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise AdvisorError(f"--reader-url {base} did not answer with a chat completion", ELSE) from error

    return ask


def json_in(answer: str) -> dict[str, Any]:
    """Return the JSON object in an answer, in a code fence or between other words. Raises AdvisorError without one."""
    fenced = _FENCE.search(answer)
    start, end = answer.find("{"), answer.rfind("}")
    text = fenced[1] if fenced else answer[start : end + 1] if start >= 0 else ""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if text else "there is no { in it"
        raise AdvisorError(f"the reader's answer is not JSON: {reason}", "ask it again for one JSON object") from error
    if not isinstance(found, dict):
        raise AdvisorError("the reader's answer is not a JSON object", "ask it again for one JSON object")
    return found


def reader_of(
    command: str | None, url: str | None, model: str | None, schema: Callable[[], Mapping[str, Any]]
) -> Reader | None:
    """Return the assistant that --reader, or --reader-url with --reader-model, name; None if none is named."""
    if command is not None and (url is not None or model is not None):
        raise AdvisorError("--reader and --reader-url both say who reads", "give one of them", exit_code=2)
    if (url is None) != (model is None):
        hint = "--reader-url http://127.0.0.1:11434/v1 --reader-model NAME"
        raise AdvisorError("--reader-url and --reader-model belong together", hint, exit_code=2)
    if command is not None:
        return of_command(command)
    return of_server(url, model, schema()) if url is not None and model is not None else None
