"""Floor 3: keyed state in sorted columnar runs.

Names are imported when they are used: what a checkpoint remembers of state is read without PyArrow and numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_MODULES = {
    "BackendStatistics": "backend",
    "ColumnTable": "column_table",
    "ColumnTimers": "column_timers",
    "ColumnarKeyedStateBackend": "backend",
    "HeapKeyedStateBackend": "heap_backend",
    "KeyedSnapshot": "handles",
    "KeyedStateBackend": "backend",
    "RunCache": "cache",
    "RunHandle": "handles",
    "TableSnapshot": "handles",
    "TimerQueue": "timers",
    "read_table": "reader",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
