"""Unpacks zip and tar archives into a temporary folder, within limits, because their contents come from strangers.

Nothing is unpacked outside that folder or executed. Links and devices are skipped, and neither permissions nor owners
are restored. The limits apply to what is unpacked, not to what the archive claims.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO

from advisor.errors import AdvisorError
from advisor.readers.chunks import open_binary, parse_json, read_document, read_head
from advisor.readers.yaml_rows import text_regex

# Jupyter notebooks: we write what their cells printed as a console would have shown it, and the sizes that they set. In
# a notebook, a Trainer shows its rows as an HTML table below a progress bar (`[60/300 04:53 < 19:30, 0.2 it/s, Epoch
# 0.35/2]`). Both are written as a Trainer prints them on a console. Other pictures and tables are skipped.

_TAG = re.compile(r"</?\w[^<>]*>")
_COMMENT = re.compile(r"#[^\n]*")
_NAMES = {"step": "step", "epoch": "epoch", "training loss": "loss", "validation loss": "eval_loss"}
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|nan|inf", re.IGNORECASE)


def is_notebook(path: Path) -> bool:
    """Return whether a file is a notebook, judged by its name and its first bytes."""
    return path.suffix == ".ipynb" and path.is_file() and read_head(path, 64).lstrip()[:1] == b"{"


def console_of(path: Path) -> str:
    """Return what the cells of a notebook printed, in order. Raises AdvisorError if the file is not a notebook."""
    notebook = parse_json(read_document(path), str(path))
    cells = notebook.get("cells") if isinstance(notebook, Mapping) else None
    parts: list[str] = []
    for cell in (cell for cell in cells or [] if isinstance(cell, Mapping)):
        if cell.get("cell_type") == "code":
            code = _COMMENT.sub("", _joined(cell.get("source")))
            parts += ["\n"] * bool(parts and not parts[-1].endswith("\n"))
            parts += [
                f"{name}={float(n.replace('_', '')):.15g}\n" for name, n in text_regex("trainer_argument").findall(code)
            ]
        parts += [_printed(output) for output in cell.get("outputs") or [] if isinstance(output, Mapping)]
    return "".join(parts)


def _printed(output: Mapping[str, Any]) -> str:
    data = output.get("data") or {}
    if output.get("output_type") == "error":  # the traceback quotes lines of the program
        return f"Traceback (most recent call last):\n{output.get('ename')}: {output.get('evalue')}\n"
    table = "".join(_of_table(_joined(data.get("text/html"))))
    return _joined(output.get("text")) or table or _joined(data.get("text/plain")) + "\n" * bool(data)


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


def _of_table(text: str) -> Iterator[str]:
    """Yield the rows of a Trainer's table and its bar as a console shows them; yield nothing for any other table."""
    rows = [
        [html.unescape(cell).strip() for cell in text_regex("html_cell").findall(row)]
        for row in text_regex("html_row").findall(text)
    ]
    head = [_NAMES.get(name.lower()) for name in rows[0]] if rows else []
    if head[:1] not in (["step"], ["epoch"]) or not {"loss", "eval_loss"} & set(head):
        return
    bar = text_regex("html_bar").search(_TAG.sub(" ", text[: text.find("<table")]))
    if bar:
        epochs = f"  Num Epochs = {bar[4]}\n" if bar[4] else ""
        yield f"***** Running training *****\n{epochs}  Total optimization steps = {bar[2]}\n"
    for row in rows[1:]:
        values = {name: cell for name, cell in zip(head, row, strict=False) if name and _NUMBER.fullmatch(cell)}
        place = {name: values[name] for name in ("step", "epoch") if name in values}
        for loss in ("loss", "eval_loss"):
            if loss in values:  # "No log" if a row of the table holds only an evaluation
                yield f"{json.dumps({loss: values[loss], **place}).replace(chr(34), chr(39))}\n"
    if bar:
        yield f"{bar[1]}/{bar[2]} [{bar[3]}<00:00, 1.00it/s]\n"


