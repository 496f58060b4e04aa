"""Reads schemas such as ``id bigint, tags array<string>`` without a Spark session."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_flinkpy.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["parse_ddl"]

_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|([<>(),:]))")


def parse_ddl(text: str) -> StructType:
    """Returns the schema that a text describes.

    Args:
        text: Columns and types in Spark SQL's DDL, without comments and defaults.

    Raises:
        ConfigurationError: It is something else.
    """
    tokens, at = list[str](), 0
    while text[at:].strip():
        found = _TOKEN.match(text, at)
        if found is None:
            raise _error(text, text[at:].strip())
        tokens.append(found[0].strip())
        at = found.end()
    parser = _Parser(text, tokens)
    schema = parser.fields("")
    parser.expect("")
    return schema


def _error(text: str, near: str) -> ConfigurationError:
    return ConfigurationError(
        f"the schema {text!r} cannot be read at {near!r}: write columns as 'name type', or return a StructType"
    )


class _Parser:
    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text, self._tokens, self._at = text, tokens, 0

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1] if self._at <= len(self._tokens) else ""

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def expect(self, token: str) -> None:
        if (found := self._next()) != token:
            raise _error(self._text, found or "its end")

    def fields(self, end: str) -> StructType:
        from pyspark.sql.types import StructField, StructType

        found: list[StructField] = []
        while self._peek() != end or found:
            name = self._next()
            if not re.fullmatch(r"`.*`|\w+", name, re.DOTALL):
                raise _error(self._text, name or "its end")
            if self._peek() == ":":
                self._next()
            kind, nullable = self._type(), True
            if self._peek().lower() == "not":
                self._next()
                if self._next().lower() != "null":
                    raise _error(self._text, "not")
                nullable = False
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            found.append(StructField(name, kind, nullable))
            if self._peek() != ",":
                break
            self._next()
        return StructType(found)

    def _type(self) -> DataType:
        from pyspark.sql import types

        name = self._next().lower()
        simple: dict[str, DataType] = {
            "string": types.StringType(),
            "boolean": types.BooleanType(),
            "tinyint": types.ByteType(),
            "byte": types.ByteType(),
            "smallint": types.ShortType(),
            "short": types.ShortType(),
            "int": types.IntegerType(),
            "integer": types.IntegerType(),
            "bigint": types.LongType(),
            "long": types.LongType(),
            "float": types.FloatType(),
            "real": types.FloatType(),
            "double": types.DoubleType(),
            "binary": types.BinaryType(),
            "date": types.DateType(),
            "timestamp": types.TimestampType(),
            "timestamp_ntz": types.TimestampNTZType(),
        }
        if name in simple:
            return simple[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise _error(self._text, name or "its end")
        self.expect("<")
        found: DataType
        if name == "array":
            found = types.ArrayType(self._type())
        elif name == "map":
            key = self._type()
            self.expect(",")
            found = types.MapType(key, self._type())
        else:
            found = self.fields(">")
        self.expect(">")
        return found

    def _decimal(self) -> DataType:
        from pyspark.sql.types import DecimalType

        if self._peek() != "(":
            return DecimalType(10, 0)
        self._next()
        numbers = [self._next()]
        while self._peek() == ",":
            self._next()
            numbers.append(self._next())
        self.expect(")")
        if len(numbers) > 2 or not all(each.isdecimal() for each in numbers):
            raise _error(self._text, "decimal")
        return DecimalType(int(numbers[0]), int(numbers[1]) if len(numbers) == 2 else 0)
