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
    """Returns the schema that a text describes: columns and types in Spark SQL's DDL, without comments and defaults."""
    parser = _Parser(text)
    schema = parser.fields("")
    parser.expect("")
    return schema


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._tokens, at = text, list[str](), 0
        """The tokens that are left, the next one last, before the end, which is empty."""
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(text[at:].strip())
            self._tokens.append(found[0].strip())
            at = found.end()
        self._tokens = ["", *reversed(self._tokens)]

    def _error(self, near: str) -> ConfigurationError:
        return ConfigurationError(
            f"the schema {self._text!r} cannot be read at {near or 'its end'!r}: write columns as 'name type', or "
            "return a StructType"
        )

    def _next(self) -> str:
        return self._tokens.pop() if len(self._tokens) > 1 else ""

    def _takes(self, token: str) -> bool:
        """Takes the next token if it is this one. Returns whether it was."""
        return self._tokens[-1].lower() == token and self._next().lower() == token

    def expect(self, token: str) -> None:
        if (found := self._next()).lower() != token:
            raise self._error(found)

    def fields(self, end: str) -> StructType:
        from pyspark.sql.types import StructField, StructType

        found: list[StructField] = []
        while found or self._tokens[-1] != end:
            name = self._next()
            if not re.fullmatch(r"`.*`|\w+", name, re.DOTALL):
                raise self._error(name)
            self._takes(":")
            kind = self._type()
            if not_null := self._takes("not"):
                self.expect("null")
            name = name[1:-1].replace("``", "`") if name.startswith("`") else name
            found.append(StructField(name, kind, not not_null))
            if not self._takes(","):
                break
        return StructType(found)

    def _type(self) -> DataType:
        from pyspark.sql import types

        simple: tuple[DataType, ...] = (
            *(types.StringType(), types.BooleanType(), types.BinaryType(), types.FloatType(), types.DoubleType()),
            *(types.ByteType(), types.ShortType(), types.IntegerType(), types.LongType()),
            *(types.DateType(), types.TimestampType(), types.TimestampNTZType()),
        )
        known = {name: kind for kind in simple for name in (kind.typeName(), kind.simpleString())}
        known["real"] = types.FloatType()
        name = self._next().lower()
        if name in known:
            return known[name]
        if name in ("decimal", "dec", "numeric"):
            return self._decimal()
        if name not in ("array", "map", "struct"):
            raise self._error(name)
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

        if not self._takes("("):
            return DecimalType(10, 0)
        numbers = [self._next()]
        while self._takes(","):
            numbers.append(self._next())
        self.expect(")")
        if len(numbers) > 2 or not all(each.isdecimal() for each in numbers):
            raise self._error("decimal")
        return DecimalType(*map(int, numbers))
