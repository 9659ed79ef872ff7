"""`advisor plan`: what to train within a budget, a deadline, a number of tokens, or none of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.params import (
    BYTES,
    DEADLINE,
    FILE,
    FOLDER,
    GPU,
    GPUS,
    LENGTH,
    NUMBERS,
    OWN_GPUS,
    PLAN_FILE,
    PRECISION,
    PRICE,
    SECONDS,
    SIZE,
    SOFTWARE,
    TOKENS,
    USD,
    VOCABULARY,
    Number,
    parallelism,
    say_where_sharding_ends,
    sharded_instead,
    whole_models_only,
)
from advisor.errors import AdvisorError
from advisor.laws.flops import RATIO_COUNTS
from advisor.records import Goal, Plan, Workload
from advisor.report import render
from advisor.workflows.goal import PlanOptions, goal_from, refuse_idle_budget

if TYPE_CHECKING:
    from advisor.store.store import Store
    from advisor.workflows.plan import Beside
    from advisor.workflows.replan import Origin, Replan

PREPARED = "data"  # the folder that a next step names for data that are not here


@click.command()
@click.option(
    "--from",
    "again_of",
    metavar="RUN|LOG",
    help="Plan this run again: its model, tokens, global batch and precision, on its own GPUs or those given here.",
)
@click.option("--was", type=GPU, metavar="GPU:N", help="The GPUs of --from, if its log does not name them, as h100:8.")
@click.option("--config", type=FILE, help="The configuration of --from, if its log does not hold it.")
@click.option(
    "--gpu", type=GPUS, default="auto", show_default=True, help="auto, cpu, h100, 8xh100, several (l4,h200), or any."
)
@click.option(
    "--gpus",
    type=NUMBERS,
    help="How many, or how many to choose from: 8 or 1,2,4,8. Default: 1; of several GPUs, or any: 1,2,4,8, and "
    "16,32,64 where a run takes days.",
)
@click.option(
    "--own",
    type=OWN_GPUS,
    multiple=True,
    metavar="GPU:N|FILE",
    help="Your machine with so many GPUs, or a file of machines: no rent, --kwh-price only. Alone, or beside --gpu.",
)
@click.option("--budget", type=USD, help="Most that may be spent, as $20.")
@click.option(
    "--deadline",
    type=DEADLINE,
    help="Most time everything may take, as 90s, 30min or 8h; or the moment it must be done, as 'Monday 9:00' or "
    "2026-12-01T09:00 by this machine's clock.",
)
@click.option(
    "--value-of-time",
    type=USD,
    help="Dollars of the budget that an hour of waiting is worth. Default, where machines are chosen between and "
    "without a deadline: the square root of the budget for each day after the first.",
)
@click.option("--sure", is_flag=True, help="Keep the intervals' high ends within the limits, not the expected values.")
@click.option("--tokens", type=TOKENS, help="Training tokens, as 500M. Default: what the limits or the ratio allow.")
@click.option("--params", "parameters", type=TOKENS, help="Parameters, as 1.5B: the family's nearest shape.")
@click.option("--model", help="A published model, as gpt2-xl or tinyllama-1.1b; any other name lists them.")
@click.option("--depth", "--layers", type=SIZE, help="Transformer blocks. Default: the best.")
@click.option("--width", type=SIZE, help="Residual stream. Default, as of the next three: the family's.")
@click.option("--heads", type=SIZE, help="Query heads.")
@click.option("--kv-heads", type=SIZE, help="Key/value heads.")
@click.option("--ffn-width", type=SIZE, help="Hidden width of the feed-forward blocks.")
@click.option("--data", type=FOLDER, help="Token folder from `advisor data prepare`.")
@click.option("--synthetic", is_flag=True, help="Train on random tokens: a speed test, whose loss means nothing.")
@click.option("--data-tokens", type=TOKENS, help="Tokens of your data where they are not here yet, as 3B.")
@click.option("--epochs", type=Number(min=0, min_open=True), help="Times the data are seen. Default: the best.")
@click.option("--ratio", type=Number(min=0, min_open=True), help="Training tokens per counted parameter.")
@click.option("--ratio-counts", type=click.Choice(RATIO_COUNTS), help="Which parameters --ratio counts.")
@click.option("--inference-tokens", type=TOKENS, help="Tokens the model will serve: train a smaller one longer.")
@click.option("--family", type=click.Choice(("nanochat", "gpt2", "llama")), default="nanochat", show_default=True)
@click.option("--seq-len", type=LENGTH, help="Context length. Default: the calibration's.")
@click.option("--vocab-size", type=VOCABULARY, help="Default: the data's, else the calibration's.")
@click.option(
    "--price",
    "prices",
    type=PRICE,
    multiple=True,
    metavar="[GPU=]USD",
    help="Dollars per GPU and hour, of one kind as l4=0.50. Default: the catalog's; 0 on your own machine.",
)
@click.option("--provider", "providers", multiple=True, help="Rent from these only; may be given several times.")
@click.option(
    "--spot",
    type=click.Choice(("none", "only", "any")),
    default="none",
    show_default=True,
    help="Machines that may be taken back; the time lost to that is counted.",
)
@click.option(
    "--objective",
    type=click.Choice(("loss", "cost", "time")),
    default="loss",
    show_default=True,
    help="What is made least within the limits.",
)
@click.option("--kwh-price", type=USD, help="Dollars per kWh, added to the price.")
@click.option("--grid-carbon", type=Number(min=0), help="Grams of CO2e per kWh. Default: 475, the world's mean.")
@click.option("--power-cap", type=Number(min=0, min_open=True), help="Watts each GPU is limited to (nvidia-smi -pl).")
@click.option(
    "--interruptions",
    type=SECONDS,
    help="Mean time between interruptions, as 12h. Default: 4-48 h on spot machines, days elsewhere.",
)
@click.option(
    "--checkpoint-every", type=SECONDS, help="Time between checkpoints. Default: Daly's, at most 1 % writing."
)
@click.option("--micro-batch", type=SIZE, help="Sequences per GPU and forward pass.")
@click.option("--global-batch", type=TOKENS, help="Tokens per optimizer step, as 512k.")
@click.option("--precision", type=PRECISION, default="auto", show_default=True)
@click.option("--compile/--no-compile", "compile", default=None, help="torch.compile. Default: as calibrated.")
@click.option(
    "--activation-checkpointing",
    type=click.Choice(("none", "selective", "full")),
    help="Default: where nothing else fits.",
)
@click.option(
    "--sharding",
    type=click.Choice(("none", "full")),
    help="full: each of several GPUs holds a share of the model (FSDP). Default: where it does not fit whole.",
)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), help="Default: adamw, or the software's.")
@click.option(
    "--software",
    type=SOFTWARE,
    help="Whose training software runs it: nanogpt, hf-trainer, megatron, …; any other name lists the nearest. "
    "Default: own, this project's trainer, which alone can be launched.",
)
@click.option("--measure", is_flag=True, help="Run one more burst at the chosen configuration.")
@click.option(
    "--gate",
    "gates",
    multiple=True,
    metavar="STEP[:LOSS]",
    help="Evaluate there and stop if the loss is above LOSS, as 10k:4.2, or above what is expected: 10k, 50%.",
)
@click.option(
    "--depths",
    type=NUMBERS,
    help="The plan (--from: the run) at these depths too, as 16,20,24: step time, memory by part.",
)
@click.option("--download-rate", type=BYTES, help="Bytes a second for the data, as 100MB: how long they take to fetch.")
@click.option("--out", type=PLAN_FILE, help="Write the plan to this file, ready for `advisor launch`.")
@click.option("--all", "everything", is_flag=True, help="Show every table and reason, not the answer alone.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@parallelism
@whole_models_only
@click.pass_context
def command(
    context: click.Context,
    again_of: str | None,
    was: str | None,
    config: Path | None,
    measure: bool,
    gates: tuple[str, ...],
    depths: tuple[int, ...] | None,
    out: Path | None,
    everything: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Recommend what to train, and on what: in brief, or by --all with the whole bill and what was rejected.

    With --gpu any every GPU that somebody rents is searched, at every number of GPUs. Without any limit the family's
    usual tokens per parameter are planned, on the deepest model that ends within a day (an hour on a CPU).

    With --from a run, or any log, is planned again on other GPUs or counts and shown beside what it came to; what
    is typed beside it goes before what the run had, and its own speed informs the plan's.
    """
    from advisor.cli.device import warn_of_others
    from advisor.planning.stages import with_gates
    from advisor.store.store import default_store
    from advisor.workflows.launch import refuse_other_software
    from advisor.workflows.plan import beside, recommend

    store = default_store()
    stated, origin = _stated(context, (again_of, was, config), options, store)
    goal = goal_from(stated)
    refuse_idle_budget(goal)
    goal = replace(goal, sharding=sharded_instead(goal.sharding, max(goal.counts or (goal.gpus,))))
    seen = origin.seen if origin else None
    warn_of_others([*goal.gpu.split(","), *(machine.gpu for machine in goal.own)])
    plan = recommend(goal, store, measure=measure, on_text=render.remark, seen=seen)
    plan, replanned, current = _beside_origin(plan, origin, store)
    plan = with_gates(plan, gates)
    say_where_sharding_ends(plan.workload, plan.prediction.mfu)
    if out is not None:
        refuse_other_software(plan)
    path = store.save_plan(plan, out) if out is not None else None
    everything = everything or depths is not None or goal.download_bytes_per_second is not None
    shown = everything or as_json
    more = beside(plan, store, depths=depths or (), seen=seen, current=current) if shown else None
    if as_json:
        from advisor.planning.stages import stages
        from advisor.report.plan import sentence, speed_rests_on

        words = {"sentence": sentence(plan), "speed_rests_on": speed_rests_on(plan), "on_the_way": stages(plan)}
        beside_it = {"memory_parts": more.memory, "depths": more.depths, "data_to_fetch": more.data} if more else {}
        run = {"from": replanned} if replanned is not None else {}
        render.print_json(render.to_plain(plan) | words | beside_it | run | {"path": path})
    else:
        if replanned is not None:
            _show_replan(replanned, plan)
        given = {"--from": again_of, "--was": was, "--config": config}
        show(plan, path, _typed(goal, given, gates, measure=measure), more, everything=everything)


