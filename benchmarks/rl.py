"""Scores predictions of RL post-training on published runs, each owner counted once.

`python benchmarks/rl.py` reads `rl_runs.csv` and prints for steps, parts and hours the error and the share inside the
80 % interval; for pairs of one owner whether the faster of colocated and split GPUs is named; whether runs that ran
were said to fit; and, of owners with several runs of a model on a GPU, how well the others are predicted after one.
`--left-out` predicts each owner with constants that were fitted without it (`fit_rl.py`), `--rows` lists every row, and
`--file FILE` reads another table with these columns.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.prediction.generation import Constants
from advisor.prediction.layout_runs import whole_run
from advisor.prediction.rl import RlStep, predict_rl, prediction_of, rl_whole
from advisor.records import Estimate
from advisor.store.store import Store
from advisor.workflows.rl import OwnPace, pace_deviation, paced
from benchmarks.rows.rl import RlPredicted, rl_rows

TABLE = Path(__file__).with_name("rl_runs.csv")
PARTS = {"generation": ("gen_seconds",), "log_probs": ("old_logprob_seconds", "ref_seconds"),
         "update": ("update_seconds",), "sync": ("sync_seconds",)}  # fmt: skip
# The same work on the same number of GPUs, colocated and split (rl_runs.csv): which is faster?
PAIRS = [("verl-fa7b-1", "verl-fa7b-2"), ("verl-fa7b-3", "verl-fa7b-4"), ("verl-fa7b-5", "verl-fa7b-6"),
         ("verl-fa30b-1", "verl-fa30b-2"), ("verl-v1-1", "verl-v1-3"), ("nemo-01", "nemo-02"), ("nemo-08", "nemo-09"),
         ("nemo-14", "nemo-15"), ("nemo-25", "nemo-26"), ("nemo-28", "nemo-29"), ("nemo-30", "nemo-31"),
         ("nemo-35", "nemo-36"), ("nemo-38", "nemo-39"), ("nemo-40", "nemo-41")]  # fmt: skip
_WORK = ("response_len", "prompts_per_step", "group_size")
_OPTIMIZER_STEPS = ("trl",)  # software whose published steps are optimizer steps, several to a step of RL


@dataclass(frozen=True, kw_only=True)
class Case:
    """A published run with its configuration."""

    row: dict[str, str]
    answer: RlPredicted

    @property
    def stated(self) -> bool:
        """Whether lengths and batch are stated."""
        return not any(one.startswith(_WORK) for one in self.answer.assumed)

    def measured(self, name: str) -> float | None:
        """Return the measured seconds of the step or one of its parts."""
        row, software = self.row, self.answer.run.software.name
        if "do not score" in row["notes"] or (software in _OPTIMIZER_STEPS and not self.stated):
            return None
        if name == "step":
            return float(row["step_seconds"]) if row["step_seconds"] else None
        if name == "generation" and "async" in row["mode"]:
            return None  # what the trainer waits, not what engines take
        return sum(float(row[one]) for one in PARTS[name] if row[one]) or None

    def estimate(self, name: str, step: RlStep) -> Estimate:
        """Return the predicted seconds of the step or one of its parts."""
        return step.step_seconds if name == "step" else step.parts[name]


def cases(table: Path) -> tuple[list[Case], list[tuple[str, str]]]:
    """Return the rows that can be predicted, and of the others why not."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with tempfile.TemporaryDirectory() as home:
        answers = list(rl_rows(table, Store(Path(home))))
    good, refused = [], []
    for row, answer in zip(rows, answers, strict=True):
        if isinstance(answer, AdvisorError):
            refused.append((row["id"], answer.message))
        else:
            good.append(Case(row=row, answer=answer))
    return good, refused


def _line(name: str, found: Sequence[tuple[str, float, Estimate]]) -> str:
    """Return one line of scores, with every owner counted once."""
    if not found:
        return f"{name}: nothing to score"
    of_owner = defaultdict(list)
    for owner, true, estimate in found:
        of_owner[owner].append((abs(estimate.value / true - 1), estimate.value / true - 1, estimate.contains(true)))
    weight = np.concatenate([[1 / len(some) / len(of_owner)] * len(some) for some in of_owner.values()])
    off, signed, inside = np.array([one for some in of_owner.values() for one in some]).T

    def quantile(values: np.ndarray, share: float) -> float:
        order = np.argsort(values)
        return float(np.interp(share, np.cumsum(weight[order]) - weight[order] / 2, values[order]))

    return (
        f"{name}: {len(found)} rows of {len(of_owner)} owners, median {quantile(off, 0.5):.1%}, "
        f"p90 {quantile(off, 0.9):.0%}, inside {(weight * inside).sum():.0%}, signed {quantile(signed, 0.5):+.0%}"
    )


