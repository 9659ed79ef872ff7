"""Checkpoints: a run goes on bit for bit, and no damage, kill or full disk costs more than the newest one."""

import json
import math
import os
import random
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from trainer.checkpoint import CheckpointError, load_newest, prune, take_snapshot
from trainer.checkpoint_files import DamagedError, verify
from trainer.checkpoint_parts import read_shapes
from trainer.parallel import World
from trainer.saving import Saver


class Tied(nn.Module):
    """A toy with what matters: a tied head, a vector parameter, a lasting and a passing buffer, dropout."""

    def __init__(self, width=8):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.block = nn.Linear(width, width)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, ids):
        self.seen += 1
        x = self.embed(ids)
        return self.head(nn.functional.dropout(x + torch.tanh(self.block(x)), 0.1))


def make(seed=0, *, fused=True, width=8):
    torch.manual_seed(seed)
    model = Tied(width)
    rest = [p for p in model.parameters() if p is not model.block.weight]
    groups = [
        {"params": [p for p in rest if p.ndim == 2], "weight_decay": 0.1},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizers = [
        torch.optim.AdamW(groups, lr=1e-2, betas=(0.8, 0.95), fused=fused),
        torch.optim.Muon([model.block.weight], lr=0.02),
    ]
    return model, optimizers


def train(model, optimizers, steps):
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, 16, (4, 6)) + int(np.random.randint(2)) * random.randrange(2)
        loss = nn.functional.cross_entropy(model(ids % 16).flatten(0, 1), ids.flatten() % 16)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return losses


def load(folder, model, optimizers):
    messages = []
    extra = load_newest(folder, model, optimizers, messages.append)
    return extra, messages


def save_checkpoint(folder, step, model, optimizers, extra, *, background=False):
    saver = Saver(lambda: folder, World(), torch.device("cpu"), background=background)
    saver.begin(take_snapshot(step, model, optimizers, extra))
    saved = saver.finish()
    return saved.path, saved.bytes


def three_checkpoints(folder):
    model, optimizers = make()
    for step in (1, 2, 3):
        train(model, optimizers, 1)
        save_checkpoint(folder, step, model, optimizers, {"step_again": step})
    return model, optimizers


def test_a_resumed_run_is_the_run_that_was_never_interrupted(tmp_path):
    folder = tmp_path / "checkpoints"
    model, optimizers = make()
    train(model, optimizers, 5)
    extra = {"position": 12, "ema": 0.1 + 0.2, "none": None, "seen": {10: 1, 9: 2}}
    path, size = save_checkpoint(folder, 5, model, optimizers, extra)
    assert path == "checkpoints/step-00000005"
    assert size == sum(f.stat().st_size for f in (tmp_path / path).iterdir())
    expected = train(model, optimizers, 5)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    other, other_optimizers = make(seed=99)
    random.seed(5)
    restored, messages = load(folder, other, other_optimizers)
    assert restored == {"position": 12, "ema": 0.1 + 0.2, "none": None, "seen": {"10": 1, "9": 2}, "step": 5}
    assert messages == []
    assert train(other, other_optimizers, 5) == expected
    assert all(torch.equal(weights[name], tensor) for name, tensor in other.state_dict().items())
    for old, new in zip(optimizers, other_optimizers, strict=True):
        assert _plain_state(old) == _plain_state(new)


def _plain_state(optimizer):
    state = optimizer.state_dict()
    tensors = {i: {k: v.tolist() for k, v in entries.items()} for i, entries in state["state"].items()}
    return tensors, state["param_groups"]


def test_the_files_are_ordinary_safetensors_with_plain_names(tmp_path):
    model, optimizers = make()
    train(model, optimizers, 2)
    path, _ = save_checkpoint(tmp_path / "c", 2, model, optimizers, {})
    saved = load_file(tmp_path / path / "model.safetensors")
    assert set(saved) == {"embed.weight", "block.weight", "block.bias", "seen"}  # the tied head once
    assert torch.equal(saved["block.weight"], model.block.weight.detach())
    states = load_file(tmp_path / path / "optimizer.safetensors")
    assert "0/exp_avg_sq/embed.weight" in states and "1/momentum_buffer/block.weight" in states
    assert states["0/step/block.bias"].item() == 2.0


