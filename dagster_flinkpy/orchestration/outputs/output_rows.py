"""Data frames as the records of an output: Arrow, pandas, Polars and Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from dagster_flinkpy.common.typeinfo import RowTypeInfo, Types
from dagster_flinkpy.connectors.columns.column_casts import cast_rows, type_info_of
from dagster_flinkpy.connectors.commit.output_ledger import StagedOutput
from dagster_flinkpy.errors import TypeMismatchError
from dagster_flinkpy.orchestration.outputs.output_transaction import Output, OutputTransaction, writer_context
from dagster_flinkpy.spark.versions import arrow_schema

__all__ = ["write_rows"]

_BATCH_ROWS = 1 << 16


def write_rows(transaction: OutputTransaction, rows: Any, partition: str | None) -> None:
    """Stages the rows of a data frame. The tasks of Spark stage those of a Spark DataFrame.

    Args:
        transaction: The transaction.
        rows: ``pyarrow.Table``, ``RecordBatch`` or ``RecordBatchReader``; ``pandas.DataFrame``, whose index is not
            written; ``polars.DataFrame``; or ``pyspark.sql.DataFrame``.
        partition: The partition to which they belong, or None.

    Raises:
        TypeMismatchError: It is something else, or has other columns than what was written before.
        ConfigurationError: The target cannot store a column.
    """
    kind = type(rows).__module__.partition(".")[0], type(rows).__name__
    if kind == ("pyspark", "DataFrame"):
        _write_spark(transaction, rows, partition)
        return
    if kind == ("pandas", "DataFrame"):
        rows = _from_pandas(rows)
    elif kind == ("polars", "DataFrame"):
        rows = rows.to_arrow()
    if isinstance(rows, (pa.Table, pa.RecordBatch)):
        batches: Iterable[pa.RecordBatch] = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches(_BATCH_ROWS)
    elif isinstance(rows, pa.RecordBatchReader):
        batches = rows
    else:
        raise TypeMismatchError(
            f"a transaction cannot write {type(rows).__module__}.{type(rows).__qualname__}: give it a table of Arrow, "
            "or a DataFrame of pandas, Polars or Spark"
        )
    record = _declared(transaction, rows.schema)
    transaction.write((cast_rows(batch, record) for batch in batches), partition)


def _from_pandas(rows: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(rows, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TypeMismatchError(f"the pandas DataFrame has a column with values of several types: {error}") from error


def _declared(transaction: OutputTransaction, schema: pa.Schema) -> RowTypeInfo:
    """Returns the type of the records, which the first rows of a transaction determine."""
    record = transaction.type_info
    if record is None:
        for field in schema:
            if pa.types.is_null(field.type) or pa.types.is_uint64(field.type):
                raise TypeMismatchError(f"column {field.name!r} has type {field.type}: cast it to another type")
        types = [type_info_of(field.type, field.name, instants=True) for field in schema]
        record = Types.ROW_NAMED(schema.names, types)
        transaction.output.sink.validate(record)
        transaction.type_info = record
    assert isinstance(record, RowTypeInfo)
    if sorted(schema.names) != sorted(record.field_names):
        raise TypeMismatchError(
            f"the rows have the columns {schema.names}, but the first ones of the transaction had "
            f"{list(record.field_names)}"
        )
    return record


def _write_spark(transaction: OutputTransaction, rows: Any, partition: str | None) -> None:
    record = _declared(transaction, arrow_schema(rows.schema))
    task = partial(_stage, transaction.output, transaction.token, record, partition)
    for each in rows.mapInArrow(task, "rows long, committables string").collect():
        committables = json.loads(each["committables"])
        counts = [each["rows"]] + [0] * len(committables)  # a task's rows are counted once
        transaction.add([StagedOutput(partition, n, c) for n, c in zip(counts, committables, strict=False)])


def _stage(
    output: Output, token: int, record: RowTypeInfo, partition: str | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Stages the rows of a Spark task. What tasks that fail or are repeated have staged, the commit deletes."""
    from pyspark import TaskContext

    context = TaskContext.get()
    subtask = 0 if context is None else context.partitionId()
    writer, rows = output.sink.create_writer(writer_context(output, token, partition, subtask), record), 0
    try:
        for batch in batches:
            writer.write(cast_rows(batch, record))
            rows += batch.num_rows
        writer.flush()
        committables = writer.prepare_commit() if rows else []
    except BaseException:
        writer.abort()
        raise
    yield pa.record_batch({"rows": [rows], "committables": [json.dumps(committables)]})
