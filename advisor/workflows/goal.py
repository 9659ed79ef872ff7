"""Turns options into a goal, in the same way for the command line, the page and the Python call."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from advisor import units
from advisor.errors import AdvisorError, close_matches
from advisor.hardware.catalog import GPUS_PER_NODE, read_gpus
from advisor.hardware.here import device_key
from advisor.hardware.offers import read_providers
from advisor.laws.flops import parameters
from advisor.options import (
    EIGHT_BIT,
    OPTIONS,
    Goal,
    GpuPrice,
    Kind,
    Option,
    OwnMachine,
    Record,
    RolloutOptions,
    called_here,
    filled,
    options_of,
)
from advisor.planning.goal import check_options
from advisor.planning.models import (
    FINE_TUNE,
    NamedModel,
    architecture_of_config,
    details_of_config,
    require_architecture,
    require_model,
)
from advisor.planning.offers import ANY, OWN, usual_counts
from advisor.prediction.rl import require_rl_software, rl_software
from advisor.prediction.software import OWN_NAME, require_software, table
from advisor.prediction.whole_models import with_heads_of
from advisor.workflows.machines import FILES_OF_MACHINES, read_machines
from trainer.schema import ConfigError, make_shape

Options = Mapping[str, Any]  # option values that were already read, by option name; options not given are absent

_READ = {
    Kind.USD: units.parse_usd,
    Kind.SECONDS: units.parse_seconds,
    Kind.DEADLINE: lambda text: units.parse_deadline(text, datetime.now()),
    Kind.COUNT: units.parse_tokens,
    Kind.WHOLE: units.parse_whole,
    Kind.NUMBER: units.parse_number,
    Kind.NUMBERS: units.parse_numbers,
    Kind.BYTES: units.parse_bytes,
    Kind.NETWORK: units.parse_network,
    Kind.SHARE: units.parse_percent,
    Kind.SOFTWARE: lambda text: text if text in rl_software() else require_software(text).name,
}
_FP8 = "other software: --layout any --model NAME plans it, `advisor predict --precision fp8` predicts a step"


def read_option(option: Option, value: Any) -> Any:
    """Reads the value of an option from text or from Python; raises AdvisorError (exit 2) for an invalid value."""
    if option.several:
        values = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
        return tuple(str(one) for one in values)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if option.kind is Kind.DEADLINE and not isinstance(value, bool):
        return units.parse_deadline(str(value), datetime.now())  # a bare number states no unit, in Python either
    if option.kind is Kind.NUMBERS and not isinstance(value, str):
        return units.parse_numbers(",".join(map(str, value)) if isinstance(value, Sequence) else str(value))
    if option.kind is Kind.GPUS and not isinstance(value, str):
        return ",".join(value)
    if option.kind is Kind.WHOLE and not isinstance(value, str | int | float):
        raise AdvisorError(f"{option.flag}: {value} is not one number", f"like {option.name}=8", exit_code=2)
    if option.kind in (Kind.SWITCH, Kind.YES_NO) and not isinstance(value, bool):
        raise AdvisorError(f"{option.flag} {value!r} is neither True nor False", "give one of them", exit_code=2)
    if option.choices and value not in option.choices:
        hint = f"choose {', '.join(option.choices[:-1])} or {option.choices[-1]}"
        raise AdvisorError(f"{option.flag} {value}: there is no such choice", hint, exit_code=2)
    if option.kind in (Kind.FOLDER, Kind.NEW_FOLDER, Kind.FILE, Kind.EXISTING):
        return Path(value)
    return _READ[option.kind](value) if isinstance(value, str) and option.kind in _READ else value


def read_options(given: Mapping[str, Any], known: Mapping[str, Option] = OPTIONS) -> dict[str, Any]:
    """Returns the parsed values of options by name. None means that the option was not given.

    Raises AdvisorError (exit 2) for an option that is not `known`, or a value that is invalid for its option.
    """
    for name in given:
        if name not in known:
            close = called_here(name, known) or close_matches(name, known)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
            raise AdvisorError(f"there is no option {name!r}", hint, exit_code=2)
    read = {}
    for name, value in given.items():
        if value is None:
            continue
        try:
            read[name] = read_option(known[name], value)
        except AdvisorError as error:
            said = error.message if error.message.startswith("--") else f"{known[name].flag}: {error.message}"
            raise AdvisorError(said, error.hint, exit_code=2) from error
        if known[name].kind is Kind.DEADLINE:
            read["deadline_at"] = units.moment_of(str(value), read[name])
    return read


def read_record(record: type[Record], given: Mapping[str, Any]) -> Record:
    """Returns the record of a command's options. The table of options defines how text is read, and valid ranges."""
    read = filled(record, read_options(given, options_of(record)))
    check_options(read)
    return read


