"""Which rank of a job is stuck, differs from the others or comes late, by the flight recorder's dumps of all ranks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from statistics import median
from typing import Any

from advisor.findings.case import Finding, finding, lacking
from advisor.findings.traces.judgement import Judgement, Rate
from advisor.readers.traces.collectives import RECORD_DUMPS, Call, Collectives, Group
from advisor.units import format_count, format_percent, format_seconds, format_usd_rate

_LATE_SHARE, _LATE_NS = 0.10, 1_000_000  # of a step, and at least
_LEAST_CALLS = 3  # of one line, before its times are compared
_STALL_NS, _STALL_STEPS = 1_000_000_000, 3  # how much later than usual a rank must come once to have been stuck
_SHOWN = 5
_ORDERS = (2, 8)  # calls in a row, by which a rank is told from the others
_ALL_TO_ALL = re.compile(r"all_?to_?all")
_UNEVEN = re.compile(r"_v(?:_|$)")  # all_gather_v and the like

Matched = dict[int, dict[int, Call]]  # the calls of one group, by number and rank
Found = tuple[Finding, dict[str, Any]]  # with facts for programs


@dataclass(frozen=True, kw_only=True)
class _Problem:
    """A collective that cannot end, because some ranks did not join it or joined with something else."""

    group: Group
    number: int
    calls: Mapping[int, Call]  # by rank
    suspects: tuple[int, ...]
    differs: bool

    @property
    def first_ns(self) -> int:
        return min(call.created_ns for call in self.calls.values())

    @property
    def waiting(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.calls if rank not in self.suspects)

    @property
    def words(self) -> str:
        """Name what the others called: "all_gather (call 15 of default_pg)"."""
        joined = [self.calls[rank] for rank in self.waiting] or list(self.calls.values())
        return f"{joined[0].operation} (call {self.number} of {self.group.label})"


def judge(collectives: Collectives, rate: Rate) -> Judgement:
    """Judge which ranks keep the others waiting, by the rules of the module in their order."""
    files, missing = len(collectives.calls), collectives.missing_ranks
    if not any(collectives.calls.values()):
        lacks = lacking("stuck_rank", f"calls: the dumps are empty; {RECORD_DUMPS}")
        return Judgement(verdict=f"{format_count(files)} dumps without a collective", lacking=(lacks,))
    if len(missing) > files:
        lacks = lacking("stuck_rank", f"the dumps of {_ranks(missing)}: give the folder with the files of all ranks")
        return Judgement(verdict=f"Only {_ranks(tuple(collectives.calls))} of {files + len(missing)}", lacking=(lacks,))
    matched = _matched(collectives)
    problems = sorted(_problems(collectives, matched), key=lambda one: (one.first_ns, one.number))
    found = _who(collectives, problems, rate) or _pending(collectives, matched) or _late(collectives, matched, rate)
    facts: dict[str, Any] = {"ranks": files, "missing_ranks": list(missing)}
    if found is not None:
        return Judgement(verdict=found[0].title, findings=found[:1], facts=facts | found[1])
    calls = format_count(max(len(calls) for calls in collectives.calls.values()))
    verdict = f"Nothing is stuck: {format_count(files)} ranks called the same {calls} collectives"
    alone = "One rank alone: what it waits for, only the others' dumps can say"
    return Judgement(verdict=alone if files == 1 else verdict, facts=facts)


def _matched(collectives: Collectives) -> dict[str, Matched]:
    """Return the calls of each group from the first that all ranks still hold; of a bundle's calls the first."""
    found: dict[str, Matched] = {key: defaultdict(dict) for key in collectives.groups}
    oldest: dict[str, dict[int, int]] = defaultdict(dict)  # of each group, the first number that a rank still holds
    for rank, calls in collectives.calls.items():
        for call in calls:
            found[call.group][call.number].setdefault(rank, call)
            oldest[call.group][rank] = min(call.number, oldest[call.group].get(rank, call.number))
    return {key: {number: calls[number] for number in sorted(calls) if number >= max(oldest[key].values())}
            for key, calls in found.items()}  # fmt: skip


