"""Plans a run again: turns a run or a log into options of a plan, and compares the plan with the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from advisor import units
from advisor.calibration.observed_run import FEWEST_STEPS, includes_run, profile_after
from advisor.errors import AdvisorError
from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Severity
from advisor.findings.curves import curve
from advisor.findings.run_facts import planned_steps, price, step_tokens, steps_done
from advisor.findings.workload_of import infer
from advisor.hardware.catalog import read_gpus
from advisor.history.time_spent import reference_seconds
from advisor.laws import flops
from advisor.prediction.batch import predict_batch
from advisor.readers import own_log
from advisor.readers.run_table import RunTable, Status
from advisor.records import Estimate, MeasuredStep, Plan, Prediction, Workload
from advisor.store.run_folder import is_run_folder, read_run_config, run_id
from advisor.store.store import Store
from advisor.workflows.analysis import Analysis, Given
from advisor.workflows.analyze import analyze, located
from trainer.schema import RunConfig

_SAME_BATCH = 0.02
_WELL = (Status.COMPLETED, Status.INCOMPLETE, Status.RUNNING, Status.STOPPED, Status.NO_END)
_ALL_TRAINED = 0.9  # share of the parameters; with fewer, the run trained adapters or froze blocks
_UNKNOWN_CARD = "cpu"  # stands for the GPU if only the model is asked for
# Options of a plan that state what a log may lack, by the names of FACTS
_FACTS = {
    "family": "family", "depth": "depth", "width": "width", "heads": "heads", "kv_heads": "kv_heads",
    "ffn_width": "ffn_width", "seq_len": "seq_len", "vocab_size": "vocab_size", "micro_batch": "micro_batch",
    "global_batch": "step_tokens", "precision": "precision", "params": "parameters",
}  # fmt: skip
_SIZES = ("depth", "width", "heads", "kv_heads", "ffn_width")
_KNOBS = (  # settings other than the model's sizes
    *("precision", "tokens", "global_batch", "gpu", "compile", "optimizer", "gpus", "micro_batch", "grad_accum"),
    *("sharding", "activation_checkpointing"),
)
_OTHER_SIZE = {"depth", "model", "params"}  # options that name another model than the run's
_OTHER_LENGTH = {"tokens", "ratio", "epochs", "inference_tokens"}  # options that set the tokens


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A run that is to be planned again."""

    source: str  # as the user typed it
    analysis: Analysis
    workload: Workload  # its GPU is "cpu" if `card_known` is False
    card_known: bool
    step_tokens: int  # as the log states them, or else the workload's
    tokens: int | None  # of all planned steps
    unsure: tuple[str, ...]  # parts of the workload that had to be assumed
    seen: MeasuredStep | None  # its speed; None: unusable, and `unseen` says why
    unseen: str = ""
    config: RunConfig | None = None  # only for a run of this program

    @property
    def case(self) -> Case:
        return self.analysis.case


@dataclass(frozen=True, kw_only=True)
class There:
    """The measured results of the run. None: not in its log."""

    gpu: str | None
    gpus: int
    steps_done: float | None
    steps_planned: float | None
    tokens: float | None  # of all planned steps
    step_seconds: float | None
    tokens_per_second: float | None
    mfu: float | None
    memory_bytes: float | None  # the most that one device held
    spent_hours: float | None
    spent_usd: float | None
    whole_hours: Estimate | None  # all steps at the run's own pace
    whole_usd: Estimate | None
    usd_per_hour: float | None
    loss: float | None  # the last printed loss
    eval_loss: float | None


@dataclass(frozen=True, kw_only=True)
class ReplanKnob:
    """One setting of the run and of the plan."""

    name: str
    there: Any
    here: Any

    @property
    def unchanged(self) -> bool:
        return bool(self.there == self.here)


@dataclass(frozen=True, kw_only=True)
class Replan:
    """A plan compared with the run that it repeats."""

    source: str
    there: There
    predicted_there: Prediction | None  # on the run's own GPU, without the run's measurement
    workload: Workload
    knobs: tuple[ReplanKnob, ...]
    speed: str  # how the run's measured speed changed the plan's, in words
    fate: str  # how the run ended if something went wrong, in words; else empty
    unsure: tuple[str, ...]


def given_of(was: str | None, config: Path | None) -> Given:
    """Returns the stated GPUs of a run, such as "h100:8", and its configuration. Raises AdvisorError (exit 2)."""
    if was is None:
        return Given(config=config)
    named = read_gpus(was)
    return Given(config=config, gpu=named.key, gpus=named.count or 1)


