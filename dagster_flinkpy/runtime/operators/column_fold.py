"""What an aggregation in columns does with the cells of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.state.cell_table import CellTable

__all__ = ["Cells", "ColumnFold"]

Cells = npt.NDArray[np.int64]


class ColumnFold(ABC):
    """A vectorised aggregation; its accumulators are the values of a table.

    Args:
        state_type: Type of the accumulators.
        numbers: The fields of a record that must have a number; None is the record itself. Default: none.
    """

    carries = False
    """Whether an accumulator has more than numbers: what its first record has in other fields."""

    def __init__(self, state_type: TypeInformation, numbers: Sequence[int | None] = ()) -> None:
        self.state_type, self.numbers = state_type, numbers

    @abstractmethod
    def add(
        self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells, new: Cells | None = None
    ) -> None:
        """Merges accumulators into cells of state.

        Args:
            table: The table of the accumulators.
            cells: The cell of each row; may repeat.
            accumulators: Those of single records (:meth:`lift`), or of records that were combined earlier.
            rows: The indices of the accumulators to merge, in order; may repeat.
            new: The first position of each cell that has no accumulator, if the caller knows.

        Raises:
            IntegerOverflowError: A sum is out of range.
        """

    @abstractmethod
    def running(self, table: CellTable, cells: Cells, accumulators: pa.Array[Any], rows: Cells) -> pa.Array[Any]:
        """Merges like :meth:`add`, and returns the result of each row's cell after that row."""

    @property
    @abstractmethod
    def combines(self) -> bool:
        """Whether accumulators of parts of a cell's records can be merged to that of all of them."""

    @abstractmethod
    def combine(self, accumulators: pa.Array[Any], groups: Cells, first: Cells) -> pa.Array[Any] | None:
        """Merges the accumulators of each group, in order.

        Args:
            accumulators: A column of accumulators.
            groups: The group of each, as numbers from 0.
            first: The first row of each group.

        Returns:
            The accumulator of each group, or None if a sum might be out of range for its type.
        """

    @abstractmethod
    def lift(self, records: pa.Array[Any]) -> pa.Array[Any]:
        """Returns the accumulator of each record alone.

        Raises:
            TypeMismatchError: A record has no number in the field.
        """

    def results(self, table: CellTable, cells: Cells) -> pa.Array[Any]:
        """Returns the results of cells that have an accumulator."""
        return self.results_of(table.column.take(cells))

    @abstractmethod
    def results_of(self, accumulators: pa.Array[Any]) -> pa.Array[Any]:
        """Returns the results of accumulators."""
