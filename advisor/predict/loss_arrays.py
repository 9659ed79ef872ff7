"""Scores and losses of very many runs at once: the formulas of `predict/loss` on arrays. Pure."""

from __future__ import annotations

import numpy as np

from advisor.predict.loss import (
    CHINCHILLA,
    DATA_CONSTRAINED,
    DATA_CONSTRAINED_RATIO,
    MOST_EPOCHS,
    PARAMETER_EXCESS_DECAY,
    PARAMETER_RANGE,
    TOKEN_RANGE,
    TOKEN_REPEAT_DECAY,
    VOCAB_RANGE,
)


def effective_tokens_many(tokens: np.ndarray, unique_tokens: float | None) -> np.ndarray:
    """As `loss.effective_tokens`, any shape."""
    if not unique_tokens:
        return tokens
    repeats = np.maximum(tokens / unique_tokens - 1, 0.0)
    worth = unique_tokens * (1 - TOKEN_REPEAT_DECAY * np.expm1(-repeats / TOKEN_REPEAT_DECAY))
    return np.where(tokens <= unique_tokens, tokens, worth)


def effective_parameters_many(
    parameters: np.ndarray, unique_tokens: float | np.ndarray, best_ratio: float | np.ndarray | None = None
) -> np.ndarray:
    """As `loss.effective_parameters`, any shape."""
    fed = unique_tokens / (DATA_CONSTRAINED_RATIO if best_ratio is None else best_ratio)
    excess = np.maximum(parameters / fed - 1, 0.0)
    return np.where(
        parameters <= fed, parameters, fed * (1 - PARAMETER_EXCESS_DECAY * np.expm1(-excess / PARAMETER_EXCESS_DECAY))
    )


def allocation_scores(
    parameters: np.ndarray, tokens: np.ndarray, unique_tokens: float | None, *, best_ratio: float | np.ndarray
) -> np.ndarray:
    """As `loss.allocation_score`; `parameters` and `tokens` broadcast against each other."""
    counted = effective_parameters_many(parameters, unique_tokens, best_ratio) if unique_tokens else parameters
    law = DATA_CONSTRAINED
    return law.token_term(counted * best_ratio) + law.token_term(effective_tokens_many(tokens, unique_tokens))


def losses(parameters: np.ndarray, tokens: np.ndarray, unique_tokens: float | None, vocab_size: int) -> np.ndarray:
    """The values of `loss.predict_loss`, NaN outside the laws' range; arguments broadcast against each other."""
    if not VOCAB_RANGE[0] <= vocab_size <= VOCAB_RANGE[1]:
        return np.full(np.broadcast(parameters, tokens).shape, np.nan)
    value = CHINCHILLA.irreducible + CHINCHILLA.parameter_term(parameters) + CHINCHILLA.token_term(tokens)
    known = _within(parameters, PARAMETER_RANGE) & _within(tokens, TOKEN_RANGE)
    if unique_tokens:
        value = value + _repetition(parameters, tokens, unique_tokens)
        known = known & (tokens <= MOST_EPOCHS * unique_tokens)
    return np.where(known, value, np.nan)


def _repetition(parameters: np.ndarray, tokens: np.ndarray, unique_tokens: float) -> np.ndarray:
    law = DATA_CONSTRAINED
    repeated = law.parameter_term(effective_parameters_many(parameters, unique_tokens)) + law.token_term(
        effective_tokens_many(tokens, unique_tokens)
    )
    fresh = law.parameter_term(effective_parameters_many(parameters, tokens)) + law.token_term(tokens)
    return np.where(tokens <= unique_tokens, 0.0, repeated - fresh)


def _within(values: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    return (values >= limits[0]) & (values <= limits[1])
