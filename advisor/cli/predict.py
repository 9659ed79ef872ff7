"""`advisor predict`: time, memory and throughput of one configuration, or of every row of a table."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from advisor.cli.params import (
    BYTES,
    FILE,
    GPU,
    NUMBERS,
    SIZE,
    SOFTWARE,
    TOKENS,
    parallelism,
    say_where_sharding_ends,
    sharded_instead,
)
from advisor.errors import AdvisorError
from advisor.prediction.software import OWN_NAME, software_of, table
from advisor.records import Adapters, Prediction, Software, Workload
from advisor.report import render

if TYPE_CHECKING:
    from advisor.prediction.depths import DepthOption, Download, MemoryBill
    from advisor.prediction.profile import Profile
    from advisor.prediction.rows import Reading
    from advisor.workflows.goal import PlanOptions
    from trainer.schema import ModelShape

NOTHING_FITS = 3
SHAPE = ("family", "model", "parameters", "depth", "width", "heads", "kv_heads", "ffn_width", "seq_len", "vocab_size")
ROWS_AT_ONCE, MOST_WORKERS = 10_000, 8
Chunk = tuple[int, list[list[str]]]  # the number of its first row, the cells of each
Answer = tuple[str, set[bool | None]]  # lines of JSON, and whether rows fit


@click.command()
@click.option("--gpu", type=GPU, default="auto", show_default=True, help="auto, cpu, or a GPU: h100, 8xh100, l4, …")
@click.option("--gpus", type=SIZE, help="Data-parallel GPUs. Default: 1, or as --gpu 8xh100 says.")
@click.option("--model", help="A published model, as gpt2-xl or nanochat-d12; any other name lists them.")
@click.option("--params", "parameters", type=TOKENS, help="Parameters, as 1.5B: the family's nearest shape.")
@click.option("--family", type=click.Choice(("nanochat", "gpt2", "llama")), default="nanochat", show_default=True)
@click.option("--depth", "--layers", type=SIZE, help="Transformer blocks.")
@click.option(
    "--micro-batch",
    type=SIZE,
    help="Sequences per GPU and forward pass. Default: the smallest within 2 % of the fastest that fits.",
)
@click.option("--seq-len", type=SIZE, help="Context length. Default: the calibration's, else 2048.")
@click.option("--vocab-size", type=SIZE, help="Rows of the embedding table. Default: the calibration's, else 32768.")
@click.option("--width", type=SIZE, help="Residual stream. Default: the family's for this depth.")
@click.option("--heads", type=SIZE, help="Query heads. Default: the family's.")
@click.option("--kv-heads", type=SIZE, help="Key/value heads. Default: as many as heads.")
@click.option("--head-dim", type=SIZE, help="Size of a head. Default: width / heads.")
@click.option("--ffn-width", type=SIZE, help="Default: the family's for this width.")
@click.option("--tied", is_flag=True, help="The head is the embedding table, as it always is in gpt2.")
@click.option("--grad-accum", type=SIZE, default=1, show_default=True, help="Micro-batches per optimizer step.")
@click.option(
    "--precision",
    type=click.Choice(("auto", "bf16", "fp16", "fp32", "fp8")),
    default="auto",
    show_default=True,
    help="fp8: products of the blocks in 8-bit floats, the rest in bf16.",
)
@click.option("--compile/--no-compile", "compile_", default=None, help="torch.compile. Default: as calibrated.")
@click.option(
    "--activation-checkpointing",
    type=click.Choice(("none", "selective", "full")),
    help="Default: none, or what the --software recomputes by default.",
)
@click.option(
    "--sharding",
    type=click.Choice(("none", "optimizer", "full")),
    help="What the GPUs hold a share of: nothing (DDP), moments (ZeRO-1) or all state (ZeRO-3, FSDP). Default: none, "
    "or as the software does.",
)
@click.option("--optimizer", type=click.Choice(("adamw", "muon")), help="Default: adamw, or the software's.")
@click.option("--lora-rank", type=SIZE, help="Train adapters of this rank beside frozen 16-bit weights (LoRA).")
@click.option(
    "--lora-targets",
    type=click.Choice(("all", "attention")),
    default="all",
    show_default=True,
    help="The matrices of a block that have adapters.",
)
@click.option("--freeze-blocks", type=SIZE, help="Train all but the first so many blocks and the embeddings.")
@click.option("--qlora", is_flag=True, help="With --lora-rank: the frozen weights of the blocks are held in 4 bits.")
@click.option(
    "--software",
    type=SOFTWARE,
    help="Whose training software runs it, as its defaults are: nanogpt, hf-trainer, unsloth, megatron, …; any other "
    "name lists the nearest. Default: own, this project's trainer.",
)
@click.option("--depths", type=NUMBERS, help="The same at these depths too, as 16,20,24: step time, memory by part.")
@click.option("--tokens", type=TOKENS, help="Say what text so many training tokens are, in shards and gigabytes.")
@click.option("--download-rate", type=BYTES, help="Bytes a second for them, as 100MB. Default: 25 to 400 MB.")
@click.option("--rows", type=FILE, help="Predict every row of this CSV, one JSON object a line.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@parallelism
def command(rows: Path | None, as_json: bool, **options: Any) -> int:
    """Predict step time, throughput and memory of one configuration, each with its 80 % interval and its basis.

    With --rows the table's own columns say everything; a row that cannot be predicted gets an `error` in words.
    """
    from advisor.prediction.depths import at_depths, download, memory_bill
    from advisor.prediction.whose import closest_run, whose
    from advisor.prediction.would_fit import would_fit
    from advisor.report.prediction import network

    context = click.get_current_context()
    typed = [name for name in options if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if rows is not None and typed:
        option = f"--{typed[0].rstrip('_').replace('_', '-')}"
        raise AdvisorError(f"{option} beside --rows: a row of the table says it", "add a column for it", exit_code=2)
    if options["download_rate"] is not None and options["tokens"] is None:
        raise AdvisorError("--download-rate: of how much data?", "say how many tokens: --tokens 10B", exit_code=2)
    if rows is not None:
        return predict_rows(rows)
    profile, prediction, sources = configured(options)
    workload = prediction.workload
    bill, changes = memory_bill(profile, workload), would_fit(profile, workload)
    near = closest_run(profile, workload)
    told = {"for": whose(profile, workload), "closest published run": near, "network": network(prediction, profile)}
    others = at_depths(profile, workload, options["depths"]) if options["depths"] else ()
    tokens, rate = options["tokens"], options["download_rate"]
    data = download(tokens, workload.shape.vocab_size, rate) if tokens else None
    if as_json:
        from advisor.report.prediction import document

        beside = {"memory_parts": bill, "would_fit": changes, "depths": others, "data": data}
        found = {"gpu": workload.gpu, "workload": workload, **document(prediction)}
        render.print_json({**found, **beside, **told, "sources": sources})
    else:
        said = [f"would fit: {change}" for change in changes]
        said += [f"{name}: {words}" for name, words in told.items() if words]
        show(prediction, said, sources, bill, others, data)
    say_where_sharding_ends(workload, prediction.mfu)
    return NOTHING_FITS if prediction.fits is False else 0


def configured(options: dict[str, Any]) -> tuple[Profile, Prediction, Sequence[str]]:
    """Device of the options, their configuration predicted, and what that rests on; AdvisorError where they make none.

    What was left open and is not plain is said on stderr.
    """
    from advisor.calibration.profiles import load_profile
    from advisor.cli.device import warn_of_others
    from advisor.hardware.catalog import read_gpus
    from advisor.hardware.here import device_key
    from advisor.store.store import default_store
    from advisor.workflows.goal import PlanOptions, with_shape

    # the model first: without one there is nothing to predict, whatever is known of the device
    stated = with_shape(PlanOptions(**{name: options[name] for name in SHAPE}))
    if stated.depth is None and stated.parameters is None:
        hint = "name one, as --model gpt2, --params 1.5B or --depth 12: advisor predict --gpu h100 --model gpt2"
        raise AdvisorError("no model is given", hint, exit_code=2)
    eight_bit = options["precision"] == "fp8"
    precision = "bf16" if eight_bit else None if options["precision"] == "auto" else options["precision"]
    named = read_gpus(options["gpu"])
    if named.count and options["gpus"] not in (None, named.count):
        message = f"--gpu {options['gpu']} and --gpus {options['gpus']} say two numbers of GPUs"
        raise AdvisorError(message, "leave one of them out", exit_code=2)
    gpus, key = options["gpus"] or named.count or 1, device_key(named.key)
    name = None if options["software"] == OWN_NAME else options["software"]
    usual = table()[name or OWN_NAME]
    sharding = sharded_instead(options["sharding"], gpus) or (usual.sharding if gpus > 1 else "none")
    if sharding != "none" and gpus == 1:
        raise AdvisorError(f"--sharding {sharding} needs several GPUs", "say how many: --gpus 8", exit_code=2)
    warn_of_others([key])
    adapters, frozen = _adapters(key, options), _frozen(key, {**options, "depth": stated.depth})
    if name is not None and key == "cpu":
        raise AdvisorError(f"--software {name}: published runs are on GPUs", "--gpu rtx-4090", exit_code=2)
    partly = adapters is not None or frozen > 0
    # what the trainer here does not do, loops in PyTorch elsewhere do
    other_shape = options["tied"] or options["head_dim"] is not None
    elsewhere = name is not None or eight_bit or partly or other_shape or sharding == "optimizer"
    compiled = usual.compiled if name is not None and options["compile_"] is None else options["compile_"]
    profile = load_profile(
        key,
        default_store(),
        family=stated.family,
        precision=precision,
        compile=compiled,
        software=software_of(name, fp8=eight_bit) if name or eight_bit or partly or other_shape else None,
        sharding=sharding if elsewhere else "none",
    )
    if eight_bit and not (profile.spec and profile.spec.fp8_flops):
        raise AdvisorError(
            f"{key} has no units for 8-bit floats", "choose another precision: --precision bf16", exit_code=2
        )
    shape, assumed = _shape(stated, profile)
    published = software_of(
        name,
        adapters=adapters,
        frozen_blocks=frozen,
        fp8=eight_bit,
        extra_parameters=-shape.vocab_size * shape.width if options["tied"] and shape.family != "gpt2" else 0,
    )
    workload = Workload(
        shape=_with_heads_of(shape, options["head_dim"]),
        micro_batch=options["micro_batch"] or 1,
        grad_accum=options["grad_accum"],
        gpu=profile.key,
        gpus=gpus,
        precision=precision or profile.precision,
        compile=profile.compile if compiled is None else compiled,
        activation_checkpointing=options["activation_checkpointing"] or usual.recomputed,
        optimizer=options["optimizer"] or ("adamw" if partly else usual.optimizer),
        sharding=sharding,
        software=published if elsewhere else None,
    )
    prediction, chosen = _predicted(profile, workload, micro_batch_given=options["micro_batch"] is not None)
    if left_open := (*chosen, *assumed):
        render.remark(f"not given, so taken: {'; '.join(left_open)}")
    return profile, prediction, (*profile.sources, *(_elsewhere(partly) if elsewhere else ()))


def _shape(stated: PlanOptions, profile: Profile) -> tuple[ModelShape, list[str]]:
    """The model's sizes as a plan takes them, and which of length and vocabulary nobody stated."""
    from advisor.planning.goal import SEQ_LEN, VOCAB_SIZE
    from advisor.planning.models import nearest_shape
    from trainer.schema import make_shape

    seq_len = stated.seq_len or profile.seq_len or SEQ_LEN[profile.device_type]
    vocab_size = stated.vocab_size or profile.vocab_size or VOCAB_SIZE[profile.device_type]
    assumed = [] if stated.seq_len or profile.seq_len else [f"--seq-len {seq_len}"]
    assumed += [] if stated.vocab_size or profile.vocab_size else [f"--vocab-size {vocab_size}"]
    if stated.parameters is not None:
        return nearest_shape(stated.family, stated.parameters, vocab_size=vocab_size, seq_len=seq_len), assumed
    assert stated.depth is not None  # else no model was given
    sizes = {name: getattr(stated, name) for name in ("width", "heads", "kv_heads", "ffn_width")}
    return make_shape(stated.family, depth=stated.depth, vocab_size=vocab_size, seq_len=seq_len, **sizes), assumed


