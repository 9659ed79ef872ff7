"""Shows a plan with other software, a fine-tune or a layout: its sentence, tables of machines and layouts, notes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType

from advisor.architecture import Layout, Model
from advisor.hardware.catalog import require_gpu
from advisor.offer import OWN_MACHINE, Offer
from advisor.planning.alternatives import not_chosen
from advisor.planning.offers import ANY
from advisor.prediction.comm import caution
from advisor.prediction.layout_runs import beyond_steps
from advisor.prediction.software import words_of
from advisor.records import Plan, Run, Workload
from advisor.report import rl
from advisor.report.brief import broken
from advisor.report.plan import speed_by_own_runs
from advisor.report.prediction import layout_words, network, partial_words
from advisor.report.quantities import COST, TIME, cost_of
from advisor.report.table import Table, on_console
from advisor.settings import SHARDINGS
from advisor.units import (
    format_bytes,
    format_count,
    format_estimate,
    format_fit,
    format_percent,
    format_rate,
    format_seconds,
    format_share,
    format_tokens,
)
from advisor.workflows.plan_finetune import tokens_padded, usual_epochs
from advisor.workflows.predict_layout import network_of

_SHOWN = {"layout": 16, "finetune": 8, "rl": 12}  # machines on the terminal
_NAMED = 8  # machines named among those that cannot hold the run
_LIMITS = {"time": ("deadline", "late"), "money": ("budget", "too dear")}  # by `Standing.against`
_RECOMPUTED = {"none": "", "full": ", activations recomputed", "selective": ", half of the activations recomputed"}
COLUMNS = {
    "layout": ("GPUs", "from", "layout", "micro-batch", "memory per GPU", "tokens/s", "MFU", "time",
               "failures, checkpoints", "cost"),
    "finetune": ("GPUs", "from", "micro-batch", "memory per GPU", "tokens/s", "time", "cost", "longest context"),
    "rl": rl.COLUMNS,
}  # fmt: skip
_OTHERS = ("layout", "micro-batch", "step", "memory per GPU", "why not")


def kind_of(plan: Plan) -> str:
    """Returns which plan with other software it is: rl, finetune or layout."""
    work = plan.workload
    return "rl" if work.rollouts is not None else "finetune" if work.layout is None else "layout"


def sentence(plan: Plan) -> str:
    """Says what to train with which software on which machine, and the time and cost."""
    run, work, model = plan.chosen, plan.workload, _model(plan)
    limits = " and the ".join(_LIMITS[name][0] for name in run.standing.against)
    alone = f"On {rented(run.offer)} no" if plan.search is None or not plan.search.machines else "No"
    by = "" if kind_of(plan) == "rl" else f" with {words_of(work.software)}"
    nearest = f"{alone} run stays within the {limits}{by}. The nearest: " if limits else ""
    if kind_of(plan) == "rl":
        return rl.sentence(plan, rented(run.offer), nearest)
    how = "" if work.layout is None else f" as {layout_words(work.layout)}"
    if plan.goal.finetune is not None:
        what = f"Fine-tune {model.name} ({partial_words(work) or 'all weights'})"
        what += " by DPO on preference pairs" if plan.goal.stage == "dpo" else ""
        if plan.goal.examples is not None:
            epochs = plan.goal.epochs or usual_epochs(plan.goal)
            how += f", {format_count(plan.goal.examples)} examples {'once' if epochs == 1 else f'{epochs:g} times'}"
    else:
        size = f"{format_count(plan.prediction.parameters)} parameters"
        size += "" if model.experts is None else f", {format_count(model.active)} active"
        what = f"Train {model.name} ({size})"
    return (
        f"{nearest}{what} on {rented(run.offer)} with {words_of(work.software)}{how}, {format_tokens(run.tokens)} "
        f"tokens: {TIME.of(run.total_seconds)}, {cost_of(run)}."
    )


def headline(plan: Plan) -> str:
    """Says the same without its numbers and without the layout in short, which stand elsewhere on a page."""
    layout = plan.workload.layout
    short = "" if layout is None or kind_of(plan) == "rl" else f" as {layout_words(layout)}"
    return sentence(plan).rpartition(": ")[0].replace(short, "", 1)


def split_words(cut: Layout) -> str:
    """Explains a layout: over what each part of the work is split."""
    pieces = f" of {cut.virtual} pieces each" if cut.virtual > 1 else ""
    parts = (
        (cut.tensor, f"each layer over {cut.tensor} GPUs"),
        (cut.pipeline, f"{cut.pipeline} pipeline stages{pieces}"),
        (cut.context, f"each sequence over {cut.context} GPUs"),
        (cut.expert, f"experts over {cut.expert} GPUs"),
    )
    shared = "copies of all else on" if cut.expert > 1 else "copies of the model on"
    shared = "its weights shared by" if cut.sharding == "full" else shared
    data = f"{shared} {cut.data} groups of GPUs with data of their own"
    if cut.gpus == cut.data:
        data = data.replace("groups of ", "")
    return ", ".join([*(words for degree, words in parts if degree > 1), data if cut.data > 1 else "one copy"])


def way(run: Run) -> str:
    """Says in few words how a run uses its GPUs."""
    if run.workload.rollouts is not None:
        return rl.short_use(run.prediction)
    return "" if run.workload.layout is None else layout_words(run.workload.layout)


def named_runs(plan: Plan, most: int) -> list[tuple[Run, str]]:
    """Returns the best run, a faster and a cheaper one that are not far from it, and the next best, with labels.

    Not far: at most twice the cost, or four times the time; beyond that, all others would look alike in the chart. Only
    the fastest or cheapest of all runs is called so.
    """
    runs, chosen = best_runs(plan), plan.chosen
    # If no run keeps the limits, all are compared: the only one that is named would be the fastest of one.
    near = [run for run in runs if not run.standing.against or chosen.standing.against]
    costs = {id(run): run.cost_usd.value if run.cost_usd is not None else math.inf for run in near}
    cost, seconds = costs[id(chosen)], chosen.total_seconds.value
    fastest = min((run for run in near if costs[id(run)] <= 2 * cost), key=lambda run: run.total_seconds.value)
    cheapest = min((run for run in near if run.total_seconds.value <= 4 * seconds), key=lambda run: costs[id(run)])
    labels: dict[int, list[str]] = {}
    if not any(run.cost_usd and run.cost_usd.value < costs[id(cheapest)] for run in runs):
        labels.setdefault(id(cheapest), []).append("cheapest")
    elif cheapest is not chosen:
        labels.setdefault(id(cheapest), []).append("cheaper")
    if not any(run.total_seconds.value < fastest.total_seconds.value for run in runs):
        labels.setdefault(id(fastest), []).append("fastest")
    elif fastest is not chosen:
        labels.setdefault(id(fastest), []).append("faster")
    by_id = {id(run): run for run in (chosen, fastest, cheapest, *runs)}
    others = [(run, " and ".join(labels.get(name, ["next best"]))) for name, run in by_id.items() if run is not chosen]
    first = " and ".join(labels.get(id(chosen), [])) if len(runs) > 1 else ""
    return [(chosen, f"recommended{f', {first}' if first else ''}"), *others[: most - 1]]


def best_runs(plan: Plan) -> list[Run]:
    """Returns the best run on each GPU, in plans over layouts on each number of GPUs; the best machine comes first."""
    best: dict[tuple[str, int, bool], Run] = {}
    for run in (plan.chosen, *(plan.search.machines if plan.search else ())):
        offer, each = run.offer, kind_of(plan) != "finetune"
        best.setdefault((offer.gpu, offer.gpus if each else 0, offer.spot and each), run)
    return list(best.values())


def machines(plan: Plan, most: int | None = None) -> Table:
    """Lists the best runs with their settings: the chosen one, then the others by cost, or by time if that counts.

    Those that break a limit come last.
    """
    kind = kind_of(plan)
    columns = COLUMNS[kind]
    chosen, *others = best_runs(plan)[: most or _SHOWN[kind]]

    def rank(run: Run) -> tuple[bool, float, float]:
        seconds, usd = run.total_seconds.value, math.inf if run.cost_usd is None else run.cost_usd.value
        return bool(run.standing.against), *((seconds, usd) if plan.goal.objective == "time" else (usd, seconds))

    rows = [_row(run, plan) for run in (chosen, *sorted(others, key=rank))]
    return Table(
        columns=columns,
        rows=tuple(tuple(row[name] for name in columns) for row in rows),
        numbers=columns[columns.index("memory per GPU") :],
        chosen=(0,),
    )


def _row(run: Run, plan: Plan) -> dict[str, str]:
    work, answer, clock = run.workload, run.prediction, run.bill.wall_clock
    unsold = "given" if run.offer.ordered else "your own" if run.offer.source == OWN_MACHINE else "no price known"
    broken_words = {name: word for name, (_, word) in _LIMITS.items()}
    if run.cost_usd is None:  # nobody knows whether it is within the budget
        broken_words["money"] = "price unknown"
    late = ", ".join(broken_words[name] for name in run.standing.against if name != "money" or run.cost_usd is None)
    dear = f" ({broken_words['money']})" if "money" in run.standing.against and run.cost_usd is not None else ""
    origin = rl.origin(run, run.offer.seller or unsold)
    if work.rollouts is not None:
        return rl.row(run, origin, late) | {"cost": COST.of(run.cost_usd) + dear}
    row = {
        "GPUs": f"{run.offer.gpus} x {run.offer.gpu}",
        "from": origin,
        "tokens/s": format_estimate(answer.tokens_per_second, format_rate),
        "MFU": "unknown" if answer.mfu is None else format_percent(answer.mfu.value),
        "time": TIME.of(run.total_seconds) + (f" ({late})" if late else ""),
        "cost": COST.of(run.cost_usd) + dear,
        "memory per GPU": format_estimate(answer.device_bytes, format_bytes),
        "longest context": format_count(run.longest_context) if run.longest_context else "none",
    }
    if work.layout is None:
        how = ["activations recomputed"] if work.activation_checkpointing == "full" else []
        how += filter(None, [SHARDINGS[work.sharding].words])
        pairs = " in pairs" if plan.goal.stage == "dpo" else ""
        batch = f"{work.micro_batch} x {work.shape.seq_len}{pairs}" + (f" ({', '.join(how)})" if how else "")
        return row | {"micro-batch": batch}
    steps = clock.steps_seconds.value
    lost = [part.value / steps if part else 0.0 for part in (clock.interruptions_seconds, clock.checkpoints_seconds)]
    return row | {
        "layout": layout_words(work.layout),
        "micro-batch": _batch(work),
        "failures, checkpoints": ", ".join(map(format_share, lost)),
    }


def _batch(work: Workload) -> str:
    return f"{work.micro_batch}{_RECOMPUTED[work.activation_checkpointing]}"


def layouts(plan: Plan) -> Table:
    """Lists the layouts of the chosen GPUs, or other ways to use them, and why the others lose."""
    if kind_of(plan) == "rl":
        return rl.ways(plan)
    rows = tuple(
        (
            layout_words(run.workload.layout),
            _batch(run.workload),
            format_seconds(run.step_seconds.value),
            format_bytes(run.prediction.device_bytes.value),
            run.standing.why or "the best",
        )
        for run in (plan.chosen, *plan.considered)
        if run.workload.layout and run.prediction.device_bytes
    )
    return Table(columns=_OTHERS, rows=rows, numbers=_OTHERS[2:4], chosen=(0,))


def parts(plan: Plan) -> str:
    """Says what the chosen layout's step time and memory consist of."""
    if kind_of(plan) == "rl":
        return rl.parts(plan.prediction)
    step, memory = plan.prediction.step_parts or {}, plan.prediction.peak_parts or {}
    whole, all_bytes = sum(step.values()), sum(memory.values())
    longest, largest = (sorted(by_name.items(), key=lambda part: -part[1]) for by_name in (step, memory))
    times = ", ".join(f"{name} {format_share(part / whole)}" for name, part in longest if part / whole >= 0.01)
    sizes = ", ".join(f"{name} {format_bytes(part)}" for name, part in largest if part / all_bytes >= 0.01)
    return f"of a step, {times}; the fullest GPU holds {sizes}"


