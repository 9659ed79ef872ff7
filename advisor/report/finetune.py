"""Shows a fine-tune's plan: its sentence, the machines in a table, and the JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import RenderableType

from advisor.hardware.catalog import require_gpu
from advisor.offer import OWN_MACHINE, Offer
from advisor.planning.alternatives import unpublished
from advisor.prediction.comm import caution
from advisor.report.prediction import partial_words
from advisor.report.quantities import COST, TIME
from advisor.report.render import to_plain
from advisor.report.table import Table, on_console
from advisor.settings import SHARDINGS
from advisor.units import format_bytes, format_count, format_estimate, format_rate, format_tokens, format_usd_rate
from advisor.workflows.plan_finetune import FinetunePlan, FinetuneRun
from advisor.workflows.plan_layouts import LayoutChoice

_NAMED = 6  # GPUs named among those that the model does not fit
_ON = {"sft": "", "dpo": " by DPO on preference pairs"}
SHOWN = 8  # machines on the terminal: the best of each GPU
COLUMNS = ("GPUs", "from", "micro-batch", "memory per GPU", "tokens/s", "time", "cost", "longest context")


def sentence(plan: FinetunePlan) -> str:
    """Says in one sentence what to train, on which machine, and the time and cost."""
    run = plan.chosen
    how = partial_words(run.prediction.workload) or "all weights"
    cost = COST.of(run.usd) if run.usd is not None else "unknown cost"
    many = "" if plan.goal.examples is None else f"{format_count(plan.goal.examples)} examples, "
    return (
        f"{nearest(run)}Fine-tune {plan.model.name} ({how}){_ON[plan.stage]} on {rented(run.offer)} "
        f"with {plan.software}, {many}{format_tokens(plan.tokens)} tokens: "
        f"{TIME.of(run.seconds)}, {cost}."
    )


def table(plan: FinetunePlan, most: int = SHOWN) -> Table:
    """Lists the best machine of each GPU; those that break a limit come last."""
    best: dict[str, FinetuneRun] = {}
    for run in plan.runs:
        best.setdefault(run.offer.gpu, run)
    return Table(
        columns=COLUMNS,
        rows=tuple(_row(run, plan.stage) for run in list(best.values())[:most]),
        numbers=COLUMNS[3:],
        chosen=(0,),
    )


def notes(plan: FinetunePlan) -> Sequence[str]:
    """Returns notes about the numbers: limits that no run meets, padding, assumed options."""
    said = []
    said += [*filter(None, [plan.too_long]), *neighbours(plan)]
    share = plan.tokens_padded / plan.tokens
    if plan.stage == "dpo":
        said.append(
            "the tokens of both answers count, and the reference model reads them once more beforehand; pairs are not "
            "packed, so answers of unequal length take longer"
        )
    elif share > 1.01:
        said.append(f"packed, examples share sequences; padded to the context it takes {share:.1f} times as long")
    if (work := plan.chosen.prediction.workload).software is not None and work.software.looped_experts:
        said.append(
            f"{plan.software} runs the {plan.model.experts:,} experts of a pass one after the other, which is most of "
            "the time of a small micro-batch; software with grouped products does not: --layout any"
        )
    if plan.assumed:
        said.append(f"not given, so taken: {'; '.join(plan.assumed)}")
    if plan.does_not_fit:
        named = plan.does_not_fit if len(plan.does_not_fit) <= _NAMED else (f"{len(plan.does_not_fit)} kinds of GPU",)
        said.append(f"does not surely fit: {', '.join(named)}")
    said.append("speed and memory by published runs (80 % intervals); `advisor adopt` plans your own script")
    return said


def neighbours(plan: FinetunePlan) -> list[str]:
    """Says that a machine without published runs would be cheaper, so that its place in the table is understood."""
    chosen = plan.chosen.usd
    said: list[str] = []
    for run in plan.runs:
        unsure = caution(require_gpu(run.offer.gpu), run.offer.gpus) > 1
        if chosen and run.usd and unsure and all(run.keeps) and run.usd.value < chosen.value and not said:
            cost = f"{TIME.expected(run.seconds)}, {COST.expected(run.usd)}"
            said.append(f"{rented(run.offer)} would be cheaper ({cost}) {unpublished(run.offer)}")
    return said


def lines(plan: FinetunePlan) -> list[RenderableType]:
    """Returns the plan as the console shows it."""
    return [sentence(plan), "", on_console(table(plan)), "", *notes(plan)]


def document(plan: FinetunePlan) -> dict[str, Any]:
    """Returns a fine-tune's plan for JSON."""
    return to_plain(plan) | {"sentence": sentence(plan), "too_long": plan.too_long}


def rented(offer: Offer) -> str:
    """Describes a machine and its provider."""
    spot = ", spot" if offer.spot else ""
    return f"{offer.gpus} x {offer.gpu}" + (f" from {offer.provider}{spot}" if offer.provider else "")


def missed(run: FinetuneRun | LayoutChoice, deadline: str, budget: str) -> list[str]:
    """Names the limits that a run breaks, in these words."""
    return [word for word, kept in zip((deadline, budget), run.keeps, strict=True) if not kept]


def nearest(run: FinetuneRun | LayoutChoice) -> str:
    """Returns the beginning of the answer's sentence if no run is within the limits, and otherwise ""."""
    broken = " and the ".join(missed(run, "deadline", "budget"))
    return f"No run keeps the {broken}. The nearest: " if broken else ""


def _row(run: FinetuneRun, stage: str) -> tuple[str, ...]:
    answer = run.prediction
    work, memory, rate = answer.workload, answer.device_bytes, answer.tokens_per_second
    rent = "" if run.offer.usd_per_hour is None else f", {format_usd_rate(run.offer.usd_per_hour)}"
    how = ["recomputed"] if work.activation_checkpointing == "full" else []
    how += list(filter(None, [SHARDINGS[work.sharding].words]))
    late = f" ({', '.join(missed(run, 'late', 'too dear'))})" if not all(run.keeps) else ""
    unsold = "given" if run.offer.ordered else "your own" if run.offer.source == OWN_MACHINE else "no price known"
    seller = run.offer.provider or unsold
    return (
        f"{run.offer.gpus} x {run.offer.gpu}",
        f"{seller}{' spot' if run.offer.spot else ''}{rent}",
        f"{work.micro_batch} x {work.shape.seq_len}"
        + (" in pairs" if stage == "dpo" else "")
        + (f" ({', '.join(how)})" if how else ""),
        format_estimate(memory, format_bytes),
        format_estimate(rate, format_rate),
        TIME.of(run.seconds) + late,
        COST.of(run.usd),
        format_count(run.longest_context) if run.longest_context else "none",
    )
