"""Records the time of each optimizer step of a training program from inside it, without a change to its code.

PyTorch (2.5 and later) calls `autoload` at the end of `import torch`, because this folder is on PYTHONPATH and names it
in the entry point group `torch.backends`. Records go to `probe-PID.jsonl` in the folder that TRAINING_ADVISOR_PROBE
names, one JSON object per line. Without that variable, or with TORCH_DEVICE_BACKEND_AUTOLOAD=0, nothing is hooked.

It uses only the standard library, because it runs in the user's environment. An error in here ends the probe, never the
program.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import sys
import time
from typing import Any

Record = dict[str, Any]
FOLDER, SHAPES = "TRAINING_ADVISOR_PROBE", "TRAINING_ADVISOR_PROBE_SHAPES"
FLUSH_SECONDS = 0.25  # between writes, so that the steps of this time share the cost of one write
# the reference kernel of training-advisor's own trainer (trainer/witness): 8 products of 512 x 512, about 10 ms
KERNEL_SIZE, KERNEL_REPEATS = 512, 8
KERNEL_EVERY = 0.33, 5.0  # seconds: first value as in a burst, later value as in a run


def autoload() -> None:
    """Hook the steps of every optimizer of this process, if the environment asks for it."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    try:
        import torch

        Probe(torch, folder, int(os.environ.get(SHAPES) or 0))
    except Exception as error:
        _tell(error)


def count(tensors: Any) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _tell(error: Exception) -> None:
    """Print one line on the program's standard error, the only trace of a failing probe."""
    print(f"training-advisor's probe ended: {type(error).__name__}: {error}", file=sys.stderr)


