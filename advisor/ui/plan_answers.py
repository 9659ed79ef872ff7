"""The Plan page's calls to the planner, cached between reruns: the functions of `advisor plan`, with frozen goals."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import streamlit as st

from advisor.errors import AdvisorError
from advisor.hardware.prices import live_prices_path
from advisor.options import Goal, OwnMachine
from advisor.planning import curves
from advisor.prediction.profile import Profile
from advisor.records import Plan, Prediction, Run
from advisor.ui import loaders
from advisor.workflows import plan as workflow
from advisor.workflows.data import read_data

Asked = ParamSpec("Asked")  # the parameters of a question
World = tuple[object, ...]  # what answers depend on besides the goal; part of every cache key


def world(goal: Goal) -> World:
    """Return a value that changes whenever a calibration, a price, the goal's data or its measured runs do."""
    home = loaders.store().home
    files = [live_prices_path(), *([Path(goal.measured)] if goal.measured else [])]
    meta = read_data(goal.data)
    return (
        str(home),
        loaders.stamp(home / "calibrations"),
        *(file.stat().st_mtime_ns if file.exists() else 0 for file in files),
        meta.fingerprint if meta else "",
    )


@st.cache_resource(max_entries=16, show_spinner=False)
def _profiles(
    gpu: str,
    own: tuple[OwnMachine, ...],
    family: str,
    precision: str,
    compile: bool | None,
    power_cap_watts: float | None,
    now: World,
) -> list[Profile]:
    del now
    goal = Goal(gpu=gpu, own=own, family=family, precision=precision, compile=compile, power_cap_watts=power_cap_watts)
    profiles, _ = workflow.load_profiles(goal, loaders.store())
    return profiles


def profile(goal: Goal, key: str, now: World) -> Profile:
    """Return the profile of one of the goal's devices."""
    profiles = _profiles(goal.gpu, goal.own, goal.family, goal.precision, goal.compile, goal.power_cap_watts, now)
    return next(p for p in profiles if p.key == key)


def _cached(ask: Callable[Asked, Plan], most: int, spinner: str | bool) -> Callable[Asked, Plan]:
    """Return a function that answers each question once, also with an error, whose hint takes longest to find."""

    @st.cache_resource(max_entries=most, show_spinner=spinner, hash_funcs={Goal: repr})
    @wraps(ask)
    def answer_or_error(*asked: Asked.args, **settings: Asked.kwargs) -> Plan | AdvisorError:
        try:
            return ask(*asked, **settings)
        except AdvisorError as error:  # a new one, because the traceback holds the whole search
            return AdvisorError(error.message, error.hint, exit_code=error.exit_code)

    @wraps(ask)
    def answer(*asked: Asked.args, **settings: Asked.kwargs) -> Plan:
        if isinstance(outcome := answer_or_error(*asked, **settings), AdvisorError):
            raise outcome.with_traceback(None)
        return outcome

    return answer


def _plan(goal: Goal, now: World) -> Plan:
    del now
    return workflow.recommend(goal, loaders.store())


def _what_if(pinned: Goal, now: World, _profile: Profile, **settings: bool) -> Plan:
    return workflow.what_if(pinned, _profile, loaders.store(), **settings)


@st.cache_resource(max_entries=1024, show_spinner=False, hash_funcs={Goal: repr})
def what_ifs(pinned: tuple[Goal, ...], now: World, _profile: Profile, *, exact_batch: bool) -> list[Run | str]:
    """Return the runs of many such goals, computed together, or why there is none."""
    del now
    return workflow.what_ifs(pinned, _profile, loaders.store(), exact_batch=exact_batch)


def _split(goal: Goal, now: World) -> Plan:
    del now
    return workflow.recommend(goal, loaders.store(), brief=True)


# the plan for a goal, from the function behind `advisor plan`
plan = _cached(_plan, 256, "searching all GPUs and settings")
# the plan for a goal that leaves nothing open; its settings are those of the workflow
what_if = _cached(_what_if, 1024, False)
# the plan of RL for one machine with one split of its GPUs
split = _cached(_split, 1024, False)


def throughput(shown: Plan, own: Profile) -> tuple[tuple[Prediction, ...], tuple[curves.MeasuredRate, ...]]:
    """Return the throughput curve and the calibration's points."""
    return curves.throughput(own, shown.workload), curves.measured_rates(own, shown.workload)


def loss(goal: Goal, shown: Plan, own: Profile) -> curves.LossCurve:
    """Return loss against tokens, with the marks of the goal."""
    return curves.loss(goal, shown, own, read_data(goal.data))
