"""Executes :class:`~dagster_flinkpy.connectors.spark.python_data_source.PythonDataSource`."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from dagster_flinkpy.common.time import Instant
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.columns.column_casts import columns_of_rows, row_type_of
from dagster_flinkpy.connectors.sources.split_enumerators import EndingEnumerator
from dagster_flinkpy.connectors.spark.python_data_source import PythonDataSource
from dagster_flinkpy.datastream.connectors.base import Json, SourceSplit, position_field
from dagster_flinkpy.errors import ConfigurationError, InputChangedError, SourceReadError
from dagster_flinkpy.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

__all__ = ["PartitionEnumerator", "parse_ddl", "read_partition", "type_of_schema"]

_BATCH_RECORDS = 8192
T = TypeVar("T")


def type_of_schema(source: PythonDataSource) -> RowTypeInfo:
    """Returns the type of a source's records by its schema."""
    return row_type_of(arrow_schema(_schema(source)))


def _schema(source: PythonDataSource) -> StructType:
    from pyspark.sql.types import StructType

    schema = _call(source, "schema()", source.data_source.schema)
    return schema if isinstance(schema, StructType) else parse_ddl(schema)


def _call(source: PythonDataSource, what: str, function: Callable[..., T], *args: Any) -> T:
    """Calls the user's code."""
    from pyspark.errors import PySparkNotImplementedError

    try:
        return function(*args)
    except PySparkNotImplementedError as error:
        raise ConfigurationError(f"data source {_name(source)} has no {what}") from error
    except Exception as error:
        raise SourceReadError(
            f"{what} of data source {_name(source)} raised {type(error).__name__}: {error}"
        ) from error


def _name(source: PythonDataSource) -> str:
    return type(source.data_source).__name__


def _stream_reader(source: PythonDataSource) -> tuple[Any, bool]:
    """Returns the stream reader, and whether it is a simple one."""
    from pyspark.errors import PySparkNotImplementedError

    schema = _schema(source)
    try:
        return source.data_source.streamReader(schema), False
    except PySparkNotImplementedError:
        reader = _call(source, "streamReader() or simpleStreamReader()", source.data_source.simpleStreamReader, schema)
        return reader, True


