"""Runs on a Slurm cluster whose shared file system holds the run folder. Handles are `slurm://CLUSTER/JOB`.

The job is the export: it saves before its limit, queues itself again and goes on. Output is read in formats that the
manual of every version has: `squeue --json` changed its fields with each.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from advisor.engines.backend import Job, LaunchRequest, Measuring
from advisor.engines.export.slurm import SCRIPT, STOP_ASKED, calibration_script, slurm
from advisor.engines.remote import (
    COMMAND,
    JOB,
    RemoteBackend,
    Unreachable,
    bundle,
    engine_run,
    engine_says,
    exported,
    limit_seconds,
    measuring_files,
    sources,
)
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.run_records import LaunchRecord
from advisor.store.disk import disk_errors
from advisor.store.run_folder import STDOUT

# squeue(1), JOB STATE CODES; what is not among these is over
_WAITS = {"PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_RUNS = {"CONFIGURING", "RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"}

# squeue(1), JOB REASON CODES; sbatch --test-only says nothing of these unless the site sets EnforcePartLimits
_NEVER = {"PartitionTimeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}


class SlurmBackend(RemoteBackend):
    """Submits the exported job; its log and checkpoints are written where they are read."""

    engine = "slurm"

    def dryrun(self, job: Job) -> LaunchRequest:
        """`sbatch job.sbatch` in the export, with the run folder as its output and this Python as its own."""
        export = exported(job)
        files, copies = bundle(job, export, slurm(export))
        return self._request(job.folder, job.record, files, copies)

    def measuring(self, asked: Measuring) -> LaunchRequest:
        """The same of a job that calibrates: a card of it where the partition has any, else a node."""
        place = asked.record.place
        cards = asked.gpu != "cpu" and (asked.gpu != "auto" or _has_cards(place.name))
        script = calibration_script(place, cards=int(cards), limit_seconds=limit_seconds(asked), command=COMMAND)
        files = {**measuring_files(asked), f"{JOB}/{SCRIPT}": script}
        return self._request(asked.folder, asked.record, files, sources())

    def _request(
        self, folder: Path, record: LaunchRecord, files: Mapping[str, str], copies: Mapping[str, Path]
    ) -> LaunchRequest:
        command = ("sbatch", "--parsable", f"--output={folder / STDOUT}", SCRIPT)
        return LaunchRequest(
            folder=folder,
            command=command,
            environment={"RUN": str(folder), "PYTHON": os.environ.get("PYTHON", sys.executable)},
            files=files,
            copies=copies,
            inside=JOB,
            record=replace(record, command=command, handle=f"{self.engine}://", pid=None, process_started=None),
        )

    def offer(self, request: LaunchRequest) -> list[str]:
        """When it would start, by `sbatch --test-only`; AdvisorError with Slurm's words where it would not be taken."""
        said = _tested(request)
        return [f"Slurm: {re.sub(r'^Job [0-9]+ ', 'it would be ', line)}" for line in said if " to start at " in line]

    def starts_at(self, request: LaunchRequest) -> str | None:
        """The same in Slurm's own form, 2026-11-23T06:40:00."""
        found = re.search(r" to start at (\S+)", "\n".join(_tested(request)))
        return None if found is None else found[1]

    def hand_over(self, request: LaunchRequest) -> str:
        """Submit it; the id is CLUSTER/JOB."""
        (request.folder / STOP_ASKED).unlink(missing_ok=True)
        variables = {**os.environ, **request.environment}
        said = engine_says(request.command, inside=request.folder / JOB, variables=variables).decode()
        number, _, cluster = said.strip().partition(";")
        if not number.isdigit():
            raise AdvisorError(f"sbatch gave no job number: {said.strip()!r}", "see the queue: squeue --me")
        return f"{cluster or _cluster()}/{number}"

    def waits_in_vain(self, words: str | None) -> bool:
        """By the reason that squeue gives: where limits are not enforced, what exceeds them is taken, and waits."""
        return words is not None and words.partition(",")[0] in _NEVER

    def find(self, run_dir: Path) -> str | None:
        """The job in the queue that was submitted from this folder."""
        for line in engine_says(("squeue", "--me", "--noheader", "--format=%i|%Z")).decode().splitlines():
            number, _, folder = line.partition("|")
            if Path(folder) == run_dir / JOB:
                return f"{_cluster()}/{number}"
        return None

    def ask(self, run_dir: Path, run: str) -> tuple[RunState, str | None]:
        """By squeue; of a job that has left the queue, what accounting says of its end, where there is any."""
        number = _number(run)
        state, reason, start = _in_queue(number)
        if state in _WAITS:
            starts = f"expected to start at {start}" if start not in ("", "N/A") else ""
            return RunState.QUEUED, ", ".join(filter(None, (reason, starts))) or None
        if state in _RUNS:
            return RunState.RUNNING, None
        state = state or _accounted(number)
        over = state in ("", "COMPLETED", "FAILED")  # of these the log says more
        return RunState.FINISHED, None if over else f"Slurm says {state.lower().replace('_', ' ')}"

    def ask_to_stop(self, run_dir: Path, run: str, *, again: bool) -> None:
        """SIGTERM to the trainer's processes, and a word to the script that it shall not queue the job again.

        Each time: a job step that is only just starting loses a signal.
        """
        with disk_errors("ask the run to stop by", run_dir / STOP_ASKED):
            (run_dir / STOP_ASKED).touch()
        number = _number(run)
        state, _, _ = _in_queue(number)
        if state in _WAITS:
            engine_says(("scancel", number))
        elif state == "RUNNING":
            engine_says(("scancel", "--signal=TERM", number))

    def kill(self, run_dir: Path, run: str) -> None:
        """Slurm's own end: SIGTERM, and SIGKILL after the site's KillWait."""
        engine_says(("scancel", _number(run)))


