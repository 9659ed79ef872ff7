"""`advisor predict`: time, memory and throughput of one configuration, or of every row of a table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import RenderableType

from advisor.cli import NOTHING_FITS
from advisor.cli.verb import FILE, SectionedCommand, options_in, print_answer, verb, warn_of_others
from advisor.errors import AdvisorError
from advisor.options import PredictOptions
from advisor.report import render

if TYPE_CHECKING:
    from advisor.workflows.predict import Predicted


@verb(cls=SectionedCommand)
@options_in(PredictOptions)
@click.option("--rows", type=FILE,
              help="Predict every row of this CSV file. Prints one JSON object per line.")  # fmt: skip
def command(rows: Path | None, **typed: Any) -> int:
    """Predict step time, throughput and memory of one configuration, each with its 80 % interval and its basis.

    With --rows the columns of the table are named as the options: gpu, model, micro-batch, tp and so on, with yes or no
    for those without a value. An empty cell is an option that is not given. A row that cannot be predicted gets an
    `error`.
    """
    from advisor import api
    from advisor.workflows.goal import readings

    context = click.get_current_context()
    given = [name for name in typed if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if rows is not None and given:
        option = f"--{given[0].replace('_', '-')}"
        raise AdvisorError(f"{option} cannot be combined with --rows", "add a column for it", exit_code=2)
    if rows is not None:
        return _show_rows(rows)
    for words in readings({"gpu": typed["gpu"]}):
        render.remark(words)
    answer = api.predict(**typed)
    predicted = answer.record
    warn_of_others([predicted.workload.gpu])
    if predicted.assumed:
        render.remark(f"not given, so taken: {'; '.join(predicted.assumed)}")
    print_answer(answer, lambda: shown(predicted))
    return NOTHING_FITS if predicted.fits is False else 0


def _show_rows(path: Path) -> int:
    """Print a line of JSON for each row; returns the exit code: 3 if no predicted row fits."""
    from advisor.report.prediction import document
    from advisor.report.render import to_plain
    from advisor.store.store import default_store
    from advisor.workflows.option_rows import predict_rows

    verdicts: dict[str, set[bool | None]] = {}  # by GPU
    for number, predicted in enumerate(predict_rows(path, default_store()), 1):
        row: dict[str, object] = {"row": number}
        if isinstance(predicted, AdvisorError):
            row |= {"error": predicted.message, "hint": predicted.hint}
        else:
            row |= document(predicted)
            verdicts.setdefault(predicted.workload.gpu, set()).add(predicted.fits)
        sys.stdout.write(json.dumps(to_plain(row), ensure_ascii=False, allow_nan=False) + "\n")
    warn_of_others(verdicts)
    return NOTHING_FITS if set().union(*verdicts.values()) == {False} else 0


def shown(predicted: Predicted) -> Iterator[RenderableType]:
    """Show one configuration: each number with its interval and its basis."""
    from advisor.report import prediction, rl
    from advisor.report.prediction import heading, quantities, sources, time_unknown, verdict
    from advisor.report.table import on_console

    of_rl = predicted.workload.rollouts is not None
    yield rl.heading(predicted, predicted.made_for) if of_rl else heading(predicted)
    yield from ("", on_console(quantities(predicted)), "")
    if of_rl:
        yield from (rl.parts(predicted), "")
    if predicted.memory_parts is not None:
        yield from (on_console(prediction.memory(predicted.memory_parts)), "")
    if predicted.other_depths:
        yield from (on_console(prediction.options(predicted.other_depths, predicted.workload.shape.depth)), "")
    if predicted.data is not None:
        yield from (prediction.to_fetch(predicted.data), "")
    yield from filter(None, [time_unknown(predicted)])
    yield verdict(predicted)
    yield from filter(None, [predicted.too_long])
    yield from (f"would fit: {change}" for change in predicted.would_fit)
    yield from (f"{name}: {words}" for name, words in sources(predicted).items() if words)
    yield from (f"from: {source}" for source in predicted.sources)
