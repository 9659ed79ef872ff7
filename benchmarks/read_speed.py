"""Measures how fast line formats are read on one core, against a simple loop of one regular expression per line.

Writes synthetic logs in the style of nanochat, nanoGPT, llm.c and of an unknown format, which the log has to teach. It
reads each with `read_run` (everything: events, facts, table) and with the loop (only records), and prints MB/s, their
ratio and the peak of resident memory. Asked of the reader: 5 MB/s, and at most 6 times the file in memory.

    python benchmarks/read_speed.py [--megabytes 64] [--huge]       # --huge: also parts of a log of 2 GB
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import re
import resource
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


def blocks(style: str, seed: int = 1) -> Iterator[bytes]:
    """Yield blocks of lines without end, which repeat 10,007 random numbers."""
    draw, line = random.Random(seed).random, STYLES[style][0]
    values = itertools.cycle([draw() for _ in range(10_007)])
    for first in itertools.count(0, BLOCK_STEPS):
        lines = (line(step, values.__next__) for step in range(first, first + BLOCK_STEPS))
        yield "".join(lines).encode()


def write(path: Path, style: str, size: int) -> int:
    """Write a log of at least `size` bytes and return its size in bytes."""
    with path.open("wb") as out:
        for block in blocks(style):
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
    written = write(path, style, size)
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
    written = write(path, "nanogpt", size)
    start = time.perf_counter()
    table = read_run(path)
    seconds = time.perf_counter() - start
    print(
        f"{written / 1e9:.2f} GB in {seconds:.0f} s: {table.rows:,} rows, last step {table.last_step:.0f},"
        f" peak {peak_mib():.0f} MiB resident; {'; '.join(table.notes)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--huge", action="store_true", help="also read one log of 2 GB, in parts")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'style':12} {'read_run':>10} {'per line':>10} {'ratio':>6}")
        for style in STYLES:
            ours, loop = compare(folder, style, arguments.megabytes * 1_000_000, arguments.repeats)
            print(f"{style:12} {ours:6.0f} MB/s {loop:6.0f} MB/s {ours / loop:6.1f}")
        print(f"peak {peak_mib():.0f} MiB resident, both ways together")
        if arguments.huge:
            read_huge(folder, 2_000_000_000)


if __name__ == "__main__":
    main()
