"""Loss at the end of training from published scaling laws, and a score that ranks candidates.

`predict_loss` forecasts a number, and returns None outside the range in which the laws were fitted. `allocation_score`
only ranks runs that take the same time, at any size, and is never shown as a loss. Both accept arrays, because a search
evaluates millions of runs at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from advisor.laws.intervals import Z80
from advisor.laws.text import LAW_BYTES_PER_TOKEN
from advisor.records import Basis, Estimate
from advisor.units import format_count, format_tokens

Numbers = Any  # a number, or an array of any shape: the laws are the same


@dataclass(frozen=True, kw_only=True)
class LossLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta in nats per token, for N parameters and D tokens seen once."""

    irreducible: float
    parameter_scale: float
    parameter_exponent: float
    token_scale: float
    token_exponent: float

    def loss(self, parameters: Numbers, tokens: Numbers) -> Numbers:
        """Return the loss after one epoch of `tokens`, with a learning-rate schedule that ends with them."""
        return self.irreducible + self.parameter_term(parameters) + self.token_term(tokens)

    def parameter_term(self, parameters: Numbers) -> Numbers:
        return self.parameter_scale * parameters**-self.parameter_exponent

    def token_term(self, tokens: Numbers) -> Numbers:
        return self.token_scale * tokens**-self.token_exponent


# Besiroglu, Erdil, Barnett, You 2024, a corrected fit of the Chinchilla data (sources §4.1).
CHINCHILLA = LossLaw(
    irreducible=1.8172,
    parameter_scale=482.01,
    parameter_exponent=0.3478,
    token_scale=2085.43,
    token_exponent=0.3658,
)
# Muennighoff et al. 2023, README of huggingface/datablations (sources §4.3).
DATA_CONSTRAINED = LossLaw(
    irreducible=math.exp(0.6254804),
    parameter_scale=math.exp(6.255414),
    parameter_exponent=0.3526596,
    token_scale=math.exp(7.3049974),
    token_exponent=0.3526596,
)
TOKEN_REPEAT_DECAY = 15.387756  # R_D*: number of repetitions over which repeated tokens lose their value
PARAMETER_EXCESS_DECAY = 5.309743  # R_N*
DATA_CONSTRAINED_RATIO = 1 / 0.2258**2  # N_opt(D) = (D G)^(beta/alpha) G with G = 0.2258: 19.6 tokens per parameter

# Hoffmann et al. 2022 trained over 400 models of 70 M to 16 B parameters. Their abstract mentions 5 B to 500 B
# tokens; the smallest runs of their isoFLOP curves saw about 1 B.
PARAMETER_RANGE = (70e6, 16e9)
TOKEN_RANGE = (1e9, 1e12)
# Their data has a vocabulary of 32,000 tokens. A token of a much smaller vocabulary has fewer bytes, so fewer nats.
VOCAB_RANGE = (16_000, 262_144)
_ROUNDED = 1.01  # tolerance: the ranges are round numbers, and a run has whole steps
FREE_EPOCHS = 4  # repeated data are nearly as good as fresh data up to here
WASTEFUL_EPOCHS = 16  # with more epochs, most of the compute is wasted
OVERFIT_EPOCHS = 40  # with more epochs, overfitting is likely
MOST_PREDICTED_EPOCHS = 100  # the repetition law has no overfitting term, so there is no forecast beyond this

# The standard errors of A, B, alpha and beta are almost perfectly correlated (sources §4.1). Their effect is therefore
# measured from the middle of the data, where the terms are well known and only the slopes are uncertain.
_MIDDLE_PARAMETERS, _MIDDLE_TOKENS = 1e9, 2e10
IRREDUCIBLE_ERROR = 0.03  # nats, standard error (Besiroglu et al. 2024)
_EXPONENT_ERROR = 0.02  # standard error (Besiroglu et al. 2024)
# Another corpus and tokenizer change the loss by more than the error of the fit. The law is 1.2 % and 2.2 % below the
# two nanochat runs of sources §4.6 (d16 2.904, d24 2.62 nats). The value is our judgement.
TRANSFER_ERROR = 0.06  # of the loss


