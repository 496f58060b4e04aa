"""Brings the state of a Spark streaming query along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.orchestration.flink_import import import_targets
from dagster_flinkpy.orchestration.flink_job import Environment, flink_job
from dagster_flinkpy.state_processor.import_report import ImportReport
from dagster_flinkpy.state_processor.spark_checkpoint import SparkCheckpoint
from dagster_flinkpy.state_processor.spark_import import import_spark_state
from dagster_flinkpy.storage import StorageLocation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["import_spark_checkpoint"]


def import_spark_checkpoint(
    session: SparkSession,
    source: StorageLocation,
    program: Environment,
    target: StorageLocation,
    *,
    mapping: Mapping[str, str] | None = None,
    allow_non_restored_state: NonRestoredState = False,
    on_progress: Callable[[str], None] = lambda line: None,
) -> ImportReport:
    """Imports the checkpoint of a stopped Spark streaming query. The job starts on the savepoint with ``restore_from``.

    The functions of the program are opened in this process, as tasks would open them, and closed again.

    Args:
        session: The session that reads the state; PySpark 4.0 or newer.
        source: The ``checkpointLocation`` of the query.
        program: The program.
        target: The folder of the new savepoint.
        mapping: Where state goes that is not found by its name: from ``STATE`` or ``OPERATOR.STATE`` of Spark to
            ``UID`` or ``UID:STATE`` of the program, and from ``sources/N`` to the uid of a source. Default: variables
            of ``transformWithState``, and columns of aggregations, become state with their name; a query with one
            source goes on in a program with one.
        allow_non_restored_state: Whether to leave behind state that cannot be imported: True for any, or the ids of
            Spark's operators, and ``sources/N``, whose state may be. Default: it is an error.
        on_progress: Receives one-line messages.

    Raises:
        UnsupportedSavepointError: There is state that cannot be imported. The message names each, and says why.
        TypeMismatchError: A value does not fit the type that the program declares.
        RestoreError: There is no such checkpoint, or no batch was committed.
        CorruptStateError: A file is missing or damaged.
        ConfigurationError: ``mapping`` names what does not exist, or the target must not be used.
        JobGraphError: The program is not valid.
        UserFunctionError: A function cannot be opened here.
    """
    return import_spark_state(
        SparkCheckpoint(source, session),
        target,
        import_targets(flink_job(program, "import").graph, None),
        mapping=mapping,
        allow_non_restored_state=allow_non_restored_state,
        on_progress=on_progress,
    )
