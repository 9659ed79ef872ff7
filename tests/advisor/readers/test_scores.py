"""Benchmark scores that logs print among their steps: events with the benchmark's name, the step and a fraction."""

from __future__ import annotations

import pytest

from advisor.findings.detectors.held_out import detect_scores_at_chance, scores_of
from advisor.findings.make_case import make_case
from advisor.readers.read import read_run

NANOCHAT = "step {0:05d}/00300 (1.00%) | loss: 5.{0:06d} | lrm: 1.00 | dt: 100.00ms | tok/sec: 5,000 | mfu: 10.00"
LLMC = "step {0}/300 | loss 5.{0:06d} (+nanz)| norm 1.0 (+nanz)| lr 1.00e-04 | 100.00 ms | 30.0% bf16 MFU | 5000 tok/s"
# as EleutherAI's harness prints its table
HARNESS = """|  Tasks  |Version|Filter|n-shot| Metric |   |Value |   |Stderr|
|---------|------:|------|-----:|--------|---|-----:|---|-----:|
|hellaswag|      1|none  |     0|acc     |↑  |0.2634|±  |0.0044|
|         |       |none  |     0|acc_norm|↑  |0.2701|±  |0.0044|
|piqa     |      1|none  |     0|acc     |↑  |0.6143|±  |0.0114|"""


@pytest.mark.parametrize(
    ("line", "said", "format", "scores"),
    [
        (NANOCHAT, "Evaluating: arc_easy (10-shot, type: multiple_choice)... accuracy: 0.5520 | centered: 0.4027",
         "nanochat", {"arc_easy": 0.552}),
        (NANOCHAT, "ARC-Challenge accuracy: 28.84%\nMMLU accuracy: 31.00%", "nanochat",
         {"arc_challenge": 0.2884, "mmlu": 0.31}),
        (NANOCHAT, HARNESS, "nanochat", {"hellaswag": 0.2634, "piqa": 0.6143}),
        (LLMC, "HellaSwag: 2500/10042 = 0.248954", "llmc_stdout", {"hellaswag": 0.248954}),
        ("s:{0} trl:5.{0:04d} lr:0.000100 norm:1.0", "s:3 eval:0.2437", "llmc_mainlog", {"hellaswag": 0.2437}),
        ("{0} train 5.{0:06d}", "3 hella 0.2743", "build_nanogpt", {"hellaswag": 0.2743}),
    ],
)  # fmt: skip
def test_scores_are_read(tmp_path, line, said, format, scores):
    path = tmp_path / "run.log"
    steps = [line.format(step) for step in range(1, 6)]
    path.write_text("\n".join([*steps[:3], said, *steps[3:]]) + "\n")
    run = read_run(path)
    assert (run.format, run.rows) == (format, 5)
    found = scores_of(make_case(run))
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(scores)
    assert {step for _, step in found.values()} == {3.0}


def test_a_log_of_scores_at_chance_is_told_so(tmp_path):
    path = tmp_path / "main.log"
    path.write_text("".join(f"s:{s} trl:{5 - s / 100:.4f} lr:0.0001\ns:{s} eval:0.2437\n" for s in range(20)))
    found = detect_scores_at_chance(make_case(read_run(path)))
    assert found.title.startswith("1 of 1 scores at chance: hellaswag 24.4%") and found.severity == "note"