MOST_MEMBERS = 5000  # a run folder with a thousand checkpoints has fewer logs
MOST_BYTES = 2 * 2**30  # in all, after unpacking; the largest known logs are smaller
MOST_PASSED_BYTES = 8 * 2**30  # of skipped weights in a tar, which must be read past
MOST_RATIO = 1200  # deflate cannot compress more than about 1032:1; text logs compress 5-20:1
_MOST_HEADER_BYTES = 2**20  # per tar member; a long name or extended header takes a few kilobytes
_BLOCK = 2**20
_UNPACK = "unpack it yourself and give the log"
_CHECKPOINT_SUFFIXES = (".pkl", ".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".npy", ".png", ".jpg", ".so")


def is_archive(path: Path) -> bool:
    """Return whether a file begins like a zip or tar archive; the tar may be compressed by gzip."""
    return path.is_file() and (_is_zip(read_head(path, 4)) or _is_tar(read_head(path, 512)))


def _is_zip(head: bytes) -> bool:
    return head[:4] in (b"PK\x03\x04", b"PK\x05\x06")


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yield the path itself, or a temporary copy of what an archive or notebook contains.

    For an archive, the copy is its one file or its folder of files. A folder that holds only one other folder is
    replaced by the inner one. Raises AdvisorError, which names the archive, if it is damaged, dangerous or contains an
    archive.
    """
    notebook = is_notebook(path)
    if not notebook and not is_archive(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="advisor-") as name:
        folder = Path(name)
        if notebook:
            (folder / f"{path.stem}.log").write_text(console_of(path), encoding="utf-8")
        else:
            _unpack(path, folder)
        inside = _inside(folder)
        if inside.is_file() and is_archive(inside):
            raise AdvisorError(f"{path} holds another archive", _UNPACK)
        try:
            yield inside
        except AdvisorError as error:
            words = error.message.replace(str(inside), str(path)).replace(str(folder), str(path))
            raise AdvisorError(words, error.hint, exit_code=error.exit_code) from error


def _inside(folder: Path) -> Path:
    files = [path for path in folder.rglob("*") if path.is_file()]
    if len(files) == 1:
        return files[0]
    while len(below := list(folder.iterdir())) == 1 and below[0].is_dir():
        folder = below[0]
    return folder


def _unpack(path: Path, folder: Path) -> None:
    kind = "zip" if _is_zip(read_head(path, 4)) else "tar"
    try:
        if kind == "zip":
            with zipfile.ZipFile(path) as archive:
                _extract_zip(archive, folder, path)
        else:
            with open_binary(path) as packed:
                _extract_tar(packed, folder, path)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, ValueError) as error:
        raise AdvisorError(f"{path} is a damaged {kind} archive: {error}", _UNPACK) from error
    except OSError as error:
        raise AdvisorError(f"{path} cannot be unpacked: {error.strerror or error}", _UNPACK) from error


def _extract_zip(archive: zipfile.ZipFile, folder: Path, path: Path) -> None:
    members = archive.infolist()
    if any(PurePosixPath(member.filename).name in ("data.pkl", "byteorder") for member in members):
        raise AdvisorError(f"{path} is a checkpoint of PyTorch: pickled data is never loaded", "give the run's log")
    if len(members) > MOST_MEMBERS:
        raise AdvisorError(
            f"{path} holds {len(members)} files, more than the {MOST_MEMBERS} that are unpacked", _UNPACK
        )
    left = _most_bytes(path)
    for member in members:
        ordinary = not member.is_dir() and not stat.S_ISLNK(member.external_attr >> 16)
        target = _place(member.filename, folder, path) if ordinary else None
        if target is None:
            continue
        if member.flag_bits & 1:
            raise AdvisorError(f"{path} is encrypted", _UNPACK)
        with archive.open(member) as source:
            left = _copy(source, target, left, path)


def _most_bytes(path: Path) -> int:
    return min(MOST_BYTES, MOST_RATIO * max(1, path.stat().st_size))


def _extract_tar(packed: BinaryIO, folder: Path, path: Path) -> None:
    """Unpack the members in the order of the file, which is read once without seeking."""
    stream = _Metered(packed)
    left, passed, count, unread = _most_bytes(path), MOST_PASSED_BYTES, 0, 0
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_TAR_BLOCK) as archive:  # type: ignore[call-overload]  # it only reads
        while True:
            stream.left = _MOST_HEADER_BYTES + unread
            if (member := archive.next()) is None:
                return
            stream.left, unread = None, 0
            count += 1
            if count > MOST_MEMBERS:
                raise AdvisorError(f"{path} holds more than the {MOST_MEMBERS} files that are unpacked", _UNPACK)
            archive.members = []  # tarfile keeps every member it has seen
            source = archive.extractfile(member) if member.isreg() and not member.issparse() else None
            if source is None:
                unread = min(member.size, passed)
                passed -= unread
                continue
            target = _place(member.name, folder, path)
            if target is not None:
                left = _copy(source, target, left, path)
            else:
                passed = _pass(source, passed, path)


_TAR_BLOCK = 20 * 512  # the block size that tar writes


class _Metered:
    """A stream that returns at most `left` more bytes; `left` is None if there is no limit."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream
        self.left: int | None = _MOST_HEADER_BYTES  # opening the archive reads its first header

    def read(self, size: int) -> bytes:
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise tarfile.ReadError("a header of more than 1 MiB")
        return self._stream.read(size)


def _place(filename: str, folder: Path, path: Path) -> Path | None:
    """Return where to unpack a member, None to skip it. Raises AdvisorError if its name leads out of the folder."""
    name = filename.replace("\\", "/")
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or (parts and ":" in parts[0]) or "\0" in name:
        raise AdvisorError(
            f"{path} holds a file named {name[:80]!r}, which leads out of its folder: not unpacked", _UNPACK
        )
    return folder.joinpath(*parts) if parts and not name.lower().endswith(_CHECKPOINT_SUFFIXES) else None


def _copy(source: IO[bytes], target: Path, left: int, path: Path) -> int:
    """Unpack one file, count its bytes, and return how many more bytes may be unpacked."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "wb") as out:
        while block := source.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise AdvisorError(
                    f"{path} unpacks to far more than a log's size: a damaged or hostile archive", _UNPACK
                )
            out.write(block)
    return left


def _pass(source: IO[bytes], left: int, path: Path) -> int:
    """Read past a file that is not unpacked, and return how many more bytes may be skipped."""
    while block := source.read(_BLOCK):
        left -= len(block)
        if left < 0:
            raise AdvisorError(f"{path} holds too many weights to be read past", _UNPACK)
    return left
