"""Mutate recorded logs and read them: only AdvisorError may be raised, and nothing may hang or use too much memory.

    python benchmarks/fuzz_readers.py --count 100000 --seed 1    # about 15 minutes on two cores
    python benchmarks/fuzz_readers.py --only 4711 --seed 1       # one input again, with its traceback

Each input depends only on its number and the seed, so a failure can be repeated. Workers are child processes with 1 GiB
for their data (Linux). An input that takes longer than `--limit` seconds is a failure, and a worker that does not even
answer its alarm clock is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from mutations import MUTATIONS

ROOT = Path(__file__).parents[1]
CORPUS = (ROOT / "tests" / "advisor" / "recorded" / "logs", ROOT / "tests" / "recorded")
DATA_BYTES = 1 << 30
LARGEST = 1 << 18  # for a mutated input, so that 100,000 inputs take minutes
SUFFIXES = (
    "",
    ".log",
    ".txt",
    ".out",
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".yaml",
    ".md",
    ".parquet",
    ".tfevents.1.x",
    ".gz",
)


def load_corpus(folders: list[Path]) -> list[bytes]:
    """Return the recordings, each cut to at most `LARGEST` bytes."""
    files = sorted(path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [path.read_bytes()[:LARGEST] for path in files]


def make_input(seed: int, index: int, corpus: list[bytes]) -> tuple[bytes, str, random.Random]:
    """Return input number `index`: its bytes, the end of its name, and the generator for further choices."""
    rng = random.Random(f"{seed}:{index}")
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(MUTATIONS)(data, rng, corpus)[: 4 * LARGEST]
    return data, rng.choice(SUFFIXES), rng


def read(path: Path, rng: random.Random, corpus: list[bytes]) -> str:
    """Read a file in one of a user's ways and return the outcome in a word. Raises whatever the readers raise."""
    from advisor.errors import AdvisorError
    from advisor.readers.config_names import read_config
    from advisor.readers.read import READERS, read_run
    from advisor.readers.telemetry_file import read_telemetry

    try:
        way = rng.random()
        if way < 0.1:
            read_config(path)
            return "configuration"
        if way < 0.15:
            read_telemetry(path)
            return "telemetry"
        if way < 0.25:
            table = _read_folder(path, rng, corpus)
        else:
            table = read_run(path, format=rng.choice(READERS).name if way < 0.45 else None)
    except AdvisorError as error:
        assert error.message.strip(), "an error without words"
        return "refused"
    check(table)
    return "read"


def _read_folder(path: Path, rng: random.Random, corpus: list[bytes]):
    """Read a folder that holds the input under a name that folders have, with complete recordings beside it."""
    from advisor.readers.read import read_run

    names = ("log.jsonl", "run.yaml", "config.yaml", "output.log", "metrics.csv", "trainer_state.json", "plan.yaml",
             "telemetry.parquet", "wandb-summary.json", "run.json", "gpu.csv")  # fmt: skip
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        first, *others = rng.sample(names, 3)
        Path(folder, first).write_bytes(path.read_bytes())
        for name in others:
            Path(folder, name).write_bytes(rng.choice(corpus))
        return read_run(Path(folder))


def check(table) -> None:  # a RunTable; the readers are imported late
    """Check what must hold for every table."""
    from advisor.readers.run_table import Status, names_of

    assert isinstance(table.status, Status)
    assert set(table.columns) <= set(names_of("columns")), set(table.columns) - set(names_of("columns"))
    assert {len(column) for column in table.columns.values()} <= {len(table)}
    assert table.rows >= 0 and all(0 <= p.first_row <= p.last_row < len(table) for p in table.phases)
    assert all(len(event.text) <= 300 for event in table.events)
    if table.telemetry is not None:
        assert set(table.telemetry) <= set(names_of("telemetry"))
        assert len({len(column) for column in table.telemetry.values()}) <= 1


class TooLong(BaseException):
    """An input took longer than its limit; no reader may catch this."""


def _alarm(signum: int, frame: object) -> None:
    raise TooLong


