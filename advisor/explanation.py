"""Explains how a number of a plan or prediction was computed: its formula, the numbers used, and its basis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import find_gpu, peak_flops
from advisor.prediction.layout_runs import beyond_steps
from advisor.prediction.rl import rl_whole
from advisor.records import Basis, Estimate, Plan, Prediction
from advisor.report.prediction import layout_words

BASES = {
    Basis.MEASURED: "this configuration was run on this device",
    Basis.INTERPOLATED: "inside what was calibrated on this device",
    Basis.EXTRAPOLATED: "beyond what was calibrated on this device",
    Basis.PRIOR: "never calibrated on this device: from data sheets and published runs only",
}
_WORK = ("gpu", "gpus", "parameters", "micro_batch", "seq_len", "grad_accum", "precision", "activation_checkpointing",
         "sharding", "layout")  # fmt: skip
_CLOCK = ("provisioning_seconds", "download_seconds", "startup_seconds", "compile_seconds", "steps_seconds",
          "evals_seconds", "checkpoints_seconds", "interruptions_seconds")  # fmt: skip
_MEMORY = ("weights_bytes", "gradients_bytes", "gathered_bytes", "optimizer_bytes", "activations_bytes",
           "logits_bytes", "overhead_bytes")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Formula:
    """How a number is computed: the names of the numbers that are used, and the section that derives it."""

    words: str
    inputs: tuple[str, ...]
    section: str  # a section of docs/how-it-predicts.md


_PEAK = Formula(
    words="weights, gradients and optimizer state + the largest moment's activations and logits + what no tensor holds",
    inputs=(*_WORK, *_MEMORY, "peak_parts"), section="Memory",
)  # fmt: skip
FORMULAS = {
    "step_seconds": Formula(
        words="the sum over the terms of a step (products, attention, traffic, weights, launches, optimizer, "
        "communication) of the term's time at the device's rates, times a fitted factor",
        inputs=(*_WORK, "step_parts"), section="Step time",
    ),
    "tokens_per_second": Formula(
        words="step_tokens / step_seconds", inputs=("step_tokens", "step_seconds"), section="Step time"
    ),
    "mfu": Formula(
        words="tokens_per_second * flops_per_token / (gpus * peak_flops)",
        inputs=("tokens_per_second", "flops_per_token", "gpus", "peak_flops"), section="Step time",
    ),
    "peak_allocated_bytes": _PEAK,
    "peak_reserved_bytes": _PEAK,
    "device_bytes": _PEAK,
    "fit_probability": Formula(
        words="the probability that device_bytes stays below 97 % of device_memory_bytes",
        inputs=("device_bytes", "peak_allocated_bytes", "device_memory_bytes"), section="Memory",
    ),
    "total_seconds": Formula(
        words="ordering and downloads (if rented) + start-up + compile + steps * mean of step_seconds + evaluations "
        "+ checkpoints + interruptions; layouts: steps * step_seconds * beyond_steps, which includes evaluations",
        inputs=("steps", "step_seconds", "beyond_steps", *_CLOCK, "failures", "failures_share", "checkpoints_share"),
        section="Wall clock",
    ),
    "steps": Formula(words="tokens / step_tokens", inputs=("tokens", "step_tokens"), section="Planning"),
    "tokens": Formula(
        words="as given, by examples and passes, by the ratio, or what the limits and the loss law leave as best",
        inputs=("parameters", "ratio", "epochs", "steps", "step_tokens"), section="Planning",
    ),
    "cost_usd": Formula(
        words="total_seconds / 3600 * usd_per_hour + storage_usd; own machines: electricity of "
        "the site, energy_kwh * 1.44 for host and cooling",
        inputs=("total_seconds", "usd_per_hour", "storage_usd", "energy_kwh", "provider", "source", "age_days"),
        section="Wall clock",
    ),
    "loss": Formula(
        words="E + A / parameters^a + B / tokens^b, with repeated tokens worth less; unknown outside 70 M to 16 B "
        "parameters and 1 B to 1 T tokens",
        inputs=("parameters", "tokens", "epochs", "loss_shift"), section="Loss",
    ),
    "energy_kwh": Formula(
        words="power_watts * seconds of steps, evaluations, checkpoints and interruptions / 3.6e6",
        inputs=("power_watts", *_CLOCK), section="Wall clock",
    ),
    "carbon_kg": Formula(
        words="energy_kwh * grid_grams_per_kwh * 1.44 for host and cooling / 1000",
        inputs=("energy_kwh", "grid_grams_per_kwh"), section="Wall clock",
    ),
}  # fmt: skip
# The same numbers of RL post-training, whose steps have other parts (docs/rl.md).
_OF_RL = {
    "step_seconds": Formula(
        words="generation + rewards + log-probabilities + update + new weights to the engines + the rest; with split "
        "GPUs the longer of engines and trainer counts (docs/rl.md)",
        inputs=("rollouts", "step_parts", "gpu"),
        section="Step time",
    ),
    "device_bytes": Formula(
        words="the fullest of three moments: engines generate, the trainer updates beside sleeping engines, and the "
        "switch (docs/rl.md)",
        inputs=("rollouts", "gpu", "gpus", "parameters", "peak_parts"),
        section="Memory",
    ),
}
ALIASES = {"hours": "total_seconds", "seconds": "total_seconds", "time": "total_seconds", "usd": "cost_usd",
           "cost": "cost_usd", "memory": "device_bytes", "peak_bytes": "peak_allocated_bytes",
           "throughput": "tokens_per_second", "step_time": "step_seconds"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One number, with everything from which it was computed. None means unknown."""

    number: str
    value: Any
    formula: str
    inputs: Mapping[str, Any]
    basis: str | None  # what the number is based on, in words
    section: str  # a section of docs/how-it-predicts.md
    rests_on: tuple[str, ...]  # calibrations, tables, laws and prices

    @property
    def sentence(self) -> str:
        known = ", ".join(f"{name} {_words(value)}" for name, value in self.inputs.items())
        rests = f" Basis: {self.basis}." if self.basis else ""
        return f"{self.number} {_words(self.value)} = {self.formula}; from {known}.{rests}"


