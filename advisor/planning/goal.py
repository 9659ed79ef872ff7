"""Check a goal and complete it for one device: model proportions, tokens per parameter, limits, price and data.

Nothing is searched here. A `Brief` has every setting that the search needs; the profile and the usual values of the
model family fill the gaps of the goal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, overload

import numpy as np

from advisor.errors import AdvisorError
from advisor.laws.hyperparameters import Number
from advisor.laws.text import compressed_bytes_per_token
from advisor.offer import Offer
from advisor.options import OPTIONS, Goal, Kind, Option, options_of
from advisor.planning.offers import SPOT_MEAN_SECONDS
from advisor.prediction.intervals import EstimateArrays, known
from advisor.prediction.loss import WASTEFUL_EPOCHS
from advisor.prediction.power import PowerModel, datasheet_power
from advisor.prediction.profile import Profile
from advisor.prediction.software import OWN_NAME, software_of, table
from advisor.prediction.wallclock import DOWNLOAD_BYTES_PER_SECOND, GPUS_A_NODE
from advisor.records import Basis, Estimate, Run, Software
from advisor.units import format_seconds, format_watts
from trainer.schema import ModelShape, make_shape
from trainer.token_folder import TokenMeta

# Recommended tokens per counted parameter. nanochat since March 2026: 12 per matrix and head parameter (its own runs of
# 1e18 to 1e19 FLOPs give 10.3-11.2, sources §4.2). Others: the rule of thumb of Hoffmann et al. 2022; the corrected fit
# gives 18 to 24 (sources §4.1). The optimum is flat: a factor of two costs less than 0.01 nats.
FAMILY_RATIO = {"nanochat": (12.0, "matrices+head"), "gpt2": (20.0, "total"), "llama": (20.0, "total")}
# Without any limit, the plan is the deepest model whose run at this ratio ends within this time.
UNLIMITED_SECONDS = {"cpu": 3600.0, "cuda": 86400.0}
MOST_EPOCHS = WASTEFUL_EPOCHS  # a plan repeats the data more often only if the goal asks for it
# Context length and vocabulary if neither goal, data nor calibration gives them; a calibration measures these.
SEQ_LEN = {"cpu": 256, "cuda": 2048}
VOCAB_SIZE = {"cpu": 4096, "cuda": 32768}
# The price of waiting applies if the machine is open and no deadline ends the run. The first day is free, and each
# further day costs the square root of the budget, such as $4.47 of $20 or $45 of $2,000. This is a judgement: a larger
# run may take longer, but not in proportion. The price rises more slowly than the budget, so more money never trains
# less.
FREE_WAIT_SECONDS = 86400.0
LONGEST_SECONDS = 365 * 86400.0  # a budget alone allows no longer run, because its machine would be outdated
LEAST_CAP = 0.2  # of a GPU's power limit; drivers accept no less than about 25 to 60 %
DEEPEST = {"nanochat": 32, "gpt2": 48, "llama": 40}  # the depth of the first search on a device without a calibration

_make_shape = lru_cache(maxsize=4096)(make_shape)  # all devices of a search try the same depths

Numbers = TypeVar("Numbers", float, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run; None means no limit. With `sure`, the high ends of the intervals must stay within them.

    An hour of waiting costs `usd_per_waiting_hour` of the budget besides the rent. If this is None, the price follows
    from the square root of the budget (see FREE_WAIT_SECONDS), or of the cheapest run's price if there is no budget. If
    the work is `settled`, the price of waiting only decides between machines.
    """

    deadline_seconds: float | None = None
    budget_usd: float | None = None
    sure: bool = False
    usd_per_waiting_hour: float | None = 0.0
    settled: bool = False

    @classmethod
    def of(cls, goal: Goal) -> Limits:
        """Return the limits that a goal states, with free waiting."""
        return cls(deadline_seconds=goal.deadline_seconds, budget_usd=goal.budget_usd, sure=goal.sure)

    @property
    def patient(self) -> Limits:
        """These limits with free waiting."""
        return replace(self, usd_per_waiting_hour=0.0)

    @property
    def waiting(self) -> tuple[float, float]:
        """The price of a second of waiting, and the seconds of free waiting: 0 if the user gave a price."""
        if self.usd_per_waiting_hour is not None:
            return self.usd_per_waiting_hour / 3600, 0.0
        return math.sqrt(self.budget_usd or 0.0) / 86400, FREE_WAIT_SECONDS

    def waiting_usd(self, seconds: Numbers) -> Numbers:
        """Return the price of waiting this long."""
        rate, free_seconds = self.waiting
        return rate * np.maximum(seconds - free_seconds, 0.0)

    @overload
    def counted(self, estimate: Estimate) -> float: ...
    @overload
    def counted(self, estimate: EstimateArrays) -> np.ndarray: ...
    def counted(self, estimate: Estimate | EstimateArrays) -> float | np.ndarray:
        """Return the number that must stay within the limit: with `sure` the high end, else the expected value."""
        return estimate.high if self.sure else estimate.value

    def overruns(self, seconds: Numbers, usd: Numbers) -> tuple[Numbers, Numbers]:
        """Return time over deadline and money over budget as ratios: up to 1 is within the limit, 0 means no limit."""
        late = seconds * 0.0 if self.deadline_seconds is None else seconds / self.deadline_seconds
        dear = seconds * 0.0 if self.budget_usd is None else usd / self.budget_usd
        rate, free_seconds = self.waiting
        if rate and self.budget_usd is not None and not self.settled:
            # rent and paid waiting must fit the budget; in this form the ratio is proportional to the length of a run
            dear = np.maximum(dear, (usd + rate * seconds) / (self.budget_usd + rate * free_seconds))
        return late, dear

    def broken(self, seconds: Estimate, usd: Estimate | None) -> tuple[bool, bool]:
        """Return whether a run breaks the deadline, and whether the budget. An unknown price breaks no budget."""
        late, dear = self.overruns(self.counted(seconds), self.counted(usd) if usd else 0.0)
        return bool(late > 1), bool(dear > 1)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """A goal with all settings for one device; only the offer and the configuration are still open."""

    goal: Goal
    seq_len: int
    vocab_size: int
    precision: str
    compile: bool
    ratio: float  # recommended tokens per counted parameter
    ratio_counts: str
    depths: tuple[int, ...]
    usd_per_kwh: float
    power: PowerModel | None  # of one device
    unique_tokens: int | None  # of the training data, here or elsewhere; None: unlimited synthetic tokens
    validation_tokens: int | None
    limited: bool  # a budget or a deadline was given
    deadline_seconds: float | None  # the goal's, or UNLIMITED_SECONDS if nothing limits the run
    calibrated: bool = False  # the GPU was measured, so its machine is available without ordering
    software: Software | None = None  # None: this project's trainer
    sharding: str = "none"  # the default over several GPUs
    bytes_to_fetch: float = 0.0  # for each fresh token; 0 if the data are on this machine
    usd_per_waiting_hour: float | None = 0.0  # as in `Limits`

    @property
    def settled(self) -> bool:
        """Whether the goal fixes the amount of work; otherwise the run does as much as the limits allow."""
        goal = self.goal
        return self.asks_for_tokens or not self.limited or goal.objective != "loss"

    @property
    def asks_for_tokens(self) -> bool:
        """Whether the user stated the number of training tokens, repetitions of the data included."""
        return self.goal.tokens is not None or self.goal.ratio is not None

    @property
    def limits(self) -> Limits:
        """The limits of a run."""
        return Limits(
            deadline_seconds=self.deadline_seconds,
            budget_usd=self.goal.budget_usd,
            sure=self.goal.sure,
            usd_per_waiting_hour=self.usd_per_waiting_hour,
            settled=self.settled,
        )

    @property
    def download_rate(self) -> Estimate:
        """Bytes per second at which data from elsewhere are downloaded."""
        stated = self.goal.download_bytes_per_second
        return DOWNLOAD_BYTES_PER_SECOND if stated is None else known(stated)

    def most_steps(self, step_tokens: Number) -> Number:
        """Return the steps that repeat the data MOST_EPOCHS times; infinity for synthetic tokens."""
        tokens = MOST_EPOCHS * self.unique_tokens if self.unique_tokens else math.inf
        return np.maximum(1.0, tokens // step_tokens if self.unique_tokens else tokens + 0 * step_tokens)

    def data_bound(self, run: Run) -> bool:
        """Return True if a run ends because the data are used up, and not because of the limits."""
        return not self.asks_for_tokens and bool(run.steps >= self.most_steps(run.workload.step_tokens))

    def pinned(self, *, depth: int, global_batch_tokens: int, tokens: int | None = None) -> Brief:
        """Return this brief with a fixed depth and global batch, and with fixed tokens if given."""
        tokens = tokens or self.goal.tokens
        goal = replace(self.goal, depth=depth, global_batch_tokens=global_batch_tokens, tokens=tokens)
        return replace(self, goal=goal, depths=(depth,))

    def shape(self, depth: int) -> ModelShape:
        """Return the model of this depth in the proportions of the goal and its family."""
        sizes = {name: getattr(self.goal, name) for name in ("width", "heads", "kv_heads", "ffn_width")}
        return _make_shape(self.goal.family, depth=depth, vocab_size=self.vocab_size, seq_len=self.seq_len, **sizes)


def waiting_price(goal: Goal) -> float | None:
    """Return the price of an hour of waiting: the user's, or None for the price by the budget (see `Limits`), or 0.

    The price by the budget applies if several machines are possible and no deadline limits the time.
    """
    if goal.usd_per_waiting_hour is not None:
        return goal.usd_per_waiting_hour
    several = goal.gpu == "any" or "," in goal.gpu or bool(goal.counts)
    patient = goal.deadline_seconds is not None or goal.objective != "loss"
    return None if several and not patient else 0.0


def interruptions(goal: Goal, *, spot: bool, gpus: int) -> Estimate | None:
    """Return the mean seconds between interruptions of a run on `gpus` GPUs, or None if none are expected.

    Each machine is interrupted by itself, so the rates of the run's machines add up. The user's number is for spot
    machines if the goal allows them, and otherwise for all machines.
    """
    machines = math.ceil(gpus / GPUS_A_NODE)
    if goal.interruption_seconds is not None and (spot or goal.spot == "none"):
        return known(goal.interruption_seconds / machines)
    low, value, high = SPOT_MEAN_SECONDS
    return Estimate(value=value, low=low, high=high, basis=Basis.PRIOR).scaled(1 / machines) if spot else None


def make_brief(goal: Goal, profile: Profile, data_meta: TokenMeta | None, offer: Offer) -> Brief:
    """Return a goal completed for one device, or raise an error if it is invalid.

    `data_meta` is the token folder's metadata (None: synthetic tokens). `offer` is one offer of the device; its price
    is needed for a budget. Raises AdvisorError (exit code 2) with the value and the option to change.
    """
    check_options(goal)
    if goal.tokens is not None and goal.ratio is not None and goal.depth is not None:
        raise AdvisorError(
            "--tokens, --ratio and --depth together say the same thing twice", "leave one of them out", exit_code=2
        )
    if profile.spec is not None and cap_is_too_low(goal, profile):
        raise AdvisorError(
            f"--power-cap {goal.power_cap_watts:g}: {profile.key} cannot be limited so low; its own limit is "
            f"{format_watts(profile.spec.tdp_watts)}",
            "`nvidia-smi -q -d POWER` shows what a GPU accepts",
            exit_code=2,
        )
    if (problem := budget_problem(goal, profile, offer)) is not None:
        raise problem
    low, high = 2, DEEPEST[goal.family]
    if profile.depths and profile.family == goal.family:
        low, high = min(profile.depths), 2 * max(profile.depths)
    ratio, counts = FAMILY_RATIO[goal.family]
    limited = goal.budget_usd is not None or goal.deadline_seconds is not None
    open_ended = not limited and goal.tokens is None and goal.depth is None
    vocab_size = vocab_size_of(goal, profile, data_meta)
    return Brief(
        goal=goal,
        seq_len=goal.seq_len or profile.seq_len or SEQ_LEN[profile.device_type],
        vocab_size=vocab_size,
        precision=profile.precision if goal.precision == "auto" else goal.precision,
        compile=profile.compile if goal.compile is None else goal.compile,
        ratio=goal.ratio or ratio,
        ratio_counts=goal.ratio_counts if goal.ratio else counts,
        depths=depths_between(low, high) if goal.depth is None else (goal.depth,),
        usd_per_kwh=goal.usd_per_kwh or 0.0,
        power=power_of(profile),
        unique_tokens=data_meta.tokens if data_meta else goal.data_tokens,
        validation_tokens=data_meta.validation_tokens if data_meta else None,
        limited=limited,
        deadline_seconds=UNLIMITED_SECONDS[profile.device_type] if open_ended else goal.deadline_seconds,
        calibrated=profile.calibrated,
        software=software_of(goal.software) if goal.software else None,
        sharding=table()[goal.software or OWN_NAME].shardings[0],
        bytes_to_fetch=compressed_bytes_per_token(vocab_size) if goal.data_tokens else 0.0,
    )


def cap_is_too_low(goal: Goal, profile: Profile) -> bool:
    """Return True if the goal's power cap is lower than any driver accepts for this GPU."""
    limit = profile.spec.tdp_watts if profile.spec else None
    return goal.power_cap_watts is not None and limit is not None and goal.power_cap_watts < LEAST_CAP * limit


def power_of(profile: Profile) -> PowerModel | None:
    """Return the power model of one device: calibrated, or else from the data sheet's power limit; None if unknown."""
    return profile.costs.power or datasheet_power(profile.spec.tdp_watts if profile.spec else None)


def budget_problem(goal: Goal, profile: Profile, offer: Offer) -> AdvisorError | None:
    """Return an error if the goal has a budget that cannot end a run on this machine, else None."""
    if goal.budget_usd is None:
        return None
    if goal.usd_per_kwh and power_of(profile) is None:
        return AdvisorError(
            f"--budget with --kwh-price needs the power of {goal.gpu}, which is unknown",
            "give a price per hour that includes the energy: --price 0.50",
            exit_code=2,
        )
    if offer.usd_per_hour is None:
        return price_missing(offer)
    settled = goal.depth is not None and (goal.tokens is not None or goal.ratio is not None)
    ends_unpaid = goal.deadline_seconds is not None or goal.objective != "loss" or settled
    if offer.usd_per_hour or goal.usd_per_kwh or ends_unpaid:
        return None
    return AdvisorError(
        f"--budget needs a price or an electricity tariff: {goal.gpu} costs nothing per hour",
        "give --price 0.50 (per hour) or --kwh-price 0.30, or a limit on time: --deadline 30min",
        exit_code=2,
    )


def price_missing(offer: Offer) -> AdvisorError:
    """Return the error of a goal that has a budget, on machines of unknown price."""
    hint = "give one per GPU and hour: --price 2.50"
    return AdvisorError(f"--budget needs a price: {offer.source}", hint, exit_code=2)


def vocab_size_of(goal: Goal, profile: Profile, data_meta: TokenMeta | None) -> int:
    """Return the vocabulary size; raises AdvisorError (exit 2) if it is smaller than the data's tokenizer needs."""
    if data_meta is None:
        return goal.vocab_size or profile.vocab_size or VOCAB_SIZE[profile.device_type]
    needed = data_meta.vocab_size
    if goal.vocab_size is not None and goal.vocab_size < needed:
        raise AdvisorError(
            f"--vocab-size {goal.vocab_size} is smaller than the data's tokenizer, which has {needed}",
            "leave --vocab-size out to take the data's",
            exit_code=2,
        )
    return goal.vocab_size or needed


def depths_between(low: int, high: int) -> tuple[int, ...]:
    """Return all depths up to 12 and every second depth above, where neighbours differ by less than their intervals."""
    return tuple(depth for depth in range(low, high + 1) if depth <= 12 or depth % 2 == 0)


def check_options(record: Any) -> None:
    """Raises AdvisorError (exit code 2) if a number of a command's options lies outside its option's range."""
    for option in options_of(type(record)).values():
        if option.least is not None:
            check_range(option, getattr(record, option.field))
    if isinstance(record, Goal):
        for count in (*record.counts, *(machine.gpus for machine in record.own)):
            check_range(OPTIONS["gpus"], count)
        for price in record.prices:
            check_range(OPTIONS["price"], price.usd_per_gpu_hour)


def check_range(option: Option, value: float | None) -> None:
    """Raises AdvisorError (exit code 2) if this number lies outside the option's range."""
    least, most, name = option.least, option.most, option.flag
    if value is None or least is None or most is None or least <= value <= most:
        return
    if least == 0 and value < 0:
        fault, hint = "must not be negative", f"give 0 or more, or leave {name} out"
    elif not value > 0:
        fault, hint = "must be more than 0", f"give more than 0, or leave {name} out"
    else:
        fault = f"must be at {'least' if value < least else 'most'} {_words(option, min(max(value, least), most))}"
        hint = f"give {_words(option, least)} to {_words(option, most)}, or leave {name} out"
    raise AdvisorError(f"{name} {_words(option, value)}: {fault}", hint, exit_code=2)


def _words(option: Option, value: float) -> str:
    if option.kind in (Kind.SECONDS, Kind.DEADLINE):
        return format_seconds(value)
    plain = f"{value:,.6f}".rstrip("0").rstrip(".")  # 0.000001 to 10,000,000,000, not 1e-06 to 1e+10
    return plain if not value or 1e-6 <= abs(value) <= 1e18 else f"{value:g}"