def _problems(collectives: Collectives, matched: Mapping[str, Matched]) -> Iterator[_Problem]:
    """Yield the first problem of each group: the later calls of the group wait for it."""
    for key, by_number in matched.items():
        group = collectives.groups[key]
        started = {rank for calls in by_number.values() for rank in calls}
        # A rank that kept only its last calls may have made this group's calls long ago.
        here = [rank for rank in group.ranks if rank in collectives.calls
                and (rank in started or rank not in collectives.rolled_ranks)]  # fmt: skip
        for number, calls in by_number.items():
            absent = tuple(rank for rank in here if rank not in calls)
            suspects = absent or _minority(calls, whole=len(calls) == len(group.ranks))
            if suspects:
                yield _Problem(group=group, number=number, calls=calls, suspects=suspects, differs=not absent)
                break


def _minority(calls: Mapping[int, Call], *, whole: bool) -> tuple[int, ...]:
    """Return the ranks whose operation, sizes or dtypes differ from most others'; all of them if there is no most."""
    (most, count), *others = Counter(map(_signature, calls.values())).most_common()
    if others:
        return tuple(rank for rank, call in calls.items() if others[0][1] == count or _signature(call) != most)
    # The splits of an all-to-all differ from rank to rank, but what is sent must be received.
    sent, received = (sum(prod(size) for call in calls.values() for size in getattr(call, ends))
                      for ends in ("inputs", "outputs"))  # fmt: skip
    return tuple(calls) if whole and _ALL_TO_ALL.search(most[0]) and sent != received else ()


def _signature(call: Call) -> tuple[Any, ...]:
    """Return what all ranks of a collective must have alike: of sizes the elements, but where each may give its own."""
    split = _ALL_TO_ALL.search(call.operation) or _UNEVEN.search(call.operation)
    inputs = () if split or call.operation == "scatter" else tuple(map(prod, call.inputs))
    outputs = () if split or call.operation == "gather" else tuple(map(prod, call.outputs))
    return call.operation, inputs, outputs, call.dtypes if inputs else ()


def _who(collectives: Collectives, problems: Sequence[_Problem], rate: Rate) -> Found | None:
    """Return the rank that all others wait for: directly, through others, or because it wrote no dump."""
    missing = collectives.missing_ranks
    if not problems:
        return _no_dump(collectives, rate) if missing else None
    root, circular = _root(collectives, problems)
    suspects = root.suspects
    # A suspect that itself waits in a group of a rank without a dump is that rank's victim.
    if missing and not root.differs and all(_waits_for(collectives, rank, missing) for rank in suspects):
        return _no_dump(collectives, rate)
    facts = {"stuck_ranks": list(suspects), "operation": root.words, "differs": root.differs}
    victims = [f"{_ranks(missing)} wrote no dump"] if missing else []
    victims += [f"{_ranks_wait(one)} in {one.words} for {_ranks(one.suspects)}"
                for one in problems if one.calls is not root.calls and one.waiting][:_SHOWN]  # fmt: skip
    place = next((call.place for rank, call in root.calls.items() if rank not in suspects), None)
    at, who = f" at {place}" if place else "", _ranks(suspects).capitalize()
    if root.differs:
        shown = [f"rank {rank}: {_call(call)}" for rank, call in list(root.calls.items())[:8]]
        title = f"{who} called something else than the others in {root.words}{at}"
        if len(suspects) == len(root.calls):
            title = f"{who} disagree in call {root.number} of {root.group.label}"
        return finding("collectives_differ", title=title, evidence=[*shown, *victims]), facts
    does = [f"rank {rank}: last {_call(calls[-1])}" if (calls := collectives.calls[rank]) else f"rank {rank}: no call"
            for rank in suspects[:_SHOWN]]  # fmt: skip
    verb, text = ("skipped", "rank_skipped") if circular else ("never came to", "rank_stuck")
    title = f"{who} {verb} {root.words}, where {_ranks_wait(root)}{at}{_cost(rate)}"
    return finding("stuck_rank", text=text, title=title, evidence=[*does, *victims]), facts


