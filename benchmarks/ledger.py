"""Times a shared ledger of many records: `python benchmarks/ledger.py [--records 100000] [--at postgresql://…]`.

Without an address, in a temporary folder, as single files and then with its months compacted. A database has to be
empty.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.store.team_files import Files
from advisor.store.team_ledger import TeamLedger

MONTHS = [f"2025-{month:02}" for month in range(1, 12)]


def timed(name: str, work: Callable[[], Any]) -> None:
    began = time.perf_counter()
    print(f"{name}: {work():,} in {time.perf_counter() - began:.2f} s", flush=True)


def main() -> None:
    """Push, list, copy, answer, and copy again where nothing is new; then the same of compacted months."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--at")
    given = parser.parse_args()
    records = (
        {"kind": "job", "created": f"{MONTHS[n % 11]}-02T10:00:00", "id": str(n), "gpu": "h100", "hours": 1.5}
        for n in range(given.records)
    )
    with tempfile.TemporaryDirectory() as folder:
        where = given.at or f"{folder}/shared"
        ledger = TeamLedger(where, Path(folder) / "home")
        timed("pushed", lambda: ledger.push(records))
        read_by(where, Path(folder) / "first")
        if isinstance(ledger.shared, Files):
            timed("compacted", lambda: sum(ledger.shared.compact(month.replace("-", "/")) for month in MONTHS))
            read_by(where, Path(folder) / "second")


def read_by(where: str, home: Path) -> None:
    """Read a ledger as a machine does that has no copy yet."""
    timed("listed", lambda: len(TeamLedger(where, home).shared.names()))
    timed("pulled", lambda: TeamLedger(where, home).pull()[0])
    timed("pulled again", lambda: TeamLedger(where, home).pull()[0])
    timed("all records of the copy", lambda: len(TeamLedger(where, home).records("job")))


if __name__ == "__main__":
    main()
