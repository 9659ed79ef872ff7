"""Plans a settled piece of work with other software on every machine that a goal allows: fine-tunes and layouts."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, load_gpus, require_gpu
from advisor.hardware.offers import unpriced
from advisor.offer import Offer
from advisor.options import Goal
from advisor.planning.answer import new_id
from advisor.planning.choose import sorted_by_preference
from advisor.planning.costs import own_hour, watts_of, whole_usd
from advisor.planning.explore import little_known
from advisor.planning.goal import Limits, interruptions
from advisor.planning.infeasible import Way, hint, may_not_fit
from advisor.planning.offers import ANY, OWN, names_one_gpu, offers_for, own_offers, same_machine
from advisor.planning.sensitivity import how_slow
from advisor.prediction.power import PowerModel
from advisor.records import Bill, Estimate, Grounds, Plan, Prediction, Run, SearchReport, Standing, WallClock
from advisor.units import format_bytes, format_centre, format_estimate, format_fit, format_seconds

ON_DEMAND = "feasible with machines on demand: --spot none, without --interruptions"
LIKELY = 0.5  # chance to fit from which the only type of GPU that a goal names is planned, with a warning
_ALIKE = 0.05  # difference of two chances to fit that decides nothing
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
class Work:
    """A settled piece of work: which machines may do it, how each would do it, and how long that takes."""

    goal: Goal
    name: str
    tokens: int
    sources: tuple[str, ...]  # what speed and memory rest on
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def usable(self, spec: GpuSpec) -> bool:
        """Tell whether GPUs of this kind are considered if the goal names none."""
        return spec.is_cuda

    def lacks(self, spec: GpuSpec) -> str:
        """Return what a GPU of this kind lacks for the work, or ""."""
        return ""

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        """Return the best way on this many GPUs, else the one nearest to fitting, or why there is none."""
        raise NotImplementedError

    def duration(self, prediction: Prediction, offer: Offer, taken: Estimate | None) -> tuple[WallClock, float | None]:
        """Return how long all of the work takes at the predicted speed, and the failures that are expected in it.

        `taken` is the mean seconds between interruptions; None: the machines are not taken away.
        """
        raise NotImplementedError

    def reasons(self, chosen: Run) -> tuple[str, ...]:
        """Return the reasons for the chosen run that are not in its numbers."""
        return ()

    def gains(self, chosen: Run) -> str:
        """Say what would make the chosen run faster, or return ""."""
        return ""

    def changes(self, refused: Sequence[str]) -> Iterator[Way]:
        """Yield changes of the goal with which the work may fit where it fits none of the `refused` GPUs."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Tried:
    """The runs on all machines that a goal allows, and the machines on which none surely fits."""

    runs: tuple[Run, ...]
    unsure: tuple[Run, ...]  # on machines that they likely fit
    does_not_fit: tuple[str, ...]
    best: dict[tuple[str, int], BestWay]  # by GPU and number of GPUs
    refused: dict[tuple[str, int], BestWay | str]  # by the same: the way nearest to fitting, or what is lacking
    endless: tuple[str, ...]  # machines whose interruptions keep a run from ending, with the reason