def readings(typed: Options, deadline: str = "") -> list[str]:
    """Says how ambiguous GPU names and a deadline given as a moment were understood."""
    names = [*str(typed.get("gpu", "")).split(","), *(text.rpartition("=")[0] for text in typed.get("price", ()))]
    names += [text for text in typed.get("own", ()) if Path(text).suffix.lower() not in FILES_OF_MACHINES]
    read = [read_gpus(name).reading for name in names if name.strip()]
    return [*filter(None, read), *filter(None, [units.moment_read(deadline, typed["deadline"]) if deadline else None])]


def goal_from(typed: Options) -> Goal:
    """Returns the goal of the options. Raises AdvisorError (exit 2) for unknown devices or conflicting options."""
    given = {name: value for name, value in typed.items() if value is not None and value != ()}
    deadline_at = given.pop("deadline_at", None)  # no option, but read with the deadline
    _refuse_contradictions(given)
    if given.get("layout") == "any":
        given = {"gpus": LAYOUT_COUNTS} | given
    if "rl" in given and not any(name in given for name in ("gpus", "own")) and not given.get("gpu", "")[:1].isdigit():
        given = {"gpus": RL_COUNTS} | given
    unshaped = given.get("layout") == "any" or "rl" in given
    shaped = dict(given) if unshaped else with_shape(given, mixtures="finetune" in given)
    if "finetune" in given:  # the context is as long as the examples, not as in pretraining
        shaped["seq_len"] = given.get("seq_len")
    # Replace names of GPUs by their keys, and take the number of GPUs from --gpu, as in 8xh100.
    requested, gpus = shaped.get("gpu", OPTIONS["gpu"].default), shaped.get("gpus")
    read = [read_gpus(text) for text in requested.split(",") if text.strip()]
    counts = {one.count for one in read}
    if counts != {None} and (len(counts) > 1 or (gpus and set(gpus) != counts)):
        hint = "name the GPUs alone, and all the numbers to choose from: --gpu h100,a100 --gpus 8,16"
        raise AdvisorError(f"--gpu {requested} states several numbers of GPUs", hint, exit_code=2)
    said = tuple(count for count in counts if count is not None)
    given = {**shaped, "gpu": ",".join(one.key for one in read), "gpus": said or gpus}
    alone, by_card = read_prices(given.get("price", ()))
    keys, own, by_card = _devices(given, by_card)
    gpu = ",".join(keys)
    numbers = tuple(given.get("gpus") or usual_counts(gpu, own))
    if given.get("network") is not None:
        refuse_idle_network(max(numbers))
    named = {*keys, *(machine.gpu for machine in own)} - {OWN}
    if alone is not None and (ANY in named or len(named) > 1):
        message = "--price without a GPU's name is for one kind of GPU, and several are looked at"
        raise AdvisorError(message, "say for which GPU: --price l4=0.50", exit_code=2)
    if alone is not None and own:
        by_card += (GpuPrice(gpu=own[0].gpu, usd_per_gpu_hour=alone),)
        alone = None
    _refuse_without_effect(given, named, by_card, rented=gpu != OWN and "cpu" not in named)
    if given.get("sharding") == "full" and max(numbers) == 1:
        message = "--sharding full shares a model out over several GPUs, and there is one"
        raise AdvisorError(message, "say how many: --gpus 8", exit_code=2)
    software = given.get("software")
    software = None if software == OWN_NAME else software
    if "rl" in given:
        software = require_rl_software(software or RL_SOFTWARE).name
    elif software is not None:
        software = require_software(software).name
    elsewhere = [f"--{name} {given[name]}" for name in ("rl", "finetune", "layout") if name in given]
    elsewhere += [f"--software {software}"] if software is not None else []
    if elsewhere and "cpu" in named:
        hint = (
            "leave --gpu out: --own names the machines" if "own" in given else "name a GPU, or compare all: --gpu any"
        )
        raise AdvisorError(f"{elsewhere[0]}: published runs are on GPUs, not on a CPU", hint, exit_code=2)
    if "provider" in given:
        given["provider"] = read_providers(given["provider"])
    paths: dict[str, str] = {
        name: str(Path(given[name]).expanduser().resolve()) for name in ("data", "measured") if name in given
    }
    family = given.get("family", OPTIONS["family"].default)
    usual_ratio = "matrices+head" if family == "nanochat" else "total"
    settled: dict[str, Any] = {
        "gpu": gpu,
        "gpus": numbers[0],
        "counts": numbers if len(numbers) > 1 else (),
        "own": own,
        "usd_per_gpu_hour": alone,
        "prices": by_card,
        **paths,
        "ratio_counts": given.get("ratio_counts") or usual_ratio,
        "software": software,
        "optimizer": given.get("optimizer") or ("adamw" if "rl" in given else table()[software or OWN_NAME].optimizer),
        "deadline_at": deadline_at,
    }
    plain = {option.field: given[name] for name, option in OPTIONS.items() if name in given}
    goal = Goal(**(plain | settled))
    check_options(goal)
    return goal


