"""Reads Hugging Face Trainer's `trainer_state.json`: training and evaluation rows of `log_history`, and the plan.

If several named sets are evaluated (`eval_<name>_loss`), each has its own row at the same step. The column holds the
first set, and the fact `eval_losses` holds all. The last row sums up the run (`train_runtime`, mean `train_loss`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.chunks import as_number, parse_json, read_document
from advisor.readers.config_names import facts_of_settings
from advisor.readers.gather import rows_of
from advisor.readers.run_table import RunTable, Status
from advisor.readers.status import by_tracker

NAME = "hf_trainer_state"
_DEFAULT_SAVE_STEPS = 500  # the state has this value also if checkpoints go by epochs or are not written
_EVAL_LOSS = re.compile(r"eval_(?:(\w+)_)?loss")


def score(head: bytes, path: Path) -> float:
    """Return the score, by the file's name or its two characteristic keys."""
    if b'"log_history"' in head and (b'"global_step"' in head or b'"best_metric"' in head):
        return 0.98
    if head.lstrip()[:1] == b"[":  # `log_history` alone, as scripts write it to a separate file
        return 0.9 if all(f'"{key}"'.encode() in head for key in ("loss", "learning_rate", "epoch", "step")) else 0.0
    return 0.9 if path.name == "trainer_state.json" and head.lstrip()[:1] == b"{" else 0.0


def read(path: Path) -> RunTable:
    """Read a trainer state. Raises AdvisorError if the file is not one."""
    raw = parse_json(read_document(path), str(path))
    raw = {"log_history": raw} if isinstance(raw, list) else raw
    history = raw.get("log_history") if isinstance(raw, Mapping) else None
    if not isinstance(history, list):
        raise AdvisorError(
            f"{path} has no log_history: it is no trainer state", "give the trainer_state.json of the newest checkpoint"
        )
    rows = [row for row in history if isinstance(row, Mapping)]
    sets = _sets(rows)
    notes, names = [], [name or "eval" for name in sets]
    if len(sets) > 1:
        chosen = "eval" if "" in sets else names[0]
        notes.append(f"{len(sets)} sets are evaluated ({', '.join(names[:8])}): the column has {chosen}")
    table = rows_of(rows).table(path, NAME, "huggingface", facts=_facts(raw, sets), notes=notes)
    # the state knows the last step, which may be after the last logged row
    done, planned = as_number(raw.get("global_step")), as_number(raw.get("max_steps"))
    if done is None or not planned or planned <= 0:
        return table
    if done >= planned:
        return by_tracker(table, Status.COMPLETED, f"{done:.0f} of {planned:.0f} steps done")
    return by_tracker(table, Status.INCOMPLETE, f"the state was saved at step {done:.0f} of {planned:.0f}")


def _sets(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """Return the steps and losses of each evaluated set in file order; "" is the set without a name."""
    sets: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        step = as_number(row.get("step"))
        for key, value in row.items():
            match, loss = _EVAL_LOSS.fullmatch(str(key)), as_number(value)
            if match and loss is not None and step is not None:
                sets.setdefault(match[1] or "", []).append((step, loss))
    return sets


def _facts(raw: Mapping[str, Any], sets: Mapping[str, list[tuple[float, float]]]) -> dict[str, Any]:
    batch = {"micro_batch": raw.get("train_batch_size")}
    facts = facts_of_settings(batch | {name: raw.get(name) for name in ("max_steps", "num_train_epochs", "save_steps")})
    facts["grad_norm_kind"] = "pre_clip"  # accelerate returns the norm before clipping
    if facts.get("checkpoint_every_steps") == _DEFAULT_SAVE_STEPS:
        del facts["checkpoint_every_steps"]
    between = np.diff(sorted({step for pairs in sets.values() for step, _ in pairs}))
    if len(between):  # the state's own eval_steps is only a default if evaluation goes by epochs
        facts["eval_every_steps"] = int(np.median(between))
    if len(sets) > 1:
        columns = {name or "eval": np.array(pairs).T.tolist() for name, pairs in sets.items()}
        facts["eval_losses"] = {name: {"step": steps, "loss": losses} for name, (steps, losses) in columns.items()}
    return facts
