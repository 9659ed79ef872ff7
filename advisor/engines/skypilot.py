"""Runs on machines that SkyPilot rents: its managed jobs. Handles are `skypilot://NAME`, a name that is ours to give.

SkyPilot is asked by its command, in the formats that it makes for programs: `-o json`, and what the job printed. The
run folder there is a bucket that outlives the machines; what comes home by itself is the log.
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from advisor.engines.backend import Job, LaunchRequest
from advisor.engines.export.cloud import LOG_LINE, SKY, bucket, skypilot
from advisor.engines.remote import (
    COMMAND_SECONDS,
    JOB,
    RemoteBackend,
    Unreachable,
    bundle,
    engine_run,
    engine_says,
    exported,
)
from advisor.engines.state import RunState
from advisor.errors import AdvisorError
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.run_folder import CHECKPOINTS, LOG, PLAN, STDOUT
from advisor.units import format_usd_rate

LAST_LINES, MORE_LINES = 1000, 8  # that a look asks for; times as many where that was too few
# sky.jobs.ManagedJobStatus of 0.14; what is not among these is over
WAITS = {"PENDING", "SUBMITTED", "STARTING", "RECOVERING"}
RUNS = {"RUNNING", "WINDING_DOWN", "CANCELLING"}
TOLD_BY_LOG = {"SUCCEEDED", "FAILED"}  # of these ends the log says more
LOG_STATUS = (0, 100, 101)  # of `sky jobs logs`: the job succeeded, failed, goes on (its --help)
_COPY = {"S3": ("aws", "s3", "sync", "--only-show-errors"), "GCS": ("gcloud", "storage", "rsync", "--recursive")}
DATA_AT = "/data"
SAME_PRICE = 0.005
_INSTALL = "pip install 'training-advisor[skypilot]', or name another environment's by ADVISOR_SKY=PATH/sky"


def follow(run_dir: Path, last_lines: Callable[[int], str], *, over: bool) -> None:
    """Bring home what a job has printed since the last look; `last_lines` gives so many of its last lines, 0: all.

    What is here already is found again by the log's last line. A machine that has only just begun prints the log from
    its start: until it has passed what is here, nothing changes.
    """
    here, asked = _last_line(run_dir / LOG), LAST_LINES
    while here is not None:
        lines = last_lines(asked).splitlines()
        if (new := _after(lines, here)) is not None:
            for name, mine in zip((LOG, STDOUT), _parted(new if over else _up_to_the_log(new)), strict=True):
                with disk_errors("write", run_dir / name), (run_dir / name).open("a", encoding="utf-8") as file:
                    file.writelines(f"{line}\n" for line in mine)
            return
        if len(lines) < asked:
            break  # it was all
        asked *= MORE_LINES
    bring(run_dir, last_lines(0), over=over)


def bring(run_dir: Path, printed: str, *, over: bool) -> None:
    """Keep all that a job has printed: the lines of its log, and the rest.

    A machine that has only just begun has printed less than is here already: then nothing changes.
    """
    lines = printed.splitlines()
    for name, mine in zip((LOG, STDOUT), _parted(lines if over else _up_to_the_log(lines) or lines), strict=True):
        text, path = "".join(f"{line}\n" for line in mine), run_dir / name
        with disk_errors("read", path):
            size = path.stat().st_size if path.exists() else 0
        if len(text.encode()) > size:
            write_atomic(path, text)


def _parted(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """The lines of the log, and the others."""
    log: list[str] = []
    rest: list[str] = []
    for line in lines:
        _, mark, words = line.partition(LOG_LINE)  # SkyPilot puts task and node before each line
        (log if mark else rest).append(words or line)
    return log, rest


def _up_to_the_log(lines: Sequence[str]) -> Sequence[str]:
    """Without what follows the last line of the log, by which the next look finds its place; none without one."""
    last = max((place for place, line in enumerate(lines) if LOG_LINE in line), default=-1)
    return lines[: last + 1]


def _after(lines: Sequence[str], here: str) -> Sequence[str] | None:
    """What follows a line of the log; None where it is not among them."""
    places = [place for place, line in enumerate(lines) if line.endswith(LOG_LINE + here)]
    return lines[places[-1] + 1 :] if places else None


def _last_line(path: Path) -> str | None:
    """The last line of a file; None: it has none."""
    if not path.exists():
        return None
    with disk_errors("read", path):
        lines = path.read_text(encoding="utf-8").splitlines()
    return lines[-1] if lines else None


class SkyBackend(RemoteBackend):
    """Submits the exported task as a managed job, which recovers from preemption and gives its machines back."""

    engine = "skypilot"
    look_seconds = 60.0  # each asks the job's machine, by way of SkyPilot's controller

    def dryrun(self, job: Job) -> LaunchRequest:
        """`sky jobs launch task.yaml` in the export; bucket and job are named after the run."""
        if job.config is None:
            hint = f"advisor export PLAN.yaml --to {self.engine} --out DIR; afterwards compare what came home"
            raise AdvisorError(f"an adopted command is not started on {self.engine} from here", hint, exit_code=2)
        export = exported(job, data_at=DATA_AT)
        files, copies = bundle(job, export, skypilot(export))
        command = (*_sky(), "jobs", "launch", "--yes", "--detach-run", SKY)
        handle = f"{self.engine}://{export.name}"
        record = replace(job.record, command=command, handle=handle, pid=None, process_started=None)
        return LaunchRequest(folder=job.folder, command=command, environment={}, files=files, copies=copies,
                             inside=JOB, record=record)  # fmt: skip

    def offer(self, request: LaunchRequest) -> list[str]:
        """What it would pay beside what the plan reckons with; AdvisorError where all is dearer than it may pay.

        Prices are those of SkyPilot's own catalog, read without renting and without an account.
        """
        task = asked(request)
        offers = [offer for place in task.places for offer in _offers(place, task)]
        if not offers:
            where = ", ".join(task.places)
            raise AdvisorError(
                f"SkyPilot's catalog has no {task.machine} in {where}", f"see: sky gpus list {task.card}"
            )
        return [price_words(offers, task)]

    def hand_over(self, request: LaunchRequest) -> str:
        """Submit it; this takes minutes where SkyPilot has no controller of jobs yet."""
        _run(request.command, inside=request.folder / JOB, seconds=None)
        return request.record.handle.partition("://")[2]

    def find(self, run_dir: Path) -> str | None:
        """Never lost: the name was ours to give."""
        return None

    def ask(self, run_dir: Path, run: str) -> tuple[RunState, str | None]:
        """By its queue; what a job that has begun has printed comes home at each look, before it counts as over."""
        jobs = [job for job in json.loads(sky_says("jobs", "queue", "--all", "-o", "json")) if job["job_name"] == run]
        if not jobs:
            return RunState.FINISHED, "SkyPilot has no job of this name"
        job = max(jobs, key=lambda job: job["job_id"])  # a run that was resumed has several
        status, reason = job["status"], job.get("failure_reason")
        if status in WAITS:
            return RunState.QUEUED, f"SkyPilot says {_words(status)}"
        words = (*_sky(), "jobs", "logs", "--no-follow", str(job["job_id"]))
        follow(run_dir, lambda lines: _run((*words, "--tail", str(lines)), fine=LOG_STATUS), over=status not in RUNS)
        if status in RUNS:
            return RunState.RUNNING, None
        said = None if status in TOLD_BY_LOG else f"SkyPilot says {_words(status)}"
        return RunState.FINISHED, f"{said}: {reason}" if said and reason else said

    def ask_to_stop(self, run_dir: Path, run: str, *, again: bool) -> None:
        """Cancel it once what it has written is in the bucket."""
        if not again:
            sky_says("jobs", "cancel", "--yes", "--graceful", "--name", run)

    def kill(self, run_dir: Path, run: str) -> None:
        """Cancel it now."""
        sky_says("jobs", "cancel", "--yes", "--name", run)

    def fetch(self, run_dir: Path) -> str:
        """Copy the checkpoints from the run's bucket, by the command of the cloud that it is in."""
        name = bucket(self._id(run_dir))
        command = copy_command(sky_says("storage", "ls", "--verbose"), name, run_dir / CHECKPOINTS)
        (run_dir / CHECKPOINTS).mkdir(exist_ok=True)
        engine_says(command, seconds=None)
        return f"checkpoints of the bucket {name} are in {run_dir / CHECKPOINTS}"


