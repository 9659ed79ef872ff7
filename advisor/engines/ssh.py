"""Runs on a machine reached by `ssh`. Handles are `ssh://HOST/RUN`.

The user's `~/.ssh/config` says how to reach HOST; nobody is asked for a password.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from advisor.engines import remote
from advisor.engines.backend import Job, LaunchRequest, Measuring
from advisor.engines.export.bundle import CALIBRATION, MEASURING_PACKAGES, PLAN_AFTER, SETUP, pinned
from advisor.engines.remote import JOB, RemoteBackend, Unreachable
from advisor.engines.state import RunState
from advisor.engines.templates import script
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.run_records import LaunchRecord
from advisor.store.adopted import PLAN as ADOPTED_PLAN
from advisor.store.disk import disk_errors
from advisor.store.run_folder import CHECKPOINTS, CONFIG, LAUNCH, PLAN, SIGHTING, STDOUT, read_launch, read_run_config
from advisor.trainers.adopted import RECIPE
from advisor.trainers.known import TRAINERS, trainer_of_run
from trainer.budget import BUDGET_NAME
from trainer.token_folder import FILES, META_FILE, DataError, read_meta

PART_BYTES = 8 * 2**20  # largest part of a growing file that one look copies
# files from the other machine never replace these
_OURS = {CONFIG, PLAN, LAUNCH, SIGHTING, STDOUT, JOB, CHECKPOINTS, ADOPTED_PLAN, RECIPE}
_OURS |= {trainer.log_name for trainer in TRAINERS.values()}
ROOT = ".training-advisor"  # in the home folder of the other machine
MARK = b"\x01advisor "  # marks the start of our output: a login file may print something first
_ALIVE_SECONDS = 15  # between ssh's queries to a silent machine; four without an answer end the connection
_QUIET = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveCountMax=4")


class SshBackend(RemoteBackend):
    """Sends export and data, starts the run detached, and copies what was added to the log at each look."""

    engine = "ssh"
    look_seconds = 3.0

    def dryrun(self, job: Job) -> LaunchRequest:
        """Return the export with `start.sh`, and `hand_over` as shell commands to do by hand.

        An adopted command, its data and its environment are already there; its guard has its own environment.
        """
        # The tokens' name on the other machine, which changes with the tokens; None for random tokens.
        data = None
        if job.config is not None and job.config.data.path is not None:
            try:
                read_meta(job.config.data.path)
            except DataError as error:
                raise AdvisorError(error.message, error.hint) from error
            data = hashlib.sha256((Path(job.config.data.path) / META_FILE).read_bytes()).hexdigest()[:16]
        export = remote.exported(job, data_at=f"../../data/{data}" if data else None)
        files, copies = remote.bundle(job, export, {})
        if job.config is not None:  # even if this run needs no calibration, because all runs share an environment
            files[f"{JOB}/requirements.txt"] += "".join(pinned(MEASURING_PACKAGES))
        sent = [(f"data/{data}", ["-C", str(job.config.data.path)])] if data and job.config is not None else []
        return self._request(job.folder, job.record, files, copies, sent)

    def measuring(self, asked: Measuring) -> LaunchRequest:
        """Return the request for a calibration, in the environment that runs use."""
        return self._request(asked.folder, asked.record, remote.measuring_files(asked), remote.sources(), [])

    def _request(self, folder: Path, record: LaunchRecord, files: dict[str, str], copies: Mapping[str, Path],
                 sent: list[tuple[str, list[str]]]) -> LaunchRequest:  # fmt: skip
        """`sent` lists what is sent besides the export: a folder there and the options of its tar."""
        text = files[f"{JOB}/{SETUP}"] + files[f"{JOB}/requirements.txt"]
        environment = hashlib.sha256(text.encode()).hexdigest()[:12]
        start = script("ssh.sh#start_script", root=ROOT, environment=environment, python=script("ssh.sh#python"))
        run = f"{record.place.name}/{re.sub(r'[^A-Za-z0-9._-]', '-', record.id)}"
        # shell lines, to be typed in the export's folder, that send data and export and start the run
        lines = []
        for there, options in [*sent, (f"runs/{_id(run)}", [])]:
            target = f'"$HOME/{ROOT}/{there}"'
            unpack = f"mkdir -p {target} && tar -xf - -C {target}"
            lines.append(f"{shlex.join(['tar', *options, '-cf', '-', '.'])} | {shlex.join([*_ssh(run), unpack])}")
        detached = "setsid nohup bash start.sh < /dev/null >> run/stdout.log 2>&1 &"
        lines.append(shlex.join([*_ssh(run), f'cd "$HOME/{ROOT}/runs/{_id(run)}" && mkdir -p run && {detached}']))
        command = ("sh", "-c", " && ".join(lines))
        return self._ready_request(folder, record, command, {**files, f"{JOB}/start.sh": start}, copies, run=run)

    def offer(self, request: LaunchRequest) -> list[str]:
        """Return GPUs, disk and Python of the host. Raises AdvisorError with everything that is missing."""
        host = _host(request.record.handle.partition("://")[2])
        said = [line.partition(" ") for line in _marked(_remote(host, "check"))[1].decode().splitlines()]
        by: dict[str, list[str]] = {}
        for name, _, words in said:
            by.setdefault(name, []).append(words)
        plan_cards = request.record.gpus if find_gpu(request.record.device_key or "") else 0
        lacking = [f"{tool} is not there" for tool in by.get("missing", [])]
        if len(cards := by.get("card", [])) < plan_cards:
            lacking.append(f"the plan is for {plan_cards} GPUs, and {len(cards) or 'no'} are there")
        if lacking:
            raise AdvisorError(f"{host} cannot run it: {'; '.join(lacking)}", "fix this there, or name another host")
        free = int(by["free"][0]) * 1024
        shown = "; ".join(cards) if cards else "no NVIDIA GPU"
        return [f"{host}: {shown}; {free / 1e9:.0f} GB free on disk; {by['python'][0]}"]

    def hand_over(self, request: LaunchRequest, keep: Sequence[int]) -> str:
        """Send export and data, and start the run."""
        # ssh closes `keep`; a second start is refused by the run's lock on the host.
        run = request.record.handle.partition("://")[2]
        host = _host(run)
        _remote(host, "unpack", f"runs/{_id(run)}", given=_packed(request.folder / JOB), seconds=None)
        if f"{JOB}/{CONFIG}" in request.files and (there := read_run_config(request.folder / JOB).data.path):
            here = Path(read_run_config(request.folder).data.path or "")
            # One of the two tokenizers, and masks only for conversations. The metadata come last, because they confirm
            # the rest. An interrupted transfer continues where it stopped.
            present = [here / file for file in FILES if (here / file).exists()]
            for path in sorted(present, key=lambda path: path.name == META_FILE):
                target = f"data/{Path(there).name}/{path.name}"
                size = int(_marked(_remote(host, "size", target))[0][0])
                if size >= path.stat().st_size:
                    continue
                with disk_errors("send", path), path.open("rb") as source:
                    source.seek(size)
                    done = subprocess.run(_words(host, "append", target), stdin=source, capture_output=True)
                if done.returncode:
                    hint = "the same command continues where it was cut off"
                    raise Unreachable(f"sending {target} to {host}: {remote.last_words(done)}", hint)
        _remote(host, "start", _id(run))
        return run

    def ask(self, run_dir: Path, run: str) -> tuple[RunState, str | None]:
        """Copy new files, and tell from the run's lock whether the run is active."""
        name = trainer_of_run(run_dir).log_name
        while True:
            sizes = [_size(run_dir / each) for each in (name, STDOUT)]
            said = _remote(_host(run), "look", _id(run), *map(str, sizes), str(PART_BYTES), name)
            header, body = _marked(said)
            if header[0] == "gone":
                return RunState.FINISHED, f"{_host(run)} has nothing of it"
            log, some, out, more = map(int, header[1:])
            if log < sizes[0] or len(body) != some + more:
                raise Unreachable(f"the log on {_host(run)} is not the one that came home so far", "look there by hand")
            _append(run_dir / name, body[:some])
            _append(run_dir / STDOUT, body[some:])
            if sizes[0] + some < log or sizes[1] + more < out:
                continue
            if (log > 0 or header[0] == "over") and (launch := read_launch(run_dir)) and launch.commands_first:
                _bring(run, "measured", run_dir)
            if header[0] == "running":
                return RunState.RUNNING, None
            _bring(run, "rest", run_dir, name)
            return RunState.FINISHED, None

    def ask_to_stop(self, run_dir: Path, run: str, *, again: bool) -> None:
        """Send SIGTERM once to run.sh, which passes it on; a second one ends torchrun before its workers have saved."""
        if not again:
            _remote(_host(run), "stop", _id(run))

    def kill(self, run_dir: Path, run: str) -> None:
        """Send SIGKILL to the run and all its child processes."""
        _remote(_host(run), "kill", _id(run))

    def fetch(self, run_dir: Path) -> str:
        """Copy the checkpoints home."""
        run = self._id(run_dir)
        _bring(run, "saved", run_dir)
        return f"checkpoints of {_host(run)} are in {run_dir / CHECKPOINTS}"


