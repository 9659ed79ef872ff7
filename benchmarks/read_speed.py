"""Measures how fast line formats are read on one core, against a simple loop of one regular expression per line.

Writes synthetic logs in the style of nanochat, nanoGPT, llm.c and of an unknown format, which the log has to teach. It
reads each with `read_run` (everything: events, facts, table) and with the loop (only records), and prints MB/s, their
ratio and the peak of resident memory. Asked of the reader: 5 MB/s, and at most 6 times the file in memory.

    python benchmarks/read_speed.py [--megabytes 64] [--huge]       # --huge: also parts of a log of 2 GB
    python benchmarks/read_speed.py --analyze [--megabytes 20]      # seconds of `advisor analyze` of five kinds of logs

The second line runs the command in a process of its own, and names the processor time beside the time that passed, for
machines on which others work, too. Asked of it: 5 s for 20 MB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

BLOCK_STEPS = 20_000


def nanochat_line(step: int, draw: Callable[[], float]) -> str:
    """Return one step and, every 250 steps, a validation."""
    line = (
        f"step {step:05d}/999999 ({step / 9999.99:.2f}%) | loss: {3 + draw():.6f} | grad norm: {draw():.4f} | lrm: 1.00"
        f" | dt: {13800 + 50 * draw():.2f}ms | tok/sec: {37000 + int(1000 * draw()):,} | mfu: {12 + draw():.2f}"
        f" | total time: {step * 0.23:.2f}m\n"
    )
    return line if step % 250 else f"Step {step:05d} | Validation bpb: {1 + draw():.4f}\n" + line


def nanogpt_line(step: int, draw: Callable[[], float]) -> str:
    line = f"iter {step}: loss {3 + draw():.4f}, time {60 + draw():.2f}ms, mfu {30 + draw():.2f}%\n"
    if step % 250:
        return line
    return f"step {step}: train loss {3 + draw():.4f}, val loss {3 + draw():.4f}\nsaving checkpoint to out\n" + line


def llmc_line(step: int, draw: Callable[[], float]) -> str:
    line = (
        f"step {step:4d}/9999999 | loss {3 + draw():.6f} ({4 * draw() - 2:+.2f}z)| norm {draw():.4f}"
        f" ({4 * draw() - 2:+.2f}z)| lr {1e-4 + 1e-4 * draw():.2e} | {4100 + 50 * draw():.2f} ms"
        f" | {32 + draw():.1f}% bf16 MFU | {123000 + int(1000 * draw())} tok/s\n"
    )
    return line if step % 250 else f"val loss {3 + draw():.6f}\n" + line


def unknown_line(step: int, draw: Callable[[], float]) -> str:
    """Return a line of a format that no reader declares: padded fields between vertical lines."""
    line = (
        f"[progress] step {step:7d} | seq 1024 | tokens  65536 | loss {3 + draw():8.4f} | grad  {draw():.4f}"
        f" | lr  {3e-5 + 1e-5 * draw():.3e}\n"
    )
    return line if step % 250 else f"[progress] step {step:7d} | validation loss {3 + draw():8.4f}\n" + line


STYLES = {
    "generic": (
        unknown_line,
        re.compile(
            r"\[progress\] step +(\d+) \| seq (\d+) \| tokens +(\d+) \| loss +([\d.]+|nan) \| grad +([\d.]+|nan)"
            r" \| lr +([\d.e+-]+)"
        ),
    ),
    "nanochat": (
        nanochat_line,
        re.compile(
            r"step (\d+)/(\d+) \([\d.]+%\) \| loss: ([\d.]+|nan) \| grad norm: ([\d.]+|nan) \| lrm: ([\d.]+)"
            r" \| dt: ([\d.]+)ms \| tok/sec: ([\d,]+) \| mfu: ([\d.]+) \| total time: ([\d.]+)m"
        ),
    ),
    "nanogpt": (nanogpt_line, re.compile(r"iter (\d+): loss ([\d.]+|nan), time ([\d.]+)ms, mfu (-?[\d.]+)%")),
    "llmc_stdout": (
        llmc_line,
        re.compile(
            r"step +(\d+)/(\d+) \| loss +([\d.]+|nan) \([^)]*z\)\| norm +([\d.]+|nan) \([^)]*z\)\| lr ([\d.e+-]+)"
            r" \| ([\d.]+) ms \| ([\d.]+)% \w+ MFU \| (\d+) tok/s"
        ),
    ),
}


def trainer_line(step: int, draw: Callable[[], float]) -> str:
    """Return a state of the Hugging Face Trainer's bar, which overwrites the last; every tenth step also its row."""
    clock = f"{step // 14400}:{step // 240 % 60:02d}:{step // 4 % 60:02d}"
    bar = f"\r{step // 4000:3d}%|{'█' * (step // 40_000):10}| {step}/400000"
    line = f"{bar} [{clock}<27:00:00,  {3.9 + draw() / 5:.2f}it/s]"
    row = {"loss": round(3 + draw(), 4), "grad_norm": draw(), "learning_rate": 5e-5 * draw(), "epoch": step / 4e5}
    return line if step % 10 else f"{line}\n{row}\n"


def megatron_line(step: int, draw: Callable[[], float]) -> str:
    return (
        f" iteration {step:8d}/  999999 | consumed samples: {256 * step:12d} | elapsed time per iteration (ms):"
        f" {500 + 10 * draw():.1f} | learning rate: {3e-4 * draw():.6E} | global batch size:   256 | lm loss:"
        f" {3 + draw():.6E} | loss scale: 1.0 | grad norm: {draw():.3f} | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |\n"
    )


