"""The Plan page's calls to the planner, cached between reruns: the functions of `advisor plan`, with frozen goals."""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from advisor.hardware.prices import live_prices_path
from advisor.options import Goal, OwnMachine
from advisor.planning import curves
from advisor.prediction.profile import Profile
from advisor.records import Plan, Prediction
from advisor.ui import loaders
from advisor.workflows import plan as workflow
from advisor.workflows.data import read_data
from advisor.workflows.plan_rl import plan_rl

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


@st.cache_resource(max_entries=256, show_spinner="searching all GPUs and settings", hash_funcs={Goal: repr})
def plan(goal: Goal, now: World) -> Plan:
    """Return the plan for a goal, from the function behind `advisor plan`."""
    del now
    return workflow.recommend(goal, loaders.store())


@st.cache_resource(max_entries=1024, show_spinner=False, hash_funcs={Goal: repr})
def what_if(pinned: Goal, now: World, _profile: Profile, scaled: bool = False, brief: bool = False) -> Plan:
    """Return the plan for a goal that leaves nothing open, which takes one evaluation."""
    return workflow.what_if(pinned, _profile, loaders.store(), scaled=scaled, brief=brief)


@st.cache_resource(max_entries=1024, show_spinner=False, hash_funcs={Goal: repr})
def split(goal: Goal, now: World) -> Plan:
    """Return the plan of RL for one machine with one split of its GPUs."""
    del now
    return plan_rl(goal, loaders.store(), hints=False)


def throughput(shown: Plan, own: Profile) -> tuple[tuple[Prediction, ...], tuple[curves.MeasuredRate, ...]]:
    """Return the throughput curve and the calibration's points."""
    return curves.throughput(own, shown.workload), curves.measured_rates(own, shown.workload)


def loss(goal: Goal, shown: Plan, own: Profile) -> curves.LossCurve:
    """Return loss against tokens, with the marks of the goal."""
    return curves.loss(goal, shown, own, read_data(goal.data))
