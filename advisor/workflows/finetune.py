"""A finished run gone on from, stage by stage: other data, a fresh schedule, what each stage takes and costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.laws import pace
from advisor.laws.intervals import Z80
from advisor.records import Basis, Estimate
from advisor.store.disk import write_atomic
from advisor.store.run_folder import read_launch, read_run_config
from advisor.units import HOUR
from advisor.workflows.data import read_data
from trainer.runlog import LOG_NAME, RunLogError, load_run_log
from trainer.schema import CheckpointConfig, DataConfig, RunConfig, ScheduleConfig, StopConfig, dump_config

_WARMUP, _EVALUATIONS = 0.03, 10  # of a stage's steps; evaluations on its way
RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of a pipeline; it begins with the weights that the one before it leaves."""

    name: str
    config: RunConfig
    run_dir: Path  # where it is to lie, so that the next one finds it
    tokens: int
    learnt_tokens: int | None  # of conversations, in one pass; None: every token
    seconds: Estimate
    usd: Estimate | None  # None: no price is known


def plan_stages(
    run_dir: Path,
    data: Sequence[Path],
    out: Path,
    *,
    epochs: float = 2.0,
    learning_rate: float = 0.1,
    usd_per_hour: float | None = None,
) -> tuple[Stage, ...]:
    """A stage for each token folder, in order: model, batch and kind of device as the run had them, on one device.

    Times are by the run's own pace, of several cards times their number. `learning_rate` is a share of the peak of the
    stage before. The price is that of one of the run's devices unless one is given. Raises AdvisorError for what is no
    run, no token folder, or of a vocabulary that the model does not have.
    """
    base, launch, pace_of_run = read_run_config(run_dir), read_launch(run_dir), _Pace.of(run_dir)
    price = usd_per_hour
    if price is None and launch is not None and launch.usd_per_hour is not None:
        price = launch.usd_per_hour / pace_of_run.cards
    # a configuration without a plan is started on one card: the same batch there, in as many more micro-batches
    base = replace(base, grad_accum=base.grad_accum * pace_of_run.cards)
    stages: list[Stage] = []
    before, origin = base, run_dir.resolve()
    for number, folder in enumerate(data, 1):
        name = f"{number}-{folder.resolve().name}"
        config, learnt = _config(before, origin, folder, name, epochs, learning_rate)
        seconds = pace_of_run.seconds(config)
        stages.append(Stage(
            name=name,
            config=config,
            run_dir=out.resolve() / RUNS / name,
            tokens=config.steps * pace_of_run.step_tokens,
            learnt_tokens=learnt,
            seconds=seconds,
            usd=None if price is None else seconds.scaled(price / HOUR),
        ))  # fmt: skip
        before, origin = config, stages[-1].run_dir
    return tuple(stages)


def write_stages(stages: Sequence[Stage], out: Path) -> list[str]:
    """Write each stage's configuration, and give the commands that run them one after the other."""
    commands = []
    for stage in stages:
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
    assert meta is not None  # there is a folder
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
        stop=StopConfig(hang_factor=before.stop.hang_factor),  # limits and gates were of the run before
    )
    return config, meta.counted_tokens


@dataclass(frozen=True, kw_only=True)
class _Pace:
    """What a run's own log says of its steps, and of what lies around them."""

    cards: int
    step_tokens: int  # over all of them
    steps: np.ndarray  # seconds of each, as one of them would take
    eval_seconds: float
    eval_tokens: float
    fixed_seconds: float  # start-up and the last checkpoint

    @staticmethod
    def of(run_dir: Path) -> _Pace:
        try:
            log = load_run_log(run_dir / LOG_NAME)
        except (RunLogError, OSError) as error:
            raise AdvisorError(f"{run_dir} has no log to learn its pace from: {error}", "advisor runs") from error
        if log.header is None or not log.steps:
            raise AdvisorError(f"{run_dir} has done no step yet: its pace is not known", "let it train first")
        seconds = np.array([float(step["seconds"]) for step in log.steps])
        cards = int(log.header.get("world_size") or 1)
        return _Pace(
            cards=cards,
            step_tokens=int(log.header["tokens_per_step"]),
            steps=cards * seconds[min(3, len(seconds) - 1) :],  # the first ones warm up
            eval_seconds=cards * sum(float(e["seconds"]) for e in log.evals),
            eval_tokens=sum(float(e["tokens"]) for e in log.evals),
            fixed_seconds=float(log.header.get("startup_seconds") or 0.0)
            + max((float(c["seconds"]) for c in log.checkpoints), default=0.0),
        )

    def seconds(self, config: RunConfig) -> Estimate:
        """Everything that a stage takes; steps and evaluations as fast as the run's were."""
        evaluations = config.steps // (config.eval.every_steps or config.steps) + 1
        rate = self.eval_seconds / self.eval_tokens if self.eval_tokens else 0.0
        rest = self.fixed_seconds + evaluations * config.eval.tokens * rate
        steps = config.steps * pace.mean_seconds(self.steps)
        spread = math.hypot(pace.mean_error(self.steps), pace.drift_spread(self.steps, config.steps))
        low, high = (steps * math.exp(sign * Z80 * spread) for sign in (-1, 1))
        return Estimate(value=rest + steps, low=rest + low, high=rest + high, basis=Basis.EXTRAPOLATED)
