"""The card as a contract for the reader of a text: its JSON Schema, and the prompt that asks for a card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.auditing.card import COLUMNS, PHASES, SCHEMA, SETUP_FIELDS
from advisor.auditing.kinds import forms, kinds
from advisor.auditing.quantity import DIMENSIONS
from advisor.auditing.relations import table
from advisor.auditing.verdict import Ruling

_SHORT = 90  # characters of a list of choices that the prompt may repeat
_TEXT, _TEXTS = {"type": "string"}, {"type": "array", "items": {"type": "string"}}
_CLAIM: dict[str, dict[str, Any]] = {
    "id": {**_TEXT, "description": "short and unique"},
    "text": {**_TEXT, "description": "the claim in a short sentence of your own"},
    "quote": {**_TEXT, "description": "the words of the text, verbatim, with every number of the claim"},
    "also": _TEXTS
    | {"description": "further verbatim quotes, where the claim takes numbers from other places of the text"},
    "line": {"type": "integer", "minimum": 1, "description": "of the quote"},
    "about": {**_TEXT, "description": "run (the default) or the name of one of `others`"},
    "premises": _TEXTS
    | {"description": "ids of the claims without which it falls; if one of them is wrong, the claim is excused"},
    "opinion": {"enum": [ruling.value for ruling in Ruling], "description": "what you yourself think of the claim"},
    "because": {**_TEXT, "description": "why you think so, in one sentence"},
    "correct": {**_TEXT, "description": "if you think it wrong: the value in its place, in the same unit"},
}


def card_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a run card, in which each kind of claim has its own fields."""
    number = {"type": ["number", "null"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "run card",
        "type": "object",
        "required": ["title", "run", "claims"],
        "additionalProperties": False,
        "properties": {
            "schema": {"const": SCHEMA},
            **dict.fromkeys(("id", "title", "source"), _TEXT),
            **dict.fromkeys(("assumed", "unplaced"), _TEXTS),
            "run": _setup(),
            "others": {"type": "array", "items": _setup()},
            "rows": {
                "type": "object",
                "properties": {
                    "columns": {"type": "array", "items": {"enum": list(COLUMNS)}},
                    "values": {"type": "array", "items": {"type": "array", "items": number}},
                },
            },
            "timing": {"type": "object", "properties": {name: _of("seconds") for name in (*PHASES, "total")}},
            "claims": {"type": "array", "items": {"oneOf": [_claim(kind) for kind in kinds()]}},
        },
    }


def prompt(text: str | None = None) -> str:
    """Return the prompt that asks an assistant to fill in a card from a text: this one, or the one that follows it."""
    import json

    schema = card_schema()
    schema["properties"]["claims"]["items"] = {  # the fields of each kind are in the list: a third of the words
        "type": "object",
        "required": ["id", "kind", "text", "quote"],
        "properties": _CLAIM | {"kind": {"enum": list(kinds())}, "that": {"type": "string"}},
    }
    lines: list[str] = []
    for kind in kinds().values():
        lines.append(f"- {kind.name}: {kind.about}")
        if kind.name == "quantity":
            shared = ", ".join(name for name in forms()[kind.forms[0]].fields if name != "value")
            lines.append(f"  each form may state any of {shared}")
        for name, one in examples().items():
            if name in kind.forms:
                choices = [
                    f"{field}: {spec.removesuffix('?').replace('|', ', ')}"
                    for field, spec in forms()[name].fields.items()
                    if "|" in spec and len(spec) < _SHORT
                ]
                choices += [f"name: {', '.join(table()['techniques'])}"] if name == "technique" else []
                listed = f" ({'; '.join(choices)})" if choices else ""
                lines.append(f"  - {name}: {one['says']!r} → {one['fields']}{listed}")
    template = Path(__file__).with_name("prompt.md").read_text(encoding="utf-8")
    template = template.format(kinds="\n".join(lines), schema=json.dumps(schema, ensure_ascii=False))
    if text is None:
        return f"{template}\nThe text follows.\n"
    numbered = "\n".join(f"{number}: {line}" for number, line in enumerate(text.split("\n"), 1))
    return f"{template}\nThe text, each line with its number (which is no part of it):\n\n{numbered}\n"


def examples() -> dict[str, dict[str, Any]]:
    """Return for each form that a reader may use its kind, a sentence of a report, and its fields in a card."""
    return {
        name: {"kind": form.kind, "says": form.says, "fields": form.example}
        for name, form in forms().items()
        if form.says and form.kind != "not_judged"
    }


def _claim(kind: str) -> dict[str, Any]:
    """Return the schema of one kind of claim with the fields of all its forms; a single form's needs are required."""
    own = [forms()[name] for name in kinds()[kind].forms]
    fields = {name: _of(spec.removesuffix("?")) for form in own for name, spec in form.fields.items()}
    needed = [name for name, spec in own[0].fields.items() if not spec.endswith("?")] if len(own) == 1 else ["that"]
    return {
        "type": "object",
        "required": ["id", "kind", "text", *needed],
        "additionalProperties": False,
        "properties": _CLAIM | {"kind": {"const": kind}, "that": {"enum": [form.name for form in own]}} | fields,
    }


def _setup() -> dict[str, Any]:
    fields = {name: _of(spec.removesuffix("?")) for name, spec in SETUP_FIELDS.items()}
    return {"type": "object", "additionalProperties": False, "properties": fields | {"inherit": {"type": "boolean"}}}


def _of(spec: str) -> dict[str, Any]:
    """Return the schema of one field from its spec, which is as in `load.read_fields`."""
    if spec.startswith("["):
        return {"type": "array", "minItems": 1, "items": _of(spec[1:-1])}
    if spec == "number" or spec.split(" or ")[0] in DIMENSIONS:
        words = "a quantity as printed" if spec == "number" else f"a quantity as printed ({spec.replace('_', ' ')})"
        return {"type": ["string", "number"], "description": words}
    if "|" in spec:
        return {"enum": spec.split("|")}
    plain: dict[str, dict[str, Any]] = {
        "whole": {"type": "integer", "minimum": 1},
        "float": {"type": "number"},
        "flag": {"type": "boolean"},
        "gpu": {"type": "string", "description": "a GPU's name"},
        "setup": {"type": "string", "description": "run, or the name of one of `others`"},
    }
    return plain.get(spec, {"type": "string"})
