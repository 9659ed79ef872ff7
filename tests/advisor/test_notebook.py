"""The notebook in `examples/` runs from its first cell to its last, and so does the README's block of Python."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(source: str, names: dict[str, Any]) -> Any:
    """The value of the last expression, as a notebook shows it."""
    body = ast.parse(source)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    exec(compile(body, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last is not None else None


def test_every_cell_runs_and_every_answer_shows_itself(capsys, asked_once):
    pytest.importorskip("pandas")
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    shown = [run("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell.get("outputs") for cell in cells)
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) >= 6 and all("<table" in page for page in pages)
    said = capsys.readouterr().out
    assert "NaN" in said and "has no unit" in said


def test_the_readme_shows_python_that_works(tmp_path, monkeypatch, capsys, asked_once):
    [block] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "train.log").write_text("\n".join(f"step {n} | loss {4 - n / 500:.3f} | dt 250 ms" for n in range(60)))
    monkeypatch.chdir(tmp_path)
    frame = run(block, {})
    assert "Train depth" in capsys.readouterr().out and list(frame.columns) == ["run", "severity", "code", "title"]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
