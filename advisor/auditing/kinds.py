"""Every kind of claim with its forms, read from `kinds.yaml`, and the judgement of a claim of a form."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from advisor.auditing import checks
from advisor.auditing.card import COLUMNS
from advisor.auditing.functions import FORMATS
from advisor.auditing.relations import MORE, RelationRow, judge_quantity, judge_rows, more_of, row_of, table
from advisor.auditing.verdict import Check, Judgement, Question, Ruling, unknown

_SPECS = {"COLUMN": "|".join(COLUMNS), "FORMAT": "|".join(FORMATS)}
_CHECKS: dict[str, Check] = {
    **{check.__name__: check for check in (checks.expression, checks.agreement, checks.dates, checks.multiples)},
    **{check.__name__: check for check in (checks.parameters, checks.run_identity, checks.technique)},
    "range": checks.value_range,
}


@dataclass(frozen=True, kw_only=True)
class Form:
    """One form of a kind of claim; `kinds.yaml` says what each key means."""

    name: str
    kind: str
    fields: Mapping[str, str]
    says: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[RelationRow, ...] = ()
    always: Ruling | None = None
    so: str = ""
    more: Mapping[str, Any] = field(default_factory=dict)
    readings: Any = None
    words: str = ""  # a pattern that the quote must contain

    def judge(self, q: Question) -> Judgement:
        """Return the verdict on a claim of this form."""
        if self.always:
            return Judgement(ruling=self.always, so=self.so, arithmetic="", **self.more)
        if self.readings:
            chosen = self.readings[q.get("way")] if isinstance(self.readings, dict) else self.readings

            def stated(match: re.Match[str]) -> str:
                value = q.get(match[1])
                return match[2].join(f"[{one.text}]" for one in value) if match[2] else str(value.text)

            # the claim's own numbers in the reading: "[{whole}] - [{part}]", "{parts: + }"
            spelt = [re.sub(r"\{(\w+)(?::( . ))?\}", stated, text) for text in chosen]
            return checks.expression(q, spelt, strict=self.name == "sum")
        if self.name in _CHECKS:
            return _CHECKS[self.name](q)
        if self.kind == "quantity":
            return judge_quantity(q, self.name, self.fields)
        if self.name == "not_judged":
            return unknown(q.get("why") or "the reader of the report found nothing to check it by")
        if self.name == "rests_on":  # `audit.audit` judges it after the others
            return unknown(f"it rests on {', '.join(q.claim.premises)}")
        return judge_rows(q, self.rows, self.fields)


@dataclass(frozen=True, kw_only=True)
class ClaimKind:
    """A kind of claim. If it has several forms, a claim names its form by `that`."""

    name: str
    about: str
    forms: tuple[str, ...]
    placed: bool = False  # see `kinds.yaml`


@cache
def kinds() -> dict[str, ClaimKind]:
    """Return every kind by its name."""
    return {
        raw["kind"]: ClaimKind(
            name=raw["kind"], about=raw["about"], forms=tuple(raw["forms"]), placed=raw.get("placed", False)
        )
        for raw in table()["kinds"]
    }


@cache
def forms() -> dict[str, Form]:
    """Return all forms by name. The only form of a kind has the name of the kind."""
    return {
        name: _form(name, entry, raw["kind"], raw.get("fields", {}))
        for raw in table()["kinds"]
        for name, entry in raw["forms"].items()
    }


def _form(name: str, entry: Mapping[str, Any], kind: str, shared: Mapping[str, str]) -> Form:
    specs = {**entry.get("fields", {}), **{n: s for n, s in shared.items() if n not in entry.get("fields", {})}}
    for key, choices in _SPECS.items():
        specs = {n: spec.replace(key, choices) for n, spec in specs.items()}
    assert set(entry) <= {"fields", "rows", "always", *Form.__dataclass_fields__, *MORE}, entry
    own = {key: entry[key] for key in ("says", "example", "so", "readings", "words") if key in entry}
    own |= {"always": Ruling(entry["always"]), "more": more_of(entry)} if "always" in entry else {}
    return Form(name=name, kind=kind, fields=specs, rows=tuple(map(row_of, entry.get("rows", ()))), **own)


def named(claim: Mapping[str, Any]) -> tuple[Form, dict[str, Any]] | None:
    """Return the form that a claim names, with the claim's fields in its terms, or None if there is no such form."""
    entry = dict(claim)
    kind, that = str(entry.pop("kind", "")), entry.pop("that", None)
    name = kind if kind in forms() or kind in table()["aliases"] else ""
    if isinstance(that, str) and (kind in kinds() or kind == "generality"):
        name = that
    elif kind in kinds() and not name:  # the first form of the kind that has these fields
        needed = {
            one: {n for n, s in forms()[one].fields.items() if not s.endswith("?")} for one in kinds()[kind].forms
        }
        fits = (one for one, fields in needed.items() if fields <= entry.keys())
        name = next(fits, kinds()[kind].forms[0] if len(kinds()[kind].forms) == 1 else "")
    alias = table()["aliases"].get(name)
    if alias:
        name = alias["that"]
        entry = {alias.get("rename", {}).get(key, key): value for key, value in entry.items()}
        entry = {key: value for key, value in entry.items() if key not in alias.get("drop", ())}
        entry |= alias.get("set", {})
        if "fact" in entry:
            entry["fact"] = alias.get("values", {}).get(str(entry["fact"]), entry["fact"])
    form = forms().get(name)
    return (form, entry) if form else None


def names() -> list[str]:
    """Return every name by which a claim may state its kind or form, former names included."""
    return [*kinds(), *forms(), *table()["aliases"]]
