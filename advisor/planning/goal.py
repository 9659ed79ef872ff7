"""What is asked for, checked and made definite: model proportions, ratio, limits, price and data.

Nothing is searched here. A `Brief` holds every setting the search needs, with the goal's gaps filled from the
profile and the family's customs, and says where each default came from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar, overload

import numpy as np

from advisor.errors import AdvisorError
from advisor.laws import flops
from advisor.laws.hyperparameters import Number
from advisor.laws.repetition import WASTEFUL_EPOCHS
from advisor.laws.text import compressed_bytes_per_token
from advisor.offer import Offer
from advisor.planning.offers import SPOT_MEAN_SECONDS
from advisor.planning.ranges import check_ranges
from advisor.prediction.intervals import EstimateArrays, known
from advisor.prediction.power import PowerModel, datasheet_power
from advisor.prediction.profile import Profile
from advisor.prediction.software import OWN_NAME, software_of, table
from advisor.prediction.wallclock import DOWNLOAD_BYTES_PER_SECOND, Setup, rented_setup
from advisor.records import Basis, Estimate, Goal, Run, Software
from advisor.units import format_seconds, format_usd, format_watts
from trainer.schema import ModelShape, make_shape
from trainer.token_folder import TokenMeta

# Tokens per counted parameter. nanochat since March 2026: 12 per matrix and head parameter (its own runs of 1e18 to
# 1e19 FLOPs give 10.3-11.2, sources §4.2). Others: the rule of thumb of Hoffmann et al. 2022; the corrected fit says
# 18 to 24 (sources §4.1). The optimum is flat: a factor of two costs less than 0.01 nats.
FAMILY_RATIO = {"nanochat": (12.0, "matrices+head"), "gpt2": (20.0, "total"), "llama": (20.0, "total")}
# With no limit at all the deepest model is planned whose whole run at that ratio still ends within this time.
UNLIMITED_SECONDS = {"cpu": 3600.0, "cuda": 86400.0}
MOST_EPOCHS = WASTEFUL_EPOCHS  # no time is spent on more unasked
# Context length and vocabulary where neither goal, data nor calibration says: what a calibration would measure.
SEQ_LEN = {"cpu": 256, "cuda": 2048}
VOCAB_SIZE = {"cpu": 4096, "cuda": 32768}
# What waiting takes of a budget that no deadline ends, where the machine is open: nothing for the first day, then the
# square root of the budget for each: 4.47 of 20 dollars, 45 of 2,000. Judged: a larger run may take longer, but not by
# as much as it is larger. It rises by less than the budget does, so that more money never trains less.
FREE_WAIT_SECONDS = 86400.0
LONGEST_SECONDS = 365 * 86400.0  # that a run is stretched to by a budget alone: its machine would be outdated
LEAST_CAP = 0.2  # of a card's power limit; drivers take some 25 to 60 % at least
DEEPEST = {"nanochat": 32, "gpt2": 48, "llama": 40}  # looked at first when the device was never calibrated


Numbers = TypeVar("Numbers", float, np.ndarray)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may take. None: not limited. `sure`: the interval's high end counts, not the expected value.

    An hour of waiting takes `usd_per_waiting_hour` of the budget besides the rent. None: √budget dollars a day after
    the first, without a budget the root of the cheapest run's price. Where the work is `settled` it takes nothing, and
    only decides between machines.
    """

    deadline_seconds: float | None = None
    budget_usd: float | None = None
    sure: bool = False
    usd_per_waiting_hour: float | None = 0.0
    settled: bool = False

    @property
    def patient(self) -> Limits:
        """The same with waiting that costs nothing."""
        return replace(self, usd_per_waiting_hour=0.0)

    @property
    def usd_per_waiting_second(self) -> float:
        """What a second of waiting counts as, after `free_seconds`."""
        if self.usd_per_waiting_hour is not None:
            return self.usd_per_waiting_hour / 3600
        return math.sqrt(self.budget_usd or 0.0) / 86400

    @property
    def free_seconds(self) -> float:
        """How much waiting counts as nothing: none of it where its price was stated."""
        return FREE_WAIT_SECONDS if self.usd_per_waiting_hour is None else 0.0

    def waiting_usd(self, seconds: Numbers) -> Numbers:
        """What waiting so long counts as, in dollars."""
        return self.usd_per_waiting_second * np.maximum(seconds - self.free_seconds, 0.0)

    @overload
    def counted(self, estimate: Estimate) -> float: ...
    @overload
    def counted(self, estimate: EstimateArrays) -> np.ndarray: ...
    def counted(self, estimate: Estimate | EstimateArrays) -> float | np.ndarray:
        """The end of an estimate that is held against a limit."""
        return estimate.high if self.sure else estimate.value

    def overruns(self, seconds: Numbers, usd: Numbers) -> tuple[Numbers, Numbers]:
        """How many times over its limit the counted time is, and the money; at most 1 keeps it, 0 without a limit."""
        late = seconds * 0.0 if self.deadline_seconds is None else seconds / self.deadline_seconds
        dear = seconds * 0.0 if self.budget_usd is None else usd / self.budget_usd
        rate = self.usd_per_waiting_second
        if rate and self.budget_usd is not None and not self.settled:
            # rent and waiting after the free part within the budget, in the form that is proportional to a run's length
            dear = np.maximum(dear, (usd + rate * seconds) / (self.budget_usd + rate * self.free_seconds))
        return late, dear

    def broken(self, seconds: Estimate, usd: Estimate | None) -> tuple[bool, bool]:
        """Whether one run breaks the deadline, and the budget; an unknown price breaks none."""
        late, dear = self.overruns(self.counted(seconds), self.counted(usd) if usd else 0.0)
        return bool(late > 1), bool(dear > 1)


