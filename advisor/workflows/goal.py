"""The goal that plain options state: what the flags of `advisor plan` and the fields of its page have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.catalog import read_gpus
from advisor.hardware.here import device_key
from advisor.planning.models import require_model
from advisor.planning.offers import ANY, OWN, usual_counts
from advisor.planning.ranges import check_ranges
from advisor.prediction.software import OWN_NAME, require_software, table
from advisor.readers.bounded import parse_json
from advisor.readers.config_names import facts_of_settings
from advisor.records import Goal, GpuPrice, OwnMachine
from advisor.units import parse_usd
from advisor.workflows.machines import read_machines
from trainer.schema import ConfigError, ModelShape, make_shape


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options of a plan as a person gives them, with their defaults. None: not given."""

    gpu: str = "auto"  # auto | cpu | a card, or several between commas | any
    gpus: Sequence[int] | None = None
    budget: float | None = None  # dollars
    deadline: float | None = None  # seconds
    sure: bool = False
    tokens: int | None = None
    depth: int | None = None
    data: Path | None = None
    synthetic: bool = False
    ratio: float | None = None
    ratio_counts: str | None = None
    inference_tokens: float | None = None  # that the model will serve
    family: str = "nanochat"
    seq_len: int | None = None
    vocab_size: int | None = None
    prices: Sequence[str] = ()  # "0.50", or "l4=0.50": dollars per GPU and hour
    providers: Sequence[str] = ()
    spot: str = "none"  # none | only | any
    objective: str = "loss"  # loss | cost | time
    kwh_price: float | None = None  # dollars
    grid_carbon: float | None = None  # grams of CO2e per kWh
    power_cap: float | None = None  # watts
    interruptions: float | None = None  # seconds
    checkpoint_every: float | None = None  # seconds
    value_of_time: float | None = None  # dollars an hour
    micro_batch: int | None = None
    global_batch: int | None = None  # tokens
    precision: str = "auto"
    compile: bool | None = None
    activation_checkpointing: str | None = None
    sharding: str | None = None  # none | full
    optimizer: str | None = None  # adamw | muon; None: the software's
    software: str | None = None  # in profiles/software.csv
    model: str | None = None  # by its name in profiles/models.yaml
    parameters: int | None = None
    width: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    ffn_width: int | None = None
    data_tokens: int | None = None  # of data that are not here
    epochs: float | None = None
    download_rate: float | None = None  # bytes a second
    own: Sequence[str] = ()  # "rtx-4090:2", or files of machines


def goal_from(options: PlanOptions) -> Goal:
    """The goal that the options state; AdvisorError (exit 2) for an unknown device, or two options that exclude."""
    _refuse_two_ratios(options)
    _refuse_two_sizes_of_data(options)
    options = _with_counts(with_shape(options))
    alone, by_card = read_prices(options.prices)
    keys, own, by_card = _devices(options, by_card)
    gpu = ",".join(keys)
    numbers = tuple(options.gpus or usual_counts(gpu, own))
    named = {*keys, *(machine.gpu for machine in own)} - {OWN}
    if alone is not None and (ANY in named or len(named) > 1):
        message = "--price without a GPU's name is for one kind of GPU, and several are looked at"
        raise AdvisorError(message, "say of which: --price l4=0.50", exit_code=2)
    if alone is not None and own:
        by_card += (GpuPrice(gpu=own[0].gpu, usd_per_gpu_hour=alone),)
        alone = None
    _refuse_without_effect(options, named, by_card, rented=gpu != OWN and "cpu" not in named)
    if options.sharding == "full" and max(numbers) == 1:
        message = "--sharding full shares a model out over several GPUs, and there is one"
        raise AdvisorError(message, "say how many: --gpus 8", exit_code=2)
    software = None if options.software in (None, OWN_NAME) else require_software(options.software).name
    if software is not None and "cpu" in named:
        raise AdvisorError(f"--software {software}: published runs are on GPUs", "--gpu rtx-4090", exit_code=2)
    goal = Goal(
        gpu=gpu,
        gpus=numbers[0],
        counts=numbers if len(numbers) > 1 else (),
        family=options.family,
        seq_len=options.seq_len,
        vocab_size=options.vocab_size,
        budget_usd=options.budget,
        deadline_seconds=options.deadline,
        tokens=options.tokens,
        depth=options.depth,
        data=str(options.data.expanduser().resolve()) if options.data else None,
        synthetic=options.synthetic,
        ratio=options.ratio,
        ratio_counts=options.ratio_counts or ("matrices+head" if options.family == "nanochat" else "total"),
        usd_per_gpu_hour=alone,
        usd_per_kwh=options.kwh_price,
        micro_batch=options.micro_batch,
        global_batch_tokens=options.global_batch,
        precision=options.precision,
        compile=options.compile,
        activation_checkpointing=options.activation_checkpointing,
        sharding=options.sharding,
        optimizer=options.optimizer or table()[software or OWN_NAME].optimizer,
        software=software,
        sure=options.sure,
        inference_tokens=options.inference_tokens,
        grid_grams_per_kwh=options.grid_carbon,
        providers=tuple(options.providers),
        spot=options.spot,
        objective=options.objective,
        prices=by_card,
        power_cap_watts=options.power_cap,
        interruption_seconds=options.interruptions,
        model=options.model,
        parameters=options.parameters,
        width=options.width,
        heads=options.heads,
        kv_heads=options.kv_heads,
        ffn_width=options.ffn_width,
        data_tokens=options.data_tokens,
        epochs=options.epochs,
        own=own,
        usd_per_waiting_hour=options.value_of_time,
        checkpoint_seconds=options.checkpoint_every,
        download_bytes_per_second=options.download_rate,
    )
    check_ranges(goal)
    return goal


