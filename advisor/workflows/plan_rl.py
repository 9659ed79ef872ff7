"""Plans RL post-training of a published model: GPUs, engines beside or apart from the trainer, hours, dollars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, load_gpus, require_gpu
from advisor.hardware.offers import rows_by_gpu
from advisor.offer import OWN_MACHINE, Offer
from advisor.options import Goal, OwnMachine
from advisor.planning.goal import interruptions
from advisor.planning.infeasible import Way, any_gpu, hint
from advisor.planning.offers import ANY, OWN
from advisor.planning.rl import RlWay
from advisor.planning.run import published_grounds
from advisor.prediction.intervals import sum_shared
from advisor.prediction.layout_batch import SURE
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.power import datasheet_power
from advisor.prediction.rl import predict_rl, require_rl_software, rl_whole
from advisor.records import Estimate, Plan, Prediction, Run
from advisor.store.store import Store
from advisor.workflows.goal import RL_SOFTWARE
from advisor.workflows.plan_elsewhere import ON_DEMAND, BestWay, Duration, plan_of, try_machines
from advisor.workflows.rl import MeasuredSteps, RlRequest, own_pace, paced, read_steps, request_of

_LITTLE, _NOTABLE = 1.1, 1.05  # times as fast
_ABOVE_MEAN = 1.25  # least limit of the answers over their mean length
_WHILE = (0.1, 0.3, 0.5, 0.7, 0.9)  # of a run, where the length of its answers is taken


@dataclass(frozen=True, kw_only=True)
class RlWork:
    """The RL post-training of a model, in the best way on each number of GPUs."""

    goal: Goal
    request: RlRequest
    store: Store
    longer: float  # mean response length in tokens at the end
    updates: dict[tuple[str, int], Prediction] = field(default_factory=dict)  # by GPU and number of GPUs that train
    measured: tuple[MeasuredSteps, ...] = ()
    ways: dict[tuple[str, int], RlWay] = field(default_factory=dict)  # the best ones, by GPU and number of GPUs

    @property
    def steps(self) -> int:
        assert self.goal.prompts is not None
        return math.ceil(self.goal.prompts / self.request.answers.prompts)

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens of all steps, at the length that answers have in the beginning."""
        a = self.request.answers
        return self.steps * round(a.count * (a.prompt_len + a.response_len))

    @property
    def sources(self) -> tuple[str, ...]:
        return ("published runs of RL post-training (profiles/rl.yaml)", "published runs (profiles/layouts.yaml)")

    def gpus(self) -> Sequence[str]:
        if self.goal.gpu != ANY:
            return self.goal.gpu.split(",")
        priced = rows_by_gpu()
        return [key for key, spec in load_gpus().items() if key in priced and spec.is_cuda and spec.bf16_flops]

    def lacks(self, gpu: str) -> str:
        spec = require_gpu(gpu)
        return "" if spec.bf16_flops or spec.fp16_flops else "it has no 16-bit products"

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        if not self.updates:  # of all machines at once, which takes as long as a few
            counts = {gpus, *(self.goal.counts or (self.goal.gpus,)), *(own.gpus for own in self.goal.own)}
            keys = dict.fromkeys(
                (gpu, *(self.gpus() if self.goal.gpu != OWN else ()), *(own.gpu for own in self.goal.own))
            )
            self.updates.update(self.request.updates_on([(key, n) for key in keys for n in counts], self.store))
        ways = self.request.on(gpu, gpus, self.updates)
        if not ways or ways[0].step.fit_probability < SURE:
            return "" if ways else self.request.lacks(gpu, gpus, self.updates)
        own = own_pace(self.request, gpu, self.measured, self.store, gpus) if self.measured else None
        if own is not None:
            ways = [replace(way, prediction=paced(way.prediction, own, gpus)) for way in ways]
        self.ways[gpu, gpus] = ways[0]
        spec, timed = require_gpu(gpu), sum(len(one.seconds) for one in self.measured)
        return BestWay(
            prediction=ways[0].prediction,
            others=tuple((way.prediction, way.lost) for way in ways[1:]),
            tried=len(ways),
            power=datasheet_power(spec.tdp_watts),
            grounds=published_grounds(
                gpu, spec, own_runs=timed if own else 0, own_slowdown=own.factor if own else None
            ),
        )

    def duration(self, prediction: Prediction, offer: Offer) -> Duration:
        taken = interruptions(self.goal, spot=offer.spot, gpus=offer.gpus)
        step = prediction.step_seconds
        assert step is not None
        mean = self._mean_step(prediction, offer, step)
        clock, failures = whole_run(mean, self.steps, offer.gpus, prediction.parameters, rl_whole(), taken)
        return Duration(clock=clock, failures=failures, taken=taken)

    def _mean_step(self, prediction: Prediction, offer: Offer, first: Estimate) -> Estimate:
        """Return the step as a mean over the run, in which answers lengthen."""
        way, a = self.ways.get((offer.gpu, offer.gpus)), self.request.answers
        if way is None or self.longer == a.response_len or way.prediction != prediction:
            return first
        lengths = [a.response_len + share * (self.longer - a.response_len) for share in _WHILE]
        steps = [
            found.step_seconds.scaled(1 / len(_WHILE))
            for one in lengths
            if (found := predict_rl(replace(way.run, answers=replace(a, response_len=one)))) is not None
        ]
        return sum_shared(*steps) if len(steps) == len(_WHILE) else first