def test_a_state_before_the_first_step_and_other_number_types_round_trip(tmp_path):
    model = nn.Linear(3, 3).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    save_checkpoint(tmp_path, 0, model, [optimizer], {})
    other = nn.Linear(3, 3).to(torch.bfloat16)
    assert load_newest(tmp_path, other, [torch.optim.AdamW(other.parameters())], print) == {"step": 0}
    assert torch.equal(model.weight, other.weight)


def test_an_implementation_switch_does_not_change_what_is_restored(tmp_path):
    model, optimizers = make(fused=True)
    train(model, optimizers, 3)
    save_checkpoint(tmp_path, 3, model, optimizers, {})
    other, other_optimizers = make(seed=1, fused=False)
    load(tmp_path, other, other_optimizers)
    group = other_optimizers[0].param_groups[0]
    assert group["fused"] is False and group["betas"] == (0.8, 0.95)
    train(other, other_optimizers, 1)
    assert other_optimizers[0].state[other.embed.weight]["step"].item() == 4.0


def test_compiled_and_data_parallel_wrappers_leave_no_trace(tmp_path):
    model, optimizers = make()
    model.block = torch.compile(model.block, backend="eager")
    whole = torch.compile(model, backend="eager")
    train(whole, optimizers, 1)
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(whole)
        path, _ = save_checkpoint(tmp_path / "c", 1, wrapped, optimizers, {})
        bare, bare_optimizers = make(seed=7)
        load(tmp_path / "c", bare, bare_optimizers)
        bare.block.bias.data.zero_()
        save_checkpoint(tmp_path / "c", 2, bare, bare_optimizers, {})
        load(tmp_path / "c", wrapped, optimizers)
    finally:
        torch.distributed.destroy_process_group()
    assert "block.bias" in load_file(tmp_path / path / "model.safetensors")
    assert model.block.bias.abs().sum().item() == 0


def _truncate(path):
    raw = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(raw[:-5])


def _flip_one_bit(path):
    raw = bytearray((path / "optimizer.safetensors").read_bytes())
    raw[-100] ^= 4
    (path / "optimizer.safetensors").write_bytes(raw)


def _edit_state(path):
    state = json.loads((path / "state.json").read_text())
    state["step"] = 7
    (path / "state.json").write_text(json.dumps(state))