def _predicted(profile: Profile, workload: Workload, *, micro_batch_given: bool) -> tuple[Prediction, list[str]]:
    """The configuration predicted, at the batch rule's micro-batch where none was given; and how that was chosen."""
    from advisor.planning.batches import MICRO_BATCHES
    from advisor.prediction.batch import predict_batch
    from advisor.prediction.micro_batch import fast_enough

    if micro_batch_given:
        return predict_batch(profile, [workload])[0], []
    answers = predict_batch(profile, [replace(workload, micro_batch=size) for size in MICRO_BATCHES])
    chosen = fast_enough(answers)
    if chosen is None:
        return answers[0], ["--micro-batch 1 (a larger one may not fit)"]
    return chosen, [f"--micro-batch {chosen.workload.micro_batch} (the smallest within 2 % of the fastest that fits)"]


def _with_heads_of(shape: ModelShape, size: int | None) -> ModelShape:
    """The shape with the weights that heads of another size have, counted as feed-forward width."""
    if size is None:
        return shape
    more = 2 * (shape.heads + shape.kv_heads) * (size - shape.head_dim)
    return replace(shape, ffn_width=shape.ffn_width + round(more / (3 if shape.family == "llama" else 2)))


def _elsewhere(partly: bool) -> tuple[str]:
    """Why a prediction rests on other people's software."""
    if partly:
        return ("published software, less by what frozen weights save: the trainer here trains whole models",)
    return ("published software: the trainer here has no fp8, ties no head and does not shard the optimizer alone",)


