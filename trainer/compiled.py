"""Sets the one folder in which torch.compile keeps its kernels, so that only new code is compiled."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # torch's own variable; Triton's kernels go into a folder below it


def keep_compiled_code() -> None:
    """Choose a folder of the user's own, unless the variable is set or the folder cannot be created.

    Torch's choice is below /tmp. It is lost with a job's own /tmp and with a reboot, and anybody may create that name.
    """
    if VARIABLE in os.environ:
        return
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-advisor" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return  # the home folder cannot be written, so torch's choice stays
    os.environ[VARIABLE] = str(folder)
