"""Compares the lines of each room with its ceiling and budget: `python benchmarks/size.py [--lower]`.

A room is a folder of `advisor/`, `advisor` itself, `trainer` or `tests`, and counts its lines of Python. `data` counts
the YAML, JSON and CSV files in `advisor/`. `benchmarks/size.csv` has one line for each group of rooms. The ceiling is
its size when it was last reduced, and the budget is its target. The command fails if a group is over its ceiling or a
room is in no group. `--lower` writes today's sizes into the file as new ceilings if they are lower. A ceiling is only
raised by hand, in a commit that says which room gives the lines.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path(__file__).with_suffix(".csv")
BESIDE = ("trainer", "tests", "data")  # not Python of advisor/


def files_of(room: str) -> Iterable[Path]:
    """Return the files of a room: a folder of `advisor/` with its subfolders, or those named in the module's text."""
    advisor = ROOT / "advisor"
    if room == "top level":
        return advisor.glob("*.py")
    if room == "data":
        return (file for kind in ("yaml", "json", "csv") for file in advisor.rglob(f"*.{kind}"))
    return (ROOT / room if room in BESIDE else advisor / room).rglob("*.py")


def main() -> None:
    """Print the table, and exit with 1 if a group of rooms is over its ceiling."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lower", action="store_true", help="write lower ceilings where rooms have shrunk")
    lower = parser.parse_args().lower
    with TABLE.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    listed = {room for row in table for room in row["rooms"].split("+")}
    folders = {p.parent.name for p in (ROOT / "advisor").glob("*/__init__.py")}
    problems = [f"advisor/{room} is in no line of {TABLE.name}" for room in sorted(folders - listed)]
    total = budget = 0
    print(f"{'rooms':<42}{'lines':>8}{'ceiling':>9}{'budget':>8}")
    for row in table:
        files = [file for room in row["rooms"].split("+") for file in files_of(room)]
        now = sum(file.read_text(encoding="utf-8").count("\n") for file in files)
        if row["rooms"] not in BESIDE:
            total, budget = total + now, budget + int(row["budget"])
        print(f"{row['rooms']:<42}{now:>8,}{int(row['ceiling']):>9,}{int(row['budget']):>8,}")
        if now > int(row["ceiling"]):
            problems.append(f"{row['rooms']} has {now:,} lines, {now - int(row['ceiling']):,} over its ceiling")
        elif lower:
            row["ceiling"] = str(now)
    print(f"{'advisor/, Python':<42}{total:>8,}{'':>9}{budget:>8,}")
    if lower:
        with TABLE.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
