# Scripts and Dockerfile of an export on one machine, each a section of its own. See templates.py.

#: setup
#!/usr/bin/env bash
# Makes the environment of @of@ in .venv, once: bash setup.sh
set -euo pipefail
cd "$(dirname "$0")"
[ -x .venv/bin/python ] && exit 0
"${BASE_PYTHON:-python3}" -m venv .venv.new@install@
.venv.new/bin/python -m pip install --quiet --requirement requirements.txt
mv .venv.new .venv  # a broken install leaves no .venv

#: run
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

#: several
NODES=${NODES:-@nodes@} NODE_RANK=${NODE_RANK:-0} MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-29500}
set -- "$PYTHON" -m torch.distributed.run --nnodes="$NODES" --node-rank="$NODE_RANK" --nproc-per-node=@gpus_per_node@ --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" --shutdown-timeout=@grace_seconds@ @trainer@

#: measured_first
export RUN PYTHON
if [ ! -e "$RUN/budget.json" ]; then  # once: what was cut off is not paid for again
    "$PYTHON" @measure@ &
    child=$!
    wait "$child"
    status=$?
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done
    [ "$stopped" = no ] || exit 75
    [ "$status" != 3 ] || exit 3  # the limits cannot be kept here
fi
[ -e "$RUN/@plan_after@" ] || cp plan.yaml "$RUN/@plan_after@"

#: adopted
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

#: measure
#!/usr/bin/env bash
# Measures this machine and leaves its calibration in $RUN.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${PYTHON:-.venv/bin/python}
export RUN=${RUN:-$PWD/run} PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" ADVISOR_HOME=$PWD/store
mkdir -p "$RUN"
@commands@
status=$?
cp "$ADVISOR_HOME"/calibrations/*.yaml "$RUN/@calibration@" 2>/dev/null
exit "$status"

#: dockerfile
FROM python:3.12-slim
# Triton, which torch.compile generates kernels with, compiles a launcher in C
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /work
COPY requirements.txt setup.sh ./
RUN bash setup.sh
COPY . .
ENV RUN=@run_folder@
STOPSIGNAL SIGTERM
CMD ["bash", "run.sh"]
