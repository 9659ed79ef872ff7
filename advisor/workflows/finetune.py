"""Plans further stages of training after a run, each with its data, schedule, time and cost.

The run may be only a plan. It is then the first stage, and all stages are planned at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.laws import pace
from advisor.laws.intervals import Z80
from advisor.prediction.intervals import sum_shared
from advisor.prediction.wallclock import planned_checkpoints, planned_evals
from advisor.records import Basis, Estimate, Plan
from advisor.store.disk import write_atomic
from advisor.store.plan_files import load_plan
from advisor.store.run_folder import read_launch, read_run_config
from advisor.units import HOUR
from advisor.workflows.data import read_data
from trainer.runlog import LOG_NAME, RunLogError, load_run_log
from trainer.schema import CheckpointConfig, DataConfig, RunConfig, ScheduleConfig, StopConfig, dump_config

_WARMUP, _EVALUATIONS = 0.03, 10  # share of a stage's steps; evaluations per stage
RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of a pipeline, which starts from the weights of the previous stage."""

    name: str
    config: RunConfig | None  # None: the stage is a plan with its own file
    steps: int
    run_dir: Path  # the folder it will have, from which the next stage loads weights
    tokens: int
    learnt_tokens: int | None  # of conversations, in one pass; None: every token
    seconds: Estimate
    usd: Estimate | None  # None: no price is known
    plan: Path | None = None  # the plan file that starts it


def plan_stages(
    source: Path,
    data: Sequence[Path],
    out: Path,
    *,
    epochs: float = 2.0,
    learning_rate: float = 0.1,
    usd_per_gpu_hour: float | None = None,
) -> tuple[Stage, ...]:
    """Returns one stage per token folder, in order: the run's model, batch and kind of device, on one device.

    `source` is a run folder, or a plan.yaml, whose run becomes the first stage. Times follow the run's measured pace or
    the plan's prediction; those of several GPUs are multiplied by their number. `learning_rate` is a share of the
    previous stage's peak. The price is that of one of the run's devices unless one is given. Raises AdvisorError if
    `source` is not a run, or a data folder is not a token folder or has a vocabulary that the model does not have.
    """
    stages: list[Stage] = []
    if source.is_file():
        plan = load_plan(source)
        base, pace_of_run, hourly = plan.run, _pace_of_plan(plan), plan.offer.usd_per_hour
        origin = out.resolve() / RUNS / f"0-{base.name}"
        stages.append(Stage(
            name=origin.name,
            config=None,
            steps=plan.run.steps,
            run_dir=origin,
            tokens=plan.chosen.tokens,
            learnt_tokens=None,
            seconds=plan.chosen.total_seconds,
            usd=plan.chosen.cost_usd,
            plan=source,
        ))  # fmt: skip
    else:
        base, pace_of_run, launch = read_run_config(source), _pace_of_run(source), read_launch(source)
        hourly, origin = launch.usd_per_hour if launch is not None else None, source.resolve()
    own = hourly / pace_of_run.cards if hourly is not None else None
    price = usd_per_gpu_hour if usd_per_gpu_hour is not None else own
    # a configuration without a plan runs on one GPU, with more micro-batches to keep the batch the same
    before = replace(base, grad_accum=base.grad_accum * pace_of_run.cards)
    for number, folder in enumerate(data, 1):
        name = f"{number}-{folder.resolve().name}"
        before, learnt = _config(before, origin, folder, name, epochs, learning_rate)
        seconds, origin = pace_of_run.seconds(before), out.resolve() / RUNS / name
        stages.append(Stage(
            name=name,
            config=before,
            steps=before.steps,
            run_dir=origin,
            tokens=before.steps * pace_of_run.step_tokens,
            learnt_tokens=learnt,
            seconds=seconds,
            usd=None if price is None else seconds.scaled(price / HOUR),
        ))  # fmt: skip
    return tuple(stages)


def in_all(stages: Sequence[Stage]) -> tuple[Estimate, Estimate | None]:
    """Returns the seconds and dollars of all stages. They share the error of their pace, so interval ends add up."""
    costs = [stage.usd for stage in stages if stage.usd is not None]
    seconds = sum_shared(*(stage.seconds for stage in stages))
    return seconds, sum_shared(*costs) if len(costs) == len(stages) else None


def write_stages(stages: Sequence[Stage], out: Path) -> list[str]:
    """Write each stage's configuration; returns the commands that run them in order."""
    commands = []
    for stage in stages:
        if stage.config is None:
            commands.append(f"advisor launch {stage.plan} --run-dir {stage.run_dir}")
            continue
        path = out / f"{stage.name}.yaml"
        if path.exists():
            raise AdvisorError(f"{path} is there already", "name another --out")
        write_atomic(path, dump_config(stage.config))
        commands.append(f"advisor launch {path} --run-dir {stage.run_dir}")
    return commands


