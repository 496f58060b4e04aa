"""Types, time and watermarks (``pyflink.common``)."""

from dagster_flinkpy.common.completable_future import CompletableFuture
from dagster_flinkpy.common.configuration import Configuration
from dagster_flinkpy.common.execution_config import ExecutionConfig
from dagster_flinkpy.common.former_names import missing
from dagster_flinkpy.common.job_client import JobClient
from dagster_flinkpy.common.job_execution_result import JobExecutionResult
from dagster_flinkpy.common.job_status import JobStatus
from dagster_flinkpy.common.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    Encoder,
    SerializationSchema,
    SimpleStringSchema,
)
from dagster_flinkpy.common.serializer import TypeSerializer
from dagster_flinkpy.common.time import Duration, Instant, Time
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row, RowKind
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner, WatermarkStrategy

__all__ = [
    "ByteArraySchema",
    "CompletableFuture",
    "Configuration",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "Instant",
    "JobClient",
    "JobExecutionResult",
    "JobStatus",
    "Row",
    "RowKind",
    "SerializationSchema",
    "SimpleStringSchema",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "TypeSerializer",
    "Types",
    "WatermarkStrategy",
]


def __getattr__(name: str) -> object:
    raise missing(__name__, name)
