"""Rows of published runs: what is derived, what is refused, and that no input breaks the reader."""

from __future__ import annotations

import csv
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.laws import flops
from advisor.prediction.rows import COLUMNS, Reading, RowError, RowReader, row_cells
from advisor.records import Workload
from advisor.store.folders import profiles_folder

CARDS = load_gpus()
GPT2 = {
    **dict.fromkeys(COLUMNS, ""),
    "gpu": "H100 80GB SXM (DGX)",
    "n_gpus": "8",
    "params": "124000000",
    "layers": "12.0",
    "dim": "768",
    "heads": "12",
    "ffn_mult": "4",
    "vocab": "50257",
    "seq_len": "1024",
    "micro_batch": "64",
    "precision": "bf16 autocast",
    "compile": "yes",
    "flash_attn": "SDPA",
    "act_ckpt": "none",
    "parallelism": "DDP 8",
    "optimizer": "AdamW",
}
NANOCHAT = GPT2 | {"params": "560988160", "layers": "20", "dim": "1280", "heads": "10", "vocab": "65536"}
NANOCHAT |= {
    "seq_len": "2048",
    "micro_batch": "32",
    "optimizer": "Muon + AdamW",
    "parallelism": "DDP (sharded optimizer)",
}
LLAMA_8B = GPT2 | {"params": "8030261248", "layers": "32", "dim": "4096", "heads": "32", "ffn_mult": "3.5"}
LLAMA_8B |= {"vocab": "128256", "seq_len": "8192", "micro_batch": "2", "parallelism": "FSDP2 full shard"}


def reading(row: dict[str, str]) -> Reading | RowError:
    return RowReader(CARDS, list(row)).read(list(row.values()), 7)


def read(row: dict[str, str]) -> Workload | Reading | RowError:
    """The one workload of a row that leaves nothing open."""
    told = reading(row)
    return told.workloads[0] if isinstance(told, Reading) and len(told.workloads) == 1 else told


def rows_of(path: Path) -> list[Reading | RowError]:
    cells = row_cells(path)
    reader = RowReader(CARDS, next(cells))
    return [reader.read(row, number) for number, row in enumerate(cells, start=1)]


def refusal(**changes: str) -> str:
    found = read(GPT2 | changes)
    assert isinstance(found, RowError), found
    assert found.row == 7 and found.error.startswith("not predicted: ")
    return found.error


def test_gpt2_row_becomes_its_workload():
    found = read(GPT2)
    assert flops.parameters(found.shape) == 124_439_808
    assert (found.gpu, found.gpus, found.precision, found.compile) == ("h100-80gb-sxm", 8, "bf16", True)
    assert (found.micro_batch, found.grad_accum, found.sharding) == (64, 1, "none")


def test_printed_parameters_tell_families_and_head_groups_apart():
    nanochat, llama = read(NANOCHAT), read(LLAMA_8B)
    assert (nanochat.shape.family, nanochat.optimizer, nanochat.sharding) == ("nanochat", "muon", "optimizer")
    assert flops.parameters(nanochat.shape) == 560_988_160
    assert (llama.shape.family, llama.shape.kv_heads, llama.sharding) == ("llama", 8, "full")
    assert flops.parameters(llama.shape) == 8_030_261_248


@pytest.mark.parametrize("text", ["DDP 8", "DP8 TP1 PP1 CP1", "tp=1 pp=1", "tensor_parallel_size 1", "FSDP (TPU pod)"])
def test_degrees_of_one_and_other_words_are_data_parallel(text: str):
    assert isinstance(read(GPT2 | {"parallelism": text}), Workload)


