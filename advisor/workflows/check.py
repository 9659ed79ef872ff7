"""For a check in CI, judges the output of other commands: whether a run fits, what it costs, whether it is slower."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.history.comparison import NO_SPEED
from advisor.records import Basis, Estimate
from advisor.units import format_bytes, format_estimate, format_fit, format_number, format_percent, format_rate

SLOWER = 0.02  # share of the speed; a smaller loss is not a regression


class CheckVerdict(StrEnum):
    """The outcome of one question."""

    GOOD = "passed"
    BAD = "failed"
    OPEN = "cannot be judged"


@dataclass(frozen=True, kw_only=True)
class CheckedRun:
    """One question of a check with its answer in words."""

    question: str
    verdict: CheckVerdict
    words: str


def read_documents(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Returns the JSON documents in files. Raises AdvisorError if one was not printed by a command of this program."""
    found = []
    for path in paths:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise AdvisorError(f"{path} is not JSON: {error}", "write it with --json > FILE", exit_code=2) from error
        if not isinstance(document, dict) or "document" not in document:
            raise AdvisorError(f"{path} is not a document of this program", "write it with --json > FILE", exit_code=2)
        found.append(document)
    return found


def judge(documents: Sequence[Mapping[str, Any]], slower: float = SLOWER) -> tuple[CheckedRun, ...]:
    """Answers every question that the documents allow; `slower` is the share of speed that may be lost."""
    answers = {
        "predict": _fits,
        "plan": _costs,
        "compare-several": lambda document: _speeds(document, slower),
        "ab": lambda document: _steps(document, slower),
        "error": _refused,
    }
    found: list[CheckedRun] = []
    for document in documents:
        if (answer := answers.get(document["document"])) is None:
            older = document["document"] in ("plan-finetune", "plan-layouts")
            hint = "an older version wrote it: write it again" if older else "predict, plan, compare of two runs, ab"
            raise AdvisorError(f"a document {document['document']!r} contains nothing to check", hint, exit_code=2)
        found += answer(document)
    return tuple(found)


def _fits(document: Mapping[str, Any]) -> Iterator[CheckedRun]:
    memory = _estimate(document["peak_reserved_bytes"] or document["peak_allocated_bytes"])
    verdict = {True: CheckVerdict.GOOD, False: CheckVerdict.BAD, None: CheckVerdict.OPEN}[document["fits"]]
    words = [] if memory is None else [f"peak memory {format_estimate(memory, format_bytes)} ({memory.basis})"]
    if document["fit_probability"] is not None:
        words.append(f"probability that it fits {format_fit(document['fit_probability'])}")
    if (rate := _estimate(document["tokens_per_second"])) is not None:
        words.append(f"{format_estimate(rate, format_rate)} ({rate.basis})")
    words += document["would_fit"]
    yield CheckedRun(question=f"fits {document['workload']['gpus']} x {document['gpu']}", verdict=verdict,
                 words="; ".join(words))  # fmt: skip


def _costs(document: Mapping[str, Any]) -> Iterator[CheckedRun]:
    """Yields the plan's sentence. A plan that exceeds its limits fails, even if it is the nearest to them."""
    verdict = CheckVerdict.BAD if document["chosen"]["standing"]["against"] else CheckVerdict.GOOD
    yield CheckedRun(question="time and cost", verdict=verdict, words=document["sentence"])


def _speeds(document: Mapping[str, Any], slower: float) -> Iterator[CheckedRun]:
    """Compares each run's tokens per second with those of the first run."""
    comparison = document["comparison"]
    speeds = {change["group"]: change for change in comparison["speeds"]}
    unknown = [note for note in comparison["notes"] if note.startswith(NO_SPEED)] or ["the logs do not tell the speed"]
    for group in comparison["groups"][1:]:
        name, change = ", ".join(group["runs"]), speeds.get(group["name"])
        if change is not None:
            ratio = Estimate(**{**change["ratio"], "basis": Basis(change["ratio"]["basis"])})
            yield _speed(name, ratio, slower, change.get("measured"))
        else:
            yield CheckedRun(question=f"{name} as fast", verdict=CheckVerdict.OPEN, words="; ".join(unknown))


def _steps(document: Mapping[str, Any], slower: float) -> Iterator[CheckedRun]:
    """Compares each variant's step time with the base's, in pairs with the same seed."""
    for contrast in (one for one in document["contrasts"] if one["quantity"] == "step_seconds"):
        if contrast["difference"] is None:
            words = "one pair of runs tells nothing: --seeds 3"
            yield CheckedRun(question=f"{contrast['arm']} as fast", verdict=CheckVerdict.OPEN, words=words)
            continue
        value, low, high = (math.exp(-contrast["difference"][end]) for end in ("value", "high", "low"))
        ratio = Estimate(value=value, low=low, high=high, basis=Basis.MEASURED)
        yield _speed(contrast["arm"], ratio, slower)


def _speed(name: str, ratio: Estimate, slower: float, measured: float | None = None) -> CheckedRun:
    """Judges a speed: it is slower only if even the high end of its interval is.

    `measured` is the speed with the time that other programs took, if they took much.
    """
    change = format_estimate(ratio, format_number)
    certain = "slower" if ratio.high < 1 - slower else "not slower" if ratio.low >= 1 - slower else "not surely slower"
    if measured is not None:
        change = f"{format_number(measured)}, without the time that other programs took x {change},"
    words = f"speed x {change} of the accepted run's: {certain} by more than {format_percent(slower)}"
    verdict = CheckVerdict.BAD if certain == "slower" else CheckVerdict.GOOD
    return CheckedRun(question=f"{name} as fast as accepted", verdict=verdict, words=words)


def _refused(document: Mapping[str, Any]) -> Iterator[CheckedRun]:
    hint = f"; {document['hint']}" if document["hint"] else ""
    yield CheckedRun(question="an answer", verdict=CheckVerdict.BAD, words=f"{document['error']}{hint}")


def _estimate(plain: Mapping[str, Any] | None) -> Estimate | None:
    return None if plain is None else Estimate(**{**plain, "basis": Basis(plain["basis"])})
