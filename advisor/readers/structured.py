"""Readers of structured files, each a score and a function, as `read.READERS` wants them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from advisor.readers import (
    csv_table,
    dmon,
    gpu_csv,
    hf_trainer_state,
    jsonl,
    keras_csv,
    lightning_csv,
    llama_factory,
    markdown_report,
    mlflow_files,
    mlperf,
    own_log,
    parquet_table,
    sheets,
    smi_tables,
    sqlite_runs,
    tasks,
    telemetry_file,
    tfevents,
    ultralytics,
    wandb_file,
    wandb_folder,
)
from advisor.readers.chunks import Progress
from advisor.readers.run_table import RunTable


@dataclass(frozen=True)
class FileReader:
    """A reader of whole files."""

    name: str
    score_of: Callable[[bytes, Path], float]
    read_file: Callable[[Path], RunTable]

    def score(self, head: bytes, path: Path) -> float:
        """How surely (0…1) a file with this cleaned beginning is of the format."""
        return self.score_of(head, path)

    def read(self, path: Path, progress: Progress | None = None) -> RunTable:
        """Read the file; AdvisorError where it is not what it seems."""
        table = self.read_file(path)
        if progress is not None:
            size = path.stat().st_size
            progress(size, size)
        return table


_MODULES = (
    own_log,
    hf_trainer_state,
    ultralytics,
    lightning_csv,
    keras_csv,
    wandb_folder,
    wandb_file,
    tfevents,
    mlperf,
    mlflow_files,
    sqlite_runs,
    parquet_table,
    telemetry_file,
    dmon,
    gpu_csv,
    smi_tables,
    markdown_report,
    llama_factory,
    jsonl,
    csv_table,
    sheets,
    tasks,
)
STRUCTURED = tuple(FileReader(module.NAME, module.score, module.read) for module in _MODULES)
