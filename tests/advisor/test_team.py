"""A ledger that several machines share."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from advisor.store.folders import example_run
from advisor.store.store import Store
from advisor.store.team_database import Database
from advisor.store.team_ledger import TeamLedger, named
from advisor.workflows.bring_in import bring_in
from advisor.workflows.team import pull, push, spending

ROOT = Path(__file__).parents[2]


def job(number: int, **changes):
    """A finished job of two H100s for three hours, which waited one hour."""
    return {
        "job_id": number, "account": "vision", "partition": "gpu", "cluster": "c1", "user": "somebody",
        "name": "secret-project", "nodes": "node17", "working_directory": "/home/somebody/x",
        "time": {"submission": 1_790_000_000, "start": 1_790_003_600, "end": 1_790_014_400, "elapsed": 10_800},
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "tres": {"allocated": [{"type": "cpu", "name": "", "count": 16},
                               {"type": "gres", "name": "gpu", "count": 2},
                               {"type": "gres", "name": "gpu:h100", "count": 2}]},
    } | changes  # fmt: skip


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVISOR_LEDGER", str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.fixture(params=["folder", "database"])
def ledger(request, tmp_path, monkeypatch) -> str:
    """A ledger of either kind, named in the environment."""
    address = str(tmp_path / "shared") if request.param == "folder" else request.getfixturevalue("database")
    monkeypatch.setenv("ADVISOR_LEDGER", address)
    return address


def contents(ledger: str) -> dict[str, str]:
    """All records, by name."""
    shared = TeamLedger(ledger, Path()).shared
    return {name: content.decode() for name, content in shared.read(shared.names())}


def test_history_of_a_cluster_is_added_up(call, tmp_path, ledger):
    history = tmp_path / "sacct.json"
    cpu_only = job(3, tres={"allocated": [{"type": "cpu", "name": "", "count": 4}]})
    history.write_text(json.dumps({"jobs": [job(1), job(2, account="language"), cpu_only]}))
    code, out, _ = call("runs", "--import", str(history))
    assert code == 0 and "2 jobs read, 2 new" in out
    text = "".join(contents(ledger).values())
    assert not any(word in text for word in ("somebody", "secret", "node17", "/home"))
    code, out, _ = call("runs", "--import", str(history))
    assert "2 jobs read, 0 new" in out  # the same history again changes nothing
    assert call("runs", "--pull")[0] == 0
    code, out, _ = call("runs", "--spend", "--by", "team", "--json")
    groups = {one["group"]: one for one in json.loads(out)["groups"]}
    assert set(groups) == {"vision", "language"}
    assert groups["vision"]["gpu_hours"] == pytest.approx(6.0) and groups["vision"]["queue_hours"] == pytest.approx(1.0)
    code, out, _ = call("runs", "--spend", "--by", "gpu")
    assert code == 0 and "h100" in out and "12" in out


def test_without_a_ledger_the_command_says_how_to_name_one(call, monkeypatch):
    monkeypatch.delenv("ADVISOR_LEDGER", raising=False)
    for words in (("runs", "--push"), ("runs", "--pull"), ("runs", "--spend")):
        code, _, err = call(*words)
        assert code == 2 and "export ADVISOR_LEDGER=" in err


def test_file_that_is_no_record_is_named_and_left_out(call, tmp_path, shared):
    TeamLedger(str(shared), tmp_path).push([{"kind": "job", "created": "2026-11-02T10:00:00", "id": "1", "hours": 1.0}])
    (whole,) = shared.rglob("*.json")
    (whole.parent / f"{'0' * 32}.json").write_text("{}")
    (whole.parent / f".{whole.name}.77").write_text('{"kind"')  # what a killed process leaves
    code, out, _ = call("runs", "--pull")
    assert code == 0 and "1 new records" in out and f"2026/11/{'0' * 32}.json" in out


def test_address_of_an_object_store_holds_the_same_files(tmp_path):
    records = [{"kind": "job", "created": "2026-11-02T10:00:00", "id": str(n)} for n in range(3)]
    address = f"memory://ledger-{tmp_path.name}"
    first, second = (TeamLedger(address, tmp_path / name) for name in "ab")
    assert (first.push(records), second.push(records[:2]), second.pull()) == (3, 0, (3, ()))
    assert {record["id"] for record in second.records("job")} == {"0", "1", "2"}


PUSHES = """
import sys
from pathlib import Path
from advisor.store.team_ledger import TeamLedger
from tests.advisor.test_team import record
where, home, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
for n in range(first, first + 200):
    ledger = TeamLedger(where, home)
    ledger.push([record(n)])
    if where.startswith("postgresql:"):
        # Run n may cost $2 and costs a quarter more with each eighth; every fourth is never settled.
        if ledger.shared.reserve(f"run {n}", "vision", 2.0, 3600.0) is None and n % 4:
            ledger.shared.settle(f"run {n}", n % 8 / 4)
