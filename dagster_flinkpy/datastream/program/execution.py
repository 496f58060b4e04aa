"""The interface through which programs are run. This floor knows nothing of Spark, so it is only a protocol."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.job_client import JobClient
from dagster_flinkpy.common.job_execution_result import JobExecutionResult
from dagster_flinkpy.common.no_effect import no_effect
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.checkpointing.state_recovery import NonRestoredState
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import call_registered

__all__ = [
    "ExecutionSettings",
    "JobExecutionResult",
    "ProgramExecutor",
    "get_executor",
    "spark_row_type",
    "without_spark",
]

_without_spark: ContextVar[bool] = ContextVar("without_spark", default=False)


@dataclass(frozen=True)
class ExecutionSettings:
    """The settings of the environment for a run."""

    job_name: str
    checkpoint_dir: str | None = None
    """Where checkpoints go. None means a folder that is deleted when the program ends."""
    savepoint_path: str | None = None
    """The checkpoint or savepoint to start from."""
    allow_non_restored_state: NonRestoredState = False
    """Whether state without an operator may be left behind, or the uids whose state may."""
    local: bool = False
    """Whether tasks run in this process instead of on Spark (option ``execution.local``)."""
    checkpointing: CheckpointConfig = field(default_factory=CheckpointConfig)
    """The other checkpoint settings of the program."""
    config: ExecutionConfig = field(default_factory=ExecutionConfig)
    """The settings that are not about checkpoints."""

    def warn_of_no_effect(self) -> None:
        """Warns of what is set, in the program or the environment of the process, and does nothing."""
        if self.local and self.checkpointing.timeout != CheckpointConfig().timeout:
            no_effect("set_checkpoint_timeout()", "nothing interrupts a program in this process (execution.local)")
        if not self.local and os.environ.get("SPARK_REMOTE", "").startswith("sc://"):
            no_effect("SPARK_REMOTE", "a script runs on this machine; in Dagster, SparkResource names a cluster")


class ProgramExecutor(Protocol):
    """Runs programs."""

    def execute(self, graph: JobGraph, settings: ExecutionSettings) -> JobExecutionResult:
        """Runs until all input has been read and committed."""

    def execute_async(self, graph: JobGraph, settings: ExecutionSettings) -> JobClient:
        """Begins to run the program, and returns its client."""

    def execute_and_collect(self, graph: JobGraph, settings: ExecutionSettings) -> Iterator[tuple[str, Any]]:
        """Runs the program and yields the records of its collect operators, each with the uid of the operator."""


def get_executor() -> ProgramExecutor:
    """Returns the registered executor.

    Raises:
        ConfigurationError: No executor is registered.
    """
    return call_registered("executor")


@contextmanager
def without_spark() -> Iterator[None]:
    """Keeps programs that are declared inside from asking Spark for types: a Dagster code location loads without it."""
    token = _without_spark.set(True)
    try:
        yield
    finally:
        _without_spark.reset(token)


def spark_row_type(registered: str, *arguments: Any, operator: str) -> RowTypeInfo:
    """Asks Spark for the type of a DataFrame's rows.

    Args:
        registered: The registered name of the function that asks.
        arguments: Its arguments before the operator.
        operator: The name of the operator.

    Raises:
        ConfigurationError: Spark must not be asked here.
    """
    if _without_spark.get():
        raise ConfigurationError(
            f"operator {operator!r}: a Dagster code location loads without Spark, so declare the columns of the "
            "DataFrame with type_info=... of from_spark() or output_type=... of transform_spark(), such as "
            "Types.ROW_NAMED([...], [...])"
        )
    return call_registered(registered, *arguments, operator)