def predict_loss(parameters: int, tokens: int, unique_tokens: int | None, vocab_size: int) -> Estimate | None:
    """Return the validation loss at the end of training in nats per token, or None outside the range of the laws.

    `parameters` includes embeddings. `unique_tokens` is the size of the training data; None means that no token is
    repeated. Uses the Chinchilla law with the constants of Besiroglu et al., plus the cost of repetition by Muennighoff
    et al.
    """
    value = float(expected_loss(parameters, tokens, unique_tokens, vocab_size))
    if math.isnan(value):
        return None
    fit_error = math.hypot(
        IRREDUCIBLE_ERROR,
        CHINCHILLA.parameter_term(parameters) * _EXPONENT_ERROR * math.log(parameters / _MIDDLE_PARAMETERS),
        CHINCHILLA.token_term(tokens) * _EXPONENT_ERROR * math.log(tokens / _MIDDLE_TOKENS),
    )
    width = Z80 * math.hypot(fit_error / value, TRANSFER_ERROR)
    return Estimate(value=value, low=value * math.exp(-width), high=value * math.exp(width), basis=Basis.PRIOR)


def expected_loss(parameters: Numbers, tokens: Numbers, unique_tokens: float | None, vocab_size: int) -> np.ndarray:
    """Return the value of `predict_loss`, or NaN outside the range of the laws. Arrays broadcast."""
    if not VOCAB_RANGE[0] <= vocab_size <= VOCAB_RANGE[1]:
        return np.full(np.broadcast(parameters, tokens).shape, np.nan)
    inside = _within(parameters, PARAMETER_RANGE) & _within(tokens, TOKEN_RANGE)
    value = CHINCHILLA.loss(parameters, tokens)
    if unique_tokens:
        value = value + repetition_penalty(parameters, tokens, unique_tokens)
        inside = inside & (np.asarray(tokens) <= _ROUNDED * MOST_PREDICTED_EPOCHS * unique_tokens)
    return np.where(inside, value, np.nan)


def loss_range_problem(parameters: int, tokens: int, unique_tokens: int | None, vocab_size: int) -> str | None:
    """Return the reason why there is no loss forecast for this run, or None if there is one."""
    if not _within(parameters, PARAMETER_RANGE):
        return f"the loss laws were fitted on 70 M to 16 B parameters, this model has {format_count(parameters)}"
    if not _within(tokens, TOKEN_RANGE):
        return f"the loss laws were fitted on runs of 1 B tokens and more, this one sees {format_tokens(tokens)}"
    if not _within(vocab_size, VOCAB_RANGE):
        return (
            f"the loss laws count nats per token of a 32,000-token vocabulary; "
            f"with {vocab_size:,} a token means something else"
        )
    if unique_tokens and tokens > _ROUNDED * MOST_PREDICTED_EPOCHS * unique_tokens:
        epochs = tokens / unique_tokens
        return f"the data would be repeated {epochs:,.0f} times; the law of repetition knows no overfitting"
    return None


def text_floor(bytes_per_token: float) -> float:
    """Return the lowest loss that ordinary text allows: E in nats for tokens of this length, minus the law's error."""
    margin = IRREDUCIBLE_ERROR * Z80 / CHINCHILLA.irreducible + TRANSFER_ERROR
    return CHINCHILLA.irreducible * bytes_per_token / LAW_BYTES_PER_TOKEN * (1 - margin)


def effective_tokens(tokens: Numbers, unique_tokens: float | None) -> Numbers:
    """Return how many fresh tokens are worth as much as `tokens` with repetition (Muennighoff et al. 2023)."""
    if not unique_tokens:
        return tokens
    repeats = np.maximum(np.asarray(tokens) / unique_tokens - 1, 0.0)
    worth = unique_tokens * (1 - TOKEN_REPEAT_DECAY * np.expm1(-repeats / TOKEN_REPEAT_DECAY))
    return np.where(np.asarray(tokens) <= unique_tokens, tokens, worth)[()]


def effective_parameters(parameters: Numbers, unique_tokens: Numbers, best_ratio: Numbers | None = None) -> np.ndarray:
    """Return the effective number of parameters for a limited amount of data (Muennighoff et al. 2023).

    The best model for one epoch of the data has `unique_tokens / best_ratio` parameters; further parameters are worth
    less. None stands for the law's own ratio, 19.6.
    """
    fed = unique_tokens / (DATA_CONSTRAINED_RATIO if best_ratio is None else best_ratio)
    excess = np.maximum(parameters / fed - 1, 0.0)
    counted = fed * (1 - PARAMETER_EXCESS_DECAY * np.expm1(-excess / PARAMETER_EXCESS_DECAY))
    return np.where(parameters <= fed, parameters, counted)[()]