def explain(record: Any, number: str) -> Explanation:
    """Explain how a number of a plan or prediction was computed. Raises AdvisorError if it has no such number."""
    name = ALIASES.get(number, number)
    values = _numbers(record)
    if name not in FORMULAS or name not in values:
        there = [known for known in FORMULAS if known in values]
        close = close_matches(number, [*there, *ALIASES])
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(there)}"
        raise AdvisorError(f"there is no number {number!r} to explain", hint, exit_code=2)
    formulas = FORMULAS | _OF_RL if values.get("rollouts") is not None else FORMULAS
    formula, value = formulas[name], values[name]
    inputs = {one: values[one] for one in formula.inputs if values.get(one) is not None}
    rests_on = [one for field in ("inputs", "sources", "assumed") for one in getattr(record, field, ())]
    basis = f"{value.basis}, {BASES[value.basis]}" if isinstance(value, Estimate) else None
    return Explanation(number=name, value=value, formula=formula.words, inputs=inputs, basis=basis,
                       section=formula.section, rests_on=tuple(rests_on))  # fmt: skip


def _numbers(record: Any) -> dict[str, Any]:
    """Return every number of a record by its name. For a plan, these are the numbers of its chosen run."""
    if isinstance(record, Prediction):
        memory = getattr(record, "memory_parts", None)
        return _of_prediction(record) | {name: getattr(memory, name) for name in _MEMORY if memory is not None}
    if not isinstance(record, Plan):
        raise AdvisorError("only plans and predictions are explained", "advisor.explain(advisor.plan(...), 'cost')")
    run, clock = record.chosen, record.bill.wall_clock
    found = vars(run.offer) | _of_prediction(run.prediction) | vars(run.standing) | vars(clock) | vars(record.bill)
    found |= {"steps": run.steps, "tokens": run.tokens}
    if record.run is not None:
        return found
    # of runs of other software not every number is known
    found = {name: value for name, value in found.items() if value is not None}
    if run.workload.layout is None:
        return found
    lost = {"failures_share": clock.interruptions_seconds, "checkpoints_share": clock.checkpoints_seconds}
    found |= {name: part.value / clock.steps_seconds.value for name, part in lost.items() if part is not None}
    return found | {"beyond_steps": beyond_steps(rl_whole() if run.workload.rollouts is not None else None)}


def _of_prediction(prediction: Prediction) -> dict[str, Any]:
    work, spec = prediction.workload, find_gpu(prediction.workload.gpu)
    peak = None if spec is None else peak_flops(spec, work.precision)
    fp8 = {"precision": "fp8"} if work.software is not None and work.software.fp8 else {}
    layout = {"layout": layout_words(work.layout)} if work.layout is not None else {}
    step_tokens = work.step_tokens if work.rollouts is None else work.rollouts.step_tokens
    more = {"seq_len": work.shape.seq_len, "step_tokens": step_tokens, "peak_flops": peak}
    return {**vars(prediction), **vars(work), **fp8, **layout, **more}


def _words(value: Any) -> str:
    if isinstance(value, Estimate):
        return f"{value.value:.4g} ({value.low:.3g} to {value.high:.3g})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "unknown" if value is None else str(value)
