"""Compute hours, dollars, energy, score and loss of many runs at once, and the most steps within the limits.

Numbers of the rows have shape (n, 1) and broadcast against steps of shape (n, k). A plan's bill is a table of one row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from advisor.offer import OWN_MACHINE, Offer
from advisor.options import Goal
from advisor.planning import recipe
from advisor.planning.candidates import KINDS, Candidates, Machines
from advisor.planning.goal import LONGEST_SECONDS, Limits, interruptions
from advisor.prediction.intervals import BASES, EstimateArrays, columns, known, product, reciprocal, sum_shared
from advisor.prediction.loss import allocation_score
from advisor.prediction.micro_batch import group_keys
from advisor.prediction.power import (
    JOULES_PER_KWH,
    SITE_FACTOR,
    STORAGE_USD_PER_BYTE_HOUR,
    PowerModel,
    energy_kwh,
    run_cost_usd,
)
from advisor.prediction.wallclock import (
    GPUS_A_NODE,
    NOTICE_SECONDS,
    Checkpoints,
    RunTerms,
    Setup,
    WallClocks,
    between_failures,
    checkpoint_interval_seconds,
    expected_seconds,
    rented_setup,
    stalls,
    wall_clocks,
)
from advisor.records import Basis, Estimate, Run
from advisor.settings import SHARDINGS
from advisor.units import format_estimate, format_usd, format_usd_rate, format_watts

_ROUNDS = 8  # of Newton's method on the number of steps


@dataclass(frozen=True, kw_only=True)
class Bills:
    """Time, power, energy and dollars of runs, as arrays of shape (n, k)."""

    clock: WallClocks
    watts: EstimateArrays  # of all devices together; NaN where unknown
    kwh: EstimateArrays
    usd: EstimateArrays  # NaN where the price is unknown
    storage_usd: EstimateArrays  # for the checkpoints on disk; a part of `usd`


class Costs:
    """Computes the bills of candidates for any number of steps."""

    def __init__(self, candidates: Candidates):
        self.candidates = candidates
        self.brief = candidates.machines.devices[0].brief  # data and goal are the same on all devices
        tariffs = np.array([d.brief.usd_per_kwh for d in candidates.machines.devices])
        self.usd_per_kwh = float(tariffs.max())  # the tariff of all devices that have one
        self._has_meter = (tariffs > 0)[candidates.device][:, None]
        self.ratio = np.array([d.brief.ratio for d in candidates.machines.devices])[candidates.device][:, None]
        self.counted = candidates.counted[:, None]
        self.step_tokens = candidates.step_tokens[:, None].astype(float)
        self._micro_tokens = candidates.micro_tokens[:, None].astype(float)
        self._gpus = candidates.gpus[:, None].astype(float)
        self.most_by_data = self.brief.most_steps(self.step_tokens)  # the steps that repeat the data MOST_EPOCHS times
        self.terms = _run_terms(candidates)
        # Dollars per hour for the disk that the checkpoints fill, and for the machine with this disk; NaN: unknown.
        machine, offer = _machine_terms(candidates.machines), candidates.offer
        kept = (recipe.KEPT_CHECKPOINTS + 1) * candidates.state_bytes[:, None]
        self._disk = np.where(machine.ordered[offer], STORAGE_USD_PER_BYTE_HOUR * kept, 0.0)
        price, drift = machine.price[offer], machine.drift[offer]
        high = np.fmax(price, machine.most_price[offer]) * drift  # fmax skips the NaN of a price that does not move
        basis = np.zeros(price.shape, dtype=int)  # measured, because the price is listed
        rent = EstimateArrays(value=price, low=price / drift, high=high, basis=basis)
        self._rent = sum_shared(rent, EstimateArrays(value=self._disk, low=self._disk, high=self._disk, basis=basis))

    @cached_property
    def _watts(self) -> EstimateArrays:
        """The power of all GPUs of each row; NaN where unknown."""
        c = self.candidates
        sides = np.full((3, len(c)), math.nan)
        bases = np.zeros(len(c), dtype=int)
        for number, device in enumerate(c.machines.devices):
            if (power := device.brief.power) is not None:
                mine = c.device == number
                sides[:, mine] = power.sides(c.mfu[mine], device.brief.goal.power_cap_watts)
                bases[mine] = BASES.index(power.basis)
        value, low, high = (sides * c.gpus)[[1, 0, 2], :, None]
        return EstimateArrays(value=value, low=low, high=high, basis=bases[:, None])

    @cached_property
    def _tariff(self) -> np.ndarray | float:
        """Expected dollars of energy per second of the training loop."""
        return self._metered(self._watts).value * self.usd_per_kwh / JOULES_PER_KWH if self.usd_per_kwh else 0.0

    def _metered(self, drawn: EstimateArrays) -> EstimateArrays:
        """Return power or energy of the whole site, with 0 for devices without a tariff, where it may be unknown."""
        if not self.usd_per_kwh:
            return drawn
        site = product(drawn, columns([SITE_FACTOR]))
        value, low, high = (np.where(self._has_meter, side, 0.0) for side in (site.value, site.low, site.high))
        return replace(drawn, value=value, low=low, high=high)

    def seconds(self, steps: np.ndarray) -> np.ndarray:
        """Return the expected seconds from ordering the machine to the end of the run."""
        return expected_seconds(self.terms, steps, self._eval_batches(steps))

    def usd(self, seconds: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the expected dollars of runs of this time; before the loop starts, energy is not counted."""
        return seconds * self._rent.value / 3600 + (seconds - self.terms.idle(steps)) * self._tariff

    def bills(self, steps: np.ndarray) -> Bills:
        """Return the bills of runs of this many steps, by part and with intervals."""
        clock = wall_clocks(self.terms, steps, self._eval_batches(steps))
        kwh = energy_kwh(clock.loop_seconds, self._watts)
        usd = run_cost_usd(clock.total_seconds, self._rent, self._metered(kwh), self.usd_per_kwh)
        storage = clock.total_seconds.scaled(self._disk / 3600)
        return Bills(clock=clock, watts=self._watts, kwh=kwh, usd=usd, storage_usd=storage)

    def overruns(self, steps: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
        """Return time over deadline and dollars over budget, each 0 if there is no such limit."""
        if limits.sure:
            bills = self.bills(steps)
            return limits.overruns(bills.clock.total_seconds.high, bills.usd.high)
        seconds = self.seconds(steps)
        return limits.overruns(seconds, self.usd(seconds, steps))

    def most_steps(self, limits: Limits, *, within_data: bool = True) -> np.ndarray:
        """Return the most steps, shape (n, 1), within the limits and MOST_EPOCHS of the data; 0 if there are none."""
        # Seconds that the limits allow for the whole run, at the expected rate of spending.
        allowed = np.full_like(self.terms.before, limits.deadline_seconds or LONGEST_SECONDS)
        if limits.budget_usd is not None:
            dollars, rate = limits.budget_usd + self.terms.before * self._tariff, self._rent.value / 3600 + self._tariff
            with np.errstate(divide="ignore"):  # a budget sets no end to a run that costs nothing
                allowed = np.minimum(allowed, dollars / rate)
            waiting, free_seconds = limits.waiting
            if waiting and not limits.settled:
                allowed = np.minimum(allowed, (dollars + waiting * free_seconds) / (rate + waiting))
        step = limits.counted(self.terms.step)
        if limits.sure and self.terms.fetch is not None:
            step = step + self.terms.fetch.high
        most = np.floor(allowed / step)
        if within_data:
            most = np.minimum(most, self.most_by_data)
        steps = most
        # The bill is almost linear in the steps: evaluations and checkpoints change it by a few per cent.
        for _ in range(_ROUNDS):
            over = np.maximum(*self.overruns(np.maximum(steps, 1.0), limits))
            # The high end of an interval is not linear in the steps, so the steps approach it from the steep side.
            each = step
            if not limits.sure:
                each = np.maximum(step, (over * allowed - self.terms.before) / np.maximum(steps, 1.0))
            room = allowed * (1 - over) / each
            moved = steps + np.where(over > 1, -np.ceil(-room), np.floor(room))
            before, steps = steps, np.minimum(np.maximum(moved, 1.0), most)
            if (np.abs(steps - before) <= 1).all():
                break
        kept = np.zeros_like(steps)
        # One more checkpoint or evaluation may break a limit; then slightly fewer steps keep it.
        for fewer in (steps, steps - 1, np.floor(0.999 * steps - 1)):
            keeps = np.maximum(*self.overruns(np.maximum(fewer, 1.0), limits)) <= 1
            kept = np.where((kept == 0) & (fewer >= 1) & keeps, fewer, kept)
            if (kept > 0).all():
                break
        return kept

    def settled_steps(self) -> np.ndarray | None:
        """Return the steps for the tokens that the goal fixes, of shape (n, 1), or None if the limits decide.

        Tokens that only follow from the size of the model end with the data, like those that the limits decide.
        """
        most = np.inf if self.brief.asks_for_tokens else self.most_by_data
        if self.brief.goal.tokens is not None:  # for each device, since a what-if may change them
            wanted = np.array([d.brief.goal.tokens for d in self.candidates.machines.devices], dtype=float)
            tokens = wanted[self.candidates.device][:, None]
        elif self.brief.settled:
            tokens = np.rint(self.ratio * self.counted)
        else:
            return None
        return np.maximum(1.0, np.minimum(np.rint(tokens / self.step_tokens), most))

    def scores(self, steps: np.ndarray) -> np.ndarray:
        """Return the scores by which runs are ranked (`loss.allocation_score`); lower is better."""
        return allocation_score(self.counted, steps * self.step_tokens, self.brief.unique_tokens, best_ratio=self.ratio)

    def batch_is_nearest(self, steps: np.ndarray) -> np.ndarray:
        """Return True for rows whose global batch is nearest by ratio to the batch that the laws recommend.

        A row competes with rows of the same offer and depth. Rows that fit the memory and rows that do not compete
        apart.
        """
        c = self.candidates
        wanted = recipe.recommended_batch(c.scale[:, None], steps * self.step_tokens)
        off = np.abs(np.log(self.step_tokens / wanted))
        groups = np.unique(group_keys(c.offer, c.depth, c.fits + 0), return_inverse=True)[1]
        order = np.argsort(groups, kind="stable")
        starts = np.nonzero(np.diff(groups[order], prepend=-1))[0]
        return off <= np.minimum.reduceat(off[order], starts, axis=0)[groups]

    def taken_before_saving(self, steps: np.ndarray) -> np.ndarray | None:
        """Return where the notice before an interruption may be too short for a checkpoint: booleans of shape (n, k).

        `wallclock.save_seconds` says how long a save takes. Returns None if no machine here has a known notice.
        """
        notice = _machine_terms(self.candidates.machines).notice[self.candidates.offer]
        rows = np.nonzero(notice < math.inf)[0]
        if not len(rows):
            return None
        tokens = steps[rows] * self.step_tokens[rows]
        _, batches = recipe.evaluation(steps[rows], tokens, self._micro_tokens[rows], self.brief.validation_tokens)
        evaluation = np.ceil(batches / self._gpus[rows]) * self.terms.forward.high[rows]
        taken = np.zeros(steps.shape, dtype=bool)
        needed = np.maximum(self.terms.step.high[rows], evaluation) + self.terms.write.high[rows]
        taken[rows] = needed > notice[rows, None]
        return taken

    def _eval_batches(self, steps: np.ndarray) -> np.ndarray:
        """Return the number of micro-batches of all evaluations on the busiest device."""
        tokens, validation = steps * self.step_tokens, self.brief.validation_tokens
        every, batches = recipe.evaluation(steps, tokens, self._micro_tokens, validation)
        return np.ceil(steps / every) * np.ceil(batches / self._gpus)


@dataclass(frozen=True, kw_only=True)
class _MachineTerms:
    """Parts of a run's time and price that depend only on the device, or only on the offer."""

    # of each device, shape (devices, 1)
    forward_fraction: np.ndarray
    build: EstimateArrays  # seconds per parameter
    startup: EstimateArrays
    compile: EstimateArrays
    bytes_per_second: EstimateArrays
    asynchronous: np.ndarray  # bool: the run continues while a checkpoint is written, as with our trainer on CUDA
    # of each offer, shape (offers, 1) or (offers,)
    provisioning: EstimateArrays
    download: EstimateArrays
    between_interruptions: EstimateArrays
    taken: np.ndarray  # bool: the provider may take the machine back, with the files on it
    ordered: np.ndarray  # bool: rented, so that its disk is paid for
    price: np.ndarray  # dollars per hour; NaN: unknown
    most_price: np.ndarray  # of a price that moves, else NaN
    drift: np.ndarray  # factor by which the price may have changed since it was listed
    notice: np.ndarray  # (offers,) seconds until the machine is gone; infinity if there is no notice or it is unknown


@lru_cache(maxsize=4)
def _machine_terms(machines: Machines) -> _MachineTerms:
    """Collect the terms once for all rows of a search."""
    devices, offers = machines.devices, machines.offers
    costs = [device.profile.costs for device in devices]
    ready = Setup(provisioning_seconds=known(0.0), download_seconds=known(0.0))
    setups, taken = [], []
    for brief, offer in zip((device.brief for device in machines.owners), offers, strict=True):
        # Token files hold two bytes per token, four with more than 65,536 in the vocabulary.
        here = 0 if brief.bytes_to_fetch else (brief.unique_tokens or 0) * (2 if brief.vocab_size <= 65536 else 4)
        setups.append(rented_setup(here) if offer.ordered and not brief.calibrated else ready)
        taken.append(interruptions(brief.goal, spot=offer.spot, gpus=offer.gpus))
    means = [mean or between_failures(offer.gpus) for mean, offer in zip(taken, offers, strict=True)]
    notices = [NOTICE_SECONDS.get(offer.provider or "", math.inf) if offer.spot else math.inf for offer in offers]
    return _MachineTerms(
        forward_fraction=np.array([c.forward_fraction for c in costs])[:, None],
        build=columns([known(c.build_seconds_per_parameter, c.startup_seconds.basis) for c in costs]),
        startup=columns([c.startup_seconds for c in costs]),
        compile=columns([d.profile.costs.compile_seconds.scaled(float(d.brief.compile)) for d in devices]),
        bytes_per_second=columns([c.checkpoint_bytes_per_second for c in costs]),
        asynchronous=np.array([d.profile.device_type == "cuda" for d in devices])[:, None],
        provisioning=columns([setup.provisioning_seconds for setup in setups]),
        download=columns([setup.download_seconds for setup in setups]),
        between_interruptions=columns(means),
        taken=np.array([mean is not None for mean in taken])[:, None],
        ordered=np.array([offer.ordered for offer in offers])[:, None],
        price=np.array([offer.usd_per_hour for offer in offers], dtype=float)[:, None],  # None becomes NaN
        most_price=np.array([offer.most_usd_per_hour for offer in offers], dtype=float)[:, None],
        drift=np.array([offer.price_factor for offer in offers])[:, None],
        notice=np.array(notices),
    )


def _run_terms(candidates: Candidates) -> RunTerms:
    """Collect the terms of each row from which its time is computed."""
    machine, device, offer = _machine_terms(candidates.machines), candidates.device, candidates.offer
    step = candidates.step.rows((slice(None), None))
    build = machine.build.rows(device).scaled(candidates.parameters[:, None])
    brief = candidates.machines.devices[0].brief
    step_tokens = candidates.step_tokens[:, None].astype(float)
    fetch = None
    if brief.bytes_to_fetch:
        fetch = reciprocal(columns([brief.download_rate]), brief.bytes_to_fetch * step_tokens)
    # Each GPU of a sharded model copies its share, and each host writes to its own disk. Otherwise the first GPU copies
    # and writes the whole model.
    sharded = np.array([SHARDINGS[kind.sharding].moments for kind in KINDS])[candidates.kind]
    held = (candidates.state_bytes / np.where(sharded, candidates.gpus, 1))[:, None]
    hosts = np.where(sharded, np.ceil(candidates.gpus / GPUS_A_NODE), 1)
    write = reciprocal(machine.bytes_per_second.rows(device), (candidates.state_bytes / hosts)[:, None])
    stall = stalls(write, held, asynchronous=machine.asynchronous[device])
    between, taken = machine.between_interruptions.rows(offer), machine.taken[offer]
    asked = brief.goal.checkpoint_seconds
    every = (
        checkpoint_interval_seconds(stall.value, between.value) if asked is None else np.full_like(stall.value, asked)
    )
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
        checkpoints=Checkpoints(every_seconds=every),
    )


