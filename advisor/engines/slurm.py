"""Runs jobs on a Slurm cluster whose shared file system holds the run folder. Handles are `slurm://CLUSTER/JOB`.

The job is the export: it saves before its limit, queues itself again and resumes. Output is read in the formats that
the manual of every version describes, because `squeue --json` changed its fields with each version.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from advisor.engines import remote
from advisor.engines.backend import Job, LaunchRequest, Measuring
from advisor.engines.export.targets import SCRIPT, STOP_ASKED, calibration_script, slurm
from advisor.engines.remote import JOB, RemoteBackend, Unreachable, engine_state
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.run_records import LaunchRecord
from advisor.store.disk import disk_errors
from advisor.store.run_folder import STDOUT

# squeue(1), JOB STATE CODES; a job in any other state is over
_WAITS = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_RUNS = {"CONFIGURING", "RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}

# squeue(1), JOB REASON CODES; sbatch --test-only reports these only if the site sets EnforcePartLimits
_NEVER = {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}


class SlurmBackend(RemoteBackend):
    """Submits the remote.exported job; log and checkpoints appear in the run folder on the shared file system."""

    engine = "slurm"

    def dryrun(self, job: Job) -> LaunchRequest:
        """Return the request to run `sbatch job.sbatch` in the exported folder, with its output in the run folder."""
        export = remote.exported(job)
        files, copies = remote.bundle(job, export, slurm(export))
        return self._batch(job.folder, job.record, files, copies)

    def measuring(self, requested: Measuring) -> LaunchRequest:
        """Return the request for a job that calibrates: one GPU if the partition has any, else a node."""
        place, cards = requested.record.place, requested.gpu != "cpu"
        if requested.gpu == "auto":  # whether the partition, or else the default one, has nodes with GPUs
            which = [f"--partition={place.name}"] if place.name else []
            said = engine_state(("sinfo", "--noheader", "--format=%P|%G", *which))
            rows = [line.partition("|") for line in said.decode().splitlines()]
            kinds = [kind for name, _, kind in rows if place.name or name.endswith("*")]
            cards = any(kind.startswith("gpu") or ",gpu" in kind for kind in kinds)
        script = calibration_script(place, cards=int(cards), limit_seconds=remote.limit_seconds(requested))
        files = {**remote.measuring_files(requested), f"{JOB}/{SCRIPT}": script}
        return self._batch(requested.folder, requested.record, files, remote.sources())

    def _batch(
        self, folder: Path, record: LaunchRecord, files: Mapping[str, str], copies: Mapping[str, Path]
    ) -> LaunchRequest:
        command = ("sbatch", "--parsable", f"--output={folder / STDOUT}", SCRIPT)
        python = os.environ.get("PYTHON", sys.executable)
        return self._ready_request(folder, record, command, files, copies, RUN=str(folder), PYTHON=python)

    def offer(self, request: LaunchRequest) -> list[str]:
        """Return the start time from `sbatch --test-only`; raises AdvisorError if Slurm refuses the job."""
        said = _tested(request)
        return [f"Slurm: {re.sub(r'^Job [0-9]+ ', 'it would be ', line)}" for line in said if " to start at " in line]

    def starts_at(self, request: LaunchRequest) -> str | None:
        """Return the start in Slurm's own form, 2026-11-23T06:40:00."""
        found = re.search(r" to start at (\S+)", "\n".join(_tested(request)))
        return None if found is None else found[1]

    def hand_over(self, request: LaunchRequest, keep: Sequence[int]) -> str:
        """Submit the job and return its id, CLUSTER/JOB."""
        (request.folder / STOP_ASKED).unlink(missing_ok=True)
        variables = {**os.environ, **request.environment}
        said = engine_state(request.command, inside=request.folder / JOB, variables=variables, keep=keep).decode()
        number, _, cluster = said.strip().partition(";")
        if not number.isdigit():
            raise AdvisorError(f"sbatch gave no job number: {said.strip()!r}", "see the queue: squeue --me")
        return f"{cluster or _cluster()}/{number}"

    def waits_in_vain(self, words: str | None) -> bool:
        """Tell from squeue's reason whether a job waits forever: Slurm accepts jobs beyond unenforced limits."""
        return words is not None and words.partition(",")[0] in _NEVER

    def find(self, run_dir: Path) -> str | None:
        """Return the queued job that was submitted from this folder."""
        for line in engine_state(("squeue", "--me", "--noheader", "--format=%i|%Z")).decode().splitlines():
            number, _, folder = line.partition("|")
            if Path(folder) == run_dir / JOB:
                return f"{_cluster()}/{number}"
        return None

    def ask(self, run_dir: Path, run: str) -> tuple[RunState, str | None]:
        """Ask squeue. For a job that has left the queue, ask accounting, if there is any, how it ended."""
        number = _number(run)
        state, reason, start = _in_queue(number)
        if state in _WAITS:
            starts = f"expected to start at {start}" if start not in ("", "N/A") else ""
            return RunState.QUEUED, ", ".join(filter(None, (reason, starts))) or None
        if state in _RUNS:
            return RunState.RUNNING, None
        if not state:
            words = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={number}")
            with contextlib.suppress(Unreachable):  # without accounting, only the log says how it ended
                state = engine_state(words).decode().strip().partition("\n")[0].split(" ")[0]  # "CANCELLED by 1000"
        over = state in ("", "COMPLETED", "FAILED")  # for these, the log has details
        return RunState.FINISHED, None if over else f"Slurm says {state.lower().replace('_', ' ')}"

    def ask_to_stop(self, run_dir: Path, run: str, *, again: bool) -> None:
        """Send SIGTERM to the trainer's processes, and tell the script not to queue the job again.

        The signal is repeated each time, because a job step that is just starting loses it.
        """
        with disk_errors("ask the run to stop by", run_dir / STOP_ASKED):
            (run_dir / STOP_ASKED).touch()
        number = _number(run)
        state, _, _ = _in_queue(number)
        if state in _WAITS:
            engine_state(("scancel", number))
        elif state == "RUNNING":
            engine_state(("scancel", "--signal=TERM", number))

    def kill(self, run_dir: Path, run: str) -> None:
        """Cancel the job: Slurm sends SIGTERM, then SIGKILL after the site's KillWait."""
        engine_state(("scancel", _number(run)))


