"""Run cards: read whole, refused with every problem at once, described in the documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.auditing.audit import audit
from advisor.auditing.card import COLUMNS, PHASES, SETUP_FIELDS
from advisor.auditing.kinds import forms, kinds
from advisor.auditing.load import card_from_dict, load_card
from advisor.auditing.schema import examples
from advisor.errors import AdvisorError
from tests.advisor.auditing.made_up import OTHERS, ROWS, RUN, TIMING, believe

ROOT = Path(__file__).resolve().parents[3]


def card(**changes: Any) -> dict[str, Any]:
    claims = [{"id": "a", "kind": "parameters", "text": "about 70 M", "value": "~70 M"}]
    return {"schema": 1, "id": "c", "title": "t", "run": RUN, "others": OTHERS, "claims": claims, **changes}


def problems(raw: Any) -> list[str]:
    found: list[str] = []
    assert (card_from_dict(raw, found) is None) == bool(found)
    return found


def test_all_problems_are_said_at_once_with_their_fields(tmp_path: Path) -> None:
    raw = card(
        run={"depht": 8, "width": "wide", "gpu": "l4"},
        claims=[
            {"id": "a", "kind": "parametres", "text": "x"},
            {"id": "b", "kind": "duration", "text": "x", "value": "3 GB", "about": "elsewhere"},
            {"id": "b2", "kind": "share", "text": "x", "value": "3 %"},
        ],
        rows={"columns": ["step", "lose"], "values": [[1, 2], [1]]},
    )
    path = tmp_path / "card.yaml"
    path.write_text(yaml.safe_dump(raw), encoding="utf-8")
    with pytest.raises(AdvisorError) as error:
        load_card(path)
    message = error.value.message
    assert error.value.exit_code == 1
    for part in (
        "run.depht: unknown field (did you mean depth?)",
        "run.width: expected a whole number above 0, found 'wide'",
        "claims[0] (a).kind: 'parametres' is unknown (did you mean parameters?)",
        "claims[1] (b).value: '3 GB' is in bytes, expected seconds",
        "claims[1] (b).about: 'elsewhere' is not one of run, wide, huge",
        "claims[2] (b2).part: missing",
        "claims[2] (b2).whole: missing",
        "rows.columns: 'lose' is unknown (did you mean loss?)",
        "rows.values[1]: expected 2 values, found [1]",
    ):
        assert part in message, part


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": 2}, "schema"),
        ({"claims": "none"}, "claims: expected a list"),
        ({"others": [{"depth": 3}]}, "others[0]: expected a mapping with a name"),
        ({"others": [{"name": "x"}, {"name": "x"}]}, "two are named 'x'"),
        ({"rows": [1, 2]}, "rows: expected columns"),
        ({"timing": {"forward": "3 GB"}}, "timing.forward"),
        ({"claims": [{"id": "a", "kind": "converging", "text": "x"}] * 2}, "two have the id 'a'"),
        ({"nonsense": 1}, "nonsense: unknown field"),
        ({"run": {"gpu": "rtx-9999"}}, "unknown GPU"),
        ({"claims": [{"id": "a", "kind": "card_memory", "text": "t", "value": "8 GB", "gpu": "h1000"}]}, "unknown GPU"),
    ],
)
def test_one_wrong_thing_is_named(change: dict, problem: str) -> None:
    assert any(problem in found for found in problems(card(**change)))


def test_others_inherit_what_is_declared_and_not_what_was_measured() -> None:
    made = card_from_dict(card(others=[{"name": "deep", "depth": 20}, {"name": "alone", "inherit": False}]), [])
    assert made is not None
    deep = made.setup("deep")
    assert (deep.depth, deep.width, deep.vocab_size) == (20, 640, 32000)
    assert deep.step_time is None
    assert deep.memory_used is None
    assert made.setup("alone").width is None


@pytest.mark.parametrize("text", ["[1, 2", "just words", "- 1\n- 2", "\x00\x01", "a: &a [*a]"])
def test_a_file_that_is_no_card_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(AdvisorError):
        load_card(path)


def test_a_missing_file_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(AdvisorError, match="cannot read"):
        load_card(tmp_path / "none.yaml")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["3 GB", "~5 %", "1-2 h"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(st.text(max_size=5), v, max_size=3)),
    max_leaves=5,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_card_is_judged_or_refused(data: st.DataObject) -> None:
    """Fields of a good card replaced by anything: a list of problems or a whole audit, never another exception."""
    kind = data.draw(st.sampled_from(sorted(forms())))
    claim = {"id": "a", "kind": kind, "text": "x"}
    for name, spec in forms()[kind].fields.items():
        if not spec.endswith("?") or data.draw(st.booleans()):
            claim[name] = data.draw(st.one_of(_fitting(spec), VALUES))
    run = dict(RUN)
    for name in data.draw(st.lists(st.sampled_from(sorted(SETUP_FIELDS)), max_size=3)):
        run[name] = data.draw(st.one_of(_fitting(SETUP_FIELDS[name]), VALUES))
    made = card_from_dict(card(run=run, claims=[claim], rows=ROWS, timing=TIMING), [])
    if made is not None:
        assert len(audit(made, believe).judged) == 1


def _fitting(spec: str) -> st.SearchStrategy[Any]:
    """Values of about the right form, extreme ones among them."""
    spec = spec.removesuffix("?")
    if spec.startswith("["):
        return st.lists(_fitting(spec[1:-1]), min_size=1, max_size=3)
    if "|" in spec or spec == "setup":
        return st.sampled_from(spec.split("|") if "|" in spec else ["run", "wide", "huge"])
    units = {"seconds": " s", "bytes": " GB", "fraction": " %", "times": " x", "rate": " tok/s", "usd_per_hour": " $/h"}
    units |= {"usd": "$", "watts": " W", "hertz": " Hz"}
    number = st.one_of(st.integers(0, 10**6), st.sampled_from([0, 1, 10**15, "1e300", "1e-300", "0.001"]))
    forms = ("{}{}", "~{}{}", "<{}{}", "{}{}")
    plain = {"flag": st.booleans(), "text": st.text(min_size=1, max_size=8), "whole": st.integers(1, 10**7)}
    plain["float"] = st.floats(-1e3, 1e9)
    if spec in plain:
        return plain[spec]
    return st.builds(lambda form, n: form.format(n, units.get(spec, "")), st.sampled_from(forms), number)


def test_every_example_is_a_claim_of_a_card() -> None:
    for that, entry in examples().items():
        claim = {"id": "a", "kind": entry["kind"], "that": that, "text": entry["says"], **entry["fields"]}
        assert problems(card(run={}, others=[], claims=[claim])) == []


def test_every_field_and_kind_is_documented() -> None:
    text = (ROOT / "docs" / "file-formats.md").read_text(encoding="utf-8").split("## Run card")[1]
    named = {word for quoted in re.findall(r"`([a-z0-9_ ]+)`", text) for word in quoted.split()}
    fields = {name for form in forms().values() for name in form.fields}
    assert {*kinds(), *forms(), *fields, *SETUP_FIELDS, *COLUMNS, *PHASES} <= named