def _refuse_without_effect(options: PlanOptions, named: set[str], by_card: Sequence[GpuPrice], *, rented: bool) -> None:
    """Raise AdvisorError (exit 2) for an option that could change nothing of the answer."""
    priced = {price.gpu for price in by_card}
    if unnamed := sorted(priced - named) if ANY not in named else []:
        message = f"--price {unnamed[0]}: no {unnamed[0]} is looked at"
        raise AdvisorError(message, f"add it: --gpu {unnamed[0]}", exit_code=2)
    offered = "--provider" if options.providers else "--spot" if options.spot != PlanOptions.spot else None
    if offered and not rented:
        message = f"{offered} is of rented GPUs, and none is looked at"
        raise AdvisorError(message, "leave it out, or add --gpu", exit_code=2)
    if offered and (named <= priced or (options.prices and not by_card)):
        raise AdvisorError(f"{offered} and --price both say what is rented", "leave one out", exit_code=2)
    if options.download_rate is not None and options.data is not None:
        raise AdvisorError("--download-rate: the data of --data are here", "leave one of them out", exit_code=2)
    if options.value_of_time is not None and options.budget is None:
        raise AdvisorError("--value-of-time is of a budget, and there is none", "add --budget", exit_code=2)


def refuse_idle_budget(goal: Goal) -> None:
    """Raise AdvisorError (exit 2) for a budget typed where nothing costs anything; the form begins with one."""
    paid = goal.prices or goal.usd_per_gpu_hour or goal.usd_per_kwh
    if goal.budget_usd is not None and goal.gpu in (OWN, "cpu") and not paid:
        hint = "give --price 2.50 (dollars per GPU and hour), --kwh-price 0.30, or a limit on time: --deadline 30min"
        raise AdvisorError("--budget limits nothing: your own machine costs nothing per hour", hint, exit_code=2)


def with_shape(options: PlanOptions) -> PlanOptions:
    """The options with a named model's shape; raises AdvisorError (exit 2) where the shape is said twice or by half.

    With data of one's own the vocabulary is their tokenizer's, so the model's is left out.
    """
    sizes = {"--width": options.width, "--heads": options.heads, "--kv-heads": options.kv_heads}
    sizes |= {"--ffn-width": options.ffn_width}
    given = {"--model": options.model, "--params": options.parameters, "--depth": options.depth, **sizes}
    said = [name for name, value in given.items() if value is not None]
    if len(said) > 1 and said[0] in ("--model", "--params"):
        raise AdvisorError(
            f"{said[0]} settles {' and '.join(said[1:])} already", f"leave {said[0]} out, or the rest",
            exit_code=2,
        )  # fmt: skip
    if said and options.depth is None and said[0] not in ("--model", "--params"):
        raise AdvisorError(f"{said[0]} needs a number of blocks", "say how many: --depth 12", exit_code=2)
    if options.model is None:
        return options
    named = require_model(options.model)
    shape = named.shape
    if options.family not in (PlanOptions.family, shape.family):
        raise AdvisorError(
            f"--model {named.name} is a {shape.family}, not a {options.family}", "leave --family out", exit_code=2
        )
    return replace(
        options,
        model=named.name,
        family=shape.family,
        depth=shape.depth,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        ffn_width=shape.ffn_width,
        seq_len=options.seq_len or shape.seq_len,
        vocab_size=options.vocab_size or (shape.vocab_size if options.data is None else None),
    )


def _with_counts(options: PlanOptions) -> PlanOptions:
    """The options with GPUs by their keys, and with the number that --gpu says beside them, as in 8xh100."""
    named = [read_gpus(text) for text in options.gpu.split(",") if text.strip()]
    counts = {one.count for one in named}
    if counts != {None} and (len(counts) > 1 or (options.gpus and set(options.gpus) != counts)):
        hint = "name the GPUs alone, and all the numbers to choose from: --gpu h100,a100 --gpus 8,16"
        raise AdvisorError(f"--gpu {options.gpu} says several numbers of GPUs", hint, exit_code=2)
    gpus = tuple(count for count in counts if count is not None)
    return replace(options, gpu=",".join(one.key for one in named), gpus=gpus or options.gpus)


