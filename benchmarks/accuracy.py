"""Regenerate docs/accuracy.md from the raw measurements in this repository: `make accuracy`.

Reads every `benchmarks/raw/*.yaml` (made by held_out.py and on_gpu.py), profiles/public_runs.csv, the answers in
`benchmarks/guess/` and the newest speed measurements in `benchmarks/raw/speed/` (made by search_speed.py and
rows_speed.py, which `make accuracy` runs first). Nothing is measured here: the same files
give the same tables on any machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import published
from baselines import constant_mfu, step_flops, straight_line
from guess import guess
from timing import in_words

from advisor.calibration import observations
from advisor.calibration.fit import Evidence, predict_held_out
from advisor.calibration.profiles import memory_observations, profile_of
from advisor.errors import AdvisorError
from advisor.prediction.memory import corrected, load_memory_model
from advisor.prediction.power import datasheet_power
from advisor.prediction.throughput import Posterior
from advisor.records import MeasuredStep
from advisor.store.calibration import AccuracySession
from advisor.store.disk import read_yaml, write_atomic
from advisor.store.store import load_calibration

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {"cpu": ("6 % / 15 %", "5 %"), "cuda": ("3 % / 8 %", "2 %")}


@dataclass(frozen=True, kw_only=True)
class Session:
    """One raw file as read: what the fit saw and what it did not see."""

    name: str
    raw: AccuracySession
    seen: Sequence[MeasuredStep]
    held: Sequence[MeasuredStep]
    chosen: Sequence[MeasuredStep]
    posterior: Posterior

    @property
    def device_type(self) -> str:
        return self.raw.device.type


def read_session(path: Path) -> Session:
    """Fit the calibration in a raw file, and correct all its parts for drift by the same reference."""
    raw = load_calibration(path)
    if not isinstance(raw, AccuracySession):
        raise AdvisorError(f"{path} is no accuracy session", "benchmarks/held_out.py writes them")
    evidence = Evidence(raw)
    return Session(
        name=path.stem,
        raw=raw,
        seen=evidence.steps,
        held=observations.observations(raw.held_out, evidence.drift),
        chosen=observations.observations(raw.chosen, evidence.drift),
        posterior=evidence.posterior(),
    )


def main() -> None:
    """Write docs/accuracy.md and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--raw", type=Path, default=ROOT / "benchmarks" / "raw")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "accuracy.md")
    parser.add_argument("--sessions-only", action="store_true", help="leave out published runs and speed")
    options = parser.parse_args()
    sessions = [read_session(p) for p in sorted(options.raw.glob("*.yaml"))]
    text = report(sessions)
    if not options.sessions_only:
        text += "\n" + published.section() + "\n" + guess.section() + "\n" + speed(options.raw / "speed")
    write_atomic(options.out, text)
    print(text)


def report(sessions: Sequence[Session]) -> str:
    """Return the whole document in Markdown."""
    by_device: dict[str, list[Session]] = defaultdict(list)
    for session in sessions:
        by_device[session.device_type].append(session)
    parts = [_HEAD]
    for device, title in (("cpu", "CPU"), ("cuda", "CUDA")):
        parts.append(f"## {title}\n")
        parts.append(_device(by_device[device], device) if by_device[device] else _EMPTY)
    return "\n".join(parts)


def speed(folder: Path) -> str:
    """Return the speed of the search and of tables of rows in Markdown: medians of the raw seconds, and the best."""
    search = read_yaml(folder / "search_speed.yaml", "speed measurement")
    rows = read_yaml(folder / "rows_speed.yaml", "speed measurement")
    start_up = statistics.median(rows["start_up_seconds"])

    def rate(count: int, seconds: Sequence[float], less: float = 0.0) -> str:
        median, best = (count / (pick(seconds) - less) for pick in (statistics.median, min))
        return f"{median:,.0f} a second (best {best:,.0f})"

    what = f"time, memory, cost, score and loss of {search['candidates']:,} candidates on {search['cards']} cards"
    lines = [
        "## Speed\n",
        f"Medians of {len(search['search_seconds'])} runs on {search['machine']}, {search['date']}; start-up taken off "
        "the rows. Other work on a machine only ever slows these down, hence the best beside each.\n",
        *_table("what", "asked", "measured"),
        f"| the search: {what} | 1,000,000 a second | {rate(search['candidates'], search['search_seconds'])} |",
        f"| the default question, answered | 1 s | {in_words(search['question_seconds'])} |",
        f"| the same as a command, start-up included | - | {in_words(search['command_seconds'])} |",
        f"| `predict --rows`, {rows['rows']:,} rows, all distinct | 20,000 a second "
        f"| {rate(rows['rows'], rows['distinct_seconds'], start_up)} |",
        f"| the same, attention not stated: two readings of each | - "
        f"| {rate(rows['rows'], rows['open_seconds'], start_up)} |",
        f"| the same, 200 distinct rows repeated | - | {rate(rows['rows'], rows['repeated_seconds'], start_up)} |",
    ]
    return "\n".join(lines) + "\n"


_HEAD = """# Accuracy

Generated by `make accuracy` from the raw measurements in `benchmarks/raw/`; do not edit. Every session calibrates
small configurations, then trains configurations that the fit never saw, up to twice the depth and micro-batch. Step
times are corrected for the machine's own drift by the reference kernel timed beside every step. An error is
|predicted / measured - 1|; an interval holds if the measured value, with its own noise, lies inside the predicted 80
% interval.
"""

_PEERS = ("constant MFU", "line through three batches")
_EMPTY = "No session has been run on such a device yet: the cells stay empty rather than guessed.\n"


