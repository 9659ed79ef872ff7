"""One complete plan for the tests of store, launcher and commands: a run of a few seconds on this CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advisor.cli.plan import command
from advisor.offer import Offer
from advisor.options import CalibrationOptions, Goal
from advisor.records import Basis, Bill, Estimate, Plan, Prediction, Run, Standing, WallClock, Workload
from advisor.store.calibration import Calibration
from advisor.store.store import Store
from advisor.trainers.known import workload_of_config
from advisor.workflows.calibrate import calibrate
from advisor.workflows.goal import goal_from
from advisor.workflows.plan import recommend
from trainer.schema import (
    CheckpointConfig,
    DataConfig,
    EvalConfig,
    RunConfig,
    TelemetryConfig,
    make_shape,
    record_from_dict,
)

SHAPE = make_shape("nanochat", depth=1, width=32, heads=2, vocab_size=64, seq_len=32)


def goal_of(words: list[str]) -> Goal:
    """The goal that `advisor plan` with these words plans for."""
    with command.make_context("plan", words) as context:
        # what is done with the plan, not what is planned
        beside = ("measure", "out", "everything", "gates", "depths", "as_json")
        beside += ("origin_path", "was", "config")
        return goal_from({name: value for name, value in context.params.items() if name not in beside})


def guess(value: float, spread: float = 0.1, basis: Basis = Basis.EXTRAPOLATED) -> Estimate:
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), basis=basis)


def small_run(steps: int = 20, **changes) -> RunConfig:
    config = RunConfig(
        model=SHAPE,
        steps=steps,
        micro_batch=2,
        name="small",
        device="cpu",
        precision="fp32",
        eval=EvalConfig(tokens=0),
        checkpoint=CheckpointConfig(every_seconds=None),
        telemetry=TelemetryConfig(hz=0),
        data=DataConfig(synthetic=True),
    )
    return replace(config, **changes)


def small_plan(steps: int = 20, step_seconds: float = 0.01, usd_per_hour: float | None = 3.6, **changes) -> Plan:
    """A plan whose bill is plain arithmetic: steps x step_seconds, plus 3 s start, 1 s evals, 2 s checkpoints."""
    wall = WallClock(
        startup_seconds=guess(3.0),
        compile_seconds=guess(0.0),
        steps_seconds=guess(steps * step_seconds),
        evals_seconds=guess(1.0),
        checkpoints_seconds=guess(2.0),
        total_seconds=guess(6.0 + steps * step_seconds),
    )
    workload = Workload(shape=SHAPE, micro_batch=2, gpu="cpu", precision="fp32")
    prediction = Prediction(
        workload=workload,
        parameters=20480,
        flops_per_token=1e5,
        step_seconds=guess(step_seconds),
        tokens_per_second=guess(64 / step_seconds),
        mfu=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=guess(5e8),
        device_memory_bytes=None,
        fit_probability=None,
        fits=None,
    )
    chosen = Run(
        prediction=prediction,
        steps=steps,
        tokens=64 * steps,
        offer=Offer(gpu="cpu", gpus=1, provider=None, spot=False, usd_per_hour=usd_per_hour, source="given"),
        bill=Bill(wall_clock=wall, cost_usd=guess(0.01)),
        standing=Standing(score=4.2, ratio=12.0, name="balanced"),
    )
    plan = Plan(
        id="plan-small",
        created="2026-11-21T03:00:00+00:00",
        goal=Goal(gpu="cpu", depth=1, ratio=0.1 + 0.2, synthetic=True),
        run=small_run(steps),
        chosen=chosen,
        considered=(chosen.judged(score=float("inf"), why="does not fit: 30.1 of 22.0 GiB"),),
        reasons=("the only one; it's “small”",),
        warnings=(),
        inputs=("calibration cpu-1",),
    )
    return altered(plan, **changes)


def plan_of(document: dict) -> Plan:
    """The plan that `advisor plan --json` printed."""
    return record_from_dict(Plan, document, pass_over_unknown=True)


def altered(plan: Plan, **changes) -> Plan:
    """The plan with other values of fields of its own, of its chosen run, or of that run's parts, by their names."""
    chosen = plan.chosen
    for name in ("prediction", "offer", "bill", "standing"):
        part = getattr(chosen, name)
        mine = {key: changes.pop(key) for key in list(changes) if key in part.__dataclass_fields__}
        chosen = replace(chosen, **{name: replace(part, **mine)})
    theirs = {key: changes.pop(key) for key in list(changes) if key in ("steps", "tokens", "grounds")}
    return replace(plan, **({"chosen": replace(chosen, **theirs)} | changes))


def changed(plan: Plan, *, gpu: str | None = None, gpus: int | None = None, **run) -> Plan:
    """The plan of another run, or of another machine; what it promises stays."""
    config = replace(plan.run, **run)
    work = workload_of_config(config, gpu or plan.workload.gpu, gpus or plan.workload.gpus)
    offer = replace(plan.offer, gpu=work.gpu, gpus=work.gpus)
    goal = replace(plan.goal, gpu=work.gpu, gpus=work.gpus)
    plan = altered(plan, run=config, workload=work, goal=goal, steps=config.steps)
    return replace(plan, chosen=replace(plan.chosen, offer=offer))


SIZES = ("--seq-len", "64", "--vocab-size", "256", "--depth", "2")  # of models that are measured here


def measured_here(home: Path) -> Calibration:
    """This CPU, measured for a minute at those sizes."""
    options = CalibrationOptions(gpu="cpu", depths=(1, 2), seq_len=64, vocab_size=256, budget_seconds=60.0)
    return calibrate(options, Store(home)).calibration


def slowed(calibration: Calibration, factor: float) -> Calibration:
    """The same session on a machine whose every step takes `factor` times as long."""
    ceilings = calibration.ceilings
    return replace(
        calibration,
        id=f"{calibration.id}-elsewhere",
        bursts=tuple(replace(b, step_seconds=tuple(s * factor for s in b.step_seconds)) for b in calibration.bursts),
        ceilings=replace(
            ceilings,
            matmul=tuple(replace(m, seconds=tuple(s * factor for s in m.seconds)) for m in ceilings.matmul),
            copy=tuple(replace(c, seconds=tuple(s * factor for s in c.seconds)) for c in ceilings.copy),
            launch_seconds=tuple(s * factor for s in ceilings.launch_seconds),
        ),
    )


_PLANS: dict[str, Plan] = {}  # by calibration and question: the same are asked again and again


def planned(home: Path, calibration: Calibration, *words: str) -> Plan:
    store = Store(home)
    store.save_calibration(calibration)
    key = repr((calibration, words))
    if key not in _PLANS:
        _PLANS[key] = recommend(goal_of(["--gpu", "cpu", "--synthetic", *words]), store)
    return _PLANS[key]
