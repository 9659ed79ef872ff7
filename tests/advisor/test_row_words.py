"""Words of published tables as different tables spell them: the one thing each can mean, or a refusal."""

from __future__ import annotations

import pytest

from advisor.hardware.catalog import require_gpu
from advisor.prediction.row_words import (
    Open,
    Refusal,
    adapters_in,
    architecture,
    read_adapters,
    read_checkpointing,
    read_compile,
    read_fused_attention,
    read_moment_bytes,
    read_named,
    read_optimizer,
    read_precision,
    read_sharding,
    read_software,
    read_windows,
)
from advisor.prediction.software import table
from advisor.records import Adapters
from trainer.schema import make_shape

SHAPE = make_shape("gpt2", depth=8, width=1024, vocab_size=50304, seq_len=8192)


@pytest.mark.parametrize(
    ("text", "sharding"),
    [
        *[
            (t, "none")
            for t in ("", "single", "single device", "DDP", "DDP 8", "DP8 TP1 PP1", "FSDP NO_SHARD", "ZeRO-0")
        ],
        *[(t, "optimizer") for t in ("ZeRO-1", "ZeRO 2", "zero_stage=2", "FSDP SHARD_GRAD_OP")],
        ("DeepSpeed ZeRO stage 1", "optimizer"),
        *[(t, "full") for t in ("FSDP", "FSDP2 full shard", "FSDP HYBRID_SHARD", "HSDP", "ZeRO-3", "ZeRO stage 3")],
        *[(t, "full") for t in ("DeepSpeed stage 3", "fully sharded", "FSDP (no TP)")],
    ],
)
def test_what_data_parallelism_splits(text: str, sharding: str):
    assert read_sharding(text) == sharding


def test_a_distributed_optimizer_is_sharded_whatever_the_gradients_do():
    assert read_sharding("DDP 8", "Muon (distributed) + Adam") == "optimizer"
    assert read_sharding("FSDP", "distributed Adam") == "full"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *[(t, "tensor parallel") for t in ("FSDP32xTP8", "DP8xTP4xPP1", "dp8tp4", "tensor 8", "TP=2", "async TP")],
        *[(t, "pipeline parallel") for t in ("DP4xPP2", "pipeline 4 stages", "1F1B interleaved", "GPipe 8")],
        *[(t, "model parallel") for t in ("MP8", "model_parallel_size 8", "model parallel 4")],
        *[(t, "context parallel") for t in ("FSDP8 x CP2", "DeepSpeed Ulysses 4", "ring attention")],
        ("3D parallelism", "several kinds"),
        *[(t, "adapters") for t in ("LoRA", "QLoRA", "DoRA", "PEFT", "adapters r=16", "prefix-tuning")],
        *[(t, "host") for t in ("ZeRO-Offload", "ZeRO-Infinity", "FSDP + CPU offload")],
    ],
)
def test_other_schemes_are_refused_however_they_are_written(text: str, words: str):
    found = read_sharding(text)
    assert isinstance(found, Refusal) and words in found.reason


@pytest.mark.parametrize(
    ("text", "precision", "state"),
    [
        ("bf16", "bf16", "fp32"),
        ("bf16-mixed", "bf16", "fp32"),
        ("amp_bf16 (MP DEFAULT)", "bf16", "fp32"),
        ("bf16 (MP PURE)", "bf16", "fp32"),  # FSDP's mode: shards stay fp32
        ("bf16 mixed (fp32 master, bf16 compute)", "bf16", "fp32"),
        ("bf16 (fp32 master)", "bf16", "copied"),
        ("bf16 (fp32 grad accumulation)", "bf16", "copied"),
        ("bf16 (pure)", "bf16", "16bit"),
        ("bf16-true", "bf16", "16bit"),
        ("fp16", "fp16", "copied"),
        ("amp_fp16", "fp16", "fp32"),
        ("fp16 AMP", "fp16", "fp32"),
        ("16-mixed", "fp16", "fp32"),
        ("half", "fp16", "fp32"),
        ("TF32", "fp32", "fp32"),
        ("fp32/TF32", "fp32", "fp32"),
    ],
)
def test_precision_and_the_state_it_keeps(text: str, precision: str, state: str):
    assert read_precision(text).kind == precision
    assert read_software(text, "").state == state


@pytest.mark.parametrize("text", ["NVFP4", "bf16 4-bit", "bf16 + int4", "??"])
def test_precisions_that_are_not_modelled_are_refused(text: str):
    assert isinstance(read_precision(text), Refusal)


@pytest.mark.parametrize("text", ["FP8 (TE)", "mxfp8", "float8 tensorwise linears", "amp_fp8 (MP DEFAULT)"])
def test_8_bit_floats_are_of_the_blocks(text: str):
    assert read_precision(text).fp8
    assert not read_precision("bf16 (+fp8 head from 2025-01)").fp8


