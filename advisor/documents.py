"""Prints JSON documents. Each one states which document it is: its name, and the number of its schema.

The schemas are in `schemas.json`, which `benchmarks/document_types.py` writes.
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
    """Return the file of schemas: records in `$defs`, and in `documents` the schema and number for each name."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def stamped(name: str, value: Any) -> dict[str, Any]:
    """Return an answer as JSON types, preceded by its document's name and the number of its schema."""
    return {"document": name, "document_schema": shipped()["documents"][name]["version"], **to_plain(value)}


def print_json(name: str, value: Any) -> None:
    """Write one JSON document to stdout. With --json, a command prints nothing else there."""
    sys.stdout.write(json.dumps(stamped(name, value), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def schema_of(name: str) -> dict[str, Any]:
    """Return the JSON Schema of one document or file, complete in itself. Raises AdvisorError for an unknown name."""
    documents = shipped()["documents"]
    if name not in documents:
        close = close_matches(name, documents)
        meant = f"did you mean {' or '.join(close)}? " if close else ""
        hint = f"{meant}`advisor schema` lists them"
        raise AdvisorError(f"there is no schema {name!r}", hint, exit_code=2)
    entry = documents[name]
    schema = entry["schema"]
    if "document_schema" in schema.get("properties", {}):
        schema = {**schema, "properties": {**schema["properties"], "document_schema": {"const": entry["version"]}}}
    head = {"$schema": DIALECT, "title": name, "version": entry["version"]}
    return head | schema | {"$defs": records_in(schema, shipped()["$defs"])}


def records_in(schema: Any, records: Mapping[str, Any]) -> dict[str, Any]:
    """Return the records that a schema names, and all records that those name in turn."""
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
