"""A ledger that several machines share."""

from __future__ import annotations

import getpass
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from advisor.store.calibration import calibration_from_dict, calibration_to_dict
from advisor.store.folders import example_run
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import About, write_about
from advisor.store.store import Store, load_calibration
from advisor.store.team_database import Database
from advisor.store.team_files import _parquet
from advisor.store.team_ledger import TeamLedger, named
from advisor.workflows.bring_in import bring_in
from advisor.workflows.team import pull, push, spending
from tests.advisor.plans import changed, small_plan
from tests.terminal import advisor
from tests.waiting import waited
from trainer.runlog import load_run_log

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


def test_copy_of_an_older_version_is_read_and_a_damaged_one_is_named(call, tmp_path, shared, advisor_home):
    TeamLedger(str(shared), tmp_path).push([{"kind": "job", "created": "2026-11-02T10:00:00", "id": "1", "hours": 2.5}])
    assert call("runs", "--pull")[0] == 0
    (copy,) = advisor_home.glob("team-ledger.sqlite")
    with sqlite3.connect(copy) as db:
        db.execute("PRAGMA user_version = 0")
    db.close()
    (group,) = json.loads(call("runs", "--spend", "--json")[1])["groups"]
    assert group["gpu_hours"] == 2.5
    copy.write_bytes(b"not a database" * 100)
    code, _, err = call("runs", "--spend")
    assert code == 1 and str(copy) in err and "delete it and pull again" in err


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
    elif n % 25 == 0:
        ledger.shared.compact(f"2025/1{n % 3}")
