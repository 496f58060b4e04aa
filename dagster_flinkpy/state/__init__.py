"""Floor 3: keyed state in sorted columnar runs."""

from dagster_flinkpy.state.backend import BackendStatistics, ColumnarKeyedStateBackend, KeyedStateBackend
from dagster_flinkpy.state.cache import RunCache
from dagster_flinkpy.state.column_table import ColumnTable
from dagster_flinkpy.state.column_timers import ColumnTimers
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot
from dagster_flinkpy.state.heap_backend import HeapKeyedStateBackend
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.state.timers import TimerQueue

__all__ = [
    "BackendStatistics",
    "ColumnTable",
    "ColumnTimers",
    "ColumnarKeyedStateBackend",
    "HeapKeyedStateBackend",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "RunCache",
    "RunHandle",
    "TableSnapshot",
    "TimerQueue",
    "read_table",
]
