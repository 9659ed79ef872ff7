"""An adopted command and plans of it, for tests of runs elsewhere."""

from __future__ import annotations

import sys
from pathlib import Path

from advisor.records import Basis, Estimate
from advisor.store.adopted import (
    Adopted,
    AdoptedBurst,
    AdoptedPlan,
    BatchShape,
    Knob,
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


def plan_of(store: Store, folder: Path, steps: int, command: tuple[str, ...] = (), **changes) -> AdoptedPlan:
    """A plan of so many steps of the script; the command that it is of is kept in the store."""
    recipe = Recipe(name="never_seen", knobs=(Knob(name="steps", key="--num-iters"),))
    shape = BatchShape(rows=4, calls=1, length=32, tokens=128)
    burst = AdoptedBurst(values=(), outcome="stopped", step_seconds=(0.01,) * 8, shape=shape, startup_seconds=2.0)
    kept = Adopted(
        name="never_seen", created="2026-11-23T00:00:00+00:00", command=command or (sys.executable, str(SCRIPT)),
        folder=str(folder), recipe=recipe, device_key="cpu", torch=None, gpus=1, verdicts=(), bursts=(burst,),
        seconds=1.0,
    )  # fmt: skip
    save_adopted(store.home, kept)
    given = dict(
        id="never_seen-20261123", created=kept.created, trainer=kept.name, command=kept.command, folder=kept.folder,
        environment=(), resume_args=(), values=(Setting(name="steps", value=steps),), device_key="cpu", gpus=1,
        shape=shape, steps=steps, steps_are_set=True, rows_per_step=4, tokens_per_step=128,
        startup_seconds=certain(2.0), step_seconds=certain(0.01), ending_seconds=certain(0.5),
        total_seconds=certain(2.5 + steps * 0.01), usd_per_hour=None, cost_usd=None, memory_bytes=None,
        memory_kind="resident", max_seconds=None, max_usd=None, reasons=(), warnings=(),
    )  # fmt: skip
    return AdoptedPlan(**{**given, **changes})
