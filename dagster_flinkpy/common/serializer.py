"""Serializers of single values (``pyflink.common.serializer``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from io import BytesIO
from typing import Generic, TypeVar

__all__ = ["TypeSerializer"]

T = TypeVar("T")


class TypeSerializer(ABC, Generic[T]):
    """Writes and reads values of one type, for custom windows.

    Equal values must be written as equal bytes.
    """

    @abstractmethod
    def serialize(self, element: T, stream: BytesIO) -> None:
        """Writes a value."""

    @abstractmethod
    def deserialize(self, stream: BytesIO) -> T:
        """Reads a value."""
