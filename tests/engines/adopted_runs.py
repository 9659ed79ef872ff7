"""An adopted command and plans of it, for tests of runs elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from advisor.offer import Offer
from advisor.records import Basis, Bill, Estimate, WallClock
from advisor.store.adopted import (
    Adopted,
    AdoptedBurst,
    AdoptedPlan,
    BatchShape,
    Knob,
    KnobVerdict,
    Recipe,
    Setting,
    save_adopted,
)
from advisor.store.store import Store

SCRIPT = Path(__file__).parents[1] / "advisor" / "adopt" / "never_seen.py"


def beside_other_work(not_learnt: str | None) -> bool:
    """Whether a command rightly learnt nothing from its run: the machine did other things as well."""
    return any(words in (not_learnt or "") for words in ("other work came and went", "look what else ran"))


def certain(value: float) -> Estimate:
    return Estimate(value=value, low=value, high=value, basis=Basis.MEASURED)


def offer_of(gpu: str = "cpu", gpus: int = 1, usd_per_hour: float | None = None) -> Offer:
    return Offer(gpu=gpu, gpus=gpus, provider=None, spot=False, usd_per_hour=usd_per_hour, source="given")


def bill_of(start: float, steps: float, ending: float | None) -> Bill:
    """The bill of a run of so many seconds, at no price."""
    clock = WallClock(startup_seconds=certain(start), steps_seconds=certain(steps),
                      checkpoints_seconds=None if ending is None else certain(ending),
                      total_seconds=certain(start + steps + (ending or 0.0)))  # fmt: skip
    return Bill(wall_clock=clock, cost_usd=None)


def burst_of(
    rows: float, calls: int, length: float, seconds: float = 0.1, processes: int = 1, **values: float
) -> AdoptedBurst:
    """A burst of steady steps with these values of its knobs, as the probe sees it."""
    return AdoptedBurst(
        values=tuple(Setting(name=name, value=value) for name, value in values.items()), outcome="stopped",
        seconds=5.0, startup_seconds=2.0, step_seconds=(seconds,) * 8, steps=9, processes=processes, torch="2.13.0",
        shape=BatchShape(rows=rows, calls=calls, length=length, tokens=rows * calls * length),
        resident_peak_bytes=round(processes * (3e8 + 1e5 * rows * length)),
    )  # fmt: skip


def adopted_of(recipe: Recipe, *bursts: AdoptedBurst, works: Iterable[str] = (), **changes) -> Adopted:
    """An adopted command that was measured by these bursts, and the knobs that were seen to work."""
    verdicts = tuple(KnobVerdict(name=name, verdict="works", words="") for name in works)
    given = dict(
        name=recipe.name, created="2026-11-23T00:00:00+00:00", command=("python", "toy.py"), folder="/", recipe=recipe,
        device_key="cpu", torch="2.13.0", gpus=1, verdicts=verdicts, bursts=bursts, seconds=60.0,
    )  # fmt: skip
    return Adopted(**{**given, **changes})


def plan_of(store: Store, folder: Path, steps: int, command: tuple[str, ...] = (), **changes) -> AdoptedPlan:
    """A plan of so many steps of the script; the command that it is of is kept in the store."""
    recipe, burst = Recipe(name="never_seen", knobs=(Knob(name="steps", key="--num-iters"),)), burst_of(4, 1, 32, 0.01)
    command = command or (sys.executable, str(SCRIPT))
    kept, shape = adopted_of(recipe, burst, command=command, folder=str(folder), torch=None), burst.shape
    save_adopted(store.home, kept)
    given = dict(
        id="never_seen-20261123", created=kept.created, trainer=kept.name, command=kept.command, folder=kept.folder,
        resume_args=(), values=(Setting(name="steps", value=steps),), offer=offer_of(),
        shape=shape, steps=steps, steps_are_set=True, rows_per_step=4, tokens_per_step=128, step_seconds=certain(0.01),
        bill=bill_of(2.0, steps * 0.01, 0.5), memory_bytes=None, memory_kind="resident", max_seconds=None,
        max_usd=None, reasons=(), warnings=(),
    )  # fmt: skip
    return AdoptedPlan(**{**given, **changes})
