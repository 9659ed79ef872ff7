"""Repeats, restarts, phases, ranks and evaluations: how records become one table."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.readers.assemble import assemble
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


def test_stages_of_a_pipeline_that_have_no_loss_give_way_to_the_one_that_has():
    rows = [train(n, rank=r, loss=8 - n / 10 if r == 3 else -4) for n in range(30) for r in range(4)]
    table = build(rows)
    assert set(table.columns["rank"].tolist()) == {3} and (table.first_loss, table.last_loss) == (8, 5.1)


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