def plan_elsewhere(goal: Goal, work_of: Callable[[Goal], Work], *, hints: bool = True) -> Plan:
    """Return the plan of the work that `work_of` makes of a goal, on the machine that the goal prefers.

    The best is the cheapest within the limits, where waiting beyond a day has a price (`Limits`). If the goal's
    objective is time, the best is the fastest. If the goal names one type of GPU, and no run surely fits it, the
    likeliest to fit is planned with a warning. Raises AdvisorError (exit 3) if no machine can do the work. With
    `hints`, warning and error say what would surely fit, which takes longer than a plan.
    """

    def fits(changed: Goal) -> bool:
        with suppress(AdvisorError):  # the changed options may contradict each other
            return bool(try_machines(work_of(replace(changed, measured=None))).runs)
        return False

    work = work_of(goal)
    tried = try_machines(work)
    changes = work.changes([gpu for gpu, _ in tried.refused])
    unsure = tried.unsure if not tried.runs and names_one_gpu(goal) else ()
    if unsure:
        most = max(run.prediction.fit_probability or 0.0 for run in unsure)
        likeliest = [run for run in unsure if (run.prediction.fit_probability or 0.0) >= most - _ALIKE]
        tried = replace(tried, runs=tuple(likeliest), does_not_fit=())
    if tried.runs:
        plan = plan_of(work, tried)
        if unsure:
            warning = may_not_fit(plan.prediction, changes if hints else (), fits)
            plan = replace(plan, warnings=(warning, *plan.warnings))
        return plan if work.goal.layout == goal.layout else replace(plan, goal=goal)  # a fine-tune over layouts
    if tried.endless:
        raise AdvisorError(f"no run ends on {', '.join(tried.endless)}", ON_DEMAND, exit_code=3)
    if not tried.does_not_fit:
        message = "no machine that these options allow is offered"
        raise AdvisorError(message, "leave --provider, --spot or --gpus out, or name a --price", exit_code=3)

    message = ", and ".join([f"{work.name} {_too_large(tried)}", *work.warnings])
    raise AdvisorError(message, hint(changes, fits) if hints else "", exit_code=3)


def _too_large(tried: Tried) -> str:
    """Say which machines cannot hold the work, and what the nearest to fitting needs and has."""
    found = [one.prediction for one in tried.refused.values() if isinstance(one, BestWay)]
    unsure = any(one.fits is None for one in found) or "" in tried.refused.values()
    words = f"{'may' if unsure else 'does'} not fit {', '.join(tried.does_not_fit)}"
    both = [(e, has, one) for one in found if (e := one.device_bytes) and (has := one.device_memory_bytes)]
    if not both:
        return words
    needs, has, nearest = min(both, key=lambda one: one[0].value / one[1])
    work, chance = nearest.workload, nearest.fit_probability
    where = f" per GPU on {work.gpus} x {work.gpu}" if len(tried.refused) > 1 or work.gpus > 1 else ""
    needed = (format_estimate if unsure else format_centre)(needs, format_bytes)
    likely = f", {format_fit(chance)} chance that it fits" if unsure and chance else ""
    return f"{words}: needs about {needed}{where}, and the GPU has {format_bytes(has)}{likely}"


def try_machines(work: Work) -> Tried:
    """Return the run on each machine that the goal allows."""
    runs: list[Run] = []
    unsure: list[Run] = []
    does_not_fit: dict[str, str] = {}
    best: dict[tuple[str, int], BestWay | str] = {}
    endless: dict[str, str] = {}
    for gpu, offers in _machines(work):
        lacks = work.lacks(require_gpu(gpu))
        if lacks and offers:
            does_not_fit[gpu] = f" ({lacks})"
            best |= {(gpu, offer.gpus): lacks for offer in offers}
        for offer in () if lacks else offers:
            key = (gpu, offer.gpus)
            if key not in best:
                best[key] = work.best_on(*key)
            found, name = best[key], f"{offer.gpus} x {gpu}"
            if isinstance(found, str) or not found.prediction.plannable:
                does_not_fit[name] = f" ({found})" if found and isinstance(found, str) else ""
            if isinstance(found, str) or not _likely(found.prediction):
                continue
            run = _run(work, found, found.prediction, offer)
            taken, clock = interruptions(work.goal, spot=offer.spot, gpus=offer.gpus), run.bill.wall_clock
            lost = clock.interruptions_seconds
            if taken is None or lost is None or lost.value < _ENDLESS * clock.steps_seconds.value:
                (runs if found.prediction.plannable else unsure).append(run)
                continue
            name += " spot" if offer.spot else ""
            endless[name] = f" (one machine is taken away every {format_seconds(taken.value)}: it never ends)"
    refused = {key: one for key, one in best.items() if isinstance(one, str) or not one.prediction.plannable}
    if work.goal.finetune is not None and work.goal.layout != "any":
        # A GPU of which some number can hold the model needs no mention.
        fitting = {run.offer.gpu for run in runs}
        does_not_fit = {gpu: "" for gpu, _ in refused if gpu not in fitting}
    return Tried(
        runs=tuple(runs),
        unsure=tuple(unsure),
        does_not_fit=tuple(f"{name}{why}" for name, why in (does_not_fit | endless).items()),
        best={key: found for key, found in best.items() if isinstance(found, BestWay)},
        refused=refused,
        endless=tuple(f"{name}{why}" for name, why in endless.items()),
    )


