"""Shows what differs between two runs or calibrations, with predicted effects. The only arithmetic is ratios."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from advisor.records import Estimate
from advisor.report.quantities import COST, LOSS, RESERVED, STEP_TIME, THROUGHPUT, Quantity
from advisor.report.replan import value
from advisor.report.table import Table
from advisor.units import format_seconds, format_tokens
from advisor.workflows.diff import CalibrationDiff, Diff, Difference, Promise, Side
from trainer.schema import to_dict

NOTHING = "no setting of the training differs"
_STEPS = Quantity("all steps", format_seconds)
_COST = Quantity("cost of all steps", COST.words)
_SMALLEST = 0.0005  # shown as 0.1 %; a smaller change is shown as none
_TIMES = 2.0  # a larger ratio is shown as a factor


def heading(found: Diff) -> str:
    """Names the two things that are compared."""
    words = (
        f"{side.kind} {side.name} ({side.workload.gpus} x {side.workload.gpu})" for side in (found.one, found.other)
    )
    return f"{' and '.join(words)}: {len(found.differences)} settings differ, {found.same} are the same"


def differences(found: Diff) -> Table:
    """Lists each setting that differs, and the predicted effect of changing only this setting in the first run."""
    rows = tuple(
        (d.setting, value(d.setting, d.one), value(d.setting, d.other), effect(d, found.promises[0]))
        for d in found.differences
    )
    return Table(
        columns=("setting", found.one.name, found.other.name, "predicted effect of this change alone"), rows=rows
    )


def effect(difference: Difference, before: Promise) -> str:
    """Describes the effect of one difference, as ratios to the first run's predictions."""
    after = difference.promise
    if after is None:
        return difference.unjudged
    if after.why_not or before.why_not:
        return f"cannot be said: {after.why_not or before.why_not}"
    changes = [f"{name} {ratio_words(ratio)}" for name, ratio in _ratios(before, after)]
    if before.loss is not None and after.loss is None:
        changes.append("loss outside what the laws were fitted on")
    return ", ".join(changes) or "no predicted change"


def ratio_words(ratio: float) -> str:
    """Returns a ratio as a change in percent, or as a factor if a percentage would be hard to read."""
    if ratio >= _TIMES or ratio <= 1 / _TIMES:
        return f"x {ratio:.3g}"
    return f"{ratio - 1:+.1%}".replace("%", " %")


def _ratios(before: Promise, after: Promise) -> Iterator[tuple[str, float]]:
    for (name, one), (_, other) in zip(_of(before), _of(after), strict=True):
        if one is not None and other is not None and one.value > 0:
            ratio = other.value / one.value
            if abs(ratio - 1) >= _SMALLEST:
                yield name, ratio


def _of(promise: Promise) -> Iterator[tuple[str, Estimate | None]]:
    found = promise.prediction
    yield "step", found.step_seconds if found is not None else None
    yield "tokens/s", found.tokens_per_second if found is not None else None
    yield "memory", found.peak_reserved_bytes if found is not None else None
    yield "all steps", promise.steps_seconds
    yield "cost", promise.steps_usd
    yield "loss", promise.loss


def together(found: Diff) -> Table:
    """Compares the two whole runs: predictions, and measurements if they trained."""
    quantities = (
        (STEP_TIME, "step_seconds"),
        (THROUGHPUT, "tokens_per_second"),
        (RESERVED, "peak_reserved_bytes"),
        (_STEPS, ""),
        (_COST, ""),
        (LOSS, "loss"),
    )
    promised = [[estimate for _, estimate in _of(promise)] for promise in found.promises]
    sides = [side for side in (found.one, found.other) if side.measured is not None]
    rows = []
    for i, (quantity, name) in enumerate(quantities):
        cells = [quantity.of(estimates[i]) for estimates in promised]
        cells += [_measured(side, name, quantity) for side in sides]
        rows.append((quantity.name, *cells))
    rows.append(("tokens", format_tokens(found.one.tokens), format_tokens(found.other.tokens), *("" for _ in sides)))
    columns = ("all together", f"{found.one.name}, predicted", f"{found.other.name}, predicted")
    return Table(columns=(*columns, *(f"{side.name}, measured" for side in sides)), rows=tuple(rows))


def _measured(side: Side, name: str, quantity: Quantity) -> str:
    number = (side.measured or {}).get(name)
    return "" if number is None else quantity.words(number)


def notes(found: Diff) -> Iterator[str]:
    """Yields the notes that explain the tables."""
    if not found.differences:
        yield NOTHING
    for side, promise in zip((found.one, found.other), found.promises, strict=True):
        if promise.why_not and promise.steps_seconds is not None:
            yield f"of {side.name} its plan's promise stands: {promise.why_not}"
        elif promise.why_not:
            yield f"no prediction for {side.name}: {promise.why_not}"


def calibration_tables(found: CalibrationDiff) -> tuple[Table, Table]:
    """Lists the settings and results that differ, and both calibrations' step times for the same configurations."""
    names = (found.one.id, found.other.id)
    settings = Table(columns=("what", *names), rows=tuple((n, value(n, a), value(n, b)) for n, a, b in found.settings))
    rows = tuple(
        (f"depth {w.shape.depth}, micro-batch {w.micro_batch} x {w.shape.seq_len}", STEP_TIME.of(a), STEP_TIME.of(b),
         ratio_words(b.value / a.value) if a and b else "")
        for w, a, b in found.steps
    )  # fmt: skip
    return settings, Table(columns=("a step of", *names, "second against first"), rows=rows)


def document(found: Diff | CalibrationDiff) -> dict[str, Any]:
    """Returns the comparison for JSON."""
    if isinstance(found, CalibrationDiff):
        steps = [{"depth": w.shape.depth, "one": to_dict(a), "other": to_dict(b)} for w, a, b in found.steps]
        settings = [{"setting": n, "one": a, "other": b} for n, a, b in found.settings]
        return {"calibrations": [found.one.id, found.other.id], "differences": settings, "step_seconds": steps}
    rows = [
        {"setting": d.setting, "one": d.one, "other": d.other, "alone": dict(_alone(d, found.promises[0])),
         "unjudged": d.unjudged or None}
        for d in found.differences
    ]  # fmt: skip
    sides = [
        {"name": side.name, "kind": side.kind, "gpu": side.workload.gpu, "gpus": side.workload.gpus,
         "predicted": {name: to_dict(e) for name, e in _of(promise)}, "measured": side.measured,
         "why_not": promise.why_not or None}
        for side, promise in zip((found.one, found.other), found.promises, strict=True)
    ]  # fmt: skip
    return {"same": found.same, "differences": rows, "runs": sides}


def _alone(difference: Difference, before: Promise) -> Iterator[tuple[str, float]]:
    return _ratios(before, difference.promise) if difference.promise is not None else iter(())