RL_SOFTWARE = "verl"  # for RL post-training if none is named
RL_COUNTS = (1, 2, 4, 8, 16, 32)  # GPUs
LAYOUT_COUNTS = tuple(2**n for n in range(3, 15))  # GPUs: 8 to 16,384
_SHAPES = ("model", "params", "depth", "width", "heads", "kv_heads", "ffn_width")
_OF_RL = ("prompts", "response_len_end", *options_of(RolloutOptions))
# Options that need another option: the option, the alternatives it needs, what is wrong, what to do.
_NEEDS = (
    ("ratio_counts", ("ratio",), "--ratio-counts says what --ratio counts, and there is no --ratio",
     "add --ratio, or leave --ratio-counts out"),
    ("examples", ("finetune",), "--examples is of a fine-tune", "say which: --finetune lora, qlora or full"),
    ("stage", ("finetune",), "--stage is of a fine-tune", "say which: --finetune lora, qlora or full"),
    ("length", ("finetune",), "--length is of a fine-tune", "say which: --finetune lora, qlora or full"),
    ("lora_rank", ("finetune", "lora"), "--lora-rank is of a fine-tune", "say which: --finetune lora, qlora or full"),
    *((name, ("rl",), f"--{name.replace('_', '-')} is of RL post-training", "say which: --rl grpo")
      for name in _OF_RL),
    ("rl", ("model",), "--rl needs a model", "--model Qwen/Qwen3-8B"),
    ("finetune", ("model",), "--finetune needs a model", "--model Qwen/Qwen3-8B"),
    ("layout", ("model",), "--layout any needs a model", "--model llama-3-70b"),
    ("measured", ("layout", "rl"), "--measured is of runs over layouts, or of RL", "add --layout any and --model"),
    ("epochs", ("data", "data_tokens", "finetune"), "--epochs without data: a synthetic stream has no end",
     "say of how much data: --data FOLDER, or --data-tokens 3B"),
    ("value_of_time", ("budget",), "--value-of-time is of a budget, and there is none", "add --budget"),
)  # fmt: skip
# Options that say the same thing or exclude each other.
_EXCLUDE = (
    (("ratio", "inference_tokens"), "--ratio and --inference-tokens both settle the tokens per parameter",
     "leave one out: --inference-tokens works the ratio out"),
    (("data", "data_tokens"), "--data and --data-tokens both say how much data there is",
     "leave --data-tokens out: the folder's are counted"),
    (("synthetic", "data"), "--synthetic means random tokens, --data means yours", "leave one out"),
    (("synthetic", "data_tokens"), "--synthetic means random tokens, --data-tokens means yours", "leave one out"),
    (("epochs", "tokens"), "--epochs and --tokens both settle the tokens to train on",
     "leave one out: --epochs works the tokens out"),
    (("tokens", "examples"), "--tokens and --examples both say how much", "leave one out"),
    (("tokens", "length"), "--tokens and --examples both say how much", "leave one out"),
    (("rl", "finetune"), "--rl and --finetune are two plans", "leave one out; adapters with --rl: --lora"),
    (("rl", "layout"), "--rl finds the layout of its updates itself", "leave --layout out"),
    (("download_rate", "data"), "--download-rate: the data of --data are here", "leave one of them out"),
)  # fmt: skip
_OF_MACHINES = ("software", "gpu", "gpus", "price", "provider", "spot", "budget", "deadline", "sure", "objective",
                "interruptions", "kwh_price", "network")  # fmt: skip
