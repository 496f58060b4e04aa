"""Reads splits of text files: lines, CSV and JSON lines. Blocks of records are parsed beside each other."""

from __future__ import annotations

import codecs
import io
import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json

from dagster_flinkpy.common.arrow_columns import one_chunk
from dagster_flinkpy.common.typeinfo import RowTypeInfo
from dagster_flinkpy.connectors.columns.column_casts import as_text, check_finite, from_text
from dagster_flinkpy.connectors.columns.record_formats import wrong_member
from dagster_flinkpy.connectors.files.known_files import check_unchanged
from dagster_flinkpy.connectors.sources.input_files import reading
from dagster_flinkpy.datastream.connectors.base import SourceSplit
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.datastream.formats.json_lines import JsonLinesReaderFormat
from dagster_flinkpy.errors import InputChangedError, ObjectNotFoundError, SourceReadError
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.object_store import RangedFile

__all__ = ["TextFile", "ends_of_records", "location_of", "read_text"]

_BLOCK_BYTES = 1 << 20
_FETCH_BYTES = 8 << 20
_TAIL_BYTES = 64 << 10
"""How much is fetched behind a split, for the end of its last record."""
_MOST_BYTES = 64 << 20
"""The longest record. Without a limit, a file without line ends would fill the memory."""

_COMPRESSIONS = {".gz": "gzip", ".gzip": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_OTHERS = re.compile(r"\.(xz|zip|7z|rar|lz4|lzo|snappy|deflate|z|tgz|tar(\.\w+)?)\Z", re.IGNORECASE)
"""The ends of names of files that are no text, nor text in one of these compressions."""
_NEWLINE = ord("\n")


@dataclass(frozen=True)
class TextFile:
    """A text file. Positions in it are bytes of its content: unpacked, and in UTF-8 if a line end is not one byte."""

    store: ObjectStore
    key: str
    size: int
    """In bytes, as it is stored."""
    format: StreamFormat
    version: str | None = None

    def check(self) -> None:
        """Checks that it is as it was planned."""
        check_unchanged(self.store, self.key, self.size, self.version)

    def check_name(self) -> None:
        """Checks that the file is not packed in a way that is not read: its bytes could be taken for text.

        Raises:
            SourceReadError: It is.
        """
        if (found := _OTHERS.search(self.key)) is not None:
            raise SourceReadError(
                f"cannot read {self.store.url}/{self.key}: {found[0]} files are not unpacked, only "
                f"{', '.join(_COMPRESSIONS)}. Pack it as one of these, or move it away"
            )

    @property
    def is_divisible(self) -> bool:
        """Whether reading may begin anywhere: a line end is always the end of a record, and nothing is compressed."""
        return self._compression is None and self.quote is None and _has_single_bytes(self.format.charset_name)

    @property
    def quote(self) -> int | None:
        """The character between which line ends are part of a value, or None if they never are."""
        text = self.format
        if isinstance(text, CsvReaderFormat) and text.newlines_in_values and text.quote_char is not None:
            return ord(text.quote_char)
        return None

    @property
    def _compression(self) -> str | None:
        key = self.key.lower()
        return next((name for suffix, name in _COMPRESSIONS.items() if key.endswith(suffix)), None)

    def blocks(self, start: int, stop: int | None) -> Iterator[tuple[bytes, int]]:
        """Reads the records that begin between two positions.

        Args:
            start: The first position. If the file is not divisible, a record begins there.
            stop: The position after the last one, or None for the end of the file.

        Yields:
            Some whole records, and the position after them.

        Raises:
            SourceReadError: A record is too long.
            StorageError: The store failed.
            OSError: The file is damaged.
            UnicodeError: The file does not have the charset.
        """
        # What begins at or after `start` follows the first line end at or after the byte before it.
        position = max(start - 1, 0) if self.is_divisible else 0
        begins = start == 0 or not self.is_divisible
        rest = b""
        for data in self._data(position, stop):
            if not self.is_divisible and position < start:  # unpack what was read before, and drop it
                data, position = data[start - position :], min(start, position + len(data))
                if not data:
                    continue
            if not begins:
                at = data.find(b"\n") + 1
                position += at or len(data)
                if not at:
                    continue
                data, begins = data[at:], True
            if stop is not None and position >= stop:
                return
            rest += data
            end = self._last_end(rest)
            if stop is not None and position + len(rest) >= stop:
                first = self._first_end(rest, stop - 1 - position)
                if first:
                    yield rest[:first], position + first
                    return
                end = 0  # the last record goes on in the next block
            if end:
                yield rest[:end], position + end
                rest, position = rest[end:], position + end
            elif len(rest) > _MOST_BYTES:
                raise SourceReadError(
                    f"the record at byte {position:,} has no end within {_MOST_BYTES:,} bytes: the file is not lines "
                    "of text, or a quote is not closed"
                )
        if rest:
            yield rest, position + len(rest)

    def _last_end(self, data: bytes) -> int:
        """Returns the position after the last record that ends in data, or 0."""
        if self.quote is None:
            return data.rfind(b"\n") + 1
        ends = ends_of_records(data, self.quote)
        return int(ends[-1]) if len(ends) else 0

    def _first_end(self, data: bytes, at: int) -> int:
        """Returns the position after the first record that ends at or after a byte, or 0."""
        if self.quote is None:
            return data.find(b"\n", at) + 1
        ends = ends_of_records(data, self.quote)
        later = ends[ends > at]
        return int(later[0]) if len(later) else 0

    def _data(self, position: int, stop: int | None) -> Iterator[bytes]:
        """Reads the content: from a position on if it is divisible, otherwise from the beginning.

        The last record begins before ``stop``. Reading goes on until it has ended.
        """
        if not self.is_divisible:
            yield from self._unpacked()
            return
        with ThreadPoolExecutor(1) as ahead:  # the next range is fetched while this one is parsed
            data = self._fetch(position, stop)
            while data:
                position += len(data)
                wanted = position < (self.size if stop is None else stop)
                fetched = ahead.submit(self._fetch, position, stop) if wanted else None
                for at in range(0, len(data), _BLOCK_BYTES):
                    yield data[at : at + _BLOCK_BYTES]
                # If it was not wanted, only the end of the last record can be missing.
                data = self._fetch(position, stop) if fetched is None else fetched.result()

    def _fetch(self, position: int, stop: int | None) -> bytes:
        length = min(_FETCH_BYTES, self.size - position)
        if stop is not None:
            length = min(length, max(stop - position, 0) + _TAIL_BYTES)
        if length <= 0 < position:
            return b""  # what was read before was checked
        try:
            data = self.store.get_range(self.key, position, length) if length else b""
        except ObjectNotFoundError:
            self.check()  # says that the file was deleted
            raise
        self.check()
        return data

    def _unpacked(self) -> Iterator[bytes]:
        charset = self.format.charset_name
        decoder = None if _has_single_bytes(charset) else codecs.getincrementaldecoder(charset)()
        stored = RangedFile(self.store, self.key, self.size, self.check)
        with pa.PythonFile(io.BufferedReader(stored, _FETCH_BYTES), "r") as file:
            stream = file if self._compression is None else pa.input_stream(file, compression=self._compression)
            while data := stream.read(_BLOCK_BYTES):
                yield data if decoder is None else decoder.decode(data).encode()
        if decoder is not None:
            yield decoder.decode(b"", final=True).encode()


def location_of(source: FileSource, root: str) -> StorageLocation:
    """Returns where a split's file is, with the settings of the source's path: splits are stored without keys."""
    for path in source.paths:
        if isinstance(path, StorageLocation) and f"{path.url}/".startswith(f"{root}/"):
            return replace(path, url=root)
    return StorageLocation(root)


def ends_of_records(data: bytes, quote: int | None) -> np.ndarray:
    """Returns the positions after all records that end in data, which begins with a record.

    A line end between two ``quote`` characters is part of a value.
    """
    # characters: uint8, one a byte. ends, quotes: int64 positions in them, ascending.
    characters = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(characters == _NEWLINE)
    if quote is not None:
        quotes = np.flatnonzero(characters == quote)
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    return ends + 1


def _has_single_bytes(charset: str) -> bool:
    """Returns whether the byte of a line end means nothing else in a charset."""
    name = codecs.lookup(charset).name
    return name in ("utf-8", "ascii") or name.startswith(("iso8859", "cp125", "koi8"))


_BOM = b"\xef\xbb\xbf"
_NULL_LINE = re.compile(rb"\n[ \t\r]*null")
_LINE_END = re.compile(rb"\r\n?|\n")
_PARSERS = 2
_SMALL_BYTES = 64 << 10  # a thread for so little would take longer to start than it works
_TINY = re.compile(rb"""[:,\[\s"]-?[0-9.]+[eE]-0*[0-9]{4,}[\s",\]}]""")
"""A value of JSON that may be a decimal, but also text, whose exponent may end the process in Arrow."""
_log = logging.getLogger(__name__)
_told: set[tuple[str, str]] = set()
"""The folders and fields that this process has warned of."""
Parse = Callable[[bytes], pa.Array]
"""Parses whole records. What it raises says what is wrong, without a place."""


_PARSE_ERRORS = (pa.ArrowException, ValueError)


def read_text(source: FileSource, split: SourceSplit) -> Iterator[tuple[pa.Array, int]]:
    """Reads the records of a split, from its offset up to its stop. Errors name the file and, if known, the line."""
    properties = split.properties
    store, key, size = location_of(source, properties["root"]).open(), properties["key"], properties["size"]
    file = TextFile(store, key, size, source.stream_format, properties.get("version"))
    stop = properties.get("stop", properties.get("end"))
    with reading(f"{properties['root']}/{key}"):
        skipped = properties.get("lines", 0) if split.offset == 0 else 0
        for rows, end in _batches(file, split.offset, stop):
            if skipped < len(rows):
                yield rows[skipped:], end
            skipped = max(skipped - len(rows), 0)


def _batches(file: TextFile, start: int, stop: int | None) -> Iterator[tuple[pa.Array, int]]:
    parse, head = _parser(file)
    pending: deque[tuple[int, bytes, int, Future[pa.Array]]] = deque()
    with ThreadPoolExecutor(_PARSERS) as threads:
        try:
            for block, end in file.blocks(start, stop):
                position = end - len(block)
                data = block[max(head - position, 0) :] if position < head else block
                here = not pending and len(data) < _SMALL_BYTES
                parsed = _parsed(parse, data) if here else threads.submit(parse, data)
                pending.append((end - len(data), data, end, parsed))
                if len(pending) > _PARSERS:
                    yield from _next(file, parse, pending)
            while pending:
                yield from _next(file, parse, pending)
            if isinstance(parse, _JsonParser):
                parse.warn_of_unseen(file.store.url, file.key)
        finally:
            for *_, parsed in pending:
                parsed.cancel()


def _parsed(parse: Parse, data: bytes) -> Future[pa.Array]:
    parsed = Future[pa.Array]()
    try:
        parsed.set_result(parse(data))
    except _PARSE_ERRORS as error:
        parsed.set_exception(error)
    return parsed


def _next(
    file: TextFile, parse: Parse, pending: deque[tuple[int, bytes, int, Future[pa.Array]]]
) -> Iterator[tuple[pa.Array, int]]:
    position, data, end, parsed = pending.popleft()
    try:
        rows = parsed.result()
    except _PARSE_ERRORS as error:
        raise _bad_line(file, parse, position, data, error) from error
    if len(rows):
        yield rows, end


def _bad_line(file: TextFile, parse: Parse, position: int, data: bytes, error: Exception) -> SourceReadError:
    """Finds the first line that cannot be parsed."""
    ends = ends_of_records(data, file.quote)
    records = [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True) if a < b]
    good, bad = 0, len(records)
    while bad - good > 1:  # the first `good` records can be parsed, the first `bad` ones cannot
        middle = (good + bad) // 2
        try:
            parse(b"".join(records[:middle]))
            good = middle
        except _PARSE_ERRORS as found:
            bad, error = middle, found
    before = sum(block.count(b"\n") for block, _ in file.blocks(0, position)) if position else 0
    line = before + b"".join(records[:good]).count(b"\n") + 1
    record = records[good].decode(errors="replace").strip("\r\n") if records else ""
    if isinstance(file.format, JsonLinesReaderFormat) and isinstance(error, pa.ArrowException):
        with suppress(json.JSONDecodeError):  # PyArrow does not name the member
            error = wrong_member(file.format.produced_type, record) or error
    if not isinstance(file.format, CsvReaderFormat | JsonLinesReaderFormat):
        charset = file.format.charset_name
        what = f"not in {charset}: give text_line_format() the charset of the file, such as 'ISO-8859-1'"
        return InputChangedError(f"line {line:,} ({record!r:.200}) is {what}")
    return InputChangedError(f"line {line:,} ({record!r:.200}): {error}")


