"""Writes folders that appear in full or not at all: under a hidden name, which is then changed once."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.corpus import PrepareError


@contextmanager
def published(out: Path, needed_bytes: int) -> Iterator[Path]:
    """Yield a temporary folder next to `out`. It replaces `out` on success, and is deleted otherwise.

    Raises PrepareError with the bytes needed if the disk refuses.
    """
    folder, out = None, out.absolute()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        folder.chmod(0o755)  # temporary folders are private to their owner
        yield folder
        _replace(folder, out)
    except OSError as error:
        needed = f"about {needed_bytes / 1e6:.0f} MB are needed"
        hint = f"free space on that disk ({needed}) or name another --out"
        raise PrepareError(f"cannot write {out}: {error.strerror or error}", hint) from error
    finally:
        if folder is not None and folder.exists():
            shutil.rmtree(folder, ignore_errors=True)


def _replace(folder: Path, out: Path) -> None:
    """Move a finished folder into place. An older folder of that name is removed only now."""
    if out.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{out.name}.old.", dir=out.parent))
        os.rename(out, old / out.name)
        os.rename(folder, out)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(folder, out)


def write_durably(file: Path, content: bytes) -> None:
    """Write a small file. It is on disk when this returns."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
