"""The reasons under the plan, a tab each: curves, the bill, what was rejected, and why. Only the open one is drawn."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from advisor.cli.plan_tables import batch, machine
from advisor.plan import curves, explore
from advisor.plan.explain import SCORE, verdict
from advisor.predict.profile import Profile
from advisor.predict.trajectory import milestones
from advisor.records import Candidate, Choice, Goal, Plan
from advisor.report import charts
from advisor.ui import plan_answers, plan_charts
from advisor.ui.controls import PLAN, in_controls, in_words
from advisor.units import (
    format_bytes,
    format_count,
    format_estimate,
    format_number,
    format_percent,
    format_rate,
    format_seconds,
    format_tokens,
    format_usd,
)


def tabs(goal: Goal, shown: Plan, own: Profile, answered: Plan) -> None:
    """Draw the open tab: of the plan that is shown; what was rejected is the whole search's."""
    drawn: dict[str, Callable[[], None]] = {
        "Throughput": lambda: _throughput(shown, own),
        "Memory": lambda: _memory(shown, own),
        "Loss": lambda: _loss(goal, shown, own),
        "The bill": lambda: _bill(shown),
        "Scaling": lambda: _scaling(shown),
        "Considered and rejected": lambda: _considered(answered),
        "Why this one": lambda: _why(shown, answered),
    }
    for tab, draw in zip(st.tabs(list(drawn), key="tab", on_change="rerun"), drawn.values(), strict=True):
        if tab.open:
            with tab:
                draw()


def plain(text: str) -> str:
    """Text as Markdown shows it literally: a dollar would begin a formula."""
    return text.replace("$", "\\$")


def worded(text: str) -> str:
    """What the planner says, with this page's controls where it names the command's options."""
    return in_controls(text, PLAN, plain)


def _throughput(shown: Plan, own: Profile) -> None:
    points, measured = plan_answers.throughput(shown, own)
    rows = [
        {
            "micro_batch": p.micro_batch,
            "value": p.tokens_per_second.value,
            "low": p.tokens_per_second.low,
            "high": p.tokens_per_second.high,
            "label": f"micro-batch {p.micro_batch}: {format_estimate(p.tokens_per_second, format_rate)}",
        }
        for p in points
    ]
    dots = [
        {
            "micro_batch": m.micro_batch,
            "value": m.tokens_per_second,
            "label": f"measured at depth {m.depth}, context {m.seq_len}: {format_percent(abs(m.faster))} "
            f"{'faster' if m.faster >= 0 else 'slower'} than the fitted terms alone",
        }
        for m in measured
    ]
    chart = charts.curve(
        rows,
        x=("micro_batch", "micro-batch (sequences per device)"),
        y=("value", "tokens per second"),
        points=dots,
        log_x=True,
    )
    st.altair_chart(chart, width="stretch")
    words = "Blue: predicted, with its 80 % band, up to the first micro-batch that does not fit the memory. "
    if dots:
        words += "Orange: this device's calibration, carried from the shapes that were measured to this one."
    elif own.calibrated:
        words += "The calibration measured one device; several are predicted from it and the links between them."
    else:
        words += f"No points: {own.key} was never calibrated, so this is a *prior* from data sheets and published runs."
    st.caption(words)


def _memory(shown: Plan, own: Profile) -> None:
    points = curves.memory(own, shown.workload)
    rows = [
        {"micro_batch": p.micro_batch, "part": part, "order": order, "value": curves.gib(size),
         "label": format_bytes(size)}
        for p in points
        for order, (part, size) in enumerate(zip(curves.MEMORY_PARTS, p.parts, strict=True))
    ]  # fmt: skip
    ends = [
        {"micro_batch": p.micro_batch, "low": curves.gib(p.total.low), "high": curves.gib(p.total.high),
         "label": format_estimate(p.total, format_bytes)}
        for p in points
    ]  # fmt: skip
    has = f"{own.key} has {format_bytes(own.device_memory_bytes)}"
    drawn = curves.limit_to_draw(own, points)
    limit = (curves.gib(drawn), has) if drawn is not None else None
    st.altair_chart(plan_charts.memory(rows, ends, parts=curves.MEMORY_PARTS, limit=limit), width="stretch")
    st.caption(
        f"At the peak of a step, at depth {shown.chosen.depth} and context {shown.run.model.seq_len}; the plan's "
        f"micro-batch is {shown.run.micro_batch}; {has}. Grey: the 80 % interval of the sum, whose high end must "
        "fit with a margin of 3 %. Overhead: workspaces, the allocator's holes, the driver's context."
    )


def _loss(goal: Goal, shown: Plan, own: Profile) -> None:
    found = plan_answers.loss(goal, shown, own)
    if found.problem:
        st.info(f"No loss is promised: {found.problem}.", icon=":material/question_mark:")
        return
    rows = [
        {"tokens": p.tokens, "value": p.loss.value, "low": p.loss.low, "high": p.loss.high,
         "label": f"{format_tokens(p.tokens)} tokens: {format_estimate(p.loss, format_number)}"}
        for p in found.points
    ]  # fmt: skip
    marks = [{"tokens": m.tokens, "words": f"{m.words}: {format_tokens(m.tokens)}"} for m in found.marks]
    st.altair_chart(plan_charts.loss(rows, marks), width="stretch")
    st.caption(
        f"This model of {format_count(shown.prediction.parameters)} parameters after more or fewer tokens, by a "
        "published scaling law (a *prior*: another corpus or tokenizer moves it, the band allows for that). "
        "Each mark says how many tokens that limit alone allows."
    )
    course = [
        {"After": format_percent(p.share), "Step": format_count(p.step), "Tokens": format_tokens(p.tokens),
         "Training loss": format_estimate(p.loss, format_number)}
        for p in milestones(shown)
    ]  # fmt: skip
    if course:
        st.markdown("**What to expect on the way**")
        st.dataframe(course, hide_index=True)


