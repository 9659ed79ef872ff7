"""Writes and reads a checkpoint folder: plain tensors and JSON, with checksums and atomic renames. It knows no models.

Tensors are written one at a time in the safetensors format (an 8-byte length, a JSON header, the raw bytes). So the
checksum is computed while writing, host memory holds one tensor at a time, and a full disk is a plain OSError.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from trainer.schema import SCHEMA

MODEL_FILE, OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.safetensors", "state.json"

CHECKPOINTS = "checkpoints"  # in a run folder

_NAME = re.compile(r"step-(\d{8,})")
_HIDDEN = re.compile(r"\.(step-\d{8,})\..*(partial|replaced)")
_ROOM_FOR_TEXT_BYTES = 1 << 20  # state.json and the safetensors headers

# The safetensors names of the element types that a model or an optimizer may have.
_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class CheckpointError(Exception):
    """Says why a checkpoint cannot be written or read, and what still exists."""


class DamagedError(Exception):
    """Says that one checkpoint is damaged; another may be sound."""


def prepare(folder: Path, step: int, needed_bytes: int) -> Path:
    """Create the hidden folder that receives the files of `folder/step-N` before they get that name.

    Raises CheckpointError with the bytes needed and free if the disk is full or cannot be written. What was there
    before is then unchanged.
    """
    partial = folder / f".step-{step:08d}.{os.getpid()}.partial"
    with _explained(partial, needed_bytes):
        folder.mkdir(parents=True, exist_ok=True)
        if (free := shutil.disk_usage(folder).free) < needed_bytes:
            raise CheckpointError(f"cannot write {_final(partial)}: it needs {needed_bytes} bytes and {free} are free")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
    return partial


def write_files(partial: Path, tensors: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    """Write files of tensors into a prepared folder, and to disk. Return their bytes and checksums by name. Raises
    CheckpointError."""
    with _explained(partial, bytes_needed(tensors)):
        return {name: _write_tensors(partial / name, part) for name, part in tensors.items()}


def publish(partial: Path, written: dict[str, Any], state: dict[str, Any]) -> tuple[Path, int]:
    """Write `state.json` next to the files, and rename the folder when all is on disk. Return its path and bytes.
    Raises CheckpointError; what was there before is then unchanged."""
    final = _final(partial)
    with _explained(partial, _ROOM_FOR_TEXT_BYTES):
        state = json.loads(json.dumps({**state, "files": written}))  # in the form that is read later and checked
        text = json.dumps({**state, "sha256": _digest_of(state)}, indent=1).encode()
        with open(partial / STATE_FILE, "wb") as file:
            file.write(text)
            _to_disk(file)
        _fsync_folder(partial)
        _put_in_place(partial, final)
    return final, sum(entry["bytes"] for entry in written.values()) + len(text)


def drop(partial: Path) -> None:
    """Remove the files of an abandoned checkpoint."""
    shutil.rmtree(partial, ignore_errors=True)


def bytes_needed(tensors: dict[str, dict[str, Tensor]]) -> int:
    """Return the bytes of files with these tensors, including their headers and `state.json`."""
    return sum(t.nbytes for part in tensors.values() for t in part.values()) + _ROOM_FOR_TEXT_BYTES


def part_name(name: str, part: int, parts: int) -> str:
    """Return the file name of one of several processes that each hold some rows, from 0: `model-00001-of-00004…`."""
    stem, suffix = name.rsplit(".", 1)
    return name if parts == 1 else f"{stem}-{part + 1:05d}-of-{parts:05d}.{suffix}"


def _final(partial: Path) -> Path:
    """Return the final name of the folder that is being written."""
    match = _HIDDEN.fullmatch(partial.name)
    assert match is not None
    return partial.with_name(match[1])


@contextlib.contextmanager
def _explained(partial: Path, needed_bytes: int) -> Iterator[None]:
    """Turn a disk error into a CheckpointError that says how many bytes were needed and how many are free."""
    try:
        yield
    except OSError as error:
        free = shutil.disk_usage(_nearest_existing(partial.parent)).free
        raise CheckpointError(
            f"cannot write {_final(partial)}: {error} (it needs {needed_bytes} bytes, {free} are free)"
        ) from error


def list_checkpoints(folder: Path) -> list[Path]:
    """Return finished checkpoints, oldest first. Returns none if the folder does not exist."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def tidy(folder: Path) -> None:
    """Remove what an interrupted write or deletion left. Restore a checkpoint whose replacement was interrupted."""
    for path in folder.glob(".step-*"):
        match = _HIDDEN.fullmatch(path.name)
        if match is None:
            continue
        if match[2] == "replaced" and not (folder / match[1]).exists():
            with contextlib.suppress(FileNotFoundError):  # another process of the run was faster
                os.rename(path, folder / match[1])
        else:
            shutil.rmtree(path, ignore_errors=True)


