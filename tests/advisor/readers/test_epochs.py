"""Logs whose steps start again with every epoch: made cumulative, and their plan with them."""

from __future__ import annotations

import pytest

from advisor.readers.read import read_run
from advisor.readers.run_table import Status


def lines(template: str, epochs: int, *, first: int = 1) -> str:
    """Epochs of 300 steps, every hundredth printed, the loss falling."""
    rows = [(epoch, step) for epoch in range(first, first + epochs) for step in (100, 200, 300)]
    return "".join(template.format(epoch=e, step=s, loss=3 - 0.1 * i) + "\n" for i, (e, s) in enumerate(rows))


@pytest.mark.parametrize(
    ("epoch", "done", "planned", "status"),
    [
        ("Epoch [{epoch}/4]", 4, 1200, Status.COMPLETED),
        ("Epoch [{epoch}/4]", 2, 1200, Status.INCOMPLETE),
        ("Epoch {epoch}", 3, None, Status.INCOMPLETE),  # 300 steps are those of an epoch, and nobody says how many
    ],
)
def test_planned_steps_are_those_of_all_epochs(tmp_path, epoch, done, planned, status):
    path = tmp_path / "train.log"
    path.write_text(lines(f"{epoch}, Step [{{step}}/300], Loss: {{loss:.3f}}", done))
    run = read_run(path)
    assert (run.first_step, run.last_step) == (1, done)  # what is printed of the whole run: its epochs
    assert (run.columns["step"][0], run.columns["step"][-1]) == (100, 300 * done)
    assert run.facts.get("planned_steps") == planned
    assert run.status is status


def test_a_plan_of_the_whole_run_is_not_multiplied(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(lines("epoch {epoch}/4 step {step}/1200 loss {loss:.3f}", 4))
    run = read_run(path)
    assert run.columns["step"][-1] == 1200 and run.facts["planned_steps"] == 1200


def test_steps_of_an_epoch_are_those_printed_beside_them_not_the_last_that_was(tmp_path):
    shown = "[Epoch {e}/20] [Batch {b}/100] [loss: {v}]\n"
    text = "".join(shown.format(e=e, b=b, v=3 - e - b / 100) for e in range(3) for b in range(0, 100, 25))
    (tmp_path / "a.log").write_text(text)
    assert read_run(tmp_path / "a.log").column("step").tolist() == list(range(0, 300, 25))