def _parser(file: TextFile) -> tuple[Parse, int]:
    """Returns how the records of a file are parsed, and where they begin."""
    text = file.format
    if not isinstance(text, CsvReaderFormat | JsonLinesReaderFormat):
        charset = text.charset_name if file.is_divisible else None
        return lambda data: _lines(data, charset), 0
    first = next((block for block, _ in file.blocks(0, 1)), b"")
    mark = len(_BOM) if first.startswith(_BOM) else 0
    if isinstance(text, JsonLinesReaderFormat):
        return _JsonParser(text.produced_type), mark
    if not text.use_header:
        return _csv_parser(file, text, list(text.produced_type.field_names)), mark
    quote = text.quote_char.encode() if text.quote_char and text.newlines_in_values else None
    ends = (
        found for found in _LINE_END.finditer(first) if quote is None or not first.count(quote, 0, found.start()) % 2
    )
    head = next((end.end() for end in ends), len(first))
    return _csv_parser(file, text, _header(text, first[mark:head])), head


def _header(text: CsvReaderFormat, line: bytes) -> list[str]:
    if not line.strip():
        return list(text.produced_type.field_names) if not line else []
    if text.quote_char is not None and line.count(text.quote_char.encode()) % 2:
        raise InputChangedError("a quote in its header is not closed" + _advice(text))
    most = line.count(text.column_separator.encode()) + 1
    names = pa_csv.read_csv(
        pa.py_buffer(line + b"\n"),  # a last line without an end is none for PyArrow
        read_options=pa_csv.ReadOptions(autogenerate_column_names=True, use_threads=False),
        parse_options=_parse_options(text),
        convert_options=pa_csv.ConvertOptions(column_types={f"f{i}": pa.string() for i in range(most)}),
    )
    header = [str(column[0].as_py()) for column in names.columns]
    twice = sorted({name for name in header if header.count(name) > 1 and name in text.produced_type.field_names})
    missing = [name for name in text.produced_type.field_names if name not in header]
    if twice:
        raise InputChangedError(f"its header has column {', '.join(map(repr, twice))} more than once")
    if missing:
        raise InputChangedError(
            f"its header has no column {', '.join(map(repr, missing))}, only {header}. If it has no header, declare "
            "use_header=False"
        )
    return header


