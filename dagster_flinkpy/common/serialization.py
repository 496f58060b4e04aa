"""How records become bytes and back (``pyflink.common.serialization``)."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from typing import Any

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.errors import ConfigurationError

__all__ = [
    "ByteArraySchema",
    "DeserializationSchema",
    "Encoder",
    "SerializationSchema",
    "SimpleStringSchema",
    "check_charset",
]


def check_charset(charset: str) -> str:
    """The charset.

    Raises:
        ConfigurationError: Python knows none of this name.
    """
    try:
        codecs.lookup(charset)
    except LookupError:
        raise ConfigurationError(f"unknown charset {charset!r}; for example 'UTF-8', 'ISO-8859-1'") from None
    return charset


class SerializationSchema(ABC):
    """Makes bytes of a record."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes:
        """The record as bytes."""


class DeserializationSchema(ABC):
    """Makes a record of bytes."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """The record of these bytes."""


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Strings in a charset.

    Args:
        charset: Their encoding.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = check_charset(charset)

    def serialize(self, element: Any) -> bytes:
        encoded: bytes = element.encode(self.charset)
        return encoded

    def deserialize(self, message: bytes) -> str:
        return message.decode(self.charset)


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Bytes as they are."""

    def serialize(self, element: Any) -> bytes:
        return bytes(element)

    def deserialize(self, message: bytes) -> bytes:
        return message


class Encoder:
    """Writes records one behind another into a file.

    Args:
        charset_name: Encoding of the text.
    """

    def __init__(self, charset_name: str) -> None:
        self.charset_name = check_charset(charset_name)

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """Each record as text, and a newline."""
        return Encoder(charset_name)

    def encode(self, type_info: TypeInformation, element: Any) -> bytes:
        """A record as bytes."""
        from dagster_flinkpy.common.text import to_text  # numpy's digits

        return f"{to_text(type_info, element)}\n".encode(self.charset_name)
