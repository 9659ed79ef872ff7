"""Build the case that detectors read, from the table of a run and from what the user knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from advisor.errors import AdvisorError
from advisor.findings.case import Case
from advisor.findings.run_facts import number
from advisor.findings.run_metrics import share_of_peak
from advisor.findings.workload_of import ONE_DEVICE, Inferred, infer
from advisor.hardware.offers import cheapest_offer, unpriced
from advisor.laws.intervals import chance_below
from advisor.prediction.batch import predict_batch, verdict_of
from advisor.prediction.memory import MemoryParts
from advisor.prediction.profile import FIT_MARGIN, Profile
from advisor.readers.run_table import RunTable
from advisor.records import Plan, Prediction, Workload


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
    facts = {**run.facts, **stated}
    if (each := number(facts, "epoch_steps")) and (epochs := number(facts, "planned_epochs")):
        facts.setdefault("planned_steps", each * epochs)
    run = dataclasses.replace(run, facts=facts)
    inferred = (
        infer(run) if plan is None else Inferred(workload=plan.workload, gpu=plan.workload.gpu, unsure=(), missing=())
    )
    usd_per_hour, source = _price(run, inferred, plan)
    work = inferred.workload
    case = Case(
        run=run,
        workload=work,
        profile=profile,
        usd_per_hour=usd_per_hour,
        plan=plan,
        unsure=inferred.unsure,
        notes={name: text for name, text in (("price", source), ("missing", "; ".join(inferred.missing))) if text},
    )
    if profile and work and profile.key == work.gpu:
        case = dataclasses.replace(case, expected=predict_as_logged(profile, [work], appetite(case))[0])
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


def memory_parts(profile: Profile | None, work: Workload | None) -> MemoryParts | None:
    """Return the predicted parts of the memory at the peak, or None if this kind of workload was never traced."""
    if profile is None or work is None:
        return None
    try:
        return profile.memory.breakdown(work)
    except AdvisorError:
        return None


def appetite(case: Case, numbers: Mapping[str, float] | None = None) -> float:
    """Return the factor by which one allocation alone exceeds the predicted activations; 1 if it is smaller.

    Other programs keep more than the advisor's own trainer (whole logits, unfused attention). `numbers` are the sizes
    of an out-of-memory message, by default of the log's last one.
    """
    last = next((event.numbers for event in reversed(case.run.events) if event.kind == "out_of_memory"), {})
    asked, parts = (
        (last if numbers is None else numbers).get("requested_bytes", 0.0),
        memory_parts(case.profile, case.workload),
    )
    comes_and_goes = parts.activations_bytes + parts.logits_bytes if parts else 0.0
    return max(1.0, asked / comes_and_goes) if comes_and_goes > 0 else 1.0


def predict_as_logged(profile: Profile, works: Sequence[Workload], times: float) -> list[Prediction]:
    """Return predictions in which activations and logits are `times` as large as predicted, because the log says so."""
    return [_grown(profile, p, times) if times > 1 else p for p in predict_batch(profile, works)]


def _grown(profile: Profile, p: Prediction, times: float) -> Prediction:
    parts, room = memory_parts(profile, p.workload), profile.device_memory_bytes
    allocated, reserved, total = p.peak_allocated_bytes, p.peak_reserved_bytes, p.device_bytes
    if parts is None or allocated is None or reserved is None or total is None:
        return p
    # The log names the whole block that was asked for, so the allocator keeps no free blocks besides it.
    more = (times - 1) * (parts.activations_bytes + parts.logits_bytes)
    reserved_as_logged, device = (
        dataclasses.replace(allocated, value=allocated.value + add, low=allocated.low + add, high=allocated.high + add)
        for add in (more, more + total.value - reserved.value)
    )
    chance = None if room is None else chance_below(FIT_MARGIN * room, device.value, device.low, device.high)
    return dataclasses.replace(p, peak_allocated_bytes=reserved_as_logged,
                               peak_reserved_bytes=reserved_as_logged, device_bytes=device,
                               fit_probability=chance, fits=verdict_of(chance))  # fmt: skip
