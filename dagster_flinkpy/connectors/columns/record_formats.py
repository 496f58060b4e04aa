"""Messages of queues as columns of records, and the other way round; values of columns as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from dagster_flinkpy.common.basic_type_info import MAX_DECIMAL_PRECISION
from dagster_flinkpy.common.decimals import decimal_of
from dagster_flinkpy.common.serialization import (
    ByteArraySchema,
    DeserializationSchema,
    SerializationSchema,
    SimpleStringSchema,
)
from dagster_flinkpy.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    Types,
)
from dagster_flinkpy.connectors.columns.column_casts import as_text, check_finite, from_text
from dagster_flinkpy.connectors.columns.column_types import columns_of
from dagster_flinkpy.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from dagster_flinkpy.errors import SourceReadError, TypeMismatchError

__all__ = [
    "Decoder",
    "Encoder",
    "UndecodableMessage",
    "decoded",
    "record_decoder",
    "record_encoder",
    "to_json_lines",
    "to_json_text",
    "wrong_member",
]

Messages = Sequence["bytes | None"]
Decoder = Callable[[Messages], pa.Array]
"""Makes a column of messages. What is null or skipped is null."""
Encoder = Callable[[pa.Array], pa.Array]
"""Makes a column of binary messages of a column of records. A null stays null."""

_TEXT = (Types.STRING(), Types.CHAR())
_IN_COLUMNS = (
    *_TEXT,
    Types.BOOLEAN(),
    Types.BYTE(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.FLOAT(),
    Types.DOUBLE(),
)
"""What PyArrow's JSON reader understands as `_value` does."""


_UNREADABLE = (ValueError, InvalidOperation, OverflowError, RecursionError)
"""What a message raises that is no JSON, has values of other types, or a number or a nesting beyond all limits."""


