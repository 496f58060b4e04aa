"""Conversions of records to and from bytes (``pyflink.common.serialization``)."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from typing import Any

from dagster_flinkpy.common.arguments import check_name
from dagster_flinkpy.common.typeinfo import TypeInformation, Types
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
    """Checks and returns the charset.

    Raises:
        ConfigurationError: Python knows no charset with this name.
    """
    check_name("a charset", charset)
    try:
        codecs.lookup(charset)
    except LookupError:
        raise ConfigurationError(f"unknown charset {charset!r}; for example 'UTF-8', 'ISO-8859-1'") from None
    return charset


class SerializationSchema(ABC):
    """Converts a record to bytes."""

    @abstractmethod
    def serialize(self, element: Any) -> bytes:
        """Returns the record as bytes."""

    def check_type(self, type_info: TypeInformation) -> None:  # noqa: B027 - a schema of the user may take anything
        """Checks that records of a type can be written. Values without a type are checked when they are written.

        Raises:
            ConfigurationError: They cannot; the message says what to do.
        """


class DeserializationSchema(ABC):
    """Converts bytes to a record."""

    @abstractmethod
    def deserialize(self, message: bytes) -> Any:
        """Returns the record of these bytes."""

    def get_produced_type(self) -> TypeInformation:
        """Returns the type of the records (Flink: ``ResultTypeQueryable``). Default: they are pickled."""
        return Types.PICKLED_BYTE_ARRAY()


class SimpleStringSchema(SerializationSchema, DeserializationSchema):
    """Converts strings, in a charset.

    Args:
        charset: The encoding of the strings.
    """

    def __init__(self, charset: str = "UTF-8") -> None:
        self.charset = check_charset(charset)

    def serialize(self, element: Any) -> bytes:
        encoded: bytes = element.encode(self.charset)
        return encoded

    def check_type(self, type_info: TypeInformation) -> None:
        if type_info not in (Types.STRING(), Types.PICKLED_BYTE_ARRAY()):
            raise ConfigurationError(f"SimpleStringSchema writes text, not {type_info}: map() it to str")

    def deserialize(self, message: bytes) -> str:
        return message.decode(self.charset)

    def get_produced_type(self) -> TypeInformation:
        return Types.STRING()


class ByteArraySchema(SerializationSchema, DeserializationSchema):
    """Keeps bytes unchanged."""

    def serialize(self, element: Any) -> bytes:
        return bytes(element)

    def check_type(self, type_info: TypeInformation) -> None:
        if type_info not in (Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.PICKLED_BYTE_ARRAY()):
            raise ConfigurationError(f"ByteArraySchema writes bytes, not {type_info}")

    def deserialize(self, message: bytes) -> bytes:
        return message

    def get_produced_type(self) -> TypeInformation:
        return Types.PRIMITIVE_ARRAY(Types.BYTE())


class Encoder:
    """Writes records to a file, one after another.

    Args:
        charset_name: The encoding of the text.
    """

    def __init__(self, charset_name: str) -> None:
        self.charset_name = check_charset(charset_name)

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """Writes each record as text, followed by a newline."""
        return Encoder(charset_name)

    def encode(self, type_info: TypeInformation, element: Any) -> bytes:
        """Returns a record as bytes."""
        from dagster_flinkpy.common.text import to_text  # numpy's digits

        return f"{to_text(type_info, element)}\n".encode(self.charset_name)
