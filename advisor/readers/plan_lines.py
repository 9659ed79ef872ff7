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
_NEEDLES = (b"poch", b"EPOCH", b"steps", b"iter", b"max_update")
_NAMES = [names.replace("_", "[_ -]").replace(" ", "|").replace("|-]", " -]") for names in (_STEPS, _EPOCHS)]
_PLAN = re.compile(
    rf"(?<![\w.])(--)?(?:({_NAMES[0]})|(number of epochs|{_NAMES[1]}))['\"]?"
    r"(?(1)[= ]|\s?(?:[=:]|\.{3,}| {3,}))\s*['\"]?(\d[\d_,]{0,14}(?:\.\d{1,6})?(?:[eE]\+?\d)?)(?![\w%./])".encode(),
    re.IGNORECASE,
)
_SENTENCE = re.compile(  # Starting training for 300 epochs..., max: 12 epochs
    rb"(?:\b(?:[Tt]rain(?:ing)?|[Rr]unning)\b[\w ]{0,24}? for|\bmax:) (\d[\d,]{0,14}) "
    rb"(?:(steps|iterations|iters|updates)|epochs)\b"
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
        said = [(match, match[4], match[2]) for match in _PLAN.finditer(text)]
        said += [(match, match[1], match[2]) for match in _SENTENCE.finditer(text)]
        for match, printed, steps in sorted(said, key=lambda one: one[0].start()):
            value = float(re.sub(rb"[_,]", b"", printed))
            if value > 0 and len(self.found) < MOST_PLANS:
                line = int(lines[min(text.count(b"\n", 0, match.start()), len(lines) - 1)])
                self.found.append(Planned(line=line, fact="planned_steps" if steps else "planned_epochs", value=value))


def planned_before(plans: Iterable[Planned], line: int, fact: str, done: float) -> float | None:
    """What was last set before a run's first record at `line`; None where nothing was, or where the run did more."""
    value = None
    for plan in plans:
        if plan.fact == fact and plan.line <= line:
            value = plan.value
    return value if value is not None and done <= value + 1 else None
