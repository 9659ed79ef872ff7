"""Measures a run's settings on this device in interleaved bursts, within a time budget, to find the useful ones."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from advisor.calibration.effects import Effect, Interval, Noise, Visit, effects, interaction
from advisor.calibration.measure import Worker
from advisor.calibration.one_burst import outcome_of
from advisor.calibration.session import Event
from advisor.errors import AdvisorError
from trainer.messages import BurstRequest, BurstResult, WorkerDevice
from trainer.schema import ACTIVATION_CHECKPOINTING, Outcome, RunConfig

_MICRO_BATCHES = (0.25, 0.5, 2, 4)  # times the base's micro-batch, at the same effective batch
_CHUNKS = (0.25, 4)  # times the default chunk of the loss
_TF32_SINCE = 8.0  # compute capability: Ampere
_DEFAULT_CHUNK_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}  # of logits in fp32, as in trainer/loss.py
EXPONENT = 0.7  # step time ∝ reference kernel^exponent; the prior from `calibration/observations`
_SETTINGS_A_BASE = 4  # after this many settings the base is run again
_LEAST_ROUNDS = 2
_INTERACTION_SHARE = 0.25  # of the time, reserved for trying the best two together
_WARMUP_STEPS_MOST = 6
_LOSSES = 24


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One setting that differs from the base. `changes` maps a configuration field (`a.b` if nested) to its value."""

    knob: str
    name: str
    changes: Mapping[str, Any]

    def of(self, base: RunConfig) -> RunConfig:
        """Return the base with this setting applied."""
        config = base
        for path, value in self.changes.items():
            config = _with(config, path.split("."), value)
        return config


def both(one: Variant, other: Variant) -> Variant:
    """Combine two settings that change different knobs."""
    return Variant(
        knob=f"{one.knob} and {other.knob}",
        name=f"{one.name}, {other.name}",
        changes={**one.changes, **other.changes},
    )


def variants(base: RunConfig, device: WorkerDevice) -> Iterator[Variant]:
    """Yield every setting that this device supports and the base does not use. `base.precision` is resolved already."""
    cuda = device.type == "cuda"
    for precision in ("fp32", "bf16", "fp16"):
        if precision == base.precision or (precision == "fp16" and not cuda):  # CPUs cannot train in scaled fp16
            continue
        name = "fp16, scaled loss" if precision == "fp16" else precision
        yield Variant(knob="precision", name=name, changes={"precision": precision})
    if cuda and float(device.compute_capability or 0) >= _TF32_SINCE:
        if base.precision == "fp32":
            name = "TF32 off" if base.tf32 else "TF32 on"
            yield Variant(knob="TF32", name=name, changes={"tf32": not base.tf32})
        else:
            yield Variant(knob="precision", name="fp32, TF32 off", changes={"precision": "fp32", "tf32": False})
    name = "not compiled" if base.compile else "torch.compile"
    yield Variant(knob="compile", name=name, changes={"compile": not base.compile})
    for kind in ACTIVATION_CHECKPOINTING:
        if kind != base.activation_checkpointing:
            name = f"{'no' if kind == 'none' else kind} activation checkpointing"
            yield Variant(knob="activation-checkpointing", name=name, changes={"activation_checkpointing": kind})
    # other micro-batches, with the same effective batch
    whole = base.micro_batch * base.grad_accum
    for factor in _MICRO_BATCHES:
        size = base.micro_batch * factor
        if size >= 1 and size == int(size) and whole % int(size) == 0:
            micro, accumulated = int(size), whole // int(size)
            changes = {"micro_batch": micro, "grad_accum": accumulated}
            yield Variant(knob="micro-batch", name=f"micro-batch {micro} × {accumulated}", changes=changes)
    for kernel in ("flash", "efficient", "cudnn", "math") if cuda else ("math",):  # a CPU uses its own flash kernel
        if kernel != base.attention:
            yield Variant(knob="attention", name=f"{kernel} attention", changes={"attention": kernel})
    # other chunk sizes for the loss, and all tokens at once
    tokens = base.micro_batch * base.model.seq_len
    usual = _DEFAULT_CHUNK_BYTES[device.type] // (4 * base.model.vocab_size)
    sizes = {max(1, min(tokens, int(usual * factor))) for factor in _CHUNKS}
    for chunk in sorted((sizes - {min(tokens, usual)}) | {tokens}):
        if chunk != base.loss_chunk_tokens and (chunk < tokens or usual < tokens):
            name = "logits of a micro-batch at once" if chunk == tokens else f"loss by {chunk} tokens"
            yield Variant(knob="loss chunks", name=name, changes={"loss_chunk_tokens": chunk})
    name = "optimizer not fused" if base.optimizer.fused else "fused optimizer"
    yield Variant(knob="fused optimizer", name=name, changes={"optimizer.fused": not base.optimizer.fused})


