"""Writes files atomically, and reads YAML and JSON with errors in plain words."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from advisor.errors import AdvisorError
from trainer.schema import ConfigError, record_from_dict

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster if PyYAML was built with libyaml
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_HINTS = {
    errno.ENOSPC: "the disk is full: free some space, or point ADVISOR_HOME (or --run-dir) at another disk",
    errno.EDQUOT: "the disk quota is used up: free some space, or point ADVISOR_HOME (or --run-dir) elsewhere",
    errno.EACCES: "this user may not use that path: choose another one, or set ADVISOR_HOME to a folder of yours",
    errno.EPERM: "this user may not use that path: choose another one, or set ADVISOR_HOME to a folder of yours",
    errno.EROFS: "the disk is mounted read-only: point ADVISOR_HOME (or --run-dir) at a writable folder",
    errno.ENOENT: "check the path",
    errno.EISDIR: "that is a folder, a file was expected",
    errno.ENOTDIR: "part of that path is a file, a folder was expected",
    errno.EEXIST: "a file of that name is in the way",
}


@contextlib.contextmanager
def disk_errors(action: str, path: str | Path) -> Iterator[None]:
    """Turn an OSError into an AdvisorError that says what was tried, on which path, and what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise AdvisorError(f"cannot {action} {path}: {reason}", _HINTS.get(error.errno or 0)) from error


def write_atomic(path: str | Path, content: str | bytes, *, flush: bool = True) -> None:
    """Write a file in full or not at all: temporary file, fsync, rename, fsync of the folder.

    Parent folders are created. If it raises AdvisorError, an older file of that name is still there, unchanged.
    Without `flush`, a file of the last seconds may be empty after a power failure.
    """
    path = Path(path)
    with disk_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                if flush:
                    file.flush()
                    os.fsync(file.fileno())
            os.chmod(name, 0o644)  # mkstemp gives 0600, which would keep colleagues from reading a run folder
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        if flush and os.name == "posix":  # Windows cannot open folders, and there the rename is enough
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def read_yaml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a YAML mapping. `what` names the kind of file in errors ("plan", "calibration").

    Raises AdvisorError if the file is missing, unreadable, not YAML, empty or not a mapping.
    """
    with disk_errors(f"read the {what}", path):
        raw_bytes = Path(path).read_bytes()
    try:
        raw = yaml.load(raw_bytes, Loader=_LOADER)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        hint = f"fix that line, or name another file; a training log is read by: advisor analyze {path}"
        raise AdvisorError(f"{path} is not a {what}: not valid YAML, {yaml_problem(error)}", hint) from error
    return _mapping(raw, what, path)


def yaml_problem(error: Exception) -> str:
    """Describe where and why a text is not valid YAML, in the parser's words."""
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or " ".join(str(error).split())[:120]
    return reason if mark is None else f"line {mark.line + 1}: {reason}"


def dump_yaml(document: Any) -> str:
    """Write plain dicts and lists as YAML text. A list of numbers stays on one line."""
    return yaml.dump(document, Dumper=_DUMPER, sort_keys=False, default_flow_style=None, width=120, allow_unicode=True)


def read_json(path: str | Path, what: str) -> dict[str, Any]:
    """Read a JSON object. Raises AdvisorError if the file is missing, incomplete or not an object."""
    with disk_errors(f"read the {what}", path):
        raw_bytes = Path(path).read_bytes()
    try:
        raw = json.loads(raw_bytes)
    except ValueError as error:
        hint = "fix that line, or remove the file"
        raise AdvisorError(f"the {what} {path} is not valid JSON: {error}", hint) from error
    return _mapping(raw, what, path)


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a TOML file. Raises AdvisorError if it is missing or not valid."""
    with disk_errors(f"read the {what}", path):
        raw_bytes = Path(path).read_bytes()
    try:
        return tomllib.loads(raw_bytes.decode())
    except ValueError as error:  # not UTF-8, or not TOML
        raise AdvisorError(f"the {what} {path} is not valid TOML: {error}", "fix that line") from error


def _mapping(raw: Any, what: str, path: str | Path) -> dict[str, Any]:
    if not isinstance(raw, dict):
        content = "nothing" if raw is None else f"a {type(raw).__name__}"
        raise AdvisorError(f"{path} is not a {what}: it should contain named fields, but contains {content}",
                           "was the file only half written, or is it another kind of file?")  # fmt: skip
    return raw


def read_record(kind: Any, path: Path, what: str, *, why: str = "to continue without it") -> Any:
    """Return the record from a YAML or JSON file, or None if there is no file. `why` says why to remove a bad one."""
    if not path.exists():
        return None
    read = read_json if path.suffix == ".json" else read_yaml
    try:
        return record_from_dict(kind, read(path, what))
    except ConfigError as error:
        raise bad_fields(what, path, error, f"remove it {why}: rm {path}") from error


def bad_fields(what: str, path: str | Path, error: ConfigError, hint: str) -> AdvisorError:
    """Return the error for a file with missing or wrong fields. It names all of them."""
    return AdvisorError(f"the {what} {path} cannot be used: {listed(error.problems)}", hint)


def listed(problems: Sequence[str]) -> str:
    """Join the first eight problems of a file in one line."""
    return "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
