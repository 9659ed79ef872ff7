"""Shows a plan of RL post-training: its sentence, the machines, the ways to use the chosen GPUs, its notes."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.architecture import Rollouts
from advisor.records import Plan, Prediction, Run
from advisor.report.prediction import layout_words
from advisor.report.quantities import TIME, cost_of
from advisor.report.table import Table
from advisor.units import (
    format_bytes,
    format_count,
    format_estimate,
    format_fit,
    format_percent,
    format_rate,
    format_seconds,
    format_usd_rate,
)

COLUMNS = ("GPUs", "from", "train + generate", "step", "memory per GPU", "tokens/s", "time", "cost")
WAYS = ("train + generate", "training", "step", "generation", "update", "memory per GPU", "why not")
# How the parts of a step are called, in their order.
PARTS = {
    "generation": "generation",
    "reward": "rewards",
    "log_probs": "log-probabilities",
    "update": "update",
    "sync": "new weights to the engines",
    "rest": "switching and other",
}
_ALGORITHMS = {"grpo": "GRPO", "dapo": "DAPO", "ppo": "PPO"}


def rollouts_of(prediction: Prediction) -> Rollouts:
    """Return the answers of a prediction of RL."""
    assert prediction.workload.rollouts is not None
    return prediction.workload.rollouts


def use_words(prediction: Prediction) -> str:
    """Say which GPUs train and which generate."""
    rollouts, work = rollouts_of(prediction), prediction.workload
    engine = f" (TP{rollouts.engine_tensor} engines)" if rollouts.engine_tensor > 1 else ""
    judging = "" if rollouts.judge is None else f", {rollouts.judge} judges in turn with the engines"
    if rollouts.judge_gpus:
        judging = f", {rollouts.judge_gpus} judge ({rollouts.judge})"
    if rollouts.colocated:
        who = "all other GPUs" if rollouts.judge_gpus else "all GPUs"
        return f"{who} alternate between generating{engine} and training{judging}"
    behind = {0.0: "waiting for each other", 1.0: "one step off-policy"}.get(
        rollouts.staleness, f"{rollouts.staleness:g} steps off-policy"
    )
    return f"{work.gpus} train, {rollouts.engine_gpus} generate{engine}{judging}, {behind}"


def short_use(prediction: Prediction) -> str:
    """Say the same in few words, for a table."""
    rollouts = rollouts_of(prediction)
    engine = f", TP{rollouts.engine_tensor}" if rollouts.engine_tensor > 1 else ""
    judging = f" + {rollouts.judge_gpus} that judge" if rollouts.judge_gpus else ""
    use = "colocated" if rollouts.colocated else f"{prediction.workload.gpus} train + {rollouts.engine_gpus}"
    return f"{use}{judging}{engine}"


def sentence(plan: Plan, rented: str, nearest: str) -> str:
    """Say what is trained how, on which machine, and the time and cost."""
    run, rollouts, model = plan.chosen, rollouts_of(plan.prediction), plan.workload.model
    assert model is not None
    what = f"adapters of {model.name}" if plan.goal.lora else model.name
    return (
        f"{nearest}Post-train {what} by {_ALGORITHMS[rollouts.algorithm]} with {plan.goal.software} on {rented}: "
        f"{use_words(plan.prediction)}; {format_count(plan.goal.prompts or 0)} prompts in {run.steps:,} steps of "
        f"{rollouts.prompts:,} prompts with {rollouts.group:,} answers each: {TIME.of(run.total_seconds)}, "
        f"{cost_of(run)}."
    )


def row(run: Run, origin: str, late: str) -> dict[str, str]:
    """Return the cells of a machine by column."""
    answer = run.prediction
    return {
        "GPUs": f"{run.offer.gpus} x {run.offer.gpu}",
        "from": origin,
        "train + generate": short_use(answer),
        "step": format_estimate(answer.step_seconds, format_seconds),
        "memory per GPU": format_estimate(answer.device_bytes, format_bytes),
        "tokens/s": format_estimate(answer.tokens_per_second, format_rate),
        "time": TIME.of(run.total_seconds) + (f" ({late})" if late else ""),
    }


def ways(plan: Plan) -> Table:
    """List the ways to use the chosen GPUs, and why the others lose."""
    rows = []
    for run in (plan.chosen, *plan.considered):
        parts, work = run.prediction.step_parts or {}, run.workload
        rows.append(
            (
                short_use(run.prediction),
                layout_words(work.layout) if work.layout is not None else "adapters",
                format_seconds(run.step_seconds.value),
                format_seconds(parts.get("generation", 0.0)),
                format_seconds(parts.get("update", 0.0) + parts.get("log_probs", 0.0)),
                format_estimate(run.prediction.device_bytes, format_bytes),
                run.standing.why or "the best",
            )
        )
    return Table(columns=WAYS, rows=tuple(rows), numbers=WAYS[2:6], chosen=(0,))


def parts(prediction: Prediction) -> str:
    """Say what a step consists of; parts on two groups of GPUs overlap."""
    found, rollouts = prediction.step_parts or {}, rollouts_of(prediction)
    names = PARTS | ({} if rollouts.judge is None else {"reward": f"rewards by {rollouts.judge}"})
    times = ", ".join(f"{names[name]} {format_seconds(found[name])}" for name in names if found.get(name))
    both = "" if rollouts.colocated or not rollouts.staleness else " (engines and trainer work at the same time)"
    moments = ", ".join(f"{name} {format_bytes(held)}" for name, held in (prediction.peak_parts or {}).items())
    return (
        f"a step of {format_estimate(prediction.step_seconds, format_seconds)}: {times}{both}; GPU memory by "
        f"phase: {moments}"
    )


def heading(prediction: Prediction, software: str) -> str:
    """Say which step is predicted."""
    rollouts, work = rollouts_of(prediction), prediction.workload
    name = work.model.name if work.model is not None else "the model"
    gpus = work.gpus + rollouts.judge_gpus + (0 if rollouts.colocated else rollouts.engine_gpus)
    return (
        f"one step of {_ALGORITHMS[rollouts.algorithm]} of {name} with {software} on {gpus} x {work.gpu}: "
        f"{rollouts.prompts * rollouts.group:,} answers of {rollouts.response_len:,.0f} tokens up to "
        f"{rollouts.response_max:,}; {use_words(prediction)}"
    )


def bars(plan: Plan, most: int = 3) -> list[dict[str, object]]:
    """Return the parts of a step of the best ways as rows of a chart; two groups of GPUs have a bar each."""
    rows: list[dict[str, object]] = []
    for run in (plan.chosen, *plan.considered)[:most]:
        rollouts, found = rollouts_of(run.prediction), run.prediction.step_parts or {}
        for order, (name, words) in enumerate(PARTS.items()):
            side = "" if rollouts.colocated else "engines" if name in ("generation", "reward") else "trainer"
            place = ": ".join(filter(None, (short_use(run.prediction), side)))
            seconds = found.get(name, 0.0)
            rows.append({"place": place, "part": words, "order": order, "value": seconds,
                         "label": format_seconds(seconds)})  # fmt: skip
    return rows


def notes(plan: Plan) -> Iterator[str]:
    """Yield what sets the step and what would change it, and what the numbers rest on."""
    rollouts = rollouts_of(plan.prediction)
    if not rollouts.colocated and rollouts.staleness > 0:
        yield "answers are of weights that are a step or more old, which may cost quality; no number is known for that"
    updates = f"{rollouts.updates} update{'s' if rollouts.updates > 1 else ''} per step"
    fit = format_fit(plan.prediction.fit_probability or 0.0)
    yield (
        f"prompts of {rollouts.prompt_len:,.0f} tokens, answers of {rollouts.response_len:,.0f} on average, at "
        f"most {rollouts.response_max:,}; {updates}; {_loss_words(rollouts)}probability that it fits: {fit}"
    )
    grounds = plan.grounds
    if grounds is not None and grounds.own_slowdown is not None:
        yield (
            f"your {grounds.own_runs} timed steps take {grounds.own_slowdown:.2f} times as long as predicted, and so "
            "do all steps here; memory from published runs (80 % intervals)"
        )
        return
    yield (
        "speed and memory from published runs of RL post-training (80 % intervals); old versions, unpacked batches and "
        "engines without CUDA graphs are slower. To correct the speed by your own step times, give --measured"
    )


def _loss_words(rollouts: Rollouts) -> str:
    words = "a reference model for a KL term; " if rollouts.reference else "no reference model; "
    if rollouts.engine_fp8:
        words += "engines with weights of 8 bits; "
    if rollouts.trained_share < 1:
        words += f"{format_percent(1 - rollouts.trained_share)} of the groups are dropped and generated anew; "
    return words


def in_words(plan: Plan) -> list[str]:
    """Return the parts of a step and the other ways to use the GPUs, for an assistant."""
    others = [
        f"{short_use(run.prediction)}: a step of {format_seconds(run.step_seconds.value)}, {run.standing.why}"
        for run in plan.considered
    ]
    return [parts(plan.prediction), *others]


def origin(run: Run, provider: str) -> str:
    """Return where a machine comes from, with its rent."""
    price, spot = run.offer.usd_per_gpu_hour, " spot" if run.offer.spot else ""
    return f"{provider}{spot}" + (f", {format_usd_rate(price)} a GPU-hour" if price else "")