print("done", flush=True)
"""
PROCESSES, PUSHED, LIMIT = 8, 1600, 1500.0


def record(n: int):
    return {"kind": "job", "created": f"2025-1{n % 3}-02T10:00:00", "id": str(n), "note": "x" * 2000, "flops": 1e20}


@pytest.mark.long
def test_nothing_is_lost_or_reserved_twice_where_processes_are_killed(tmp_path, ledger):
    """Eight processes push 200 records each, and reserve dollars or compact months; 24 times one is killed."""

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


# --- compacted months -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["folder", "address"])
def files(request, tmp_path, monkeypatch) -> str:
    """A ledger of files, with ten records of each of two months."""
    where = str(tmp_path / "shared") if request.param == "folder" else f"memory://ledger-{tmp_path.name}"
    monkeypatch.setenv("ADVISOR_LEDGER", where)
    TeamLedger(where, tmp_path).push(record(n) for n in range(20) if n % 3)
    return where


def test_compacted_month_is_read_together_with_later_records(call, tmp_path, files):
    before, slow = contents(files), TeamLedger(files, tmp_path / "slow")
    listed = slow.shared.names()
    code, out, _ = call("runs", "--compact", "2025-11")
    assert code == 0 and "2025-11: 7 records are in one file" in out
    assert len([path for path in slow.shared.paths() if path.startswith("2025/11/")]) == 1
    assert {name for name, _ in slow.shared.read(listed)} == listed  # which were listed before
    assert contents(files) == before
    ledger = TeamLedger(files, tmp_path / "reader")
    assert ledger.push(map(record, range(20))) == 7 and ledger.pull() == (20, ())  # those of October are new
    assert {one["id"] for one in ledger.records("job")} == {str(n) for n in range(20)}
    assert ledger.push([record(22)]) == 1 and len(ledger.shared.paths()) == 1 + 1 + 13
    ledger.shared.put(*named(record(1)))  # as if the command had been killed before it removed the single files
    listed, late = ledger.shared.names(), TeamLedger(files, tmp_path / "late").shared
    assert late.names() == listed
    code, out, _ = call("runs", "--compact")
    assert {name for name, content in late.read(listed) if content} == listed  # whose files are all gone
    assert all(words in out for words in ("2025-10: 7 records", "2025-11: 8 records", "2025-12: 6 records"))
    assert sorted(path[:7] for path in ledger.shared.paths()) == ["2025/10", "2025/11", "2025/12"]
    assert len(contents(files)) == 21
    ledger.push([record(1) | {"created": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"}])  # this month waits
    assert "in one file already" in call("runs", "--compact")[1]


@pytest.mark.parametrize("damage", ["a byte of a record", "half of the file"])
def test_damaged_compacted_month_is_named_and_its_records_can_be_pushed_again(call, tmp_path, shared, damage):
    ledger = TeamLedger(str(shared), tmp_path)
    ledger.push(record(n) | {"note": "plain"} for n in range(20) if n % 3)
    call("runs", "--compact", "2025-11")
    (packed,) = shared.rglob("*.parquet")
    content = packed.read_bytes()
    if damage == "half of the file":
        packed.write_bytes(content[: len(content) // 2])
    else:
        records = TeamLedger(str(shared), tmp_path).shared._unpacked(f"2025/11/{packed.name}")
        first = next(iter(records))
        packed.write_bytes(_parquet({**records, first: records[first].replace(b"plain", b"plane")}))
    code, out, _ = call("runs", "--pull")
    names = [line.rpartition(" ")[2] for line in out.splitlines() if "not a record, and left out" in line]
    assert code == 0 and names == ([f"2025/11/{packed.name}"] if damage == "half of the file" else [first])
    assert call("runs", "--compact", "2025-11")[0] == 0 and packed.exists()
    if damage == "half of the file":
        assert ledger.push(record(n) | {"note": "plain"} for n in range(20) if n % 3) == 7


def test_database_is_not_compacted(call, database, monkeypatch):
    monkeypatch.setenv("ADVISOR_LEDGER", database)
    code, _, err = call("runs", "--compact")
    assert code == 2 and "a database is not compacted" in err


# --- dollars ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dear(tmp_path, database, monkeypatch) -> Path:
    """A plan at $3.60 an hour, that is a tenth of a cent a second, of the team vision, which may spend one dollar."""
    monkeypatch.setenv("ADVISOR_LEDGER", database)
    monkeypatch.setenv("ADVISOR_TEAM", "vision")
    assert advisor("runs", "--budget", "vision", "1").returncode == 0
    return Store(tmp_path).save_plan(small_plan(), tmp_path / "plan.yaml")


def spent_by_vision(database: str) -> tuple[float, float]:
    """The dollars that are settled and reserved."""
    (one,) = TeamLedger(database, Path()).shared.budgets()
    return one.settled_usd, one.reserved_usd


def test_launch_reserves_its_dollars_and_settles_them(call, database, dear, advisor_home):
    code, _, err = call("launch", str(dear), "--again")
    assert code == 2 and "nothing limits this one" in err and "limit it: --budget 0.01" in err
    code, _, err = call("launch", str(dear), "--budget", "1.20")
    assert code == 3 and "team vision has $1 of $1 left for 20" in err and "this run may cost $1.20" in err
    assert not list((advisor_home / "runs").iterdir())  # nothing is left of what did not start
    code, out, err = call("launch", str(dear), "--budget", "0.75")
    assert code == 0, err
    (run,) = json.loads(call("runs", "--json")[1])["runs"]
    settled, reserved = spent_by_vision(database)
    assert settled == pytest.approx(run["usd"], abs=1e-6) and settled > 0 and reserved == 0
    code, out, _ = call("runs", "--budget")
    assert code == 0 and "vision" in out and "$1 " in out
    assert call("launch", str(dear), "--budget", "0.75", "--detach")[0] == 0  # the first cost less than it reserved


def test_run_that_was_killed_is_settled_at_the_next_push(call, tmp_path, database, dear):
    slow = Store(tmp_path).save_plan(small_plan(steps=100_000), tmp_path / "slow.yaml")
    code, out, _ = call("launch", str(slow), "--budget", "0.60", "--detach", "--json")
    launched = json.loads(out)
    log = Path(launched["run_dir"]) / "log.jsonl"
    waited(lambda: log.exists() and load_run_log(log).steps)
    assert spent_by_vision(database) == (0, 0.6)
    code, _, err = call("launch", str(dear), "--budget", "0.60", "--again")
    assert code == 3 and "team vision has $0.40 of $1 left" in err
    os.kill(launched["launch"]["pid"], signal.SIGKILL)
    waited(lambda: "lost" in call("runs")[1])
    assert call("runs", "--push")[0] == 0
    (run,) = json.loads(call("runs", "--json")[1])["runs"]
    assert spent_by_vision(database) == (pytest.approx(run["usd"], abs=1e-6), 0)
    # To resume it takes what is missing of a new limit: all attempts count, and no dollar twice.
    assert call("resume", "latest", "--budget", "0.90", "--detach")[0] == 0
    assert spent_by_vision(database) == (0, 0.9)
    assert call("stop", "latest")[0] == 0
    code, _, err = call("resume", "latest", "--budget", "1.10", "--detach")
    assert code == 3 and "this run may cost $1.10" in err
    assert spent_by_vision(database)[1] == 0


KILLED = """
import os, signal, sys
from pathlib import Path
from advisor.engines.process import folder_lock
from advisor.store.plan_files import load_plan
from advisor.store.store import default_store
from advisor.workflows import launch as launching
from advisor.workflows.budget import reserved
store = default_store()
job = launching._job(store, load_plan(Path(sys.argv[1])), None, limits=launching.GuardLimits(max_usd=0.7))
job.folder.mkdir(parents=True)
with folder_lock(job.folder), reserved(job, store):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_command_that_was_killed_before_the_start_keeps_no_dollars(call, database, dear):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(dear)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert killed.returncode == -signal.SIGKILL and spent_by_vision(database) == (0, 0.7)
    assert call("launch", str(dear), "--budget", "0.70")[0] == 0  # which finds too few, and settles what is over
    settled, reserved = spent_by_vision(database)
    assert 0 < settled < 0.1 and reserved == 0