print("done", flush=True)
"""
PROCESSES, PUSHED, LIMIT = 8, 1600, 1500.0


def record(n: int):
    return {"kind": "job", "created": f"2026-1{n % 3}-02T10:00:00", "id": str(n), "note": "x" * 2000, "flops": 1e20}


@pytest.mark.long
def test_nothing_is_lost_or_reserved_twice_where_processes_are_killed(tmp_path, ledger):
    """Eight processes push 200 records each, and reserve dollars; they are killed 24 times and started again."""

    def start(at: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PUSHES, ledger, str(tmp_path / f"home{at}"), str(200 * at)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)

    is_database, draw = ledger.startswith("postgresql:"), random.Random(1)
    if is_database:
        budgets = TeamLedger(ledger, tmp_path).shared
        budgets.set_budget("vision", "always", LIMIT)
        budgets.set_budget("", "always", 10 * LIMIT)
    running = [start(at) for at in range(PROCESSES)]
    for _ in range(24):
        time.sleep(draw.uniform(0.0, 1.5))
        at = draw.randrange(PROCESSES)
        running[at].send_signal(signal.SIGKILL)
        running[at].wait()
        running[at] = start(at)
        if is_database:
            assert all(one.left_usd >= 0 for one in budgets.budgets())
    assert [process.communicate()[0] for process in running] == ["done\n"] * PROCESSES
    expected = dict(map(named, map(record, range(PUSHED))))
    assert contents(ledger) == {name: content.decode() for name, content in expected.items()}
    for name in "ab":
        reader = TeamLedger(ledger, tmp_path / name)
        assert reader.pull() == (PUSHED, ())
        assert sorted(int(one["id"]) for one in reader.records("job")) == list(range(PUSHED))
    if is_database:
        check_each_dollar(budgets)


def check_each_dollar(budgets: Database) -> None:
    """Every run was reserved at most once, and those that were refused found too little left."""
    with budgets._transaction() as db:
        rows = db.execute("SELECT run, usd, settled FROM advisor_reservations").fetchall()
    numbers = [int(run.split()[1]) for run, *_ in rows]
    assert len(set(numbers)) == len(numbers)
    assert all(usd == 2 and settled == (Decimal(n % 8) / 4 if n % 4 else None)
               for n, (_, usd, settled) in zip(numbers, rows, strict=True))  # fmt: skip
    counted = sum(usd if settled is None else settled for _, usd, settled in rows)
    everybody, vision = budgets.budgets()
    assert Decimal(str(vision.settled_usd)) + Decimal(str(vision.reserved_usd)) == counted <= LIMIT
    assert everybody.left_usd == pytest.approx(10 * LIMIT - float(counted))
    # 400 runs keep $2, and 1,200 cost a quarter of 1, 2, 3, 5, 6 and 7 dollars: $2,000 in all, more than there are
    assert counted > LIMIT - 2 * (PROCESSES + 1)


def test_what_one_machine_learnt_counts_on_another(tmp_path, ledger):
    there, here = Store(tmp_path / "there"), Store(tmp_path / "here")
    bring_in(there, example_run())
    pushed = push(there)
    assert pushed.new == pushed.records > 0 and push(there).new == 0
    pulled = pull(here)
    assert pulled.new == pushed.records and pulled.damaged == ()
    mine, theirs = ({(row.run_id, row.quantity): row.actual for row in store.scores()} for store in (here, there))
    assert mine == theirs and pulled.scored_runs == len({run_id for run_id, _ in theirs})
    assert pull(here).new == 0
    (group,) = [one for one in spending(here, "month")]
    assert group.runs == 1 and group.gpu_hours > 0


def test_record_is_named_by_its_content():
    one = {"kind": "job", "created": "2026-11-02T10:00:00", "id": "1", "hours": 1.0}
    name, content = named(one)
    assert name.startswith("2026/11/") and named(dict(reversed(one.items()))) == (name, content)
    assert named(one | {"hours": 1.5})[0] != name
