"""`advisor quickstart`: all steps on this machine: data, calibration, plan, run, comparison."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from advisor import units
from advisor.cli.verb import json_asked, options, verb
from advisor.documents import print_json
from advisor.errors import AdvisorError
from advisor.options import CalibrationOptions, Goal, Kind
from advisor.report import render

if TYPE_CHECKING:
    from advisor.records import Plan
    from advisor.store.calibration import Cost
    from advisor.store.store import Store
    from advisor.workflows.compare import Reviewed

_CPU_BUDGET_SECONDS = 60.0  # for the calibration: two thirds of what `advisor calibrate` takes by itself
_VOCABULARY = {"cpu": 4096, "cuda": 32768}
# On a two-core CPU at depth 2, starting the trainer and 20 steps, the fewest worth doing, took 3 to 6 s. A shorter
# deadline fails on any machine and is refused before the minutes of calibration; the plan refuses the rest.
_LEAST_DEADLINE_SECONDS = 10.0


@verb()
@options(
    *("gpu", "budget_seconds", "deadline", "one_price"),
    gpu="auto, cpu, or the GPU that you expect in this machine.",
    budget_seconds="Time for the calibration. Default: 60s on a CPU, 120s on a GPU.",
    deadline={"kind": Kind.SECONDS, "default": "60s", "help": "Time limit of the training run."},
    one_price="Dollars per GPU-hour. Default: 0.",
)
def command(gpu: str, budget_seconds: float | None, deadline: float, price: float | None) -> int:
    """Prepare a small corpus, calibrate, plan, train the recommended run, and compare it with its prediction.

    Takes under three minutes. Needs no GPU, no account and no network.
    """
    from advisor.hardware.here import device_key, first_card

    # Refuse what cannot work before minutes are spent on it.
    if device_key(gpu) != "cpu" and first_card() is None:
        hint = "run this on the machine with the GPU, or try what is here: advisor quickstart"
        raise AdvisorError(f"there is no {gpu} here: this machine has no NVIDIA GPU", hint)
    if deadline < _LEAST_DEADLINE_SECONDS:
        message = f"no run ends within {units.format_seconds(deadline)}: starting it alone takes seconds"
        hint = f"give --deadline at least {units.format_seconds(_LEAST_DEADLINE_SECONDS)}; the default is 60 s"
        raise AdvisorError(message, hint, exit_code=2)
    from advisor.cli.calibrating import is_rejected
    from advisor.cli.calibrating import run as calibrate
    from advisor.laws.held_out import FEWEST_TO_HOLD_OUT
    from advisor.report.calibration import lines
    from advisor.report.plan import bill, sentence
    from advisor.report.table import on_console
    from advisor.store.store import default_store
    from advisor.workflows.compare import review, to_document
    from advisor.workflows.data import prepare_data
    from advisor.workflows.plan import recommend

    store = default_store()
    render.remark("[1/5] preparing text that every machine has: the Python standard library")
    vocabulary = _VOCABULARY["cpu" if device_key(gpu) == "cpu" else "cuda"]
    data = store.home / "data" / f"python-stdlib-{vocabulary}"
    prepare_data(None, data, vocab_size=vocabulary, force=True)  # ours; another Python's library differs
    render.remark("[2/5] calibrating: short training bursts on this machine")
    if budget_seconds is None and device_key(gpu) == "cpu":
        budget_seconds = _CPU_BUDGET_SECONDS
    options = CalibrationOptions(gpu=gpu, data=data, budget_seconds=budget_seconds, price=price)
    done = calibrate(options, fewest=FEWEST_TO_HOLD_OUT)
    if is_rejected(done):  # one disturbed minute decides nothing
        longer = 2 * done.calibration.settings.budget_seconds
        render.remark(f"the calibration was rejected; once more, with {units.format_seconds(longer)}")
        done = calibrate(replace(options, budget_seconds=longer), fewest=FEWEST_TO_HOLD_OUT)
    if not json_asked():
        render.show(*lines(done, bursts=False), "")
    render.remark(f"[3/5] planning the best run that ends within {units.format_seconds(deadline)}")
    goal = Goal(gpu=done.profile.key, data=str(data.resolve()), deadline_seconds=deadline,
                usd_per_gpu_hour=price or 0.0, precision=done.profile.precision, compile=done.profile.compile,
                )  # fmt: skip
    plan = recommend(goal, store, measure=True, on_text=render.remark)
    plan_path = store.save_plan(plan)
    if not json_asked():  # without the rejected runs, which the plan's file and `advisor plan` have
        render.show(sentence(plan), "", on_console(bill(plan)), "", *(f"- {reason}" for reason in plan.reasons))
        render.show(*(f"! {warning}" for warning in plan.warnings))
        depths = len({run.depth for run in (plan.chosen, *plan.considered)})
        render.show(
            f"{1 + len(plan.considered)} candidates of {depths} depths were compared; all are in {plan_path}", ""
        )
    render.remark("[4/5] training it")
    run_dir = _train(plan, store)
    render.remark("[5/5] comparing the run with its prediction")
    reviewed = review(store, str(run_dir), record=True)
    if json_asked():
        cost = {"calibration": done.calibration.cost, "plan": plan_path, "run_dir": run_dir}
        print_json("quickstart", cost | {"comparison": to_document(reviewed)})
    else:
        _finish(reviewed, done.calibration.cost, run_dir, plan_path, data)
    return 0


def _train(plan: Plan, store: Store) -> Path:
    """Launch the plan and follow it to its end; raises AdvisorError if it did not complete."""
    from advisor.cli.following import follow
    from advisor.engines.guards import GuardLimits
    from advisor.workflows.launch import launch
    from trainer.schema import Outcome

    handle = launch(
        store, plan, limits=GuardLimits(from_plan=False)
    )  # a newcomer's first run is not cut off by seconds
    progress = follow(handle.run_dir, store)
    if progress is None:
        raise AdvisorError("interrupted, but the run continues", f"advisor watch {handle.run_dir}", exit_code=130)
    if progress.outcome != Outcome.COMPLETED:
        ended = progress.outcome or progress.state
        raise AdvisorError(f"the run ended as {ended}", f"read {handle.run_dir}/stdout.log")
    return handle.run_dir


def _finish(reviewed: Reviewed, cost: Cost, run_dir: Path, plan_path: Path, data: Path) -> None:
    from advisor.report.terminal import scored_run

    money = "" if cost.usd is None else f" and {units.format_usd(cost.usd)}"
    # the shell may not find `advisor`, because make installs it into a virtual environment
    first = "" if shutil.which("advisor") else f" (first: source {Path(sys.prefix) / 'bin' / 'activate'})"
    render.show(
        *scored_run(reviewed.name, reviewed.scored),
        "",
        f"run folder: {run_dir}",
        f"the calibration took {units.format_seconds(cost.seconds)}{money}",
        "",
        f"try next{first}:",
        f"  advisor plan --deadline 30min --data {data} --out plan.yaml     what a longer run should be",
        f"  advisor launch {plan_path}     the same run again, to see how the two differ",
        "  advisor predict --gpu h200 --depth 20 --micro-batch 16 --seq-len 2048 --vocab-size 32768     another GPU",
    )
