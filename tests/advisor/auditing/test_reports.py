"""The five reports as a careful engineer reads them: every verdict, with the arithmetic where a claim fails."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from advisor.auditing.audit import Audit, audit
from advisor.auditing.load import load_card
from advisor.auditing.verdict import Ruling
from advisor.findings.case import Severity
from tests.advisor.auditing.made_up import believe

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "reports"

WRONG = {
    "report-0": {
        "date",  # 2026-02-25 in the run's id, 2025-02-25 in the report
        "optimizer-time",  # 28 B · 15.9 M / 300 GB/s = 1.49 ms at least, 0.6 ms printed
        "memory-range",  # 15 MB in the row of step 1
        "utilisation-range",  # 3 % in the row of step 1
        "healthy-forward",  # backward / forward = 972.9 / 1,094.5 = 0.89 where FLOPs say 2
    },
    "report-1": {
        "parameters",  # 2·65,536·1024 + 12·16·1024² = 335,544,320
        "parameters-again",
        "tokens",  # 12,800 · 524,288 = 6.71 B
        "identity-cached",  # 278 bytes of XML
        "weights",  # 2 · 335.5 M = 671 MB
        "optimizer",  # 8 · 335.5 M = 2.68 GB
        "gradients",
        "bound-twice",  # memory bandwidth in one section, compute in the next
        "smi-interval",  # --loop-ms
        "d24-parameters",  # 880,803,840
        "d24-slower",  # 5.587e9 / 2.013e9 = 2.77
        "d24-time",  # 33,600 · 2.94 s = 27.4 h
        "d24-tokens",  # 20 · 0.881 B = 17.6 B
        "d32-slower",  # 12.08e9 / 2.013e9 = 6.0
        "d32-time",  # 71,680 steps of 4 to 6 times 1.217 s: 97 to 145 h
        "d20-parameters",  # 560,988,160
        "d20-slower",  # 3.492e9 / 2.013e9 = 1.73
        "d20-time",  # 21,400 · 1.70 s = 10.1 h with the report's own 1.4 times
        "d20-tokens",  # 20 · 0.561 B = 11.2 B
        "d20-more",  # 561.0 / 335.5 = 1.672
        "final-loss-twice",  # 2.904 and 2.77 of one completed run
        "run3-label",  # 586.16 min / 11,939 = 2.95 s: the step of depth 24
        "early-fall",  # 1 - 3.46/11.09 = 68.8 %
        "rate-everywhere",  # 11,939 · 524,288 / 586.16 min = 178 k
        "d16-twice",  # 470 M and 336 M
        "d24-percent-slower",  # 2.94 / 1.217 = 2.42: 142 % more time, 59 % less throughput
        "remaining",  # (33,600 - 12,678) · 2.94 s = 17.1 h
        "total-time",  # 27.4 h
        "checkpoints",  # 33,000 is missing
        "checkpoint-size",  # 3.5 GB / 881 M = 4 bytes: weights alone
        "checkpoint-disk",  # 12 · 8 B · 881 M = 84.6 GB at least
    },
    "report-2": {
        "tf32-speed",  # 60 / 30.3 = 1.98
        "tf32-accuracy",  # 10 against 23 mantissa bits
        "against-v100",  # 121 / 112 = 1.08 at best, 300 / 900 GB/s
        "full-fp32",  # TF32 is switched on
        "tf32-against-bf16",  # 60 / 121
        "fp16-precision",  # 10 against 7 mantissa bits
        "which-does-what",  # the reverse
        "faster-than-v100",
    },
    "report-3": {
        "parameters",  # 169 M at most: 12·(4·896² + 3·896·3584) + 2·8,103·896 and norms
        "before-parameters",  # 440 M at most
        "optimal-tokens",  # 25 · 169 M = 4.2 B at most
        "times-optimal",  # 32.8 B / 4.2 B = 7.8 at least
        "weights",  # 2 · 169 M = 0.34 GB at most
        "weights-arithmetic",  # 2 · 550 M = 1.1 GB
        "optimizer",  # 8 · 169 M = 1.35 GB at most
        "gradients",  # 4 · 169 M = 0.67 GB at most
        "memory-sum",  # 2.2 + 4.4 + 2.2 + 6-8 = 14.8-16.8
        "loss-1000",  # its own row has 5.3421
        "loss-100000",  # 2.08 at best
        "loss-500000",  # 1.91 at best
    },
    "report-4": {
        "functional",  # 244 MB < 498 MB of weights, 5.5 GFLOP/s, step 0 the fastest; loss above ln 50,257
        "converging",  # 60.8 where a uniform guess costs 10.82
        "perplexity-0",  # e^450.649 = 10^195.7
        "initial-loss",
        "setup",  # 8.3 s, then 31-40 s
        "expected-step",  # 256 tokens · 748 MFLOP = 0.19 TFLOP: tens of ms on this card
        "correct",
        "loss-good",
        "rerun-step",
        "implementation",
        "converges",
        "code-works",
    },
}
DOES_NOT_FOLLOW = {
    "report-0": {
        "learning-rate",  # DeepSeek 2.5e-3, Step Law 6.7e-3 against 5e-5
        "epochs",  # 512 M / 10.6 M = 48
        *("fill-memory", "low-utilisation", "bigger-batch", "bigger-card", "l4-dear", "progressing"),  # MFU 0.455 %
        "clipping",  # norms rise from 0.67 to 2.2
    },
    "report-1": {
        *("shards", "d24-shards", "d20-shards"),  # from wrong parameter counts
        "bottleneck",  # products are the larger part
        "monitor-rate",  # the driver's reading is a one-second average
        "memory-matches",  # 28,481 MiB = 29.9 GB against 20
        *("compute-bound", "still-compute-bound"),  # products need 55 % of the step
        "d20-better-used",
        "arc-challenge",  # 0.5 standard errors above chance
        "boolq",  # below chance
        "gain-12000",  # learning rates at 100 % and 31 % of their peaks
        "outperforms",  # 2.70-2.84 against 2.77
    },
    "report-2": {
        "effective-best",
        "cudnn",
        "no-waiting",
        "fewer-workers",
        "dollar",
        *("maximum", "defaults"),  # nothing was measured
    },
    "report-3": {"norm-below-one", "speed", "stabler"},
    "report-4": set(),
}
CANNOT_BE_JUDGED = {
    "report-0": {"clipped"},  # 24 % of what?
    "report-1": {"pipeline-time", "save-every"},
    "report-2": {
        *("memory-use", "memory-safe", "workers-speed", "recompute-memory", "preprocessing", "training-time"),
        "against-cpu",
    },
    "report-3": {
        *("capped", "three-times", "activations", "loss-10000", "loss-50000", "initial-loss", "clipping-stable"),
        *("faster-convergence", "bf16-quality"),
    },
    "report-4": set(),
}
# a choice of true claims that a hasty audit might accuse
HOLDS = {
    "report-0": {
        "parameters",  # untied head: 17,465,088
        "initial-loss",  # ln 4000 = 8.294
        "loss-fall",  # 47.5 %
        "phase-sum",  # 2,186.6 ms
        "average-rate",  # 4,853 · 10,240 / 2.84 h = 4,861
        "rate-decay",  # cosine at 7.9 %: 4.93e-5
        "eta",  # 50,000 · 10,240 / 4,870 = 29.2 h
        "bill",  # 29.2 · 0.70 = 20.44
        "checkpoint",  # 12 · 17.4 M = 209 MB = 199 MiB
        "more-data",  # 91 / 34 = 2.68
        "price",
        "ram",
        "memory-share",
    },
    "report-1": {
        "mfu",  # 2.01327e9 · 430,600 / (2 · 989.4e12) = 43.8 %
        "d24-mfu",  # 50.3 %
        "steps",
        "d24-steps",
        "d24-exact",
        "d24-times",  # 2.625
        "original-parameters",  # 1,879,048,192
        "d32-parameters",
        "bits-per-byte",  # 4.833 bytes a token
        "initial-loss",  # ln 65,536 = 11.090
        "late-fall",  # 5.54 %
        "gpt2-large",  # 774,030,080
        "gpt2-medium",  # 354,823,168
        "final-loss",  # 2.56 to 2.80 by the law
        "memory-share-0",
        "unused",
        "d20-used",  # 41 %
        "hellaswag",
        "winogrande",  # 2.1 standard errors
    },
    "report-2": {
        *("effective", "memory", "architecture", "vcpus", "ram", "bf16-range", "no-scaling", "native-bf16"),
        "bf16-speed",  # 121 / 30.3 = 3.99 at most
        *("channels-last", "recompute-time", "smaller-effective", "tf32-bits", "fp16-range", "v100-bf16"),
    },
    "report-3": {
        *("ffn", "effective", "step-tokens", "total-tokens", "card-memory", "memory-safe", "loss-500", "loss-2000"),
        *("rate-100", "rate-1000", "time-1000", "time-10000", "time-100000", "time-500000", "more-tokens"),
    },
    "report-4": {
        *("parameters", "weights", "step-tokens", "throughput", "average-step", "mean-step", "loss-fall"),
        *("perplexity-10", "perplexity-20", "perplexity-30", "perplexity-40", "perplexity-50", "date"),
        *("cpu-fallback", "likely-cpu", "timeout-expected", "timeout-actual", "half-done", "mean-loss"),
    },
}


@cache
def audited(report: str) -> Audit:
    return audit(load_card(FOLDER / f"{report}.yaml"), believe)


@pytest.mark.parametrize("report", sorted(WRONG))
def test_the_audit_finds_what_a_careful_engineer_finds(report: str) -> None:
    found: dict[Ruling, set[str]] = {ruling: set() for ruling in Ruling}
    for one in audited(report).judged:
        found[one.judgement.ruling].add(one.claim.id)
    assert found[Ruling.WRONG] == WRONG[report]
    assert found[Ruling.DOES_NOT_FOLLOW] == DOES_NOT_FOLLOW[report]
    assert found[Ruling.CANNOT_BE_JUDGED] == CANNOT_BE_JUDGED[report]
    assert found[Ruling.HOLDS] >= HOLDS[report]


@pytest.mark.parametrize(
    ("report", "claim", "words"),
    [
        ("report-0", "fill-memory", "0.455 %"),
        ("report-1", "parameters", "336 M"),
        ("report-1", "run3-label", "depth-24"),
        ("report-1", "d24-percent-slower", "58.6 %"),
        ("report-1", "checkpoints", "33000 missing"),
        ("report-1", "early-fall", "68.8 %"),
        ("report-2", "tf32-speed", "1.98 times"),
        ("report-2", "against-v100", "1.08 times at equal software"),
        ("report-3", "memory-sum", "14.8 GB to 16.8 GB"),
        ("report-3", "times-optimal", "7.77 to 13.7"),
        ("report-4", "perplexity-0", "5.2e195"),
        ("report-4", "converging", "50.0 nats a token worse than a uniform guess"),
        ("report-4", "initial-loss", "summed over batch (113 each)"),
    ],
)
def test_the_number_that_decides_is_said(report: str, claim: str, words: str) -> None:
    (one,) = (one for one in audited(report).judged if one.claim.id == claim)
    assert words in one.judgement.so


def test_training_that_does_not_work_is_an_error() -> None:
    errors = {f.title for f in audited("report-4").findings if f.severity is Severity.ERROR}
    assert any("training works" in title and "does not train on the GPU" in title for title in errors)


def test_verdicts_rest_on_the_numbers_and_not_on_the_report() -> None:
    """The same claims about a run whose numbers are changed get other verdicts, under another name."""
    card = load_card(FOLDER / "report-0.yaml")
    fast = replace(card, run=replace(card.run, throughput=None, step_time=None))
    changed = {one.claim.id: one.judgement.ruling for one in audit(fast, believe).judged}
    assert changed["bigger-card"] is Ruling.CANNOT_BE_JUDGED
    assert changed["parameters"] is Ruling.HOLDS
    deep = replace(card, run=replace(card.run, depth=12))
    deeper = {one.claim.id: one.judgement.ruling for one in audit(deep, believe).judged}
    assert deeper["parameters"] is Ruling.WRONG