@pytest.mark.parametrize("heads, kv_heads", [(32, 32), (32, 8), (32, 4), (64, 16), (40, 2), (48, 1)])
@pytest.mark.parametrize("tied", [False, True])
def test_every_grouping_of_heads_is_found_by_its_exact_count(heads: int, kv_heads: int, tied: bool):
    dim, layers, vocab, ffn = 128 * heads, 24, 128_256, 3 * 128 * heads
    count = layers * (2 * dim**2 * (1 + kv_heads / heads) + 3 * dim * ffn + 2 * dim) + dim + vocab * dim * (2 - tied)
    sizes = {"layers": layers, "dim": dim, "heads": heads, "vocab": vocab, "ffn_mult": 3, "params": int(count)}
    found = read(LLAMA_8B | {name: str(value) for name, value in sizes.items()})
    assert (found.shape.family, found.shape.kv_heads, found.shape.ffn_width) == ("llama", kv_heads, ffn)


def test_ffn_follows_from_an_exact_parameter_count():
    found = read(LLAMA_8B | {"ffn_mult": "", "params": "3212749824", "layers": "28", "dim": "3072", "heads": "24"})
    assert (found.shape.ffn_width, found.shape.kv_heads) == (8192, 8)  # Llama 3.2 3B, tied head


def test_a_rounded_count_does_not_give_the_ffn():
    assert "ffn_mult" in refusal(ffn_mult="", params="3200000000", layers="28", dim="3072", heads="24")


def test_vocabulary_follows_from_the_count_of_a_gpt2():
    found = read(GPT2 | {"vocab": ""})
    assert found.shape.vocab_size == pytest.approx(50257, rel=0.02)


def test_accumulation_follows_from_the_global_batch():
    assert read(GPT2 | {"micro_batch": "8", "global_batch_tokens": "524288"}).grad_accum == 8
    assert read(GPT2 | {"micro_batch": "", "grad_accum": "4", "global_batch_tokens": "524288"}).micro_batch == 16


def test_a_count_without_the_second_table_is_a_tied_model():
    tied = read(LLAMA_8B | {"ffn_mult": "", "params": "3212749824", "layers": "28", "dim": "3072", "heads": "24"})
    assert tied.software.extra_parameters == -128256 * 3072
    assert read(LLAMA_8B).software.extra_parameters == 0
    untied = read(GPT2 | {"params": "163037184"})
    assert untied.software.extra_parameters == 50257 * 768


def test_windows_of_a_row_reach_the_workload():
    assert read(LLAMA_8B | {"notes": "sliding window 4096"}).software.attended_tokens == 4096
    assert read(LLAMA_8B).software.attended_tokens is None
    assert "windows" in refusal(flash_attn="FlexAttention / FA3 sliding window")


def test_fp32_may_use_the_tf32_units_or_not():
    """One H100 did 6,412 tokens/s of GPT-2 large in fp32 (NeuSight's labels): a quarter of what TF32 would."""
    assert read(GPT2 | {"precision": "TF32"}).software.tf32
    assert not read(GPT2 | {"precision": "fp32 (no TF32)"}).software.tf32
    both = reading(GPT2 | {"precision": "fp32"})
    assert {w.software.tf32 for w in both.workloads} == {True, False} and sum(both.weights) == pytest.approx(1)
    assert "TF32" in both.assumed[0]


def test_a_card_without_bf16_units_that_says_no_precision_may_have_emulated_it():
    """A T4 did 2,745 tokens/s of GPT-2 in code written for bf16: a seventh of what fp16 would."""
    t4, h100 = (reading(GPT2 | {"gpu": gpu, "n_gpus": "1", "precision": ""}) for gpu in ("Tesla T4", "H100 80GB SXM"))
    weights = [
        sum(w for w, one in zip(r.weights, r.workloads, strict=True) if one.precision == "fp32") for r in (t4, h100)
    ]
    assert weights == pytest.approx([0.5, 0.2]) and "fp32 taken" in t4.assumed[0]


