"""`python -m trainer.ended DIR` reports how a run ended, as an exit status that a job script can use.

0: completed, or stopped by its own limit. 75 (EX_TEMPFAIL): stopped by a signal or by the notice that its machine is
taken away, hung, or died without a final record; start it again. 3: out of memory. 4: diverged. 1: failed otherwise, or
never started.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from trainer.deadman import HUNG
from trainer.runlog import LOG_NAME, RunLogError, load_run_log
from trainer.schema import Outcome

EXIT_CODES = {
    Outcome.COMPLETED: 0,
    Outcome.STOPPED: 0,
    Outcome.FAILED: 1,
    Outcome.OUT_OF_MEMORY: 3,
    Outcome.DIVERGED: 4,
}
AGAIN = 75
ASKED = "received "  # prefix of the reason for a stop that was requested from outside, by a signal or a notice


def status(folder: Path) -> tuple[int, str]:
    """Return exit status and reason. Raises RunLogError or OSError if the log cannot be read."""
    log = load_run_log(folder / LOG_NAME)
    final = log.final if log.header is not None else (log.finals or (None,))[-1]  # some end before their header
    if final is None:
        if log.header is None:
            return EXIT_CODES[Outcome.FAILED], "the run never started"
        return AGAIN, "it died without a word"
    outcome, reason = Outcome(final["outcome"]), final.get("reason") or ""
    asked = outcome is Outcome.STOPPED and reason.startswith(ASKED)
    if asked or (outcome is Outcome.FAILED and reason.startswith(HUNG)):
        return AGAIN, f"{outcome}: {reason}"
    return EXIT_CODES[outcome], f"{outcome}: {reason}"


def main() -> int:
    """Print the reason and return the status."""
    parser = argparse.ArgumentParser(prog="python -m trainer.ended", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="run folder")
    folder = parser.parse_args().folder
    try:
        code, words = status(folder)
    except (OSError, RunLogError) as error:
        code, words = EXIT_CODES[Outcome.FAILED], f"its log cannot be read: {error}"
    print(f"{folder}: {words}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
