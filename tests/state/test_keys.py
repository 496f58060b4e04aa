"""Finds the slots of many keys at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.typeinfo import Types
from dagster_flinkpy.key_hashes import key_groups_of_hashes
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
