"""Turns a plan into a folder of text files that start its run elsewhere, by hand or with another engine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from advisor.engines.export.bundle import common_files, export_job
from advisor.engines.export.targets import TARGETS
from advisor.engines.guards import GuardLimits, guarded, limit_seconds, make_guards, refuse_edited, with_limits_of
from advisor.errors import AdvisorError
from advisor.options import ExportOptions
from advisor.records import Plan
from advisor.run_records import Place
from advisor.store.disk import disk_errors, write_atomic
from advisor.store.plan_files import load_plan
from advisor.store.store import Store
from advisor.units import HOUR, format_seconds, format_usd
from advisor.workflows.launch import limits_of, with_synthetic


@dataclass(frozen=True, kw_only=True)
class Exported:
    """An export that is not written yet."""

    main: str  # the file that defines the job
    files: Mapping[str, str]  # name inside the folder → text
    steps: tuple[str, ...]  # commands to type there
    warnings: tuple[str, ...]

    def write(self, folder: Path) -> None:
        """Write every file. Raises AdvisorError if the folder is not empty or cannot be written."""
        with disk_errors("write the export to", folder):
            if folder.is_dir() and any(folder.iterdir()):
                raise AdvisorError(f"{folder} is not empty", "name a new folder")
            (folder / "trainer").mkdir(parents=True, exist_ok=True)
            for name, text in self.files.items():
                write_atomic(folder / name, text)


def export_file(store: Store, path: Path, to: str, options: ExportOptions) -> Exported:
    """Returns the exported files for a plan file, with the limits and data that the options give."""
    return export(with_synthetic(load_plan(path), options.synthetic), to, limits_of(options), options)


def place_there(to: str, options: ExportOptions) -> Place:
    """Returns the place where an engine starts the job; AdvisorError (exit 2) for unsafe characters in options."""
    for name in ("account", "partition", "qos", "constraint", "image", "volume_claim", "infra", "data_at"):
        # The values go into scripts unchanged, so characters that end a line, a word or a quotation there are refused.
        value = getattr(options, name)
        signs = r"\[\]&|!()*" if name == "constraint" else ""  # Slurm's own syntax, in a script's comment
        if value is not None and not re.fullmatch(rf"[\w.,:@%+=~/{signs}-]+", value):
            message = f"--{name.replace('_', '-')} {value!r} is no word for an engine"
            raise AdvisorError(message, "letters, digits and . , : / @ - _ =", exit_code=2)
    there = options.partition if to == "slurm" else options.infra
    return Place(engine=to, name=there, account=options.account, qos=options.qos, constraint=options.constraint)


def export(
    plan: Plan,
    to: str,
    limits: GuardLimits = GuardLimits(),  # noqa: B008 - frozen
    options: ExportOptions = ExportOptions(),  # noqa: B008 - frozen
) -> Exported:
    """Returns the files of a plan for an engine of `TARGETS`. Raises AdvisorError for an unsupported option."""
    place = place_there(to, options)
    refuse_edited(plan)
    target = TARGETS[to]
    guards = make_guards(plan.config, with_limits_of(plan, limits), usd_per_hour=plan.offer.usd_per_hour)
    step_seconds = plan.chosen.step_seconds.value
    config = guarded(plan.config, guards, usd_per_hour=plan.offer.usd_per_hour, step_seconds=step_seconds)
    data = None
    if config.data.path is not None:
        data = Path(config.data.path).expanduser().resolve()
        there = options.data_at or target.data_at or str(data)
        config = replace(config, data=replace(config.data, path=there))
    job = export_job(plan, config, data, max_usd=guards.max_usd, image=options.image, claim=options.volume_claim,
                     place=place)  # fmt: skip
    own = target.files(job)
    found = []
    if limit_seconds(job.config.stop) is None:
        rate = plan.offer.usd_per_hour
        cost = f" (about {format_usd(job.limit_seconds / HOUR * rate)})" if rate else ""
        found.append(
            f"nothing stops this run before {format_seconds(job.limit_seconds)}{cost}: with --budget or --deadline it "
            "stops by itself, with a checkpoint, and restarts count"
        )
    if job.data is not None and job.config.data.path != str(job.data):
        found.append(f"the tokens of {job.data} must be at {job.config.data.path} there")
    return Exported(
        main=target.main, files=common_files(job) | dict(own), steps=tuple(target.steps(job)), warnings=tuple(found)
    )
