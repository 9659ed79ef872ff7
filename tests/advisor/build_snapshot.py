"""Builds small memory snapshots, in MiB, as torch.cuda.memory._dump_snapshot writes them."""

from __future__ import annotations

MIB = 2**20
TORCH = "/home/alice/env/lib/python3.11/site-packages/torch"
MODULE = ("_call_impl", f"{TORCH}/nn/modules/module.py", 1790)
ENGINE = ("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "??", 0)
FORWARD = [("at::empty_cuda", "??", 0), ("forward", "/home/alice/project/model.py", 12), MODULE]
SOFTMAX = [("at::native::softmax", "??", 0), ("attend", "/home/alice/project/model.py", 30), *FORWARD[1:]]
LOSS = [("cross_entropy", f"{TORCH}/nn/functional.py", 3029), ("forward", "/home/alice/project/model.py", 40), MODULE]
BACKWARD = [("torch::autograd::generated::MmBackward0::apply(...)", "??", 0), ENGINE]
STEP = [("_init_group", f"{TORCH}/optim/adamw.py", 100), ("train", "/home/alice/train.py", 9)]
BUILD = [("convert", f"{TORCH}/nn/modules/module.py", 1300), ("main", r"C:\Users\bob\run.py", 3)]
CLEAR = [("zero_grad", f"{TORCH}/optim/optimizer.py", 900)]


def event(action, address, mib, frames=(), **more):
    named = [dict(zip(("name", "filename", "line"), frame, strict=True)) for frame in frames]
    return {"action": action, "addr": address, "size": mib * MIB, "stream": 0, "frames": named} | more


def freed(address, mib, frames=()):
    return [event("free_requested", address, mib, frames), event("free_completed", address, mib, frames)]


def snapshot(events, active, reserved, **more):
    """A snapshot at whose end blocks of `active` MiB are held, by address, out of `reserved` MiB."""
    blocks = [
        {"address": address, "size": mib * MIB, "requested_size": mib * MIB, "state": "active_allocated", "frames": []}
        for address, mib in active.items()
    ]
    blocks.append({"address": 99, "size": MIB, "requested_size": MIB, "state": "inactive", "frames": []})
    segment = {"device": 0, "address": 1, "total_size": reserved * MIB, "blocks": blocks}
    return {"segments": [segment], "device_traces": [events], **more}


ONE_STEP = [
    event("alloc", 2, 1000, FORWARD),
    event("alloc", 3, 200, LOSS),
    event("alloc", 4, 400, BACKWARD),  # a gradient: as large as the weights, and it stays
    event("alloc", 5, 100, BACKWARD),  # 2100 are allocated now, 2400 reserved
    *freed(5, 100),
    *freed(2, 1000),
    *freed(3, 200),
    event("segment_alloc", 7, 300),
    event("alloc", 2, 800, STEP),  # at an address that was used before
]