def copy_command(listed: str, name: str, folder: Path) -> tuple[str, ...]:
    """What copies a bucket's checkpoints to a folder, by SkyPilot's list of buckets.

    AdvisorError for a bucket that it does not list, and for one in a store whose command is not known here.
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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a task asks for, and what its plan reckons with. Dollars are per hour and node."""

    card: str  # as SkyPilot calls it
    a_node: int
    spot: bool
    places: Sequence[str]  # any of these
    most_usd: float | None  # None: nothing limits it
    planned_usd: float | None  # None: the plan has no price
    provider: str | None  # that the plan's price is of; None: nobody's, it was given
    price_source: str

    @property
    def machine(self) -> str:
        """One node, in words."""
        return f"{'spot' if self.spot else 'on-demand'} machine with {self.a_node} x {self.card}"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A machine of SkyPilot's catalog, in one region."""

    cloud: str
    region: str
    instance: str
    usd: float  # per hour

    @property
    def words(self) -> str:
        """Where, which, for how much."""
        return f"{format_usd_rate(self.usd)} an hour on {self.cloud} in {self.region} ({self.instance})"


def asked(request: LaunchRequest) -> Asked:
    """What a request asks SkyPilot for, by its own text."""
    task, plan = (yaml.safe_load(request.files[name]) for name in (f"{JOB}/{SKY}", PLAN))
    resources = task["resources"]
    [(card, a_node)] = resources["accelerators"].items()
    hourly = request.record.usd_per_hour
    return Asked(
        card=card,
        a_node=a_node,
        spot=resources["use_spot"],
        places=[place["infra"] for place in resources.get("any_of", [resources])],
        most_usd=resources.get("max_hourly_cost"),
        planned_usd=hourly / task["num_nodes"] if hourly else None,
        provider=plan["chosen"]["offer"]["provider"],
        price_source=plan["chosen"]["offer"]["source"],
    )


