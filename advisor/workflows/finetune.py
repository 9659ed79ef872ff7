"""Plans one more stage of training after a run, on other data, with its time and cost."""

from __future__ import annotations

import math
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

_WARMUP, _EVALUATIONS = 0.03, 10  # share of the stage's steps; evaluations of the stage
RUNS = "runs"


@dataclass(frozen=True, kw_only=True)
class FinetuneStage:
    """A run that starts from the weights of another run."""

    name: str
    config: RunConfig | None  # None: left out of the JSON, since the file has it
    steps: int
    run_dir: Path  # the folder it will have
    tokens: int
    learnt_tokens: int | None  # of conversations, in one pass; None: every token
    seconds: Estimate
    usd: Estimate | None  # None: no price is known


def plan_stage(
    run_dir: Path,
    data: Path,
    out: Path,
    *,
    epochs: float = 2.0,
    learning_rate: float = 0.1,
    usd_per_gpu_hour: float | None = None,
) -> FinetuneStage:
    """Returns the stage that trains a run further on a token folder: same model and batch, on one device of that kind.

    The time follows the run's measured pace; that of several GPUs is multiplied by their number. `learning_rate` is a
    share of the run's peak. The price is that of one of the run's devices unless one is given. Raises AdvisorError if
    the run has not trained, or `data` is not a token folder or has a vocabulary that the model does not have.
    """
    before, launch = read_run_config(run_dir), read_launch(run_dir)
    try:
        log = load_run_log(run_dir / LOG_NAME)
    except (RunLogError, OSError) as error:
        raise AdvisorError(f"{run_dir} has no log that shows its speed: {error}", "advisor runs") from error
    if log.header is None or not log.steps:
        raise AdvisorError(f"{run_dir} has not done a step yet, so its speed is unknown", "let it train first")
    gpus = int(log.header.get("world_size") or 1)
    # a configuration without a plan runs on one GPU, with more micro-batches to keep the batch the same
    before = replace(before, grad_accum=before.grad_accum * gpus)
    config, learnt = _config(before, run_dir.resolve(), data, epochs, learning_rate)

    took = np.array([float(step["seconds"]) for step in log.steps])
    each = gpus * took[min(3, len(took) - 1) :]  # time on a single GPU; the first steps are warm-up
    eval_tokens = sum(float(e["tokens"]) for e in log.evals)
    rate = gpus * sum(float(e["seconds"]) for e in log.evals) / eval_tokens if eval_tokens else 0.0
    last_save = max((float(c["seconds"]) for c in log.checkpoints), default=0.0)
    evaluations = config.steps // (config.eval.every_steps or config.steps) + 1
    rest = float(log.header.get("startup_seconds") or 0.0) + last_save + evaluations * config.eval.tokens * rate
    steps = config.steps * pace.mean_seconds(each)
    spread = math.hypot(pace.mean_error(each), pace.drift_spread(each, config.steps))
    low, high = (rest + steps * math.exp(sign * Z80 * spread) for sign in (-1, 1))
    seconds = Estimate(value=rest + steps, low=low, high=high, basis=Basis.EXTRAPOLATED)

    hourly = launch.usd_per_hour if launch is not None else None
    price = usd_per_gpu_hour if usd_per_gpu_hour is not None else None if hourly is None else hourly / gpus
    return FinetuneStage(
        name=config.name,
        config=config,
        steps=config.steps,
        run_dir=out.resolve() / RUNS / config.name,
        tokens=config.steps * int(log.header["tokens_per_step"]),
        learnt_tokens=learnt,
        seconds=seconds,
        usd=None if price is None else seconds.scaled(price / HOUR),
    )


def write_stage(stage: FinetuneStage, out: Path) -> str:
    """Write the stage's configuration; returns the command that starts it. Raises AdvisorError if the file exists."""
    path = out / f"{stage.name}.yaml"
    if path.exists():
        raise AdvisorError(f"{path} already exists", "name another --out")
    assert stage.config is not None
    write_atomic(path, dump_config(stage.config))
    return f"advisor launch {path} --run-dir {stage.run_dir}"


def _config(before: RunConfig, origin: Path, folder: Path, epochs: float, share: float) -> tuple[RunConfig, int | None]:
    meta = read_data(folder)
    assert meta is not None  # the stage has a token folder
    if meta.vocab_size > before.model.vocab_size:
        hint = "prepare it with --tokenizer of the run's own data"
        sizes = f"{meta.vocab_size:,}, but the model's vocabulary is {before.model.vocab_size:,}"
        raise AdvisorError(f"{folder} was tokenised with a vocabulary of {sizes}", hint)
    steps = max(1, math.ceil(epochs * meta.tokens / before.tokens_per_step()))
    optimizer = before.optimizer
    config = replace(
        before,
        name=folder.resolve().name,
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
