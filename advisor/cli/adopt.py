"""`advisor adopt`: calibrate and plan any command that trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from advisor.cli import DONE
from advisor.cli.verb import ADOPTED_PLAN_FILE, json_asked, options, options_in, verb
from advisor.documents import print_json
from advisor.errors import AdvisorError
from advisor.options import AdoptedGoal, filled
from advisor.report import render


@verb(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[-- CMD...]", type=click.UNPROCESSED)
@click.option("--name", help="Name of the adopted command. Without CMD, plan for the command that has this name.")
@click.option("--knob", "knobs", multiple=True, metavar="KNOB=OPTION",
              help="How CMD sets a knob, e.g. micro_batch=--bsz, micro_batch=bsz= or micro_batch=$BSZ.")  # fmt: skip
@options("budget_seconds", budget_seconds={"default": "240s", "least": 20.0, "help": "Time for the bursts."})
@options_in(AdoptedGoal)
@click.option("--out", type=ADOPTED_PLAN_FILE, help="Where to write the plan.  [default: NAME-plan.yaml]")
def command(words: tuple[str, ...], name: str | None, knobs: tuple[str, ...], budget_seconds: float,
            out: Path | None, **wanted: Any) -> int:  # fmt: skip
    """Calibrate any training command CMD with short bursts on this machine, and plan a run of it.

    The knobs of CMD (micro-batch, accumulation, sequence length, steps) are taken from its help or from the recipe of a
    known trainer. Each knob is tested, and one without effect is reported as dead. CMD is not changed and nothing is
    installed: a probe that PyTorch loads times its steps, or else they are read from its log. Then use advisor launch
    PLAN, watch, stop, resume and compare as for any run.
    """
    from advisor.adopt.plan import batch_options
    from advisor.report import adoption as report
    from advisor.report.table import on_console
    from advisor.store.adopted import load_adopted
    from advisor.store.store import default_store
    from advisor.workflows.adopt import adopt_command, can_be_planned, named_knobs, plan_adopted, save_plan

    store = default_store()
    if words:
        named = named_knobs(knobs)
        with render.progress("starting", budget_seconds) as shown:
            adopted = adopt_command(store, words, name=name, knobs=named, budget_seconds=budget_seconds,
                                    on_event=lambda text, gone: shown(completed=gone, description=text))  # fmt: skip
    elif name is not None:
        adopted = load_adopted(store.home, name)
    else:
        raise AdvisorError("which command?", "advisor adopt -- python train.py …", exit_code=2)
    plan, path = None, None
    if not json_asked():
        tables = on_console(report.knobs_table(adopted)), on_console(report.bursts_table(adopted))
        render.show(*tables, *report.adoption_lines(adopted))
    goal = filled(AdoptedGoal, wanted)
    if can_be_planned(adopted, goal):
        plan, path = plan_adopted(adopted, goal), out or Path(f"{adopted.name}-plan.yaml")
        save_plan(plan, path)
    if json_asked():
        print_json("adopt", report.document(adopted, plan, path))
    elif plan is None:
        render.show(f"next: advisor adopt --name {adopted.name} --deadline 3h")
    else:
        table = report.options_table(batch_options(adopted, goal.gpus), plan)
        render.show("", on_console(table), *report.plan_lines(plan, adopted.recipe), "", f"next: advisor launch {path}")
    return DONE
