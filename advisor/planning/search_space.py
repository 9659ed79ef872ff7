"""Collect everything that a goal may choose from: devices, offers and configurations."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE
from advisor.hardware.offers import check_providers, unpriced
from advisor.offer import Offer
from advisor.options import OPTIONS, Goal
from advisor.planning.candidates import USUAL_WINDOW, WIDEST_WINDOW, Candidates, Device, make_candidates
from advisor.planning.goal import (
    SEQ_LEN,
    VOCAB_SIZE,
    Brief,
    Limits,
    budget_problem,
    cap_is_too_low,
    depths_between,
    make_brief,
    vocab_size_of,
    waiting_price,
)
from advisor.planning.models import nearest_shape
from advisor.planning.offers import ANY, offers_for, own_offers, owned, within_a_node
from advisor.planning.recipe import Window
from advisor.prediction.comm import joins_machines
from advisor.prediction.profile import Profile
from advisor.records import Run
from advisor.units import format_watts
from trainer.schema import make_shape
from trainer.token_folder import TokenMeta


class NothingOffered(AdvisorError):
    """No machine that the goal allows is offered, or the speed of none can be predicted."""


@dataclass(frozen=True, kw_only=True)
class SearchSpace:
    """The configurations among which a goal chooses, and which of them it allows."""

    goal: Goal
    candidates: Candidates  # with spot machines, even if the goal does not allow them
    safe: Candidates  # chosen by the batch rule among the configurations that leave memory free
    window: Window  # the range of global batches that was tried
    left_out: tuple[str, ...]
    brief: Brief  # of the first device; data, work and limits are the same on all devices
    limits: Limits

    @property
    def allowed(self) -> np.ndarray:
        """Mark the configurations on offers that the goal allows."""
        return ~self.candidates.spot | (self.goal.spot != "none")

    def with_likely(self) -> SearchSpace:
        """Return this space in which configurations also fit if that is at least as likely as not."""
        return replace(self, candidates=replace(self.candidates, fits=self.candidates.likely_to_fit))

    def device(self, place: int) -> Device:
        return self.candidates.machines.devices[self.candidates.device[place]]

    def device_of(self, run: Run) -> Device:
        """Return the device of a run of this space."""
        return next(device for device in self.candidates.machines.devices if run.offer in device.offers)

    def offer(self, place: int) -> Offer:
        return self.candidates.machines.offers[self.candidates.offer[place]]

    def widened(self, window: Window, depths: tuple[int, int]) -> SearchSpace:
        """Return this space with another range of global batches and with at least this range of depths."""
        devices = []
        for device in self.candidates.machines.devices:
            own = device.brief.depths
            wider = own if device.brief.goal.depth else depths_between(min(depths[0], *own), max(depths[1], *own))
            devices.append(replace(device, brief=replace(device.brief, depths=wider)))
        return replace(space_of(self.goal, devices, (), window), left_out=self.left_out)


def open_space(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, today: datetime.date | None = None
) -> SearchSpace:
    """Return the space of a goal: the offers of all devices and every configuration.

    The age of listed prices is counted up to `today`; None does not count it. Raises AdvisorError: exit code 2 for an
    invalid goal, 3 if no device is left.
    """
    # After this allocation and release, glibc keeps arrays of up to this size on its heap, where they cause no page
    # faults. A search takes an eighth less time.
    np.empty(1 << 24, dtype=np.uint8)
    check_providers(goal.providers)
    for name, value in (("family", goal.family), ("spot", goal.spot), ("objective", goal.objective)):
        option = OPTIONS[name]
        if value not in option.choices:
            hint = f"choose one of {', '.join(option.choices)}"
            raise AdvisorError(f"{option.flag} {value}: unknown", hint, exit_code=2)
    open_ended = goal.tokens is None and goal.epochs is None and goal.depth is None and goal.parameters is None
    if goal.objective != "loss" and open_ended:
        raise AdvisorError(
            f"--objective {goal.objective} needs fixed work: otherwise the best run has no steps",
            "say what to train: --depth 12, --tokens 2B, or both",
            exit_code=2,
        )
    several = goal.gpu == ANY or "," in goal.gpu or len(goal.counts) > 1 or len(goal.own) > 1
    if several and open_ended and goal.budget_usd is None and goal.deadline_seconds is None:
        raise AdvisorError(
            "a choice between GPUs needs a limit or a task: without one the largest machine always wins",
            "give --budget, --deadline, --tokens or --depth",
            exit_code=2,
        )
    goal = settled(goal, profiles, data_meta)
    devices, left_out = devices_of(goal, profiles, data_meta, today)
    if not devices:
        raise NothingOffered(f"nothing to choose from: {'; '.join(left_out[:5])}", exit_code=3)
    window = WIDEST_WINDOW if len(devices) == 1 or devices[0].brief.goal.depth is not None else USUAL_WINDOW
    return space_of(goal, devices, tuple(left_out), window)


def settled(goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None) -> Goal:
    """Return the goal with its number of parameters turned into a shape, and its epochs turned into tokens."""
    unique = data_meta.tokens if data_meta else goal.data_tokens
    if goal.epochs is not None and unique:
        goal = replace(goal, tokens=max(1, round(goal.epochs * unique)))
    if goal.parameters is None or not profiles:
        return goal
    first = _goal_on(goal, profiles[0], several=len(profiles) > 1)
    vocab_size = vocab_size_of(first, profiles[0], data_meta)
    seq_len = first.seq_len or profiles[0].seq_len or SEQ_LEN[profiles[0].device_type]
    shape = nearest_shape(goal.family, goal.parameters, vocab_size=vocab_size, seq_len=seq_len)
    usual = make_shape(goal.family, depth=shape.depth, vocab_size=vocab_size, seq_len=seq_len)
    return replace(goal, depth=shape.depth, width=None if shape == usual else shape.width)


def space_of(goal: Goal, devices: Sequence[Device], left_out: tuple[str, ...], window: Window) -> SearchSpace:
    """Return every configuration on these devices with global batches of the window; raises as `open_space` does."""
    every = make_candidates(devices, window=window)
    unlinked = np.isnan(every.step.value)
    without_links: tuple[str, ...] = ()
    if unlinked.any():
        counts: dict[str, list[int]] = {}
        for offer in (every.machines.offers[o] for o in sorted(set(every.offer[unlinked].tolist()))):
            counts.setdefault(offer.gpu, []).append(offer.gpus)
        keys = [f"{' or '.join(map(str, sorted(set(numbers))))} x {gpu}" for gpu, numbers in sorted(counts.items())]
        without_links = (f"{', '.join(keys)}: the links between the GPUs are unknown",)
        every = every.rows(~unlinked)
    if not len(every):
        raise NothingOffered(f"no time can be predicted for {without_links[0]}", exit_code=3)
    brief = devices[0].brief
    return SearchSpace(
        goal=goal,
        brief=brief,
        limits=brief.limits,
        candidates=every.rows(every.ruled),
        safe=every.rows(every.spared),
        window=window,
        left_out=(*left_out, *without_links),
    )


def devices_of(
    goal: Goal, profiles: Sequence[Profile], data_meta: TokenMeta | None, today: datetime.date | None = None
) -> tuple[list[Device], list[str]]:
    """Return the devices with at least one offer, and a description of what was left out."""
    devices: list[Device] = []
    without_price: list[str] = []
    apart: list[str] = []  # some provider rents them, but not this many together or not on these terms
    left_out: list[str] = []
    limits = [profile.spec.tdp_watts if profile.spec else None for profile in profiles]
    known = [watts for watts in limits if watts is not None]
    if goal.power_cap_watts is not None and known == limits and goal.power_cap_watts >= max(known):
        most = format_watts(max(known))
        message = f"--power-cap {goal.power_cap_watts:g} limits nothing: these GPUs draw at most {most}"
        raise AdvisorError(message, "give fewer watts, or leave it out", exit_code=2)
    if len(profiles) > 1 and (high := [p.key for p in profiles if cap_is_too_low(goal, p)]):
        left_out.append(f"cannot be limited to {goal.power_cap_watts:g} W: {', '.join(high)}")
        profiles = [p for p in profiles if p.key not in high]
    machines = [(p, machine) for p in profiles if (machine := owned(goal, p.key)) is not None]
    named = [] if goal.gpu == ANY else goal.gpu.split(",")
    rented = [p for p in profiles if owned(goal, p.key) is None or goal.gpu == ANY or p.key in named]
    several = len(machines) + len(rented) > 1

    wide = replace(goal, spot="only" if goal.spot == "only" else "any")
    waiting: float | None
    for profile, machine in [*machines, *((profile, None) for profile in rented)]:
        if machine is not None:
            requested, waiting, offers = goal, goal.usd_per_waiting_hour or 0.0, own_offers(goal, machine)
            if not offers:
                left_out.append(f"{profile.key}: your machine has {machine.gpus} of them")
                continue
            first = offers[0]
        else:
            counts = (goal.counts or (goal.gpus,)) if profile.key != "cpu" else (1,)
            if within_a_node(goal) != goal and profile.spec is not None and not joins_machines(profile.spec):
                # Nobody asked for these numbers of GPUs, and a guess at the network must not win a search.
                counts = tuple(count for count in counts if count <= GPUS_PER_NODE)
            offers = tuple(offer for count in counts for offer in offers_for(wide, profile.key, count, today))
            allowed = [offer for offer in offers if goal.spot != "none" or not offer.spot]
            if not allowed:
                if several:
                    (apart if offers_for(wide, profile.key, 1) else without_price).append(profile.key)
                    continue
                offers = tuple(unpriced(profile.key, count, goal.providers) for count in counts)
                allowed = list(offers)
            if goal.gpu != ANY and within_a_node(goal) == goal:  # the goal names the numbers of GPUs
                had = {offer.gpus for offer in allowed}
                if missing := [str(count) for count in counts if count not in had]:
                    left_out.append(f"{' or '.join(missing)} x {profile.key}: not offered together on these terms")
            requested = replace(goal, usd_per_kwh=None) if goal.own else goal  # the tariff is for own machines
            first, waiting = allowed[0], waiting_price(goal)
        mine = _goal_on(requested, profile, several=len(profiles) > 1)
        if several and (problem := budget_problem(mine, profile, first)) is not None:
            left_out.append(f"{profile.key}: {problem.message}")
            continue
        brief = replace(make_brief(mine, profile, data_meta, first), usd_per_waiting_hour=waiting)
        devices.append(Device(profile=profile, brief=brief, offers=offers))
    if without_price:
        kind = "spot price" if goal.spot == "only" else "price"
        left_out.append(f"no {kind} known for {', '.join(without_price)}")
    if apart:
        left_out.append(f"not offered together, or not on these terms: {', '.join(apart)}")
    return devices, left_out


def _goal_on(goal: Goal, profile: Profile, *, several: bool) -> Goal:
    """Return the goal for one device; several devices are compared at one context length and vocabulary."""
    mine = replace(goal, gpu=profile.key)
    if not several:
        return mine
    seq_len, vocab_size = goal.seq_len or SEQ_LEN["cuda"], goal.vocab_size
    if vocab_size is None and goal.data is None:
        vocab_size = VOCAB_SIZE["cuda"]
    return replace(mine, seq_len=seq_len, vocab_size=vocab_size)