def set_aside(paths: list[Path]) -> None:
    """Rename damaged checkpoints, so that they can be examined but no longer count."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # another process of the run was faster
            os.rename(path, path.with_name(f"{path.name}.damaged-{time.time_ns()}"))


def delete(path: Path) -> None:
    """Delete a checkpoint. Its name goes first, so that no checkpoint looks half deleted. Raises CheckpointError."""
    doomed = path.with_name(f".{path.name}.{os.getpid()}.deleted.partial")
    try:
        os.rename(path, doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise CheckpointError(f"cannot delete the old checkpoint {path}: {error}") from error


def verify(path: Path) -> dict[str, Any]:
    """Check every byte of a checkpoint and return its state. Raises as `read_state` does."""
    state = read_state(path)
    check_files(path, state)
    return state


def read_state(path: Path) -> dict[str, Any]:
    """Read `state.json` and check its own checksum. Raises DamagedError, and CheckpointError for a newer format."""
    try:
        state = json.loads((path / STATE_FILE).read_bytes())
    except OSError as error:
        raise DamagedError(f"{STATE_FILE}: {error.strerror}") from error
    except ValueError as error:
        raise DamagedError(f"{STATE_FILE} is not JSON ({error})") from error
    if not isinstance(state, dict) or state.pop("sha256", None) != _digest_of(state):
        raise DamagedError(f"{STATE_FILE} does not match its checksum")
    if state["schema"] > SCHEMA:
        raise CheckpointError(
            f"{path} was written by a newer version (schema {state['schema']}, this one reads up to {SCHEMA})"
        )
    return state


def check_files(path: Path, state: dict[str, Any], share: tuple[int, int] = (0, 1)) -> None:
    """Check that the files exist with their sizes and checksums. Raises DamagedError. With a `share` of (i, n) only the
    i-th of every n files is checked, so that n processes share the reading."""
    for name, expected in sorted(state["files"].items())[share[0] :: share[1]]:
        try:
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                raise DamagedError(f"{name} has {size} bytes instead of {expected['bytes']}")
            if _digest_of_file(path / name) != expected["sha256"]:
                raise DamagedError(f"{name} does not match its checksum")
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from error


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Write one safetensors file; return its bytes and checksum."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.nbytes
        entry = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        header[name] = entry
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format requires aligned data
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        head: tuple[bytes | memoryview, ...] = (len(text).to_bytes(8, "little"), text)
        for raw in itertools.chain(head, map(_raw_bytes, tensors.values())):
            file.write(raw)
            digest.update(raw)
        _to_disk(file)
    return {"bytes": 8 + len(text) + end, "sha256": digest.hexdigest()}


def _raw_bytes(tensor: Tensor) -> memoryview:
    return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _put_in_place(partial: Path, final: Path) -> None:
    """Give the finished folder its name. An older folder of that name is moved first, and restored if that fails."""
    aside = final.with_name(f".{final.name}.{os.getpid()}.replaced")
    if final.exists():
        os.rename(final, aside)
    try:
        os.rename(partial, final)
    except OSError:
        if aside.exists():
            os.rename(aside, final)
        raise
    _fsync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _to_disk(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest_of(state: dict[str, Any]) -> str:
    """Return the checksum of a state as JSON with sorted keys, without the state's own checksum."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _digest_of_file(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _nearest_existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