def plan_rl(goal: Goal, store: Store, *, hints: bool = True) -> Plan:
    """Return the ways to post-train the goal's model on each GPU and number of GPUs that the goal allows.

    With `hints`, an error says what would be feasible, which takes longer than a plan. Raises AdvisorError (exit 2) if
    the amount of training is not stated, and (exit 3) if no machine can do it.
    """
    assert goal.rl is not None and goal.model is not None
    if goal.prompts is None:
        amount = "say how many prompts: --prompts 20k; 500 steps of 128 are --prompts 64k"
        raise AdvisorError("the amount of training is not given", amount, exit_code=2)
    request, longer, assumed = request_of(goal, goal.network_bytes_per_second)
    measured = read_steps(Path(goal.measured)) if goal.measured is not None else ()
    if measured and ("," in goal.gpu or goal.gpu in (ANY, OWN)):
        raise AdvisorError("--measured is of one type of GPU", "name it: --gpu h100", exit_code=2)
    work = RlWork(goal=goal, request=request, store=store, longer=longer, measured=measured)
    tried = try_machines(work)
    if not tried.runs and tried.endless:
        raise AdvisorError(f"no run ends on {', '.join(tried.endless)}", ON_DEMAND, exit_code=3)
    if not tried.runs:
        asked = ", ".join(tried.does_not_fit) or "any machine offered"
        message = f"RL post-training of {request.model.name} does not surely fit {asked}"
        feasible = hint(_changes(goal), lambda changed: _feasible(changed, store)) if hints else ""
        raise AdvisorError(message, feasible, exit_code=3)
    small = f"{request.answers.count} answers are fewer than a step usually has"
    warnings = [small] if request.answers.count < 64 else []
    plan = plan_of(work, tried, assumed=assumed, warnings=warnings)
    assert plan.search is not None
    shorter = filter(None, [_what_shortens(work, plan.chosen)])
    return replace(plan, search=replace(plan.search, sensitivity=(*plan.search.sensitivity, *shorter)))


def splits(plan: Plan) -> list[int | None]:
    """Return the numbers of GPUs of the plan's machine that may only generate; None: all generate in turn."""
    rollouts = plan.workload.rollouts
    assert rollouts is not None
    shared = plan.offer.gpus - rollouts.judge_gpus
    whole = GPUS_PER_NODE if shared > GPUS_PER_NODE else 1  # a machine belongs to one side
    apart = range(whole, shared, whole) if require_rl_software(plan.goal.software or RL_SOFTWARE).splits else ()
    return [None, *apart]


