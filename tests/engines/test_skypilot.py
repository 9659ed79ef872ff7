"""What SkyPilot itself says, by a server of its own on this machine that has no cloud; nothing is rented.

A run on a rented machine is not tried here: what its job would do there is run by bash.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml

from advisor.engines import skypilot
from advisor.engines.backend import write_files
from advisor.engines.engines import describe, parse_place
from advisor.engines.export.cloud import LOG_LINE
from advisor.engines.guards import GuardLimits
from advisor.engines.skypilot import LAST_LINES, bring, follow
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.store.run_folder import write_launch
from advisor.workflows.launch import beforehand, dry_run, launch
from tests.advisor.plans import altered, changed, small_plan
from trainer.runlog import load_run_log

SECONDS = 300.0
# the columns of SkyPilot's own catalogs, which it would fetch for itself: two regions of one cloud
CATALOG = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
eight,H100-SXM,8,208,1800,23.92,near,"{'Gpus': [{'Name': 'H100-SXM', 'MemoryInfo': {'SizeInMiB': 81920}}]}",
eight,H100-SXM,8,208,1800,25.0,far,"{'Gpus': [{'Name': 'H100-SXM', 'MemoryInfo': {'SizeInMiB': 81920}}]}",
one,H100-SXM,1,26,225,2.5,near,"{'Gpus': [{'Name': 'H100-SXM', 'MemoryInfo': {'SizeInMiB': 81920}}]}",
"""