def repetition_penalty(parameters: Numbers, tokens: Numbers, unique_tokens: float) -> np.ndarray:
    """Return the nats of loss that repeated data adds: the data-constrained law with minus without repetition."""
    law = DATA_CONSTRAINED
    repeated = law.loss(effective_parameters(parameters, unique_tokens), effective_tokens(tokens, unique_tokens))
    fresh = law.loss(effective_parameters(parameters, tokens), tokens)
    return np.where(np.asarray(tokens) <= unique_tokens, 0.0, repeated - fresh)


def allocation_score(
    parameters: Numbers,
    tokens: Numbers,
    unique_tokens: float | None = None,
    *,
    best_ratio: Numbers = DATA_CONSTRAINED_RATIO,
) -> Numbers:
    """Return a score that ranks runs of equal duration across model sizes; lower is better. It is no loss forecast.

    `parameters` must be counted as `best_ratio` (tokens per parameter) counts them: by default all parameters, with a
    ratio of 19.6. Muennighoff et al. fitted one exponent for parameters and tokens, so the best ratio is the same at
    every compute. nanochat measured this over a decade of compute for matrices + head (sources §4.2). The law can
    therefore be moved to any ratio r with A = B r^-alpha; their own A follows from r = 19.6. The score is

        score = B ((r N')^-alpha + D'^-alpha)        nats above the irreducible loss

    It decreases with N and D and is flat near the best ratio. It also ranks runs of a few seconds, for which the
    Chinchilla law exceeds ln V and its two exponents would shift the optimum. Arrays broadcast.
    """
    counted = effective_parameters(parameters, unique_tokens, best_ratio) if unique_tokens else parameters
    law = DATA_CONSTRAINED
    return law.token_term(counted * best_ratio) + law.token_term(effective_tokens(tokens, unique_tokens))


def _within(value: Numbers, limits: tuple[float, float]) -> np.ndarray:
    number = np.asarray(value)
    return (number >= limits[0] / _ROUNDED) & (number <= limits[1] * _ROUNDED)


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """Convert nats per token to bits per byte of text (sources §4.6)."""
    return loss / (math.log(2) * bytes_per_token)


LEAST_RUNS = 2  # a single run may be an outlier
# Another corpus and tokenizer shift the law by about 6 % (`loss.TRANSFER_ERROR`). Runs on one corpus still differ
# because of the law's slope at other sizes and because of the seed.
_PRIOR_DEVIATION, _RUN_DEVIATION = 0.06, 0.02


@dataclass(frozen=True, kw_only=True)
class LossCalibration:
    """The shift of the loss law on the user's data: log of measured over predicted loss."""

    shift: float
    deviation: float  # standard deviation of the shift
    runs: int


def calibrate_loss(log_ratios: Sequence[float]) -> LossCalibration | None:
    """Return the shift of the loss law on the user's data, or None for fewer than two runs.

    `log_ratios` are log(measured / law) for the final losses of finished runs on one data set. They update a prior of
    no shift with a standard deviation of 6 %.
    """
    if len(log_ratios) < LEAST_RUNS:
        return None
    mean = sum(log_ratios) / len(log_ratios)
    scatter = math.sqrt(sum((r - mean) ** 2 for r in log_ratios) / (len(log_ratios) - 1))
    noise = max(_RUN_DEVIATION, scatter)
    precision = 1 / _PRIOR_DEVIATION**2 + len(log_ratios) / noise**2
    shift = sum(log_ratios) / noise**2 / precision
    return LossCalibration(shift=shift, deviation=math.hypot(precision**-0.5, noise), runs=len(log_ratios))


def on_own_data(law: Estimate, calibration: LossCalibration) -> Estimate:
    """Return a loss forecast that the calibration has shifted and narrowed."""
    value, width = law.value * math.exp(calibration.shift), Z80 * calibration.deviation
    return Estimate(value=value, low=value * math.exp(-width), high=value * math.exp(width), basis=Basis.EXTRAPOLATED)


def overtraining_factor(training_tokens: float, inference_tokens: float) -> float:
    """Return the factor on the usual tokens per parameter for a model that will serve `inference_tokens`.

    Minimising training plus inference compute under the one-exponent loss law gives f = (1 + D_inf / (3·D))^(1/α). D is
    the number of training tokens of the overtrained model: √f times `training_tokens` at equal training FLOPs. The
    fixed point f is found by bisection.
    """

    def requested(factor: float) -> float:
        seen = training_tokens * math.sqrt(factor)
        return (1 + inference_tokens / (3 * seen)) ** (1 / DATA_CONSTRAINED.token_exponent)

    low, high = 1.0, requested(1.0)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if requested(middle) > middle else (low, middle)
    return (low + high) / 2
