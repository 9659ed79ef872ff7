"""Score an assistant's guesses about training runs, with and without this program: `python benchmarks/guess/guess.py`.

    guess.py questions > questions.jsonl               the questions, without the truths
    guess.py ask OUT.jsonl --reader "CMD"              CMD reads a question, prints {"value": …, "low": …, "high": …}
    guess.py program OUT.jsonl                         the answers of `published_rows.py` alone
    guess.py score ANSWERS.jsonl [OTHER.jsonl …]       errors and intervals of each file against the truths

`questions.csv` holds runs that their owners published and that stand in no table of `profiles/`. Whoever answers, and
whoever changes a law, a fit or a reader, does not open it. A line of answers is {"id": "q01", "value": 1.0, "low": 0.8,
"high": 1.3}: the best estimate and the ends of its 80 % interval. A question without such a line counts as refused.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from os.path import commonprefix
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from strangers import Scores, scores  # noqa: E402

QUANTITIES = {"tokens_per_second": "tokens/s", "peak_memory_gib": "peak memory", "hours": "hours", "usd": "dollars"}
HOW = (
    'Answer from what you know or can compute. Print one line of JSON and nothing else: {"value": …, "low": …, "high": '
    "…}, where value is your best estimate and low to high is your 80 % interval, in the unit that is asked for."
)
COLUMNS = ("answers", "quantity", "questions", "refused", "median / p90", "inside", "high/low", "score", "signed")
Answers = Mapping[str, Mapping[str, Any]]  # by the question's id


def questions(path: Path = HERE / "questions.csv") -> list[dict[str, str]]:
    """Every question with its truth and its source."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def gives_away(row: Mapping[str, str]) -> bool:
    """Whether a question names its owner, its truth, or its truth's digits (three at least)."""
    truth = _digits(row["value"])
    numbers = [n.replace(",", "") for n in re.findall(r"\d[\d,]*(?:\.\d+)?", row["question"])]
    alike = [len(both) > 2 and both in (truth, n) for n in map(_digits, numbers) for both in [commonprefix((n, truth))]]
    equal = [float(n) == float(row["value"]) for n in numbers]
    return row["owner"].lower() in row["question"].lower() or any(alike) or any(equal)


def _digits(number: str) -> str:
    """The digits of a number without its point and without zeros at its ends."""
    return number.replace(".", "").strip("0")


def read_answers(path: Path) -> Answers:
    """A file of answers by the ids of their questions, less those that are no estimate."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {line["id"]: line for line in lines if is_estimate(line)}


def is_estimate(answer: Any) -> bool:
    """Whether an answer is three positive numbers in order."""
    ends = [answer.get(end) for end in ("low", "value", "high")] if isinstance(answer, dict) else [None]
    return all(isinstance(end, int | float) and end > 0 for end in ends) and ends == sorted(ends)


def score(rows: Sequence[Mapping[str, str]], answers: Answers) -> Scores:
    """The scores of the questions that were answered, every owner once."""
    asked = [row for row in rows if row["id"] in answers]
    return scores([(row["owner"], float(row["value"]), answers[row["id"]]) for row in asked])


def table(files: Mapping[str, Answers], rows: Sequence[Mapping[str, str]]) -> str:
    """The scores of each file in Markdown: by quantity, over all, and over what every file answers."""
    parts = {said: [row for row in rows if row["quantity"] == name] for name, said in QUANTITIES.items()}
    parts["all"] = list(rows)
    if len(files) > 1:
        parts["all that every file answers"] = [row for row in rows if all(row["id"] in a for a in files.values())]
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for part, asked in parts.items():
        for name, answers in files.items():
            refused = sum(row["id"] not in answers for row in asked)
            cells = [name, part, str(len(asked)), str(refused)]
            if refused < len(asked):
                s = score(asked, answers)
                cells += [f"{s.median:.1%} / {s.p90:.0%}", f"{s.inside:.0%}", f"{s.width:.2f}"]
                cells += [f"{s.interval_score:.2f}", f"{s.signed:+.1%}"]
            lines.append(f"| {' | '.join([*cells, *['-'] * (len(COLUMNS) - len(cells))])} |")
    return "\n".join(lines)


def section(folder: Path = HERE) -> str:
    """The part of docs/accuracy.md about an assistant's guesses, in Markdown."""
    rows = questions()
    owners = len({row["owner"] for row in rows})
    files = {path.stem.removeprefix("answers-"): read_answers(path) for path in sorted(folder.glob("answers-*.jsonl"))}
    none = "No answers are in `benchmarks/guess/` yet. Make them with `guess.py ask` and `guess.py program`."
    return "\n".join(
        [
            "## Guess\n",
            f"The table compares what an assistant answers with this program and without it. {len(rows)} questions "
            f"about runs of {owners} owners ask for tokens per second, peak memory, hours or dollars; no fit reads any "
            "of these runs. A question states the set-up as its owner published it, without the owner's name, the "
            "address or a result. Whoever answers gives an estimate and an 80 % interval and has not seen "
            "`benchmarks/guess/questions.csv`. Every owner counts once; the score is the log of high/low plus ten "
            "times the log by which the interval misses (lower is better), and refused questions are counted, not "
            "scored.\n",
            "    python benchmarks/guess/guess.py ask benchmarks/guess/answers-NAME.jsonl --reader 'CMD'",
            "    python benchmarks/guess/guess.py program benchmarks/guess/answers-program.jsonl\n",
            table(files, rows) if files else none,
            "",
        ]
    )


