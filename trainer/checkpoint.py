"""Checkpoints: what is in one, and how a run goes on from it bit for bit.

`step-00000100/{model.safetensors, optimizer.safetensors, state.json}`, described in `docs/file-formats.md`. No pickle:
a checkpoint runs no code when it is read. `checkpoint_files.py` puts the bytes on disk and checks them.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer import checkpoint_files as files
from trainer.checkpoint_files import MODEL_FILE, OPTIMIZER_FILE, CheckpointError, DamagedError
from trainer.schema import SCHEMA

# How an optimizer computes, not what: taken from the optimizer at hand, so that a run may move to another device.
_IMPLEMENTATION_SETTINGS = ("fused", "foreach", "capturable", "differentiable")


def save_checkpoint(
    folder: Path, step: int, model: nn.Module, optimizers: Iterable[Optimizer], extra: dict[str, Any]
) -> tuple[str, int]:
    """Write `folder/step-N`, whole or not at all; give its path relative to the folder's parent, and its bytes.

    `extra` must be fit for JSON (tuples come back as lists). The files are on disk before the name appears. One
    process writes; wrappers of DistributedDataParallel and torch.compile leave no trace in the parameters' names.
    Raises CheckpointError, as when the disk is full; older checkpoints are then untouched.
    """
    optimizers = list(optimizers)
    names = _parameter_names(model)
    tensors = {
        MODEL_FILE: {name: tensor.detach() for name, tensor in _model_tensors(model).items()},
        OPTIMIZER_FILE: _optimizer_tensors(optimizers, names),
    }
    state = {
        "schema": SCHEMA,
        "step": step,
        "time": time.time(),
        "optimizers": [_describe_optimizer(optimizer, names) for optimizer in optimizers],
        "random": _random_state(_device_of(model)),
        "extra": extra,
    }
    path, size = files.write_checkpoint(folder, step, tensors, state)
    return f"{folder.name}/{path.name}", size


def load_newest(
    folder: Path, model: nn.Module, optimizers: Iterable[Optimizer], on_message: Callable[[str], None]
) -> dict[str, Any] | None:
    """Restore model, optimizers and random states from the newest sound checkpoint; give its `extra` plus `step`.

    None when the folder holds no checkpoint. A damaged one is reported through `on_message`, set aside (renamed) once
    an older one serves, and never loaded in part. Raises CheckpointError when checkpoints are there but none is sound,
    or when a sound one belongs to another model or other optimizers.
    """
    files.tidy(folder)
    optimizers = list(optimizers)
    damaged: list[str] = []
    broken: list[Path] = []
    for path in reversed(files.list_checkpoints(folder)):
        try:
            state = files.verify(path)
        except DamagedError as problem:
            damaged.append(f"{path} is damaged: {problem}")
            broken.append(path)
            on_message(f"{damaged[-1]}; trying the one before it")
            continue
        _restore(path, state, model, optimizers)
        files.set_aside(broken)  # or they would count as the newest when old ones are pruned
        return {**state["extra"], "step": state["step"]}
    if damaged:
        raise CheckpointError(f"no checkpoint in {folder} can be used: " + "; ".join(damaged))
    return None


def prune(folder: Path, keep: int) -> None:
    """Delete all but the `keep` newest checkpoints; raises ValueError for fewer than one, CheckpointError."""
    if keep < 1:
        raise ValueError(f"keep: {keep} must be at least 1")
    for path in files.list_checkpoints(folder)[:-keep]:
        files.delete(path)


# --- names -----------------------------------------------------------------------------------------------------------


def _bare(model: nn.Module) -> nn.Module:
    """The model itself, out of the wrappers of data parallelism and compilation, however nested."""
    while True:
        if isinstance(model, DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers by plain name; a tied tensor once, under its first name."""
    seen: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in _bare(model).state_dict(keep_vars=True).items():  # keep_vars: tied ones are the same object
        if seen.setdefault(id(tensor), name) == name:
            tensors[name.replace("_orig_mod.", "")] = tensor  # blocks may be compiled one by one
    return tensors


def _parameter_names(model: nn.Module) -> dict[int, str]:
    return {id(tensor): name for name, tensor in _model_tensors(model).items()}


def _group_names(optimizer: Optimizer, names: dict[int, str]) -> list[list[str]]:
    """Parameter names of each group."""
    if any(id(p) not in names for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("an optimizer holds a parameter that is not the model's")
    return [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]


# --- restoring -------------------------------------------------------------------------------------------------------


def _restore(path: Path, state: dict[str, Any], model: nn.Module, optimizers: list[Optimizer]) -> None:
    """Load a sound checkpoint; checks that it fits before anything is changed."""
    names = _parameter_names(model)
    targets = _model_tensors(model)
    problems = _model_mismatch(targets, files.read_shapes(path / MODEL_FILE))
    problems += _optimizer_mismatch(state["optimizers"], optimizers, names)
    if problems:
        raise CheckpointError(f"{path} belongs to another run configuration: " + "; ".join(problems))
    with safe_open(path / MODEL_FILE, framework="pt") as saved, torch.no_grad():
        for name, target in targets.items():
            target.copy_(saved.get_tensor(name))
    with safe_open(path / OPTIMIZER_FILE, framework="pt") as saved:
        for index, optimizer in enumerate(optimizers):
            _restore_optimizer(optimizer, state["optimizers"][index], _tensors_by_parameter(saved, index))
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
    """All state tensors, named "optimizer index/state key/parameter name"."""
    return {
        f"{index}/{key}/{names[id(parameter)]}": value.detach()
        for index, optimizer in enumerate(optimizers)
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
        if isinstance(value, Tensor)
    }


def _describe_optimizer(optimizer: Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """Class, groups with settings and parameter names, and state values that are no tensors."""
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


def _tensors_by_parameter(saved: Any, index: int) -> dict[str, dict[str, Tensor]]:
    """State tensors of one optimizer; copies, since memory mapped from a file is not aligned as fresh memory is."""
    tensors: dict[str, dict[str, Tensor]] = {}
    for full_name in saved.keys():  # noqa: SIM118 - a safetensors file is no mapping
        number, key, name = full_name.split("/", 2)
        if int(number) == index:
            tensors.setdefault(name, {})[key] = saved.get_tensor(full_name).clone()
    return tensors


def _restore_optimizer(optimizer: Optimizer, saved: dict[str, Any], tensors: dict[str, dict[str, Tensor]]) -> None:
    """Load one optimizer through its own `load_state_dict`, which knows where each kind of state must lie."""
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
    """Saved settings of a group in the types they have at hand (JSON knows neither tuples nor tensors)."""
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
    """States of torch (CPU, and the model's device), numpy's global generator and python's."""
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
