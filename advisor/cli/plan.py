"""`advisor plan`: the best run within a budget, a deadline, a number of tokens, or none of these."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli import DONE, NOTHING_FITS
from advisor.cli import verb as declare
from advisor.cli.verb import DEADLINE_AT, FILE, json_asked, options, print_answer, refused, verb
from advisor.documents import print_json
from advisor.errors import AdvisorError
from advisor.options import OPTIONS, Goal, Kind
from advisor.records import Plan, Workload
from advisor.report import render
from advisor.workflows.goal import goal_from, readings, refuse_idle_budget

if TYPE_CHECKING:
    from advisor.store.store import Store
    from advisor.workflows.replan import Origin, Replan

PREPARED = "data"  # the token folder that a next step names if the plan has none


@verb(cls=declare.SectionedCommand)
@click.option("--from", "origin_path", metavar="RUN|LOG", help="Plan this run again, with its model, tokens, global "
              "batch and precision, on the same GPUs or on the GPUs given here.")  # fmt: skip
@click.option(
    "--was",
    type=declare.GPU,
    metavar="GPU:N",
    help="The GPUs on which the run in --from was trained, e.g. h100:8, if its log does not name them.",
)
@click.option("--config", type=FILE,
              help="Configuration file of the run in --from, if its log does not contain it.")  # fmt: skip
@click.option("--like", type=FILE, metavar="PLAN.yaml", help="Plan again for the goal of this plan, by the calibration "
              "of this machine and within what is left of its limits.")  # fmt: skip
@declare.option("spent", Kind.SECONDS, "With --like: time that is used up of its limits, e.g. 3min.", least=0)
@options("may_change", "stop_if_over", may_change="With --like: let the new plan also change the depth.",
         stop_if_over="With --like: exit with 3 if the planned work takes this much longer, e.g. 10%.")  # fmt: skip
@options(*OPTIONS)
@click.option(
    "--measure", is_flag=True, help="Train for a few seconds with the chosen configuration, to measure its speed."
)
@options("gate", "depths")
@click.option(
    "--out",
    type=declare.PLAN_FILE,
    help="Write the plan to this file, ready for `advisor launch`. "
    "With --finetune or --layout any: the file from which its --software starts.",
)
@click.option("--all", "everything", is_flag=True, help="Show every table and reason, not only the answer.")
@declare.refused_parallelism
@refused("plan a fine-tune: advisor plan --gpu any --model llama-3-8b --finetune qlora --examples 50k", "--qlora",
         takes_value=False)  # fmt: skip
@click.pass_context
def command(context: click.Context, origin_path: str | None, was: str | None, config: Path | None, like: Path | None,
            spent: float | None, may_change: str | None, stop_if_over: float | None, measure: bool,
            gate: tuple[str, ...], depths: tuple[int, ...] | None, out: Path | None, everything: bool,
            **typed: Any) -> int:  # fmt: skip
    """Recommend a model, a batch and the GPUs for a goal; --all shows the whole bill and the rejected runs.

    With --gpu any it searches all GPUs that can be rented, at every number of GPUs. Without any limit it plans the
    deepest model that finishes within a day (an hour on a CPU) at the family's usual tokens per parameter.

    With --from it plans a finished run, or the run in a log, again on other GPUs and compares the two. Other options
    replace settings of that run, and its measured speed improves the prediction.
    """
    from advisor.planning.stages import with_gates
    from advisor.report.brief import in_brief, recommendation
    from advisor.report.plan import document
    from advisor.report.table import on_console
    from advisor.store.store import default_store
    from advisor.workflows.plan import plan_details, recommend

    store = default_store()
    if like is not None:
        return _show_like(context, like, store, out)
    if (spent, may_change, stop_if_over) != (None, None, None):
        message = "--spent, --may-change and --stop-if-over are of --like"
        raise AdvisorError(message, "name the plan: --like plan.yaml", exit_code=2)
    stated, origin = _stated(context, (origin_path, was, config), typed, store)
    goal = goal_from(stated | {"deadline_at": context.meta.get(DEADLINE_AT)})
    for reading in readings(typed):
        render.remark(reading)
    refuse_idle_budget(goal)
    if goal.needs_other_software:
        if origin is not None or gate or depths or measure:
            message = "--from, --gate, --depths and --measure are of the trainer here, and other software trains this"
            raise AdvisorError(message, "leave them out", exit_code=2)
        return _show_for_other_software(goal, store, out)
    seen = origin.seen if origin else None
    everything = everything or depths is not None or goal.download_bytes_per_second is not None
    shown = everything or json_asked()
    brief = not (shown or measure or out or origin)
    plan = recommend(goal, store, measure=measure, brief=brief, on_text=render.remark, seen=seen)
    plan, replanned, current = _with_origin(plan, origin, store)
    plan = with_gates(plan, gate)
    if out is not None:
        from advisor.workflows.launch import refuse_other_software

        refuse_other_software(plan)
    path = store.save_plan(plan, out) if out is not None else None
    more = plan_details(plan, store, depths=depths or (), seen=seen, current=current) if shown else None
    if json_asked():
        run = {"from": replanned} if replanned is not None else {}
        print_json("plan", document(plan, more) | run | {"path": path})
        return DONE
    if replanned is not None:
        from advisor.report.brief import against_origin, origin_sentences

        render.show(on_console(against_origin(replanned, plan)), *origin_sentences(replanned), "")
    render.show(*(recommendation(plan, more) if everything else in_brief(plan)), "")
    if os.environ.get("ADVISOR_LEDGER", "").strip():
        from advisor.workflows.team import earlier_runs, earlier_sentence

        same_model = [run for run in earlier_runs(store, plan, 1) if "model" not in run.differs]
        render.show(*(f"trained before: {earlier_sentence(run)}" for run in same_model))
    given = {"--from": origin_path, "--was": was, "--config": config}
    _show_next(plan, path, _typed(goal, given, gate, measure=measure))
    return DONE


def _show_like(context: click.Context, path: Path, store: Store, out: Path | None) -> int:
    """Plan again for the goal of a saved plan. Returns the exit code."""
    from advisor.api import plan_answer
    from advisor.report.brief import in_brief, recommendation
    from advisor.store.plan_files import load_plan
    from advisor.workflows.plan_like import plan_like

    default = click.core.ParameterSource.DEFAULT
    typed = [param for param in context.command.params
             if param.expose_value and context.get_parameter_source(param.name or "") is not default]  # fmt: skip
    asked = {name: context.params[name] for name in ("spent", "may_change", "stop_if_over", "measure")}
    if other := [param.opts[0] for param in typed if param.name not in (*asked, "like", "out", "everything")]:
        message = f"--like takes the goal from {path}, and {other[0]} is another"
        raise AdvisorError(message, "leave it out", exit_code=2)
    plan = plan_like(load_plan(path), store, on_text=render.remark, **asked)
    saved = store.save_plan(plan, out) if out is not None else None
    shown = recommendation if context.params["everything"] else in_brief
    print_answer(plan_answer(plan), lambda: [*shown(plan), ""], path=saved)
    if not json_asked():
        _show_next(plan, saved, f"advisor plan --like {shlex.quote(str(path))} --out plan.yaml")
    return DONE


def _show_for_other_software(goal: Goal, store: Store, out: Path | None) -> int:
    """Show fine-tunes or the best layout on each machine, the best first; write the file for --out.

    Returns the exit code: 3 if the best breaks a limit.
    """
    from advisor.api import plan_answer
    from advisor.report.elsewhere import lines
    from advisor.workflows.plan import recommend

    plan = recommend(goal, store)
    written: list[str] = []
    if out is not None:
        from advisor.workflows.write_elsewhere import write_elsewhere

        done = write_elsewhere(plan, out)
        written = ["", f"wrote {done.path}", *filter(None, [done.missing]), f"where it runs: {done.steps}"]
        written += [f"watched, capped and compared: advisor adopt -- {done.command}"]
    print_answer(plan_answer(plan), lambda: [*lines(plan), *written], path=out)
    return NOTHING_FITS if plan.chosen.standing.against else DONE


def _typed(goal: Goal, given: Mapping[str, object], gates: Sequence[str], *, measure: bool) -> str:
    """Return the command that gives this plan again."""
    from advisor.planning.command import plan_command

    named = goal if goal.data or goal.synthetic else replace(goal, data_tokens=None, data=PREPARED)
    words = [plan_command(named, "plan.yaml")]
    words += [f"{option} {shlex.quote(str(value))}" for option, value in given.items() if value]
    words += ["--measure"] if measure else []
    return " ".join((*words, *(f"--gate {gate}" for gate in gates)))


def _stated(
    context: click.Context, run: tuple[str | None, str | None, Path | None], given: dict[str, Any], store: Store
) -> tuple[dict[str, Any], Origin | None]:
    """Return the plan's options, including those of the --from run, and that run; `run`: --from, --was, --config."""
    origin_path, was, config = run
    if origin_path is None:
        if config is not None or was is not None:
            raise AdvisorError("--was and --config describe the run of --from", "name the run: --from LOG", exit_code=2)
        return given, None
    from advisor.workflows.replan import given_of, options_of, origin_of

    default = click.core.ParameterSource.DEFAULT
    typed = {name: value for name, value in given.items() if context.get_parameter_source(name) is not default}
    origin = origin_of(origin_path, given_of(was, config), typed, store)
    return options_of(origin, typed), origin


