"""Plans a settled piece of work with other software on every machine that a goal allows: fine-tunes and layouts."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from advisor.hardware.offers import rows_by_gpu, unpriced
from advisor.offer import Offer
from advisor.options import Goal
from advisor.planning.answer import new_id
from advisor.planning.choose import sorted_by_preference
from advisor.planning.costs import whole_usd
from advisor.planning.goal import Limits
from advisor.planning.offers import ANY, OWN, offers_for, own_offers, same_machine
from advisor.planning.sensitivity import how_slow
from advisor.prediction.power import PowerModel
from advisor.records import Bill, Estimate, Grounds, Plan, Prediction, Run, SearchReport, Standing, WallClock
from advisor.units import format_seconds

ON_DEMAND = "feasible with machines on demand: --spot none, without --interruptions"
_ENDLESS = 50.0  # seconds lost to interruptions per second of work; no such run is worth its start


@dataclass(frozen=True, kw_only=True)
class BestWay:
    """The best way to do a piece of work on some GPUs of one kind."""

    prediction: Prediction
    others: tuple[tuple[Prediction, str], ...] = ()  # other ways, and why they lost
    tried: int = 1
    power: PowerModel | None  # of one GPU
    grounds: Grounds | None = None
    longest_context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a run takes, with the failures that are expected in it."""

    clock: WallClock
    failures: float | None = None
    taken: Estimate | None = None  # seconds between interruptions of the run; None: its machines are not taken away


class Work(Protocol):
    """A settled piece of work: which machines may do it, how each would do it, and how long that takes."""

    @property
    def goal(self) -> Goal: ...
    @property
    def tokens(self) -> int: ...
    @property
    def sources(self) -> tuple[str, ...]:
        """What speed and memory rest on."""

    def gpus(self) -> Sequence[str]:
        """Return the GPUs that may be rented."""

    def lacks(self, gpu: str) -> str:
        """Return what a GPU of this kind lacks for the work, or ""."""

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        """Return the best way on this many GPUs, or why there is none, which may be empty."""

    def duration(self, prediction: Prediction, offer: Offer) -> Duration:
        """Return how long all of the work takes on an offer at the predicted speed."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The runs on all machines that a goal allows, and the machines that surely cannot do the work."""

    runs: tuple[Run, ...]
    does_not_fit: tuple[str, ...]
    best: dict[tuple[str, int], BestWay]  # by GPU and number of GPUs
    refused: tuple[tuple[str, int], ...]
    endless: tuple[str, ...]  # machines whose interruptions keep a run from ending, with the reason


def try_machines(work: Work) -> Tried:
    """Return the run on each machine that the goal allows."""
    runs: list[Run] = []
    does_not_fit: dict[str, str] = {}
    best: dict[tuple[str, int], BestWay | str] = {}
    endless: dict[str, str] = {}
    for gpu, offers in _machines(work):
        lacks = work.lacks(gpu)
        if lacks and offers:
            does_not_fit[gpu] = f" ({lacks})"
            best |= {(gpu, offer.gpus): lacks for offer in offers}
        for offer in () if lacks else offers:
            key = (gpu, offer.gpus)
            if key not in best:
                best[key] = work.best_on(*key)
            found, name = best[key], f"{offer.gpus} x {gpu}"
            if isinstance(found, str):
                does_not_fit[name] = f" ({found})" if found else ""
                continue
            run, lasts = _run(work, found, found.prediction, offer)
            lost = lasts.clock.interruptions_seconds
            if lasts.taken is None or lost is None or lost.value < _ENDLESS * lasts.clock.steps_seconds.value:
                runs.append(run)
                continue
            every = format_seconds(lasts.taken.value)
            name += " spot" if offer.spot else ""
            endless[name] = f" (one machine is taken away every {every}: it never ends)"
    return Tried(
        runs=tuple(runs),
        does_not_fit=tuple(f"{name}{why}" for name, why in (does_not_fit | endless).items()),
        best={key: found for key, found in best.items() if isinstance(found, BestWay)},
        refused=tuple(key for key, found in best.items() if isinstance(found, str)),
        endless=tuple(f"{name}{why}" for name, why in endless.items()),
    )


