"""What kind of loss a run prints, as far as its log tells: which rules may be asked of it. Pure."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from advisor.findings.case import Case
from advisor.findings.curves import Curve, curve, tail
from advisor.findings.run_facts import number, vocabulary
from advisor.readers.run_table import WITHOUT_NAME

_LARGE = 3e8  # parameters: few other models are so large
_ALL_RIGHT = 0.99  # of the examples: a loss can then stand still, and should
_NOTHING_LEFT = 1e-3  # of the first loss
_NEGATIVE = 0.01  # of the rows: single values below zero may be rounding
# trainers and tools that train language models only
_LANGUAGE = re.compile(
    r"gpt|llama|megatron|llm|nanochat|torchtitan|litgpt|axolotl|unsloth|\btrl\b|oumi|olmo|mosaic|verl|sft|dpo|"
    r"causal|qwen|mistral|gemma|lora"
)


def has_level(case: Case, losses: Curve) -> bool:
    """Whether the height of the loss means anything: not so of policy losses, of one that is trained beside others
    (those of a GAN pull against each other), and of those that go below zero."""
    unit = str(case.run.facts.get("loss_unit") or "")
    if "policy" in unit or "one of several" in unit or unit == WITHOUT_NAME:
        return False
    if len(curve(case.run, "reward")) or len(curve(case.run, "eval_reward")):
        return False
    return not len(losses) or float(np.mean(losses.value < 0)) <= _NEGATIVE


def is_solved(case: Case, losses: Curve, accuracy: str = "accuracy") -> bool:
    """Whether nothing is left to learn of these data: an accuracy near 1, or a loss of next to nothing of its first."""
    scores = curve(case.run, accuracy).value
    learnt = len(scores) > 0 and scores[0] < _ALL_RIGHT and scores.max() <= 1  # right from the start, it learnt nothing
    if learnt and float(np.median(tail(scores))) >= _ALL_RIGHT:
        return True
    fallen = len(losses) > 0 and losses.value[0] > 0 and losses.value[-1] > 0
    return bool(fallen and losses.value[-1] <= _NOTHING_LEFT * losses.value[0])


def is_language(case: Case) -> bool:
    """Whether the loss is one of a language model: a vocabulary or context is declared, or its names say so."""
    if vocabulary(case) is not None or number(case.run.facts, "seq_len") or len(curve(case.run, "tokens")):
        return True
    if (number(case.run.facts, "parameters") or 0) >= _LARGE:
        return True
    words = f"{case.run.framework or ''} {case.run.format} {Path(case.run.source).name}".lower()
    return _LANGUAGE.search(words) is not None