def _adapters(key: str, options: dict[str, Any]) -> Adapters | None:
    """What is trained beside frozen weights; AdvisorError where the options contradict each other."""
    if options["lora_rank"] is None:
        if options["qlora"] or options["lora_targets"] != "all":
            given = "--qlora" if options["qlora"] else "--lora-targets"
            raise AdvisorError(f"{given} without a rank", "say how large the adapters are: --lora-rank 16", exit_code=2)
        return None
    _as_published(key, options)
    return Adapters(rank=options["lora_rank"], targets=options["lora_targets"], quantized=options["qlora"])


def _frozen(key: str, options: dict[str, Any]) -> int:
    """How many blocks are frozen; AdvisorError where none would be left, or adapters are trained as well."""
    if options["freeze_blocks"] is None:
        return 0
    if options["lora_rank"] is not None:
        raise AdvisorError(
            "with adapters all weights are frozen", "--lora-rank or --freeze-blocks, not both", exit_code=2
        )
    if options["depth"] is not None and options["freeze_blocks"] >= options["depth"]:
        hint = f"fewer than the model has: --freeze-blocks {options['depth'] - 1}"
        raise AdvisorError(f"no block of {options['depth']} is left to train", hint, exit_code=2)
    _as_published(key, options)
    return int(options["freeze_blocks"])