@pytest.mark.parametrize(
    ("changes", "meanings", "words"),
    [
        ({"gpu": "V100 16GB", "precision": "fp16"}, {"v100-16gb-sxm2", "v100-16gb-pcie"}, "all taken"),
        ({"precision": ""}, {"bf16", "fp32"}, "precision is not stated"),
        ({"compile": ""}, {True, False}, "compilation is not stated"),
        ({"flash_attn": ""}, {("fused", True), ("fused", False)}, "attention is not stated"),
        ({"act_ckpt": ""}, {"none", "full"}, "activation checkpointing is not stated"),
        ({"act_ckpt": "the last 8 layers"}, {"none", "selective", "full"}, "activation checkpointing 'the last 8"),
        ({"params": "", "ffn_mult": "3.5"}, {("kv", 12), ("kv", 3)}, "key/value heads are not stated"),
        ({"params": "", "vocab": "unknown"}, {("vocab", v) for v in (32_000, 50_304, 128_256)}, "vocab is not stated"),
        ({"micro_batch": ""}, {("micro", 4), ("micro", 16), ("micro", 64)}, "micro_batch is not stated"),
    ],
)
def test_what_a_row_leaves_open_is_a_mixture_and_is_said(changes: dict[str, str], meanings: set, words: str):
    told = reading(GPT2 | changes)
    assert isinstance(told, Reading), told
    assert sum(told.weights) == pytest.approx(1) and words in "; ".join(told.assumed)
    for meaning in meanings:
        assert any(
            meaning
            in (
                *(w.gpu, w.precision, w.compile, w.activation_checkpointing),
                *(("fused", w.software.fused_attention), ("kv", w.shape.kv_heads), ("vocab", w.shape.vocab_size)),
                ("micro", w.micro_batch),
            )
            for w in told.workloads
        ), meaning


def test_heads_that_are_not_stated_are_of_usual_size_and_said():
    told = reading(GPT2 | {"heads": ""})
    assert {w.shape.heads for w in told.workloads} == {12} and "heads are not stated" in told.assumed[0]


@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (15, 5)])
def test_key_value_heads_need_not_be_powers_of_two(heads: int, kv_heads: int):
    """SmolLM2 135M and 360M have 9 and 15 heads in groups of three."""
    dim, layers, vocab, ffn = 64 * heads, 30, 49_152, 3 * 64 * heads
    count = layers * (2 * dim**2 * (1 + kv_heads / heads) + 3 * dim * ffn + 2 * dim) + dim + 2 * vocab * dim
    sizes = {"layers": layers, "dim": dim, "heads": heads, "vocab": vocab, "ffn_mult": 3, "params": int(count)}
    assert read(LLAMA_8B | {name: str(value) for name, value in sizes.items()}).shape.kv_heads == kv_heads


def test_a_count_a_little_off_takes_the_closest_model_and_says_so():
    told = reading(GPT2 | {"params": "100000000"})
    assert "a dense decoder of" in told.assumed[0] and told.workloads[0].shape.depth == 12


@pytest.mark.parametrize(
    ("parallelism", "gpus", "words"),
    [("", 1, "n_gpus is not stated"), ("single", 1, None), ("DDP", None, "say how many")],
)
def test_an_empty_gpu_count_is_one_only_where_nothing_speaks_of_several(parallelism, gpus, words):
    told = reading(GPT2 | {"n_gpus": "", "parallelism": parallelism})
    if gpus is None:
        assert isinstance(told, RowError) and words in told.error
    else:
        assert told.workloads[0].gpus == gpus
        assert words in told.assumed[0] if words else not told.assumed


def test_too_many_open_cells_are_refused():
    bare = dict.fromkeys(("precision", "compile", "flash_attn", "act_ckpt", "micro_batch", "vocab", "params"), "")
    assert "too much is left open" in refusal(**bare)


def test_8_bit_products_are_read():
    told = read(GPT2 | {"precision": "float8 rowwise"})
    assert told.software.fp8 and told.precision == "bf16"


