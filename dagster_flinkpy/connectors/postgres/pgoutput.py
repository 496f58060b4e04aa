"""Decodes the messages of PostgreSQL's output plugin ``pgoutput``, version 1 of its protocol, with values as text."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "Begin",
    "Commit",
    "Delete",
    "Insert",
    "Message",
    "Relation",
    "RelationColumn",
    "Truncate",
    "TupleData",
    "Unchanged",
    "Update",
    "decode",
]


class Unchanged(Enum):
    """What stands for a value that is not sent."""

    TOAST = "unchanged"
    """A large value that the change has left as it was."""


TupleData = tuple[str | Unchanged | None, ...]
"""The values of a row, as text. None is null."""


@dataclass(frozen=True)
class Begin:
    """Begins the changes of a transaction. Transactions come in the order of their commits, one after the other."""

    commit_lsn: int
    """Where the record of the commit begins in the WAL."""
    commit_micros: int
    """Microseconds since 2000-01-01, in UTC."""
    xid: int


@dataclass(frozen=True)
class Commit:
    """Ends the changes of a transaction."""

    commit_lsn: int
    end_lsn: int
    """Where the record of the commit ends in the WAL."""
    commit_micros: int


@dataclass(frozen=True)
class RelationColumn:
    """A column of a table."""

    name: str
    is_key: bool
    """Whether it belongs to the replica identity."""
    type_oid: int
    modifier: int


@dataclass(frozen=True)
class Relation:
    """Describes a table. It is sent before the first change of the table, and again when the table has changed."""

    oid: int
    schema: str
    name: str
    identity: str
    """The replica identity: ``d`` primary key, ``n`` none, ``f`` all columns, ``i`` an index."""
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Insert:
    """A new row."""

    relation: int
    new: TupleData


@dataclass(frozen=True)
class Update:
    """A changed row."""

    relation: int
    old: TupleData | None
    """The row before the change, or its key with null in the other columns, or None if the key is the same."""
    new: TupleData


@dataclass(frozen=True)
class Delete:
    """A deleted row."""

    relation: int
    old: TupleData
    """The row, or its key with null in the other columns."""


@dataclass(frozen=True)
class Truncate:
    """All rows of some tables are gone."""

    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Insert | Update | Delete | Truncate


def decode(data: bytes) -> Message | None:
    """Decodes a message.

    Returns:
        The message, or None for one that says nothing about rows: an origin, a type, or a message of an application.
    """
    reader = _Reader(data)
    kind = reader.char()
    try:
        read = _READERS[kind]
    except KeyError:
        raise ValueError(f"unknown message {data[:20]!r} of pgoutput") from None
    message = read(reader)
    if message is not None:
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

    def signed(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

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


def _begin(reader: _Reader) -> Begin:
    return Begin(*struct.unpack(">QqI", reader.take(20)))


def _commit(reader: _Reader) -> Commit:
    return Commit(*struct.unpack(">xQQq", reader.take(25)))


def _relation(reader: _Reader) -> Relation:
    oid, schema, name, identity = reader.number(4), reader.text(), reader.text(), reader.char()
    columns = []
    for _ in range(reader.number(2)):
        is_key = bool(reader.number(1) & 1)
        columns.append(RelationColumn(reader.text(), is_key, reader.number(4), reader.signed(4)))
    return Relation(oid, schema or "pg_catalog", name, identity, tuple(columns))


def _insert(reader: _Reader) -> Insert:
    relation = reader.number(4)
    _expect(reader.char(), "N")
    return Insert(relation, reader.tuple())


def _update(reader: _Reader) -> Update:
    relation, old = reader.number(4), None
    if (kind := reader.char()) in "KO":
        old, kind = reader.tuple(), reader.char()
    _expect(kind, "N")
    return Update(relation, old, reader.tuple())


def _delete(reader: _Reader) -> Delete:
    relation = reader.number(4)
    _expect(reader.char(), "KO")
    return Delete(relation, reader.tuple())


def _truncate(reader: _Reader) -> Truncate:
    count, _ = reader.number(4), reader.number(1)
    if count * 4 > 1 << 30:
        raise ValueError(f"a message of pgoutput truncates {count} tables")
    return Truncate(struct.unpack(f">{count}I", reader.take(count * 4)))


def _expect(kind: str, wanted: str) -> None:
    if kind not in wanted:
        raise ValueError(f"a message of pgoutput has {kind!r} where {wanted!r} belongs")


def _nothing(reader: _Reader) -> None:
    return None


_READERS: dict[str, Callable[[_Reader], Message | None]] = {
    "B": _begin,
    "C": _commit,
    "R": _relation,
    "I": _insert,
    "U": _update,
    "D": _delete,
    "T": _truncate,
    "O": _nothing,
    "Y": _nothing,
    "M": _nothing,
}
