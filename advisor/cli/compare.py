"""`advisor compare`: predicted against actual, where the gap went, and several runs side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from advisor import render
from advisor.units import Formatter, format_estimate, format_percent, format_tokens

if TYPE_CHECKING:
    from advisor.outcome import Reviewed


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--record/--no-record", default=True, help="Keep the scores and offer the run to its device's profile.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(runs: tuple[str, ...], record: bool, as_json: bool) -> None:
    """Set RUN (a path, a name, a unique beginning of one, or `latest`) against its prediction.

    Several runs are shown side by side too, at equal tokens and at equal learning-rate phase. A finished run's scores
    go into the ledger that `advisor accuracy` reads, and its step time into the profile of its device.
    """
    from advisor.outcome import to_document
    from advisor.store import default_store
    from advisor.workflows.compare import compare

    compared = compare(default_store(), runs, record=record)
    reviewed, points = compared.runs, compared.points
    if as_json:
        documents = [to_document(one) for one in reviewed]
        render.print_json(documents[0] if len(documents) == 1 else {"runs": documents, "side_by_side": points})
        return
    for one in reviewed:
        if one.problem:
            render.remark(f"warning: {one.problem}")
        render.show(*report(one), "")
    if points:
        render.show(*_side_by_side_report(points))
    render.show("next: advisor accuracy" if any(one.recorded for one in reviewed) else "next: advisor runs")


def report(one: Reviewed) -> Iterator[Any]:
    """The comparison as a person reads it: a line, the table of quantities, where the gap went."""
    from advisor.outcome import QUANTITIES

    comparison = one.comparison
    yield f"{one.run_dir.name}: {_standing(comparison)}"
    yield ""
    rows = [_score_row(comparison.score(name), title, formatter) for name, title, formatter in QUANTITIES]
    columns = ("what", "predicted (80 % interval)", "actual", "error", "inside", "basis")
    yield render.table(columns, [row for row in rows if row], right=("actual", "error"))
    if comparison.gap_seconds is not None:
        yield ""
        yield _gap_table(comparison)


def _standing(comparison: Any) -> str:
    ended = comparison.outcome or "no end in the log: it runs, or died without a word"
    again = f", {comparison.attempts} attempts" if comparison.attempts > 1 else ""
    return f"{ended}, {comparison.steps} of {comparison.steps_planned} steps{again}"


def _score_row(score: Any, title: str, formatter: Formatter) -> tuple[str, ...] | None:
    if score.actual is None and score.predicted is None:
        return None
    error = "-" if score.error is None else f"{'+' if score.error >= 0 else '-'}{format_percent(abs(score.error))}"
    inside = {True: "yes", False: "no", None: "-"}[score.inside_interval]
    basis = score.predicted.basis if score.predicted else "-"
    return title, format_estimate(score.predicted, formatter), formatter(score.actual), error, inside, basis


def _gap_table(comparison: Any) -> Any:
    rows = [(cause.name, _signed(cause.seconds), cause.note) for cause in comparison.causes]
    rows.append(("in all", _signed(comparison.gap_seconds), "actual minus predicted wall clock"))
    return render.table(("where the gap went", "seconds", ""), rows, right=("seconds",), styles={len(rows) - 1: "bold"})


def _signed(seconds: float) -> str:
    return f"{seconds:+.2f}"


def _side_by_side_report(points: Sequence[Any]) -> Iterator[Any]:
    names = [standing.run_id for standing in points[0].runs]
    rows = []
    for point in points:
        at = f"{format_tokens(point.value)} tokens" if point.at == "tokens" else f"{point.value:.0%} of the schedule"
        losses = [f"{s.loss:.4f} ({format_percent(s.rate_factor)} of peak LR)" for s in point.runs]
        rows.append((at, *losses, "comparable" if point.comparable else point.problem))
    yield render.table(("training loss at", *names, ""), rows, title="Side by side")
    yield ""
