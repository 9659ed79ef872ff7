"""Fits the constants of a step of RL post-training (`profiles/rl.yaml`) to published runs.

`python benchmarks/fit_rl.py` prints each constant as shipped, as judged before any fit, and as fitted; `--write` puts
the fitted ones into `profiles/rl.yaml`. Least squares of the logarithms of steps and parts, softened for outliers, with
the judged values as priors. An owner counts as at most ten observations. Steps and parts whose lengths are assumed
count less. What is not fitted: the form of the laws, which were chosen while looking at these rows.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rl import PARTS, TABLE, Case, cases
from scipy.optimize import least_squares

from advisor.prediction.generation import Constants, rl_constants
from advisor.prediction.rl import predict_rl
from advisor.store.folders import profiles_folder

# What each constant was judged to be before the fit (design notes, data sheets), and how sure: log standard deviation.
JUDGED = {
    "bandwidth_share": (0.6, 0.15), "step_seconds": (0.004, 0.5), "eager_layer_seconds": (0.0008, 0.3),
    "answer_seconds": (40e-6, 0.4), "far_layer_seconds": (120e-6, 0.5), "update_factor": (1.2, 0.3),
    "forward_factor": (1.2, 0.3), "answer_train_seconds": (0.03, 0.7), "expert_layer_seconds": (0.003, 0.7),
    "sync_seconds": (3.0, 0.7), "sync_bytes_per_second": (6e9, 0.7), "broadcast_bytes_per_second": (4e9, 0.7),
    "rest_seconds": (6.0, 0.5), "split_rest_seconds": (2.0, 0.7), "arm_launch_factor": (1.5, 0.5),
}  # fmt: skip
_NOISE = 0.25  # log standard deviation of a step or part whose work is stated
_ASSUMED_NOISE = 0.8
_MOST = 10.0  # observations that an owner counts as
_NAMES = ("step", *PARTS)


def fit(some: Sequence[Case]) -> Constants:
    """Return the constants that fit these runs."""
    shipped = rl_constants()
    centre = np.log([JUDGED[name][0] for name in JUDGED])
    sure = np.array([JUDGED[name][1] for name in JUDGED])
    seen = [(case, name, true) for case in some for name in _NAMES if (true := case.measured(name))]
    of_owner = Counter(case.row["owner"] for case, _, _ in seen)
    weight = np.sqrt([min(1.0, _MOST / of_owner[case.row["owner"]]) for case, _, _ in seen])
    noise = np.array([_NOISE if case.stated or name == "sync" else _ASSUMED_NOISE for case, name, _ in seen])

    def at(place: np.ndarray) -> Constants:
        return replace(shipped, **dict(zip(JUDGED, np.exp(place).tolist(), strict=True)))

    def residuals(place: np.ndarray) -> np.ndarray:
        constants = at(place)
        steps = {id(case): predict_rl(case.answer.run, constants) for case in some}
        off = []
        for case, name, true in seen:
            step = steps[id(case)]
            assert step is not None  # the configuration was chosen so that there is room
            off.append(np.log(case.estimate(name, step).value / true))
        scaled = np.array(off) / noise
        soft = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))  # grows like the root of large errors
        return np.concatenate([weight * soft, (place - centre) / sure])

    return at(least_squares(residuals, centre, diff_step=0.02).x)


def left_out(some: Sequence[Case]) -> dict[str, Constants]:
    """Return for each owner the constants that fit the runs of the others."""
    owners = dict.fromkeys(case.row["owner"] for case in some)
    return {owner: fit([case for case in some if case.row["owner"] != owner]) for owner in owners}


def main() -> None:
    """Print, and with `--write` write, the fitted constants."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    fitted, shipped = fit(cases(TABLE)[0]), rl_constants()
    path = profiles_folder() / "rl.yaml"
    text = path.read_text(encoding="utf-8")
    for name, (judged, _) in JUDGED.items():
        print(f"{name}: shipped {getattr(shipped, name):.4g}, judged {judged:.4g}, fitted {getattr(fitted, name):.4g}")
        found = getattr(fitted, name)
        text = re.sub(rf"(  {name}: {{value: )[^,}}]+", rf"\g<1>{found:{'.3g' if 0.01 < found < 100 else '.2e'}}", text)
    if asked.write:
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
