"""Refuses SkyPilot tasks that may cost more than their plan allows; every export for SkyPilot contains it.

With this folder on PYTHONPATH and `admin_policy: sky_policy.Budget` in `~/.sky/config.yaml`, SkyPilot asks this policy
before each launch, with or without this program. Tasks without a budget of ours pass unchanged.
"""

from __future__ import annotations

import sky  # this file runs inside SkyPilot, and nothing here imports it

USD, SECONDS = "ADVISOR_MAX_USD", "ADVISOR_LIMIT_SECONDS"  # the export writes both into the task's `envs`


class OverBudget(ValueError):
    """A task that may cost more than its plan allows."""


class Budget(sky.AdminPolicy):
    """Refuses a task if its most expensive machine could exceed the budget within the task's time limit."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Return the request unchanged; raises OverBudget with the reason if it may cost too much."""
        task = user_request.task
        if USD in task.envs:
            check(task, float(task.envs[USD]), float(task.envs[SECONDS]) / 3600)
        return sky.MutatedUserRequest(task, user_request.skypilot_config)


def check(task: sky.Task, max_usd: float, hours: float) -> None:
    """Raise OverBudget for a task that may cost more, or whose machines have no time limit."""
    nodes = task.num_nodes or 1
    for resources in task.resources:
        hourly = resources.max_hourly_cost
        if hourly is None:
            raise OverBudget(f"{task.name} names no max_hourly_cost: nothing keeps it within ${max_usd:.2f}")
        if (usd := nodes * hourly * hours) > max_usd:
            raise OverBudget(
                f"{task.name} may cost ${usd:.2f} ({nodes} x ${hourly:.2f} an hour for {hours:.1f} h), and its budget "
                f"is ${max_usd:.2f}: lower max_hourly_cost, or plan again"
            )
        autostop = resources.autostop_config
        if autostop is None or not autostop.enabled or not autostop.down:
            raise OverBudget(f"{task.name} leaves its machines running when it is idle: autostop with down: true")