@pytest.fixture(scope="module")
def server(engines_python, tmp_path_factory):
    """Variables under which `sky` reaches a server of the tests' own."""
    home = tmp_path_factory.mktemp("sky")
    catalog = home / ".sky" / "catalogs" / "v8" / "lambda" / "vms.csv"
    catalog.parent.mkdir(parents=True)
    catalog.write_text(CATALOG)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    variables = {"HOME": str(home), "SKYPILOT_API_SERVER_ENDPOINT": f"http://127.0.0.1:{port}",
                 "ADVISOR_SKY": str(engines_python.parent / "sky"),
                 "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}  # fmt: skip
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([engines_python, "-m", "sky.server.server", "--host", "127.0.0.1", "--port", port],
                                   env=alone, stdout=log, stderr=log, start_new_session=True)  # fmt: skip
        try:
            end = time.monotonic() + SECONDS
            info = [variables["ADVISOR_SKY"], "api", "info", "-o", "json"]
            while b"healthy" not in subprocess.run(info, env=alone, capture_output=True).stdout.lower():
                said = (home / "log").read_text()
                if process.poll() is not None and "already in use" in said:  # of its queue: it is not to be chosen
                    pytest.skip(f"another SkyPilot server runs here: {said.splitlines()[-1]}")
                assert process.poll() is None and time.monotonic() < end, said[-2000:]
                time.sleep(1.0)
            yield variables
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


@pytest.fixture
def sky(server, monkeypatch):
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(skypilot.SkyBackend, "look_seconds", 0.0)


def rented(usd_per_hour: float = 29.9):
    plan = small_plan(usd_per_hour=usd_per_hour)
    return altered(changed(plan, gpu="h100-80gb-sxm", gpus=8), provider="aws")


def told(store, plan):
    return " ".join(beforehand(store, plan, parse_place("skypilot:lambda"), GuardLimits(max_usd=100.0)))


def test_its_price_is_said_beside_the_plans_with_the_reason(sky, store):
    """23.92 is four fifths of 29.90."""
    said = told(store, rented())
    assert "$23.90 an hour on Lambda in near (eight), elsewhere up to $25 an hour" in said
    assert "the plan reckons with $29.90 an hour, so it costs 20% less: the plan's price is AWS's" in said
    assert "the plan reckons with $23.90 an hour, the same" in told(store, rented(23.92))


def test_what_is_dearer_than_it_may_pay_or_not_for_rent_is_refused(sky, store):
    dearer = r"\$23.90 an hour on Lambda .* pays \$10 an hour at most: .* advisor plan --price 2.99"  # 23.92 / 8
    with pytest.raises(AdvisorError, match=dearer):
        told(store, rented(10.0))
    with pytest.raises(AdvisorError, match="no spot machine with 8 x H100-SXM in lambda"):
        told(store, altered(rented(), spot=True, provider="lambda"))


def test_what_skypilot_does_not_take_never_started_and_says_why(sky, store):
    with pytest.raises(AdvisorError, match="^sky jobs launch: "):
        launch(store, rented(), place=parse_place("skypilot:lambda"))
    status = describe(store.find_run("latest"), store)
    assert status.state is RunState.NEVER_STARTED and "not taken: sky jobs launch: " in status.reason


def test_a_queue_that_cannot_be_read_leaves_a_run_unjudged(sky, store, tmp_path):
    request = dry_run(store, rented(), tmp_path / "run", place=parse_place("skypilot:lambda"))
    with pytest.raises(skypilot.Unreachable, match="sky jobs queue: .*No in-progress managed jobs"):
        skypilot.SkyBackend(store).ask(request.folder, "run")


_READ = """
import json, sys, yaml, sky
from sky.jobs.state import ManagedJobStatus
task = sky.Task.from_yaml_config(yaml.safe_load(sys.stdin))
print(json.dumps([sorted(str(r.infra) for r in task.resources), task.name,
                  [s.value for s in ManagedJobStatus if not s.is_terminal()]]))
"""


def test_its_library_reads_the_task_and_knows_the_states_we_know(engines_python, store, tmp_path):
    request = dry_run(store, rented(), tmp_path / "Run 1", place=parse_place("skypilot:lambda,aws/us-east-1"))
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HOME": str(tmp_path)}
    done = subprocess.run([engines_python, "-c", _READ], input=request.files["job/task.yaml"], capture_output=True,
                          text=True, env=alone)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    infra, name, going_on = json.loads(done.stdout.splitlines()[-1])
    assert len(infra) == 2 and f"skypilot://{name}" == request.record.handle
    assert set(going_on) == skypilot.WAITS | skypilot.RUNS


def printing(lines, asked):
    """A job that has printed these lines, and notes how many are asked for."""

    def last_lines(count):
        asked.append(count)
        return "".join(lines[-count:] if count else lines)

    return last_lines


def test_the_log_that_comes_home_is_the_log_that_was_written(store, tmp_path, monkeypatch):
    """By bash, as SkyPilot would on the machine it rents, with what it puts before each line."""
    plan = changed(rented(), gpus=1)
    started = dry_run(store, plan, tmp_path / "here", place=parse_place("skypilot"))
    subprocess.run(["sh", "-c", started.script.rpartition("\n")[0]], check=True)
    task = yaml.safe_load(started.files["job/task.yaml"])
    there = tmp_path / "there"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables = {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "127.0.0.1",
                 "RUN": str(there), "PYTHON": sys.executable}  # fmt: skip
    done = subprocess.run(["bash", "-c", task["run"]], cwd=tmp_path / "here" / "job", env=alone | variables,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300.0)  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    lines = [f"(run, pid=7) {line}\n" for line in done.stdout.splitlines()]
    home = tmp_path / "here"
    bring(home, "".join(lines), over=True)
    assert (home / "log.jsonl").read_bytes() == (there / "log.jsonl").read_bytes()
    assert load_run_log(home / "log.jsonl").final["outcome"] == "completed"
    assert LOG_LINE not in (home / "stdout.log").read_text()
    whole = (home / "stdout.log").read_text()
    bring(home, "".join(lines[:2]), over=False)  # a machine that has only just begun again
    assert (home / "log.jsonl").read_bytes() == (there / "log.jsonl").read_bytes()
    # the same in looks at a job that goes on, and each asks only for what is new
    looks = tmp_path / "looks"
    looks.mkdir()
    first = next(place for place, line in enumerate(lines) if LOG_LINE in line)
    for until in (3, first + 3, first + 3, first + 8, len(lines)):
        asked, had = [], (looks / "log.jsonl").exists()
        follow(looks, printing(lines[:until], asked), over=until == len(lines))
        assert asked == [LAST_LINES if had else 0] and had == (until > first + 3 or asked != [0])
    assert (looks / "log.jsonl").read_bytes() == (there / "log.jsonl").read_bytes()
    assert (looks / "stdout.log").read_text() == whole
    cut = tmp_path / "cut"
    cut.mkdir()
    bring(cut, "".join(lines[: first + 1]), over=False)
    asked = []
    monkeypatch.setattr(skypilot, "LAST_LINES", 2)  # fewer than came since
    follow(cut, printing(lines, asked), over=True)
    assert asked[:2] == [2, 16] and (cut / "log.jsonl").read_bytes() == (there / "log.jsonl").read_bytes()


_LISTED = """
from sky.schemas.api.responses import StorageRecord
from sky.data.storage import StoreType
from sky.client.cli import table_utils as table
from sky.utils.status_lib import StorageStatus
rows = [StorageRecord(name=name, launched_at=1, store=[store], last_use="sky jobs launch S3-like task.yaml",
                      status=StorageStatus.READY) for name, store in
        (("run-a", StoreType.S3), ("run-b", StoreType.GCS), ("run-c", StoreType.AZURE))]
print(table.format_storage_table(rows, show_all=True))
"""


def test_checkpoints_are_copied_by_the_command_of_the_cloud_that_has_the_bucket(engines_python, tmp_path):
    """As SkyPilot itself lists its buckets."""
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HOME": str(tmp_path)}
    done = subprocess.run([engines_python, "-c", _LISTED], capture_output=True, text=True, env=alone)
    assert done.returncode == 0, done.stderr[-2000:]
    listed, here = done.stdout, tmp_path / "checkpoints"
    assert skypilot.copy_command(listed, "run-a", here) == (
        "aws", "s3", "sync", "--only-show-errors", "s3://run-a/checkpoints", str(here),
    )  # fmt: skip
    assert skypilot.copy_command(listed, "run-b", here)[-2:] == ("gs://run-b/checkpoints", str(here))
    with pytest.raises(AdvisorError, match="in a store that is not known here"):
        skypilot.copy_command(listed, "run-c", here)
    with pytest.raises(AdvisorError, match="lists no bucket run-d"):
        skypilot.copy_command(listed, "run-d", here)


def test_a_bucket_that_skypilot_does_not_have_is_said(sky, store, tmp_path):
    request = dry_run(store, rented(), tmp_path / "run", place=parse_place("skypilot:lambda"))
    write_files(replace(request, copies={}))
    write_launch(request.folder, request.record)
    with pytest.raises(AdvisorError, match="SkyPilot lists no bucket .*-run"):
        skypilot.SkyBackend(store).fetch(request.folder)
