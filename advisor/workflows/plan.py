"""Makes a plan for a goal: profiles from the store, the search, the user's data and an optional extra burst."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from advisor.calibration.observed_run import profile_after
from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu, load_gpus
from advisor.hardware.software_support import can, pytorch_it_needs, runs_trainer, trainer_release
from advisor.history.ledger_rows import own_loss_ratios
from advisor.options import Goal
from advisor.planning import answer as planner
from advisor.planning.answer import answer
from advisor.planning.offers import ANY, OWN
from advisor.planning.own_data import for_inference, runs_on_own_data, why_overtrained, with_own_data
from advisor.prediction.depths import DepthOption, Download, MemoryBill, at_depths, download, memory_bill
from advisor.prediction.profile import Profile
from advisor.prediction.software import software_of, table
from advisor.records import MeasuredStep, Plan, Run, Workload
from advisor.store.store import Store
from advisor.workflows.data import read_data
from advisor.workflows.plan_elsewhere import Work, plan_elsewhere
from advisor.workflows.plan_finetune import finetune_work, with_usual_examples, with_what_the_budget_buys
from advisor.workflows.plan_layouts import layout_work
from advisor.workflows.plan_rl import rl_work
from trainer.token_folder import TokenMeta


def recommend(
    goal: Goal,
    store: Store,
    *,
    measure: bool = False,
    brief: bool = False,
    on_text: Callable[[str], None] = lambda text: None,
    seen: MeasuredStep | None = None,
) -> Plan:
    """Returns the plan for a goal: a run of the trainer here, or a fine-tune or a layout with other software.

    If `measure` is set, one more burst runs at the chosen configuration of the trainer, and `on_text` receives a
    sentence when it begins. `brief` is as in `answer`; the errors of other plans then name no feasible changes.
    `seen` is a measured run that shows the speed of the software.
    Raises AdvisorError for unknown devices and unusable data.
    """
    if goal.needs_other_software:

        def work_of(asked: Goal) -> Work:
            if asked.layout == "any":
                return layout_work(asked)
            return finetune_work(asked, store) if asked.rl is None else rl_work(asked, store)

        asked = with_usual_examples(goal)
        elsewhere = partial(plan_elsewhere, work_of=work_of, hints=not brief)
        return elsewhere(asked) if asked == goal else with_what_the_budget_buys(elsewhere(asked), elsewhere)
    data_meta = read_data(goal.data)
    profiles, left_out = load_profiles(goal, store, seen)
    now = datetime.now(UTC)

    def feasible(changed: Goal) -> bool:
        with suppress(AdvisorError):
            if changed.needs_other_software:
                found = recommend(changed, store, brief=True).chosen
                return found.prediction.plannable and not found.standing.against
            others = profiles if changed.gpu == goal.gpu else load_profiles(changed, store, seen)[0]
            changed = replace(changed, ratio=goal.ratio, ratio_counts=goal.ratio_counts)  # what was typed
            tokens = planner.best_tokens(changed, others, data_meta, now)
            wanted = changed if tokens is None else for_inference(changed, tokens)
            return tokens is not None and (
                wanted == changed or planner.best_tokens(wanted, others, data_meta, now) is not None
            )
        return False

    about: dict[str, Any] = {"now": now, "data_meta": data_meta, "left_out": left_out, "feasible": feasible}
    plan = answer(goal, profiles, **about, brief=brief)
    wanted = for_inference(goal, plan.chosen.tokens)
    if wanted != goal:
        plan = answer(wanted, profiles, **about, brief=brief)
        plan = replace(plan, reasons=(*plan.reasons, why_overtrained(wanted, goal.inference_tokens or 0.0)))
    if measure:
        from advisor.calibration.remeasure import measure_one  # only this plan needs bursts

        on_text(f"measuring depth {plan.chosen.depth} at micro-batch {plan.config.micro_batch} once more")
        profile = next(profile for profile in profiles if profile.key == plan.workload.gpu)
        profile = measure_one(profile, plan.workload, store)
        plan = planner.measured_plan(plan, profile, now=datetime.now(UTC), data_meta=data_meta)
    return _finished(plan, store, data_meta)


def what_if(goal: Goal, profile: Profile, store: Store, **settings: bool) -> Plan:
    """Returns the plan for a goal that fixes everything, on one device; `settings` are as in `answer.what_if`."""
    data_meta = read_data(goal.data)
    plan = planner.what_if(goal, profile, now=datetime.now(UTC), data_meta=data_meta, **settings)
    return _finished(plan, store, data_meta)


def what_ifs(goals: Sequence[Goal], profile: Profile, store: Store, *, exact_batch: bool = False) -> list[Run | str]:
    """Returns the runs of many such goals at once, as `answer.what_ifs` does."""
    data = goals[0].data if goals else None
    runs = planner.what_ifs(goals, profile, now=datetime.now(UTC), data_meta=read_data(data), exact_batch=exact_batch)
    return runs_on_own_data(runs, own_loss_ratios(store, data))


def _finished(plan: Plan, store: Store, data_meta: TokenMeta | None) -> Plan:
    """Returns the plan with losses on the user's data and warnings about GPUs that need another PyTorch than pip's.

    A calibrated GPU already has a suitable PyTorch.
    """
    plan, needs = with_own_data(plan, data_meta, own_loss_ratios(store, plan.goal.data)), []
    calibrated = {run.offer.gpu for run in plan.options if run.grounds and run.grounds.calibration}
    for key in dict.fromkeys(run.offer.gpu for run in (plan.chosen, *plan.options)):
        spec = find_gpu(key)
        if spec and key not in calibrated and (need := pytorch_it_needs(spec)):
            needs.append(need)
    return replace(plan, warnings=(*plan.warnings, *needs))


@dataclass(frozen=True, kw_only=True)
class PlanDetails:
    """Details shown with a plan: its memory by part, its configuration at other depths, the data to fetch."""

    memory: MemoryBill | None
    depths: tuple[DepthOption, ...]
    data: Download | None  # None: the data are here


def plan_details(
    plan: Plan,
    store: Store,
    *,
    depths: Sequence[int] = (),
    seen: MeasuredStep | None = None,
    current: Workload | None = None,
) -> PlanDetails:
    """Returns the memory, depths and data of a plan, from what the store knows of its device.

    Depths are compared with a `current` run on the same GPUs, or else with the plan's own configuration.
    """
    work = plan.workload
    profile = profile_for(plan.goal, work.gpu, store, seen)
    fresh = plan.chosen.tokens / max(1.0, plan.chosen.standing.epochs or 1.0)
    here = plan.goal.data is not None
    return PlanDetails(
        memory=memory_bill(profile, work),
        depths=at_depths(profile, current or work, depths) if depths else (),
        data=None if here else download(fresh, work.shape.vocab_size, plan.goal.download_bytes_per_second),
    )


def profile_for(goal: Goal, key: str, store: Store, seen: MeasuredStep | None = None) -> Profile:
    """Returns the profile of a device for the goal's software.

    Calibrations and a measured run (`seen`) do not apply to other software.
    """
    precision = None if goal.precision == "auto" else goal.precision
    spec, family, cap = find_gpu(key), goal.family, goal.power_cap_watts
    can_compile = spec is None or can(spec, "compile") is not False
    if goal.compile and not can_compile:
        raise AdvisorError(f"{key} is too old for torch.compile", "plan without it: --no-compile", exit_code=2)
    if goal.software is None:
        return profile_after(
            seen, key, store, family=family, precision=precision, compile=goal.compile, power_cap_watts=cap
        ).with_network(goal.network_bytes_per_second)
    compiled = table()[goal.software].compiled and can_compile if goal.compile is None else goal.compile
    software = software_of(goal.software)
    return load_profile(
        key, store, family=family, precision=precision, compile=compiled, power_cap_watts=cap, software=software
    ).with_network(goal.network_bytes_per_second)


def load_profiles(goal: Goal, store: Store, seen: MeasuredStep | None = None) -> tuple[list[Profile], list[str]]:
    """Returns the profile of each device of the goal, and sentences about the GPUs that were left out.

    "any" leaves out non-CUDA GPUs, on which the trainer never ran. Unless calibrated, it also leaves out GPUs that no
    PyTorch wheel for the trainer supports. Errors of devices that were named are raised.
    """
    own = [machine.gpu for machine in goal.own]
    if goal.gpu != ANY:
        named = [] if goal.gpu == OWN else goal.gpu.split(",")
        return [profile_for(goal, key, store, seen) for key in dict.fromkeys((*named, *own))], []
    profiles, left_out, too_old = [], [], []
    cards = load_gpus()
    others = [key for key, spec in cards.items() if not spec.is_cuda]
    for key in (key for key in cards if key not in others):
        try:
            profile = profile_for(goal, key, store, seen)
        except AdvisorError as error:
            left_out.append(error.message)
            continue
        if profile.calibration_id or runs_trainer(cards[key]) or key in own:
            profiles.append(profile)
        else:
            too_old.append(key)
    if too_old:
        left_out.append(f"no official wheel of PyTorch {trainer_release()} or later runs {', '.join(too_old)}")
    return profiles, [*left_out, f"not CUDA GPUs: {', '.join(others)}"]
