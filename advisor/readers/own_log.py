"""Reads this program's own `log.jsonl`: the columns that the trainer measures, the header's facts and the outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import plain_file
from advisor.readers.config_names import facts_of_config
from advisor.readers.lifetime import process_seconds
from advisor.readers.run_table import Attempt, Event, Phase, RunTable, Status, names_of
from trainer.runlog import Record, RunLog, RunLogError, load_run_log
from trainer.schema import ConfigError, Outcome, config_from_dict

NAME = "training-advisor"
SYNTHETIC = "synthetic"  # fingerprint of tokens that were drawn at random, not read from a folder
# column → field of a step's record
_STEP_FIELDS = {
    **{name: name for name in ("step", "tokens", "loss", "learning_rate", "grad_norm", "clipped", "seconds")},
    **{f"{part}_seconds": f"{part}_seconds" for part in ("data", "forward", "backward", "clip", "optimizer")},
    "unix_seconds": "time",
    "memory_bytes": "allocated_peak_bytes",
    "reserved_bytes": "reserved_peak_bytes",
    "resident_bytes": "resident_peak_bytes",
}
STATUS: Mapping[str, Status] = {
    Outcome.COMPLETED: Status.COMPLETED,
    Outcome.STOPPED: Status.STOPPED,
    Outcome.OUT_OF_MEMORY: Status.OUT_OF_MEMORY,
    Outcome.DIVERGED: Status.DIVERGED,
    Outcome.FAILED: Status.CRASHED,
}


def score(head: bytes, path: Path) -> float:
    """Return the score: the trainer's header is the first line, or only records of steps if the header is cut off."""
    if b'"kind":"header"' in head[:4096] and b'"tokens_per_step"' in head:
        return 0.99
    return 0.9 if b'{"kind":"step"' in head and b'"data_seconds"' in head else 0.0


def read(path: Path) -> RunTable:
    """Read a run log. Steps done in vain are only counted in the notes. Raises AdvisorError on failure."""
    try:
        with plain_file(path) as plain:
            log = load_run_log(plain)
    except (RunLogError, RecursionError) as error:
        hint = "mend or remove that line; where a newer version wrote it, upgrade training-advisor"
        raise AdvisorError(str(error), hint) from error
    except (KeyError, TypeError, ValueError) as error:
        raise AdvisorError(
            f"{path} is not a run log of this program: {error}", "give the log.jsonl of a run folder"
        ) from error
    except OSError as error:
        raise AdvisorError(
            f"{path} cannot be read: {error.strerror or error}", "check the path and who may read it"
        ) from error
    return run_table_of(log, str(path))


def run_table_of(log: RunLog, source: str) -> RunTable:
    """Return the table of a run log that was already read."""
    columns = _columns(log)
    steps, loss, flags = (columns.get(name, np.zeros(0)) for name in ("step", "loss", "loss_is_nan"))
    trained = np.flatnonzero(~np.isnan(flags))
    status, reason = _status(log)
    derived = {"tokens_per_second": "tokens and seconds of the step"}
    return RunTable(
        source=source,
        format=NAME,
        framework=NAME,
        columns=columns,
        provenance={name: derived.get(name, f"field {_STEP_FIELDS.get(name, name)!r}") for name in columns},
        phases=(Phase(name="training", first_row=0, last_row=len(steps) - 1),) if len(steps) else (),
        facts=_facts(log),
        attempts=_attempts(log),
        events=_events(log),
        status=status,
        status_reason=reason,
        rows=len(trained),
        first_step=float(steps[trained[0]]) if len(trained) else None,
        last_step=float(steps[trained[-1]]) if len(trained) else None,
        first_loss=float(loss[trained[0]]) if len(trained) else None,
        last_loss=float(loss[trained[-1]]) if len(trained) else None,
        notes=_notes(log),
    )


