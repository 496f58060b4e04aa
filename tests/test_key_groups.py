"""Compares key groups with Flink's own results, and columns with scalars."""

from __future__ import annotations

import datetime
import enum
import json
import os
import re
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_flinkpy.common.types import Row, RowKind
from dagster_flinkpy.datastream import StreamExecutionEnvironment
from dagster_flinkpy.errors import ParallelismError, UnsupportedKeyTypeError
from dagster_flinkpy.key_groups import (
    KeyGroupRange,
    check_parallelism,
    compute_default_max_parallelism,
    compute_key_group_range_for_operator_index,
    compute_operator_index_for_key_group,
)
from dagster_flinkpy.key_hashes import (
    assign_to_key_group,
    java_hash_code,
    java_hash_codes,
    key_groups,
    key_groups_of_hashes,
    murmur_hash,
    operator_indexes,
)
from dagster_flinkpy.state_processor import write_savepoint

GOLDEN_DIR = Path(os.environ.get("FLINK_GOLDEN_DIR") or Path(__file__).parent / "golden")

ERRORS = {
    "java.lang.IllegalArgumentException": ParallelismError,
    "java.lang.NullPointerException": UnsupportedKeyTypeError,
}


def golden(file: str) -> dict[str, Any]:
    return json.loads((GOLDEN_DIR / file).read_text(encoding="utf-8"))


# --- golden keys, as Python values and as Arrow columns ---------------------------------------------------------------

ARROW_TYPES = {
    "String": pa.string(),
    "Boolean": pa.bool_(),
    "Byte": pa.int8(),
    "Short": pa.int16(),
    "Integer": pa.int32(),
    "Long": pa.int64(),
    "Float": pa.float32(),
    "Double": pa.float64(),
    "byte[]": pa.binary(),
    "null": pa.null(),
}
NUMPY_TYPES = {"Byte": np.int8, "Short": np.int16, "Integer": np.int32}


def decode(key: dict[str, Any]) -> Any:
    """Returns the Python key of a golden key."""
    kind = key["type"]
    if kind == "null":
        return None
    if kind == "byte[]":
        return bytes.fromhex(key["hex"])
    if kind == "Long":
        return int(key["value"])
    if kind == "Double":
        return struct.unpack(">d", bytes.fromhex(key["bits"]))[0]
    if kind == "Float":
        return np.array([int(key["bits"], 16)], dtype=np.uint32).view(np.float32)[0]
    if kind in NUMPY_TYPES:
        return NUMPY_TYPES[kind](key["value"])
    if kind.startswith("Tuple"):
        return tuple(decode(field) for field in key["fields"])
    if kind == "Row":
        if "namedFields" in key:
            named = {field["name"]: decode(field["value"]) for field in key["namedFields"]}
            return Row.of_kind(RowKind[key["rowKind"]], **named)
        return Row.of_kind(RowKind[key["rowKind"]], *(decode(field) for field in key["fields"]))
    return key["value"]


def fields_of(key: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if "namedFields" in key:
        return [(field["name"], field["value"]) for field in key["namedFields"]]
    return [(f"f{index}", field) for index, field in enumerate(key.get("fields", []))]


def struct_forms(key: dict[str, Any]) -> set[str]:
    """Returns every ``struct_as`` that structs in the key need, and a mark for inner row kinds, which fit no column."""
    forms = set()
    if key["type"].startswith("Tuple"):
        forms.add("tuple")
    elif key["type"] == "Row":
        forms.add("named_row" if "namedFields" in key else "row")
    for _, field in fields_of(key):
        forms |= struct_forms(field)
        if field.get("rowKind", "INSERT") != "INSERT":
            forms.add("inner row kind")
    return forms


def arrow_type(key: dict[str, Any]) -> pa.DataType:
    if key["type"] in ARROW_TYPES:
        return ARROW_TYPES[key["type"]]
    return pa.struct([pa.field(name, arrow_type(field)) for name, field in fields_of(key)])


def arrow_value(key: dict[str, Any]) -> Any:
    if key["type"].startswith("Tuple") or key["type"] == "Row":
        return {name: arrow_value(field) for name, field in fields_of(key)}
    return decode(key)


def arrow_columns(keys: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]], pa.Array]]:
    """Returns the golden keys as few columns: ``struct_as``, the keys, their column."""
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for entry in keys:
        forms = struct_forms(entry["key"]) or {"tuple"}
        if len(forms) == 1:
            groups[forms.pop(), arrow_type(entry["key"])].append(entry)
    columns = []
    for (struct_as, kind), entries in groups.items():
        if kind == pa.float64():  # by its bits: a NaN keeps its own
            bits = np.array([int(entry["key"]["bits"], 16) for entry in entries], dtype=np.uint64)
            column = pa.array(bits.view(np.float64))
        else:
            column = pa.array([arrow_value(entry["key"]) for entry in entries], type=kind)
        columns.append((struct_as, entries, column))
    return columns