def _root(collectives: Collectives, problems: Sequence[_Problem]) -> tuple[_Problem, bool]:
    """Return the problem behind the earliest one with those at fault, and whether all wait for each other in a circle.

    A suspect that waits in another problem is a victim of that one. In a circle, who skipped a call is usually early
    at the next one, so that times mislead, and of two ranks that differ no vote tells who is wrong: then the suspect is
    who called in an order that nobody else has.
    """
    one, passed = problems[0], list[_Problem]()
    while one not in passed and not one.differs:
        passed.append(one)
        waits = {rank: next((other for other in problems if rank in other.calls), None) for rank in one.suspects}
        if free := tuple(rank for rank, other in waits.items() if other is None):
            one = next((other for other in problems if {*other.suspects} <= {*free}), one)
            return replace(one, suspects=tuple(rank for rank in one.suspects if rank in free)), False
        one = next(other for other in waits.values() if other is not None)
    if one.differs and len(one.suspects) < len(one.calls):
        return one, False
    circle = [one] if one.differs else sorted(passed[passed.index(one) :], key=lambda one: one.first_ns)
    # Without the lines that called, as in JSON, only longer orders differ.
    for length in _ORDERS:
        odd = _odd_ranks(collectives, length)
        for candidate in circle:
            if wrong := tuple(rank for rank in candidate.suspects if rank in odd):
                return replace(candidate, suspects=wrong), not one.differs
    return circle[0], not one.differs


def _odd_ranks(collectives: Collectives, length: int) -> set[int]:
    """Return the ranks that made so many calls one after the other as no rank did at any other time."""
    labels = {key: group.label for key, group in collectives.groups.items()}
    orders = {}
    for rank, calls in collectives.calls.items():
        lines = [(labels[call.group], _signature(call), call.place) for call in calls]
        orders[rank] = list(zip(*(lines[start:] for start in range(length)), strict=False))
    counts = Counter(order for found in orders.values() for order in found)
    return {rank for rank, found in orders.items() if any(counts[order] == 1 for order in found)}


def _no_dump(collectives: Collectives, rate: Rate) -> Found | None:
    missing = collectives.missing_ranks
    last = {rank: calls[-1] for rank, calls in collectives.calls.items() if calls}
    if all(call.state == "completed" for call in last.values()):
        return None  # dumped while all went well
    title = f"{_ranks(missing).capitalize()} wrote no dump, and the others wait for what has not come{_cost(rate)}"
    shown = [f"rank {rank}: last {_call(call)}" for rank, call in list(last.items())[:_SHOWN]]
    return finding("rank_without_dump", title=title, evidence=shown), {"stuck_ranks": list(missing), "differs": False}


def _waits_for(collectives: Collectives, rank: int, missing: Sequence[int]) -> bool:
    """Return True if a rank is as far as any in a group which has, or may have, a rank without a dump."""
    newest: dict[str, dict[int, int]] = defaultdict(dict)
    for other, calls in collectives.calls.items():
        for call in calls:
            newest[call.group][other] = max(call.number, newest[call.group].get(other, 0))
    shared = (key for key, group in collectives.groups.items() if not group.stated or {*missing} & {*group.ranks})
    return any(rank in newest[key] and newest[key][rank] == max(newest[key].values()) for key in shared)


def _pending(collectives: Collectives, matched: Mapping[str, Matched]) -> Found | None:
    """Return what all ranks have called and not all have completed, of backends that record states."""
    open_calls = [calls for by_number in matched.values() for calls in by_number.values()
                  if any(call.state != "completed" for call in calls.values())]  # fmt: skip
    states_kept = any(call.state == "completed" for calls in collectives.calls.values() for call in calls)
    if not open_calls or not states_kept:
        return None
    calls = min(open_calls, key=lambda one: min(call.created_ns for call in one.values()))
    states = {rank: call.state for rank, call in calls.items()}
    behind, text = tuple(rank for rank, state in states.items() if state != "completed"), "kernel_hangs"
    if len(behind) == len(states):
        text = "kernel_not_reached" if set(states.values()) == {"scheduled"} else "network_hangs"
        behind = tuple(rank for rank, state in states.items() if state == "scheduled") or behind
    ends = {"kernel_not_reached": "no GPU has begun", "network_hangs": "GPUs have begun and none has ended",
            "kernel_hangs": f"{_ranks(behind)} did not end"}  # fmt: skip
    one = next(iter(calls.values()))
    title = f"All ranks called {_call(one)}, which {ends[text]}"
    shown = [f"rank {rank}: {state}" for rank, state in list(states.items())[:8]]
    return finding("collective_hangs", text=text, title=title, evidence=shown), {"stuck_ranks": list(behind)}