def with_split(plan: Plan, engine_gpus: int | None) -> Goal:
    """Return the goal of the plan's machine alone with this split, one of `splits`."""
    goal, offer = plan.goal, plan.offer
    owned = offer.source == OWN_MACHINE
    return replace(
        goal, gpu=OWN if owned else offer.gpu, gpus=offer.gpus, counts=(),
        own=(OwnMachine(gpu=offer.gpu, gpus=offer.gpus),) if owned else (), rollout_gpus=engine_gpus,
        placement="colocated" if engine_gpus is None else "split",
        staleness=None if engine_gpus is None else goal.staleness,
        prices=tuple(price for price in goal.prices if price.gpu == offer.gpu),
    )  # fmt: skip


def _what_shortens(work: RlWork, chosen: Run) -> str:
    """Say what twice the GPUs would gain, half the limit of the answers, and twice the GPUs that judge."""
    offer, answers = chosen.offer, work.request.answers
    twice, way = 2 * offer.gpus, work.ways[offer.gpu, offer.gpus]
    shorter = max(answers.response_max // 2, math.ceil(_ABOVE_MEAN * answers.response_len))
    if (offer.gpu, twice) not in work.ways:
        work.updates.update(work.request.updates_on([(offer.gpu, twice)], work.store))
        work.best_on(offer.gpu, twice)
    more, judge = work.ways.get((offer.gpu, twice)), way.run.judge
    tried = [(f"{twice} GPUs instead of {offer.gpus}", "", None if more is None else more.step)]
    if shorter < answers.response_max:
        words = f"--response-max {shorter} instead of {answers.response_max}"
        cut = predict_rl(replace(way.run, answers=replace(answers, response_max=shorter)))
        tried.append((words, "the longest answers set the step, not the number of GPUs", cut))
    if judge is not None and judge.gpus:
        words = f"--judge-gpus {2 * judge.gpus} instead of {judge.gpus}"
        faster = predict_rl(replace(way.run, judge=replace(judge, gpus=2 * judge.gpus)))
        tried.append((words, "the judge sets the step", faster))
    before = way.step.step_seconds.value
    gains = [(before / step.step_seconds.value, words, why) for words, why, step in tried if step is not None]
    said = [f"{words}: a step {_faster(gain)}" for gain, words, _ in gains]
    most, _, why = max(gains, default=(1.0, "", ""))
    return "; ".join([*said, *([why] if why and most > _LITTLE else [])])


def _faster(gain: float) -> str:
    return f"{gain:.1f} times as fast" if gain >= _NOTABLE else "no faster"


def _changes(goal: Goal) -> Iterator[Way]:
    """Yield what could make room for the run: more GPUs, adapters, a GPU with more memory."""
    most = max((goal.gpus, *(goal.counts or ()), *(own.gpus for own in goal.own)))
    more = [2**power for power in range(1, 11) if 2**power > most]
    yield "more GPUs", [(f"--gpus {count}", replace(goal, gpus=count, counts=(count,))) for count in more]
    if goal.judge is not None:
        counts = [2**power for power in range(7) if goal.judge_gpus is None or 2**power > goal.judge_gpus]
        yield "GPUs for the judge", [(f"--judge-gpus {n}", replace(goal, judge_gpus=n)) for n in counts]
    if not goal.lora:
        yield "adapters alone", [("--lora", replace(goal, lora=True))]
    yield from any_gpu(goal, "a GPU with more memory")


def _feasible(goal: Goal, store: Store) -> bool:
    request, longer, _ = request_of(goal, goal.network_bytes_per_second)
    return bool(try_machines(RlWork(goal=goal, request=request, store=store, longer=longer)).runs)