def _typed(goal: Goal, given: Mapping[str, object], gates: Sequence[str], *, measure: bool) -> str:
    """The command that gives this plan again."""
    from advisor.planning.command import plan_command

    named = goal if goal.data or goal.synthetic else replace(goal, data_tokens=None, data=PREPARED)
    words = [plan_command(named, "plan.yaml")]
    words += [f"{option} {shlex.quote(str(value))}" for option, value in given.items() if value]
    words += ["--measure"] if measure else []
    return " ".join((*words, *(f"--gate {gate}" for gate in gates)))


def _stated(
    context: click.Context, run: tuple[str | None, str | None, Path | None], options: dict[str, Any], store: Store
) -> tuple[PlanOptions, Origin | None]:
    """The options of the plan, those of the run that is planned again among them, and that run.

    `run` is what --from, --was and --config say of it.
    """
    again_of, was, config = run
    if again_of is None:
        if config is not None or was is not None:
            raise AdvisorError("--was and --config are of the run of --from", "name the run: --from LOG", exit_code=2)
        return PlanOptions(**options), None
    from advisor.workflows.replan import given_of, options_of, origin_of

    default = click.core.ParameterSource.DEFAULT
    typed = {name: value for name, value in options.items() if context.get_parameter_source(name) is not default}
    origin = origin_of(again_of, given_of(was, config), typed, store)
    return options_of(origin, typed), origin