# Options that ask for another kind of plan, the name of that kind, and the options that apply to it.
_OTHER_PLANS = (
    ("finetune", "a fine-tune", {*_OF_MACHINES, "finetune", "model", "epochs", "tokens", "seq_len", "own", "examples",
                                 "length", "lora_rank", "stage", "optimizer"}),
    ("layout", "a plan over layouts", {*_OF_MACHINES, "layout", "model", "tokens", "ratio", "seq_len", "global_batch",
                                       "measured", "precision"}),
    ("rl", "RL post-training", {*_OF_MACHINES, *_OF_RL, "rl", "model", "own", "lora_rank", "precision", "measured"}),
)  # fmt: skip


def idle_options(given: Collection[str]) -> set[str]:
    """Return the options that change nothing beside the given ones, or that would contradict them."""
    idle = {name for name, needed, *_ in _NEEDS if not {*needed} & {*given}}
    for kind, _, known in _OTHER_PLANS:
        if kind in given:
            idle |= {*OPTIONS} - known
    return idle | {*_SHAPES, "family"} - {"model"} if "model" in given else idle


def refuse_idle_network(gpus: int) -> None:
    """Raise AdvisorError (exit 2) if one machine holds all GPUs, so that no network joins them."""
    if gpus <= GPUS_PER_NODE:
        message = f"--network: one machine holds {gpus} GPUs, and nothing passes between machines"
        raise AdvisorError(message, "leave it out, or say how many GPUs there are: --gpus 16", exit_code=2)


def _refuse_contradictions(options: Options) -> None:
    """Raise AdvisorError (exit 2) for options that need others, exclude each other, or do not affect the plan."""
    given = [name for name, value in options.items() if value != OPTIONS[name].default]
    for name, needed, message, hint in _NEEDS:
        if name in given and not any(other in given for other in needed):
            raise AdvisorError(message, hint, exit_code=2)
    for names, message, hint in _EXCLUDE:
        if all(name in given for name in names):
            raise AdvisorError(message, hint, exit_code=2)
    for kind, words, known in _OTHER_PLANS:
        if kind in given and (other := [name for name in given if name not in known]):
            raise AdvisorError(f"{OPTIONS[other[0]].flag} changes nothing of {words}", "leave it out", exit_code=2)
    precision, method, optimizer = (options.get(name) for name in ("precision", "finetune", "optimizer"))
    for wrong, message, hint in (
        (precision == "fp8" and not {"layout", "rl"} & {*given}, "--precision fp8: the trainer here has no fp8 yet",
         _FP8),
        (precision == "fp32" and "layout" in given,
         "--precision fp32: layouts are planned with 16-bit or 8-bit products", "--precision bf16, fp16 or fp8"),
        (optimizer == EIGHT_BIT and method != "full", f"--optimizer {EIGHT_BIT} is only for fine-tuning all weights",
         "leave it out, or: --finetune full --model NAME --examples 50k"),
        (method is not None and optimizer == "muon", "--optimizer muon: fine-tunes are planned with AdamW",
         "leave it out"),
        (method == "full" and "lora_rank" in given, "--lora-rank: a full fine-tune has no adapters", "leave it out"),
    ):  # fmt: skip
        if wrong:
            raise AdvisorError(message, hint, exit_code=2)


def _refuse_without_effect(options: Options, named: set[str], by_card: Sequence[GpuPrice], *, rented: bool) -> None:
    """Raise AdvisorError (exit 2) for an option that cannot affect the answer."""
    priced = {price.gpu for price in by_card}
    if unnamed := sorted(priced - named) if ANY not in named else []:
        message = f"--price {unnamed[0]}: no {unnamed[0]} is looked at"
        raise AdvisorError(message, f"add it: --gpu {unnamed[0]}", exit_code=2)
    spot = options.get("spot", "none") != "none"
    offered = "--provider" if options.get("provider") else "--spot" if spot else None
    if offered and not rented:
        message = f"{offered} is of rented GPUs, and none is looked at"
        raise AdvisorError(message, "leave it out, or add --gpu", exit_code=2)
    if offered and (named <= priced or (options.get("price") and not by_card)):
        raise AdvisorError(f"{offered} and --price both say what is rented", "leave one out", exit_code=2)


def refuse_idle_budget(goal: Goal) -> None:
    """Raise AdvisorError (exit 2) if a budget was typed but nothing costs anything; a form has one by default."""
    paid = goal.prices or goal.usd_per_gpu_hour or goal.usd_per_kwh
    if goal.budget_usd is not None and goal.gpu in (OWN, "cpu") and not paid:
        hint = "give --price 2.50 (dollars per GPU and hour), --kwh-price 0.30, or a limit on time: --deadline 30min"
        raise AdvisorError("--budget limits nothing: your own machine costs nothing per hour", hint, exit_code=2)


