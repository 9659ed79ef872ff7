"""The scorer of a collection of logs: what is right, what counts once, and what an assistant's answer adds."""

import csv
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import unseen_logs  # noqa: E402

ENDS = ("first_step", "last_step", "first_loss", "last_loss")
COLUMNS = ("file", "owner", "program", *ENDS, "status", "hours", "main_problem", "healthy", "codes")
LOSSES = {10: 2.50, 20: 2.02, 30: 1.61, 40: 1.44, 50: 1.30}
PLAIN = "".join(f"step {step}/50 | loss {loss:.4f} | 0.5 s/step\n" for step, loss in LOSSES.items())
OWN = "".join(f"~ u{step} >> zest {loss:.4f}\n" for step, loss in LOSSES.items())  # no word that says what a number is
FORMAT = {"name": "zorp", "rows": [r"~ u(?P<step>\d+) >> zest (?P<loss><<LOSS>>)"]}
OUTCOME = {"status": "unknown", "cause": "the log ends", "lines": [5]}
OUTCOME |= {"first_loss": "2.5000", "last_loss": "1.3000", "last_step": "50"}


@pytest.fixture
def scored(tmp_path, monkeypatch, capsys):
    """Write logs with their truth and return the lines that the command prints."""

    def score(*rows: dict[str, str], options: tuple[str, ...] = (), **texts: str) -> list[str]:
        folder = tmp_path / "logs"
        folder.mkdir(exist_ok=True)
        for name, text in texts.items():
            (folder / f"{name}.log").write_text(text)
        with (folder / "truth.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="")
            writer.writeheader()
            writer.writerows(rows)
        monkeypatch.setattr(sys, "argv", ["unseen_logs.py", str(folder), *options])
        unseen_logs.main()
        return capsys.readouterr().out.splitlines()

    return score


def truth(name: str, **known: str) -> dict[str, str]:
    ends = dict(zip(ENDS, ("10", "50", "2.5", "1.3"), strict=True))
    return {"file": f"{name}.log", "owner": name, "program": "own", "healthy": "yes", **ends, **known}


@pytest.mark.parametrize(
    ("known", "line"),
    [
        ({"last_loss": "1.288"}, "losses, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)"),  # 0.9 % below
        ({"last_loss": "1.286"}, "losses, of 1: 0 right (0%), 0 silent (0%), 1 wrong (100%)"),  # 1.1 % below
        ({"last_loss": "9.9|1.3"}, "losses, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)"),
        ({"last_step": "49"}, "last step, of 1: 0 right (0%), 0 silent (0%), 1 wrong (100%)"),
        ({"status": "finished"}, "status, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)"),
        ({"status": "killed|no_end"}, "status, of 1: 0 right (0%), 0 silent (0%), 1 wrong (100%)"),
        ({"codes": "killed|status:completed"}, "main problem, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)"),
        ({"codes": "out_of_memory"}, "main problem, of 1: 0 right (0%), 1 silent (100%), 0 wrong (0%)"),
    ],
)
def test_an_answer_is_right_within_the_bounds_or_if_it_is_one_of_several(scored, known, line):
    lines = scored(truth("plain", **known), plain=f"{PLAIN}Training complete\n")
    assert line in lines and "read, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)" in lines
    assert ("plain.log (own)" in lines) == (" 1 right" not in line)  # listed only if something is not right


def test_an_owner_counts_once_by_the_worst_of_the_logs(scored):
    logs = [truth("good", owner="one"), truth("bad", owner="one", last_loss="3.3"), truth("other")]
    lines = scored(*logs, good=PLAIN, bad=PLAIN, other=PLAIN, options=("--totals",))
    assert "losses, of 2: 1 right (50%), 0 silent (0%), 1 wrong (50%)" in lines
    assert not [line for line in lines if "log (own)" in line]


def test_an_error_on_a_healthy_log_is_counted(scored):
    nan = PLAIN + "".join(f"step {step}/500 | loss nan\n" for step in range(60, 510, 10))
    lines = scored(truth("ill"), truth("known", healthy="no"), ill=nan, known=nan)
    assert "healthy: 1 logs, 1 errors, 0 warnings" in lines
    assert [line for line in lines if line.startswith("  error on a healthy log: loss_not_finite")]


@pytest.mark.parametrize(("answer", "used"), [(FORMAT, ""), ({"format": FORMAT, "outcome": OUTCOME}, "1 of 1 used")])
def test_a_format_or_an_answer_of_an_assistant_reads_its_log(scored, tmp_path, answer, used):
    assert "losses, of 1: 0 right (0%), 1 silent (100%), 0 wrong (0%)" in scored(truth("zorp"), zorp=OWN)
    (tmp_path / "zorp.yaml").write_text(json.dumps(answer))
    lines = scored(truth("zorp"), zorp=OWN, options=("--format-of", str(tmp_path)))
    assert "losses, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)" in lines
    assert [line for line in lines if line.startswith("answers")] == [f"answers of an assistant: {used}"] * bool(used)


def test_an_answer_that_does_not_hold_is_listed_as_refused(scored, tmp_path):
    wrong = {"format": FORMAT | {"rows": [r"step (?P<step>\d+)/50 . loss (?P<loss><<LOSS>>)"]}}
    (tmp_path / "plain.log.yaml").write_text(json.dumps(wrong | {"outcome": OUTCOME | {"last_loss": "7.0"}}))
    lines = scored(truth("plain"), plain=PLAIN, options=("--format-of", str(tmp_path)))
    assert "answers of an assistant: 0 of 1 used" in lines
    assert [line for line in lines if "was refused" in line and "its last_loss 7.0 is not" in line]


def test_a_manifest_is_scored_log_by_log_and_its_values_are_exact(tmp_path, monkeypatch, capsys):
    columns = ["file", "source_repo", "framework", "status", *(f"expected_{end}" for end in ENDS)]
    rows = [("a.log", "one/x", "own", "completed", 10, 50, 2.5, 1.3), ("b.log", "one/y", "own", "", 10, 50, 2.5, 1.301)]
    with (tmp_path / "MANIFEST.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    for name in "ab":
        (tmp_path / f"{name}.log").write_text(f"{PLAIN}Training complete\n")
    monkeypatch.setattr(sys, "argv", ["unseen_logs.py", str(tmp_path)])
    unseen_logs.main()
    lines = capsys.readouterr().out.splitlines()
    assert "losses, of 2: 1 right (50%), 0 silent (0%), 1 wrong (50%)" in lines
    assert "status, of 1: 1 right (100%), 0 silent (0%), 0 wrong (0%)" in lines