@dataclass(frozen=True, kw_only=True)
class Brief:
    """What a goal means on one device, nothing left open but what is rented and what is trained."""

    goal: Goal
    seq_len: int
    vocab_size: int
    precision: str
    compile: bool
    ratio: float  # tokens per counted parameter that candidates are ordered about
    ratio_counts: str
    depths: tuple[int, ...]
    usd_per_kwh: float
    power: PowerModel | None  # of one device
    unique_tokens: int | None  # of the training data, here or not; None: a synthetic stream without end
    validation_tokens: int | None
    limited: bool  # a budget or a deadline was given
    deadline_seconds: float | None  # the goal's, or the one implied when nothing limits the run
    calibrated: bool = False  # the card was measured, so its machine is at hand
    software: Software | None = None  # None: this project's trainer
    sharding: str = "none"  # what is split over several GPUs where nothing else is asked for
    usd_per_waiting_hour: float | None = 0.0  # as in `Limits`

    @property
    def settled(self) -> bool:
        """Whether the goal says how much work there is; otherwise as much is done as the limits allow."""
        goal = self.goal
        return goal.tokens is not None or goal.ratio is not None or not self.limited or goal.objective != "loss"

    @property
    def limits(self) -> Limits:
        """What a run may take."""
        return Limits(
            deadline_seconds=self.deadline_seconds,
            budget_usd=self.goal.budget_usd,
            sure=self.goal.sure,
            usd_per_waiting_hour=self.usd_per_waiting_hour,
            settled=self.settled,
        )

    def setup(self, offer: Offer) -> Setup | None:
        """What a machine that must be rented first takes before the run; None where it is at hand."""
        return rented_setup(self.token_bytes) if offer.ordered and not self.calibrated else None

    @property
    def token_bytes(self) -> float:
        """Bytes of the token files that are here: two per token, four with more than 65,536 in the vocabulary."""
        if self.bytes_to_fetch:
            return 0.0
        return (self.unique_tokens or 0) * (2 if self.vocab_size <= 65536 else 4)

    @property
    def bytes_to_fetch(self) -> float:
        """Bytes to download for each fresh token; 0 where the data are here."""
        return compressed_bytes_per_token(self.vocab_size) if self.goal.data_tokens else 0.0

    @property
    def download_rate(self) -> Estimate:
        """Bytes a second at which data that are not here come."""
        stated = self.goal.download_bytes_per_second
        return DOWNLOAD_BYTES_PER_SECOND if stated is None else known(stated)

    def most_steps(self, step_tokens: Number) -> Number:
        """The steps that see the data MOST_EPOCHS times; infinity for a stream without end."""
        tokens = MOST_EPOCHS * self.unique_tokens if self.unique_tokens else math.inf
        return np.maximum(1.0, tokens // step_tokens if self.unique_tokens else tokens + 0 * step_tokens)

    def data_bound(self, run: Run) -> bool:
        """Whether a run ends because the data are used up, not by the limits."""
        return not self.settled and bool(run.steps >= self.most_steps(run.workload.step_tokens))

    def pinned(
        self, *, depth: int, global_batch_tokens: int, micro_batch: int | None = None, tokens: int | None = None
    ) -> Brief:
        """The same with depth and global batch settled, and micro-batch and training tokens where they are given."""
        goal = replace(self.goal, depth=depth, global_batch_tokens=global_batch_tokens)
        goal = replace(goal, micro_batch=micro_batch or goal.micro_batch, tokens=tokens or goal.tokens)
        return replace(self, goal=goal, depths=(depth,))

    def shape(self, depth: int) -> ModelShape:
        """The family's shape at this depth, in the proportions that the goal gives."""
        goal = self.goal
        return make_shape(
            goal.family,
            depth=depth,
            vocab_size=self.vocab_size,
            seq_len=self.seq_len,
            width=goal.width,
            heads=goal.heads,
            kv_heads=goal.kv_heads,
            ffn_width=goal.ffn_width,
        )

    def counted(self, shape: ModelShape) -> int:
        """The parameters the ratio counts."""
        return flops.scaling_parameters(shape, self.ratio_counts)


def waiting_price(goal: Goal) -> float | None:
    """Dollars an hour of waiting takes of the budget: as stated; None, the default, where the machine is open and
    no deadline says how long is too long; else nothing.
    """
    if goal.usd_per_waiting_hour is not None:
        return goal.usd_per_waiting_hour
    several = goal.gpu == "any" or "," in goal.gpu or bool(goal.counts)
    patient = goal.deadline_seconds is not None or goal.objective != "loss"
    return None if several and not patient else 0.0


def interruptions(goal: Goal, *, spot: bool) -> Estimate | None:
    """Mean seconds between interruptions of a machine; None where none are expected.

    As stated: of spot machines where the goal allows them, else of whatever is planned on. Unstated only spot machines
    are taken back.
    """
    if goal.interruption_seconds is not None and (spot or goal.spot == "none"):
        return known(goal.interruption_seconds)
    low, value, high = SPOT_MEAN_SECONDS
    return Estimate(value=value, low=low, high=high, basis=Basis.PRIOR) if spot else None


def make_brief(goal: Goal, profile: Profile, data_meta: TokenMeta | None, offer: Offer) -> Brief:
    """Fill the gaps of a goal and refuse what cannot be meant.

    `data_meta` is the token folder's metadata (None: synthetic tokens); `offer` is one the device can be had by, which
    a budget needs a price of. Raises AdvisorError (exit code 2) that names the value and the option to change.
    """
    # Refuse numbers that no goal means, and those that say the same thing twice.
    if goal.family not in FAMILY_RATIO:
        raise AdvisorError(f"--family {goal.family}: unknown", f"choose one of {', '.join(FAMILY_RATIO)}", exit_code=2)
    check_ranges(goal)
    if goal.tokens is not None and goal.ratio is not None and goal.depth is not None:
        raise AdvisorError(
            "--tokens, --ratio and --depth together say the same thing twice", "leave one of them out", exit_code=2
        )
    if profile.spec is not None and cap_is_too_low(goal, profile):
        raise AdvisorError(
            f"--power-cap {goal.power_cap_watts:g}: {profile.key} cannot be limited so far, its own limit is "
            f"{format_watts(profile.spec.tdp_watts)}",
            "`nvidia-smi -q -d POWER` shows what a GPU accepts",
            exit_code=2,
        )
    if (problem := budget_problem(goal, profile, offer)) is not None:
        raise problem
    ratio, counts = FAMILY_RATIO[goal.family]
    limited = goal.budget_usd is not None or goal.deadline_seconds is not None
    open_ended = not limited and goal.tokens is None and goal.depth is None
    return Brief(
        goal=goal,
        seq_len=seq_len_of(goal, profile),
        vocab_size=vocab_size_of(goal, profile, data_meta),
        precision=profile.precision if goal.precision == "auto" else goal.precision,
        compile=profile.compile if goal.compile is None else goal.compile,
        ratio=goal.ratio or ratio,
        ratio_counts=goal.ratio_counts if goal.ratio else counts,
        depths=_depths(goal, profile),
        usd_per_kwh=goal.usd_per_kwh or 0.0,
        power=power_of(profile),
        unique_tokens=data_meta.tokens if data_meta else goal.data_tokens,
        validation_tokens=data_meta.validation_tokens if data_meta else None,
        limited=limited,
        deadline_seconds=UNLIMITED_SECONDS[profile.device_type] if open_ended else goal.deadline_seconds,
        calibrated=profile.calibrated,
        software=software_of(goal.software) if goal.software else None,
        sharding=table()[goal.software or OWN_NAME].sharding,
    )


def cap_is_too_low(goal: Goal, profile: Profile) -> bool:
    """Whether no driver would set the goal's power cap on this card."""
    limit = profile.spec.tdp_watts if profile.spec else None
    return goal.power_cap_watts is not None and limit is not None and goal.power_cap_watts < LEAST_CAP * limit


def power_of(profile: Profile) -> PowerModel | None:
    """What one device draws: as its calibration measured, else by the data sheet's limit, else None."""
    return profile.costs.power or datasheet_power(profile.spec.tdp_watts if profile.spec else None)


def describe_limits(brief: Brief) -> str:
    """The limits of a brief in words, such as "8 h and $20"; "" when none was given."""
    words = []
    if brief.goal.deadline_seconds is not None:
        words.append(format_seconds(brief.goal.deadline_seconds))
    if brief.goal.budget_usd is not None:
        words.append(format_usd(brief.goal.budget_usd))
    return " and ".join(words)


def budget_problem(goal: Goal, profile: Profile, offer: Offer) -> AdvisorError | None:
    """Why the goal's budget sets no end to a run on this machine; None where there is none or something else does."""
    if goal.budget_usd is None:
        return None
    if goal.usd_per_kwh and power_of(profile) is None:
        return AdvisorError(
            f"--budget with --kwh-price needs the power of {goal.gpu}, which is unknown",
            "give a price per hour that holds the energy: --price 0.50",
            exit_code=2,
        )
    if offer.usd_per_hour is None:
        hint = "give one per GPU and hour: --price 2.50"
        return AdvisorError(f"--budget needs a price: {offer.source}", hint, exit_code=2)
    if offer.usd_per_hour or goal.usd_per_kwh or _ends_unpaid(goal):
        return None
    return AdvisorError(
        f"--budget needs a price or an electricity tariff: {goal.gpu} costs nothing per hour",
        "give --price 0.50 (per hour) or --kwh-price 0.30, or a limit on time: --deadline 30min",
        exit_code=2,
    )


def _ends_unpaid(goal: Goal) -> bool:
    """Whether a run ends that costs nothing: by a deadline, or because model and tokens are settled."""
    settled = goal.depth is not None and (goal.tokens is not None or goal.ratio is not None)
    return goal.deadline_seconds is not None or goal.objective != "loss" or settled


def seq_len_of(goal: Goal, profile: Profile) -> int:
    """The context length: the one asked for, else the calibration's."""
    return goal.seq_len or profile.seq_len or SEQ_LEN[profile.device_type]


def vocab_size_of(goal: Goal, profile: Profile, data_meta: TokenMeta | None) -> int:
    """Rows of the embedding table; raises AdvisorError (exit 2) for fewer than the data's tokenizer has."""
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


def _depths(goal: Goal, profile: Profile) -> tuple[int, ...]:
    """Depths to weigh first: the one asked for, else from the calibrated ones up to twice the deepest of them."""
    if goal.depth is not None:
        return (goal.depth,)
    low, high = 2, DEEPEST[goal.family]
    if profile.depths and profile.family == goal.family:
        low, high = min(profile.depths), 2 * max(profile.depths)
    return depths_between(low, high)


def depths_between(low: int, high: int) -> tuple[int, ...]:
    """All depths up to 12, every second one above: neighbours differ by less than the intervals."""
    return tuple(depth for depth in range(low, high + 1) if depth <= 12 or depth % 2 == 0)
