"""Defines adopted training commands and their plans, as records and as YAML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError, close_matches
from advisor.offer import Offer
from advisor.records import Bill, Estimate
from advisor.store.disk import bad_fields, dump_yaml, read_yaml, write_atomic
from advisor.units import HOUR
from trainer.schema import ConfigError, ModelShape, record_from_dict, to_dict

FOLDER = "adopted"  # a folder of the store
PLAN = "adopted.yaml"  # a file of a run folder
SCHEMA = 1
# How steps were observed: in a burst by the probe or, if the probe cannot be loaded, in the program's own log; or in a
# launched run.
PROBE, LOG, WHOLE_RUN = "probe", "log", "run"
_SCHEMA_1 = (*("device_key", "gpus", "usd_per_hour", "startup_seconds", "ending_seconds", "total_seconds"),
             *("cost_usd", "environment", "software"))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A knob, called by its canonical name, and its value."""

    name: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A name and its text: an environment variable, or a package with its versions."""

    name: str
    value: str


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A canonical setting of a trainer, and how the trainer is given its value."""

    name: str  # micro_batch | grad_accum | seq_len | steps | …: the names in profiles/trainers
    key: str  # the option or the environment variable
    # option: --key V | equals: --key=V | word: key=V | env | launcher: an option of the program that starts the
    # processes
    how: str = "option"
    value: float | None = None  # in the user's own command; None if unknown
    in_bursts: str | None = None  # the value for bursts, for example to switch something off; None leaves it alone
    in_file: str | None = None  # the keys in a configuration file that are used if the arguments do not set the knob


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of one trainer."""

    name: str
    knobs: tuple[Knob, ...] = ()
    burst_args: tuple[str, ...] = ()  # added to the command in a burst
    resume_args: tuple[str, ...] = ()  # added to the command when a run resumes; empty if the trainer cannot resume
    config_option: str | None = None  # names the configuration file; None if that file is the first argument
    holds_for: tuple[Variable, ...] = ()  # packages and versions that these options are right for
    notes: tuple[str, ...] = ()
    detect: tuple[str, ...] = ()  # of a shipped recipe: regular expressions, one of which matches the command
    detect_help: tuple[str, ...] = ()  # or the program's help

    def knob(self, name: str) -> Knob | None:
        """Return the knob with this canonical name. Returns None if the trainer has no such knob that is known."""
        return next((knob for knob in self.knobs if knob.name == name), None)


@dataclass(frozen=True, kw_only=True)
class BatchShape:
    """What the model received in one optimizer step of one process, as seen from inside. None means unknown."""

    rows: float  # in one micro-batch, the largest of the step
    calls: int  # number of micro-batches in the step
    length: float | None = None  # mean tokens per row
    tokens: float | None = None  # of the whole step
    end_to_end: bool = False  # the rows of a micro-batch are joined into one


@dataclass(frozen=True, kw_only=True)
class AdoptedBurst:
    """One short run of the command. A field is None if the run did not get that far or the value was not seen."""

    values: tuple[Setting, ...]  # of the knobs that were set, by canonical name
    outcome: str  # completed | stopped (by us, with enough steps) | out_of_memory | diverged | failed | timed_out
    reason: str | None = None
    source: str = PROBE
    seconds: float = 0.0  # start to end of the process
    startup_seconds: float | None = None  # start of the process to the end of its first step
    ending_seconds: float | None = None  # from the last step to the end of the process, if it ended by itself
    warmup_seconds: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()
    steady: bool = True  # two windows of its steps had the same speed
    shape: BatchShape | None = None  # if read from the log: what the knobs ask for, as far as they were seen to work
    elements: int | None = None  # number of elements in the optimised tensors
    steps: int = 0  # optimizer steps seen
    clock: str | None = None  # if read from the log: what its step times include, in words
    step_tokens: float | None = None  # if read from the log: tokens per step, over all processes
    step_epochs: float | None = None  # if read from the log: share of the data covered by one step
    step_printed: bool = True  # if read from the log: each line states its step number
    device_peak_bytes: int | None = None  # if read from the log: memory of its processes on the fullest GPU, by NVML
    allocated_peak_bytes: int | None = None
    reserved_peak_bytes: int | None = None
    resident_peak_bytes: int | None = None  # of all its processes together
    started: float = 0.0  # Unix seconds
    torch: str | None = None
    processes: int = 1  # processes that trained together
    model: ModelShape | None = None  # of a decoder, from its weights; None if the decoder is of no known kind
    reference_seconds: tuple[float, ...] = ()  # of the reference kernel during the timed steps; empty if not timed

    def value(self, name: str) -> float | None:
        """Return the value to which a knob was set. Returns None if it was left alone."""
        return next((setting.value for setting in self.values if setting.name == name), None)

    @property
    def on_card(self) -> bool:
        """Tell whether it used the memory of a GPU."""
        return bool(self.allocated_peak_bytes or self.device_peak_bytes)

    @property
    def measured(self) -> bool:
        """Tell whether the burst has steady steps."""
        return self.outcome in ("completed", "stopped") and len(self.step_seconds) > 0


@dataclass(frozen=True, kw_only=True)
class KnobVerdict:
    """The result of a knob's self-test."""

    name: str
    verdict: str  # works | dead | capped | swapped | untested
    words: str


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """An adopted training command: the options that it takes, and what its bursts measured."""

    name: str
    created: str  # ISO 8601, UTC
    command: tuple[str, ...]
    folder: str  # where the command starts
    recipe: Recipe
    device_key: str
    torch: str | None
    gpus: int
    verdicts: tuple[KnobVerdict, ...]
    bursts: tuple[AdoptedBurst, ...]
    seconds: float  # duration of the adoption
    environment: tuple[Variable, ...] = ()  # variables added to the inherited environment
    schema: int = SCHEMA

    @property
    def by_log(self) -> bool:
        """Tell whether its steps were seen only in its log."""
        return self.bursts[0].source == LOG

    def works(self, name: str) -> bool:
        """Tell whether a test showed that a knob does what its name says."""
        return any(verdict.name == name and verdict.verdict == "works" for verdict in self.verdicts)

    def working(self, name: str) -> Knob | None:
        """Return the knob that a test showed to do what its name says, if its own value is known; else None."""
        knob = self.recipe.knob(name)
        return knob if knob is not None and knob.value and self.works(name) else None