def _tested(request: LaunchRequest) -> list[str]:
    """Return what `sbatch --test-only` prints, line by line."""
    done = remote.engine_run(("sbatch", "--test-only"), given=request.files[f"{JOB}/{SCRIPT}"].encode())
    said = [line.removeprefix("sbatch: ") for line in done.stderr.decode("utf-8", "replace").splitlines()]
    if done.returncode:
        raise AdvisorError(f"Slurm would reject it: “{'; '.join(said)}”", "see the partitions: sinfo")
    return said


def _number(run: str) -> str:
    """Return the job's number; raises Unreachable if this machine belongs to another cluster."""
    cluster, _, number = run.rpartition("/")
    if cluster != _cluster():
        raise Unreachable(f"the job is on the cluster {cluster}, and this machine's is {_cluster()}", "ask there")
    return number


@lru_cache(maxsize=1)
def _cluster() -> str:
    """Return the name of the cluster that this machine belongs to."""
    said = engine_state(("scontrol", "show", "config")).decode()
    found = re.search(r"^ClusterName\s*=\s*(\S+)", said, flags=re.MULTILINE)
    if found is None:
        raise Unreachable("scontrol does not say which cluster this is", "try it by hand: scontrol show config")
    return found[1]


def _in_queue(number: str) -> tuple[str, str, str]:
    """Return state, reason and expected start of a job; empty words if Slurm has forgotten it."""
    words = ("squeue", "--noheader", "--states=all", "--format=%T|%r|%S", f"--jobs={number}")
    try:
        said = engine_state(words).decode().strip()
    except Unreachable as error:
        if "Invalid job id" in error.message:
            return "", "", ""
        raise
    state, reason, start = (*said.partition("\n")[0].split("|"), "", "", "")[:3]
    return state, "" if reason == "None" else reason, start
