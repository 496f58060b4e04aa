"""The number of rows of a table of Delta Lake or Iceberg, as its log tells it. Data files are not opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from dagster_flinkpy.connectors.delta.sink import DeltaSink
    from dagster_flinkpy.connectors.iceberg.sink import IcebergSink

__all__ = ["rows_of_delta", "rows_of_iceberg"]


def rows_of_delta(sink: DeltaSink) -> int | None:
    """Returns the number of rows of a sink's table, or None if the log does not tell it."""
    from deltalake import DeltaTable

    from dagster_flinkpy.connectors.delta.table import storage_options

    table = DeltaTable(sink.location.url, storage_options=storage_options(sink.location))
    if pa.table(table.deletion_vectors()).num_rows:
        return None
    counts = pa.table(table.get_add_actions()).column("num_records")
    return None if counts.null_count else pc.sum(counts).as_py() or 0


def rows_of_iceberg(sink: IcebergSink) -> int | None:
    """Returns the number of rows of a sink's table, or None if the log does not tell it."""
    from dagster_flinkpy.connectors.iceberg.table import IcebergTarget
    from dagster_flinkpy.datastream.connectors.base import CommitterInitContext

    table = IcebergTarget(sink, CommitterInitContext("", "", fencing_token=0)).open(create=False)
    snapshot = table.current_snapshot()
    if snapshot is None:
        return 0
    summary = {} if snapshot.summary is None else snapshot.summary.additional_properties
    deleted = [int(summary.get(f"total-{kind}-deletes", 0)) for kind in ("position", "equality")]
    return None if any(deleted) or "total-records" not in summary else int(summary["total-records"])