FLEET = """
name: shared dollars
teams: {vision: {budget: 5}}
pools: {here: {kind: owned, gpu: cpu, gpus: 2, usd_per_gpu_hour: 3.6, engine: local}}
runs: [{name: each, plan: plan.yaml, count: 2, team: vision}]
"""


def test_fleet_reserves_for_each_run_and_waits_for_dollars(call, tmp_path, database, monkeypatch):
    monkeypatch.setenv("ADVISOR_LEDGER", database)
    Store(tmp_path).save_plan(small_plan(steps=10, step_seconds=60.0), tmp_path / "plan.yaml")  # $0.61, $0.67 at most
    (tmp_path / "fleet.yaml").write_text(FLEET)
    call("runs", "--budget", "vision", "1")
    code, out, err = call("fleet", "run", str(tmp_path / "fleet.yaml"), "--every", "0.1s", "--effort", "0.05")
    assert code == 0, out + err
    assert err.count("not started: team vision has $0.3") == 1 and err.count("this run may cost $0.6") == 1
    runs = json.loads(call("runs", "--json")[1])["runs"]
    assert [run["outcome"] for run in runs] == ["completed"] * 2
    settled, reserved = spent_by_vision(database)
    assert settled == pytest.approx(sum(run["usd"] for run in runs), abs=2e-6) and reserved == 0


def test_reservations_count_once_in_every_budget_of_their_period(database):
    ledger = Database(database)
    month = f"{datetime.now(UTC):%Y-%m}"
    for team, period, usd in (
        ("vision", month, 10),
        ("vision", month[:4], 12),
        ("", "always", 14),
        ("vision", "1999", 0),
    ):
        ledger.set_budget(team, period, usd)
    assert ledger.reserve("a", "vision", 6.0, 3600) is None
    assert ledger.reserve("a", "vision", 6.0, 3600) is None  # the same run again
    assert ledger.reserve("a", "vision", 7.0, 3600) is None  # with a new limit
    short = ledger.reserve("b", "vision", 4.0, 3600)
    assert (short.team, short.period, short.usd, short.left_usd) == ("vision", month, 10, 3)
    assert ledger.reserve("b", "vision", 3.0, 3600) is None
    assert ledger.reserve("c", "language", 4.5, 3600).team == ""  # of $14 for everybody, $4 are left
    ledger.settle("a", 2.25)
    ledger.settle("a", 1.75)  # by a copy of its folder that was made before its end
    assert ledger.reserve("c", "language", 4.5, 3600) is None
    assert ledger.reserve("d", "vision", 0.5, -1) is None  # whose time is over at once
    everybody, year, old, _ = sorted(ledger.budgets(), key=lambda one: (one.team, -one.usd))
    assert (everybody.settled_usd, everybody.reserved_usd) == (2.25, 3.0 + 4.5)
    assert (year.settled_usd, year.reserved_usd, year.left_usd) == (2.25, 3.0, 6.75)
    ledger.settle("d", 0.25)  # what is settled after all counts
    assert min(one.left_usd for one in ledger.budgets() if one.usd == 12) == 6.5
    ledger.set_budget("", "always", 20)
    assert old.usd == 10 and ledger.reserve("e", "vision", 4.75, 3600).period == month
    assert ledger.reserve("e", "vision", 4.5, 3600) is None


