"""One run of the search in full: the configuration as the trainer takes it, its bill by part, and its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from advisor.hardware.offers import Offer
from advisor.plan import recipe
from advisor.plan.candidates import Candidates, Device
from advisor.plan.choose import Selection
from advisor.plan.costs import Bills, Costs
from advisor.plan.evaluate import Violation
from advisor.predict.batch import predict_batch
from advisor.predict.loss import predict_loss
from advisor.records import Candidate, Choice, Estimate, Prediction, WallClock
from trainer.schema import DataConfig, RunConfig


@dataclass(frozen=True, kw_only=True)
class Bill:
    """What a run takes. None: unknown."""

    clock: WallClock
    watts: Estimate | None  # all devices together
    kwh: Estimate | None
    usd: Estimate | None
    storage_usd: Estimate  # of the checkpoints kept, part of the dollars
    disk_bytes: int  # of all checkpoints kept at once, the one being written included


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run with everything the plan or a table of candidates may need."""

    device: Device
    offer: Offer
    prediction: Prediction
    run: RunConfig
    bill: Bill
    tokens: int
    ratio: float  # tokens per counted parameter
    score: float
    loss: Estimate | None
    epochs: float | None
    device_bytes: Estimate | None  # everything the device must hold, context included
    data_bound: bool  # ended by the data, not by the limits
    violation: Violation

    def candidate(self, rejected: str | None = None) -> Candidate:
        """The row of the table of depths and micro-batches that were considered."""
        workload = self.prediction.workload
        assert self.prediction.tokens_per_second is not None
        return Candidate(
            depth=workload.shape.depth,
            width=workload.shape.width,
            parameters=self.prediction.parameters,
            micro_batch=workload.micro_batch,
            grad_accum=workload.grad_accum,
            steps=self.run.steps,
            tokens=self.tokens,
            epochs=self.epochs,
            tokens_per_second=self.prediction.tokens_per_second,
            peak_reserved_bytes=self.prediction.peak_reserved_bytes,
            total_seconds=self.bill.clock.total_seconds,
            cost_usd=self.bill.usd,
            loss=self.loss,
            score=self.score,
            rejected=rejected,
            activation_checkpointing=workload.activation_checkpointing,
            sharding=workload.sharding,
            device_bytes=self.device_bytes,
        )

    def choice(self, *, name: str = "", why: str = "") -> Choice:
        """The row of the search's tables."""
        workload, memory = self.prediction.workload, self.prediction.device_memory_bytes
        assert self.prediction.step_seconds is not None and self.prediction.tokens_per_second is not None
        held = self.device_bytes
        return Choice(
            gpu=workload.gpu,
            gpus=workload.gpus,
            provider=self.offer.provider,
            spot=self.offer.spot,
            usd_per_hour=self.offer.usd_per_hour,
            price_source=self.offer.source,
            depth=workload.shape.depth,
            parameters=self.prediction.parameters,
            micro_batch=workload.micro_batch,
            grad_accum=workload.grad_accum,
            activation_checkpointing=workload.activation_checkpointing,
            sharding=workload.sharding,
            steps=self.run.steps,
            tokens=self.tokens,
            epochs=self.epochs,
            step_seconds=self.prediction.step_seconds,
            tokens_per_second=self.prediction.tokens_per_second,
            total_seconds=self.bill.clock.total_seconds,
            cost_usd=self.bill.usd,
            device_bytes=held,
            headroom_bytes=memory - held.value if held is not None and memory is not None else None,
            loss=self.loss,
            score=self.score,
            name=name,
            why=why,
            machines=self.offer.machines,
        )


def make_trials(candidates: Candidates, selections: Sequence[Selection]) -> list[Trial]:
    """Predict chosen configurations with their intervals and make out the bills of so many steps of each."""
    if not selections:
        return []
    places = np.array([chosen.place for chosen in selections], dtype=int)
    rows = candidates.rows(places)
    costs, steps = Costs(rows), np.array([[float(chosen.steps)] for chosen in selections])
    bills, scores = costs.bills(steps), costs.scores(steps)
    predictions = _predictions(rows)
    return [
        _trial(rows, row, costs, _bill(bills, rows, row), predictions[row], chosen, float(scores[row, 0]))
        for row, chosen in enumerate(selections)
    ]


def make_trial(candidates: Candidates, chosen: Selection) -> Trial:
    """As `make_trials`, for one."""
    return make_trials(candidates, [chosen])[0]


def _predictions(rows: Candidates) -> list[Prediction]:
    """The prediction of each row, those of one device together."""
    predictions: dict[int, Prediction] = {}
    for number in np.unique(rows.device):
        places = np.nonzero(rows.device == number)[0].tolist()
        profile = rows.devices[number].profile
        workloads = [rows.workload(place) for place in places]
        predictions |= zip(places, predict_batch(profile, workloads, expected=True), strict=True)
    return [predictions[place] for place in range(len(rows))]


def _trial(
    rows: Candidates, row: int, costs: Costs, bill: Bill, prediction: Prediction, chosen: Selection, score: float
) -> Trial:
    device, offer, workload = rows.devices[rows.device[row]], rows.offers[rows.offer[row]], prediction.workload
    brief, tokens = device.brief, chosen.steps * workload.step_tokens
    return Trial(
        device=device,
        offer=offer,
        prediction=prediction,
        run=_run_config(device, prediction, costs.checkpoint_seconds(row), chosen.steps),
        bill=bill,
        tokens=tokens,
        ratio=tokens / brief.counted(workload.shape),
        score=score,
        loss=None
        if brief.goal.synthetic  # random tokens teach nothing
        else predict_loss(prediction.parameters, tokens, brief.unique_tokens, brief.vocab_size),
        epochs=tokens / brief.unique_tokens if brief.unique_tokens else None,
        device_bytes=device.profile.memory.device_total_bytes(workload),
        data_bound=not brief.settled and bool(chosen.steps >= costs.most_by_data[row, 0]),
        violation=chosen.violation,
    )


def _bill(bills: Bills, rows: Candidates, row: int) -> Bill:
    watts, kwh, usd = (
        None if np.isnan(many.value[row]).any() else many.at(row) for many in (bills.watts, bills.kwh, bills.usd)
    )
    return Bill(
        clock=bills.clock.at(row),
        watts=watts,
        kwh=kwh,
        usd=usd,
        storage_usd=bills.storage_usd.at(row),
        disk_bytes=(recipe.KEPT_CHECKPOINTS + 1) * int(rows.state_bytes[row]),
    )


def _run_config(device: Device, prediction: Prediction, checkpoint_seconds: float, steps: int) -> RunConfig:
    workload, brief = prediction.workload, device.brief
    shape, tokens = workload.shape, steps * workload.step_tokens
    config = RunConfig(
        model=shape,
        steps=steps,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        name=f"{shape.family}-d{shape.depth}",
        device=device.profile.device_type,
        precision=workload.precision,
        compile=workload.compile,
        activation_checkpointing=workload.activation_checkpointing,
        sharding=workload.sharding,
        data=DataConfig(path=brief.goal.data, synthetic=brief.goal.synthetic),
        optimizer=recipe.optimizer(workload.optimizer, shape, tokens, workload.step_tokens),
        schedule=recipe.schedule(steps),
        eval=recipe.eval_config(steps, tokens, workload.micro_tokens, brief.validation_tokens),
        checkpoint=recipe.checkpoints(checkpoint_seconds),
    )
    return device.profile.kernels.set_in(config)