def _with_origin(plan: Plan, origin: Origin | None, store: Store) -> tuple[Plan, Replan | None, Workload | None]:
    """Return the plan with the run's settings where possible, their comparison, and the run if it is on these GPUs."""
    if origin is None:
        return plan, None, None
    from advisor.workflows.replan import as_it_was, current_run, side_by_side

    plan = as_it_was(plan, origin)
    return plan, side_by_side(origin, plan, store), current_run(origin, plan)


def _show_next(plan: Plan, path: Path | None, again: str) -> None:
    """Show the commands that come next, each on a line that can be copied; `again` makes this plan and writes it."""
    if plan.goal.software is not None:
        render.show("next: advisor adopt --help tells how its own command is started within the same limits")
        return
    launch = f"advisor launch {shlex.quote(str(path)) if path is not None else 'plan.yaml'}"
    workload, provider = plan.workload, plan.offer.seller
    rented = f", on {workload.gpus} x {workload.gpu} rented from {provider}" if provider else ""
    if path is not None:
        render.show(f"written to {path}")
    if plan.config.data.path is None and not plan.config.data.synthetic:
        render.show_command("next, where the data are: ", f"advisor data prepare FILES --out {PREPARED}")
        render.show_command("then: ", again)
    elif path is not None:
        render.show_command(f"next{rented}: ", launch)
    else:
        render.show_command("next: ", again)
        render.show_command(f"then{rented}: ", launch)
