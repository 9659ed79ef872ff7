"""Nothing in a step makes the host wait for a card: counted as calls of the code that a card runs, on this CPU."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.small import SHAPE, config
from trainer.data import open_tokens
from trainer.device import DeviceContext
from trainer.loop import Trainer
from trainer.schema import OptimizerConfig, make_shape

# .item(), float() and bool() of a tensor; a tensor made of Python's numbers, which goes to a card by a copy that waits
WAITS = ("aten._local_scalar_dense.default", "aten.lift_fresh.default", "aten.nonzero.default", "aten.equal.default")
DEEP = make_shape("nanochat", depth=4, width=32, heads=2, vocab_size=64, seq_len=16)


class Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counted[str(func)] += 1
        return func(*args, **(kwargs or {}))


def waits_of_a_step(**changes) -> dict[str, int]:
    settings = config(**changes)
    tokens = open_tokens(settings.data, settings.model.vocab_size, settings.model.seq_len, settings.seed)
    context = DeviceContext(device=torch.device("cpu"), precision="bf16")
    trainer = Trainer(settings, context, tokens)
    for _ in range(3):  # what optimizers make of state in their first step
        trainer.step()
    drawn = [tokens.train_batch(3, m, 0, 1, settings.micro_batch, settings.grad_accum)
             for m in range(settings.grad_accum)]  # fmt: skip
    tokens.train_batch = lambda step, micro, *_: drawn[micro]  # of the host, whatever the device
    with Calls() as calls:
        trainer.step()
    assert sum(calls.counted.values()) > 100
    return {name: calls.counted[name] for name in WAITS if calls.counted[name]}


@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize(("model", "grad_accum"), [(SHAPE, 1), (SHAPE, 5), (DEEP, 3)])
def test_a_step_waits_for_nothing(name, model, grad_accum):
    """But for the clip's decision, which is taken on the host only where that is the device."""
    waits = waits_of_a_step(
        model=model, grad_accum=grad_accum, optimizer=OptimizerConfig(name=name, learning_rate=3e-3)
    )
    assert waits == {"aten._local_scalar_dense.default": 1}


def test_without_a_clip_there_is_none_at_all():
    assert waits_of_a_step(optimizer=OptimizerConfig(learning_rate=3e-3, grad_clip=None)) == {}
