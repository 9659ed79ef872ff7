"""Plans RL post-training of a published model: GPUs, engines beside or apart from the trainer, hours, dollars."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, require_gpu
from advisor.hardware.prices import price_list
from advisor.offer import OWN_MACHINE, Offer
from advisor.options import Goal
from advisor.planning.infeasible import Way, each_value, halves, larger_gpu, leaner, more_gpus, smaller_model
from advisor.planning.offers import ANY, OWN, names_one_gpu, on_machine
from advisor.planning.rl import LEAST_STATE, RlWay
from advisor.planning.run import published_grounds
from advisor.prediction.intervals import sum_shared
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.power import datasheet_power
from advisor.prediction.rl import predict_rl, require_rl_software, rl_whole
from advisor.records import Estimate, Plan, Prediction, Run, WallClock
from advisor.store.store import Store
from advisor.workflows.goal import RL_SOFTWARE, find_any_model
from advisor.workflows.plan_elsewhere import BestWay, Work, gpus_of
from advisor.workflows.rl import MeasuredSteps, RlRequest, own_pace, paced, read_steps, request_of

_LITTLE, _NOTABLE = 1.1, 1.05  # times as fast
_SHORT = 512  # tokens of the longest answer; no fewer are offered
_ABOVE_MEAN = 1.25  # least limit of the answers over their mean length
_WHILE = (0.1, 0.3, 0.5, 0.7, 0.9)  # of a run, where the length of its answers is taken


@dataclass(frozen=True, kw_only=True)
class RlWork(Work):
    """The RL post-training of a model, in the best way on each number of GPUs."""

    request: RlRequest
    store: Store
    steps: int
    longer: float  # mean response length in tokens at the end
    updates: dict[tuple[str, int], Prediction] = field(default_factory=dict)  # by GPU and number of GPUs that train
    measured: tuple[MeasuredSteps, ...] = ()
    ways: dict[tuple[str, int], RlWay] = field(default_factory=dict)  # the best ones, by GPU and number of GPUs

    def usable(self, spec: GpuSpec) -> bool:
        return spec.key in price_list().by_gpu and spec.is_cuda and bool(spec.bf16_flops)

    def lacks(self, spec: GpuSpec) -> str:
        return "" if spec.bf16_flops or spec.fp16_flops else "it has no 16-bit products"

    def best_on(self, gpu: str, gpus: int) -> BestWay | str:
        if not self.updates:  # of all machines at once, which takes as long as a few
            counts = {gpus, *(self.goal.counts or (self.goal.gpus,)), *(own.gpus for own in self.goal.own)}
            keys = dict.fromkeys((gpu, *gpus_of(self), *(own.gpu for own in self.goal.own)))
            # hopeless ones too if there are few, because their memory is told
            least = 0.0 if names_one_gpu(self.goal) else LEAST_STATE
            self.updates.update(self.request.updates_on([(key, n) for key in keys for n in counts], self.store, least))
        ways = self.request.on(gpu, gpus, self.updates)
        if not ways:
            lacks = self.request.lacks(gpu, gpus, self.updates)
            update = self.updates.get((gpu, gpus - self.request.judging_gpus))
            if not lacks and update is not None and update.fits is False:
                return BestWay(prediction=update, power=None)
            return lacks or "no room for the engines, or the GPUs cannot be split so"
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

    def duration(self, prediction: Prediction, offer: Offer, taken: Estimate | None) -> tuple[WallClock, float | None]:
        mean, way, a = prediction.step_seconds, self.ways.get((offer.gpu, offer.gpus)), self.request.answers
        assert mean is not None
        if way is not None and self.longer != a.response_len and way.prediction == prediction:
            # The step as a mean over the run, in which answers lengthen.
            lengths = [a.response_len + share * (self.longer - a.response_len) for share in _WHILE]
            steps = [
                found.step_seconds.scaled(1 / len(_WHILE))
                for one in lengths
                if (found := predict_rl(replace(way.run, answers=replace(a, response_len=one)))) is not None
            ]
            mean = sum_shared(*steps) if len(steps) == len(_WHILE) else mean
        return whole_run(mean, self.steps, offer.gpus, prediction.parameters, rl_whole(), taken)

    def changes(self, refused: Sequence[str]) -> Iterator[Way]:
        goal, answers = self.goal, self.request.answers
        lean = ("--lora", replace(goal, lora=True))
        if not goal.lora:
            yield leaner("adapters alone", *lean, self.usable)
        shorter = [n for n in halves(answers.response_max, _SHORT) if n >= _ABOVE_MEAN * (goal.response_len or 0)]
        yield "shorter answers", each_value("response_max", shorter, ("", goal), *([] if goal.lora else [lean]))
        yield smaller_model(goal, find_any_model(self.request.typed))
        yield more_gpus(goal)
        if goal.judge is not None:
            counts = [2**power for power in range(7) if goal.judge_gpus is None or 2**power > goal.judge_gpus]
            yield "GPUs for the judge", [(f"--judge-gpus {n}", replace(goal, judge_gpus=n)) for n in counts]
        yield from larger_gpu(goal, self.usable)

    def gains(self, chosen: Run) -> str:
        """Say what twice the GPUs would gain, half the limit of the answers, and twice the GPUs that judge."""
        offer, answers = chosen.offer, self.request.answers
        twice, way = 2 * offer.gpus, self.ways[offer.gpu, offer.gpus]
        shorter = max(answers.response_max // 2, math.ceil(_ABOVE_MEAN * answers.response_len))
        if (offer.gpu, twice) not in self.ways:
            self.updates.update(self.request.updates_on([(offer.gpu, twice)], self.store))
            self.best_on(offer.gpu, twice)
        more, judge = self.ways.get((offer.gpu, twice)), way.run.judge
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
        said = [
            f"{words}: a step {f'{gain:.1f} times as fast' if gain >= _NOTABLE else 'no faster'}"
            for gain, words, _ in gains
        ]
        most, _, why = max(gains, default=(1.0, "", ""))
        return "; ".join([*said, *([why] if why and most > _LITTLE else [])])


def rl_work(goal: Goal, store: Store) -> RlWork:
    """Return the work that the goal describes; raises AdvisorError (exit 2) if its amount is not stated."""
    assert goal.rl is not None and goal.model is not None
    if goal.prompts is None:
        amount = "say how many prompts: --prompts 20k; 500 steps of 128 are --prompts 64k"
        raise AdvisorError("the amount of training is not given", amount, exit_code=2)
    request, longer, assumed = request_of(goal, goal.network_bytes_per_second)
    measured = read_steps(Path(goal.measured)) if goal.measured is not None else ()
    if measured and ("," in goal.gpu or goal.gpu in (ANY, OWN)):
        raise AdvisorError("--measured is of one type of GPU", "name it: --gpu h100", exit_code=2)
    a = request.answers
    steps = math.ceil(goal.prompts / a.prompts)
    return RlWork(
        goal=goal, name=f"RL post-training of {request.model.name}", request=request, store=store, longer=longer,
        # prompts and answers of all steps, at the length that answers have in the beginning
        steps=steps, tokens=steps * round(a.count * (a.prompt_len + a.response_len)), measured=measured,
        assumed=tuple(assumed),
        warnings=(f"{a.count} answers are fewer than a step usually has",) if a.count < 64 else (),
        sources=("published runs of RL post-training (profiles/rl.yaml)", "published runs (profiles/layouts.yaml)"),
    )  # fmt: skip


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
    return replace(
        on_machine(goal, offer.gpu, offer.gpus, own=offer.source == OWN_MACHINE),
        rollout_gpus=engine_gpus,
        placement="colocated" if engine_gpus is None else "split",
        staleness=None if engine_gpus is None else goal.staleness,
        prices=tuple(price for price in goal.prices if price.gpu == offer.gpu),
    )
