"""An adopted training command and the plans made for it, as records and as the YAML that keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError, close_matches
from advisor.records import Estimate
from advisor.store.disk import bad_fields, dump_yaml, read_yaml, write_atomic
from trainer.schema import ConfigError, ModelShape, record_from_dict, to_dict

FOLDER = "adopted"  # of the store
PLAN = "adopted.yaml"  # of a run folder
SCHEMA = 1
# where a burst's steps were seen: in a burst by the probe or, where that cannot load, by the program's own log; in a
# run that was launched
PROBE, LOG, WHOLE_RUN = "probe", "log", "run"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A knob, by its canonical name, and what it is set to."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A name and its text: of the environment, or of a package and its versions."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One canonical setting of a trainer and how it is set there."""

    name: str  # micro_batch | grad_accum | seq_len | steps | …: see adopt/knobs
    key: str  # the option, the variable or the path of keys
    # option: --key V | equals: --key=V | word: key=V | env | file: a key of a configuration file | launcher: an option
    # of what starts the processes
    how: str = "option"
    inside: str | None = None  # the value is a JSON object, and this its field
    value: float | None = None  # of the user's own command; None: not known
    in_bursts: str | None = None  # what bursts set it to, as to switch it off; None: it is left alone
    flag: bool = False  # it takes no value: to be given, or not
    in_file: str | None = None  # keys under which a configuration file has what the arguments do not say


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Which options one trainer takes."""

    name: str
    knobs: tuple[Knob, ...] = ()
    burst_args: tuple[str, ...] = ()  # added to the command of a burst
    burst_env: tuple[Variable, ...] = ()
    resume_args: tuple[str, ...] = ()  # added when a run goes on; empty: it starts again
    config_option: str | None = None  # what names the configuration file; None: the first argument that is one
    holds_for: tuple[Variable, ...] = ()  # package, versions
    notes: tuple[str, ...] = ()

    def knob(self, name: str) -> Knob | None:
        """The knob of that canonical name; None: the trainer has none that is known."""
        return next((knob for knob in self.knobs if knob.name == name), None)


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """What the model was given in one optimizer step of one process, as seen from inside; None: it has no such."""

    rows: float  # of one micro-batch, the most of a step
    calls: int  # micro-batches of a step
    length: float | None = None  # tokens of a row, mean
    tokens: float | None = None  # of the whole step
    end_to_end: bool = False  # the rows of a micro-batch are laid one behind the other in a single one


@dataclass(frozen=True, kw_only=True)
class AdoptedBurst:
    """One short run of the command. None: it did not come to that, or was not seen."""

    values: tuple[Setting, ...]  # of the knobs that were set, by canonical name
    outcome: str  # completed | stopped (by us, with enough steps) | out_of_memory | diverged | failed | timed_out
    reason: str | None = None
    source: str = PROBE
    seconds: float = 0.0  # start to end of the process
    startup_seconds: float | None = None  # start of the process to the end of its first step
    ending_seconds: float | None = None  # last step to the end of the process, of one that ended by itself
    warmup_seconds: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    steady: bool = True  # two windows of its steps agreed
    shape: BatchShape | None = None  # by its log: what its knobs ask for, as far as they were seen to work
    elements: int | None = None  # of the tensors that are optimised
    steps: int = 0  # optimizer steps seen
    clock: str | None = None  # by its log: what its step times are, in words
    step_tokens: float | None = None  # by its log: tokens of a step, of all processes
    step_epochs: float | None = None  # how far a step goes through the data, as its log says
    step_printed: bool = True  # by its log: each line says which step it is of
    device_peak_bytes: int | None = None  # by its log: what NVML has of its processes, on the fullest card
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    resident_peak_bytes: int | None = None  # of all its processes
    started: float = 0.0  # Unix seconds
    torch: str | None = None
    processes: int = 1  # that trained together
    model: ModelShape | None = None  # of a decoder, by its weights; None: it is none that is known
    reference_seconds: tuple[float, ...] = ()  # of the reference kernel, beside its timed steps; empty: not timed

    def value(self, name: str) -> float | None:
        """What a knob was set to; None: it was left as it is."""
        return next((setting.value for setting in self.values if setting.name == name), None)

    @property
    def measured(self) -> bool:
        """Whether it has steady steps to speak of."""
        return self.outcome in ("completed", "stopped") and len(self.step_seconds) > 0


@dataclass(frozen=True, kw_only=True)
class KnobVerdict:
    """What became of a knob's self-test."""

    name: str
    verdict: str  # works | dead | capped | swapped | untested
    words: str


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """A training command that was adopted: the options it takes, and what its bursts measured."""

    name: str
    created: str  # ISO 8601, UTC
    command: tuple[str, ...]
    folder: str  # where it is started
    recipe: Recipe
    device_key: str
    torch: str | None
    gpus: int
    verdicts: tuple[KnobVerdict, ...]
    bursts: tuple[AdoptedBurst, ...]
    seconds: float  # that it took
    environment: tuple[Variable, ...] = ()  # set beside what is inherited
    schema: int = SCHEMA

    @property
    def by_log(self) -> bool:
        """Whether its steps were seen by its own log alone."""
        return self.bursts[0].source == LOG

    def works(self, name: str) -> bool:
        """Whether a knob was seen to do what its name says."""
        return any(verdict.name == name and verdict.verdict == "works" for verdict in self.verdicts)


