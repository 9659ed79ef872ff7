"""Lists the backends and finds the one that started the run of a folder."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from advisor.engines.backend import Backend, LocalBackend, engine_of
from advisor.engines.state import RunStatus
from advisor.errors import AdvisorError, close_matches
from advisor.run_records import Place
from advisor.store.run_folder import read_launch
from advisor.store.store import Store


def _later(module: str, name: str) -> Callable[[Store], Backend]:
    """Import a backend only when it is needed: exports load predictions and numpy, which local runs do without."""
    return lambda store: getattr(import_module(f"advisor.engines.{module}"), name)(store)


BACKENDS: dict[str, Callable[[Store], Backend]] = {
    LocalBackend.engine: LocalBackend,
    "slurm": _later("slurm", "SlurmBackend"),
    "ssh": _later("ssh", "SshBackend"),
    "skypilot": _later("skypilot", "SkyBackend"),
}
_WORD = re.compile(r"[A-Za-z0-9_.&|\[\]*:,=+][A-Za-z0-9_.&|\[\]*:,=+-]*")
# the text after the colon; a leading dash would be an option of the engine's command
PLACES = {
    LocalBackend.engine: re.compile(""),
    "slurm": re.compile(r"(?:[A-Za-z0-9_.][A-Za-z0-9_.,-]*)?"),
    "ssh": re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@-]*"),
    "skypilot": re.compile(r"(?:[A-Za-z0-9*][A-Za-z0-9_.*/,-]*[A-Za-z0-9*])?"),
}
MEASURED_THERE = ("slurm", "ssh")  # engines whose machines a job can calibrate
EXPORTED = ("dstack", "trainjob", "jobset", "dockerfile", "torchrun")


def backend_of(handle_or_engine: str, store: Store) -> Backend:
    """Return the backend of a handle or of an engine's name; raises AdvisorError if this version does not know it."""
    engine = engine_of(handle_or_engine)
    if engine not in BACKENDS:
        message = f"the run was started by {engine}, which this version does not know"
        raise AdvisorError(message, f"it knows: {', '.join(BACKENDS)}; upgrade training-advisor")
    return BACKENDS[engine](store)


def parse_place(text: str, *, account: str | None = None, qos: str | None = None,
                constraint: str | None = None, gpu_ids: tuple[int, ...] = ()) -> Place:  # fmt: skip
    """Parse `--on`: "local", "slurm:gpu", "ssh:host", "skypilot:aws,gcp"; raises AdvisorError (exit 2) for others."""
    engine, _, name = text.partition(":")
    usage = "write it like local, slurm, slurm:PARTITION, ssh:HOST, skypilot or skypilot:CLOUD/REGION,..."
    if engine in EXPORTED:
        message = f"--on {text}: a run is not started on {engine} from here, it is exported to it"
        raise AdvisorError(message, f"advisor export PLAN.yaml --to {engine} --out DIR; then advisor runs --import DIR",
                           exit_code=2)  # fmt: skip
    if engine not in PLACES:
        near = close_matches(engine, PLACES)
        raise AdvisorError(f"--on {text}: no engine is called {engine!r}",
                           f"did you mean {' or '.join(near)}?" if near else usage, exit_code=2)  # fmt: skip
    options = {"account": account, "qos": qos, "constraint": constraint}
    if engine != "slurm" and (given := [f"--{key}" for key, value in options.items() if value]):
        raise AdvisorError(f"{', '.join(given)} works only with Slurm", "leave it out, or --on slurm", exit_code=2)
    if gpu_ids and engine != LocalBackend.engine:
        raise AdvisorError("--gpu-ids selects GPUs of this machine", "elsewhere the engine chooses", exit_code=2)
    if not PLACES[engine].fullmatch(name) or any(not _WORD.fullmatch(value) for value in options.values() if value):
        raise AdvisorError(f"--on {text} is not a place to run", usage, exit_code=2)
    return Place(engine=engine, name=name or None, gpu_ids=gpu_ids, **options)


def handle_of(run_dir: Path) -> str:
    """Return the handle of a folder's run.

    On this machine the folder identifies a run, even if it was moved or its trainer was started by hand; elsewhere the
    engine's own id does.
    """
    launch = read_launch(run_dir)
    if launch is None:
        return f"{LocalBackend.engine}://{run_dir.resolve()}"
    engine = engine_of(launch.handle)
    return f"{engine}://{run_dir.resolve()}" if engine == LocalBackend.engine else launch.handle


def describe(run_dir: Path, store: Store) -> RunStatus:
    """Return the state of a folder's run, as its engine reports it."""
    return backend_of(handle_of(run_dir), store).describe(run_dir)