def _bill(shown: Plan) -> None:
    parts = explore.bill(shown)
    rows = [
        {"what": "time", "part": p.name, "order": order, "value": p.seconds, "label": format_seconds(p.seconds)}
        for order, p in enumerate(parts)
    ]
    rows += [
        {"what": "dollars", "part": p.name, "order": order, "value": p.usd, "label": format_usd(p.usd)}
        for order, p in enumerate(parts)
        if p.usd
    ]
    st.altair_chart(plan_charts.bill(rows, parts=[part.name for part in parts]), width="stretch")
    prediction = shown.prediction
    lines = [{"Part": p.name, "Time": format_seconds(p.seconds) if p.seconds else "-",
              "Dollars": format_usd(p.usd)} for p in parts]  # fmt: skip
    total = format_estimate(prediction.wall_clock.total_seconds, format_seconds)
    lines.append({"Part": "in all", "Time": total, "Dollars": format_estimate(prediction.cost_usd, format_usd)})
    st.dataframe(lines, hide_index=True)
    st.caption(plain(f"Price: {shown.price_source}. The run keeps {format_bytes(prediction.disk_bytes)} on disk."))


def _scaling(shown: Plan) -> None:
    search = shown.search
    if search is None or len(search.scaling) < 2:
        st.info("This run cannot be split over more devices, or the links between them are unknown.")
        return
    rows = [
        {"gpus": p.gpus, "value": p.tokens_per_second,
         "label": f"{p.gpus} GPUs: {format_rate(p.tokens_per_second)}, {format_percent(p.efficiency)} of ideal; "
         f"{format_seconds(p.total_seconds)}, {format_usd(p.cost_usd)}"}
        for p in search.scaling
    ]  # fmt: skip
    ideal = [{"gpus": gpus, "value": rate} for gpus, rate in curves.ideal_rates(shown)]
    st.altair_chart(plan_charts.scaling(rows, ideal), width="stretch")
    if search.pays_up_to_gpus is None:
        st.caption("More GPUs pay as far as this goes: they shorten the run by more than they raise the bill.")
    else:
        st.caption(f"Beyond {search.pays_up_to_gpus}, more GPUs raise the bill by more than they shorten the run.")
    lines = [
        {"GPUs": str(p.gpus), "Tokens/s": format_rate(p.tokens_per_second), "Per GPU": format_percent(p.efficiency),
         "Time": format_seconds(p.total_seconds), "Dollars": format_usd(p.cost_usd)}
        for p in search.scaling
    ]  # fmt: skip
    st.dataframe(lines, hide_index=True)


def _considered(answered: Plan) -> None:
    search = answered.search
    if search is not None:
        st.caption(
            f"{format_count(search.candidates)} runs on {len(search.devices)} kinds of devices were weighed; "
            f"{search.front_size} are beaten by no other in dollars, hours and quality at once."
        )
        if search.near_misses:
            st.markdown("**Better but for one thing**")
            st.dataframe([_choice_row(c) for c in search.near_misses], hide_index=True)
        st.markdown("**Best for each price and each time**")
        st.dataframe([_choice_row(c) for c in search.front], hide_index=True)
    st.markdown(f"**On {answered.workload.gpus} x {answered.workload.gpu}: depths and micro-batches**")
    st.dataframe([_candidate_row(c, answered.chosen) for c in answered.considered], hide_index=True)
    st.caption(f"{SCORE[:1].upper()}{SCORE[1:]}. Memory is all that a GPU must hold; recomputing: of activations.")
    if search is not None and search.left_out:
        st.markdown("**Not searched**")
        st.markdown("\n".join(f"- {worded(text)}" for text in search.left_out))


def _choice_row(choice: Choice) -> dict[str, str]:
    return {
        "On": machine(choice),
        "Depth": str(choice.depth),
        "Tokens": format_tokens(choice.tokens),
        "Time": format_seconds(choice.total_seconds.value),
        "Cost": format_usd(choice.cost_usd.value if choice.cost_usd else None),
        "Loss": format_number(choice.loss.value if choice.loss else None),
        "Remark": in_words(choice.why, PLAN),
        "Parameters": format_count(choice.parameters),
        "Batch": batch(choice),
    }


def _candidate_row(candidate: Candidate, chosen: Candidate) -> dict[str, str]:
    memory, again = candidate.device_bytes, candidate.activation_checkpointing == "full"
    return {
        "Depth": str(candidate.depth),
        "Micro-batch": f"{candidate.micro_batch} x {candidate.grad_accum}{', recomputing' if again else ''}",
        "Tokens": format_tokens(candidate.tokens),
        "Tokens/s": format_rate(candidate.tokens_per_second.value),
        "Memory": format_bytes(memory.value if memory else None),
        "Time": format_seconds(candidate.total_seconds.value),
        "Cost": format_usd(candidate.cost_usd.value if candidate.cost_usd else None),
        "Verdict": in_words(verdict(candidate, chosen), PLAN),
        "Parameters": format_count(candidate.parameters),
    }


def _why(shown: Plan, answered: Plan) -> None:
    left, right = st.columns(2)
    left.markdown("\n".join(f"- {worded(text)}" for text in answered.reasons))
    if shown is not answered:
        left.markdown("**What is shown instead**")
        left.markdown("\n".join(f"- {worded(text)}" for text in shown.reasons))
    right.caption("It rests on")
    right.markdown("\n".join(f"- {worded(text)}" for text in shown.inputs))
