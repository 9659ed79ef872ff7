"""Trace the trainer's model again and write profiles/memory.json, the coefficients of the memory model.

    python benchmarks/trace_memory.py             # every cell, about 15 minutes on one core
    python benchmarks/trace_memory.py cuda/llama  # only cells whose names begin so; the others stay as they are
    python benchmarks/trace_memory.py --check     # only compare the file with new traces of unseen workloads

No GPU is needed. Each cell (device, family, precision, checkpointing, gradients) is fitted to traces of random shapes
with two to four blocks. `--check` traces shapes that no fit has seen, including published ones and depths up to 16.
"""

from __future__ import annotations

import datetime
import itertools
import json
import multiprocessing
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import nnls
from traced_peak import TracedPeak, trace_peak

import trainer.loss
from advisor.prediction.memory_terms import (
    TERMS,
    LossChunks,
    Moment,
    Structure,
    WorkloadArrays,
    device_type,
    repeats_keys,
    structure_from_dict,
)
from advisor.records import Workload
from trainer.schema import ModelShape, make_shape

PROFILE = Path(__file__).parents[1] / "profiles" / "memory.json"
TRACES = 40  # per cell; there are 22 terms
# In these phases the peak moves between operators as proportions change, so each operator is fitted separately.
BY_OPERATOR = ("loss", "first_chunk", "later_chunk", "backward", "last_block", "first_block", "embedding")
WHOLE = ("forward", "optimizer")
SMALLEST_SHARE = 2e-4  # of the peak; terms and moments that never reach this share are left out
# Parts of one block's gradients and copies may be missing at a moment at which all blocks' are counted, so these may be
# negative. No other term may, so that more tokens or blocks never give fewer bytes, also far from every trace.
SIGNED = ("f*d", "d*d", "k*d", "1")


def cells(prefix: str) -> list[str]:
    kinds = [("cuda", p) for p in ("bf16", "fp16", "fp32")] + [("cpu", p) for p in ("fp32", "bf16", "fp16")]
    families, held = ("nanochat", "gpt2", "llama"), ("single", "accumulate")
    # on the CPU, only requested recomputation is offered, so "selective" counts as "none" there
    checkpointing = {"cuda": ("none", "selective", "full"), "cpu": ("none", "full")}
    names = []
    for (d, p), f in itertools.product(kinds, families):
        for c, h in itertools.product(checkpointing[d], held):
            names.append(f"{d}/{f}/{p}/{c}/{h}")
            if repeats_keys(d, p):
                names.append(f"{d}/{f}/{p}/{c}/{h}/grouped")
    return [name for name in names if name.startswith(prefix)]


def draw(cell: str, generator: np.random.Generator, *, wide: bool = False, optimizer: str = "adamw") -> Workload:
    """Return a random workload of a cell: few blocks for tracing, or (wide) anything that a planner may ask about."""
    device, family, precision, checkpointing, held, *grouped = cell.split("/")
    pick = generator.choice
    head_dim = int(pick([64, 128]))
    heads = int(pick([2, 4, 6, 8, 12, 16, 24, 32, 64] if wide else [4, 6, 8, 10, 12, 16, 24]))
    width = heads * head_dim
    ratios = (2, 2, 4) if grouped else (1,) if repeats_keys(device, precision) else (1, 1, 2, 4)
    shape = ModelShape(
        family=family,
        depth=int(pick([1, 2, 4, 8, 12, 16, 24, 32, 48] if wide else [2, 3, 4])),
        width=width,
        heads=heads,
        kv_heads=heads // int(pick([n for n in ratios if heads % n == 0])),
        ffn_width=int(round(width * generator.uniform(2.2, 4.5) / 64) * 64),
        vocab_size=int(pick([4096, 16384, 32000, 50304, 65536, 131072])),
        seq_len=int(pick([128, 256, 512, 1024, 2048, 4096])),
    )
    most = (1 << 18 if wide else 1 << 16) if device == "cuda" else 1 << 13
    largest = np.log2(most / shape.seq_len)
    micro_batch = max(1, int(2 ** generator.uniform(0 if wide else largest / 4, largest)))
    return Workload(
        shape=shape,
        micro_batch=micro_batch,
        grad_accum=2 if held == "accumulate" else 1,
        gpu="cpu" if device == "cpu" else "h200",
        precision=precision,
        activation_checkpointing=checkpointing,
        optimizer=optimizer,
    )


