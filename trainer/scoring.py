"""Measures how well a trained model predicts: loss on held-out windows, and questions with several answers."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.data import open_tokens
from trainer.tokenizer import TextTokenizer
from trainer.trained import NothingTrainedError, Trained

_CHUNK_BYTES = 64 << 20  # of fp32 logits held at once


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Loss of the validation split. The standard error is that of the mean over windows, taken as independent."""

    loss: float  # nats per token
    standard_error: float | None  # None for one window
    bits_per_byte: float | None
    tokens: int
    windows: int

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss)


@dataclass(frozen=True, kw_only=True)
class Question:
    """A text and several continuations, one of which is right."""

    context: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True, kw_only=True)
class TaskScore:
    """The score of one file of questions: how often the right choice was the likeliest, per byte and in total."""

    name: str
    questions: int
    right_per_byte: float  # shares
    right_in_sum: float
    standard_error: float  # of the first share, binomial
    chance: float


@torch.no_grad()
def held_out(trained: Trained, tokens: int) -> HeldOut:
    """Return the loss of about this many validation tokens. Raises NothingTrainedError without data, and DataError."""
    config = trained.config
    if config.data.path is None:
        raise NothingTrainedError("the run was trained on synthetic tokens: there is no text held out", "--task FILE")
    source = open_tokens(config.data, config.model.vocab_size, config.model.seq_len, config.seed)
    losses, counts = [], []  # one for each window: the mean loss over the tokens that count, and their number
    for batch, targets in source.eval_batches(tokens, micro_batch=8):
        counted = (targets >= 0).sum(dim=1)
        counts += counted.tolist()
        losses += (token_losses(trained, batch, targets).sum(dim=1) / counted).tolist()
    total, windows = sum(counts), len(losses)
    mean = sum(count * loss for count, loss in zip(counts, losses, strict=True)) / total
    spread = math.sqrt(sum((count * (loss - mean)) ** 2 for count, loss in zip(counts, losses, strict=True))) / total
    per_token = source.bytes_per_token
    return HeldOut(
        loss=mean,
        standard_error=spread * math.sqrt(windows / (windows - 1)) if windows > 1 else None,
        bits_per_byte=None if per_token is None else mean / math.log(2) / per_token,
        tokens=total,
        windows=windows,
    )


@torch.no_grad()
def token_losses(trained: Trained, tokens: Tensor, targets: Tensor) -> Tensor:
    """Return each target's cross-entropy in nats (fp32, CPU), 0 for negative targets. Inputs are (batch, time)."""
    model, device = trained.model, trained.context.device
    with trained.context.autocast():
        hidden = model(tokens.to(device)).flatten(0, 1)
    weight, wanted = model.head_weight.to(hidden.dtype), targets.to(device).flatten()
    rows = max(1, _CHUNK_BYTES // (4 * len(weight)))
    pieces = []
    for start in range(0, len(hidden), rows):
        logits = F.linear(hidden[start : start + rows], weight).float()
        if model.softcap is not None:
            logits = model.softcap * torch.tanh(logits / model.softcap)
        pieces.append(F.cross_entropy(logits, wanted[start : start + rows], reduction="none", ignore_index=-1).cpu())
    return torch.cat(pieces).view(targets.shape)


def score(trained: Trained, tokenizer: TextTokenizer, name: str, questions: Sequence[Question]) -> TaskScore:
    """Score all questions of a file."""
    per_byte = in_sum = 0
    for question in questions:
        sums = [choice_loss(trained, tokenizer, question.context, choice) for choice in question.choices]
        means = [total / len(choice.encode()) for total, choice in zip(sums, question.choices, strict=True)]
        in_sum += sums.index(min(sums)) == question.answer
        per_byte += means.index(min(means)) == question.answer
    count = len(questions)
    share = per_byte / count
    return TaskScore(
        name=name,
        questions=count,
        right_per_byte=share,
        right_in_sum=in_sum / count,
        standard_error=math.sqrt(share * (1 - share) / count),
        chance=statistics.fmean(1 / len(q.choices) for q in questions),
    )


def choice_loss(trained: Trained, tokenizer: TextTokenizer, context: str, choice: str) -> float:
    """Return the nats of a choice after its context, as one text, cut to the newest tokens that fit the model."""
    before, whole = tokenizer.encode(context), tokenizer.encode(f"{context} {choice}")
    own = max(1, len(whole) - len(before))
    whole = whole[-(trained.config.model.seq_len + 1) :]
    losses = token_losses(trained, torch.tensor([whole[:-1]]), torch.tensor([whole[1:]]))
    return float(losses[0, -own:].sum())


def read_questions(file: Path) -> list[Question]:
    """Read JSON lines with context, choices, answer, or HellaSwag's ctx, endings, label. Raises NothingTrainedError."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NothingTrainedError(f"cannot read {file}: {error}", "a file of JSON lines") from error
    found = [_question(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise NothingTrainedError(f"{file} has no question", "a line each: {context, choices, answer}")
    return found


def _question(file: Path, number: int, line: str) -> Question:
    try:
        raw: Any = json.loads(line)
        context, choices, answer = next(_fields(raw))
        question = Question(context=str(context), choices=tuple(map(str, choices)), answer=int(answer))
        if not (len(question.choices) >= 2 and all(question.choices) and 0 <= question.answer < len(question.choices)):
            raise ValueError("it needs two choices or more, and the number of one of them")
    except (ValueError, TypeError, StopIteration) as error:
        reason = "it has neither context, choices, answer nor ctx, endings, label" if str(error) == "" else str(error)
        raise NothingTrainedError(
            f"{file}, line {number}: {reason}", "a line each: {context, choices, answer}"
        ) from error
    return question


def _fields(raw: Any) -> Iterator[tuple[Any, Any, Any]]:
    for names in (("context", "choices", "answer"), ("ctx", "endings", "label")):
        if isinstance(raw, dict) and all(name in raw for name in names):
            yield raw[names[0]], raw[names[1]], raw[names[2]]
