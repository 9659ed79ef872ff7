"""Every test gets its own empty ADVISOR_HOME and leaves no process behind; no property test has a deadline."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import settings

from tests.waiting import waited

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share the cores

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: children would ignore it as well
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.pop("COLUMNS", None)  # the width of whoever runs the tests

# The same cases on every machine and in every run; `make explore` draws new ones and prints how to repeat what it finds
settings.register_profile("house", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500, print_blob=True)
settings.load_profile("house")

_TEST = "ADVISOR_TEST"  # in the environment of whatever a test starts, a detached run included
_starts: list[str] = []  # of processes by this one
sys.addaudithook(lambda event, _: _starts.append(event) if event == "subprocess.Popen" else None)


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Seed what a test draws without a generator of its own; a torch that is loaded later starts with a fixed seed."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def advisor_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh home folder for the test and its child processes; no process that the test started outlives it."""
    home = tmp_path_factory.mktemp("advisor-home")
    monkeypatch.setenv("ADVISOR_HOME", str(home))
    monkeypatch.setenv(_TEST, str(home))
    _starts.clear()
    yield home
    for child in multiprocessing.active_children():
        child.kill()
    for process in psutil.process_iter() if _starts else ():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(_TEST) == str(home):
                process.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a Postgres of one's own, for as long as the tests take; NAME in it stands for a database."""
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed: pip install 'psycopg[binary]'")
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"))  # not on the PATH there
    programs = [shutil.which(name, path=os.pathsep.join([os.environ["PATH"], *map(str, debian)]))
                for name in ("initdb", "postgres")]  # fmt: skip
    if None in programs:
        pytest.skip("no Postgres here: apt-get install postgresql")
    folder = tempfile.mkdtemp(prefix="advisor-postgres-")  # other users cannot enter pytest's folders
    data, user = f"{folder}/data", "nobody" if os.geteuid() == 0 else None  # Postgres refuses to run as root
    if user:
        shutil.chown(folder, user)
    made = [programs[0], "-D", data, "-A", "trust", "-U", "advisor", "--no-sync"]
    subprocess.run(made, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    environment = {name: value for name, value in os.environ.items() if name != _TEST}
    words = [programs[1], "-D", data, "-F", "-k", folder, "-h", ""]
    server = subprocess.Popen(words, user=user, cwd=folder, env=environment,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    address = f"postgresql:///NAME?host={folder}&user=advisor"

    def answers() -> bool:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(address.replace("NAME", "postgres")):
            return True
        return False

    try:
        waited(answers)
        yield address
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: its data are thrown away
        server.wait(timeout=300)
        shutil.rmtree(folder)


_databases = count()


@pytest.fixture
def database(postgres: str) -> str:
    """The address of a new database in that Postgres."""
    import psycopg

    name = f"test{next(_databases)}"
    with psycopg.connect(postgres.replace("NAME", "postgres"), autocommit=True) as db:
        db.execute(f"CREATE DATABASE {name}")
    return postgres.replace("NAME", name)
