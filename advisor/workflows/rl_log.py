"""The step of an RL log beside what `predict --rl` says of it, and what would be faster by the same model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from advisor.errors import AdvisorError
from advisor.findings.case import Case, Finding
from advisor.findings.curves import curve
from advisor.findings.detectors.rollouts import against_prediction
from advisor.options import PredictOptions
from advisor.prediction.rl import RlStep, predict_rl, rl_software
from advisor.store.store import Store
from advisor.workflows.rl import request_of


def rl_step_finding(case: Case, store: Store) -> Finding | None:
    """Return a logged step beside its prediction and what would be faster; None if its work is not known."""
    options, eager = _options(case), bool(case.run.facts.get("eager_engines"))
    said = _step(options, eager, store) if options is not None else None
    if options is None or said is None:
        return None
    tried = [(words, _step(replace(options, **change), eager, store)) for words, change in _changes(options)]
    if eager:
        tried.append(("engines with CUDA graphs (enforce_eager off)", _step(options, False, store)))
    ratios = {words: one.step_seconds.value / said.step_seconds.value for words, one in tried if one is not None}
    return against_prediction(case, said, ratios)


def _options(case: Case) -> PredictOptions | None:
    """Return what a log states of its work, as options of `predict`."""
    facts, gpu = case.run.facts, case.profile.key if case.profile else None
    values = [curve(case.run, column).value for column in ("prompt_tokens", "response_tokens")]
    prompt_len, response_len = (float(np.median(found)) if len(found) else None for found in values)
    needed = ("model", "world_size", "prompts_per_step", "group_size", "response_max")
    apart = len(curve(case.run, "waiting_seconds")) and not len(curve(case.run, "generation_seconds"))
    if gpu is None or apart or response_len is None or any(name not in facts for name in needed):
        return None  # of split GPUs no log says how many generate
    software = (case.run.framework or "").lower().replace(" ", "-")
    return PredictOptions(
        rl="grpo", model=str(facts["model"]).rstrip("/").rpartition("/")[2], gpu=gpu, gpus=int(facts["world_size"]),
        software=software if software in rl_software() else None, placement="colocated",
        prompts_per_step=int(facts["prompts_per_step"]), group=int(facts["group_size"]),
        response_max=int(facts["response_max"]), prompt_len=prompt_len, response_len=response_len,
    )  # fmt: skip


def _changes(options: PredictOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    limit, gpus, mean = options.response_max, options.gpus, options.response_len
    assert limit is not None and gpus is not None and mean is not None  # `_options` states them
    if gpus > 1:
        split = {"placement": "split", "rollout_gpus": gpus // 2, "staleness": 1.0}
        yield "engines on half of the GPUs, one step ahead of the trainer", split
    if limit / 2 > mean:
        yield f"a limit of {limit / 2:,.0f} tokens an answer", {"response_max": limit // 2}
    yield f"{2 * gpus} GPUs", {"gpus": 2 * gpus}


def _step(options: PredictOptions, eager: bool, store: Store) -> RlStep | None:
    try:
        request, _, _ = request_of(options, None)
    except AdvisorError:  # an unknown model
        return None
    machine = (options.gpu, options.gpus or 1)
    ways = request.on(*machine, request.updates_on([machine], store))
    return predict_rl(replace(ways[0].run, eager=eager)) if ways else None
