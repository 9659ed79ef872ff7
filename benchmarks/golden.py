"""Keeps the commands' answers to fixed goals, logs, runs and reports, and compares them with later answers.

    python benchmarks/golden.py keep FOLDER [--logs FOLDER …]
    python benchmarks/golden.py compare BEFORE AFTER

`keep` writes one JSON file for each command line: its exit code, its output and, if that is JSON, the document. All
questions go through the command line, so that changes inside the program do not affect them. `compare` lists the
differences: numbers by more than one part in 1e9, and words. The runs use a separate store with the shipped CPU
calibration, once as it is and once under the L4's name.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
GOALS = ROOT / "tests" / "advisor" / "golden" / "goals.txt"
TOLERANCE = 1e-9
_CHANGING = ("id", "created")  # in a plan: the time of day


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    keep_parser = verbs.add_parser("keep")
    keep_parser.add_argument("folder", type=Path)
    keep_parser.add_argument("--logs", type=Path, action="append", default=[], help="folders of further logs")
    keep_parser.add_argument("--runs", type=Path, action="append", default=[], help="further run folders")
    compare_parser = verbs.add_parser("compare")
    compare_parser.add_argument("before", type=Path)
    compare_parser.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.verb == "compare":
        sys.exit(compare(options.before, options.after))
    with tempfile.TemporaryDirectory() as home:
        os.environ["ADVISOR_HOME"] = home
        keep(options.folder, Path(home), options.logs, options.runs)


def keep(folder: Path, home: Path, logs: list[Path], runs: list[Path]) -> None:
    """Ask every question and write each answer to its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    places = {str(ROOT): "ROOT", str(home): "HOME"} | {str(p.resolve()): f"LOGS{i}" for i, p in enumerate(logs + runs)}
    for name, words in questions(home, logs, runs):
        found = ask(words)
        text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
        for path, short in places.items():
            text = text.replace(path, short)
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def questions(home: Path, logs: list[Path], runs: list[Path]) -> Iterator[tuple[str, list[str]]]:
    """Yield a name for each command line."""
    goals = prepare_store(home)
    for number, words in enumerate(goals):
        yield f"plan-{number:02d}", ["plan", *words, "--json"]
        if number % 4 == 0:
            yield f"plan-{number:02d}-text", ["plan", *words]
    run_folders = [ROOT / "examples" / "run", *sorted(path for root in runs for path in root.iterdir())]
    for path in run_folders:
        yield f"compare-{path.name}", ["compare", str(path), "--no-record", "--json"]
        yield f"compare-{path.name}-text", ["compare", str(path), "--no-record"]
        yield f"run-{path.name}", ["analyze", str(path), "--json"]
    together = [str(path) for path in run_folders]
    yield "compare-together", ["compare", *together, "--no-record", "--json"]
    yield "compare-together-text", ["compare", *together, "--no-record"]
    yield "analyze-together", ["analyze", *together, "--json"]
    for path in sorted((ROOT / "examples" / "reports").glob("*.yaml")):
        yield f"audit-{path.stem}", ["audit", str(path), "--json"]
        yield f"audit-{path.stem}-text", ["audit", str(path)]
    recorded = ROOT / "tests" / "advisor" / "recorded" / "logs"
    for root in (recorded, *logs):
        for path in sorted(p for p in root.rglob("*") if p.is_file() and p.name not in ("MANIFEST.csv", "README.md")):
            name = re.sub(r"[^\w.-]", "_", str(path.relative_to(root)))
            yield f"log-{root.name}-{name}", ["analyze", str(path), "--json"]


def prepare_store(home: Path) -> list[list[str]]:
    """Fill an empty ADVISOR_HOME, and return the goals with their data folder filled in."""
    from advisor.store.store import default_store, load_calibration

    session = sorted((ROOT / "benchmarks" / "raw").glob("cpu-*.yaml"))[0]
    here = load_calibration(session)
    default_store().save_calibration(here)
    card = replace(here.device, type="cuda", name="NVIDIA L4", memory_bytes=24 * 10**9)
    there = replace(here, device_key="l4", device=card, id=here.id.replace("cpu", "l4"))
    default_store().save_calibration(replace(there, settings=replace(here.settings, gpu="l4", device="cuda")))
    data = home / "tokens"  # of a text that never changes
    ask(["data", "prepare", str(ROOT / "LICENSE"), "--out", str(data), "--vocab-size", "512"])
    lines = GOALS.read_text(encoding="utf-8").splitlines()
    return [shlex.split(line.replace("{data}", str(data))) for line in lines if line and not line.startswith("#")]


def ask(words: list[str]) -> dict[str, Any]:
    """Run a command line in this process. Returns exit code, standard output (JSON if possible) and standard error."""
    from advisor.cli import main as advisor_main

    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            advisor_main(words)
        except SystemExit as end:
            code = end.code
    printed: Any = out.getvalue()
    with contextlib.suppress(json.JSONDecodeError):
        printed = json.loads(printed)
        if isinstance(printed, dict):
            printed = {name: value for name, value in printed.items() if name not in _CHANGING}
    return {"words": words, "code": code, "out": printed, "err": err.getvalue()}


def compare(before: Path, after: Path) -> int:
    """Print the differences. Returns 1 if there are any."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    changed = 0
    for name in names:
        pair = [folder / name for folder in (before, after)]
        if not all(path.exists() for path in pair):
            print(f"{name}: only {'before' if pair[0].exists() else 'after'}")
            changed += 1
            continue
        found = list(differences(*(json.loads(path.read_text(encoding="utf-8")) for path in pair), ""))
        changed += bool(found)
        for line in found[:6]:
            print(f"{name}: {line}")
        if len(found) > 6:
            print(f"{name}: and {len(found) - 6} more")
    print(f"{changed} of {len(names)} differ")
    return 1 if changed else 0


def differences(before: Any, after: Any, where: str) -> Iterator[str]:
    """Yield where two documents differ, with both values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from differences(before.get(key), after.get(key), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for place, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{place}]")
    elif isinstance(before, float) and isinstance(after, float):
        if not math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=1e-12):
            yield f"{where}: {before!r} became {after!r}"
    elif before != after:
        yield f"{where}: {_short(before)} became {_short(after)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:80]} … {text[-70:]}"


if __name__ == "__main__":
    main()
