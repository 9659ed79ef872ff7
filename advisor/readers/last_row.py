"""What the last rows of a run show of its end where no word and no plan tells of one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from advisor.readers.run_table import Event, RunTable, Status

FEWEST_GAPS = 5  # between evaluations that show how often they are due
FEWEST_TURNS = 4  # rows that were as far apart as the ones before
FEWEST_ROWS = 10  # of a run whose last number says something by being round
BY_CHANCE = 0.005  # of the places where a run may be cut are as round: every hundredth step is none that says something
ROUND, FALLEN = "is a round number, where few runs are cut", "its learning rate came down to"
HINTS = (ROUND, FALLEN)
DECAYED = 1e-3  # of the highest learning rate: a schedule has come to its end
STEADILY = 0.5  # of the moves of a rate that falls by a schedule
FEWEST_RATES = 20  # that show a schedule


def at_the_end(table: RunTable, phase: int, events: Sequence[Event]) -> str:
    """What shows that the last record of a phase is that of the run's end, in words; empty where nothing does."""
    saved = [e for e in events if e.kind in ("checkpoint", "afterwards") and e.numbers.get("rows_after") == 0]
    words = _evaluated_out_of_turn(table, phase) or _printed_out_of_turn(table, phase)
    if not words and saved and (number := _ends_round(table, phase)):
        words = f"{number}, and behind it stands: {saved[-1].text}"
    return words or _decayed(table, phase)


def is_open(table: RunTable) -> bool:
    """Whether what lies beside a log may tell how the run ended: the log itself does not, or hints at it only."""
    return table.status in (Status.UNKNOWN, Status.INCOMPLETE) or any(hint in table.status_reason for hint in HINTS)


def _evaluated_out_of_turn(table: RunTable, phase: int) -> str:
    """That the last step was evaluated though none was due, as programs do at their end."""
    if not table.counts_steps:
        return ""
    # what is evaluated behind the last record with a loss is of this run too
    rest = table.phases[phase + 1].first_row if phase + 1 < len(table.phases) else len(table)
    part = slice(_rows(table, phase).start, rest)
    steps, evaluated = table.column("step")[part], np.isfinite(table.column("eval_loss")[part])
    gaps = np.diff(steps[evaluated])
    if len(gaps) < FEWEST_GAPS or steps[evaluated][-1] != np.nanmax(steps):
        return ""
    last, every = float(steps[evaluated][-1]), float(np.median(gaps[:-1]))
    # one that a restart lost makes a gap of two
    out_of_turn = every > 0 and np.all(gaps[:-1] % every == 0) and 0 < gaps[-1] < every
    words = f"evaluated out of turn at the last step {last:.10g}, as at an end: else every {every:.10g}"
    return words if out_of_turn else ""


def _printed_out_of_turn(table: RunTable, phase: int) -> str:
    """That the last row was printed though none was due, as loops do that print every so many steps and the last."""
    if not table.counts_steps:
        return ""
    steps = table.column("step")[_rows(table, phase)]
    gaps = np.diff(steps[np.isfinite(steps)])
    if len(gaps) <= FEWEST_TURNS or np.ptp(gaps[:-1]) != 0 or not 0 < gaps[-1] < gaps[0]:
        return ""
    last = steps[np.isfinite(steps)][-1]
    return f"its last row, of step {last:.10g}, is printed out of turn, as at an end: else every {gaps[0]:.10g}"


def _ends_round(table: RunTable, phase: int) -> str:
    """That the last step or epoch is a round number, where few runs are cut."""
    unit = "step" if table.counts_steps else "epoch"
    counted = table.column(unit)[_rows(table, phase)]
    counted = np.unique(counted[np.isfinite(counted)])
    if len(counted) < FEWEST_ROWS or np.any(counted != np.round(counted)):
        return ""
    first, last, stride = int(counted[0]), int(counted[-1]), int(np.median(np.diff(counted)))
    ends = {last, last + 1} if first in (0, stride - 1) else {last}
    end = max(ends, key=grain)
    if stride / grain(end) > BY_CHANCE:
        return ""
    counts = "" if end == last else f", counted from 0, is the {end:,}th: it"
    return f"its last {unit} {last:,}{counts} {ROUND}"


def grain(count: int) -> int:
    """The largest of 1, 2, 5, 10, 20, 50 … that divides a count: 3,000 is 3 of 1,000."""
    grains = [m * 10**k for k in range(len(str(count))) for m in (1, 2, 5)]
    return max((grain for grain in grains if count and count % grain == 0), default=1)


def _decayed(table: RunTable, phase: int) -> str:
    """That the learning rate has fallen to nothing, as schedules let it at their end alone."""
    rates = table.column("learning_rate")[_rows(table, phase)]
    rates = rates[np.isfinite(rates)]
    if len(rates) < FEWEST_RATES or not rates.max() > 0 or rates[-1] > DECAYED * rates.max():
        return ""
    falling = rates[int(np.argmax(rates)) :]
    tail = falling[-FEWEST_RATES // 2 :]
    moves = np.diff(tail)  # a rate that is lowered where the loss stands still falls by steps, and ends nothing
    smooth = len(falling) >= FEWEST_RATES / 2 and np.all(moves <= 0) and np.mean(moves < 0) >= STEADILY
    return f"{FALLEN} {rates[-1]:.3g} from {rates.max():.3g}" if smooth else ""


def _rows(table: RunTable, phase: int) -> slice:
    return slice(table.phases[phase].first_row, table.phases[phase].last_row + 1)
