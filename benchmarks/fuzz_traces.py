"""Mutate small traces and dumps and judge them: only AdvisorError may be raised, and nothing may hang or fill memory.

    python benchmarks/fuzz_traces.py --count 20000 --seed 1
    python benchmarks/fuzz_traces.py --only 4711 --seed 1       # one input again, with its traceback

Each input depends only on its number and the seed. --corpus adds a folder of real traces, of which the first 256 KiB
are taken, unpacked.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

from mutations import MUTATIONS

ROOT = Path(__file__).parents[1]
DATA_BYTES = 1 << 30
LARGEST = 1 << 18


class TooLong(BaseException):
    """An input took longer than its limit; no reader may catch this."""


def _alarm(signum: int, frame: object) -> None:
    raise TooLong


def make_corpus(folder: Path | None) -> list[bytes]:
    """Return a small file of each kind, and the beginnings of real ones."""
    from tests.advisor.build_trace import training_step
    from tests.advisor.test_traces_step import nsys_export

    frames = [{"name": "forward", "filename": "/home/u/train.py", "line": 3}]
    block = {"address": 0, "size": 512, "requested_size": 500, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "address": 0, "total_size": 2048, "allocated_size": 512, "active_size": 512, "stream": 0}
    segment |= {"segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "blocks": [block]}
    actions = ("segment_alloc", "alloc", "free_requested", "free_completed", "alloc", "oom")
    events = [{"action": action, "addr": 0, "size": 512, "stream": 0, "time_us": at, "frames": frames}
              for at, action in enumerate(actions)]  # fmt: skip
    snapshot = {"segments": [segment], "device_traces": [events], "allocator_settings": {}, "external_annotations": []}
    call = {"pg_id": 0, "process_group": ("0", "default_pg"), "p2p_seq_id": 0, "profiling_name": "nccl:all_reduce",
            "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
            "state": "completed", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
            "retired": True, "timeout_ms": 1000, "is_p2p": False, "frames": frames}  # fmt: skip
    calls = [{**call, "record_id": n, "collective_seq_id": n, "op_id": n, "time_created_ns": 10**9 * n}
             for n in range(1, 6)]  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    dump = {"version": "2.10", "entries": calls, "pg_status": {}, "pg_config": groups}
    timeline = [[-1, 1, 512, 0], [5, 2, 1024, 4], [6, 3, -1024, 4], [6, 3, 1024, 4], [9, 4, 1024, 4]]
    with tempfile.TemporaryDirectory() as place:
        database = nsys_export(Path(place, "a.sqlite")).read_bytes()
    step = training_step()
    made = [step.text().encode(), step.text(compact=True).encode(), json.dumps(step.events).encode(), database,
            pickle.dumps(snapshot, 2), pickle.dumps(dump, 2), json.dumps(dump).encode(), json.dumps(snapshot).encode(),
            json.dumps(timeline).encode()]  # fmt: skip
    real = sorted(folder.glob("*")) if folder else []
    return made + [
        gzip.open(file).read(LARGEST) if file.suffix == ".gz" else file.read_bytes()[:LARGEST] for file in real
    ]


def make_input(seed: int, index: int, corpus: list[bytes]) -> bytes:
    """Return input number `index`. Half of them are damaged in one place, which reaches furthest into the readers."""
    rng = random.Random(f"{seed}:{index}")
    data = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = rng.choice(MUTATIONS)(data, rng, corpus)[: 4 * LARGEST]
    return data


def read(path: Path) -> str:
    """Judge a file and print it as the command does; return the outcome in a word. Raises whatever is raised."""
    from advisor.documents import stamped
    from advisor.errors import AdvisorError
    from advisor.readers.traces.kinds import holds_traces
    from advisor.report.traces import report
    from advisor.workflows.analysis import Given
    from advisor.workflows.analyze_trace import analyze_traces

    try:
        if not holds_traces(path):
            return "no trace"
        analysis = analyze_traces([path], Given())
    except AdvisorError as error:
        assert error.message.strip() and "\n" not in error.message.strip(), "an error of no or several sentences"
        return "refused"
    for judged in analysis.judged:
        assert all(part.value >= 0 and 0 <= part.share <= 1.0001 for part in judged.judgement.parts), (
            "a part is negative"
        )
    list(report(analysis.judged, everything=True))
    json.dumps(stamped("analyze-trace", analysis.to_document()), allow_nan=False)
    return "judged"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=10.0, help="seconds per input")
    parser.add_argument("--corpus", type=Path, help="a folder of real traces")
    parser.add_argument("--only", type=int, help="read this one input again, with its traceback")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    corpus = make_corpus(options.corpus)
    signal.signal(signal.SIGALRM, _alarm)
    outcomes, failures, slowest = Counter(), {}, (0.0, -1)
    with tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of an opcode's text, which Python shows to nobody
        path = Path(folder, "rank0")
        path.write_bytes(corpus[0])
        read(path)  # loads the tables
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
        for index in range(options.count) if options.only is None else [options.only]:
            path.write_bytes(make_input(options.seed, index, corpus))
            began = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, options.limit)
            try:
                outcomes[read(path)] += 1
            except (Exception, TooLong) as error:  # exceptions of every kind are counted
                if options.only is not None:
                    raise
                where = traceback.extract_tb(error.__traceback__)[-1]
                failures.setdefault((type(error).__name__, f"{Path(where.filename).name}:{where.lineno}"), []).append(
                    index
                )
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, (time.perf_counter() - began, index))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"seed {options.seed}: {options.count:,} inputs; {dict(outcomes)}")
    print(f"slowest {slowest[0]:.2f} s (number {slowest[1]}), most memory {peak:.0f} MiB")
    for (error, place), indices in sorted(failures.items(), key=lambda item: -len(item[1])):
        print(f"{len(indices):6,} × {error} at {place}, for example --only {indices[0]}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
