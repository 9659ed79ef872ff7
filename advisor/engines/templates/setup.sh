#!/usr/bin/env bash
# Makes the environment of @of@ in .venv, once: bash setup.sh
set -euo pipefail
cd "$(dirname "$0")"
[ -x .venv/bin/python ] && exit 0
"${BASE_PYTHON:-python3}" -m venv .venv.new@install@
.venv.new/bin/python -m pip install --quiet --requirement requirements.txt
mv .venv.new .venv  # a broken install leaves no .venv
