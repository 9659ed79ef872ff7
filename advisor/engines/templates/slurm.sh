# Batch scripts for Slurm and the parts that they share, each a section of its own.

#: here
PYTHON=${PYTHON:-$PWD/.venv/bin/python}
export RUN=${RUN:-$PWD/run} PYTHON PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

#: run
#!/usr/bin/env bash
@options@
# Slurm signals @grace_seconds@ s before the limit: the run saves, ends, and is queued again.
set -uo pipefail
cd "$SLURM_SUBMIT_DIR"
@here@
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
mkdir -p "$RUN"
@measured_first@srun --kill-on-bad-exit=1 bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID \
    WORLD_SIZE=$SLURM_NTASKS exec "$PYTHON" -m trainer @config@ --out "$RUN"'
"$PYTHON" -m trainer.ended "$RUN"
status=$?
# 75: asked to stop by a signal, or died without a word; a failed machine is not tried for ever, and
# with `touch $RUN/@stop_asked@` the run ends for good
if [ "$status" = 75 ] && [ ! -e "$RUN/@stop_asked@" ] \
    && [ "${SLURM_RESTART_COUNT:-0}" -lt "${RESTARTS:-100}" ]; then
    scontrol requeue "$SLURM_JOB_ID"
    sleep 60  # it is ended by the requeue
fi
exit "$status"

#: measured_first
if [ ! -e "$RUN/budget.json" ]; then  # once: what was cut off is not paid for again
    srun --nodes=1 --ntasks=1 --ntasks-per-node=1 "$PYTHON" @measure@
    status=$?
    [ ! -e "$RUN/@stop_asked@" ] || exit 75
    [ "$status" != 3 ] || exit 3  # the limits cannot be kept here
fi
[ -e "$RUN/@plan_after@" ] || cp plan.yaml "$RUN/@plan_after@"

#: command
#!/usr/bin/env bash
@options@
# Slurm signals @grace_seconds@ s before the limit: the command is asked to end, as by its own.
cd "$SLURM_SUBMIT_DIR"
export RUN="${RUN:-$PWD/run}"
exec srun --ntasks=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" bash run.sh

#: calibrate
#!/usr/bin/env bash
@options@
cd "$SLURM_SUBMIT_DIR"
@here@
exec bash run.sh