def plan_of(work: Work, tried: Tried, *, assumed: Sequence[str], warnings: Sequence[str]) -> Plan:
    """Return the plan of the machine that the goal prefers, with the runs on all others; there is at least one run."""
    chosen, *others = sorted_by_preference(work.goal, tried.runs)
    found = tried.best[chosen.offer.gpu, chosen.offer.gpus]
    losers = [_run(work, found, prediction, chosen.offer)[0].judged(why=why) for prediction, why in found.others]
    # the run that keeps the limits even at the high ends, if another one or nothing does
    goal, limited = replace(work.goal, sure=True), (work.goal.budget_usd, work.goal.deadline_seconds) != (None, None)
    surely = [run for run in tried.runs if limited and not _against(goal, run.total_seconds, run.cost_usd)]
    sure = sorted_by_preference(work.goal, surely)[0] if surely else None

    def rival(speed: float) -> Callable[[], Run] | None:
        """Asks the same question with GPUs of the chosen kind at this share of their speed."""
        runs = []
        for run in tried.runs:
            step, rate = run.step_seconds.scaled(1 / speed), run.tokens_per_second.scaled(speed)
            slowed = replace(run.prediction, step_seconds=step, tokens_per_second=rate)
            way, same = tried.best[run.offer.gpu, run.offer.gpus], run.offer.gpu != chosen.offer.gpu
            runs.append(run if same else _run(work, way, slowed, run.offer)[0])
        best = sorted_by_preference(work.goal, runs)[0]
        return None if same_machine(best.offer, chosen.offer) else lambda: best

    now = datetime.datetime.now(datetime.UTC)
    return Plan(
        id=new_id(work.goal, now),
        created=now.isoformat(timespec="seconds"),
        goal=work.goal,
        run=None,
        chosen=chosen,
        considered=tuple(losers),
        reasons=(),
        warnings=tuple(warnings),
        inputs=(*work.sources, *filter(None, [chosen.offer.source])),
        assumed=tuple(assumed),
        search=SearchReport(
            candidates=sum(one.tried for one in tried.best.values()),
            devices=tuple(dict.fromkeys(gpu for gpu, _ in (*tried.best, *tried.refused))),
            options=(),
            front=(),
            front_size=0,
            near_misses=(),
            sensitivity=(how_slow(chosen, rival).text,) if others else (),
            does_not_fit=tried.does_not_fit,
            machines=tuple(others),
            sure=None if sure == chosen else sure,
        ),
    )


def _against(goal: Goal, seconds: Estimate, usd: Estimate | None) -> tuple[str, ...]:
    """Return the limits that a run breaks; an unknown cost does not keep a budget."""
    late, dear = Limits.of(goal).broken(seconds, usd)
    dear |= usd is None and goal.budget_usd is not None
    return tuple(name for name, broken in (("time", late), ("money", dear)) if broken)


def _machines(work: Work) -> Iterator[tuple[str, Sequence[Offer]]]:
    """Yield each GPU that the goal allows, with its offers. A GPU that nobody rents out has no price.

    If any GPU may fine-tune, those are left out.
    """
    goal, prices, today = work.goal, rows_by_gpu(), datetime.date.today()
    rented_alone = goal.gpu == ANY and goal.layout != "any"
    for machine in goal.own:
        yield machine.gpu, own_offers(goal, machine)
    counts = goal.counts or (goal.gpus,)
    for gpu in () if goal.gpu == OWN else work.gpus():
        rented = {count: offers_for(goal, gpu, count, prices, today) for count in counts}
        yield (
            gpu,
            [
                offer
                for count, offers in rented.items()
                for offer in offers or ([] if rented_alone else [unpriced(gpu, count, goal.providers, prices)])
            ],
        )


def _run(work: Work, found: BestWay, prediction: Prediction, offer: Offer) -> tuple[Run, Duration]:
    """Return the whole run in one of the ways that were found."""
    goal, lasts = work.goal, work.duration(prediction, offer)
    seconds = lasts.clock.total_seconds
    usd = whole_usd(goal, offer, seconds, prediction.mfu, found.power)
    model, rollouts = prediction.workload.model, prediction.workload.rollouts
    step_tokens = rollouts.step_tokens if rollouts is not None else prediction.workload.step_tokens
    run = Run(
        prediction=prediction,
        steps=math.ceil(work.tokens / step_tokens),
        tokens=work.tokens,
        offer=offer,
        bill=Bill(wall_clock=lasts.clock, cost_usd=usd, failures=lasts.failures),
        standing=Standing(
            score=None,
            ratio=work.tokens / (prediction.parameters if model is None else model.active),
            against=_against(goal, seconds, usd),
        ),
        grounds=found.grounds,
        longest_context=found.longest_context,
    )
    return run, lasts
