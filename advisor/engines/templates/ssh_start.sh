#!/usr/bin/env bash
# Makes the environment in ~/@root@/envs/@environment@ where there is none yet, then runs run.sh
set -euo pipefail
cd "$(dirname "$0")"
env=$HOME/@root@/envs/@environment@
trap 'trap "" TERM; kill -TERM 0; exit 75' TERM
@python@
mkdir -p "$env"
(flock 8; cp setup.sh requirements.txt "$env"; BASE_PYTHON=$python bash "$env/setup.sh") 8> "$env/lock" &
wait $!
trap - TERM
export PYTHON="$env/.venv/bin/python" RUN="$PWD/run"
exec bash run.sh
