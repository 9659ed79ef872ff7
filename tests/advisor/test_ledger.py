"""The ledger of scores: replaced, upgraded, read without this program, written by many at once."""

import sqlite3
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from advisor.errors import AdvisorError
from advisor.run_records import ScoreRow
from advisor.store.ledger import MIGRATIONS
from tests.advisor.plans import guess

NOW = datetime(2026, 11, 21, 3, 4, 5, tzinfo=UTC)


def score(run="r1", quantity="step_seconds", actual=1.05, device="cpu", created="2026-11-21"):
    return ScoreRow(
        run_id=run, quantity=quantity, device_key=device, predicted=guess(1.0), actual=actual, created=created
    )


def test_scoring_a_run_twice_replaces(store):
    assert store.scores() == []
    store.record_scores("r1", [score(), score(quantity="tokens_per_second")])
    store.record_scores("r1", [score(actual=1.3)])
    store.record_scores("r2", [score("r2", device="h200")])
    assert store.scores() == [score(actual=1.3), score("r2", device="h200")]
    assert store.scores("h200") == [score("r2", device="h200")]
    assert not score(actual=1.3).inside and score().inside
    assert score(actual=2.718281828459045).log_error == pytest.approx(1.0)
    assert store.take_back("r1", NOW) and not store.take_back("r1", NOW)
    assert store.scores("cpu") == [] and store.withdrawn_runs() == {"r1"}
    store.record_scores("r1", [score()])
    assert store.scores("cpu") == [score()] and store.withdrawn_runs() == set()


def test_a_ledger_of_the_first_version_is_upgraded(store):
    store.record_scores("r1", [score()])
    with sqlite3.connect(store.sqlite_path) as db:
        db.execute("DROP TABLE withdrawn")
        db.execute("ALTER TABLE scores DROP COLUMN set_aside")
        db.execute("PRAGMA user_version = 1")
    db.close()
    assert store.withdrawn_runs() == set() and store.scores() == [score()]


def test_scores_are_readable_without_this_program(store):
    store.record_scores("r1", [score(actual=1.3)])
    with sqlite3.connect(store.sqlite_path) as db:
        assert db.execute("SELECT run_id, quantity, inside, round(log_error, 4) FROM scores").fetchall() == [
            ("r1", "step_seconds", 0, 0.2624)
        ]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_scores_of_another_run_are_refused(store):
    with pytest.raises(ValueError, match="r2"):
        store.record_scores("r1", [score("r2")])


def test_eight_processes_write_one_new_ledger_together(store):
    script = (
        "import sys; from pathlib import Path; from advisor.store.ledger import Ledger; from advisor.records import *;"
        "from advisor.run_records import ScoreRow;"
        "e = Estimate(value=1.0, low=0.5, high=2.0, basis=Basis.PRIOR); me = sys.argv[2];"
        "l = Ledger(Path(sys.argv[1]));"
        "[l.record_scores(f'{me}-{i}', [ScoreRow(run_id=f'{me}-{i}', quantity='q', device_key='cpu', "
        "predicted=e, actual=1.0, created='2026')]) for i in range(5)]"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(store.sqlite_path), str(i)]) for i in range(8)]
    assert [child.wait(timeout=300) for child in children] == [0] * 8
    assert len({row.run_id for row in store.scores()}) == 40


def test_a_newer_or_damaged_ledger_is_left_alone(store):
    store.record_scores("r1", [score()])
    with sqlite3.connect(store.sqlite_path) as db:
        db.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    db.close()
    with pytest.raises(AdvisorError, match="newer version"):
        store.scores()
    store.sqlite_path.write_bytes(b"not a database" * 100)
    with pytest.raises(AdvisorError) as caught:
        store.scores()
    assert "cannot be used" in caught.value.message and "mv " in caught.value.hint
