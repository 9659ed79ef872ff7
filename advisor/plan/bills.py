"""Hours, dollars, score and loss of very many runs at once, and how many steps fit a limit.

The same bill as `predict/wallclock` makes of the run that `plan/trial` would configure, on arrays: a test holds the two
together. Shapes broadcast: a field's columns are (n, 1) against token budgets (n, k).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from advisor.plan import recipe
from advisor.plan.field import Device, Field
from advisor.plan.goal import MOST_EPOCHS, Brief, interruptions, token_bytes
from advisor.predict.energy import STORAGE_USD_PER_BYTE_HOUR
from advisor.predict.loss_arrays import allocation_scores, losses
from advisor.predict.memory import EstimateArrays
from advisor.predict.wallclock import (
    EVAL_SPREAD,
    INTERVAL_RANGE,
    USUAL_INTERVAL_SECONDS,
    Setup,
    daly_below,
    lost_share,
    rented_setup,
)
from advisor.records import Estimate

_ROUNDS = 6  # of Newton's method on the number of steps; evaluations and checkpoints move it by a few per cent


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may take. None: not limited. `sure`: the interval's high end counts, not the expected value."""

    deadline_seconds: float | None = None
    budget_usd: float | None = None
    sure: bool = False


class Bills:
    """The rows of a field with everything their bills are computed from, each column of shape (n, 1)."""

    def __init__(self, field: Field):
        self.field = field
        brief = field.devices[0].brief
        self.unique_tokens, self.validation_tokens = brief.unique_tokens, brief.validation_tokens
        self.vocab_size, self.usd_per_kwh = brief.vocab_size, brief.usd_per_kwh
        self.ratio = np.array([d.brief.ratio for d in field.devices])[field.device][:, None]
        self.step_tokens = field.step_tokens[:, None].astype(float)
        self.step = EstimateArrays(value=field.step.value[:, None], low=field.step.low[:, None],
                                   high=field.step.high[:, None])  # fmt: skip
        self._micro_tokens = field.micro_tokens[:, None].astype(float)
        costs = [d.profile.costs for d in field.devices]

        def column(numbers: list[float]) -> np.ndarray:
            return np.array(numbers, dtype=float)[field.device][:, None]

        def sides(estimates: list[Estimate]) -> tuple[np.ndarray, np.ndarray]:
            return column([e.value for e in estimates]), column([e.high - e.value for e in estimates])

        start, self._start_above = sides([c.startup_seconds for c in costs])
        build = column([c.build_seconds_per_parameter for c in costs]) * field.parameters[:, None]
        compiled = [c.compile_seconds.scaled(float(d.brief.compile)) for c, d in zip(costs, field.devices, strict=True)]
        compiling, self._compile_above = sides(compiled)
        self.fixed = start + build + compiling
        rates = [c.checkpoint_bytes_per_second for c in costs]
        state = field.state_bytes[:, None]
        self._write = state / column([r.value for r in rates])
        self._write_above = state / column([r.low for r in rates]) - self._write
        forward = column([c.forward_fraction for c in costs])
        self._forward = forward * self.step.value / field.grad_accum[:, None]
        setups = [self._setup(o.ordered, d) for o, d in zip(field.offers, self._owners(), strict=True)]
        setup = np.array([s.seconds if s else 0.0 for s in setups])[field.offer][:, None]
        above = [s.provisioning_seconds.high - s.provisioning_seconds.value if s else 0.0 for s in setups]
        slow = [s.download_seconds.high - s.download_seconds.value if s else 0.0 for s in setups]
        self._setup_above = np.hypot(np.array(above), np.array(slow))[field.offer][:, None]
        self.fixed = self.fixed + setup
        self._every = self._intervals()
        self._lost = self._lost_shares(self.fixed)
        self._gpus = field.gpus[:, None].astype(float)
        rented = np.array([o.provider is not None for o in field.offers])[field.offer][:, None]
        storage = np.where(rented, STORAGE_USD_PER_BYTE_HOUR * (recipe.KEPT_CHECKPOINTS + 1) * state, 0.0)
        self._rent = (field.usd_per_hour[:, None] + storage) / 3600
        most = np.array([o.most_usd_per_hour or 0.0 for o in field.offers])[field.offer][:, None] + storage
        moves = most / 3600 > self._rent
        self._rent_above = np.log(np.where(moves, most / 3600, 1.0) / np.where(moves, self._rent, 1.0))
        self._tariff = np.zeros_like(self._rent)  # dollars of energy per second of the loop
        if self.usd_per_kwh:
            _, watts, high = (side[:, None] for side in field.watts)
            self._tariff = watts * self.usd_per_kwh / 3.6e6
            self._watts_above = np.log(high / watts)

    def seconds(self, steps: np.ndarray) -> np.ndarray:
        """Expected seconds of everything, for `steps` of shape (n, k)."""
        working = steps * self.step.value + self._evals(steps)
        return self.fixed + (working + self._checkpoints(working) * self._write) * (1 + self._lost[0])

    def seconds_high(self, steps: np.ndarray) -> np.ndarray:
        """The high end of the 80 % interval of `seconds`: shared errors add up, others join in quadrature."""
        before = np.sqrt(self._start_above**2 + self._compile_above**2 + self._setup_above**2)
        return self.seconds(steps) + np.hypot(self._loop_above(steps), before)

    def usd(self, seconds: np.ndarray) -> np.ndarray:
        """Expected dollars of a bill of so many expected seconds; NaN where the price is unknown."""
        return seconds * self._rent + (seconds - self.fixed) * self._tariff

    def usd_high(self, steps: np.ndarray) -> np.ndarray:
        """The high end of the dollars' interval."""
        seconds = self.seconds(steps)
        slower = np.log(self.seconds_high(steps) / seconds)
        rent = seconds * self._rent * np.exp(np.hypot(slower, self._rent_above))
        if not self.usd_per_kwh:
            return rent
        loop = seconds - self.fixed
        spread = np.exp(np.hypot(np.log1p(self._loop_above(steps) / loop), self._watts_above))
        return rent + loop * self._tariff * spread

    def _loop_above(self, steps: np.ndarray) -> np.ndarray:
        """Seconds from the loop's expected end to its interval's high one; see `wallclock.loop_seconds`."""
        evals = self._evals(steps)
        working = steps * self.step.value + evals
        count = self._checkpoints(working)
        slower = np.log(self.step.high / self.step.value)
        spread = np.exp(np.hypot(slower, math.log(1 + EVAL_SPREAD))) - 1
        above = steps * (self.step.high - self.step.value) + evals * spread
        lost, most_lost = self._lost
        more_lost = (working + count * self._write) * (most_lost - lost)
        return np.sqrt(above**2 + (count * self._write_above) ** 2 + more_lost**2)

    def keeps(self, steps: np.ndarray, limits: Limits) -> np.ndarray:
        """Bool (n, k): whether runs of so many steps keep the limits."""
        return self.overrun(steps, limits) <= 1

    def overrun(self, steps: np.ndarray, limits: Limits) -> np.ndarray:
        """How many times over its tightest limit a run is; at most 1 keeps them, 0 without limits."""
        late, dear = self.overruns(steps, limits)
        return np.maximum(late, dear)

    def overruns(self, steps: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
        """Time over the deadline and dollars over the budget, each as a ratio; 0 without that limit."""
        seconds = self.seconds(steps)
        end = self.seconds_high(steps) if limits.sure else seconds
        late = end / limits.deadline_seconds if limits.deadline_seconds else np.zeros_like(end)
        if limits.budget_usd is None:
            return late, np.zeros_like(end)
        usd = self.usd_high(steps) if limits.sure else self.usd(seconds)
        return late, usd / limits.budget_usd

    def most_steps(self, limits: Limits) -> np.ndarray:
        """The most steps, shape (n, 1), that keep the limits and MOST_EPOCHS of the data; 0 where none do."""
        per_step = self.step.high if limits.sure else self.step.value
        allowed = np.full_like(per_step, np.inf)
        if limits.deadline_seconds is not None:
            allowed = np.minimum(allowed, limits.deadline_seconds)
        if limits.budget_usd is not None:
            spared = self.fixed * self._tariff  # what starts draws next to nothing
            allowed = np.minimum(allowed, (limits.budget_usd + spared) / (self._rent + self._tariff))
        most = np.floor(allowed / per_step)
        if self.unique_tokens:
            most = np.minimum(most, np.maximum(1.0, MOST_EPOCHS * self.unique_tokens // self.step_tokens))
        steps = most
        for _ in range(_ROUNDS):  # the bill is all but linear in the steps
            over = self.overrun(steps, limits)
            room = allowed * (1 - over) / per_step
            steps = np.clip(steps + np.where(over > 1, -np.ceil(-room), np.floor(room)), 1, most)
        fewer = np.maximum(np.floor(0.999 * steps - 1), 0.0)
        return np.where(self.keeps(steps, limits), steps, np.where(self.keeps(fewer, limits), fewer, 0.0))

    def tokens(self, steps: np.ndarray) -> np.ndarray:
        return steps * self.step_tokens

    def scores(self, steps: np.ndarray) -> np.ndarray:
        """What runs are ordered by, lower is better: `loss.allocation_score`."""
        counted = self.field.counted[:, None]
        return allocation_scores(counted, self.tokens(steps), self.unique_tokens, best_ratio=self.ratio)

    def losses(self, steps: np.ndarray) -> np.ndarray:
        """Predicted validation loss, NaN outside the laws' range."""
        return losses(self.field.parameters[:, None], self.tokens(steps), self.unique_tokens, self.vocab_size)

    def batch_is_sound(self, steps: np.ndarray, brief: Brief, overshoot: float) -> np.ndarray:
        """Whether the global batch is at most `overshoot` times what the laws recommend for these tokens."""
        if brief.goal.global_batch_tokens is not None or brief.goal.micro_batch is not None:
            return np.ones_like(steps, dtype=bool)
        wanted = recipe.recommended_batch(self.field.batch_scale[:, None], self.tokens(steps))
        return (self.step_tokens <= overshoot * wanted) | self.field.smallest[:, None]

    def _owners(self) -> list[Device]:
        """The device of each of the field's offers."""
        return [device for device in self.field.devices for _ in device.offers]

    @staticmethod
    def _setup(rented: bool, device: Device) -> Setup | None:
        """What `Brief.setup` says for an offer of this device."""
        return rented_setup(token_bytes(device.brief)) if rented and not device.brief.calibrated else None

    def _means(self) -> tuple[np.ndarray, np.ndarray]:
        """Expected and least seconds between interruptions, each of shape (n, 1); NaN where none are expected."""
        goals = [device.brief.goal for device in self._owners()]
        means = [interruptions(goal, spot=o.spot) for goal, o in zip(goals, self.field.offers, strict=True)]
        table = np.array([(m.value, m.low) if m else (math.nan, math.nan) for m in means])
        return table[self.field.offer, :1], table[self.field.offer, 1:]

    def _intervals(self) -> np.ndarray:
        """Seconds between checkpoints, shape (n, 1)."""
        mean, _ = self._means()
        if np.isnan(mean).all():
            return np.full_like(self._write, USUAL_INTERVAL_SECONDS)
        daly = np.where(self._write >= 2 * mean, mean, daly_below(self._write, mean))
        return np.where(np.isnan(mean), USUAL_INTERVAL_SECONDS, np.clip(np.round(daly), *INTERVAL_RANGE))

    def _lost_shares(self, restart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected and high share of time lost to interruptions, 0 where none are expected."""
        shares = (lost_share(self._every, self._write, restart, mean) for mean in self._means())
        expected, most = (np.nan_to_num(share) for share in shares)
        return expected, most

    def _evals(self, steps: np.ndarray) -> np.ndarray:
        """Seconds of all evaluations that `recipe.evaluation` would schedule."""
        wanted = np.clip(recipe.EVAL_SHARE * steps * self.step_tokens, *recipe.EVAL_TOKENS)
        if self.validation_tokens is not None:
            wanted = np.minimum(wanted, self.validation_tokens)
        batches = np.ceil(np.maximum(1.0, wanted // self._micro_tokens) / self._gpus)
        every = np.maximum(1.0, np.ceil(steps / recipe.EVALUATIONS))
        return np.ceil(steps / every) * batches * self._forward

    def _checkpoints(self, working: np.ndarray) -> np.ndarray:
        """How many `recipe.checkpoints` would write: by time, and one at the end."""
        return np.maximum(0.0, np.ceil(working / self._every) - 1) + 1
