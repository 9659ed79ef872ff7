#!/usr/bin/env bash
@options@
# Slurm signals @grace_seconds@ s before the limit: the command is asked to end, as by its own.
cd "$SLURM_SUBMIT_DIR"
export RUN="${RUN:-$PWD/run}"
exec srun --ntasks=1 --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" bash run.sh
