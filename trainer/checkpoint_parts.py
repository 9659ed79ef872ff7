"""Reads the tensors of a checkpoint: any rows of any tensor, whatever number of processes wrote it.

Each process of a split run wrote a file with its rows of every tensor, in the order of the ranks. The first file also
has what is not split. A whole tensor is therefore the rows of all files that have it, in that order. A run on another
number of processes reads only the rows that it needs. A checkpoint of a whole model has one file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from trainer.checkpoint_files import DamagedError


class StoredTensors:
    """One kind of tensors (`model`, `optimizer`) in the checkpoint at `path`. Raises DamagedError."""

    def __init__(self, path: Path, files: Iterable[str], kind: str):
        self._files = [path / name for name in sorted(files) if name.split("-")[0].split(".")[0] == kind]
        self._places: dict[str, list[tuple[Path, tuple[int, ...]]]] = {}
        for file in self._files:
            for name, shape in read_shapes(file).items():
                self._places.setdefault(name, []).append((file, shape))
        self._open: dict[Path, Any] = {}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the whole tensors by name."""
        return {name: _whole_shape([shape for _, shape in places]) for name, places in self._places.items()}

    def rows(self, name: str, first: int, count: int) -> Tensor:
        """Return some rows of a tensor in new memory, or the whole tensor if it has no rows."""
        places = self._places[name]
        if not places[0][1]:
            return self._file(places[0][0]).get_tensor(name).clone()
        pieces, begins = [], 0
        for file, (rows, *_) in places:
            start, end = max(first, begins), min(first + count, begins + rows)
            if start < end:
                pieces.append(self._file(file).get_slice(name)[start - begins : end - begins])
            begins += rows
        if not pieces:
            return self._file(places[0][0]).get_slice(name)[0:0].clone()
        return torch.cat(pieces)

    def _file(self, file: Path) -> Any:
        if file not in self._open:
            self._open[file] = safe_open(file, framework="pt").__enter__()
        return self._open[file]


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes in a safetensors file, from its header alone. Raises DamagedError."""
    try:
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from error
    except ValueError as error:
        raise DamagedError(f"{path.name} has no readable header") from error
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _whole_shape(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    first = shapes[0]
    return (sum(shape[0] for shape in shapes), *first[1:]) if first else first