def empty_structure() -> Structure:
    chunks = {
        kind: LossChunks(chunk_bytes=trainer.loss._CHUNK_BYTES[kind], fewest_tokens=trainer.loss._FEWEST_TOKENS[kind])
        for kind in ("cpu", "cuda")
    }
    made = f"traced on {datetime.date.today()} with torch {torch.__version__.split('+')[0]}"
    return Structure(cells={}, steps={}, chunks=chunks, source=f"{made} by benchmarks/trace_memory.py")


def fit_cell(cell: str, frame: Structure) -> tuple[Moment, ...]:
    """Trace a cell's random workloads and fit every moment that can be the peak."""
    generator = np.random.default_rng([1, *cell.encode()])  # the same workloads, whichever other cells are traced
    workloads = [draw(cell, generator) for _ in range(TRACES)]
    traces = [trace_peak(w) for w in workloads]
    arrays = WorkloadArrays.of(workloads)
    terms, persistent = frame.terms(arrays), frame.persistent_bytes(arrays)
    totals = np.array([t.total_bytes for t in traces], float)
    far = WorkloadArrays.of([draw(cell, generator, wide=True) for _ in range(3000)])
    far_terms, far_totals = frame.terms(far), frame.persistent_bytes(far)
    moments: dict[bool, list[Moment]] = {True: [], False: []}
    for phase in (*WHOLE, *BY_OPERATOR):
        rows, curves = _curves(traces, phase)
        beyond = curves - persistent[rows, None]
        candidates = [fit_moment(phase, terms[rows], y, totals[rows]) for y in beyond.T]
        moments[phase == "later_chunk"] += envelope(candidates, far_terms, far_totals)
    # A workload of one chunk has no later chunk, so its own peak must be kept as well.
    return tuple(envelope(moments[False], far_terms, far_totals) + moments[True])


def _curves(traces: list[TracedPeak], phase: str) -> tuple[np.ndarray, np.ndarray]:
    """Return which traces have the phase, and its live bytes by operator: shape (traces, operators)."""
    rows = [i for i, t in enumerate(traces) if phase in t.curves]
    if phase in WHOLE:
        return np.array(rows), np.array([[max(traces[i].curves[phase])] for i in rows], float)
    length = min(len(traces[i].curves[phase]) for i in rows)
    curves = np.array([traces[i].curves[phase][:length] for i in rows], float)
    return np.array(rows), np.unique(curves, axis=1)


def fit_moment(phase: str, terms: np.ndarray, y: np.ndarray, totals: np.ndarray) -> Moment:
    """Fit by least squares relative to the peak, and remove the least important terms one by one while none matters."""
    used = [i for i in range(len(TERMS)) if np.ptp(terms[:, i]) or TERMS[i] == "1"]
    while True:
        scale = terms[:, used].max(axis=0)
        x = terms[:, used] / scale / totals[:, None]
        signed = [place for place, i in enumerate(used) if TERMS[i] in SIGNED]
        positive, _ = nnls(np.hstack((x, -x[:, signed])), y / totals, maxiter=10_000)
        solution = positive[: len(used)]
        solution[signed] -= positive[len(used) :]
        shares = np.abs(x * solution).max(axis=0)
        if len(used) == 1 or shares.min() > SMALLEST_SHARE:
            return Moment(phase=phase, coefficients=dict(zip([TERMS[i] for i in used], solution / scale, strict=True)))
        used.pop(int(shares.argmin()))


def envelope(moments: list[Moment], terms: np.ndarray, persistent: np.ndarray) -> list[Moment]:
    """Return the fewest moments whose maximum is within a thousandth of the peak of all moments, over many sizes."""
    values = np.stack([terms @ m.vector for m in moments], axis=1)
    top = values.max(axis=1)
    kept: list[int] = []
    reached = np.full(len(top), -np.inf)
    while (shortfall := (top - reached) / (persistent + top)).max() > 1e-3:
        worst = int(shortfall.argmax())
        kept.append(int(values[worst].argmax()))
        reached = np.maximum(reached, values[:, kept[-1]])
    return [moments[i] for i in kept]


def fit_muon(frame: Structure, generator: np.random.Generator) -> dict[str, float]:
    """Return what Muon's step holds beyond weights, state and gradients: work space for one matrix at a time."""
    chosen = ("f*d", "d*d", "k*d")
    workloads = [draw("cuda/llama/bf16/none/single", generator, optimizer="muon") for _ in range(12)]
    arrays = WorkloadArrays.of(workloads)
    base = frame.persistent_bytes(arrays) + 4.0 * arrays.parameters
    held = np.array([max(trace_peak(w).curves["optimizer"]) for w in workloads]) - base
    x = frame.terms(arrays)[:, [TERMS.index(term) for term in chosen]]
    scale = x.max(axis=0)
    solution, *_ = np.linalg.lstsq(x / scale, held, rcond=None)
    return dict(zip(chosen, solution / scale, strict=True))


