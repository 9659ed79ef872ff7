"""The profile of a GPU that was not calibrated: its data sheet and published runs of the software."""

from __future__ import annotations

from dataclasses import replace

from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec
from advisor.hardware.software_support import can, can_train_in, usual_precision
from advisor.prediction.memory import load_memory_model
from advisor.prediction.nearest import nearby_of, switches_in_words
from advisor.prediction.prior import (
    OtherCalibration,
    datasheet_rates,
    far_slower,
    load_prior,
    near_deviation,
    transferred,
)
from advisor.prediction.profile import UNKNOWN_COSTS, Profile
from advisor.prediction.published import SHARDED
from advisor.records import Software


def prior_profile(
    spec: GpuSpec,
    *,
    precision: str | None = None,
    compile: bool | None = None,
    elsewhere: OtherCalibration | None = None,
    power_cap_watts: float | None = None,
    software: Software | None = None,
) -> Profile:
    """Return the prior of a GPU from its data sheet and published runs, updated by another GPU's calibration if there
    is one. Raises AdvisorError if the GPU lacks the precision."""
    precision = precision or usual_precision(spec)
    rates = datasheet_rates(spec, precision, tf32=software is None or software.tf32)
    if rates is None or (software is None and not can_train_in(spec, precision)):
        hint = f"choose another precision: --precision {usual_precision(spec)}"
        raise AdvisorError(f"{spec.key} has no {precision} matrix units", hint, exit_code=2)
    compile = can(spec, "compile") is not False if compile is None else compile
    capped = spec
    if power_cap_watts and spec.tdp_watts:
        capped = replace(spec, tdp_watts=min(spec.tdp_watts, power_cap_watts))
    known = {}
    for sharding in ("none", *SHARDED) if software is not None else ("none",):
        prior = load_prior(spec.generation, precision, compile, capped, software=software, sharding=sharding)
        if elsewhere is not None and elsewhere.precision == precision:
            prior = transferred(prior, spec, compile, elsewhere)
        nearby = None
        if software is not None and software.name is not None:
            # What similar published runs of the same software add to the coefficients.
            switches = switches_in_words(precision, compile, sharding, fp8=software.fp8)
            nearby = nearby_of(software.name, spec.key, switches, near_deviation())
        known[sharding] = replace(prior.posterior(rates), nearby=nearby)
    return Profile(
        key=spec.key,
        name=spec.key,
        device_type="cuda",
        spec=spec,
        device_memory_bytes=spec.memory_bytes,
        posterior=known.pop("none"),
        sharded=known,
        memory=load_memory_model(),
        costs=UNKNOWN_COSTS,
        precision=precision,
        compile=compile,
        sources=(f"{prior.source}; {far_slower()}", f"profiles/gpus.csv row {spec.key}"),
    )
