"""The step of an RL log beside what `plan --rl` predicts for it, and what would be faster by the same model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from advisor.errors import AdvisorError
from advisor.findings.case import Case, Finding
from advisor.findings.curves import curve
from advisor.findings.detectors.rollouts import against_prediction
from advisor.prediction.rl import RlStep, predict_rl
from advisor.store.store import Store
from advisor.workflows.rl import predicted_row


def rl_step_finding(case: Case, store: Store) -> Finding | None:
    """Return a logged step beside its prediction and what would be faster; None if its work is not known."""
    row, eager = _row(case), bool(case.run.facts.get("eager_engines"))
    said = _step(row, eager, store) if row is not None else None
    if row is None or said is None:
        return None
    tried = [(words, _step({**row, **change}, eager, store)) for words, change in _changes(row)]
    if eager:
        tried.append(("engines with CUDA graphs (enforce_eager off)", _step(row, False, store)))
    ratios = {words: one.step_seconds.value / said.step_seconds.value for words, one in tried if one is not None}
    return against_prediction(case, said, ratios)


def _row(case: Case) -> dict[str, str] | None:
    """Return what a log states of its work, by the columns of a table of RL runs."""
    facts, gpu = case.run.facts, case.profile.key if case.profile else None
    lengths = {"prompt_len_mean": "prompt_tokens", "response_len_mean": "response_tokens"}
    means = {name: curve(case.run, column).value for name, column in lengths.items()}
    needed = ("model", "world_size", "prompts_per_step", "group_size", "response_max")
    apart = len(curve(case.run, "waiting_seconds")) and not len(curve(case.run, "generation_seconds"))
    if gpu is None or apart or not len(means["response_len_mean"]) or any(name not in facts for name in needed):
        return None  # of split GPUs no log says how many generate
    return {
        "model": str(facts["model"]).rstrip("/").rpartition("/")[2], "framework": case.run.framework or "", "gpu": gpu,
        "n_gpus": str(facts["world_size"]), "prompts_per_step": str(facts["prompts_per_step"]), "mode": "colocated",
        "group_size": str(facts["group_size"]), "response_len_max": str(facts["response_max"]),
        **({"params_b": str(facts["parameters"] / 1e9)} if "parameters" in facts else {}),
        **{name: str(float(np.median(values))) for name, values in means.items() if len(values)},
    }  # fmt: skip


def _changes(row: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    limit, gpus = float(row["response_len_max"]), int(row["n_gpus"])
    if gpus > 1:
        yield "engines on half of the GPUs, one step ahead of the trainer", {"mode": "async-1"}
    if limit / 2 > float(row["response_len_mean"]):
        yield f"a limit of {limit / 2:,.0f} tokens an answer", {"response_len_max": str(limit / 2)}
    yield f"{2 * gpus} GPUs", {"n_gpus": str(2 * gpus)}


def _step(row: Mapping[str, str], eager: bool, store: Store) -> RlStep | None:
    try:
        return predict_rl(replace(predicted_row(row, store).run, eager=eager))
    except AdvisorError:  # an unknown model, or one without room by the memory model
        return None
