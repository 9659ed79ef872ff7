"""Defines the contents of JSON documents and files as types; `python -m benchmarks.document_types` writes the schemas.

A shape is a type, a mapping from names to shapes (a name that ends in ? may be missing), or a list of one shape. A
record is described by its fields. A schema that changed gets the next number when it is written. A test fails until the
shipped file agrees with this module.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import re
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from advisor import documents
from advisor.auditing.schema import card_schema
from advisor.auditing.verdict import Ruling
from advisor.calibration.setting_effects import SettingEffect
from advisor.explanation import Explanation
from advisor.findings.case import Finding, Insufficient
from advisor.findings.chart_data import PartOfStep
from advisor.findings.forecast import Forecast
from advisor.findings.measured import Measured
from advisor.findings.overlap import Savings
from advisor.findings.registry import Coverage
from advisor.fleets.records import Outlook, Placement, PoolKind, Purchase
from advisor.fleets.state import RunState
from advisor.hardware.catalog import GpuSpec
from advisor.history.comparison import Difference, Group, Point, SpeedChange
from advisor.history.ledger_rows import QuantityAccuracy
from advisor.history.listing import RunSummary
from advisor.history.paired import Contrast
from advisor.history.progress import Progress
from advisor.history.scoring import Cause
from advisor.planning.stages import Stage
from advisor.prediction.depths import DepthOption, Download, MemoryBill
from advisor.readers.run_table import Event
from advisor.records import Estimate, Plan, Workload
from advisor.report.prediction import ESTIMATES
from advisor.run_records import LaunchRecord
from advisor.store.adopted import Adopted, AdoptedPlan
from advisor.store.calibration import Burst, Calibration, Cost, HeldOutSummary, Quality, Settings
from advisor.store.store import CalibrationEntry
from advisor.store.team_database import TeamBudget
from advisor.workflows import finetune, fleet, preflight, team
from advisor.workflows.analyze_trace import JudgedTrace
from advisor.workflows.ask_about_log import AssistantReading
from advisor.workflows.check import CheckedRun
from advisor.workflows.compare import TakenBack
from advisor.workflows.diff import SettingsDiff
from advisor.workflows.keep_runs import Deleted
from advisor.workflows.live import LogLook
from advisor.workflows.monitor import MonitoredGpus
from advisor.workflows.replan import Replan
from advisor.workflows.write_back import WrittenParameters
from trainer.budget import Spent
from trainer.messages import WorkerDevice
from trainer.schema import ModelShape, Outcome, RunConfig
from trainer.token_folder import TokenMeta

Shape = Any
LEFT_OUT = object()  # the shape of a record's field that is not written
_COMMENT = re.compile(r"^    (\w+):[^#\n]*#\s*(?!noqa)(.+)$", re.MULTILINE)  # after a field of a record
ROW = "predict-row"  # a line of `predict --rows`, which has neither name nor number

_PRICE = {
    "usd_per_gpu_hour": float | None, "usd_per_hour": float | None,
    "usd_per_hour_today": ({"low": float, "high": float}, None),
    "spot_usd_per_hour": ({"low": float, "high": float}, None), "gpus": int, "machines": int, "provider": str,
    "instance_type": str | None, "region": str | None, "snapshot_date": datetime.date | None, "age_days": int | None,
    "source": str, "note": str | None,
}  # fmt: skip
_GPU = {
    GpuSpec: ..., "memory_bytes": int, "price": (_PRICE, None),
    "pytorch": {"newest": str | None, "variant": str | None, "needs": str | None, "lacks": [str]},
}  # fmt: skip
_CALIBRATED = {
    "calibration": str, "device": {"key": str, WorkerDevice: ...}, "settings": Settings, "bursts": int,
    "ceilings": {"matmul_flops_per_second": float, "bandwidth_bytes_per_second": float, "launch_seconds": float},
    "outcomes": dict[str, int], "coefficients": dict[str, dict[str, float]], "discrepancy": float,
    "drift_deviation": float, "drift_exponent": float, "held_out": HeldOutSummary | None, "quality": Quality | None,
    "cost": Cost, "setting_effects": [SettingEffect],
}  # fmt: skip
_LOSS = float | Literal["nan", "inf", "-inf"] | None
_PART_OF_LOG = {
    "first_step": float | None, "last_step": float | None, "first_loss": _LOSS, "last_loss": _LOSS, "status": str,
    "status_reason": str,
}  # fmt: skip
_ANALYSIS = {
    **_PART_OF_LOG, "source": str, "format": str, "framework": str | None, "rows": int, "phases": [str],
    "runs": [{**_PART_OF_LOG, "name": str | None, "trained": bool, "first_line": int | None, "last_line": int | None,
              "starts": int, "hours": float | None}],
    "loss_change": float | None, "verdict": [str], "throughput": float | None, "throughput_is": str | None,
    "mean_throughput": float | None, "mfu": float | None, "mean_mfu": float | None,
    "logged_mfu": float | None, "parts_of_step": [PartOfStep], "measured": Measured,
    "cost": {"hours": float | None, "usd": float | None, "usd_per_hour": float | None, "price_source": str | None,
             "whole_run_hours": Estimate | None, "whole_run_usd": Estimate | None, "savings": Savings | None},
    "findings": [Finding], "insufficient": [Insufficient], "checks": Coverage, "forecast": Forecast,
    "facts": dict[str, Any], "assumed": [str], "columns": dict[str, str], "notes": [str],
    "assistant": AssistantReading | None, "events": [Event],
}  # fmt: skip
_AGAINST = {
    "side_by_side": [Point],
    "comparison": {"groups": [Group], "differences": [Difference], "speeds": [SpeedChange], "notes": [str]},
}
_SCORE = {"predicted": Estimate | None, "actual": float | None, "error": float | None, "inside_interval": bool | None}
_COMPARED = {
    "run_id": str, "device_key": str, "outcome": str | None, "reason": str | None, "complete": bool, "attempts": int,
    "steps": int | None, "steps_planned": int | None, "run_dir": str, "departures": [str],
    "reference_seconds": float | None, "drift_factor": float | None, "gap_seconds": float | None, "causes": [Cause],
    "recorded": bool, "not_recorded": str | None, "not_learnt": str | None, "*": _SCORE,
}  # fmt: skip
_CLAIM = {
    "id": str, "kind": str, "that": str, "line": int | None, "text": str, "quote": str | None, "opinion": str | None,
    "because": str | None, "correct": str | None, "objection": bool, "verdict": Ruling, "so": str, "arithmetic": Any,
    "consequence": str | None,
}  # fmt: skip
_AUDIT = {
    "card": str, "title": str, "verdict": str, "counts": dict[str, int], "claims": [_CLAIM], "volunteered": [_CLAIM],
    "findings": [Any], "assumed": [str], "unplaced": [str],
}  # fmt: skip
_MODEL = {"step": int, "parameters": int}
_LOADED = {**_MODEL, "device": str, "precision": str}
_PREDICTED = {
    "gpu": str, "workload": Workload, "parameters": int, "flops_per_token": float,
    **dict.fromkeys(ESTIMATES, Estimate | None), "fits": bool | None, "fit_probability": float | None,
    "memory_parts": MemoryBill | None, "would_fit": [str], "depths": [DepthOption], "data": Download | None, "for": str,
    "closest published run": str | None, "network": str | None, "too_long": str | None, "layout": str | None,
    "sources": [str], "assumed": [str], "time_unknown": str | None,
}  # fmt: skip

ROW_OF_TABLE = ({"row": int, **_PREDICTED}, {"row": int, "error": str, "hint": str | None})
DOCUMENTS: dict[str, Shape] = {
    "error": {"error": str, "hint": str | None},
    "plan": {
        Plan: ..., "sentence": str, "speed_rests_on": str | None, "on_the_way": [Stage], "path": str | None,
        "memory_parts?": MemoryBill | None, "depths?": [DepthOption], "data_to_fetch?": Download | None,
        "from?": Replan,
    },
    "runs-push": {team.Pushed: ...},
    "runs-pull": {team.Pulled: ...},
    "runs-spend": {"by": str, "groups": [team.Spending]},
    "runs-like": {"trained_before": bool, "runs": [team.EarlierRun]},
    "runs-compact": {"months": dict[str, int]},
    "runs-budget": {"budgets": [TeamBudget]},
    "fleet": {
        "name": str, "starts": str, "sentence": str, "keeps_deadlines": bool, "total_usd": Estimate,
        "placements": [Placement], "outlooks": [Outlook], "left_out": dict[str, str], "purchases": [Purchase],
        "unlikely": [fleet.Unlikely], "spent_usd": dict[str, float], "budgets_usd": dict[str, float],
        "expected_usd": float, "lost_value_usd": float, "bound_usd": float, "gap": float | None,
        "gpu_worth_usd": dict[str, float], "later": [fleet.LaterRun], "notes": [str],
    },
    "fleet-watch": {
        "name": str, "file": str, "starts": str, "runs": [RunState], "steps": dict[str, list[int]],
        "spent_usd": dict[str, float], "budgets_usd": dict[str, float],
    },
    "predict": _PREDICTED,
    "calibrate": _CALIBRATED,
    "calibrate-places": {
        "places": [{"place": str, "state": str, "words": str | None, "starts_at": str | None, "kept": bool,
                    "calibrated": (_CALIBRATED, None)}]
    },
    "calibrations": {"calibrations": [CalibrationEntry]},
    "calibration-deleted": {"deleted": str, "path": str},
    "launch": {"run_dir": str, "launch": LaunchRecord},
    "launch-checks": {"can_start": bool, "checks": [preflight.Check]},
    "launch-request": {"run_dir": str, "command": [str], "environment": dict[str, str], "files": dict[str, str]},
    "watch": {"run_dir": str, "progress": Progress},
    "watch-log": {LogLook: ..., "left_seconds": float | None, "over": bool},
    "watch-gpus": {MonitoredGpus: ...},
    "analyze": {**_ANALYSIS, "traces?": [JudgedTrace]},
    "analyze-several": {
        "runs": [_ANALYSIS], "left_out": [str], **{f"{name}?": shape for name, shape in _AGAINST.items()}
    },
    "analyze-trace": {"source": str, "judged": [JudgedTrace]},
    "compare": {**_COMPARED, "written?": WrittenParameters},
    "compare-several": {"runs": [_COMPARED], **_AGAINST},
    "compare-forgotten": {"forgotten": [TakenBack]},
    "ab": {
        "folder": str, "arms": [str], "seeds": [int], "measured": dict[str, dict[str, dict[str, float | None]]],
        "contrasts": [{Contrast: ..., "clear": bool, "verdict": str}],
    },
    "diff": {SettingsDiff: ...},
    "explanation": {Explanation: ..., "sentence": str},
    "check": {"failed": int, "judged": [CheckedRun]},
    "audit": _AUDIT,
    "audit-several": {"audits": [_AUDIT]},
    "audit-kinds": {"kinds": [{"that": str, "kind": str, "says": str, "fields": dict[str, Any]}]},
    **dict.fromkeys(("audit-schema", "analyze-schema"), {"prompt": str, "schema": dict[str, Any]}),
    "completion": {"shell": str, "script": str},
    "schemas": {"schemas": [{"name": str, "version": int}]},
    "gpus": {"gpus": [_GPU]},
    "gpu": {**_GPU, "prices?": [_PRICE], "likely_usd_per_gpu_hour?": ({"low": float, "high": float}, None)},
    "runs": {"runs": [RunSummary]},
    "run": {"folder": str, "name": str | None, "note": str | None, "tags": [str]},
    "run-deleted": {Deleted: ...},
    "accuracy": {"device": str | None, "quantities": [QuantityAccuracy]},
    "data": {"path": str, TokenMeta: ...},
    "data-check": {
        "files": int, "left": int,
        "damaged": [{"path": str, "what": str, "url": str | None, "fetch": str, "again": str | None}],
    },
    "export": {"out": str | None, "main": str, "steps": [str], "warnings": [str], "files": dict[str, str]},
    "export-model": {"run": str, "out": str, "model": {**_MODEL, "architecture": str}, "files": dict[str, int]},
    "sample": {
        "run": str, "model": _LOADED, "prompt": str,
        "samples": [{"text": str, "tokens": int, "seconds": float, "ended_itself": bool, "seed": int}],
    },
    "eval": {
        "run": str, "model": _LOADED,
        "held_out": ({"loss": float, "standard_error": float | None, "bits_per_byte": float | None, "tokens": int,
                      "windows": int, "perplexity": float}, None),
        "tasks": [{"name": str, "questions": int, "right_per_byte": float, "right_in_sum": float,
                   "standard_error": float, "chance": float}],
    },
    "finetune": {"stage": finetune.FinetuneStage, "command": str},
    "adopt": {
        "adopted": Adopted, "plan": AdoptedPlan | None, "plan_file": str | None,
        "held_out": ({"median_error": float, "coverage": float, "batches": int, "by_law": bool}, None),
    },
    "quickstart": {"calibration": Cost, "plan": str, "run_dir": str, "comparison": _COMPARED},
}  # fmt: skip

_LOGGED = float | Literal["nan", "inf", "-inf"] | None  # JSON cannot write these numbers in another way
_LINES: dict[str, Shape] = {
    "header": {"attempt": int, "config": dict, "parameters": int, "world_size": int, "tokens_per_step": int,
               "precision": str, "device": dict, "schema": int, "resumed_from_step": int},
    "step": {"step": int, "tokens": int, "loss": _LOGGED, "learning_rate": _LOGGED, "grad_norm": _LOGGED,
             "clipped": bool | None, "seconds": _LOGGED, "allocated_peak_bytes": int | None,
             "reserved_peak_bytes": int | None, "resident_peak_bytes": int | None},
    "witness": {"step": int, "reference_seconds": _LOGGED, "steal_fraction": _LOGGED},
    "compile": {"seconds": _LOGGED},
    "eval": {"step": int, "loss": _LOGGED, "bits_per_byte": _LOGGED, "tokens": int, "seconds": _LOGGED},
    "checkpoint": {"step": int, "path": str, "bytes": int, "seconds": float},
    "message": {"level": Literal["info", "warning"], "text": str},
    "final": {"outcome": Outcome, "reason": str | None, "step": int, "seconds": _LOGGED},
}  # fmt: skip
_BURST = {
    Burst: ...,
    "workload": {ModelShape: ..., "micro_batch": int, "grad_accum": int, "gpus?": int, "precision": str,
                 "compile": bool, "activation_checkpointing": str, "optimizer": str},
}  # fmt: skip
_USD, _SHARE = float | str, float | str  # also as text: "$1.5k", "90%"
_FLEET = {  # times are durations from `starts`, or moments
    "name?": str, "starts?": str, "probability?": _SHARE, "budget?": _USD, "teams?": {"*": {"budget": _USD}},
    "pools": {
        "*": {
            "kind": PoolKind, "gpu?": str | list[str], "gpus?": int, "quota?": {"*": int | None}, "from?": str,
            "until?": str, "usd_per_gpu_hour?": _USD, "upfront?": _USD, "most?": int, "bought?": int,
            "refund?": _SHARE, "availability?": _SHARE, "up_time?": str, "queue?": str, "provider?": str,
            "engine?": str,
        }
    },
    "runs": [{
        "name": str, "goal?": dict, "plan?": str, "count?": int, "earliest?": str, "deadline?": str,
        "value_per_day?": _USD, "late_per_day?": _USD, "priority?": int, "team?": str, "interruptible?": bool,
    }],
}  # fmt: skip
FILES: dict[str, Shape] = {  # those of docs/file-formats.md that other programs may want to read or write
    "plan.yaml": Plan,
    "run.yaml": RunConfig,
    "run.json": LaunchRecord,
    "meta.json": TokenMeta,
    "budget.json": {Spent: ..., "schema": int, "sha256": str},
    "adopted.yaml": Adopted,
    "fleet.yaml": _FLEET,
    "calibration.yaml": {
        Calibration: ..., "schema": int, "kind": Literal["calibration", "accuracy-session"],
        "device": {"key": str, WorkerDevice: ...},
        "device_key": LEFT_OUT, "family": str, "bursts": [_BURST],
    },
    "log.jsonl": tuple({"kind": Literal[kind], "time": float, **line, "*": Any} for kind, line in _LINES.items()),
}  # fmt: skip


class Described:
    """Turns shapes into JSON Schema, and collects the records that they name.

    A command prints every field of a record and no others. A file may lack fields with a default, and may have more.
    """

    def __init__(self, *, file: bool) -> None:
        self.records: dict[str, Any] = {}
        self._file = file

    def of(self, shape: Shape) -> dict[str, Any]:
        """Return the schema of a shape."""
        if isinstance(shape, Mapping):
            return self._object(shape)
        if isinstance(shape, list):
            return {"type": "array", "items": self.of(shape[0])}
        if isinstance(shape, tuple):
            return self._one_of(shape)
        if dataclasses.is_dataclass(shape):
            return self._record(shape)
        origin: Any = get_origin(shape)
        arguments = get_args(shape)
        if origin in (typing.Union, types.UnionType):
            return self._one_of(arguments)
        if origin is Literal:
            return {"enum": list(arguments)}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(origin, type) and issubclass(origin, Sequence | frozenset | set):
            return self._array(origin, arguments)
        return self._plain(shape)

    def _plain(self, shape: Shape) -> dict[str, Any]:
        """Return the schema of a shape that contains no other shape."""
        if shape in (Any, object, dict, Mapping):
            return {}
        if isinstance(shape, type) and issubclass(shape, Enum):
            return {"enum": [member.value for member in shape]}
        if isinstance(shape, type) and issubclass(shape, np.ndarray | list | tuple):
            return {"type": "array"}
        names = {bool: "boolean", int: "integer", float: "number", type(None): "null", None: "null"}
        if shape not in names and not issubclass(shape, str | PurePath | datetime.date):
            raise TypeError(f"no schema is known of {shape!r}")
        return {"type": names.get(shape, "string")}

    def _one_of(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        found = [self.of(shape) for shape in shapes]
        if all(one.keys() == {"type"} for one in found):
            return {"type": [one["type"] for one in found]}
        return {"anyOf": found}

    def _array(self, origin: type, arguments: Sequence[Shape]) -> dict[str, Any]:
        if not issubclass(origin, tuple) or arguments[-1] is ...:
            return {"type": "array", "items": self.of(arguments[0])}
        return {"type": "array", "prefixItems": [self.of(one) for one in arguments], "items": False,
                "minItems": len(arguments)}  # fmt: skip

    def _object(self, shape: Mapping[Any, Shape]) -> dict[str, Any]:
        """Return the schema of a mapping. A record as a name stands for its fields, "*" for all other names."""
        fields: dict[str, Shape] = {}
        for name, kind in shape.items():
            fields |= self._fields_of(name) if isinstance(name, type) else {name: kind}
            if f"{name}?" in fields and not str(name).endswith("?"):
                del fields[f"{name}?"]  # optional in the record, required by the mapping
        others = self.of(fields.pop("*")) if "*" in fields else self._file
        written = {name: kind for name, kind in fields.items() if kind is not LEFT_OUT}
        return {
            "type": "object",
            "properties": {name.removesuffix("?"): self.of(kind) for name, kind in written.items()},
            "required": [name for name in written if not name.endswith("?")],
            "additionalProperties": others,
        }

    def _record(self, record: Any) -> dict[str, Any]:
        name = f"{'file.' if self._file else ''}{record.__module__.rpartition('.')[2]}.{record.__qualname__}"
        if name not in self.records:
            self.records[name] = {}  # for a record that contains itself
            found = {"description": (record.__doc__ or "").partition("\n")[0], **self._object(self._fields_of(record))}
            for field, words in _COMMENT.findall("".join(map(inspect.getsource, record.__mro__[:-1]))):
                if field in found["properties"]:
                    found["properties"][field] |= {"description": words}
            self.records[name] = found
        return {"$ref": f"#/$defs/{name}"}

    def _fields_of(self, record: Any) -> dict[str, Shape]:
        hints, missing, found = get_type_hints(record), dataclasses.MISSING, {}
        for field in dataclasses.fields(record):
            has_default = field.default is not missing or field.default_factory is not missing
            found[field.name + "?" * (self._file and has_default)] = hints[field.name]
        return found


def written() -> dict[str, Any]:
    """Return the content of `schemas.json`: each schema with its number, which is one higher if it changed."""
    before = documents.shipped() if documents.FILE.exists() else {"$defs": {}, "documents": {}}
    printed, filed = Described(file=False), Described(file=True)
    schemas = {ROW: printed.of(ROW_OF_TABLE)}
    for name, shape in DOCUMENTS.items():
        schemas[name] = printed.of({"document": Literal[name], "document_schema": int, **shape})
    schemas |= {name: filed.of(shape) for name, shape in FILES.items()}
    schemas["card"] = {name: part for name, part in card_schema().items() if name != "$schema"}
    records = dict(sorted((printed.records | filed.records).items()))
    found = {}
    for name, schema in sorted(schemas.items()):
        known = before["documents"].get(name, {"version": 0, "schema": None})
        same = _bare(schema, records) == _bare(known["schema"], before["$defs"])
        found[name] = {"version": known["version"] + (not same), "schema": schema}
    return {"$defs": records, "documents": found}


def _bare(schema: Any, records: Mapping[str, Any]) -> Any:
    """Return a schema with its records but without descriptions, which are all that may change under one number."""

    def bare(part: Any) -> Any:
        if isinstance(part, list):
            return [bare(one) for one in part]
        if isinstance(part, dict):
            return {key: bare(value) for key, value in part.items() if key != "description" or isinstance(value, dict)}
        return part

    return bare({"schema": schema, "$defs": documents.records_in(schema, records)})


def as_text(schemas: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the file, with one line for each record and document."""
    parts = []
    for part, entries in schemas.items():
        lines = [f'"{name}": {json.dumps(entry, ensure_ascii=False)}' for name, entry in entries.items()]
        parts.append(f'"{part}": {{\n' + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Write the schemas into the package's folder."""
    documents.FILE.write_text(as_text(written()), encoding="utf-8")


if __name__ == "__main__":
    main()