def _device(sessions: Sequence[Session], device: str) -> str:
    rows = [_step_row("all", sessions)] + [_step_row(s.name, [s]) for s in sessions]
    target, chosen_target = TARGETS[device]
    lines = [
        f"### Step time of held-out configurations (asked: median / p90 at most {target}, coverage 70-90 %)\n",
        *_table("session", "configurations", "this fit: median / p90", "80 % intervals hold", *_PEERS),
        *rows,
        f"\n### The recommended configuration, re-measured (asked: at most {chosen_target})\n",
        *_table("session", "configuration", "predicted", "measured", "error", "inside 80 % interval"),
        *[_chosen_row(s) for s in sessions],
        "\n### Leave one calibrated configuration out\n",
        *_table("session", "configurations", "median / p90", "80 % intervals hold"),
        *[_loo_row(s) for s in sessions],
        *([*_memory(sessions), *_power(sessions)] if device == "cuda" else []),
        "",
    ]
    return "\n".join(lines)


def _table(*columns: str) -> list[str]:
    return [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]


def _step_row(name: str, sessions: Sequence[Session]) -> str:
    ours = [predict_held_out(s.posterior, s.held) for s in sessions]
    errors = np.concatenate([np.abs(h.errors) for h in ours])
    inside = np.concatenate([h.inside for h in ours])
    flat = np.concatenate([_baseline(constant_mfu, s) for s in sessions])
    line = np.concatenate([_baseline(straight_line, s) for s in sessions])
    return f"| {name} | {len(errors)} | {_pair(errors)} | {inside.mean():.0%} | {_pair(flat)} | {_pair(line)} |"


def _baseline(predictor: Any, session: Session) -> np.ndarray:
    predicted = predictor(session.seen, [o.workload for o in session.held])
    return np.abs(predicted / np.array([o.step_seconds for o in session.held]) - 1)


def _pair(errors: np.ndarray) -> str:
    return f"{np.nanmedian(errors):.1%} / {np.nanquantile(errors, 0.9):.1%}"


def _chosen_row(session: Session) -> str:
    held = predict_held_out(session.posterior, session.chosen)
    cells = []
    for observation, error, inside in zip(session.chosen, held.errors, held.inside, strict=True):
        w, actual = observation.workload, observation.step_seconds
        what = f"depth {w.shape.depth}, {w.micro_batch} × {w.shape.seq_len}"
        cells.append(
            f"| {session.name} | {what} | {actual * (1 + error):.4g} s | {actual:.4g} s | {error:+.1%} "
            f"| {'yes' if inside else 'no'} |"
        )
    return "\n".join(cells)


def _loo_row(session: Session) -> str:
    held = Evidence(session.raw).held_out()
    if held is None:
        return f"| {session.name} | {len(session.seen)} | too few | - |"
    return f"| {session.name} | {len(held.errors)} | {held.median:.1%} / {held.p90:.1%} | {held.coverage:.0%} |"


def _memory(sessions: Sequence[Session]) -> list[str]:
    """Return rows of held-out peak memory: the traced model, corrected only by the calibration's bursts."""
    lines = [
        "\n### Peak memory of held-out configurations (asked: median at most 2 % allocated, 6 % reserved)\n",
        *_table("session", "configurations", "allocated: median / p90", "reserved: median / p90", "ran out of memory"),
    ]
    for s in sessions:
        model = corrected(load_memory_model(), memory_observations(s.raw.bursts))
        held = memory_observations(s.raw.held_out)
        allocated = np.array([abs(model.allocated_bytes(o.workload).value / o.allocated_peak_bytes - 1) for o in held])
        reserved = np.array([abs(model.reserved_bytes(o.workload).value / o.reserved_peak_bytes - 1) for o in held])
        tried = [*s.raw.held_out, *s.raw.chosen, *s.raw.edge]
        died = sum(b.outcome == "out_of_memory" for b in tried)
        lines.append(f"| {s.name} | {len(held)} | {_pair(allocated)} | {_pair(reserved)} | {died} |")
    return lines


def _power(sessions: Sequence[Session]) -> list[str]:
    """Return rows of held-out watts by MFU: the data sheet's prior, and the line through the calibration."""
    lines = [
        "\n### Power of the board while held-out configurations train, by its energy counter\n",
        *_table("session", "bursts", "MFU", "watts", "from the data sheet: median / p90", "calibrated: median / p90"),
    ]
    for s in sessions:
        profile = profile_of(s.raw)
        spec, peak = profile.spec, profile.peak_flops(profile.precision)
        metered = [b for b in observations.completed([*s.raw.held_out, *s.raw.chosen]) if b.watts]
        if spec is None or not peak or not metered or profile.costs.power is None:
            continue
        watts = np.array([b.watts for b in metered])
        runs = [b.workload for b in metered]
        seconds = [statistics.median(b.step_seconds) for b in metered]
        mfu = np.array([step_flops(w) / t / peak for w, t in zip(runs, seconds, strict=True)])
        sheet = datasheet_power(spec.tdp_watts)
        errors = [np.abs(m.sides(mfu)[1] / watts - 1) if m else None for m in (sheet, profile.costs.power)]
        cells = ["-" if e is None else _pair(e) for e in errors]
        spans = f"{mfu.min():.0%}-{mfu.max():.0%} | {watts.min():.0f}-{watts.max():.0f}"
        lines.append(f"| {s.name} | {len(metered)} | {spans} | {cells[0]} | {cells[1]} |")
    return lines


if __name__ == "__main__":
    main()