def _host(run: str) -> str:
    return run.partition("/")[0]


def _id(run: str) -> str:
    return run.partition("/")[2]


def _ssh(run: str) -> tuple[str, ...]:
    """Return the command that reaches a host; ADVISOR_SSH may name another ssh, or one with options."""
    options = (word for option in (*_QUIET, f"ServerAliveInterval={_ALIVE_SECONDS}") for word in ("-o", option))
    return (*shlex.split(os.environ.get("ADVISOR_SSH", "ssh")), *options, "--", _host(run))


def _words(host: str, section: str, *arguments: str) -> tuple[str, ...]:
    """Return the command that runs a section of `templates/ssh.sh` on the host."""
    here = script("ssh.sh#here", root=ROOT)
    files = " ".join((PLAN_AFTER, CALIBRATION, BUDGET_NAME))
    text = script(f"ssh.sh#{section}", here=here, python=script("ssh.sh#python"), root=ROOT, files=files)
    return (*_ssh(host), shlex.join(["sh", "-c", text, "advisor", *arguments]))


def _remote(
    host: str, section: str, *arguments: str, given: bytes = b"", seconds: float | None = remote.COMMAND_SECONDS
) -> bytes:
    """Return what a section prints on the host; raises Unreachable if ssh fails, AdvisorError if the section does."""
    done = remote.engine_run(_words(host, section, *arguments), given=given, seconds=seconds)
    last = remote.last_words(done).removeprefix("ssh: ")
    if done.returncode == 255:  # ssh(1), EXIT STATUS
        raise Unreachable(f"ssh {host}: {last}", f"try it by hand: ssh {host}")
    if done.returncode:
        raise AdvisorError(f"{host}: {last}", f"look there: ssh {host}")
    return done.stdout


