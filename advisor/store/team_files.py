"""The files of a shared ledger, in a folder or below an address: YYYY/MM/HASH.json for each record.

A month may be compacted: YYYY/MM/HASH.parquet has the names and contents of its records. Both are read together.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.redact import for_sending
from advisor.store.disk import disk_errors, write_atomic

_FILE = re.compile(r"\d+/\d+/[^/.]+\.(?:json|parquet)$")  # its path below the folder or address


class Files:
    """The files of a ledger. Paths begin below its folder or address, and none of them is ever changed."""

    def __init__(self, where: str):
        self._file_of: dict[str, str] = {}  # by the name of a record, as last listed
        self._packed: dict[str, Mapping[str, bytes]] = {}  # records of Parquet files that were read
        self._system: Any = _Disk()
        if "://" not in where:
            self._root = Path(where).expanduser().as_posix()
            return
        from fsspec.core import url_to_fs

        try:
            self._system, self._root = url_to_fs(where)
        except (ImportError, ValueError) as error:
            message = f"ADVISOR_LEDGER={for_sending(where)} cannot be opened: {error}"
            raise AdvisorError(message, "install the package that it names, or name a folder", exit_code=2) from error

    def paths(self) -> set[str]:
        with disk_errors("read the ledger", self._root), contextlib.suppress(FileNotFoundError):
            return {found[0] for path in self._system.find(self._root) if (found := _FILE.search(path))}
        return set()

    def put(self, path: str, content: bytes) -> None:
        place = f"{self._root}/{path}"
        with disk_errors("write to the ledger", place):
            self._system.makedirs(place.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(place, content)

    def get(self, path: str) -> bytes | None:
        """Return a file's content, or None if it is gone."""
        place, content = f"{self._root}/{path}", None
        with disk_errors("read the ledger", place), contextlib.suppress(FileNotFoundError):
            content = self._system.cat_file(place)
        return content

    def remove(self, path: str) -> None:
        place = f"{self._root}/{path}"
        # Another machine may compact the same month.
        with disk_errors("remove from the ledger", place), contextlib.suppress(FileNotFoundError):
            self._system.rm_file(place)

    def names(self) -> set[str]:
        """Return the names of all records, and of damaged Parquet files, so that whoever reads hears of them."""
        paths = self.paths()
        self._file_of = {path: path for path in paths if path.endswith(".json")}
        for path in paths - self._file_of.keys():
            self._file_of |= dict.fromkeys(self._unpacked(path) or (path,), path)
        return set(self._file_of)

    def write(self, records: Iterable[tuple[str, bytes]]) -> None:
        for name, content in records:
            self.put(name, content)

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield records that were listed, with their contents, damaged or not."""
        wanted = defaultdict(list)
        for name in names:
            wanted[self._file_of[name]].append(name)
        gone: list[str] = []
        for path, inside in wanted.items():
            content = self._unpacked(path) if path.endswith(".parquet") else self.get(path)
            if content is None:
                gone += inside
            elif isinstance(content, bytes):
                yield path, content
            else:
                yield from ((name, content.get(name, b"")) for name in inside)
        if gone:  # their month was compacted meanwhile
            there = self.names()
            yield from self.read(name for name in gone if name in there)

    def compact(self, month: str) -> int:
        """Write all records of a month, such as 2026/11, into one file, and remove their own. Returns their number.

        Does nothing if they are in one file already. Whoever is killed in between leaves records twice, never none.
        """
        file_of = {name: path for name in sorted(self.names()) if (path := self._file_of[name]).startswith(f"{month}/")}
        read = sorted(self.read(file_of))
        sound = {name: content for name, content in read if read_record(name, content) is not None}
        path = f"{month}/{digest(''.join(sound).encode())}.parquet"
        replaced = {file_of[name] for name in sound} - {file_of[name] for name in file_of.keys() - sound.keys()}
        replaced |= self.paths() & sound.keys()  # left by a command that was killed
        if not sound or replaced == {path}:
            return 0
        self.put(path, _parquet(sound))
        self._packed.pop(path, None)
        written = self._unpacked(path)
        if written is None:  # another machine has compacted it together with later records
            return 0
        if written != sound:
            raise AdvisorError(f"{path} cannot be read back", "its records stay as they are: compact again")
        for old in replaced - {path}:
            self.remove(old)
        return len(sound)

    def _unpacked(self, path: str) -> Mapping[str, bytes] | None:
        """Return the records in a Parquet file: an empty mapping if it is damaged, and None if it is gone."""
        import pyarrow
        import pyarrow.parquet

        if path not in self._packed:
            if (content := self.get(path)) is None:
                return None
            try:
                table = pyarrow.parquet.read_table(io.BytesIO(content)).to_pydict()
                self._packed[path] = dict(zip(table["name"], table["content"], strict=True))
            except (pyarrow.ArrowException, OSError, ValueError, KeyError):
                self._packed[path] = {}
        return self._packed[path]


class _Disk:
    """A folder by the names that fsspec has for what is done with one, so that it needs no other package."""

    def find(self, root: str) -> Iterator[str]:
        def fail(error: OSError) -> None:
            raise error

        for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
            folders[:] = filter(str.isdigit, folders)  # years and months
            place = Path(folder).as_posix()
            yield from (f"{place}/{name}" for name in names)

    def pipe_file(self, path: str, content: bytes) -> None:
        # The own files of the records in a Parquet file are removed next.
        write_atomic(path, content, flush=path.endswith(".parquet"))

    def cat_file(self, path: str) -> bytes:
        return Path(path).read_bytes()

    makedirs, rm_file = staticmethod(os.makedirs), staticmethod(os.remove)


def _parquet(records: Mapping[str, bytes]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    file, table = io.BytesIO(), pyarrow.table({"name": [*records], "content": [*records.values()]})
    pyarrow.parquet.write_table(table, file, compression="zstd")
    return file.getvalue()


def digest(content: bytes) -> str:
    """Return the name that a content gives its file."""
    return hashlib.sha256(content).hexdigest()[:32]


def read_record(name: str, content: bytes) -> dict[str, Any] | None:
    """Return a record if its content is what its name says, or None."""
    if digest(content) != name.rpartition("/")[2].removesuffix(".json"):
        return None
    try:
        record = json.loads(content)
    except ValueError:
        return None
    sound = isinstance(record, dict) and isinstance(record.get("kind"), str) and isinstance(record.get("created"), str)
    return record if sound else None
