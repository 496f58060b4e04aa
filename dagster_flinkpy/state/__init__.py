"""Floor 3: keyed state in sorted columnar runs."""

from dagster_flinkpy.state.backend import BackendStatistics, ColumnarKeyedStateBackend, KeyedStateBackend
from dagster_flinkpy.state.cache import RunCache
from dagster_flinkpy.state.handles import KeyedSnapshot, RunHandle, TableSnapshot
from dagster_flinkpy.state.reader import read_table
from dagster_flinkpy.state.timers import TimerQueue

__all__ = [
    "BackendStatistics",
    "ColumnarKeyedStateBackend",
    "KeyedSnapshot",
    "KeyedStateBackend",
    "RunCache",
    "RunHandle",
    "TableSnapshot",
    "TimerQueue",
    "read_table",
]
