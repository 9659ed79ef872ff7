"""Convert rows of tables about runs with a parallel layout to `LayoutRun`s, or explain why a row cannot be converted.

A layout is given as one column for each degree (`tp`, `pp`, `cp`, `ep`, …, as in benchmarks/parallel_runs.csv), or in
the words of one cell (`TP2 PP4 VP5`, as in profiles/public_runs.csv).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from advisor.architecture import Experts, Layout, Model
from advisor.hardware.catalog import GPUS_PER_NODE, GpuSpec, read_link
from advisor.prediction.comm import usual_network
from advisor.prediction.layouts import LayoutRun
from benchmarks.rows.gpu_names import named_cards, possible_cards
from benchmarks.rows.words import Open, Refusal, number, read_precision, software_in, table_of

DEGREES = {
    **{"tensor": "tp", "pipeline": "pp", "virtual": "vp", "context": "cp"},
    **{"expert": "ep", "expert_tensor": "etp", "data": "dp"},
}
_COLUMNS = {"virtual": "virtual_pp"}  # column names that differ from the letters of the degree
# Columns with the measured speed of a row; the last two mean the same.
RATES = ("step_seconds", "tokens_per_second", "tokens_per_second_per_gpu", "tok_per_s_per_gpu")
_SIZES = (  # columns with a positive whole number
    *("n_gpus", "gpus_per_node", "layers", "dim", "heads", "kv_heads", "head_dim", "vocab", "seq_len", "micro_batch"),
)
_COUNTS = (  # columns with a whole number
    *(_COLUMNS.get(name, letters) for name, letters in DEGREES.items()),
    *("ffn_width", "experts", "experts_per_token", "expert_ffn_width", "shared_experts", "dense_layers", "grad_accum"),
)
_MOST = 100_000_000
_PCIE = 25e9  # 25 of PCIe 4's 32 GB/s, as in `comm`
# "TP2", "TP=2", "tp 2" and "2-way TP".
_WORDS = {
    degree: re.compile(rf"(?<![a-z]){letters}[ =:_-]*(\d+)|(\d+)[- ]way {letters}(?![a-z])", re.IGNORECASE)
    for degree, letters in DEGREES.items()
}
# "tensor model parallel size 2" and the like.
_SPELT = {
    degree: re.compile(rf"{degree}[ _-](?:model[ _-])?parallel\w*(?:[ _-](?:size|degree))?[ =:_-]*(\d+)", re.IGNORECASE)
    for degree in ("tensor", "pipeline", "context", "expert")
}
_USUAL_VOCABULARY = 50_304  # GPT-2's, padded


@dataclass(frozen=True, kw_only=True)
class LayoutReading:
    """The run of a row, with the assumptions in words."""

    run: LayoutRun
    assumed: tuple[str, ...] = ()


def measured_seconds(row: Mapping[str, str], run: LayoutRun) -> float | None:
    """Return the measured seconds of a step, or None if the row states none of RATES as a positive number."""
    of_all, *of_one = RATES[1:]
    tokens = {of_all: 1, **dict.fromkeys(of_one, run.layout.gpus)}
    for name in RATES:
        value = number(row.get(name, ""))
        if value is not None and 0 < value < math.inf:
            return value if name not in tokens else run.step_tokens / (value * tokens[name])
    return None


class LayoutRows:
    """Reads the rows of a table that state a layout, and caches them, because published tables repeat rows."""

    def __init__(self, cards: Mapping[str, GpuSpec], columns: Sequence[str]):
        """Prepare for rows with these columns."""
        self._columns, self._cards = columns, cards
        self._layouts = {"tp", "pp"} <= set(columns)  # then every row states a layout
        self._words = columns.index("parallelism") if "parallelism" in columns else None
        self._experts = columns.index("experts") if "experts" in columns else None
        self._seen: dict[tuple[str, ...], LayoutReading | Refusal] = {}

    def read(self, cells: Sequence[str]) -> LayoutReading | Refusal | None:
        """Return the run of a row, or the reason why it cannot be read, or None if it only states data parallelism."""
        if not self._layouts:
            words = cells[self._words] if self._words is not None and self._words < len(cells) else ""
            cut = any(value > 1 for name, value in degrees_in(words).items() if name != "data")
            place = self._experts if self._experts is not None and self._experts < len(cells) else None
            if not cut and (place is None or (number(cells[place]) or 0) <= 1):
                return None
        key = tuple(cells)
        if key not in self._seen:
            row = dict(zip(self._columns, map(str.strip, cells), strict=False))
            self._seen[key] = read_layout_row(row, self._cards)
        return self._seen[key]


@lru_cache(maxsize=65536)
def degrees_in(words: str) -> Mapping[str, int]:
    """Return the parallel degrees that the words of one cell state."""
    found: dict[str, int] = {}
    for name, short in _WORDS.items():
        match = short.search(words) or (_SPELT[name].search(words) if name in _SPELT else None)
        if match is not None:
            found[name] = int(next(filter(None, match.groups())))
    return found


def read_layout_row(row: Mapping[str, str], cards: Mapping[str, GpuSpec]) -> LayoutReading | Refusal:
    """Return the run of a row. Usual values replace missing values and are listed as assumptions."""
    for name in (*_SIZES, *_COUNTS):
        value, least = number(row.get(name, "")), 1 if name in _SIZES else 0
        if value is not None and not (math.isnan(value) or (least <= value <= _MOST and value == int(value))):
            return Refusal(f"{name} is {row[name]!r}, not a whole number from {least} to {_MOST:,}")
    assumed: list[str] = []
    card = _card(row, cards)
    if isinstance(card, Refusal):
        return card
    if isinstance(card, Open):
        assumed.append(card.words)
        card = card.choices[0][0]
    if read_link(card.interconnect) is None or (card.bf16_flops or card.fp16_flops) is None:
        return Refusal(f"the catalog has no link between GPUs of type {card.key}, or no 16-bit units for it")
    model = _model(row, assumed)
    if isinstance(model, Refusal):
        return model
    if ahead := re.search(r"mtp-num-layers=(\d+)", row.get("notes", "")):
        model = replace(model, ahead=int(ahead[1]))
    words = "; ".join(row.get(name, "") for name in ("software", "source", "parallelism"))
    named = software_in(row.get("software", "")) or software_in(words)
    layout = _layout(row, model, named.shardings[0] if named else "optimizer", assumed)
    if isinstance(layout, Refusal):
        return layout
    batch = _batch(row, layout, assumed)
    precision = _precision(row)
    if isinstance(precision, Refusal):
        return precision
    notes = row.get("notes", "")
    wide = re.search(r"num-distributed-optimizer-instances=(\d+)", notes)
    in_words, joined = re.search(r"nodes? x (\d+)", row.get("parallelism", "")), row.get("interconnect", "")
    node = _integer(row, "gpus_per_node") or (int(in_words[1]) if in_words else None)
    node = node or min(GPUS_PER_NODE, layout.gpus)
    without_nvlink = re.search("pcie", joined, re.I) and not re.search("(?<!no )(?<!without )nvlink", joined, re.I)
    network = _network(f"{joined}; {row.get('parallelism', '')}", node)
    if network is None and layout.gpus > node:
        usual = usual_network(card) * 8 / 1e9
        assumed.append(f"the network between nodes is not stated: {usual:.0f} Gb/s for each GPU taken")
    run = LayoutRun(
        model=model,
        layout=layout,
        gpu=card,
        node_gpus=node,
        link=_PCIE if without_nvlink else None,
        network=network,
        seq_len=batch[0],
        micro_batch=batch[1],
        micro_batches=batch[2],
        recompute=_recompute(row, named.name if named else None),
        precision=precision,
        fused_attention=_fused(row, named.name if named else None),
        software=named.name if named else None,
        afab=_afab(row, named.afab_chance if named else 0.0),
        stage=_stage(notes),
        optimizer_copies=int(wide[1]) if wide else 1,
        hidden_experts=bool(
            re.search(r"dualpipe|overlap[-_]moe", f"{row.get('parallelism', '')} {notes}", re.IGNORECASE)
        ),
    )
    if re.search(r"activation[- ]offloading", notes):
        return Refusal("activations are moved to the host's memory, which is not modelled")
    return LayoutReading(run=run, assumed=tuple(assumed))


def _card(row: Mapping[str, str], cards: Mapping[str, GpuSpec]) -> GpuSpec | Open | Refusal:
    text = row.get("gpu", "")
    if re.search(r"\(.*not stated\)", text):
        text = re.sub(r"\(.*\)", "", text).strip()
    memory = number(row.get("memory_gib_per_gpu", "") or row.get("mem_gib_per_gpu", ""))
    gpus = number(row.get("n_gpus", ""))
    return possible_cards(text, named_cards(text, number(row.get("gpu_mem_gib", "")), cards.values()), memory, gpus)


def _yes(row: Mapping[str, str], name: str) -> bool | None:
    return row[name].lower() in ("yes", "true", "1") if row.get(name) else None


def _integer(row: Mapping[str, str], name: str) -> int | None:
    value = number(row.get(name, ""))
    return None if value is None or math.isnan(value) else int(value)


def _model(row: Mapping[str, str], assumed: list[str]) -> Model | Refusal:
    layers, width, heads = (_integer(row, name) for name in ("layers", "dim", "heads"))
    if not layers or not width or not heads:
        return Refusal("layers, dim and heads are not all given")
    head_dim = _integer(row, "head_dim") or width // heads
    if not head_dim:
        return Refusal(f"dim {width} has no room for {heads} heads")
    mult, stated = number(row.get("ffn_mult", "")), _integer(row, "ffn_width")
    experts = _integer(row, "experts") or 0
    ffn = stated or (round(mult * width) if mult else None)
    if ffn is None and not experts:
        ffn = 4 * width
        assumed.append("the feed-forward's width is not stated: four widths taken")
    gated = ffn != 4 * width if (said := _yes(row, "gated_mlp")) is None else said
    vocab = _integer(row, "vocab")
    if vocab is None:
        vocab = _USUAL_VOCABULARY
        assumed.append(f"vocab is not stated: {vocab:,} taken")
    kv_heads = _integer(row, "kv_heads")
    if kv_heads is None:
        kv_heads = 8 if gated and vocab > 100_000 and heads % 8 == 0 and heads > 8 else heads
        assumed.append(f"kv_heads is not stated: {kv_heads} taken")
    tied = not gated if (said := _yes(row, "tied_embeddings")) is None else said
    base = Model(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_width=ffn or 0,
        gated=gated,
        vocab_size=vocab,
        tied=tied,
    )
    if experts > 1:
        each, meets = _integer(row, "expert_ffn_width"), _integer(row, "experts_per_token")
        if not each or not meets:
            return Refusal("experts are stated without expert_ffn_width and experts_per_token")
        dense = _integer(row, "dense_layers") or 0
        if dense >= layers or meets > experts:
            return Refusal(f"{dense} dense of {layers} layers, or {meets} of {experts} experts for a token, cannot be")
        shared = _integer(row, "shared_experts") or 0
        many = Experts(count=experts, per_token=meets, width=each, shared=shared, layers=layers - dense)
        base = replace(base, experts=many)
    return _by_counts(base, row)


def _by_counts(model: Model, row: Mapping[str, str]) -> Model:
    """Return the model with weights of unusual attention (MLA, Mamba layers) derived from the stated parameter
    counts."""
    kind = row.get("attention", "").lower()
    active, total = number(row.get("params_active", "")), number(row.get("params_total", ""))
    if kind not in ("mla", "hybrid") or not active:
        return model
    if kind == "hybrid":  # most layers are Mamba, few have attention; the counts give the layers with experts
        model = replace(model, ffn_width=0, attending=0.1)
    rest = (model.experts.count - model.experts.per_token) * model.one_expert if model.experts else 0
    if model.experts and total and total > active and rest:
        layers = max(1, round((total - active) / rest))
        shared = 0 if kind == "hybrid" else model.experts.shared
        model = replace(model, experts=replace(model.experts, layers=min(layers, model.layers), shared=shared))
    left = active - (model.active - model.layers * model.attention)
    return replace(model, attention_parameters=max(0, round(left / model.layers)))


def _layout(row: Mapping[str, str], model: Model, usual: str, assumed: list[str]) -> Layout | Refusal:
    words = row.get("parallelism", "")
    found = dict(degrees_in(words))
    for name, letters in DEGREES.items():
        if (value := _integer(row, _COLUMNS.get(name, letters))) is not None:
            found[name] = max(1, value)
    if re.search("interleaved", words, re.IGNORECASE):
        found.setdefault("virtual", 2)
    gpus = _integer(row, "n_gpus")
    cut = math.prod(found.get(name, 1) for name in ("tensor", "pipeline", "context"))
    if gpus is None and "data" in found:
        gpus = cut * found["data"]
    if gpus is None:
        gpus = cut * max(8, found.get("expert", 1))
        assumed.append(f"n_gpus is not stated: {gpus} taken")
    if gpus % cut:
        return Refusal(f"{gpus} GPUs cannot be cut into {cut} pieces of a replica")
    found["data"] = gpus // cut
    states = f"{row.get('zero_stage_or_fsdp', '')} {words}".lower()
    if re.search(r"fsdp(?! ?[01]\b)|zero-?3|hsdp|optim_grads_params", states):
        sharding = "full"
    elif re.search(r"none|zero-?0|\bddp\b", states):
        sharding = "none"
    else:
        sharding = "full" if usual == "full" else "optimizer"
        if not re.search(r"zero-?[12]|distributed optimizer", states):
            taken = "weights too (FSDP)" if sharding == "full" else "the optimizer's state (ZeRO-1)"
            assumed.append(f"what data parallelism shards is not stated: {taken} taken")
    sequence = found.get("tensor", 1) > 1 if (said := _yes(row, "sequence_parallel")) is None else said
    if model.experts and model.experts.count % found.get("expert", 1):
        return Refusal(f"{model.experts.count} experts cannot be dealt out to {found['expert']} GPUs")
    return Layout(sequence=sequence, sharding=sharding, **{name: max(1, value) for name, value in found.items()})


def _batch(row: Mapping[str, str], layout: Layout, assumed: list[str]) -> tuple[int, int, int]:
    """Return sequence length, micro-batch and micro-batches of one replica."""
    length, micro = _integer(row, "seq_len"), _integer(row, "micro_batch")
    if not length:
        # The lengths of Llama 3 and Llama 2: larger vocabularies came with longer sequences.
        length = 8192 if (_integer(row, "vocab") or 0) > 100_000 else 4096
        assumed.append(f"seq_len is not stated: {length:,} taken")
    many = _integer(row, "grad_accum") or None
    sequences = number(row.get("global_batch_sequences", ""))
    if sequences is None and (tokens := number(row.get("global_batch_tokens", ""))):
        sequences = tokens / length
    if micro is None:
        micro = 1
        assumed.append("micro_batch is not stated: 1 taken")
    if sequences:
        many = max(1, round(sequences / (layout.data * micro)))
    elif many is None:
        many = max(1, layout.pipeline * 4 if layout.pipeline > 1 else 1)
        assumed.append(f"the global batch is not stated: {many} micro-batches taken")
    if layout.pipeline > 1 and many == 1 and micro >= layout.pipeline:  # of a replica, which the pipeline splits
        many, micro = micro, 1
        assumed.append("micro_batch is the batch of a pipeline: micro-batches of one sequence taken")
    return length, micro, many


def _precision(row: Mapping[str, str]) -> str | Refusal:
    words = row.get("precision", "").lower()
    for low_bits, name in table_of("low precision"):
        if re.search(low_bits, words):
            return name
    read = read_precision(row.get("precision", "") or "bf16", False)
    if isinstance(read, Refusal):
        return read
    if isinstance(read, Open):
        read = read.choices[0][0]
    if read.kind == "fp32":
        return Refusal("fp32 with a layout is not modelled")
    return "fp16" if read.kind == "fp16" else "bf16"


def _recompute(row: Mapping[str, str], software: str | None) -> str:
    words = (row.get("recompute", "") or row.get("act_ckpt", "")).lower()
    if words.startswith("full"):
        return "full"
    if "selective" not in words or ("[" in words and "core_attn" not in words):
        return "none"
    return "operators" if software == "torchtitan" else "attention"


def _fused(row: Mapping[str, str], software: str | None) -> bool:
    said = re.search(r"attention=(\w+)", row.get("notes", ""))
    if said:
        return said[1] not in ("unfused", "local")
    flash = row.get("flash_attn", "").lower()
    if flash:
        return not flash.startswith("no")
    return software != "megatron-deepspeed"  # has no fused attention


def _afab(row: Mapping[str, str], usual: float) -> float:
    """Return the probability that the pipeline's schedule is AFAB."""
    words = "; ".join(row.get(name, "") for name in ("software", "parallelism", "notes"))
    if re.search(r"\b(?:afab|gpipe|all[- ]forward)", words, re.IGNORECASE):
        return 1.0
    return 0.0 if re.search(r"\b1f1b\b|interleaved", words, re.IGNORECASE) else usual


def _stage(notes: str) -> str:
    if "last rank only" in notes:
        return "last"
    return "first" if "rank 0" in notes or "first pipeline stage" in notes else "most"


def _network(words: str, node_gpus: int) -> float | None:
    """Return the bytes per second between nodes for each GPU, from a rate per GPU or adapter; None if unstated."""
    said = re.search(
        r"(?:(\d+)\s*[x×]\s*)?(\d+(?:\.\d+)?)\s*(g(?:b|bit)(?:/s|ps|e)|gb/s)(\s*(?:per|for each|a|/)\s*gpu)?"
        r"(?=[^;]*(?:between|infiniband|\bib\b|ethernet|efa|roce|network|nics?\b|per gpu))",
        words,
        re.IGNORECASE,
    )
    if said is None:
        return None
    whole_bytes = "GB/s" in said[3]  # capital B: bytes
    rate = float(said[2]) * (1e9 if whole_bytes else 1e9 / 8)
    return rate if said[4] else rate * float(said[1] or 1) / node_gpus
