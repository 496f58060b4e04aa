"""A function that gets the rows of each epoch, for targets that have no sink of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dagster_flinkpy.common.arguments import check_argument
from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.connectors.columns.column_types import check_parquet_type, columns_of
from dagster_flinkpy.connectors.commit.table_sink import StagedParquet
from dagster_flinkpy.datastream.connectors.base import (
    Committer,
    CommitterInitContext,
    CommittingSinkWriter,
    TwoPhaseCommittingSink,
    WriterInitContext,
)
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered
from dagster_flinkpy.storage import StorageLocation

__all__ = ["Epoch", "ForeachEpoch"]

_FRAMES = ("arrow", "spark")


@dataclass(frozen=True)
class Epoch:
    """Whose rows the function of a `ForeachEpoch` gets."""

    id: str
    """Identifies the rows. It is the same each time the function gets them, and no other rows have it."""
    job_id: str
    uid: str
    """The uid of the sink."""
    checkpoint_id: int
    partition: str | None
    """The Dagster partition of the run, or None."""


class ForeachEpoch(TwoPhaseCommittingSink):
    """Calls a function with the rows of each completed checkpoint: **at least once**, on the driver.

    Subtasks stage their rows. When the checkpoint is complete, the function gets the rows of all subtasks. If it raises
    an exception, or the process dies before the call is recorded, it gets the same rows again, with the same
    ``epoch.id``. A function that writes an id once, or replaces what it has written for it, writes exactly once. A
    checkpoint without rows calls nothing.

    In a job with time partitions the function must replace what it wrote for ``epoch.partition``. It is called for each
    run of a partition, also without rows.

    Spark has it as ``foreachBatch``.

    Args:
        function: Is called as ``function(rows, epoch)``. ``epoch`` is an `Epoch`.
        staging: The folder for staged rows, local or on S3.
        frame: What ``rows`` is: ``arrow``, a ``pyarrow.Table`` in the memory of the driver; or ``spark``, a Spark
            DataFrame whose rows the executors read. It is valid during the call only.

    Raises:
        ConfigurationError: An argument cannot work.
    """

    def __init__(
        self, function: Callable[[Any, Epoch], object], staging: StorageLocation | str, *, frame: str = "arrow"
    ) -> None:
        if not callable(function):
            raise ConfigurationError(f"ForeachEpoch() needs a function of rows and epoch, not {function!r}")
        check_argument("ForeachEpoch()", staging, (str, StorageLocation), "a folder for staged rows")
        if frame not in _FRAMES:
            raise ConfigurationError(f"ForeachEpoch(): frame {frame!r} must be one of {list(_FRAMES)}")
        self.function, self.frame = function, frame
        self.files = StagedParquet(staging)
        self.staging = self.files.location

    def validate(self, type_info: TypeInformation | None) -> None:
        self.files.validate(type_info)
        for name, kind in {} if type_info is None else columns_of(type_info).items():
            check_parquet_type(name, kind, "a ForeachEpoch")

    def create_writer(self, context: WriterInitContext, type_info: TypeInformation) -> CommittingSinkWriter:
        self.validate(type_info)
        return call_registered("staged_rows_writer", self.files, context, type_info)

    def create_committer(self, context: CommitterInitContext) -> Committer:
        return call_registered("foreach_committer", self, context)

    def folders(self) -> list[str]:
        return [self.staging.url]

    def kinds(self) -> set[str]:
        return {"python"} if self.frame == "arrow" else {"spark"}
