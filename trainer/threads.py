"""Sets how the threads of a CPU run wait for each other. Needs no torch, whose threads read this when it loads."""

from __future__ import annotations

import os

# GNU OpenMP lets a thread that waits for others spin 300,000 times, some milliseconds, before it sleeps. If another
# program holds the core of the awaited thread, that wastes a core. Next to other work a step took 2 to 4 times as long
# as with 3,000, and on an idle machine no less (measured on two cores). Other OpenMP libraries ignore it.
THREADS = {"GOMP_SPINCOUNT": "3000"}


def share_cores() -> None:
    """Set how threads wait, unless the user has set it. Call this before torch is imported."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in THREADS.items():
            os.environ.setdefault(name, value)
