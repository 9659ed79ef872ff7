"""Shows the effect of each setting of a run on a device, in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from advisor.calibration.effects import Effect
from advisor.calibration.tuning import Tuning
from advisor.records import Kernels
from advisor.units import format_bytes, format_percent, format_seconds
from advisor.workflows.tune import Tuned
from trainer.schema import RunConfig, to_dict

COLUMNS = ("setting", "speed", "95 %", "memory", "loss", "repeats", "")
NONE = "no effect beyond the noise"


def rows(tuning: Tuning) -> Iterator[tuple[str, ...]]:
    """Yields one row per setting, the fastest first; settings that did not run come last."""
    order = sorted(tuning.effects, key=lambda e: -(e.speed.value if e.speed is not None else -math.inf))
    for effect in order:
        yield (
            effect.setting,
            "" if effect.speed is None else _percent(effect.speed.value),
            "" if effect.speed is None else f"{_percent(effect.speed.low)} to {_percent(effect.speed.high)}",
            "" if effect.memory_bytes is None else _bytes(effect.memory_bytes),
            _loss(effect),
            str(effect.repeats),
            verdict(effect),
        )


def verdict(effect: Effect) -> str:
    """Describes the effect of one setting."""
    if effect.speed is None:
        return f"does not run: {effect.failure}"
    if effect.faster and effect.loses:
        return "faster, but learns worse"
    word = "faster" if effect.faster else "slower" if effect.slower else NONE
    return f"{word}, but learns worse" if effect.loses else word


def base_words(config: RunConfig) -> str:
    """Describes the configuration that all settings are compared with."""
    shape, usual = config.model, to_dict(Kernels())
    parts = [
        f"{shape.family} depth {shape.depth}, {shape.seq_len} tokens, vocabulary {shape.vocab_size:,}",
        f"micro-batch {config.micro_batch} × {config.grad_accum}",
        config.precision,
        "compiled" if config.compile else "not compiled",
        f"{config.activation_checkpointing} activation checkpointing"
        if config.activation_checkpointing != "none"
        else "",
        config.optimizer.name,
        # settings that differ from the trainer's own choice, as written in run.yaml
        *(f"{name} {value}" for name, value in to_dict(Kernels.of(config)).items() if value != usual[name]),
    ]
    return ", ".join(part for part in parts if part)


def conclusion(tuned: Tuned) -> Iterator[str]:
    """Yields the best setting, its gain, the effect of the best two together, and how plans use them."""
    tuning = tuned.tuning
    if tuning.best is None:
        yield "no setting is clearly faster than the base"
    else:
        best = tuning.effect(tuning.best)
        assert best.speed is not None
        gain = f"{_percent(best.speed.value)} ({_percent(best.speed.low)} to {_percent(best.speed.high)})"
        yield f"best: {tuning.best.name}, {gain} against the base"
    if tuning.untried:
        yield f"not tried for lack of time: {', '.join(tuning.untried)} (--budget-seconds)"
    if tuning.together is not None:
        names, both = tuning.variants[-1].name, tuning.together
        span = f"{_percent(both.value)} ({_percent(both.low)} to {_percent(both.high)})"
        gain = f"{'more' if both.value > 0 else 'less'} than both apart, {span}"
        yield f"{names}: together they gain {gain if both.clears(0.0) else f'what both gain apart, {span} beyond it'}"
    yield (
        f"step times of equal bursts differ by {format_percent(tuning.noise.deviation)}; the intervals allow for "
        "the number of settings; "
        f"{len(tuning.visits)} bursts in {format_seconds(tuning.seconds)}"
    )
    if tuned.calibrated is not None:
        calibration = tuned.calibrated.calibration
        yield f"calibrated with the best settings as {calibration.id}: advisor plan --gpu {tuned.device_key} uses them"
    if tuned.uncalibrated is not None:
        yield f"! not calibrated with the best settings: {tuned.uncalibrated}"


def document(tuned: Tuned) -> dict[str, Any]:
    """Returns the JSON document of --json; a speed is the logarithm of steps per second relative to the base."""
    tuning = tuned.tuning
    return {
        "device": {"key": tuned.device_key, **to_dict(tuned.device)},
        "base": to_dict(tuning.base),
        "effects": [
            {**to_dict(effect), "knob": variant.knob, "changes": dict(variant.changes), "verdict": verdict(effect)}
            for variant, effect in zip(tuning.variants, tuning.effects, strict=True)
        ],
        "noise": to_dict(tuning.noise),
        "together": to_dict(tuning.together),
        "best": None if tuning.best is None else {"name": tuning.best.name, "changes": dict(tuning.best.changes)},
        "run": to_dict(tuning.best_config),
        "visits": [
            {"setting": v.setting, "round": v.round, "started": v.started, **to_dict(v.result)} for v in tuning.visits
        ],
        "untried": tuning.untried,
        "seconds": tuning.seconds,
        "calibration": None if tuned.calibrated is None else tuned.calibrated.calibration.id,
        "uncalibrated": None if tuned.uncalibrated is None else str(tuned.uncalibrated),
    }


def _percent(log: float) -> str:
    return f"{math.expm1(log):+.1%}"


def _bytes(difference: float) -> str:
    return f"{'+' if difference >= 0 else '-'}{format_bytes(abs(difference))}"


def _loss(effect: Effect) -> str:
    if effect.loss is None:
        return ""
    if effect.loss.value == 0.0:
        return "the same"
    return f"{effect.loss.value:+.4f} after {effect.loss_steps} steps"
