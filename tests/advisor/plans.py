"""One complete plan for the tests of store, launcher and commands: a run of a few seconds on this CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from advisor.cli.plan import command
from advisor.records import Basis, Candidate, Estimate, Goal, Plan, PlanPrediction, WallClock, Workload
from advisor.store.calibration import Calibration
from advisor.store.store import Store
from advisor.trainers.configured import workload_of_config
from advisor.workflows.calibrate import CalibrationOptions, calibrate
from advisor.workflows.goal import PlanOptions, goal_from
from advisor.workflows.plan import recommend
from trainer.schema import CheckpointConfig, DataConfig, EvalConfig, RunConfig, TelemetryConfig, make_shape

SHAPE = make_shape("nanochat", depth=1, width=32, heads=2, vocab_size=64, seq_len=32)


def goal_of(words: list[str]) -> Goal:
    """The goal that `advisor plan` with these words plans for."""
    with command.make_context("plan", words) as context:
        # what is done with the plan, not what is planned
        beside = ("measure", "out", "everything", "gates", "depths", "as_json")
        beside += ("again_of", "was", "config")
        return goal_from(PlanOptions(**{name: value for name, value in context.params.items() if name not in beside}))


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
    prediction = PlanPrediction(
        parameters=20480,
        flops_per_token=1e5,
        step_seconds=guess(step_seconds),
        tokens_per_second=guess(64 / step_seconds),
        mfu=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=guess(5e8),
        wall_clock=wall,
        cost_usd=guess(0.01),
        energy_kwh=None,
        loss=None,
    )
    chosen = Candidate(
        depth=1,
        width=32,
        parameters=20480,
        micro_batch=2,
        grad_accum=1,
        steps=steps,
        tokens=64 * steps,
        epochs=None,
        tokens_per_second=prediction.tokens_per_second,
        peak_reserved_bytes=prediction.peak_reserved_bytes,
        total_seconds=wall.total_seconds,
        cost_usd=prediction.cost_usd,
        loss=None,
        score=4.2,
    )
    plan = Plan(
        id="plan-small",
        created="2026-11-21T03:00:00+00:00",
        goal=Goal(gpu="cpu", depth=1, ratio=0.1 + 0.2, synthetic=True),
        run=small_run(steps),
        workload=workload,
        usd_per_hour=usd_per_hour,
        price_source="given",
        prediction=prediction,
        ratio=12.0,
        chosen=chosen,
        considered=(chosen, replace(chosen, depth=2, score=float("inf"), rejected="does not fit: 30.1 of 22.0 GiB")),
        reasons=("the only one; it's “small”",),
        warnings=(),
        inputs=("calibration cpu-1",),
    )
    return replace(plan, **changes)


def changed(plan: Plan, *, gpu: str | None = None, gpus: int | None = None, **run) -> Plan:
    """The plan of another run, or of another machine; what it promises stays."""
    config = replace(plan.run, **run)
    work = workload_of_config(config, gpu or plan.workload.gpu, gpus or plan.workload.gpus)
    goal = replace(plan.goal, gpu=work.gpu, gpus=work.gpus)
    return replace(plan, run=config, workload=work, goal=goal, chosen=replace(plan.chosen, steps=config.steps))


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