def _columns(log: RunLog) -> dict[str, np.ndarray]:
    """Return the steps, each with the evaluation after it; an evaluation before the first step has its own row."""
    by_step: dict[int, Record] = {record["step"]: {} for record in (*log.steps, *log.evals)}
    evals = {record["step"]: record for record in log.evals}
    saves = {record.get("step"): record for record in log.checkpoints}
    trained = {record["step"]: record for record in log.steps}
    order = sorted(by_step)
    columns = {
        column: numbers([trained.get(step, {}).get(name) for step in order]) for column, name in _STEP_FIELDS.items()
    }
    columns["step"] = np.array(order, dtype=float)
    printed = np.array([_is_number(trained.get(step, {}).get("loss")) for step in order], bool)
    loss = columns["loss"]
    columns["loss_is_nan"] = np.where(printed, np.isnan(loss) + 2.0 * np.isinf(loss), np.nan)
    columns["eval_loss"] = numbers([evals.get(step, {}).get("loss") for step in order])
    columns["eval_seconds"] = numbers([evals.get(step, {}).get("seconds") for step in order])
    columns["checkpoint_seconds"] = numbers([saves.get(step, {}).get("seconds") for step in order])
    with np.errstate(all="ignore"):
        done = np.diff(columns["tokens"], prepend=0.0)
        columns["tokens_per_second"] = np.where(columns["seconds"] > 0, done / columns["seconds"], np.nan)
    columns["phase"] = np.zeros(len(order))
    known = (name for name in names_of("columns") if name in columns and not np.isnan(columns[name]).all())
    return {name: columns[name] for name in known} if order else {}


def numbers(values: Sequence[Any]) -> np.ndarray:
    return np.array([float(v) if isinstance(v, int | float) else math.nan for v in values], dtype=float)


def _facts(log: RunLog) -> dict[str, Any]:
    header = log.header
    if header is None:
        return {}
    facts: dict[str, Any] = {"grad_norm_kind": "pre_clip", "loss_unit": "nats"}
    device = header.get("device") or {}
    world_size = header.get("world_size")
    try:
        facts |= facts_of_config(config_from_dict(header.get("config")), world_size)
    except ConfigError:
        facts |= {"world_size": world_size}
    data = header.get("data") or {}
    facts |= {name: header.get(name) for name in ("parameters", "precision", "torch", "python", "host")}
    facts |= {name: device.get(name) for name in ("driver", "cuda", "cpu_threads")}
    facts |= {
        "step_tokens": header.get("tokens_per_step"),
        "gpu": device.get("name"),
        "gpu_memory_bytes": device.get("memory_bytes"),
        "resumed_from_step": header.get("resumed_from_step") or None,
        "dataset_tokens": data.get("tokens"),
        "dataset_bytes": data.get("bytes"),
        "data_fingerprint": data.get("fingerprint") if data else SYNTHETIC,
        "bytes_per_token": data.get("bytes_per_token"),
    }
    ended = [float(final["seconds"]) for final in log.finals if _is_number(final.get("seconds"))]
    if len(ended) == len(log.finals) == log.attempts:  # no attempt still runs or died without a final record
        facts["total_seconds"] = sum(ended)
    if device.get("type") == "cpu":
        facts |= {"gpu": "cpu", "gpu_memory_bytes": None}
    if log.witnesses:
        seconds = [_known(witness, "reference_seconds") or 0.0 for witness in log.witnesses]
        seen = [
            (w, s)
            for w, s in zip(log.witnesses, seconds, strict=True)
            if 0 < s < math.inf and _is_number(w.get("step"))
        ]
        facts["witness_steps"] = [float(witness["step"]) for witness, _ in seen] or None
        facts["witness_seconds"] = [taken for _, taken in seen] or None
        stolen = [share for witness, _ in seen if (share := _known(witness, "steal_fraction")) is not None]
        facts["stolen_share"] = sum(stolen) / len(stolen) if stolen else None
    return {name: value for name, value in facts.items() if value is not None}


