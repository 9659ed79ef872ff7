"""Where torch.compile keeps its kernels: one folder, so that bursts, runs and restarts compile only what is new."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own; Triton's kernels go below it as well


def keep_compiled_code() -> None:
    """Name a folder of the user's own, unless the variable is set or none can be made.

    Torch's choice is below /tmp: lost with a job's own /tmp and with a reboot, and its name is for anybody to take.
    """
    if VARIABLE in os.environ:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-advisor" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return  # a home that cannot be written: torch's choice has to do
    os.environ[VARIABLE] = str(folder)
