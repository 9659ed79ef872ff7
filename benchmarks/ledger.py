"""Times a shared ledger of many records in a temporary folder: `python benchmarks/ledger.py [--records 100000]`."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.store.team_ledger import TeamLedger


def timed(name: str, work: Callable[[], Any]) -> None:
    began = time.perf_counter()
    print(f"{name}: {work()} in {time.perf_counter() - began:.2f} s", flush=True)


def main() -> None:
    """Push, pull, list, and pull again where nothing is new."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    count = parser.parse_args().records
    records = (
        {"kind": "job", "created": f"2026-{1 + n % 11:02}-02T10:00:00", "id": str(n), "gpu": "h100", "hours": 1.5}
        for n in range(count)
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = TeamLedger(f"{folder}/shared", Path(folder) / "home")
        timed("pushed", lambda: ledger.push(records))
        timed("pulled", lambda: ledger.pull()[0])
        timed("listed", lambda: len(ledger.records("job")))
        timed("pulled again", lambda: ledger.pull()[0])


if __name__ == "__main__":
    main()
