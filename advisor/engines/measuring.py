"""What the calibration of a place elsewhere consists of, whichever engine starts it."""

from __future__ import annotations

from advisor.engines.backend import Measuring
from advisor.engines.export.bundle import ARRIVAL_PACKAGES, PACKAGES, RUN, SETUP, pinned, setup_script, torch_install
from advisor.engines.remote import JOB
from advisor.hardware.catalog import find_gpu

ASKED = "calibrate.json"
COMMAND = f'-m advisor.workflows.calibrate_there {ASKED} --out "$RUN"'  # of Python, in the words of a shell
LONGER = 2.0  # times what it may take: compiling, and the burst that is under way, go beyond it
START_SECONDS = 600.0  # for imports, data and a file system that sleeps


def measuring_files(asked: Measuring) -> dict[str, str]:
    """Name inside the folder → text, beside `remote.sources`."""
    return {
        f"{JOB}/{ASKED}": asked.asked,
        f"{JOB}/{SETUP}": setup_script(torch_install(find_gpu(asked.gpu))),
        f"{JOB}/requirements.txt": "".join(pinned(PACKAGES + ARRIVAL_PACKAGES)),
        f"{JOB}/{RUN}": _RUN_SCRIPT,
    }


def limit_seconds(asked: Measuring) -> float:
    """When an engine may end it."""
    return LONGER * asked.seconds + START_SECONDS


_RUN_SCRIPT = f"""#!/usr/bin/env bash
# Measures this machine and leaves its calibration in $RUN.
set -uo pipefail
cd "$(dirname "$0")"
PYTHON=${{PYTHON:-.venv/bin/python}}
export RUN=${{RUN:-$PWD/run}} PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${{PYTHONPATH:+:$PYTHONPATH}}"
mkdir -p "$RUN"
exec "$PYTHON" {COMMAND}
"""