def _late(collectives: Collectives, matched: Mapping[str, Matched], rate: Rate) -> Found | None:
    """Return the rank that comes late to the calls of one line of the program, and not as late to those of others.

    A rank that seems equally late everywhere may have another clock, and stages of a pipeline come one after another.
    """
    if any(call.operation == "send and recv" for calls in collectives.calls.values() for call in calls):
        return None
    lines: dict[tuple[Any, ...], list[dict[int, int]]] = defaultdict(list)
    for key, by_number in matched.items():
        for calls in by_number.values():
            if len(calls) > 1 and len(calls) == len(collectives.groups[key].ranks):
                one = next(iter(calls.values()))
                lines[key, _signature(one), one.place].append({rank: call.created_ns for rank, call in calls.items()})
    lateness: dict[int, dict[tuple[Any, ...], float]] = defaultdict(dict)
    if not lines:
        return None
    step = 0.0
    for line, times in lines.items():
        for rank in times[0] if len(times) >= _LEAST_CALLS else ():
            step = max(step, median(after[rank] - before[rank] for before, after in pairwise(times)))
            lateness[rank][line] = median(_after_others(one, rank) for one in times)
    newest, last = max(((line, times[-1]) for line, times in lines.items()), key=lambda one: max(one[1].values()))
    rank = max(last, key=lambda one: last[one])
    if (once := _after_others(last, rank) - lateness[rank].get(newest, 0.0)) > max(_STALL_NS, _STALL_STEPS * step):
        title = f"Rank {rank} came {format_seconds(once / 1e9)} after the others to the last call, {_line(newest)}"
        before = f"{format_seconds(step / 1e9)} a step before"
        return finding("stuck_rank", text="rank_came_late", title=title, evidence=before), {"stuck_ranks": [rank]}
    if not (several := {rank: own for rank, own in lateness.items() if len(own) > 1}):
        return None
    rank, own = max(several.items(), key=lambda one: max(one[1].values()))
    line, behind = max(own.items(), key=lambda one: one[1])
    if behind - max(0.0, min(own.values())) <= max(_LATE_NS, _LATE_SHARE * step):
        return None
    shown = [f"{_line(line)}: {format_seconds(max(0.0, late_ns) / 1e9)} after the others"
             for line, late_ns in own.items()]  # fmt: skip
    share, usd = behind / step, rate.usd_per_hour
    title = f"Rank {rank} comes {format_seconds(behind / 1e9)} late to {_line(line)} in each step: the others wait "
    title += f"{format_percent(share)} of it" + ("" if usd is None else f", {format_usd_rate(share * usd)} an hour")
    facts = {"late_rank": rank, "late_seconds": behind / 1e9, "step_seconds": step / 1e9, "place": line[2]}
    return finding("late_rank", text="late_call", title=title, evidence=shown[:_SHOWN]), facts


def _line(line: tuple[Any, ...]) -> str:
    return line[1][0] + (f" at {line[2]}" if line[2] else "")


def _after_others(times: Mapping[int, int], rank: int) -> float:
    return times[rank] - median(time for other, time in times.items() if other != rank)


def _cost(rate: Rate) -> str:
    return "" if rate.usd_per_hour is None else f": {format_usd_rate(rate.usd_per_hour)} for each hour of waiting"


def _call(call: Call) -> str:
    sizes = " ".join("x".join(map(str, size)) for size in call.inputs[:2]) or "no tensor"
    at = f" at {call.place}" if call.place else ""
    return f"{call.operation} of {sizes} {' '.join(call.dtypes[:1])}".rstrip() + at


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _ranks_wait(problem: _Problem) -> str:
    return f"{_ranks(problem.waiting)} {'waits' if len(problem.waiting) == 1 else 'wait'}"
