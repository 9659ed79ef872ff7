"""Runs on machines that SkyPilot rents, as its managed jobs. Handles are `skypilot://NAME`, a name chosen here.

SkyPilot is queried through its command, in its formats for programs: `-o json`, and the job's output. The run folder
there is a bucket that outlives the machines; only the log is copied home automatically.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from advisor.engines import remote
from advisor.engines.backend import Job, LaunchRequest
from advisor.engines.export.cloud import LOG_LINE, SKY, bucket, skypilot
from advisor.engines.remote import JOB, RemoteBackend, Unreachable
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.offer import seller_of
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import CHECKPOINTS, LOG, PLAN, STDOUT
from advisor.units import format_usd_rate

LAST_LINES, MORE_LINES = 1000, 8  # lines of output per look, and the factor for a second try if they were too few
# sky.jobs.ManagedJobStatus of 0.14; a job in any other state is over
WAITS = {"PENDING", "SUBMITTED", "STARTING", "RECOVERING"}
RUNS = {"RUNNING", "WINDING_DOWN", "CANCELLING"}
ENDED_BY_LOG = {"SUCCEEDED", "FAILED"}  # for these, the log has details
LOG_STATUS = (0, 100, 101)  # exit statuses of `sky jobs logs`: the job succeeded, failed, is running (its --help)
_COPY = {"S3": ("aws", "s3", "sync", "--only-show-errors"), "GCS": ("gcloud", "storage", "rsync", "--recursive")}
DATA_AT = "/data"
SAME_PRICE = 0.005
_INSTALL = "pip install 'training-advisor[skypilot]', or name another environment's by ADVISOR_SKY=PATH/sky"


def follow(run_dir: Path, last_lines: Callable[[int], str], *, over: bool) -> None:
    """Copy what a job has printed since the last look, found in its last `last_lines` lines (0 means all).

    The last line of the log here marks what is already known. A machine that has just started prints the log from its
    beginning, so nothing changes until it has passed that line.
    """
    requested = LAST_LINES
    with disk_errors("read", run_dir / LOG):
        known = (run_dir / LOG).read_text(encoding="utf-8").splitlines() if (run_dir / LOG).exists() else []
    here = known[-1] if known else None
    while here is not None:
        lines = last_lines(requested).splitlines()
        if places := [place for place, line in enumerate(lines) if line.endswith(LOG_LINE + here)]:
            new = lines[places[-1] + 1 :]
            for name, mine in zip((LOG, STDOUT), _parted(new if over else _up_to_the_log(new)), strict=True):
                with disk_errors("write", run_dir / name), (run_dir / name).open("a", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in mine)
            return
        if len(lines) < requested:
            break  # there were no more lines
        requested *= MORE_LINES
    bring(run_dir, last_lines(0), over=over)


def bring(run_dir: Path, printed: str, *, over: bool) -> None:
    """Store everything a job has printed: the lines of its log, and the rest.

    A machine that has just started may have printed less than is already stored; then nothing changes.
    """
    lines = printed.splitlines()
    for name, mine in zip((LOG, STDOUT), _parted(lines if over else _up_to_the_log(lines) or lines), strict=True):
        text, path = "".join(f"{line}\n" for line in mine), run_dir / name
        with disk_errors("read", path):
            size = path.stat().st_size if path.exists() else 0
        if len(text.encode()) > size:
            write_atomic(path, text)


def _parted(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the lines of the log from the others."""
    log: list[str] = []
    rest: list[str] = []
    for line in lines:
        _, mark, words = line.partition(LOG_LINE)  # SkyPilot puts task and node before each line
        (log if mark else rest).append(words or line)
    return log, rest


