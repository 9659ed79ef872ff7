"""`advisor plan`: what to train within a budget, a deadline, a number of tokens, or none of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from advisor import render
from advisor.cli.params import FOLDER, LENGTH, NEW_FILE, NUMBERS, SECONDS, SIZE, TOKENS, USD, VOCABULARY, Number
from advisor.errors import AdvisorError
from advisor.records import Goal, GpuPrice, Plan
from advisor.units import parse_usd

RATIO_COUNTS = ("matrices+head", "total", "matrices")


@click.command()
@click.option("--gpu", default="auto", show_default=True, help="auto, cpu, a card, several (l4,h200), or any.")
@click.option(
    "--gpus", type=NUMBERS, help="How many, or how many to choose from: 8 or 1,2,4,8. Default: 1; any: 1,2,4,8."
)
@click.option("--budget", type=USD, help="Most that may be spent, as $20.")
@click.option("--deadline", type=SECONDS, help="Most time everything may take, as 90s, 30min or 8h.")
@click.option("--sure", is_flag=True, help="Keep the intervals' high ends within the limits, not the expected values.")
@click.option("--tokens", type=TOKENS, help="Training tokens, as 500M. Default: what the limits or the ratio allow.")
@click.option("--depth", type=SIZE, help="Transformer blocks. Default: the best.")
@click.option("--data", type=FOLDER, help="Token folder from `advisor data prepare`.")
@click.option("--ratio", type=Number(min=0, min_open=True), help="Training tokens per counted parameter.")
@click.option("--ratio-counts", type=click.Choice(RATIO_COUNTS), help="Which parameters --ratio counts.")
@click.option("--inference-tokens", type=TOKENS, help="Tokens the model will serve: train a smaller one longer.")
@click.option("--family", type=click.Choice(("nanochat", "gpt2", "llama")), default="nanochat", show_default=True)
@click.option("--seq-len", type=LENGTH, help="Context length. Default: the calibration's.")
@click.option("--vocab-size", type=VOCABULARY, help="Default: the data's, else the calibration's.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    metavar="[GPU=]USD",
    help="Dollars per GPU and hour, of one card as l4=0.50. Default: the catalog's; 0 on your own machine.",
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
    help="Mean time between interruptions, as 12h. Default: 4-48 h on spot machines, none elsewhere.",
)
@click.option("--micro-batch", type=SIZE, help="Sequences per device and forward pass.")
@click.option("--global-batch", type=TOKENS, help="Tokens per optimizer step, as 512k.")
@click.option("--precision", type=click.Choice(("auto", "bf16", "fp16", "fp32")), default="auto", show_default=True)
@click.option("--compile/--no-compile", "compile_", default=None, help="torch.compile. Default: as calibrated.")
@click.option(
    "--activation-checkpointing", type=click.Choice(("none", "full")), help="Default: where nothing else fits."
)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), default="adamw", show_default=True)
@click.option("--measure", is_flag=True, help="Run one more burst at the chosen configuration.")
@click.option("--out", type=NEW_FILE, help="Write the plan to this file, ready for `advisor launch`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(measure: bool, out: Path | None, as_json: bool, **options: Any) -> None:
    """Recommend what to train, and on what, with the whole bill and what was rejected.

    With --gpu any every card that somebody rents is searched, at every number of GPUs. Without any limit the family's
    usual tokens per parameter are planned, on the deepest model that ends within a day (an hour on a CPU).
    """
    from advisor.cli.device import warn_of_others

    goal = goal_from(options)
    warn_of_others(goal.gpu.split(","))
    plan = recommend(goal, measure=measure)
    path = None
    if out is not None:
        from advisor.store import default_store

        path = default_store().save_plan(plan, out)
    if as_json:
        from advisor.plan.explain import sentence
        from advisor.plan.grounds import in_words
        from advisor.predict.trajectory import milestones

        said = {"sentence": sentence(plan), "speed_rests_on": in_words(plan), "loss_on_the_way": milestones(plan)}
        render.print_json(render.to_plain(plan) | said | {"path": path})
    else:
        from advisor.plan.command import plan_command

        show(plan, path, plan_command(goal, "plan.yaml") + (" --measure" if measure else ""))


def goal_from(options: dict[str, Any]) -> Goal:
    """The goal that the options state; raises AdvisorError for an unknown device."""
    from advisor.plan.market import ANY, COUNTS

    if options["ratio_counts"] and not options["ratio"]:
        raise AdvisorError("--ratio-counts says what --ratio counts, and there is no --ratio", exit_code=2)
    if options["ratio"] and options["inference_tokens"]:
        hint = "leave one out: --inference-tokens works the ratio out"
        raise AdvisorError("--ratio and --inference-tokens both settle the tokens per parameter", hint, exit_code=2)
    data, keys = options["data"], device_keys(options["gpu"])
    numbers = options["gpus"] or (COUNTS if keys == [ANY] or len(keys) > 1 else (1,))
    alone, by_card = read_prices(options["prices"])
    if alone is not None and (keys == [ANY] or len(keys) > 1):
        raise AdvisorError("--price without a card is for one card only", "say of which: --price l4=0.50", exit_code=2)
    return Goal(
        gpu=",".join(keys),
        gpus=numbers[0],
        counts=numbers if len(numbers) > 1 else (),
        family=options["family"],
        seq_len=options["seq_len"],
        vocab_size=options["vocab_size"],
        budget_usd=options["budget"],
        deadline_seconds=options["deadline"],
        tokens=options["tokens"],
        depth=options["depth"],
        data=str(data.expanduser().resolve()) if data else None,
        ratio=options["ratio"],
        ratio_counts=options["ratio_counts"] or ("matrices+head" if options["family"] == "nanochat" else "total"),
        usd_per_gpu_hour=alone,
        usd_per_kwh=options["kwh_price"],
        micro_batch=options["micro_batch"],
        global_batch_tokens=options["global_batch"],
        precision=options["precision"],
        compile=options["compile_"],
        activation_checkpointing=options["activation_checkpointing"],
        optimizer=options["optimizer"],
        sure=options["sure"],
        inference_tokens=options["inference_tokens"],
        grid_grams_per_kwh=options["grid_carbon"],
        providers=options["providers"],
        spot=options["spot"],
        objective=options["objective"],
        prices=by_card,
        power_cap_watts=options["power_cap"],
        interruption_seconds=options["interruptions"],
    )


def device_keys(asked: str) -> list[str]:
    """The keys that --gpu names, each once; ["any"] stands for all."""
    from advisor.cli.device import device_key
    from advisor.plan.market import ANY

    names = [name.strip() for name in asked.split(",") if name.strip()]
    if not names:
        raise AdvisorError("--gpu names no card", "give --gpu l4, or --gpu any to choose from all", exit_code=2)
    if ANY in names:
        return [ANY]
    return list(dict.fromkeys(device_key(name) for name in names))


def read_prices(texts: Sequence[str]) -> tuple[float | None, tuple[GpuPrice, ...]]:
    """A price without a card, and prices by card; raises AdvisorError (exit 2) for what is neither."""
    from advisor.catalog import require_gpu

    alone, by_card = None, []
    for text in texts:
        name, equals, amount = text.rpartition("=")
        try:
            usd = parse_usd(amount)
        except AdvisorError as error:
            raise AdvisorError(f"--price {text}: {error.message}", error.hint, exit_code=2) from error
        if equals:
            by_card.append(GpuPrice(gpu=name if name == "cpu" else require_gpu(name).key, usd_per_gpu_hour=usd))
        else:
            alone = usd
    return alone, tuple(by_card)


def recommend(goal: Goal, *, measure: bool = False) -> Plan:
    """The plan for a goal from what the store knows of its devices, with one more burst at the choice if asked for."""
    from advisor.own_runs import own_loss_ratios
    from advisor.plan.answer import answer
    from advisor.plan.goal import find_price
    from advisor.plan.own_data import for_inference, why_overtrained, with_own_data
    from advisor.plan.search import refined_plan
    from advisor.store import default_store

    store, data_meta = default_store(), read_data(goal.data)
    profiles, left_out = load_profiles(goal, store)
    plan = answer(goal, profiles, now=datetime.now(UTC), data_meta=data_meta, left_out=left_out)
    wanted = for_inference(goal, plan.chosen.tokens)
    if wanted != goal:
        plan = answer(wanted, profiles, now=datetime.now(UTC), data_meta=data_meta, left_out=left_out)
        plan = replace(plan, reasons=(*plan.reasons, why_overtrained(wanted, goal.inference_tokens or 0.0)))
    ratios = own_loss_ratios(store, goal.data)
    if not measure:
        return with_own_data(plan, data_meta, ratios)
    from advisor.calibrate.again import measure_one

    profile = next(p for p in profiles if p.key == plan.workload.gpu)
    render.remark(f"measuring depth {plan.chosen.depth} at micro-batch {plan.run.micro_batch} once more")
    profile = measure_one(profile, plan.workload, store)
    refined = refined_plan(plan, profile, now=datetime.now(UTC), data_meta=data_meta, price=find_price(plan.goal))
    return with_own_data(replace(refined, search=plan.search), data_meta, ratios)


def load_profiles(goal: Goal, store: Any) -> tuple[list[Any], list[str]]:
    """What is believed of each device that the goal names, and in words which cards could not be looked at.

    "any" leaves out what is no CUDA card: the trainer has not run there. Errors of devices that were named are raised.
    """
    from advisor.calibrate.profiles import load_profile
    from advisor.catalog import load_gpus
    from advisor.plan.market import ANY

    precision = None if goal.precision == "auto" else goal.precision
    settings = {"family": goal.family, "precision": precision, "compile": goal.compile}
    settings |= {"power_cap_watts": goal.power_cap_watts}
    if goal.gpu != ANY:
        return [load_profile(key, store, **settings) for key in goal.gpu.split(",")], []
    found, left_out = [], []
    cards = load_gpus()
    others = [key for key, spec in cards.items() if not spec.is_cuda]
    for key in (key for key in cards if key not in others):
        try:
            found.append(load_profile(key, store, **settings))
        except AdvisorError as error:
            left_out.append(error.message)
    return found, [*left_out, f"no CUDA cards: {', '.join(others)}"]


def read_data(path: str | Path | None) -> dict[str, Any] | None:
    """A token folder's metadata; None for synthetic tokens. Raises AdvisorError when it is no token folder."""
    if path is None:
        return None
    from trainer.token_folder import DataError, read_meta

    try:
        return read_meta(path)
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


