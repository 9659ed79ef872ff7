"""Jupyter notebooks: what their cells printed, as the console would have shown it, and the sizes that they set.

A Trainer in a notebook shows its rows as a table of HTML with a bar above it (`[60/300 04:53 < 19:30, 0.2 it/s, Epoch
0.35/2]`): both are written as its console prints them. Other pictures and tables are no log.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.readers.bounded import parse_json, read_document, read_head

# A row or cell that is not closed ends where the next begins, so that no text is looked at twice.
_ROW = re.compile(r"<tr(?:\s[^<>]*)?>((?:(?!</?tr\b).)*)</tr>", re.DOTALL)
_CELL = re.compile(r"<t[hd](?:\s[^<>]*)?>((?:(?!</?t[hd]\b).)*)</t[hd]>", re.DOTALL)
_TAG = re.compile(r"</?\w[^<>]*>")
_BAR = re.compile(r"\[\s*(\d+)/(\d+)\s+([\d:]+)[^\]]*?(?:Epoch\s+[\d.]+/(\d+))?\]")
_COMMENT = re.compile(r"#[^\n]*")
_SETTING = re.compile(  # of the Trainer, in code
    r"\b(logging_steps|max_steps|num_train_epochs|per_device_train_batch_size|gradient_accumulation_steps)"
    r"\s*=\s*(\d[\d_]{0,12}(?:\.\d{0,9})?(?:e\d{1,2})?)"
)
_NAMES = {"step": "step", "epoch": "epoch", "training loss": "loss", "validation loss": "eval_loss"}
_NUMBER = re.compile(r"[-+]?\d[\d.]*(?:e[-+]?\d+)?|nan|inf", re.IGNORECASE)


def is_notebook(path: Path) -> bool:
    """Whether a file is a notebook, by its name and its first bytes."""
    return path.suffix == ".ipynb" and path.is_file() and read_head(path, 64).lstrip()[:1] == b"{"


def console_of(path: Path) -> str:
    """What the cells of a notebook printed, in their order; AdvisorError where the file is none."""
    notebook = parse_json(read_document(path), str(path))
    cells = notebook.get("cells") if isinstance(notebook, Mapping) else None
    parts: list[str] = []
    for cell in (cell for cell in cells or [] if isinstance(cell, Mapping)):
        if cell.get("cell_type") == "code":
            code = _COMMENT.sub("", _joined(cell.get("source")))
            parts += ["\n"] * bool(parts and not parts[-1].endswith("\n"))
            parts += [f"{name}={float(n.replace('_', '')):.15g}\n" for name, n in _SETTING.findall(code)]
        parts += [_printed(output) for output in cell.get("outputs") or [] if isinstance(output, Mapping)]
    return "".join(parts)


def _printed(output: Mapping[str, Any]) -> str:
    data = output.get("data") or {}
    if output.get("output_type") == "error":  # its traceback quotes the lines of the program
        return f"Traceback (most recent call last):\n{output.get('ename')}: {output.get('evalue')}\n"
    table = "".join(_of_table(_joined(data.get("text/html"))))
    return _joined(output.get("text")) or table or _joined(data.get("text/plain")) + "\n" * bool(data)


def _joined(text: Any) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text or "")


def _of_table(text: str) -> Iterator[str]:
    """Rows of a Trainer's table as it prints them elsewhere, with its bar; nothing of any other table."""
    rows = [[html.unescape(cell).strip() for cell in _CELL.findall(row)] for row in _ROW.findall(text)]
    head = [_NAMES.get(name.lower()) for name in rows[0]] if rows else []
    if head[:1] not in (["step"], ["epoch"]) or not {"loss", "eval_loss"} & set(head):
        return
    bar = _BAR.search(_TAG.sub(" ", text[: text.find("<table")]))
    if bar:
        epochs = f"  Num Epochs = {bar[4]}\n" if bar[4] else ""
        yield f"***** Running training *****\n{epochs}  Total optimization steps = {bar[2]}\n"
    for row in rows[1:]:
        values = {name: cell for name, cell in zip(head, row, strict=False) if name and _NUMBER.fullmatch(cell)}
        place = {name: values[name] for name in ("step", "epoch") if name in values}
        for loss in ("loss", "eval_loss"):
            if loss in values:  # "No log" where a table has a row for an evaluation alone
                yield f"{json.dumps({loss: values[loss], **place}).replace(chr(34), chr(39))}\n"
    if bar:
        yield f"{bar[1]}/{bar[2]} [{bar[3]}<00:00, 1.00it/s]\n"
