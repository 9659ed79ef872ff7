"""`python -m trainer run.yaml --out DIR`: one training run from one file. Under torchrun, the same."""

from __future__ import annotations

import argparse
import os
import sys

from trainer.schema import ConfigError, Outcome, load_config

EXIT_CODES = {
    Outcome.COMPLETED: 0,
    Outcome.STOPPED: 0,
    Outcome.FAILED: 1,
    Outcome.OUT_OF_MEMORY: 3,
    Outcome.DIVERGED: 4,
}
_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run and give the exit code: 0 completed or stopped, 1 failed, 2 usage, 3 out of memory, 4 diverged."""
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
    from trainer.run import run  # torch, which a usage error need not wait for
    from trainer.runlog import RunLogError

    try:
        return EXIT_CODES[run(config, options.out)]
    except (OSError, RunLogError) as error:
        print(f"cannot use the run folder {options.out}: {error}", file=sys.stderr)
        return EXIT_CODES[Outcome.FAILED]


def leave(code: int) -> None:
    """End the process; one of several at once, for threads of gloo may abort it while the interpreter is taken down."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        sys.exit(code)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