def show(plan: Plan, path: Path | None, again: str) -> None:
    """The recommendation on the terminal: sentence, options, bill, losers, reasons, warnings, next command.

    `again` is the command that gives the same plan and writes it; it is shown where the plan was not written.
    """
    from advisor.cli.plan_tables import SCORE, bill_table, candidate_tables, course_table, search_tables
    from advisor.plan.explain import sentence
    from advisor.plan.grounds import in_words
    from advisor.predict.trajectory import milestones

    several = plan.search is not None and (len(plan.search.devices) > 1 or len(plan.goal.counts) > 1)
    render.show(sentence(plan), *filter(None, [in_words(plan)]))
    if plan.search is not None and several:
        render.show(*search_tables(plan.search, several=True))
    render.show("", bill_table(plan))
    if course := milestones(plan):
        render.show("", course_table(course))
    render.show("", *candidate_tables(plan))
    if plan.search is not None and not several:
        render.show(SCORE, *search_tables(plan.search, several=False))
    render.show("", render.points(plan.reasons))
    if plan.warnings:
        render.show("", render.points(plan.warnings, mark="!"))
    if plan.search is not None and plan.search.left_out:
        render.show("", "Not searched", render.points(plan.search.left_out))
    render.show("")
    _show_next(plan, path, again)


def _show_next(plan: Plan, path: Path | None, again: str) -> None:
    """The commands that come next, each on a line of its own that can be copied."""
    workload = plan.workload
    launch = f"advisor launch {shlex.quote(str(path)) if path is not None else 'plan.yaml'}"
    rented = f"on {workload.gpus} x {workload.gpu} rented from {plan.provider}"
    if path is not None:
        render.show(f"written to {path}")
        render.show_command(f"next, {rented}: " if plan.provider else "next: ", launch)
        return
    render.show_command("next: ", again)
    render.show_command(f"then, {rented}: " if plan.provider else "then: ", launch)