def column_hashes(struct_as: str, entries: list[dict[str, Any]], column: pa.Array) -> np.ndarray:
    kinds = [RowKind[entry["key"].get("rowKind", "INSERT")].value for entry in entries]
    return java_hash_codes(column, struct_as=struct_as) + np.int32(31) * np.array(kinds, dtype=np.int32)


@pytest.mark.golden
def test_golden_hash_codes() -> None:
    keys = golden("key_groups.json")["keys"]
    assert {entry["id"]: java_hash_code(decode(entry["key"])) for entry in keys} == {
        entry["id"]: entry["hashCode"] for entry in keys
    }


@pytest.mark.golden
def test_golden_hash_codes_of_columns() -> None:
    keys = golden("key_groups.json")["keys"]
    columns = arrow_columns(keys)
    assert sum(len(entries) for _, entries, _ in columns) > 0.9 * len(keys)
    for struct_as, entries, column in columns:
        expected = [entry["hashCode"] for entry in entries]
        assert column_hashes(struct_as, entries, column).tolist() == expected
        padded = pa.concat_arrays([column, column, column]).slice(len(column), len(column))
        assert column_hashes(struct_as, entries, padded).tolist() == expected


@pytest.mark.golden
def test_golden_key_groups_and_operator_indexes() -> None:
    vectors = golden("key_groups.json")
    keys = {entry["id"]: decode(entry["key"]) for entry in vectors["keys"]}
    for row in vectors["rows"]:
        key_group, max_parallelism = row["keyGroup"], row["maxParallelism"]
        assert assign_to_key_group(keys[row["key"]], max_parallelism) == key_group, row
        for parallelism, index in row["operatorIndex"].items():
            assert compute_operator_index_for_key_group(max_parallelism, int(parallelism), key_group) == index, row


@pytest.mark.golden
def test_golden_key_groups_and_operator_indexes_of_columns() -> None:
    vectors = golden("key_groups.json")
    rows_of_key: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in vectors["rows"]:
        rows_of_key[row["key"]][row["maxParallelism"]] = row
    for struct_as, entries, column in arrow_columns(vectors["keys"]):
        hashes = column_hashes(struct_as, entries, column)
        for max_parallelism in sorted({row["maxParallelism"] for row in vectors["rows"]}):
            rows = [rows_of_key[entry["id"]].get(max_parallelism) for entry in entries]
            groups = key_groups_of_hashes(hashes, max_parallelism)
            if all(entry["key"].get("rowKind", "INSERT") == "INSERT" for entry in entries):
                assert key_groups(column, max_parallelism, struct_as=struct_as).tolist() == groups.tolist()
            for position, row in enumerate(rows):
                if row is not None:
                    assert groups[position] == row["keyGroup"], row
                    for parallelism, index in row["operatorIndex"].items():
                        assert operator_indexes(groups, max_parallelism, int(parallelism))[position] == index, row


@pytest.mark.golden
def test_golden_ranges() -> None:
    for case in golden("ranges.json")["ranges"]:
        for index, (start, end) in enumerate(case["ranges"]):
            actual = compute_key_group_range_for_operator_index(case["maxParallelism"], case["parallelism"], index)
            assert actual == KeyGroupRange(start, end), (case["maxParallelism"], case["parallelism"], index)