def _as_published(key: str, options: dict[str, Any]) -> None:
    if key == "cpu" or options["optimizer"] == "muon" or options["precision"] in ("fp32", "fp8"):
        raise AdvisorError(
            "training a part is predicted on GPUs, in 16 bits and with AdamW, as published runs have it",
            "--gpu rtx-4090, without --optimizer muon and --precision",
            exit_code=2,
        )


def predict_rows(path: Path) -> int:
    """Print one JSON object per row, in order; the exit code says whether anything fits.

    Long tables are dealt out to a process per core.
    """
    from advisor.prediction.rows import row_cells

    cells = row_cells(path)
    answer = RowAnswers(next(cells))
    chunks = iter(lambda: list(islice(cells, ROWS_AT_ONCE)), [])
    numbered = zip(count(1, ROWS_AT_ONCE), chunks, strict=False)
    first = next(numbered, (1, []))
    workers = min(_cores(), MOST_WORKERS) if len(first[1]) == ROWS_AT_ONCE else 1
    gc.disable()  # rows become hundreds of thousands of small records without cycles, which it would walk in vain
    verdicts: set[bool | None] = set()
    try:
        for text, fits in _dealt(answer, chain([first], numbered), workers):
            sys.stdout.write(text)
            verdicts |= fits
    finally:
        gc.enable()
    return NOTHING_FITS if verdicts == {False} else 0


def _cores() -> int:
    """Processors this process may use, where processes can be forked; else 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _dealt(answer: RowAnswers, chunks: Iterator[Chunk], workers: int) -> Iterator[Answer]:
    """Answers in the order of the chunks; with several workers no more chunks are read ahead than keep them busy."""
    if workers == 1:
        yield from map(answer, chunks)
        return
    import multiprocessing

    # forked, so that a worker starts with everything loaded; nothing here runs threads of its own yet
    with multiprocessing.get_context("fork").Pool(workers, answer.become_the_workers) as pool:
        waiting: deque[Any] = deque()
        for chunk in chunks:
            waiting.append(pool.apply_async(_answer_in_worker, (chunk,)))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


class RowAnswers:
    """Turns rows of cells into lines of JSON, and remembers what it answered: published tables repeat rows."""

    def __init__(self, columns: list[str]):
        from advisor.hardware.catalog import load_published_gpus
        from advisor.prediction.rows import RowReader

        self._reader = RowReader(load_published_gpus(), columns)
        # by identity, which costs no hash of a dozen fields: rows alike are one object, which the reader keeps
        self._texts: dict[int, str] = {}

    def __call__(self, chunk: Chunk) -> Answer:
        """The text of a chunk's rows, the number of the first of them given, and which verdicts on fitting it holds."""
        from advisor.prediction.rows import RowError

        start, cells = chunk
        rows = [self._reader.read(row, number) for number, row in enumerate(cells, start)]
        fresh = {id(r): r for r in rows if not isinstance(r, RowError) and id(r) not in self._texts}
        verdicts: set[bool | None] = set()
        for place, text, fits in predict_readings(fresh):
            self._texts[place] = text
            verdicts.add(fits)
        lines = (
            json.dumps({"row": number, "error": row.error}, ensure_ascii=False) + "\n"
            if isinstance(row, RowError)
            else f'{{"row": {number}, {self._texts[id(row)]}\n'
            for number, row in enumerate(rows, start)
        )
        return "".join(lines), verdicts

    def become_the_workers(self) -> None:
        """Run in each new worker process: what it answers by."""
        global _worker
        _worker = self
        gc.disable()


