"""Prints a run's settings when it starts, under names that readers of training logs know. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def banner(header: Mapping[str, Any]) -> Iterator[str]:
    """Yield the log's header as lines of `name: value`. Unknown values are left out."""
    config, device, data = header["config"], header["device"], header["data"]
    shape, saving = config["model"], config["checkpoint"]
    on_cpu = device["type"] == "cpu"
    yield f"device: {'cpu' if on_cpu else device['name']}"
    if on_cpu and device["name"]:
        yield f"processor: {device['name']}"
    yield f"world_size: {header['world_size']}"
    yield f"precision: {header['precision']}"
    if device["type"] == "cuda":
        yield f"tf32: {_flag(config['tf32'])}"
    yield f"compile: {_flag(config['compile'])}"
    yield f"attention_kernel: {config.get('attention', 'auto')}"
    yield f"family: {shape['family']}"
    yield f"n_layer: {shape['depth']}"
    yield f"n_embd: {shape['width']}"
    yield f"n_head: {shape['heads']}"
    yield f"vocab_size: {shape['vocab_size']}"
    yield f"seq_len: {shape['seq_len']}"
    yield f"parameters: {header['parameters']}"
    yield f"micro_batch: {config['micro_batch']}"
    yield f"grad_accum: {config['grad_accum']}"
    yield f"tokens_per_step: {header['tokens_per_step']}"
    yield f"max_steps: {config['steps']}"
    yield f"data: {_data(data)}"
    yield f"checkpoints: {_checkpoints(saving)}"
    if header["resumed_from_step"]:
        yield f"resumed_from_step: {header['resumed_from_step']}"


def _flag(on: bool) -> str:
    return "true" if on else "false"


def _data(meta: Mapping[str, Any] | None) -> str:
    return "synthetic" if meta is None else f"{meta['tokens']} training tokens"


def _checkpoints(saving: Mapping[str, Any]) -> str:
    """Say when a run writes checkpoints."""
    steps, seconds = saving["every_steps"], saving["every_seconds"]
    when = [f"every {steps} steps"] if steps else []
    when += [f"every {seconds:g} seconds"] if seconds else []
    when += ["at the end"] if saving["final"] else []
    return ", ".join(when) or "none"
