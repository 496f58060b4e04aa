"""Types, time and watermarks (``pyflink.common``)."""

from dagster_flinkpy.common.time import Duration, Time
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
from dagster_flinkpy.common.types import Row, RowKind
from dagster_flinkpy.common.watermark_strategy import TimestampAssigner, WatermarkStrategy

__all__ = [
    "Duration",
    "Row",
    "RowKind",
    "Time",
    "TimestampAssigner",
    "TypeInformation",
    "Types",
    "WatermarkStrategy",
]