def _parse_options(text: CsvReaderFormat) -> pa_csv.ParseOptions:
    return pa_csv.ParseOptions(
        delimiter=text.column_separator, quote_char=text.quote_char or False, newlines_in_values=text.newlines_in_values
    )


def _csv_parser(file: TextFile, text: CsvReaderFormat, names: list[str]) -> Parse:
    row_type = text.produced_type
    fields, parse_options = list(row_type.arrow_type), _parse_options(text)
    convert_options = pa_csv.ConvertOptions(
        # PyArrow would take " 0x1F " for a number.
        column_types={field.name: pa.string() for field in fields},
        include_columns=list(row_type.field_names),
        null_values=[text.null_value],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    quote = None if text.quote_char is None else text.quote_char.encode()

    def parse(data: bytes) -> pa.Array:
        if not data.strip(b"\r\n"):
            return pa.array([], row_type.arrow_type)
        if quote is not None and data.count(quote) % 2:
            raise ValueError("a quote is not closed" + _advice(text))
        if quote is not None and _goes_on_behind_quotes(data, quote, text.column_separator.encode()):
            raise ValueError("a quote inside a value is not doubled" + _advice(text))
        table = pa_csv.read_csv(
            pa.py_buffer(data),
            read_options=pa_csv.ReadOptions(column_names=names, use_threads=False, block_size=len(data) + 1),
            parse_options=parse_options,
            convert_options=convert_options,
        )
        _check_count(data, table.num_rows, _advice(text), blank=b"\r\n", quote=file.quote)
        return _structs(table, fields)

    return parse


def _goes_on_behind_quotes(data: bytes, quote: bytes, separator: bytes) -> bool:
    """Returns whether a value has quotes that are not doubled, as Spark's have: PyArrow would keep what is behind."""
    characters = np.frombuffer(b"\n%s\n" % data, np.uint8)
    # characters: uint8, one a byte. quotes: int64 positions in them; in turns, they open and close something.
    quotes = np.flatnonzero(characters == quote[0])
    opened, closed = quotes[::2], quotes[1::2]
    around = np.zeros(256, dtype=bool)
    around[[quote[0], *separator, *b"\r\n"]] = True
    return bool(np.any(around[characters[opened - 1]] & ~around[characters[closed + 1]]))


def _advice(text: CsvReaderFormat) -> str:
    return (
        ". Inside a value a quote must be doubled (by Spark with escape='\"'), and the value be in quotes; if the file "
        "does not quote values, declare quote_char=None"
        + ("" if text.newlines_in_values else "; if values have line ends, newlines_in_values=True")
    )


class _JsonParser:
    """Parses blocks of JSON lines."""

    def __init__(self, row_type: RowTypeInfo) -> None:
        self._fields = list(row_type.arrow_type)
        schema = pa.schema([pa.field(field.name, as_text(field.type)) for field in self._fields])
        self._has_decimals = "decimal" in str(schema.types)
        self._options = pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        self.unseen = set(row_type.field_names)
        """The fields that no object had so far."""
        self.members: list[str] = []
        """Those of the first object."""

    def __call__(self, data: bytes) -> pa.Array:
        if not data.strip():
            return pa.array([], pa.struct(self._fields))
        if data.lstrip().startswith(b"null") or _NULL_LINE.search(data):  # the first would end the process in PyArrow
            raise ValueError("null is no JSON object")
        if self._has_decimals and _TINY.search(data):
            for line in data.splitlines():  # most of what looks like it is text
                _check_digits(pa.struct(self._fields), json.loads(line, parse_float=str) if line.strip() else None)
        read_options = pa_json.ReadOptions(use_threads=False, block_size=len(data) + 1)
        table = pa_json.read_json(pa.BufferReader(data), read_options=read_options, parse_options=self._options)
        _check_count(data, table.num_rows, ": each line must be one JSON object")
        table.validate(full=True)  # PyArrow reads text that is not UTF-8
        check_finite(column.combine_chunks() for column in table.columns)
        if self.unseen:
            with suppress(ValueError):  # a carriage return may end the line
                self.members = self.members or list(json.loads(data.strip().partition(b"\n")[0]))
            null = {name for name in self.unseen if table.column(name).null_count == table.num_rows}
            self.unseen = {name for name in null if json.dumps(name).encode() not in data}
        return _structs(table, self._fields)

    def warn_of_unseen(self, folder: str, key: str) -> None:
        """Logs which fields no object of a file had, once for a field and folder."""
        for name in sorted(self.unseen):
            if self.members and (folder, name) not in _told:
                _told.add((folder, name))
                _log.warning(
                    f"No object in {folder}/{key} has a member {name!r}, so that field is null in all of its records. "
                    f"They have {', '.join(map(repr, self.members))}. If the row type has a wrong name, correct it."
                )


def _check_digits(kind: pa.DataType, value: Any) -> None:
    """Raises an error for a decimal that `_TINY` means."""
    if pa.types.is_struct(kind) and isinstance(value, dict):
        for field in kind:
            _check_digits(field.type, value.get(field.name))
    elif pa.types.is_nested(kind) and isinstance(value, list):
        for each in value:
            _check_digits(kind.field(0).type, each)
    elif pa.types.is_decimal(kind) and isinstance(value, str) and _TINY.search(json.dumps([value]).encode()):
        raise ValueError(f"{value} has too many digits after the point")


def _check_count(data: bytes, rows: int, advice: str, *, blank: bytes | None = None, quote: int | None = None) -> None:
    """Checks that each line was one row. Otherwise a line end in a value was there, which the next block would hide."""
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    if rows == lines and quote is None:
        return
    ends = ends_of_records(data, quote)
    records = [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]
    expected = sum(1 for each in records if each.strip(blank))
    if quote is None and b"\r" in data:  # as PyArrow sees it, a carriage return ends a line, too
        records = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        expected = sum(1 for each in records if each.strip(blank))
    if rows != expected:
        raise ValueError(f"it is {expected} line(s), but {rows} record(s){advice}")


def _structs(table: pa.Table, fields: list[pa.Field]) -> pa.Array:
    columns = [
        from_text(field.name, one_chunk(column), field.type)
        for column, field in zip(table.select([field.name for field in fields]).columns, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, fields=fields)


def _lines(data: bytes, charset: str | None) -> pa.Array:
    """Returns the lines of a block; a carriage return ends a line, too."""
    if charset is not None and charset.lower() not in ("utf-8", "utf8", "ascii"):
        data = data.decode(charset).encode()
    elif charset is not None and charset.lower() == "ascii":
        data.decode("ascii")
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    whole = pa.array([data.removesuffix(b"\n")], pa.binary())
    return pc.split_pattern(whole, b"\n").flatten().cast(pa.string())
