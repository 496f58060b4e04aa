from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dagster_flinkpy.common.typeinfo import RowTypeInfo, TypeInformation, Types
from dagster_flinkpy.common.types import Row
from dagster_flinkpy.datastream.program.job_graph import PartitionerKind, StreamPartitioner
from dagster_flinkpy.errors import FlinkPyError, TypeMismatchError, UnsupportedKeyTypeError
from dagster_flinkpy.key_hashes import java_hash_code
from dagster_flinkpy.runtime.shuffle.batch import KeyColumn, StreamBatch
from dagster_flinkpy.runtime.shuffle.key_columns import key_column

PAIR = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])


def keys_of(selector: Any, values: list[Any], type_info: TypeInformation | None = None) -> KeyColumn:
    type_info = type_info or Types.PICKLED_BYTE_ARRAY()
    batch = StreamBatch(type_info, np.arange(len(values), dtype=np.int64), values=values, producer="before")
    return key_column(StreamPartitioner(PartitionerKind.HASH, selector), batch)


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("name", ["a", "b"]),
        (("number", "name"), [(1, "a"), (2, "b")]),
        (lambda row: row["number"] + 1, [2, 3]),
    ],
    ids=["a field", "several fields", "a function"],
)
def test_keys_have_the_hash_codes_of_java(selector: Any, expected: list[Any]) -> None:
    keys = keys_of(selector, [Row(name="a", number=1), Row(name="b", number=2)], PAIR)
    assert keys.type_info.from_arrow(keys.column) == expected
    assert keys.hashes.tolist() == [java_hash_code(key) for key in expected]


NULLS = {
    "a key": ([1, None], "the key of record None is None"),
    "the first key": ([None, 1], "key is None"),
    "a field of a tuple": ([(1, "a"), (2, None)], r"field 'f1' of the key of record \(2, None\) is None"),
    "a field of the first tuple": ([(1, None)], r"key\[1\] is None"),
    "a field of a row": ([Row(a=1), Row(a=None)], r"field 'a' of the key of record Row\(a=None\) is None"),
    "a field of a tuple in a tuple": ([((1,), 2), ((None,), 2)], r"field 'f0' of the key of record \(\(None,\), 2\)"),
}


@pytest.mark.parametrize(("values", "message"), NULLS.values(), ids=NULLS.keys())
def test_a_missing_key_is_named(values: list[Any], message: str) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match=message):
        keys_of(lambda value: value, values)


def test_keys_of_two_types_are_named_both() -> None:
    with pytest.raises(TypeMismatchError, match=r"1 is Types\.LONG\(\), True is Types\.BOOLEAN\(\); convert them"):
        keys_of(lambda value: value, [1, 2, True])
    for mixed in ([1.5, 2], [(1.5, "a"), (2, "a")], [Row(k=(1.5,)), Row(k=(2,))]):
        with pytest.raises(TypeMismatchError, match=r"DOUBLE\(\).*, .*LONG\(\).*; convert them"):
            keys_of(lambda value: value, mixed)
    with pytest.raises(TypeMismatchError, match=r"declared LONG, .* out of its range"):
        keys_of(lambda value: value, [1, 2**70])


@pytest.mark.parametrize("selector", ["name", ("name", "number")])
def test_a_missing_key_field_is_named(selector: Any) -> None:
    row = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])
    with pytest.raises(UnsupportedKeyTypeError, match="key field 'name' is null in 2 records"):
        keys_of(selector, [Row(None, 1), Row("a", 1), Row(None, 2)], row)


@pytest.mark.parametrize("key", [[1], {"a": 1}, {1}, object(), (1, [2]), b"x"])
def test_a_key_without_stable_hash_is_named(key: Any) -> None:
    with pytest.raises(UnsupportedKeyTypeError):
        keys_of(lambda value: value, [key])


def test_a_key_field_without_stable_hash_is_refused() -> None:
    row = RowTypeInfo([Types.MAP(Types.STRING(), Types.LONG())], ["map"])
    with pytest.raises(FlinkPyError, match="map"):
        keys_of("map", [Row({"a": 1})], row)