@pytest.mark.parametrize(
    ("software", "kind"),
    [
        ("HF transformers Trainer + DeepSpeed (mid 2024)", "wrapper"),
        ("llm.c", "c"),
        ("nanochat fork (Nov 2025)", "tuned"),
        ("own PyTorch trainer baseline.py", "plain"),
        ("NVIDIA Megatron-Bridge", "megatron"),
    ],
)
def test_the_kind_of_training_loop_is_read(software: str, kind: str):
    assert read(GPT2 | {"software": software}).software.kind == kind


def test_contradictory_batches_are_refused():
    error = refusal(micro_batch="8", grad_accum="2", global_batch_tokens="524288")
    assert "131,072" in error and "524,288" in error


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parallelism": "TP4 PP2 DP8"}, "tensor parallel"),
        ({"parallelism": "FSDP0 TP1 PP8"}, "pipeline parallel"),
        ({"parallelism": "FSDP8 x TP8 async TP"}, "tensor parallel"),
        ({"parallelism": "dp=4,tp=2"}, "tensor parallel"),
        ({"parallelism": "tensor_model_parallel_size=4"}, "tensor parallel"),
        ({"parallelism": "8-way tensor parallelism"}, "tensor parallel"),
        ({"parallelism": "DP8 pipeline-parallel 4"}, "pipeline parallel"),
        ({"parallelism": "DP4 CP16"}, "context parallel"),
        ({"parallelism": "FSDP 4 x CP 2"}, "context parallel"),
        ({"parallelism": "FSDP + CPU offload"}, "offload"),
        ({"precision": "bf16-true + nf4"}, "nf4"),
        ({"optimizer": "SOAP"}, "SOAP"),
        ({"act_ckpt": "full+offload"}, "offload"),
        ({"notes": "BERT-large pretraining; MLM head only"}, "encoder"),
        ({"notes": "Transformer-XL Base on WikiText-103"}, "Transformer-XL"),
        ({"notes": "Mixtral 8x7B pre-training"}, "mixture of experts"),
        ({"gpu": "H900"}, "not in the catalog"),
        ({"gpu": ""}, "not named"),
        ({"layers": ""}, "layers is not given"),
        ({"layers": "twelve"}, "'twelve'"),
        ({"dim": "-768"}, "'-768'"),
        ({"heads": "7"}, "multiple of heads"),
        ({"params": "900000000"}, "has at the closest"),
    ],
)
def test_what_is_not_modelled_or_not_said_is_refused_in_words(changes: dict[str, str], words: str):
    assert words in refusal(**changes)


def test_three_quarters_of_the_published_decoders_are_read():
    """Encoders, other parallelism, adapters and what else no dense decoder's training is are rightly refused."""
    rows = rows_of(profiles_folder() / "public_runs.csv")
    others = "encoder|Transformer-XL|parallel|adapters|experts|varying length|documents|fwd|Paged|NVFP4|offload"
    decoders = [r for r in rows if isinstance(r, Reading) or not re.search(others, r.error)]
    assert len(rows) > 1200
    assert sum(isinstance(r, Reading) for r in decoders) / len(decoders) >= 0.75


def test_missing_columns_and_files_are_refused_in_words(tmp_path: Path):
    path = tmp_path / "rows.csv"
    for content, words in ((b"a,b\n1,2\n", "no column gpu"), (b"\xff\xfe\x00", "not a CSV"), (b"", "no column gpu")):
        path.write_bytes(content)
        with pytest.raises(AdvisorError, match=words) as failure:
            list(row_cells(path))
        assert failure.value.exit_code == 2
    with pytest.raises(AdvisorError, match="cannot read"):
        list(row_cells(tmp_path / "none.csv"))


def test_short_and_blank_lines_and_other_columns_are_fine(tmp_path: Path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*GPT2, "surprise"])
        writer.writerow([*GPT2.values(), "x"])
        writer.writerow([])
        writer.writerow(["H100 80GB SXM"])
    whole, short = rows_of(path)
    assert isinstance(whole, Reading)
    assert isinstance(short, RowError) and short.row == 2


