"""Uses the newest checkpoint of a run: a child process loads the model, and its output is returned."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.options import SampleOptions


def sample(run_dir: Path, prompt: str, options: SampleOptions) -> Iterator[dict[str, Any]]:
    """Yields the records of a process that generates text (`trainer/sample.py`); raises AdvisorError if it fails."""
    given = {name: value for name, value in vars(options).items() if value is not None and name != "chat"}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    yield from _records(["trainer.sample", str(run_dir), *words, *(["--chat"] if options.chat else [])], prompt)


def evaluate(
    run_dir: Path, *, tokens: int, tasks: Sequence[Path], device: str = "auto", tokenizer: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Yields records with the held-out loss and the scores on tasks (`trainer/evaluate.py`)."""
    words = ["--tokens", str(tokens), "--device", device, *(word for task in tasks for word in ("--task", str(task)))]
    if tokenizer is not None:
        words += ["--tokenizer", str(tokenizer)]
    yield from _records(["trainer.evaluate", str(run_dir), *words], "")


def to_huggingface(run_dir: Path, out: Path, tokenizer: Path | None = None) -> Iterator[dict[str, Any]]:
    """Yields records about the written weights, configuration and tokenizer (`trainer/huggingface.py`)."""
    words = ["--out", str(out), *(["--tokenizer", str(tokenizer)] if tokenizer is not None else [])]
    yield from _records(["trainer.huggingface", str(run_dir), *words], "")


def _records(words: Sequence[str], prompt: str) -> Iterator[dict[str, Any]]:
    """Yields the lines of a trainer module; raises AdvisorError with its message if it fails."""
    command = [sys.executable, "-m", *words]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
        )
        try:
            assert process.stdin is not None and process.stdout is not None
            with suppress(BrokenPipeError):  # the process has already said why it ended
                process.stdin.write(prompt)
                process.stdin.close()
            for line in process.stdout:
                if not line.startswith("{"):  # libraries may print
                    continue
                record = json.loads(line)
                if record["kind"] == "error":
                    raise AdvisorError(record["text"], record["hint"])
                yield record
            if process.wait() != 0:
                errors.seek(0)
                last = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                raise AdvisorError(f"the model's process failed: {last}", "if GPU memory is short: --device cpu")
        finally:  # also if the caller stops reading
            process.kill()
            process.wait()
