"""Finds the slots of many keys at once."""

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
from dagster_flinkpy.state import integer_rows, layout
from dagster_flinkpy.state.keys import TouchedKeys, hash_keys
from dagster_flinkpy.state.layout import distinct_rows, make_sort_keys

STRINGS = st.lists(st.lists(st.sampled_from(["Aa", "BB", "C#", "x"]), max_size=3).map("".join), max_size=20)
"""The first three have the same hash, and so have many strings of them."""


@given(batches=st.lists(st.tuples(STRINGS, st.booleans()), max_size=6))
def test_a_key_is_found_by_its_value(batches):
    keys, expected = TouchedKeys(), dict[str, int]()
    kind = Types.STRING()
    keys.bind(kind)
    for strings, one_by_one in batches:
        column = pa.array(strings, type=pa.string())
        hashes = hash_keys(kind, column)
        sort_keys = make_sort_keys(key_groups_of_hashes(hashes, 128), hashes)
        assert keys.find(column, hashes).tolist() == [expected.get(each, -1) for each in strings]
        if one_by_one:
            keys.add(strings, column, sort_keys)
        else:
            fresh = np.array([i for i, each in enumerate(strings) if each not in expected], dtype=np.int64)
            fresh = fresh[distinct_rows(column.take(pa.array(fresh)))[0]]
            if len(fresh):
                keys.append(column.take(pa.array(fresh)), sort_keys[fresh])
        for each in strings:
            expected.setdefault(each, len(expected))
    assert keys.slots == expected


PAIRS = st.lists(st.tuples(st.none() | st.integers(-3, 3), st.none() | st.booleans()), max_size=20)
PAIR = Types.TUPLE([Types.LONG(), Types.BOOLEAN()])


@pytest.mark.parametrize("few_hashes", [False, True])
@given(batches=st.lists(PAIRS, max_size=6))
def test_a_row_of_integers_is_found_by_its_fields(few_hashes, batches):
    """Also if many rows share a hash."""
    with pytest.MonkeyPatch.context() as patched:
        if few_hashes:
            for module in (integer_rows, layout):
                patched.setattr(module, "mixed", lambda fields: fields[0] % 2)
        keys, expected = TouchedKeys(), dict[Any, int]()
        keys.bind(PAIR)
        for pairs in batches:
            column = PAIR.to_arrow(pairs)
            hashes = hash_keys(PAIR, column)
            sort_keys = make_sort_keys(key_groups_of_hashes(hashes, 128), hashes)
            assert keys.find(column, hashes).tolist() == [expected.get(each, -1) for each in pairs]
            fresh = np.array([i for i, each in enumerate(pairs) if each not in expected], dtype=np.int64)
            first, codes = distinct_rows(column.take(pa.array(fresh)))
            assert [pairs[i] for i in fresh[first][codes]] == [pairs[i] for i in fresh]
            fresh = fresh[first]
            if len(fresh):
                keys.append(column.take(pa.array(fresh)), sort_keys[fresh])
            for each in pairs:
                expected.setdefault(each, len(expected))
        assert keys.slots == expected
        keys.clear()
        assert keys.find(PAIR.to_arrow([(1, True)]), hash_keys(PAIR, PAIR.to_arrow([(1, True)]))).tolist() == [-1]


LOOKS = st.lists(st.sampled_from(["slots", "encoded", "all", "find", "set_current", "clear"]), max_size=3)


@given(batches=st.lists(st.tuples(st.lists(st.integers(-50, 50), unique=True), LOOKS), max_size=8))
def test_whatever_is_asked_between_batches_slots_stand_for_the_same_keys(batches):
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
            elif look == "slots":
                assert keys.slots == {each: i for i, each in enumerate(expected)}
            elif look == "encoded" and expected:
                assert keys.encoded(len(expected) - 1) == expected[-1]
                assert [keys.encoded(i) for i in range(len(expected))] == expected
            elif look == "set_current" and expected:
                assert keys.set_current(expected[-1]) and keys.slot == len(expected) - 1
                assert not keys.set_current(99)
            elif look == "find":
                wanted = pa.array(range(-50, 51), type=pa.int64())
                found = keys.find(wanted, hash_keys(kind, wanted)).tolist()
                assert found == [expected.index(each) if each in expected else -1 for each in range(-50, 51)]
            elif look == "all" and expected:
                known = keys.all()
                assert known.column.to_pylist() == expected
        assert len(keys) == len(expected)
        assert keys.sort_keys.tolist() == [sort_keys_of[each] for each in expected]


FIELDS = [
    (Types.INT(), st.integers(-2, 2)),
    (Types.SQL_DATE(), st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3))),
    (Types.SQL_TIME(), st.sampled_from([datetime.time(0), datetime.time(1)])),
    (Types.SQL_TIMESTAMP(), st.sampled_from([datetime.datetime(1969, 1, 1), datetime.datetime(2026, 1, 1)])),
    (Types.BYTE(), st.integers(-2, 2)),
]


@given(rows=st.lists(st.none() | st.tuples(*(st.none() | values for _, values in FIELDS)), max_size=30))
def test_rows_of_times_are_rows_of_integers(rows):
    kind = Types.TUPLE([field for field, _ in FIELDS])
    column = kind.to_arrow(rows)
    assert integer_rows.has_integer_rows(column.type)
    first, codes = distinct_rows(column)
    distinct = list(dict.fromkeys(rows))
    assert [rows[i] for i in first] == distinct
    assert [distinct[code] for code in codes] == rows
    index = integer_rows.IntegerRowIndex()
    index.add(column.take(pa.array(first)))
    assert index.find(column).tolist() == codes.tolist()


def test_other_rows_are_not_rows_of_integers():
    for kind in (Types.STRING(), Types.DOUBLE(), Types.BIG_DEC(), PAIR):
        assert not integer_rows.has_integer_rows(Types.TUPLE([Types.LONG(), kind]).arrow_type)
    assert not integer_rows.has_integer_rows(Types.LONG().arrow_type)
