"""`advisor adopt`: calibrate and plan any command that trains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from advisor.cli.params import ADOPTED_PLAN_FILE, DEADLINE, SIZE, TOKENS, USD, Number
from advisor.errors import AdvisorError
from advisor.report import render

if TYPE_CHECKING:
    from advisor.store.adopted import Adopted, AdoptedPlan
    from advisor.store.store import Store
    from advisor.workflows.adopt import Adoption


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, metavar="[-- CMD...]", type=click.UNPROCESSED)
@click.option("--name", help="What to call it; without CMD: which adopted command to plan for.")
@click.option("--knob", "knobs", multiple=True, metavar="KNOB=OPTION",
              help="What sets it: micro_batch=--bsz; bsz= for bsz=VALUE, $BSZ for a variable.")  # fmt: skip
@click.option("--budget-seconds", type=Number(min=20), default=240.0, show_default=True, help="For the bursts.")
@click.option("--deadline", type=DEADLINE, help="Plan as many steps as end by then: 3min, 8h, 'Monday 9:00'.")
@click.option("--budget", type=USD, help="Plan as many steps as this pays for, at --price.")
@click.option("--price", type=USD, help="Dollars per hour of this machine.")
@click.option("--steps", type=SIZE, help="Plan so many optimizer steps.")
@click.option("--tokens", type=TOKENS, help="Plan so many tokens; with --epochs: of one epoch.")
@click.option("--samples", type=TOKENS, help="The same in samples, where tokens mean nothing.")
@click.option("--epochs", type=Number(min=0, min_open=True), help="Plan so many passes over the data.")
@click.option("--gpus", type=click.IntRange(1, 1024), help="Plan so many processes. Default: as the command has them.")
@click.option("--out", type=ADOPTED_PLAN_FILE, help="Where to write the plan.  [default: NAME-plan.yaml]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    words: tuple[str, ...],
    name: str | None,
    knobs: tuple[str, ...],
    budget_seconds: float,
    deadline: float | None,
    budget: float | None,
    price: float | None,
    steps: int | None,
    tokens: int | None,
    samples: int | None,
    epochs: float | None,
    gpus: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Calibrate CMD, any command that trains, by short bursts on this machine, and plan a run of it.

    Its knobs (micro-batch, accumulation, sequence length, steps) are found in its help or in the recipe of a known
    trainer, and each is tested: a knob that does nothing is said to be dead. Nothing of CMD is changed and nothing
    installed: its steps are seen by a probe that PyTorch loads, else by its own log. Then: advisor launch PLAN, watch,
    stop, resume and compare as for any run.
    """
    from advisor.adopt.plan import AdoptedGoal, says_how_long
    from advisor.report import adoption as report
    from advisor.report.table import on_console
    from advisor.store.store import default_store
    from advisor.workflows.adopt import plan_adopted, save_plan

    store = default_store()
    done = _measured(store, words, name, knobs, budget_seconds) if words else _known(store, name)
    adopted = done.adopted
    if not as_json:
        render.show(
            on_console(report.knobs_table(adopted)),
            on_console(report.bursts_table(adopted)),
            *report.adoption_lines(done),
        )
    wanted = (deadline, budget, steps, tokens, samples, epochs)
    if all(limit is None for limit in wanted) and not says_how_long(adopted):
        plan, path = None, None
    else:
        goal = AdoptedGoal(
            deadline_seconds=deadline, budget_usd=budget, steps=steps, tokens=tokens, rows=samples, epochs=epochs,
            usd_per_hour=price, gpus=gpus,
        )  # fmt: skip
        plan, path = plan_adopted(adopted, goal), out or Path(f"{adopted.name}-plan.yaml")
        save_plan(plan, path)
    if as_json:
        render.print_json(report.document(done, plan, path))
    elif plan is None:
        render.show(f"next: advisor adopt --name {adopted.name} --deadline 3h")
    else:
        _show_plan(plan, adopted, gpus)
        render.show(f"next: advisor launch {path}")


def _measured(store: Store, words: Sequence[str], name: str | None, knobs: tuple[str, ...], seconds: float) -> Adoption:
    from advisor.workflows.adopt import adopt_command

    with render.progress("starting", seconds) as shown:
        return adopt_command(store, words, name=name, knobs=_knobs(knobs), budget_seconds=seconds,
                             on_event=lambda text, gone: shown(completed=gone, description=text))  # fmt: skip


def _known(store: Store, name: str | None) -> Adoption:
    from advisor.store.adopted import load_adopted
    from advisor.workflows.adopt import adoption_of

    if name is None:
        raise AdvisorError("which command?", "advisor adopt -- python train.py …", exit_code=2)
    return adoption_of(load_adopted(store.home, name))


def _show_plan(plan: AdoptedPlan, adopted: Adopted, gpus: int | None) -> None:
    from advisor.adopt.splits import batch_options
    from advisor.report import adoption as report
    from advisor.report.table import on_console

    options = report.options_table(batch_options(adopted, gpus), plan)
    render.show("", on_console(options), *report.plan_lines(plan, adopted.recipe), "")


def _knobs(given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.split("=", 1) for text in given]
    if bad := next((text for text, pair in zip(given, pairs, strict=True) if len(pair) != 2 or not all(pair)), None):
        raise AdvisorError(f"--knob {bad!r} is not KNOB=OPTION", "like --knob micro_batch=--bsz", exit_code=2)
    return {pair[0]: pair[1] for pair in pairs}
