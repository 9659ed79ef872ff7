"""How far a run was to go, in whatever way its log prints its configuration: `epochs=50`, `--max_steps 1000`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

MOST_PLANS = 4096
MOST_BYTES = 1 << 24  # that hold such words: settings are not spread over more
_STEPS = (
    "max_steps max_iters max_iter num_iterations train_iters max_train_steps total_steps total_iterations total_iters "
    "num_training_steps training_steps train_steps num_train_steps max_update num_iters n_iters"
)
_EPOCHS = "num_train_epochs num_epochs max_epochs n_epochs nepochs total_epochs max_epoch train_epochs epochs"
_NEEDLES = (b"epoch", b"EPOCH", b"_steps", b"_iter", b"max_update", b"iterations")
_PLAN = re.compile(
    rf"(?<![\w.])(--)?(?:({_STEPS.replace(' ', '|')})|({_EPOCHS.replace(' ', '|')}))['\"]?"
    r"(?(1)[= ]|\s?(?:[=:]|\.{3,}| {3,}))\s*['\"]?(\d[\d_,]{0,14}(?:\.\d{1,6})?(?:[eE]\+?\d)?)(?![\w%./])".encode(),
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One such setting."""

    line: int  # 1-based
    fact: str  # planned_steps or planned_epochs
    value: float


@dataclass(kw_only=True)
class PlanLines:
    """A listener of the engine: the settings that say how far it goes, in lines that are no records."""

    found: list[Planned] = field(default_factory=list)
    _searched: int = 0  # bytes

    def feed(self, text: bytes, lines: np.ndarray) -> None:
        """Take lines that are no records, in order; `lines[i]` is the number of the i-th in its file."""
        if len(self.found) >= MOST_PLANS or self._searched > MOST_BYTES or not any(word in text for word in _NEEDLES):
            return
        self._searched += len(text)
        for match in _PLAN.finditer(text):
            value = float(re.sub(rb"[_,]", b"", match[4]))
            fact = "planned_steps" if match[2] else "planned_epochs"
            if value > 0 and len(self.found) < MOST_PLANS:
                line = int(lines[min(text.count(b"\n", 0, match.start()), len(lines) - 1)])
                self.found.append(Planned(line=line, fact=fact, value=value))


def planned_before(plans: Iterable[Planned], line: int, fact: str, done: float) -> float | None:
    """What was last set before a run's first record at `line`; None where nothing was, or where the run did more."""
    value = None
    for plan in plans:
        if plan.fact == fact and plan.line <= line:
            value = plan.value
    return value if value is not None and done <= value + 1 else None
