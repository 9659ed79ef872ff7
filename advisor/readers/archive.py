"""Opens what holds a log: a zip archive of one file, or a notebook, as a file in a temporary folder.

The contents come from strangers. Nothing is unpacked outside that folder or executed, and the size is limited.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from advisor.errors import AdvisorError
from advisor.readers.chunks import parse_json, read_document, read_head
from advisor.readers.yaml_rows import text_regex

# Jupyter notebooks: we write what their cells printed as a console would have shown it, and the sizes that they set. In
# a notebook, a Trainer shows its rows as an HTML table below a progress bar (`[60/300 04:53 < 19:30, 0.2 it/s, Epoch
# 0.35/2]`). Both are written as a Trainer prints them on a console. Other pictures and tables are skipped.

_TAG = re.compile(r"</?\w[^<>]*>")
_COMMENT = re.compile(r"#[^\n]*")
_NAMES = {"step": "step", "epoch": "epoch", "training loss": "loss", "validation loss": "eval_loss"}
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|nan|inf", re.IGNORECASE)


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


MOST_BYTES = 2 * 2**30  # after unpacking; the largest known logs are smaller
_BLOCK = 2**20
_UNPACK = "unpack it yourself and give the log"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Yield the path itself, or a temporary copy of the one log that a zip archive or notebook contains.

    Raises AdvisorError, which names the archive, if it is damaged, hostile or holds several files.
    """
    begins = read_head(path, 64) if path.is_file() else b""
    notebook = path.suffix == ".ipynb" and begins.lstrip()[:1] == b"{"
    if not notebook and begins[:4] not in (b"PK\x03\x04", b"PK\x05\x06"):
        if path.is_file() and read_head(path, 512)[257:262] == b"ustar":
            raise AdvisorError(f"{path} is a tar archive", _UNPACK)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="advisor-") as name:
        inside = Path(name) / (f"{path.stem}.log" if notebook else "log")
        if notebook:
            inside.write_text(console_of(path), encoding="utf-8")
        else:
            inside = _unpacked(path, Path(name))
        try:
            yield inside
        except AdvisorError as error:
            words = error.message.replace(str(inside), str(path))
            raise AdvisorError(words, error.hint, exit_code=error.exit_code) from error


def _unpacked(path: Path, folder: Path) -> Path:
    """Write the one file of a zip archive into the folder, under its last name. Nothing else of it is used."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            names = [PurePosixPath(member.filename.replace("\\", "/")).name for member in members]
            if "data.pkl" in names:
                message = f"{path} is a checkpoint of PyTorch: pickled data is never loaded"
                raise AdvisorError(message, "give the run's log")
            if len(members) != 1:
                raise AdvisorError(f"{path} holds {len(members)} files: a log is one of them", _UNPACK)
            target = folder / (names[0] or "log")
            with archive.open(members[0]) as source, open(target, "wb") as out:
                while block := source.read(_BLOCK):
                    out.write(block)
                    if out.tell() > MOST_BYTES:
                        raise AdvisorError(f"{path} unpacks to far more than a log's size", _UNPACK)
            return target
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise AdvisorError(f"{path} is a damaged zip archive, or encrypted: {error}", _UNPACK) from error
    except OSError as error:
        raise AdvisorError(f"{path} cannot be unpacked: {error.strerror or error}", _UNPACK) from error