@dataclass(frozen=True, kw_only=True)
class AdoptedPlan:
    """A planned run of an adopted command, with predictions."""

    id: str
    created: str
    trainer: str  # name of the adopted command
    command: tuple[str, ...]
    folder: str
    resume_args: tuple[str, ...]
    values: tuple[Setting, ...]  # of the knobs that the plan sets
    offer: Offer  # the machine: of this device, with its price; on a CPU, `gpus` are processes
    shape: BatchShape | None  # what one process receives
    steps: int
    steps_are_set: bool  # by a knob; otherwise the run is ended when its time is up
    rows_per_step: float | None  # over all processes
    tokens_per_step: float | None
    step_seconds: Estimate
    bill: Bill  # the checkpoint is the save at the end; None if no burst ended by itself
    memory_bytes: Estimate | None
    memory_kind: str  # allocated | device (NVML, by process) | resident
    max_seconds: float | None  # the limit in time that was stated; None if none was
    max_usd: float | None  # and in dollars
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    basis: str = PROBE  # source of its numbers: probe | log
    reference_seconds: float | None = None  # of the reference kernel during the bursts; None if it was not timed
    drift_exponent: float = 0.0  # step time is proportional to this power of the reference kernel's time
    bootstrap: str | None = None  # a shell line of the user that runs before the command on another machine
    schema: int = 2

    @property
    def limit_seconds(self) -> float | None:
        """Return the seconds after which the tighter limit stops the run, or None if there are no limits."""
        return tightest(self.max_seconds, self.max_usd, self.offer.usd_per_hour)

    @property
    def ending_seconds(self) -> float:
        """Return how many seconds the final checkpoint may take; 0 if not measured."""
        save = self.bill.wall_clock.checkpoints_seconds
        return save.high if save is not None else 0.0


def tightest(max_seconds: float | None, max_usd: float | None, usd_per_hour: float | None) -> float | None:
    """Return the tighter of two limits in seconds, or None if there is no limit that can be reached."""
    by_money = max_usd / usd_per_hour * HOUR if max_usd is not None and usd_per_hour else None
    return min((limit for limit in (max_seconds, by_money) if limit is not None), default=None)


def save_adopted(home: Path, adopted: Adopted) -> Path:
    """Store an adopted command. It replaces one of the same name."""
    path = home / FOLDER / f"{adopted.name}.yaml"
    write_atomic(path, dump_yaml(to_dict(adopted)))
    return path


def adopted_names(home: Path) -> list[str]:
    """Return the names of the adopted commands, sorted."""
    return sorted(path.stem for path in (home / FOLDER).glob("*.yaml"))


def load_adopted(home: Path, name: str) -> Adopted:
    """Return an adopted command by its name. Raises AdvisorError with similar names if there is none."""
    path = home / FOLDER / f"{name}.yaml"
    if name not in adopted_names(home):
        names = adopted_names(home)
        near = close_matches(name, names) or names
        hint = f"there is: {', '.join(near)}" if near else "adopt one: advisor adopt -- python train.py …"
        raise AdvisorError(f"no adopted command is called {name!r}", hint, exit_code=2)
    return record_of(Adopted, read_yaml(path, "adopted command"), path, "adopted command")


def load_adopted_plan(path: Path) -> AdoptedPlan:
    """Read the plan of an adopted command. Raises AdvisorError if the file cannot be read."""
    raw = read_yaml(path, "plan")
    step, count = raw.get("step_seconds"), raw.get("steps")
    if raw.get("schema") == 1 and isinstance(step, dict) and isinstance(count, int):
        # Machine, price and times had fields of their own, and two fields were never used.
        gpu, gpus, usd, start, end, total, cost, *_ = (raw.pop(name, None) for name in _SCHEMA_1)
        steps = {side: n if side == "basis" else n * count for side, n in step.items()}
        clock = dict(startup_seconds=start, steps_seconds=steps, checkpoints_seconds=end, total_seconds=total)
        offer = dict(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=usd, source="given")
        raw |= {"offer": offer, "bill": {"wall_clock": clock, "cost_usd": cost}, "schema": 2}
    return record_of(AdoptedPlan, raw, path, "plan")


def dump_adopted_plan(plan: AdoptedPlan) -> str:
    """Return the plan as YAML."""
    return dump_yaml(to_dict(plan))


def record_of(kind: Any, raw: dict[str, Any], path: Path, what: str, hint: str = "make it again: advisor adopt") -> Any:
    """Return a record from the content of a file. Raises AdvisorError if it is of a newer version or damaged."""
    if isinstance(schema := raw.get("schema"), int) and schema > getattr(kind, "schema", SCHEMA):
        raise AdvisorError(f"{path} was written by a newer version (schema {schema})", "upgrade training-advisor")
    try:
        return record_from_dict(kind, raw)
    except ConfigError as error:
        raise bad_fields(what, path, error, hint) from error
