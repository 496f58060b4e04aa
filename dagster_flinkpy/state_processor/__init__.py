"""Stored state as data: read, bootstrap, change and fork it without running the job (Flink: State Processor API)."""

from dagster_flinkpy.checkpoint.forks.fork import Fork, fork_job, list_forks
from dagster_flinkpy.checkpoint.forks.job_disposal import dispose_job
from dagster_flinkpy.state_processor.flink_reader import FlinkSavepointReader
from dagster_flinkpy.state_processor.reader import SavepointReader, read_savepoint
from dagster_flinkpy.state_processor.stored_state import StoredState
from dagster_flinkpy.state_processor.writer import SavepointWriter, write_savepoint

__all__ = [
    "FlinkSavepointReader",
    "Fork",
    "SavepointReader",
    "SavepointWriter",
    "StoredState",
    "dispose_job",
    "fork_job",
    "list_forks",
    "read_savepoint",
    "write_savepoint",
]
