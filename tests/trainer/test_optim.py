"""Which parameter goes to which optimizer, and the learning rate over the steps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer.model import build_model
from trainer.optim import build_optimizers, learning_rate_factor, set_learning_rate
from trainer.schema import OptimizerConfig, ScheduleConfig, make_shape

CPU = torch.device("cpu")


def model(family="gpt2"):
    torch.manual_seed(0)
    return build_model(make_shape(family, depth=2, width=32, heads=4, vocab_size=50, seq_len=8))


def test_adamw_decays_matrices_only_and_takes_everything():
    net = model()
    (optimizer,) = build_optimizers(net, OptimizerConfig(weight_decay=0.3), CPU)
    decayed, plain = optimizer.param_groups
    assert decayed["weight_decay"] == 0.3 and all(p.dim() == 2 for p in decayed["params"])
    assert plain["weight_decay"] == 0.0 and all(p.dim() == 1 for p in plain["params"])
    assert sum(len(g["params"]) for g in optimizer.param_groups) == len(list(net.parameters()))
    assert optimizer.defaults["fused"]


def test_a_model_without_vectors_has_one_group():
    (optimizer,) = build_optimizers(model("nanochat"), OptimizerConfig(), CPU)
    assert len(optimizer.param_groups) == 1


def test_muon_takes_the_matrices_inside_blocks_and_adamw_the_rest():
    net = model()
    adamw, muon = build_optimizers(net, OptimizerConfig(name="muon", muon_learning_rate=0.05), CPU)
    taken = {id(p) for group in muon.param_groups for p in group["params"]}
    assert taken == {id(p) for p in net.blocks.parameters() if p.dim() == 2}
    others = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert not taken & others and len(taken) + len(others) == len(list(net.parameters()))
    assert muon.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_it_learns_a_batch_by_heart(name):
    net = model()
    optimizers = build_optimizers(net, OptimizerConfig(name=name, learning_rate=3e-3), CPU)
    tokens = torch.randint(50, (4, 9), generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(60):
        loss = net.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(3.91, abs=0.3)  # ln 50
    assert losses[-1] < 1.0


def test_rates_scale_from_each_groups_peak():
    config = OptimizerConfig(name="muon", learning_rate=0.01, muon_learning_rate=0.04)
    optimizers = build_optimizers(model(), config, CPU)
    for factor in (0.25, 0.5):  # twice: a factor applies to the peak, not to the last rate
        set_learning_rate(optimizers, factor)
    assert [group["lr"] for o in optimizers for group in o.param_groups] == [0.005, 0.005, 0.02]


@pytest.mark.parametrize(
    "schedule, step, expected",
    [
        (ScheduleConfig(warmup_steps=10), 0, 0.1),
        (ScheduleConfig(warmup_steps=10), 9, 1.0),
        (ScheduleConfig(warmup_steps=10), 10, 1.0),
        (ScheduleConfig(warmup_steps=0), 0, 1.0),
        (ScheduleConfig(), 50, 0.55),  # half-way down from 1 to 0.1
        (ScheduleConfig(final_fraction=0.0), 25, 0.8535533905932737),  # (1 + cos 45°) / 2
        (ScheduleConfig(), 100, 0.1),
        (ScheduleConfig(name="wsd", decay_fraction=0.2), 79, 1.0),
        (ScheduleConfig(name="wsd", decay_fraction=0.2), 90, 0.55),
        (ScheduleConfig(name="wsd", decay_fraction=0.2, final_fraction=0.0), 99, 0.05),
        (ScheduleConfig(name="wsd", decay_fraction=0.0, final_fraction=0.0), 99, 1.0),
    ],
)
def test_learning_rate_by_hand(schedule, step, expected):
    assert learning_rate_factor(schedule, step, 100) == pytest.approx(expected, rel=1e-12)


@given(
    st.sampled_from(["cosine", "wsd"]),
    st.integers(0, 50),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 300),
)
def test_the_factor_rises_then_falls_and_stays_in_range(name, warmup, final, decay, steps):
    schedule = ScheduleConfig(name=name, warmup_steps=warmup, final_fraction=final, decay_fraction=decay)
    factors = [learning_rate_factor(schedule, step, steps) for step in range(steps)]
    assert all(0 <= f <= 1 + 1e-12 for f in factors)
    after = factors[warmup:]
    assert all(a >= b - 1e-12 for a, b in zip(after, after[1:], strict=False))
    assert all(f >= final - 1e-12 for f in after)
