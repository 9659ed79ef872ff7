"""Small logs, written and read, and what is expected of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from advisor.findings.durations import spent_seconds
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run
from advisor.readers.run_table import RunTable

RECORDED = Path(__file__).parents[1] / "recorded" / "logs"
LOSSES = (8.0, 7.5, 7.0, 6.5, 6.0, 5.5)


def read(folder: Path, lines: str | Iterable[str], name: str = "run.log") -> RunTable:
    """Reads a log of these lines."""
    path = folder / name
    path.write_text(lines if isinstance(lines, str) else "\n".join([*lines, ""]), encoding="utf-8")
    return read_run(path)


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return found is not None and found == pytest.approx(wanted, rel=1e-9, nan_ok=True)
    return found == wanted


def verify(
    run: RunTable,
    *,
    ends: Sequence[float | None] | None = None,
    columns: Mapping[str, Any] | None = None,
    telemetry: Mapping[str, Any] | None = None,
    absent: Sequence[str] = (),
    facts: Mapping[str, Any] | None = None,
    says: str | Sequence[str] = (),
    notes: str = "",
    events: Sequence[str] | None = None,
    seconds: Any = "not asked",
    runs: Sequence[Any] | None = None,
    **attributes: Any,
) -> None:
    """Asserts attributes; `ends`: first and last step and loss; columns, whole or at some rows; facts (None: absent).

    `says` is in the reason of its status, `seconds` what it took, `runs` statuses or attributes of its runs.
    """
    for name, wanted in attributes.items():
        assert same(getattr(run, name), wanted), (name, getattr(run, name), wanted, run.status_reason)
    if ends is not None:
        found = (run.first_step, run.last_step, run.first_loss, run.last_loss)
        assert all(map(same, found, ends)), (found, ends)
    read_columns = [(name, run.column(name), values) for name, values in (columns or {}).items()]
    read_columns += [(name, (run.telemetry or {})[name], values) for name, values in (telemetry or {}).items()]
    for name, column, values in read_columns:
        places = list(values) if isinstance(values, Mapping) else list(range(len(values)))
        wanted = list(values.values()) if isinstance(values, Mapping) else values
        assert isinstance(values, Mapping) or len(column) == len(values), (name, column)
        np.testing.assert_allclose(column[places], np.array(wanted, dtype=float), rtol=1e-9, err_msg=name)
    assert not set(absent) & set(run.columns)
    for name, wanted in (facts or {}).items():
        assert same(run.facts.get(name), wanted), (name, run.facts.get(name), wanted)
    assert all(words in run.status_reason for words in ((says,) if isinstance(says, str) else says)), run.status_reason
    assert not notes or any(notes in one for one in run.notes), run.notes
    assert events is None or [event.kind for event in run.events] == list(events)
    if seconds != "not asked":
        assert spent_seconds(make_case(run)) == (None if seconds is None else pytest.approx(seconds))
    if runs is not None:
        assert len(run.runs) == len(runs), [part.status for part in run.runs]
        for part, wanted in zip(run.runs, runs, strict=True):
            for name, value in (wanted if isinstance(wanted, Mapping) else {"status": wanted}).items():
                assert same(getattr(part, name), value), (name, getattr(part, name), value)
