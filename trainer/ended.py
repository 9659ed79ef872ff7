"""`python -m trainer.ended DIR`: how the run of a folder ended, as an exit status that a job script can act on.

0: completed, or stopped by a limit of its own. 75 (EX_TEMPFAIL): a signal or the notice of its machine's end asked it
to stop, it hung, or it died without a word: start it again. 3: out of memory. 4: diverged. 1: failed otherwise, or
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
ASKED = "received "  # how the reason of a stop begins that somebody outside asked for: a signal, a notice


def status(folder: Path) -> tuple[int, str]:
    """The exit status and why, in words; raises RunLogError or OSError for a log that cannot be read."""
    log = load_run_log(folder / LOG_NAME)
    final = log.final if log.header is not None else (log.finals or (None,))[-1]  # some end before they could begin
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
    """Print why and give the status."""
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