@pytest.mark.golden
def test_golden_operator_index_by_key_group() -> None:
    for case in golden("ranges.json")["operatorIndexByKeyGroup"]:
        sizes, expected = (case["maxParallelism"], case["parallelism"]), case["operatorIndexByKeyGroup"]
        groups = np.arange(len(expected), dtype=np.uint16)
        assert [compute_operator_index_for_key_group(*sizes, group) for group in groups] == expected
        assert operator_indexes(groups, *sizes).tolist() == expected


@pytest.mark.golden
def test_golden_default_max_parallelism() -> None:
    for case in golden("ranges.json")["defaultMaxParallelism"]:
        if "error" in case:
            with pytest.raises(ERRORS[case["error"]]):
                compute_default_max_parallelism(case["parallelism"])
        else:
            assert compute_default_max_parallelism(case["parallelism"]) == case["defaultMaxParallelism"], case


def call_checked(check: dict[str, Any]) -> Any:
    if check["call"] == "assignToKeyGroup":
        return assign_to_key_group(check["key"], check["maxParallelism"])
    assert check["call"] == "computeKeyGroupRangeForOperatorIndex", check
    owned = compute_key_group_range_for_operator_index(
        check["maxParallelism"], check["parallelism"], check["operatorIndex"]
    )
    return [owned.start, owned.end]


@pytest.mark.golden
def test_golden_argument_checks() -> None:
    for check in golden("ranges.json")["argumentChecks"]:
        if "error" in check:
            with pytest.raises(ERRORS[check["error"]]):
                call_checked(check)
        else:
            assert call_checked(check) == check["range"], check


# --- ranges -----------------------------------------------------------------------------------------------------------


@st.composite
def parallelisms(draw: st.DrawFn) -> tuple[int, int]:
    max_parallelism = draw(st.integers(1, 2000))
    return max_parallelism, draw(st.integers(1, max_parallelism))


@given(parallelisms())
def test_ranges_partition_the_key_groups(sizes: tuple[int, int]) -> None:
    max_parallelism, parallelism = sizes
    ranges = [compute_key_group_range_for_operator_index(*sizes, index) for index in range(parallelism)]
    owners = [index for index, owned in enumerate(ranges) for _ in range(owned.number_of_key_groups)]
    assert [group for owned in ranges for group in range(owned.start, owned.end + 1)] == list(range(max_parallelism))
    assert operator_indexes(np.arange(max_parallelism, dtype=np.uint16), *sizes).tolist() == owners


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_intersection_holds_the_key_groups_of_both(a: int, b: int, c: int, d: int) -> None:
    one, other = KeyGroupRange(min(a, b), max(a, b)), KeyGroupRange(min(c, d), max(c, d))
    common = one.intersection(other)
    expected = [group for group in range(60) if group in one and group in other]
    assert [group for group in range(60) if common is not None and group in common] == expected
    assert (common is None) == (expected == [])


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 2), (0, -1)])
def test_a_range_is_never_empty_or_negative(start: int, end: int) -> None:
    with pytest.raises(ParallelismError):
        KeyGroupRange(start, end)


def test_operator_index_is_divided_as_in_java() -> None:
    # (-128 + 99) / 100 and -1 / 100 are both 0 in Java, so Flink returns a range here and refuses the next one.
    assert compute_key_group_range_for_operator_index(128, 100, -1) == KeyGroupRange(0, 0)
    with pytest.raises(ParallelismError):
        compute_key_group_range_for_operator_index(128, 4, -1)


def test_uint16_key_groups_do_not_overflow() -> None:
    assert compute_operator_index_for_key_group(32768, 32768, np.uint16(32767)) == 32767
    assert operator_indexes(np.array([32767], dtype=np.uint16), 32768, 32768).tolist() == [32767]


@pytest.mark.parametrize("key_group", [-1, 128])
def test_a_key_group_out_of_range_is_refused(key_group: int) -> None:
    with pytest.raises(ParallelismError, match="0 to 127"):
        compute_operator_index_for_key_group(128, 4, key_group)


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769])
def test_max_parallelism_out_of_range_is_refused(max_parallelism: int) -> None:
    with pytest.raises(ParallelismError, match="max_parallelism"):
        assign_to_key_group("a", max_parallelism)
    with pytest.raises(ParallelismError, match="max_parallelism"):
        key_groups(pa.array(["a"]), max_parallelism)
    with pytest.raises(ParallelismError, match="max_parallelism"):
        key_groups_of_hashes(np.array([1], dtype=np.int32), max_parallelism)