def _attempts(log: RunLog) -> tuple[Attempt, ...]:
    kinds = (log.steps, log.evals, log.checkpoints, log.witnesses, log.messages, log.compiles, log.superseded)
    last = {number: _time(header) for number, header in enumerate(log.headers, 1)}
    lost = dict.fromkeys(last, 0.0)
    for record in (record for records in kinds for record in records):
        last[record["attempt"]] = max(last.get(record["attempt"], 0.0), _time(record))
    for record in log.superseded:
        lost[record["attempt"]] = lost.get(record["attempt"], 0.0) + (_known(record, "seconds") or 0.0)
    compiled = {record["attempt"]: _known(record, "seconds") for record in log.compiles}
    finals = {record["attempt"]: record for record in log.finals}
    return tuple(
        Attempt(
            resumed_from_step=int(_known(header, "resumed_from_step") or 0),
            startup_seconds=_known(header, "startup_seconds"),
            # from a record that was cut or changed by hand only what is a number is taken
            seconds=process_seconds(
                {"time": header["time"], "startup_seconds": _known(header, "startup_seconds")},
                finals.get(number),
                last[number],
            )
            if _is_number(header.get("time"))
            else None,
            compile_seconds=compiled.get(number),
            lost_seconds=lost[number],
            outcome=finals.get(number, {}).get("outcome"),
            reason=finals.get(number, {}).get("reason"),
        )
        for number, header in enumerate(log.headers, 1)
    )


def _known(record: Record, name: str) -> float | None:
    return float(record[name]) if _is_number(record.get(name)) else None


def _events(log: RunLog) -> tuple[Event, ...]:
    events: list[tuple[float, Event]] = []

    def add(record: Record, kind: str, text: Any, step: float | None = None, named: Sequence[str] = ()) -> None:
        numbers = {name: value for name in named if (value := _known(record, name)) is not None}
        step = numbers.get("step") if step is None else step
        events.append((_time(record), Event(kind=kind, text=str(text)[:300], step=step, numbers=numbers)))

    for header in log.headers[1:]:
        step = float(header.get("resumed_from_step") or 0)
        add(header, "restart", f"attempt {header['attempt']} from step {step:.0f}", step)
    for record in log.checkpoints:
        add(record, "checkpoint", record.get("path", ""), named=("bytes", "seconds", "step"))
    for record in log.messages:
        add(record, "warning" if record.get("level") == "warning" else "message", record.get("text", ""))
    for record in log.compiles:
        add(record, "compile", "torch.compile", named=("seconds",))
    for record in log.finals:
        kind = "finished" if record.get("outcome") == Outcome.COMPLETED else str(record.get("outcome"))
        add(record, kind, record.get("reason", ""), _known(record, "step"))
    return tuple(event for _, event in sorted(events, key=lambda one: one[0]))


def _time(record: Record) -> float:
    return _known(record, "time") or 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _status(log: RunLog) -> tuple[Status, str]:
    if log.final is not None:
        status = STATUS.get(str(log.final.get("outcome")), Status.NO_END)
        return status, str(log.final.get("reason", ""))
    if not log.steps:
        return Status.INCOMPLETE, "the log holds no step and no end"
    config = log.header.get("config") if log.header else None
    planned = config.get("steps") if isinstance(config, dict) else None
    of = f" of {planned}" if planned else ""
    return Status.INCOMPLETE, f"the log ends at step {log.steps[-1]['step']}{of}, without a word"


def _notes(log: RunLog) -> tuple[str, ...]:
    notes = []
    if log.attempts > 1:
        notes.append(f"{log.attempts} attempts, each shown from the step at which it began")
    lost = [record for record in log.superseded if record["kind"] == "step"]
    if lost:
        seconds = sum(record["seconds"] for record in lost if _is_number(record.get("seconds")))
        notes.append(f"{len(lost)} steps ({seconds:.0f} s) were done in vain or twice: they are not among the rows")
    return tuple(notes)
