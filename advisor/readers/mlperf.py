"""MLPerf training logs: `:::MLL`, `:::MLLOG` and the older `:::MLPv0.5.0` lines.

Source: mlcommons/logging. Losses are logged only by some benchmarks: `train_loss`, and for GPT-3 and Llama
`eval_accuracy`, which there is the validation loss (log perplexity).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advisor.readers.chunks import as_number, chunks, json_object, json_value
from advisor.readers.gather import rows_of
from advisor.readers.run_table import Event, RunTable, Status
from advisor.readers.status import by_tracker

NAME = "mlperf"
_OLD = re.compile(rb":::MLP?L? (?:\S+ )??(\d+(?:\.\d+)?) (?:\([^)]*\) )?(\w+)(?:: (.*))?$")
_V05 = re.compile(rb":::MLPv[\d.]+ \S+ (\d+(?:\.\d+)?) \([^)]*\) (\w+)(?:: (.*))?$")
_LOSS_BENCHMARKS = ("gpt3", "llama2_70b_lora", "llama31_405b", "llama31_8b", "gpt_oss", "bert_loss")
_MOST_LINE = 2**16
_FACTS = {
    "global_batch_size": "step_samples",
    "max_sequence_length": "seq_len",
    "opt_base_learning_rate": "learning_rate",
    "opt_learning_rate_warmup_steps": "warmup_steps",
    "opt_weight_decay": "weight_decay",
    "opt_adamw_weight_decay": "weight_decay",
    "opt_gradient_clip_norm": "grad_clip",
    "gradient_accumulation_steps": "grad_accum",
    "opt_name": "optimizer",
    "train_samples": "train_samples",
    "max_steps": "planned_steps",
}
_ENDS = {"success": Status.COMPLETED, "aborted": Status.STOPPED}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One log line: when, what and how much."""

    line: int
    seconds: float
    key: str
    value: Any
    metadata: Mapping[str, Any]


def score(head: bytes, path: Path) -> float:
    """Nothing else begins lines so."""
    return 0.97 if re.search(rb"^(?:\d+: )?:::MLP?(?:L|LOG|v[\d.]+) ", head, re.MULTILINE) else 0.0


def read(path: Path) -> RunTable:
    """Read an MLPerf log; rows are evaluations and, where the benchmark logs them, losses. Raises AdvisorError."""
    entries = list(_entries(path))
    benchmark = next((str(e.value) for e in entries if e.key in ("submission_benchmark", "benchmark")), "")
    rows = [row for entry in entries if (row := _row(entry, benchmark)) is not None]
    framework = f"mlperf {benchmark}".strip()
    table = rows_of(rows).table(path, NAME, framework, facts=_facts(entries), events=_events(entries))
    return _with_status(table, entries)


def _entries(path: Path) -> Iterator[Entry]:
    for chunk in chunks(path):
        for offset, line in enumerate(chunk.text.split(b"\n")):
            at = line.find(b":::ML")
            if at >= 0 and len(line) <= _MOST_LINE and (entry := _entry(line[at:].rstrip(), chunk.first_line + offset)):
                yield entry


def _entry(line: bytes, number: int) -> Entry | None:
    if line.startswith(b":::MLLOG"):
        raw = json_object(line[8:])
        time = as_number(raw.get("time_ms"))
        if time is None:
            return None
        metadata = raw.get("metadata")
        return Entry(line=number, seconds=time / 1000, key=str(raw.get("key")), value=raw.get("value"),
                     metadata=metadata if isinstance(metadata, Mapping) else {})  # fmt: skip
    match = _V05.match(line) or _OLD.match(line)
    if match is None:
        return None
    raw = json_value(match[3] or b"null")
    wrapped = isinstance(raw, Mapping) and "value" in raw
    metadata = raw.get("metadata") if wrapped else raw
    return Entry(line=number, seconds=float(match[1]), key=match[2].decode(), value=raw["value"] if wrapped else raw,
                 metadata=metadata if isinstance(metadata, Mapping) else {})  # fmt: skip


def _facts(entries: list[Entry]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for entry in entries:
        fact = _FACTS.get(entry.key)
        if fact == "optimizer" and isinstance(entry.value, str):
            facts[fact] = entry.value.lower()
        elif fact in ("train_samples", None):
            continue
        elif (number := as_number(entry.value)) is not None and number > 0:
            facts[fact] = int(number) if number == int(number) and fact != "learning_rate" else number
    start, stop = (next((e.seconds for e in entries if e.key == key), None) for key in ("run_start", "run_stop"))
    if start and stop and stop >= start:
        facts["total_seconds"] = stop - start
    return facts


def _row(entry: Entry, benchmark: str) -> dict[str, Any] | None:
    """A row of what an entry measures; evaluations are losses only where the benchmark's accuracy is one."""
    row: dict[str, Any] = {"unix_time": entry.seconds}
    for key in ("step_num", "epoch_num", "samples_count"):
        if (number := as_number(entry.metadata.get(key))) is not None:
            row[key] = number
    if entry.key in ("train_loss", "loss"):
        row["loss"] = entry.value
    elif entry.key == "eval_loss" or (entry.key == "eval_accuracy" and benchmark in _LOSS_BENCHMARKS):
        row["eval_loss"] = entry.value
    elif entry.key == "tracked_stats" and isinstance(entry.value, Mapping):
        row |= {str(key): value for key, value in entry.value.items()}
    else:
        return None
    return row


def _events(entries: list[Entry]) -> list[Event]:
    """Evaluations with their accuracy."""
    events = []
    for entry in entries:
        number = as_number(entry.value)
        if entry.key == "eval_accuracy" and number is not None:
            numbers = {"accuracy": number, "unix_seconds": entry.seconds}
            if (epoch := as_number(entry.metadata.get("epoch_num"))) is not None:
                numbers["epoch"] = epoch
            events.append(
                Event(kind="evaluation", text=f"eval_accuracy {number:.6g}", line=entry.line, numbers=numbers)
            )
    return events


def _with_status(table: RunTable, entries: list[Entry]) -> RunTable:
    stop = next((entry for entry in reversed(entries) if entry.key in ("run_stop", "run_final")), None)
    if stop is not None:
        word = _word(stop)
        return by_tracker(table, _ENDS.get(word, Status.UNKNOWN), f"the log says run_stop: {word or 'no status'}")
    if any(entry.key == "run_start" for entry in entries):
        return by_tracker(table, Status.INCOMPLETE, "run_start without run_stop")
    return table


def _word(stop: Entry) -> str:
    """How a run_stop says the run ended; v0.5 wrote {"success": true}."""
    if "success" in stop.metadata:
        return "success" if stop.metadata["success"] else "aborted"
    return str(stop.metadata.get("status", ""))