def with_shape(options: Options, *, mixtures: bool = False) -> dict[str, Any]:
    """Returns the options with the shape of a named model; raises AdvisorError (exit 2) for two or incomplete shapes.

    With the user's own data, their tokenizer sets the vocabulary, so the model's is left out. `mixtures` also allows
    mixtures of experts, and models that only resemble a known shape.
    """
    flags = [OPTIONS[name].flag for name in _SHAPES if options.get(name) is not None]
    if len(flags) > 1 and flags[0] in ("--model", "--params"):
        hint = f"leave {flags[0]} out, or the rest"
        raise AdvisorError(f"{flags[0]} settles {' and '.join(flags[1:])} already", hint, exit_code=2)  # fmt: skip
    if flags and options.get("depth") is None and flags[0] not in ("--model", "--params"):
        raise AdvisorError(f"{flags[0]} needs a number of blocks", "say how many: --depth 12", exit_code=2)
    if options.get("model") is None:
        return dict(options)
    named = find_any_model(options["model"]) if mixtures else find_model(options["model"])
    shape = named.shape
    family = options.get("family", OPTIONS["family"].default)
    if family not in (OPTIONS["family"].default, shape.family):
        message = f"--model {named.name} is a {shape.family}, not a {family}"
        raise AdvisorError(message, "leave --family out", exit_code=2)
    sizes = {name: getattr(shape, name) for name in ("family", "depth", "width", "heads", "kv_heads", "ffn_width")}
    vocabulary = options.get("vocab_size") or (shape.vocab_size if options.get("data") is None else None)
    lengths = {"seq_len": options.get("seq_len") or shape.seq_len, "vocab_size": vocabulary}
    return {**options, "model": named.name, **sizes, **lengths}


def find_model(text: str) -> NamedModel:
    """Returns the model that the trainer builds for a name, a config.json or a folder with one.

    Raises AdvisorError (exit 2) for an unknown model, and for one that the trainer cannot build.
    """
    if config_file(text) is None:
        try:
            return require_model(text)
        except AdvisorError:
            if _in_hub_cache(text) is None:
                raise
    model = find_any_model(text)
    if model.differs:
        hint = f"{FINE_TUNE.format(text)}; `advisor predict --model {model.name}` takes it as its nearest shape"
        raise AdvisorError(f"--model {model.name}: the trainer cannot build it, {model.differs}", hint, exit_code=2)
    return model


def find_any_model(text: str) -> NamedModel:
    """Returns the model for a name, config.json or folder with one, in the trainer's nearest shape, also a mixture.

    Raises AdvisorError (exit 2) for an unknown model.
    """
    path = config_file(text)
    if path is None:
        try:
            found = require_architecture(text)
            # a tuned model has the sizes of its base, but its own weights
            named = re.fullmatch(r"[\w.-]+/[\w.-]+", text)
            return replace(found, source=f"https://huggingface.co/{text}") if named else found
        except AdvisorError:
            if (path := _in_hub_cache(text)) is None:
                raise
    config = path.read_text(encoding="utf-8")
    return architecture_of_config(config, text) or model_of_config(config, name=text)


def config_file(text: str) -> Path | None:
    """Returns the config.json at a path, or None if the text is not a path. Raises AdvisorError if it is missing."""
    path = Path(text).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if file.suffix != ".json" and not path.is_dir():
        return None
    if not file.is_file():
        raise AdvisorError(f"--model {text}: there is no {file}", "name a model or its config.json", exit_code=2)
    return file