def _hours(case: Case, step: RlStep) -> tuple[float, Estimate] | None:
    """Return the stated hours of a whole run and those that a plan would say."""
    row = case.row
    if not (row["total_hours"] and row["steps"]) or "forecast" in row["notes"] or case.measured("step") is None:
        return None
    run = case.answer.run
    clock, _ = whole_run(step.step_seconds, int(float(row["steps"])), run.gpus, run.model.parameters, rl_whole())
    return float(row["total_hours"]) * 3600, clock.total_seconds


def _after_one(found: Sequence[tuple[Case, RlStep]]) -> list[tuple[str, float, Estimate]]:
    """Return steps that are predicted at the pace of another run of the same owner, model, GPU and placement."""
    groups = defaultdict(list)
    for case, step in found:
        if case.stated and (true := case.measured("step")):
            run = case.answer.run
            groups[case.row["owner"], run.model.name, run.gpu.key, run.colocated].append((case, step, true))
    scored = []
    for (owner, *_), some in groups.items():
        for at, (case, step, true) in enumerate(some):
            run = case.answer.run
            for place, (other, of_other, seconds) in enumerate(some):
                if place != at:
                    pace = seconds / of_other.step_seconds.value
                    own = OwnPace(factor=pace, deviation=pace_deviation(1), gpus=(other.answer.run.gpus,))
                    estimate = paced(prediction_of(run, step), own, run.gpus).step_seconds
                    assert estimate is not None
                    scored.append((owner, true, estimate))
    return scored


def report(found: Sequence[tuple[Case, RlStep]]) -> None:
    """Print the scores of predicted steps."""
    names = ("step", *PARTS)
    scored = {
        name: [(c.row["owner"], c.measured(name), c.estimate(name, s)) for c, s in found if c.measured(name)]
        for name in names
    }
    of_all = [(c.row["owner"], c.measured("step"), s.step_seconds) for c, s in found if c.stated and c.measured("step")]
    print(_line("step, all stated", of_all))
    print(_line("step, lengths or batch assumed too", scored.pop("step")))
    for name, some in scored.items():
        print(_line(name, some))
    hours = [(case.row["owner"], *one) for case, step in found if (one := _hours(case, step))]
    print(_line("hours of a whole run", hours))
    print(_line("step of another run after one of the same owner, model, GPU and placement", _after_one(found)))
    by_id = {case.row["id"]: (case, step) for case, step in found}
    right, close, total = 0, 0, 0
    for pair in PAIRS:
        if not set(pair) <= set(by_id):
            continue
        true = [float(by_id[one][0].row["step_seconds"]) for one in pair]
        said = [by_id[one][1].step_seconds.value for one in pair]
        taken = true[said.index(min(said))]
        total, right, close = total + 1, right + (taken == min(true)), close + (taken <= 1.1 * min(true))
    print(f"colocated or split: the faster named in {right} of {total} pairs, within 10 % of it in {close}")
    chances = [(case.row["outcome"], step.fit_probability) for case, step in found]
    ran = [one >= 0.5 for outcome, one in chances if outcome == "ok"]
    failed = [one < 0.5 for outcome, one in chances if outcome == "oom"]
    print(f"fits: {sum(ran)} of {len(ran)} that ran, {sum(failed)} of {len(failed)} that ran out of memory")


def steps_with(some: Sequence[Case], constants: Callable[[str], Constants | None]) -> list[tuple[Case, RlStep]]:
    """Return the steps of runs with the constants for their owners."""
    found = []
    for case in some:
        step = predict_rl(case.answer.run, constants(case.row["owner"]))
        assert step is not None  # the configuration was chosen so that there is room
        found.append((case, step))
    return found


def main() -> None:
    """Print the scores, or with `--rows` every row too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=TABLE)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--left-out", action="store_true")
    asked = parser.parse_args()
    some, refused = cases(asked.file)
    found = steps_with(some, lambda _: None)
    if asked.left_out:
        from fit_rl import left_out  # which imports this module

        found = steps_with(some, left_out(some).__getitem__)
    if asked.rows:
        for one, why in refused:
            print(one, "refused:", why)
        for case, step in found:
            row, parts = case.row, {}
            for name in PARTS:
                true = case.measured(name)
                parts[name] = f"{step.parts[name].value:.0f}" + (f"/{true:.0f}" if true else "")
            true = case.measured("step")
            ratio = f"{step.step_seconds.value / true:.2f}" if true else "-"
            print(row["id"], row["gpu"], row["n_gpus"], row["mode"], f"{step.step_seconds.value:.0f} s", ratio, parts,
                  f"fits {step.fit_probability:.2f}", "; ".join(case.answer.assumed))  # fmt: skip
    report(found)


if __name__ == "__main__":
    main()
