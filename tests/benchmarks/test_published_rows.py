"""`benchmarks/published_rows.py`: what free words in tables of published runs mean, by the predictions they lead to."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import AdvisorError
from advisor.store.folders import profiles_folder
from benchmarks.published_rows import main
from benchmarks.rows.answers import answer_rows
from benchmarks.rows.reader import COLUMNS, row_cells

ROOT = Path(__file__).parents[2]
GPT2 = {
    **dict.fromkeys(COLUMNS, ""),
    **{"gpu": "H100 80GB SXM (DGX)", "n_gpus": "8", "params": "124000000", "layers": "12.0", "dim": "768"},
    **{"heads": "12", "ffn_mult": "4", "vocab": "50257", "seq_len": "1024", "micro_batch": "64", "compile": "yes"},
    **{"precision": "bf16 autocast", "flash_attn": "SDPA", "act_ckpt": "none", "parallelism": "DDP 8"},
    **{"optimizer": "AdamW"},
}
NANOCHAT = GPT2 | {"params": "560988160", "layers": "20", "dim": "1280", "heads": "10", "vocab": "65536"}
LLAMA = GPT2 | {"params": "8030261248", "layers": "32", "dim": "4096", "heads": "32", "ffn_mult": "3.5"}
LLAMA |= {"vocab": "128256", "seq_len": "8192", "micro_batch": "2", "parallelism": "FSDP2 full shard"}
ALONE = {"n_gpus": "1", "parallelism": ""}


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    """Return the answer to a row, without its number; a row that was asked before is not asked again."""
    path, known = tmp_path_factory.mktemp("rows") / "rows.csv", {}

    def asked(row: Mapping[str, str]) -> dict:
        key = tuple(row.items())
        if key not in known:
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([row.keys(), row.values()])
            (line,) = answer_rows(path)
            known[key] = json.loads(line)
        return {name: part for name, part in known[key].items() if name not in ("row", "assumed")} | {
            "words": known[key].get("error", "") + "; ".join(known[key].get("assumed", ()))
        }

    return asked


def numbers(answer: Mapping) -> str:
    return json.dumps({name: part for name, part in answer.items() if name != "words"})


# Words of one meaning, by column: each list leads to one prediction, and no two lists to the same.
ALIKE: dict[str, list[tuple[str, ...]]] = {
    "parallelism": [
        ("DDP", "single device", "DDP 8", "DP8 TP1 PP1 CP1", "tensor_parallel_size 1", "FSDP NO_SHARD", "ZeRO-0", "",
         "no FSDP", "DDP (no ZeRO-3)", "DP only (no TP/PP)", "TP=PP=1", "DDP (no LoRA)", "unknown"),
        ("DDP (DeepSpeed)",),
        ("ZeRO-1", "ZeRO 2", "zero_stage=2", "FSDP SHARD_GRAD_OP", "DDP (sharded optimizer)"),
        ("DeepSpeed ZeRO stage 1",),
        ("FSDP", "FSDP2 full shard", "HSDP", "ZeRO stage 3", "fully sharded", "FSDP (no TP)", "ZeRO++ stage 3",
         "FSDP (TPU pod)"),
        ("DeepSpeed stage 3", "DeepSpeed, ZeRO-3, no offload"),
        ("ZeRO",),
        ("DeepSpeed", "DeepSpeed ZeRO, 8 GPUs"),
    ],
    "precision": [
        ("bf16", "bf16 (no fp8)", "bf16, fp8 disabled", "half"),
        ("bf16-mixed", "amp_bf16 (MP DEFAULT)", "bf16 (MP PURE)", "bf16 mixed (fp32 master, bf16 compute)", "fp16 AMP",
         "amp_fp16", "16-mixed"),
        ("bf16 (fp32 master)", "bf16 (fp32 grad accumulation)", "fp16"),
        ("bf16 (pure)", "bf16-true"),
        ("TF32", "fp32/TF32"),
        ("fp32 (no TF32)", "fp32 (TF32 disabled)", "fp32, allow_tf32=False"),
        ("fp32", "fp32 (TF32 not stated)"),
        ("FP8 (TE)", "mxfp8", "float8 tensorwise linears"),
        ("", "not stated", "?"),
    ],
    "act_ckpt": [
        ("none", "no", "False", "off", "none (-r 0)", "disabled", "not used"),
        ("selective", "selective (op)", "SAC", "MLP only", "core attention"),
        ("full", "yes", "on", "full (every block)", "per layer", "24/24 blocks", "full, no offload"),
        ("every other layer", "50 %"),
        ("12 of 48 layers",),
        ("partial",),
        ("", "unknown", "n/a"),
    ],
    "compile": [
        ("yes", "True", "torch.compile", "yes (max-autotune)", "C/CUDA", "inductor", "XLA", "y", "enabled"),
        ("no", "False", "no torch.compile", "not compiled", "eager (no compile)", "torch.compile=False", "compile: no"),
        ("", "CUDA 12.1", "cuda", "PyTorch 2.3, CUDA 12.1"),
    ],
    "flash_attn": [
        ("SDPA", "yes", "1", "TE/cuDNN", "xformers", "FA2/SDPA", "flex", "SDPA (no flash on V100)", "SDPA, not math"),
        ("no", "disabled", "naive", "sdpa math", "eager", "no (Megatron fused softmax)", "use_flash_attn=False",
         "w/o flash"),
        ("", "normal", "standard attention", "Megatron fused softmax"),
    ],
    "optimizer": [
        ("AdamW", "AdamW (fused)", "AdamW (not 8-bit)", "AdamW, 32-bit", "AdamW (no Muon)", "", "unknown"),
        ("Muon + AdamW", "Muon, not AdamW"),
        ("AdamW8bit", "adamw_8bit"),
        ("Lion",),
        ("SGD", "paged AdamW 8-bit"),
        ("Muon (distributed) + Adam",),
    ],
    "notes": [
        ("", "context window 2048", "no sliding window", "mean of a 50-step window", "TSLA", "SL=4096, half precision",
         "MFU over a sliding window of 50 steps", "revision 3", "dense (not MoE)", "not a vision model", "not LoRA"),
        ("sliding window 256", "SWA=256 in every layer", "256-token sliding window"),
        ("window pattern SSSL, window 256", "SSSL, window size 256"),
        ("window pattern SL, half context",),
        ("5:1 local attention, window 256",),
    ],
    "software": [
        ("", "transformers from scratch", "accelerated PyTorch", "PyTorch (not Megatron)", "loop without DeepSpeed"),
        ("transformers 4.40", "HF transformers Trainer", "HF Trainer (not Megatron)"),
        ("llm.c",),
        ("nanochat fork (Nov 2025)",),
        ("NVIDIA Megatron-LM", "Megatron-LM (no DeepSpeed)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("column", ALIKE)
def test_words_of_one_meaning_lead_to_one_prediction(ask, column: str):
    found = [{numbers(ask(GPT2 | {column: text})) for text in texts} for texts in ALIKE[column]]
    assert [len(each) for each in found] == [1] * len(found)
    assert len(set.union(*found)) == len(found)
    assert not any("error" in one for each in found for one in each)


@pytest.mark.parametrize(
    ("key", "names"),
    {
        "h100-80gb-sxm": ("H100 80GB HBM3 SXM", "NVIDIA H100 80GB HBM3", "DGX H100", "8x H100 SXM5 80 GB"),
        "h100-80gb-pcie": ("H100 (PCIe)", "H100 PCIe (not SXM)"),
        "h100-94gb-nvl": ("H100 94GB", "H100 NVL"),
        "a100-40gb-sxm": ("A100 (40GB SXM)",),
        "v100-16gb-pcie": ("V100 (16GB, PCIe)",),
        "h200-141gb-sxm": ("H200", "H200 141GB SXM"),
        "rtx-3090ti": ("RTX 3090 Ti",),
        "rtx-4090": ("RTX4090", "RTX 4090 (not laptop)"),
        "rtx-4090-laptop": ("RTX 4090 (mobile)", "RTX 4090 (Laptop)"),
        "rtx-4070ti-super": ("4070 Ti SUPER",),
        "rtx-pro-6000-bw-ws": ("RTX PRO 6000 Blackwell Workstation Edition",),
        "gb10": ("DGX Spark",),
        "quadro-rtx-8000": ("RTX 8000",),
    }.items(),
)
def test_names_of_gpus_as_people_write_them(ask, key: str, names: tuple[str, ...]):
    row = GPT2 | ALONE | {"micro_batch": "4", "precision": "fp16"}
    assert {numbers(ask(row | {"gpu": name})) for name in (key, *names)} == {numbers(ask(row | {"gpu": key}))}


@pytest.mark.parametrize(
    ("row", "parameters"),
    [
        (GPT2, 124_439_808),
        (NANOCHAT, 560_988_160),
        (LLAMA, 8_030_261_248),
        # the FFN width by an exact count, and a tied head: Llama 3.2 3B
        (LLAMA | {"ffn_mult": "", "params": "3212749824", "layers": "28", "dim": "3072", "heads": "24"}, 3_212_749_824),
        # six of eight tables of value embeddings in a d12 of the later nanochat; 482 scalars are not counted
        (NANOCHAT | {"layers": "12", "dim": "768", "heads": "6", "vocab": "32768", "params": "286261730"}, 286_261_248),
        # SmolLM2 135M: nine heads in groups of three
        (LLAMA | {"layers": "30", "dim": "576", "heads": "9", "ffn_mult": str(1536 / 576), "vocab": "49152",
                  "params": "134515008"}, 134_515_008),
    ],
)  # fmt: skip
def test_a_printed_count_gives_family_heads_and_head(ask, row: dict[str, str], parameters: int):
    assert ask(row)["parameters"] == parameters and ask(row)["words"] == ""


@pytest.mark.parametrize("heads, kv_heads", [(32, 32), (32, 8), (32, 4), (64, 16), (40, 2), (48, 1), (15, 5)])
@pytest.mark.parametrize("tied", [False, True])
def test_every_grouping_of_heads_is_found_by_its_exact_count(ask, heads: int, kv_heads: int, tied: bool):
    dim, layers, vocab, ffn = 128 * heads, 24, 128_256, 3 * 128 * heads
    count = layers * (2 * dim**2 * (1 + kv_heads / heads) + 3 * dim * ffn + 2 * dim) + dim + vocab * dim * (2 - tied)
    sizes = {"layers": layers, "dim": dim, "heads": heads, "vocab": vocab, "ffn_mult": 3, "params": int(count)}
    assert ask(LLAMA | {name: str(value) for name, value in sizes.items()})["parameters"] == int(count)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu": "V100 16GB", "precision": "fp16"}, "all taken"),
        ({"gpu": "A100", "mem_gib_per_gpu": "30"}, "all taken"),
        ({"precision": ""}, "precision is not stated: 16 bits or TF32 taken"),
        ({"gpu": "Tesla T4", "precision": "", **ALONE}, "fp32 taken"),
        ({"compile": ""}, "compilation is not stated"),
        ({"flash_attn": "normal"}, "attention 'normal' is unknown"),
        ({"act_ckpt": "the last 8 layers"}, "activation checkpointing 'the last 8"),
        ({"params": "", "ffn_mult": "3.5"}, "key/value heads are not stated: 12 or 3 taken"),
        ({"params": "", "vocab": "unknown"}, "vocab is not stated"),
        ({"params": ""}, "a GPT-2 taken, as ffn_mult is 4"),
        ({"params": "100000000"}, "a dense decoder of"),
        ({"heads": ""}, "heads are not stated: 12 taken"),
        ({"micro_batch": ""}, "micro_batch is not stated: 4 or 16 or 64 sequences taken"),
        ({"n_gpus": "", "parallelism": ""}, "n_gpus is not stated: one taken"),
        ({"parallelism": "unknown (8 cards)"}, "parallelism is not stated: data parallel taken"),
        ({"parallelism": "DeepSpeed"}, "stage of ZeRO is not stated"),
        ({"software": "trl", "act_ckpt": ""}, "likely full"),
        ({"software": "LLM Foundry", "compile": ""}, "eager, as LLM Foundry is by default"),
        ({"method": "lora"}, "the adapters' rank is not stated: 16 taken"),
        # what cannot be predicted
        *[({"parallelism": text}, "host") for text in ("ZeRO-Offload", "ZeRO-Infinity", "FSDP + CPU offload")],
        *[({"parallelism": text}, "adapters") for text in ("prefix-tuning", "DoRA")],
        *[({"parallelism": text}, "context parallel") for text in ("DeepSpeed Ulysses 4", "ring attention")],
        *[({"parallelism": text}, "pipeline parallel") for text in ("pipeline 4 stages", "GPipe 8")],
        ({"parallelism": "MP8"}, "model parallel"),
        ({"parallelism": "3D parallelism"}, "several kinds"),
        ({"parallelism": "DDP", "n_gpus": ""}, "say how many"),
        *[({"precision": text}, "only fp8, bf16, fp16") for text in ("NVFP4", "bf16 4-bit", "bf16-true + nf4")],
        *[({"optimizer": text}, "only AdamW") for text in ("LAMB", "SOAP")],
        *[({"optimizer": text}, "not modelled") for text in ("1-bit Adam", "GaLore AdamW", "AdamW (CPU offload)")],
        ({"act_ckpt": "full+offload"}, "offload"),
        ({"act_ckpt": "perhaps"}, "write none, selective or full"),
        *[({"notes": text}, "unstated size") for text in ("FA3 sliding window", "sliding window, half precision",
                                                         "SSSL", "sliding window 512 to 1024, window 2048")],
        ({"notes": "BERT-large pretraining; MLM head only"}, "encoder"),
        *[({"notes": text}, "mixture of experts") for text in ("MoE 8x7B", "not LoRA but a MoE")],
        *[({"gpu": text}, "not in the catalog") for text in ("H900", "RTX 4090 Max-Q", "Laptop")],
        *[({"gpu": text}, "does not name a whole") for text in ("MI250 (1 GCD)", "Blackwell (model not named)")],
        ({"gpu": ""}, "not named"),
        ({"gpu": "TPU v4"}, "link between 8 GPUs"),
        ({"gpu": "V100 32GB SXM2", "precision": "bf16"}, "no bf16"),
        ({"layers": ""}, "layers is not given"),
        ({"dim": "-768"}, "'-768'"),
        ({"heads": "7"}, "multiple of heads"),
        ({"params": "900000000"}, "has at the closest"),
        ({"ffn_mult": "", "params": "3200000000"}, "ffn_mult"),
        ({"micro_batch": "8", "grad_accum": "2", "global_batch_tokens": "524288"}, "131,072 tokens"),
        (dict.fromkeys(("precision", "compile", "flash_attn", "act_ckpt", "micro_batch", "vocab", "params"), ""),
         "too much is left open"),
    ],
)  # fmt: skip
def test_what_is_assumed_or_refused_is_said(ask, changes: dict[str, str], words: str):
    assert words in ask(GPT2 | changes)["words"]


def test_a_global_batch_gives_the_accumulation_and_adapters_are_read_in_notes_too(ask):
    base = GPT2 | {"micro_batch": "8"}
    assert numbers(ask(base | {"global_batch_tokens": "524288"})) == numbers(ask(base | {"grad_accum": "8"}))
    lora = {"method": "qlora", "lora_rank": "32", "quantized": "nf4"}
    assert numbers(ask(LLAMA | lora)) == numbers(ask(LLAMA | {"notes": "Llama 3 8B, QLoRA r=32"}))
    assert numbers(ask(LLAMA)) == numbers(ask(LLAMA | {"notes": "1.6x slower than LoRA"}))


@pytest.mark.parametrize("heads", ["441910812", str(10**18)])
def test_any_number_of_heads_is_answered_at_once(ask, heads: str):
    """As many heads as columns were tried in groups of every size: 20 GB and minutes for one cell."""
    began = time.process_time()
    ask(GPT2 | {"dim": heads, "heads": heads})
    assert time.process_time() - began < 2


@settings(max_examples=60, deadline=None)
@given(changes=st.dictionaries(st.sampled_from(COLUMNS), st.text(st.characters(codec="utf-8", exclude_characters="\0"),
                               max_size=12) | st.floats().map(str) | st.integers().map(str)))  # fmt: skip
def test_any_text_in_any_cell_is_a_prediction_or_a_reason(ask, changes: dict[str, str]):
    found = ask(GPT2 | changes)
    assert found.get("error") or 0 < found["step_seconds"]["low"] <= found["step_seconds"]["high"]


def test_tables_that_cannot_be_read_are_refused_in_words(tmp_path: Path):
    path = tmp_path / "rows.csv"
    for content, words in ((b"a,b\n1,2\n", "no column gpu"), (b"\xff\xfe\x00", "not a CSV"), (b"", "no column gpu")):
        path.write_bytes(content)
        with pytest.raises(AdvisorError, match=words):
            list(row_cells(path))


def test_the_rows_that_the_accuracy_is_measured_on_are_answered_in_order(capsys):
    """A layout too; within twice and half of the measured but for set-ups that are broken."""
    main([str(profiles_folder() / "public_runs.csv"), "--json"])
    answers = list(map(json.loads, capsys.readouterr().out.splitlines()))
    lines = list(csv.DictReader((profiles_folder() / "public_runs.csv").open(encoding="utf-8")))
    assert [answer["row"] for answer in answers] == list(range(1, len(lines) + 1))
    found = [(a, line) for a, line in zip(answers, lines, strict=True) if "error" not in a]
    assert len(found) > 750
    ratios = [a["tokens_per_second"]["value"] / float(line["tok_per_s_total"])
              for a, line in found if line["tok_per_s_total"]]  # fmt: skip
    assert len(ratios) > 400 and sum(0.5 < r < 2 for r in ratios) > 0.93 * len(ratios)
    grand = [a["peak_reserved_bytes"]["value"] / 2**30 / float(line["mem_gib_per_gpu"]) for a, line in found
             if line["gpu"].startswith("H100 96GB") and "float8" not in line["precision"] and a["peak_reserved_bytes"]
            ]  # fmt: skip
    assert grand and all(0.75 < ratio < 1.25 for ratio in grand)  # 62 to 82 GiB measured