@pytest.mark.parametrize("text, tf32", [("fp32 (no TF32)", False), ("fp32 (no autocast)", False), ("fp32/TF32", True)])
def test_fp32_says_whether_it_uses_the_tf32_units(text: str, tf32: bool):
    assert read_precision(text).tf32 is tf32
    assert isinstance(read_precision("fp32"), Open) and isinstance(read_precision(""), Open)


def test_what_is_not_stated_follows_the_custom_of_its_kind():
    assert read_compile("", table()["hf-trainer"]).choices == ((False, 1.0),)
    assert read_compile("", table()["nanogpt"]).choices == ((True, 1.0),)
    assert len(read_compile("").choices) == 2 and read_compile("", table()["llmc"]) is True
    assert read_fused_attention("", table()["nanochat"]).choices == ((True, 1.0),)
    assert read_fused_attention("no (eager HF)", table()["hf-trainer"]) is False
    assert read_fused_attention("SDPA") is True


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *[(t, "none") for t in ("none", "no", "False", "off", "none (-r 0)")],
        *[(t, "selective") for t in ("selective (op)", "selective (per-op)", "SAC", "per-op selective")],
        *[(t, "full") for t in ("full", "yes", "True", "on", "full (every block)")],
    ],
)
def test_checkpointing(text: str, kind: str):
    assert read_checkpointing(text) == kind


@pytest.mark.parametrize("text", ["full+offload", "perhaps"])
def test_checkpointing_of_other_kinds_is_refused(text: str):
    assert isinstance(read_checkpointing(text), Refusal)


@pytest.mark.parametrize("text", ["yes", "True", "torch.compile", "yes (max-autotune)", "C/CUDA", "inductor", "XLA"])
def test_fused(text: str):
    assert read_compile(text) is True


@pytest.mark.parametrize("text", ["no", "False", "no torch.compile", "not compiled", "eager (no compile)", "none"])
def test_not_fused(text: str):
    assert read_compile(text) is False


@pytest.mark.parametrize("text", ["LAMB", "SOAP", "Shampoo"])
def test_other_optimizers_are_refused(text: str):
    assert isinstance(read_optimizer(text), Refusal)


def test_a_row_that_trains_adapters_says_so_in_its_notes_too():
    assert adapters_in("Llama 3 8B, QLoRA r=32, packed") == "QLoRA r=32"
    assert read_adapters("", "", "", "", "single QLoRA r=32") == Adapters(rank=32, quantized=True)
    assert adapters_in("1.6x slower than LoRA") == ""


@pytest.mark.parametrize(
    ("notes", "attended"),
    [
        ("sliding window 4096", 4096),
        ("SWA=1024 in every layer", 1024),
        ("sliding window of 1,024", 1024),
        ("4k-token sliding window", 4096),
        ("sliding window 16384", 8192),  # no less than everything
        ("alternating sliding window 2048 and full attention", (2048 + 8192) / 2),
        ("5:1 local attention, window 1024", (5 * 1024 + 8192) / 6),
        ("window pattern SSSL, short = half context", (6 * 4096 + 2 * 8192) / 8),
        ("SSSL, window size 1024", (6 * 1024 + 2 * 8192) / 8),
    ],
)
def test_windows_as_tables_state_them(notes: str, attended: float):
    """Worked out by hand for 8 layers and 8,192 tokens; the last layer of a pattern of letters sees all."""
    assert read_windows("", notes).attended(SHAPE) == pytest.approx(attended)


@pytest.mark.parametrize(
    "notes", ["FA3 sliding window", "windowed FlexAttention", "SSSL", "sliding window 512 to 1024, window 2048"]
)
def test_windows_of_unstated_size_are_refused(notes: str):
    assert isinstance(read_windows("", notes), Refusal)


@pytest.mark.parametrize("notes", ["", "context window 2048", "no sliding window", "mean of a 50-step window", "TSLA"])
def test_other_windows_are_none(notes: str):
    assert read_windows("SDPA", notes) is None


UNSTATED = ("unknown", "?", "not stated", "Not stated in the paper", "n/a", "N/A", "-")


@pytest.mark.parametrize("text", UNSTATED)
def test_cells_that_say_that_nothing_is_known_are_empty(text: str):
    for read in (read_precision, read_checkpointing):
        assert read(text) == read("")
    for named in (None, table()["nanochat"], table()["trl"], table()["llmc"]):
        assert read_fused_attention(text, named) == read_fused_attention("", named)
        assert read_compile(text, named) == read_compile("", named)
    assert (read_optimizer(text), read_sharding(text), read_windows(text, text)) == ("adamw", "none", None)


