"""Tests whether the machine chosen by the search keeps its promised time; the best of many estimates may be luck.

    python benchmarks/winners_curse.py [--worlds 300]

Each world has its own truth. The deviations of every generation and GPU are drawn from their prior. What all GPUs share
is drawn from the uncertainty that published runs leave, and so are software, links and the machine. In that world, the
published runs are made up again, with errors that one owner's runs share, and a posterior is fitted to them as in
`fit_prior.py`. The search chooses by that posterior, and its choice is run in the world. The mean of true over promised
seconds of a step, minus one, is printed:

  middle    for the chosen machine, if the middle of each estimate is compared and promised
  expected  for the chosen machine, if the mean of each estimate is compared and promised, as `advisor plan` does
  any       for a randomly drawn machine, by the mean of its estimate: the part that the choice does not cause
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for the neighbours, when a test imports this
import prior_model as model

from advisor.hardware.catalog import GpuSpec, load_gpus
from advisor.hardware.software_support import runs_trainer
from advisor.laws.intervals import Z80
from advisor.options import Goal
from advisor.planning.choose import select
from advisor.planning.search_space import SearchSpace, open_space
from advisor.prediction import comm
from advisor.prediction.batch import BACKWARD, step_seconds_many
from advisor.prediction.memory_terms import WorkloadArrays, by_kind
from advisor.prediction.prior import SharedBelief
from advisor.prediction.profile import Profile
from advisor.prediction.published import OWN, PublishedSetting
from advisor.prediction.throughput import TERMS, sizes_of, terms
from advisor.prediction.uncalibrated import prior_profile
from advisor.records import Workload

GOAL = Goal(gpu="any", counts=(1, 8), depth=20, tokens=5_000_000_000, objective="cost")
TRUTHS = 200  # of software, machine and links in each world, over which a choice's true seconds are averaged
_ROUNDS = 4  # of Gauss-Newton; a world is not far from its prior


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The published runs, and the posterior of their unknowns and errors."""

    belief: SharedBelief
    runs: Sequence[model.Run]
    picks: Sequence[np.ndarray]
    root: np.ndarray  # (n, n) Cholesky factor of the covariance of the errors
    weights: np.ndarray  # (n, n) inverse covariance of the errors
    before: np.ndarray  # (p, p) covariance with which worlds are drawn
    machines: np.ndarray  # bool (p,): unknowns of one generation or one GPU


def published(runs: Sequence[model.Run], known: dict[str, GpuSpec]) -> Fit:
    """Return the shipped model around its own mode."""
    belief = model.fit(runs, known)
    picks = [np.array([model._pick(dict(belief.place), known, m) for m in run.meanings]) for run in runs]
    seen = model._evaluate(runs, picks, belief.mode)
    errors = model.Errors(runs, belief.spreads).covariance(seen)
    machines = np.array([name.startswith(("card ", "generation ")) for name in belief.place])
    deviations = np.array([_deviation(name, belief) for name in belief.place])
    before = np.where(np.outer(machines, machines), np.diag(deviations**2), 0.0)
    shared = np.ix_(~machines, ~machines)
    before[shared] = belief.covariance[shared]
    return Fit(
        belief=belief, runs=runs, picks=picks, root=np.linalg.cholesky(errors), weights=np.linalg.inv(errors),
        before=before, machines=machines,
    )  # fmt: skip


def _deviation(name: str, belief: SharedBelief) -> float:
    if name.startswith("generation "):
        return float(belief.generation_spread[TERMS.index(name.split(" ")[-1])])
    return belief.spreads.card if name.startswith("card ") else 0.0


def draw(fit: Fit, rng: np.random.Generator) -> tuple[SharedBelief, np.ndarray]:
    """Return the posterior that is fitted in a new world, and the truth of that world."""
    shifts = {f"generation {name} {TERMS[0]}": shift for name, shift in fit.belief.matmul_shifts.items()}
    middle = np.where(fit.machines, [shifts.get(name, 0.0) for name in fit.belief.place], fit.belief.mode)
    truth = middle + np.linalg.cholesky(fit.before) @ rng.standard_normal(len(middle))
    errors = fit.root @ rng.standard_normal(len(fit.runs))
    measured = model._evaluate(fit.runs, fit.picks, truth).errors + errors
    before, found = np.linalg.inv(fit.before), middle
    for _ in range(_ROUNDS):
        seen = model._evaluate(fit.runs, fit.picks, found)
        pulled = seen.slopes.T @ fit.weights
        covariance = np.linalg.inv(before + pulled @ seen.slopes)
        found = found + covariance @ (before @ (middle - found) - pulled @ (seen.errors - measured))
    return replace(fit.belief, mode=found, covariance=covariance), truth


def believing(profile: Profile, belief: SharedBelief) -> Profile:
    """Return the profile of an uncalibrated GPU with a posterior other than the shipped one."""
    assert profile.spec is not None
    mean, covariance = belief.belief(profile.spec.generation, profile.spec, _setting(profile))
    return replace(profile, posterior=replace(profile.posterior, theta=mean, covariance=covariance))


