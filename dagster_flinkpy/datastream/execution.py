"""How a program is run: a protocol, for this floor knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from dagster_flinkpy.common.job_execution_result import JobExecutionResult
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.datastream.checkpoint_config import CheckpointConfig
from dagster_flinkpy.datastream.job_graph import JobGraph
from dagster_flinkpy.errors import ConfigurationError
from dagster_flinkpy.registry import resolve

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
    """What the environment says about a run."""

    job_name: str
    checkpoint_dir: str | None = None
    """Where checkpoints go; None: a folder that is gone when the program ends."""
    savepoint_path: str | None = None
    """The checkpoint or savepoint to start from."""
    allow_non_restored_state: bool = False
    latency_tracking_interval: timedelta = timedelta(0)
    """Time between two latency markers of a source; zero: none are sent."""
    checkpointing: CheckpointConfig = field(default_factory=CheckpointConfig)
    """The other checkpoint settings of the program."""


class ProgramExecutor(Protocol):
    """Runs a bounded program to its end."""

    def execute(self, graph: JobGraph, settings: ExecutionSettings) -> JobExecutionResult:
        """Runs until all input is read and committed."""

    def execute_and_collect(self, graph: JobGraph, settings: ExecutionSettings) -> Iterator[Any]:
        """Runs and brings back the records of the graph's one collect operator."""


def get_executor() -> ProgramExecutor:
    """The registered executor.

    Raises:
        ConfigurationError: None is registered.
    """
    executor: ProgramExecutor = resolve("executor")()
    return executor


@contextmanager
def without_spark() -> Iterator[None]:
    """Programs that are declared inside must not ask Spark for types: a Dagster code location loads without it."""
    token = _without_spark.set(True)
    try:
        yield
    finally:
        _without_spark.reset(token)


def spark_row_type(registered: str, *arguments: Any, operator: str) -> RowTypeInfo:
    """The type of a DataFrame's rows, for which Spark is asked.

    Args:
        registered: Name of what asks.
        arguments: What it is given before the operator.
        operator: Whose DataFrame it is.

    Raises:
        ConfigurationError: Spark must not be asked here.
    """
    if _without_spark.get():
        raise ConfigurationError(
            f"operator {operator!r}: a Dagster code location loads without Spark, so say what the DataFrame has: "
            "type_info=... of from_spark(), output_type=... of transform_spark(), such as Types.ROW_NAMED([...], [...])"
        )
    ask: Callable[..., RowTypeInfo] = resolve(registered)
    return ask(*arguments, operator)