def test_ledger_that_does_not_answer_or_is_newer_is_said_without_its_password(call, database, monkeypatch):
    monkeypatch.setenv("ADVISOR_LEDGER", "postgresql://me:pa55word@127.0.0.1:1/team")
    code, _, err = call("runs", "--pull")
    assert code == 1 and "cannot be used" in err and "127.0.0.1" in err and "pa55word" not in err
    with Database(database)._transaction() as db:
        db.execute("INSERT INTO advisor_version VALUES (99)")
    monkeypatch.setenv("ADVISOR_LEDGER", database)
    code, _, err = call("runs", "--pull")
    assert code == 1 and "written by a newer version (schema 99" in err


def test_budget_needs_a_database_and_a_period(call, shared, database, monkeypatch):
    code, _, err = call("runs", "--budget")
    assert code == 2 and "export ADVISOR_LEDGER=postgresql://" in err
    monkeypatch.setenv("ADVISOR_LEDGER", database)
    for words, expected in (
        (("vision",), "how many dollars"),
        (("vision", "5", "--period", "2026-13"), "2026-13 is no"),
    ):
        code, _, err = call("runs", "--budget", *words)
        assert code == 2 and expected in err
    assert "no team has a budget" in call("runs", "--budget")[1]
    code, out, _ = call("runs", "--budget", "everybody", "5000", "--period", "always")
    assert code == 0 and "everybody" in out and "$5,000" in out


# --- questions --------------------------------------------------------------------------------------------------------


def test_nearest_earlier_run_of_the_team_is_found(call, tmp_path, ledger):
    bring_in(Store(tmp_path / "there"), example_run())
    push(Store(tmp_path / "there"))
    plan = load_plan(example_run() / "plan.yaml")
    step = next(row.actual for row in Store(tmp_path / "there").scores() if row.quantity == "step_seconds")
    code, out, _ = call("runs", "--like", str(example_run() / "plan.yaml"))
    assert code == 0 and "no: the copy of the ledger has no run" in out
    call("runs", "--pull")
    code, out, _ = call("runs", "--like", str(example_run() / "plan.yaml"), "--json")
    found = json.loads(out)
    assert found["trained_before"] and found["runs"][0]["differs"] == []
    assert found["runs"][0]["step_seconds"] == step and found["runs"][0]["batch_tokens"] == plan.workload.step_tokens
    # Of the same model, one on another GPU is farther than one with another batch; a far larger model does not count.
    reader = TeamLedger(ledger, tmp_path / "reader")
    reader.pull()
    (known,) = reader.records("run")
    others = [known | {"id": "other gpu", "name": "on-l4", "gpu": "l4"},
              known | {"id": "large", "name": "large", "parameters": 3 * plan.chosen.parameters}]  # fmt: skip
    reader.push(others)
    call("runs", "--pull")
    twice = changed(plan, micro_batch=2 * plan.config.micro_batch)
    path = Store(tmp_path).save_plan(twice, tmp_path / "twice.yaml")
    found = json.loads(call("runs", "--like", str(path), "--json")[1])
    assert [one["differs"] for one in found["runs"]] == [["batch"], ["GPU", "batch"]] and not found["trained_before"]
    code, out, _ = call("runs", "--like", str(path))
    assert "no, but nearly:" in out and "on-l4" in out and "large" not in out