def _up_to_the_log(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines up to the last line of the log, where the next look continues; none if there is no such line."""
    last = max((place for place, line in enumerate(lines) if LOG_LINE in line), default=-1)
    return lines[: last + 1]


class SkyBackend(RemoteBackend):
    """Submits the remote.exported task as a managed job, which recovers from preemption and returns its machines."""

    engine = "skypilot"
    look_seconds = 60.0  # each query goes through SkyPilot's controller to the job's machine

    def dryrun(self, job: Job) -> LaunchRequest:
        """Return `sky jobs launch task.yaml` in the export; bucket and job are named after the run."""
        if job.config is None:
            hint = f"advisor export PLAN.yaml --to {self.engine} --out DIR; afterwards compare what came home"
            raise AdvisorError(f"an adopted command is not started on {self.engine} from here", hint, exit_code=2)
        export = remote.exported(job, data_at=DATA_AT)
        files, copies = remote.bundle(job, export, skypilot(export))
        command = (*_sky(), "jobs", "launch", "--yes", "--detach-run", SKY)
        return self._ready_request(job.folder, job.record, command, files, copies, run=export.name)

    def offer(self, request: LaunchRequest) -> list[str]:
        """Return SkyPilot's price and the plan's price. Raises AdvisorError if every offer exceeds the task's limit.

        Prices come from SkyPilot's own catalog, without renting and without an account.
        """
        task, plan = (yaml.safe_load(request.files[name]) for name in (f"{JOB}/{SKY}", PLAN))
        resources = task["resources"]
        [(card, count)] = resources["accelerators"].items()
        places = [place["infra"] for place in resources.get("any_of", [resources])]
        kind, price = ("spot", "spot_price") if resources["use_spot"] else ("on-demand", "price")
        machine = f"{kind} machine with {count} x {card}"
        # Machines of the catalog that suit the task; those without a price are left out.
        rows = []
        for place in places:
            where = () if place == "*" else ("--infra", place)
            said = sky_says("gpus", "list", f"{card}:{count}", "--all-regions", "-o", "json", *where)
            rows += [row for row in json.loads(said).get(card, []) if row["accelerator_count"] == count and row[price]]
        rows = [row for row in rows if math.isfinite(row[price])]
        if not rows:
            message = f"SkyPilot's catalog has no {machine} in {', '.join(places)}"
            raise AdvisorError(message, f"see: sky gpus list {card}")
        cheapest, dearest = (pick(rows, key=lambda row: row[price]) for pick in (min, max))
        usd, most = cheapest[price], resources.get("max_hourly_cost")
        costs = f"{_rate(usd)} on {cheapest['cloud']} in {cheapest['region']} ({cheapest['instance_type']})"
        if most is not None and usd > most:
            raise AdvisorError(
                f"the cheapest {machine} costs {costs}, and the plan pays {_rate(most)} at most: "
                f"plan at its price, advisor plan --price {usd / count:.4g}",
                "or name other places: --on skypilot:CLOUD/REGION,...",
            )
        # Compare the price of the cheapest machine with the plan's price, with the reason for a difference.
        elsewhere = f", elsewhere up to {_rate(dearest[price])}" if dearest[price] > usd else ""
        words = f"SkyPilot's catalog: {machine} for {costs}{elsewhere}"
        if not request.record.usd_per_hour:
            return [f"{words}; the plan has no price, so that --budget cannot be enforced"]
        planned, offer = request.record.usd_per_hour / task["num_nodes"], plan["chosen"]["offer"]
        off = usd / planned - 1.0
        words += f"; the plan reckons with {_rate(planned)}"
        if abs(off) < SAME_PRICE:
            return [f"{words}, the same"]
        whose = f"{seller_of(offer['provider'])}'s" if offer["provider"] is not None else offer["source"]
        if offer["provider"] == cheapest["cloud"].lower():
            whose += f" of another day or region ({offer['source']})"
        more = "more" if off > 0 else "less"
        return [f"{words}, so it costs {abs(off):.0%} {more}: the plan's price is {whose}"]

    def hand_over(self, request: LaunchRequest, keep: Sequence[int]) -> str:
        """Submit the job; this takes minutes if SkyPilot has no jobs controller yet."""
        _run(request.command, inside=request.folder / JOB, seconds=None, keep=keep)
        return request.record.handle.partition("://")[2]

    def ask(self, run_dir: Path, run: str) -> tuple[RunState, str | None]:
        """Ask SkyPilot's queue, and copy the output of a started job at each look before the job counts as over."""
        jobs = [job for job in json.loads(sky_says("jobs", "queue", "--all", "-o", "json")) if job["job_name"] == run]
        if not jobs:
            return RunState.FINISHED, "SkyPilot has no job of this name"
        job = max(jobs, key=lambda job: job["job_id"])  # a resumed run has several jobs
        status, reason = job["status"], job.get("failure_reason")
        if status in WAITS:
            return RunState.QUEUED, f"SkyPilot says {_words(status)}"
        words = (*_sky(), "jobs", "logs", "--no-follow", str(job["job_id"]))
        follow(run_dir, lambda lines: _run((*words, "--tail", str(lines)), fine=LOG_STATUS), over=status not in RUNS)
        if status in RUNS:
            return RunState.RUNNING, None
        said = None if status in ENDED_BY_LOG else f"SkyPilot says {_words(status)}"
        return RunState.FINISHED, f"{said}: {reason}" if said and reason else said

    def ask_to_stop(self, run_dir: Path, run: str, *, again: bool) -> None:
        """Cancel the job after its files have reached the bucket."""
        if not again:
            sky_says("jobs", "cancel", "--yes", "--graceful", "--name", run)

    def kill(self, run_dir: Path, run: str) -> None:
        """Cancel the job now."""
        sky_says("jobs", "cancel", "--yes", "--name", run)

    def fetch(self, run_dir: Path) -> str:
        """Copy the checkpoints from the run's bucket, by the command of its cloud."""
        name = bucket(self._id(run_dir))
        command = copy_command(sky_says("storage", "ls", "--verbose"), name, run_dir / CHECKPOINTS)
        (run_dir / CHECKPOINTS).mkdir(exist_ok=True)
        remote.engine_state(command, seconds=None)
        return f"checkpoints of the bucket {name} are in {run_dir / CHECKPOINTS}"


def copy_command(listed: str, name: str, folder: Path) -> tuple[str, ...]:
    """Return the command that copies a bucket's checkpoints to a folder, based on SkyPilot's list of buckets.

    Raises AdvisorError if the list does not have the bucket, or if its store has no known command.
    """
    rows = [line.split() for line in listed.splitlines()]
    found = next((row for row in rows if row and row[0] == name), None)
    if found is None:
        raise AdvisorError(f"SkyPilot lists no bucket {name}", "see: sky storage ls")
    for store, words in _COPY.items():
        if store in found:
            scheme = store.lower().replace("gcs", "gs")
            return (*words, f"{scheme}://{name}/{CHECKPOINTS}", str(folder))
    raise AdvisorError(f"the bucket {name} is in a store that is not known here: {' '.join(found)}",
                       f"copy {CHECKPOINTS}/ from it to {folder} by hand")  # fmt: skip


def sky_says(*words: str) -> str:
    """Return what SkyPilot's command prints. Raises Unreachable with its message if it fails."""
    return _run((*_sky(), *words))


def _run(words: Sequence[str], *, inside: Path | None = None, seconds: float | None = remote.COMMAND_SECONDS,
         fine: Sequence[int] = (0,), keep: Sequence[int] = ()) -> str:  # fmt: skip
    plain = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": ""}  # SkyPilot may run on another Python
    try:
        done = remote.engine_run(words, inside=inside, variables=plain, seconds=seconds, keep=keep)
    except Unreachable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise Unreachable(
                f"there is no SkyPilot here (no command {words[0]}): {_INSTALL}", "see: sky check"
            ) from error
        raise
    if done.returncode not in fine:
        lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
        raise Unreachable(f"sky {' '.join(words[1:3])}: {lines[-1] if lines else done.returncode}", "see: sky check")
    return done.stdout.decode("utf-8", "replace")


def _sky() -> list[str]:
    """Return SkyPilot's command; ADVISOR_SKY may name that of another environment."""
    return shlex.split(os.environ.get("ADVISOR_SKY", "sky"))


def _words(status: str) -> str:
    return status.lower().replace("_", " ")


def _rate(usd: float) -> str:
    return f"{format_usd_rate(usd)} an hour"
