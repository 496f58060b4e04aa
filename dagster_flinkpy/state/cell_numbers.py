"""The cells of state with a namespace: small numbers that stand for pairs of key seat and namespace."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.columns import Cells, grown
from dagster_flinkpy.state.index import IntIndex
from dagster_flinkpy.state.keys import KeyCodec
from dagster_flinkpy.state.layout import distinct_rows

__all__ = ["NamespacedCells", "PairCells"]

_SEAT_BITS = 32


class PairCells:
    """Numbers the pairs one at a time, for state that is used record by record.

    Args:
        namespace_type: The type of the namespaces.
    """

    def __init__(self, namespace_type: TypeInformation) -> None:
        self._type, self._codec = namespace_type, KeyCodec(namespace_type)
        self._cells: dict[tuple[int, Hashable], int] = {}
        self._pairs: list[tuple[int, Hashable]] = []  # By cell.
        self._namespace: Hashable = None

    def __len__(self) -> int:
        return len(self._pairs)

    def set_namespace(self, namespace: Any) -> None:
        """Sets the current namespace."""
        encode = self._codec.encode
        self._namespace = namespace if encode is None else encode(namespace)

    def find(self, seat: int) -> int | None:
        """Returns the cell of a seat in the current namespace, or None if there is none yet."""
        return self._cells.get((seat, self._namespace))

    def add(self, seat: int) -> int:
        """Returns the cell of a seat in the current namespace, a new one if there is none yet."""
        return self._add((seat, self._namespace))

    def _add(self, pair: tuple[int, Hashable]) -> int:
        cell = self._cells.setdefault(pair, len(self._pairs))
        if cell == len(self._pairs):
            self._pairs.append(pair)
        return cell

    def clear(self) -> None:
        """Forgets all cells."""
        self._cells.clear()
        self._pairs.clear()

    def keep(self, cells: Cells) -> None:
        """Forgets all cells but some, which are numbered anew in this order."""
        self._pairs = list(map(self._pairs.__getitem__, cells.tolist()))
        self._cells = {pair: cell for cell, pair in enumerate(self._pairs)}

    def seats(self, cells: Cells) -> Cells:
        """Returns the seat of each cell."""
        return np.array([self._pairs[cell][0] for cell in cells.tolist()], dtype=np.int64)

    def column(self, cells: Cells) -> pa.Array[Any]:
        """Returns the namespace of each cell."""
        return self._type.to_arrow(self._codec.decode_all([self._pairs[cell][1] for cell in cells.tolist()]))

    def stored_at(self, seats: Cells, column: pa.Array[Any]) -> Cells:
        """Returns the cells of stored rows, given the seats and the column of their namespaces."""
        namespaces = self._codec.encode_all(self._type.from_arrow(column))
        return np.array(list(map(self._add, zip(seats.tolist(), namespaces, strict=True))), dtype=np.int64)


class NamespacedCells:
    """Numbers many pairs at a time.

    Args:
        namespace_type: The type of the namespaces.
    """

    def __init__(self, namespace_type: TypeInformation) -> None:
        self._type = namespace_type
        self._codec = KeyCodec(namespace_type)
        self.clear()

    def clear(self) -> None:
        """Forgets everything."""
        self._ids: dict[Hashable, int] = {}
        self._names: list[Hashable] = []  # By number.
        self._free: list[int] = []  # Numbers of namespaces that were released.
        self._index = IntIndex()  # Of the namespace above so many bits of the seat: the fewer, the denser it is.
        self._bits = 0
        self._codes: Cells = np.zeros(0, dtype=np.int64)  # By cell.

    def __len__(self) -> int:
        return len(self._index)

    def namespace_ids(self, namespaces: Sequence[Any]) -> list[int]:
        """Returns a number for each namespace."""
        return [self._id(encoded) for encoded in self._codec.encode_all(namespaces)]

    def _id(self, encoded: Hashable) -> int:
        number = self._ids.get(encoded)
        if number is None:
            if not self._free:
                self._free.append(len(self._names))
                self._names.append(encoded)
            number = self._ids[encoded] = self._free.pop()
            self._names[number] = encoded
        return number

    def of_namespace(self, namespace_id: int) -> Cells | None:
        """Returns the cells of a namespace, or None if finding them would take long."""
        return self._index.within(namespace_id << self._bits, namespace_id + 1 << self._bits)

    def release(self, namespace_id: int) -> None:
        """Releases a namespace: the next new one gets its number and its cells."""
        name = self._names[namespace_id]
        if self._ids.get(name) == namespace_id:
            del self._ids[name]
            self._free.append(namespace_id)

    def keep(self, cells: Cells) -> None:
        """Forgets all cells but some, which are numbered anew in this order."""
        # seats, ids, codes: int64, one a cell. distinct: numbers of namespaces, ascending; codes are positions in it.
        seats, ids, names = self.seats(cells), self.ids(cells), self._names
        self.clear()
        distinct, codes = np.unique(ids, return_inverse=True)
        self.of(seats, np.array([self._id(names[number]) for number in distinct.tolist()], dtype=np.int64)[codes])

    def of(self, seats: Cells, namespace_ids: Cells) -> tuple[Cells, Cells]:
        """Returns the cells of seats and namespaces, and the first position of each new cell, in order."""
        # self._codes: int64, by cell: the namespace above the seat. first: positions, ascending.
        if not len(seats):
            return seats, seats
        bits = int(seats.max()).bit_length()
        if bits > self._bits:
            known, self._bits, self._index = np.arange(len(self)), bits, IntIndex()
            self._index.add_new(self.ids(known) << bits | self.seats(known))
        cells, first = self._index.add(namespace_ids << self._bits | seats)
        if len(first):
            self._codes = grown(self._codes, len(self), 0)
            self._codes[len(self) - len(first) : len(self)] = namespace_ids[first] << _SEAT_BITS | seats[first]
        return cells, first

    def seats(self, cells: Cells) -> Cells:
        """Returns the seat of each cell."""
        return self._codes[cells] & ((1 << _SEAT_BITS) - 1)

    def ids(self, cells: Cells) -> Cells:
        """Returns the number of the namespace of each cell."""
        return self._codes[cells] >> _SEAT_BITS

    def namespaces(self) -> Sequence[Any]:
        """Returns the namespaces, by their numbers."""
        return self._codec.decode_all(self._names)

    def find(self, seats: Cells, namespaces: Sequence[Any], codes: Cells) -> Cells:
        """Returns the cells of seats and namespaces.

        Args:
            seats: The seat of each cell.
            namespaces: Some namespaces.
            codes: The index of each cell's namespace in ``namespaces``.
        """
        return self.of(seats, np.array(self.namespace_ids(namespaces), dtype=np.int64)[codes])[0]

    def column(self, cells: Cells) -> pa.Array[Any]:
        """Returns the namespace of each cell."""
        return self._type.to_arrow(self.namespaces()).take(pa.array(self.ids(cells)))

    def stored_at(self, seats: Cells, column: pa.Array[Any]) -> Cells:
        """Returns the cells of stored rows, given the seats and the column of their namespaces."""
        first, codes = distinct_rows(column)
        ids = self.namespace_ids(self._type.from_arrow(column.take(pa.array(first))))
        return self.of(seats, np.array(ids, dtype=np.int64)[codes])[0]
