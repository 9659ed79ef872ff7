"""The chunked loss against PyTorch's own, in value and in gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode

from trainer.loss import chunk_gradient, chunk_gradient_pure, linear_cross_entropy, tokens_per_chunk

WIDTH, VOCABULARY, TOKENS = 8, 23, 30


def make(dtype=torch.float64, tokens=TOKENS):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(tokens, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype).requires_grad_()
    targets = torch.randint(VOCABULARY, (tokens,), generator=generator)
    return hidden, weight, targets


def plain(hidden, weight, targets, softcap):
    logits = hidden @ weight.t()
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return F.cross_entropy(logits.float() if logits.dtype == torch.float16 else logits, targets)


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("chunk", [1, 7, 15, 30, 100])
def test_equals_plain_cross_entropy_in_value_and_gradient(softcap, chunk):
    hidden, weight, targets = make()
    fused = linear_cross_entropy(hidden, weight, targets, softcap=softcap, chunk_tokens=chunk)
    by_fused = torch.autograd.grad(3.5 * fused, (hidden, weight))  # 3.5: an upstream gradient, as a loss scale is
    expected = plain(hidden, weight, targets, softcap)
    by_plain = torch.autograd.grad(3.5 * expected, (hidden, weight))
    torch.testing.assert_close(fused, expected, rtol=1e-12, atol=0)
    for got, want in zip(by_fused, by_plain, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-14)


def test_a_second_backward_is_refused_rather_than_scaled_twice():
    hidden, weight, targets = make()
    loss = linear_cross_entropy(hidden, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_leaves_its_inputs_alone_and_takes_batched_shapes():
    hidden, weight, targets = make(torch.float32)
    before = hidden.detach().clone(), weight.detach().clone()
    flat = linear_cross_entropy(hidden, weight, targets, softcap=15.0, chunk_tokens=7)
    batched = linear_cross_entropy(hidden.view(5, 6, WIDTH), weight, targets.view(5, 6), softcap=15.0, chunk_tokens=7)
    assert torch.equal(flat, batched)
    assert torch.equal(before[0], hidden) and torch.equal(before[1], weight)


def test_without_gradients_gives_the_same_value():
    hidden, weight, targets = make(torch.float32)
    with torch.no_grad():
        value = linear_cross_entropy(hidden, weight, targets, softcap=2.0, chunk_tokens=7)
    torch.testing.assert_close(value, plain(hidden, weight, targets, 2.0).detach())
    assert not value.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_under_autocast_the_softmax_stays_fp32(dtype):
    hidden, weight, targets = make(torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=7)
    loss.backward()
    assert loss.dtype == torch.float32 and hidden.grad.dtype == torch.float32 and weight.grad.dtype == torch.float32
    reference_hidden, reference_weight, _ = make(torch.float32)
    expected = plain(reference_hidden, reference_weight, targets, None)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=0.01, atol=0.01)
    torch.testing.assert_close(weight.grad, reference_weight.grad, rtol=0.1, atol=2e-3)


def test_fp16_gradients_of_many_tokens_do_not_underflow():
    """With 1/tokens = 1/65536 inside the chunk, softmax gradients of 1/23/65536 would be fp16 subnormals or zero."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(65536, WIDTH, generator=generator).half().float().requires_grad_()
    weight = (0.01 * torch.randn(VOCABULARY, WIDTH, generator=generator)).half().float().requires_grad_()
    targets = torch.randint(VOCABULARY, (65536,), generator=generator)
    scale = 65536.0
    with torch.autocast("cpu", dtype=torch.float16):
        loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=4096)
    got = torch.autograd.grad(loss * scale, weight)[0] / scale
    want = torch.autograd.grad(plain(hidden, weight, targets, None), weight)[0]
    assert (got - want).norm() / want.norm() < 0.01


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_the_compiled_form_is_the_same_function(softcap):
    generator = torch.Generator().manual_seed(1)
    logits = 4 * torch.randn(6, VOCABULARY, generator=generator, dtype=torch.float64)
    targets = torch.randint(VOCABULARY, (6,), generator=generator)
    pure = chunk_gradient_pure(logits, targets, softcap)
    inplace = chunk_gradient(logits.clone(), targets, softcap)
    torch.testing.assert_close(pure[0], inplace[0], rtol=1e-12, atol=0)
    torch.testing.assert_close(pure[1], inplace[1], rtol=1e-10, atol=1e-14)


def test_uniform_logits_cost_ln_v():
    _, _, targets = make(torch.float32)
    value = linear_cross_entropy(torch.zeros(TOKENS, WIDTH), torch.ones(VOCABULARY, WIDTH), targets)
    assert value.item() == pytest.approx(math.log(VOCABULARY), rel=1e-6)


def test_a_fake_tensor_passes_through():
    with FakeTensorMode():
        hidden = torch.empty(64, WIDTH, requires_grad=True)
        weight = torch.empty(VOCABULARY, WIDTH, requires_grad=True)
        linear_cross_entropy(hidden, weight, torch.empty(64, dtype=torch.int64), softcap=15.0).backward()
        assert weight.grad.shape == (VOCABULARY, WIDTH)


@pytest.mark.parametrize(
    "tokens, vocab_size, device", [(4096, 50_304, "cpu"), (16_384, 65_536, "cuda"), (1000, 32_768, "cpu")]
)
def test_chunks_are_equal_and_bounded(tokens, vocab_size, device):
    chunk = tokens_per_chunk(tokens, vocab_size, device)
    assert tokens % chunk == 0
    assert chunk <= max({"cpu": 128, "cuda": 512}[device], {"cpu": 1 << 20, "cuda": 1 << 26}[device] // vocab_size)


def test_chunks_of_a_prime_number_of_tokens_are_not_single_tokens():
    assert tokens_per_chunk(4099, 50_304, "cpu") == 128
