"""Rows of published runs: what is derived, what is refused, and that no input breaks the reader."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.hardware.catalog import load_gpus
from advisor.laws import flops
from advisor.predict.gpu_names import match_card
from advisor.predict.rows import COLUMNS, RowError, RowReader, read_rows
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


def read(row: dict[str, str]) -> Workload | RowError:
    return RowReader(CARDS, list(row)).read(list(row.values()), 7)


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


def test_fp32_is_predicted_where_it_can_mean_one_thing():
    assert read(GPT2 | {"precision": "TF32"}).precision == "fp32"
    assert "TF32" in refusal(precision="fp32")
    assert read(GPT2 | {"precision": "fp32", "gpu": "V100 32GB SXM2"}).precision == "fp32"


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
        ({"parallelism": "QLoRA nf4"}, "adapters"),
        ({"parallelism": "FSDP + CPU offload"}, "offload"),
        ({"precision": "float8 rowwise"}, "float8"),
        ({"precision": "bf16-true + nf4"}, "nf4"),
        ({"precision": "fp32 (no TF32)"}, "TF32"),
        ({"precision": ""}, "precision is not given"),
        ({"optimizer": "SOAP"}, "SOAP"),
        ({"optimizer": "AdamW8bit"}, "8-bit"),
        ({"act_ckpt": "full+offload"}, "offload"),
        ({"notes": "BERT-large pretraining; MLM head only"}, "encoder"),
        ({"notes": "Transformer-XL Base on WikiText-103"}, "Transformer-XL"),
        ({"notes": "Mixtral 8x7B pre-training"}, "mixture of experts"),
        ({"gpu": "H900"}, "not in the catalog"),
        ({"gpu": ""}, "not named"),
        ({"gpu": "V100 16GB"}, "v100-16gb-sxm2, v100-16gb-pcie"),
        ({"layers": ""}, "layers is not given"),
        ({"layers": "twelve"}, "'twelve'"),
        ({"dim": "-768"}, "'-768'"),
        ({"micro_batch": ""}, "micro_batch"),
        ({"micro_batch": "", "global_batch_tokens": "524288"}, "grad_accum"),
        ({"heads": "7"}, "multiple of heads"),
        ({"params": "900000000"}, "no dense decoder"),
        ({"params": "", "ffn_mult": "3.5"}, "params is not given"),
    ],
)
def test_what_is_not_modelled_or_not_said_is_refused_in_words(changes: dict[str, str], words: str):
    assert words in refusal(**changes)


@pytest.mark.parametrize(
    ("name", "memory", "key"),
    [
        ("H100 80GB HBM3 SXM", None, "h100-80gb-sxm"),
        ("NVIDIA H100 80GB HBM3", None, "h100-80gb-sxm"),
        ("A100 80GB SXM (DGX)", None, "a100-80gb-sxm"),
        ("A100 SXM4", 40.0, "a100-40gb-sxm"),
        ("V100 32GB SXM3 (DGX-2H 450W)", None, "v100-32gb-sxm2"),
        ("RTX 6000 Ada", None, "rtx-6000-ada"),
        ("RTX A6000", None, "a6000"),
        ("RTX 3090 (350W)", None, "rtx-3090"),
        ("A10G 24GB", None, "a10g"),
        ("B200 192GB", None, "b200"),
        ("GH200 96GB", None, "gh200-96gb"),
        ("H200 141GB SXM", None, "h200-141gb-sxm"),
        ("H200", None, "h200-141gb-sxm"),
        ("H200 NVL", None, "h200-141gb-nvl"),
        ("H100 94GB", None, "h100-94gb-nvl"),
        ("DGX H100", None, "h100-80gb-sxm"),
        ("8x H100 SXM5 80 GB", None, "h100-80gb-sxm"),
        ("H100 (SXM, 80GB)", None, "h100-80gb-sxm"),
        ("A100 (40GB SXM)", None, "a100-40gb-sxm"),
        ("V100 (16GB, PCIe)", None, "v100-16gb-pcie"),
        ("A100 80G", None, "a100-80gb-sxm"),
        ("RTX4090", None, "rtx-4090"),
        ("RTX 4090 D", None, "rtx-4090d"),
        ("RTX 3090 Ti", None, "rtx-3090ti"),
        ("2 x A10", None, "a10"),
        ("Gaudi 2", None, "gaudi2"),
        ("A800 SXM4 80GB", None, "a800-80gb-sxm"),
        ("H800 (SXM5)", None, "h800-80gb-sxm"),
        ("RTX 4070 Laptop 8GB", None, "rtx-4070-laptop"),
        ("NVIDIA GeForce RTX 4060 Ti", 16.0, "rtx-4060ti-16gb"),
        ("RTX 4060 Ti (8 GB)", None, "rtx-4060ti-8gb"),
        ("4070 Ti SUPER", None, "rtx-4070ti-super"),
        ("RTX PRO 6000 Blackwell Server", None, "rtx-pro-6000-bw-server"),
        ("RTX PRO 6000 Blackwell Workstation Edition", None, "rtx-pro-6000-bw-ws"),
        ("DGX Spark", None, "gb10"),
        ("RTX A4500", None, "a4500"),
        ("RTX 8000", None, "quadro-rtx-8000"),
        ("GTX 1080 Ti", None, "gtx-1080ti"),
    ],
)
def test_published_names_find_their_card(name: str, memory: float | None, key: str):
    assert match_card(name, memory, CARDS.values()).key == key


@pytest.mark.parametrize(
    "name",
    [
        *(
            "A100",
            "H100",
            "H100 80GB",
            "GH200",
            "A100 SXM4",
            "Blackwell (model not named)",
            "MI250 (1 GCD)",
            "RTX",
            "80GB",
        ),
        *("H800 80GB", "RTX 4060 Ti", "NVIDIA GeForce RTX 4060 Ti", "RTX 3080", "RTX PRO 6000 Blackwell", "V100 SXM2"),
        *("RTX 4090 Max-Q", "RTX 4050 Laptop", "RTX 4000 SFF Ada", "TITAN X (Pascal)", "Apple M2 Pro", "Laptop", "RTX"),
    ],
)
def test_a_name_that_could_be_several_cards_is_none_of_them(name: str):
    assert isinstance(match_card(name, None, CARDS.values()), str)


def test_used_memory_rules_out_small_cards():
    assert match_card("A100", None, CARDS.values(), used_gib=60.0).memory_gb == 80


def test_every_catalog_key_and_driver_name_is_itself():
    for spec in CARDS.values():
        assert match_card(spec.key, None, CARDS.values()) is spec
        for name in spec.nvml_names:
            assert match_card(name, spec.memory_gb, CARDS.values()) is spec


def test_rows_the_prior_rests_on_are_all_read():
    found = list(read_rows(profiles_folder() / "public_runs.csv", CARDS))
    unknown = [r for r in found if isinstance(r, RowError)]
    assert len(found) > 100
    assert all("H100 96GB HBM2e" in r.error for r in unknown)  # the one card that is in no catalog


def test_missing_columns_and_files_are_refused_in_words(tmp_path: Path):
    path = tmp_path / "rows.csv"
    for content, words in ((b"a,b\n1,2\n", "no column gpu"), (b"\xff\xfe\x00", "not a CSV"), (b"", "no column gpu")):
        path.write_bytes(content)
        with pytest.raises(AdvisorError, match=words) as failure:
            list(read_rows(path, CARDS))
        assert failure.value.exit_code == 1
    with pytest.raises(AdvisorError, match="cannot read"):
        list(read_rows(tmp_path / "none.csv", CARDS))


def test_short_and_blank_lines_and_other_columns_are_fine(tmp_path: Path):
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*GPT2, "surprise"])
        writer.writerow([*GPT2.values(), "x"])
        writer.writerow([])
        writer.writerow(["H100 80GB SXM"])
    one, two = read_rows(path, CARDS)
    assert isinstance(one, Workload)
    assert isinstance(two, RowError) and two.row == 2


@given(st.dictionaries(st.sampled_from(COLUMNS), st.text(max_size=12) | st.floats().map(str) | st.integers().map(str)))
def test_any_text_in_any_cell_is_a_workload_or_a_reason(changes: dict[str, str]):
    found = read(GPT2 | changes)
    assert isinstance(found, Workload | RowError)
    if isinstance(found, Workload):
        assert not found.shape.problems()
