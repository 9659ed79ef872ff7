"""Reads a run's history in Parquet, as W&B and pandas write it: columns by their names, in batches, like any table."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from advisor.errors import AdvisorError
from advisor.readers.delimited import recognised
from advisor.readers.gather import BLOCK_ROWS, Gatherer
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import column_or_card

NAME = "parquet"
_MAGIC = b"PAR1"


def score(head: bytes, path: Path) -> float:
    """Return the score: high for Parquet whose columns name a loss."""
    return 0.97 if head.startswith(_MAGIC) and {"loss", "eval_loss"} & recognised(_names(path)).keys() else 0.0


def read(path: Path) -> RunTable:
    """Read the known columns. Raises AdvisorError if the file is damaged or has none."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    gatherer = Gatherer()
    rows = 0
    try:
        file = parquet.ParquetFile(path)
        wanted = [name for name in file.schema_arrow.names if column_or_card(name)]
        for batch in file.iter_batches(batch_size=BLOCK_ROWS, columns=wanted):
            cells, printed = _cells(batch)
            gatherer.add(cells, rows + 1 + np.arange(batch.num_rows), printed)
            rows += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise AdvisorError(f"{path} is damaged: {reason}", "export it again") from error
    if not rows:
        raise AdvisorError(f"{path} holds no row", "was the run logged?")
    return gatherer.finish().table(path, NAME)


def _cells(batch) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:  # type: ignore[no-untyped-def]
    """Return the numbers of a batch, NaN where there is none, and where a NaN was written."""
    import pyarrow as pa

    cells, printed = {}, {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        if pa.types.is_timestamp(kind):
            column = column.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64())
        elif pa.types.is_integer(kind) or pa.types.is_floating(kind):
            column = column.cast(pa.float64(), safe=False)
        else:
            continue
        values = column.to_numpy(zero_copy_only=False)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        cells[name], printed[name] = values, (np.isnan(values) & ~missing).astype(float)
    return cells, printed


def _names(path: Path) -> tuple[str, ...]:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        return tuple(parquet.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return ()
