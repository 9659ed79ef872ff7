#!/usr/bin/env bash
# Measures this machine and leaves its calibration in $RUN.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-.venv/bin/python}
export RUN=${RUN:-$PWD/run} PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$RUN"
exec "$PYTHON" @command@