def _likely(prediction: Prediction) -> bool:
    """Tell whether a way fits with a chance that is worth a try, and takes a known time."""
    chance = 1.0 if prediction.plannable else prediction.fit_probability or 0.0
    return chance >= LIKELY and prediction.step_seconds is not None


def plan_of(work: Work, tried: Tried) -> Plan:
    """Return the plan of the machine that the goal prefers, with the runs on all others; there is at least one run."""
    chosen, *others = sorted_by_preference(work.goal, tried.runs)
    found = tried.best[chosen.offer.gpu, chosen.offer.gpus]
    losers = [_run(work, found, prediction, chosen.offer).judged(why=why) for prediction, why in found.others]
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
            runs.append(run if same else _run(work, way, slowed, run.offer))
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
        reasons=(*work.reasons(chosen), *filter(None, [own_hour(work.goal, chosen)])),
        warnings=(*work.warnings, *filter(None, [little_known(chosen)])),
        inputs=(*work.sources, *filter(None, [chosen.offer.source])),
        assumed=work.assumed,
        search=SearchReport(
            candidates=sum(one.tried for one in tried.best.values()),
            devices=tuple(dict.fromkeys(gpu for gpu, _ in (*tried.best, *tried.refused))),
            options=(),
            front=(),
            front_size=0,
            near_misses=(),
            sensitivity=(*([how_slow(chosen, rival).text] if others else []), *filter(None, [work.gains(chosen)])),
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


def gpus_of(work: Work) -> list[str]:
    """Return the GPUs that may be rented for the work."""
    if work.goal.gpu != ANY:
        return [] if work.goal.gpu == OWN else work.goal.gpu.split(",")
    return [gpu for gpu, spec in load_gpus().items() if work.usable(spec)]


def _machines(work: Work) -> Iterator[tuple[str, Sequence[Offer]]]:
    """Yield each GPU that the goal allows, with its offers. A GPU that nobody rents out has no price.

    If any GPU may fine-tune, those are left out.
    """
    goal, today = work.goal, datetime.date.today()
    rented_alone = goal.gpu == ANY and goal.layout != "any"
    for machine in goal.own:
        yield machine.gpu, own_offers(goal, machine)
    counts = goal.counts or (goal.gpus,)
    for gpu in gpus_of(work):
        rented = {count: offers_for(goal, gpu, count, today) for count in counts}
        yield (
            gpu,
            [
                offer
                for count, offers in rented.items()
                for offer in offers or ([] if rented_alone else [unpriced(gpu, count, goal.providers)])
            ],
        )


def _run(work: Work, found: BestWay, prediction: Prediction, offer: Offer) -> Run:
    """Return the whole run in one of the ways that were found."""
    goal = work.goal
    taken = interruptions(goal, spot=offer.spot, gpus=offer.gpus)
    clock, failures = work.duration(prediction, offer, taken)
    usd = whole_usd(goal, offer, clock.total_seconds, prediction.mfu, found.power)
    watts = watts_of(goal, offer, prediction.mfu, found.power)
    model, rollouts = prediction.workload.model, prediction.workload.rollouts
    step_tokens = rollouts.step_tokens if rollouts is not None else prediction.workload.step_tokens
    return Run(
        prediction=prediction,
        steps=math.ceil(work.tokens / step_tokens),
        tokens=work.tokens,
        offer=offer,
        bill=Bill(wall_clock=clock, cost_usd=usd, power_watts=watts, failures=failures),
        standing=Standing(
            score=None,
            ratio=work.tokens / (prediction.parameters if model is None else model.active),
            against=_against(goal, clock.total_seconds, usd),
        ),
        grounds=found.grounds,
        longest_context=found.longest_context,
    )
