"""The bytes of a text file, in blocks of whole records."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dagster_flinkpy.connectors.sources.known_files import check_unchanged
from dagster_flinkpy.datastream.connectors.file_system import FileSource, StreamFormat
from dagster_flinkpy.datastream.formats.csv import CsvReaderFormat
from dagster_flinkpy.errors import SourceReadError
from dagster_flinkpy.storage import ObjectStore, StorageLocation
from dagster_flinkpy.storage.ranged_file import RangedFile

__all__ = ["TextFile", "ends_of_records", "location_of"]

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
            fetched = ahead.submit(self._fetch, position, stop)
            while data := fetched.result():
                position += len(data)
                wanted = stop is None or position < stop
                if wanted:
                    fetched = ahead.submit(self._fetch, position, stop)
                for at in range(0, len(data), _BLOCK_BYTES):
                    yield data[at : at + _BLOCK_BYTES]
                if not wanted:  # only the end of the last record can be missing
                    fetched = ahead.submit(self._fetch, position, stop)

    def _fetch(self, position: int, stop: int | None) -> bytes:
        length = min(_FETCH_BYTES, self.size - position)
        if stop is not None:
            length = min(length, max(stop - position, 0) + _TAIL_BYTES)
        data = self.store.get_range(self.key, position, length) if length > 0 else b""
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