# --- one key ----------------------------------------------------------------------------------------------------------


class Airport(NamedTuple):
    code: str
    hour: int


class Level(enum.IntEnum):
    HIGH = 2**40


def test_subclasses_hash_as_their_base() -> None:
    assert java_hash_code(Airport("JFK", 7)) == java_hash_code(("JFK", 7))
    assert java_hash_code(Level.HIGH) == java_hash_code(2**40)


def test_numpy_scalars_are_the_java_types_of_their_width() -> None:
    assert java_hash_code(np.int32(-1)) == -1
    assert java_hash_code(np.int64(-1)) == java_hash_code(-1) == 0
    assert java_hash_code(np.bool_(True)) == java_hash_code(True) == 1231
    assert java_hash_code(np.float64(0.1)) == java_hash_code(0.1)
    assert java_hash_code(np.float32(1)) != java_hash_code(1.0)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (datetime.date(2024, 1, 1), -1034816116),
        (datetime.date(1969, 12, 31), 86399999),
        (datetime.datetime(2024, 1, 2, 3, 4, 5, 678901), -937370974),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), 0),
        (datetime.time(23, 59, 59), 86399000),
    ],
)
def test_dates_and_times_hash_as_in_a_jvm_in_utc(key: object, code: int) -> None:
    # From Java 17: java.sql.Date, Timestamp and Time.valueOf(...).hashCode() under -Duser.timezone=UTC.
    assert java_hash_code(key) == code


def test_lone_surrogates_count_as_one_unit() -> None:
    assert java_hash_code("\ud83d\ude00") == java_hash_code("😀")
    assert java_hash_code("\ud83d") == 0xD83D


def test_a_tuple_in_a_row_and_a_row_in_a_tuple() -> None:
    row = Row("a", (1, None))
    assert java_hash_code(row) == 31 * (31 * 1 + (31 + java_hash_code("a"))) + 31 + java_hash_code((1, None))
    assert java_hash_code((None, row)) == java_hash_code(row)


def test_the_order_of_names_does_not_count() -> None:
    assert java_hash_code(Row(a=1, b="x")) == java_hash_code(Row(b="x", a=1))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "None"),
        (b"ab", "byte"),
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        ([1], "list"),
        ({"a": 1}, "dict"),
        (np.uint32(1), "uint32"),
        (np.float16(1), "float16"),
        (np.timedelta64(1, "s"), "timedelta64"),
        (datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc), "time zone"),
        (datetime.time(1, tzinfo=datetime.timezone.utc), "time zone"),
        ((1, object()), "key field 1: object"),
        (("a", b"ab"), "key field 1: bytes"),
        ((1, ("a", {1})), "key field 1: key field 1: set"),
        (Row("a", [1]), "key field 1: list"),
        (Row(name="a", legs={}), "key field 'legs': dict"),
    ],
)
def test_a_key_without_a_stable_hash_is_refused(key: object, message: str) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match=message):
        java_hash_code(key)


@given(st.integers(-(2**31), 2**31 - 1))
def test_murmur_hash_is_not_negative(code: int) -> None:
    assert 0 <= murmur_hash(code) < 2**31


def test_murmur_hash_of_the_code_whose_result_has_no_absolute_value() -> None:
    # The only preimage of -2**31, for which MathUtils.murmurHash returns 0.
    code = -2089875627
    assert murmur_hash(code) == 0
    assert key_groups(pa.array([code], pa.int32()), 32768).tolist() == [0]


# --- columns ----------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
longs = st.integers(-(2**63), 2**63 - 1)
TYPES_AND_VALUES = [
    (pa.bool_(), st.booleans(), np.bool_),
    (pa.int8(), st.integers(-(2**7), 2**7 - 1), np.int8),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1), np.int16),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1), np.int32),
    (pa.int64(), longs, int),
    (pa.float32(), st.floats(width=32), np.float32),
    (pa.float64(), st.floats(), float),
    (pa.string(), texts, str),
    (pa.large_string(), texts, str),
    (pa.date32(), st.dates(), lambda key: key),
    (pa.time64("us"), st.times(), lambda key: key),
    (pa.timestamp("us"), st.datetimes(), lambda key: key),
]


