#!/usr/bin/env bash
# One node's share of @name@. A run found in $RUN goes on from its last checkpoint. SIGTERM saves
# and ends it with status 75: start it again. Status 0: completed, or stopped by its own limit.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-.venv/bin/python}
RUN=${RUN:-$PWD/run}
RESTARTS=${RESTARTS:-3}  # after failures, by this script
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$RUN"
@start@
stopped=no
trap 'stopped=yes; kill -TERM "$child" 2>/dev/null' TERM INT
@measured_first@for ((attempt = 0; attempt <= RESTARTS; attempt++)); do
    "$@" &
    child=$!
    wait "$child"
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done  # a signal ends a wait early
    "$PYTHON" -m trainer.ended "$RUN"
    status=$?
    # out of memory, divergence and what a signal asked for would only come again
    if [ "$stopped" = yes ] || [ "$status" = 0 ] || [ "$status" = 3 ] || [ "$status" = 4 ]; then break; fi
done
exit "$status"
