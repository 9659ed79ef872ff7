"""Two hosts (network namespaces joined by a virtual cable) share one model; one is lost, and both go on."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from trainer.runlog import load_run_log, read_records
from trainer.schema import CheckpointConfig, EvalConfig, RunConfig, TelemetryConfig, dump_config, make_shape

pytestmark = pytest.mark.long

HOSTS = ("10.87.41.1", "10.87.41.2")


def ip(*words) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@pytest.fixture
def hosts():
    """Names of two namespaces, each with its end of the cable."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = [f"advisor-{os.getpid()}-{number}" for number in (0, 1)]
    cable = [f"adv{os.getpid() % 100_000}{end}" for end in "ab"]
    try:
        try:
            ip("netns", "add", names[0])
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        ip("netns", "add", names[1])
        ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        for name, end, address in zip(names, cable, HOSTS, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "address", "add", f"{address}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield list(zip(names, cable, HOSTS, strict=True))
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=30)


def start(hosts, folder) -> list[subprocess.Popen]:
    """torchrun on both hosts, one process each."""
    processes = []
    for rank, (name, cable, _) in enumerate(hosts):
        command = ["ip", "netns", "exec", name, sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        command += ["--node-rank", str(rank), "--nproc-per-node", "1", "--master-addr", HOSTS[0]]
        command += ["--master-port", "29871", "-m", "trainer", str(folder / "run.yaml"), "--out", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": cable}
        output = open(folder / f"host-{rank}.txt", "ab")  # noqa: SIM115 - the process keeps it
        processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
    return processes


def saved_steps(folder) -> list[int]:
    log = folder / "log.jsonl"
    return [r["step"] for r in read_records(log)[0] if r["kind"] == "checkpoint"] if log.exists() else []


def wait_for(condition, seconds, what) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def lose(host, process) -> None:
    """End everything that runs on a host at once: torchrun's workers have sessions of their own."""
    listed = subprocess.run(["ip", "netns", "pids", host[0]], capture_output=True, text=True, timeout=30)
    for pid in listed.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    process.wait(30)


def test_a_lost_host_costs_the_steps_since_the_last_checkpoint(hosts, tmp_path):
    settings = RunConfig(
        model=make_shape("gpt2", depth=2, width=64, heads=2, vocab_size=65, seq_len=32),
        steps=600,
        micro_batch=2,
        device="cpu",
        sharding="full",
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_steps=20, background=True),
        telemetry=TelemetryConfig(hz=0),
    )
    (tmp_path / "run.yaml").write_text(dump_config(settings))
    processes = start(hosts, tmp_path)
    try:
        wait_for(lambda: saved_steps(tmp_path), 180, "no checkpoint")
        lose(hosts[1], processes[1])  # the second host is gone, its half of the model with it
        wait_for(lambda: processes[0].poll() is not None, 120, "the first host noticed nothing")
        assert processes[0].returncode != 0
        lost = load_run_log(tmp_path / "log.jsonl").steps
        newest = saved_steps(tmp_path)[-1]
        assert newest <= lost[-1]["step"] < settings.steps
        processes = start(hosts, tmp_path)
        wait_for(lambda: all(p.poll() is not None for p in processes), 300, "the second attempt did not end")
    finally:
        for host, process in zip(hosts, processes, strict=True):
            lose(host, process)
    assert [p.returncode for p in processes] == [0, 0]
    log = load_run_log(tmp_path / "log.jsonl")
    assert log.final["outcome"] == "completed" and log.header["world_size"] == 2
    assert log.header["resumed_from_step"] >= newest
    again = {r["step"]: r["loss"] for r in log.steps}
    repeated = [r for r in lost if r["step"] > log.header["resumed_from_step"]]
    assert all(again[r["step"]] == r["loss"] for r in repeated)
    assert sorted(again) == list(range(1, settings.steps + 1))
