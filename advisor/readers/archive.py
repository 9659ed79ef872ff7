"""Zip archives unpacked into a temporary folder, with limits: what is in them comes from strangers.

Nothing is unpacked outside that folder, links are passed over, nothing is executed. Limits are on what comes out, not
on what the archive claims.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from advisor.errors import AdvisorError

MOST_MEMBERS = 5000  # a run folder with a thousand checkpoints has fewer logs than this
MOST_BYTES = 2 * 2**30  # unpacked, all together: the largest logs known are under it
MOST_RATIO = 1200  # deflate cannot pack better than about 1032:1; text logs pack 5-20:1
_BLOCK = 2**20
_CHECKPOINT_SUFFIXES = (".pkl", ".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npy", ".png", ".jpg", ".so")


def is_zip(head: bytes) -> bool:
    """Whether a file begins as a zip archive does."""
    return head[:4] in (b"PK\x03\x04", b"PK\x05\x06")


@contextlib.contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A temporary folder with an archive's files, weights left out; AdvisorError where it is damaged or dangerous."""
    with tempfile.TemporaryDirectory(prefix="advisor-") as name:
        folder = Path(name)
        try:
            with zipfile.ZipFile(path) as archive:
                _extract(archive, folder, path)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError) as error:
            raise AdvisorError(f"{path} is a damaged zip archive: {error}", "unpack it yourself") from error
        except OSError as error:
            raise AdvisorError(f"{path} cannot be unpacked: {error.strerror or error}", "unpack it yourself") from error
        yield folder


def only_file(folder: Path) -> Path | None:
    """The one file an unpacked archive holds; None where it holds several."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return files[0] if len(files) == 1 else None


def _extract(archive: zipfile.ZipFile, folder: Path, path: Path) -> None:
    members = archive.infolist()
    if any(PurePosixPath(member.filename).name in ("data.pkl", "byteorder") for member in members):
        raise AdvisorError(f"{path} is a checkpoint of PyTorch: pickled data is never loaded", "give the run's log")
    if len(members) > MOST_MEMBERS:
        raise AdvisorError(f"{path} holds {len(members)} files, more than the {MOST_MEMBERS} that are unpacked")
    packed = max(1, path.stat().st_size)
    left = min(MOST_BYTES, MOST_RATIO * packed)
    for member in members:
        target = _place(member, folder, path)
        if target is None:
            continue
        if member.flag_bits & 1:
            raise AdvisorError(f"{path} is encrypted", "unpack it yourself")
        left = _copy(archive, member, target, left, path)


def _place(member: zipfile.ZipInfo, folder: Path, path: Path) -> Path | None:
    """Where a member goes; None for what is passed over. AdvisorError for names that lead out of the folder."""
    name = member.filename.replace("\\", "/")
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or (parts and ":" in parts[0]) or "\0" in name:
        raise AdvisorError(f"{path} holds a file named {name[:80]!r}, which leads out of its folder: not unpacked")
    if member.is_dir() or stat.S_ISLNK(member.external_attr >> 16) or name.lower().endswith(_CHECKPOINT_SUFFIXES):
        return None
    return folder.joinpath(*parts) if parts else None


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, left: int, path: Path) -> int:
    """Unpack one file, counting what comes out; gives how much more may come."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, open(target, "wb") as out:
        while block := source.read(_BLOCK):
            left -= len(block)
            if left < 0:
                shutil.rmtree(target.parent, ignore_errors=True)
                raise AdvisorError(f"{path} unpacks to far more than a log's size: a damaged or hostile archive")
            out.write(block)
    return left
