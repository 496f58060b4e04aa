"""Stored state as data: read, bootstrap and change it without running the job (Flink: State Processor API)."""

from dagster_flinkpy.state_processor.flink_reader import FlinkSavepointReader
from dagster_flinkpy.state_processor.reader import SavepointReader, read_savepoint
from dagster_flinkpy.state_processor.stored_state import StoredState
from dagster_flinkpy.state_processor.writer import SavepointWriter, write_savepoint

__all__ = [
    "FlinkSavepointReader",
    "SavepointReader",
    "SavepointWriter",
    "StoredState",
    "read_savepoint",
    "write_savepoint",
]
