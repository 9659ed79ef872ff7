"""Generates tokens: the model predicts the next token, one of the likely tokens is drawn, and so on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.trained import Trained


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """How a token is drawn from the model's prediction."""

    temperature: float = 0.8  # 0 takes the likeliest token
    top_k: int | None = None  # draw from this many of the likeliest tokens
    top_p: float | None = None  # draw from the likeliest tokens with this total probability (Holtzman et al. 2020)
    seed: int = 0


def generate(trained: Trained, prompt: Sequence[int], drawing: Drawing) -> Iterator[int]:
    """Yield tokens that follow a prompt of at least one token, without end.

    Keys and values are kept, so each token costs one token's work. In a full context, the newer half is read again.
    """
    longest = trained.config.model.seq_len
    device = trained.context.device
    chance = torch.Generator().manual_seed(drawing.seed)
    read, new = list(prompt), list(prompt)[-longest:]
    caches = trained.model.empty_caches(1, trained.dtype)
    while True:
        if caches[0].length + len(new) > longest:
            new = read[-max(1, longest // 2) :]
            caches = trained.model.empty_caches(1, trained.dtype)
        logits = trained.model.next_logits(torch.tensor([new], device=device), caches, trained.dtype)
        token = draw(logits[0].cpu(), drawing, chance)
        read.append(token)
        new = [token]
        yield token


def draw(logits: Tensor, drawing: Drawing, chance: torch.Generator) -> int:
    """Draw one token by the logits of the vocabulary."""
    if drawing.temperature == 0.0:
        return int(logits.argmax())
    values, order = torch.sort(logits / drawing.temperature, descending=True)
    if drawing.top_k is not None:
        values, order = values[: drawing.top_k], order[: drawing.top_k]
    shares = torch.softmax(values, dim=0)
    if drawing.top_p is not None:
        before = shares.cumsum(0) - shares
        shares = torch.where(before < drawing.top_p, shares, torch.zeros(()))  # the first token always stays
    return int(order[int(torch.multinomial(shares, 1, generator=chance))])