def unseen(generator: np.random.Generator) -> list[Workload]:
    """Return workloads that no fit has seen: published shapes, deeper and wider ones, and random ones of every kind."""
    dial = {depth: make_shape("nanochat", depth=depth, vocab_size=65536, seq_len=2048) for depth in (4, 8, 12, 16)}
    small = make_shape("gpt2", depth=12, vocab_size=50304, seq_len=1024)
    medium = make_shape("gpt2", depth=16, width=1024, heads=16, vocab_size=50304, seq_len=1024)
    llama = make_shape("llama", depth=8, width=2048, heads=16, kv_heads=4, vocab_size=32000, seq_len=4096)
    quick = make_shape("nanochat", depth=6, vocab_size=4096, seq_len=256)
    pairs = [(dial[4], 1), (dial[4], 64), (dial[8], 32), (dial[12], 32), (dial[16], 8)]
    pairs += [(small, 12), (small, 64), (medium, 4), (llama, 2)]
    named = [Workload(shape=shape, micro_batch=b, gpu="h200") for shape, b in pairs]
    named += [replace(named[4], grad_accum=4), replace(named[4], optimizer="muon"), replace(named[4], precision="fp32")]
    named += [replace(w, activation_checkpointing="full") for w in named[3:9]]
    named += [replace(w, precision="fp16", activation_checkpointing=c) for w in named[4:9] for c in ("none", "full")]
    named += [Workload(shape=quick, micro_batch=b, gpu="cpu", precision="fp32") for b in (1, 4, 16)]
    return named + [draw(cell, generator) for cell in cells("")[::3]]


def check(structure: Structure) -> str:
    """Trace unseen workloads and return a Markdown table of the structural model's error."""
    rows, errors = [], []
    for w in unseen(np.random.default_rng(20261121)):
        traced = trace_peak(w)
        predicted = float(structure.peak_bytes(WorkloadArrays.of([w]))[0])
        errors.append(predicted / traced.total_bytes - 1)
        s = w.shape
        kind = f"{device_type(w)} {s.family} {w.precision} {w.activation_checkpointing} {w.optimizer}"
        size = f"L{s.depth} d{s.width} f{s.ffn_width} V{s.vocab_size} T{s.seq_len} b{w.micro_batch}×{w.grad_accum}"
        gib = f"{traced.total_bytes / 2**30:.3f} | {predicted / 2**30:.3f}"
        rows.append(f"| {kind} | {size} | {traced.phase} | {gib} | {100 * errors[-1]:+.2f} % |")
    size = np.abs(errors)
    worst = f"error median {100 * np.median(size):.2f} %, largest {100 * size.max():.2f} %"
    table = ["| kind | sizes | peak in | traced GiB | predicted GiB | error |", "|---|---|---|---|---|---|", *rows]
    return "\n".join([f"{len(rows)} unseen workloads: {worst}.", "", *table])


def structure_to_dict(structure: Structure) -> dict:
    """Convert the structure to plain dicts, with coefficients rounded to six digits."""
    cells = {
        name: [{"phase": m.phase, "bytes": _rounded(m.coefficients)} for m in moments]
        for name, moments in structure.cells.items()
    }
    chunks = {
        kind: {"chunk_bytes": c.chunk_bytes, "fewest_tokens": c.fewest_tokens} for kind, c in structure.chunks.items()
    }
    return {
        "schema": 1,
        "source": structure.source,
        "chunks": chunks,
        "muon": _rounded(structure.steps["muon"]),
        "cells": cells,
    }


def _rounded(coefficients: Mapping[str, float]) -> dict[str, float]:
    return {term: float(f"{value:.6g}") for term, value in coefficients.items()}


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        print(check(structure_from_dict(json.loads(PROFILE.read_text()))))
        return
    structure = empty_structure()
    if arguments:
        before = structure_from_dict(json.loads(PROFILE.read_text()))
        structure = replace(structure, cells=before.cells, steps=before.steps)
    chosen = cells(arguments[0] if arguments else "")
    with multiprocessing.Pool() as pool:
        for cell, fitted in zip(chosen, pool.imap(partial(fit_cell, frame=structure), chosen), strict=True):
            structure = replace(structure, cells={**structure.cells, cell: fitted})
            print(f"{cell}: {len(fitted)} moments", flush=True)
    structure = replace(structure, steps={"muon": fit_muon(structure, np.random.default_rng(1))})
    PROFILE.write_text(json.dumps(structure_to_dict(structure), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
