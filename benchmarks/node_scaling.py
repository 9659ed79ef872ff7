"""Measures what published runs lose for each doubling of their nodes, beyond the predicted communication.

    python benchmarks/node_scaling.py

Each series has one model, GPU, micro-batch and source on several numbers of nodes, and the shipped prior predicts it.
The result is the slope of log predicted over measured step seconds per doubling. Add it to `_STRAGGLING` of
advisor/prediction/comm.py; it is near zero if that value is right.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import prior_model
from left_out import predicted


def main() -> None:
    known = prior_model.published_cards()
    runs = prior_model.read_runs()
    held = predicted(*prior_model.fitted(runs, known), [run for run in runs if not run.encoder], known)
    series: dict[tuple, list[tuple[float, float]]] = defaultdict(list)
    for run, error in zip(held.runs, held.errors, strict=True):
        w = run.likeliest
        if w.gpus > 8:
            alike = (run.source, w.gpu, w.shape, w.micro_batch, w.sharding, w.activation_checkpointing, w.software)
            series[alike].append((float(np.log2(w.gpus / 8)), float(error)))
    slopes = []
    for (source, gpu, shape, micro_batch, *_), points in series.items():
        doublings, errors = np.array(points).T
        if len(set(doublings)) > 1:
            slopes.append(-np.polyfit(doublings, errors, 1)[0])
            print(f"{source}, {gpu}, depth {shape.depth}, micro-batch {micro_batch}: {slopes[-1]:+.1%} of a step")
    print(f"{len(slopes)} series: median {np.median(slopes):+.1%}, {min(slopes):+.1%} to {max(slopes):+.1%}")


if __name__ == "__main__":
    main()