def passed_over(plan: Plan) -> str:
    """Says which machine without published runs looks cheaper, or faster if time is minimised; "" if none does."""
    by_time, search = plan.goal.objective == "time", plan.search
    word = "faster" if by_time else "cheaper"

    def counted(run: Run) -> float:
        usd = math.inf if run.cost_usd is None else run.cost_usd.value
        return run.total_seconds.value if by_time else usd

    for run in search.machines if search is not None else ():
        unsure = caution(require_gpu(run.offer.gpu), run.offer.gpus) > 1 and not run.standing.against
        if unsure and counted(run) < counted(plan.chosen) < math.inf:
            numbers = f"{TIME.expected(run.total_seconds)}, {COST.expected(run.cost_usd)}"
            return f"{rented(run.offer)} would be {word} at its estimated speed ({numbers}); {not_chosen(run.offer)}"
    return ""


def notes(plan: Plan) -> Iterator[str]:
    """Yields notes about the numbers: limits of the model, what was assumed, what does not fit, the basis."""
    work, search = plan.workload, plan.search
    yield from (*plan.warnings, *plan.reasons)
    yield from filter(None, [broken(plan)])
    yield from search.sensitivity if search is not None else ()
    yield from filter(None, [passed_over(plan)])
    about = {"rl": rl.notes, "layout": _about_layout, "finetune": _about_finetune}
    yield from about[kind_of(plan)](plan)
    if plan.assumed:
        yield f"assumed, because not given: {'; '.join(plan.assumed)}"
    if search is not None and search.does_not_fit:
        named, more = search.does_not_fit[:_NAMED], len(search.does_not_fit) - _NAMED
        yield f"may not fit: {', '.join(named)}{f' and {more} more' if more > 0 else ''}"
    if kind_of(plan) == "rl":
        return
    if work.layout is None:
        yield "speed and memory from published runs (80 % intervals); for your own script: `advisor adopt`"
        return
    own = speed_by_own_runs(plan.grounds)
    if own is None:
        yield (
            "speed and memory from published runs of other people (80 % intervals); to correct the speed, time "
            "a few runs on one machine and give them: --measured runs.csv"
        )
        return
    yield f"{own}; memory from published runs (80 % intervals)"