@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12) | st.floats().map(str) | st.integers().map(str)))
def test_any_text_in_any_cell_is_a_workload_or_a_reason(changes: dict[str, str]):
    told = reading(GPT2 | changes)
    assert isinstance(told, Reading | RowError)
    if isinstance(told, Reading):
        assert not any(w.shape.problems() for w in told.workloads)
        assert sum(told.weights) == pytest.approx(1)


@pytest.mark.parametrize("heads", ["441910812", str(10**18)])
def test_any_number_of_heads_is_answered_at_once(heads):
    """As many heads as columns were tried in groups of every size: 20 GB and minutes for one cell."""
    began = time.process_time()
    reading(GPT2 | {"dim": heads, "heads": heads})
    assert time.process_time() - began < 1


def test_value_embeddings_of_nanochat_are_tables_and_no_products():
    """A d12 of its later versions: 286,261,730 parameters in all, six of its eight tables of values (science, §1.2)."""
    sizes = {"layers": "12", "dim": "768", "heads": "6", "vocab": "32768", "params": "286261730", "seq_len": "2048"}
    found = read(NANOCHAT | sizes)
    assert found.shape.family == "nanochat"
    assert found.software.extra_parameters == 6 * 32768 * 768


@pytest.mark.parametrize("word", ["?", "unknown", "not stated", "N/A", "Unknown"])
def test_cells_that_say_nothing_are_empty(word: str):
    for name in ("vocab", "params", "n_gpus", "compile", "flash_attn", "act_ckpt", "precision", "gpu"):
        assert reading(GPT2 | {name: word}) == reading(GPT2 | {name: ""})


def test_a_gpt2_of_no_count_is_said():
    assert reading(GPT2 | {"params": ""}).assumed == ("params is not stated: a GPT-2 taken, as ffn_mult is 4",)
    assert "heads are not stated: 12 taken; params is not" in reading(GPT2 | {"params": "", "heads": ""}).assumed[0]
    assert not reading(GPT2).assumed


def test_several_gpus_of_no_stated_parallelism_are_data_parallel_and_said():
    for word in ("", "not stated", "unknown (8 cards)"):
        told = reading(GPT2 | {"parallelism": word})
        assert told.assumed == ("parallelism is not stated: data parallel taken",)
        assert [w.sharding for w in told.workloads] == ["none"]
    assert not reading(GPT2 | {"parallelism": "", "n_gpus": "1"}).assumed


def test_zero_of_no_stage_is_a_mixture_on_several_gpus_only():
    told = reading(GPT2 | {"parallelism": "DeepSpeed"})
    assert {w.sharding for w in told.workloads} == {"optimizer", "full"} and "stage of ZeRO" in told.assumed[0]
    alone = reading(GPT2 | {"parallelism": "DeepSpeed", "n_gpus": "1"})
    assert [w.sharding for w in alone.workloads] == ["none"] and not alone.assumed


@pytest.mark.parametrize(
    ("changes", "kv_heads", "words"),
    [
        ({"params": "", "notes": "GQA 32/8"}, {8}, "vocab is not stated"),
        ({"params": ""}, {32}, "key/value heads are not stated: 32 taken"),
        ({}, {8, 32}, "128,256 with 8 key/value heads"),  # 32,000 with all heads has as many
        ({"params": "30000000000"}, {32}, "key/value heads are not stated: 32 taken"),  # no count of these sizes
    ],
)
def test_key_value_heads_of_a_llama_without_its_vocabulary(changes: dict[str, str], kv_heads: set[int], words: str):
    told = reading(LLAMA_8B | {"vocab": ""} | changes)
    assert kv_heads <= {w.shape.kv_heads for w in told.workloads} and words in told.assumed[0]
    assert sum(told.weights) == pytest.approx(1)