DAMAGES = {
    "instead of": _truncate,
    "optimizer.safetensors does not match": _flip_one_bit,
    "state.json does not match": _edit_state,
    "not JSON": lambda path: (path / "state.json").write_bytes(b'{"schema"'),
    "model.safetensors: No such file": lambda path: (path / "model.safetensors").unlink(),
    "state.json: No such file": lambda path: (path / "state.json").unlink(),
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_newest_checkpoint_falls_back_with_a_message(tmp_path, words):
    three_checkpoints(tmp_path)
    newest = tmp_path / "step-00000003"
    DAMAGES[words](newest)
    model, optimizers = make(seed=9)
    extra, messages = load(tmp_path, model, optimizers)
    assert extra == {"step_again": 2, "step": 2}
    assert len(messages) == 1 and str(newest) in messages[0] and words in messages[0]
    assert optimizers[0].state[model.embed.weight]["step"].item() == 2.0
    assert any(p.name.startswith("step-00000003.damaged") for p in tmp_path.iterdir())
    prune(tmp_path, keep=1)  # must keep the sound one
    assert load(tmp_path, model, optimizers) == ({"step_again": 2, "step": 2}, [])


def test_nothing_usable_is_an_error_and_nothing_at_all_is_not(tmp_path):
    assert load(tmp_path / "none", *make()) == (None, [])
    three_checkpoints(tmp_path)
    for step in (1, 2, 3):
        _flip_one_bit(tmp_path / f"step-0000000{step}")
    model, optimizers = make()
    before = model.embed.weight.clone()
    with pytest.raises(CheckpointError, match="step-00000003 is damaged.*step-00000001 is damaged"):
        load(tmp_path, model, optimizers)
    assert torch.equal(before, model.embed.weight)
    assert (tmp_path / "step-00000003").exists()  # left as it is


def test_another_model_or_optimizer_is_named_and_nothing_is_loaded(tmp_path):
    three_checkpoints(tmp_path)
    wide, optimizers = make(width=12)
    before = wide.embed.weight.clone()
    with pytest.raises(CheckpointError, match=r"block.weight is \(8, 8\), this model has \(12, 12\)"):
        load(tmp_path, wide, optimizers)
    assert torch.equal(before, wide.embed.weight)
    model, optimizers = make()
    with pytest.raises(CheckpointError, match=r"holds the optimizers \['AdamW', 'Muon'\]"):
        load(tmp_path, model, optimizers[:1])
    with pytest.raises(CheckpointError, match="other parameter groups"):
        load(tmp_path, model, [torch.optim.AdamW(model.parameters()), optimizers[1]])


def test_saving_a_step_again_replaces_it_and_an_interrupted_replacement_comes_back(tmp_path):
    model, optimizers = three_checkpoints(tmp_path)
    save_checkpoint(tmp_path, 3, model, optimizers, {"second": True})
    assert load(tmp_path, *make())[0] == {"second": True, "step": 3}
    os.rename(tmp_path / "step-00000003", tmp_path / ".step-00000003.77.replaced")  # killed between the two renames
    (tmp_path / ".step-00000004.77.partial").mkdir()
    assert load(tmp_path, *make())[0] == {"second": True, "step": 3}
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-0000000{step}" for step in (1, 2, 3)]


def test_prune_keeps_the_newest(tmp_path):
    three_checkpoints(tmp_path)
    prune(tmp_path, keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    with pytest.raises(ValueError, match="keep"):
        prune(tmp_path, keep=0)


def test_a_checkpoint_is_verified_by_its_checksums(tmp_path):
    three_checkpoints(tmp_path)
    newest = tmp_path / "step-00000003"
    state = verify(newest)
    assert state["step"] == 3 and state["extra"] == {"step_again": 3}
    assert [optimizer["class"] for optimizer in state["optimizers"]] == ["AdamW", "Muon"]
    shapes = read_shapes(newest / "model.safetensors")
    sizes = [math.prod(shape) for shape in shapes.values()]
    assert sum(sizes) == 16 * 8 + 8 * 8 + 8 + 1  # tied embedding, matrix, bias, the buffer
    _flip_one_bit(newest)
    with pytest.raises(DamagedError, match="checksum"):
        verify(newest)
    with pytest.raises(DamagedError, match="No such file"):
        verify(tmp_path / "step-00000009")


CHILD = """
    import resource, sys, torch
    from pathlib import Path
    from trainer.checkpoint import CheckpointError, take_snapshot
    from trainer.parallel import World
    from trainer.saving import Saver
    folder = Path(sys.argv[1])
    model = torch.nn.Linear(400, 400)
    def save(step):
        saver = Saver(lambda: folder, World(), torch.device("cpu"), background=step > 1)
        saver.begin(take_snapshot(step, model, [], {}))
        saver.finish()
    save(1)
"""


def run_child(code, folder, **options):
    command = [sys.executable, "-c", textwrap.dedent(CHILD) + textwrap.dedent(code), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def test_a_full_disk_says_what_it_needs_and_leaves_the_previous_one(tmp_path):
    code = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        try:
            save(2)
        except CheckpointError as error:
            print(error)
    """
    with run_child(code, tmp_path) as child:
        said = child.stdout.read()
    assert "step-00000002" in said and "it needs" in said and "are free" in said
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]
    assert verify(tmp_path / "step-00000001")["step"] == 1


def test_a_kill_in_the_midst_of_saving_leaves_a_usable_checkpoint(tmp_path):
    code = """
        print("ready", flush=True)
        while True:
            save(2)
    """
    with run_child(code, tmp_path) as child:
        assert child.stdout.readline() == "ready\n"
        while not (tmp_path / "step-00000002").exists():
            assert child.poll() is None
        os.kill(child.pid, signal.SIGKILL)
    extra = load_newest(tmp_path, nn.Linear(400, 400), [], print)
    assert extra == {"step": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]