def _devices(
    options: PlanOptions, prices: tuple[GpuPrice, ...]
) -> tuple[list[str], tuple[OwnMachine, ...], tuple[GpuPrice, ...]]:
    """What may be rented, what is the user's own, and the prices of the former.

    A card among several that costs nothing is the user's own, and one card where --gpus does not say how many.
    """
    own = tuple(machine for text in options.own for machine in read_machines(text))
    if own and options.gpu == PlanOptions.gpu:
        return [OWN], own, prices
    keys = device_keys(options.gpu)
    if options.gpus or (keys != [ANY] and len(keys) == 1):
        return keys, own, prices
    free = [price.gpu for price in prices if not price.usd_per_gpu_hour and price.gpu != "cpu"]
    own += tuple(OwnMachine(gpu=key, gpus=1) for key in free if key not in {machine.gpu for machine in own})
    rented = [key for key in keys if key not in free] or [OWN]
    return rented, own, tuple(price for price in prices if price.gpu not in free)


def device_keys(asked: str) -> list[str]:
    """The keys that --gpu names, each once; ["any"] stands for all."""
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if not names:
        raise AdvisorError("--gpu names no GPU", "give --gpu l4, or --gpu any to choose from all", exit_code=2)
    if ANY in names:
        return [ANY]
    return list(dict.fromkeys(device_key(name) for name in names))


def read_prices(texts: Sequence[str]) -> tuple[float | None, tuple[GpuPrice, ...]]:
    """A price without a card, and prices by card; raises AdvisorError (exit 2) for what is neither."""
    alone, by_card = None, []
    for text in texts:
        name, equals, amount = text.rpartition("=")
        try:
            usd = parse_usd(amount)
        except AdvisorError as error:
            raise AdvisorError(f"--price {text}: {error.message}", error.hint, exit_code=2) from error
        if equals:
            by_card.append(GpuPrice(gpu=read_gpus(name, counted=False).key, usd_per_gpu_hour=usd))
        else:
            alone = usd
    return alone, tuple(by_card)


def _refuse_two_ratios(options: PlanOptions) -> None:
    if options.ratio_counts and not options.ratio:
        message = "--ratio-counts says what --ratio counts, and there is no --ratio"
        raise AdvisorError(message, "add --ratio, or leave --ratio-counts out", exit_code=2)
    if options.ratio and options.inference_tokens:
        hint = "leave one out: --inference-tokens works the ratio out"
        raise AdvisorError("--ratio and --inference-tokens both settle the tokens per parameter", hint, exit_code=2)


def _refuse_two_sizes_of_data(options: PlanOptions) -> None:
    if options.data and options.data_tokens:
        hint = "leave --data-tokens out: the folder's are counted"
        raise AdvisorError("--data and --data-tokens both say how much data there is", hint, exit_code=2)
    if options.synthetic and (options.data or options.data_tokens):
        given = "--data" if options.data else "--data-tokens"
        raise AdvisorError(f"--synthetic means random tokens, {given} means yours", "leave one out", exit_code=2)
    if options.epochs and options.tokens:
        hint = "leave one out: --epochs works the tokens out"
        raise AdvisorError("--epochs and --tokens both settle the tokens to train on", hint, exit_code=2)
    if options.epochs and not (options.data or options.data_tokens):
        hint = "say of how much data: --data FOLDER, or --data-tokens 3B"
        raise AdvisorError("--epochs without data: a synthetic stream has no end", hint, exit_code=2)


# what Llama's matrices are called elsewhere; biases of queries and keys are too small to matter
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_LIKE_LLAMA = ("llama", "mistral", "qwen2")


def shape_of_config(text: str, seq_len: int) -> tuple[ModelShape, str]:
    """The shape that a model's config.json describes, at a context length, and what it says that is not counted.

    Raises AdvisorError (exit 2) for what is no such file, and for a model of another kind than the trainer builds.
    """
    raw = parse_json(text, "config.json")
    facts = facts_of_settings(raw) if isinstance(raw, dict) else {}
    named = str(facts.get("family", "")).lower()
    family = "llama" if named in _LIKE_LLAMA else named
    example = "Llama, Mistral, Qwen2 and GPT-2 are known; or give a family and a depth"
    if family not in ("llama", "gpt2") or not facts.get("depth"):
        raise AdvisorError(f"config.json describes no model that is known here ({named or 'no model_type'})", example,
                           exit_code=2)  # fmt: skip
    if any(isinstance(raw.get(name), int) and raw[name] > 1 for name in _EXPERTS):
        raise AdvisorError("config.json is of a mixture of experts, which is not predicted", example, exit_code=2)
    sizes = {name: facts.get(name) for name in ("width", "heads", "kv_heads", "ffn_width")}
    width, heads, head = sizes["width"], sizes["heads"], raw.get("head_dim")
    if head and width and heads and head * heads != width:
        raise AdvisorError(f"its heads of {head} are not the width {width} over {heads} heads", example, exit_code=2)
    try:
        shape = make_shape(
            family, depth=facts["depth"], vocab_size=facts.get("vocab_size") or 0, seq_len=seq_len, **sizes
        )
    except ConfigError as error:
        raise AdvisorError(f"config.json: {error}", example, exit_code=2) from error
    tied = family == "llama" and raw.get("tie_word_embeddings") is True
    return shape, "Its head shares the embedding's weights; both are counted." if tied else ""