def _in_hub_cache(name: str) -> Path | None:
    """Returns the newest config.json of a model that Hugging Face's library has downloaded."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return None
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    found = (hub / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json")
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _devices(
    options: Options, prices: tuple[GpuPrice, ...]
) -> tuple[list[str], tuple[OwnMachine, ...], tuple[GpuPrice, ...]]:
    """Returns the GPUs that may be rented, the user's own machines, and the user's prices for rented GPUs.

    If several GPUs are named without --gpus, each that costs nothing is a single GPU of the user's own.
    """
    own = tuple(machine for text in options.get("own", ()) for machine in read_machines(text))
    if own and options["gpu"] == OPTIONS["gpu"].default:
        return [OWN], own, prices
    keys = list(dict.fromkeys(name if name == ANY else device_key(name) for name in options["gpu"].split(",") if name))
    if not keys:
        raise AdvisorError("--gpu does not name a GPU", "give --gpu l4, or --gpu any to choose from all", exit_code=2)
    keys = [ANY] if ANY in keys else keys
    if options["gpus"] or (keys != [ANY] and len(keys) == 1):
        return keys, own, prices
    free = [price.gpu for price in prices if not price.usd_per_gpu_hour and price.gpu != "cpu"]
    own += tuple(OwnMachine(gpu=key, gpus=1) for key in free if key not in {machine.gpu for machine in own})
    rented = [key for key in keys if key not in free] or [OWN]
    return rented, own, tuple(price for price in prices if price.gpu not in free)


def read_prices(texts: Sequence[str]) -> tuple[float | None, tuple[GpuPrice, ...]]:
    """Returns the price without a GPU's name and the prices by GPU; raises AdvisorError (exit 2) for other text."""
    alone, by_card = None, []
    for text in texts:
        name, equals, amount = text.rpartition("=")
        try:
            usd = units.parse_usd(amount)
        except AdvisorError as error:
            raise AdvisorError(f"--price {text}: {error.message}", error.hint, exit_code=2) from error
        if equals:
            by_card.append(GpuPrice(gpu=read_gpus(name, counted=False).key, usd_per_gpu_hour=usd))
        else:
            alone = usd
    return alone, tuple(by_card)


# model types that are like Llama, each with its difference ("": none)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_LIKE_LLAMA = {
    "llama": "", "mistral": "", "qwen2": "", "qwen3": "it normalises queries and keys", "smollm3": "", "granite": "",
    "gemma": "its feed-forward gate is another", "gemma2": "it has more norms and windows",
    "gemma3_text": "it has more norms and windows", "olmo2": "it normalises queries and keys",
}  # fmt: skip
_LONGEST_TRAINED = 4096  # tokens per sequence, if a config.json states a longer context


def model_of_config(text: str, *, name: str = "config.json", seq_len: int | None = None) -> NamedModel:
    """Returns the model of a config.json at a context length (None: the model's own, but at most 4,096).

    Raises AdvisorError (exit 2) if it is not such a file, or if no family resembles the model.
    """
    from advisor.readers.chunks import parse_json
    from advisor.readers.config_names import facts_of_settings

    raw = parse_json(text, "config.json")
    facts = facts_of_settings(raw) if isinstance(raw, dict) else {}
    named = str(facts.get("family", "")).lower()
    family = "llama" if named in _LIKE_LLAMA else named
    example = f"{', '.join(_LIKE_LLAMA)} and gpt2 are known; or give a family and a depth"
    if isinstance(raw, dict) and any(isinstance(raw.get(key), int) and raw[key] > 1 for key in _EXPERTS):
        raise AdvisorError("config.json is a mixture of experts, which cannot be predicted", example, exit_code=2)
    if family not in ("llama", "gpt2") or not facts.get("depth"):
        raise AdvisorError(f"config.json does not describe a known model ({named or 'no model_type'})", example,
                           exit_code=2)  # fmt: skip
    sees = int(facts.get("seq_len") or raw.get("max_position_embeddings") or _LONGEST_TRAINED)
    sizes = {key: facts.get(key) for key in ("width", "heads", "kv_heads", "ffn_width")}
    try:
        length, vocabulary = seq_len or min(sees, _LONGEST_TRAINED), facts.get("vocab_size") or 0
        shape = make_shape(family, depth=facts["depth"], vocab_size=vocabulary, seq_len=length, **sizes)
    except ConfigError as error:
        raise AdvisorError(f"config.json: {error}", example, exit_code=2) from error
    head, tied = raw.get("head_dim"), family == "llama" and raw.get("tie_word_embeddings") is True
    other = int(head) if isinstance(head, int) and head * shape.heads != shape.width else None
    said = [_LIKE_LLAMA.get(named, ""), "its head is tied to its embeddings" if tied else ""]
    said += [f"its heads are {other} wide"] if other else []
    differs = ", and ".join(filter(None, said))
    count = parameters(with_heads_of(shape, other)) - (shape.vocab_size * shape.width if tied else 0)
    return NamedModel(name=name, shape=shape, parameters=count, source=name, head_dim=other, tied=tied,
                      differs=differs, details=details_of_config(raw))  # fmt: skip
