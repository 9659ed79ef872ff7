"""`python -m trainer run.yaml --out DIR` trains one run from one file. Under torchrun the command is the same."""

from __future__ import annotations

import argparse
import os
import sys

from trainer.ended import EXIT_CODES
from trainer.guard import Guard, process_age_seconds
from trainer.runlog import RunLogError
from trainer.schema import ConfigError, Outcome, RunConfig, load_config
from trainer.threads import share_cores

_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Train and return the exit code: 0 completed or stopped, 1 failed, 2 usage, 3 out of memory, 4 diverged.

    A run that hangs ends itself with 75.
    """
    parser = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    parser.add_argument("config", help="the run configuration, a YAML file (docs/file-formats.md)")
    parser.add_argument("--out", required=True, metavar="DIR", help="run folder; a run found there is resumed")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
    except ConfigError as error:
        for problem in error.problems:
            print(f"{options.config}: {problem}", file=sys.stderr)
        return _USAGE
    except OSError as error:
        print(f"cannot read {options.config}: {error.strerror}", file=sys.stderr)
        return _USAGE
    try:
        return EXIT_CODES[_guarded(config, options.out)]
    except (OSError, RunLogError) as error:
        print(f"cannot use the run folder {options.out}: {error}", file=sys.stderr)
        return EXIT_CODES[Outcome.FAILED]


def _guarded(config: RunConfig, out_dir: str) -> Outcome:
    """Train under a guard. If the budget has no room for the run, torch is not even loaded."""
    rank, size = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    age = process_age_seconds()
    with Guard(config.stop, out_dir, is_main=rank == 0, alone=size == 1, age_seconds=age) as guard:
        if (reason := guard.no_room_to_start()) is not None:
            return guard.end(Outcome.STOPPED, reason)
        share_cores()
        from trainer.run import run_guarded  # loads torch, for which a usage error or an empty budget should not wait

        return run_guarded(config, guard)


def leave(code: int) -> None:
    """End the process at once, because unloading torch takes a second of billed time and is of no use.

    If several processes leave together, threads of gloo may even abort one of them.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