class UndecodableMessage(Exception):
    """A message is not what the schema says."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


def decoded(decoder: Decoder, messages: Messages, name: Callable[[int], str]) -> pa.Array:
    """Decodes messages of a source. ``name`` returns what an error calls one of them."""
    try:
        return decoder(messages)
    except UndecodableMessage as error:
        raise SourceReadError(
            f"{name(error.index)} cannot be read by its schema: {error}. To go on, use a schema that accepts it; "
            "JsonRowDeserializationSchema has ignore_parse_errors()."
        ) from error


def record_decoder(schema: DeserializationSchema) -> Decoder:
    """Returns what decodes batches of messages by a schema. It raises `UndecodableMessage`."""
    if isinstance(schema, ByteArraySchema):
        return lambda messages: pa.array(messages, pa.binary())
    if isinstance(schema, SimpleStringSchema):
        return lambda messages: _strings(schema, messages)
    if isinstance(schema, JsonRowDeserializationSchema):
        return _JsonDecoder(schema)
    kind = schema.get_produced_type()
    return lambda messages: kind.to_arrow(_each(messages, schema.deserialize))


def _strings(schema: SimpleStringSchema, messages: Messages) -> pa.Array:
    if _is_utf8(schema):
        try:
            return pa.array(messages, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            pass  # said below, with the message
    return pa.array(_each(messages, schema.deserialize), pa.string())


def _each(messages: Messages, function: Callable[[bytes], Any]) -> list[Any]:
    values = []
    for index, message in enumerate(messages):
        try:
            values.append(None if message is None else function(message))
        except (ValueError, UnicodeError) as error:
            raise UndecodableMessage(index, str(error)) from error
    return values


class _JsonDecoder:
    """Decodes JSON objects: with PyArrow, or one by one if there is something that it does not understand."""

    def __init__(self, schema: JsonRowDeserializationSchema) -> None:
        self._schema, self._type = schema, schema.type_info
        self._columnar = not schema.fails_on_missing_field and _in_columns(schema.type_info)
        self._read_as = as_text(schema.type_info.arrow_type)
        read = pa.schema(list(self._read_as))
        self._parse = pa_json.ParseOptions(explicit_schema=read, unexpected_field_behavior="ignore")

    def __call__(self, messages: Messages) -> pa.Array:
        if self._columnar and messages and None not in messages:
            # No string of JSON has a line break, so one between values can become a space.
            texts = [message.replace(b"\n", b" ") for message in messages if message is not None]
            lines = b"\n".join(texts)
            if not _are_objects(lines, len(messages)):
                lines = b"\n".join([text.strip(b" \t\r") for text in texts])
            try:
                lines.decode()  # PyArrow does not look at members that it ignores
                if _are_objects(lines, len(messages)):
                    return self._read(lines, len(messages))
            except ValueError:  # such as ArrowInvalid
                pass  # said below, with the message
        return self._one_by_one(messages)

    def _read(self, lines: bytes, count: int) -> pa.Array:
        options = pa_json.ReadOptions(use_threads=False, block_size=min(len(lines) + 1, 2**31 - 1))
        table = pa_json.read_json(pa.BufferReader(lines), read_options=options, parse_options=self._parse)
        if table.num_rows != count:
            raise pa.ArrowInvalid("not one object for each message")
        table.validate(full=True)
        columns = [table.column(field.name).combine_chunks() for field in self._read_as]
        check_finite(columns)
        return self._converted(pa.StructArray.from_arrays(columns, fields=list(self._read_as)))

    def _one_by_one(self, messages: Messages) -> pa.Array:
        values = [self._value(index, message) for index, message in enumerate(messages)]
        try:
            return self._converted(pa.array(values, self._read_as))
        except ValueError:
            values = [self._checked(index, value) for index, value in enumerate(values)]
            return self._converted(pa.array(values, self._read_as))

    def _value(self, index: int, message: bytes | None) -> Any:
        try:
            value = None if message is None else json.loads(message, parse_float=Decimal)
            return _value("record", self._type, value, self._schema.fails_on_missing_field)
        except _UNREADABLE as error:
            return self._refused(index, error)

    def _checked(self, index: int, value: Any) -> Any:
        """Returns a value whose texts can be converted."""
        try:
            self._converted(pa.array([value], self._read_as))
        except ValueError as error:
            return self._refused(index, error)
        return value

    def _refused(self, index: int, error: Exception) -> None:
        if not self._schema.ignores_parse_errors:
            raise UndecodableMessage(index, str(error)) from error

    def _converted(self, column: pa.Array) -> pa.Array:
        return from_text("record", column, self._type.arrow_type)


def _are_objects(lines: bytes, count: int) -> bool:
    """Returns whether each line begins and ends as an object does.

    Then, if all of them are JSON, each is some whole objects: as many objects as lines are one for each.
    """
    if lines[:1] != b"{" or lines[-1:] != b"}":
        return False
    # characters: uint8, one a byte. breaks: int64, the positions of line ends in them.
    characters = np.frombuffer(lines, np.uint8)
    breaks = np.flatnonzero(characters == ord("\n"))
    ends, begins = characters[breaks - 1] == ord("}"), characters[breaks + 1] == ord("{")
    return len(breaks) == count - 1 and bool(ends.all() and begins.all())


def _in_columns(type_info: TypeInformation) -> bool:
    if isinstance(type_info, ListTypeInfo):
        return _in_columns(type_info.elem_type)
    if isinstance(type_info, RowTypeInfo):
        return bool(type_info.field_names) and all(map(_in_columns, type_info.field_types))
    return type_info in _IN_COLUMNS


_TEXTS = (Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(), Types.INSTANT())
"""What is text here, and converted for all records at once."""
_RANGES = {Types.BYTE(): 7, Types.SHORT(): 15, Types.INT(): 31, Types.LONG(): 63}


def wrong_member(row_type: RowTypeInfo, record: str) -> ValueError | None:
    """Returns what is wrong with the first member of a JSON object that is not of its type, if one is not."""
    try:
        _value("record", row_type, json.loads(record, parse_float=Decimal), fails=False)
    except json.JSONDecodeError:
        raise
    except _UNREADABLE as error:
        return ValueError(str(error))
    return None


def _value(name: str, type_info: TypeInformation, value: Any, fails: bool) -> Any:
    """Returns a value of JSON as `pyarrow.array` takes it."""
    if value is None:
        return None
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)) and isinstance(value, dict):
        columns = columns_of(type_info)
        if fails and (missing := [field for field in columns if field not in value]):
            raise ValueError(f"{name} has no field {missing[0]!r}")
        return {field: _value(f"{name}.{field}", kind, value.get(field), fails) for field, kind in columns.items()}
    if isinstance(type_info, ListTypeInfo) and isinstance(value, list):
        return [_value(f"{name}[]", type_info.elem_type, each, fails) for each in value]
    if isinstance(type_info, MapTypeInfo) and isinstance(value, dict):
        key, item = type_info.key_type, type_info.value_type
        return [
            (_value(f"{name}.key", key, _key(key, k), fails), _value(f"{name}.value", item, v, fails))
            for k, v in value.items()
        ]
    return _scalar(name, type_info, value)


def _key(type_info: TypeInformation, key: str) -> Any:
    textual = type_info in _TEXT or type_info in _TEXTS
    return key if textual else json.loads(key, parse_float=Decimal)


def _scalar(name: str, type_info: TypeInformation, value: Any) -> Any:
    number = isinstance(value, (int, Decimal)) and not isinstance(value, bool)
    if type_info in _TEXT and isinstance(value, str):
        return value
    if type_info == Types.BOOLEAN() and isinstance(value, bool):
        return value
    if type_info in _RANGES and number and isinstance(value, int):
        if not -(2 ** _RANGES[type_info]) <= value < 2 ** _RANGES[type_info]:
            raise ValueError(f"{name} is {value}, which is no {type_info}")
        return value
    if type_info in (Types.FLOAT(), Types.DOUBLE()) and (number or isinstance(value, float)):  # NaN, Infinity
        if number and _is_beyond_floats(value):
            raise ValueError(f"{name} is {value}, which is no {type_info}")
        return float(value)
    if type_info in _TEXTS and isinstance(value, str):
        return value
    is_decimal = type_info == Types.BIG_DEC() or pa.types.is_decimal(type_info.arrow_type)
    if is_decimal and (number or isinstance(value, str)):
        return _decimal(name, type_info, value)
    raise ValueError(f"{name} is {value!r:.100}, but must be {type_info}")


def _is_beyond_floats(number: int | Decimal) -> bool:
    try:
        return math.isinf(float(number))
    except OverflowError:  # a whole number
        return True


def _decimal(name: str, type_info: TypeInformation, value: Any) -> Any:
    kind = type_info.arrow_type
    try:
        number = decimal_of(value) if isinstance(value, str) else Decimal(value)
        if type_info == Types.BIG_DEC():
            return str(number)
        if number.adjusted() < -MAX_DECIMAL_PRECISION:  # Arrow might end the process
            raise InvalidOperation
        return pa.scalar(number, kind).as_py()
    except InvalidOperation:
        raise ValueError(f"{name} is {value!r:.100}, but must be {type_info}") from None
    except pa.ArrowInvalid as error:
        raise ValueError(f"{name} is {value}, which does not fit {type_info}: {error}") from error


def record_encoder(schema: SerializationSchema, type_info: TypeInformation) -> Encoder:
    """Returns what encodes columns of records by a schema, which must write records of the type."""
    text, binary = type_info == Types.STRING(), type_info == Types.PRIMITIVE_ARRAY(Types.BYTE())
    if (isinstance(schema, ByteArraySchema) and binary) or (text and _is_utf8(schema)):
        return lambda column: column.cast(pa.binary())
    if isinstance(schema, JsonRowSerializationSchema):
        return lambda column: _json_objects(columns_of(type_info), column)
    return lambda column: pa.array(
        [None if each is None else schema.serialize(each) for each in type_info.from_arrow(column)], pa.binary()
    )


def _json_objects(types: dict[str, TypeInformation], column: pa.Array) -> pa.Array:
    if types:
        table = pa.Table.from_arrays(column.flatten(), names=list(types))
        objects = to_json_lines(types, table).encode().split(b"\n")[:-1]  # text in JSON has no line break
    else:
        objects = [b"{}"] * len(column)
    encoded = pa.array(objects, pa.binary())
    return encoded if not column.null_count else pc.if_else(column.is_valid(), encoded, pa.scalar(None, pa.binary()))


def _is_utf8(schema: SerializationSchema | DeserializationSchema) -> bool:
    return isinstance(schema, SimpleStringSchema) and schema.charset.lower().replace("-", "") == "utf8"


def to_json_text(name: str, type_info: TypeInformation, value: Any) -> str:
    """Returns a value as JSON. Decimals and times become text, and so do the keys of maps."""
    try:
        return json.dumps(_plain(type_info, value), ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise TypeMismatchError(f"column {name!r} has NaN or infinity, which JSON cannot contain: {value!r}") from error


def to_json_lines(types: dict[str, TypeInformation], table: pa.Table) -> str:
    """Returns a line with a JSON object for each row, as `to_json_text` writes it."""
    names = (encode_basestring(name).replace("%", "%%") for name in types)
    line = "{" + ", ".join(f"{name}: %s" for name in names) + "}\n"
    texts = [_texts(name, kind, table.column(name)) for name, kind in types.items()]
    return "".join([line % row for row in zip(*texts, strict=True)])


def _texts(name: str, type_info: TypeInformation, column: pa.ChunkedArray) -> list[str]:
    """Returns the values of a column as JSON."""
    kind, values = column.type, None
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        values = column.cast(pa.string()).to_pylist()
    elif pa.types.is_date(kind):
        values = [None if value is None else f'"{value}"' for value in column.cast(pa.string()).to_pylist()]
    elif pa.types.is_string(kind):
        values = [None if value is None else encode_basestring(value) for value in column.to_pylist()]
    elif pa.types.is_float64(kind) and pc.all(pc.is_finite(column)).as_py() is not False:
        values = [None if value is None else repr(value) for value in column.to_pylist()]
    if values is None:
        return [to_json_text(name, type_info, value) for value in column.to_pylist()]
    return values if not column.null_count else ["null" if value is None else value for value in values]


def _plain(type_info: TypeInformation, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(type_info, MapTypeInfo):
        key, item = type_info.key_type, type_info.value_type
        return {_key_text(_plain(key, k)): _plain(item, v) for k, v in value}
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return {field: _plain(kind, value[field]) for field, kind in columns_of(type_info).items()}
    if isinstance(type_info, ListTypeInfo):
        return [_plain(type_info.elem_type, each) for each in value]
    if type_info == Types.FLOAT():
        return float(str(np.float32(value)))  # the shortest digits, as in Java
    if isinstance(value, (date, datetime, time)):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _key_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
