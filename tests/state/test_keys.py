"""Finds the seats of many keys at once."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.key_hashes import key_groups_of_hashes
from dagster_flinkpy.state import index as state_index
from dagster_flinkpy.state.index import RowIndex, has_words, words_of
from dagster_flinkpy.state.keys import KeyCodec, TouchedKeys, hash_keys
from dagster_flinkpy.state.layout import distinct_rows, make_sort_keys

STRINGS = st.lists(
    st.lists(st.sampled_from(["Aa", "BB", "C#", "x", "\0", "é" * 20]), max_size=4).map("".join), max_size=20
)
"""The first three have the same hash, and so have many strings of them. Some are too long for words."""

NESTED = Types.TUPLE([Types.TUPLE([Types.STRING()])])


@pytest.mark.parametrize("few_hashes", [False, True])
@pytest.mark.parametrize("kind", [Types.STRING(), Types.TUPLE([Types.STRING(), Types.STRING()]), NESTED], ids=str)
@given(batches=st.lists(STRINGS, max_size=6))
def test_a_key_is_found_by_its_value(few_hashes, kind, batches):
    """Also if many keys share a hash."""
    with pytest.MonkeyPatch.context() as patched:
        if few_hashes:
            patched.setattr(state_index, "_hashes", _few_hashes)
        keys, expected = TouchedKeys(), dict[Any, int]()
        keys.bind(kind)
        for strings in batches:
            values = [_key(kind, each) for each in strings]
            column = kind.to_arrow(values)
            hashes = hash_keys(kind, column)
            sort_keys = make_sort_keys(key_groups_of_hashes(hashes, 128), hashes)
            assert keys.find(column).tolist() == [expected.get(each, -1) for each in values]
            fresh = np.array([i for i, each in enumerate(values) if each not in expected], dtype=np.int64)
            fresh = fresh[distinct_rows(column.take(pa.array(fresh)))[0]]
            if len(fresh):
                keys.append(column.take(pa.array(fresh)), sort_keys[fresh])
            for each in values:
                expected.setdefault(each, len(expected))
        assert keys.seats == expected
        keys.clear()
        column = kind.to_arrow([_key(kind, "x")])
        assert keys.find(column).tolist() == [-1]


LOOKS = st.lists(st.sampled_from(["seats", "encoded", "all", "find", "set_current", "clear"]), max_size=3)


@given(batches=st.lists(st.tuples(st.lists(st.integers(-50, 50), unique=True), LOOKS), max_size=8))
def test_whatever_is_asked_between_batches_seats_stand_for_the_same_keys(batches):
    keys, expected = TouchedKeys(), list[int]()
    kind = Types.LONG()
    keys.bind(kind)
    sort_keys_of: dict[int, int] = {}
    for numbers, looks in batches:
        fresh = [each for each in numbers if each not in expected]
        column = pa.array(fresh, type=pa.int64())
        hashes = hash_keys(kind, column)
        sort_keys = make_sort_keys(key_groups_of_hashes(hashes, 128), hashes)
        sort_keys_of.update(zip(fresh, sort_keys.tolist(), strict=True))
        if fresh:
            assert keys.append(column, sort_keys).first == len(expected)
            expected += fresh
        for look in looks:
            if look == "clear":
                before, known = keys.all(), list(expected)
                keys.clear()
                expected.clear()
                assert before is None or before.sort_keys.tolist() == [sort_keys_of[each] for each in known]
            elif look == "seats":
                assert keys.seats == {each: i for i, each in enumerate(expected)}
            elif look == "encoded" and expected:
                assert keys.encoded(len(expected) - 1) == expected[-1]
                assert [keys.encoded(i) for i in range(len(expected))] == expected
            elif look == "set_current" and expected:
                assert keys.set_current(expected[-1]) and keys.seat == len(expected) - 1
                assert not keys.set_current(99)
            elif look == "find":
                wanted = pa.array(range(-50, 51), type=pa.int64())
                found = keys.find(wanted).tolist()
                assert found == [expected.index(each) if each in expected else -1 for each in range(-50, 51)]
            elif look == "all" and expected:
                known = keys.all()
                assert known.column.to_pylist() == expected
        assert len(keys) == len(expected)
        assert keys.sort_keys.tolist() == [sort_keys_of[each] for each in expected]


def _key(kind: Any, text: str) -> Any:
    if kind == NESTED:
        return ((text,),)
    return text if kind == Types.STRING() else (text[:2], text[2:])


def _few_hashes(words: Any, rows: int) -> Any:
    hashes = np.zeros(rows, dtype=np.uint64)
    for word in words.values():
        hashes += (word & 1).astype(np.uint64) << np.uint64(63)
    return hashes


TEXT = st.text("a\0é😀", max_size=12) | st.sampled_from([64, 65, 66]).flatmap(
    lambda size: st.sampled_from(["a", "b", "\0"]).map(lambda last: "a" * (size - 1) + last)
)
NUMBERS = st.sampled_from([0.0, -0.0, 1.5, float("inf"), float("nan"), -float("nan")])
FIELDS = [
    (Types.INT(), st.integers(-2, 2)),
    (Types.SQL_DATE(), st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3))),
    (Types.SQL_TIME(), st.sampled_from([datetime.time(0), datetime.time(1)])),
    (Types.SQL_TIMESTAMP(), st.sampled_from([datetime.datetime(1969, 1, 1), datetime.datetime(2026, 1, 1)])),
    (Types.LONG(), st.integers(-2, 2)),
    (Types.BOOLEAN(), st.booleans()),
    (Types.STRING(), TEXT),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), TEXT.map(str.encode)),
    (Types.DOUBLE(), NUMBERS),
    (Types.FLOAT(), NUMBERS),
]


@pytest.mark.parametrize("few_hashes", [False, True])
@pytest.mark.parametrize(
    "fields", [[field] for field in FIELDS] + [FIELDS[:4], FIELDS[4:], [FIELDS[6]] * 2, [FIELDS[7]] * 2], ids=str
)
@given(data=st.data(), cut=st.integers(0, 3))
def test_rows_are_as_distinct_as_in_java(few_hashes, fields, data, cut):
    kinds, values = zip(*fields, strict=True)
    kind, value = kinds[0], st.none() | values[0]
    if len(fields) > 1:
        kind, value = Types.TUPLE(list(kinds)), st.none() | st.tuples(*(st.none() | each for each in values))
    rows = data.draw(st.lists(value, max_size=30))
    column = kind.to_arrow(rows).slice(cut)
    encoded = KeyCodec(kind).encode_all(kind.from_arrow(column))
    assert has_words(column.type)
    with pytest.MonkeyPatch.context() as patched:
        if few_hashes:
            patched.setattr(state_index, "_hashes", _few_hashes)
        first, codes = distinct_rows(column)
        distinct = list(dict.fromkeys(encoded))
        assert [encoded[i] for i in first] == distinct
        assert [distinct[code] for code in codes] == encoded
        index = RowIndex()
        half = len(first) // 2
        parts = [column.take(pa.array(part)) for part in (first[:half], first[half:])]
        has_long = [len(words_of(part)[1]) > 0 for part in parts]
        assert index.add(parts[0]) is not has_long[0]
        if not has_long[0]:
            assert index.find(column).tolist() == [code if code < half else -1 for code in codes.tolist()]
            assert index.add(parts[1]) is not has_long[1]
        if not any(has_long):
            assert index.find(column).tolist() == codes.tolist()


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.none() | st.integers(-2, 0)), min_size=1, max_size=30))
def test_rows_of_small_numbers_are_told_apart_without_hashes(rows):
    kind = Types.TUPLE([Types.LONG(), Types.BOOLEAN(), Types.INT()])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_index, "_hashes", None)
        # There are many more rows than possible values.
        first, codes = distinct_rows(kind.to_arrow(rows + 300 * [(0, False, 0)]))
    distinct = list(dict.fromkeys([*rows, (0, False, 0)]))
    assert [distinct[code] for code in codes] == rows + 300 * [(0, False, 0)]
    assert len(first) == len(distinct)


FEW = st.none() | st.text(alphabet="01é\0", max_size=3)
PREFIXES = st.sampled_from(["", "x", "customer-", "7" * 62])


@given(
    st.lists(st.tuples(FEW, st.integers(-1, 1) | st.just(-(2**63))), min_size=1, max_size=30),
    PREFIXES,
    st.integers(0, 3),
)
def test_texts_whose_bytes_have_few_values_are_told_apart(rows, prefix, cut):
    kind = Types.TUPLE([Types.STRING(), Types.LONG()])
    rows = [(None if text is None else prefix + text, number) for text, number in rows]
    column = kind.to_arrow([("", 0)] * cut + rows * 70).slice(cut)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(state_index, "_BLOCK", 64)
        patched.setattr(state_index, "_SAMPLE", 8)
        first, codes = distinct_rows(column)
    distinct = list(dict.fromkeys(rows))
    assert [rows[i % len(rows)] for i in first] == distinct
    assert [distinct[code] for code in codes] == rows * 70


def test_ids_with_leading_zeros_are_told_apart_without_hashes(monkeypatch):
    texts = [f"customer-{i * 7919 % 100_000:08}" for i in range(130_000)]
    monkeypatch.setattr(state_index, "_hashes", None)
    first, codes = distinct_rows(pa.array(texts))
    assert first.tolist() == list(range(100_000))
    assert codes.tolist() == [i % 100_000 for i in range(130_000)]


def test_many_rows_are_found():
    for texts in ([f"customer-{i:07}" for i in range(20_000)], [f"{i:05}" * (i % 12) + str(i) for i in range(20_000)]):
        column, index = pa.array(texts), RowIndex()
        assert len(distinct_rows(column)[0]) == len(set(texts)) == len(texts)
        for start in range(0, len(texts), 3_000):
            assert (index.find(column.slice(start)) == -1).all()
            index.add(column.slice(start, 3_000))
        assert index.find(column).tolist() == list(range(len(texts)))


def test_other_types_have_no_words():
    for kind in (Types.DECIMAL(10, 2), Types.TUPLE([Types.LONG(), Types.TUPLE([Types.LONG()])])):
        assert not has_words(kind.arrow_type)
