"""Golden values of the handbook, sections 1.1 and 8 (1-3), and properties that hold for every shape."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.laws.flops import (
    block_matrix_parameters,
    flops_per_token,
    flops_per_token_windows,
    matmul_parameters,
    mfu,
    nanochat_2026_counts,
    parameters,
    scaling_parameters,
)
from trainer.schema import ModelShape, make_shape

H100_PEAK = 989e12


def nanochat(depth: int) -> ModelShape:
    return make_shape("nanochat", depth=depth, vocab_size=65536, seq_len=2048)


@pytest.mark.parametrize(
    ("depth", "total", "matrices", "table", "flops"),
    [
        (12, 185_597_952, 84_934_656, 50_331_648, 1_038_090_240),
        (16, 335_544_320, 201_326_592, 67_108_864, 2_013_265_920),
        (20, 560_988_160, 393_216_000, 83_886_080, 3_491_758_080),
        (24, 880_803_840, 679_477_248, 100_663_296, 5_586_812_928),
        (32, 1_879_048_192, 1_610_612_736, 134_217_728, 12_079_595_520),
    ],
)
def test_nanochat_of_december_2025(depth: int, total: int, matrices: int, table: int, flops: int) -> None:
    shape = nanochat(depth)
    assert parameters(shape) == total
    assert block_matrix_parameters(shape) == matrices
    assert matmul_parameters(shape) == matrices + table
    assert flops_per_token(shape) == flops


@pytest.mark.parametrize(("depth", "steps"), [(16, 12_800), (24, 33_600), (32, 71_680)])
def test_steps_printed_in_real_logs(depth: int, steps: int) -> None:
    assert scaling_parameters(nanochat(depth), "total") * 20 // 524_288 == steps


@pytest.mark.parametrize(
    ("depth", "width", "total", "scaling", "flops"),
    [
        (12, 768, 286_261_730, 110_100_912, 759_696_048),
        (16, 1024, 536_871_738, 234_881_792, 1_585_451_664),
        (20, 1280, 896_533_746, 435_160_240, 2_886_212_784),
        (24, 1536, 1_384_122_122, 729_810_624, 4_775_225_616),
    ],
)
def test_nanochat_since_march_2026(depth: int, width: int, total: int, scaling: int, flops: int) -> None:
    counts = nanochat_2026_counts(depth, width=width)
    assert (counts.total, counts.scaling) == (total, scaling)
    assert counts.flops_per_token(width, 2048) == flops


def test_the_published_speedrun() -> None:
    gates = 12 * 12 * 32  # value-embedding layers, heads, channels
    matmul = 679_477_248 + 50_331_648 + gates
    windows = [2048 if layer % 4 == 3 else 1024 for layer in range(24)]
    flops = flops_per_token_windows(matmul, windows, width=1536, seq_len=2048)
    assert flops == 4_945_112_064
    tokens_per_second = 16_704 * 524_288 / 10_949.467
    assert tokens_per_second == pytest.approx(799_830, rel=1e-5)
    assert mfu(flops, tokens_per_second, 8, H100_PEAK) == pytest.approx(0.4999, abs=5e-5)


@pytest.mark.parametrize(
    ("depth", "gpus", "tokens_per_second", "percent"),
    [(16, 2, 430_600, 43.83), (24, 2, 178_000, 50.28), (32, 8, 524_288 / 1.57188, 50.92)],
)
def test_mfu_of_published_runs(depth: int, gpus: int, tokens_per_second: float, percent: float) -> None:
    measured = mfu(flops_per_token(nanochat(depth)), tokens_per_second, gpus, H100_PEAK)
    assert 100 * measured == pytest.approx(percent, abs=0.006)


def test_published_gpt2_and_llama_counts() -> None:
    gpt2 = make_shape("gpt2", depth=12, vocab_size=50257, seq_len=1024)
    assert parameters(gpt2) == 124_439_808
    assert matmul_parameters(gpt2) == 12 * 12 * 768**2 + 50257 * 768
    llama_7b = make_shape("llama", depth=32, vocab_size=32000, seq_len=2048)
    assert parameters(llama_7b) == 6_738_415_616
    llama_8b = make_shape("llama", depth=32, vocab_size=128256, seq_len=8192, kv_heads=8, ffn_width=14336)
    assert parameters(llama_8b) == 8_030_261_248


def test_without_a_peak_there_is_no_mfu() -> None:
    assert mfu(1e9, 1e5, 1, None) is None


shapes = st.builds(
    lambda family, depth, head, groups, kv, ffn, vocab, seq: ModelShape(
        family=family,
        depth=depth,
        width=2 * head * groups * kv,
        heads=groups * kv,
        kv_heads=kv,
        ffn_width=ffn,
        vocab_size=vocab,
        seq_len=seq,
    ),
    st.sampled_from(["nanochat", "gpt2", "llama"]),
    *(st.integers(1, most) for most in (64, 64, 4, 8, 30_000, 200_000, 100_000)),
)


@given(shapes)
def test_counts_of_any_shape(shape: ModelShape) -> None:
    assert shape.problems() == []
    counted = [scaling_parameters(shape, counts) for counts in ("matrices", "matrices+head", "total")]
    assert 0 < counted[0] < counted[1] < counted[2]
    deeper = ModelShape(**{**shape.__dict__, "depth": 2 * shape.depth})
    assert block_matrix_parameters(deeper) == 2 * block_matrix_parameters(shape)
    per_layer = (parameters(deeper) - parameters(shape)) / shape.depth
    assert per_layer >= block_matrix_parameters(shape) / shape.depth
    attention = flops_per_token(shape) - 6 * matmul_parameters(shape)
    assert attention == pytest.approx(12 * shape.depth * shape.width * shape.seq_len)


def test_an_unknown_count_is_an_error() -> None:
    with pytest.raises(ValueError, match="matrices\\+head"):
        scaling_parameters(nanochat(12), "all")
