"""Build the case that detectors read, from the table of a run and from what the user knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from advisor.findings.case import Case
from advisor.findings.run_facts import number
from advisor.findings.run_metrics import share_of_peak
from advisor.findings.workload_of import ONE_DEVICE, Inferred, infer
from advisor.hardware.offers import cheapest_offer, unpriced
from advisor.prediction.batch import predict_batch
from advisor.prediction.profile import Profile
from advisor.readers.run_table import RunTable
from advisor.records import Plan


def make_case(
    run: RunTable,
    *,
    given: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    plan: Plan | None = None,
) -> Case:
    """Return everything known about a run in one record.

    `given` holds what the user states, by the names of FACTS, and replaces what the log says. A plan's workload
    replaces what the facts imply. `profile` is of the run's GPU (`infer` gives its key). Without a price, the cheapest
    offer for this number of GPUs is taken, and its source or the reason why there is none is noted.
    """
    stated = {name: value for name, value in (given or {}).items() if value is not None}
    run = dataclasses.replace(run, facts={**run.facts, **stated})
    inferred = (
        infer(run) if plan is None else Inferred(workload=plan.workload, gpu=plan.workload.gpu, unsure=(), missing=())
    )
    usd_per_hour, source = _price(run, inferred, plan)
    work = inferred.workload
    case = Case(
        run=run,
        workload=work,
        profile=profile,
        expected=predict_batch(profile, [work])[0] if profile and work and profile.key == work.gpu else None,
        usd_per_hour=usd_per_hour,
        plan=plan,
        unsure=inferred.unsure,
        notes={name: text for name, text in (("price", source), ("missing", "; ".join(inferred.missing))) if text},
    )
    if ONE_DEVICE in case.unsure and (share_of_peak(case) or 0.0) > 1:  # there were more: what they cost is unknown
        facts = {name: value for name, value in run.facts.items() if name != "usd_per_hour"}
        notes = {**case.notes, "price": "unknown: one GPU cannot have done this; say how many there were (--gpus)"}
        case = dataclasses.replace(case, usd_per_hour=None, run=dataclasses.replace(run, facts=facts), notes=notes)
    return case


def _price(run: RunTable, inferred: Inferred, plan: Plan | None) -> tuple[float | None, str]:
    """Return the dollars per hour of all devices with their source: stated, the plan's, or the cheapest offer."""
    stated = run.facts.get("usd_per_hour")
    if isinstance(stated, int | float) and not isinstance(stated, bool) and stated >= 0:
        return float(stated), "stated"
    if plan is not None and plan.offer.usd_per_hour is not None:
        return plan.offer.usd_per_hour, plan.offer.source
    if inferred.gpu in (None, "cpu"):
        return None, ""
    gpus = inferred.workload.gpus if inferred.workload else int(number(run.facts, "world_size") or 1)
    offer = cheapest_offer(inferred.gpu, max(1, gpus)) or unpriced(inferred.gpu, max(1, gpus))
    return offer.usd_per_hour, offer.source
