"""`advisor plan`: what to train within a budget, a deadline, a number of tokens, or none of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from advisor import render
from advisor.cli.params import SECONDS, TOKENS, USD
from advisor.errors import AdvisorError
from advisor.records import Candidate, Estimate, Goal, Plan
from advisor.units import (
    Formatter,
    format_bytes,
    format_count,
    format_energy,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)

RATIO_COUNTS = ("matrices+head", "total", "matrices")


@click.command()
@click.option("--gpu", default="auto", show_default=True, help="auto, cpu, or a card: l4, h200-141gb-sxm, …")
@click.option("--gpus", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--budget", type=USD, help="Most that may be spent, as $20.")
@click.option("--deadline", type=SECONDS, help="Most time everything may take, as 90s, 30min or 8h.")
@click.option("--sure", is_flag=True, help="Keep the intervals' high ends within the limits, not the expected values.")
@click.option("--tokens", type=TOKENS, help="Training tokens, as 500M. Default: what the limits or the ratio allow.")
@click.option("--depth", type=click.IntRange(min=1), help="Transformer blocks. Default: the best.")
@click.option("--data", type=click.Path(path_type=Path), help="Token folder from `advisor data prepare`.")
@click.option("--ratio", type=click.FloatRange(min=0, min_open=True), help="Training tokens per counted parameter.")
@click.option("--ratio-counts", type=click.Choice(RATIO_COUNTS), help="Which parameters --ratio counts.")
@click.option("--family", type=click.Choice(("nanochat", "gpt2", "llama")), default="nanochat", show_default=True)
@click.option("--seq-len", type=click.IntRange(min=16), help="Context length. Default: the calibration's.")
@click.option("--vocab-size", type=click.IntRange(min=2), help="Default: the data's, else the calibration's.")
@click.option("--price", type=USD, help="Dollars per GPU and hour. Default: the catalog's; 0 on your own machine.")
@click.option("--kwh-price", type=USD, help="Dollars per kWh, added to the price.")
@click.option("--micro-batch", type=click.IntRange(min=1), help="Sequences per device and forward pass.")
@click.option("--global-batch", type=TOKENS, help="Tokens per optimizer step, as 512k.")
@click.option("--precision", type=click.Choice(("auto", "bf16", "fp16", "fp32")), default="auto", show_default=True)
@click.option("--compile/--no-compile", "compile_", default=None, help="torch.compile. Default: as calibrated.")
@click.option(
    "--activation-checkpointing", type=click.Choice(("none", "full")), help="Default: where nothing else fits."
)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), default="adamw", show_default=True)
@click.option("--measure", is_flag=True, help="Run one more burst at the chosen configuration.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the plan to this file, ready for `advisor launch`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(measure: bool, out: Path | None, as_json: bool, **options: Any) -> None:
    """Recommend depth, batch and tokens for a goal, with the whole bill and what was rejected.

    Without any limit the family's usual tokens per parameter are planned, on the deepest model that ends within a day
    (an hour on a CPU).
    """
    plan = recommend(goal_from(options), measure=measure)
    path = None
    if out is not None:
        from advisor.store import default_store

        path = default_store().save_plan(plan, out)
    if as_json:
        from advisor.plan.explain import sentence

        render.print_json(render.to_plain(plan) | {"sentence": sentence(plan), "path": path})
    else:
        show(plan, path)


def goal_from(options: dict[str, Any]) -> Goal:
    """The goal that the options state; raises AdvisorError for an unknown device."""
    from advisor.cli.device import device_key

    if options["ratio_counts"] and not options["ratio"]:
        raise AdvisorError("--ratio-counts says what --ratio counts, and there is no --ratio", exit_code=2)
    data = options["data"]
    return Goal(
        gpu=device_key(options["gpu"]),
        gpus=options["gpus"],
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
        usd_per_hour=options["price"],
        usd_per_kwh=options["kwh_price"],
        micro_batch=options["micro_batch"],
        global_batch_tokens=options["global_batch"],
        precision=options["precision"],
        compile=options["compile_"],
        activation_checkpointing=options["activation_checkpointing"],
        optimizer=options["optimizer"],
        sure=options["sure"],
    )


def recommend(goal: Goal, *, measure: bool = False) -> Plan:
    """The plan for a goal from what the store knows of its device, with one more burst at the choice if asked for."""
    from advisor.calibrate.profiles import load_profile
    from advisor.plan.goal import find_price
    from advisor.plan.search import make_plan, refined_plan
    from advisor.store import default_store

    store, price, data_meta = default_store(), find_price(goal), read_data(goal.data)
    precision = None if goal.precision == "auto" else goal.precision
    profile = load_profile(goal.gpu, store, family=goal.family, precision=precision, compile=goal.compile)
    plan = make_plan(goal, profile, now=datetime.now(UTC), data_meta=data_meta, price=price)
    if not measure:
        return plan
    from advisor.calibrate.again import measure_one

    render.remark(f"measuring depth {plan.chosen.depth} at micro-batch {plan.run.micro_batch} once more")
    profile = measure_one(profile, plan.workload, store)
    return refined_plan(plan, profile, now=datetime.now(UTC), data_meta=data_meta, price=price)


def read_data(path: str | None) -> dict[str, Any] | None:
    """A token folder's metadata; None for synthetic tokens. Raises AdvisorError when it is no token folder."""
    if path is None:
        return None
    from trainer.token_folder import DataError, read_meta

    try:
        return read_meta(path)
    except DataError as error:
        raise AdvisorError(error.message, error.hint) from error


