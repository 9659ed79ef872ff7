"""Turn rows of a search into runs with predictions, bills and the trainer's configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.hardware.catalog import GpuSpec
from advisor.laws.flops import scaling_parameters
from advisor.planning import recipe
from advisor.planning.candidates import Candidates, Device
from advisor.planning.choose import Selection
from advisor.planning.costs import Costs
from advisor.prediction.batch import predict_batch
from advisor.prediction.loss import predict_loss
from advisor.prediction.power import WORLD_GRAMS_PER_KWH, carbon_kg
from advisor.prediction.prior import published_runs
from advisor.prediction.profile import Profile
from advisor.records import Bill, Grounds, Prediction, Run, Standing
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, RunConfig


def make_runs(candidates: Candidates, selections: Sequence[Selection]) -> list[Run]:
    """Return the selected runs with predictions and intervals, and with bills for their steps.

    One step is predicted by its median, as `predict` does. Hours and dollars are sums and have means.
    """
    if not selections:
        return []
    rows = candidates.rows(np.array([chosen.place for chosen in selections], dtype=int))
    costs, steps = Costs(rows), np.array([[float(chosen.steps)] for chosen in selections])
    bills, scores = costs.bills(steps), costs.scores(steps)
    predictions: dict[int, Prediction] = {}
    together: dict[int, list[int]] = {}  # one prediction for all rows of a profile
    for place, number in enumerate(rows.device.tolist()):
        together.setdefault(id(rows.machines.devices[number].profile), []).append(place)
    for places in together.values():
        profile = rows.machines.devices[rows.device[places[0]]].profile
        found = predict_batch(profile, [rows.workload(place) for place in places])
        predictions |= zip(places, found, strict=True)

    runs = []
    for row, chosen in enumerate(selections):
        device, prediction = rows.machines.devices[rows.device[row]], predictions[row]
        brief = device.brief
        assert prediction.step_seconds is not None  # a configuration over unknown links is no candidate
        tokens, unique, kwh = chosen.steps * prediction.workload.step_tokens, brief.unique_tokens, bills.kwh.at(row)
        grid = WORLD_GRAMS_PER_KWH if brief.goal.grid_grams_per_kwh is None else brief.goal.grid_grams_per_kwh
        bill = Bill(
            wall_clock=bills.clock.at(row),
            cost_usd=bills.usd.at(row),
            power_watts=bills.watts.at(row),
            energy_kwh=kwh,
            carbon_kg=carbon_kg(kwh, grid),
            grid_grams_per_kwh=grid if kwh else None,
            storage_usd=bills.storage_usd.at(row),
            checkpoint_bytes=int(rows.state_bytes[row]),
            disk_bytes=(recipe.KEPT_CHECKPOINTS + 1) * int(rows.state_bytes[row]),
        )
        loss = None
        if not brief.goal.synthetic:  # no loss is predicted for random tokens
            loss = predict_loss(prediction.parameters, tokens, unique, brief.vocab_size)
        standing = Standing(
            score=float(scores[row, 0]),
            ratio=tokens / scaling_parameters(prediction.workload.shape, brief.ratio_counts),
            epochs=tokens / unique if unique else None,
            loss=loss,
            against=tuple(violation.name.lower() for violation in chosen.violation if violation.name),
        )
        run = Run(
            prediction=prediction,
            steps=chosen.steps,
            tokens=tokens,
            offer=rows.machines.offers[rows.offer[row]],
            bill=bill,
            standing=standing,
            grounds=grounds_of(device.profile),
        )
        runs.append(run)
    return runs


def make_run(candidates: Candidates, chosen: Selection, *, name: str = "", why: str = "") -> Run:
    """Return one run, with a name and a reason."""
    return make_runs(candidates, [chosen])[0].judged(name=name, why=why)


def config_of(device: Device, run: Run, checkpoint_seconds: float | None = None) -> RunConfig:
    """Return the trainer's configuration of a run.

    `checkpoint_seconds` is the time between checkpoints; None writes only one, at the end.
    """
    workload, goal, shape = run.workload, device.brief.goal, run.workload.shape
    validation = device.brief.validation_tokens
    every, batches = recipe.evaluation(run.steps, run.tokens, workload.micro_tokens, validation)
    config = RunConfig(
        model=shape,
        steps=run.steps,
        micro_batch=workload.micro_batch,
        grad_accum=workload.grad_accum,
        name=f"{shape.family}-d{shape.depth}",
        device=device.profile.device_type,
        precision=workload.precision,
        compile=workload.compile,
        activation_checkpointing=workload.activation_checkpointing,
        sharding=workload.sharding,
        data=DataConfig(path=goal.data, synthetic=goal.synthetic),
        optimizer=recipe.optimizer(workload.optimizer, shape, run.tokens, workload.step_tokens),
        schedule=recipe.schedule(run.steps),
        eval=EvalConfig(every_steps=int(every), tokens=int(batches) * workload.micro_tokens),
        checkpoint=CheckpointConfig(
            every_steps=None, every_seconds=checkpoint_seconds, keep=recipe.KEPT_CHECKPOINTS, final=True
        ),
    )
    return device.profile.kernels.set_in(config)


def grounds_of(profile: Profile) -> Grounds:
    """Return what the predicted speed of a device is based on."""
    return published_grounds(profile.key, profile.spec, calibration=profile.calibration_id)


def published_grounds(
    key: str, spec: GpuSpec | None, *, calibration: str | None = None, own_runs: int = 0,
    own_slowdown: float | None = None,
) -> Grounds:  # fmt: skip
    """Return how many published runs are behind the speed of a GPU, beside a calibration and the user's own runs."""
    generation = spec.generation if spec else None
    same_gpu, same_generation, everything = published_runs(key, generation)
    return Grounds(
        calibration=calibration, generation=generation, card_runs=same_gpu, generation_runs=same_generation,
        all_runs=everything, own_runs=own_runs, own_slowdown=own_slowdown,
    )  # fmt: skip