def _setting(profile: Profile) -> PublishedSetting:
    return PublishedSetting(precision=profile.precision, compile=profile.compile, software=OWN, tf32=True)


def true_seconds(
    profile: Profile, workload: Workload, belief: SharedBelief, truth: np.ndarray, rng: np.random.Generator
) -> float:
    """Return the mean seconds of a step in a world, over software, machines and links."""
    spec, spreads = profile.spec, belief.spreads
    assert spec is not None
    theta = belief.pick(spec.generation, spec, _setting(profile)) @ truth
    setting = _setting(profile)
    own = spreads.between(setting, setting) + spreads.of_machine()
    thetas = rng.multivariate_normal(theta, own, TRUTHS)
    arrays, accum, gpus = (WorkloadArrays.of([workload]), np.array([workload.grad_accum]), np.array([workload.gpus]))
    x = terms(sizes_of(arrays, accum, gpus), profile.posterior.rates)[0]
    alone = (np.exp(thetas) @ x) * np.exp(np.hypot(spreads.row, spreads.near) * rng.standard_normal(TRUTHS))
    if workload.gpus == 1:
        return float(alone.mean())
    exchange = comm.exchange_of(arrays, accum, gpus)
    spread, shares = comm.unsure(spec, workload.gpus)
    bandwidth = comm.bus_bytes_per_second(spec, workload.gpus)
    assert bandwidth is not None
    rate = bandwidth * np.exp(math.log(spread) / Z80 * rng.standard_normal(TRUTHS))
    # an even chance between each two of the points that are believed, and as far beyond the ends as they allow
    low, middle, high = shares
    ends = (low - 0.25 * (middle - low), high + 0.25 * (high - middle))
    overlap = np.interp(rng.random(TRUTHS), (0.0, 0.1, 0.5, 0.9, 1.0), (ends[0], *shares, ends[1]))
    hidden = overlap * BACKWARD * alone / workload.grad_accum
    moved = np.array(
        [
            comm._moved(exchange, one, behind)[0, 0, 0]
            for one, behind in zip(rate[:, None, None], hidden[:, None, None], strict=True)
        ]
    )
    sharded = rng.normal(comm._SHARDED, comm._SHARDED / Z80, TRUTHS) * alone if exchange.full else 0.0
    return float((alone + moved + sharded).mean())


def in_world(space: SearchSpace, profiles: dict[str, Profile], *, expected: bool) -> SearchSpace:
    """Return the same configurations with the step times that these profiles predict."""
    field = space.candidates
    sides = np.empty((3, len(field)))
    for number, device in enumerate(field.machines.devices):
        places = np.nonzero(field.device == number)[0]
        workloads = [field.workload(int(place)) for place in places]
        for kind in by_kind(workloads):
            some = [workloads[at] for at in kind]
            accum, gpus = (np.array([getattr(w, name) for w in some]) for name in ("grad_accum", "gpus"))
            profile = profiles[device.profile.key]
            step = step_seconds_many(profile, WorkloadArrays.of(some), accum, gpus, expected=expected)
            sides[:, places[list(kind)]] = step.value, step.low, step.high
    step_of_all = replace(field.step, value=sides[0], low=sides[1], high=sides[2])
    return replace(space, candidates=replace(field, step=step_of_all))


def simulate(worlds: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return true over promised seconds in each world, for each way of choosing."""
    known = model.published_cards()
    fit = published(model.read_runs(), known)
    shipped = {key: prior_profile(spec) for key, spec in load_gpus().items() if spec.is_cuda and runs_trainer(spec)}
    space = open_space(GOAL, list(shipped.values()), None)
    ratios: dict[str, list[float]] = {"middle": [], "expected": [], "any": []}
    for world in range(worlds):
        rng = np.random.default_rng((seed, world))
        belief, truth = draw(fit, rng)
        profiles = {key: believing(profile, belief) for key, profile in shipped.items()}
        for name, found in ratios.items():
            here = in_world(space, profiles, expected=name != "middle")
            chosen = select(here, here.limits)
            assert chosen is not None
            place = chosen.place if name != "any" else int(rng.integers(len(here.candidates)))
            workload = here.candidates.workload(place)
            seconds = true_seconds(profiles[workload.gpu], workload, belief, truth, rng)
            found.append(seconds / float(here.candidates.step.value[place]))
    return {name: np.array(found) for name, found in ratios.items()}


def main() -> None:
    """Print how far each way of choosing is from its promise on average."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=300)
    worlds = parser.parse_args().worlds
    for name, ratios in simulate(worlds).items():
        error = ratios.std() / math.sqrt(worlds)
        print(f"{name:9} takes {ratios.mean() - 1:+.1%} against its promise, give or take {error:.1%}")


if __name__ == "__main__":
    main()