_worker: RowAnswers | None = None


def _answer_in_worker(chunk: Chunk) -> Answer:
    assert _worker is not None  # set as the worker starts
    return _worker(chunk)


def predict_readings(readings: Mapping[int, Reading]) -> Iterator[tuple[int, str, bool | None]]:
    """Of each row its number, the rest of its JSON object after `row`, and whether it fits; device by device."""
    from advisor.prediction.batch import mixed
    from advisor.report.prediction import rest_of_line

    workloads = [w for reading in readings.values() for w in reading.workloads]
    answers = iter(predict_workloads(workloads))
    for place, reading in readings.items():
        mine = list(islice(answers, len(reading.workloads)))
        answered = [(a, weight) for a, weight in zip(mine, reading.weights, strict=True) if not isinstance(a, str)]
        if not answered:
            yield place, json.dumps({"error": f"not predicted: {mine[0]}"}, ensure_ascii=False)[1:], None
            continue
        timed = [(a, weight) for a, weight in answered if a.step_seconds is not None] or answered
        dropped = (
            () if len(timed) == len(mine) else (f"{len(mine) - len(timed)} of {len(mine)} readings not predicted",)
        )
        prediction = timed[0][0] if len(timed) == 1 else mixed(*zip(*timed, strict=True), ran=True)
        yield place, rest_of_line(prediction, (*reading.assumed, *dropped)), prediction.fits


def predict_workloads(workloads: Sequence[Workload]) -> list[Prediction | str]:
    """Each workload's prediction, or in words why there is none; in their order."""
    from advisor.calibration.profiles import load_profile, prior_profile
    from advisor.hardware.catalog import load_gpus, load_published_gpus
    from advisor.prediction.batch import predict_batch
    from advisor.store.store import default_store

    unrented = {key: spec for key, spec in load_published_gpus().items() if key not in load_gpus()}
    groups: dict[tuple, list[int]] = {}
    for place, w in enumerate(workloads):
        groups.setdefault((w.gpu, w.shape.family, w.precision, w.compile, w.sharding, _speed(w.software)), []).append(
            place
        )
    answers: list[Prediction | str] = [""] * len(workloads)
    for (gpu, family, precision, compile_, sharding, _), places in groups.items():
        software = workloads[places[0]].software
        try:
            if gpu in unrented:
                profile = prior_profile(
                    unrented[gpu], precision=precision, compile=compile_, software=software, sharding=sharding
                )
            else:
                profile = load_profile(
                    gpu,
                    default_store(),
                    family=family,
                    precision=precision,
                    compile=compile_,
                    transfer=False,
                    software=software,
                    sharding=sharding,
                )
        except AdvisorError as error:
            for place in places:
                answers[place] = error.message
            continue
        predictions = predict_batch(profile, [workloads[place] for place in places], ran=True)
        for place, prediction in zip(places, predictions, strict=True):
            answers[place] = prediction
    return answers


def _speed(software: Software | None) -> tuple | None:
    """What of a row's software decides how fast it is believed to be."""
    if software is None:
        return None
    switches = (software.fused_attention, software.fused_kernels, software.tf32, software.fp8, software.unstated)
    return (software.name, software.kind, *switches)


def show(
    prediction: Prediction,
    told: Sequence[str],
    sources: Sequence[str],
    bill: MemoryBill | None,
    others: Sequence[DepthOption],
    data: Download | None,
) -> None:
    """One configuration on the terminal: each number with its interval and where it comes from."""
    from advisor.report import depths
    from advisor.report.prediction import heading, quantities, time_unknown, verdict
    from advisor.report.table import on_console

    render.show(heading(prediction), "", on_console(quantities(prediction)), "")
    if bill is not None:
        render.show(on_console(depths.memory(bill)), "")
    if others:
        render.show(on_console(depths.options(others, prediction.workload.shape.depth)), "")
    if data is not None:
        render.show(depths.to_fetch(data), "")
    render.show(
        *filter(None, [time_unknown(prediction)]),
        verdict(prediction),
        *told,
        *(f"from: {source}" for source in sources),
    )
