"""Makes checkpoints and restores them, so that a run continues bit for bit.

`step-00000100/{model.safetensors, optimizer.safetensors, state.json}`, described in `docs/file-formats.md`. There is no
pickle, so reading a checkpoint runs no code. `checkpoint_files.py` writes the bytes to disk and checks them.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer import checkpoint_files as files
from trainer.checkpoint_files import MODEL_FILE, OPTIMIZER_FILE, CheckpointError, DamagedError
from trainer.checkpoint_parts import StoredTensors
from trainer.parallel import World
from trainer.schema import SCHEMA
from trainer.split import first_row, is_split, like, local_rows

# how an optimizer computes, not what; taken from the present optimizer, so that a run may move to another device
_IMPLEMENTATION_SETTINGS = ("fused", "foreach", "capturable", "differentiable")
_ALONE = World()


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """One process's part of a checkpoint: its tensors by file, and the rest of the state."""

    step: int
    tensors: dict[str, dict[str, Tensor]]  # of the running model, not copies, unless made by `on_host`
    state: dict[str, Any]

    def on_host(self) -> Snapshot:
        """Return the snapshot with copies of its tensors in host memory, so that the run can continue."""
        copies = {
            file: {name: tensor.to("cpu", copy=True) for name, tensor in part.items()}
            for file, part in self.tensors.items()
        }
        return replace(self, tensors=copies)


def take_snapshot(
    step: int, model: nn.Module, optimizers: Iterable[Optimizer], extra: dict[str, Any], world: World = _ALONE
) -> Snapshot:
    """Return this process's part of a checkpoint: its rows of a split model, or in the main process the whole model.

    `extra` must be fit for JSON (tuples come back as lists). Parameter names do not contain the wrappers of
    DistributedDataParallel and torch.compile.
    """
    optimizers = list(optimizers)
    names = _parameter_names(model)
    kinds = {MODEL_FILE: _model_tensors(model), OPTIMIZER_FILE: _optimizer_tensors(optimizers, names)}
    parts = world.size if any(is_split(tensor) for tensor in kinds[MODEL_FILE].values()) else 1
    tensors = {
        files.part_name(file, world.rank, parts): _own_rows(tensors, world)
        for file, tensors in kinds.items()
        if world.rank < parts
    }
    state = {
        "schema": SCHEMA,
        "step": step,
        "time": time.time(),
        "optimizers": [_describe_optimizer(optimizer, names) for optimizer in optimizers],
        "random": _random_state(_device_of(model)),
        "extra": extra,
    }
    return Snapshot(step=step, tensors=tensors, state=state)


def _own_rows(tensors: dict[str, Tensor], world: World) -> dict[str, Tensor]:
    """Return the rows in this process. Whole tensors belong to the main process."""
    rows = {name: local_rows(tensor) for name, tensor in tensors.items() if is_split(tensor) or world.is_main}
    return {name: own for name, own in rows.items() if own.dim() == 0 or len(own)}


def load_newest(
    folder: Path,
    model: nn.Module,
    optimizers: Iterable[Optimizer],
    on_message: Callable[[str], None],
    world: World = _ALONE,
) -> dict[str, Any] | None:
    """Restore model, optimizers and random states from the newest sound checkpoint. Return its `extra` plus `step`.

    Returns None if the folder has no checkpoint. All processes of a run call this together, however many wrote the
    checkpoint. A damaged checkpoint is reported through `on_message`, renamed once an older one has been loaded, and
    never loaded in part. Raises CheckpointError if no checkpoint is sound, or if a sound one belongs to another model
    or other optimizers.
    """
    optimizers, device = list(optimizers), _device_of(model)
    if world.is_main:
        files.tidy(folder)
    damaged: list[str] = []
    broken: list[Path] = []
    for name in world.gather([path.name for path in reversed(files.list_checkpoints(folder))], device)[0]:
        path = folder / name
        state, own_problem = _checked(path, world)
        problem = next(filter(None, world.gather(own_problem, device)), None)
        if problem or state is None:
            damaged.append(f"{path} is damaged: {problem}")
            broken.append(path)
            on_message(f"{damaged[-1]}; trying the one before it")
            continue
        _restore(path, state, model, optimizers)
        if world.is_main:
            files.set_aside(broken)  # otherwise they would count as the newest when old checkpoints are deleted
        return {**state["extra"], "step": state["step"]}
    if damaged:
        raise CheckpointError(f"no checkpoint in {folder} can be used: " + "; ".join(damaged))
    return None