@dataclass(frozen=True, kw_only=True)
class AdoptedPlan:
    """What is to be run of an adopted command, and what that promises."""

    id: str
    created: str
    trainer: str  # name of the adopted command
    command: tuple[str, ...]
    folder: str
    environment: tuple[Variable, ...]
    resume_args: tuple[str, ...]
    values: tuple[Setting, ...]  # knobs that the plan sets
    device_key: str
    gpus: int
    shape: BatchShape | None  # of one process
    steps: int
    steps_are_set: bool  # by a knob; else the run is ended when its time is up
    rows_per_step: float | None  # of all processes
    tokens_per_step: float | None
    startup_seconds: Estimate
    step_seconds: Estimate
    ending_seconds: Estimate | None  # None: no burst ended by itself
    total_seconds: Estimate
    usd_per_hour: float | None
    cost_usd: Estimate | None
    memory_bytes: Estimate | None
    memory_kind: str  # allocated | device (NVML, by process) | resident
    max_seconds: float | None  # when the run is ended; None: nobody set a limit
    max_usd: float | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    software: str | None = None  # as the probe saw it
    basis: str = PROBE  # of its numbers: probe | log
    reference_seconds: float | None = None  # of the reference kernel during the bursts; None: not timed
    drift_exponent: float = 0.0  # step time goes as the reference kernel's time to this power
    bootstrap: str | None = None  # the user's own line of a shell, before the command, where it runs elsewhere
    schema: int = SCHEMA


def save_adopted(home: Path, adopted: Adopted) -> Path:
    """Keep an adopted command; the same name replaces."""
    path = home / FOLDER / f"{adopted.name}.yaml"
    write_atomic(path, dump_yaml(to_dict(adopted)))
    return path


def adopted_names(home: Path) -> list[str]:
    """What was adopted, in order of name."""
    return sorted(path.stem for path in (home / FOLDER).glob("*.yaml"))


def load_adopted(home: Path, name: str) -> Adopted:
    """An adopted command by its name; raises AdvisorError with what is near."""
    path = home / FOLDER / f"{name}.yaml"
    if name not in adopted_names(home):
        names = adopted_names(home)
        near = close_matches(name, names) or names
        hint = f"there is: {', '.join(near)}" if near else "adopt one: advisor adopt -- python train.py …"
        raise AdvisorError(f"no adopted command is called {name!r}", hint, exit_code=2)
    return _read(Adopted, path, "adopted command")


def load_adopted_plan(path: Path) -> AdoptedPlan:
    """The plan of an adopted command; raises AdvisorError."""
    return _read(AdoptedPlan, path, "plan")


def dump_adopted_plan(plan: AdoptedPlan) -> str:
    """The plan as YAML."""
    return dump_yaml(to_dict(plan))


def _read(kind: Any, path: Path, what: str) -> Any:
    raw = read_yaml(path, what)
    if isinstance(schema := raw.get("schema"), int) and schema > SCHEMA:
        raise AdvisorError(f"{path} was written by a newer version (schema {schema})", "upgrade training-advisor")
    try:
        return record_from_dict(kind, raw)
    except ConfigError as error:
        raise bad_fields(what, path, error, "make it again: advisor adopt") from error
