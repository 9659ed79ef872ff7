"""How long a judge or reward model takes for the answers of one step of RL post-training.

It is an inference job of its own: it reads each prompt with its answer, and writes a judgement, or nothing (a reward
model). On GPUs of its own it judges answers as they end, so that a step waits for what is left and for the last
answer. Without them it takes turns with the engines on their GPUs, and its weights come from the host's memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from advisor.architecture import Model
from advisor.prediction.generation import Answers, Engines, generate, read_seconds, room

_LONGEST = 4.0  # limit of a judgement over its mean length


@dataclass(frozen=True, kw_only=True)
class Judge:
    """A model that judges answers."""

    model: Model
    tokens: float  # mean, that it writes of an answer; 0: a reward model, which only reads
    gpus: int = 0  # of its own; 0: it takes turns with the engines


def judge_seconds(
    judge: Judge, answers: Answers, engines: Engines, own_share: float, host_rate: float, generated: float, *,
    waited_for: bool,
) -> tuple[float, int] | None:  # fmt: skip
    """Return how much longer a step takes because of its judge, and the GPUs of one of the judge's engines.

    Return None if the judge does not fit on its GPUs. `own_share` of a GPU's memory belongs to a judge that has GPUs of
    its own, `host_rate` is in bytes per second and GPU, `generated` are the seconds of generation. `waited_for`: a step
    waits for its last answer.
    """
    gpus = judge.gpus or engines.copies * engines.tensor
    found = []
    engines = replace(engines, memory_share=own_share if judge.gpus else engines.memory_share, bytes_per_weight=2.0)
    for tensor in (2**n for n in range(gpus.bit_length())):
        one = replace(engines, tensor=tensor, copies=gpus // tensor)
        if judge.model.heads % tensor or gpus % tensor or room(judge.model, one) <= 0:
            continue
        alone = _seconds(judge, answers.count, answers, one)
        if not judge.gpus:
            found.append((alone + 2.0 * judge.model.parameters / one.tensor / host_rate, one.tensor))
            continue
        last = _seconds(judge, one.copies, answers, one) if waited_for else 0.0
        found.append((max(last, alone - generated), one.tensor))
    return min((one for one in found if math.isfinite(one[0])), default=None)


def _seconds(judge: Judge, count: int, answers: Answers, engines: Engines) -> float:
    """Return the seconds in which these engines judge a number of answers; infinite if one has no room for any."""
    read = answers.prompt_len + answers.response_len
    if not judge.tokens:
        return read_seconds(judge.model, count * read, engines)
    work = Answers(prompts=count, group=1, prompt_len=read, response_len=judge.tokens,
                   response_max=round(_LONGEST * judge.tokens))  # fmt: skip
    found = generate(judge.model, work, engines)
    return math.inf if found is None else found.seconds
