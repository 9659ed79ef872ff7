"""A plan measured once more at its choice, so that its basis becomes *measured*."""

from __future__ import annotations

from datetime import UTC, datetime

from advisor.calibration.remeasure import measure_one
from advisor.planning.answer import measured_plan
from advisor.prediction.profile import Profile
from advisor.records import Plan
from advisor.store.store import Store
from trainer.token_folder import TokenMeta


def remeasured(plan: Plan, profile: Profile, store: Store, data_meta: TokenMeta | None) -> Plan:
    """The plan for the same choice from bursts of that very configuration, run here and kept in its calibration.

    `profile` is the device's that the plan chose. Raises AdvisorError when it was never calibrated, or when the choice
    does not run here: then it must not be recommended.
    """
    profile = measure_one(profile, plan.workload, store)
    return measured_plan(plan, profile, now=datetime.now(UTC), data_meta=data_meta)
