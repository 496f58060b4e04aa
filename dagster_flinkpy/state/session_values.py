"""The reduced values or accumulators of windows that merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.cell_columns import CellColumn, Cells, ObjectColumn, grown, make_column
from dagster_flinkpy.state.keys import KeySlots
from dagster_flinkpy.state.session_table import SessionTable, delta_of_sessions, stored_windows, window_column
from dagster_flinkpy.state.tables import OverlayTable

__all__ = ["SessionColumns", "SessionValues"]

Mask = npt.NDArray[np.bool_]


class SessionValues(OverlayTable):
    """The values of sessions. They are stored in the same form as those of a CellTable.

    Args:
        sessions: The windows in flight. Their table must be declared before this one.
    """

    value_type: TypeInformation

    def __init__(self, *args: Any, sessions: SessionTable, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sessions = sessions
        self.clear()
        sessions.followers.append(self)

    @property
    def values(self) -> list[Any]:
        """The value of each session; None means no value. Call :meth:`SessionTable.mark` for those that change."""
        return self._column.values

    @property
    def size(self) -> int:
        return 0  # The sessions have them.

    def grow(self, size: int) -> None:
        """Makes room for so many sessions."""
        self._column.grow(size)

    def keep(self, cells: Cells, numbers: Cells) -> None:
        """Keeps the values of some sessions only, which are numbered anew in this order."""
        self._column.keep(cells)

    def get(self, cells: Cells) -> list[Any]:
        """Returns the values of sessions."""
        return self._column.get(cells)

    def drop(self, cells: Cells) -> None:
        """Forgets the values of sessions, which end."""
        self._column.drop(cells)

    def load(self, keys: KeySlots) -> None:
        sessions = self._sessions
        slots, starts, ends, values = stored_windows(self, keys, "namespace")
        cells = sessions.at(slots, starts)  # A state window lies in the window of its session.
        found = np.flatnonzero((cells >= 0) & (sessions.state_start[cells] == starts))
        found = found[sessions.state_end[cells[found]] == ends[found]]
        cells = cells[found]
        self._put(cells, values.take(pa.array(found)))
        sessions.value_stored[cells] = True

    def _put(self, cells: Cells, values: pa.Array[Any]) -> None:
        self._column.put(cells, values)

    def contains(self, cells: Cells) -> Mask:
        """Returns which sessions have a value."""
        return np.array([value is not None for value in self.get(cells)], dtype=np.bool_)

    def _stored(self, cells: Cells) -> pa.Array[Any]:
        """Returns the values of sessions, as they are stored."""
        return self._to_arrow(self.value_type, self.get(cells), self._sessions.slot[cells].tolist())

    def clear(self) -> None:
        self._column = ObjectColumn(self.value_type)
        self.grow(len(self._sessions.live))

    def _changes(self) -> pa.Table | None:
        sessions = self._sessions
        changed = np.flatnonzero(sessions.value_changed & (sessions.live | sessions.value_stored))
        has = self.contains(changed) & sessions.live[changed]
        put, gone = changed[has], changed[~has & sessions.value_stored[changed]]
        cells = np.concatenate([put, gone])
        slots, kind = sessions.slot[cells], self.namespace_type
        assert kind is not None
        columns = {
            "namespace": window_column(kind, sessions.state_start[cells], sessions.state_end[cells]),
            "value": pa.concat_arrays([self._stored(put), pa.nulls(len(gone), self.value_type.arrow_type)]),
        }
        return delta_of_sessions(self, slots, columns, len(put), ("namespace",))

    def _written(self) -> None:
        sessions = self._sessions
        changed = np.flatnonzero(sessions.value_changed)
        sessions.value_stored[changed] = self.contains(changed)
        sessions.value_stored[changed] &= sessions.live[changed]
        sessions.value_changed[changed] = False


class SessionColumns(SessionValues):
    """The values of sessions in columns, read and written many at a time. They are stored in the same form."""

    def clear(self) -> None:
        self.column: CellColumn = make_column(self.value_type.arrow_type)
        """The values. Call :meth:`mark` for those that are written in place."""
        self._present: Mask = np.zeros(0, dtype=np.bool_)
        self.grow(len(self._sessions.live))

    def grow(self, size: int) -> None:
        self._present = grown(self._present, size, 0)
        self.column.grow(len(self._present))

    def keep(self, cells: Cells, numbers: Cells) -> None:
        self.column.keep(cells)
        self._present = self._present[cells]

    def contains(self, cells: Cells) -> Mask:
        return self._present[cells]

    def lookup(self, cells: Cells) -> pa.Array[Any]:
        """Returns the values of sessions that have one."""
        return self.column.take(cells)

    def update(self, cells: Cells, values: pa.Array[Any]) -> None:
        """Sets the values of sessions."""
        self._put(cells, values)

    def mark(self, cells: Cells) -> None:
        """Notes that sessions have values, which were written in place."""
        self._present[cells] = True

    def drop(self, cells: Cells) -> None:
        self.column.drop(cells)
        self._present[cells] = False

    def _put(self, cells: Cells, values: pa.Array[Any]) -> None:
        self.column.put(cells, values)
        self._present[cells] = True

    def _stored(self, cells: Cells) -> pa.Array[Any]:
        return self.column.take(cells)