def price_words(offers: Sequence[Offer], task: Asked) -> str:
    """The cheapest offer beside the plan's price, with the reason of a difference.

    AdvisorError where every one is dearer than the task may pay.
    """
    cheapest, dearest = (pick(offers, key=lambda offer: offer.usd) for pick in (min, max))
    if task.most_usd is not None and cheapest.usd > task.most_usd:
        raise AdvisorError(
            f"the cheapest {task.machine} costs {cheapest.words}, and the plan pays {_rate(task.most_usd)} at most: "
            f"plan at its price, advisor plan --price {cheapest.usd / task.a_node:.4g}",
            "or name other places: --on skypilot:CLOUD/REGION,...",
        )
    most = f", elsewhere up to {_rate(dearest.usd)}" if dearest.usd > cheapest.usd else ""
    said = f"SkyPilot's catalog: {task.machine} for {cheapest.words}{most}"
    if not task.planned_usd:
        return f"{said}; the plan has no price: --budget cannot be kept by it"
    off = cheapest.usd / task.planned_usd - 1.0
    beside = f"{said}; the plan reckons with {_rate(task.planned_usd)}"
    if abs(off) < SAME_PRICE:
        return f"{beside}, the same"
    return f"{beside}, so it costs {abs(off):.0%} {'more' if off > 0 else 'less'}: {_why(cheapest, task)}"


def _why(cheapest: Offer, task: Asked) -> str:
    if task.provider is None:
        return f"the plan's price is {task.price_source}"
    if task.provider != cheapest.cloud.lower():
        return f"the plan's price is {task.provider}'s"
    return f"the plan's price is {task.provider}'s of another day or region ({task.price_source})"


def offers_of(catalog: Mapping[str, list[dict[str, Any]]], task: Asked) -> list[Offer]:
    """The machines in what `sky gpus list -o json` says that a task could be given; those without a price are none."""
    name = "spot_price" if task.spot else "price"
    return [
        Offer(cloud=row["cloud"], region=row["region"], instance=row["instance_type"], usd=row[name])
        for row in catalog.get(task.card, [])
        if row["accelerator_count"] == task.a_node and row[name] and math.isfinite(row[name])
    ]


def _offers(place: str, task: Asked) -> list[Offer]:
    where = () if place == "*" else ("--infra", place)
    said = sky_says("gpus", "list", f"{task.card}:{task.a_node}", "--all-regions", "-o", "json", *where)
    return offers_of(json.loads(said), task)


def sky_says(*words: str) -> str:
    """What SkyPilot's command prints; Unreachable, with its own words, where it fails."""
    return _run((*_sky(), *words))


def _run(words: Sequence[str], *, inside: Path | None = None, seconds: float | None = COMMAND_SECONDS,
         fine: Sequence[int] = (0,)) -> str:  # fmt: skip
    plain = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": ""}  # ours is of another Python than SkyPilot's may be
    try:
        done = engine_run(words, inside=inside, variables=plain, seconds=seconds)
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
    """SkyPilot's command; ADVISOR_SKY may name that of another environment."""
    return shlex.split(os.environ.get("ADVISOR_SKY", "sky"))


def _words(status: str) -> str:
    return status.lower().replace("_", " ")


def _rate(usd: float) -> str:
    return f"{format_usd_rate(usd)} an hour"