def json_line(step: int, draw: Callable[[], float]) -> str:
    row = {"step": step, "loss": 3 + draw(), "lr": 3e-4, "grad_norm": draw(), "step_time": 0.5 + draw() / 100}
    return json.dumps(row) + "\n"


def troubled_line(step: int, draw: Callable[[], float]) -> str:
    """Return a step of nanoGPT; every fifth step also stack traces and warnings of which hardly two are alike."""
    word = [f"{chr(97 + int(26 * draw()))}{chr(97 + int(26 * draw()))}_{int(1e6 * draw()):x}" for _ in range(8)]
    frames = "".join(
        f'  File "/usr/lib/{one}.py", line {int(900 * draw())}, in {one}\n    self.{one}()\n' for one in word
    )
    trouble = f"Traceback (most recent call last):\n{frames}ConnectionError: {word[0]}: Max retries exceeded\n"
    warning = f"WARNING 10:{step % 60:02d}:00 [{word[1]}.py:{step % 900}] worker {word[2]} retries {word[3]}\n"
    return nanogpt_line(step, draw) + ("" if step % 5 else trouble + warning)


KINDS = {
    **{"nanogpt.log": nanogpt_line, "trainer.log": trainer_line, "megatron.log": megatron_line},
    **{"metrics.jsonl": json_line, "troubled.log": troubled_line},
}


def analyze(path: Path) -> tuple[float, float]:
    """Return the seconds that passed and the processor time of `advisor analyze` of a log, from start to end."""
    begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = (sys.executable, "-m", "advisor", "analyze", path, "--json")
    # modules are compiled once, as they are where the program is installed
    environment = os.environ | {"ADVISOR_HOME": str(path.parent), "PYTHONPYCACHEPREFIX": str(path.parent / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_analyses(folder: Path, size: int, repeats: int) -> None:
    """Print the median seconds of `advisor analyze` of each kind of log."""
    print(f"{'log':14} {'passed':>8} {'processor':>10}")
    write(folder / "short.log", nanogpt_line, 10_000)
    analyze(folder / "short.log")
    for name, line in KINDS.items():
        write(folder / name, line, size)
        passed, used = zip(*(analyze(folder / name) for _ in range(repeats)), strict=True)
        print(f"{name:14} {statistics.median(passed):6.1f} s {statistics.median(used):8.1f} s")


def blocks(line: Callable[[int, Callable[[], float]], str], seed: int = 1) -> Iterator[bytes]:
    """Yield blocks of lines without end, which repeat 10,007 random numbers."""
    draw = random.Random(seed).random
    values = itertools.cycle([draw() for _ in range(10_007)])
    for first in itertools.count(0, BLOCK_STEPS):
        lines = (line(step, values.__next__) for step in range(first, first + BLOCK_STEPS))
        yield "".join(lines).encode()


def write(path: Path, line: Callable[[int, Callable[[], float]], str], size: int) -> int:
    """Write a log of at least `size` bytes and return its size in bytes."""
    with path.open("wb") as out:
        for block in blocks(line):
            out.write(block)
            if out.tell() >= size:
                return out.tell()
    return 0


def line_by_line(path: Path, pattern: re.Pattern[str]) -> int:
    """Read a log in the obvious way: open it, match each line, convert each group."""
    rows = []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if match := pattern.match(line):
                rows.append([float(group.replace(",", "")) for group in match.groups()])
    return len(rows)


def seconds_of(work: Callable[[], object], repeats: int) -> float:
    """Return the fastest of several runs, because the others were disturbed."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def compare(folder: Path, style: str, size: int, repeats: int) -> tuple[float, float]:
    """Return the MB/s of the reader and of the loop."""
    from advisor.readers.read import read_run

    path = folder / f"{style}.log"
    written = write(path, STYLES[style][0], size)
    table = read_run(path)
    assert table.format == style, table.format
    assert table.rows == line_by_line(path, STYLES[style][1]), "the loop and the reader disagree"
    ours = written / seconds_of(lambda: read_run(path), repeats) / 1e6
    loop = written / seconds_of(lambda: line_by_line(path, STYLES[style][1]), repeats) / 1e6
    path.unlink()
    return ours, loop


def read_huge(folder: Path, size: int) -> None:
    """Read one log of which only parts are read, and show that memory use does not grow with it."""
    from advisor.readers.read import read_run

    path = folder / "huge.log"
    written = write(path, nanogpt_line, size)
    start = time.perf_counter()
    table = read_run(path)
    seconds = time.perf_counter() - start
    print(
        f"{written / 1e9:.2f} GB in {seconds:.0f} s: {table.rows:,} rows, last step {table.last_step:.0f},"
        f" peak {peak_mib():.0f} MiB resident; {'; '.join(table.notes)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, help="of each log: 64, or 20 with --analyze")
    parser.add_argument("--analyze", action="store_true", help="time the command `advisor analyze` instead")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--huge", action="store_true", help="also read one log of 2 GB, in parts")
    arguments = parser.parse_args()
    size = 1_000_000 * (arguments.megabytes or (20 if arguments.analyze else 64))
    if arguments.analyze:
        with tempfile.TemporaryDirectory() as name:
            time_analyses(Path(name), size, arguments.repeats)
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'style':12} {'read_run':>10} {'per line':>10} {'ratio':>6}")
        for style in STYLES:
            ours, loop = compare(folder, style, size, arguments.repeats)
            print(f"{style:12} {ours:6.0f} MB/s {loop:6.0f} MB/s {ours / loop:6.1f}")
        print(f"peak {peak_mib():.0f} MiB resident, both ways together")
        if arguments.huge:
            read_huge(folder, 2_000_000_000)


if __name__ == "__main__":
    main()
