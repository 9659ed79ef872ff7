"""Repeats, restarts, phases, ranks and evaluations: how records become one table."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.readers.assemble import assemble
from advisor.readers.attempts import distinct
from advisor.readers.line_format import EVAL, TRAIN
from advisor.readers.records import Block, joined_records

NAN = np.nan


def records(rows, kinds=(TRAIN, EVAL, TRAIN)):
    """Records of (rule, columns) in the order of a file."""
    blocks = []
    for order, (rule, columns) in enumerate(rows):
        values = {name: np.array([float(value)]) for name, value in columns.items()}
        if "loss" in values:
            values["loss_is_nan"] = np.isnan(values["loss"]).astype(float)
        blocks.append(Block(order=np.array([order]), rule=rule, columns=values))
    return joined_records(blocks, kinds, np.arange(1, len(blocks) + 1))


def build(rows, **keywords):
    return assemble(records(rows), source="x.log", format="test", framework=None, **keywords)


def train(step, loss=None, **more):
    return 0, {"step": step, "loss": 10 - step / 10 if loss is None else loss, **more}


def evaluation(step, loss, **more):
    return 1, {"step": step, "eval_loss": loss, **more}


def test_an_evaluation_joins_the_training_record_of_its_step():
    table = build(
        [evaluation(0, 9.5), train(0), train(10), evaluation(10, 9.0), evaluation(10, 1.0), evaluation(15, 8)]
    )
    assert table.columns["step"].tolist() == [0, 10, 15]
    np.testing.assert_array_equal(table.columns["eval_loss"], [9.5, 9.0, 8.0])  # of two at one step the first
    assert (table.rows, table.last_step, table.last_loss) == (2, 10, 9.0)


def test_one_record_repeated_after_a_restart_is_the_later_one():
    table = build([train(0), train(10), train(20), train(20, loss=1), train(30)])
    assert table.columns["loss"].tolist() == [10, 9, 1, 7]


def test_phases_that_a_format_names():
    rows = [train(s) for s in range(5)] + [(2, {"step": s + 3, "loss": 2}) for s in range(4)]
    table = build(rows, phase_names=("", "", "fine-tuning"))
    assert [(phase.name, phase.first_row, phase.last_row) for phase in table.phases] == [
        ("training", 0, 4),
        ("fine-tuning", 5, 8),
    ]


def test_ranks_interleave_and_drift_apart_by_a_step():
    rows = []
    for step in range(30):
        rows += [train(step, rank=1, loss=5), train(max(0, step - 1), rank=0, loss=3), train(step, rank=2, loss=7)]
    table = build(rows)
    assert set(table.columns["rank"].tolist()) == {0} and set(table.columns["loss"].tolist()) == {3}
    assert len(table.phases) == 1 and table.rows == 90


def test_stages_of_a_pipeline_that_have_no_loss_give_way_to_the_one_that_has():
    rows = [train(n, rank=r, loss=8 - n / 10 if r == 3 else -4) for n in range(30) for r in range(4)]
    table = build(rows)
    assert set(table.columns["rank"].tolist()) == {3} and (table.first_loss, table.last_loss) == (8, 5.1)


def test_a_step_borrowed_from_a_neighbour():
    rows = [(1, {"eval_loss": 11}), train(1), train(2), (1, {"eval_loss": 10})]
    before = build(rows, borrowed={1: "previous"})
    assert before.columns["step"].tolist() == [0, 1, 2] and before.columns["eval_loss"][2] == 10
    after = build(rows[:3], borrowed={1: "next"})
    assert after.columns["step"].tolist() == [1, 2] and after.columns["eval_loss"][0] == 11


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 0, 0, 1, 2]),
            st.one_of(st.integers(-5, 40).map(float), st.floats(allow_nan=True, allow_infinity=True), st.just(NAN)),
            st.one_of(st.floats(allow_nan=True, allow_infinity=True)),
            st.sampled_from([NAN, 0.0, 1.0, 2.0]),
        ),
        max_size=60,
    )
)
def test_anything_assembles(rows):
    columns = ("step", "loss", "rank")
    table = build([(rule, dict(zip(columns, values, strict=True))) for rule, *values in rows])
    assert {len(values) for values in table.columns.values()} <= {len(table)}
    assert len(table) <= len(rows)
    covered = [row for phase in table.phases for row in range(phase.first_row, phase.last_row + 1)]
    assert covered == list(range(len(table)))


@given(st.lists(st.integers(0, 9)))
def test_distinct_numbers_are_a_sorted_set(numbers):
    assert distinct(np.array(numbers, dtype=np.int64)).tolist() == sorted(set(numbers))
