"""Predict every row of a table of published runs, whose columns and words are free: `published_rows.py FILE --json`.

Prints a line of JSON for each row: the prediction with what was assumed, or `error`. A row that leaves something open
is the mixture of what it may mean. `advisor predict --rows` reads tables whose columns are named as its options.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from advisor.errors import AdvisorError
from benchmarks.rows.answers import answer_rows


def main(words: list[str] | None = None) -> None:
    """Print the lines, or without --json how many rows are predicted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--json", action="store_true", help="print the rows, one JSON object per line")
    options = parser.parse_args(words)
    try:
        lines = list(answer_rows(options.file))
    except AdvisorError as error:
        sys.exit(f"{error.message}; {error.hint}")
    if options.json:
        print("\n".join(lines))
    else:
        refused = sum("error" in json.loads(line) for line in lines)
        print(f"{len(lines) - refused} of {len(lines)} rows are predicted")


if __name__ == "__main__":
    main()
