"""Reads and writes plan files, and upgrades older ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advisor.errors import AdvisorError
from advisor.records import Plan
from advisor.store.disk import bad_fields, dump_yaml, read_yaml
from trainer.schema import ConfigError, record_from_dict, to_dict

_PARTS = ("workload", "prediction", "chosen")  # sections in a plan of schema 1 or 2


def dump_plan(plan: Plan) -> str:
    """Return a plan as YAML text that `load_plan` reads back to an equal record."""
    return dump_yaml(to_dict(plan))


def load_plan(path: str | Path) -> Plan:
    """Read a plan file. Raises AdvisorError that names the file and every wrong field."""
    raw = read_yaml(path, "plan")
    if "run" in raw and raw["run"] is None:
        hint = "write the file from which that software starts: advisor plan ... --out FILE"
        raise AdvisorError(f"{path}: other software trains this plan, and nothing here starts it", hint, exit_code=2)
    schema = raw.get("schema", 1)
    if isinstance(schema, int) and schema > Plan.schema:
        newer = f"the plan {path} was written by a newer version (schema {schema})"
        raise AdvisorError(newer, "upgrade training-advisor")
    try:
        plan = record_from_dict(Plan, raw if schema == Plan.schema else _upgraded(raw))
    except ConfigError as error:
        raise bad_fields("plan", path, error, "advisor plan --out plan.yaml writes a complete one") from error
    if problems := plan.config.problems():
        raise bad_fields("plan", path, ConfigError([f"run.{text}" for text in problems]), "fix these settings")
    return plan


def _upgraded(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a plan of schema 1 or 2 to schema 3, which has one record for a run.

    The chosen run is kept in full. The alternatives are dropped, because the old tables had only a part of each run.
    """
    work, promise, best = (raw[name] if isinstance(raw.get(name), dict) else {} for name in _PARTS)

    def moved(part: dict[str, Any], *names: str) -> dict[str, Any]:
        return {name: part[name] for name in names if name in part}

    unsaid = dict.fromkeys(("device_memory_bytes", "fit_probability", "fits"))
    prediction = moved(raw, "workload") | unsaid | {"device_bytes": best.get("device_bytes")}
    prediction |= moved(promise, "parameters", "flops_per_token", "step_seconds", "tokens_per_second", "mfu")
    prediction |= moved(promise, "peak_allocated_bytes", "peak_reserved_bytes")
    offer = {"provider": None, "spot": False, "source": raw.get("price_source"), "age_days": raw.get("price_age_days")}
    offer |= moved(work, "gpu", "gpus") | moved(raw, "usd_per_hour", "provider", "spot", "machines")
    bill = moved(promise, "wall_clock", "cost_usd", "power_watts", "energy_kwh", "carbon_kg", "grid_grams_per_kwh")
    bill |= moved(promise, "storage_usd", "checkpoint_bytes", "disk_bytes")
    standing = moved(raw, "ratio") | moved(best, "score", "epochs") | {"name": "balanced"}
    standing |= moved(promise, "loss", "loss_shift", "bits_per_byte")
    chosen = moved(best, "steps", "tokens") | moved(raw, "grounds")
    chosen |= {"prediction": prediction, "offer": offer, "bill": bill, "standing": standing}
    same = moved(raw, "id", "created", "goal", "run", "reasons", "warnings", "inputs")
    same |= moved(raw, "reference_seconds", "drift_exponent")
    if raw.get("schema", 1) == 1 and isinstance(goal := same.get("goal"), dict):

        def renamed(row: dict[str, Any]) -> dict[str, Any]:  # schema 1 called the price per GPU `usd_per_hour`
            return {"usd_per_gpu_hour" if key == "usd_per_hour" else key: value for key, value in row.items()}

        same["goal"] = renamed(goal)
        if isinstance(prices := goal.get("prices"), list):
            same["goal"]["prices"] = [renamed(price) if isinstance(price, dict) else price for price in prices]
    return same | {"chosen": chosen, "considered": [], "schema": Plan.schema}
