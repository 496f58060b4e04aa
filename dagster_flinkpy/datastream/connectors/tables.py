"""What a sink can tell about its table, for those who show it or read it. A sink need not extend these protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

__all__ = ["CountedTable", "ReadableTable", "RowCount", "TableForm"]


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a table."""

    rows: int
    files: int | None = None
    """The number of files that were opened for it, now or earlier. None: nobody has to open files to count."""
    digest: str | None = None
    """Identifies these files, so that the next count opens only later ones."""


@runtime_checkable
class CountedTable(Protocol):
    """A sink that can count the rows of its table, for ``dagster/row_count``."""

    def count_rows(self, known: RowCount | None = None) -> RowCount | None:
        """Counts the rows that are in the table now, also those of others.

        Args:
            known: An earlier result, which may save work.

        Returns:
            The count, or None if it would take too long.

        Raises:
            Exception: The table cannot be read. Then it is shown without a number.
        """


@dataclass(frozen=True)
class TableForm:
    """How a table is read."""

    format: Literal["parquet", "delta"]
    partition_column: str | None = None
    """The column with the key of the Dagster partition. None: a Parquet table has folders of it."""


@runtime_checkable
class ReadableTable(Protocol):
    """A sink whose table other assets read with ``FlinkTableIOManager``."""

    @property
    def form(self) -> TableForm:
        """How the table at `Sink.uri` is read."""