def work(seed: int, indices: range, folders: list[Path], limit: float) -> None:
    """Run one worker: read its share of the inputs, and print a JSON line per failure and a regular sign of life."""
    corpus = load_corpus(folders)
    signal.signal(signal.SIGALRM, _alarm)
    outcomes: Counter[str] = Counter()
    slowest = (0.0, -1)
    with tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("error")  # a warning in the middle of a report is also a failure
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        # the readers load their tables with the first log, which must not count as its time
        Path(folder, "first.log").write_text("step 1 loss 2.5\n" * 3)
        read(Path(folder, "first.log"), random.Random(seed), corpus)
        for index in indices:
            data, suffix, rng = make_input(seed, index, corpus)
            path = Path(folder, f"input{suffix}")
            path.write_bytes(data)
            began = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, limit)
            try:
                outcomes[read(path, rng, corpus)] += 1
            except (Exception, TooLong) as error:  # exceptions of every kind are counted
                where = traceback.extract_tb(error.__traceback__)[-1]
                place = f"{Path(where.filename).name}:{where.lineno}"
                _say(failure=index, error=f"{type(error).__name__}: {error}"[:200], place=place)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, (time.perf_counter() - began, index))
            path.unlink()
            if index % 50 < 2:
                _say(beat=index)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    _say(outcomes=outcomes, slowest=slowest, peak_bytes=peak)


def _say(**words: object) -> None:
    print(json.dumps(words), flush=True)


class Worker(threading.Thread):
    """A worker process and the thread that listens to it."""

    def __init__(self, command: list[str]):
        super().__init__(daemon=True)
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=dict(os.environ, OMP_NUM_THREADS="1")
        )
        self.failures: list[dict] = []
        self.summary: dict | None = None
        self.heard, self.last = time.monotonic(), -1

    def run(self) -> None:
        for line in self.process.stdout:
            words = json.loads(line)
            self.heard = time.monotonic()
            self.last = words.get("beat", self.last)
            if "failure" in words:
                self.failures.append(words)
            elif "outcomes" in words:
                self.summary = words

    def silent_seconds(self) -> float:
        return time.monotonic() - self.heard


def fuzz(options: argparse.Namespace) -> int:
    """Run the workers, print a report, and return the exit status: 1 if anything failed."""
    workers = [_start(options, part) for part in range(options.workers)]
    failures: list[str] = []
    for worker in workers:
        while worker.process.poll() is None:
            time.sleep(0.05)
            if worker.silent_seconds() > 50 * options.limit + 30:
                worker.process.kill()
                failures.append(f"hangs within 50 inputs after number {worker.last}: not even its alarm is heard")
        worker.join()
        if worker.summary is None and worker.process.returncode != -signal.SIGKILL:
            failures.append(f"a worker died with status {worker.process.returncode} after number {worker.last}")
    return _report(workers, failures, options)


def _start(options: argparse.Namespace, part: int) -> Worker:
    command = [
        sys.executable,
        __file__,
        "--part",
        str(part),
        "--seed",
        str(options.seed),
        "--count",
        str(options.count),
    ]
    command += ["--workers", str(options.workers), "--limit", str(options.limit), "--corpus", *map(str, options.corpus)]
    worker = Worker(command)
    worker.start()
    return worker


def _report(workers: list[Worker], failures: list[str], options: argparse.Namespace) -> int:
    alike = Counter((f["error"].partition(":")[0], f["place"]) for w in workers for f in w.failures)
    example = {(f["error"].partition(":")[0], f["place"]): f for w in workers for f in w.failures}
    summaries = [worker.summary for worker in workers if worker.summary]
    outcomes = sum((Counter(s["outcomes"]) for s in summaries), Counter())
    counted = ", ".join(f"{n:,} {what}" for what, n in sorted(outcomes.items()))
    print(f"seed {options.seed}: {options.count:,} inputs; {counted}")
    if summaries:
        seconds, index = max(tuple(s["slowest"]) for s in summaries)
        peak = max(s["peak_bytes"] for s in summaries)
        print(f"slowest {seconds:.2f} s (number {index}), most memory {peak / 2**20:.0f} MiB")
    for key, count in alike.most_common():
        print(f"{count:6,} × {example[key]['error']} at {key[1]}, for example --only {example[key]['failure']}")
    for words in failures:
        print(words)
    return 1 if alike or failures else 0


def one(options: argparse.Namespace) -> int:
    """Read one input again without catching anything. The input stays in the working folder."""
    corpus = load_corpus(options.corpus)
    data, suffix, rng = make_input(options.seed, options.only, corpus)
    path = Path(f"fuzz-{options.only}{suffix}")
    path.write_bytes(data)
    print(f"{path}: {len(data)} bytes")
    print(read(path, rng, corpus))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=5.0, help="seconds per input")
    parser.add_argument("--corpus", type=Path, nargs="+", default=list(CORPUS), help="folders of logs to mutate")
    parser.add_argument("--only", type=int, help="read this one input again, with its traceback")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if options.only is not None:
        return one(options)
    if options.part is not None:
        work(options.seed, range(options.part, options.count, options.workers), options.corpus, options.limit)
        return 0
    return fuzz(options)


if __name__ == "__main__":
    sys.exit(main())
