"""Plans on disk: the only reader and writer, and what brings older files up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.store.disk import bad_fields, dump_yaml, read_yaml
from trainer.schema import ConfigError, record_from_dict, to_dict


def dump_plan(plan: Plan) -> str:
    """Write a plan as YAML text that `load_plan` reads back to an equal record."""
    return dump_yaml(to_dict(plan))


def load_plan(path: str | Path) -> Plan:
    """Read a plan file; raises AdvisorError that names the file and every field that is wrong."""
    raw = read_yaml(path, "plan")
    schema = raw.get("schema", 1)
    if isinstance(schema, int) and schema > Plan.schema:
        newer = f"the plan {path} was written by a newer version (schema {schema})"
        raise AdvisorError(newer, "upgrade training-advisor")
    try:
        plan = record_from_dict(Plan, _upgraded(raw))
    except ConfigError as error:
        raise bad_fields("plan", path, error, "advisor plan --out plan.yaml writes a whole one") from error
    if problems := plan.run.problems():
        raise bad_fields("plan", path, ConfigError([f"run.{text}" for text in problems]), "mend these settings")
    return plan


def _upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """A plan of schema 1 as one of schema 2, which names the prices that were given per GPU by what they are."""
    goal = raw.get("goal")
    if raw.get("schema", 1) != 1 or not isinstance(goal, dict):
        return raw
    goal = _price_per_gpu(goal)
    if isinstance(prices := goal.get("prices"), list):
        goal["prices"] = [_price_per_gpu(price) if isinstance(price, dict) else price for price in prices]
    return raw | {"goal": goal, "schema": 2}


def _price_per_gpu(raw: dict[str, Any]) -> dict[str, Any]:
    return {"usd_per_gpu_hour" if key == "usd_per_hour" else key: value for key, value in raw.items()}
