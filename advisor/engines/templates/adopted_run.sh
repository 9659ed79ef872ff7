#!/usr/bin/env bash
# @run_id@: the command of $RUN/adopted.yaml, started and watched by its guard. SIGTERM ends it, as its own limit does.
set -o pipefail
JOB=$(cd "$(dirname "$0")" && pwd)
PYTHON=${PYTHON:-$JOB/.venv/bin/python}
export RUN=${RUN:-$JOB/run} PYTHONUNBUFFERED=1
mkdir -p "$RUN"
cp "$JOB/adopted.yaml" "$JOB/recipe.yaml" "$RUN/"
cd @folder@ || exit 1
@bootstrap@
cd "$RUN" || exit 1  # what lies beside the command is not taken for the guard's own
export PYTHONPATH="$JOB${PYTHONPATH:+:$PYTHONPATH}"
exec "$PYTHON" -m @guard@ "$RUN"