def test_plan_tells_of_an_earlier_run_of_its_model(call, tmp_path, shared):
    words = ("plan", "--gpu", "l4", "--depth", "12", "--tokens", "1B", "--budget", "1000", "--synthetic")
    chosen = json.loads(call(*words, "--json")[1])["chosen"]
    work = chosen["prediction"]["workload"]
    batch = work["micro_batch"] * work["grad_accum"] * work["gpus"] * work["shape"]["seq_len"]
    run = {"kind": "run", "created": "2026-11-02T10:00:00", "id": "a", "name": "first-try", "team": "vision",
           "model": "nanochat d12", "gpu": work["gpu"], "gpus": 2 * work["gpus"], "outcome": "completed", "hours": 2.0,
           "parameters": chosen["prediction"]["parameters"], "step_seconds": 0.5, "usd": 24.0, "steps": 100,
           "batch_tokens": batch, "loss": 3.25}  # fmt: skip
    TeamLedger(str(shared), tmp_path).push([run, run | {"id": "b", "model": "nanochat d13", "name": "other"}])
    assert "trained before" not in call(*words)[1]
    call("runs", "--pull")
    code, out, _ = call(*words)
    said = " ".join(out.split())
    assert (
        code == 0
        and "trained before: nanochat d12 (team vision, 2026-11-02, completed, other GPUs): first-try, 2 x" in said
    )
    assert "500 ms a step, $24, loss 3.25" in said


def test_accuracy_of_step_times_is_told_by_team(call, tmp_path, ledger):
    run = {"kind": "run", "created": "2026-11-02T10:00:00", "team": "vision", "hours": 2.0, "gpus": 4, "usd": 24.0,
           "planned_usd": 20.0, "model": "m", "gpu": "l4"}  # fmt: skip
    score = {"kind": "score", "created": "2026-11-02T11:00:00", "quantity": "step_seconds", "device_key": "l4",
             "basis": "measured"}  # fmt: skip
    records = [run | {"id": name} for name in "abc"] + [run | {"id": "a", "loss": 3.0}]  # one was pushed again
    records += [score | {"run_id": "a", "predicted": [1.0, 0.9, 1.1], "actual": 1.05},
                score | {"run_id": "b", "predicted": [2.0, 1.8, 2.2], "actual": 2.6}]  # fmt: skip
    TeamLedger(ledger, tmp_path).push(records)
    call("runs", "--pull")
    (group,) = json.loads(call("runs", "--spend", "--json")[1])["groups"]
    assert (group["runs"], group["usd"], group["gpu_hours"], group["scored_runs"]) == (3, 72, 24, 2)
    assert group["step_error"] == pytest.approx((0.05 + 0.3) / 2) and group["step_inside"] == 0.5
    code, out, _ = call("runs", "--spend")
    assert "50 % of 2" in out and "1.20" in out  # $72 were paid, and $60 planned


def test_records_have_no_host_user_path_or_credential(tmp_path, ledger, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "Q7" * 15)
    folder, store = tmp_path / "somebodys-folder" / "run", Store(tmp_path / "somebodys-home")
    shutil.copytree(example_run(), folder)
    launched = json.loads((folder / "run.json").read_text())
    launched |= {"host": "node17.cluster.example", "command": ["/home/somebody/python", "--token", "hf_" + "Q7" * 15]}
    (folder / "run.json").write_text(json.dumps(launched))
    write_about(folder, About(name="hf_" + "Q7" * 15, note="password of node17: open-sesame"))
    bring_in(store, folder)
    document = calibration_to_dict(load_calibration(next((ROOT / "benchmarks" / "raw").glob("cpu-*seed0.yaml"))))
    document["settings"]["data"] = "/home/somebody/tokens"
    store.save_calibration(calibration_from_dict(document))
    assert push(store).new == push(store).records
    text = "".join(contents(ledger).values())
    assert '"kind":"calibration"' in text and '"kind":"run"' in text and '"kind":"score"' in text
    words = ("node17", "somebody", "/home", "hf_Q7", "sesame", str(tmp_path), socket.gethostname(), getpass.getuser())
    assert [word for word in words if word in text] == []
    assert pull(Store(tmp_path / "here")).damaged == ()