def _about_layout(plan: Plan) -> Iterator[str]:
    work, layout, search = plan.workload, plan.workload.layout, plan.search
    assert layout is not None and search is not None and plan.prediction.fit_probability is not None
    if _model(plan).experts is not None:
        yield "published runs of mixtures of experts force an even load; uneven routing takes up to the high end"
    seq_len = work.shape.seq_len
    chance = format_fit(plan.prediction.fit_probability)
    yield (
        f"{work.step_tokens // seq_len:,} sequences of {seq_len:,} tokens per step; {search.candidates:,} layouts "
        f"tried on these machines; probability that it fits: {chance}"
    )
    spec = require_gpu(work.gpu).with_network(plan.goal.network_bytes_per_second)
    yield from filter(None, [network(network_of(work, spec))])
    precision = "fp8" if work.software is not None and work.software.fp8 else work.precision
    yield (
        f"{precision} matrix products; MFU counts full attention, without the causal mask; failures expected: "
        f"{plan.bill.failures or 0.0:.1f}"
    )
    yield f"{layout_words(layout)}: {split_words(layout)}"
    yield (
        f"the time is {beyond_steps():.1f} times that of the steps alone, as in published whole runs: evaluations, "
        "slow machines, settings that were not the fastest"
    )


def _about_finetune(plan: Plan) -> Iterator[str]:
    if plan.goal.gpu == ANY:
        yield "only NVIDIA's GPUs are compared, unless another is named"
    share = tokens_padded(plan) / plan.chosen.tokens
    if plan.goal.stage == "dpo":
        yield (
            "the tokens of both answers count, and the reference model reads them once more beforehand; pairs are not "
            "packed, so answers of unequal length take longer"
        )
    elif share > 1.01:
        yield f"examples are packed into shared sequences; padded to the context, it takes {share:.1f} times as long"
    yield (
        f"a start file cuts each example at {plan.workload.shape.seq_len:,} tokens: give --length the longest to keep "
        "whole"
    )
    software = plan.workload.software
    if software is not None and software.looped_experts:
        yield (
            f"{words_of(software)} runs the {software.looped_experts:,} experts of a pass one after the other, which "
            "takes most of the time of a small micro-batch; software that runs them together is planned by --layout any"
        )


def lines(plan: Plan) -> list[RenderableType]:
    """Returns the plan as the console shows it, with the warnings on top."""
    shown: list[RenderableType] = [sentence(plan), *(f"! {warning}" for warning in plan.warnings), ""]
    shown += [on_console(machines(plan)), ""]
    if kind_of(plan) != "finetune":
        shown += [parts(plan), "", on_console(layouts(plan)), ""]
    return [*shown, *(note for note in notes(plan) if note not in plan.warnings)]


def rented(offer: Offer) -> str:
    """Describes a machine and its provider."""
    spot = ", spot" if offer.spot else ""
    return f"{offer.gpus} x {offer.gpu}" + (f" from {offer.seller}{spot}" if offer.provider else "")


def _model(plan: Plan) -> Model:
    assert plan.workload.model is not None  # other software trains published models
    return plan.workload.model
