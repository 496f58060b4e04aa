"""Entries are found, and plain ones decoded, many at a time, as one by one."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_flinkpy.errors import CorruptStateError
from dagster_flinkpy.flink_savepoint.byte_reader import ByteReader
from dagster_flinkpy.flink_savepoint.entries import read_entries, regular_columns
from dagster_flinkpy.state_processor import flink_columns, read_savepoint
from tests.examples import examples
from tests.flink_savepoint.corpus import DECLARED, READABLE, SAVEPOINTS


def written(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Returns entries as Flink writes them, the last one marked."""
    pairs = [*pairs[:-1], (bytes([pairs[-1][0][0] | 0x80]) + pairs[-1][0][1:], pairs[-1][1])]
    return b"".join(struct.pack(">i", len(part)) + part for pair in pairs for part in pair)


RUNS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=9), st.integers(1, 200)), min_size=1, max_size=6)


@settings(max_examples=examples(300), deadline=None)
@given(RUNS, st.sampled_from([b"\x05", b"\x01\x80"]), st.binary(max_size=20))
def test_entries_are_found_whatever_their_lengths(
    runs: list[tuple[bytes, bytes, int]], prefix: bytes, after: bytes
) -> None:
    pairs = [(prefix + key, value) for key, value, count in runs for _ in range(count)]
    data = b"before" + written(pairs) + after
    reader = ByteReader(data, "a group")
    reader.position = 6
    entries = read_entries(reader, prefix)
    assert reader.left == len(after)
    found = [entries.key_and_value(at) for at in range(len(entries))]
    assert found[:-1] == pairs[:-1]
    assert (found[-1][0][1:], found[-1][1]) == (pairs[-1][0][1:], pairs[-1][1])
    for end in (7, len(data) - len(after) - 1):
        with pytest.raises(CorruptStateError, match="a group"):
            cut = ByteReader(data[:end], "a group")
            cut.position = 6
            read_entries(cut, prefix)


def test_a_key_of_another_key_group_is_an_error() -> None:
    pairs = [(b"\x05k", b"v")] * 20 + [(b"\x06k", b"v")] + [(b"\x05k", b"v")] * 20
    with pytest.raises(CorruptStateError, match="another key group"):
        read_entries(ByteReader(written(pairs), "a group"), b"\x05")


@settings(max_examples=examples(300), deadline=None)
@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=1, max_codepoint=127), max_size=5),
        st.integers(-(2**63), 2**63 - 1),
        min_size=1,
    )
)
def test_texts_and_numbers_are_decoded_by_column(values: dict[str, int]) -> None:
    pairs = [
        (bytes([5, 0, len(key) + 1]) + key.encode() + b"\0", struct.pack(">iq", 8, value))
        for key, value in values.items()
    ]
    entries = read_entries(ByteReader(written(pairs), "a group"), b"\x05")
    found = regular_columns(entries, 1, "STRING", "LONG", wrapped=True)
    assert found is not None
    assert dict(zip(found[0].to_pylist(), found[1].to_pylist(), strict=True)) == values


@settings(max_examples=examples(300), deadline=None)
@given(st.dictionaries(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), min_size=1))
def test_numbers_and_texts_of_any_length_are_decoded_by_column(values: dict[int, str]) -> None:
    encoded = {key: value.encode() for key, value in values.items()}
    pairs = [
        (b"\x01\x80" + struct.pack(">q", key) + b"\0", struct.pack(">ii", len(text) + 4, len(text)) + text)
        for key, text in encoded.items()
    ]
    entries = read_entries(ByteReader(written(pairs), "a group"), b"\x01\x80")
    found = regular_columns(entries, 2, "LONG", "STRING", wrapped=False)
    assert found is not None
    assert dict(zip(found[0].to_pylist(), found[1].to_pylist(), strict=True)) == values


@pytest.mark.parametrize(
    "value",
    [
        struct.pack(">ii", 5, 1) + b"\xc3",  # half a character
        struct.pack(">ii", 5, 2) + b"k",  # a text that is longer
        struct.pack(">i", 3) + b"kkk",  # without a length
        struct.pack(">ii", 6, 1) + b"k",  # a list that is longer
    ],
)
def test_texts_that_are_not_as_expected_are_left_to_the_decoders_of_single_values(value: bytes) -> None:
    good = (b"\x05" + bytes(9), struct.pack(">ii", 5, 1) + b"k")
    entries = read_entries(ByteReader(written([good, (good[0], value)]), "a group"), b"\x05")
    assert regular_columns(entries, 1, "LONG", "STRING", wrapped=False) is None


@pytest.mark.parametrize(
    "pair",
    [
        (b"\x05\x40\0", struct.pack(">iq", 8, 1)),  # a key that is null
        (b"\x05\x00\x02\xc3\0", struct.pack(">iq", 8, 1)),  # a character of two bytes
        (b"\x05\x00\x02k\x01", struct.pack(">iq", 8, 1)),  # another namespace
        (b"\x05\x00\x03k\0", struct.pack(">iq", 8, 1)),  # a text that is longer
        (b"\x05\x00\x02k\0", struct.pack(">ii", 4, 1)),  # a number of four bytes
        (b"\x05\x00\x02k\0", struct.pack(">iqxxxx", 8, 1)),  # bytes are left
        (b"\x05\x00\x02k\0", b""),
        (b"\x05", struct.pack(">iq", 8, 1)),
    ],
)
def test_what_is_not_as_expected_is_left_to_the_decoders_of_single_values(pair: tuple[bytes, bytes]) -> None:
    good = (b"\x05\x00\x02k\0", struct.pack(">iq", 8, 1))
    entries = read_entries(ByteReader(written([good, pair]), "a group"), b"\x05")
    assert regular_columns(entries, 1, "STRING", "LONG", wrapped=True) is None


@pytest.mark.parametrize("name", [name for name in READABLE if not name.startswith("sql")])
def test_rows_decoded_by_column_are_those_decoded_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> list[Any]:
        savepoint = read_savepoint(str(SAVEPOINTS / name / "savepoint"), DECLARED[name])
        return [sorted(map(repr, state.to_arrow().to_pylist())) for state in savepoint.states]

    used: list[bool] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        found = regular_columns(*arguments, **options)
        used.append(found is not None)
        return found

    monkeypatch.setattr(flink_columns, "regular_columns", watched)
    by_column = rows()
    plain = ("values", "timers", "sources", "connected", "windows")
    assert any(used) == (name.startswith(plain) and not name.endswith("native"))
    monkeypatch.setattr(flink_columns, "regular_columns", lambda *arguments, **options: None)
    assert rows() == by_column
