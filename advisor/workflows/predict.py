"""Predicts one configuration: turns options into a prediction with its details."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from advisor.calibration.profiles import load_profile
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, load_gpus, read_gpus
from advisor.hardware.here import device_key
from advisor.hardware.software_support import usual_precision
from advisor.options import LAYOUT_DEGREES, OPTIONS, SHARDINGS, PredictOptions, RolloutOptions, options_of
from advisor.planning.goal import SEQ_LEN, VOCAB_SIZE, check_options
from advisor.planning.infeasible import SHARED_OVER, USUAL_LEAST, enough, halves
from advisor.planning.models import NamedModel, nearest_shape
from advisor.planning.recipe import MICRO_BATCHES
from advisor.prediction.batch import predict_batch
from advisor.prediction.comm import AssumedNetwork, assumed_network
from advisor.prediction.depths import DepthOption, Download, MemoryBill, at_depths, download, memory_bill
from advisor.prediction.micro_batch import choose_prediction
from advisor.prediction.nearest import closest_run, whose
from advisor.prediction.profile import Profile
from advisor.prediction.software import OWN_NAME, software_of, table, words_of
from advisor.prediction.whole_models import with_heads_of
from advisor.records import Adapters, Prediction, Workload
from advisor.store.store import Store
from advisor.workflows.goal import Options, find_any_model, refuse_idle_network, with_shape
from advisor.workflows.predict_layout import choose_layout, network_of
from trainer.schema import ModelShape, make_shape

# reasons why a prediction describes other software
_PARTLY = "published software, minus what frozen weights save: this trainer trains all weights"
_OTHER_SOFTWARE = "published software: the trainer here has no fp8, ties no head and does not shard the optimizer alone"

_CHANGES_SHOWN = 3
_EXTRA = 0.01  # share of a model's weights; one that differs by more is not predicted as the trainer's own model
_SHAPES = ("params", "depth", "width", "heads", "kv_heads", "ffn_width")
_NOT_OVER_LAYOUTS = (  # options of a shape of one's own, of parts of a model, and of this project's trainer
    *_SHAPES, "head_dim", "tied", "vocab_size", "lora_rank", "lora_targets", "qlora", "freeze_blocks", "depths",
    "compile",
)  # fmt: skip
_OF_THE_MODEL = ("family", "model", *_SHAPES, "seq_len", "vocab_size")


@dataclass(frozen=True, kw_only=True)
class Predicted(Prediction):
    """A prediction with the details shown with it."""

    memory_parts: MemoryBill | None = None
    would_fit: tuple[str, ...] = ()  # smallest changes that make it fit
    other_depths: tuple[DepthOption, ...] = ()
    data: Download | None = None  # None: the number of tokens is unknown
    made_for: str  # the software whose speed is predicted
    closest_run: str | None = None  # the closest of the published runs
    network: AssumedNetwork | None = None  # between machines; None: one link joins all GPUs
    sources: tuple[str, ...]
    assumed: tuple[str, ...]  # options not given, with the assumed values
    too_long: str | None = None  # a sentence if the sequences are longer than any that the model reads


def predict(options: PredictOptions, store: Store) -> Predicted:
    """Predict the configuration that the options describe; raises AdvisorError if they do not describe one."""
    if options.download_rate is not None and options.tokens is None:
        raise AdvisorError("--download-rate needs an amount of data", "say how many tokens: --tokens 10B", exit_code=2)
    if options.network is not None:
        refuse_idle_network(_machine(options.gpu, options.gpus)[1])
    if options.rl is not None:
        from advisor.workflows.rl import predict_options  # which imports this module

        return predict_options(options, store)
    known = options_of(PredictOptions)
    if stray := [name for name in options_of(RolloutOptions) if getattr(options, name) != known[name].default]:
        message = f"{known[stray[0]].flag} is of RL post-training"
        raise AdvisorError(message, "say which: --rl grpo", exit_code=2)
    options = with_stage(options)
    degrees = any((getattr(options, name) or 1) > 1 for name in LAYOUT_DEGREES)
    if degrees or (options.model and options.lora_rank is None and find_any_model(options.model).expert_width):
        return _over_layout(options)
    found, profile = _requested(options, store)
    workload, step, vocabulary = found.workload, found.step_seconds, found.workload.shape.vocab_size
    return replace(
        found,
        memory_parts=memory_bill(profile, workload),
        would_fit=_would_fit(options, workload, lambda o: _requested(o, store)[0]) if found.fits is False else (),
        other_depths=tuple(at_depths(profile, workload, options.depths)) if options.depths else (),
        data=download(options.tokens, vocabulary, options.download_rate) if options.tokens else None,
        closest_run=closest_run(profile, workload),
        network=assumed_network(workload, profile.spec, step.value) if step else None,
    )


def with_stage(options: PredictOptions) -> PredictOptions:
    """Return the options with --zero as --sharding. Raises AdvisorError (exit 2) if the two disagree."""
    if options.zero is None:
        return options
    stage = SHARDINGS[options.zero]
    if options.sharding not in (None, stage):
        message = f"--zero {options.zero} is --sharding {stage}, not {options.sharding}"
        raise AdvisorError(message, "leave one of them out", exit_code=2)
    return replace(options, sharding=stage)


def require_layout(options: PredictOptions) -> tuple[NamedModel, GpuSpec, int]:
    """Return model, GPU and number of GPUs. Raises AdvisorError (exit 2) if no layout can have these options."""
    known = options_of(PredictOptions)
    refused = [name for name in _NOT_OVER_LAYOUTS if getattr(options, name) != known[name].default]
    refused += ["optimizer"] if options.optimizer == "muon" else []
    if options.model is None or refused:
        words = ", ".join(known[name].flag for name in refused) or "one without a name"
        hint = "name the model, as --model llama-3.1-8b, without these options"
        raise AdvisorError(f"a layout is predicted for a published model, without {words}", hint, exit_code=2)
    key, gpus = _machine(options.gpu, options.gpus)
    spec = load_gpus().get(key)
    if spec is None or not spec.is_cuda:
        raise AdvisorError(f"layouts are predicted on GPUs, not on {key}", "name one: --gpu 8xh100", exit_code=2)
    spec = spec.with_network(options.network)
    return find_any_model(options.model), spec, gpus


def _over_layout(options: PredictOptions) -> Predicted:
    """Predict a configuration by the law of layouts. Raises AdvisorError (exit 2) if it cannot describe the options."""
    architecture, spec, gpus = require_layout(options)
    run, prediction, assumed = choose_layout(options, architecture, spec, gpus)
    vocabulary = architecture.model.vocab_size
    return Predicted(
        **vars(prediction),
        data=download(options.tokens, vocabulary, options.download_rate) if options.tokens else None,
        made_for=words_of(prediction.workload.software),
        network=network_of(prediction.workload, spec),
        sources=("published runs over layouts (profiles/layouts.yaml)",),
        assumed=tuple(assumed),
        too_long=architecture.details.past_longest(architecture.name, run.seq_len),
    )


def _requested(options: PredictOptions, store: Store) -> tuple[Predicted, Profile]:
    """Predict the configuration without the details shown with it; also returns the profile that it is based on."""
    # Ask for the model first: without one, nothing can be predicted on any device.
    given = vars(options)
    check_options(options)
    stated = with_shape({name: given[name] for name in _OF_THE_MODEL if given[name] is not None}, mixtures=True)
    named = find_any_model(options.model) if options.model is not None else None
    if named is not None:
        options = replace(options, head_dim=options.head_dim or named.head_dim, tied=options.tied or named.tied)
    if stated.get("depth") is None and stated.get("params") is None:
        hint = "name one, as --model gpt2, --params 1.5B or --depth 12: advisor predict --gpu h100 --model gpt2"
        raise AdvisorError("no model is given", hint, exit_code=2)
    eight_bit = options.precision == "fp8"
    precision = "bf16" if eight_bit else None if options.precision == "auto" else options.precision
    key, gpus = _machine(options.gpu, options.gpus)
    spec = load_gpus().get(key)
    if eight_bit and not (spec and spec.fp8_flops):
        hint = f"choose another precision: --precision {usual_precision(spec) if spec else 'bf16'}"
        raise AdvisorError(f"{key} has no units for 8-bit floats", hint, exit_code=2)
    name = None if options.software == OWN_NAME else options.software
    usual = table()[name or OWN_NAME]
    sharding = options.sharding or (usual.shardings[0] if gpus > 1 else "none")
    if sharding != "none" and gpus == 1:
        raise AdvisorError(f"--sharding {sharding} needs several GPUs", "say how many: --gpus 8", exit_code=2)
    adapters, frozen = _trained_part(key, options, named, stated.get("depth"))
    if name is not None and key == "cpu":
        raise AdvisorError(f"--software {name}: published runs are on GPUs", "--gpu rtx-4090", exit_code=2)
    partly = adapters is not None or frozen > 0
    # The trainer here cannot do this, but other PyTorch loops can.
    lacks = named is not None and abs(named.extra_parameters) > _EXTRA * named.parameters
    other_shape = options.tied or options.head_dim is not None or lacks
    elsewhere = name is not None or eight_bit or partly or other_shape or sharding in ("optimizer", "gradients")
    compiled = usual.compiled if name is not None and options.compile is None else options.compile
    software = software_of(name, fp8=eight_bit) if name or eight_bit or partly or other_shape else None
    profile = load_profile(
        key, store, family=stated["family"], precision=precision, compile=compiled, software=software
    ).with_network(options.network)
    shape, assumed = _shape(stated, profile, named)
    if named is not None and named.stand_in:
        assumed.append(named.stand_in)
    extra = -shape.vocab_size * shape.width if options.tied and shape.family != "gpt2" else 0
    if named is not None and replace(shape, seq_len=named.shape.seq_len) == named.shape:
        extra = named.at(shape.seq_len).extra_parameters
    published = software_of(
        name, adapters=adapters, frozen_blocks=frozen, fp8=eight_bit, extra_parameters=extra,
        expert_parameters=named.expert_parameters if named is not None else 0,
        experts=named.experts if named is not None else 0,
    )  # fmt: skip
    workload = Workload(
        shape=with_heads_of(shape, options.head_dim),
        micro_batch=options.micro_batch or 1,
        grad_accum=options.grad_accum,
        gpu=profile.key,
        gpus=gpus,
        precision=precision or profile.precision,
        compile=profile.compile if compiled is None else compiled,
        activation_checkpointing=options.activation_checkpointing or usual.recomputed,
        optimizer=options.optimizer or ("adamw" if partly else usual.optimizer),
        sharding=sharding,
        software=published if elsewhere else None,
    )
    prediction, chosen = _predicted(profile, workload, micro_batch_given=options.micro_batch is not None)
    differences = (_PARTLY if partly else _OTHER_SOFTWARE,) if elsewhere else ()
    return Predicted(
        **vars(prediction),
        made_for=whose(profile, prediction.workload),
        sources=(*profile.sources, *differences),
        assumed=(*chosen, *assumed),
        too_long=named.details.past_longest(named.name, shape.seq_len) if named is not None else None,
    ), profile


def _machine(gpu: str, gpus: int | None) -> tuple[str, int]:
    """Returns the GPU and the number of GPUs from --gpu and --gpus. Raises AdvisorError (exit 2) if they disagree."""
    read = read_gpus(gpu)
    if read.count and gpus not in (None, read.count):
        message = f"--gpu {gpu} and --gpus {gpus} say two numbers of GPUs"
        raise AdvisorError(message, "leave one of them out", exit_code=2)
    return device_key(read.key), gpus or read.count or 1


def _shape(stated: Options, profile: Profile, named: NamedModel | None) -> tuple[ModelShape, list[str]]:
    """Returns the shape of the model, and the context length or vocabulary that had to be assumed."""
    lengths: dict[str, Any] = {
        "seq_len": stated.get("seq_len") or profile.seq_len or SEQ_LEN[profile.device_type],
        "vocab_size": stated.get("vocab_size") or profile.vocab_size or VOCAB_SIZE[profile.device_type],
    }
    known = {name: stated.get(name) or getattr(profile, name) for name in lengths}
    assumed = [f"{OPTIONS[name].flag} {value}" for name, value in lengths.items() if not known[name]]
    if named is not None and named.expert_width is not None:  # no trainer builds the shape that stands for it
        return replace(named.shape, **lengths), assumed
    if stated.get("params") is not None:
        return nearest_shape(stated["family"], stated["params"], **lengths), assumed
    sizes: dict[str, Any] = {name: stated.get(name) for name in ("depth", "width", "heads", "kv_heads", "ffn_width")}
    return make_shape(stated["family"], **lengths, **sizes), assumed


def _predicted(profile: Profile, workload: Workload, *, micro_batch_given: bool) -> tuple[Prediction, list[str]]:
    """Predicts the configuration, by the batch rule if no micro-batch was given, and says how it was chosen."""
    if micro_batch_given:
        return predict_batch(profile, [workload])[0], []
    answers = predict_batch(profile, [replace(workload, micro_batch=size) for size in MICRO_BATCHES])
    chosen = choose_prediction(answers)
    if chosen is None:
        return answers[0], ["--micro-batch 1 (a larger one may not fit)"]
    return chosen, [f"--micro-batch {chosen.workload.micro_batch} (the smallest that is within 2 % of the fastest)"]


def _trained_part(
    key: str, options: PredictOptions, model: NamedModel | None, depth: int | None
) -> tuple[Adapters | None, int]:
    """Returns the adapters that are trained and the number of frozen blocks; raises AdvisorError for what cannot be."""
    rank, frozen = options.lora_rank, options.freeze_blocks
    if rank is None and (options.qlora or options.lora_targets):
        given = "--qlora" if options.qlora else "--lora-targets"
        raise AdvisorError(f"{given} without a rank", "say how large the adapters are: --lora-rank 16", exit_code=2)
    if rank is not None and frozen is not None:
        hint = "--lora-rank or --freeze-blocks, not both"
        raise AdvisorError("with adapters all weights are frozen", hint, exit_code=2)
    if frozen is not None and depth is not None and frozen >= depth:
        hint = f"fewer than the model has: --freeze-blocks {depth - 1}"
        raise AdvisorError(f"no block of {depth} is left to train", hint, exit_code=2)
    unpublished = key == "cpu" or options.optimizer == "muon" or options.precision in ("fp32", "fp8")
    if unpublished and (rank, frozen) != (None, None):
        message = "training a part is predicted on GPUs, in 16 bits and with AdamW, as published runs have it"
        hint = "--gpu rtx-4090, without --optimizer muon and --precision"
        raise AdvisorError(message, hint, exit_code=2)
    targets = options.lora_targets or (model.adapter_targets if model is not None else "all")
    adapters = None if rank is None else Adapters(rank=rank, targets=targets, quantized=options.qlora)
    return adapters, int(frozen or 0)


def _would_fit(
    options: PredictOptions, workload: Workload, predicted: Callable[[PredictOptions], Prediction]
) -> tuple[str, ...]:
    """Returns the smallest changes with which a run surely fits, as the options to add; each was predicted."""
    known = options_of(PredictOptions)

    def flags(changed: dict[str, Any]) -> str:
        named = ((known[name].flag, value) for name, value in changed.items())
        return " ".join(flag if value is True else f"{flag} {value}" for flag, value in named)

    def fits(changed: PredictOptions) -> bool:
        with suppress(AdvisorError):  # such a run cannot be predicted
            return predicted(changed).fits is True
        return False

    ways = (
        (words, [(flags(changed), replace(options, **changed)) for changed in tried])
        for words, tried in _smaller(options, workload)
    )
    return tuple(islice(enough(ways, fits), _CHANGES_SHOWN))


def _smaller(options: PredictOptions, w: Workload) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields changes from the smallest to the largest, in words, with the options to try for each."""
    least: dict[str, Any] = {}
    if w.activation_checkpointing != "full":
        least["activation_checkpointing"] = "full"
        yield "full activation checkpointing", [dict(least)]
    if w.micro_batch > 1:
        yield "a smaller micro-batch", [{"micro_batch": size, **least} for size in halves(w.micro_batch)]
        least["micro_batch"] = 1
    # A count inside --gpu would contradict --gpus.
    named = {"gpu": options.gpu.lower().partition("x")[2].strip()} if read_gpus(options.gpu).count else {}
    counts = [*([w.gpus] if w.gpus > 1 and w.sharding != "full" else []), *(n for n in SHARED_OVER if n > w.gpus)]
    yield "all of it sharded", [{**named, "gpus": gpus, "sharding": "full", **least} for gpus in counts]
    shorter = [{"seq_len": length, **least} for length in halves(w.shape.seq_len, USUAL_LEAST)]
    adapters, four_bits = {"lora_rank": options.lora_rank or 16}, {"qlora": True}
    if options.freeze_blocks is None and not options.qlora:
        if options.lora_rank is None:
            yield "adapters on frozen weights", [{**adapters, **least}]
        else:
            adapters = {}
        yield "adapters on 4-bit weights", [{**adapters, **four_bits, **least}]
    yield "shorter sequences", shorter
    if options.freeze_blocks is None and not options.qlora:
        yield "shorter sequences with 4-bit weights", [{**adapters, **four_bits, **one} for one in shorter]