def origin_of(text: str, given: Given, typed: Mapping[str, Any], store: Store) -> Origin:
    """Returns the run at a path or with a name, after reading and judging it; `typed` options state what its log lacks.

    Raises AdvisorError if the run cannot be read, and (exit 2) with the options to set if its model is unknown.
    """
    path = located(Path(text), store)
    analysis = analyze(path, given, store)
    run = analysis.run
    lacking = {fact: typed[option] for option, fact in _FACTS.items() if option in typed and fact not in run.facts}
    own = is_run_folder(path) or run.format == own_log.NAME
    inferred = infer(run, lacking) if lacking or analysis.case.workload is None else None
    workload, unsure = analysis.case.workload, analysis.case.unsure
    known = workload is not None
    if inferred is not None:
        known = inferred.gpu is not None
        requested = inferred if known else infer(run, {**lacking, "gpu": _UNKNOWN_CARD})
        workload, unsure = requested.workload, requested.unsure
        if workload is None:
            # Name the options that state what the log lacks.
            sizes = "--family gpt2 --depth 12 --width 768 --heads 12 --vocab-size 50304"
            supply = {"context length": "--seq-len 2048", "shape": sizes, "family": sizes,
                      "vocabulary": "--vocab-size 50304", "batch": "--global-batch 512k"}  # fmt: skip
            options = dict.fromkeys(o for words in requested.missing for name, o in supply.items() if name in words)
            hint = "give its configuration, --config FILE" + (f", or say it: {' '.join(options)}" if options else "")
            raise AdvisorError(f"{text} does not say {'; '.join(requested.missing)}", hint, exit_code=2)
    assert workload is not None
    _refuse_part(text, analysis.case, workload, typed)
    each = round(step_tokens(analysis.case) or workload.step_tokens)
    seen, why = _seen(analysis.case, workload, known, own, path)
    if seen is not None and abs(workload.step_tokens / each - 1) > _SAME_BATCH:
        found, logged = units.format_tokens(workload.step_tokens), units.format_tokens(each)
        why = f"batch and GPUs give {found} tokens a step, its log {logged}: "
        seen, why = None, f"{why}which of them is wrong is not known, so its speed is not used"
    # Count the tokens of all planned steps, or else of the steps that were done.
    steps = planned_steps(analysis.case) or steps_done(analysis.case.run)
    return Origin(
        source=text,
        analysis=analysis,
        workload=workload,
        card_known=known,
        step_tokens=each,
        tokens=(round(steps * each) if steps else None),
        unsure=tuple(word for word in unsure if "--gpu)" not in word),
        seen=seen,
        unseen=why,
        config=read_run_config(path) if is_run_folder(path) else None,
    )


def _refuse_part(text: str, case: Case, work: Workload, typed: Mapping[str, Any]) -> None:
    """Raise AdvisorError (exit 2) with a `predict` command if the run trained only a part of its weights."""
    trained, whole = case.run.facts.get("trained_parameters"), flops.parameters(work.shape)
    if not trained or trained >= _ALL_TRAINED * whole:
        return
    ranks = {aim: trained / flops.adapter_parameters(work.shape, 1, aim) for aim in ("all", "attention")}
    whole_ranks = [(round(rank), aim) for aim, rank in ranks.items() if rank >= 0.5 and abs(rank - round(rank)) < 0.01]
    share = f"{units.format_count(trained)} of {units.format_count(whole)} parameters"
    message = f"{text} trained {share}; a plan trains all of them"
    key = typed.get("gpu", work.gpu)
    if not whole_ranks or key in ("cpu", "any") or "," in key:
        raise AdvisorError(message, "advisor predict --lora-rank 16 says what adapters need on a GPU", exit_code=2)
    rank, aim = whole_ranks[0]
    names = ("family", *_SIZES, "vocab_size", "seq_len")
    sizes = " ".join(f"--{name.replace('_', '-')} {getattr(work.shape, name)}" for name in names)
    part = f"--lora-rank {rank}" + (f" --lora-targets {aim}" if aim != "all" else "")
    predicted = f"advisor predict --gpu {read_gpus(key).key} {sizes} --micro-batch {work.micro_batch} {part}"
    raise AdvisorError(message, f"what its adapters of rank {rank} need: {predicted}", exit_code=2)


