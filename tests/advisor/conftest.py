"""The command line, called in this process, and its plans, each searched for once."""

from __future__ import annotations

import pytest

from advisor.cli import main
from advisor.records import Plan
from advisor.store.store import Store
from advisor.workflows import plan
from tests.terminal import validate_printed


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture
def call(capsys):
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        validate_printed(arguments, out)
        return ended.value.code, out, err

    return run


@pytest.fixture(scope="module")
def asked_once():
    """The same question in one file is planned once: nothing is calibrated, so that its answer is the same."""
    answer, known = plan.answer, {}

    def remembered(goal, profiles, *, now, data_meta=None, left_out=(), feasible=None, brief=False) -> Plan:
        key = (goal, tuple(profile.key for profile in profiles), data_meta, tuple(left_out), brief)
        if key not in known:
            about = {"now": now, "data_meta": data_meta, "left_out": left_out, "feasible": feasible}
            known[key] = answer(goal, profiles, **about, brief=brief)
        return known[key]

    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(plan, "answer", remembered)
        yield
