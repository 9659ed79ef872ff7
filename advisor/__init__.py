"""Plan, launch and judge language-model training runs on your own or on rented GPUs.

Functions and records are imported when they are first used, so that `import advisor` is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advisor.api import (
        Answer,
        analyze,
        audit,
        calibrate,
        compare,
        explain,
        fleet,
        gpus,
        launch,
        plan,
        predict,
        runs,
    )
    from advisor.errors import AdvisorError

__version__ = "0.1.0"
__all__ = [
    "AdvisorError", "Answer", "analyze", "audit", "calibrate", "compare", "explain", "fleet", "gpus", "launch", "plan",
    "predict", "runs",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'advisor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("advisor.errors" if name == "AdvisorError" else "advisor.api"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