@pytest.mark.parametrize(("kind", "values", "scalar"), TYPES_AND_VALUES, ids=lambda value: str(value)[:12])
@given(data=st.data())
def test_columns_hash_as_scalars(kind: pa.DataType, values: st.SearchStrategy[Any], scalar: Any, data: Any) -> None:
    keys = data.draw(st.lists(values, max_size=40))
    max_parallelism = data.draw(st.integers(1, 32768))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    column = pa.array(keys, type=kind)
    hashes = [java_hash_code(scalar(key)) for key in keys]
    groups = [assign_to_key_group(scalar(key), max_parallelism) for key in keys]
    assert java_hash_codes(column).tolist() == hashes
    assert key_groups(column, max_parallelism).tolist() == groups
    assert java_hash_codes(column[start:stop]).tolist() == hashes[start:stop]
    chunked = pa.chunked_array([column[:start], column[start:]], type=kind)
    assert key_groups(chunked, max_parallelism).tolist() == groups


STRUCT = pa.struct(
    [
        ("s", pa.string()),
        ("l", pa.int64()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("n", pa.null()),
        ("inner", pa.struct([("t", pa.large_string()), ("f", pa.bool_())])),
    ]
)
inner_fields = st.tuples(st.none() | texts, st.none() | st.booleans())
outer_fields = st.tuples(
    st.none() | texts,
    st.none() | longs,
    st.none() | st.floats(),
    st.none() | st.booleans(),
    st.none(),
    st.none() | inner_fields,
)


def as_dicts(fields: tuple[Any, ...]) -> dict[str, Any]:
    inner = None if fields[5] is None else dict(zip("tf", fields[5], strict=True))
    return dict(zip(STRUCT.names, (*fields[:5], inner), strict=True))


def as_row(fields: tuple[Any, ...], named: bool) -> Row:
    inner = None if fields[5] is None else Row(*fields[5])
    row = Row(*fields[:5], inner)
    if named:
        row.set_field_names(STRUCT.names)
        if inner is not None:
            inner.set_field_names(["t", "f"])
    return row


@given(st.lists(outer_fields, max_size=15), st.integers(0, 15), st.integers(0, 15))
def test_structs_hash_as_tuples_and_rows(keys: list[Any], start: int, stop: int) -> None:
    column = pa.array([as_dicts(key) for key in keys], type=STRUCT)
    tuples = [java_hash_code(key) for key in keys]
    assert java_hash_codes(column).tolist() == tuples
    assert java_hash_codes(column[start:stop]).tolist() == tuples[start:stop]
    assert java_hash_codes(column, struct_as="row").tolist() == [java_hash_code(as_row(key, False)) for key in keys]
    named = [java_hash_code(as_row(key, True)) for key in keys]
    assert java_hash_codes(column, struct_as="named_row").tolist() == named
    assert java_hash_codes(column[start:stop], struct_as="named_row").tolist() == named[start:stop]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@given(st.lists(st.none() | st.binary(max_size=20), max_size=20), st.integers(0, 20))
def test_bytes_are_fields_of_rows_only(kind: pa.DataType, values: list[bytes | None], start: int) -> None:
    column = pa.array([{"f": value} for value in values], type=pa.struct([("f", kind)]))[start:]
    expected = [java_hash_code(Row(value)) for value in values][start:]
    assert java_hash_codes(column, struct_as="row").tolist() == expected
    with pytest.raises(UnsupportedKeyTypeError, match="key field 'f'"):
        java_hash_codes(column)


@given(length=st.integers(0, 20), rows=st.integers(1, 30), start=st.integers(0, 30), text=st.data())
def test_strings_of_one_length_hash_as_scalars(length: int, rows: int, start: int, text: Any) -> None:
    letters = st.characters(exclude_categories=["Cs"], max_codepoint=text.draw(st.sampled_from([0x7F, 0x10FFFF])))
    keys = text.draw(st.lists(st.text(letters, min_size=length, max_size=length), min_size=rows, max_size=rows))
    expected = [java_hash_code(key) for key in keys]
    assert java_hash_codes(pa.array(keys, pa.string())[start:]).tolist() == expected[start:]


def test_values_longer_than_a_block_of_work() -> None:
    keys = ["", "x" * 70_000, "é" * 35_000, "a", "😀" * 20_000, "", "日本語" * 3, "b" * 65_536, "", ""]
    expected = [java_hash_code(key) for key in keys]
    assert java_hash_codes(pa.array(keys)).tolist() == expected
    assert java_hash_codes(pa.array(keys)[3:8]).tolist() == expected[3:8]
    rows = pa.array([{"f": key.encode()} for key in keys])
    assert java_hash_codes(rows, struct_as="row").tolist() == [java_hash_code(Row(key.encode())) for key in keys]


def test_columns_longer_than_a_block_of_work() -> None:
    numbers = np.random.default_rng(7).integers(-(2**63), 2**63, 40_000, dtype=np.int64)
    keys = [f"user:{number}{'Ж' if number % 3 else '😀'}" for number in numbers.tolist()]
    assert key_groups(pa.array(numbers), 1000).tolist() == [assign_to_key_group(n, 1000) for n in numbers.tolist()]
    assert java_hash_codes(pa.array(keys)).tolist() == [java_hash_code(key) for key in keys]


def test_floats_with_unusual_bits() -> None:
    doubles = np.array([0x7FF8000000000000, 0xFFF8000000000123, 0x7FF0000000000001, 1 << 63, 0], dtype=np.uint64)
    floats = np.array([0x7FC00000, 0xFFC00123, 0x7F800001, 1 << 31, 0], dtype=np.uint32)
    assert java_hash_codes(pa.array(doubles.view(np.float64))).tolist() == [2146959360] * 3 + [-(2**31), 0]
    assert java_hash_codes(pa.array(floats.view(np.float32))).tolist() == [2143289344] * 3 + [-(2**31), 0]
    # The caller's data is unchanged.
    assert floats.tolist() == [0x7FC00000, 0xFFC00123, 0x7F800001, 1 << 31, 0]


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float32(), STRUCT], ids=str)
def test_empty_columns(kind: pa.DataType) -> None:
    for column in (pa.array([], type=kind), pa.chunked_array([], type=kind), pa.nulls(3, kind)[:0]):
        groups = key_groups(column, 128)
        assert (groups.dtype, len(groups)) == (np.uint16, 0)


