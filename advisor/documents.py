"""Every JSON document that a command prints says which one it is: its name, and the number of its schema.

The schemas lie in `schemas.json`, written by `advisor/document_types.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError, close_matches
from advisor.report.render import to_plain

FILE = Path(__file__).with_name("schemas.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@cache
def shipped() -> dict[str, Any]:
    """The file of schemas: `$defs` are the records, `documents` the schema of each name and its number."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def stamped(name: str, value: Any) -> dict[str, Any]:
    """An answer as JSON holds it, with its document's name and the number of its schema in front."""
    return {"document": name, "document_schema": shipped()["documents"][name]["version"], **to_plain(value)}


def print_json(name: str, value: Any) -> None:
    """Write one JSON document to stdout: the only thing a command prints there under --json."""
    sys.stdout.write(json.dumps(stamped(name, value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of one document or file, complete in itself; raises AdvisorError where there is no such name."""
    documents = shipped()["documents"]
    if name not in documents:
        close = close_matches(name, documents)
        hint = f"did you mean {' or '.join(close)}?" if close else "`advisor schema` lists them"
        raise AdvisorError(f"there is no schema {name!r}", hint, exit_code=2)
    entry = documents[name]
    schema = entry["schema"]
    if "document_schema" in schema.get("properties", {}):
        schema = {**schema, "properties": {**schema["properties"], "document_schema": {"const": entry["version"]}}}
    head = {"$schema": DIALECT, "title": name, "version": entry["version"]}
    return head | schema | {"$defs": records_in(schema, shipped()["$defs"])}


def records_in(schema: Any, records: Mapping[str, Any]) -> dict[str, Any]:
    """The records that a schema names, and those that they name in turn."""
    found: dict[str, Any] = {}
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left += part
        elif isinstance(part, dict):
            name = str(part.get("$ref", "")).removeprefix("#/$defs/")
            if name and name not in found:
                found[name] = records[name]
                left.append(records[name])
            left += [value for key, value in part.items() if key != "$ref"]
    return dict(sorted(found.items()))
