"""How values become bytes (``pyflink.common.serializer``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Generic, TypeVar

__all__ = ["TypeSerializer"]

T = TypeVar("T")


class TypeSerializer(ABC, Generic[T]):
    """Writes values of one type to a stream of bytes, and reads them; here for windows of one's own.

    Equal values must become equal bytes.
    """

    @abstractmethod
    def serialize(self, element: T, stream: BytesIO) -> None:
        """Writes a value."""

    @abstractmethod
    def deserialize(self, stream: BytesIO) -> T:
        """Reads a value."""
