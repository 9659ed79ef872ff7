"""The files of a shared ledger, in a folder or below an address: YYYY/MM/HASH.json for each record.

A month may be compacted: YYYY/MM/HASH.parquet has the names and contents of its records. Both are read together.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.redact import for_sending
from advisor.store.disk import disk_errors


class Files(ABC):
    """The files of a ledger. Paths begin below its folder or address, and none of them is ever changed."""

    def __init__(self) -> None:
        self._file_of: dict[str, str] = {}  # by the name of a record, as last listed
        self._packed: dict[str, Mapping[str, bytes]] = {}  # records of Parquet files that were read

    @abstractmethod
    def paths(self) -> set[str]: ...
    @abstractmethod
    def put(self, path: str, content: bytes) -> None: ...
    @abstractmethod
    def get(self, path: str) -> bytes | None: ...  # None: it is gone
    @abstractmethod
    def remove(self, path: str) -> None: ...

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
        listed = sorted(name for name in self.names() if name.startswith(f"{month}/"))
        file_of = {name: self._file_of[name] for name in listed}
        read = sorted(self.read(listed))
        sound = {name: content for name, content in read if read_record(name, content) is not None}
        path = f"{month}/{digest(''.join(sound).encode())}.parquet"
        replaced = {file_of[name] for name in sound} - {file_of[name] for name in listed if name not in sound}
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
                table = pyarrow.parquet.read_table(io.BytesIO(content), columns=["name", "content"])
                names, contents = (table[column].to_pylist() for column in ("name", "content"))
                self._packed[path] = dict(zip(names, contents, strict=True))
            except (pyarrow.ArrowException, OSError, ValueError):
                self._packed[path] = {}
        return self._packed[path]


def _parquet(records: Mapping[str, bytes]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    names, contents = pyarrow.array(records.keys(), pyarrow.string()), pyarrow.array(records.values(), pyarrow.binary())
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"name": names, "content": contents}), file, compression="zstd")
    return file.getvalue()


class Folder(Files):
    """A folder of this machine, or one that several machines mount."""

    def __init__(self, path: Path):
        super().__init__()
        self._folder = path

    def paths(self) -> set[str]:
        with disk_errors("read the ledger", self._folder):
            months = [month for year in _numbered(self._folder) for month in _numbered(year)]
            return {
                f"{month.parent.name}/{month.name}/{entry.name}"
                for month in months
                for entry in os.scandir(month)
                if entry.name.endswith((".json", ".parquet"))
            }

    def put(self, path: str, content: bytes) -> None:
        place = self._folder / path
        with disk_errors("write to the ledger", place):
            place.parent.mkdir(parents=True, exist_ok=True)
            # A process that is killed leaves at most a file that no reader looks at.
            unfinished = place.with_name(f".{place.name}.{os.getpid()}")
            with open(unfinished, "wb") as file:
                file.write(content)
                if path.endswith(".parquet"):  # whose records' own files are removed next
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(unfinished, place)

    def get(self, path: str) -> bytes | None:
        with disk_errors("read the ledger", self._folder / path):
            try:
                return (self._folder / path).read_bytes()
            except FileNotFoundError:
                return None

    def remove(self, path: str) -> None:
        with disk_errors("remove from the ledger", self._folder / path):
            (self._folder / path).unlink(missing_ok=True)


class Address(Files):
    """An object store or another system that fsspec knows, such as s3://bucket/folder."""

    def __init__(self, address: str):
        super().__init__()
        from fsspec.core import url_to_fs

        try:
            self._system, self._root = url_to_fs(address)
        except (ImportError, ValueError) as error:
            message = f"ADVISOR_LEDGER={for_sending(address)} cannot be opened: {error}"
            raise AdvisorError(message, "install the package that it names, or name a folder", exit_code=2) from error

    def paths(self) -> set[str]:
        try:
            found = self._system.find(self._root)
        except FileNotFoundError:
            return set()
        return {"/".join(path.split("/")[-3:]) for path in found if path.endswith((".json", ".parquet"))}

    def put(self, path: str, content: bytes) -> None:
        self._system.makedirs(f"{self._root}/{path.rpartition('/')[0]}", exist_ok=True)
        self._system.pipe_file(f"{self._root}/{path}", content)

    def get(self, path: str) -> bytes | None:
        try:
            content: bytes = self._system.cat_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        return content

    def remove(self, path: str) -> None:
        try:
            self._system.rm_file(f"{self._root}/{path}")
        except FileNotFoundError:
            return  # another machine compacts the same month


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


def _numbered(folder: Path) -> list[Path]:
    """Return the folders of years or months in a folder, which may not exist yet."""
    if not folder.is_dir():
        return []
    return [folder / entry.name for entry in os.scandir(folder) if entry.name.isdigit() and entry.is_dir()]