class Probe:
    """The records of one process; its file is made at the first optimizer step."""

    def __init__(self, torch: Any, folder: str, shapes: int):
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.torch, self.folder, self.pid = torch, folder, os.getpid()
        self.file: Any = None
        self.lines: list[Record] = []
        self.written = 0.0
        self.optimizers: dict[int, int] = {}
        self.events: list[tuple[Record, Any]] = []
        self.shapes_left = shapes
        self.calls: dict[int, list[tuple[int, int | None, int | None]]] = {}
        self.model: Any = None  # the largest module that was called, until its weights are noted
        self.model_size = 0  # its weights' elements
        self.within: set[int] = set()  # the modules that the model contains
        self.handle: Any = None
        self.clock = time.time() - time.monotonic()  # Unix seconds that do not change with the system clock
        self.kernel: Any = None  # the matrices of the reference kernel
        self.kernel_due = self.kernel_first = time.monotonic()
        self.steps_handle = register_optimizer_step_post_hook(self.after_step)
        if shapes:
            from torch.nn.modules.module import register_module_forward_pre_hook

            self.handle = register_module_forward_pre_hook(self.before_forward)
        atexit.register(self.at_exit)

    # Called by PyTorch

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            if os.getpid() == self.pid:
                self.note_step(optimizer)
        except Exception as error:
            self.give_up(error)

    def before_forward(self, module: Any, args: Any) -> None:
        try:
            if module.training and not self.optimizers and id(module) not in self.within:
                # Keep the largest module, because metrics and losses are also modules and a model calls its own parts.
                self.within.add(id(module))
                if (size := count(module.parameters())) >= max(1, self.model_size):
                    self.model, self.model_size = module, size
                    self.within.update(id(each) for each in module.modules())
            if module.training and args:
                self.note_call(module, args[0])
        except Exception as error:
            self.give_up(error)

    def at_exit(self) -> None:
        try:
            if os.getpid() == self.pid and self.file is not None:
                self.lines += [record for record, _ in self.events]
                self.write()
        except Exception as error:
            _tell(error)

    # The records

    def now(self) -> float:
        return self.clock + time.monotonic()

    @property
    def cuda(self) -> Any:
        """PyTorch's CUDA, or None if the program does not use it."""
        cuda = self.torch.cuda
        return cuda if cuda.is_available() and cuda.is_initialized() else None

    def note_step(self, optimizer: Any) -> None:
        known = self.optimizers.get(id(optimizer))
        if known is None:
            known = self.optimizers[id(optimizer)] = len(self.optimizers)
            self.note_optimizer(optimizer, known)
        now = self.now()
        record = {"kind": "step", "optimizer": known, "time": now}
        if self.cuda is not None:
            self.time_on_card(record)
        else:
            self.lines.append(record)
            self.note_machine(optimizer)
        if self.handle is not None:
            self.note_shape(known)
        if now - self.written >= FLUSH_SECONDS:
            self.write()

    def note_machine(self, optimizer: Any) -> None:
        """Time the reference kernel, which shows the machine's current speed; this time belongs to no step."""
        began = time.monotonic()
        trained = next((p.device.type for group in optimizer.param_groups for p in group["params"]), "")
        if began < self.kernel_due or trained != "cpu" or int(os.environ.get("RANK") or 0):
            return
        at, torch = self.now(), self.torch
        with torch.no_grad():
            if self.kernel is None:
                # leaves the program's own random generator unchanged
                drawn = torch.Generator(device="cpu").manual_seed(0)
                how = {"generator": drawn, "dtype": torch.float32, "device": "cpu"}
                left, right = (torch.randn(KERNEL_SIZE, KERNEL_SIZE, **how) for _ in range(2))
                self.kernel = left, right, torch.empty_like(left)
                torch.mm(left, right, out=self.kernel[2])  # the first product includes set-up time
            left, right, out = self.kernel
            measured = time.perf_counter()
            for _ in range(KERNEL_REPEATS):
                torch.mm(left, right, out=out)
            took = time.perf_counter() - measured
        now = time.monotonic()
        self.lines.append({"kind": "witness", "time": at, "reference_seconds": took, "held_seconds": now - began})
        first, later = KERNEL_EVERY
        self.kernel_due = now + min(later, max(first, 0.05 * (now - self.kernel_first)))

    def note_optimizer(self, optimizer: Any, number: int) -> None:
        tensors = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        self.lines.append({"kind": "optimizer", "optimizer": number, "elements": count(tensors.values())})
        if self.model is None:
            return
        # The names and shapes of the model's weights; equal blocks are noted once, with their number.
        seen: dict[tuple[str, tuple[int, ...]], int] = {}
        for name, weight in self.model.named_parameters():
            key = re.sub(r"(^|\.)\d+\.", r"\1#.", name, count=1), tuple(weight.shape)
            seen[key] = seen.get(key, 0) + 1
        self.model = None
        self.within.clear()
        weights = [{"name": name, "shape": list(shape), "count": blocks} for (name, shape), blocks in seen.items()]
        self.lines.append({"kind": "model", "weights": weights})

    def time_on_card(self, record: Record) -> None:
        """Record GPU events. The GPU's time of a step is read between two events, once the GPU has passed them."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append((record, event))
        while len(self.events) > 1 and self.events[1][1].query():
            before, after = self.events[0], self.events[1]
            after[0]["card_seconds"] = before[1].elapsed_time(after[1]) / 1000
            self.lines.append(self.events.pop(0)[0])

    def note_call(self, module: Any, value: Any) -> None:
        """Note rows and length of the model's input: of the first module that gets a tensor, and of every embedding."""
        if not isinstance(value, self.torch.Tensor) or value.dim() == 0 or value.is_meta:
            return  # meta device: the model runs without numbers, for example to count its operations
        whole = not value.is_floating_point() and value.dim() == 2
        embedding = whole and isinstance(module, self.torch.nn.Embedding)
        if self.calls and id(module) not in self.calls and not embedding:
            return
        calls = self.calls.setdefault(id(module), [])
        length = value.shape[1] if whole else None
        calls.append((value.shape[0], length, value.numel() if whole else None))

    def note_shape(self, number: int) -> None:
        """Note how many micro-batches a step had and of what shape, from the module with the most input."""
        if self.calls:
            calls = max(self.calls.values(), key=lambda c: (len(c), sum(n or 0 for _, _, n in c), c[0][0]))
            rows, lengths, tokens = zip(*calls, strict=True)
            seen = {"calls": len(calls), "rows": rows, "lengths": lengths, "tokens": tokens}
            self.lines.append({"kind": "shape", "optimizer": number, **seen})
            self.calls.clear()
            self.shapes_left -= 1
        if self.shapes_left <= 0 and self.handle is not None:
            self.handle.remove()
            self.handle = None

    # The file

    def write(self) -> None:
        cuda, self.written = self.cuda, self.now()
        memory: Record = {"kind": "memory", "time": self.written}
        if cuda is not None:
            memory["allocated_peak_bytes"] = cuda.max_memory_allocated()
            memory["reserved_peak_bytes"] = cuda.max_memory_reserved()
        if sys.platform.startswith("linux"):
            import resource

            memory["resident_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if self.file is None:
            self.file = open(os.path.join(self.folder, f"probe-{self.pid}.jsonl"), "a", encoding="utf-8")  # noqa: SIM115 - open while the program lives
            rank, world = int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)
            header = {"kind": "process", "rank": rank, "world_size": world, "torch": str(self.torch.__version__)}
            self.file.write(json.dumps(header) + "\n")
        self.file.write("".join(json.dumps(line) + "\n" for line in (*self.lines, memory)))
        self.file.flush()
        self.lines = []

    def give_up(self, error: Exception) -> None:
        """Remove the hooks, and print the reason."""
        self.steps_handle.remove()
        if self.handle is not None:
            self.handle.remove()
            self.handle = None
        _tell(error)
