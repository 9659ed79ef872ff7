"""Steps of RL post-training: what sets their time, engines short of memory, answers cut, policies that run away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from advisor.findings.case import Case, Finding, Verdict, finding, lacking, seen
from advisor.findings.curves import Curve, curve, head, tail
from advisor.findings.run_metrics import step_seconds
from advisor.prediction.rl import RlStep
from advisor.units import format_estimate, format_number, format_percent, format_seconds

_ROWS, _TIMED_ROWS = 8, 5
_MOSTLY, _LONG_TAIL = 0.5, 3.0  # share of a step; longest answer over the mean one
_WAITS = 0.3  # share of a step; asynchronous programs that balance both sides wait for less
_SLOW_PASSES = 1.2  # log-probabilities over the update; two forward passes are at most two thirds of it
_OFTEN_CUT = 0.2  # of the answers
_FULL = 3  # messages of engines
_DRIFTED, _TIMES = 1.0, 3.0  # nats of KL for a token at the end; and times that of the start
_CLIPPED = 0.4  # of the tokens
_SAVES = 0.9  # of a step; less is within what the model errs by from one layout to another
# a predicted part, and the timed parts that it is compared with
_PREDICTED = {"generation": ("generation",), "log_probs": ("log_prob", "reference"), "update": ("update", "critic"),
              "sync": ("sync",)}  # fmt: skip


def _median_seconds(case: Case, *names: str) -> float:
    """Return the seconds of these parts of a step together; 0 if none of them is timed."""
    return sum(float(np.median(values)) for name in names if len(values := curve(case.run, name).value) >= _TIMED_ROWS)


def detect_generation_sets_step(case: Case) -> Verdict:
    """Steps of RL that are mostly generation, and what sets its time: the longest answer, or all of them."""
    seconds, step = _median_seconds(case, "generation_seconds"), step_seconds(case)
    if not seconds or not step:
        return lacking("generation_sets_step", f"seconds of a step and of its generation in {_TIMED_ROWS} rows")
    if seconds / step < _MOSTLY:
        return None
    mean, longest = (curve(case.run, name) for name in ("response_tokens", "response_longest"))
    tokens = [float(np.median(values.value)) for values in (longest, mean) if len(values)]
    words = f"; the longest answer has {tokens[0]:,.0f} tokens, the mean one {tokens[1]:,.0f}" if tokens[1:] else ""
    cause = "the longest answer sets the time" if words and tokens[0] >= _LONG_TAIL * max(tokens[1], 1.0) else ""
    return finding(
        "generation_sets_step",
        title=f"Generation takes {format_percent(seconds / step)} of a step: "
        + (cause or ("the engines are busy" if words else "the trainer waits")),
        evidence=f"generation takes {format_seconds(seconds)} of a step of {format_seconds(step)} (medians){words}",
    )


def detect_trainer_waits(case: Case) -> Verdict:
    """A trainer that waits for answers of engines on other GPUs, which would be faster with more of the GPUs."""
    waiting, step = _median_seconds(case, "waiting_seconds"), step_seconds(case)
    if not waiting or not step:
        return lacking("trainer_waits", f"seconds of a step and of waiting for answers in {_TIMED_ROWS} rows")
    alone = waiting - _median_seconds(case, "generation_seconds")  # in turn, waiting is generation by another name
    if alone < _WAITS * step:
        return None
    return finding(
        "trainer_waits",
        title=f"The trainer waits {format_percent(alone / step)} of a step for the engines' answers",
        evidence=f"the trainer waits {format_seconds(alone)} of a step of {format_seconds(step)} (medians)",
    )


def detect_log_probs_slow(case: Case) -> Verdict:
    """Log-probabilities that take longer than the update, although they are the smaller part of its work."""
    passes = _median_seconds(case, "log_prob_seconds", "reference_seconds")
    update = _median_seconds(case, "update_seconds")
    if not passes or not update:
        return lacking("log_probs_slow", f"seconds of log-probabilities and of the update in {_TIMED_ROWS} rows")
    if passes < _SLOW_PASSES * update:
        return None
    return finding(
        "log_probs_slow",
        title=f"Log-probabilities take {passes / update:.1f} times as long as the update",
        evidence=f"log-probabilities take {format_seconds(passes)}, the update {format_seconds(update)} (medians)",
    )


def detect_cache_full(case: Case) -> Verdict:
    """Engines whose cache is too small for the answers, so that they throw answers back or let them wait."""
    events = [event for event in case.run.events if event.kind == "cache_full"]
    count = sum(event.numbers.get("count", 1.0) for event in events)
    if not events and not len(curve(case.run, "response_tokens")):
        return lacking("cache_full", "what the engines of RL print")
    if count < _FULL:
        return None
    return finding(
        "cache_full",
        title=f"The engines' cache is full: {count:,.0f} messages say so",
        evidence=tuple(seen(event.text, event.step) for event in events[:2]),
    )


def detect_answers_cut(case: Case) -> Verdict:
    """Answers that are often cut at the limit, so that what they would have come to is never rewarded."""
    cut = curve(case.run, "response_cut")
    if len(cut) < _ROWS:
        return lacking("answers_cut", f"the share of answers cut at the limit in {_ROWS} rows")
    first, end = _ends(cut)
    if end < _OFTEN_CUT:
        return None
    grew = f", from {format_percent(first)} at first" if first < end / 2 else ""
    return finding(
        "answers_cut",
        title=f"{format_percent(end)} of the answers are cut at the limit{grew}",
        evidence=seen(f"the share is the median of the last tenth of {len(cut)} rows", *cut.step[[0, -1]]),
    )


def detect_policy_drifts(case: Case) -> Verdict:
    """A policy that runs away from its reference, or whose updates are so large that much of them is clipped."""
    kl, clipped = curve(case.run, "kl"), curve(case.run, "ratio_clipped")
    if not len(curve(case.run, "reward")) or max(len(kl), len(clipped)) < _ROWS:
        return lacking("policy_drifts", f"rewards, and the KL or the clipped share of a policy in {_ROWS} rows")
    (first, end), (_, share) = _ends(kl), _ends(clipped)
    if end >= max(_DRIFTED, _TIMES * first):
        shown, words = (
            kl,
            f"The policy runs away: KL {format_number(first)} at first, {format_number(end)} at the end",
        )
    elif share >= _CLIPPED:
        shown, words = clipped, f"Updates are too large: {format_percent(share)} of the tokens are clipped at the end"
    else:
        return None
    highest = f"the highest of {len(shown)} rows is {format_number(float(shown.value.max()))}"
    return finding("policy_drifts", title=words, evidence=seen(highest, *shown.step[[0, -1]]))


def against_prediction(case: Case, said: RlStep, ratios: Mapping[str, float]) -> Finding | None:
    """Return a step beside its prediction, and which changes save; None if it is usual and none does."""
    whole, step = said.step_seconds, step_seconds(case)
    faster = {words: ratio for words, ratio in sorted(ratios.items(), key=lambda one: one[1]) if ratio < _SAVES}
    if not step or (not faster and whole.low <= step <= whole.high):
        return None
    took = {name: _median_seconds(case, *(f"{part}_seconds" for part in parts)) for name, parts in _PREDICTED.items()}
    predicted = f"the model of `plan --rl` says {format_estimate(whole, format_seconds)}"
    return finding(
        "rl_step_predicted",
        title=f"A step takes {format_seconds(step)}; {predicted}",
        evidence=[f"{name}: {format_seconds(seconds)}, predicted {format_seconds(said.parts[name].value)}"
                  for name, seconds in took.items() if seconds],
        actions=[f"{words}: about {format_seconds(ratio * step)} a step" for words, ratio in faster.items()],
    )  # fmt: skip


def _ends(values: Curve) -> tuple[float, float]:
    """Return the medians of the first and the last tenth; 0 for no values."""
    first, end = (float(np.median(part(values.value))) if len(values) else 0.0 for part in (head, tail))
    return first, end
