"""The CPU's own kernels against their definitions in double precision, and the arithmetic that `auto` takes there."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.trainer.small import config
from trainer.cpu_kernels import causal_attention, pytorch_kernels
from trainer.cpu_products import CpuProducts, measure_products, take_faster_fp32
from trainer.device import describe_device, resolve_device
from trainer.model import build_model
from trainer.run import run
from trainer.runlog import LOG_NAME, load_run_log
from trainer.schema import Outcome, make_shape

TYPES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 8e-3}


def drawn(*shape, dtype, seed=0):
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).requires_grad_()


def relative_error(found, true):
    return float((found.double() - true).norm() / true.norm())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("time, heads, kv_heads", [(5, 2, 2), (128, 2, 1), (300, 4, 2)])
def test_attention_by_blocks_is_softmax_attention(dtype, time, heads, kv_heads):
    query, key, value = (drawn(2, time, n, 8, dtype=dtype, seed=i) for i, n in enumerate((heads, kv_heads, kv_heads)))
    upstream = drawn(2, time, heads, 8, dtype=dtype, seed=9).detach()
    found = causal_attention(query, key, value)
    gradients = torch.autograd.grad(found, (query, key, value), upstream)

    exact = [part.detach().double().requires_grad_() for part in (query, key, value)]
    q, k, v = (part.transpose(1, 2) for part in exact)
    k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(time, time, dtype=torch.bool).triu(1), -torch.inf)
    true = (scores.softmax(-1) @ v).transpose(1, 2)
    for one, other in zip(
        (found, *gradients), (true, *torch.autograd.grad(true, exact, upstream.double())), strict=True
    ):
        assert relative_error(one.detach(), other.detach()) < TYPES[dtype]


@pytest.mark.parametrize("family", ["gpt2", "llama", "nanochat"])
def test_a_model_computes_the_same_with_pytorchs_kernels(family):
    torch.manual_seed(0)
    model = build_model(make_shape(family, depth=2, width=32, heads=4, vocab_size=97, seq_len=200))
    tokens = torch.randint(97, (2, 200))
    own = model.loss(tokens, tokens)
    with pytorch_kernels():
        theirs = model.loss(tokens, tokens)
    assert own.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_auto_takes_bf16_where_its_products_gain_enough():
    fast_bf16 = CpuProducts(fp32=1e11, onednn_fp32=2.3e11, bf16=4.3e11)  # an EPYC with AVX-512 BF16, measured
    emulated = CpuProducts(fp32=1e11, onednn_fp32=None, bf16=0.9e11)
    a_little = CpuProducts(fp32=1e11, onednn_fp32=2e11, bf16=2.4e11)
    assert [p.precision for p in (fast_bf16, emulated, a_little)] == ["bf16", "fp32", "fp32"]


def test_auto_is_decided_by_a_measurement_that_the_description_holds():
    context = resolve_device("cpu", "auto")
    facts = describe_device(context)
    assert context.precision == measure_products().precision
    assert (facts.bf16_flops, facts.fp32_flops) == (measure_products().bf16, measure_products().best_fp32)
    assert min(facts.bf16_flops, facts.fp32_flops) > 1e8


def test_fp32_keeps_its_digits_whichever_library_multiplies():
    try:
        take_faster_fp32()
        left, right = torch.randn(300, 200), torch.randn(200, 100)
        assert relative_error(left @ right, left.double() @ right.double()) < 2e-6
    finally:
        torch.set_float32_matmul_precision("highest")


def test_bf16_with_fp32_weights_learns_as_fp32_does(tmp_path):
    """Autocast as on CUDA: the same data, so the curves stay together, and the weights are those of fp32."""
    curves = {}
    for precision in ("fp32", "bf16"):
        assert run(config(precision=precision, steps=60), tmp_path / precision) is Outcome.COMPLETED
        log = load_run_log(tmp_path / precision / LOG_NAME)
        curves[precision] = torch.tensor([record["loss"] for record in log.steps])
        assert log.header["precision"] == precision
    assert (curves["fp32"] - curves["bf16"]).abs().max() < 0.02
    assert curves["fp32"][-1] < curves["fp32"][0] - 0.2


def test_threads_are_told_to_sleep_before_torch_is_loaded():
    program = (
        "import os, sys; from trainer.threads import share_cores; share_cores(); "
        "print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "3000 False\n"