def load_weights(folder: Path, model: nn.Module, on_message: Callable[[str], None], world: World = _ALONE) -> int:
    """Load only the weights of another run's newest sound checkpoint, and return its step.

    All processes call this together. The other run's folder is not changed. Raises CheckpointError if the run has no
    sound checkpoint, or if the checkpoint is of another model.
    """
    device = _device_of(model)
    for name in world.gather([path.name for path in reversed(files.list_checkpoints(folder))], device)[0]:
        path = folder / name
        state, own_problem = _checked(path, world)
        problem = next(filter(None, world.gather(own_problem, device)), None)
        if problem is None and state is not None:
            stored = StoredTensors(path, state["files"], "model")
            if problems := _model_mismatch(_model_tensors(model), stored.shapes):
                raise CheckpointError(f"{path} is of another model: " + "; ".join(problems))
            _restore_weights(stored, model)
            return int(state["step"])
        on_message(f"{path} is damaged: {problem}; trying the one before it")
    raise CheckpointError(f"{folder} has no checkpoint whose weights could be taken")


def _restore_weights(stored: StoredTensors, model: nn.Module) -> None:
    with torch.no_grad():
        for name, target in _model_tensors(model).items():
            own = local_rows(target)
            own.copy_(stored.rows(name, first_row(target), len(own) if own.dim() else 0))


def _checked(path: Path, world: World) -> tuple[dict[str, Any] | None, str | None]:
    """Return a checkpoint's state, and what is wrong with it or with the files that this process checks."""
    try:
        state = files.read_state(path)
        files.check_files(path, state, share=(world.rank, world.size))
    except DamagedError as problem:
        return None, str(problem)
    return state, None


