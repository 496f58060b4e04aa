"""The messages of pgoutput: what is encoded as its documentation says is decoded; anything else is an error."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.connectors.postgres.pgoutput import (
    Begin,
    Message,
    Relation,
    RelationColumn,
    RowChange,
    Truncate,
    TupleData,
    Unchanged,
    decode,
)

LSNS = st.integers(0, 2**64 - 1)
OIDS = st.integers(0, 2**32 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=8)
TUPLES = st.lists(
    st.none() | st.just(Unchanged.TOAST) | st.text(st.characters(exclude_categories=["Cs"])), max_size=5
).map(tuple)
COLUMNS = st.builds(RelationColumn, NAMES, st.booleans(), OIDS, st.integers(-(2**31), 2**31 - 1))
MESSAGES = st.one_of(
    st.builds(Begin, LSNS, TIMES, OIDS),
    st.builds(Relation, OIDS, NAMES, NAMES, st.sampled_from("dnfi"), st.lists(COLUMNS, max_size=4).map(tuple)),
    st.builds(RowChange, st.just("I"), OIDS, st.none(), TUPLES),
    st.builds(RowChange, st.just("U"), OIDS, st.none() | TUPLES, TUPLES),
    st.builds(RowChange, st.just("D"), OIDS, TUPLES, st.none()),
    st.builds(Truncate, st.lists(OIDS, max_size=3).map(tuple)),
)


def encoded(message: Message, old: bytes = b"O") -> bytes:
    match message:
        case Begin(lsn, micros, xid):
            return b"B" + struct.pack(">QqI", lsn, micros, xid)
        case Relation(oid, schema, name, identity, columns):
            head = b"R" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
            body = [
                bytes([c.is_key]) + c.name.encode() + b"\0" + struct.pack(">Ii", c.type_oid, c.modifier)
                for c in columns
            ]
            return head + struct.pack(">H", len(columns)) + b"".join(body)
        case RowChange(kind, oid, before, new):
            given = b"" if before is None else old + encoded_tuple(before)
            return kind.encode() + struct.pack(">I", oid) + given + (b"" if new is None else b"N" + encoded_tuple(new))
        case Truncate(oids):
            return b"T" + struct.pack(f">IB{len(oids)}I", len(oids), 1, *oids)


def encoded_tuple(values: TupleData) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if isinstance(value, str):
            parts.append(b"t" + struct.pack(">I", len(value.encode())) + value.encode())
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


@given(MESSAGES, st.sampled_from([b"K", b"O"]))
def test_what_is_encoded_is_decoded(message: Message, old: bytes) -> None:
    assert decode(encoded(message, old)) == message


@given(MESSAGES, st.data())
def test_a_message_that_is_cut_off_or_too_long_is_an_error(message: Message, data: st.DataObject) -> None:
    whole = encoded(message)
    with pytest.raises(ValueError, match="pgoutput"):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="bytes too many"):
        decode(whole + b"x")


@given(st.binary(max_size=60))
def test_other_bytes_are_a_message_or_an_error(data: bytes) -> None:
    with suppress(ValueError):
        decode(data)


@pytest.mark.parametrize("kind", ["C", "O", "Y", "M"])
def test_what_says_nothing_about_rows(kind: str) -> None:
    assert decode(kind.encode() + b"anything") is None