def test_structs_without_fields() -> None:
    column = pa.array([{}, {}], type=pa.struct([]))
    assert java_hash_codes(column).tolist() == [java_hash_code(())] * 2
    assert java_hash_codes(column, struct_as="row").tolist() == [java_hash_code(Row())] * 2


@pytest.mark.parametrize(
    "column", [pa.array([1, None]), pa.array(["a", None]), pa.nulls(2), pa.array([None, {"a": 1}])]
)
def test_a_null_key_is_refused(column: pa.Array) -> None:
    with pytest.raises(UnsupportedKeyTypeError, match="null"):
        key_groups(column, 128)


@pytest.mark.parametrize(
    "kind",
    [pa.uint64(), pa.float16(), pa.binary(), pa.date64(), pa.decimal128(5), pa.dictionary(pa.int8(), pa.string())],
    ids=str,
)
def test_a_column_without_a_stable_hash_is_refused(kind: pa.DataType) -> None:
    column = pa.array([], type=kind)
    with pytest.raises(UnsupportedKeyTypeError, match=re.escape(f"Arrow type {kind} ")):
        key_groups(column, 128)
    nested = pa.StructArray.from_arrays([pa.array([], pa.int64()), column], names=["ok", "bad"])
    with pytest.raises(UnsupportedKeyTypeError, match="key field 'bad'"):
        key_groups(nested, 128)


@pytest.mark.parametrize("value", ["3", 2.0, True, None, [1]])
def test_a_parallelism_of_another_type_is_refused_wherever_one_is_given(value: Any) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1])
    for give in (
        env.set_parallelism,
        env.set_max_parallelism,
        stream.set_parallelism,
        stream.set_max_parallelism,
        env.get_job_graph().with_parallelism,
        lambda each: write_savepoint(parallelism=each),
        lambda each: write_savepoint(max_parallelism=each),
        lambda each: check_parallelism("parallelism", each),
    ):
        with pytest.raises(ParallelismError, match="must be a whole number from 1 to 32768"):
            give(value)
