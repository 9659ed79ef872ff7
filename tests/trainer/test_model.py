"""The model against published parameter counts, and its blocks against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from trainer.model import RmsNorm, _rotary_table, _rotate, build_model
from trainer.schema import FAMILIES, make_shape


def count(shape):
    with torch.device("meta"):
        return sum(p.numel() for p in build_model(shape).parameters())


# Handbook §1.1: GPT-2 small, LLaMA-7B, Llama-3.1-8B and the December 2025 nanochat table.
GOLDEN = [
    (make_shape("gpt2", depth=12, vocab_size=50257, seq_len=1024), 124_439_808),
    (make_shape("llama", depth=32, vocab_size=32_000, seq_len=2048), 6_738_415_616),
    (make_shape("llama", depth=32, vocab_size=128_256, seq_len=8192, kv_heads=8, ffn_width=14_336), 8_030_261_248),
    (make_shape("nanochat", depth=12, vocab_size=65_536, seq_len=2048), 185_597_952),
    (make_shape("nanochat", depth=16, vocab_size=65_536, seq_len=2048), 335_544_320),
    (make_shape("nanochat", depth=20, vocab_size=65_536, seq_len=2048), 560_988_160),
    (make_shape("nanochat", depth=24, vocab_size=65_536, seq_len=2048), 880_803_840),
    (make_shape("nanochat", depth=32, vocab_size=65_536, seq_len=2048), 1_879_048_192),
]


@pytest.mark.parametrize("shape, parameters", GOLDEN, ids=[f"{s.family}-{s.depth}-{s.kv_heads}" for s, _ in GOLDEN])
def test_parameter_counts_equal_the_published_ones(shape, parameters):
    assert count(shape) == parameters


def small(family, **changes):
    sizes = {"depth": 2, "width": 32, "heads": 4, "vocab_size": 97, "seq_len": 16} | changes
    torch.manual_seed(0)
    return build_model(make_shape(family, **sizes))


def batch(vocab_size=97, time=16):
    tokens = torch.randint(vocab_size, (3, time + 1), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_starts_near_ln_v(family):
    model = small(family, width=128, vocab_size=4000)
    assert model.loss(*batch(4000)).item() == pytest.approx(math.log(4000), abs=0.3)


@pytest.mark.parametrize("family, kv_heads", [("nanochat", 4), ("gpt2", 4), ("llama", 2)])
def test_every_parameter_learns(family, kv_heads):
    """After one step away from the zero-initialised projections, gradient reaches all of the model."""
    model = small(family, kv_heads=kv_heads)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model.loss(*batch()).backward()
        optimizer.step()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    # A bias on the keys shifts all scores of a query alike, so its gradient is zero but for rounding.
    assert [name for name in silent if "key.bias" not in name] == []


@pytest.mark.parametrize("family, kv_heads", [("nanochat", 4), ("gpt2", 4), ("llama", 2)])
def test_the_future_is_not_seen(family, kv_heads):
    model = small(family, kv_heads=kv_heads)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.2)
    tokens, _ = batch()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 97
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9], rtol=0, atol=1e-5)
    assert (before[:, 9:] - after[:, 9:]).abs().max() > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_recomputing_activations_changes_nothing(family):
    grads = []
    for mode in ("none", "full"):
        torch.manual_seed(0)
        shape = make_shape(family, depth=2, width=32, heads=4, vocab_size=97, seq_len=16)
        model = build_model(shape, activation_checkpointing=mode)
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.1, generator=torch.Generator().manual_seed(p.numel()))
        model.loss(*batch()).backward()
        grads.append([p.grad for p in model.parameters()])
    for kept, recomputed in zip(*grads, strict=True):
        torch.testing.assert_close(kept, recomputed)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_16_bit_hidden_states_and_nearly_the_same_loss(family, dtype):
    model = small(family)
    tokens, targets = batch()
    with torch.autocast("cpu", dtype=dtype):
        assert model(tokens).dtype == dtype
        loss = model.loss(tokens, targets)
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    assert loss.item() == pytest.approx(model.loss(tokens, targets).item(), abs=0.02)


def test_nanochat_logits_stay_within_the_softcap():
    model = small("nanochat")
    torch.nn.init.normal_(model.head.weight, std=100.0)
    # Every loss is then at most the widest gap between two capped logits, plus ln V.
    assert model.loss(*batch()).item() <= 30 + math.log(97)


def test_grouped_queries_share_a_key():
    """Grouped heads equal full heads whose keys and values are repeated."""
    grouped, full = small("llama", kv_heads=2), small("llama", kv_heads=4)
    state = grouped.state_dict()
    for name, value in state.items():
        if ".key." in name or ".value." in name:
            state[name] = value.view(2, 8, 32).repeat_interleave(2, dim=0).reshape(32, 32)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(batch()[0]), full(batch()[0]))


def test_rotation_keeps_lengths_and_depends_on_distance_only():
    table = _rotary_table(16, 8)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(8, generator=generator).expand(1, 16, 1, 8)
    key = torch.randn(8, generator=generator).expand(1, 16, 1, 8)
    turned_query, turned_key = _rotate(query, table)[0, :, 0], _rotate(key, table)[0, :, 0]
    torch.testing.assert_close(turned_query.norm(dim=-1), query[0, :, 0].norm(dim=-1))
    scores = turned_query @ turned_key.t()
    torch.testing.assert_close(scores[3, 1], scores[12, 10])
    assert abs(scores[3, 1] - scores[3, 2]) > 1e-3


@pytest.mark.parametrize("weight", [False, True])
def test_rms_norm_equals_pytorchs_in_value_and_gradient(weight):
    norm = RmsNorm(24, 1e-6, weight=weight).double()
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    upstream = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    expected = F.rms_norm(x, (24,), norm.weight, 1e-6)
    torch.testing.assert_close(norm(x), expected, rtol=1e-10, atol=1e-12)
    got = torch.autograd.grad(norm(x), x, upstream)[0]
    want = torch.autograd.grad(expected, x, upstream)[0]
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_compiled_blocks_give_the_same_loss_and_another_depth_compiles_nothing_new():
    tokens, targets = batch()
    compiled_graphs = []
    for depth in (2, 3):
        model = small("nanochat", depth=depth)
        torch.nn.init.normal_(model.head.weight)
        expected = model.loss(tokens, targets)
        model.compile_blocks(backend="aot_eager")
        torch.testing.assert_close(model.loss(tokens, targets), expected)
        compiled_graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert compiled_graphs[0] == compiled_graphs[1] > 0


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_fixes_the_weights(seed):
    states = []
    for _ in range(2):
        torch.manual_seed(seed)
        states.append(build_model(make_shape("gpt2", depth=1, width=64, vocab_size=50, seq_len=8)).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))
