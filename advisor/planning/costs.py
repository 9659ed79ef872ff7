"""Hours, dollars, energy, score and loss of very many runs at once, and how many steps fit a limit.

Shapes broadcast: a row's own numbers are (n, 1) against token budgets (n, k). A plan's bill is a table of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from advisor.hardware.prices import drift_factor
from advisor.offer import Offer
from advisor.planning import recipe
from advisor.planning.candidates import KINDS, Candidates, Device, Machines
from advisor.planning.goal import LONGEST_SECONDS, Limits, interruptions
from advisor.prediction.energy import JOULES_PER_KWH, STORAGE_USD_PER_BYTE_HOUR, energy_kwh, run_cost_usd
from advisor.prediction.groups import group_keys
from advisor.prediction.intervals import EstimateArrays, columns, known, reciprocal, sum_shared
from advisor.prediction.loss import allocation_score, expected_loss
from advisor.prediction.notice import NOTICE_SECONDS
from advisor.prediction.wallclock import (
    GPUS_A_NODE,
    Checkpoints,
    RunTerms,
    Setup,
    WallClocks,
    between_failures,
    checkpoint_interval_seconds,
    expected_seconds,
    stalls,
    wall_clocks,
)

_ROUNDS = 8  # of Newton's method on the number of steps; evaluations and checkpoints move it by a few per cent


@dataclass(frozen=True, kw_only=True)
class Bills:
    """What runs take; shapes (n, k)."""

    clock: WallClocks
    watts: EstimateArrays  # all devices together; NaN where unknown
    kwh: EstimateArrays
    usd: EstimateArrays  # NaN where the price is unknown
    storage_usd: EstimateArrays  # of the checkpoints kept, part of the dollars


class Costs:
    """The rows of some candidates with everything their bills are computed from."""

    def __init__(self, candidates: Candidates):
        self.candidates = candidates
        brief = candidates.devices[0].brief
        self.unique_tokens, self.validation_tokens = brief.unique_tokens, brief.validation_tokens
        self.vocab_size = brief.vocab_size
        tariffs = np.array([d.brief.usd_per_kwh for d in candidates.devices])
        self.usd_per_kwh = float(tariffs.max())  # of those that have a meter
        self._has_meter = (tariffs > 0)[candidates.device][:, None]
        self.ratio = np.array([d.brief.ratio for d in candidates.devices])[candidates.device][:, None]
        self.counted = candidates.counted[:, None]
        self.step_tokens = candidates.step_tokens[:, None].astype(float)
        self._micro_tokens = candidates.micro_tokens[:, None].astype(float)
        self._gpus = candidates.gpus[:, None].astype(float)
        self.terms = _run_terms(candidates)

    @cached_property
    def _rent(self) -> EstimateArrays:
        """Dollars an hour of what is rented, the checkpoints' disk included; NaN where unknown."""
        price, most = (self.candidates.of_offers(name)[:, None] for name in ("usd_per_hour", "most_usd_per_hour"))
        disk, drift = self._storage_usd_per_hour, _drifts(self.candidates.machines)[self.candidates.offer][:, None]
        high = np.fmax(price, most) * drift + disk  # fmax: where the price does not move there is no most
        basis = np.zeros(price.shape, dtype=int)  # measured: it is on a list
        return EstimateArrays(value=price + disk, low=price / drift + disk, high=high, basis=basis)

    @cached_property
    def _storage_usd_per_hour(self) -> np.ndarray:
        """What is asked for the disk that the checkpoints fill; nothing on one's own machine."""
        rented = np.array([offer.ordered for offer in self.candidates.offers])[self.candidates.offer]
        kept = (recipe.KEPT_CHECKPOINTS + 1) * self.candidates.state_bytes
        return np.where(rented, STORAGE_USD_PER_BYTE_HOUR * kept, 0.0)[:, None]

    @cached_property
    def _watts(self) -> EstimateArrays:
        return self.candidates.watts.rows((slice(None), None))

    @cached_property
    def _tariff(self) -> np.ndarray | float:
        """Expected dollars of energy per second of the loop."""
        return self._metered(self._watts).value * self.usd_per_kwh / JOULES_PER_KWH if self.usd_per_kwh else 0.0

    def _metered(self, drawn: EstimateArrays) -> EstimateArrays:
        """What is drawn where it has a tariff, else nothing: there it may be unknown."""
        if not self.usd_per_kwh:
            return drawn
        value, low, high = (np.where(self._has_meter, side, 0.0) for side in (drawn.value, drawn.low, drawn.high))
        return replace(drawn, value=value, low=low, high=high)

    def checkpoint_seconds(self, row: int) -> float:
        """Seconds between the checkpoints of one row."""
        return float(np.asarray(self.terms.checkpoints.every_seconds).flat[row])

    def seconds(self, steps: np.ndarray) -> np.ndarray:
        """Expected seconds of everything."""
        return expected_seconds(self.terms, steps, self._eval_batches(steps))

    def usd(self, seconds: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Expected dollars of a bill of so many expected seconds; what comes before the loop draws next to nothing."""
        return seconds * self._rent.value / 3600 + (seconds - self.terms.idle(steps)) * self._tariff

    def bills(self, steps: np.ndarray) -> Bills:
        """The whole bills of runs of so many steps, by part and with intervals."""
        clock = wall_clocks(self.terms, steps, self._eval_batches(steps))
        kwh = energy_kwh(clock.loop_seconds, self._watts)
        usd = run_cost_usd(clock.total_seconds, self._rent, self._metered(kwh), self.usd_per_kwh)
        storage = clock.total_seconds.scaled(self._storage_usd_per_hour / 3600)
        return Bills(clock=clock, watts=self._watts, kwh=kwh, usd=usd, storage_usd=storage)

    def overruns(self, steps: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
        """Time over the deadline and dollars over the budget, each as a ratio; 0 without that limit."""
        if limits.sure:
            bills = self.bills(steps)
            return limits.overruns(bills.clock.total_seconds.high, bills.usd.high)
        seconds = self.seconds(steps)
        return limits.overruns(seconds, self.usd(seconds, steps))

    def keeps(self, steps: np.ndarray, limits: Limits) -> np.ndarray:
        """Bool: whether runs of so many steps keep the limits."""
        return np.maximum(*self.overruns(steps, limits)) <= 1

    def most_steps(self, limits: Limits, *, within_data: bool = True) -> np.ndarray:
        """The most steps, shape (n, 1), that keep the limits, and MOST_EPOCHS of the data; 0 where none do."""
        step, allowed = limits.counted(self.terms.step), self._allowed_seconds(limits)
        if limits.sure and self.terms.fetch is not None:
            step = step + self.terms.fetch.high
        most = np.floor(allowed / step)
        if within_data:
            most = np.minimum(most, self.most_by_data)
        steps = most
        for _ in range(_ROUNDS):  # the bill is all but linear in the steps
            over = np.maximum(*self.overruns(np.maximum(steps, 1.0), limits))
            each = step  # an interval's end is no line in the steps: it is approached from the steep side
            if not limits.sure:
                each = np.maximum(step, (over * allowed - self.terms.before) / np.maximum(steps, 1.0))
            room = allowed * (1 - over) / each
            moved = steps + np.where(over > 1, -np.ceil(-room), np.floor(room))
            before, steps = steps, np.minimum(np.maximum(moved, 1.0), most)
            if (np.abs(steps - before) <= 1).all():
                break
        kept = np.zeros_like(steps)
        for fewer in (steps, steps - 1, np.floor(0.999 * steps - 1)):  # around a checkpoint or an evaluation more
            kept = np.where((kept == 0) & (fewer >= 1) & self.keeps(np.maximum(fewer, 1.0), limits), fewer, kept)
            if (kept > 0).all():
                break
        return kept

    def _allowed_seconds(self, limits: Limits) -> np.ndarray:
        """Seconds that the limits leave for everything, at the expected rate of spending."""
        allowed = np.full_like(self.terms.before, limits.deadline_seconds or LONGEST_SECONDS)
        if limits.budget_usd is not None:
            unmetered = self.terms.before * self._tariff
            rate = self._rent.value / 3600 + self._tariff
            with np.errstate(divide="ignore"):  # what costs nothing is never ended by money
                allowed = np.minimum(allowed, (limits.budget_usd + unmetered) / rate)
            waiting = 0.0 if limits.settled else limits.usd_per_waiting_second
            if waiting:
                free = waiting * limits.free_seconds
                allowed = np.minimum(allowed, (limits.budget_usd + free + unmetered) / (rate + waiting))
        return allowed

    @cached_property
    def most_by_data(self) -> np.ndarray:
        """The steps, shape (n, 1), that see the data as often as is worth while."""
        return self.candidates.devices[0].brief.most_steps(self.step_tokens)

    def settled_steps(self) -> np.ndarray | None:
        """The steps of the tokens that the goal settles, shape (n, 1); None where the limits decide."""
        goal = self.candidates.devices[0].brief.goal
        if goal.tokens is not None:
            tokens = np.full_like(self.counted, goal.tokens)
        elif self.candidates.devices[0].brief.settled:
            tokens = np.rint(self.ratio * self.counted)
        else:
            return None
        return np.maximum(1.0, np.rint(tokens / self.step_tokens))

    def tokens(self, steps: np.ndarray) -> np.ndarray:
        return steps * self.step_tokens

    def scores(self, steps: np.ndarray) -> np.ndarray:
        """What runs are ordered by, lower is better: `loss.allocation_score`."""
        return allocation_score(self.counted, self.tokens(steps), self.unique_tokens, best_ratio=self.ratio)

    def losses(self, steps: np.ndarray) -> np.ndarray:
        """Predicted validation loss, NaN outside the laws' range."""
        parameters = self.candidates.parameters[:, None]
        return expected_loss(parameters, self.tokens(steps), self.unique_tokens, self.vocab_size)

    def batch_is_nearest(self, steps: np.ndarray) -> np.ndarray:
        """Bool: no other row of the same offer and depth has a global batch nearer to what the laws recommend for it.

        Near is a small ratio either way. Rows that fit the memory are compared with each other, and the others.
        """
        wanted = recipe.recommended_batch(self.candidates.scale[:, None], self.tokens(steps))
        off = np.abs(np.log(self.step_tokens / wanted))
        order, starts = self._by_group
        least = np.minimum.reduceat(off[order], starts, axis=0)
        return off <= least[self._groups]

    @cached_property
    def _groups(self) -> np.ndarray:
        """A number for each offer and depth, those that fit and the others apart; shape (n,)."""
        c = self.candidates
        return np.unique(group_keys(c.offer, c.depth, c.fits + 0), return_inverse=True)[1]

    @cached_property
    def _by_group(self) -> tuple[np.ndarray, np.ndarray]:
        """Places in the order of their groups, and where each group starts in it."""
        order = np.argsort(self._groups, kind="stable")
        return order, np.nonzero(np.diff(self._groups[order], prepend=-1))[0]

    def taken_before_saving(self, steps: np.ndarray) -> np.ndarray | None:
        """Bool, shape (n, k): whether a machine's notice is shorter than saving may take, as `notice.save_seconds` has
        it; None: no machine here has one that is known.
        """
        notice = _notices(self.candidates.machines)[self.candidates.offer]
        rows = np.nonzero(notice < math.inf)[0]
        if not len(rows):
            return None
        tokens = steps[rows] * self.step_tokens[rows]
        _, batches = recipe.evaluation(steps[rows], tokens, self._micro_tokens[rows], self.validation_tokens)
        evaluation = np.ceil(batches / self._gpus[rows]) * self.terms.forward.high[rows]
        taken = np.zeros(steps.shape, dtype=bool)
        needed = np.maximum(self.terms.step.high[rows], evaluation) + self.terms.write.high[rows]
        taken[rows] = needed > notice[rows, None]
        return taken

    def _eval_batches(self, steps: np.ndarray) -> np.ndarray:
        """Micro-batches of all evaluations on the busiest device."""
        every, batches = recipe.evaluation(steps, self.tokens(steps), self._micro_tokens, self.validation_tokens)
        return np.ceil(steps / every) * np.ceil(batches / self._gpus)


@dataclass(frozen=True, kw_only=True)
class _MachineTerms:
    """What seconds are made of that depends on the device alone, or on the offer alone."""

    forward_fraction: np.ndarray  # (devices, 1)
    build: EstimateArrays  # seconds per parameter
    startup: EstimateArrays
    compile: EstimateArrays
    bytes_per_second: EstimateArrays
    provisioning: EstimateArrays  # (offers, 1)
    download: EstimateArrays
    between_interruptions: EstimateArrays
    taken: np.ndarray  # bool: by somebody, with all that is on it
    beside: np.ndarray  # bool (devices, 1): checkpoints are written while the run goes on, as the trainer does on CUDA


@lru_cache(maxsize=4)
def _drifts(machines: Machines) -> np.ndarray:
    """How many times more or less than its list says each offer may cost by now."""
    return np.array([drift_factor(offer.age_days) for offer in machines.offers])


@lru_cache(maxsize=4)
def _notices(machines: Machines) -> np.ndarray:
    """Seconds between each offer's notice and its end; infinity where there is none, or nobody says."""
    return np.array([NOTICE_SECONDS.get(o.provider or "", math.inf) if o.spot else math.inf for o in machines.offers])


@lru_cache(maxsize=4)
def _machine_terms(machines: Machines) -> _MachineTerms:
    """Of measured or believed costs, and of what the offers are; once for all the rows of a search."""
    costs = [device.profile.costs for device in machines.devices]
    setups = [_setup(device, offer) for device, offer in zip(machines.owners, machines.offers, strict=True)]
    taken = [
        interruptions(device.brief.goal, spot=offer.spot)
        for device, offer in zip(machines.owners, machines.offers, strict=True)
    ]
    means = [mean or between_failures(offer.gpus) for mean, offer in zip(taken, machines.offers, strict=True)]
    return _MachineTerms(
        forward_fraction=np.array([c.forward_fraction for c in costs])[:, None],
        build=columns([known(c.build_seconds_per_parameter, c.startup_seconds.basis) for c in costs]),
        startup=columns([c.startup_seconds for c in costs]),
        compile=columns(
            [c.compile_seconds.scaled(float(d.brief.compile)) for c, d in zip(costs, machines.devices, strict=True)]
        ),
        bytes_per_second=columns([c.checkpoint_bytes_per_second for c in costs]),
        provisioning=columns([setup.provisioning_seconds for setup in setups]),
        download=columns([setup.download_seconds for setup in setups]),
        between_interruptions=columns(means),
        taken=np.array([mean is not None for mean in taken])[:, None],
        beside=np.array([d.profile.device_type == "cuda" for d in machines.devices])[:, None],
    )


def _setup(device: Device, offer: Offer) -> Setup:
    nothing = known(0.0)
    return device.brief.setup(offer) or Setup(provisioning_seconds=nothing, download_seconds=nothing)


def _run_terms(candidates: Candidates) -> RunTerms:
    """What the seconds of each row are made of."""
    machine, device, offer = _machine_terms(candidates.machines), candidates.device, candidates.offer
    step = candidates.step.rows((slice(None), None))
    build = machine.build.rows(device).scaled(candidates.parameters[:, None])
    brief = candidates.devices[0].brief
    step_tokens = candidates.step_tokens[:, None].astype(float)
    fetch = None
    if brief.bytes_to_fetch:
        fetch = reciprocal(columns([brief.download_rate]), brief.bytes_to_fetch * step_tokens)
    # Each GPU of a sharded model copies and writes what it holds, each host to a disk of its own; of a whole one the
    # first GPU does.
    sharded = np.array([kind.sharding != "none" for kind in KINDS])[candidates.kind]
    held = (candidates.state_bytes / np.where(sharded, candidates.gpus, 1))[:, None]
    hosts = np.where(sharded, np.ceil(candidates.gpus / GPUS_A_NODE), 1)
    write = reciprocal(machine.bytes_per_second.rows(device), (candidates.state_bytes / hosts)[:, None])
    stall = stalls(write, held, beside=machine.beside[device])
    between, taken = machine.between_interruptions.rows(offer), machine.taken[offer]
    return RunTerms(
        step=step,
        forward=step.scaled(machine.forward_fraction[device] / candidates.grad_accum[:, None]),
        startup=sum_shared(machine.startup.rows(device), build),
        compile=machine.compile.rows(device),
        write=write,
        stall=stall,
        provisioning=machine.provisioning.rows(offer),
        download=machine.download.rows(offer),
        between_interruptions=between,
        taken=taken,
        fetch=fetch,
        fresh_steps=(brief.unique_tokens or math.inf) / step_tokens,
        checkpoints=Checkpoints(every_seconds=_checkpoint_interval(candidates, stall.value, between.value)),
    )


def _checkpoint_interval(candidates: Candidates, stall: np.ndarray, between: np.ndarray) -> np.ndarray:
    """Seconds between the checkpoints of each row, shape (n, 1): as the goal states, else as the stalls ask for."""
    asked = candidates.devices[0].brief.goal.checkpoint_seconds
    return checkpoint_interval_seconds(stall, between) if asked is None else np.full_like(stall, asked)
