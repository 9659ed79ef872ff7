"""Reads a run's history in Parquet, as W&B and pandas write it: columns by their names, like any table."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.readers.csv_table import recognised
from advisor.readers.gather import gather
from advisor.readers.run_table import RunTable
from advisor.readers.telemetry_names import column_or_card

NAME = "parquet"
_MAGIC = b"PAR1"


def score(head: bytes, path: Path) -> float:
    """Return the score: high for Parquet whose columns name a loss."""
    if not head.startswith(_MAGIC):
        return 0.0
    import pyarrow as pa
    import pyarrow.parquet as parquet

    try:
        names = tuple(parquet.read_schema(path).names)
    except (pa.ArrowException, OSError):
        return 0.0
    return 0.97 if {"loss", "eval_loss"} & recognised(names).keys() else 0.0


def read(path: Path) -> RunTable:
    """Read the known columns. Raises AdvisorError if the file is damaged or has none."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as compute
    import pyarrow.parquet as parquet

    try:
        names = [name for name in parquet.read_schema(path).names if column_or_card(name)]
        table = parquet.read_table(path, columns=names)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        raise AdvisorError(f"{path} is damaged: {reason}", "export it again") from error
    if not table.num_rows:
        raise AdvisorError(f"{path} holds no row", "was the run logged?")
    cells = {}
    for name, column in zip(names, table.columns, strict=True):
        cells[name] = column.to_pandas()
        if pa.types.is_floating(column.type) and compute.any(written := compute.is_nan(column)).as_py():
            nan = written.fill_null(False).to_numpy()
            cells[name] = cells[name].astype(object).mask(nan, "nan")  # a missing value is not a NaN that was written
    return gather(pd.DataFrame(cells).set_axis(range(1, table.num_rows + 1))).table(path, NAME)