@pytest.mark.parametrize(
    ("text", "fused"),
    [
        *[(t, True) for t in ("yes", "y", "1", "enabled", "SDPA (HF default)", "SDPA mask", "TE/cuDNN", "xformers")],
        *[(t, True) for t in ("FA2/SDPA", "FlashAttention-3", "flex", "SDPA (no flash on V100)", "SDPA, not math")],
        *[(t, False) for t in ("disabled", "0", "n", "no", "naive", "sdpa math", "SDPA (math backend)", "eager")],
        *[(t, False) for t in ("no (Megatron fused softmax)", "use_flash_attn=False", "flash-attn: no", "not fused")],
        *[(t, False) for t in ("FlashAttention disabled", "w/o flash", "unfused", "flash off")],
    ],
)
def test_attention_that_keeps_no_scores(text: str, fused: bool):
    assert read_fused_attention(text) is fused


@pytest.mark.parametrize("text", ["normal", "standard attention", "Megatron fused softmax"])
def test_attention_in_words_of_no_meaning_is_open(text: str):
    found = read_fused_attention(text)
    assert found.choices == read_fused_attention("").choices and text in found.words


@pytest.mark.parametrize(
    ("text", "compiled"),
    [
        *[(t, True) for t in ("enabled", "max-autotune", "reduce-overhead", "y", "torch.compile (not max-autotune)")],
        *[(t, False) for t in ("disabled (torch.compile)", "torch.compile=False", "w/o torch.compile", "compile: no")],
        *[(t, False) for t in ("torch.compile (disabled)", "n", "0", "compilation off", "no (commented out)")],
    ],
)
@pytest.mark.parametrize("name", [None, "trl", "llmc"])
def test_compilation(text: str, compiled: bool, name: str | None):
    assert read_compile(text, table().get(name)) is compiled


def test_a_version_is_no_statement_about_compilation_and_an_unknown_word_is_said():
    assert read_compile("CUDA 12.1") == read_compile("cuda") == read_compile("")
    found = read_compile("PyTorch 2.3, CUDA 12.1")
    assert found.choices == read_compile("").choices and "PyTorch 2.3" in found.words


@pytest.mark.parametrize(
    "text", ["fp32 (TF32 disabled)", "tf32 off", "not tf32", "tf32=False", "fp32, allow_tf32=False"]
)
def test_tf32_may_be_denied(text: str):
    found = read_precision(text)
    assert (found.kind, found.tf32) == ("fp32", False)
    assert read_precision("fp32 (TF32 not stated)") == read_precision("fp32")


@pytest.mark.parametrize("text", ["bf16 (no fp8)", "bf16, fp8 disabled", "bf16 (not fp16)", "bf16 without fp8/fp4"])
def test_another_precision_may_be_denied(text: str):
    found = read_precision(text)
    assert (found.kind, found.fp8, read_software(text, "").state) == ("bf16", False, "fp32")


@pytest.mark.parametrize(
    ("text", "sharding"),
    [
        *[(t, "none") for t in ("no FSDP", "DDP not FSDP", "without FSDP", "DDP (no ZeRO-3)", "DDP (not sharded)")],
        *[
            (t, "none")
            for t in ("DP only (no TP/PP)", "TP=PP=1", "DP=8, TP=PP=CP=1", "no tensor or pipeline parallelism")
        ],
        *[(t, "none") for t in ("DDP (DeepSpeed)", "DeepSpeed stage 0", "DDP (no LoRA)")],
        *[
            (t, "full")
            for t in ("FSDP (no ZeRO)", "FSDP2 (no TP/PP)", "ZeRO++ stage 3", "DeepSpeed, ZeRO-3, no offload")
        ],
    ],
)
def test_sharding_that_is_denied(text: str, sharding: str):
    assert read_sharding(text) == sharding


@pytest.mark.parametrize("text", ["ZeRO", "ZeRO++", "DeepSpeed", "DeepSpeed ZeRO, 8 GPUs"])
def test_zero_of_no_stage_is_open(text: str):
    found = read_sharding(text)
    assert isinstance(found, Open) and text in found.words
    assert {choice for choice, _ in found.choices} == {"optimizer", "full"}


@pytest.mark.parametrize("text", ["TP=PP=2", "no TP, PP 4", "no TP, PP4", "FSDP, TP/PP 2", "no FSDP, TP8"])
def test_a_denied_scheme_does_not_hide_another(text: str):
    assert isinstance(read_sharding(text), Refusal)


@pytest.mark.parametrize(
    "notes",
    [
        *("SL=4096, half precision", "SL 2048", "SSL", "LS 8", "MFU over a sliding window of 50 steps"),
        *("sliding window 100 iterations", "mean of a 50-step sliding window", "moving average of loss"),
        *("sliding_window=None", "not windowed", "unknown"),
    ],
)
def test_no_attention_over_windows(notes: str):
    assert read_windows("SDPA", notes) is None


