"""`advisor calibrate --on` by a real Slurm and a real sshd of this machine."""

from __future__ import annotations

import json
import subprocess
import time
from datetime import UTC, datetime

import pytest

from advisor.cli import main
from advisor.engines import slurm as slurm_engine
from advisor.engines.engines import backend_of, parse_place
from advisor.engines.remote import RemoteBackend
from advisor.engines.ssh import SshBackend
from advisor.engines.state import RunState
from advisor.options import CalibrationOptions
from advisor.store.run_folder import read_launch
from advisor.store.store import Store
from advisor.workflows.calibrate_elsewhere import _request, begin, look
from tests.engines.test_ssh import there  # noqa: F401 - a fixture

SMALL = CalibrationOptions(gpu="cpu", depths=(1, 2), seq_len=64, vocab_size=256, budget_seconds=20.0, price=0.5)
WORDS = ["--gpu", "cpu", "--depths", "1,2", "--seq-len", "64", "--vocab-size", "256", "--budget-seconds", "20"]
SECONDS = 300.0


@pytest.fixture
def cluster(slurm, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    monkeypatch.setattr(RemoteBackend, "look_seconds", 0.3)
    slurm_engine._cluster.cache_clear()
    yield
    subprocess.run(["scancel", "--me"], check=True)  # whatever failed
    slurm_engine._cluster.cache_clear()


def command(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *WORDS, *words])
    out, err = capsys.readouterr()
    return ended.value.code, out, err


def squeue():
    said = subprocess.run(["squeue", "--me", "--noheader"], capture_output=True, text=True, check=True).stdout
    return said.splitlines()


def ended(measured, store):
    deadline = time.monotonic() + SECONDS
    while not (measured := look(measured, store)).is_over:
        assert time.monotonic() < deadline, measured
        time.sleep(0.3)
    return measured


def test_partitions_are_measured_each_by_itself_and_one_that_refuses_spoils_none(cluster, advisor_home, capsys):
    """Two that measure, one whose time limit is too short, one that is not there."""
    code, out, err = command(capsys, "--on", "slurm:debug,other,short,nowhere", "--json")
    assert code == 1, err
    by = {one["place"]: one for one in json.loads(out)["places"]}
    assert list(by) == ["slurm:debug", "slurm:other", "slurm:short", "slurm:nowhere"]
    for name in ("slurm:debug", "slurm:other"):
        assert by[name]["calibrated"]["bursts"] > 0 and by[name]["kept"], by[name]
        datetime.fromisoformat(by[name]["starts_at"])
    # a Slurm that does not enforce its limits takes what exceeds them, and lets it wait for ever
    assert by["slurm:short"]["words"] == "it would never start: PartitionTimeLimit"
    assert by["slurm:short"]["calibrated"] is None and not squeue()
    assert "invalid partition" in by["slurm:nowhere"]["words"].lower()
    store = Store(advisor_home)
    kept = {entry.id for entry in store.list_calibrations()}
    assert kept == {by[name]["calibrated"]["calibration"] for name in ("slurm:debug", "slurm:other")}
    assert store.runs() == [], "a calibration is no run"


def test_who_leaves_finds_it_again_and_another_does_not_start_it_twice(cluster, advisor_home, capsys):
    code, out, _ = command(capsys, "--on", "slurm:other", "--detach", "--json")
    (one,) = json.loads(out)["places"]
    assert code == 0 and one["state"] in (RunState.QUEUED, RunState.RUNNING) and one["calibrated"] is None
    assert command(capsys, "--on", "slurm:other", "--detach")[0] == 0
    assert len(squeue()) == 1
    code, out, _ = command(capsys, "--on", "slurm:other")
    assert code == 0 and "slurm:other" in out and "GB/s" in out
    assert len(Store(advisor_home).list_calibrations()) == 1


def test_a_card_that_is_not_there_fails_in_its_own_words(cluster, tmp_path):
    """Slurm was asked for a CPU's node; the machine finds no card and says so at home."""
    store = Store(tmp_path / "home")
    place = parse_place("slurm:debug")
    asked = _request(SMALL, place, tmp_path / "f", datetime.now(UTC))
    script = backend_of("slurm", store).measuring(asked).files["job/job.sbatch"]
    assert "#SBATCH --exclusive" in script and "--partition=debug" in script and "gpus" not in script
    refused = begin(CalibrationOptions(gpu="h100", budget_seconds=20.0), place, store, datetime.now(UTC))
    assert refused.is_over and "generic resource" in refused.words.lower(), refused.words


def test_a_host_is_measured_through_ssh(there, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ADVISOR_SSH", f"ssh -F {there.config}")
    monkeypatch.setattr(SshBackend, "look_seconds", 0.3)
    store, place = Store(tmp_path / "home"), parse_place("ssh:there")
    there.has_environment(backend_of("ssh", store).measuring(_request(SMALL, place, tmp_path, datetime.now(UTC))))
    found = ended(begin(SMALL, place, store, datetime.now(UTC)), store)
    assert found.calibrated is not None, found.words
    assert found.kept and [entry.id for entry in store.list_calibrations()] == [found.calibrated.calibration.id]
    assert read_launch(found.folder).handle.startswith("ssh://there/calibration-ssh-there-")
    impossible = CalibrationOptions(gpu="cpu", depths=(1,), seq_len=64, vocab_size=256, precision="fp16",
                                    activation_checkpointing="none", budget_seconds=10.0, family="none")  # fmt: skip
    failed = ended(begin(impossible, place, store, datetime.now(UTC)), store)
    assert failed.calibrated is None and failed.words, failed
    assert len(store.list_calibrations()) == 1