def show(plan: Plan, path: Path | None, *, next_command: bool = True) -> None:
    """The recommendation on the terminal: sentence, bill, candidates, reasons, warnings, next command."""
    from advisor.plan.explain import sentence

    render.show(sentence(plan), "", _bill_table(plan), "", *_candidate_tables(plan), "")
    render.show(*(f"- {reason}" for reason in plan.reasons))
    if plan.warnings:
        render.show("", *(f"! {warning}" for warning in plan.warnings))
    if path is not None:
        render.show("", f"written to {path}", f"next: advisor launch {path}")
    elif next_command:
        render.show("", "next: the same command with --out plan.yaml, then: advisor launch plan.yaml")


def _bill_table(plan: Plan) -> Any:
    prediction, clock = plan.prediction, plan.prediction.wall_clock
    rows: tuple[tuple[str, Estimate | None, Formatter], ...] = (
        ("start-up", clock.startup_seconds, format_seconds),
        ("compilation", clock.compile_seconds, format_seconds),
        (f"{format_count(plan.run.steps)} steps", clock.steps_seconds, format_seconds),
        ("evaluations", clock.evals_seconds, format_seconds),
        ("checkpoints", clock.checkpoints_seconds, format_seconds),
        ("in all", clock.total_seconds, format_seconds),
        ("cost", prediction.cost_usd, format_usd),
        ("energy", prediction.energy_kwh, format_energy),
        ("one step", prediction.step_seconds, format_seconds),
        ("throughput", prediction.tokens_per_second, format_rate),
        ("MFU", prediction.mfu, format_percent),
        ("peak memory, allocated", prediction.peak_allocated_bytes, format_bytes),
        ("peak memory, reserved", prediction.peak_reserved_bytes, format_bytes),
        ("validation loss", prediction.loss, format_number),
    )
    cells = [
        (name, format_estimate(value, formatter), value.basis if value else "-") for name, value, formatter in rows
    ]
    return render.table(("what", "predicted (80 % interval)", "basis"), cells)


def _candidate_tables(plan: Plan) -> Iterator[Any]:
    """One table of depths, one of the chosen depth's other micro-batches."""
    depth = plan.chosen.depth
    depths = [plan.chosen, *(c for c in plan.considered if c.depth != depth)]
    yield _candidate_table("Depths considered", sorted(depths, key=lambda c: c.depth), plan.chosen)
    sizes = [c for c in plan.considered if c.depth == depth]
    if len(sizes) > 1:
        yield ""
        by_size = sorted(sizes, key=lambda c: c.micro_batch)
        yield _candidate_table(f"Micro-batches considered at depth {depth}", by_size, plan.chosen)


def _candidate_table(title: str, candidates: list[Candidate], chosen: Candidate) -> Any:
    columns = ("depth", "parameters", "micro-batch", "steps", "tokens", "tok/s", "memory", "time", "cost", "verdict")
    rows = [_candidate_row(candidate, chosen) for candidate in candidates]
    styles = {number: "bold" for number, candidate in enumerate(candidates) if candidate is chosen}
    right = columns[:-1]
    return render.table(columns, rows, title=title, right=right, styles=styles)


def _candidate_row(candidate: Candidate, chosen: Candidate) -> tuple[str, ...]:
    memory, cost = candidate.peak_reserved_bytes, candidate.cost_usd
    verdict = "chosen" if candidate is chosen else candidate.rejected or f"beaten: score {candidate.score:.4g}"
    return (
        str(candidate.depth),
        format_count(candidate.parameters),
        f"{candidate.micro_batch} x {candidate.grad_accum}",
        format_count(candidate.steps),
        format_tokens(candidate.tokens),
        format_tokens(candidate.tokens_per_second.value),
        format_bytes(memory.value if memory else None),
        format_seconds(candidate.total_seconds.value),
        format_usd(cost.value if cost else None),
        verdict,
    )