def _config(
    before: RunConfig, origin: Path, folder: Path, name: str, epochs: float, share: float
) -> tuple[RunConfig, int | None]:
    meta = read_data(folder)
    assert meta is not None  # the stage has a token folder
    if meta.vocab_size > before.model.vocab_size:
        hint = "prepare it with --tokenizer of the run's own data"
        raise AdvisorError(f"{folder} has {meta.vocab_size:,} tokens, the model {before.model.vocab_size:,}", hint)
    steps = max(1, math.ceil(epochs * meta.tokens / before.tokens_per_step()))
    optimizer = before.optimizer
    config = replace(
        before,
        name=name,
        steps=steps,
        init_from=str(origin),
        data=DataConfig(path=str(folder.resolve())),
        optimizer=replace(
            optimizer,
            learning_rate=share * optimizer.learning_rate,
            muon_learning_rate=share * optimizer.muon_learning_rate,
        ),
        schedule=ScheduleConfig(warmup_steps=round(_WARMUP * steps), final_fraction=0.0),
        eval=replace(before.eval, every_steps=max(1, steps // _EVALUATIONS), tokens=before.eval.tokens or 65536),
        checkpoint=CheckpointConfig(),
        stop=StopConfig(hang_factor=before.stop.hang_factor),  # the previous run's limits and gates do not apply
    )
    return config, meta.counted_tokens


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """The pace of a run: its GPUs, the tokens per step over all GPUs, and the time of a stage on one GPU."""

    cards: int
    step_tokens: int
    seconds: Callable[[RunConfig], Estimate]


def _pace_of_run(run_dir: Path) -> _Pace:
    """Returns the pace of a run that has trained, from its log: steps and evaluations keep their speed."""
    try:
        log = load_run_log(run_dir / LOG_NAME)
    except (RunLogError, OSError) as error:
        raise AdvisorError(f"{run_dir} has no log to learn its pace from: {error}", "advisor runs") from error
    if log.header is None or not log.steps:
        raise AdvisorError(f"{run_dir} has done no step yet: its pace is not known", "let it train first")
    took = np.array([float(step["seconds"]) for step in log.steps])
    cards = int(log.header.get("world_size") or 1)
    each = cards * took[min(3, len(took) - 1) :]  # time on a single GPU; the first steps are warm-up
    eval_tokens = sum(float(e["tokens"]) for e in log.evals)
    rate = cards * sum(float(e["seconds"]) for e in log.evals) / eval_tokens if eval_tokens else 0.0
    last_save = max((float(c["seconds"]) for c in log.checkpoints), default=0.0)
    fixed = float(log.header.get("startup_seconds") or 0.0) + last_save

    def seconds(config: RunConfig) -> Estimate:
        evaluations = config.steps // (config.eval.every_steps or config.steps) + 1
        rest = fixed + evaluations * config.eval.tokens * rate
        steps = config.steps * pace.mean_seconds(each)
        spread = math.hypot(pace.mean_error(each), pace.drift_spread(each, config.steps))
        low, high = (steps * math.exp(sign * Z80 * spread) for sign in (-1, 1))
        return Estimate(value=rest + steps, low=rest + low, high=rest + high, basis=Basis.EXTRAPOLATED)

    return _Pace(cards=cards, step_tokens=int(log.header["tokens_per_step"]), seconds=seconds)


def _pace_of_plan(plan: Plan) -> _Pace:
    """Returns the pace that a plan predicts, on a machine that is already there and set up."""
    clock, cards = plan.bill.wall_clock, plan.workload.gpus
    own = planned_evals(plan.run) * plan.run.eval.tokens
    checkpoints = max(1, planned_checkpoints(plan.run, clock.steps_seconds.value + clock.evals_seconds.value))

    def seconds(config: RunConfig) -> Estimate:
        steps = plan.chosen.step_seconds.scaled(cards * config.steps)
        save = clock.checkpoints_seconds.scaled(1 / checkpoints)
        parts = [clock.startup_seconds, clock.compile_seconds, steps, save]
        if own:
            evaluated = planned_evals(config) * config.eval.tokens
            parts.append(clock.evals_seconds.scaled(cards * evaluated / own))
        return replace(sum_shared(*parts), basis=Basis.EXTRAPOLATED)

    return _Pace(cards=cards, step_tokens=plan.workload.step_tokens, seconds=seconds)