def _beside_origin(plan: Plan, origin: Origin | None, store: Store) -> tuple[Plan, Replan | None, Workload | None]:
    """The plan as the run was where it can be, both beside each other, and the run where it is on the same cards."""
    if origin is None:
        return plan, None, None
    from advisor.workflows.replan import as_it_was, current_run, side_by_side

    plan = as_it_was(plan, origin)
    return plan, side_by_side(origin, plan, store), current_run(origin, plan)


def _show_replan(found: Replan, plan: Plan) -> None:
    """The run beside the plan of it, and what was kept of it."""
    from advisor.report import replan
    from advisor.report.table import on_console

    render.show(on_console(replan.table(found, plan)), *replan.sentences(found), "")


def show(plan: Plan, path: Path | None, again: str, more: Beside | None = None, *, everything: bool = False) -> None:
    """The recommendation on the terminal: in brief, or sentence, options, bill, losers, reasons; then what comes next.

    `again` is the command that gives the same plan and writes it; it is shown where the plan was not written.
    """
    from advisor.cli.plan_tables import in_brief, recommendation

    render.show(*(recommendation(plan, more) if everything else in_brief(plan)), "")
    _show_next(plan, path, again)


def _show_next(plan: Plan, path: Path | None, again: str) -> None:
    """The commands that come next, each on a line of its own that can be copied."""
    workload = plan.workload
    if plan.goal.software is not None:
        render.show("next: advisor adopt --help tells how its own command is started within the same limits")
        return
    launch = f"advisor launch {shlex.quote(str(path)) if path is not None else 'plan.yaml'}"
    rented = f"on {workload.gpus} x {workload.gpu} rented from {plan.offer.provider}"
    if path is not None:
        render.show(f"written to {path}")
    if plan.run.data.path is None and not plan.run.data.synthetic:
        render.show_command("next, where the data are: ", f"advisor data prepare FILES --out {PREPARED}")
        render.show_command("then: ", again)
        return
    if path is not None:
        render.show_command(f"next, {rented}: " if plan.offer.provider else "next: ", launch)
        return
    render.show_command("next: ", again)
    render.show_command(f"then, {rented}: " if plan.offer.provider else "then: ", launch)
