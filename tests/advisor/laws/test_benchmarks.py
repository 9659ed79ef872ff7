"""What guessing scores, against arithmetic by hand."""

from __future__ import annotations

import pytest

from advisor.laws.benchmarks import BENCHMARKS, Benchmark, benchmark_of, chance_interval


def test_guessing_on_hellaswag():
    # 10,042 questions of 4 answers: 0.25 ± 1.96·√(0.1875/10042) = 0.2415 … 0.2585
    assert chance_interval(BENCHMARKS["hellaswag"]) == pytest.approx((0.2415, 0.2585), abs=1e-4)


def test_a_hundred_questions_of_two_answers():
    # COPA's 100 questions: standard error √(0.25/100) = 5 %, so 40.2 to 59.8 % say nothing
    assert BENCHMARKS["copa"].standard_error == 0.05
    assert chance_interval(Benchmark(chance=0.5, questions=100)) == pytest.approx((0.402, 0.598), abs=1e-3)


def test_free_answers_are_not_guessed():
    assert chance_interval(BENCHMARKS["gsm8k"]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        *(("eval/HellaSwag acc_norm", "hellaswag"), ("arc-easy", "arc_easy"), ("bleu", None)),
        *(("quartet", None), ("super_glue/rte", "rte"), ("retrace", None), ("openbook_qa", "openbookqa")),
    ],
)
def test_benchmarks_are_known_by_name(name, benchmark):
    assert benchmark_of(name) == benchmark
