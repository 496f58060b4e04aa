"""The records of a running program (``pyflink.datastream.data_stream.CloseableIterator``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["CloseableIterator"]


class CloseableIterator(Iterator[Any]):
    """Iterates over the records of a program while it runs. ``with`` or `close` ends the program early.

    Args:
        records: A generator.
    """

    def __init__(self, records: Iterator[Any]) -> None:
        self._records = records

    def __iter__(self) -> CloseableIterator:
        return self

    def __next__(self) -> Any:
        return next(self._records)

    def next(self) -> Any:
        """Returns the next record."""
        return next(self)

    def __enter__(self) -> CloseableIterator:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the program, if it is still running."""
        close = getattr(self._records, "close", None)
        if close is not None:
            close()
