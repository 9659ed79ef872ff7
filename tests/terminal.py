"""The command line, called in this process: a process of its own takes a second or two longer to start."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from advisor.cli import main
from advisor.documents import schema_of
from advisor.report import render


def advisor(
    *words: object, expect: int | None = None, given: str = "", folder: Path | None = None, **variables: object
) -> subprocess.CompletedProcess[str]:
    """Runs a command as a terminal would; returns its exit code and all that it printed.

    `expect`: the exit code that is asserted. `given`: standard input. `variables`: of the command's environment.
    """
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        pytest.MonkeyPatch.context() as changed,
        warnings.catch_warnings(),  # the command silences some
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        contextlib.chdir(folder or Path.cwd()),
    ):
        changed.setattr("sys.stdin", io.StringIO(given))
        for name, value in variables.items():
            changed.setenv(name, str(value))
        for console in (render.console, render.error_console):
            console.cache_clear()  # as wide as COLUMNS says now
        try:
            main([str(word) for word in words])
        except SystemExit as ended:
            code = int(ended.code or 0)
    done = subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
    assert expect is None or code == expect, done.stdout + done.stderr
    validate_printed(done.args, out.getvalue())
    return done


def validate_printed(words: Sequence[object], out: str) -> None:
    """Asserts that a document which a command printed is what the schema of its name says."""
    if "--json" not in words or not out.startswith("{"):
        return
    document = json.loads(out)
    problem = jsonschema.exceptions.best_match(_validator(document["document"]).iter_errors(document))
    assert problem is None, f"{document['document']}: {problem.json_path}: {problem.message[:500]}"


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema_of(name))


def document(*words: object, expect: int = 0, **more: object) -> dict:
    """Returns what a command says under --json, valid by its schema, without the document's name and number."""
    said = json.loads(advisor(*words, "--json", expect=expect, **more).stdout)
    return {name: part for name, part in said.items() if name not in ("document", "document_schema")}