def whole_usd(
    goal: Goal, offer: Offer, seconds: Estimate, mfu: Estimate | None, power: PowerModel | None
) -> Estimate | None:
    """Return the dollars of one run on an offer: its rent, and the energy of the site at the goal's tariff.

    With machines of one's own, the tariff is theirs alone. None: the price is unknown, or the power where it counts.
    """
    rent = rent_usd(seconds, offer)
    if rent is None or not goal.usd_per_kwh or (goal.own and offer.source != OWN_MACHINE):
        return rent
    watts = watts_of(goal, offer, mfu, power)
    if watts is None:
        return None
    return sum_shared(rent, product(energy_kwh(seconds, watts), SITE_FACTOR).scaled(goal.usd_per_kwh))


def watts_of(goal: Goal, offer: Offer, mfu: Estimate | None, power: PowerModel | None) -> Estimate | None:
    """Return the power of all GPUs of an offer at this load, or None if that of one is unknown."""
    if power is None:
        return None
    low, value, high = offer.gpus * power.sides(math.nan if mfu is None else mfu.value, goal.power_cap_watts)
    return Estimate(value=float(value), low=float(low), high=float(high), basis=power.basis)


def own_hour(goal: Goal, run: Run) -> str:
    """Say what an hour of the user's own GPUs costs, and of what; empty for rented ones and those of unknown power."""
    offer, watts, rent = run.offer, run.bill.power_watts, run.offer.usd_per_hour
    if watts is None or rent is None or offer.ordered:
        return ""
    whose = "own GPU" if offer.gpus == 1 else f"{offer.gpus} own GPUs"
    stated = f", and {format_usd(rent)} an hour as you stated" if rent else ""
    draws = f"{whose}: {format_estimate(watts, format_watts)}"
    if not goal.usd_per_kwh:
        return f"{draws}, whose electricity is not counted (--kwh-price){stated}"
    usd = watts.value / 1000 * SITE_FACTOR.value * goal.usd_per_kwh
    tariff = format_usd_rate(goal.usd_per_kwh)
    return f"{draws} at {tariff} per kWh, with host and cooling {format_usd_rate(usd)} an hour{stated}"


def rent_usd(seconds: Estimate, offer: Offer) -> Estimate | None:
    """Return the rent of an offer for this time, or None if the price is unknown.

    The interval allows for what today's price may be, as that of every bill does.
    """
    if not offer.usd_per_hour:
        return None if offer.usd_per_hour is None else seconds.scaled(0.0)
    rate, drift = offer.usd_per_hour / 3600, offer.price_factor
    return product(seconds, Estimate(value=rate, low=rate / drift, high=rate * drift, basis=Basis.MEASURED))