@pytest.mark.parametrize(
    ("notes", "pattern"),
    [
        ("window pattern SSL, window 1024", "SSL"),
        ("SL window pattern, half context", "SL"),
        ("SSSL half context", "SSSL"),
    ],
)
def test_letters_of_a_pattern(notes: str, pattern: str):
    assert read_windows("", notes).pattern == pattern


def test_half_a_precision_is_no_window():
    assert isinstance(read_windows("", "sliding window, half precision"), Refusal)
    assert read_windows("", "sliding window 1024, MFU over a window of 50 steps").tokens == 1024


@pytest.mark.parametrize(
    "notes",
    [
        *(
            "revision 3",
            "division of labour",
            "provisioned cluster",
            "no MoE",
            "dense (not MoE)",
            "not LoRA",
            "unknown",
        ),
        *("non-MoE", "GPT-2 without experts", "not a vision model"),
    ],
)
def test_notes_that_speak_of_no_other_architecture(notes: str):
    assert architecture(notes) == notes


@pytest.mark.parametrize("notes", ["computer vision", "MoE 8x7B", "not LoRA but a MoE", "vision-language"])
def test_notes_that_do(notes: str):
    assert isinstance(architecture(notes), Refusal)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("AdamW8bit", 2), ("adamw_8bit", 2), ("paged AdamW 8-bit", 0), ("Lion", 4), ("SGD", 0), ("AdamW (fused)", None)],
)
def test_optimizers_that_keep_less_are_read_with_what_they_keep(text: str, bytes_: float | None):
    assert read_optimizer(text) == "adamw"
    assert read_moment_bytes(text) == bytes_


@pytest.mark.parametrize("text", ["1-bit Adam", "GaLore AdamW", "DeepSpeedCPUAdam", "AdamW (CPU offload)"])
def test_optimizers_with_other_state_are_refused(text: str):
    assert isinstance(read_optimizer(text), Refusal)


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        ("AdamW (not 8-bit)", "adamw"),
        ("AdamW, 32-bit", "adamw"),
        ("AdamW (no Muon)", "adamw"),
        ("Muon, not AdamW", "muon"),
    ],
)
def test_optimizers_that_are_denied(text: str, optimizer: str):
    assert read_optimizer(text) == optimizer


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *[(t, "plain") for t in ("transformers from scratch", "accelerated PyTorch", "PyTorch (not Megatron)")],
        *[(t, "plain") for t in ("own loop without DeepSpeed", "unknown", "?")],
        *[(t, "wrapper") for t in ("transformers 4.40", "accelerate", "HF (not Megatron)")],
        ("Megatron-LM (no DeepSpeed)", "megatron"),
    ],
)
def test_kinds_of_training_loops(text: str, kind: str):
    named = read_named(text)
    assert (named.kind if named else "plain") == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [("disabled", "none"), ("n", "none"), ("not used", "none"), ("enabled", "full"), ("full, no offload", "full")],
)
def test_checkpointing_as_a_switch(text: str, kind: str):
    assert read_checkpointing(text) == kind


def test_adapters_are_read_of_their_own_columns_or_of_the_parallelism():
    assert read_adapters("lora", "64", "q_proj, v_proj", "no", "single") == Adapters(rank=64, targets="attention")
    assert read_adapters("qlora", "16", "all linear", "nf4", "") == Adapters(rank=16, quantized=True)
    assert read_adapters("full", "", "", "", "single bf16") is None
    unstated = read_adapters("", "", "", "", "LoRA, single")
    assert isinstance(unstated, Open) and unstated.choices[0][0] == Adapters(rank=16)
    assert isinstance(read_adapters("qlora (lm_head trained in full)", "16", "", "", ""), Refusal)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("every other layer", {"none": 0.5, "full": 0.5}), ("12 of 48 layers", {"none": 0.75, "full": 0.25}),
        ("30 %", {"none": 0.7, "full": 0.3}), ("24/24 blocks", "full"), ("per layer", "full"),
        ("MLP only", "selective"), ("core attention", "selective"),
        ("partial", {"selective": 0.5, "none": 0.25, "full": 0.25}),
    ],
)  # fmt: skip
def test_what_is_recomputed_in_part_is_read_as_such(words, expected):
    found = read_checkpointing(words)
    assert found == expected if isinstance(expected, str) else dict(found.choices) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["RTX 4090 D", "rtx4090d", "NVIDIA GeForce RTX 5090 D", "rtx-5090d"])
def test_a_card_sold_with_less_is_not_the_card_of_the_name(name):
    spec = require_gpu(name)
    whole = require_gpu(spec.key.removesuffix("d"))
    assert spec.key.endswith("90d") and spec.bf16_flops < 0.9 * whole.bf16_flops
    assert spec.memory_bytes_per_second == whole.memory_bytes_per_second
