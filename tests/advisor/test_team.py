"""A ledger that several machines share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from advisor.store.folders import example_run
from advisor.store.store import Store
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


def test_history_of_a_cluster_is_added_up(call, tmp_path, shared):
    history = tmp_path / "sacct.json"
    cpu_only = job(3, tres={"allocated": [{"type": "cpu", "name": "", "count": 4}]})
    history.write_text(json.dumps({"jobs": [job(1), job(2, account="language"), cpu_only]}))
    code, out, _ = call("runs", "--import", str(history))
    assert code == 0 and "2 jobs read, 2 new" in out
    text = "".join(path.read_text() for path in shared.rglob("*.json"))
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
where, home, first, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
for n in range(first, first + count):
    TeamLedger(where, home).push([{"kind": "job", "created": "2026-11-02T10:00:00", "id": str(n), "note": "x" * 2000}])
print("done", flush=True)
"""


@pytest.mark.long
def test_no_record_is_lost_where_processes_that_push_are_killed(tmp_path):
    """Eight processes push 200 records each; each is killed once in the middle and started again."""
    where = str(tmp_path / "shared")

    def start(at: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PUSHES, where, str(tmp_path / f"home{at}"), str(200 * at), "200"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)

    running = [start(at) for at in range(8)]
    for at, process in enumerate(running):
        time.sleep(0.15)
        process.send_signal(signal.SIGKILL)
        process.wait()
        running[at] = start(at)
    assert [process.communicate()[0] for process in running] == ["done\n"] * 8
    for name in "ab":
        reader = TeamLedger(where, tmp_path / name)
        assert reader.pull()[1] == ()
        assert sorted(int(record["id"]) for record in reader.records("job")) == list(range(1600))


def test_what_one_machine_learnt_counts_on_another(tmp_path, shared):
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