def _marked(said: bytes) -> tuple[list[str], bytes]:
    """Return our words on the marked line, and what follows that line."""
    _, mark, rest = said.partition(MARK)
    if not mark:
        raise Unreachable("the answer from there is not ours", "does a login file end the shell? see: ssh HOST true")
    line, _, body = rest.partition(b"\n")
    return line.decode("ascii", "replace").split(), body


def _packed(folder: Path) -> bytes:
    """Return a folder as the bytes of a tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, arcname=path.name)
    return buffer.getvalue()


def _bring(run: str, section: str, run_dir: Path, *arguments: str) -> None:
    """Unpack what a remote script packs into the run folder, never outside it and never over our own files."""
    with disk_errors("bring home to", run_dir), tempfile.TemporaryDirectory(dir=run_dir, prefix=".coming-") as name:
        words = _words(_host(run), section, _id(run), *arguments)
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL) as child:  # fmt: skip
            assert child.stdout is not None
            if not any(MARK in line for line in child.stdout):  # passes over what a login file prints
                raise Unreachable(f"ssh {_host(run)}: no answer", f"try it by hand: ssh {_host(run)}")
            try:
                with tarfile.open(fileobj=child.stdout, mode="r|") as tar:
                    tar.extractall(name, filter="data")
            except tarfile.TarError as error:
                raise Unreachable(f"what came from {_host(run)} is not whole: {error}", "try again") from error
        if child.returncode:
            raise Unreachable(f"ssh {_host(run)}: the files are incomplete", "try again")
        for path in list(Path(name).iterdir()):
            if path.name in _OURS and not (section == "saved" and path.name == CHECKPOINTS):
                continue
            if (run_dir / path.name).is_dir():
                shutil.rmtree(run_dir / path.name)
            os.replace(path, run_dir / path.name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _append(path: Path, more: bytes) -> None:
    if more:
        with disk_errors("write", path), path.open("ab") as file:
            file.write(more)
