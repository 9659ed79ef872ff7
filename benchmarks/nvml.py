"""Rate, cost and recorded values of `advisor watch --gpus` beside a busy program, with two recorded GPUs.

    python benchmarks/nvml.py [--seconds 60] [--hz 100]

The driver's library is that of the tests (tests/advisor/nvml/nvml.c). The real nvidia-ml-py queries it, it records each
answer, and the table is compared with these. The figures include neither a real driver's own time nor the start-up. In
the second run, one of the GPUs is lost halfway, and its driver takes 50 ms to say so. A terminal is provided, so that
the live table is drawn. For comparison, a second process only sleeps equally often.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import pty
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.advisor.nvml import driver  # noqa: E402

BUSY = "import numpy as np\na = np.ones((400, 400))\nwhile True: a = a @ a * 1e-3"
SLEEPS = "import time\nwhile True: time.sleep(1 / {hz})"


def seconds_used(reader: psutil.Process, sleeping: psutil.Process) -> dict[str, float]:
    """Return the processor seconds so far of the command's living processes and of the process that sleeps."""
    found = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        for name, one in (("sleeping", sleeping), ("reader", reader), *(("sampler", one) for one in reader.children())):
            if one.status() != psutil.STATUS_ZOMBIE:
                found[name] = sum(one.cpu_times()[:2])
    return found


def monitor(folder: Path, seconds: float, hz: float, lines: tuple[str, ...]) -> None:
    """Run the command once and print the result."""
    path, answers = folder / "m.csv", folder / "answers"
    env = driver.environment(driver.table(folder / "cards.txt", "titan_x", *lines), answers) | {"TERM": "xterm"}
    command = ["-m", "advisor", "monitor", "--hz", str(hz), "--for", f"{seconds}s", "--csv", str(path), "--json"]
    screen, terminal = pty.openpty()
    floor = psutil.Popen([sys.executable, "-c", SLEEPS.format(hz=hz)])
    child = subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.PIPE, stderr=terminal, text=True)
    drain = threading.Thread(target=_drain, args=(screen,), daemon=True)
    drain.start()
    try:
        process = psutil.Process(child.pid)
        while not path.exists() or path.stat().st_size < 2000:  # it has begun to read
            time.sleep(0.1)
        began, first = time.monotonic(), seconds_used(process, floor)
        while len(now := seconds_used(process, floor)) == len(first):
            last, took = now, time.monotonic() - began
            time.sleep(0.5)
        seen = json.loads(child.communicate()[0])
    finally:
        floor.kill()
        child.kill()
    shares = ", ".join(f"{name} {100 * (last[name] - first[name]) / took:.2f} %" for name in last)
    print(f"{seen['hz']:.2f} readings a second of each card; of a core: {shares}")
    with path.open() as file:
        rows = list(csv.DictReader(file))
    given = driver.answers(answers)
    for card in ("0", "1"):
        power = [
            f"{(int(value) + 50) // 100 / 10:.1f}" for number, name, value in given if (number, name) == (card, "power")
        ]
        table = [row[f"gpu{card}_power_w"] for row in rows if row[f"gpu{card}_power_w"]]
        word = "all, in their order" if table == power[1:] else "NOT the same"  # the first read checks that it answers
        silent = seen["cards"][int(card)]["readings"]["silent_seconds"]
        end = f", then no answer for {silent:.1f} s" if silent is not None else ""
        print(f"  card {card}: {len(table)} of {len(power) - 1} readings of power in the table ({word}){end}")


def _drain(screen: int) -> None:
    while os.read(screen, 4096):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--hz", type=float, default=100.0)
    options = parser.parse_args()
    if driver.COMPILER is None:
        sys.exit("no C compiler (cc, on Linux) to build the driver library with")
    busy = subprocess.Popen(
        [sys.executable, "-c", BUSY], env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    )
    half = options.seconds / 2
    try:
        for words, lines in (
            ("two cards", ()),
            ("one is lost halfway", (f"{half} 1 delay_us 50000", f"{half} 1 * !15")),
        ):
            load = os.getloadavg()[0]
            print(f"{words} (load of the machine {load:.1f} on {os.cpu_count()} processors):", flush=True)
            with tempfile.TemporaryDirectory() as name:
                monitor(Path(name), options.seconds, options.hz, lines)
    finally:
        busy.kill()


if __name__ == "__main__":
    main()