def _seen(case: Case, work: Workload, known: bool, own: bool, path: Path) -> tuple[MeasuredStep | None, str]:
    """Returns the run's measured step, or the reason why it cannot be used."""
    times, run = run_metrics.step_times(case), case.run
    seconds, timed = run_metrics.step_seconds(case), round(len(times.steady_seconds) * times.stride) if times else 0
    if not known:
        return None, "its log does not name its GPU, so its speed says nothing of another"
    if seconds is None:
        return None, "its log has no step times"
    if timed < FEWEST_STEPS:
        return None, f"{timed} timed steps after the warm-up are too few for its step time, {FEWEST_STEPS} are needed"
    identity = run_id(path) if is_run_folder(path) else path.stem
    return MeasuredStep(run_id=identity, own=own, workload=work, step_seconds=seconds, steps=timed,
                        reference_seconds=reference_seconds(run)), ""  # fmt: skip


def options_of(origin: Origin, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the run as options of a plan; typed options replace the run's. Raises AdvisorError (exit 2)."""
    work, unchanged = origin.workload, _kept(origin, typed)
    if "gpu" not in typed and not typed.get("own"):
        if not origin.card_known:
            hint = "say what it ran on, --was h100:8, or where it shall run, --gpu l4"
            raise AdvisorError(f"{origin.source} does not name its GPU", hint, exit_code=2)
        unchanged |= {"gpu": work.gpu}
    same_card = typed.get("gpu", work.gpu) == work.gpu and origin.card_known
    if not typed.get("own") and "," not in typed.get("gpu", "") and typed.get("gpu") != "any":
        unchanged |= {"gpus": (work.gpus,)}
    if same_card and origin.case.notes.get("price") == "stated" and (usd := price(origin.case)) is not None:
        unchanged |= {"price": (repr(usd / work.gpus),)}
    return {**unchanged, **typed}


def _kept(origin: Origin, typed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the run's model, tokens, global batch, precision and data, except those that typed options replace."""
    work, shape = origin.workload, origin.workload.shape
    unchanged: dict[str, Any] = {"global_batch": origin.step_tokens, "optimizer": work.optimizer}
    unchanged |= {"seq_len": shape.seq_len, "vocab_size": shape.vocab_size}
    unchanged |= {name: getattr(work, name) for name in ("precision", "compile") if _states(origin, name)}
    if "model" not in typed:
        unchanged["family"] = shape.family
    if not _OTHER_SIZE & typed.keys():
        unchanged |= {name: getattr(shape, name) for name in _SIZES}
    if not _OTHER_LENGTH & typed.keys():
        if origin.tokens is None:
            missing = f"{origin.source} does not say how many steps it has"
            raise AdvisorError(missing, "say how much is to be trained: --tokens 500M", exit_code=2)
        unchanged["tokens"] = origin.tokens
    data = origin.config.data.path if origin.config else None
    if data and Path(data).is_dir() and not {"data", "data_tokens"} & typed.keys():
        unchanged["data"] = Path(data)
    return {name: value for name, value in unchanged.items() if name not in typed}


def _states(origin: Origin, setting: str) -> bool:
    """Tells whether the run states a setting, or its program allows only one value; assumed values are not kept."""
    words = {"precision": "the precision", "compile": "torch.compile"}[setting]
    known = origin.card_known or setting in origin.case.run.facts
    return known and not any(text.startswith(f"{words}:") for text in origin.unsure)


def as_it_was(plan: Plan, origin: Origin) -> Plan:
    """Returns the plan with the optimizer, schedule and seed of our run, if its steps and batch are the same."""
    config, run = origin.config, plan.config
    if config is None or config.optimizer.name != run.optimizer.name or config.steps != run.steps:
        return plan
    if plan.workload.step_tokens != origin.step_tokens:
        return plan
    same = replace(run, optimizer=config.optimizer, schedule=config.schedule, seed=config.seed)
    return replace(plan, run=same)


def current_run(origin: Origin | None, plan: Plan) -> Workload | None:
    """Returns the run's configuration if the plan uses the same GPUs, or else None."""
    if origin is None or not origin.card_known:
        return None
    work = origin.workload
    same = (work.gpu, work.gpus, work.shape) == (plan.workload.gpu, plan.workload.gpus, plan.workload.shape)
    return work if same else None


def side_by_side(origin: Origin, plan: Plan, store: Store) -> Replan:
    """Compares the run and its plan setting by setting, with measured and predicted results."""
    work = origin.workload
    predicted, words = _predicted_there(origin, store), origin.unseen
    if origin.seen is not None:
        words = _speed(origin.seen, predicted, plan, store)
    case, outlook, found = origin.case, origin.analysis.forecast, origin.analysis
    losses, evals = curve(case.run, "loss").value, curve(case.run, "eval_loss").value
    done, planned = steps_done(case.run), planned_steps(case)
    over = not outlook.rest_hours or outlook.rest_hours.value == 0
    return Replan(
        source=origin.source,
        there=There(
            gpu=origin.workload.gpu if origin.card_known else None,
            gpus=origin.workload.gpus,
            steps_done=done,
            steps_planned=planned,
            tokens=origin.tokens,
            step_seconds=run_metrics.step_seconds(case),
            tokens_per_second=found.tokens_per_second,
            mfu=found.mfu,
            memory_bytes=_most_memory(case.run, run_metrics.memory_used_share(case)),
            spent_hours=found.spent_hours,
            spent_usd=found.spent_usd,
            whole_hours=None if over else outlook.total_hours,
            whole_usd=None if over else outlook.total_usd,
            usd_per_hour=price(case),
            loss=float(losses[-1]) if len(losses) else None,
            eval_loss=float(evals[-1]) if len(evals) else None,
        ),
        predicted_there=predicted,
        workload=work,
        knobs=knobs(origin, plan),
        speed=words,
        fate=_fate(origin),
        unsure=origin.unsure,
    )


def _fate(origin: Origin) -> str:
    """Says how the run ended and what its gravest fault was, since an equal plan may end equally."""
    run, loud = origin.case.run, [f for f in origin.analysis.findings if f.severity is Severity.ERROR]
    if run.status in _WELL and not loud:
        return ""
    ended = "" if run.status in _WELL else f"it ended badly ({run.status.value.replace('_', ' ')})"
    return ": ".join(filter(None, (ended, loud[0].title if loud else run.status_reason)))


def _predicted_there(origin: Origin, store: Store) -> Prediction | None:
    """Predicts the run on its own GPU without using its measurement."""
    work = origin.workload
    if not origin.card_known:
        return None
    try:
        profile = profile_after(
            None, work.gpu, store, family=work.shape.family, precision=work.precision, compile=work.compile
        )
    except AdvisorError:
        return None  # an uncalibrated CPU
    return predict_batch(profile, [work])[0]


def _speed(seen: MeasuredStep, predicted: Prediction | None, plan: Plan, store: Store) -> str:
    """Returns the run's measured speed against the prediction without it, and whether the plan uses the measurement."""
    work, expected = plan.workload, predicted.step_seconds if predicted else None
    text = f"{seen.run_id} took {units.format_seconds(seen.step_seconds)} a step there"
    if expected is not None:
        ratio = seen.step_seconds / expected.value
        text += f", {units.format_number(ratio)} times what is predicted without it"
        if not 1 / run_metrics.BROKEN_FACTOR < ratio < run_metrics.BROKEN_FACTOR:
            text += " (no shape or batch explains so much: `advisor analyze` says what may have slowed it)"
    profile = profile_after(seen, work.gpu, store, family=work.shape.family, precision=work.precision,
                            compile=work.compile, power_cap_watts=plan.goal.power_cap_watts)  # fmt: skip
    rests = f"the plan's speed {'is' if includes_run(profile, seen) else 'is not'} based on it"
    return f"{text}; {rests}"


def knobs(origin: Origin, plan: Plan) -> tuple[ReplanKnob, ...]:
    """Returns every setting of the run and its plan, the model's sizes first; unknown ones of the run are None."""
    there, here = origin.workload, plan.workload
    one = vars(there.shape) | vars(there) | {"tokens": origin.tokens, "global_batch": origin.step_tokens}
    two = vars(here.shape) | vars(here) | {"tokens": plan.chosen.tokens, "global_batch": here.step_tokens}
    known = {"gpu": origin.card_known, "precision": _states(origin, "precision"), "compile": _states(origin, "compile")}
    names = (*vars(there.shape), *_KNOBS)
    return tuple(
        ReplanKnob(name=name, there=one[name] if known.get(name, True) else None, here=two[name]) for name in names
    )


def _most_memory(run: RunTable, used: tuple[float | None, float | None]) -> float | None:
    """Returns the most bytes that a device held, or on a CPU its process."""
    share, size = used
    if share is not None and size is not None:
        return share * size
    names = ("reserved_bytes", "memory_bytes", "resident_bytes")
    held = [float(values.max()) for name in names if len(values := series.finite(run.column(name)))]
    return held[0] if held else None
