"""A real Slurm on this machine, Python with the engines' own libraries, and with transformers; tests skip in words
where they are not."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from advisor.calibration.quality import quality_of
from advisor.store.calibration import Calibration, Verdict
from advisor.store.store import Store, load_calibration
from tests.advisor.plans import measured_here

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".venv-engines" / "bin" / "python"  # `make engines`
TRANSFORMERS = ROOT / ".venv-transformers" / "bin" / "python"  # the same
LITGPT = ROOT / ".venv-litgpt" / "bin" / "python"  # the same
TRACKERS = ROOT / ".venv-trackers" / "bin" / "python"  # the same
RECORDED = sorted((ROOT / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
SLURM = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "home")


@pytest.fixture(scope="session")
def engines_python() -> Path:
    """The interpreter that has skypilot, dstack and Kubeflow's models."""
    chosen = Path(os.environ.get("ADVISOR_ENGINES_PYTHON", ENGINES))
    known = chosen.exists() and subprocess.run(
        [chosen, "-c", "import sky, dstack, kubeflow_trainer_api"], capture_output=True, cwd=ROOT.parent
    )
    if not known or known.returncode:
        pytest.skip(f"{chosen} does not have the engines' libraries: make engines")
    return chosen


@pytest.fixture(scope="session")
def transformers_python() -> Path:
    """The interpreter that has Hugging Face's transformers."""
    chosen = Path(os.environ.get("ADVISOR_TRANSFORMERS_PYTHON", TRANSFORMERS))
    known = chosen.exists() and subprocess.run([chosen, "-c", "import transformers, torch"], capture_output=True)
    if not known or known.returncode:
        pytest.skip(f"{chosen} does not have transformers: make engines")
    return chosen


@pytest.fixture(scope="session")
def trainers_python() -> Path:
    """The interpreter that has TRL and Lightning."""
    chosen = Path(os.environ.get("ADVISOR_TRANSFORMERS_PYTHON", TRANSFORMERS))
    known = chosen.exists() and subprocess.run([chosen, "-c", "import trl, lightning, torch"], capture_output=True)
    if not known or known.returncode:
        pytest.skip(f"{chosen} does not have trl and lightning: make engines")
    return chosen


@pytest.fixture(scope="session")
def litgpt_python() -> Path:
    """The interpreter that has LitGPT."""
    chosen = Path(os.environ.get("ADVISOR_LITGPT_PYTHON", LITGPT))
    known = chosen.exists() and subprocess.run([chosen, "-c", "import litgpt, requests"], capture_output=True)
    if not known or known.returncode:
        pytest.skip(f"{chosen} does not have litgpt: make engines")
    return chosen


@pytest.fixture(scope="session")
def trackers_python() -> Path:
    """The interpreter that has W&B, MLflow and trackio, or some of them."""
    chosen = Path(os.environ.get("ADVISOR_TRACKERS_PYTHON", TRACKERS))
    if not chosen.exists():
        pytest.skip(f"there is no {chosen}: make engines")
    return chosen


@pytest.fixture(scope="session")
def measured(tmp_path_factory) -> Calibration:
    """This CPU, measured for a minute: what a plan that is wrong by a factor is made from. Where the machine was too
    restless, a recording of one like it."""
    found = measured_here(tmp_path_factory.mktemp("measured"))
    return found if quality_of(found).verdict != Verdict.REJECTED else load_calibration(RECORDED)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Variables under which sbatch and squeue reach a cluster of this one machine, started for the tests."""
    if missing := [name for name in SLURM if shutil.which(name) is None]:
        pytest.skip(f"no Slurm here ({', '.join(missing)}): apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of one's own needs root")
    folder = tmp_path_factory.mktemp("slurm")
    host, ports = socket.gethostname().split(".")[0], (_free_port(), _free_port())
    key, munge = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(
        f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SchedulerParameters=sched_interval=1,requeue_delay=1
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES State=UP
PartitionName=other Nodes={host} State=UP
PartitionName=short Nodes={host} MaxTime=1 State=UP
"""
    )
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}",
         f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed"],
        ["slurmctld", "-D"],
        ["slurmd", "-D"],
    ]  # fmt: skip
    started = []
    for words in daemons:
        started.append(subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(1.0)
    try:
        if not _within(30.0, lambda: "idle" in _output(["sinfo", "-h", "-o", "%t"], environment)):
            pytest.skip("Slurm's daemons do not start here: " + (folder / "slurmctld.log").read_text()[-300:])
        yield environment
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=20)


def _output(words: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(words, env=environment, capture_output=True, text=True).stdout


def _within(seconds: float, happens) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if happens():
            return True
        time.sleep(0.3)
    return False


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
