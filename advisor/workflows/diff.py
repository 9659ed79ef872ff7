"""Compares two runs, plans, configurations or calibrations, and predicts the effect of each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor.calibration.one_burst import base_workload
from advisor.calibration.profiles import load_profile, profile_of
from advisor.errors import AdvisorError
from advisor.laws.flops import parameters
from advisor.prediction.batch import predict_batch
from advisor.prediction.loss import predict_loss
from advisor.records import Estimate, Plan, Prediction, Workload
from advisor.store.calibration import Calibration
from advisor.store.disk import read_yaml
from advisor.store.folders import names_apart
from advisor.store.run_folder import CONFIG, is_run_folder, read_launch, read_run_config, read_run_plan
from advisor.store.store import Store
from advisor.trainers.known import workload_of_config
from advisor.workflows.compare import review
from advisor.workflows.launch import read_source
from trainer.schema import RunConfig, to_dict

PLAN, RUN, CONFIGURATION, CALIBRATION = "plan", "run", "configuration", "calibration"
# Fields of a workload that a law uses, by the name of the setting that they come from
_JUDGED = {
    "precision": "precision",
    "compile": "compile",
    "activation_checkpointing": "activation_checkpointing",
    "sharding": "sharding",
    "optimizer.name": "optimizer",
}
# Why no law predicts the effect of a setting, by the beginning of its name
_NO_LAW = (
    (("seed", "data.seed"), "another draw of the same run"),
    (("eval.", "checkpoint."), "evaluations and checkpoints are beside the steps that are compared here"),
    (("optimizer.", "schedule."), "its effect on the loss is unknown: advisor ab measures it"),
    (("data.", "init_from"), "losses on other data do not compare"),
    ("", "nothing here predicts what it does: advisor calibrate --tune measures it"),
)
_APART = ("seq_len", "vocab_size")  # fields of a model that are judged by themselves
_SILENT = {"name", "schema", "telemetry", "stop"}  # settings that change no run's result
_MEASURED = ("step_seconds", "tokens_per_second", "peak_reserved_bytes", "wall_clock_seconds", "cost_usd", "loss")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of two runs, planned or done."""

    name: str
    kind: str
    config: RunConfig
    workload: Workload
    usd_per_hour: float | None  # of all devices; None: unknown
    promised: Prediction | None = None  # the plan's prediction at the time it was made
    measured: Mapping[str, float | None] | None = None  # a run's, by the quantities of a score

    @property
    def tokens(self) -> int:
        """Returns the tokens of all steps."""
        return self.config.steps * self.workload.step_tokens


