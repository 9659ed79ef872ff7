"""Check by exact FLOPs and the dense peak whether the logged speed can be true."""

from __future__ import annotations

from advisor.findings import run_metrics, series
from advisor.findings.case import Case, Verdict, finding, lacking
from advisor.findings.run_facts import parameters
from advisor.findings.workload_of import ONE_DEVICE
from advisor.laws.flops import IMPOSSIBLE_MFU, IMPOSSIBLE_ON_CPU
from advisor.units import format_flops, format_percent, format_rate

_LOGGED_MFU_TOLERANCE = 0.10
_NEXT_TO_NOTHING = 0.02  # even small models on large GPUs reach 5 %
# Peaks behind wrong denominators: what logs divide by instead of the GPU's dense peak.
_WRONG_PEAKS = (
    (312e12, "an A100's 312 TFLOP/s"),
    (989e12, "an H100's 989 TFLOP/s"),
    (1979e12, "an H100's 1,979 TFLOP/s with sparsity"),
)


def detect_impossible_mfu(case: Case) -> Verdict:
    """An MFU above 80 % of the dense peak, recomputed from exact FLOPs: some number in the log cannot be true."""
    share = run_metrics.share_of_peak(case)
    if share is None:
        return lacking("impossible_mfu", "the model's shape, the GPU and step times (or a rate) to compute the MFU")
    if share <= (IMPOSSIBLE_MFU if run_metrics.card(case) else IMPOSSIBLE_ON_CPU):
        return None
    speed, best = run_metrics.pace(case), run_metrics.peak(case)
    assert speed is not None and best is not None
    one = ONE_DEVICE in case.unsure
    why = "one GPU's dense peak: there were more, and the log does not say how many"
    return finding(
        "impossible_mfu",
        text="impossible_on_one" if one else "impossible_mfu",
        severity="warning" if case.unsure else "error",
        title=f"The log's speed would be {format_percent(share)} of "
        + (why if one else "the GPU's dense peak, which no run reaches"),
        evidence=(
            f"{format_rate(speed.tokens_per_second)} ({speed.source}) x "
            f"{run_metrics.flops_per_token(case):.4g} FLOPs per token over "
            f"{run_metrics.devices(case)} x {format_flops(best)}"
        ),
        confidence="high" if share > 1 and not case.unsure else "medium",
    )


def detect_logged_mfu(case: Case) -> Verdict:
    """An MFU printed by the log that differs from the MFU by its own times."""
    logged = series.finite(run_metrics.main_column(case.run, "mfu"))
    logged = logged[logged > 0]
    if not len(logged):
        return lacking("logged_mfu", "an MFU that the log prints, to be checked")
    share = run_metrics.mfu(case)
    printed = series.median(logged[series.steady_start(1 / logged) :])
    if share is None and printed < _NEXT_TO_NOTHING:  # the GPU, or the formula, differs from what the log assumes
        return finding(
            "logged_mfu",
            text="mfu_tiny",
            title=f"The log prints an MFU of {format_percent(printed)}: hardly any of the peak that it assumes",
            evidence="the GPU is not named, so that it cannot be recomputed",
        )
    if share is None:
        return lacking("logged_mfu", "the model's shape and the GPU to check the logged MFU")
    ratio = printed / share
    if abs(ratio - 1) <= _LOGGED_MFU_TOLERANCE:
        return None
    return finding(
        "logged_mfu",
        severity="note" if case.unsure else "error" if printed > IMPOSSIBLE_MFU else "warning",
        title=f"The log prints an MFU of {format_percent(printed)}; its own times give {format_percent(share)}",
        evidence=f"median of {len(logged)} printed values; printed / recomputed = {ratio:.3g}",
        confidence="medium" if case.unsure else "high",
        causes=_mfu_causes(case, ratio),
    )


def _mfu_causes(case: Case, ratio: float) -> tuple[str, ...]:
    """Return wrong denominators and numerators that give this ratio within 10 %, or else the usual ones."""
    best, work = run_metrics.peak(case), run_metrics.flops_per_token(case)
    assert best is not None and work is not None and case.workload is not None
    shape = case.workload.shape
    attention = 12 * shape.depth * shape.width * shape.seq_len / work
    candidates = [(best / wrong, f"the log divides by {name}") for wrong, name in _WRONG_PEAKS]
    candidates += [
        (0.5, "the log divides by the peak with 2:4 sparsity"),
        (1 / case.workload.grad_accum, "the log counts one micro-batch per step"),
        (1 / case.workload.gpus, "the log counts one GPU's tokens over all GPUs"),
        (float(case.workload.gpus), "the log divides all GPUs' work by one GPU's peak"),
        (1 - attention / 2, "the log counts the causal half of attention only"),
        (1 - attention, "the log counts 6N and leaves attention out"),
        ((parameters(case) or 0) * 6 / work, "the log counts 6 x all parameters, lookup tables included"),
    ]
    causes = [words for value, words in candidates if abs(value - 1) > 0.05 and abs(ratio / value - 1) < 0.05]
    return tuple(dict.fromkeys(causes)) or ("another peak, FLOPs formula or number of GPUs in the log's own formula",)