def program(rows: Sequence[Mapping[str, str]]) -> Iterable[dict[str, Any]]:
    """What `published_rows.py` answers by itself; hours and dollars follow from its tokens per second."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0])[list(rows[0]).index("gpu") :], extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)
        command = [sys.executable, str(HERE.parent / "published_rows.py"), str(path), "--json"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parents[1]).stdout.splitlines()
    for row, found in zip(rows, map(json.loads, lines), strict=True):
        yield {"id": row["id"], **answer_of(row, found)}


def answer_of(row: Mapping[str, str], found: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to one question from a row's prediction, or why there is none."""
    if row["quantity"] == "peak_memory_gib":
        name = "peak_allocated_bytes" if row["memory_kind"] == "allocated" else "peak_reserved_bytes"
        return _ends(found.get(name), lambda n: n / 2**30) or _refusal(found, "no peak memory")
    speed = found.get("tokens_per_second")
    if row["quantity"] == "tokens_per_second":
        return _ends(speed, lambda n: n) or _refusal(found, "no tokens per second")
    if not row["tokens"]:
        return _refusal(found, "how many tokens are trained on is not stated")
    price = float(row["usd_per_gpu_hour"]) * int(row["n_gpus"]) if row["quantity"] == "usd" else 1.0
    answer = _ends(speed, lambda n: float(row["tokens"]) / n / 3600 * price)
    return answer or _refusal(found, "no tokens per second")


def _ends(estimate: Mapping[str, float] | None, of: Any) -> dict[str, Any]:
    """An estimate's three numbers in another unit, the smallest first; empty without an estimate."""
    if estimate is None:
        return {}
    low, value, high = sorted(float(f"{of(estimate[end]):.4g}") for end in ("low", "value", "high"))
    return {"value": value, "low": low, "high": high}


def _refusal(found: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {"error": found.get("error", why)}


def ask(rows: Sequence[Mapping[str, str]], reader: str, timeout: float) -> Iterable[dict[str, Any]]:
    """What the reader's command prints for each question: the last line of JSON, or its words as an error."""
    for row in rows:
        prompt = f"{row['question']}\n\n{HOW}\n"
        try:
            done = subprocess.run(shlex.split(reader), input=prompt, stdout=subprocess.PIPE, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            yield {"id": row["id"], "error": f"no answer in {timeout:.0f} s"}
            continue
        found = [json.loads(line) for line in re.findall(r"\{[^{}]*\"value\"[^{}]*\}", done.stdout)]
        answer = found[-1] if found and is_estimate(found[-1]) else {"error": done.stdout.strip()[-300:]}
        yield {"id": row["id"], **answer}


def main() -> None:
    """Run one of the four commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("questions", help="print the questions as JSON lines, without the truths")
    scored = commands.add_parser("score", help="print the scores of files of answers")
    scored.add_argument("answers", type=Path, nargs="+")
    for name, words in (("ask", "ask a command every question"), ("program", "answer by `published_rows.py`")):
        commands.add_parser(name, help=words).add_argument("out", type=Path, help="the file of answers to write")
    commands.choices["ask"].add_argument("--reader", required=True, help="a command; the question is on its input")
    commands.choices["ask"].add_argument("--timeout", type=float, default=1800, help="seconds for one question")
    options = parser.parse_args()
    rows = questions()
    if options.command == "score":
        print(table({path.stem: read_answers(path) for path in options.answers}, rows))
    elif options.command == "questions":
        if given := [row["id"] for row in rows if gives_away(row)]:
            raise SystemExit(f"these questions give their answer away: {', '.join(given)}")
        for row in rows:
            asked = {name: row[name] for name in ("id", "quantity", "question")}
            print(json.dumps({**asked, "how": HOW}, ensure_ascii=False))
    else:
        found = program(rows) if options.command == "program" else ask(rows, options.reader, options.timeout)
        with options.out.open("w", encoding="utf-8") as file:
            for answer in found:
                print(json.dumps(answer, ensure_ascii=False), file=file, flush=True)


if __name__ == "__main__":
    main()