def prune(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints. Raises ValueError for fewer than one, and CheckpointError."""
    if keep < 1:
        raise ValueError(f"keep: {keep} must be at least 1")
    for path in files.list_checkpoints(folder)[:-keep]:
        files.delete(path)


# --- names -----------------------------------------------------------------------------------------------------------


def _bare(model: nn.Module) -> nn.Module:
    """Return the model without the wrappers of data parallelism and compilation, even nested ones."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by plain name. A tied tensor appears once, under its first name."""
    seen: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in _bare(model).state_dict(keep_vars=True).items():  # keep_vars: tied ones stay the same object
        if seen.setdefault(id(tensor), name) == name:
            tensors[name.replace("_orig_mod.", "")] = tensor  # each block may be compiled by itself
    return tensors


def _parameter_names(model: nn.Module) -> dict[int, str]:
    return {id(tensor): name for name, tensor in _model_tensors(model).items()}


def _group_names(optimizer: Optimizer, names: dict[int, str]) -> list[list[str]]:
    """Return the parameter names of each group."""
    if any(id(p) not in names for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("an optimizer holds a parameter that is not the model's")
    return [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]


# --- restoring -------------------------------------------------------------------------------------------------------


def _restore(path: Path, state: dict[str, Any], model: nn.Module, optimizers: list[Optimizer]) -> None:
    """Load a sound checkpoint after checking that it fits the model."""
    names = _parameter_names(model)
    targets = _model_tensors(model)
    stored = {kind: StoredTensors(path, state["files"], kind) for kind in ("model", "optimizer")}
    problems = _model_mismatch(targets, stored["model"].shapes)
    problems += _optimizer_mismatch(state["optimizers"], optimizers, names)
    if problems:
        raise CheckpointError(f"{path} belongs to another run configuration: " + "; ".join(problems))
    _restore_weights(stored["model"], model)
    for index, optimizer in enumerate(optimizers):
        entries = _tensors_by_parameter(stored["optimizer"], index, targets)
        _restore_optimizer(optimizer, state["optimizers"][index], entries)
    _restore_random_state(state["random"], _device_of(model))


def _model_mismatch(targets: dict[str, Tensor], saved: dict[str, tuple[int, ...]]) -> list[str]:
    problems = [f"{name} is not in it" for name in targets if name not in saved]
    problems += [f"{name} is not in this model" for name in saved if name not in targets]
    for name in targets.keys() & saved.keys():
        if tuple(targets[name].shape) != saved[name]:
            problems.append(f"{name} is {saved[name]}, this model has {tuple(targets[name].shape)}")
    return _shortened(sorted(problems))


def _optimizer_mismatch(saved: list[dict[str, Any]], optimizers: list[Optimizer], names: dict[int, str]) -> list[str]:
    found, wanted = [s["class"] for s in saved], [type(o).__name__ for o in optimizers]
    if found != wanted:
        return [f"it holds the optimizers {found}, this run has {wanted}"]
    return [
        f"its {old['class']} has other parameter groups than this run's"
        for old, optimizer in zip(saved, optimizers, strict=True)
        if [group["parameters"] for group in old["groups"]] != _group_names(optimizer, names)
    ]


def _shortened(problems: list[str], count: int = 4) -> list[str]:
    more = len(problems) - count
    return problems[:count] + ([f"and {more} more"] if more > 0 else [])


# --- optimizers ------------------------------------------------------------------------------------------------------


def _optimizer_tensors(optimizers: list[Optimizer], names: dict[int, str]) -> dict[str, Tensor]:
    """Return all state tensors, named "optimizer index/state key/parameter name"."""
    return {
        f"{index}/{key}/{names[id(parameter)]}": value
        for index, optimizer in enumerate(optimizers)
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def _describe_optimizer(optimizer: Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """Return class, groups with settings and parameter names, and state values that are not tensors."""
    groups = []
    for group, members in zip(optimizer.param_groups, _group_names(optimizer, names), strict=True):
        settings = {key: _plain(value) for key, value in group.items() if key != "params"}
        groups.append({"settings": settings, "parameters": members})
    values = {
        names[id(parameter)]: plain
        for parameter, entries in optimizer.state.items()
        if (plain := {key: value for key, value in entries.items() if not isinstance(value, Tensor)})
    }
    return {"class": type(optimizer).__name__, "groups": groups, "values": values}


def _plain(setting: Any) -> Any:
    return setting.item() if isinstance(setting, Tensor) else setting


def _tensors_by_parameter(
    stored: StoredTensors, index: int, targets: dict[str, Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Return one optimizer's state tensors by parameter. Those with a parameter's shape are split in the same way."""
    tensors: dict[str, dict[str, Tensor]] = {}
    for full_name, shape in stored.shapes.items():
        number, key, name = full_name.split("/", 2)
        if int(number) != index:
            continue
        target = targets[name]
        if shape == tuple(target.shape) and shape:
            rows = stored.rows(full_name, first_row(target), len(local_rows(target)))
            entry = like(target, rows.to(target.device))
        else:
            entry = stored.rows(full_name, 0, shape[0] if shape else 0)
        tensors.setdefault(name, {})[key] = entry
    return tensors


def _restore_optimizer(optimizer: Optimizer, saved: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
    """Load one optimizer through its own `load_state_dict`, which knows where each kind of state belongs."""
    state: dict[int, dict[str, Any]] = {}
    groups = []
    count = 0
    for group, old in zip(optimizer.param_groups, saved["groups"], strict=True):
        numbers = range(count, count := count + len(old["parameters"]))
        for number, name in zip(numbers, old["parameters"], strict=True):
            if entries := {**tensors.get(name, {}), **saved["values"].get(name, {})}:
                state[number] = entries
        groups.append({**_settings(group, old["settings"]), "params": list(numbers)})
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _settings(current: dict[str, Any], saved: dict[str, Any]) -> dict[str, Any]:
    """Return a group's saved settings in their present types (JSON has neither tuples nor tensors)."""
    kept = {key: current[key] for key in _IMPLEMENTATION_SETTINGS if key in current}
    restored = {}
    for key, value in saved.items():
        like = current.get(key)
        if isinstance(value, list):
            value = tuple(value)
        elif isinstance(like, Tensor):
            value = torch.full_like(like, value)
        restored[key] = value
    return {**restored, **kept}


# --- random states ---------------------------------------------------------------------------------------------------


def _device_of(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of torch (CPU and the model's device), numpy's global generator and Python's."""
    numpy = np.random.get_state(legacy=False)
    version, internal, python_gauss = random.getstate()
    state = {
        "torch": _encode(torch.get_rng_state().numpy().tobytes()),
        "numpy": [
            numpy["bit_generator"],
            _encode(numpy["state"]["key"].tobytes()),
            int(numpy["state"]["pos"]),
            int(numpy["has_gauss"]),
            float(numpy["gauss"]),
        ],
        "python": [version, list(internal), python_gauss],
    }
    if device.type != "cpu":
        state[device.type] = _encode(torch.get_device_module(device).get_rng_state(device).numpy().tobytes())
    return state


def _restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    torch.set_rng_state(_decode(state["torch"]))
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.frombuffer(base64.b64decode(keys), dtype=np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if device.type != "cpu" and device.type in state:
        torch.get_device_module(device).set_rng_state(_decode(state[device.type]), device)


def _encode(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decode(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