@dataclass(frozen=True, kw_only=True)
class Promise:
    """The prediction for one run. None: unknown."""

    prediction: Prediction | None
    steps_seconds: Estimate | None  # of the training steps alone
    steps_usd: Estimate | None
    loss: Estimate | None
    why_not: str = ""  # why nothing is predicted, if so


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that differs, and the predicted effect of changing only this setting in the first run."""

    setting: str
    one: Any
    other: Any
    promise: Promise | None  # None: no law predicts it
    unjudged: str = ""  # why there is no prediction


@dataclass(frozen=True, kw_only=True)
class Diff:
    """The comparison of two runs."""

    one: Side
    other: Side
    same: int  # number of equal settings
    differences: tuple[Difference, ...]
    promises: tuple[Promise, Promise]


@dataclass(frozen=True, kw_only=True)
class CalibrationDiff:
    """The comparison of two calibrations: their settings, and their predictions for the same configurations."""

    one: Calibration
    other: Calibration
    settings: tuple[tuple[str, Any, Any], ...]  # name and both values of each setting that differs
    steps: tuple[tuple[Workload, Estimate | None, Estimate | None], ...]


def diff(store: Store, one: str, other: str, gpu: str | None = None) -> Diff | CalibrationDiff:
    """Compare two things; `gpu` is the GPU on which bare configurations would run.

    Raises AdvisorError if one cannot be read, or if they are of kinds that cannot be compared.
    """
    sides = (_read(store, one, gpu), _read(store, other, gpu))
    a, b = sides
    if isinstance(a, Calibration) and isinstance(b, Calibration):
        ours, theirs = _told(a), _told(b)
        settings = tuple((name, ours[name], theirs[name]) for name in ours if ours[name] != theirs[name])
        depths = sorted(set(a.settings.depths) & set(b.settings.depths)) or [min(a.settings.depths)]
        workloads = [base_workload(a.settings, depth) for depth in depths]
        found = [[p.step_seconds for p in predict_batch(profile_of(c), workloads)] for c in (a, b)]
        return CalibrationDiff(one=a, other=b, settings=settings, steps=tuple(zip(workloads, *found, strict=True)))
    if isinstance(a, Calibration) or isinstance(b, Calibration):
        hint = "two runs, plans or configurations, or two calibrations"
        raise AdvisorError(
            "a calibration is of a device, the other is a run: they have nothing in common", hint, exit_code=2
        )
    names = names_apart([a.name, b.name]) if a.name != b.name else [Path(a.name).name] * 2  # a path is too long
    return _runs(store, replace(a, name=names[0]), replace(b, name=names[1]))


def _read(store: Store, text: str, gpu: str | None) -> Side | Calibration:
    path = Path(text)
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        raw = read_yaml(path, "plan, configuration or calibration")
        if "bursts" in raw or raw.get("kind") == CALIBRATION:
            return store.load_calibration(path)
        source = read_source(path)
        if isinstance(source, Plan):
            price, promised = source.offer.usd_per_hour, source.prediction
            return Side(
                name=text, kind=PLAN, config=source.run, workload=source.workload, usd_per_hour=price, promised=promised
            )
        work = workload_of_config(source, gpu)
        return Side(name=text, kind=CONFIGURATION, config=source, workload=work, usd_per_hour=source.stop.usd_per_hour)
    if path.is_file():
        message = f"{text} is no plan, configuration or calibration: those are YAML"
        raise AdvisorError(message, f"a log beside another: advisor analyze {text} OTHER", exit_code=2)
    if not path.exists() and any(entry.id == text for entry in store.list_calibrations()):
        return store.load_calibration(text)
    folder = path if path.is_dir() and is_run_folder(path) else store.find_run(text)
    if not (folder / CONFIG).is_file():
        raise AdvisorError(
            f"{folder} has no {CONFIG}: it is no run of this trainer", "compare logs: advisor analyze A B", exit_code=2
        )
    plan, launch = read_run_plan(folder), read_launch(folder)
    config = read_run_config(folder)
    key = launch.device_key if launch is not None else None
    gpus = launch.gpus if launch is not None else 1
    work = workload_of_config(config, key, gpus)
    if plan is not None:  # the plan says what "auto" stands for
        work = replace(work, precision=plan.workload.precision)
    price = launch.usd_per_hour if launch is not None else None
    return Side(
        name=folder.name,
        kind=RUN,
        config=config,
        workload=work,
        usd_per_hour=price,
        promised=plan.prediction if plan is not None else None,
        measured=_measured(store, folder),
    )


def _measured(store: Store, folder: Path) -> Mapping[str, float | None] | None:
    """Returns the measured quantities of a run, or None if it has not done a step."""
    try:
        scored = review(store, str(folder), record=False).scored
    except AdvisorError:  # it never started, or ended before its first step, so nothing was measured
        return None
    return {name: scored.actual(name) for name in _MEASURED}


def _runs(store: Store, a: Side, b: Side) -> Diff:
    one, other = flat(a), flat(b)
    names = [name for name in {**one, **other} if name.split(".")[0] not in _SILENT]
    different = [name for name in names if one.get(name) != other.get(name)]
    return Diff(
        one=a,
        other=b,
        same=len(names) - len(different),
        differences=tuple(
            _difference(store, a, b, name, one.get(name), other.get(name), different) for name in different
        ),
        promises=(promise(store, a), promise(store, b)),
    )


def flat(side: Side) -> dict[str, Any]:
    """Returns every setting of a run by its dotted name, with the device of the workload."""
    settings = dict(_leaves(to_dict(side.config), ""))
    settings |= {"precision": side.workload.precision, "gpu": side.workload.gpu, "gpus": side.workload.gpus}
    settings.pop("device", None)
    return settings


def _leaves(raw: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in raw.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _difference(store: Store, a: Side, b: Side, name: str, one: Any, other: Any, different: list[str]) -> Difference:
    """Describes the difference of one setting; a group of settings is judged once, at its first setting."""
    first = next((n for n in different if _group(n) == _group(name)), name)
    if first != name:
        return Difference(setting=name, one=one, other=other, promise=None, unjudged=f"with {first}")
    changed, why = _changed(a, b, name)
    judged = promise(store, changed) if changed is not None else None
    return Difference(setting=name, one=one, other=other, promise=judged, unjudged=why)


def _group(name: str) -> str:
    """Returns the group of a setting. The sizes of a model change together, as do micro-batch and accumulation."""
    if name in ("micro_batch", "grad_accum"):
        return "batch"
    return "sizes" if name.startswith("model.") and name.removeprefix("model.") not in _APART else name


def _changed(a: Side, b: Side, name: str) -> tuple[Side | None, str]:
    """Returns the first run with this setting or group taken from the second, or why nothing is predicted."""
    work, shape = a.workload, a.workload.shape
    other, group = b.workload, _group(name)
    if name in ("gpu", "gpus"):
        moved = replace(work, gpu=other.gpu) if name == "gpu" else replace(work, gpus=other.gpus)
        price = b.usd_per_hour
        if name == "gpus":  # take the first run's price for the second's number of devices
            price = None if a.usd_per_hour is None else a.usd_per_hour / work.gpus * other.gpus
        return replace(a, workload=moved, usd_per_hour=price), ""
    if name == "steps":
        return replace(a, config=replace(a.config, steps=b.config.steps)), ""
    if group == "batch":
        return replace(a, workload=replace(work, micro_batch=other.micro_batch, grad_accum=other.grad_accum)), ""
    if group == "sizes":
        whole = replace(other.shape, **{field: getattr(shape, field) for field in _APART})
        return replace(a, workload=replace(work, shape=whole)), ""
    field = name.removeprefix("model.")
    if field != name:
        return replace(a, workload=replace(work, shape=replace(shape, **{field: getattr(other.shape, field)}))), ""
    if name in _JUDGED:
        field = _JUDGED[name]
        return replace(a, workload=replace(work, **{field: getattr(other, field)})), ""
    return None, next(words for beginnings, words in _NO_LAW if name.startswith(beginnings))


def promise(store: Store, side: Side) -> Promise:
    """Predicts one run with the current profile of its GPU, or else returns the prediction of its plan."""
    work = side.workload
    found: Prediction | None
    why_not = ""
    try:
        profile = load_profile(
            work.gpu, store, family=work.shape.family, precision=work.precision, compile=work.compile
        )
        found = predict_batch(profile, [work])[0]
    except AdvisorError as error:
        found, why_not = side.promised, error.message
    seconds = found.step_seconds.scaled(side.config.steps) if found is not None and found.step_seconds else None
    hourly = side.usd_per_hour
    return Promise(
        prediction=found,
        steps_seconds=seconds,
        steps_usd=seconds.scaled(hourly / 3600) if seconds is not None and hourly is not None else None,
        loss=predict_loss(int(parameters(work.shape)), side.tokens, None, work.shape.vocab_size),
        why_not=why_not,
    )


def _told(c: Calibration) -> dict[str, Any]:
    """Returns the settings and the software of a calibration."""
    return {
        "device": c.device.name or c.device_key,
        "torch": c.environment.torch,
        "python": c.environment.python,
        "quality": c.quality.verdict if c.quality is not None else None,
        "bursts": len(c.bursts),
        **{f"settings.{name}": value for name, value in _leaves(to_dict(c.settings), "")},
    }