class PartitionEnumerator(EndingEnumerator):
    """Plans partitions. Those of an epoch travel with the splits, but are not stored: they are pickled objects.

    State: the offset up to which partitions were planned, and whether the input has ended.
    """

    def __init__(self, source: PythonDataSource, restored: Json | None) -> None:
        super().__init__(source.limits)
        self._source = source
        self._offset: Json | None = None
        self._planned = 0
        self._offsets: dict[int, Json] = {}
        """Offsets to commit, by checkpoint."""
        self._open: list[SourceSplit] = []
        self._before: Json | None = None
        """The offset before the open splits."""
        if restored is not None:
            if restored.get("offset") is not None:
                self._offset = position_field(restored, "offset", dict)
            self._ended = position_field(restored, "ended", bool)
            self._planned = position_field(restored, "planned", int)
        self._reader: Any = None
        self._is_simple = False

    def plan_epoch(self, parallelism: int) -> list[list[SourceSplit]]:
        if not self._ended and not self._open:
            found = self._batch() if self._source.batch else self._stream()
            self._open = [
                SourceSplit(f"{self._planned + i}", {"number": self._planned + i, **properties}, attachment=partition)
                for i, (properties, partition) in enumerate(found)
            ]
            self._planned += len(self._open)
        shares: list[list[SourceSplit]] = [[] for _ in range(parallelism)]
        for split in self._open:
            shares[split.properties["number"] % parallelism].append(split)
        return shares

    def _batch(self) -> list[tuple[Json, Any]]:
        source, partitions = self._source, list[Any]()
        reader = _call(source, "reader()", source.data_source.reader, _schema(source))
        with suppress(ConfigurationError):  # it has none
            partitions = _call(source, "partitions()", lambda: list(reader.partitions()))
        self._ended = True
        return [({}, partition) for partition in partitions or [None]]  # as Spark: without partitions, one that is None

    def _stream(self) -> list[tuple[Json, Any]]:
        source = self._source
        if self._reader is None:
            self._reader, self._is_simple = _stream_reader(source)
        if self._offset is None:
            self._offset = self._checked(
                "initialOffset()", _call(source, "initialOffset()", self._reader.initialOffset)
            )
        start, end = self._offset, self._latest(self._offset)
        if _goes_back(start, end):
            raise InputChangedError(
                f"data source {_name(source)} has been read up to offset {start}, but its latest offset is {end} now. "
                "Records would be read again: what it reads was cut, made anew or restored from a backup. Put that "
                "back as it was, and run again. Or start from empty state, or give the source another uid, to read "
                "everything that is there."
            )
        # With a limit, a bounded source may have to be asked again.
        self._ended = source.bounded is not False and (end == start or not self._is_limited())
        self._before, self._offset = start, end
        if end == start:
            return []
        offsets = {"start": start, "end": end}
        if self._is_simple:
            return [(offsets, None)]
        planned = list(_call(source, "partitions()", self._reader.partitions, start, end) or [])
        return [(offsets, partition) for partition in planned]

    def _is_limited(self) -> bool:
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        if self._is_simple or not self._takes_limit():
            return False
        return bool(self._source.limits) or not isinstance(self._reader.getDefaultReadLimit(), ReadAllAvailable)

    def _takes_limit(self) -> bool:
        return bool(inspect.signature(self._reader.latestOffset).parameters)  # since Spark 4.2

    def _latest(self, start: Json) -> Json:
        from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

        source, limits = self._source, self._source.limits
        if limits and (self._is_simple or not self._takes_limit()):
            raise ConfigurationError(
                f"data source {_name(source)} cannot limit an epoch, because it has no latestOffset(start, limit): "
                "leave out max_records_per_epoch and max_bytes_per_epoch"
            )
        if self._is_simple:
            _, end = _call(source, "read()", self._reader.read, start)
            return self._checked("read()", end)
        if not self._takes_limit():
            return self._checked("latestOffset()", _call(source, "latestOffset()", self._reader.latestOffset))
        limit = (
            ReadMaxRows(limits.records)
            if limits.records is not None
            else ReadMaxBytes(limits.bytes)
            if limits.bytes is not None
            else self._reader.getDefaultReadLimit()
        )
        return self._checked("latestOffset()", _call(source, "latestOffset()", self._reader.latestOffset, start, limit))

    def _checked(self, what: str, offset: Any) -> Json:
        """Returns an offset as it will be read from a checkpoint."""
        try:
            stored = json.loads(json.dumps(offset, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise SourceReadError(f"{what} of data source {_name(self._source)}: {offset!r:.200}: {error}") from error
        if not isinstance(offset, dict) or stored != offset:
            raise SourceReadError(
                f"{what} of data source {_name(self._source)} returned {offset!r:.200}, but an offset is a dict with "
                "texts as keys, and with numbers, texts, booleans and such dicts as values"
            )
        return dict(stored)

    def on_epoch_read(self, splits: Sequence[SourceSplit]) -> None:
        read = {split.split_id for split in splits if split.finished}
        self._open = [split for split in self._open if split.split_id not in read]

    @property
    def assigns_late(self) -> bool:
        return self._reader is not None and not self._is_limited()  # there is a reader once a stream was asked

    def snapshot_state(self) -> Json:
        # What was planned and not read is planned again: partitions are not stored.
        offset = self._before if self._open else self._offset
        return {"offset": offset, "ended": self._ended and not self._open, "planned": self._planned}

    def on_snapshot(self, checkpoint_id: int) -> None:
        offset = self._before if self._open else self._offset
        if offset is not None:
            self._offsets[checkpoint_id] = offset

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        done = [each for each in self._offsets if each <= checkpoint_id]
        if done and self._reader is not None:
            offset = self._offsets[max(done)]
            self._offsets = {n: each for n, each in self._offsets.items() if n > checkpoint_id}
            _call(self._source, "commit()", self._reader.commit, offset)


def _goes_back(start: Json, end: Json) -> bool:
    """Returns whether an offset is before another: some of its numbers and times are less, and none is greater.

    Anything else has a meaning only for the data source.
    """
    before, after = dict(_leaves(start)), dict(_leaves(end))
    if before.keys() != after.keys():
        return False
    changed = [(before[name], after[name]) for name in before if before[name] != after[name]]
    try:
        return bool(changed) and all(_ordered(new) < _ordered(old) for old, new in changed)
    except (TypeError, ValueError):
        return False


def _leaves(offset: Json, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in offset.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, name))
        else:
            yield (*prefix, name), value


def _ordered(value: Any) -> Any:
    """Returns what to compare instead of a value: a number or a time."""
    if isinstance(value, str):
        return int(value) if value.isdecimal() else datetime.fromisoformat(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(value)
    return value


def read_partition(source: PythonDataSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads a partition in a subtask, with a reader of its own."""
    if source.batch:
        reader = _call(source, "reader()", source.data_source.reader, _schema(source))
        rows = _call(source, "read()", reader.read, split.attachment)
    else:
        reader, is_simple = _stream_reader(source)
        if is_simple:
            start, end = split.properties["start"], split.properties["end"]
            rows = _call(source, "readBetweenOffsets()", reader.readBetweenOffsets, start, end)
        else:
            rows = _call(source, "read()", reader.read, split.attachment)
    count = 0
    for column in _columns(source, iter(rows)):
        count += len(column)
        if count > split.offset:
            yield column[max(len(column) - (count - split.offset), 0) :], count


def _columns(source: PythonDataSource, rows: Iterator[Any]) -> Iterator[pa.Array]:
    schema, row_type, where = _schema(source), source.produced_type, f"read() of data source {_name(source)}"
    times = {field.name: field.dataType for field in schema if "timestamp" in field.dataType.simpleString()}
    while batch := _call(source, "read()", _some, rows):
        if isinstance(batch[0], pa.RecordBatch):
            yield from columns_of_rows(batch[0], row_type, where)
            continue
        columns = list[Sequence[Any]](zip(*_in_order(batch, schema.names, row_type.field_names, where), strict=True))
        for place, field in enumerate(row_type.arrow_type):
            if field.name in times:
                columns[place] = [_with_instants(value, times[field.name], field.type) for value in columns[place]]
        yield row_type.of_columns(columns)


def _some(rows: Iterator[Any]) -> list[Any]:
    """Takes some rows, or one batch of Arrow, which may be large."""
    some = list(islice(rows, 1))
    return some if some and isinstance(some[0], pa.RecordBatch) else [*some, *islice(rows, _BATCH_RECORDS - 1)]


def _with_instants(value: Any, kind: DataType, wanted: pa.DataType) -> Any:
    """Converts times of Spark's type timestamp in a value. As in Spark, one without a zone is one of this machine."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, TimestampType) and isinstance(value, datetime):
        aware = value.astimezone(timezone.utc)
        return Instant.of_datetime(aware) if getattr(wanted, "tz", None) else aware.replace(tzinfo=None)
    if isinstance(kind, ArrayType) and isinstance(value, Iterable) and pa.types.is_list(wanted):
        return [_with_instants(each, kind.elementType, wanted.value_type) for each in value]
    if isinstance(kind, MapType) and isinstance(value, Mapping) and pa.types.is_map(wanted):
        parts = (kind.keyType, wanted.key_type), (kind.valueType, wanted.item_type)
        return {_with_instants(k, *parts[0]): _with_instants(v, *parts[1]) for k, v in value.items()}
    if isinstance(kind, StructType) and isinstance(value, tuple | list | Mapping) and pa.types.is_struct(wanted):
        named = value if isinstance(value, Mapping) else dict(zip(kind.names, value, strict=False))
        return {
            name: _with_instants(part, kind[name].dataType, wanted.field(name).type) if name in wanted.names else part
            for name, part in named.items()
        }
    return value


def _in_order(rows: list[Any], names: list[str], wanted: Sequence[str], where: str) -> list[tuple[Any, ...]]:
    """Returns the wanted values of rows. As in Spark, those of a `Row` have its names, others those of the schema."""
    from pyspark.sql import Row

    found, same = [], names == [*wanted]
    for row in rows:
        if same and type(row) is tuple and len(row) == len(names):
            found.append(row)
            continue
        there = row.__fields__ if isinstance(row, Row) and hasattr(row, "__fields__") else names
        if not isinstance(row, tuple | list) or len(row) != len(there) or {*wanted} - {*there} or {*there} - {*names}:
            raise SourceReadError(
                f"{where} returned {row!r:.200}, but schema() has the columns {names}, and {[*wanted]} are read: "
                "return tuples, rows or Arrow batches with these columns"
            )
        values = dict(zip(there, row, strict=True))
        found.append(tuple(values[name] for name in wanted))
    return found


_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)*`)|(\w+)|([<>(),:]))")


def parse_ddl(text: str) -> StructType:
    """Returns the schema that a text describes, without a Spark session.

    It has columns and types in Spark SQL's DDL, such as ``id bigint, tags array<string>``, no comments and defaults.
    """
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