def _tested(request: LaunchRequest) -> list[str]:
    """What `sbatch --test-only` says, line by line."""
    done = engine_run(("sbatch", "--test-only"), given=request.files[f"{JOB}/{SCRIPT}"].encode())
    said = [line.removeprefix("sbatch: ") for line in done.stderr.decode("utf-8", "replace").splitlines()]
    if done.returncode:
        raise AdvisorError(f"Slurm would not take it: {'; '.join(said)}", "see the partitions: sinfo")
    return said


def _has_cards(partition: str | None) -> bool:
    """Whether a partition (None: the default one) has nodes with GPUs, as its administrator named them."""
    said = engine_says(("sinfo", "--noheader", "--format=%P|%G", *([f"--partition={partition}"] if partition else [])))
    rows = [line.partition("|") for line in said.decode().splitlines()]
    return any(kinds.startswith("gpu") or ",gpu" in kinds
               for name, _, kinds in rows if partition or name.endswith("*"))  # fmt: skip


def _number(run: str) -> str:
    """The job's number; Unreachable where this machine's Slurm is another cluster's."""
    cluster, _, number = run.rpartition("/")
    if cluster != _cluster():
        raise Unreachable(f"the job is on the cluster {cluster}, and this machine's is {_cluster()}", "ask there")
    return number


@lru_cache(maxsize=1)
def _cluster() -> str:
    """The name of the cluster that this machine belongs to."""
    said = engine_says(("scontrol", "show", "config")).decode()
    found = re.search(r"^ClusterName\s*=\s*(\S+)", said, flags=re.MULTILINE)
    if found is None:
        raise Unreachable("scontrol does not say which cluster this is", "try it by hand: scontrol show config")
    return found[1]


def _in_queue(number: str) -> tuple[str, str, str]:
    """State, reason and expected start of a job; empty words for one that Slurm has forgotten."""
    words = ("squeue", "--noheader", "--states=all", "--format=%T|%r|%S", f"--jobs={number}")
    try:
        said = engine_says(words).decode().strip()
    except Unreachable as error:
        if "Invalid job id" in error.message:
            return "", "", ""
        raise
    state, reason, start = (*said.partition("\n")[0].split("|"), "", "", "")[:3]
    return state, "" if reason == "None" else reason, start


def _accounted(number: str) -> str:
    """The state that accounting ends with; empty where there is none."""
    try:
        said = engine_says(
            ("sacct", "--noheader", "--parsable2", "--allocations", "--format=State", f"--jobs={number}")
        )
    except Unreachable:
        return ""  # a cluster without accounting: the log's own end has to do
    return said.decode().strip().partition("\n")[0].split(" ")[0]  # "CANCELLED by 1000"