def _with(record: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(record, **{name: _with(getattr(record, name), rest, value) if rest else value})


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The measurements: every visit, the effect of each setting, and of the best two together."""

    base: RunConfig
    variants: tuple[Variant, ...]  # the combination of the best two comes last, if it was tried
    visits: tuple[Visit, ...]
    effects: tuple[Effect, ...]  # one per variant
    noise: Noise
    together: Interval | None  # effect of the best two beyond the sum of both, in log speed
    best: Variant | None  # None if the base is best
    untried: tuple[str, ...]  # names of settings for which there was no time
    seconds: float

    @property
    def best_config(self) -> RunConfig:
        return self.base if self.best is None else self.best.of(self.base)

    def effect(self, variant: Variant) -> Effect:
        return next(effect for effect in self.effects if effect.setting == variant.name)


def tune(
    base: RunConfig,
    variants: Sequence[Variant],
    worker: Worker,
    *,
    budget_seconds: float,
    burst_seconds: float,
    seed: int = 0,
    on_event: Callable[[Event], None] = lambda event: None,
) -> Tuning:
    """Run base and settings in rounds until the time is used. Raises AdvisorError if the base does not run.

    A setting that does not run is not tried again. A setting that is certainly slower is left out of later rounds.
    """
    session = _Session(base, worker, burst_seconds, budget_seconds, seed, on_event)
    session.warm_up()
    left = list(variants)
    while (
        left and not session.over and (session.rounds < _LEAST_ROUNDS or session.has_time(left, 1 - _INTERACTION_SHARE))
    ):
        session.round(left)
        left = [v for v in left if session.is_open(v)]
    gains = _gains(variants, session.measured()[0])
    pair = both(gains[0], gains[1]) if len(gains) > 1 else None
    if pair is not None:
        while (
            session.is_open(pair)
            and not session.over
            and (session.rounds_of(pair) < _LEAST_ROUNDS or session.has_time([*gains[:2], pair], 1.0))
        ):
            session.round([*gains[:2], pair])
    tried = [*variants, *([pair] if pair else [])]
    found, noise = session.measured()
    together = None
    if pair is not None and pair.name in found:
        together = interaction(session.visits, gains[0].name, gains[1].name, pair.name, EXPONENT, noise)
    ranked = _gains(tried, found)
    return Tuning(
        base=session.base,
        variants=tuple(v for v in tried if v.name in found),
        visits=tuple(session.visits),
        effects=tuple(found[v.name] for v in tried if v.name in found),
        noise=noise,
        together=together,
        best=ranked[0] if ranked else None,
        untried=tuple(v.name for v in tried if v.name not in found),
        seconds=round(session.elapsed, 1),
    )


def _gains(tried: Sequence[Variant], found: dict[str, Effect]) -> list[Variant]:
    """Return settings that are certainly faster without a higher loss: the fastest of each knob, fastest first."""
    good = [v for v in tried if v.name in found and found[v.name].faster and not found[v.name].loses]
    best: dict[str, Variant] = {}
    for variant in sorted(good, key=lambda v: -(speed.value if (speed := found[v.name].speed) else 0.0)):
        best.setdefault(variant.knob, variant)
    return list(best.values())


class _Session:
    """The visits so far, and the time they took."""

    def __init__(
        self,
        base: RunConfig,
        worker: Worker,
        burst_seconds: float,
        budget_seconds: float,
        seed: int,
        on_event: Callable[[Event], None],
    ):
        self.base, self.rounds = base, 0
        self.visits: list[Visit] = []
        self._worker, self._burst_seconds, self._budget = worker, burst_seconds, budget_seconds
        self._rng, self._on_event = random.Random(seed), on_event
        self._began = time.monotonic()
        self._took: dict[str | None, float] = {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    @property
    def over(self) -> bool:
        return self.elapsed > self._budget

    def measured(self) -> tuple[dict[str, Effect], Noise]:
        return effects(self.visits, EXPONENT)

    def has_time(self, settings: Sequence[Variant], share: float) -> bool:
        """Tell whether another round of these settings would end within this share of the budget."""
        bases = 1 + len(settings) / _SETTINGS_A_BASE
        ahead = sum(self._took.get(v.name, 0.0) for v in settings) + bases * self._took.get(None, 0.0)
        return self.elapsed + ahead <= share * self._budget

    def rounds_of(self, variant: Variant) -> int:
        return sum(visit.setting == variant.name for visit in self.visits)

    def is_open(self, variant: Variant) -> bool:
        """Tell whether another visit is useful: the setting runs and is not certainly slower."""
        effect = self.measured()[0].get(variant.name)
        if effect is None:
            return True
        return effect.failure is None and (effect.repeats < _LEAST_ROUNDS or not effect.slower)

    def warm_up(self) -> None:
        """Run the base once without counting it, because a process's first burst also loads code and grows its heap."""
        self._on_event(Event(text="the base, to warm up", elapsed_seconds=self.elapsed))
        result = self._train(self.base, seed=self.base.seed)
        if result.outcome != Outcome.COMPLETED:
            hint = "start from a smaller --micro-batch or --depth"
            raise AdvisorError(f"the base does not run here: {result.outcome}, {result.reason}", hint)

    def round(self, settings: Sequence[Variant]) -> None:
        """Run the base and every setting once, with the base in between, all from the same weights and tokens."""
        self.rounds += 1
        order = list(settings)
        self._rng.shuffle(order)  # drift of the machine must not favour one setting
        for variant in _with_bases(order):
            if variant is not None and self.over:
                continue  # the base still runs, so that earlier visits can be compared
            name = variant.name if variant else None
            self._on_event(Event(text=f"round {self.rounds}: {name or 'the base'}", elapsed_seconds=self.elapsed))
            started, began = time.time(), time.monotonic()
            result = self._train(variant.of(self.base) if variant else self.base, seed=self.base.seed + self.rounds)
            self._took[name] = time.monotonic() - began
            self.visits.append(Visit(setting=name, round=self.rounds, started=round(started, 3), result=result))

    def _train(self, config: RunConfig, seed: int) -> BurstResult:
        request = BurstRequest(
            config=replace(config, seed=seed),
            seconds=self._burst_seconds,
            least_steps=3,
            most_warmup=_WARMUP_STEPS_MOST,
            limit_seconds=max(20.0, 0.5 * self._budget),
            losses=_LOSSES,
        )
        return outcome_of(self._worker, request)


def _with_bases(order: Sequence[Variant]) -> Iterator[Variant | None]:
    """Insert the base (None) first, after every few settings, and last."""
    for start in range(0, len(order), _SETTINGS_A_BASE):
        yield None
        yield from order[start : start + _SETTINGS_A_BASE]
    yield None
