"""One configuration weighed: the run it would be, its bill, and what speaks against it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from advisor.plan import recipe
from advisor.plan.goal import MOST_EPOCHS, Brief
from advisor.predict.energy import JOULES_PER_KWH, energy_kwh, run_cost_usd
from advisor.predict.loss import allocation_score, predict_loss
from advisor.predict.profile import Profile
from advisor.predict.wallclock import disk_bytes, loop_seconds, state_bytes, wall_clock
from advisor.records import Basis, Candidate, Estimate, Prediction, WallClock
from trainer.schema import CheckpointConfig, DataConfig, ModelShape, RunConfig

LEAST_STEPS = 20  # below this nothing is learnt and the schedule means nothing: the limit is too tight
THINNEST = 0.1  # of the recommended tokens per parameter: far off the flat optimum, where the score is a guess


_GUESSES = 12  # of the most steps by linear extrapolation; then plain bisection


class Obstacle(StrEnum):
    """Why a configuration was not chosen, as a kind; the words are in `explain`."""

    MEMORY = "memory"
    TIME = "time"
    MONEY = "money"
    THIN = "thin"  # too few tokens per parameter
    SLOWER = "slower"  # another micro-batch of the same depth is faster
    LARGER = "larger"  # no faster than a smaller micro-batch


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a run of so many steps takes."""

    run: RunConfig
    clock: WallClock
    watts: Estimate | None  # all devices together
    kwh: Estimate | None
    cost_usd: Estimate | None
    storage_usd: Estimate  # of the checkpoints kept, part of the cost
    disk_bytes: int  # of all checkpoints kept at once, the one being written included


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A weighed configuration with everything the plan or the table of considered candidates may need."""

    prediction: Prediction
    bill: Bill
    tokens: int
    ratio: float  # tokens per counted parameter
    score: float
    loss: Estimate | None
    epochs: float | None
    device_bytes: Estimate | None  # everything the device must hold, context included
    obstacle: Obstacle | None = None
    data_bound: bool = False  # stopped by MOST_EPOCHS, not by the limits

    def candidate(self, rejected: str | None = None) -> Candidate:
        """The public record of this trial."""
        workload = self.prediction.workload
        assert self.prediction.tokens_per_second is not None
        return Candidate(
            depth=workload.shape.depth,
            width=workload.shape.width,
            parameters=self.prediction.parameters,
            micro_batch=workload.micro_batch,
            grad_accum=workload.grad_accum,
            steps=self.bill.run.steps,
            tokens=self.tokens,
            epochs=self.epochs,
            tokens_per_second=self.prediction.tokens_per_second,
            peak_reserved_bytes=self.prediction.peak_reserved_bytes,
            total_seconds=self.bill.clock.total_seconds,
            cost_usd=self.bill.cost_usd,
            loss=self.loss,
            score=self.score,
            rejected=rejected,
            activation_checkpointing=workload.activation_checkpointing,
            device_bytes=self.device_bytes,
        )


def fixed_tokens(brief: Brief, counted: int) -> int | None:
    """Training tokens where the goal settles them; None where the limits do.

    Asked for outright, or by a ratio that was asked for, or by the family's ratio when nothing limits the run or when
    its work is to be done for the least money or in the least time.
    """
    if brief.goal.tokens is not None:
        return brief.goal.tokens
    if brief.settled:
        return max(1, round(brief.ratio * counted))
    return None


def usual_tokens(brief: Brief, counted: int, prediction: Prediction) -> float:
    """About how many tokens a run will see, to choose its batch by, before its bill is known."""
    fixed = fixed_tokens(brief, counted)
    if fixed is not None:
        return fixed
    assert prediction.tokens_per_second is not None
    tokens = prediction.tokens_per_second.value * seconds_within(brief, run_watts(brief, prediction))
    return min(tokens, MOST_EPOCHS * brief.unique_tokens) if brief.unique_tokens else tokens


def seconds_within(brief: Brief, watts: Estimate | None) -> float:
    """Seconds that deadline and budget leave for everything together, at so many watts of all devices."""
    limits = []
    if brief.deadline_seconds is not None:
        limits.append(brief.deadline_seconds)
    if brief.goal.budget_usd is not None:
        tariff = watts.value * brief.usd_per_kwh / JOULES_PER_KWH if watts else 0.0
        limits.append(brief.goal.budget_usd / ((brief.usd_per_hour or 0.0) / 3600 + tariff))
    return min(limits)


def run_watts(brief: Brief, prediction: Prediction) -> Estimate | None:
    """What all devices draw together while this configuration trains; None where unknown."""
    if brief.power is None:
        return None
    mfu = prediction.mfu.value if prediction.mfu else None
    return brief.power.watts(mfu, brief.goal.gpus, brief.goal.power_cap_watts)


def make_trial(brief: Brief, profile: Profile, prediction: Prediction) -> Trial:
    """Decide the steps of one configuration, make out its bill, and say whether a limit stands against it."""
    workload = prediction.workload
    counted = brief.counted(workload.shape)
    fixed = fixed_tokens(brief, counted)
    data_bound = False
    if fixed is not None:
        steps = max(1, round(fixed / workload.step_tokens))
    else:
        steps, data_bound = _most_steps(brief, profile, prediction)
    bill = make_bill(brief, profile, prediction, max(steps, LEAST_STEPS if fixed is None else 1))
    tokens = bill.run.steps * workload.step_tokens
    obstacle = _broken_limit(brief, bill)
    if obstacle is None and fixed is None and not data_bound and tokens < THINNEST * brief.ratio * counted:
        obstacle = Obstacle.THIN
    return Trial(
        prediction=prediction,
        bill=bill,
        tokens=tokens,
        ratio=tokens / counted,
        score=allocation_score(counted, tokens, brief.unique_tokens, best_ratio=brief.ratio),
        loss=predict_loss(prediction.parameters, tokens, brief.unique_tokens, brief.vocab_size),
        epochs=tokens / brief.unique_tokens if brief.unique_tokens else None,
        device_bytes=profile.memory.device_total_bytes(workload),
        obstacle=obstacle,
        data_bound=data_bound,
    )


def make_bill(brief: Brief, profile: Profile, prediction: Prediction, steps: int) -> Bill:
    """The run of this configuration with `steps` steps, its seconds, kilowatt hours and dollars."""
    assert prediction.step_seconds is not None
    run = _run_config(brief, profile, prediction, steps)
    clock = wall_clock(
        run,
        prediction.step_seconds,
        profile.costs,
        gpus=brief.goal.gpus,
        interruption_seconds=brief.interruption_seconds,
        setup=brief.setup,
    )
    watts = run_watts(brief, prediction)
    kwh = energy_kwh(loop_seconds(clock), watts)
    disk = disk_bytes(run)
    storage_usd_per_hour = disk * brief.storage_usd_per_byte_hour
    rent = None
    if brief.usd_per_hour is not None:
        price, most = (usd + storage_usd_per_hour for usd in (brief.usd_per_hour, brief.most_usd_per_hour or 0.0))
        rent = Estimate(value=price, low=price, high=max(price, most), basis=Basis.MEASURED)
    return Bill(
        run=run,
        clock=clock,
        watts=watts,
        kwh=kwh,
        cost_usd=run_cost_usd(clock.total_seconds, rent, kwh, brief.usd_per_kwh),
        storage_usd=clock.total_seconds.scaled(storage_usd_per_hour / 3600),
        disk_bytes=disk,
    )


def _run_config(brief: Brief, profile: Profile, prediction: Prediction, steps: int) -> RunConfig:
    workload, goal = prediction.workload, brief.goal
    shape, tokens = workload.shape, steps * workload.step_tokens
    return RunConfig(
        model=shape,
        steps=steps,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        name=f"{shape.family}-d{shape.depth}",
        device=profile.device_type,
        precision=workload.precision,
        compile=workload.compile,
        activation_checkpointing=workload.activation_checkpointing,
        data=DataConfig(path=goal.data),
        optimizer=recipe.optimizer(workload.optimizer, shape, tokens, workload.step_tokens),
        schedule=recipe.schedule(steps),
        eval=recipe.evaluation(steps, tokens, workload.micro_tokens, brief.validation_tokens),
        checkpoint=_checkpoints(brief, profile, shape, workload.optimizer),
    )


def _checkpoints(brief: Brief, profile: Profile, shape: ModelShape, optimizer: str) -> CheckpointConfig:
    """At the interval that fits how often the machine is taken back and how long a checkpoint takes to write."""
    mean = brief.interruption_seconds
    if mean is None:
        return recipe.checkpoints()
    write_seconds = state_bytes(shape, optimizer) / profile.costs.checkpoint_bytes_per_second.value
    return recipe.checkpoints(write_seconds, mean.value)


def _most_steps(brief: Brief, profile: Profile, prediction: Prediction) -> tuple[int, bool]:
    """The most steps whose whole bill keeps the limits, and whether it was the data that ended it.

    Bisection whose middle is where the last bill says the limit lies: bills are all but linear in the steps.
    """
    assert prediction.step_seconds is not None
    within = seconds_within(brief, run_watts(brief, prediction))
    fits, too_many = 0, int(within / prediction.step_seconds.low) + 2
    if brief.unique_tokens:
        data_steps = max(1, MOST_EPOCHS * brief.unique_tokens // prediction.workload.step_tokens)
        if data_steps < too_many and _keeps(brief, make_bill(brief, profile, prediction, data_steps)):
            return data_steps, True
        too_many = min(too_many, data_steps)
    step_seconds = prediction.step_seconds.high if brief.goal.sure else prediction.step_seconds.value
    middle, turns = int(within / step_seconds), 0
    while too_many - fits > 1:
        middle = min(max(middle, fits + 1), too_many - 1) if turns < _GUESSES else (fits + too_many) // 2
        bill = make_bill(brief, profile, prediction, middle)
        turns += 1
        if _keeps(brief, bill):
            fits = middle
        else:
            too_many = middle
        middle += math.floor(_room_seconds(brief, bill) / step_seconds)
        middle = max(middle, fits + 1)  # no room for a whole step more: look whether there is room for one
    return fits, False


def _room_seconds(brief: Brief, bill: Bill) -> float:
    """Seconds until the tighter limit; negative where one is broken."""
    end = "high" if brief.goal.sure else "value"
    rooms = []
    if brief.deadline_seconds is not None:
        rooms.append(brief.deadline_seconds - getattr(bill.clock.total_seconds, end))
    if brief.goal.budget_usd is not None and bill.cost_usd is not None:
        share = brief.goal.budget_usd / getattr(bill.cost_usd, end) - 1
        rooms.append(share * getattr(bill.clock.total_seconds, end))
    return min(rooms)


def _keeps(brief: Brief, bill: Bill) -> bool:
    return _broken_limit(brief, bill) is None


def _broken_limit(brief: Brief, bill: Bill) -> Obstacle | None:
    """The limit that the bill breaks: its expected value, or its high end where the goal asks to be sure."""
    end = "high" if brief.goal.sure else "value"
    if brief.deadline_seconds is not None and getattr(bill.clock.total_seconds, end) > brief.deadline_seconds:
        return Obstacle.TIME
    if brief.goal.budget_usd is not None:
        assert bill.cost_usd is not None  # `make_brief` refuses a budget without a price
        if getattr(bill.cost_usd, end) > brief.goal.budget_usd:
            return Obstacle.MONEY
    return None
