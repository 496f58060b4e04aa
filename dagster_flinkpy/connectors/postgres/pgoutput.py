"""Decodes the messages of PostgreSQL's output plugin ``pgoutput``, version 1 of its protocol, with values as text."""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

__all__ = [
    "Begin",
    "Message",
    "Relation",
    "RelationColumn",
    "RowChange",
    "Truncate",
    "TupleData",
    "Unchanged",
    "decode",
]


class Unchanged(Enum):
    """What stands for a value that is not sent."""

    TOAST = "unchanged"
    """A large value that the change has left as it was."""


TupleData = tuple[str | Unchanged | None, ...]
"""The values of a row, as text. None is null."""


class Begin(NamedTuple):
    """Begins the changes of a transaction. Transactions come in the order of their commits, one after the other."""

    commit_lsn: int
    """Where the record of the commit begins in the WAL."""
    commit_micros: int
    """Microseconds since 2000-01-01, in UTC."""
    xid: int


class RelationColumn(NamedTuple):
    """A column of a table."""

    name: str
    is_key: bool
    """Whether it belongs to the replica identity."""
    type_oid: int
    modifier: int


class Relation(NamedTuple):
    """Describes a table. It is sent before the first change of the table, and again when the table has changed."""

    oid: int
    schema: str
    name: str
    identity: str
    """The replica identity: ``d`` primary key, ``n`` none, ``f`` all columns, ``i`` an index."""
    columns: tuple[RelationColumn, ...]


class RowChange(NamedTuple):
    """A row that is new, changed or deleted."""

    kind: str
    """``I`` inserted, ``U`` updated, ``D`` deleted."""
    relation: int
    old: TupleData | None
    """The row before, or its key with null in the other columns. None: it is new, or it has the same key."""
    new: TupleData | None
    """The row after, or None if it is deleted."""


class Truncate(NamedTuple):
    """All rows of some tables are gone."""

    relations: tuple[int, ...]


Message = Begin | Relation | RowChange | Truncate


def decode(data: bytes) -> Message | None:
    """Decodes a message. Returns None if it is not about rows: a commit, an origin, a type, or a message of users.

    Raises:
        ValueError: It is no message of this version.
    """
    reader = _Reader(data)
    message: Message
    match kind := reader.char():
        case "I" | "U" | "D":
            message = _change(kind, reader)
        case "B":
            message = Begin(*struct.unpack(">QqI", reader.take(20)))
        case "R":
            message = _relation(reader)
        case "T":
            message = _truncate(reader)
        case "C" | "O" | "Y" | "M":
            return None
        case _:
            raise ValueError(f"unknown message {data[:20]!r} of pgoutput")
    reader.end()
    return message


class _Reader:
    """Takes one part of a message after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        if size < 0 or self._at > len(self._data):
            raise ValueError(f"a message of pgoutput is cut off: {self._data[:20]!r}")
        return self._data[start : self._at]

    def char(self) -> str:
        return self.take(1).decode("latin-1")

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def text(self) -> str:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ValueError(f"a message of pgoutput is cut off: {self._data[:20]!r}")
        text = self.take(end - self._at).decode()
        self._at += 1
        return text

    def tuple(self) -> TupleData:
        return tuple([self._value() for _ in range(self.number(2))])

    def _value(self) -> str | Unchanged | None:
        kind = self.take(1)
        if kind == b"t":
            return self.take(self.number(4)).decode()
        if kind == b"n":
            return None
        if kind == b"u":
            return Unchanged.TOAST
        raise ValueError(f"a value of pgoutput has the unknown kind {kind!r}")

    def end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"a message of pgoutput has {len(self._data) - self._at} bytes too many")


def _relation(reader: _Reader) -> Relation:
    oid, schema, name, identity = reader.number(4), reader.text(), reader.text(), reader.char()
    columns = []
    for _ in range(reader.number(2)):
        is_key = bool(reader.number(1) & 1)
        columns.append(RelationColumn(reader.text(), is_key, *struct.unpack(">Ii", reader.take(8))))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _change(kind: str, reader: _Reader) -> RowChange:
    relation, part, old = reader.number(4), reader.char(), None
    if part in "KO" and kind != "I":
        old = reader.tuple()
        if kind == "D":
            return RowChange(kind, relation, old, None)
        part = reader.char()
    if part != "N" or kind == "D":
        raise ValueError(f"a message {kind!r} of pgoutput has {part!r} where a row belongs")
    return RowChange(kind, relation, old, reader.tuple())


def _truncate(reader: _Reader) -> Truncate:
    count, _ = reader.number(4), reader.number(1)
    if count * 4 > 1 << 30:
        raise ValueError(f"a message of pgoutput truncates {count} tables")
    return Truncate(struct.unpack(f">{count}I", reader.take(count * 4)))
