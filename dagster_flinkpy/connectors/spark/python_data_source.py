"""A Python data source of Spark (``pyspark.sql.datasource``) as a source."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.sources.declared_source import RowSource
from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

__all__ = ["PythonDataSource"]


class PythonDataSource(RowSource):
    """Reads a data source that was written in Python for Spark 4, without a Spark stream.

    The driver asks its stream reader for offsets and partitions; each partition is a split, which a subtask reads. The
    offset at each barrier is part of the checkpoint, and ``commit()`` is called when the checkpoint is complete. If it
    has no ``streamReader()``, its ``simpleStreamReader()`` is used. With ``batch=True``, the partitions of its
    ``reader()`` are read once, in one epoch.

    As Spark demands, an offset must stay valid until it is committed, and the same range of offsets must always give
    the same records. If the numbers and times of an offset go back, the run ends with an `InputChangedError`, because
    records would be read again. The object is pickled, and readers and partitions are used in other processes.
    ``stop()`` is not called.

    Args:
        data_source: The data source, with its options: ``MyDataSource({"path": "..."})``.
        row_type: The columns, by name. Default: those of ``schema()``.
        bounded: Whether the input ends with the offset that is the latest when an epoch is planned. Default: it ends
            if ``env.execute()`` runs the program, and continues from run to run in Dagster.
        batch: Whether to read ``reader()``, which always ends.
        max_records_per_epoch: Maximum number of records between two barriers, which is given to ``latestOffset()`` as
            ``ReadMaxRows``. Default: what ``getDefaultReadLimit()`` returns.
        max_bytes_per_epoch: Likewise as ``ReadMaxBytes``. Only one of the two can be given.

    Raises:
        ConfigurationError: It is not a data source, or limits are given that it does not obey.
    """

    registered: ClassVar[str] = "python_data_source"
    dagster_kind = "spark"

    def __init__(
        self,
        data_source: DataSource,
        *,
        row_type: RowTypeInfo | None = None,
        bounded: bool | None = None,
        batch: bool = False,
        max_records_per_epoch: int | None = None,
        max_bytes_per_epoch: int | None = None,
    ) -> None:
        from pyspark.sql.datasource import DataSource

        call = "PythonDataSource()"
        check_argument(call, data_source, DataSource, "an instance of a pyspark.sql.datasource.DataSource")
        self._declare(row_type, True if batch else bounded, max_records_per_epoch, max_bytes_per_epoch)
        if batch and (self.limits or bounded is False):
            raise ConfigurationError(f"{call} with batch=True reads all in one epoch, and ends: leave out the limits")
        if None not in (max_records_per_epoch, max_bytes_per_epoch):
            raise ConfigurationError(f"{call} gives latestOffset() one limit: leave out one of the two")
        self.data_source, self.batch = data_source, batch
