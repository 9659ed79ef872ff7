"""What an engine must be told of a plan that the plan does not say: nodes, its own limit, seconds of grace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from advisor.engines.export.bundle import ExportJob
from advisor.engines.guards import limit_seconds
from advisor.errors import AdvisorError
from advisor.hardware.catalog import find_gpu
from advisor.prediction.notice import save_seconds, short_notice
from advisor.prediction.wallclock import GPUS_A_NODE
from advisor.records import Plan
from trainer.schema import RunConfig

LONGER = 1.25  # than the plan's own high end: where the engine ends a run that nobody limited
LEAST_GRACE_SECONDS = 60
ARRIVAL_SECONDS = 300  # that an engine leaves for a calibration before the first step: twice what it may take
LEAST_LIMIT_SECONDS = 600  # of a run that nobody limited: starting takes minutes where the plan counts seconds


def export_job(plan: Plan, config: RunConfig, data: Path | None, **engine: Any) -> ExportJob:
    """A plan for an engine: `config` has its limits, and its data where they lie there; `data` is where they lie here.

    `engine` are the fields of `ExportJob` that it must be told beside. AdvisorError for GPUs that fill no nodes, and
    for a spot machine that is taken away before the run has saved.
    """
    if plan.offer.spot and (problem := short_notice(plan.offer.provider, _save_seconds(plan))) is not None:
        raise AdvisorError(problem, "plan again on demand: --spot none; or with a smaller model, or another --provider")
    nodes, per_node = _nodes(plan.workload.gpus)
    grace = grace_seconds(plan)
    return ExportJob(
        plan=plan,
        config=config,
        spec=find_gpu(plan.workload.gpu),
        nodes=nodes,
        gpus_per_node=per_node,
        limit_seconds=_limit_seconds(plan, limit_seconds(config.stop), grace)
        + (ARRIVAL_SECONDS if engine.get("arriving") else 0),
        grace_seconds=grace,
        data=data,
        **engine,
    )


def grace_seconds(plan: Plan) -> int:
    """Seconds that an engine must leave between a signal and the end: what saving takes, and half as much again."""
    return max(LEAST_GRACE_SECONDS, math.ceil(1.5 * _save_seconds(plan)))


def _save_seconds(plan: Plan) -> float:
    return save_seconds(plan.run, plan.bill.wall_clock, plan.chosen.step_seconds)


def _limit_seconds(plan: Plan, max_seconds: float | None, grace: int) -> int:
    """When the engine ends the run: after its own limit, or well beyond the plan's time."""
    if max_seconds is not None:
        return math.ceil(max_seconds) + 2 * grace
    return max(LEAST_LIMIT_SECONDS, math.ceil(LONGER * plan.bill.wall_clock.total_seconds.high)) + grace


def _nodes(gpus: int) -> tuple[int, int]:
    if gpus <= GPUS_A_NODE:
        return 1, gpus
    if gpus % GPUS_A_NODE:
        hint = f"plan again with --gpus {gpus // GPUS_A_NODE * GPUS_A_NODE}"
        raise AdvisorError(f"{gpus} GPUs are no whole number of nodes of {GPUS_A_NODE}", hint)
    return gpus // GPUS_A_NODE, GPUS_A_NODE
